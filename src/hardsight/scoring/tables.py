"""The two ways to a table: a model and its data, or features as they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from hardsight.data import Columns, id_texts, open_data
from hardsight.errors import InputError
from hardsight.models import Model, as_model
from hardsight.runs import provenance
from hardsight.scores import SCORES, check_triple
from hardsight.scoring.checks import known_scores, warned
from hardsight.scoring.folds import TrainingData, check_folds, score_refitted, score_trained
from hardsight.scoring.one import Options, Shard, counts, find_device, loader_workers, score_one
from hardsight.scoring.rows import scored_rows
from hardsight.scoring.several import score_several
from hardsight.scoring.vectors import feature_vectors
from hardsight.table import SampleTable
from hardsight.userfile import is_file_function, load_function, takes_training_data


def score_features(
    features: Any,
    weight: Any,
    labels: Any = None,
    bias: Any = None,
    ids: Sequence[Any] | None = None,
    *,
    scores: Iterable[str] = tuple(SCORES),
    denominator: Literal["exact", "series"] = "exact",
    vectors: bool = True,
    strict: bool = False,
    name: str = "features",
) -> SampleTable:
    """The rows of `score` without a model: from features and the weight of the last layer.

    Args:
        features: ``(N, D)``.
        weight: ``(C, D)``.
        labels: ``(N,)`` class indices. Without them scores are taken at the predicted class (``avh_pred`` …).
        bias: ``(C,)``; leave it out for bias-free logits.
        ids: One id a row; ``data:0``, ``data:1`` … if not given.
        scores: Names from `SCORES`.
        denominator: ``"series"`` gives AVH in O(D²) a sample however many classes there are, with a column
            ``avh_error`` that bounds its error, and the target angle and norm beside it; no other score.
        vectors: Keep a sketch of each feature and, up to 100 classes, the probabilities: for clusters and cleanlab.
        strict: Raise on NaN or infinite features instead of listing them in ``table.bad``.
        name: What to call the model in the table.

    Examples:
        >>> table = score_features(torch.eye(3), torch.eye(3), torch.tensor([0, 1, 1]))
        >>> table.hardest(1)["id"].tolist()
        ['data:2']
    """
    features, weight, labels, bias = check_triple(features, weight, labels, bias, finite=strict)
    names = known_scores(scores)
    if denominator not in ("exact", "series"):
        raise InputError(f"denominator must be 'exact' or 'series', got {denominator!r}.")
    if not len(features):
        raise InputError("features hold no rows: the data set is empty.")
    ids = [f"data:{i}" for i in range(len(features))] if ids is None else id_texts(ids)
    if len(ids) != len(features):
        raise InputError(f"ids must hold one id a row: expected {len(features)}, got {len(ids)}.")
    rows, bad = scored_rows(ids, features, weight, labels, bias, names if denominator == "exact" else None)
    meta = {
        **provenance(),
        "model": {"name": name, "classes": len(weight)},
        "data": {"origin": f"{len(features):,} features of width {features.shape[1]}"},
        "bias": bias is not None and denominator == "exact",
        "scores": [name for name in rows.column_names if name.removesuffix("_pred") in SCORES],
    }
    kept = None
    if vectors:
        with torch.no_grad():
            kept = feature_vectors(rows["id"], ids, features, weight, bias, "direction")
    table = SampleTable(rows, meta, bad, kept)
    table.meta.counts, table.meta.accuracy = counts(table), table.accuracy
    return warned(table)


def score(
    model: Model | nn.Module | str | Callable[[TrainingData], Any] | Sequence[Model | nn.Module | str],
    data: Any,
    *,
    out: str | Path | None = None,
    folds: int | None = None,
    seeds: int = 1,
    head: str | nn.Module | None = None,
    preprocess: Callable[[Any], Any] | Literal["raw"] | None = None,
    ids: Sequence[Any] | None = None,
    split: str | None = None,
    columns: Columns | None = None,
    scores: Iterable[str] = tuple(SCORES),
    use_bias: bool = True,
    vectors: bool = True,
    batch_size: int = 64,
    workers: int | None = None,
    device: str | torch.device | None = None,
    strict: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    root: str | Path = "data",
    version: str | None = None,
    shard: tuple[int, int] | Shard = (0, 1),
) -> SampleTable:
    """Score every sample of a data set: one row each.

    Args:
        model: An `nn.Module`, a `Model`, or a name (``timm:resnet50``, ``net.py:build``). A list of them gives the mean
            over the networks, with spread and rank range. With `folds`, a function (or ``net.py:train``) that takes
            `TrainingData` and returns what ``build`` would return.
        data: A data set, or a name (a folder, ``FILE.npz:test``, ``digits``).
        out: A run folder to write while scoring. Killed at any point, the same call resumes.
        folds: Score out of sample: divide the data into so many folds and score each by a head that was fitted to the
            labels of the others, on the features of `model`; or by a network that `model`, a training function,
            trained on them. Scoring training data with the network that memorised them hides their label errors.
        seeds: Repeat that with so many divisions (and trainings); scores are then means with a spread.
        head: Path of the last linear layer, when it should not be looked for.
        preprocess: Replaces the model's own preprocessing. A network that came without any takes raw pictures only
            with ``"raw"``: pixels in [0, 1].
        ids: Ids of your own, one a sample; else ``split/path`` or ``split:index``.
        split: First part of the ids, for data sets that do not say.
        columns: Which columns of the data hold image, label and id.
        scores: Names from `SCORES`.
        use_bias: False takes logits without the head's bias (the AVH paper's Definition 1).
        vectors: Keep a sketch of each feature and, up to 100 classes, the probabilities: for clusters and cleanlab.
        batch_size: Samples a forward.
        workers: Loader processes; chosen by device if not given.
        device: Where to run; the first GPU if there is one.
        strict: Stop at the first bad sample instead of listing it.
        overwrite: Discard another run in `out`; files that are not the run's are never touched.
        progress: Show a bar (only ever in a terminal).
        root: Where torchvision keeps its data sets.
        version: Any text that you change whenever data or code change. A run is resumed only where everything that
            decides its rows is the same; a data set of your own, a stream or a function without source text can change
            unseen, so such a run is resumed only with a version.
        shard: Rank of this process and number of processes that write `out` together, each every n-th sample; the last
            one finishes the run. Nothing is divided unless you say so, also under torchrun.
    """
    if isinstance(preprocess, str) and preprocess != "raw":
        raise InputError(f"preprocess must be a transform or 'raw', got {preprocess!r}.")
    if batch_size < 1:
        raise InputError(f"batch_size must be 1 or more, got {batch_size}.")
    where = find_device(device)
    workers = loader_workers(workers, where)
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    if not models:
        raise InputError("model must name at least one network.")
    train = _training_function(models[0]) if folds is not None and len(models) == 1 else None
    networks = [] if train is not None else [as_model(m, preprocess) for m in models]  # pyrefly: ignore
    samples = open_data(data, split=split, ids=ids, columns=columns, root=root, version=version)
    if preprocess is None and samples.pixels and any(isinstance(m, nn.Module) for m in models):
        raise InputError(
            "preprocess must be given: the data are raw pictures and an nn.Module does not say how it wants them. Pass "
            "the transform it was trained with, or preprocess='raw' for pixels in [0, 1]."
        )
    options = Options(
        known_scores(scores),
        head,
        use_bias,
        vectors,
        batch_size,
        workers,
        where,
        strict,
        progress,
        version,
        _checked_shard(shard, out),
    )
    path = None if out is None else Path(out)
    if options.shard.world > 1 and (folds is not None or len(models) > 1):
        raise InputError("shard: folds and several networks run in one process; leave it out.")
    if folds is not None:
        check_folds(samples, folds, seeds)
        if train is not None:
            return warned(score_trained(train, samples, options, path, overwrite, folds, seeds))
        if len(networks) > 1:
            raise InputError("folds go with one model or one training function; score the others as runs of their own.")
        return warned(score_refitted(networks[0], samples, options, path, overwrite, folds, seeds))
    if seeds != 1:
        raise InputError("seeds repeat the folds: give folds too.")
    if len(networks) > 1:
        return warned(score_several(networks, samples, options, path, overwrite))
    return warned(score_one(networks[0], samples, options, path, overwrite=overwrite, keep="direction"))


def _checked_shard(shard: tuple[int, int] | Shard, out: str | Path | None) -> Shard:
    shard = shard if isinstance(shard, Shard) else Shard(*shard)
    if not 0 <= shard.rank < shard.world:
        raise InputError(f"shard must be (rank, world) with 0 <= rank < world, got ({shard.rank}, {shard.world}).")
    if shard.world > 1 and out is None:
        raise InputError("shard must go with out, the run folder that the processes share.")
    return shard


def _training_function(model: Any) -> Callable[[TrainingData], Any] | None:
    """The function, if `model` is one that must be given training data."""
    if isinstance(model, str) and is_file_function(model):
        function = load_function(model)
        return function if takes_training_data(function) else None
    return model if inspect.isroutine(model) or isinstance(model, partial) else None  # pyrefly: ignore
