"""What scores cost against the bare matrix product in the same precision, and how that grows with N, D and C."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import Case, Comparison, peak_memory, row
from hardsight.scores import SCORES, avh_series, check_triple, compute_scores
from hardsight.scoring.score import score_features
from hardsight.series import class_sums

# On a GPU: N, D, C, the limit of all scores in half precision, and how often they are timed there and in float32.
SHAPES = (
    (131_072, 2048, 1000, 2.0, 31, 15),
    (65_536, 768, 21_841, None, 15, 9),  # an odd number of classes slows the bare product down
    (16_384, 4096, 131_072, 1.3, 15, 5),
    (16_384, 512, 1_000_000, 1.3, 15, 5),
)
FLOAT32_LIMIT, FEATURES_LIMIT, SERIES_LIMIT, MEMORY_LIMIT = 1.15, 1.2, 0.0015, 512
# Float32 on a CPU: peak memory in MiB beyond inputs and 40 numbers per sample; times are of the first shape.
CPU_SHAPES = ((50_000, 512, 1000), (200_000, 512, 1000), (2000, 512, 100_000), (50_000, 64, 20_000))
CPU_MEMORY = 200
# A sweep changes one of N, D and C while the others stay.
BASES = {"cuda": (65_536, 1024, 8192), "cpu": (4096, 512, 1000)}
STEPS = {
    "cuda": (
        (4096, 16_384, 65_536, 262_144, 1_048_576),
        (128, 256, 512, 1024, 2048, 4096),
        (1000, 4096, 8192, 16_384, 65_536, 262_144),
    ),
    "cpu": ((256, 1024, 4096, 16_384), (64, 128, 256, 512, 1024, 2048), (10, 100, 1000, 10_000)),
}
COPY = 2**30  # bytes
FAMILIES = (
    "random",
    "trained",
    "aligned",
    "large norms",
    "ties",
    "bias",
    "unlabeled",
)  # of inputs that are hard to get right


def scores() -> Iterator[Comparison | dict]:
    """All scores and AVH of given features against the bare matrix product, on the GPU if there is one."""
    if not torch.cuda.is_available():
        yield from on_cpu()
        return
    cases = itertools.product((torch.bfloat16, torch.float32), SHAPES)
    for dtype, shape in [*cases, (torch.float16, SHAPES[0])]:
        yield on_gpu(*shape, dtype)
        torch.cuda.empty_cache()


def on_gpu(n: int, d: int, c: int, limit: float | None, half: int, full: int, dtype: torch.dtype) -> Comparison:
    """Everything of one shape in one precision; `limit` and `half` rounds in 16 bits, `full` rounds in float32."""
    exact = dtype is torch.float32
    x, w, y, _ = draw("trained", n, d, c, dtype, "cuda", 0)
    check, check_series = score_check(d, c, dtype, "cuda"), partial(series_error, d, c, dtype, "cuda")
    limit = FLOAT32_LIMIT if exact else limit
    sums = class_sums(w, torch.float64 if exact else dtype)  # once for many batches
    cases = [
        Case("matmul", lambda: product(x, w)),
        Case("all scores", lambda: compute_scores(x, w, y, None), "matmul", limit, check, MEMORY_LIMIT),
        Case("avh_series", lambda: avh_series(x, w, y), "", SERIES_LIMIT, check_series),
        Case("avh_series, sums given", lambda: avh_series(x, w, y, sums), "", SERIES_LIMIT),
    ]
    if n == SHAPES[0][0]:
        table = partial(score_features, x, w, y)  # it brings its columns to the host when they are asked for
        cases += [
            Case("avh", lambda: SCORES["avh"](x, w, y), "matmul"),
            Case("score_features", table, "all scores", FEATURES_LIMIT),
            Case("score_features, columns read", lambda: table().to_arrow(), "all scores", FEATURES_LIMIT),
        ]
    return Comparison(cases, config(n, d, c, dtype), full if exact else half, device="cuda")


def on_cpu() -> Iterator[Comparison | dict]:
    """Times of 50,000 × 512 features and 1,000 classes in float32, and the peak memory as N and C grow."""
    for shape in CPU_SHAPES:
        x, w, y, _ = draw("trained", *shape, torch.float32, "cpu", 0)
        text = config(*shape, torch.float32)
        all_scores = partial(_checked_scores, x, w, y)
        if shape == CPU_SHAPES[0]:
            cases = [
                Case("matmul", partial(product, x, w)),
                Case("avh", partial(SCORES["avh"], x, w, y), "matmul", 1.8),
                Case("all scores", all_scores, "matmul", 3.0, score_check(*shape[1:], torch.float32, "cpu")),
            ]
            yield Comparison(cases, text, rounds=15)
        peaks = [peak_memory(all_scores, kept=40 * 8 * len(x)) for _ in range(4)]
        if None not in peaks:
            yield row("scores", "memory", peaks[1:], "MiB", text, "cpu", limit=CPU_MEMORY)


def _checked_scores(x: Tensor, w: Tensor, y: Tensor) -> dict[str, Tensor]:
    return compute_scores(*check_triple(x, w, y))


def sweep() -> Iterator[Comparison]:
    """How all scores and the bare product grow with samples, width and classes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype, rounds = (torch.bfloat16, 9) if device == "cuda" else (torch.float32, 5)
    for n, d, c in shapes(device):
        x, w, y, _ = draw("trained", n, d, c, dtype, device, 0)
        check = score_check(d, c, dtype, device, ("random", "trained"))
        all_scores = Case("all scores", partial(compute_scores, x, w, y, None), "matmul", check=check)
        cases = [Case("matmul", partial(product, x, w)), all_scores]
        yield Comparison(cases, config(n, d, c, dtype), rounds, device=device)
    if device == "cuda":
        pinned = torch.empty(COPY, dtype=torch.uint8, pin_memory=True)
        place = torch.empty(COPY, dtype=torch.uint8, device="cuda")
        copy = Case("copy to the device", partial(place.copy_, pinned))
        yield Comparison([copy], f"bytes={COPY}", rounds, device="cuda")


