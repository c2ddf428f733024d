"""Adversarial attacks: the worst image within ε of a given one, for a network that takes pixels in [0, 1].

Attacks climb a loss along the sign (L∞) or the direction (L2) of its gradient, so FGSM is PGD with one step. The
gradient of cross-entropy is exactly 0 in float32 once the margin exceeds 104, and attacks that follow it stand still.
The margin and the DLR loss are scale-free: they find the same image whatever factor the logits are multiplied by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.devices import evaluating
from hardsight.errors import InputError, InputTypeError
from hardsight.extras import need
from hardsight.heads import logits_of
from hardsight.questions.pixels import check_pixels
from hardsight.registry import Range, Registry, check_choice, whole_number
from hardsight.scores import check_labels

Norm = Literal["inf", "2"]


def _margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The largest other logit minus that of the label: positive once the network is fooled."""
    target = logits.gather(1, labels[:, None])
    return logits.scatter(1, labels[:, None], -torch.inf).amax(1) - target[:, 0]


def _difference_of_logits_ratio(logits: Tensor, labels: Tensor) -> Tensor:
    """The margin in units of the spread from the largest to the third-largest logit (Croce and Hein, 2020)."""
    first, _, third = logits.topk(3, 1).values.unbind(1)
    spread = first - third
    return _margin(logits, labels) / torch.where(spread > 0, spread, 1.0)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ce": partial(F.cross_entropy, reduction="none"),
    "margin": _margin,
    "dlr": _difference_of_logits_ratio,
}


@dataclass(frozen=True)
class Attack:
    """The options of an attack; `attack` runs it.

    Attributes:
        name: Its name.
        loss: The loss it climbs, of `LOSSES`; None for random images.
        norm: ``"inf"`` bounds the change of every pixel by ε, ``"2"`` the Euclidean length of the whole change.
        steps: Steps per path.
        restarts: Paths from random points within ε, after the path from the image itself, for images that still resist.
            With the margin, each restart aims at one class, the likeliest first.
        summary: One line about it.
        reference: Where it comes from.
        first: Length of the first step in units of ε; steps shrink to 0 along a cosine.
    """

    name: str
    loss: str | None
    norm: Norm
    steps: int
    restarts: int
    summary: str
    reference: str
    first: float = 1.0


ATTACKS: Registry[Attack] = Registry("attack")
for _attack in (
    Attack("noise", None, "inf", 0, 9, "The worst of ten random corners of the ε-box; no gradients.", "hardsight"),
    Attack("fgsm", "ce", "inf", 1, 0, "One step along cross-entropy.", "Goodfellow et al., ICLR 2015"),
    Attack("pgd", "ce", "inf", 20, 0, "Steps along cross-entropy.", "Madry et al., ICLR 2018"),
    Attack("pgd-l2", "ce", "2", 20, 0, "PGD within a Euclidean ball.", "Madry et al., ICLR 2018"),
    Attack("pgd-margin", "margin", "inf", 20, 3, "Steps along the logit margin.", "Carlini and Wagner, S&P 2017"),
    Attack("pgd-margin-l2", "margin", "2", 20, 3, "The same within a Euclidean ball.", "Carlini and Wagner, S&P 2017"),
    Attack("pgd-dlr", "dlr", "inf", 20, 0, "Steps along the difference of logits ratio.", "Croce and Hein, ICML 2020"),
    Attack("autoattack", None, "inf", 20, 0, "pyautoattack's ensemble; strong, slow.", "Croce and Hein, ICML 2020"),
):
    ATTACKS[_attack.name] = _attack


class Attacked(NamedTuple):
    """The result of an attack.

    Attributes:
        x: ``(N, …)`` images: the last point that fools the network on the first path that has one, or the end of the
            last path.
        logits: ``(N, C)`` of them.
        end: ``(N, C)`` logits at the end of the first path, fooled or not.
        survived: ``(N,)`` whether the network is right all along the first path; for random images, along all paths.
        trajectory: ``(steps + 1, N, …)`` images along the first path, if tracked.
    """

    x: Tensor
    logits: Tensor
    end: Tensor
    survived: Tensor
    trajectory: Tensor | None = None


