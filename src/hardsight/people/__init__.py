"""Does the model find the same samples hard as people, and which score agrees with them best?"""

from hardsight.people.alignment import Alignment, align, align_run
from hardsight.people.ceiling import Ceiling, ceiling
from hardsight.people.differences import Difference, OverNets, compare_all, compare_runs, compare_scores, over_nets
from hardsight.people.folder import read_alignment, write_alignment
from hardsight.people.hypotheses import Outcome, hypotheses
from hardsight.people.leaderboard import leaderboard
from hardsight.people.matching import FREQUENCY_EDGES, Matched, frequency_bins, match
from hardsight.people.read import Human, as_human, coarser, halves, read_human
