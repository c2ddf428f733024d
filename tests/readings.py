"""Inputs of many kinds for the fast reading, and how far a reading is from the float64 reference in tolerances."""

import torch

from hardsight.reading import Reading, _read
from hardsight.scores import SCORES

KINDS = (
    "random",
    "positive",
    "trained",
    "aligned",
    "opposite",
    "parallel",
    "cone",
    "ties",
    "copies",
    "long",
    "short",
    "zero",
)


def inputs(kind, n, d, c, dtype=torch.float32, device="cpu"):
    """Features, weight and labels; trained ones lean to their class, and a cone's weights to each other."""
    y = torch.randint(0, c, (n,))
    w, x = 0.03 * torch.randn(c, d), 0.5 * torch.randn(n, d)
    if kind == "positive":
        x = x.abs()
    elif kind == "trained":
        x = (x.abs() + 20 * torch.rand(n, 1) * w[y] / w[y].norm(dim=1, keepdim=True)).relu()
    elif kind in ("aligned", "opposite"):
        x = (1 if kind == "aligned" else -1) * w[y] * (1 + 50 * torch.rand(n, 1)) + 1e-4 * x
    elif kind == "parallel":
        x = 2.0 ** torch.randint(-2, 3, (n, 1)) * w.to(dtype)[y]
    elif kind == "cone":
        w = w + 0.06 * torch.randn(1, d)
        x = x + 10 * w[y]
    elif kind == "ties":
        w[c // 2 :] = w[: c - c // 2].clone()
    elif kind == "copies":
        w[: c // 2] = w[0].clone()
        x = 8 * x + 20 * w[y]
    elif kind in ("long", "short"):
        x = x * (1e3 if kind == "long" else 1e-3)
    elif kind == "zero":
        x[::3], w[::5] = 0, 0
    return x.to(device, dtype), w.to(device, dtype), y.to(device)


def errors(reading, rows, x, w, y, b):
    """The largest error of each score at some rows, in units of its stated tolerance, and whether all classes agree."""
    truth = Reading(len(w), *_read(x[rows], w, None if y is None else y[rows], b, False))
    values = Reading(len(w), *(getattr(reading, name)[rows] for name in list(Reading.__dataclass_fields__)[1:-1]))
    off = {}
    for name, score in SCORES.items():
        relative, absolute = score.tolerance
        exact = score.of_reading(truth)
        off[name] = (
            ((score.of_reading(values) - exact).abs() / (absolute + relative * exact.abs())).nan_to_num(0.0).max()
        )
    same = all(torch.equal(getattr(values, name), getattr(truth, name)) for name in ("target", "other_class", "pred"))
    return off, same
