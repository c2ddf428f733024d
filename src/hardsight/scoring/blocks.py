"""The pass over the data: forward every sample through a network and yield scored rows, block by block."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hardsight.angles import angle_between_units, as_float64, unit
from hardsight.data import Prepared, Samples, collate
from hardsight.devices import evaluating, find_device, loader_workers, moved
from hardsight.ensemble import as_lists
from hardsight.errors import HardsightError, InputError, StateError
from hardsight.extras import first_line, printable
from hardsight.heads import Head, HeadLayer, capture, output_matrices, uncompiled
from hardsight.models import Model, input_channels
from hardsight.scores import MOST_CLASSES, avh_series, bad_rows, check_labels, compute_scores
from hardsight.scoring.checks import class_count, label_limit, output_note
from hardsight.scoring.options import ScoreOptions
from hardsight.table import SampleTable

# A block ends after so many samples or seconds: it is what a kill can cost.
_BLOCK_ROWS, _BLOCK_SECONDS = 4096, 15.0

# What is stored of the features. "direction" sketches the feature itself, in axes that only one network's samples
# share; "cosines" sketches its cosines to the classes, which networks trained on different folds share; "features"
# stores the features for a head that is still to be fitted.
Keep = Literal["direction", "cosines", "features"]
SKETCH_WIDTH, MOST_PROBABILITIES = 32, 100


class Block(NamedTuple):
    """Samples that were scored together: their rows, ids and reasons of the bad ones, and what `Keep` asks for."""

    rows: pa.Table
    bad: pa.Table
    vectors: pa.Table | None = None


class Batch(NamedTuple):
    """Samples that were forwarded together: ids, features and labels of the good ones, ids and reasons of the bad."""

    ids: list[str]
    features: Tensor | None
    labels: Tensor | None
    bad: list[tuple[str, str]]


def row_blocks(
    model: Model,
    samples: Samples,
    options: ScoreOptions,
    layer: HeadLayer,
    mapping: np.ndarray | None,
    keep: Keep | None,
    done: Collection[str],
    notes: list[str],
) -> Iterator[Block]:
    """Score the samples of this process that are not `done`. On an error, the samples before it still make a block.

    `mapping` says where each label of the data lies among the outputs of `layer`; `notes` takes what a user should
    know about the result.
    """
    from tqdm import tqdm

    network, device, shard = uncompiled(model.module), find_device(options.device), options.shard
    todo = [i for i in range(shard.rank, len(samples), shard.world) if not done or samples.ids[i] not in done]
    loader = DataLoader(
        Prepared(samples, model, input_channels(network)),
        options.batch_size,
        sampler=todo,
        num_workers=loader_workers(options.workers, device),
        collate_fn=collate,
        pin_memory=device.type == "cuda",
    )
    classes = class_count(samples, MOST_CLASSES) if keep == "features" else label_limit(samples.classes, layer.classes)
    hidden = None if options.progress else True
    bar = tqdm(total=len(todo) + len(done), initial=len(done), unit=" samples", desc="scoring", disable=hidden)
    with evaluating(network, device), capture(network, layer.path) as head, bar:
        pending, rows, started = [], 0, time.monotonic()
        try:
            for batch in _batches(network, loader, head, device, classes, mapping, options.strict, notes):
                pending.append(batch)
                rows += len(batch.ids)
                bar.update(len(batch.ids) + len(batch.bad))
                if rows >= _BLOCK_ROWS or time.monotonic() - started > _BLOCK_SECONDS:
                    full, pending, rows, started = pending, [], 0, time.monotonic()
                    yield _score_batches(full, head, options, keep)
        except BaseException:
            if pending:  # not where the error is that of whoever takes the blocks
                yield _score_batches(pending, head, replace(options, strict=False), keep)
            raise
        if pending:
            yield _score_batches(pending, head, options, keep)


def _batches(
    network: nn.Module,
    loader: DataLoader[Any],
    head: Head,
    device: torch.device,
    classes: int,
    mapping: np.ndarray | None,
    strict: bool,
    notes: list[str],
) -> Iterator[Batch]:
    """The batches of a loader after the forward pass; the first tells whether the head makes the model's output."""
    labeled: bool | None = None
    for ids, inputs, labels, bad in loader:
        if isinstance(inputs, Exception):  # raised here: a worker would wrap it in its traceback
            raise inputs
        if bad and strict:
            raise _bad_sample(*bad[0])
        if not ids:
            yield Batch([], None, None, bad)
            continue
        output = _forward(network, moved(inputs, device))
        features = head.features.detach()
        if labeled is None and (note := output_note(output_matrices(output), features, head)):
            notes.append(note)
        given = {label is not None for label in labels} | ({labeled} - {None})
        if len(given) > 1:
            raise InputError("some samples have labels and some have none: score them as two data sets.")
        labeled = given.pop()
        if labeled:
            labels = check_labels(labels, len(labels), classes if mapping is None else len(mapping))
            labels = labels if mapping is None else torch.from_numpy(mapping)[labels]
        yield Batch(ids, features, labels if labeled else None, bad)


def _forward(network: nn.Module, inputs: Any) -> Any:
    try:
        with torch.no_grad():
            return network(**inputs) if isinstance(inputs, dict) else network(inputs)
    except Exception as error:  # whatever a user's forward may raise
        if isinstance(error, (HardsightError, MemoryError, torch.OutOfMemoryError)):
            raise
        shape = tuple(inputs.shape) if isinstance(inputs, Tensor) else "that is a mapping"
        raise StateError(
            f"the model failed on a batch {shape}: {type(error).__name__}: {first_line(error)}. Check that its "
            "preprocessing gives the size and channels it was trained with."
        ) from error


