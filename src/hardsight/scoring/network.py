"""A network over a data set, or several: what determines the rows, the passes over the data, and one table."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import nn

from hardsight.data import Samples, class_mapping
from hardsight.devices import find_device
from hardsight.engines import Outcome, Ray
from hardsight.ensemble import mean_over_nets, mean_vectors
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.heads import find_head, uncompiled
from hardsight.models import Model, network_identity
from hardsight.runs import (
    SCHEMAS,
    STAGES,
    Identity,
    Meta,
    RunWriter,
    Units,
    content_hash,
    gaps_entry,
    identify,
    is_users,
    provenance,
    write_unit,
)
from hardsight.scores import MOST_CLASSES, SCORES
from hardsight.scoring.blocks import row_blocks
from hardsight.scoring.checks import check_samples, class_count, class_order_note
from hardsight.scoring.options import ScoreOptions
from hardsight.scoring.rows import Block, Keep, bad_table, concatenate
from hardsight.stores import as_path
from hardsight.table import SampleTable
from hardsight.tablefiles import read_vectors, split_rows
from hardsight.userfile import FileFunction


def score_network(
    model: Model,
    samples: Samples,
    options: ScoreOptions,
    keep: Keep = "direction",
    identity: Identity | None = None,
) -> SampleTable:
    """Rows of every sample, written to ``options.out`` while they are computed if it is given.

    `identity` is that of the network, where it is there already: to hash large weights takes a while.
    """
    layer = find_head(uncompiled(model.module), options.head)
    if model.classes is not None and len(model.classes) != layer.classes:
        names = len(model.classes)
        raise InputError(f"MODEL has {names} class names but {layer.classes} outputs; give one name per output.")
    fitted_later = keep == "features"  # then the head has the classes of the data, not those of the model
    mapping = None if fitted_later else class_mapping(model.classes, samples.classes, layer.classes)
    check_samples(samples, None if fitted_later else layer.classes)
    limit = class_count(samples, MOST_CLASSES) if fitted_later else len(samples.classes or range(layer.classes))
    identity = identity or network_identity(model.module)
    plan = make_plan([model], samples, options, networks=[identity])
    network = {"name": model.name, "fingerprint": identity.hash}
    plan |= {
        "model": {**network, "head": layer.path, "classes": layer.classes},
        "preprocessing": model.preprocessing if samples.pixels else "none: the data set yields tensors",
        "class_names": list(model.classes or samples.classes or ()),
        "label_mapping": None if mapping is None else mapping.tolist(),
        "vectors": keep if options.vectors else None,
    }
    units, (rank, world, _) = Units.of(len(samples), options.batch_size), options.shard
    with open_run(plan, options, units) as run:
        if run is not None and run.complete:
            return complete_table(run)
        units = units if run is None or run.units is None else run.units
        started, done, notes, blocks = time.time(), {} if run is None else run.done(), [], []
        outputs = np.arange(limit) if mapping is None else mapping
        todo = [unit for unit in range(rank, units.count, world) if unit not in done]
        job = UnitJob(model, samples, options, layer.path, outputs, plan["vectors"], units)
        if isinstance(options.engine, Ray):
            notes += _on_workers(options.engine, replace(job, options=_elsewhere(options)), todo, options.progress)
        else:
            blocks += job.score(todo, notes)
        if run is not None and (done or not blocks or world > 1):  # with the rows of earlier or other processes
            table = SampleTable.load(run.path, partial=True)
            if len(run.done()) < units.count:
                return table  # other processes are still scoring; the last one finishes the run
        else:
            rows, bad, vectors = concatenate(blocks)
            table = SampleTable(rows, None, bad, vectors if run is None else partial(read_vectors, run.path))
        if not len(table):
            id_, error = table.bad.to_pylist()[0].values()
            raise InputError(f"DATA: no sample could be scored; first: {id_}: {error}.")
        if not fitted_later and (note := class_order_note(table, layer.classes)):
            notes.append(note)
        for note in notes:
            warnings.warn(note, UserWarning, stacklevel=2)
        plan |= {"weights": model.weights, "built": model.built, "resumed": sum(done.values()), "warnings": notes}
        plan["seconds"] = round(time.time() - started, 2)
        return finish(run, table, plan, find_device(options.device))


@dataclass(frozen=True)
class UnitJob:
    """What a process needs to score units of a data set."""

    model: Model
    data: Samples
    options: ScoreOptions
    layer: str
    outputs: np.ndarray
    keep: Keep | None
    units: Units

    def score(self, units: Sequence[int], notes: list[str]) -> Iterator[Block]:
        """Score units one after another and commit each, where there is a run; `notes` takes notes on the result."""
        layer = find_head(uncompiled(self.model.module), self.layer)
        places = {unit: self.units.places(unit) for unit in units}
        for unit, block in row_blocks(
            self.model, self.data, self.options, layer, self.outputs, self.keep, places, notes
        ):
            if self.options.strict and len(block.bad):
                id_, error = block.bad.to_pylist()[0].values()
                raise InputError(f"bad sample {printable(id_)!r}: {error} (without strict it would be listed).")
            if self.options.out is not None:
                self.write(unit, block)
                block = block._replace(vectors=None)  # they are read from the folder when somebody asks for them
            yield block

    def write(self, unit: int, block: Block) -> None:
        """Commit the rows of a unit."""
        tables = split_rows(block.rows, block.bad, self.model.name, block.vectors)
        write_unit(as_path(str(self.options.out)), unit, tables)

    def open(self) -> Callable[[int], list[str]]:
        """In a worker of another process."""

        def score(unit: int) -> list[str]:
            notes: list[str] = []
            for _ in self.score([unit], notes):
                pass
            return notes

        return score

    def samples(self, unit: int) -> int:
        return len(self.units.places(unit))


def _elsewhere(options: ScoreOptions) -> ScoreOptions:
    """The options of a worker in another folder and without a terminal."""
    return replace(options, out=as_path(str(options.out)).absolute(), engine="local", progress=False)


def _on_workers(engine: Ray, job: UnitJob, units: Sequence[int], progress: bool) -> list[str]:
    """Have workers score the units; the samples of those that fail on every try are bad. Returns notes."""
    outcome = engine.run(job, units, progress) if units else Outcome()
    for unit, reason in outcome.failed.items():
        bad = bad_table([(job.data.ids[place], reason) for place in job.units.places(unit)])
        job.write(unit, Block(pa.table({"id": pa.array([], pa.string())}), bad))
    notes = (
        [f"{len(outcome.failed):,} units of {job.units.rows:,} samples failed on every try"] if outcome.failed else []
    )
    return [*outcome.notes, *notes]


def make_plan(
    models: Sequence[Model],
    samples: Samples,
    options: ScoreOptions,
    training: Callable[..., Any] | None = None,
    networks: Sequence[Identity] = (),
) -> dict[str, Any]:
    """What determines the rows, in every kind of run: a run with an equal plan is resumed. The networks are `models`,
    or what the function `training` makes. Batch size, workers and device change nothing but rounding. The caller adds
    the names and hashes of the networks; of their identities `networks`, only the gaps are used here.
    """
    transforms = identify([(model.transform, model.takes) for model in models])
    # Of a function named by its file the whole file counts, since that is what the user edits.
    in_file = isinstance(training, FileFunction)
    trained = identify((training.path.read_bytes(), training.function) if in_file else training)
    users_scores = [score for score in (SCORES[name].of_reading for name in options.scores or ()) if is_users(score)]
    scores = identify(users_scores)
    head = options.head
    if models and isinstance(head, nn.Module):
        head = find_head(uncompiled(models[0].module), head).path
    return {
        "data": {"origin": samples.origin, "fingerprint": samples.fingerprint(), "split": samples.split},
        "source": samples.source,
        "labels": content_hash(samples.labels, samples.classes),
        "training": None if training is None else trained.hash,
        "preprocessing_hash": transforms.hash,
        "network_class_names": [list(model.classes or ()) for model in models],
        "scores": list(options.scores or ()),
        "users_scores": scores.hash if users_scores else None,
        "bias": options.use_bias,
        "layer": head if isinstance(head, str) else None,
        "vectors": options.vectors,
        "version": options.version,
        **({"decode": "gpu"} if options.decode == "gpu" else {}),  # only then, so that older runs are resumed
        "schemas": {kind: schema.version for kind, schema in SCHEMAS.items()},
        **(gaps_entry(transforms, trained, scores, *networks, samples.identity) if options.version is None else {}),
    }


def open_run(
    plan: Mapping[str, Any], options: ScoreOptions, units: Units | None = None
) -> AbstractContextManager[RunWriter | None]:
    """The run folder, new or to be resumed; None where rows stay in memory."""
    if options.out is None:
        return nullcontext()
    rank, world, meet = options.shard
    return RunWriter(options.out, plan, units=units, overwrite=options.overwrite, shard=(rank, world), meet=meet)


def complete_table(run: RunWriter) -> SampleTable:
    """The table of a run in which nothing is left to do."""
    table = SampleTable.load(run.path)
    table.meta.already_complete = True
    return table


def finish(
    run: RunWriter | None, table: SampleTable, about: Mapping[str, Any], device: torch.device | None = None
) -> SampleTable:
    """The table with what is known about it; its run, if there is one, is then whole."""
    zeros = int((table["norm"] == 0).sum()) if "norm" in table else 0  # they have no direction: every angle is π/2
    counts = {"rows": len(table), "bad": len(table.bad), "zero_features": zeros}
    table.meta = Meta.from_json({**provenance(device), **about, "counts": counts, "accuracy": table.accuracy})
    if run is not None:
        run.finish(table.meta)
    return table


# ---------------------------------------------------------------------------------------------------------------------
# Runs made in stages: each stage is a run of its own in ``stages/`` until the last one is done.


Part = tuple[str, SampleTable]  # the name of a network, and some of its rows or all of them


def stage(options: ScoreOptions, name: str, score: Callable[[ScoreOptions], SampleTable]) -> SampleTable:
    """A stage of a run: read if it is complete, else scored with options of its own."""
    path = None if options.out is None else options.out / STAGES / name
    if path is not None and (path / "meta.json").exists():
        return SampleTable.load(path)
    return score(replace(options, out=path, overwrite=True))


def combine(
    run: RunWriter | None, about: Mapping[str, Any], parts: Sequence[Part], ids: Sequence[str], options: ScoreOptions
) -> SampleTable:
    """The tables of all networks as one: means over them. A sample that is bad for one network is bad for all."""
    bad = pa.concat_tables([part.bad for _, part in parts]).group_by("id", use_threads=False)
    bad = bad.aggregate([("error", "first")]).rename_columns(["id", "error"])
    order = pa.array(ids, pa.string())

    def gather(tables: Sequence[tuple[str, pa.Table]]) -> pa.Table:
        named = [rows.add_column(1, "model", pa.repeat(name, len(rows))) for name, rows in tables]
        rows = pa.concat_tables(named, promote_options="default")
        rows = rows.filter(pc.invert(pc.is_in(rows["id"], value_set=bad["id"].combine_chunks())))
        return rows.take(pc.array_sort_indices(pc.index_in(rows["id"], value_set=order)))

    rows = gather([(name, part.to_arrow()) for name, part in parts])
    stored = [(name, part.vectors) for name, part in parts if part.vectors is not None]
    vectors = gather(stored) if stored else None
    names, accuracies = list(dict.fromkeys(name for name, _ in parts)), []
    for unit, name in enumerate(names):
        network = SampleTable(rows.filter(pc.equal(rows["model"], name)).drop_columns(["model"]))
        kept = None if vectors is None else vectors.filter(pc.equal(vectors["model"], name)).drop_columns(["model"])
        accuracies += [] if network.accuracy is None else [network.accuracy]
        if run is not None:
            run.write(split_rows(network.to_arrow(), bad, name, kept), unit)
    mean = (mean_over_nets(rows) if len(names) > 1 else rows).drop_columns(["model"])
    table = SampleTable(mean, None, bad, None if vectors is None else mean_vectors(vectors))
    notes = [*about.get("warnings", ()), *(note for _, part in parts for note in part.meta.warnings)]
    several = {"models": names} if len(names) > 1 else {}
    about = {**about, **several, "accuracies": accuracies, "warnings": notes}
    return finish(run, table, about, find_device(options.device))


def score_several(models: Sequence[Model], samples: Samples, options: ScoreOptions) -> SampleTable:
    """Every network over the same samples; each score is the mean over networks, with its spread beside it."""
    if options.shard.world > 1:
        raise InputError("shard: several networks are scored in one process; leave it out.")
    names = [model.name for model in models]
    repeats = [names[:i].count(name) for i, name in enumerate(names)]
    models = [replace(m, name=f"{m.name} ({n + 1})" if n else m.name) for m, n in zip(models, repeats, strict=True)]
    layers, orders = [find_head(uncompiled(model.module), options.head) for model in models], []
    for model, layer in zip(models, layers, strict=True):
        mapping = class_mapping(model.classes, samples.classes, layer.classes)
        orders.append((layer.classes, None if mapping is None else mapping.tolist(), model.classes))
        check_same_classes(orders[0], orders[-1], f"{models[0].name!r} and {model.name!r}")
    identities = [network_identity(model.module) for model in models]
    plan = make_plan(models, samples, options, networks=identities)
    plan["nets"] = [
        {"name": model.name, "fingerprint": identity.hash, "head": layer.path}
        for model, identity, layer in zip(models, identities, layers, strict=True)
    ]
    plan["preprocessing"] = [model.preprocessing for model in models]
    with open_run(plan, options) as run:
        if run is not None and run.complete:
            return complete_table(run)
        parts = []
        for i, (model, identity) in enumerate(zip(models, identities, strict=True)):
            score = partial(score_network, model, samples, identity=identity)
            parts.append((model.name, stage(options, f"net{i}", score)))
        first = parts[0][1].meta
        about = {key: getattr(first, key) for key in ("preprocessing", "class_names", "label_mapping", "weights")}
        about["model"] = {"name": " + ".join(name for name, _ in parts), "classes": first.model.classes}
        return combine(run, {**plan, **about}, parts, samples.ids, options)


# Number of outputs, where each label of the data lies among them, and their names.
ClassOrder = tuple[int | None, Sequence[int] | None, Sequence[str] | None]


def check_same_classes(first: ClassOrder, other: ClassOrder, networks: str) -> None:
    """Refuse networks that number their classes differently: their rows could not be put together."""
    same_names = not first[2] or not other[2] or list(first[2]) == list(other[2])
    if first[:2] != other[:2] or not same_names:
        raise InputError(
            f"the networks must have the same classes in the same order, but {networks} differ ({first[0]} and "
            f"{other[0]} classes)."
        )
