"""What choosing pseudo-labels costs: time against a plain NumPy loop over the classes, and memory at 10 M × 1,000."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.measure import Case, Comparison, row
from hardsight.adaptation.selection import select
from hardsight.adaptation.validators import VALIDATORS

SAMPLES, CLASSES, PORTION = 55_388, 12, 0.2  # VisDA-17's target
MANY, WIDE = 10_000_000, 1000


def _plain(p: np.ndarray, selects: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """CBST, or Eq. 4, as one writes it down: a mask and a sort per class."""
    everyone, predicted, both = np.arange(len(p)), p.argmax(1), []
    for matrix in (p,) if selects is None else (p, selects):
        confidence, thresholds = matrix[everyone, predicted], np.ones(p.shape[1])
        for k in range(p.shape[1]):
            ranked = np.sort(confidence[predicted == k])[::-1]
            if n := int(PORTION * len(ranked)):
                thresholds[k] = ranked[n - 1]
        both.append((matrix, thresholds))
    labels = (p / both[0][1]).argmax(1)
    kept = np.flatnonzero(both[-1][0][everyone, labels] >= both[-1][1][labels])
    return kept, labels[kept]


def selection() -> Iterator[Comparison | dict]:
    """55,388 × 12 against the loop; then 10 M × 1,000, whose rows overlap in memory so that the input costs nothing."""
    draw = np.random.default_rng(0)
    p = draw.dirichlet(np.full(CLASSES, 0.2), SAMPLES).astype(np.float32)
    avc = draw.dirichlet(np.full(CLASSES, 50.0), SAMPLES).astype(np.float32)
    for name, selects in (("cbst", None), ("cbst+avh", avc)):
        ours, plain = select(name, p, avc, portion=PORTION), _plain(p, selects)
        np.testing.assert_array_equal(np.stack([ours.rows, ours.labels]), plain)
        loop = f"plain NumPy loop, {name}"
        timed = Case(name, partial(select, name, p, avc, portion=PORTION), loop, 1.0)
        yield Comparison([Case(loop, partial(_plain, p, selects)), timed], rounds=31)
    features = draw.normal(size=(SAMPLES, 512)).astype(np.float32)
    cases = [Case("crst, with its soft labels", lambda: select("crst", p, portion=PORTION).targets)]
    cases += [Case(f"validator {name}", partial(of, p, features), limit=5) for name, of in VALIDATORS.items()]
    yield Comparison(cases, rounds=3)
    wide = np.lib.stride_tricks.sliding_window_view(draw.random(MANY + WIDE - 1, dtype=np.float32), WIDE)
    tracemalloc.start()  # NumPy reports its arrays there
    began = time.perf_counter()
    select("cbst+avh", wide, wide, portion=PORTION)
    seconds, peak = time.perf_counter() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = f"{MANY:,} × {WIDE:,}, cbst+avh"
    yield row("selection", size, [seconds], "s")
    yield row("selection", f"{size}, peak", [peak / 2**20], "MiB", limit=1024)
