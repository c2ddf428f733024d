"""hardsight finds the examples a classifier finds hard, shows them to people, and trains with that knowledge."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# Names are imported at first use: `import hardsight` costs next to nothing, and the command's help needs no torch.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
_HOMES = {
    name.name: node.module or "" for node in _STUB.body if isinstance(node, ast.ImportFrom) for name in node.names
}

__all__ = [name for name, home in _HOMES.items() if home != __name__]  # pyrefly: ignore

# Names that were top-level in the first edition, by the module that they are imported from now.
_MOVED = {
    "adaptation": "Adapted Method METHODS VALIDATORS",
    "angles": "angle_matrix paired_angle",
    "evaluation": "Evaluation",
    "heads": "Head HeadLayer",
    "labelerrors": "actions confident_joint Noise noise Ranking RANKINGS read_ids to_datalab",
    "losses": (
        "adjusted_logits arcface_logits CenterLoss CompositeLoss cosface_logits cosine_logits "
        "deferred_weights effective_number_weights encouraging_loss EncouragingBCELoss "
        "EuclideanContrastiveLoss FocalLoss ldam_margins soft_margin soft_margins sphereface_logits"
    ),
    "people": "ceiling coarser compare_all Human hypotheses leaderboard over_nets",
    "presets": "PRESETS",
    "questions": "attack ATTACKS cam check_masking classwise_ece cluster_metrics degrade DEGRADATIONS Detection "
    "detection DETECTORS ece energy_by_class evaluate_degraded fit_temperature logit_margin ood_scores reliability "
    "Subject",
    "sampling": "hardness_of latest_hardness PACINGS within_class",
    "schedules": "deferred ramp_down ramp_up Scheduled",
    "scores": "avh_series norm_within_class Score",
    "scoring.folds": "TrainingData",
    "series": "angle_sum_series",
    "training": "Trained",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        if _HOMES[name] == __name__:
            return importlib.import_module(f"{__name__}.{name}")
        globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return globals()[name]
    for module, names in _MOVED.items():
        if name in names.split():
            raise AttributeError(f"hardsight.{name} moved to hardsight.{module}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
