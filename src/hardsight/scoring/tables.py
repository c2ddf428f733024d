"""The two ways to a table: a model and its data, or features as they are."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from hardsight.data import Columns, Samples, StreamSamples, class_mapping, open_data
from hardsight.extras import first_line, printable
from hardsight.hardness import SCORES, check_triple
from hardsight.heads import find_head, uncompiled
from hardsight.models import Model, as_model, fingerprint
from hardsight.provenance import provenance
from hardsight.runfolder import SCHEMAS
from hardsight.scoring.checks import check_known_labels, class_order_note, known_scores
from hardsight.scoring.engine import Engine, Folder, Memory
from hardsight.scoring.rows import scored_rows, zero_features
from hardsight.table import SampleTable


def score_features(
    features: Any,
    weight: Any,
    labels: Any = None,
    bias: Any = None,
    ids: Sequence[Any] | None = None,
    *,
    scores: Iterable[str] = tuple(SCORES),
    denominator: Literal["exact", "series"] = "exact",
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
        raise ValueError(f"denominator must be 'exact' or 'series', got {denominator!r}.")
    if not len(features):
        raise ValueError("features hold no rows: the data set is empty.")
    if ids is not None and len(ids) != len(features):
        raise ValueError(f"ids must hold one id a row: expected {len(features)}, got {len(ids)}.")
    ids = [f"data:{i}" for i in range(len(features))] if ids is None else [str(i) for i in ids]
    rows, bad = scored_rows(ids, features, weight, labels, bias, names if denominator == "exact" else None)
    meta = {
        **provenance(),
        "model": {"name": name, "classes": len(weight)},
        "data": {"origin": f"{len(features):,} features of width {features.shape[1]}"},
        "bias": bias is not None and denominator == "exact",
        "scores": [name for name in rows.column_names if name.removesuffix("_pred") in SCORES],
        "counts": {"rows": len(rows), "bad": len(bad), "zero_features": zero_features(rows)},
    }
    table = SampleTable(rows, meta, bad)
    table.meta["accuracy"] = table.accuracy
    return table


def score(
    model: Model | nn.Module | str,
    data: Any,
    *,
    out: str | Path | None = None,
    head: str | nn.Module | None = None,
    preprocess: Callable[[Any], Any] | Literal["raw"] | None = None,
    ids: Sequence[Any] | None = None,
    split: str | None = None,
    columns: Columns | None = None,
    scores: Iterable[str] = tuple(SCORES),
    use_bias: bool = True,
    batch_size: int = 64,
    workers: int | None = None,
    device: str | torch.device | None = None,
    strict: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    root: str | Path = "data",
    streaming: bool = False,
) -> SampleTable:
    """Score every sample of a data set: one row each.

    Args:
        model: An `nn.Module`, a `Model`, or a name (``timm:resnet50``, ``net.py:build``).
        data: A data set, or a name (a folder, ``FILE.npz:test``, ``digits``).
        out: A run folder to write while scoring. Killed at any point, the same call goes on where it stopped.
        head: Path of the last linear layer, when it should not be looked for.
        preprocess: Replaces the model's own preprocessing. A network that came without any takes raw pictures only
            with ``"raw"``: pixels in [0, 1].
        ids: Ids of your own, one a sample; else ``split/path`` or ``split:index``.
        split: First part of the ids, for data sets that do not say.
        columns: Which columns of the data hold image, label and id.
        scores: Names from `SCORES`.
        use_bias: False takes logits without the head's bias (the AVH paper's Definition 1).
        batch_size: Samples a forward.
        workers: Loader processes; chosen by device if not given.
        device: Where to run; the first GPU if there is one.
        strict: Stop at the first bad sample instead of listing it.
        overwrite: Throw away another run in `out`.
        progress: Show a bar (only ever in a terminal).
        root: Where torchvision keeps its data sets.
        streaming: Read a Hugging Face data set as a stream.
    """
    if isinstance(preprocess, str) and preprocess != "raw":
        raise ValueError(f"preprocess must be a transform or 'raw', got {preprocess!r}.")
    if batch_size < 1:
        raise ValueError(f"batch_size must be 1 or more, got {batch_size}.")
    where = _device(device)
    unspoken = isinstance(model, nn.Module) and preprocess is None
    model = as_model(model, preprocess)
    samples = open_data(data, split=split, ids=ids, columns=columns, root=root, streaming=streaming)
    if unspoken and samples.pixels:
        raise ValueError(
            "preprocess must be given: the data are raw pictures and an nn.Module does not say how it wants them. Pass "
            "the transform it was trained with, or preprocess='raw' for pixels in [0, 1]."
        )
    names = known_scores(scores)
    network = uncompiled(model.module)
    layer = find_head(network, head)
    outputs = layer.classes
    if model.classes is not None and len(model.classes) != outputs:
        raise ValueError(f"MODEL has {len(model.classes)} class names but {outputs} outputs; give one name an output.")
    mapping = class_mapping(model.classes, samples.classes, outputs)
    if not isinstance(samples, StreamSamples):
        if not len(samples):
            raise ValueError(f"DATA is empty: {samples.origin}.")
        _check_ids(samples)
        if samples.labels is not None:
            check_known_labels(samples.labels, samples.classes, outputs)
    plan = {
        "model": {"name": model.name, "fingerprint": fingerprint(network), "head": layer.path, "classes": outputs},
        "data": {"origin": samples.origin, "fingerprint": samples.fingerprint(), "split": samples.split},
        "preprocessing": model.preprocessing if samples.pixels else "none: the data set yields tensors",
        "bias": use_bias,
        "class_names": list(model.classes or samples.classes or ()),
        "label_mapping": None if mapping is None else mapping.tolist(),
        "scores": names,
        "schemas": {kind: schema.version for kind, schema in SCHEMAS.items()},
    }
    # Under torchrun every process takes its share and writes parts of its own; no messages are needed.
    shard = (int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))) if out is not None else (0, 1)
    sink = Memory() if out is None else Folder(out, plan, overwrite=overwrite, rank=shard[0])
    if isinstance(sink, Folder) and sink.complete:
        table = SampleTable.load(sink.path)
        table.meta["already_complete"] = True
        return table
    started, resumed = time.time(), len(sink.done())
    if workers is None:
        workers = 0 if where.type == "cpu" else min(8, os.cpu_count() or 1)
    engine = Engine(network, model, samples, layer.path, outputs, where, names, use_bias, mapping, strict)
    engine.run(sink, shard=shard, batch_size=batch_size, workers=workers, bar=progress)
    table = sink.table()
    if shard[1] > 1 and not isinstance(samples, StreamSamples) and len(table) + len(table.bad) < len(samples):
        return table  # other processes are still at it; the last one finishes the run
    if not len(table):
        bad = table.bad.slice(0, 1).to_pylist() or [{"id": "nothing", "error": "was read"}]
        raise ValueError(f"DATA: no sample could be scored; first: {bad[0]['id']}: {bad[0]['error']}.")
    order = class_order_note(table, outputs)
    notes = [*engine.notes, *([order] if order else [])]
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    meta = {
        **provenance(where),
        **plan,
        "weights": model.weights,
        "seconds": round(time.time() - started, 2),
        "resumed": resumed,
        "counts": {"rows": len(table), "bad": len(table.bad), "zero_features": zero_features(table.to_arrow())},
        "accuracy": table.accuracy,
        "warnings": notes,
    }
    if isinstance(sink, Folder):
        sink.finish(meta)
    return SampleTable(table.to_arrow(), meta, table.bad)


def _device(name: str | torch.device | None) -> torch.device:
    """The device to run on, or a sentence."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device must be cpu, cuda, cuda:1 or mps and be there, got {name!r} ({first_line(error)})."
        ) from error
    return device


def _check_ids(samples: Samples) -> None:
    """Ids that repeat are better found now than after a night's work."""
    seen: set[str] = set()
    for i in range(len(samples)):
        if (id_ := samples.id(i)) in seen:
            raise ValueError(f"ids must be unique, but {printable(id_)!r} repeats.")
        seen.add(id_)