def attack(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    name: str = "pgd",
    *,
    eps: float,
    seed: int = 0,
    rows: Tensor | None = None,
    track: bool = False,
    **overrides: Any,
) -> Attacked:
    """Look for an image within ε of each given one that the network misclassifies.

    ε is in pixel units, so the network must take pixels: `pixel_model` moves a normalization into it. The network runs
    in eval mode on the device of the images; its state is restored afterwards.

    Args:
        network: Pixels ``(N, …)`` → logits ``(N, C)``, or an output that holds them.
        x: Images ``(N, …)``, float, in [0, 1].
        y: ``(N,)`` class indices.
        name: A name in `ATTACKS`.
        eps: Largest distance of an image from the given one: 0 to 1 under L∞.
        seed: Seed of the random draws.
        rows: ``(N,)`` row numbers of the samples, 0, 1, … by default. The draws for a sample depend on the seed and
            its row number alone, not on its batch (except for autoattack).
        track: Keep the images along the first path.
        **overrides: Options of the `Attack` to replace: ``norm``, ``steps``, ``first``, ``loss``, ``restarts``.

    Examples:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
        >>> _ = net[1].weight.data.copy_(torch.eye(2, 4))
        >>> image = torch.tensor([[[0.8, 0.6], [0.0, 0.0]]])
        >>> attack(net, image, torch.tensor([0]), "fgsm", eps=0.2).x
        tensor([[[0.6000, 0.8000],
                 [0.0000, 0.0000]]])
    """
    overrides = {option: value for option, value in overrides.items() if value is not None}
    if name == "autoattack" and (track or overrides.keys() - {"norm"}):
        raise InputError("autoattack takes eps and norm only: it has its own steps, losses and restarts.")
    options = _checked(replace(ATTACKS[name], **overrides))
    check_eps(eps, options.norm)
    check_pixels(x, least=2)
    if not isinstance(network, nn.Module):
        raise InputTypeError(f"network must be an nn.Module that takes pixels, got {type(network).__name__}.")
    with evaluating(network, x.device):
        x, classes = x.detach().float(), _logits(network, x[:1].float()).shape[1]
        if classes < (needed := 3 if options.loss == "dlr" else 2):
            raise InputError(f"network must have {needed} classes or more for {name}, got {classes}.")
        y = check_labels(y, len(x), classes).to(x.device)
        if name == "autoattack":
            return _autoattack(network, x, y, options.norm, eps, seed, classes)
        rows = torch.arange(len(x)) if rows is None else rows.cpu()
        return _climb(network, x, y, options, eps, seed % 2**63, rows, track)


def _climb(
    network: nn.Module, x: Tensor, y: Tensor, options: Attack, eps: float, seed: int, rows: Tensor, track: bool
) -> Attacked:
    """One path from each image, then paths from random points for the images that still resist."""
    result, result_logits, path = x.clone(), x.new_empty(0), []
    end = ranking = result_logits
    right = survived = torch.ones_like(y, dtype=torch.bool)
    for start in range(options.restarts + 1):
        target, left = None, right.nonzero()[:, 0]
        begin = origin = x[left]
        if start or not options.steps:
            changes = [_random_change(x.shape[1:], options, (seed, row, start)) for row in rows[left.cpu()].tolist()]
            begin = project(origin + eps * torch.from_numpy(np.stack(changes)).to(x.device), origin, eps, options.norm)
        if start and options.loss == "margin":
            target = ranking[left, (start - 1) % ranking.shape[1]]
        for step, (point, logits) in enumerate(_path(network, begin, origin, y[left], options, eps, target)):
            if not start and not step:
                result_logits = torch.zeros_like(logits)
                ranking = logits.scatter(1, y[:, None], -torch.inf).argsort(1, descending=True)[:, :-1]
            fooled = logits.argmax(1) != y[left]
            update = fooled | right[left]
            result[left[update]], result_logits[left[update]] = point[update], logits[update]
            right[left] &= ~fooled
            if not start:
                end = logits
                path += [point] if track else []
        if not start or not options.steps:
            survived = right.clone()
        if not right.any():
            break
    return Attacked(result, result_logits, end, survived, torch.stack(path) if track else None)


