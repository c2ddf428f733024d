"""A network under several attacks at several ε, batch by batch: what is still right, and where its features went."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hardsight.data import Source
from hardsight.devices import evaluating
from hardsight.heads import capture, find_head, logits_of
from hardsight.robustness.attacks import ATTACKS, attack, check_pixels, loss_gradient
from hardsight.scores import compute_scores

# What is told of clean and attacked pictures, at the label.
TOLD = ("avh", "norm", "confidence")
# ε unless told otherwise, by norm, of gray pictures and of colored ones.
DEFAULT_EPS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "inf": ((0.05, 0.1, 0.2, 0.3), (1 / 255, 2 / 255, 4 / 255, 8 / 255)),
    "2": ((0.5, 1.0, 2.0, 3.0), (0.125, 0.25, 0.5, 1.0)),
}
# The attack without a scale by which others are checked, and whose pictures are described.
SCALELESS = {"inf": "pgd-margin", "2": "pgd-margin-l2"}
# Samples whose path is followed, and its first step in units of ε: with 20 of them the whole is as long as ε.
_FOLLOWED, _GENTLE = 128, 0.1


class Measured(NamedTuple):
    """What attacks left over of N samples.

    Attributes:
        rows: ``(N,)`` where the samples are in the data set.
        eps: By attack, the ε that were asked for, rising.
        pred: ``(N,)`` classes without attack.
        clean: ``(N,)`` whether they are right.
        unsteady: ``(N,)`` whether the network says something else when asked again.
        flat: By loss, ``(N,)`` whether its gradient is exactly 0.
        left: By attack and ε, ``(N,)`` whether it is right all along the attack.
        held: By attack and ε, ``(N,)`` whether it is right all along its first path.
        end: By attack and ε, ``(N,)`` whether it is right at its end.
        reached: As `held`, at an ε that turns any picture into any other, of attacks that make steps.
        told: By scaleless attack and ε, ``(N, 3)`` of `TOLD`; ``"clean"`` at 0.
        paths: By scaleless attack, ``(steps + 1, M, 4)``: `TOLD` and whether it is fooled, at the largest ε, of the
            first samples that are right.
    """

    rows: np.ndarray
    eps: dict[str, list[float]]
    pred: np.ndarray
    clean: np.ndarray
    unsteady: np.ndarray
    flat: dict[str, np.ndarray]
    left: dict[str, dict[float, np.ndarray]]
    held: dict[str, dict[float, np.ndarray]]
    end: dict[str, dict[float, np.ndarray]]
    reached: dict[str, dict[float, np.ndarray]]
    told: dict[str, dict[float, np.ndarray]]
    paths: dict[str, np.ndarray]


def measure(
    network: nn.Module,
    source: Source,
    rows: np.ndarray,
    attacks: Sequence[str],
    eps: Sequence[float] | None,
    *,
    batch_size: int,
    seed: int,
    progress: bool,
) -> Measured:
    """Attack some samples of a data set.

    Args:
        network: Pixels → logits.
        source: The data set as pixels, and the network in `network` that holds the head.
        rows: ``(N,)`` the samples that are meant.
        attacks: Names.
        eps: For each attack; None: `DEFAULT_EPS`.
        batch_size: Samples at a time.
        seed: Of what is random.
        progress: Show a bar (only ever in a terminal).
    """
    from tqdm import tqdm

    inner, parts = source.model.module, torch.from_numpy(rows).split(batch_size)
    seen, batches, followed = [], [], 0
    paths: dict[str, list[np.ndarray]] = {}
    levels: dict[str, list[float]] = {}
    bar = tqdm(total=len(parts) * len(attacks), unit=" attacks", desc="attacking", disable=None if progress else True)
    with evaluating(network, source.device), bar:
        for at, x, y, _ in source.batches(parts):
            check_pixels(x, "DATA after the preprocessing")
            levels = levels or {name: _levels(name, eps, x) for name in attacks}
            batch = dict(_clean(network, inner, x, y))
            for name in attacks:
                batch |= _attacked(network, inner, x, y, name, levels[name], seed, at)
                bar.update()
            right = batch["clean",].nonzero()[: _FOLLOWED - followed, 0]
            for name in SCALELESS.values() if len(right) else ():
                if name in levels:
                    path = _path(network, inner, x[right], y[right], name, levels[name][-1])
                    paths.setdefault(name, []).append(path)
            followed += len(right)
            seen.append(at)
            batches.append(batch)
    arrays = {key: torch.cat([batch[key] for batch in batches]).cpu().numpy() for key in batches[0]}
    held: dict[str, Any] = {}
    for (kind, *at), values in arrays.items():
        inside = held.setdefault(kind, {})
        for part in at[:-1]:
            inside = inside.setdefault(part, {})
        if at:
            inside[at[-1]] = values
        else:
            held[kind] = values
    whole = {name: np.concatenate(parts, axis=1) for name, parts in paths.items()}
    return Measured(torch.cat(seen).numpy(), levels, **held, paths=whole)


def _levels(name: str, eps: Sequence[float] | None, x: Tensor) -> list[float]:
    coloured = x.ndim == 4 and x.shape[1] > 1
    return sorted(eps if eps is not None else DEFAULT_EPS[ATTACKS[name].norm][coloured])


def _clean(network: nn.Module, inner: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    told, logits = _told(network, inner, x, y)
    yield ("told", "clean", 0.0), told
    yield ("pred",), logits.argmax(1)
    yield ("clean",), logits.argmax(1) == y
    for loss in ("ce", "margin"):
        again, gradient = loss_gradient(network, x, y, loss)
        yield ("flat", loss), ~gradient.flatten(1).any(1)
    spread = (logits.amax(1) - logits.amin(1)).clamp_min(torch.finfo(torch.float32).tiny)
    yield ("unsteady",), (again - logits).abs().amax(1) > 1e-3 * spread  # more than the order of sums on a GPU


def _attacked(
    network: nn.Module,
    inner: nn.Module,
    x: Tensor,
    y: Tensor,
    name: str,
    levels: Sequence[float],
    seed: int,
    rows: Tensor,
) -> dict[tuple[Any, ...], Tensor]:
    """One attack at every ε, and where it makes steps, at an ε that allows any picture."""
    made: dict[tuple[Any, ...], Tensor] = {}
    how = ATTACKS[name]
    for eps in levels:
        found = attack(network, x, y, name, eps=eps, seed=seed, rows=rows)
        made["left", name, eps] = found.logits.argmax(1) == y
        made["held", name, eps] = found.held
        made["end", name, eps] = found.end.argmax(1) == y
        if name == SCALELESS[how.norm]:
            made["told", name, eps] = _told(network, inner, found.x, y)[0]
    if how.steps > 1 and how.loss is not None:
        eps = 1.0 if how.norm == "inf" else math.sqrt(x[0].numel())
        made["reached", name, eps] = attack(network, x, y, name, eps=eps, restarts=0).held
    return made


def _path(network: nn.Module, inner: nn.Module, x: Tensor, y: Tensor, name: str, eps: float) -> np.ndarray:
    points = attack(network, x, y, name, eps=eps, first=_GENTLE, restarts=0, track=True).trajectory
    told = []
    for point in points if points is not None else ():
        values, logits = _told(network, inner, point, y)
        told.append(torch.cat([values, (logits.argmax(1) != y)[:, None]], 1))
    return torch.stack(told).cpu().numpy()


def _told(network: nn.Module, inner: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """`TOLD` of each picture ``(N, 3)``, and the logits."""
    with torch.no_grad(), capture(inner, find_head(inner).path) as head:
        logits = logits_of(network, x).float()
        scores = compute_scores(head.features.float(), head.weight.float(), y, head.bias, TOLD)
    return torch.stack([scores[name] for name in TOLD], 1), logits
