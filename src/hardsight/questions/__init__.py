"""Questions about a network: each is one file and one entry of `QUESTIONS`.

A question is a function ``ask(subject, *, option=default, …)`` that returns an `Answer`, registered by a decorator that
says how its answer is shown. `subject` is a `Subject`: ``network`` (a `Model`, in eval mode and on the device while
`hardsight.evaluate` asks), ``predictions``, ``labels`` and ``avh`` of the samples that can be read, ``readable`` (these
samples), ``training_output``, and ``forward``, the keywords ``device``, ``batch_size`` and ``workers``. They are
computed when first used, once per network. Keyword-only parameters are options: `hardsight.evaluate` passes its
arguments of the same names. A stored answer is reused if the subject and all options are the same; if it depends on
anything else (the batches that random draws are made in), register with ``decided_by``. A question that only some calls
ask is registered with ``needs``, the option that asks it. ``prepare`` checks options before any network is opened. A
new question needs nothing but its import below::

    @QUESTIONS.register("norms", title="Norms", about="How long are features?", telling=(("norm", ""),))
    def ask(subject: Subject, *, seed: int = 0) -> Answer:
        answer = Answer(question="norms")
        answer.mean("norm", subject.predictions.norms)  # a row with its interval, and a column per sample
        return answer
"""

# In the order of their sections on a page.
# isort: off
from hardsight.questions import calibration as calibration
from hardsight.questions import ood as ood
from hardsight.questions import uncertainty as uncertainty
from hardsight.questions import robustness as robustness
from hardsight.questions import explanation as explanation
from hardsight.questions import degradation as degradation
from hardsight.questions import margins as margins
from hardsight.questions import clusters as clusters
# isort: on

from hardsight.probabilities import Uncertainty, fit_temperature
from hardsight.questions.answers import Answer, Note, Point, Row
from hardsight.questions.attacks import ATTACKS, Attack, Attacked, attack
from hardsight.questions.calibration import Reliability, classwise_ece, ece, reliability
from hardsight.questions.clusters import ClusterMetrics, angular_kmeans, angular_silhouette, cluster_metrics, layout
from hardsight.questions.degradation import evaluate_degraded, read_degraded
from hardsight.questions.degradations import DEGRADATIONS, Degradation, DegradedSamples, at_every_level, degrade
from hardsight.questions.gradcam import cam
from hardsight.questions.levels import follows_level, human_accuracy, mean_by_level
from hardsight.questions.mapmeasures import Curves, area, entropy, infidelity, insertion_deletion, mass_inside
from hardsight.questions.margins import energy_by_class, logit_margin
from hardsight.questions.masking import Verdict, check_masking
from hardsight.questions.ood import DETECTORS, Detection, Detector, OODData, Training, detection, ood_scores
from hardsight.questions.pixels import PixelModel, pixel_model
from hardsight.questions.subject import QUESTIONS, Question, Subject
from hardsight.questions.uncertainty import dropout_predictions
