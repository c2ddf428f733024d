"""How costs grow: all scores with samples, width and classes, images with workers."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.measure import Case, Comparison, row
from benchmarks.scores import config, draw, product, score_check
from hardsight.scores import compute_scores

# One of N, D and C changes while the others stay. Then corners, which tell the terms of the cost model apart.
BASES = {"cuda": (65_536, 1024, 8192), "cpu": (4096, 512, 1000)}
STEPS = {
    "cuda": (
        (4096, 16_384, 65_536, 262_144, 1_048_576),
        (128, 256, 512, 1024, 2048, 4096),
        (1000, 4096, 8192, 16_384, 65_536, 262_144),
    ),
    "cpu": ((256, 1024, 4096, 16_384), (64, 128, 256, 512, 1024, 2048), (10, 100, 1000, 10_000)),
}
CORNERS = {
    "cuda": ((262_144, 2048, 1000), (8192, 256, 1_000_000)),
    "cpu": ((16_384, 64, 10), (1024, 2048, 4000)),
}
FILES, IMAGES, SIDE = 256, 256, (500, 375)  # files, images per worker; ImageNet's usual size
WORKERS = (1, 2, 4, 8, 14)
COPY = 2**30


def sweep() -> Iterator[Comparison | dict]:
    """All scores against samples, width and classes: the constants of the cost model."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for shape in shapes(device):
        yield compare(*shape, device)
    if device == "cuda":
        yield copies()


def shapes(device: str) -> list[tuple[int, ...]]:
    """The base, the base with one of its numbers replaced, and the corners; each once."""
    base, steps = BASES[device], STEPS[device]
    swept = [(*base[:axis], step, *base[axis + 1 :]) for axis in range(3) for step in steps[axis]]
    return list(dict.fromkeys([base, *swept, *CORNERS[device]]))


def compare(n: int, d: int, c: int, device: str) -> Comparison:
    """The bare matrix product and all scores at one shape."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x, w, y, _ = draw("trained", n, d, c, dtype, device, 0)
    check = score_check(d, c, dtype, device, ("random", "trained"))
    cases = [
        Case("matmul", lambda: product(x, w)),
        Case("all scores", lambda: compute_scores(x, w, y, None), "matmul", check=check),
    ]
    return Comparison(cases, config(n, d, c, dtype), rounds=9 if device == "cuda" else 5, device=device)


def copies() -> Comparison:
    """A GiB from pinned memory to the device."""
    pinned, place = torch.empty(COPY, dtype=torch.uint8, pin_memory=True), torch.empty(COPY, dtype=torch.uint8).cuda()
    return Comparison([Case("copy to the device", lambda: place.copy_(pinned))], f"bytes={COPY}", 9, device="cuda")


def images() -> Iterator[dict]:
    """Images per second from JPEG files to batches of 224 × 224, by workers; their start does not count."""
    import numpy as np
    from PIL import Image
    from torchvision.models import ResNet50_Weights

    import hardsight as hs
    from hardsight.data import load_batches, open_data

    model = hs.Model(torch.nn.Linear(3, 2), "none", ResNet50_Weights.DEFAULT.transforms(), "pil")
    draws = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as root:
        Path(root, "images", "a").mkdir(parents=True)
        for i in range(FILES):
            rough = Image.fromarray(draws.integers(0, 256, (47, 63, 3), dtype=np.uint8)).resize(SIDE)
            rough.save(f"{root}/images/a/{i}.jpg", quality=90)
        samples = open_data(f"{root}/images")
        for workers in WORKERS:
            if workers > (os.cpu_count() or 1):
                return
            total, rates = IMAGES * workers, []
            for _ in range(3):
                order = [i % FILES for i in range(total + 64 * workers)]
                batches = load_batches(
                    samples, model, [order[i : i + 64] for i in range(0, len(order), 64)], torch.device("cpu"), workers
                )
                for _ in range(workers):  # each worker has begun
                    next(batches)
                start = time.perf_counter()
                for _ in batches:
                    pass
                rates.append(total / (time.perf_counter() - start))
            yield row("images", "load", rates, "images/s", config=f"workers={workers}", device="cpu")
