"""Out of sample: every sample is scored by a head, or a network, that did not see its label in training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hardsight.data import Samples, View, all_labels
from hardsight.devices import find_device
from hardsight.ensemble import matrix
from hardsight.errors import InputError, StateError
from hardsight.extras import first_line, printable
from hardsight.models import Model, returned_model
from hardsight.runs import FEATURES, STAGES, Meta, content_hash
from hardsight.scoring.blocks import as_table, score_block
from hardsight.scoring.checks import class_count
from hardsight.scoring.network import (
    ClassOrder,
    Stage,
    Staged,
    check_same_classes,
    make_plan,
    score_in_stages,
    score_network,
)
from hardsight.scoring.options import ScoreOptions
from hardsight.scoring.refit import choose_strength, fit_head
from hardsight.table import SampleTable
from hardsight.userfile import FileFunction


class TrainingData(Dataset[Any]):
    """The samples to train one fold's network on: items ``(image, label)`` as the data set yields them.

    Attributes:
        labels: ``(n,)`` class indices in the data's own numbering.
        classes: How many classes there are.
        class_names: Their names, or None.
        images: All images as one array, where the data are arrays.
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
        place = int(self._index[index])
        try:
            x = self._samples.load(place, None)[0]
        except Exception as error:
            id_ = printable(self._samples.ids[place])
            raise InputError(
                f"sample {id_!r} cannot be read ({first_line(error)}); catch this to train without it."
            ) from error
        if isinstance(x, (np.ndarray, Tensor)):
            x = x.copy() if isinstance(x, np.ndarray) else x.clone()  # a change in place must not reach the data
        return x, int(self.labels[index])


