"""Attacks: the worst picture within ε of a given one, for a network that takes pixels in [0, 1].

They climb a loss by signs (L∞) or directions (L2) of its gradient, so that FGSM is PGD of one step. Cross-entropy fades
where logits are large: in float32 its gradient is exactly 0 once the margin is above 104, and whoever follows it stands
still. The margin and the DLR loss have no scale, and find the same picture whatever logits are multiplied by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.devices import evaluating
from hardsight.errors import InputError, InputTypeError
from hardsight.extras import need
from hardsight.heads import logits_of
from hardsight.registry import Registry
from hardsight.robustness.balls import Norm, anywhere, upward, within
from hardsight.scores import check_labels


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def _margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The largest other logit minus that of the label: above 0 is fooled."""
    own = logits.gather(1, labels[:, None])
    return logits.scatter(1, labels[:, None], -torch.inf).amax(1) - own[:, 0]


def _difference_of_logits_ratio(logits: Tensor, labels: Tensor) -> Tensor:
    """The margin in units of the spread from the largest to the third-largest logit (Croce and Hein, 2020)."""
    first, _, third = logits.topk(3, 1).values.unbind(1)
    spread = first - third
    return _margin(logits, labels) / torch.where(spread > 0, spread, 1.0)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ce": _cross_entropy,
    "margin": _margin,
    "dlr": _difference_of_logits_ratio,
}


@dataclass(frozen=True)
class Attack:
    """A way to attack; data only, see `attack`.

    Attributes:
        name: Its name.
        loss: What it climbs, of `LOSSES`; None: nothing, it draws pictures at random.
        norm: ``"inf"`` bounds every pixel's change by ε, ``"2"`` the Euclidean length of the whole change.
        steps: How many.
        restarts: How many times it begins again, at a random point within ε, for what still is right; first it begins
            at the picture itself. Along the margin it then aims at one class at a time, the likeliest first.
        summary: What it is, in one line.
        reference: Where it comes from.
        first: Length of the first step in units of ε; from there on they shrink to 0 along a cosine.
    """

    name: str
    loss: str | None
    norm: Norm = "inf"
    steps: int = 20
    restarts: int = 0
    summary: str = ""
    reference: str = ""
    first: float = 1.0


_MADRY = "Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018"
_CROCE = "Croce and Hein, Reliable Evaluation of Adversarial Robustness, ICML 2020"
_CARLINI = "Carlini and Wagner, Towards Evaluating the Robustness of Neural Networks, S&P 2017"

ATTACKS: Registry[Attack] = Registry("attack")
ATTACKS.update(
    (attack.name, attack)
    for attack in (
        Attack(
            "noise", None, "inf", 0, 9, "The worst of ten corners of the ε-box at random; no gradients.", "hardsight"
        ),
        Attack("fgsm", "ce", "inf", 1, 0, "One step along cross-entropy.", "Goodfellow et al., ICLR 2015"),
        Attack("pgd", "ce", summary="Steps along cross-entropy.", reference=_MADRY),
        Attack("pgd-l2", "ce", "2", summary="PGD within a Euclidean ball.", reference=_MADRY),
        Attack("pgd-margin", "margin", "inf", 20, 3, "Steps along the logit margin, which has no scale.", _CARLINI),
        Attack("pgd-margin-l2", "margin", "2", 20, 3, "The same within a Euclidean ball.", _CARLINI),
        Attack("pgd-dlr", "dlr", summary="Steps along the difference of logits ratio.", reference=_CROCE),
        Attack("autoattack", None, summary="pyautoattack's ensemble: strong and slow.", reference=_CROCE),
    )
)


class Attacked(NamedTuple):
    """What an attack found.

    Attributes:
        x: ``(N, …)`` pictures: the last point that fools the network, of the first path on which one does, or else the
            end of the last path.
        logits: ``(N, C)`` of them.
        end: ``(N, C)`` logits at the end of the first path, fooled or not.
        held: ``(N,)`` whether it is right all along the first path; of random draws, along all.
        trajectory: ``(steps + 1, N, …)`` pictures along the first path, where they were asked for.
    """

    x: Tensor
    logits: Tensor
    end: Tensor
    held: Tensor
    trajectory: Tensor | None = None


