"""Small experiments of the AVH paper that take seconds to minutes on a CPU."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr

from hardsight.studies.avh import embeddings, two_gaussians
from hardsight.studies.study import STUDIES, Cell, Measure, Scale


@STUDIES.register(
    "two-gaussians",
    question="Does AVH, or the norm, follow the true probability of the other class?",
    paper="AVH, Fig. 3 and 7",
    factors={},
    measures={
        "accuracy": Measure("Accuracy", True, "higher"),
        "AVH": Measure("Spearman's correlation of AVH with the true doubt"),
        "norm": Measure("Spearman's correlation of the norm with the true doubt"),
    },
    scales={
        "smoke": Scale(2, 1, settings={"n": 200, "steps": 100}),
        "paper": Scale(10, 3, settings={"n": 1000, "steps": 1000}),
    },
)
def _two_gaussians(cell: Cell) -> dict[str, float]:
    result = two_gaussians(cell.seed, **cell.settings)
    correlations = {name: spearmanr(getattr(result, name.lower()), result.doubt).statistic for name in ("AVH", "norm")}
    return {"accuracy": result.accuracy, **correlations}


@STUDIES.register(
    "embeddings",
    question="Are classes rays from the origin in two dimensions?",
    paper="AVH, Fig. 2 and 8",
    factors={},
    measures={
        "accuracy": Measure("Accuracy", True, "higher"),
        "nearest": Measure("Samples whose nearest direction is their label's", True),
        "length": Measure("Length of the mean direction, mean over classes"),
        "shortest": Measure("Length of the mean direction, smallest of the classes"),
    },
    scales={
        "smoke": Scale(2, 3, settings={"data": "digits", "steps": 50}),
        "paper": Scale(3, 40, settings={"data": "mnist.npz", "steps": 1500}),
    },
)
def _embeddings(cell: Cell) -> dict[str, float]:
    result = embeddings(
        cell.file(cell.settings["data"]), steps=cell.settings["steps"], seed=cell.seed, device=str(cell.device)
    )
    directions, axes = (
        v / np.linalg.norm(v, axis=1, keepdims=True).clip(1e-12) for v in (result.features, result.weight)
    )
    lengths = np.array([np.linalg.norm(directions[result.labels == k].mean(0)) for k in range(len(axes))])
    nearest = ((directions @ axes.T).argmax(1) == result.labels).mean()
    return {"accuracy": result.accuracy, "nearest": nearest, "length": lengths.mean(), "shortest": lengths.min()}
