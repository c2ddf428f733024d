"""Out of sample: every sample is scored by a head, or a network, that did not see its label in training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hardsight.data import Samples, View
from hardsight.ensemble import matrix
from hardsight.errors import InputError, StateError
from hardsight.extras import first_line, printable
from hardsight.models import Model, made_model
from hardsight.runs import FEATURES, STAGES, Meta, content_hash
from hardsight.scoring.one import Options, class_count, make_plan, score_one
from hardsight.scoring.refit import choose_strength, fit_head
from hardsight.scoring.rows import scored_rows
from hardsight.scoring.several import Stages, check_same_classes, numbering
from hardsight.scoring.vectors import feature_vectors
from hardsight.table import SampleTable
from hardsight.userfile import FileFunction


class TrainingData(Dataset[Any]):
    """The samples to train one fold's network on: items ``(picture, label)`` as the data set yields them.

    Attributes:
        labels: ``(n,)`` class indices in the data's own numbering.
        classes: How many classes there are.
        class_names: Their names, or None.
        images: All pictures as one array, where the data are arrays.
        fold: Which fold is held out.
        seed: A seed that differs for every fold and repeat; torch has been seeded with it.
    """

    def __init__(self, samples: Samples, index: np.ndarray, labels: np.ndarray, fold: int, seed: int) -> None:
        self._samples, self._index = samples, index
        self.labels, self.fold, self.seed = labels[index], fold, seed
        self.classes = class_count(samples, int(labels.max()) + 1)
        self.class_names = None if samples.classes is None else list(samples.classes)

    @property
    def images(self) -> np.ndarray:
        if self._samples.images is None:
            raise AttributeError("images: the data are not arrays; read them one by one, data[i].")
        return self._samples.images[self._index]

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        at = int(self._index[index])
        try:
            x = self._samples.load(at, None)[0]
        except Exception as error:
            id_ = printable(self._samples.ids[at])
            why = f"sample {id_!r} cannot be read ({first_line(error)}); catch this to train without it."
            raise InputError(why) from error
        if isinstance(x, (np.ndarray, Tensor)):
            x = x.copy() if isinstance(x, np.ndarray) else x.clone()  # a change in place must not reach the data
        return x, int(self.labels[index])


def assign_folds(labels: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """A fold for each sample: random, each class spread over the folds as evenly as it goes.

    Examples:
        >>> fold = assign_folds(np.array([0] * 6 + [1] * 3), 3, seed=0)
        >>> [sorted(fold[:6].tolist()), sorted(fold[6:].tolist())]
        [[0, 0, 1, 1, 2, 2], [0, 1, 2]]
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), dtype=np.int64)
    fold[order] = np.arange(len(labels)) % folds  # the samples of a class lie together and are dealt out like cards
    return fold


def check_folds(samples: Samples, folds: int, seeds: int) -> None:
    """Refuse what cannot be divided."""
    if seeds < 1:
        raise InputError(f"seeds must be 1 or more, got {seeds}.")
    if not 2 <= folds <= len(samples):
        raise InputError(f"folds must be between 2 and the number of samples ({len(samples):,}), got {folds}.")
    if samples.labels is None and next((label for _, label in samples.readable()), 0) is None:
        raise InputError(f"DATA: --folds needs labels, and {samples.origin} has none.")
    if samples.labels is not None and samples.labels.min() < 0:
        raise InputError(f"DATA: labels must be class indices from 0, got {int(samples.labels.min())}.")


def score_refitted(
    model: Model, samples: Samples, options: Options, out: Path | None, overwrite: bool, folds: int, seeds: int
) -> SampleTable:
    """The network's features as they are, and for each fold a head fitted to the data's labels of the other folds."""
    plan = make_plan([model], samples, options)
    named = {"name": model.name, "fingerprint": plan.pop("networks")[0]}
    plan |= {"model": named, "preprocessing": model.preprocessing, "out_of_sample": _divided(folds, seeds, "head")}
    with Stages(out, plan, overwrite) as stages:
        whole = stages.whole
        return _refitted(stages, model, samples, options, folds, seeds, named) if whole is None else whole


