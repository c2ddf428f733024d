"""The scores as a newcomer would write them: float64, one sample at a time, nothing clever. Our witness."""

import math

import numpy as np
import torch


def triple(n=40, d=16, c=7, *, scale=1.0, dtype=torch.float32):
    """Features, weight, labels and bias; half of the labels are what the model predicts, as in life."""
    features, weight, bias = torch.randn(n, d), scale * torch.randn(c, d), torch.randn(c)
    labels = torch.randint(0, c, (n,))
    labels[::2] = (features @ weight.T + bias).argmax(1)[::2]
    return features.to(dtype), weight.to(dtype), labels, bias.to(dtype)


def naive_scores(features, weight, labels, bias=None) -> dict[str, np.ndarray]:
    features, weight = np.asarray(features, np.float64), np.asarray(weight, np.float64)
    bias = np.zeros(len(weight)) if bias is None else np.asarray(bias, np.float64)
    rows = [_one(x, weight, int(y), bias) for x, y in zip(features, np.asarray(labels), strict=True)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _one(x, weight, y, bias):
    length = _length(x)
    angles = [_angle(x, w) for w in weight]
    z = [math.fsum(x * w) + b for w, b in zip(weight, bias, strict=True)]
    top = max(z)
    total = math.fsum(math.exp(v - top) for v in z)
    p = [math.exp(v - top) / total for v in z]
    others = [k for k in range(len(z)) if k != y]
    m = _log_sum_exp([z[k] for k in others]) - z[y]
    # 1 − p_y as the sum of the others: the only naive form that keeps digits at p → 1.
    missing = math.fsum(p[k] for k in others)
    return {
        "avh": _share(angles, y),
        "avc": _share([math.pi - a for a in angles], y),
        "confidence": p[y],
        "nll": math.log1p(math.exp(m)) if m < 50 else m,
        "soft_margin": m,
        "norm": length,
        "margin": z[y] - max(z[k] for k in others),
        "angle": angles[y],
        "angular_margin": angles[y] - min(angles[k] for k in others),
        "entropy": -math.fsum(q * math.log(q) for q in p if q > 0),
        "el2n": math.sqrt(missing**2 + math.fsum(p[k] ** 2 for k in others)),
        "max_logit": top,
        "free_energy": -_log_sum_exp(z),
        "pred": z.index(top),
    }


def _share(values, y):
    """All vectors coincide: no class is nearer than another."""
    return values[y] / math.fsum(values) if math.fsum(values) > 1e-14 * len(values) else 1 / len(values)


def _length(x):
    scale = max(map(abs, x))
    return scale * math.sqrt(math.fsum((v / scale) ** 2 for v in x)) if scale else 0.0


def _angle(x, w):
    a, b = _length(x), _length(w)
    if not a or not b:
        return math.pi / 2
    return math.acos(max(-1.0, min(1.0, math.fsum((x / a) * (w / b)))))


def _log_sum_exp(values):
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))
