"""A network over a data set, or several: what determines the rows, the passes over the data, and one table."""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hardsight.data import Samples, class_mapping
from hardsight.devices import find_device
from hardsight.ensemble import mean_over_nets, mean_vectors
from hardsight.errors import InputError
from hardsight.heads import find_head, uncompiled, unwrap
from hardsight.models import Model
from hardsight.runs import SCHEMAS, STAGES, UNIDENTIFIED, Meta, RunWriter, content_hash, identify, provenance
from hardsight.scoring.blocks import Keep, as_table, row_blocks
from hardsight.scoring.checks import check_samples, class_order_note
from hardsight.scoring.options import ScoreOptions
from hardsight.table import SampleTable, split_rows
from hardsight.userfile import FileFunction


def score_network(model: Model, samples: Samples, options: ScoreOptions, keep: Keep = "direction") -> SampleTable:
    """Rows of every sample, written to ``options.out`` while they are computed if it is given."""
    layer = find_head(uncompiled(model.module), options.head)
    if model.classes is not None and len(model.classes) != layer.classes:
        names = len(model.classes)
        raise InputError(f"MODEL has {names} class names but {layer.classes} outputs; give one name per output.")
    # A head that is fitted later has the classes of the data, not those of the model.
    fitted_later = keep == "features"
    mapping = None if fitted_later else class_mapping(model.classes, samples.classes, layer.classes)
    check_samples(samples, None if fitted_later else layer.classes)
    plan = make_plan([model], samples, options)
    fingerprint = plan.pop("networks")[0]
    plan |= {
        "model": {"name": model.name, "fingerprint": fingerprint, "head": layer.path, "classes": layer.classes},
        "preprocessing": model.preprocessing if samples.pixels else "none: the data set yields tensors",
        "class_names": list(model.classes or samples.classes or ()),
        "label_mapping": None if mapping is None else mapping.tolist(),
        "vectors": keep if options.vectors else None,
    }
    with _begin(plan, options) as run:
        if run is not None and run.complete:
            return _complete(run)
        started, done, notes, blocks = time.time(), set() if run is None else run.done(), [], []
        keep_here = keep if options.vectors else None
        for block in row_blocks(model, samples, options, layer, mapping, keep_here, done, notes):
            if run is not None:
                tables = split_rows(block.rows, block.bad, model.name, block.vectors)
                run.write(tables if len(block.rows) else {"samples": tables["samples"]})
                block = block._replace(vectors=None)  # they are read from the folder when somebody asks for them
            blocks.append(block)
        table = as_table(blocks)
        if run is not None and (done or options.shard.world > 1):  # with the rows of earlier or other processes
            table = SampleTable.load(run.path, partial=True)
        if options.shard.world > 1 and len(table) + len(table.bad) < len(samples):
            return table  # other processes are still scoring; the last one finishes the run
        if not len(table):
            first = table.bad.to_pylist()[0]
            raise InputError(f"DATA: no sample could be scored; first: {first['id']}: {first['error']}.")
        order = None if fitted_later else class_order_note(table, layer.classes)
        notes += [] if order is None else [order]
        for note in notes:
            warnings.warn(note, UserWarning, stacklevel=2)
        about = {"weights": model.weights, "built": model.built, "resumed": len(done), "warnings": notes}
        about |= {"seconds": round(time.time() - started, 2), **row_counts(table)}
        table.meta = Meta.from_json({**provenance(find_device(options.device)), **plan, **about})
        if run is None:
            return table
        run.finish(table.meta)
        return SampleTable(table.to_arrow(), table.meta, table.bad, lambda: SampleTable.load(run.path).vectors)