def _refitted(
    stages: Stages,
    model: Model,
    samples: Samples,
    options: Options,
    folds: int,
    seeds: int,
    named: Mapping[str, Any],
) -> SampleTable:
    seen = stages.table(
        FEATURES,
        lambda path: score_one(model, samples, replace(options, vectors=True), path, overwrite=True, keep="features"),
    )
    if "label" not in seen:
        raise InputError("DATA: --folds needs labels, and these data have none.")
    vectors = seen.vectors
    if vectors is None:
        raise StateError(f"RUN: the features in {STAGES}/{FEATURES} are missing; --overwrite the run.")
    place = pc.index_in(seen.to_arrow()["id"], value_set=vectors["id"].combine_chunks())
    x = torch.from_numpy(matrix(vectors, "features", np.asarray(place))).to(options.device)
    numbers, ids = seen["label"].copy(), seen.to_arrow()["id"].to_pylist()
    # Classes without a sample have no direction, and would count in every share of angles.
    present, labels = np.unique(numbers, return_inverse=True)
    classes, known = len(present), list(samples.classes or ())
    mapping = np.full(max(class_count(samples, 0), int(present.max()) + 1), -1)
    mapping[present] = np.arange(classes)
    gaps = len(mapping) > classes
    if classes < 2:
        raise InputError("DATA: --folds needs two classes or more to tell apart, and all samples are of one.")
    y = torch.from_numpy(labels).to(options.device)
    names = _repeats(model.name, seeds)
    tables, strengths = {}, []
    for seed, name in enumerate(names):
        fold = assign_folds(labels, folds, seed)
        pieces = []
        for held_out in range(folds):
            train = torch.from_numpy(fold != held_out).to(options.device)
            strengths.append(choose_strength(x[train], y[train], classes, seed, bias=options.use_bias))
            weight, bias = fit_head(x[train], y[train], classes, strengths[-1], bias=options.use_bias)
            index = np.flatnonzero(fold == held_out)
            held, held_ids = x[~train], [ids[i] for i in index]
            rows, bad = scored_rows(held_ids, held, weight, torch.from_numpy(labels[index]), bias, options.scores)
            kept = feature_vectors(rows["id"], held_ids, held, weight, bias, "direction") if options.vectors else None
            pieces.append(SampleTable(rows, None, bad, kept))
        tables[name] = _joined(pieces, ids, seen.bad)
    meta = {
        **{key: getattr(seen.meta, key) for key in ("weights", "preprocessing")},
        "model": {**named, "classes": classes, "head": f"refitted on {folds - 1} of {folds} folds"},
        "class_names": [known[k] if k < len(known) else str(k) for k in present.tolist()] if known or gaps else [],
        "label_mapping": mapping.tolist() if gaps else None,
        "strengths": sorted(set(strengths)),
    }
    return stages.finish(tables, meta, options, _rare_note(labels))


def score_trained(
    train: Callable[[TrainingData], Any],
    samples: Samples,
    options: Options,
    out: Path | None,
    overwrite: bool,
    folds: int,
    seeds: int,
) -> SampleTable:
    """For each fold a network that the user's function trains on the other folds."""
    name = train.name if isinstance(train, FileFunction) else getattr(train, "__name__", "train")
    labels = _labels(samples)
    plan = make_plan([], samples, options, train)
    named = {"name": name, "function": full_name(train)}
    plan |= {"model": named, "labels": content_hash(labels), "out_of_sample": _divided(folds, seeds, "model")}
    with Stages(out, plan, overwrite) as stages:
        whole = stages.whole
        return _trained(stages, train, samples, options, folds, seeds, named, labels) if whole is None else whole


