"""The pass over the data: forward every sample through a network and yield scored rows, block by block."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from hardsight.angles import angle_between_units, as_float64, unit
from hardsight.data import Samples, load_batches
from hardsight.devices import evaluating, find_device, loader_workers, moved
from hardsight.ensemble import as_lists
from hardsight.errors import HardsightError, InputError, StateError
from hardsight.extras import first_line
from hardsight.heads import Head, HeadLayer, capture, uncompiled
from hardsight.models import Model
from hardsight.scores import avh_series, bad_rows, check_labels, compute_scores
from hardsight.scoring.checks import output_note
from hardsight.scoring.options import ScoreOptions

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


def row_blocks(
    model: Model,
    samples: Samples,
    options: ScoreOptions,
    layer: HeadLayer,
    outputs: np.ndarray,
    keep: Keep | None,
    done: Collection[str],
    notes: list[str],
) -> Iterator[Block]:
    """Score the samples of this process that are not `done`. On an error, the samples before it still make a block.

    `outputs` holds the output of `layer` that each label of the data means; `notes` takes what a user should know about
    the result.
    """
    from tqdm import tqdm

    network, device, shard = uncompiled(model.module), find_device(options.device), options.shard
    todo = [i for i in range(shard.rank, len(samples), shard.world) if not done or samples.ids[i] not in done]
    batches = [todo[i : i + options.batch_size] for i in range(0, len(todo), options.batch_size)]
    loader = load_batches(samples, model, batches, device, loader_workers(options.workers, device))
    place, labeled, hidden = torch.from_numpy(outputs), set(), None if options.progress else True
    bar = tqdm(total=len(todo) + len(done), initial=len(done), unit=" samples", desc="scoring", disable=hidden)
    with evaluating(network, device), capture(network, layer.path) as head, bar:
        pending, started = [], time.monotonic()
        try:
            for rows, inputs, labels, bad in loader:
                features, targets = [], []
                if rows:
                    output = _forward(network, moved(inputs, device))
                    features = [head.features.detach()]
                    if not labeled and (note := output_note(output, features[0], head)):
                        notes.append(note)
                    labeled |= {label is not None for label in labels}
                    if len(labeled) > 1:
                        raise InputError("some samples have labels and some have none: score them as two data sets.")
                    targets = [place[check_labels(labels, len(rows), len(place))]] if True in labeled else []
                pending.append((rows, features, targets, bad.items()))
                bar.update(len(rows) + len(bad))
                if len(pending) * options.batch_size >= _BLOCK_ROWS or time.monotonic() - started > _BLOCK_SECONDS:
                    full, pending, started = pending, [], time.monotonic()
                    yield _score_batches(full, samples.ids, head, options, keep)
        except BaseException:
            if pending:  # not where the error is that of whoever takes the blocks
                yield _score_batches(pending, samples.ids, head, options, keep)
            raise
        if pending:
            yield _score_batches(pending, samples.ids, head, options, keep)


def _forward(network: nn.Module, inputs: Any) -> Any:
    try:
        with torch.no_grad():
            return network(**inputs) if isinstance(inputs, dict) else network(inputs)
    except (HardsightError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a user's forward may raise
        shape = tuple(inputs.shape) if isinstance(inputs, Tensor) else "that is a mapping"
        raise StateError(
            f"the model failed on a batch {shape}: {type(error).__name__}: {first_line(error)}. Check that its "
            "preprocessing gives the size and channels it was trained with."
        ) from error


def _score_batches(
    batches: Sequence[tuple[Any, ...]], ids: Sequence[str], head: Head, options: ScoreOptions, keep: Keep | None
) -> Block:
    """The block of batches that were forwarded: numbers, features and outputs of good samples, reasons of bad ones."""
    rows, features, labels, reasons = (list(chain.from_iterable(parts)) for parts in zip(*batches, strict=True))
    bad = bad_table([(ids[row], reason) for row, reason in reasons])
    if not rows:
        return Block(pa.table({"id": pa.array([], pa.string())}), bad)
    bias = head.bias.detach() if options.use_bias and head.bias is not None else None
    targets, weight = torch.cat(labels) if labels else None, head.weight.detach()
    block = score_block([ids[row] for row in rows], torch.cat(features), weight, targets, bias, options.scores, keep)
    return block._replace(bad=pa.concat_tables([bad, block.bad]))


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
    broken = bad_rows(features)
    bad = [(ids[i], "the feature holds NaN or infinity") for i in broken.nonzero()[:, 0].tolist()]
    if bad:
        good = (~broken).nonzero()[:, 0]
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
        label = {} if labels is None else {"label": labels.cpu().numpy()}
        rows = pa.table({"id": pa.array(ids, pa.string()), **label, **arrays})
        whole = np.all([np.isfinite(values) for values in arrays.values()], axis=0)
        if not whole.all():
            reason = "the logits overflow: features or weights are too large"
            bad += [(id_, reason) for id_ in rows["id"].filter(~whole).to_pylist()]
            rows, features = rows.filter(whole), features[torch.from_numpy(whole).to(features.device)]
        vectors = None if keep is None else {"id": rows["id"], **_vectors(features.float(), weight, bias, keep)}
    return Block(rows, bad_table(bad), None if vectors is None else pa.table(vectors))


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
    cosines = keep == "cosines"
    axes = unit(weight.float())[0].T.contiguous() if cosines else torch.eye(features.shape[1], device=features.device)
    if (width := axes.shape[1]) > SKETCH_WIDTH:
        random = np.random.default_rng(width).standard_normal((width, SKETCH_WIDTH)).astype(np.float32)
        axes = axes @ torch.from_numpy(random / SKETCH_WIDTH**0.5).to(features.device)
    vectors = {"sketch": as_lists((unit(features)[0] @ axes).cpu().numpy().astype(np.float16))}
    if len(weight) <= MOST_PROBABILITIES:  # in float64, so that they agree with the scores
        logits = as_float64(features) @ as_float64(weight).T + (0 if bias is None else as_float64(bias))
        vectors["probabilities"] = as_lists(logits.softmax(1).float().cpu().numpy())
    return vectors


def bad_table(bad: Sequence[tuple[str, str]]) -> pa.Table:
    """Ids and reasons as a table."""
    return pa.table({name: pa.array([row[i] for row in bad], pa.string()) for i, name in enumerate(("id", "error"))})


def concatenate(blocks: Sequence[Block]) -> Block:
    """Several blocks as one; those without a row lack most columns."""
    rows, bad = (pa.concat_tables(part, promote_options="default") for part in list(zip(*blocks, strict=True))[:2])
    vectors = [block.vectors for block in blocks if block.vectors is not None]
    return Block(rows, bad, pa.concat_tables(vectors) if vectors else None)
