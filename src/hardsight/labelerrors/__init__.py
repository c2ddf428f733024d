"""Label errors: which labels are probably wrong, how many there are, and what to do about each.

Records in, rows out: everything is computed from a `SampleTable`, without the model or the data.
"""

from hardsight.labelerrors.confident import Noise as Noise
from hardsight.labelerrors.confident import confident_joint as confident_joint
from hardsight.labelerrors.confident import noise as noise
from hardsight.labelerrors.confident import probability_matrix as probability_matrix
from hardsight.labelerrors.rankings import DEFAULT as DEFAULT
from hardsight.labelerrors.rankings import RANKINGS as RANKINGS
from hardsight.labelerrors.rankings import Ranking as Ranking
from hardsight.labelerrors.rankings import check_ranking as check_ranking
from hardsight.labelerrors.safety import Automatic as Automatic
from hardsight.labelerrors.suspects import accuracy_note as accuracy_note
from hardsight.labelerrors.suspects import actions as actions
from hardsight.labelerrors.suspects import label_errors as label_errors
from hardsight.labelerrors.suspects import sampling_note as sampling_note
