"""Does the order of training matter? Orders made from hardness against a uniform one, paired over seeds.

Every training has the same number of steps, the same learning rate at every step and, for one seed, the same initial
weights: an epoch draws as many samples as there are from the share that is in use. Hardness is the mean AVH over the
epochs of a separate training with its own seed, as a rank within each class. *random order* grows the share as the
curriculum does, but in a random order: what a curriculum gains must be more than that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import hardsight as hs
from hardsight.data import ArraySamples, Samples, all_labels
from hardsight.studies.declared.training import recipe_of, split_data, train_cell
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

TEACHER_SEED = 10_000
_ORDERS = ("uniform", "hard more often", "easy to hard", "hard to easy", "random order", "self-paced")
_CIFAR = {"epochs": 50, "lr": 0.4, "ema": 0.0, "graph": False}


@STUDIES.register(
    "curriculum",
    question="Does the order of training samples matter?",
    paper="",
    factors={"noise": ("0", "0.2"), "order": _ORDERS},
    measures={
        "accuracy": Measure("Test accuracy", True, "higher"),
        "test_loss": Measure("Test loss", better="lower"),
    },
    scales={
        "smoke": Scale(
            1,
            3,
            settings={"data": "digits", "model": "small-cnn", "recipe": {"epochs": 3}},
            levels={"noise": ("0.2",), "order": ("uniform", "easy to hard", "self-paced")},
        ),
        "quick": Scale(5, 10, settings={"data": "digits", "model": "small-cnn", "recipe": {}}),
        "paper": Scale(
            5, 60, "NVIDIA H200", {"data": "cifar10.npz", "model": "cifar-resnet18", "recipe": _CIFAR}
        ),
    },
    compare="order",
    baseline="uniform",
)  # fmt: skip
def _trained(cell: Cell) -> dict[str, Any]:
    training, test = split_data(cell)
    data = _with_noise(training, float(cell.levels["noise"])), test
    with cell.shared(f"teacher-{cell.levels['noise']}") as folder:
        teacher = recipe_of(cell, seed=TEACHER_SEED)
        train_cell(cell, data, teacher, out=folder / "run", record=("train",))
        hardness = hs.sampling.hardness_of(folder / "run" / "train", data[0])
    hardness = hs.sampling.within_class(hardness, all_labels(data[0], "data"))
    sampler = _sampler(cell, hardness, data[0])
    record = ("train",) if cell.levels["order"] == "self-paced" else ()
    history = train_cell(cell, data, recipe_of(cell), sampler=sampler, record=record).history
    steps = sum(row["steps"] for row in history)
    return {"accuracy": history[-1]["test_accuracy"], "test_loss": history[-1]["test_loss"], "steps": steps}


def _sampler(cell: Cell, hardness: np.ndarray, training: Samples) -> Any:
    """The share in use grows with the square root of time and is everything after 60% of the epochs."""
    order, n, values = cell.levels["order"], len(hardness), hardness
    if order == "uniform":
        return None
    if order == "hard more often":
        return hs.HardnessSampler(hardness, seed=cell.seed)
    if order == "random order":
        values = np.random.default_rng(cell.seed).random(n)
    elif order == "self-paced":
        values = hs.sampling.latest_hardness(cell.folder / "run" / "train", training)
    grows, backwards = max(1, round(0.6 * recipe_of(cell).epochs)), order == "hard to easy"
    return hs.CurriculumSampler(values, "root", grows, num_samples=n, seed=cell.seed, hardest_first=backwards)


def _with_noise(samples: Samples, share: float) -> Samples:
    """The samples with wrong labels for a share of them."""
    if not share:
        return samples
    labels, random = all_labels(samples, "data").astype(np.int64), np.random.default_rng(0)
    wrong = random.choice(len(labels), round(share * len(labels)), replace=False)
    classes = labels.max() + 1
    labels[wrong] = (labels[wrong] + random.integers(1, classes, len(wrong))) % classes
    return ArraySamples(samples.images, labels, samples.split, samples.origin, samples.classes, samples.ids)
