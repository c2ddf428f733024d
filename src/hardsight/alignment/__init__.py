"""Does the model find hard what people find hard, and which score says it best?"""

from hardsight.alignment.ceiling import Ceiling as Ceiling
from hardsight.alignment.ceiling import ceiling as ceiling
from hardsight.alignment.coefficients import Alignment as Alignment
from hardsight.alignment.coefficients import align as align
from hardsight.alignment.differences import Difference as Difference
from hardsight.alignment.differences import compare_all as compare_all
from hardsight.alignment.differences import compare_scores as compare_scores
from hardsight.alignment.hypotheses import Outcome as Outcome
from hardsight.alignment.hypotheses import hypotheses as hypotheses
from hardsight.alignment.leaderboard import leaderboard as leaderboard
from hardsight.alignment.nets import OverNets as OverNets
from hardsight.alignment.nets import over_nets as over_nets