def _score_batches(batches: Sequence[Batch], head: Head, options: ScoreOptions, keep: Keep | None) -> Block:
    bad = bad_table([sample for batch in batches for sample in batch.bad])
    features = [batch.features for batch in batches if batch.features is not None]
    if not features:
        return Block(_NO_ROWS, bad)
    ids, labels = [id_ for batch in batches for id_ in batch.ids], [b.labels for b in batches if b.labels is not None]
    bias = head.bias.detach() if options.use_bias and head.bias is not None else None
    targets = torch.cat(labels) if labels else None
    block = score_block(ids, torch.cat(features), head.weight.detach(), targets, bias, options.scores, keep)
    if options.strict and len(block.bad):
        raise _bad_sample(*block.bad.to_pylist()[0].values())
    return block._replace(bad=pa.concat_tables([bad, block.bad]))


def _bad_sample(id_: str, reason: str) -> InputError:
    return InputError(f"bad sample {printable(id_)!r}: {reason} (without strict it would be listed).")


def score_block(
    ids: Sequence[str],
    features: Tensor,
    weight: Tensor,
    labels: Tensor | None,
    bias: Tensor | None,
    scores: Sequence[str] | None,
    keep: Keep | None,
) -> Block:
    """Rows of the samples whose features and scores are finite; the others are bad.

    Without `scores`, AVH is computed by the series, with its error bound. Where features are stored for a head that is
    still to be fitted, the rows hold no score but the norm.
    """
    finite = ~bad_rows(features)
    bad = [(ids[i], "the feature holds NaN or infinity") for i in (~finite).nonzero()[:, 0].tolist()]
    if bad:
        good = finite.nonzero()[:, 0]
        ids, features = [ids[i] for i in good.tolist()], features[good]
        labels = None if labels is None else labels[good.to(labels.device)]
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        targets = None if labels is None else labels.to(features.device)
        if keep == "features":
            columns = {"norm": as_float64(features).norm(dim=1)}
        elif scores is None:
            columns = _series_scores(features, weight, targets)
        else:
            columns = compute_scores(features, weight, targets, bias, scores)
        arrays = {name: values.cpu().numpy() for name, values in columns.items()}
        whole = np.all([np.isfinite(values) for values in arrays.values()], axis=0)
        rows = {"id": pa.array(ids, pa.string())} | ({} if labels is None else {"label": labels.cpu().numpy()}) | arrays
        rows = pa.table(rows)
        if not whole.all():
            reason = "the logits overflow: features or weights are too large"
            bad += [(id_, reason) for id_ in rows["id"].filter(~whole).to_pylist()]
            rows, features = rows.filter(whole), features[torch.from_numpy(whole).to(features.device)]
        stored = None if keep is None else _vectors(features.float(), weight, bias, keep)
    return Block(rows, bad_table(bad), None if stored is None else pa.table({"id": rows["id"], **stored}))


def _series_scores(features: Tensor, weight: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
    avh, error = avh_series(features, weight, labels)  # which refuses to do without labels
    directions, norm = unit(as_float64(features))
    angle = angle_between_units(directions, unit(as_float64(weight[labels]))[0])
    return {"avh": avh, "avh_error": error, "angle": angle, "norm": norm}


def _vectors(features: Tensor, weight: Tensor, bias: Tensor | None, keep: Keep) -> dict[str, pa.Array]:
    """What is stored of the features: a sketch and, for few classes, the probabilities; or the features themselves.

    A sketch is a random projection to 32 numbers with the same axes in every process; it preserves distances between
    directions to about a fifth.
    """
    if keep == "features":
        return {"features": as_lists(features.cpu().numpy())}
    axes = (
        unit(weight.float())[0].T.contiguous()
        if keep == "cosines"
        else torch.eye(features.shape[1], device=features.device)
    )
    if (width := axes.shape[1]) > SKETCH_WIDTH:
        random = np.random.default_rng(width).standard_normal((width, SKETCH_WIDTH)).astype(np.float32)
        axes = axes @ torch.from_numpy(random / SKETCH_WIDTH**0.5).to(features.device)
    sketch = (unit(features)[0] @ axes).cpu().numpy().astype(np.float16)
    if len(weight) > MOST_PROBABILITIES:
        return {"sketch": as_lists(sketch)}
    # In float64, so that they agree with the scores.
    logits = as_float64(features) @ as_float64(weight).T + (0 if bias is None else as_float64(bias))
    return {"sketch": as_lists(sketch), "probabilities": as_lists(logits.softmax(1).float().cpu().numpy())}


_NO_ROWS = pa.table({"id": pa.array([], pa.string())})


def bad_table(bad: Sequence[tuple[str, str]]) -> pa.Table:
    """Ids and reasons as a table."""
    ids, errors = zip(*bad, strict=True) if bad else ((), ())
    return pa.table({"id": pa.array(ids, pa.string()), "error": pa.array(errors, pa.string())})


def as_table(blocks: Sequence[Block], meta: Mapping[str, Any] | None = None) -> SampleTable:
    """The blocks as one table."""
    vectors = [block.vectors for block in blocks if block.vectors is not None]
    rows = pa.concat_tables([block.rows for block in blocks if len(block.rows)] or [_NO_ROWS])
    bad = pa.concat_tables([block.bad for block in blocks] or [bad_table([])])
    return SampleTable(rows, meta, bad, pa.concat_tables(vectors) if vectors else None)
