"""hardsight sees which examples are hard for a classifier, shows it to people, and trains with it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardsight.adaptation import METHODS as METHODS
    from hardsight.adaptation import VALIDATORS as VALIDATORS
    from hardsight.adaptation import Adapted as Adapted
    from hardsight.adaptation import Method as Method
    from hardsight.adaptation import self_train as self_train
    from hardsight.alignment import align as align
    from hardsight.alignment import ceiling as ceiling
    from hardsight.alignment import compare_all as compare_all
    from hardsight.alignment import compare_scores as compare_scores
    from hardsight.alignment import hypotheses as hypotheses
    from hardsight.alignment import leaderboard as leaderboard
    from hardsight.alignment import over_nets as over_nets
    from hardsight.angles import angle_matrix as angle_matrix
    from hardsight.angles import angle_sum_series as angle_sum_series
    from hardsight.angles import paired_angle as paired_angle
    from hardsight.calibration import classwise_ece as classwise_ece
    from hardsight.calibration import ece as ece
    from hardsight.calibration import fit_temperature as fit_temperature
    from hardsight.calibration import reliability as reliability
    from hardsight.cleaning import clean as clean
    from hardsight.cleaning import read_ids as read_ids
    from hardsight.cleaning import to_datalab as to_datalab
    from hardsight.clusters import cluster_metrics as cluster_metrics
    from hardsight.comparison import compare as compare
    from hardsight.data import Columns as Columns
    from hardsight.data import open_data as open_data
    from hardsight.data import read_features as read_features
    from hardsight.degradation import DEGRADATIONS as DEGRADATIONS
    from hardsight.degradation import degrade as degrade
    from hardsight.degradation import evaluate_degraded as evaluate_degraded
    from hardsight.dynamics import Dynamics as Dynamics
    from hardsight.dynamics import Recorder as Recorder
    from hardsight.errors import HardsightError as HardsightError
    from hardsight.evaluation import Evaluation as Evaluation
    from hardsight.evaluation import Subject as Subject
    from hardsight.evaluation import evaluate as evaluate
    from hardsight.explanation import cam as cam
    from hardsight.heads import Head as Head
    from hardsight.heads import HeadLayer as HeadLayer
    from hardsight.heads import capture as capture
    from hardsight.heads import find_head as find_head
    from hardsight.human import Human as Human
    from hardsight.human import coarser as coarser
    from hardsight.human import read_human as read_human
    from hardsight.labelerrors import RANKINGS as RANKINGS
    from hardsight.labelerrors import Noise as Noise
    from hardsight.labelerrors import Ranking as Ranking
    from hardsight.labelerrors import actions as actions
    from hardsight.labelerrors import confident_joint as confident_joint
    from hardsight.labelerrors import label_errors as label_errors
    from hardsight.labelerrors import noise as noise
    from hardsight.losses import AMCLoss as AMCLoss
    from hardsight.losses import AVHLoss as AVHLoss
    from hardsight.losses import CenterLoss as CenterLoss
    from hardsight.losses import CompositeLoss as CompositeLoss
    from hardsight.losses import EncouragingBCELoss as EncouragingBCELoss
    from hardsight.losses import EncouragingLoss as EncouragingLoss
    from hardsight.losses import EuclideanContrastiveLoss as EuclideanContrastiveLoss
    from hardsight.losses import FocalLoss as FocalLoss
    from hardsight.losses import MirrorMSELoss as MirrorMSELoss
    from hardsight.losses import adjusted_logits as adjusted_logits
    from hardsight.losses import angular_logits as angular_logits
    from hardsight.losses import arcface_logits as arcface_logits
    from hardsight.losses import build_loss as build_loss
    from hardsight.losses import cosface_logits as cosface_logits
    from hardsight.losses import cosine_logits as cosine_logits
    from hardsight.losses import deferred_weights as deferred_weights
    from hardsight.losses import effective_number_weights as effective_number_weights
    from hardsight.losses import encouraging_loss as encouraging_loss
    from hardsight.losses import ldam_margins as ldam_margins
    from hardsight.losses import soft_margin as soft_margin
    from hardsight.losses import soft_margins as soft_margins
    from hardsight.losses import sphereface_logits as sphereface_logits
    from hardsight.losses import spherical_logits as spherical_logits
    from hardsight.losses import taylor_logits as taylor_logits
    from hardsight.margins import energy_by_class as energy_by_class
    from hardsight.margins import logit_margin as logit_margin
    from hardsight.models import Model as Model
    from hardsight.models import load_model as load_model
    from hardsight.ood import DETECTORS as DETECTORS
    from hardsight.ood import Detection as Detection
    from hardsight.ood import detection as detection
    from hardsight.ood import ood_scores as ood_scores
    from hardsight.presets import PRESETS as PRESETS
    from hardsight.recipes import Recipe as Recipe
    from hardsight.report import write_report as write_report
    from hardsight.robustness import ATTACKS as ATTACKS
    from hardsight.robustness import attack as attack
    from hardsight.robustness import check_masking as check_masking
    from hardsight.sampling import PACINGS as PACINGS
    from hardsight.sampling import CurriculumSampler as CurriculumSampler
    from hardsight.sampling import HardnessSampler as HardnessSampler
    from hardsight.sampling import SelfPacedSampler as SelfPacedSampler
    from hardsight.sampling import hardness_of as hardness_of
    from hardsight.sampling import latest_hardness as latest_hardness
    from hardsight.sampling import within_class as within_class
    from hardsight.schedules import Scheduled as Scheduled
    from hardsight.schedules import deferred as deferred
    from hardsight.schedules import ramp_down as ramp_down
    from hardsight.schedules import ramp_up as ramp_up
    from hardsight.scores import SCORES as SCORES
    from hardsight.scores import Score as Score
    from hardsight.scores import Tolerance as Tolerance
    from hardsight.scores import angle as angle
    from hardsight.scores import angular_margin as angular_margin
    from hardsight.scores import avc as avc
    from hardsight.scores import avh as avh
    from hardsight.scores import avh_series as avh_series
    from hardsight.scores import confidence as confidence
    from hardsight.scores import el2n as el2n
    from hardsight.scores import entropy as entropy
    from hardsight.scores import free_energy as free_energy
    from hardsight.scores import margin as margin
    from hardsight.scores import max_logit as max_logit
    from hardsight.scores import nll as nll
    from hardsight.scores import norm as norm
    from hardsight.scores import norm_within_class as norm_within_class
    from hardsight.scoring.folds import TrainingData as TrainingData
    from hardsight.scoring.score import score as score
    from hardsight.scoring.score import score_features as score_features
    from hardsight.table import SampleTable as SampleTable
    from hardsight.training import Trained as Trained
    from hardsight.training import train as train

__version__ = "0.1.0"

# Names are imported at first use: `import hardsight` costs next to nothing, and the command's help no torch.
_HOMES = {
    "hardsight.adaptation": ("METHODS", "VALIDATORS", "Adapted", "Method", "self_train"),
    "hardsight.alignment": (
        "align", "ceiling", "compare_all", "compare_scores", "hypotheses", "leaderboard", "over_nets",
    ),
    "hardsight.angles": ("angle_matrix", "angle_sum_series", "paired_angle"),
    "hardsight.calibration": ("classwise_ece", "ece", "fit_temperature", "reliability"),
    "hardsight.cleaning": ("clean", "read_ids", "to_datalab"),
    "hardsight.clusters": ("cluster_metrics",),
    "hardsight.comparison": ("compare",),
    "hardsight.data": ("Columns", "open_data", "read_features"),
    "hardsight.degradation": ("DEGRADATIONS", "degrade", "evaluate_degraded"),
    "hardsight.dynamics": ("Dynamics", "Recorder"),
    "hardsight.errors": ("HardsightError",),
    "hardsight.evaluation": ("Evaluation", "Subject", "evaluate"),
    "hardsight.explanation": ("cam",),
    "hardsight.scores": (
        "SCORES", "Score", "Tolerance", "avh_series", "norm_within_class",
        "avh", "avc", "confidence", "nll", "norm", "margin", "angle", "angular_margin", "entropy", "el2n", "max_logit",
        "free_energy",
    ),
    "hardsight.heads": ("Head", "HeadLayer", "capture", "find_head"),
    "hardsight.human": ("Human", "coarser", "read_human"),
    "hardsight.labelerrors": (
        "RANKINGS", "Noise", "Ranking", "actions", "confident_joint", "label_errors", "noise",
    ),
    "hardsight.losses": (
        "AMCLoss", "AVHLoss", "CenterLoss", "CompositeLoss", "EncouragingBCELoss", "EncouragingLoss",
        "EuclideanContrastiveLoss", "FocalLoss", "MirrorMSELoss", "adjusted_logits", "angular_logits",
        "arcface_logits", "build_loss", "cosface_logits", "cosine_logits", "deferred_weights",
        "effective_number_weights", "encouraging_loss", "ldam_margins", "soft_margin", "soft_margins",
        "sphereface_logits", "spherical_logits", "taylor_logits",
    ),
    "hardsight.margins": ("energy_by_class", "logit_margin"),
    "hardsight.models": ("Model", "load_model"),
    "hardsight.ood": ("DETECTORS", "Detection", "detection", "ood_scores"),
    "hardsight.presets": ("PRESETS",),
    "hardsight.recipes": ("Recipe",),
    "hardsight.report": ("write_report",),
    "hardsight.robustness": ("ATTACKS", "attack", "check_masking"),
    "hardsight.sampling": (
        "PACINGS", "CurriculumSampler", "HardnessSampler", "SelfPacedSampler", "hardness_of", "latest_hardness",
        "within_class",
    ),
    "hardsight.schedules": ("Scheduled", "deferred", "ramp_down", "ramp_up"),
    "hardsight.scoring.folds": ("TrainingData",),
    "hardsight.scoring.score": ("score", "score_features"),
    "hardsight.table": ("SampleTable",),
    "hardsight.training": ("Trained", "train"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF]  # pyrefly: ignore


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hardsight' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
