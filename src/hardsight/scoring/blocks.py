"""The pass over the data: forward every sample through a network and yield scored rows, block by block."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from hardsight.data import Samples, load_batches
from hardsight.devices import evaluating, find_device, loader_workers, moved
from hardsight.errors import HardsightError, InputError, StateError
from hardsight.extras import first_line
from hardsight.heads import Head, HeadLayer, capture, forward, uncompiled
from hardsight.models import Model
from hardsight.scores import check_labels
from hardsight.scoring.checks import output_note
from hardsight.scoring.options import ScoreOptions
from hardsight.scoring.rows import Block, Keep, bad_table, score_block

# A block ends after so many samples or seconds: it is what a kill can cost.
_BLOCK_ROWS, _BLOCK_SECONDS = 4096, 15.0


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
    workers = loader_workers(options.workers, device)
    loader = load_batches(samples, model, batches, device, workers, decode=options.decode)
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
            return forward(network, inputs)
    except (HardsightError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a user's forward may raise
        shape, hint = "", "Check that the batch holds what its forward method takes."
        if isinstance(inputs, Tensor):
            shape = f" {tuple(inputs.shape)}"
            hint = "Check that its preprocessing gives the size and channels it was trained with."
        reason = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
        raise StateError(f"the model failed on a batch{shape}: {reason}. {hint}") from error


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
