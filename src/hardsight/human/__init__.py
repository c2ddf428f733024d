"""What people said of samples: read from files, counted, and brought into the order of a run."""

from hardsight.human.answers import Human as Human
from hardsight.human.answers import as_human as as_human
from hardsight.human.answers import coarser as coarser
from hardsight.human.answers import halves as halves
from hardsight.human.answers import read_human as read_human
from hardsight.human.bins import FREQUENCY_EDGES as FREQUENCY_EDGES
from hardsight.human.bins import frequency_bins as frequency_bins
from hardsight.human.matching import Matched as Matched
from hardsight.human.matching import match as match
