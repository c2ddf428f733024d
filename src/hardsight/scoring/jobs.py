"""Units of a data set, scored here or by workers, each committed to the run when it is done; then one table."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import torch

from hardsight import storedrows
from hardsight.devices import find_device
from hardsight.engines import Outcome, Ray
from hardsight.errors import InputError, StateError
from hardsight.extras import printable
from hardsight.runs import Identity, Meta, RunWriter, Units, identify, is_users, provenance, write_unit
from hardsight.scores import SCORES
from hardsight.scoring.checks import class_order_note
from hardsight.scoring.options import ScoreOptions
from hardsight.scoring.rows import Block, bad_table, concatenate
from hardsight.stores import as_path
from hardsight.table import SampleTable
from hardsight.tablefiles import read_vectors, split_rows


@dataclass(frozen=True)
class UnitJob(ABC):
    """What a process needs to score units of a data set.

    Attributes:
        name: Name of the model, in the rows.
        units: The division of the data.
        options: How to score.
    """

    name: str
    units: Units
    options: ScoreOptions

    @abstractmethod
    def blocks(self, places: Mapping[int, range], notes: list[str]) -> Iterator[tuple[int, Block]]:
        """Score units, given by the places of their samples; `notes` takes notes on the result."""

    @abstractmethod
    def ids(self, places: range) -> Sequence[str]:
        """The ids of some samples."""

    def score(self, units: Sequence[int], notes: list[str]) -> Iterator[Block]:
        """Score units one after another and commit each, where there is a run."""
        for unit, block in self.blocks({unit: self.units.places(unit) for unit in units}, notes):
            self.check(block)
            if self.options.out is not None:
                self.write(unit, block)
                block = block._replace(vectors=None)  # read from the folder on demand
            yield block

    def check(self, block: Block) -> None:
        """Refuse bad samples, where none may be listed."""
        if self.options.strict and len(block.bad):
            id_, error = block.bad.to_pylist()[0].values()
            raise InputError(f"bad sample {printable(id_)!r}: {error} (without strict it would be listed).")

    def write(self, unit: int, block: Block) -> None:
        """Commit the rows of a unit."""
        tables = split_rows(block.rows, block.bad, self.name, block.vectors)
        write_unit(as_path(str(self.options.out)), unit, tables)

    def open(self) -> Callable[[int], list[str]]:
        """Called in a worker process; returns a function that scores one unit and returns its notes."""

        def score(unit: int) -> list[str]:
            notes: list[str] = []
            for _ in self.score([unit], notes):
                pass
            return notes

        return score

    def samples(self, unit: int) -> int:
        return len(self.units.places(unit))


def run_job(
    plan: Mapping[str, Any],
    units: Units,
    options: ScoreOptions,
    job_of: Callable[[Units], UnitJob],
    *,
    classes: int | None,
    about: Mapping[str, Any],
) -> SampleTable:
    """Rows of every sample, written to ``options.out`` while they are computed if it is given.

    Args:
        plan: Everything that decides the rows.
        units: The division of the data, unless the run was begun with another.
        options: How to score.
        job_of: Makes the job for a division.
        classes: Number of outputs of the model, to notice labels that are numbered differently; None skips the check.
        about: Further meta data of the run.
    """
    rank, world, _ = options.shard
    with open_run(plan, options, units) as run:
        if run is not None and run.complete:
            return complete_table(run)
        units = units if run is None or run.units is None else run.units
        started, done, notes, blocks = time.time(), {} if run is None else run.done(), [], []
        left, job = units.left(done), job_of(units)
        todo, resumed = [unit for unit in left if unit % world == rank], units.samples - sum(map(job.samples, left))
        stays = run is not None and units.samples > storedrows.EAGER_ROWS
        if isinstance(options.engine, Ray):
            notes += _on_workers(options.engine, replace(job, options=_elsewhere(options)), todo, options.progress)
        else:
            for block in job.score(todo, notes):
                blocks += [] if stays else [block]
        if run is not None and (done or not blocks or world > 1):  # with the rows of earlier or other processes
            whole = not units.left(run.done())  # before the rows are read: others may commit units meanwhile
            table = SampleTable.load(run.path, partial=True)
            if not whole:
                return table  # other processes are still scoring; the last one finishes the run
            if (there := len(table) + len(table.bad)) != units.samples:
                what = f"it holds {there:,} of {units.samples:,} samples"
                raise StateError(f"RUN: {run.path} is damaged: {what}; overwrite the run (--overwrite).")
        else:
            rows, bad, vectors = concatenate(blocks)
            table = SampleTable(rows, None, bad, vectors if run is None else partial(read_vectors, run.path))
        if not len(table):
            if run is not None:
                run.discard_units()  # nothing to keep: the next start tries again
            id_, error = table.bad.to_pylist()[0].values()
            raise InputError(f"DATA: no sample could be scored; first: {id_}: {error.rstrip('.')}.")
        if classes is not None and (note := class_order_note(table, classes)):
            notes.append(note)
        for note in notes:
            warnings.warn(note, UserWarning, stacklevel=3)
        facts = {"resumed": resumed, "warnings": notes, "seconds": round(time.time() - started, 2)}
        return finish(run, table, {**plan, **about, **facts}, find_device(options.device))


def _elsewhere(options: ScoreOptions) -> ScoreOptions:
    """The options of a worker in another folder and without a terminal."""
    return replace(options, out=as_path(str(options.out)).absolute(), engine="local", progress=False)


def _on_workers(engine: Ray, job: UnitJob, units: Sequence[int], progress: bool) -> list[str]:
    """Have workers score the units; the samples of those that fail on every try are bad. Returns notes."""
    outcome = engine.run(job, units, progress) if units else Outcome()
    if len(outcome.failed) == job.units.count:  # nothing to keep: the next start tries again
        raise StateError(f"every unit failed on every try; first: {next(iter(outcome.failed.values()))}.")
    for unit, reason in outcome.failed.items():
        bad = bad_table([(id_, reason) for id_ in job.ids(job.units.places(unit))])
        block = Block(pa.table({"id": pa.array([], pa.string())}), bad)
        job.check(block)
        job.write(unit, block)
    count = f"{len(outcome.failed):,} unit{'s' * (len(outcome.failed) > 1)}"
    notes = [f"{count} of at most {job.units.rows:,} samples failed on every try"] if outcome.failed else []
    return [*outcome.notes, *notes]


def users_scores(options: ScoreOptions) -> Identity | None:
    """The identity of the scores that the user registered; None where all are ours."""
    functions = [score for score in (SCORES[name].of_reading for name in options.scores or ()) if is_users(score)]
    return identify(functions) if functions else None


def open_run(
    plan: Mapping[str, Any], options: ScoreOptions, units: Units | None = None
) -> AbstractContextManager[RunWriter | None]:
    """The run folder, new or to be resumed; None where rows stay in memory."""
    if options.out is None:
        return nullcontext()
    rank, world, meet = options.shard
    return RunWriter(options.out, plan, units=units, overwrite=options.overwrite, shard=(rank, world), meet=meet)


def last_step(run: RunWriter | None) -> AbstractContextManager[bool]:
    """Whether this process finishes a run whose stages are all done; of several, one does."""
    return nullcontext(True) if run is None else run.last_step()


def complete_table(run: RunWriter) -> SampleTable:
    """The table of a run in which nothing is left to do."""
    table = SampleTable.load(run.path)
    table.meta.already_complete = True
    return table


def finish(
    run: RunWriter | None, table: SampleTable, about: Mapping[str, Any], device: torch.device | None = None
) -> SampleTable:
    """Complete the table's meta data; its run, if there is one, is then finished."""
    norms = table.pieces("norm") if "norm" in table else ()  # without one there is no direction: every angle is π/2
    zeros = sum(int((norm.to_numpy(zero_copy_only=False) == 0).sum()) for norm in norms)
    counts = {"rows": len(table), "bad": len(table.bad), "zero_features": zeros}
    table.meta = Meta.from_json({**provenance(device), **about, "counts": counts, "accuracy": table.accuracy})
    if run is not None:
        run.finish(table.meta)
    return table
