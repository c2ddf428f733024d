"""One network over one data set: the plan of a run, the pass, and what is said about it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hardsight.data import Samples, StreamSamples, class_mapping
from hardsight.errors import InputError
from hardsight.extras import first_line, printable
from hardsight.heads import find_head, uncompiled
from hardsight.models import Model, fingerprint
from hardsight.provenance import provenance
from hardsight.runfolder import SCHEMAS
from hardsight.scoring.checks import check_known_labels, class_order_note
from hardsight.scoring.engine import Engine, Folder, Memory
from hardsight.scoring.rows import zero_features
from hardsight.scoring.vectors import Keep
from hardsight.table import SampleTable


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
    check_samples(samples, None if for_new_head else outputs)
    plan = {
        "model": {"name": model.name, "fingerprint": fingerprint(network), "head": layer.path, "classes": outputs},
        **data_plan(samples),
        "preprocessing": model.preprocessing if samples.pixels else "none: the data set yields tensors",
        "bias": options.use_bias,
        "class_names": list(model.classes or samples.classes or ()),
        "label_mapping": None if mapping is None else mapping.tolist(),
        "scores": list(options.scores),
        "vectors": keep if options.vectors else None,
        "schemas": {kind: schema.version for kind, schema in SCHEMAS.items()},
    }
    # Under torchrun every process takes its share and writes parts of its own; no messages are needed.
    shard = (int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))) if out is not None else (0, 1)
    sink = Memory() if out is None else Folder(out, plan, overwrite=overwrite, rank=shard[0])
    if isinstance(sink, Folder) and sink.complete:
        table = SampleTable.load(sink.path)
        table.meta["already_complete"] = True
        return table
    started, resumed = time.time(), len(sink.done())
    workers = loader_workers(options.workers, options.device)
    engine = Engine(
        network=network,
        model=model,
        samples=samples,
        head=layer.path,
        outputs=class_count(samples, outputs) if for_new_head else outputs,
        device=options.device,
        scores=options.scores,
        use_bias=options.use_bias,
        mapping=mapping,
        strict=options.strict,
        keep=keep if options.vectors else None,
    )
    engine.run(sink, shard=shard, batch_size=options.batch_size, workers=workers, bar=options.progress)
    table = sink.table()
    if shard[1] > 1 and not isinstance(samples, StreamSamples) and len(table) + len(table.bad) < len(samples):
        return table  # other processes are still at it; the last one finishes the run
    if not len(table):
        bad = table.bad.slice(0, 1).to_pylist() or [{"id": "nothing", "error": "was read"}]
        raise InputError(f"DATA: no sample could be scored; first: {bad[0]['id']}: {bad[0]['error']}.")
    order = None if for_new_head else class_order_note(table, outputs)
    notes = [*engine.notes, *([order] if order else [])]
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=3)
    meta = {
        **provenance(options.device),
        **plan,
        "weights": model.weights,
        "built": model.built,
        "seconds": round(time.time() - started, 2),
        "resumed": resumed,
        "counts": counts(table),
        "accuracy": table.accuracy,
        "warnings": notes,
    }
    if isinstance(sink, Folder):
        sink.finish(meta)
    return SampleTable(table.to_arrow(), meta, table.bad, table._vectors)


def data_plan(samples: Samples) -> dict[str, Any]:
    """What a plan says about the data."""
    return {
        "data": {"origin": samples.origin, "fingerprint": samples.fingerprint(), "split": samples.split},
        "source": samples.source,
    }


def counts(table: SampleTable) -> dict[str, int]:
    """What a run says about its rows."""
    return {"rows": len(table), "bad": len(table.bad), "zero_features": zero_features(table.to_arrow())}


def class_count(samples: Samples, otherwise: int) -> int:
    """How many classes the data have, as far as they say."""
    known = [0 if samples.labels is None or not len(samples.labels) else int(samples.labels.max()) + 1]
    return max([len(samples.classes or ()), *known]) or otherwise


def check_samples(samples: Samples, outputs: int | None) -> None:
    """Refuse data that are empty, whose ids repeat, or whose labels do not fit the model, before the first batch."""
    if isinstance(samples, StreamSamples):
        return
    if not len(samples):
        raise InputError(f"DATA is empty: {samples.origin}.")
    seen: set[str] = set()
    for i in range(len(samples)):  # ids that repeat are better found now than after a night's work
        if (id_ := samples.id(i)) in seen:
            raise InputError(f"ids must be unique, but {printable(id_)!r} repeats.")
        seen.add(id_)
    if samples.labels is not None and outputs is not None:
        check_known_labels(samples.labels, samples.classes, outputs)


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


def loader_workers(workers: int | None, device: torch.device) -> int:
    """Loader processes: as many as were asked for, else some where they would keep a GPU busy."""
    if workers is not None:
        return workers
    return 0 if device.type == "cpu" else min(8, os.cpu_count() or 1)
