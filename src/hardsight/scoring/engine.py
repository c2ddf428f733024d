"""The engine: forward a data set through a network and write scored rows part by part."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hardsight.data import Prepared, Samples, collate
from hardsight.errors import HardsightError, InputError, StateError
from hardsight.extras import first_line, printable
from hardsight.heads import Head, capture, output_matrices
from hardsight.models import Model, input_channels
from hardsight.runs import RunWriter
from hardsight.scores import check_labels
from hardsight.scoring.checks import output_note
from hardsight.scoring.rows import bad_table, feature_rows, scored_rows
from hardsight.scoring.vectors import Keep, feature_vectors
from hardsight.table import SampleTable, split_rows

# A part is written after so many samples or seconds: what a kill can cost.
_PART_ROWS, _PART_SECONDS = 4096, 15.0

# Ids, network inputs, labels, and bad samples with their reasons.
Batch = tuple[list[str], Any, list[int | None], list[tuple[str, str]]]


class Memory:
    """Parts kept in memory: what a `RunWriter` is on disk."""

    def __init__(self) -> None:
        self._rows: list[pa.Table] = []
        self._bad: list[pa.Table] = []
        self._vectors: list[pa.Table] = []

    def write_rows(self, rows: pa.Table, bad: pa.Table, model: str, vectors: pa.Table | None) -> None:
        self._rows.append(rows)
        self._bad.append(bad)
        self._vectors += [] if vectors is None else [vectors]

    def done(self) -> set[str]:
        return set()

    def table(self) -> SampleTable:
        rows = [rows for rows in self._rows if len(rows)] or [pa.table({"id": pa.array([], pa.string())})]
        vectors = pa.concat_tables(self._vectors) if self._vectors else None
        return SampleTable(pa.concat_tables(rows), None, pa.concat_tables([*self._bad, bad_table([])]), vectors)


class Folder(RunWriter):
    """Parts written to a run folder."""

    def write_rows(self, rows: pa.Table, bad: pa.Table, model: str, vectors: pa.Table | None) -> None:
        tables = split_rows(rows, bad, model, vectors)
        self.write(tables if len(rows) else {"samples": tables["samples"]})

    def table(self) -> SampleTable:
        return SampleTable.load(self.path, partial=True)


@dataclass
class _Pending:
    """Samples that have been through the network and wait to be scored together."""

    ids: list[str] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)

    @property
    def due(self) -> bool:
        return len(self.ids) >= _PART_ROWS or time.monotonic() - self.since > _PART_SECONDS


@dataclass
class Engine:
    """A network, its data, and what to compute. `notes` collects what a user should know about the result.

    `keep` says what to keep of the features (see `feature_vectors`), None nothing.
    """

    network: nn.Module
    model: Model
    samples: Samples
    head: str
    outputs: int
    device: torch.device
    scores: Sequence[str]
    use_bias: bool
    mapping: np.ndarray | None
    strict: bool
    keep: Keep | None = None
    notes: list[str] = field(default_factory=list)
    _labelled: bool | None = None

    def run(self, sink: Memory | Folder, *, shard: tuple[int, int], batch_size: int, workers: int, bar: bool) -> None:
        """Forward every sample that the sink does not hold yet."""
        from tqdm import tqdm

        done = sink.done()
        total, batches = self._batches(done, shard, batch_size, workers)
        progress = tqdm(total=total, initial=len(done), unit=" samples", disable=None if bar else True, desc="scoring")
        pending = _Pending()
        with evaluating(self.network, self.device), capture(self.network, self.head) as head, progress:
            try:
                for ids, inputs, labels, bad in batches:
                    if isinstance(inputs, Exception):  # raised here, a worker would wrap it in its traceback
                        raise inputs
                    if bad and self.strict:
                        raise InputError(
                            f"bad sample {printable(bad[0][0])!r}: {bad[0][1]} (without strict it would be listed)."
                        )
                    if ids:
                        features, checked = self._forward(inputs, head), self._checked(labels)
                        pending.features.append(features)  # all or nothing: what is pending is written on an error
                        pending.labels += checked
                        pending.ids += ids
                    pending.bad += bad
                    progress.update(len(ids) + len(bad))
                    if pending.due:
                        self._write(pending, sink, head)
                        pending = _Pending()
            except BaseException as error:
                if not isinstance(error, OSError):  # a full disk takes nothing more
                    self._write(pending, sink, head, lenient=True)
                raise
            self._write(pending, sink, head)

    def _batches(
        self, done: set[str], shard: tuple[int, int], batch_size: int, workers: int
    ) -> tuple[int, Iterator[Batch]]:
        samples, (rank, world) = self.samples, shard
        prepared = Prepared(samples, self.model, input_channels(self.network))
        todo = [i for i in range(rank, len(samples), world) if not done or samples.ids[i] not in done]
        loader = DataLoader(
            prepared,
            batch_size,
            sampler=todo,
            num_workers=workers,
            collate_fn=collate,
            pin_memory=self.device.type == "cuda",
        )
        return len(todo) + len(done), iter(loader)

    def _forward(self, inputs: Any, head: Head) -> Tensor:
        inputs = moved(inputs, self.device)
        try:
            with torch.no_grad():
                output = self.network(**inputs) if isinstance(inputs, dict) else self.network(inputs)
        except Exception as error:  # whatever a user's forward may raise
            if isinstance(error, (HardsightError, MemoryError, torch.OutOfMemoryError)):  # not of the user's forward
                raise
            shape = tuple(inputs.shape) if isinstance(inputs, Tensor) else "that is a mapping"
            raise StateError(
                f"the model failed on a batch {shape}: {type(error).__name__}: {first_line(error)}. Check that its "
                "preprocessing gives the size and channels it was trained with."
            ) from error
        features = head.features.detach()
        if self._labelled is None:  # the first batch
            note = output_note(output_matrices(output), features, head)
            self.notes += [note] if note else []
        return features

    def _checked(self, labels: list[Any]) -> list[Tensor]:
        """Labels of a batch as the model counts its classes; an empty list where there are none."""
        labelled = labels[0] is not None
        if any((label is not None) != labelled for label in labels) or self._labelled not in (None, labelled):
            raise InputError("some samples have labels and some have none: score them as two data sets.")
        self._labelled = labelled
        if not labelled:
            return []
        found = check_labels(labels, len(labels), self.outputs if self.mapping is None else len(self.mapping))
        return [found if self.mapping is None else torch.from_numpy(self.mapping)[found]]

    def _write(self, pending: _Pending, sink: Memory | Folder, head: Head, lenient: bool = False) -> None:
        if not pending.ids and not pending.bad:
            return
        rows, lost, vectors = pa.table({"id": pa.array([], pa.string())}), bad_table([]), None
        if pending.ids:
            weight = head.weight.detach()
            bias = head.bias.detach() if self.use_bias and head.bias is not None else None
            labels = torch.cat(pending.labels) if pending.labels else None
            features = torch.cat(pending.features)
            if self.keep == "features":  # the head that will judge them is not there yet
                rows, lost = feature_rows(pending.ids, features, labels)
            else:
                rows, lost = scored_rows(pending.ids, features, weight, labels, bias, self.scores)
            if self.keep is not None:
                vectors = feature_vectors(rows["id"], pending.ids, features, weight, bias, self.keep)
        if self.strict and len(lost) and not lenient:
            raise InputError(f"bad sample {lost['id'][0].as_py()!r}: {lost['error'][0].as_py()}.")
        sink.write_rows(rows, pa.concat_tables([bad_table(pending.bad), lost]), self.model.name, vectors)


@contextmanager
def evaluating(network: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode on the device, and back to how each submodule was."""
    modes = {module: module.training for module in network.modules()}
    home = next((p.device for p in network.parameters()), device)
    network.to(device).eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        network.to(home)


def moved(inputs: Any, device: torch.device) -> Any:
    """Inputs of a network on its device; float64 becomes float32 on Apple's mps, which has no other."""
    if isinstance(inputs, dict):
        return {key: moved(value, device) for key, value in inputs.items()}
    if not isinstance(inputs, Tensor):
        return inputs
    if device.type == "mps" and inputs.dtype == torch.float64:
        inputs = inputs.float()
    return inputs.to(device, non_blocking=True)
