"""What statistics cost: Kendall's τ-b with every sample's influence, and the paired bootstrap of three coefficients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.measure import Case, Comparison
from hardsight.correlation import COEFFICIENTS, kendall, resampled

ROWS, SAMPLES, RESAMPLES = 1_000_000, 50_000, 2000


def alignment() -> Iterator[Comparison]:
    """Seconds; human frequencies have 51 values, half of them tied at 1, or are continuous, which is dearer."""
    draw = np.random.default_rng(0)
    ease = draw.normal(size=ROWS)
    scores = ease + 2 * draw.normal(size=(2, ROWS))
    human = {"51 values": np.minimum(np.round(50 * np.clip(1 + 0.3 * ease, 0, 1)) / 50, 1), "continuous": ease}
    for name, y in human.items():
        yield Comparison([Case(f"kendall, 1 M rows, {name}", partial(kendall, scores[0], y), limit=5)], rounds=3)
        title = f"2,000 paired resamples of 50,000 rows, three coefficients, {name}"
        bootstrap = partial(resampled, scores[:, :SAMPLES], y[:SAMPLES], tuple(COEFFICIENTS), RESAMPLES)
        yield Comparison([Case(title, bootstrap, limit=20)], rounds=1)
