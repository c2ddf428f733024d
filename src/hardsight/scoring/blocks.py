"""The pass over the data: forward every sample through a network and yield scored rows, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
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


class _Batches:
    """Indices of samples, batch by batch and unit by unit: made lazily, because there may be billions."""

    def __init__(self, units: Iterable[range], size: int) -> None:
        self.units, self.size = units, size

    def __iter__(self) -> Iterator[list[int]]:
        return (list(unit[i : i + self.size]) for unit in self.units for i in range(0, len(unit), self.size))


def row_blocks(
    model: Model,
    samples: Samples,
    options: ScoreOptions,
    layer: HeadLayer,
    outputs: np.ndarray,
    keep: Keep | None,
    units: Mapping[int, range],
    notes: list[str],
) -> Iterator[tuple[int, Block]]:
    """Score units of the samples one after another. A batch never holds samples of two units, so a unit gives the same
    rows in any process, and however often it is scored.

    `outputs` maps each label of the data to an output of `layer`; `notes` collects what a user should know about the
    result.
    """
    from tqdm import tqdm

    network, device = uncompiled(model.module), find_device(options.device)
    workers, batches = loader_workers(options.workers, device), _Batches(units.values(), options.batch_size)
    loader = iter(load_batches(samples, model, batches, device, workers, decode=options.decode))
    place, labeled, hidden = torch.from_numpy(outputs), set(), None if options.progress else True
    todo = sum(map(len, units.values()))
    bar = tqdm(total=todo, unit=" samples", desc="scoring", disable=hidden)
    with evaluating(network, device), capture(network, layer.path) as head, bar:
        for unit, places in units.items():
            scored = []
            for rows, inputs, labels, bad in islice(loader, -(-len(places) // options.batch_size)):
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
                scored.append((rows, features, targets, bad.items()))
                bar.update(len(rows) + len(bad))
            yield unit, _score_batches(scored, samples.ids, head, options, keep)


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
    """Collect forwarded batches in one block: numbers, features and outputs of good samples, reasons for bad ones."""
    rows, features, labels, reasons = (list(chain.from_iterable(parts)) for parts in zip(*batches, strict=True))
    bad = bad_table([(ids[row], reason) for row, reason in reasons])
    if not rows:
        return Block(pa.table({"id": pa.array([], pa.string())}), bad)
    bias = head.bias.detach() if options.use_bias and head.bias is not None else None
    targets, weight = torch.cat(labels) if labels else None, head.weight.detach()
    block = score_block([ids[row] for row in rows], torch.cat(features), weight, targets, bias, options.scores, keep)
    return block._replace(bad=pa.concat_tables([bad, block.bad]))
