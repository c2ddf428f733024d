"""All scores as one writes them down, in float64, and inputs that are hard to get right: the truth for checks."""

from __future__ import annotations

import torch
from torch import Tensor

from hardsight.scores import SCORES

FAMILIES = ("random", "trained", "aligned", "large norms", "ties", "bias", "unlabeled")


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
