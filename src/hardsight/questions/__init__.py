"""Questions about a network: each is one file and one entry of `QUESTIONS`.

A question is a function ``ask(subject, *, option=default, …)`` that returns an `Answer`, registered by a decorator that
says how its answer is shown. `subject` is a `Subject`: ``network`` (a `Model`, in eval mode and on the device while
`hardsight.evaluate` asks), ``predictions``, ``labels`` and ``avh`` of the samples that can be read, ``readable`` (these
samples), ``training_output``, and ``forward``, the keywords ``device``, ``batch_size`` and ``workers``. They are
computed when first used, once per network. Keyword-only parameters are options: `hardsight.evaluate` passes its
arguments of the same names. All of them, with the subject, decide whether a stored answer is used again; where anything
else does (the batches that random draws are made in), register with ``decided_by``. What only some calls ask is
registered with ``needs``, the option that asks it, and options are checked by ``prepare``, before any network is
opened. A new question needs its import below, nothing else::

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
from hardsight.questions import degradation as degradation
from hardsight.questions import margins as margins
from hardsight.questions import clusters as clusters
# isort: on

from hardsight.questions.answers import Answer as Answer
from hardsight.questions.answers import Note as Note
from hardsight.questions.answers import Point as Point
from hardsight.questions.answers import Row as Row
from hardsight.questions.calibration import Reliability as Reliability
from hardsight.questions.calibration import brier as brier
from hardsight.questions.calibration import classwise_ece as classwise_ece
from hardsight.questions.calibration import ece as ece
from hardsight.questions.calibration import fit_temperature as fit_temperature
from hardsight.questions.calibration import nll as nll
from hardsight.questions.calibration import reliability as reliability
from hardsight.questions.clusters import ClusterMetrics as ClusterMetrics
from hardsight.questions.clusters import angular_kmeans as angular_kmeans
from hardsight.questions.clusters import angular_silhouette as angular_silhouette
from hardsight.questions.clusters import cluster_metrics as cluster_metrics
from hardsight.questions.clusters import layout as layout
from hardsight.questions.degradation import evaluate_degraded as evaluate_degraded
from hardsight.questions.degradation import follows_level as follows_level
from hardsight.questions.degradation import human_accuracy as human_accuracy
from hardsight.questions.degradation import mean_by_level as mean_by_level
from hardsight.questions.degradation import read_degraded as read_degraded
from hardsight.questions.degradations import DEGRADATIONS as DEGRADATIONS
from hardsight.questions.degradations import Degradation as Degradation
from hardsight.questions.degradations import DegradedSamples as DegradedSamples
from hardsight.questions.degradations import at_every_level as at_every_level
from hardsight.questions.degradations import degrade as degrade
from hardsight.questions.margins import energy_by_class as energy_by_class
from hardsight.questions.margins import logit_margin as logit_margin
from hardsight.questions.ood import DETECTORS as DETECTORS
from hardsight.questions.ood import Detection as Detection
from hardsight.questions.ood import Detector as Detector
from hardsight.questions.ood import OODData as OODData
from hardsight.questions.ood import Training as Training
from hardsight.questions.ood import detection as detection
from hardsight.questions.ood import ood_scores as ood_scores
from hardsight.questions.subject import QUESTIONS as QUESTIONS
from hardsight.questions.subject import Question as Question
from hardsight.questions.subject import Subject as Subject
from hardsight.questions.uncertainty import Uncertainty as Uncertainty
from hardsight.questions.uncertainty import dropout_predictions as dropout_predictions
