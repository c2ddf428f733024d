"""Do richer features agree better with people? A user's pretrained network, read by heads that are fitted to labels.

The network is frozen; its features of the images that people were asked about are computed once. *folds*: each fifth
of these images is scored by a head fitted to the labels of the others. *probe*: a head fitted to training images. No
head sees people's answers. Seeds draw the folds and the training images, so the spread over seeds is that of heads, not
of networks.

::

    hardsight study run people-backbone --scale paper --data DIR --network timm:vit_base_patch16_clip_224.openai
    hardsight study run people-backbone --scale paper --data DIR --network timm:resnet50 --weights resnet50.pt
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

import hardsight as hs
from hardsight.data import Samples, all_labels
from hardsight.ensemble import matrix
from hardsight.errors import InputError
from hardsight.models import Model, backbone, new_model
from hardsight.runs import write_whole
from hardsight.scoring.folds import choose_strength, fit_head
from hardsight.scoring.network import score_network
from hardsight.scoring.options import ScoreOptions
from hardsight.studies.declared.people import AGREEMENT, agreement_rows, human_frequency
from hardsight.studies.declared.training import first_of, split_data
from hardsight.studies.study import STUDIES, Cell, Measure, Scale
from hardsight.tablefiles import floats

FOLDS = 5
_SCORES = ("avh", "angle", "angular_margin", "confidence", "soft_margin", "norm")
_CIFAR = {"data": "cifar10.npz", "data_human": "cifar10h.npz"}
# Of how many images: people's, those to train on, and those of them that one probe learns from.
_SMOKE = {"data": "digits", "asked": 150, "pool": 150, "probe": 120}


@STUDIES.register(
    "people-backbone",
    question="Do the features of a pretrained network agree better with people?",
    paper="",
    factors={"head": ("folds", "probe")},
    details=("network", "weights", "score"),
    measures={**AGREEMENT, "accuracy": Measure("Accuracy of the head", True, "higher")},
    scales={
        "smoke": Scale(2, 2, settings=_SMOKE),
        "quick": Scale(5, 60, settings=_CIFAR | {"asked": 2000, "pool": 3000, "probe": 2000}),
        "paper": Scale(5, 60, "NVIDIA H200", _CIFAR | {"probe": 20_000}),
    },
    compare="score",
    baseline="confidence",
    takes_weights=True,
    takes_network=True,
)
def _agreement(cell: Cell) -> list[dict[str, Any]]:
    """The accuracy of a head, and one row per score."""
    training, test = split_data(cell)
    test = first_of(test, cell.settings.get("asked"))
    labels, network = all_labels(test, "data"), partial(_network, cell, training)
    asked = _features(cell, network, test, "test")
    if cell.levels["head"] == "folds":
        table = hs.score_features(asked, labels=labels, ids=test.ids, folds=FOLDS, seed=cell.seed, vectors=False)
    else:
        draw = np.random.default_rng(cell.seed).permutation(len(training))[: cell.settings["probe"]]
        drawn = _features(cell, network, training, "train")[torch.from_numpy(draw)]
        weight, bias = _probe(drawn, all_labels(training, "data")[draw], cell.seed)
        table = hs.score_features(asked, weight, labels, bias=bias, ids=test.ids, vectors=False)
    rows = table.aligned(test.ids)
    columns = {name: floats(rows[name]) for name in _SCORES}
    agreed = agreement_rows(columns, human_frequency(cell, labels))
    return [{"score": "", "accuracy": table.accuracy, "n": len(labels)}, *agreed]


def _probe(features: Tensor, labels: np.ndarray, seed: int) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a head, with the strength of its penalty chosen on a fifth of these samples."""
    targets, classes = torch.from_numpy(labels).long().to(features.device), int(labels.max()) + 1
    return fit_head(features, targets, classes, choose_strength(features, targets, classes, seed))


def _network(cell: Cell, training: Samples) -> Model:
    classes = int(all_labels(training, "data").max()) + 1
    if cell.network is not None:
        return backbone(cell.network, classes, cell.weights)
    if "data_human" in cell.settings:
        raise InputError("network must name the pretrained network, timm:NAME for instance, got none.")
    with torch.random.fork_rng():  # a small random network, to try the study without any weights
        torch.manual_seed(0)
        return new_model("hardsight:small-cnn", classes, channels=1)


def _features(cell: Cell, network: Callable[[], Model], samples: Samples, name: str) -> Tensor:
    """Features of all samples in their order, computed once for all cells."""
    with cell.shared(f"features-{name}") as folder:
        file = folder / "features.npy"
        if not file.exists():
            options = ScoreOptions(device=str(cell.device), progress=False, vectors=True)
            table = score_network(network(), samples, options, keep="features")
            if len(table.bad):
                id_, error = table.bad.to_pylist()[0].values()
                raise InputError(f"data: {len(table.bad):,} images have no features; first: {id_}: {error}.")
            vectors: Any = table.vectors
            place = pc.index_in(pa.array(samples.ids, pa.string()), value_set=vectors["id"].combine_chunks())
            write_whole(file, partial(_save, matrix(vectors, "features", np.asarray(place))))
        return torch.from_numpy(np.load(file)).to(cell.device)


def _save(values: np.ndarray, path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, values)
