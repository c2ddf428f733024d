"""What did it buy me? One network or several, asked the same questions over the same data and compared."""

from hardsight.evaluation.results import Evaluation as Evaluation
from hardsight.evaluation.results import read_evaluation as read_evaluation
from hardsight.evaluation.run import evaluate as evaluate
from hardsight.evaluation.statistics import compare_groups as compare_groups
from hardsight.questions.subject import Subject as Subject
