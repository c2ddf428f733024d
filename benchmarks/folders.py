"""Scoring from files, against the loop that does the same work and nothing else."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Case, Comparison, row

LISTED = 100_000  # files whose listing is timed


def folders() -> Iterator[Comparison | dict]:
    """A folder of JPEGs against a bare loop over the same loader; a hundred thousand files until the first batch."""
    warnings.filterwarnings("ignore", "the network is no better than chance")
    cuda = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as root:
        images = make_images(Path(root, "images"), 8000 if cuda else 128, 1000 if cuda else 4)
        workers = min(14, max(1, (os.cpu_count() or 1) - 2)) if cuda else 0
        yield scoring(images, root, workers)
        if cuda:
            yield decoding(images, 4)
        yield start_up(Path(root, "many"))


def make_images(root: Path, number: int, classes: int) -> Path:
    """JPEGs of 500 × 375 in one folder per class."""
    for label in range(classes):
        (root / f"{label:04d}").mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(make_image, root, classes), range(number), chunksize=32))
    return root


def make_image(root: Path, classes: int, index: int) -> None:
    """One of them: large shapes and a little noise, about 50 kB."""
    import numpy as np
    from PIL import Image

    draws = np.random.default_rng(index)
    shapes = Image.fromarray(draws.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375))
    noise = draws.integers(-12, 13, (375, 500, 1))
    pixels = (np.asarray(shapes) + noise).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(root / f"{index % classes:04d}" / f"{index}.jpg", quality=90)


def resnet(images: Path) -> tuple[Any, torch.device]:
    """ResNet-50 on a GPU, ResNet-18 on the CPU, with as many classes as there are folders."""
    from torchvision.models import ResNet50_Weights, get_model

    import hardsight as hs

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = "resnet50" if device.type == "cuda" else "resnet18"
    network = get_model(name, num_classes=len(list(images.iterdir()))).eval().to(device)
    return hs.Model(network, name, ResNet50_Weights.DEFAULT.transforms(), "pil"), device


def bare_loop(model: Any, device: torch.device, samples: Any, workers: int, **options: Any) -> torch.Tensor:
    """The logits of all samples, on the host."""
    from hardsight.data import load_batches
    from hardsight.devices import moved

    rows = [list(range(i, min(i + 64, len(samples)))) for i in range(0, len(samples), 64)]
    with torch.no_grad():
        batches = load_batches(samples, model, rows, device, workers, **options)
        return torch.cat([model.module(moved(inputs, device)) for _, inputs, _, _ in batches]).cpu()


def scoring(images: Path, root: str, workers: int) -> Comparison:
    """`hs.score`, to a run folder and in memory."""
    import hardsight as hs
    from hardsight.data import open_data

    (model, device), samples, runs = resnet(images), open_data(images), count()
    options: dict[str, Any] = {"device": device, "workers": workers, "progress": False}
    cases = [
        Case("bare loop", lambda: bare_loop(model, device, samples, workers)),
        Case(
            "score to a run folder",
            lambda: hs.score(model, images, out=f"{root}/run{next(runs)}", **options),
            "bare loop",
            1.03,
        ),
    ]
    if device.type == "cpu":
        cases.append(Case("score in memory", lambda: hs.score(model, images, **options), "bare loop", 1.03))
    config = f"N={len(samples)} network={model.name} workers={workers}"
    return Comparison(cases, config, rounds=4, device=device.type)


def decoding(images: Path, workers: int) -> Comparison:
    """The bare loop with few workers, with JPEGs decoded by Pillow and on the GPU."""
    import numpy as np

    from hardsight.data import View, open_data

    (model, device), whole = resnet(images), open_data(images)
    samples = View(whole, np.arange(0, len(whole), 8))
    cases = [
        Case("decode cpu", lambda: bare_loop(model, device, samples, workers)),
        Case("decode gpu", lambda: bare_loop(model, device, samples, workers, decode="gpu"), "decode cpu"),
    ]
    return Comparison(cases, f"N={len(samples)} network={model.name} workers={workers}", rounds=3, device=device.type)


def start_up(root: Path) -> dict:
    """Microseconds per file between the call of `hs.score` and the first forward pass."""
    import hardsight as hs

    for label in range(100):
        (root / f"{label:03d}").mkdir(parents=True)
        file = make_images(root / f"{label:03d}" / "source", 1, 1) / "0000" / "0.jpg"
        for i in range(LISTED // 100 - 1):
            os.link(file, root / f"{label:03d}" / f"{i:05d}.jpg")

    class Begun(Exception):  # noqa: N818  not an error
        """Raised by the first forward pass."""

    def forward(*_: object) -> None:
        moments.append(time.perf_counter())
        raise Begun

    head, moments, seconds = torch.nn.Linear(3, 100), [], []
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), head)
    network.register_forward_pre_hook(forward)
    for _ in range(4):
        start = time.perf_counter()
        try:
            hs.score(network, root, preprocess="raw", device="cpu", workers=0, batch_size=1, progress=False)
        except Exception:  # as score words it
            seconds.append((moments[-1] - start) / LISTED)
    return row("folders", "until the first batch", seconds[1:], "s", limit=5e-6, config=f"N={LISTED}", device="cpu")