def assign_folds(labels: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """A fold for each sample: random, with each class spread over the folds as evenly as possible.

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


def check_folds(samples: Samples, folds: int) -> None:
    """Refuse data that cannot be divided."""
    if not 2 <= folds <= len(samples):
        raise InputError(f"folds must be between 2 and the number of samples ({len(samples):,}), got {folds}.")
    if samples.labels is None and next((label for _, label in samples.readable()), 0) is None:
        raise InputError(f"DATA: --folds needs labels, and {samples.origin} has none.")
    if samples.labels is not None and samples.labels.min() < 0:
        raise InputError(f"DATA: labels must be class indices from 0, got {int(samples.labels.min())}.")


def _division(folds: int, options: ScoreOptions, retrained: str) -> dict[str, Any]:
    """How the data are divided, as a run says it; the seed only where it is not the usual one."""
    division = {"folds": folds, "seeds": options.seeds, "retrained": retrained}
    return division | ({"seed": options.seed} if options.seed else {})


def score_refitted(model: Model, samples: Samples, options: ScoreOptions, folds: int) -> SampleTable:
    """The network's features as they are, and for each fold a head fitted to the labels of the other folds."""
    plan = make_plan([model], samples, options)
    about = {"name": model.name, "fingerprint": plan.pop("networks")[0]}
    division = _division(folds, options, "head")
    plan |= {"model": about, "preprocessing": model.preprocessing, "out_of_sample": division}

    def score(stage: Stage) -> Staged:
        whole = stage(FEATURES, lambda o: score_network(model, samples, replace(o, vectors=True), keep="features"))
        if "label" not in whole:
            raise InputError("DATA: --folds needs labels, and these data have none.")
        features = _features(whole).to(find_device(options.device))
        # Classes without a sample have no direction, and would count in every sum of angles.
        present, labels = np.unique(whole["label"], return_inverse=True)
        if len(present) < 2:
            raise InputError("DATA: --folds needs two classes or more to tell apart, and all samples are of one.")
        seeds = range(options.seed, options.seed + options.seeds)
        names = [model.name] if options.seeds == 1 else [f"{model.name} seed {seed}" for seed in seeds]
        tables, strengths = {}, set()
        for seed, name in zip(seeds, names, strict=True):
            fold = assign_folds(labels, folds, seed)
            parts = []
            for held_out in range(folds):
                part, strength = _refit(whole, features, labels, fold == held_out, seed, options)
                parts.append(part)
                strengths.add(strength)
            tables[name] = _joined(parts, whole["id"].tolist(), whole.bad)
        mapping = np.full(max(class_count(samples, 0), int(present.max()) + 1), -1)
        mapping[present] = np.arange(len(present))
        class_names, gaps = list(samples.classes or ()), len(mapping) > len(present)
        if class_names or gaps:
            class_names = [class_names[k] if k < len(class_names) else str(k) for k in present.tolist()]
        head = f"refitted on {folds - 1} of {folds} folds"
        meta = {
            **{key: getattr(whole.meta, key) for key in ("weights", "preprocessing")},
            "model": {**about, "classes": len(present), "head": head},
            "class_names": class_names,
            "label_mapping": mapping.tolist() if gaps else None,
            "strengths": sorted(strengths),
        }
        return Staged(tables, meta, _rare_class_notes(labels))

    return score_in_stages(plan, options, score)


def _features(table: SampleTable) -> Tensor:
    """The stored features in the order of the rows."""
    vectors = table.vectors
    if vectors is None:
        raise StateError(f"RUN: the features in {STAGES}/{FEATURES} are missing; --overwrite the run.")
    place = pc.index_in(table.to_arrow()["id"], value_set=vectors["id"].combine_chunks())
    return torch.from_numpy(matrix(vectors, "features", np.asarray(place)))


def _refit(
    whole: SampleTable, features: Tensor, labels: np.ndarray, held_out: np.ndarray, seed: int, options: ScoreOptions
) -> tuple[SampleTable, float]:
    """The held-out samples as a head judges them that was fitted to all others, and how strongly it was penalized."""
    classes, train = int(labels.max()) + 1, torch.from_numpy(~held_out).to(features.device)
    x, y = features[train], torch.from_numpy(labels).to(features.device)[train]
    strength = choose_strength(x, y, classes, seed, bias=options.use_bias)
    weight, bias = fit_head(x, y, classes, strength, bias=options.use_bias)
    ids, targets = whole["id"][held_out].tolist(), torch.from_numpy(labels[held_out])
    keep = "direction" if options.vectors else None
    block = score_block(ids, features[~train], weight, targets, bias, options.scores, keep)
    return as_table([block]), strength


def score_trained(
    train: Callable[[TrainingData], Any], samples: Samples, options: ScoreOptions, folds: int
) -> SampleTable:
    """For each fold a network that the user's function trains on the other folds."""
    from tqdm import tqdm

    name = train.name if isinstance(train, FileFunction) else getattr(train, "__name__", "train")
    about = {"name": name, "function": full_name(train)}
    labels = all_labels(samples, "DATA: --folds")
    division = _division(folds, options, "model")
    plan = make_plan([], samples, options, train)
    plan |= {"model": about, "labels": content_hash(labels), "out_of_sample": division}

    def score_fold(fold: np.ndarray, held_out: int, seed: int, stage: ScoreOptions) -> SampleTable:
        """Written whole or not at all: the rows of a fold belong to one training."""
        data = TrainingData(samples, np.flatnonzero(fold != held_out), labels, held_out, seed * folds + held_out)
        with torch.random.fork_rng():
            torch.manual_seed(data.seed)
            model = returned_model(train(data), name)
        if options.seeds > 1:
            model = replace(model, name=f"{model.name} seed {seed}")
        rest = View(samples, np.flatnonzero(fold == held_out))
        table = score_network(model, rest, replace(stage, out=None, progress=False), keep="cosines")
        if stage.out is not None:
            table.save(stage.out, overwrite=True)
        return table

    def score(stage: Stage) -> Staged:
        tables: dict[str, SampleTable] = {}
        metas: list[Meta] = []
        hidden = None if options.progress else True
        with tqdm(total=options.seeds * folds, unit=" folds", desc="training", disable=hidden) as bar:
            for seed in range(options.seed, options.seed + options.seeds):
                fold = assign_folds(labels, folds, seed)
                parts = []
                for held_out in range(folds):
                    part = stage(f"seed{seed}-fold{held_out}", partial(score_fold, fold, held_out, seed))
                    parts.append(part)
                    metas.append(part.meta)
                    order = _class_order(f"fold {held_out + 1}", part.meta)
                    check_same_classes(_class_order("the first fold", metas[0]), order)
                    bar.update()
                tables[str(parts[0].meta.model.name)] = _joined(parts, samples.ids)
        first = metas[0]
        trained = {"name": str(first.model.name).removesuffix(f" seed {options.seed}"), "classes": first.model.classes}
        meta = {
            **{key: getattr(first, key) for key in ("preprocessing", "class_names", "label_mapping")},
            "model": {**about, **trained, "head": first.model.head},
            "weights": "trained on the other folds",
        }
        return Staged(tables, meta, _rare_class_notes(labels))

    return score_in_stages(plan, options, score)


def _class_order(network: str, meta: Meta) -> ClassOrder:
    return ClassOrder(network, meta.model.classes or 0, meta.class_names, meta.label_mapping)


def full_name(train: Callable[..., Any]) -> str:
    """Module and name of a training function."""
    inner = train.function if isinstance(train, FileFunction) else train.func if isinstance(train, partial) else train
    return f"{inner.__module__}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"


def _joined(parts: Sequence[SampleTable], ids: Sequence[str], bad: pa.Table | None = None) -> SampleTable:
    """The tables of the folds as one with a column ``fold``, in the order of `ids`."""
    rows = [part.to_arrow().append_column("fold", pa.repeat(k, len(part))) for k, part in enumerate(parts)]
    rows = pa.concat_tables(rows)
    rows = rows.take(pc.array_sort_indices(pc.index_in(rows["id"], value_set=pa.array(ids, pa.string()))))
    vectors = [part.vectors for part in parts if part.vectors is not None]
    bad = pa.concat_tables([*(part.bad for part in parts), *([] if bad is None else [bad])])
    notes = [note for part in parts for note in part.meta.warnings]
    return SampleTable(rows, {"warnings": notes}, bad, pa.concat_tables(vectors) if vectors else None)


def _rare_class_notes(labels: np.ndarray) -> list[str]:
    rare = int((np.unique(labels, return_counts=True)[1] < 2).sum())
    if not rare:
        return []
    note = (
        f"{rare:,} classes have a single sample, which is scored by a head that has never seen its class: its scores "
        "say nothing about its label."
    )
    warnings.warn(note, UserWarning, stacklevel=4)
    return [note]