def attack(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    name: str = "pgd",
    *,
    eps: float,
    norm: Norm | None = None,
    steps: int | None = None,
    first: float | None = None,
    loss: str | None = None,
    restarts: int | None = None,
    seed: int = 0,
    rows: Tensor | None = None,
    track: bool = False,
) -> Attacked:
    """Look for a picture within ε of each one that the network takes for another class.

    ε is in pixel units, so the network must take pixels: `pixel_model` puts a normalization into it. A module runs in
    eval mode where the pictures are, and is put back as it was.

    Args:
        network: Pixels ``(N, …)`` → logits ``(N, C)``, or something that holds them.
        x: Pictures ``(N, …)``, float, in [0, 1].
        y: ``(N,)`` class indices.
        name: In `ATTACKS`.
        eps: How far a picture may be moved: 0 to 1 under L∞.
        norm: ``"inf"`` or ``"2"``, instead of the attack's own.
        steps: Instead of the attack's own.
        first: Length of the first step in units of ε, instead of the attack's own.
        loss: Of `LOSSES`, instead of the attack's own.
        restarts: Random starts after the first, instead of the attack's own.
        seed: Of what is random.
        rows: ``(N,)`` numbers of the samples; 0, 1, … if not given. What is drawn for a sample follows from the seed
            and its number, in whatever batch it is (not by autoattack).
        track: Keep the pictures along the first path.

    Examples:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
        >>> _ = net[1].weight.data.copy_(torch.eye(2, 4))
        >>> picture = torch.tensor([[[0.8, 0.6], [0.0, 0.0]]])
        >>> attack(net, picture, torch.tensor([0]), "fgsm", eps=0.2).x
        tensor([[[0.6000, 0.8000],
                 [0.0000, 0.0000]]])
    """
    options = {"norm": norm, "steps": steps, "first": first, "loss": loss, "restarts": restarts}
    given: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    how = replace(ATTACKS[name], **given)
    if name == "autoattack" and (track or given.keys() - {"norm"}):
        raise InputError(
            "autoattack has its own steps, losses and restarts, and no trajectory; give eps and norm alone."
        )
    _check_options(how)
    check_eps(eps, how.norm)
    check_pixels(x)
    if not isinstance(network, nn.Module):
        raise InputTypeError(f"network must be an nn.Module that takes pixels, got {type(network).__name__}.")
    with evaluating(network, x.device):
        x, classes = x.detach().float(), _logits(network, x[:1].float()).shape[1]
        if classes < (needed := 3 if how.loss == "dlr" else 2):
            raise InputError(f"network must tell {needed} classes or more apart for {name}, got {classes}.")
        y = check_labels(y, len(x), classes).to(x.device)
        if name == "autoattack":
            return _autoattack(network, x, y, how.norm, eps, seed, classes)
        numbers = torch.arange(len(x)) if rows is None else rows.cpu()
        return _climb(network, x, y, how, eps, (seed, numbers), classes, track)


def _climb(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    how: Attack,
    eps: float,
    seeds: tuple[int, Tensor],
    classes: int,
    track: bool,
) -> Attacked:
    """From the picture, and for what is still right from random points, as far up as the steps go."""
    seed, numbers = seeds
    found, found_logits, path = x.clone(), x.new_zeros(len(x), classes), []
    end, likeliest = found_logits, found_logits.long()
    right = held = torch.ones_like(y, dtype=torch.bool)
    for start in range(how.restarts + 1):
        target, rows = None, right.nonzero()[:, 0]
        begin = origin = x[rows]
        if start or not how.steps:
            drawn = [(seed % 2**63, number, start) for number in numbers[rows.cpu()].tolist()]
            begin = within(origin + anywhere(origin, eps, how.norm, drawn, edge=not how.steps), origin, eps, how.norm)
        if start and how.loss == "margin":
            target = likeliest[rows, (start - 1) % (classes - 1)]
        for number, (point, logits) in enumerate(_path(network, begin, origin, y[rows], how, eps, target)):
            if not start and not number:
                likeliest = logits.scatter(1, y[:, None], -torch.inf).argsort(1, descending=True)
            now = logits.argmax(1) != y[rows]
            better = now | right[rows]
            found[rows[better]], found_logits[rows[better]] = point[better], logits[better]
            right[rows] &= ~now
            if not start:
                end = logits
                path += [point] if track else []
        if not start or not how.steps:
            held = right.clone()
        if not right.any():
            break
    return Attacked(found, found_logits, end, held, torch.stack(path) if track else None)


