"""Score data with one network or several: what determines the rows, the passes over the data, and one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import nn

from hardsight.data import Samples, class_mapping
from hardsight.devices import find_device
from hardsight.ensemble import mean_over_nets, mean_vectors
from hardsight.errors import InputError
from hardsight.heads import find_head, uncompiled
from hardsight.models import Model, network_identity
from hardsight.runs import (
    SCHEMAS,
    STAGES,
    Identity,
    RunWriter,
    Units,
    content_hash,
    gaps_entry,
    identify,
)
from hardsight.scores import MOST_CLASSES
from hardsight.scoring.blocks import row_blocks
from hardsight.scoring.checks import check_samples, class_count
from hardsight.scoring.jobs import UnitJob, complete_table, finish, open_run, run_job, users_scores
from hardsight.scoring.options import ScoreOptions
from hardsight.scoring.rows import Block, Keep
from hardsight.table import SampleTable
from hardsight.tablefiles import split_rows
from hardsight.userfile import FileFunction


def score_network(
    model: Model,
    samples: Samples,
    options: ScoreOptions,
    keep: Keep = "direction",
    identity: Identity | None = None,
) -> SampleTable:
    """Rows of every sample, written to ``options.out`` while they are computed if it is given.

    `identity` is the network's, if it is already computed: hashing large weights takes a while.
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
    outputs = np.arange(limit) if mapping is None else mapping

    def job(units: Units) -> NetworkJob:
        readable = options.engine != "local" and next(samples.readable(), None) is not None
        return NetworkJob(model.name, units, options, model, samples, layer.path, outputs, plan["vectors"], readable)

    units, about = Units.of(len(samples), options.batch_size), {"weights": model.weights, "built": model.built}
    return run_job(plan, units, options, job, classes=None if fitted_later else layer.classes, about=about)


@dataclass(frozen=True)
class NetworkJob(UnitJob):
    """Units of samples that a network scores."""

    model: Model
    data: Samples
    layer: str
    outputs: np.ndarray
    keep: Keep | None
    readable: bool = False  # whether the driver of workers elsewhere can read one of the first samples

    def open(self) -> Callable[[int], list[str]]:
        if self.readable and next(self.data.readable(), None) is None:  # every sample would be a bad one
            raise InputError(f"it cannot read {self.data.origin}: all workers need the same file system")
        return super().open()

    def ids(self, places: range) -> Sequence[str]:
        return [self.data.ids[place] for place in places]

    def blocks(self, places: Mapping[int, range], notes: list[str]) -> Iterator[tuple[int, Block]]:
        layer = find_head(uncompiled(self.model.module), self.layer)
        return row_blocks(self.model, self.data, self.options, layer, self.outputs, self.keep, places, notes)


def make_plan(
    models: Sequence[Model],
    samples: Samples,
    options: ScoreOptions,
    training: Callable[..., Any] | None = None,
    networks: Sequence[Identity] = (),
) -> dict[str, Any]:
    """What determines the rows, in every kind of run: a run with an equal plan is resumed. The networks are `models`,
    or those that the function `training` returns. Batch size, workers and device change nothing but rounding. The
    caller adds the names and hashes of the networks; only the gaps of their identities, `networks`, are used here.
    """
    transforms = identify([(model.transform, model.takes) for model in models])
    # A function named by its file is identified by the whole file, since that is what the user edits.
    in_file = isinstance(training, FileFunction)
    trained = identify((training.path.read_bytes(), training.function) if in_file else training)
    scores, head = users_scores(options), options.head
    parts = (transforms, trained, *([] if scores is None else [scores]), *networks, samples.identity)
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
        "users_scores": None if scores is None else scores.hash,
        "bias": options.use_bias,
        "layer": head if isinstance(head, str) else None,
        "vectors": options.vectors,
        "version": options.version,
        **({"decode": "gpu"} if options.decode == "gpu" else {}),  # only then, so that older runs are resumed
        "schemas": {kind: schema.version for kind, schema in SCHEMAS.items()},
        **(gaps_entry(*parts) if options.version is None else {}),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Runs made in stages: each stage is a run of its own in ``stages/`` until the last one is done.


Part = tuple[str, SampleTable]  # the name of a network, and some of its rows or all of them


def stage_options(options: ScoreOptions, name: str) -> ScoreOptions:
    """The options of a stage of a run. A stage that is complete, or that other processes also write, is kept."""
    path, shard = None if options.out is None else options.out / STAGES / name, options.shard._replace(meet=None)
    unshared = path is not None and shard.world == 1
    return replace(options, out=path, shard=shard, overwrite=unshared and not (path / "meta.json").exists())


def combine(
    run: RunWriter | None, about: Mapping[str, Any], parts: Sequence[Part], ids: Sequence[str], options: ScoreOptions
) -> SampleTable:
    """Combine the tables of all networks: means over networks. A sample that is bad for one network is bad for all."""
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
            table = score_network(model, samples, stage_options(options, f"net{i}"), identity=identity)
            parts.append((model.name, table))
        first = parts[0][1].meta
        about = {key: getattr(first, key) for key in ("preprocessing", "class_names", "label_mapping", "weights")}
        about["model"] = {"name": " + ".join(name for name, _ in parts), "classes": first.model.classes}
        return combine(run, {**plan, **about}, parts, samples.ids, options)


# Number of outputs, where each label of the data lies among them, and their names.
ClassOrder = tuple[int | None, Sequence[int] | None, Sequence[str] | None]


def check_same_classes(first: ClassOrder, other: ClassOrder, networks: str) -> None:
    """Refuse networks that number their classes differently: their rows could not be combined."""
    same_names = not first[2] or not other[2] or list(first[2]) == list(other[2])
    if first[:2] != other[:2] or not same_names:
        raise InputError(
            f"the networks must have the same classes in the same order, but {networks} differ ({first[0]} and "
            f"{other[0]} classes)."
        )