def make_plan(
    models: Sequence[Model], samples: Samples, options: ScoreOptions, training: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """What determines the rows, in every kind of run: a run with an equal plan is resumed. The networks are `models`,
    or what the function `training` makes. Batch size, workers and device change nothing but rounding.
    """
    transforms = identify([(model.transform, model.takes) for model in models])
    networks = [identify(unwrap(model.module)) for model in models]
    # Of a function named by its file the whole file counts, since that is what the user edits.
    in_file = isinstance(training, FileFunction)
    trained = identify((training.path.read_bytes(), training.function) if in_file else training)
    unidentified = [gap for identity in (transforms, trained, *networks) for gap in identity.gaps]
    unidentified += [] if samples.unseen is None else [samples.unseen]
    plan = {
        "data": {"origin": samples.origin, "fingerprint": samples.fingerprint(), "split": samples.split},
        "source": samples.source,
        "labels": content_hash(samples.labels, samples.classes),
        "networks": [network.hash for network in networks],
        "training": None if training is None else trained.hash,
        "preprocessing_hash": transforms.hash,
        "network_class_names": [list(model.classes or ()) for model in models],
        "scores": list(options.scores or ()),
        "bias": options.use_bias,
        "layer": options.head if isinstance(options.head, str) else None,
        "vectors": options.vectors,
        "version": options.version,
        "schemas": {kind: schema.version for kind, schema in SCHEMAS.items()},
    }
    if unidentified and options.version is None:
        plan[UNIDENTIFIED] = {"what": unidentified, "once": secrets.token_hex(8)}
    return plan


def _begin(plan: Mapping[str, Any], options: ScoreOptions) -> AbstractContextManager[RunWriter | None]:
    """The run folder, new or to be resumed; None where rows stay in memory."""
    if options.out is None:
        return nullcontext()
    shard = (options.shard.rank, options.shard.world)
    return RunWriter(options.out, plan, overwrite=options.overwrite, shard=shard, meet=options.shard.meet)


def _complete(run: RunWriter) -> SampleTable:
    table = SampleTable.load(run.path)
    table.meta.already_complete = True
    return table


def row_counts(table: SampleTable) -> dict[str, Any]:
    """What a run says about its rows. A zero feature has no direction: its angle to every class is π/2."""
    zeros = int((table["norm"] == 0).sum()) if "norm" in table else 0
    counts = {"rows": len(table), "bad": len(table.bad), "zero_features": zeros}
    return {"counts": counts, "accuracy": table.accuracy}


# ---------------------------------------------------------------------------------------------------------------------
# Runs made in stages: each stage is a run of its own in ``stages/`` until the last one is done.

# A stage by name: read if it is complete, else scored by a function of the stage's options.
Stage = Callable[[str, Callable[[ScoreOptions], SampleTable]], SampleTable]


class Staged(NamedTuple):
    """What the stages of a run leave: one table per network, and what to say about all of them."""

    tables: Mapping[str, SampleTable]
    meta: Mapping[str, Any]
    notes: Sequence[str] = ()


def score_in_stages(plan: Mapping[str, Any], options: ScoreOptions, score: Callable[[Stage], Staged]) -> SampleTable:
    """The tables of all stages as one: means over the networks. A sample that is bad for one of them is bad for all."""
    with _begin(plan, options) as run:
        if run is not None and run.complete:
            return _complete(run)

        def stage(name: str, score_stage: Callable[[ScoreOptions], SampleTable]) -> SampleTable:
            path = None if run is None else run.path / STAGES / name
            if path is not None and (path / "meta.json").exists():
                return SampleTable.load(path)
            return score_stage(replace(options, out=path, overwrite=True))

        tables, meta, notes = score(stage)
        bad = pa.concat_tables([table.bad for table in tables.values()]).group_by("id", use_threads=False)
        bad = bad.aggregate([("error", "first")]).rename_columns(["id", "error"])
        rows = {name: _without(table.to_arrow(), bad) for name, table in tables.items()}
        vectors = {name: _without(table.vectors, bad) for name, table in tables.items() if table.vectors is not None}
        several = {"models": list(tables)} if len(tables) > 1 else {}
        mean = mean_over_nets(_with_model(rows)).drop_columns(["model"]) if several else next(iter(rows.values()))
        table = SampleTable(mean, None, bad, mean_vectors(_with_model(vectors)) if vectors else None)
        accuracies = [accuracy for part in tables.values() if (accuracy := part.accuracy) is not None]
        notes = [*notes, *(note for part in tables.values() for note in part.meta.warnings)]
        about = {"accuracies": accuracies, "warnings": notes, **several, **row_counts(table)}
        table.meta = Meta.from_json({**provenance(find_device(options.device)), **plan, **meta, **about})
        if run is not None:
            for name in tables:
                run.write(split_rows(rows[name], bad, name, vectors.get(name)))
            run.finish(table.meta)
        return table


def _without(rows: pa.Table, bad: pa.Table) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows["id"], value_set=bad["id"].combine_chunks()))) if len(bad) else rows


def _with_model(tables: Mapping[str, pa.Table]) -> pa.Table:
    """The rows of all networks, with a column ``model``."""
    named = [rows.add_column(1, "model", pa.repeat(name, len(rows))) for name, rows in tables.items()]
    return pa.concat_tables(named, promote_options="default")


def score_several(models: Sequence[Model], samples: Samples, options: ScoreOptions) -> SampleTable:
    """Every network over the same samples; each score is the mean over networks, with its spread beside it."""
    if options.shard.world > 1:
        raise InputError("shard: several networks are scored in one process; leave it out.")
    names = [model.name for model in models]
    repeats = [names[:i].count(name) for i, name in enumerate(names)]
    models = [replace(m, name=f"{m.name} ({n + 1})" if n else m.name) for m, n in zip(models, repeats, strict=True)]
    layers = [find_head(uncompiled(model.module), options.head) for model in models]
    orders = []
    for model, layer in zip(models, layers, strict=True):
        mapping = class_mapping(model.classes, samples.classes, layer.classes)
        places = None if mapping is None else mapping.tolist()
        orders.append(ClassOrder(model.name, layer.classes, model.classes, places))
        check_same_classes(orders[0], orders[-1])
    plan = make_plan(models, samples, options)
    nets = [
        {"name": model.name, "fingerprint": fingerprint, "head": layer.path}
        for model, fingerprint, layer in zip(models, plan.pop("networks"), layers, strict=True)
    ]
    plan |= {"nets": nets, "preprocessing": [model.preprocessing for model in models]}

    def score(stage: Stage) -> Staged:
        scoring = [(model.name, partial(score_network, model, samples)) for model in models]
        tables = {name: stage(f"net{i}", score_net) for i, (name, score_net) in enumerate(scoring)}
        first = tables[models[0].name].meta
        shared = {key: getattr(first, key) for key in ("preprocessing", "class_names", "label_mapping", "weights")}
        return Staged(tables, {"model": {"name": " + ".join(tables), "classes": layers[0].classes}, **shared})

    return score_in_stages(plan, options, score)


class ClassOrder(NamedTuple):
    """How a network numbers its classes; `mapping` says where each label of the data lies among its outputs."""

    network: str
    outputs: int
    names: Sequence[str] | None
    mapping: Sequence[int] | None


def check_same_classes(first: ClassOrder, other: ClassOrder) -> None:
    """Refuse networks that number their classes differently: their rows could not be put together."""
    same_names = not first.names or not other.names or list(first.names) == list(other.names)
    if first.outputs != other.outputs or first.mapping != other.mapping or not same_names:
        sizes = f" ({first.outputs} and {other.outputs})" if first.outputs != other.outputs else ""
        raise InputError(
            "the networks must have the same classes in the same order, but "
            f"{first.network!r} and {other.network!r} differ{sizes}."
        )
