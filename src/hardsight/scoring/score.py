"""Two ways to a table: from a model and its data, or from features."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from torch import nn

from hardsight.data import Columns, id_texts, open_data
from hardsight.devices import find_device, loader_workers
from hardsight.errors import InputError, InputTypeError
from hardsight.models import Model, as_model
from hardsight.registry import did_you_mean
from hardsight.runs import provenance
from hardsight.scores import MOST_CLASSES, SCORES, bad_rows, check_labels, check_triple
from hardsight.scoring.checks import check_decode, check_ids, warn_if_chance, warn_of_chance
from hardsight.scoring.folds import TrainingData, score_feature_folds, score_folds
from hardsight.scoring.jobs import finish
from hardsight.scoring.network import score_network, score_several
from hardsight.scoring.options import ScoreOptions, score_names
from hardsight.scoring.rows import DeviceColumns, Tally, numbered_ids, score_block, score_columns
from hardsight.table import SampleTable
from hardsight.triple import check_features
from hardsight.userfile import is_file_function, load_function, takes_training_data


def score_features(
    features: Any,
    weight: Any = None,
    labels: Any = None,
    bias: Any = None,
    ids: Sequence[Any] | None = None,
    *,
    folds: int | None = None,
    seeds: int = 1,
    seed: int = 0,
    use_bias: bool = True,
    class_names: Sequence[str] | None = None,
    scores: Iterable[str] | None = None,
    denominator: Literal["exact", "series"] = "exact",
    vectors: bool = True,
    strict: bool = False,
    name: str = "features",
) -> SampleTable:
    """The rows of `score` without a model: from features and the weight of the last layer, or from features alone.

    Args:
        features: ``(N, D)``.
        weight: ``(C, D)``; leave it out with `folds`.
        labels: ``(N,)`` class indices. Without them scores are taken at the predicted class (``avh_pred`` …).
        bias: ``(C,)``; leave it out for logits without bias.
        ids: One id per row; ``data:0``, ``data:1`` … if not given.
        folds: Fit a head to the features: each of K folds is scored by a head fitted to the labels of the others.
        seeds: Repeat the folds N times; scores are then averaged, with their standard deviation beside them.
        seed: Seed of the first division into folds.
        use_bias: Whether the heads of `folds` have a bias.
        class_names: One name per class.
        scores: Names from `SCORES`; all of them by default.
        denominator: ``"series"`` gives AVH in O(D²) per sample however many classes there are, with a column
            ``avh_error`` that bounds its error, and the target angle and norm beside it; no other score.
        vectors: Store a sketch of each feature and, up to 100 classes, the probabilities: for clusters and cleanlab.
        strict: Raise on NaN or infinite features instead of listing them in ``table.bad``.
        name: What to call the model in the table.

    Examples:
        >>> import torch
        >>> table = score_features(torch.eye(3), torch.eye(3), torch.tensor([0, 1, 1]))
        >>> table.hardest(1)["id"].tolist()
        ['data:2']
    """
    names = score_names(scores)
    if denominator not in ("exact", "series"):
        raise InputError(f"denominator must be 'exact' or 'series', got {denominator!r}.")
    if folds is not None:
        if weight is not None or bias is not None or denominator == "series":
            raise InputError("folds fits a head per fold: leave out weight, bias and denominator, or the folds.")
        features = check_features(features, finite=strict)
        if labels is None:
            raise InputError("folds needs labels, one class index per row of features.")
        labels = check_labels(labels, len(features), MOST_CLASSES, "hardsight")
        texts = _id_texts(ids, len(features)) or numbered_ids(len(features))
        options = ScoreOptions(
            folds=folds, seeds=seeds, seed=seed, scores=names, use_bias=use_bias, vectors=vectors,
            device=str(features.device),
        )  # fmt: skip
        return warn_if_chance(score_feature_folds(features, labels, texts, name, class_names, options))
    if weight is None:
        raise InputError("weight must be given, (C, D), or folds, to fit a head to the features.")
    features, weight, labels, bias = check_triple(features, weight, labels, bias, finite=strict)
    if not len(features):
        raise InputError("features hold no rows: the data set is empty.")
    ids = _id_texts(ids, len(features))
    origin = f"{len(features):,} features of width {features.shape[1]}"
    exact, keep = denominator == "exact", "direction" if vectors else None
    about: dict[str, Any] = {"model": {"name": name, "classes": len(weight)}, "data": {"origin": origin}}
    about |= {"bias": bias is not None and exact, "class_names": [str(name) for name in class_names or ()]}
    triple = (features, weight, labels, bias, names if exact else None, keep)
    if not bad_rows(features).any():
        columns = score_columns(*triple)
        tally = columns.tally(len(weight))
        if tally.finite:
            return _fetched_later(columns, tally, ids, about)
    rows, bad, stored = score_block(numbered_ids(len(features)) if ids is None else ids, *triple)
    table = SampleTable(rows, None, bad, stored)
    return warn_if_chance(finish(None, table, {**about, "scores": table.scores}))


def _id_texts(ids: Sequence[Any] | None, count: int) -> list[str] | None:
    """Ids as unique texts; None where there are none."""
    if ids is None:
        return None
    texts = id_texts(ids, "ids", count)
    check_ids(texts)
    return texts


def _fetched_later(columns: DeviceColumns, tally: Tally, ids: list[str] | None, about: dict[str, Any]) -> SampleTable:
    """A table whose columns stay on their device, and whose ids are not created, until they are asked for."""
    count = len(columns.column("norm"))
    id_array = cache(lambda: pa.array(numbered_ids(count) if ids is None else ids, pa.string()))
    scores = [name for name in columns.names if name.removesuffix("_pred") in SCORES]
    counts = {"rows": count, "bad": 0, "zero_features": tally.zeros}
    meta = {**provenance(), **about, "scores": scores, "counts": counts, "accuracy": tally.accuracy}
    if tally.chance is not None:
        warn_of_chance(tally.chance, 4)
    # Separate, so that fetched columns leave the device even if the rest is never asked for.
    numbers, vectors = columns._replace(vectors=None), columns._replace(stacks={})
    fetch_vectors = None if columns.vectors is None else lambda: vectors.vector_rows(id_array())
    return SampleTable(lambda: numbers.rows(id_array()), meta, vectors=fetch_vectors)


def score(
    model: Model | nn.Module | str | Callable[[TrainingData], Any] | Sequence[Model | nn.Module | str],
    data: Any,
    *,
    preprocess: Callable[[Any], Any] | Literal["raw"] | None = None,
    ids: Sequence[Any] | None = None,
    split: str | None = None,
    columns: Columns | None = None,
    **options: Any,
) -> SampleTable:
    """Score every sample of a data set: one row each.

    Args:
        model: An `nn.Module`, a `Model`, or a name (``timm:resnet50``, ``net.py:build``). A list of them gives the mean
            over the networks, with spread and rank range. With `folds`, a function (or ``net.py:train``) that takes
            `TrainingData` and returns what ``build`` would return.
        data: A data set, or a name (a folder, ``FILE.npz:test``, ``digits``).
        preprocess: Replaces the model's own preprocessing. A network that comes without any takes raw images only
            with ``"raw"``: pixels in [0, 1].
        ids: One id per sample; by default ``split/path`` or ``split:index``.
        split: First part of the ids, for data sets that do not say.
        columns: Which columns of the data hold image, label and id.

    Examples:
        >>> import torch
        >>> network = nn.Linear(3, 3, bias=False)
        >>> _ = nn.init.eye_(network.weight)
        >>> score(network, (torch.eye(3), torch.tensor([0, 1, 1]))).hardest(1)["id"].tolist()
        ['data:2']
    """
    names = [field.name for field in fields(ScoreOptions)]
    if unknown := [name for name in options if name not in names]:
        raise InputTypeError(f"score has no option {unknown[0]!r}; {did_you_mean(unknown[0], names)}")
    options["scores"] = score_names(options.get("scores"))
    settings = ScoreOptions(**options)
    loader_workers(settings.workers, find_device(settings.device))  # before a model is built or downloaded
    if isinstance(preprocess, str) and preprocess != "raw":
        raise InputError(f"preprocess must be a transform or 'raw', got {preprocess!r}.")
    models: list[Any] = list(model) if isinstance(model, (list, tuple)) else [model]
    if not models:
        raise InputError("model must name at least one network.")
    if len(models) > 1 and settings.folds is not None:
        raise InputError("folds take one model or one training function; score the others as runs of their own.")
    opened = [open_model(item, folds=settings.folds, preprocess=preprocess) for item in models]
    samples = open_data(data, split=split, ids=ids, columns=columns, root=settings.root, version=settings.version)
    if preprocess is None and samples.pixels and any(isinstance(item, nn.Module) for item in models):
        raise InputError(
            "preprocess must be given: the data are raw images and an nn.Module does not say how it wants them. Pass "
            "the transform it was trained with, or preprocess='raw' for pixels in [0, 1]."
        )
    if settings.decode == "gpu":
        check_decode(samples, find_device(settings.device))
    if settings.folds is not None:
        table = score_folds(opened[0], samples, settings, settings.folds)
    elif len(opened) > 1:
        table = score_several(opened, samples, settings)
    else:
        table = score_network(opened[0], samples, settings)
    return warn_if_chance(table)


def open_model(
    model: Any,
    *,
    folds: int | None = None,
    preprocess: Callable[[Any], Any] | Literal["raw"] | None = None,
    checkpoint: Path | None = None,
) -> Any:
    """A `Model`; with folds, a function that takes training data, unchanged."""
    if isinstance(model, str) and is_file_function(model):
        model = load_function(model)
    if folds is not None and takes_training_data(model):
        if checkpoint is not None:
            raise InputError("--checkpoint: a training function makes its own weights; leave the checkpoint out.")
        return model
    return as_model(model, preprocess, checkpoint)


# `help`, notebooks and the reference show every option of `score`.
_signature, _options = inspect.signature(score), inspect.signature(ScoreOptions).parameters.values()
_explicit = [parameter for parameter in _signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
_all = [*_explicit, *(option.replace(kind=option.KEYWORD_ONLY) for option in _options)]
score.__signature__ = _signature.replace(parameters=_all)  # pyrefly: ignore[missing-attribute]
_about, _mark, _examples = str(score.__doc__).partition("\n    Examples:\n")
score.__doc__ = _about + str(ScoreOptions.__doc__).partition("Args:\n")[2].rstrip(" ") + _mark + _examples
