"""Pictures made harder by degrees, and what that does to a network's scores."""

from hardsight.degradation.degradations import DEGRADATIONS as DEGRADATIONS
from hardsight.degradation.degradations import Degradation as Degradation
from hardsight.degradation.degradations import chosen_levels as chosen_levels
from hardsight.degradation.degradations import degrade as degrade
from hardsight.degradation.evaluation import evaluate_degraded as evaluate_degraded
from hardsight.degradation.evaluation import read_degraded as read_degraded
from hardsight.degradation.people import human_accuracy as human_accuracy
from hardsight.degradation.summary import follows_level as follows_level
from hardsight.degradation.summary import level_summary as level_summary
from hardsight.degradation.summary import mean_by_level as mean_by_level
from hardsight.degradation.views import DegradedSamples as DegradedSamples
from hardsight.degradation.views import at_every_level as at_every_level
