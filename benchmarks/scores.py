"""What scores cost: against the bare matrix product in the same precision, in time and in memory."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.measure import Case, Comparison, peak_memory, row
from benchmarks.naive_scores import FAMILIES, draw, largest_error, naive_scores
from hardsight.scores import SCORES, avh_series, check_triple, compute_scores
from hardsight.scoring.score import score_features
from hardsight.series import class_sums

# N, D, C, the limit of all scores in half precision, and how often they are timed there and in float32.
SHAPES = (
    (131_072, 2048, 1000, 2.0, 31, 15),
    (65_536, 768, 21_841, None, 15, 9),  # an odd number of classes slows the bare product down
    (16_384, 4096, 131_072, 1.3, 15, 5),
    (16_384, 512, 1_000_000, 1.3, 15, 5),
)
FLOAT32_LIMIT, FEATURES_LIMIT, SERIES_LIMIT, MEMORY_LIMIT = 1.15, 1.2, 0.0015, 512
# Float32 on a CPU, as a ratio to the product; memory in MiB beyond inputs and 40 numbers per sample.
CPU_SHAPE, CPU_LIMITS, CPU_MEMORY = (50_000, 512, 1000), {"avh": 1.8, "all scores": 3.0}, 200
CPU_MEMORY_SHAPES = ((50_000, 512, 1000), (200_000, 512, 1000), (2000, 512, 100_000), (50_000, 64, 20_000))


def scores() -> Iterator[Comparison | dict]:
    """All scores and AVH of given features against the bare matrix product, on the GPU if there is one."""
    yield from on_gpu() if torch.cuda.is_available() else on_cpu()


def on_gpu() -> Iterator[Comparison]:
    """The four shapes in bfloat16 and float32, the first in float16, too."""
    cases = itertools.product((torch.bfloat16, torch.float32), SHAPES)
    for dtype, shape in [*cases, (torch.float16, SHAPES[0])]:
        yield _compare(*shape, dtype)
        torch.cuda.empty_cache()


def _compare(
    n: int, d: int, c: int, limit: float | None, rounds: int, rounds_float32: int, dtype: torch.dtype
) -> Comparison:
    exact = dtype is torch.float32
    x, w, y, _ = draw("trained", n, d, c, dtype, "cuda", 0)
    check = score_check(d, c, dtype, "cuda")
    cases = [
        Case("matmul", lambda: product(x, w)),
        Case(
            "all scores",
            lambda: compute_scores(x, w, y, None),
            "matmul",
            FLOAT32_LIMIT if exact else limit,
            check,
            MEMORY_LIMIT,
        ),
        Case("avh_series", lambda: avh_series(x, w, y), "", SERIES_LIMIT, series_check(d, c, dtype, "cuda")),
    ]
    sums = class_sums(w, torch.float64 if exact else dtype)  # once for many batches
    cases.append(Case("avh_series, sums given", lambda: avh_series(x, w, y, sums), "", SERIES_LIMIT))
    if n == SHAPES[0][0]:
        cases += [
            Case("avh", lambda: SCORES["avh"](x, w, y), "matmul"),
            Case("score_features", lambda: score_features(x, w, y), "all scores", FEATURES_LIMIT),
            # A table brings its columns to the host when they are asked for.
            Case(
                "score_features, columns read", lambda: score_features(x, w, y).to_arrow(), "all scores", FEATURES_LIMIT
            ),
        ]
    return Comparison(cases, config(n, d, c, dtype), rounds_float32 if exact else rounds, device="cuda")


def config(n: int, d: int, c: int, dtype: torch.dtype) -> str:
    """A shape as it stands in the CSV."""
    return f"N={n} D={d} C={c} dtype={str(dtype).removeprefix('torch.')}"


def product(x: Tensor, w: Tensor) -> None:
    """The logits, and nothing kept; by blocks of rows where they would not fit."""
    for rows in x.split(4096 if len(x) * len(w) > 2**33 else len(x)):
        rows @ w.T


def score_check(d: int, c: int, dtype: torch.dtype, device: str, families: tuple = FAMILIES) -> Callable[[int], float]:
    """Checks all scores of every family of inputs at this shape; enough rows for any fast path, a few are judged."""
    # On a GPU the float64 reference takes small work, whatever its shape.
    rows, judged = (max(2048, 2**34 // (c * d)), 128 if c > 100_000 else 256) if device == "cuda" else (256, 64)

    def check(seed: int) -> float:
        largest = 0.0
        for number, family in enumerate(families):
            x, w, y, bias = draw(family, rows, d, c, dtype, device, seed + number)
            columns = {name: values[:judged] for name, values in compute_scores(x, w, y, bias).items()}
            error, name = largest_error(columns, x[:judged], w, None if y is None else y[:judged], bias)
            if not error <= 1:
                print(f"{family}, D={d} C={c} {dtype}: {name} is off by {error:.3g} tolerances", file=sys.stderr)
            largest = max(largest, error)
        return largest

    return check


def series_check(d: int, c: int, dtype: torch.dtype, device: str) -> Callable[[int], float]:
    """Checks AVH by the series against the error that it states itself."""

    def check(seed: int) -> float:
        x, w, y, _ = draw("trained", 256, d, c, dtype, device, seed)
        avh, bound = (values[:64] for values in avh_series(x, w, y))
        off = (avh - naive_scores(x[:64], w, y[:64])["avh"]).abs()
        return (off / (bound + 1e-15)).max().item()

    return check


def on_cpu() -> Iterator[Comparison | dict]:
    """50,000 × 512 features and 1,000 classes in float32, and the peak memory as N and C grow."""
    n, d, c = CPU_SHAPE
    x, w, y, _ = draw("trained", n, d, c, torch.float32, "cpu", 0)
    check = score_check(d, c, torch.float32, "cpu")
    cases = [
        Case("matmul", lambda: product(x, w)),
        Case("avh", lambda: SCORES["avh"](x, w, y), "matmul", CPU_LIMITS["avh"]),
        Case(
            "all scores",
            lambda: compute_scores(*check_triple(x, w, y)),
            "matmul",
            CPU_LIMITS["all scores"],
            check,
        ),
    ]
    yield Comparison(cases, config(n, d, c, torch.float32), rounds=15)
    for n, d, c in CPU_MEMORY_SHAPES:
        x, w, y, _ = draw("trained", n, d, c, torch.float32, "cpu", 0)
        peaks = [peak_memory(lambda: compute_scores(*check_triple(x, w, y)), kept=40 * 8 * n) for _ in range(4)]  # noqa: B023
        if None not in peaks:
            values = [peak or 0.0 for peak in peaks[1:]]
            shape = config(n, d, c, torch.float32)
            yield row("scores", "memory", values, "MiB", limit=CPU_MEMORY, config=shape, device="cpu")