def _path(
    network: nn.Module, point: Tensor, x: Tensor, y: Tensor, how: Attack, eps: float, target: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each point on the way and its logits."""
    for number in range(how.steps):
        logits, gradient = loss_gradient(network, point, y, str(how.loss), target)
        yield point, logits
        length = how.first * eps * (1 + math.cos(math.pi * number / how.steps)) / 2
        point = within(point + length * upward(gradient, how.norm), x, eps, how.norm)
    yield point, _logits(network, point)


def loss_gradient(
    network: nn.Module, x: Tensor, y: Tensor, loss: str, target: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of a loss with respect to pixels: 0 where the network passes none, or no number.

    With a target, ``(N,)`` classes, the loss is that of a network which knows no others.
    """
    point = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = logits_of(network, point)
        seen, at = logits.float(), y
        if target is not None:
            seen, at = seen.gather(1, torch.stack([y, target], 1)), torch.zeros_like(y)
        total = LOSSES[loss](seen, at).sum()
        gradient = torch.autograd.grad(total, point, allow_unused=True)[0] if total.requires_grad else None
    if gradient is None:  # the network looks at something that was cut off from its pixels
        gradient = torch.zeros_like(x)
    return logits.detach().float(), torch.nan_to_num(gradient, nan=0.0)


def _logits(network: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return logits_of(network, x).float()


def _autoattack(network: nn.Module, x: Tensor, y: Tensor, norm: Norm, eps: float, seed: int, classes: int) -> Attacked:
    """pyautoattack's standard set, with as many target classes as there are; the targeted ones need four classes."""
    names = ["apgd-ce", "apgd-t", "fab-t", "square"] if classes > 3 else ["apgd-ce", "fab", "square"]
    if not loss_gradient(network, x, y, "margin")[1].any():
        names = ["square"]  # the one that needs no gradients
    found, run = x, need("pyautoattack").AutoAttack
    with torch.random.fork_rng([x.device] if x.device.type == "cuda" else []):  # it sets the seed of everything
        ask = partial(logits_of, network)
        kind = {"inf": "Linf", "2": "L2"}[norm]
        made = run(ask, attacks=names, device=x.device, eps=eps, norm=kind, seed=seed, version="custom")
        made.apgd.n_restarts = made.fab.n_restarts = 1
        made.apgd_targeted.n_target_classes = made.fab.n_target_classes = min(9, classes - 1)
        if eps:
            found, _ = made.run_standard_evaluation(x, y, batch_size=len(x))
    found = within(torch.where(found.isfinite(), found, x), x, eps, norm)
    logits = _logits(network, found)
    return Attacked(found, logits, logits, logits.argmax(1) == y)


def check_eps(eps: float, norm: str) -> None:
    """Refuse an ε that is no distance."""
    if not isinstance(eps, (int, float)) or not math.isfinite(eps) or eps < 0:
        raise InputError(
            f"eps must be a distance in pixel units, 0 or more, got {eps!r}; 8/255 is usual for photographs."
        )
    if norm == "inf" and eps > 1:
        raise InputError(
            f"eps must be at most 1 under L∞, where 1 turns any picture into any other, got {eps:g}; pixels are in "
            "[0, 1], so divide by 255, or attack with pgd-l2."
        )


def check_pixels(x: Tensor, name: str = "x") -> None:
    """Refuse what is no batch of pixels in [0, 1]."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise InputError(
            f"{name} must be a float tensor of pixels in [0, 1], got {got}; of 8 bits give x.float() / 255."
        )
    if x.ndim < 2 or not x.numel():
        raise InputError(f"{name} must hold one picture or more, (N, C, H, W) say, got shape {tuple(x.shape)}.")
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise InputError(
            f"{name} must hold pixels in [0, 1], got {float(x.min()):.3g} to {float(x.max()):.3g}; normalize in the "
            "network's first layer, or by a Normalize at the end of its preprocessing, so that eps is in pixel units."
        )


def _check_options(how: Attack) -> None:
    if how.norm not in ("inf", "2"):
        raise InputError(f"norm must be 'inf' or '2', got {how.norm!r}.")
    if how.name == "autoattack":
        return
    for option, least in (("steps", 0 if how.loss is None else 1), ("restarts", 0)):
        value = getattr(how, option)
        if not isinstance(value, int) or value < least:
            raise InputError(f"{option} must be {least} or more, got {value!r}.")
    if how.steps and how.loss not in LOSSES:
        raise InputError(f"loss must be one of {', '.join(LOSSES)} for an attack that makes steps, got {how.loss!r}.")
    if how.steps and not 0 < how.first <= 2:
        raise InputError(
            f"first must be above 0 and at most 2, the width of the ball in units of ε, got {how.first!r}."
        )
