"""What recording costs a training step, and the commit of an epoch; the accuracy is the study ``engine``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

import hardsight as hs
from benchmarks.measure import ratio, row
from hardsight.data import ArraySamples, Source, all_labels, as_pixels
from hardsight.distributed import torchrun_job
from hardsight.dynamics import Recorder
from hardsight.networks import build_network
from hardsight.presets import PRESETS
from hardsight.training.loop import Training, preserved_state

# Batch, steps of one measurement (the recorder reads 32 batches together) and measurements.
ON_GPU, ON_CPU = (512, 96, 10), (32, 32, 5)


def recorder() -> Iterator[dict]:
    """Training steps of a ResNet-18 with and without a recorder, alternating, and the commit of an epoch."""
    cuda = torch.cuda.is_available()
    for graph in (True, False) if cuda else (False,):
        yield from overhead("cuda" if cuda else "cpu", graph, *(ON_GPU if cuda else ON_CPU))


def overhead(device: str, graph: bool, batch: int, steps: int, rounds: int) -> list[dict]:
    """One way to step on one device."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (batch * steps, 32, 32, 3), dtype=np.uint8)
    samples = ArraySamples(images, draw.integers(0, 10, batch * steps), "train", "random images")
    recipe = PRESETS["cifar-resnet18"].recipe.replace(batch_size=batch, epochs=1000, graph=graph)
    if device == "cpu":
        recipe = recipe.replace(precision="float32", compile=False)
    with torchrun_job(device) as where, preserved_state(where), tempfile.TemporaryDirectory() as folder:
        network = build_network("resnet18-32", 10)
        labels = torch.from_numpy(all_labels(samples, "data")).long()
        source = Source(samples, labels, as_pixels(samples, 3, where), hs.Model(network, "net"), 0, where)
        training = Training(network, recipe, where, nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing))
        seconds: dict[str, list[float]] = {"plain": [], "recorded": []}
        commits: list[float] = []
        records = Recorder(Path(folder, "run"), split=samples.split)
        for repeat in range(rounds + 1):  # the first is a warm-up
            rows = torch.randperm(len(samples)).tolist()
            for name in ("plain", "recorded") if repeat % 2 else ("recorded", "plain"):
                start = time.perf_counter()
                training.train_epoch(source, 1, rows, records if name == "recorded" else None)
                if where.type == "cuda":
                    torch.cuda.synchronize()
                seconds[name].append((time.perf_counter() - start) / steps)
            start = time.perf_counter()
            records.end_epoch()
            commits.append(time.perf_counter() - start)
    plain, recorded = (values[1:] for values in seconds.values())
    rows = [
        row("recorder", "plain", plain, "s", "plain", 1.0),
        row("recorder", "recorded", recorded, "s", "plain", ratio(recorded, plain), 1.02),
        row("recorder", f"commit of {batch * steps:,} samples", commits[1:], "s", limit=0.05),
    ]
    return [line | {"config": f"N={batch} steps={steps} as={'graphs' if graph else 'eager'}"} for line in rows]