def shapes(device: str) -> list[tuple[int, ...]]:
    """The base, and the base with one of its numbers replaced; each once."""
    base, steps = BASES[device], STEPS[device]
    swept = [(*base[:axis], step, *base[axis + 1 :]) for axis in range(3) for step in steps[axis]]
    return list(dict.fromkeys([base, *swept]))


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


def series_error(d: int, c: int, dtype: torch.dtype, device: str, seed: int) -> float:
    """The error of AVH by the series, in units of the error that it states itself."""
    x, w, y, _ = draw("trained", 256, d, c, dtype, device, seed)
    avh, bound = (values[:64] for values in avh_series(x, w, y))
    off = (avh - naive_scores(x[:64], w, y[:64])["avh"]).abs()
    return (off / (bound + 1e-15)).max().item()


# The truth of the checks: all scores as one writes them down, in float64.


def naive_scores(features: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None) -> dict[str, Tensor]:
    """Every score in float64, with the N × C matrix in memory; ``logits`` are there, too."""
    x, w, y = features.double(), weight.double(), labels[:, None]
    products = x @ w.T
    z = products if bias is None else products + bias.double()
    lengths = x.norm(dim=1)
    angles = products.div(lengths[:, None]).div_(w.norm(dim=1)).nan_to_num_(0, 0, 0).clamp_(-1, 1).arccos_()
    u, v = torch.nn.functional.normalize(x), torch.nn.functional.normalize(w[labels])
    angle = 2 * torch.atan2((u - v).norm(dim=1), (u + v).norm(dim=1))  # arccos has no digits left near 0
    angles.scatter_(1, y, torch.where((u == 0).all(1) | (v == 0).all(1), torch.pi / 2, angle)[:, None])
    angle, total = angles.gather(1, y)[:, 0], angles.sum(1)
    nearest = angles.scatter_(1, y, torch.inf).amin(1)
    others = z.scatter(1, y, -torch.inf)
    rest, logit, p = others.logsumexp(1), z.gather(1, y)[:, 0], z.softmax(1)
    return {
        "avh": angle / total,
        "avc": (torch.pi - angle) / (len(w) * torch.pi - total),
        "confidence": p.gather(1, y)[:, 0],
        "nll": torch.logaddexp(torch.zeros_like(rest), rest - logit),
        "soft_margin": rest - logit,
        "norm": lengths,
        "margin": logit - others.amax(1),
        "angle": angle,
        "angular_margin": angle - nearest,
        "entropy": torch.special.entr(p).sum(1),
        "el2n": p.scatter_add(1, y, -torch.ones_like(p[:, :1])).norm(dim=1),
        "max_logit": z.amax(1),
        "free_energy": -z.logsumexp(1),
        "logits": z,
    }


def draw(
    family: str, rows: int, width: int, classes: int, dtype: torch.dtype, device: str, seed: int
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Features, weight, labels and bias: ``trained`` features lie near their class, ``aligned`` ones almost on it;
    in ``ties`` every class is there twice."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    share = torch.rand(rows, 1, device=device, generator=generator)
    labels = torch.randint(classes, (rows,), device=device, generator=generator)
    x, w = normal(rows, width).mul_(0.5), normal(classes, width).mul_(0.03)
    if family == "random":
        x[:: rows // 4] = 0
    elif family == "trained":
        x = (x.abs() + 20 * share * torch.nn.functional.normalize(w[labels])).relu()
    elif family == "aligned":
        x = w[labels] * (1 + 50 * share) + 0.01 * x
    elif family == "large norms":
        x, w = 4 * x, 30 * w
    elif family == "ties":
        x, w = (8 * x).round() / 8, (256 * w).round() / 256
        w[classes // 2 : 2 * (classes // 2)] = w[: classes // 2].clone()
    bias = normal(classes) if family == "bias" else None
    return x.to(dtype), w.to(dtype), None if family == "unlabeled" else labels, bias


def largest_error(
    columns: dict[str, Tensor], features: Tensor, weight: Tensor, labels: Tensor | None, bias: Tensor | None
) -> tuple[float, str]:
    """How far columns are from the truth in units of their stated tolerances, and the column that is farthest."""
    truth = naive_scores(features, weight, columns["pred"] if labels is None else labels, bias)
    errors = {}
    for name, score in SCORES.items():
        relative, absolute = score.tolerance
        off = (columns[score.column(labels is not None)].double() - truth[name]).abs()
        errors[name] = (off / (absolute + relative * truth[name].abs())).masked_fill(off == 0, 0)
    z, pred = truth["logits"], columns["pred"]
    relative, absolute = SCORES["max_logit"].tolerance
    first = (z >= z.amax(1, keepdim=True) * (1 - 1e-13 * z.amax(1, keepdim=True).sign())).byte().argmax(1)
    below = truth["max_logit"] - z.gather(1, pred[:, None])[:, 0]
    # Of classes with equal weights the first is predicted; others may change places within the tolerance of a logit.
    later = (pred != first) & (weight[pred] == weight[first]).all(1) & (bias is None)
    errors["pred"] = (below / (absolute + relative * truth["max_logit"].abs())).masked_fill(later, torch.inf)
    worst = {name: error.nan_to_num(torch.inf, torch.inf).max().item() for name, error in errors.items()}
    name = max(worst, key=lambda name: worst[name])
    return worst[name], name
