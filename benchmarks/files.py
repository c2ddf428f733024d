"""Scoring from files against the loop that does the same work and nothing else, and how fast images are loaded."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.models import ResNet50_Weights, get_model

import hardsight as hs
from benchmarks.measure import Case, Comparison, row, timed
from hardsight.data import load_batches, open_data
from hardsight.devices import moved

BATCH = 64
FILES, IMAGES, WORKERS = 256, 256, (1, 2, 4, 8, 14)  # files, images per worker


def folders() -> Iterator[Comparison]:
    """A folder of JPEGs against a bare loop over the same loader."""
    warnings.filterwarnings("ignore", "the network is no better than chance")
    cuda = torch.cuda.is_available()
    device, name, number, classes = ("cuda", "resnet50", 8000, 1000) if cuda else ("cpu", "resnet18", 128, 4)
    workers = min(14, max(1, (os.cpu_count() or 1) - 2)) if cuda else 0
    with tempfile.TemporaryDirectory() as root:
        samples, runs = open_data(make_images(Path(root, "images"), number, classes)), count()
        torch.manual_seed(0)
        network = get_model(name, num_classes=classes).eval().to(device)  # after the processes that made the images
        model = hs.Model(network, name, ResNet50_Weights.DEFAULT.transforms(), "pil")

        def score() -> hs.SampleTable:
            out, options = f"{root}/run{next(runs)}", {"device": torch.device(device), "workers": workers}
            return hs.score(model, f"{root}/images", out=out, progress=False, **options)

        bare = Case("bare loop", partial(bare_loop, model, torch.device(device), samples, workers))
        cases = [bare, Case("score to a run folder", score, "bare loop", 1.03)]
        yield Comparison(cases, f"N={number} network={name} workers={workers}", rounds=4, device=device)


def bare_loop(model: hs.Model, device: torch.device, samples: Any, workers: int) -> torch.Tensor:
    """The logits of all samples, on the host."""
    with torch.no_grad():
        batches = load_batches(samples, model, batched(list(range(len(samples)))), device, workers)
        return torch.cat([model.module(moved(inputs, device)) for _, inputs, _, _ in batches]).cpu()


def batched(rows: list[int]) -> list[list[int]]:
    return [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]


def make_images(root: Path, number: int, classes: int) -> Path:
    """JPEGs of 500 × 375, ImageNet's usual size, in one folder per class."""
    for label in range(classes):
        (root / f"{label:04d}").mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(make_image, root, classes), range(number), chunksize=32))
    return root


def make_image(root: Path, classes: int, index: int) -> None:
    """One of them: large shapes and a little noise, about 80 kB."""
    draws = np.random.default_rng(index)
    shapes = Image.fromarray(draws.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375))
    noise = draws.integers(-12, 13, (375, 500, 1))
    pixels = (np.asarray(shapes) + noise).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(root / f"{index % classes:04d}" / f"{index}.jpg", quality=90)


def images() -> Iterator[dict]:
    """Images per second from JPEG files to batches of 224 × 224, by workers; their start does not count."""
    model = hs.Model(torch.nn.Linear(3, 2), "none", ResNet50_Weights.DEFAULT.transforms(), "pil")
    with tempfile.TemporaryDirectory() as root:
        samples = open_data(make_images(Path(root, "images"), FILES, 1))
        for workers in WORKERS:
            if workers > (os.cpu_count() or 1):
                return
            total, rates = IMAGES * workers, []
            for _ in range(3):
                rows = batched([i % FILES for i in range(total + BATCH * workers)])
                batches = load_batches(samples, model, rows, torch.device("cpu"), workers)
                for _ in range(workers):  # each worker has begun
                    next(batches)
                rates.append(total / timed(partial(deque, batches, maxlen=0)))
            yield row("images", "load", rates, "images/s", f"workers={workers}", "cpu")
