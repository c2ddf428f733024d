"""What did it buy me? Evaluate one or more networks on the same data, and compare them."""

from hardsight.evaluation.results import Evaluation as Evaluation
from hardsight.evaluation.results import read_evaluation as read_evaluation
from hardsight.evaluation.run import evaluate as evaluate
from hardsight.evaluation.statistics import compare_groups as compare_groups
from hardsight.questions.subject import Subject as Subject
