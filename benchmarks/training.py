"""What recording costs a training step and an epoch, and records at ImageNet's size."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import nn

import hardsight as hs
from benchmarks.measure import ratio, row, timed
from hardsight import records as store
from hardsight.data import ArraySamples, Source, all_labels, as_pixels
from hardsight.distributed import torchrun_job
from hardsight.dynamics import Dynamics, Recorder
from hardsight.networks import build_network
from hardsight.presets import PRESETS
from hardsight.training.loop import Training, preserved_state

# Batch, steps of one measurement (the recorder reads 32 batches together) and measurements.
ON_GPU, ON_CPU = (512, 96, 10), (32, 32, 5)
SAMPLES, EPOCHS, CLASSES = 1_281_167, 90, 1000


def recorder() -> Iterator[dict]:
    """Training steps of a ResNet-18 with and without a recorder, alternating, and the commit of an epoch."""
    cuda = torch.cuda.is_available()
    for graph in (True, False) if cuda else (False,):
        yield from overhead("cuda" if cuda else "cpu", graph, *(ON_GPU if cuda else ON_CPU))


def overhead(device: str, graph: bool, batch: int, steps: int, rounds: int) -> list[dict]:
    """Rows of one way to step on one device; the accuracy is that of the study ``engine``."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (batch * steps, 32, 32, 3), dtype=np.uint8)
    samples = ArraySamples(images, draw.integers(0, 10, batch * steps), "train", "random images")
    recipe = PRESETS["cifar-resnet18"].recipe.replace(batch_size=batch, epochs=1000, graph=graph)
    if device == "cpu":
        recipe = recipe.replace(precision="float32", compile=False)
    seconds: dict[str, list[float]] = {"plain": [], "recorded": [], "commit": []}
    with torchrun_job(device) as where, preserved_state(where), tempfile.TemporaryDirectory() as folder:
        network = build_network("resnet18-32", 10)
        labels = torch.from_numpy(all_labels(samples, "data")).long()
        source = Source(samples, labels, as_pixels(samples, 3, where), hs.Model(network, "net"), 0, where)
        training = Training(network, recipe, where, nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing))
        records = Recorder(Path(folder, "run"), split=samples.split)
        for repeat in range(rounds + 1):
            rows = torch.randperm(len(samples)).tolist()
            for name in ("plain", "recorded") if repeat % 2 else ("recorded", "plain"):
                epoch = partial(training.train_epoch, source, 1, rows, records if name == "recorded" else None)
                seconds[name].append(timed(epoch) / steps)
            seconds["commit"].append(timed(records.end_epoch))
    plain, recorded, commits = (values[1:] for values in seconds.values())  # the first is a warm-up
    make = partial(row, unit="s", config=f"N={batch} steps={steps} as={'graphs' if graph else 'eager'}")
    return [
        make("recorder", "plain", plain, baseline="plain", ratio=1.0),
        make("recorder", "recorded", recorded, baseline="plain", ratio=ratio(recorded, plain), limit=1.02),
        make("recorder", f"commit of {batch * steps:,} samples", commits, limit=0.05),
    ]


def records() -> list[dict]:
    """1,281,167 samples × 90 epochs, made up: size on disk, time of a curve and of a summary, and peak memory."""
    rng = np.random.default_rng(0)
    per_class = -(-SAMPLES // CLASSES)
    names = [f"train/n{10_000_000 + 17 * (i // per_class)}/{i:08d}.JPEG" for i in range(SAMPLES)]
    ids, label, hard = pa.array(names), np.arange(SAMPLES) // per_class, rng.standard_normal(SAMPLES)
    with tempfile.TemporaryDirectory() as root:
        run = Path(root, "run")
        written = store.Records(run)
        index, write, compact = written.index, [], []
        for epoch in range(1, EPOCHS + 1):
            write.append(timed(partial(written.write_rows, _epoch(epoch, ids, label, hard, rng))))
            index.epochs.append(epoch)
            files = index.files
            seconds = timed(partial(written.compact, everything=epoch == EPOCHS))
            if index.files is not files:
                compact.append(seconds)
            written.commit()
        (run / "meta.json").write_text(f'{{"model": {{"classes": {CLASSES}, "features": 2048}}}}')
        size = sum((run / "dynamics" / entry["name"]).stat().st_size for entry in index.files)
        assert len(Dynamics(run).curve(names[0])) == EPOCHS
        curves = [timed(lambda: Dynamics(run).curve(str(id_))) for id_ in rng.choice(names, 20)]  # noqa: B023
        summary = timed(lambda: Dynamics(run).summary())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = f"{SAMPLES:,} samples × {EPOCHS} epochs"
    return [
        row("records", f"{what}: size", [size / 1e9], "GB", limit=2.0),
        row("records", f"{what}: one curve, opening included", curves, "s", limit=0.05),
        row("records", f"{what}: summary()", [summary], "s"),
        row("records", f"{what}: writing an epoch", write, "s"),
        row("records", f"{what}: compacting", compact, "s"),
        row("records", f"{what}: peak memory", [peak], "MiB"),
    ]


def _epoch(epoch: int, ids: pa.Array, label: np.ndarray, hard: np.ndarray, rng: np.random.Generator) -> pa.Table:
    """Noise in every last digit, so that nothing is compressed that would not be in a real run."""
    n, t = len(ids), epoch / EPOCHS
    noise = rng.standard_normal((5, n))
    soft_margin = 3 - 9 * t + 4 * hard + noise[1]
    columns = {
        "angle": 1.35 - 0.5 * t + 0.2 * hard + 0.05 * noise[0],
        "angle_sum": CLASSES * 1.57 + 2 * noise[2],
        "soft_margin": soft_margin,
        "other_angle": 1.2 + 0.1 * hard + 0.05 * noise[4],
        "margin": -soft_margin + 0.5 * rng.random(n),
        "norm": 20 + 15 * t + noise[3],
        "el2n": 1 / (1 + np.exp(-soft_margin)) * (1 + 0.2 * rng.random(n)),
    }
    pred = np.where(soft_margin < 0, label, rng.integers(0, CLASSES, n))
    whole = {"epoch": np.full(n, epoch), "label": label, "pred": pred}
    table = {"id": ids, **{name: pa.array(values, pa.int32()) for name, values in whole.items()}}
    table |= {name: pa.array(store.rounded(values, store.BITS[name])) for name, values in columns.items()}
    return pa.table(table)
