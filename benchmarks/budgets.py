"""What a user waits for: commands, statistics of people, selection of pseudo-labels, questions of `evaluate`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.measure import Case, Comparison, row
from hardsight import questions as hq
from hardsight.adaptation.selection import select
from hardsight.adaptation.validators import VALIDATORS
from hardsight.correlation import COEFFICIENTS, kendall, resampled
from hardsight.networks import build_network

ROWS, SAMPLES, RESAMPLES = 1_000_000, 50_000, 2000  # of statistics
PORTION, MANY, WIDE = 0.2, 10_000_000, 1000  # of each predicted class; samples and classes whose selection is watched
CLASSES, WIDTH, MAPS = 1000, 512, 10_000  # of evaluation, with SAMPLES logits


def _python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def startup() -> Iterator[Comparison]:
    """Help, and `import hardsight` (all of its public names) against `import torch`."""
    names = "import hardsight; hardsight.avh; hardsight.capture"
    cases = [
        Case("import torch", partial(_python, "-c", "import torch")),
        Case("import hardsight", partial(_python, "-c", "import hardsight"), "import torch", 1.2),
        Case("import hardsight, torch, avh", partial(_python, "-c", names), "import torch", 1.2),
        Case("hardsight --help", partial(_python, "-m", "hardsight", "--help"), limit=0.5),
    ]
    yield Comparison(cases, rounds=9)


def demo() -> Iterator[Comparison]:
    """The whole demo as a user starts it."""
    with tempfile.TemporaryDirectory() as root:
        run = partial(_python, "-m", "hardsight", "demo", "-o", f"{root}/run")
        yield Comparison([Case("hardsight demo", run, limit=60)], rounds=3)


def alignment() -> Iterator[Comparison]:
    """Kendall's τ-b with every sample's influence, and the paired bootstrap of three coefficients.

    Human frequencies have 51 values, half of them tied at 1, or are continuous, which is dearer.
    """
    draw = np.random.default_rng(0)
    ease = draw.normal(size=ROWS)
    scores = ease + 2 * draw.normal(size=(2, ROWS))
    human = {"51 values": np.minimum(np.round(50 * np.clip(1 + 0.3 * ease, 0, 1)) / 50, 1), "continuous": ease}
    for name, y in human.items():
        yield Comparison([Case(f"kendall, 1 M rows, {name}", partial(kendall, scores[0], y), limit=5)], rounds=3)
        title = f"2,000 paired resamples of 50,000 rows, three coefficients, {name}"
        bootstrap = partial(resampled, scores[:, :SAMPLES], y[:SAMPLES], tuple(COEFFICIENTS), RESAMPLES)
        yield Comparison([Case(title, bootstrap, limit=20)], rounds=1)


def selection() -> Iterator[Comparison | dict]:
    """55,388 × 12 (VisDA-17's target) against a NumPy loop over the classes; the peak memory of 10 M × 1,000."""
    draw = np.random.default_rng(0)
    p, avc = (draw.dirichlet(np.full(12, alpha), 55_388).astype(np.float32) for alpha in (0.2, 50.0))
    for name, selects in (("cbst", p), ("cbst+avh", avc)):
        ours, plain = select(name, p, avc, portion=PORTION), _plain_selection(p, selects)
        np.testing.assert_array_equal(np.stack([ours.rows, ours.labels]), plain)
        loop = f"plain NumPy loop, {name}"
        timed = Case(name, partial(select, name, p, avc, portion=PORTION), loop, 1.0)
        yield Comparison([Case(loop, partial(_plain_selection, p, selects)), timed], rounds=31)
    features = draw.normal(size=(len(p), 512)).astype(np.float32)
    validators = [Case(f"validator {name}", partial(of, p, features), limit=5) for name, of in VALIDATORS.items()]
    yield Comparison(validators, rounds=3)
    # Rows that overlap in memory, so that the input costs nothing.
    matrix = np.lib.stride_tricks.sliding_window_view(draw.random(MANY + WIDE - 1, dtype=np.float32), WIDE)
    tracemalloc.start()  # NumPy reports its arrays there
    select("cbst+avh", matrix, matrix, portion=PORTION)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    yield row("selection", f"{MANY:,} × {WIDE:,}, cbst+avh, peak", [peak], "MiB", limit=1024)


def _plain_selection(p: np.ndarray, selects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """CBST, or Eq. 4 of the AVH paper, as one writes it down: a mask and a sort per class."""
    everyone, predicted = np.arange(len(p)), p.argmax(1)
    thresholds = np.ones((1 if selects is p else 2, p.shape[1]))
    for matrix, threshold in zip((p, selects), thresholds, strict=False):
        confidence = matrix[everyone, predicted]
        for k in range(p.shape[1]):
            ranked = np.sort(confidence[predicted == k])[::-1]
            if n := int(PORTION * len(ranked)):
                threshold[k] = ranked[n - 1]
    labels = (p / thresholds[0]).argmax(1)
    kept = np.flatnonzero(selects[everyone, labels] >= thresholds[-1][labels])
    return kept, labels[kept]


def evaluation() -> Iterator[Comparison]:
    """OOD, calibration and margins of 50,000 × 1,000 logits; with a GPU, maps of 10,000 images."""
    torch.manual_seed(0)
    weight, labels = torch.randn(CLASSES, WIDTH) / WIDTH**0.5, torch.randint(0, CLASSES, (SAMPLES,))
    logits = (10 * weight[labels] + 2 * torch.randn(SAMPLES, WIDTH)) @ weight.T
    yield Comparison([Case("OOD, calibration, margins", partial(_measures, logits, labels), limit=5)], rounds=3)
    if torch.cuda.is_available():
        network, images = build_network("resnet18-32", 10).cuda().eval(), torch.rand(MAPS, 3, 32, 32)

        def draw() -> list[torch.Tensor]:
            return [hq.cam(network, part.cuda()).cpu() for part in images.split(500)]

        yield Comparison([Case(f"CAM of {MAPS:,} images", draw, limit=60)], rounds=3, device="cuda")


def _measures(logits: torch.Tensor, labels: torch.Tensor) -> None:
    """All measures from logits alone; the first half of the samples is the inside, and fits the temperature."""
    half = len(logits) // 2
    for scores in hq.ood_scores(logits).values():
        hq.detection(scores[:half], scores[half:])
    temperature = hq.fit_temperature(logits[:half], labels[:half])
    p = (logits / temperature).softmax(1)
    confidence, predicted = p.max(1)
    for binning in ("width", "mass"):
        hq.ece(confidence, predicted == labels, binning=binning)
    hq.classwise_ece(p, labels)
    hq.logit_margin(logits, labels), hq.energy_by_class(logits, labels)
