"""Label errors: which labels are probably wrong, how many there are, what to do about each, and the data cleaned.

Rankings, estimates and actions are computed from a `SampleTable` alone; `clean` opens the data but never changes them.
"""

from hardsight.labelerrors.confident import Noise as Noise
from hardsight.labelerrors.confident import confident_joint as confident_joint
from hardsight.labelerrors.confident import noise as noise
from hardsight.labelerrors.confident import probability_matrix as probability_matrix
from hardsight.labelerrors.lists import clean as clean
from hardsight.labelerrors.lists import label_texts as label_texts
from hardsight.labelerrors.lists import read_ids as read_ids
from hardsight.labelerrors.rankings import DEFAULT as DEFAULT
from hardsight.labelerrors.rankings import RANKINGS as RANKINGS
from hardsight.labelerrors.rankings import Ranking as Ranking
from hardsight.labelerrors.rankings import to_datalab as to_datalab
from hardsight.labelerrors.suspects import ACTIONS as ACTIONS
from hardsight.labelerrors.suspects import accuracy_note as accuracy_note
from hardsight.labelerrors.suspects import actions as actions
from hardsight.labelerrors.suspects import label_errors as label_errors