def _path(
    network: nn.Module, point: Tensor, x: Tensor, y: Tensor, options: Attack, eps: float, target: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each point on the way and its logits."""
    for step in range(options.steps):
        logits, gradient = loss_gradient(network, point, y, str(options.loss), target)
        yield point, logits
        length = options.first * eps * (1 + math.cos(math.pi * step / options.steps)) / 2
        direction = gradient.sign() if options.norm == "inf" else _unit(gradient)
        point = project(point + length * direction, x, eps, options.norm)
    yield point, _logits(network, point)


def loss_gradient(
    network: nn.Module, x: Tensor, y: Tensor, loss: str, target: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of a loss with respect to the pixels: 0 where the network passes none, or NaN.

    With a target, ``(N,)`` classes, the loss is that of a network that has no other classes.
    """
    point = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = logits_of(network, point)
        values, labels = logits.float(), y
        if target is not None:
            values, labels = values.gather(1, torch.stack([y, target], 1)), torch.zeros_like(y)
        total = LOSSES[loss](values, labels).sum()
        gradient = torch.autograd.grad(total, point, allow_unused=True)[0] if total.requires_grad else None
    gradient = torch.zeros_like(x) if gradient is None else torch.nan_to_num(gradient, nan=0.0)
    return logits.detach().float(), gradient


def _logits(network: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return logits_of(network, x).float()


def _autoattack(network: nn.Module, x: Tensor, y: Tensor, norm: Norm, eps: float, seed: int, classes: int) -> Attacked:
    """pyautoattack's standard set, with as many target classes as possible; the targeted ones need four classes."""
    names = ["apgd-ce", "apgd-t", "fab-t", "square"] if classes > 3 else ["apgd-ce", "fab", "square"]
    if not loss_gradient(network, x, y, "margin")[1].any():
        names = ["square"]  # the only one without gradients
    result, ensemble = x, need("pyautoattack").AutoAttack
    with torch.random.fork_rng([x.device] if x.device.type == "cuda" else []):  # it seeds all generators
        options = {"eps": eps, "norm": {"inf": "Linf", "2": "L2"}[norm], "seed": seed, "device": x.device}
        runner = ensemble(partial(logits_of, network), attacks=names, version="custom", **options)
        runner.apgd.n_restarts = runner.fab.n_restarts = 1
        runner.apgd_targeted.n_target_classes = runner.fab.n_target_classes = min(9, classes - 1)
        if eps:
            result, _ = runner.run_standard_evaluation(x, y, batch_size=len(x))
    result = project(torch.where(result.isfinite(), result, x), x, eps, norm)
    logits = _logits(network, result)
    return Attacked(result, logits, logits, logits.argmax(1) == y)


def project(point: Tensor, x: Tensor, eps: float, norm: Norm) -> Tensor:
    """Project the point into the ε-ball around x, and then into [0, 1], which never moves it away from x.

    Examples:
        >>> project(torch.tensor([[0.9, 2.0]]), torch.tensor([[0.5, 0.9]]), 0.25, "inf")
        tensor([[0.7500, 1.0000]])
    """
    if norm == "inf":
        return point.clamp(x - eps, x + eps).clamp(0, 1)
    return (x + torch.renorm((point - x).flatten(1), 2, 0, eps).view_as(x)).clamp(0, 1)


def _unit(values: Tensor) -> Tensor:
    """Scale each sample's values to length 1, or 0. Divides by the largest first: squares of small numbers vanish."""
    scaled = F.normalize(values.flatten(1), torch.inf, eps=torch.finfo(values.dtype).tiny)
    return F.normalize(scaled).view_as(values)


def _random_change(shape: Sequence[int], options: Attack, seed: Sequence[int]) -> np.ndarray:
    """A random point of the unit ball, or on its edge (under L∞ a corner) for attacks without steps.

    Each sample has its own seed, so its change depends neither on the batch nor on the device.
    """
    draw = np.random.default_rng(seed)
    if options.norm == "inf":
        change = 2 * draw.random(shape, np.float32) - 1
        return change if options.steps else np.sign(change)
    change = draw.standard_normal(shape, np.float32)
    change /= np.linalg.norm(change)
    return change * draw.random(dtype=np.float32) ** (1 / change.size) if options.steps else change


def check_eps(eps: float, norm: str) -> None:
    """Refuse an ε that is not a distance."""
    most = 1 if norm == "inf" else math.inf
    if not isinstance(eps, (int, float)) or not Range(0, most).holds(eps):
        raise InputError(
            f"eps must be in {Range(0, most)}, for pixels from 0 to 1, got {eps!r}; 8/255 is usual for photographs."
        )


def _checked(options: Attack) -> Attack:
    check_choice(options.norm, ("inf", "2"), "norm")
    if options.steps and options.name != "autoattack":
        check_choice(options.loss, LOSSES, "loss")
        Range(0, 2, "(]").check(options.first, "first")
    steps = whole_number("steps", options.steps, 0 if options.loss is None else 1)
    return replace(options, steps=steps, restarts=whole_number("restarts", options.restarts, 0))
