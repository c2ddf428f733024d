"""One network over one data set: the plan of a run, the pass, and what is said about it."""

from __future__ import annotations

import os
import secrets
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hardsight.data import Samples, class_mapping
from hardsight.errors import InputError
from hardsight.extras import first_line, printable
from hardsight.heads import HeadLayer, find_head, uncompiled, unwrap
from hardsight.models import Model
from hardsight.runs import SCHEMAS, UNIDENTIFIED, Counts, Meta, content_hash, identify, provenance
from hardsight.scoring.checks import check_known_labels, class_order_note
from hardsight.scoring.engine import Engine, Folder, Memory
from hardsight.scoring.rows import zero_features
from hardsight.scoring.vectors import Keep
from hardsight.table import SampleTable
from hardsight.userfile import FileFunction


@dataclass(frozen=True)
class Shard:
    """The share of one of several processes: every `world`-th sample, from `rank` on.

    `meet` is called when all processes must have come so far; without it, they cannot overwrite a run together.
    """

    rank: int = 0
    world: int = 1
    meet: Callable[[], object] | None = None


@dataclass(frozen=True)
class Options:
    """How to score, whatever is scored."""

    scores: Sequence[str]
    head: str | nn.Module | None = None
    use_bias: bool = True
    vectors: bool = True
    batch_size: int = 64
    workers: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    strict: bool = False
    progress: bool = True
    version: str | None = None
    shard: Shard = Shard()


def score_one(
    model: Model, samples: Samples, options: Options, out: Path | None = None, *, overwrite: bool = False, keep: Keep
) -> SampleTable:
    """Rows of every sample, in memory or written to `out` while they are made."""
    network = uncompiled(model.module)
    layer = find_head(network, options.head)
    outputs = layer.classes
    if model.classes is not None and len(model.classes) != outputs:
        raise InputError(f"MODEL has {len(model.classes)} class names but {outputs} outputs; give one name an output.")
    # Features are kept for a head that is still to be fitted to the data's own classes.
    for_new_head = keep == "features"
    mapping = None if for_new_head else class_mapping(model.classes, samples.classes, outputs)
    check_samples(samples, None if for_new_head else outputs, options.shard.world)
    plan = make_plan([model], samples, options)
    plan |= {
        "model": {"name": model.name, "fingerprint": plan.pop("networks")[0], "head": layer.path, "classes": outputs},
        "preprocessing": model.preprocessing if samples.pixels else "none: the data set yields tensors",
        "class_names": list(model.classes or samples.classes or ()),
        "label_mapping": None if mapping is None else mapping.tolist(),
        "vectors": keep if options.vectors else None,
    }
    if out is None:
        return _scored(Memory(), plan, model, layer, mapping, samples, options, keep)
    shard = options.shard
    with Folder(out, plan, overwrite=overwrite, shard=(shard.rank, shard.world), meet=shard.meet) as sink:
        if not sink.complete:
            return _scored(sink, plan, model, layer, mapping, samples, options, keep)
    table = SampleTable.load(out)
    table.meta.already_complete = True
    return table


def _scored(
    sink: Memory | Folder,
    plan: dict[str, Any],
    model: Model,
    layer: HeadLayer,
    mapping: np.ndarray | None,
    samples: Samples,
    options: Options,
    keep: Keep,
) -> SampleTable:
    """Rows of the samples that are not done yet, together with those that are."""
    shard = (options.shard.rank, options.shard.world)
    for_new_head = keep == "features"
    started, resumed = time.time(), len(sink.done())
    workers = loader_workers(options.workers, options.device)
    engine = Engine(
        network=uncompiled(model.module),
        model=model,
        samples=samples,
        head=layer.path,
        outputs=class_count(samples, layer.classes) if for_new_head else layer.classes,
        device=options.device,
        scores=options.scores,
        use_bias=options.use_bias,
        mapping=mapping,
        strict=options.strict,
        keep=keep if options.vectors else None,
    )
    engine.run(sink, shard=shard, batch_size=options.batch_size, workers=workers, bar=options.progress)
    table = sink.table()
    if shard[1] > 1 and len(table) + len(table.bad) < len(samples):
        return table  # other processes are still at it; the last one finishes the run
    if not len(table):
        bad = table.bad.slice(0, 1).to_pylist() or [{"id": "nothing", "error": "was read"}]
        raise InputError(f"DATA: no sample could be scored; first: {bad[0]['id']}: {bad[0]['error']}.")
    order = None if for_new_head else class_order_note(table, layer.classes)
    notes = [*engine.notes, *([order] if order else [])]
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=3)
    meta = Meta.from_json(
        {
            **provenance(options.device),
            **plan,
            "weights": model.weights,
            "built": model.built,
            "seconds": round(time.time() - started, 2),
            "resumed": resumed,
            "warnings": notes,
        }
    )
    meta.counts, meta.accuracy = counts(table), table.accuracy
    if isinstance(sink, Folder):
        sink.finish(meta)
    return SampleTable(table.to_arrow(), meta, table.bad, table._vectors)