def _trained(
    stages: Stages,
    train: Callable[[TrainingData], Any],
    samples: Samples,
    options: Options,
    folds: int,
    seeds: int,
    named: Mapping[str, Any],
    labels: np.ndarray,
) -> SampleTable:
    from tqdm import tqdm

    name, ids = named["name"], samples.ids

    def held_out_table(path: Path | None, fold: np.ndarray, held_out: int, seed: int) -> SampleTable:
        """Written whole or not at all: the rows of a fold belong to one training."""
        data = TrainingData(samples, np.flatnonzero(fold != held_out), labels, held_out, seed * folds + held_out)
        with _seeded(data.seed):
            model = made_model(train(data), name)
        if seeds > 1:
            model = replace(model, name=f"{model.name} seed {seed}")
        held = View(samples, np.flatnonzero(fold == held_out))
        table = score_one(model, held, replace(options, progress=False), keep="cosines")
        if path is not None:
            table.save(path, overwrite=True)
        return table

    tables: dict[str, SampleTable] = {}
    metas: list[Meta] = []
    bar = tqdm(total=seeds * folds, unit=" folds", desc="training", disable=None if options.progress else True)
    with bar:
        for seed in range(seeds):
            fold = assign_folds(labels, folds, seed)
            pieces = []
            for held_out in range(folds):
                make = partial(held_out_table, fold=fold, held_out=held_out, seed=seed)
                pieces.append(stages.table(f"seed{seed}-fold{held_out}", make))
                metas.append(pieces[-1].meta)
                ends = ("the first fold", metas[0]), (f"fold {held_out + 1}", metas[-1])
                check_same_classes([_numbered(*end) for end in ends])
                bar.update()
            tables[str(pieces[0].meta.model.name)] = _joined(pieces, ids)
    first = metas[0]
    own_name = str(first.model.name).removesuffix(" seed 0")
    meta = {
        **{key: getattr(first, key) for key in ("preprocessing", "class_names", "label_mapping")},
        "model": {**named, "name": own_name, "classes": first.model.classes, "head": first.model.head},
        "weights": "trained on the other folds",
    }
    return stages.finish(tables, meta, options, _rare_note(labels))


def _numbered(name: str, meta: Meta) -> tuple[str, list[str] | None, list[int]]:
    """A network's name, its class names, and how it counts the data's classes."""
    mapping = None if meta.label_mapping is None else np.array(meta.label_mapping)
    return name, meta.class_names or None, numbering(meta.model.classes or 0, mapping)


def full_name(train: Callable[..., Any]) -> str:
    """Module and name of a training function."""
    inner = train.function if isinstance(train, FileFunction) else train.func if isinstance(train, partial) else train
    return f"{inner.__module__}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"


def _divided(folds: int, seeds: int, retrained: str) -> dict[str, Any]:
    return {"folds": folds, "seeds": seeds, "retrained": retrained}


def _repeats(name: str, seeds: int) -> list[str]:
    return [name] if seeds == 1 else [f"{name} seed {seed}" for seed in range(seeds)]


def _joined(pieces: list[SampleTable], ids: list[str], bad: pa.Table | None = None) -> SampleTable:
    """The held-out parts as one table with a column ``fold``, in the order of `ids`."""
    parts = [piece.to_arrow().append_column("fold", pa.repeat(k, len(piece))) for k, piece in enumerate(pieces)]
    rows = pa.concat_tables(parts)
    rows = rows.take(pc.array_sort_indices(pc.index_in(rows["id"], value_set=pa.array(ids, pa.string()))))
    vectors = [piece.vectors for piece in pieces if piece.vectors is not None]
    lost = pa.concat_tables([piece.bad for piece in pieces] + ([] if bad is None else [bad]))
    warned = [note for piece in pieces for note in piece.meta.warnings]
    return SampleTable(rows, {"warnings": warned}, lost, pa.concat_tables(vectors) if vectors else None)


def _labels(samples: Samples) -> np.ndarray:
    """All labels; where the data do not list them every sample is read once."""
    labels = samples.labels
    if labels is None:
        labels = np.array([samples.load(i, None)[1] for i in range(len(samples))])
        if labels.dtype.kind not in "iu":
            raise InputError("DATA: --folds needs a class index as label of every sample, and these data lack some.")
    return labels.astype(np.int64)


def _rare_note(labels: np.ndarray) -> list[str]:
    rare = int((np.unique(labels, return_counts=True)[1] < 2).sum())
    if not rare:
        return []
    note = (
        f"{rare:,} classes have a single sample, which is scored by a head that has never seen its class: its scores "
        "say nothing about its label."
    )
    warnings.warn(note, UserWarning, stacklevel=4)
    return [note]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
