"""What statistics cost: Kendall's τ-b with every sample's influence, and the paired bootstrap of three coefficients."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import interleaved, row
from hardsight.correlation import COEFFICIENTS, kendall, resampled

ROWS, SAMPLES, RESAMPLES = 1_000_000, 50_000, 2000


def alignment() -> list[dict]:
    """Seconds; human frequencies have 51 values, half of them tied at 1, or are continuous, which is dearer."""
    draw = np.random.default_rng(0)
    ease = draw.normal(size=ROWS)
    scores = ease + 2 * draw.normal(size=(2, ROWS))
    human = {"51 values": np.minimum(np.round(50 * np.clip(1 + 0.3 * ease, 0, 1)) / 50, 1), "continuous": ease}
    cases = {f"kendall, 1 M rows, {name}": lambda y=y: kendall(scores[0], y) for name, y in human.items()}
    seconds = interleaved(cases, 3)
    few, names = scores[:, :SAMPLES], tuple(COEFFICIENTS)
    cases = {
        f"2,000 paired resamples of 50,000 rows, three coefficients, {name}": lambda y=y: resampled(
            few, y[:SAMPLES], names, RESAMPLES
        )
        for name, y in human.items()
    }
    seconds |= interleaved(cases, 1)
    return [
        row("alignment", name, values, "s", limit=5 if name.startswith("kendall") else 20)
        for name, values in seconds.items()
    ]