def make_plan(
    models: Sequence[Model], samples: Samples, options: Options, training: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """What decides the rows of a run, as far as all kinds of run share it: a run with the same plan can be resumed.

    Args:
        models: The networks, or none where `training` makes them.
        samples: The data.
        options: How to score; batch size, workers and device decide nothing but rounding.
        training: The function that trains the networks.
    """
    transforms = identify([(model.transform, model.takes) for model in models])
    networks = [identify(unwrap(model.module)) for model in models]
    trained = identify(_file_and_function(training))
    gaps = [*transforms.gaps, *trained.gaps, *(gap for network in networks for gap in network.gaps)]
    changing = [*gaps, *([] if samples.unseen is None else [samples.unseen])]
    plan = {
        "data": {"origin": samples.origin, "fingerprint": samples.fingerprint(), "split": samples.split},
        "source": samples.source,
        "labels": content_hash(samples.labels, samples.classes),
        "networks": [network.hash for network in networks],
        "training": None if training is None else trained.hash,
        "preprocessing_hash": transforms.hash,
        "network_class_names": [list(model.classes or ()) for model in models],
        "scores": list(options.scores),
        "bias": options.use_bias,
        "layer": options.head if isinstance(options.head, str) else None,
        "vectors": options.vectors,
        "version": options.version,
        "schemas": {kind: schema.version for kind, schema in SCHEMAS.items()},
    }
    if changing and options.version is None:
        plan[UNIDENTIFIED] = {"what": changing, "once": secrets.token_hex(8)}
    return plan


def _file_and_function(training: Callable[..., Any] | None) -> Any:
    """The whole file of a function that was named by it, since that is what the user looks at."""
    if isinstance(training, FileFunction):
        return training.path.read_bytes(), training.function
    return training


def counts(table: SampleTable) -> Counts:
    """What a run says about its rows."""
    return Counts(len(table), len(table.bad), zero_features(table.to_arrow()))


def class_count(samples: Samples, otherwise: int) -> int:
    """How many classes the data have, as far as they say."""
    known = [0 if samples.labels is None or not len(samples.labels) else int(samples.labels.max()) + 1]
    return max([len(samples.classes or ()), *known]) or otherwise


def check_samples(samples: Samples, outputs: int | None, world: int = 1) -> None:
    """Refuse data that are empty, whose ids repeat, or whose labels do not fit the model, before the first batch."""
    if not len(samples):
        raise InputError(f"DATA is empty: {samples.origin}.")
    if len(set(samples.ids)) < len(samples):  # better found now than after a night's work
        repeated = Counter(samples.ids).most_common(1)[0][0]
        raise InputError(f"ids must be unique, but {printable(repeated)!r} repeats.")
    if samples.labels is not None and outputs is not None:
        check_known_labels(samples.labels, samples.classes, outputs)


def loader_workers(workers: int | None, device: torch.device) -> int:
    """Loader processes: as many as were asked for, else some where they would keep a GPU busy."""
    cores = os.cpu_count() or 1
    if workers is None:
        return 0 if device.type == "cpu" else min(8, cores)
    most = max(64, 4 * cores)  # more only wait for one another, and may bring the machine to a halt
    if isinstance(workers, bool) or not isinstance(workers, int) or not 0 <= workers <= most:
        raise InputError(f"workers must be an integer between 0 and {most}, got {workers!r}.")
    return workers


def find_device(name: str | torch.device | None) -> torch.device:
    """The device to run on, or a sentence."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device must be cpu, cuda, cuda:1 or mps and be there, got {name!r} ({first_line(error)})."
        ) from error
    return device
