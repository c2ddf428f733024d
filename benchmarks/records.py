"""Records at ImageNet's size: 1,281,167 samples × 90 epochs, made up, but with the noise and the drift of real ones."""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.measure import row
from hardsight import records as store
from hardsight.dynamics import Dynamics

SAMPLES, EPOCHS, CLASSES = 1_281_167, 90, 1000
MOST_BYTES, MOST_SECONDS = 2e9, 0.05


def _epoch(epoch: int, ids: pa.Array, label: np.ndarray, hard: np.ndarray, rng: np.random.Generator) -> pa.Table:
    """Noise in every last digit, so that nothing is compressed that would not be in a real run."""
    n, t = len(ids), epoch / EPOCHS
    noise = rng.standard_normal((5, n))
    angle = 1.35 - 0.5 * t + 0.2 * hard + 0.05 * noise[0]
    soft_margin = 3 - 9 * t + 4 * hard + noise[1]
    right = soft_margin < 0
    columns = {
        "angle": angle,
        "angle_sum": CLASSES * 1.57 + 2 * noise[2],
        "soft_margin": soft_margin,
        "other_angle": 1.2 + 0.1 * hard + 0.05 * noise[4],
        "margin": -soft_margin + 0.5 * rng.random(n),
        "norm": 20 + 15 * t + noise[3],
        "el2n": 1 / (1 + np.exp(-soft_margin)) * (1 + 0.2 * rng.random(n)),
    }
    table = {
        "id": ids,
        "epoch": pa.array(np.full(n, epoch), pa.int32()),
        "label": pa.array(label, pa.int32()),
        "pred": pa.array(np.where(right, label, rng.integers(0, CLASSES, n)), pa.int32()),
    }
    for name, values in columns.items():
        table[name] = pa.array(store.rounded(values, store.BITS[name]))
    return pa.table(table)


def records(samples: int = SAMPLES, epochs: int = EPOCHS) -> list[dict]:
    """Size on disk, time of one curve, of a summary and of grouped curves, and peak memory."""
    rng = np.random.default_rng(0)
    per_class = -(-samples // CLASSES)
    names = [f"train/n{10_000_000 + 17 * (i // per_class)}/{i:08d}.JPEG" for i in range(samples)]
    ids, label = pa.array(names), np.arange(samples) // per_class
    hard = rng.standard_normal(samples)
    with tempfile.TemporaryDirectory() as root:
        run = Path(root, "run")
        written = store.Records(run)
        index = written.index
        write, compact = [], []
        for epoch in range(1, epochs + 1):
            rows = _epoch(epoch, ids, label, hard, rng)
            start = time.perf_counter()
            written.write_rows(rows)
            write.append(time.perf_counter() - start)
            index.epochs.append(epoch)
            start, files = time.perf_counter(), index.files
            written.compact(everything=epoch == epochs)
            if index.files is not files:
                compact.append(time.perf_counter() - start)
            written.commit()
        (run / "meta.json").write_text(f'{{"model": {{"classes": {CLASSES}, "features": 2048}}}}')
        size = sum((run / "dynamics" / entry["name"]).stat().st_size for entry in index.files)
        curves = []
        for id_ in rng.choice(names, 21):
            start = time.perf_counter()
            assert len(Dynamics(run).curve(str(id_))) == epochs
            curves.append(time.perf_counter() - start)
        start = time.perf_counter()
        Dynamics(run).summary()
        summary = time.perf_counter() - start
        start = time.perf_counter()
        Dynamics(run).curves("label")
        grouped = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = f"{samples:,} samples × {epochs} epochs"
    return [
        row("records", f"{what}: size", [size / 1e9], "GB", limit=MOST_BYTES / 1e9),
        row("records", f"{what}: one curve, opening included", curves[1:], "s", limit=MOST_SECONDS),
        row("records", f"{what}: summary()", [summary], "s"),
        row("records", f"{what}: curves by class", [grouped], "s"),
        row("records", f"{what}: writing an epoch", write, "s"),
        row("records", f"{what}: compacting", compact, "s"),
        row("records", f"{what}: peak memory", [peak], "MiB"),
    ]
