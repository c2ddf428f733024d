"""Does the model find hard what people find hard, and which score says it best?"""

from hardsight.people.alignment import Alignment as Alignment
from hardsight.people.alignment import align as align
from hardsight.people.alignment import align_run as align_run
from hardsight.people.ceiling import Ceiling as Ceiling
from hardsight.people.ceiling import ceiling as ceiling
from hardsight.people.differences import Difference as Difference
from hardsight.people.differences import Outcome as Outcome
from hardsight.people.differences import OverNets as OverNets
from hardsight.people.differences import compare_all as compare_all
from hardsight.people.differences import compare_runs as compare_runs
from hardsight.people.differences import compare_scores as compare_scores
from hardsight.people.differences import hypotheses as hypotheses
from hardsight.people.differences import over_nets as over_nets
from hardsight.people.folder import read_alignment as read_alignment
from hardsight.people.folder import write_alignment as write_alignment
from hardsight.people.leaderboard import leaderboard as leaderboard
from hardsight.people.matching import FREQUENCY_EDGES as FREQUENCY_EDGES
from hardsight.people.matching import Matched as Matched
from hardsight.people.matching import frequency_bins as frequency_bins
from hardsight.people.matching import match as match
from hardsight.people.read import Human as Human
from hardsight.people.read import as_human as as_human
from hardsight.people.read import coarser as coarser
from hardsight.people.read import halves as halves
from hardsight.people.read import read_human as read_human
