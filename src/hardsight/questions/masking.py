"""Whether accuracy under attack can be believed: gradient masking makes attacks fail, which looks like robustness.

Each check compares the accuracy that attacks leave with what they must leave if gradients point the right way (Athalye,
Carlini and Wagner, 2018; Carlini et al., 2019). A difference counts if it exceeds a few points and chance: McNemar's
exact test over the same samples, one-sided, at 0.001.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from hardsight.errors import InputError
from hardsight.printing import percent
from hardsight.questions.attacks import ATTACKS
from hardsight.stats import mcnemar, share_interval

# By attack and ε, (N,) whether each sample is classified right.
Right = Mapping[str, Mapping[float, np.ndarray]]

# Differences that count. Of 16 healthy networks on digits none exceeded 0.07 (scale, of a linear one), 0.005 (weaker)
# or 0 (above clean).
_SCALE, _WEAKER, _ABOVE_CLEAN, _CHANCE = 0.2, 0.05, 0.02, 0.001
# An attack that works leaves nothing where ε allows any image; and no healthy gradient is exactly 0.
_LEFT_OVER, _FLAT = 0.05, 0.01
_FLAT_REASONS = {
    "ce": "cross-entropy vanishes in float32 under large logits, so attacks along it fail; rely on those along the "
    "margin",
    "margin": "the network passes none to its pixels (steps, saturation, a detached layer), so attacks along gradients "
    "show no robustness; try autoattack, part of which needs none",
}


class Verdict(NamedTuple):
    """The result of a check: its name, whether the network passed, and a sentence."""

    name: str
    passed: bool
    sentence: str


def check_masking(
    clean: np.ndarray,
    left: Right,
    *,
    ends: Right | None = None,
    reached: Right | None = None,
    flat: Mapping[str, np.ndarray] | None = None,
    unsteady: np.ndarray | None = None,
) -> list[Verdict]:
    """Look for gradient masking: one verdict per check.

    Give raw results: at each ε, what the attack found on its path from the image itself, regardless of smaller ε and of
    random starts.

    Args:
        clean: ``(N,)`` whether each sample is classified right without attack.
        left: By attack and ε, ``(N,)`` whether it is right all along the attack.
        ends: The same at the end of the attack's path; `left` by default.
        reached: The same as `left` at an ε that allows any image: 1 under L∞.
        flat: By loss (``"ce"``, ``"margin"``), ``(N,)`` whether its gradient at the image is exactly 0.
        unsteady: ``(N,)`` whether a second forward pass gives another result.

    Examples:
        >>> right = np.arange(100) < 90
        >>> stuck = {"pgd": {0.3: right}, "pgd-margin": {0.3: np.arange(100) < 5}}
        >>> [verdict.name for verdict in check_masking(right, stuck) if not verdict.passed]
        ['scale']
    """
    clean = np.asarray(clean, bool)
    if clean.ndim != 1 or not len(clean):
        raise InputError(f"clean must hold True or False for one sample or more, got shape {clean.shape}.")
    weaker: dict[str, list[tuple[np.ndarray, np.ndarray, str]]] = {"stronger attacks": [], "noise": [], "scale": []}
    for a, b in ((ATTACKS[a], ATTACKS[b]) for a in left for b in left):
        if a.norm != b.norm or b.steps < 2:
            continue
        check, reason = {
            0: ("noise", "its gradients are worth less than chance"),
            1: ("stronger attacks", f"{a.name} is the weaker attack, so its gradients lead nowhere"),
        }.get(a.steps, ("scale", f"cross-entropy vanishes under large logits, so believe {a.name}"))
        if check != "scale" or (a.loss in ("margin", "dlr") and b.loss == "ce"):
            for eps in left[a.name].keys() & left[b.name].keys():
                shares = [f"{name} leaves {percent(left[name][eps].mean())} right" for name in (b.name, a.name)]
                sentence = f"{' and '.join(shares)} at ε = {eps:.3g}; {reason}"
                weaker[check].append((left[b.name][eps], left[a.name][eps], sentence))
    above = [
        (
            values,
            clean,
            f"{percent(values.mean())} are right after {name} at ε = {eps:.3g} and {percent(clean.mean())} before",
        )
        for name, by_eps in (left if ends is None else ends).items()
        for eps, values in by_eps.items()
        if ATTACKS[name].steps
    ]
    problems = {check: _largest(pairs, _SCALE if check == "scale" else _WEAKER) for check, pairs in weaker.items()}
    problems["above clean"] = _largest(above, _ABOVE_CLEAN)
    if reached is not None:
        kept = [
            f"{name} leaves {percent(values.mean())} right at ε = {eps:.3g}, which allows any image"
            for name, by_eps in reached.items()
            for eps, values in by_eps.items()
            if share_interval(values.sum(), len(values))[0] > _LEFT_OVER
        ]
        problems["large ε"] = ", ".join(kept)
    for loss, values in (flat or {}).items():
        # Where the margin is flat, too, the network is to blame and not the loss.
        zero = np.asarray(values) & ~np.asarray((flat or {}).get("margin", False) if loss == "ce" else False)
        share = float(zero[clean].mean()) if clean.any() else 0.0
        sentence = (
            f"the gradient is exactly 0 for {percent(share)} of the samples that are right: {_FLAT_REASONS[loss]}"
        )
        problems[f"flat {loss}"] = sentence if share > _FLAT else ""
    if unsteady is not None:
        sentence = (
            f"a second forward pass gives another result for {percent(float(np.mean(unsteady)))} of the images; "
            "attacks that do not average over random draws overstate robustness"
        )
        problems["randomness"] = sentence if np.any(unsteady) else ""
    return [
        Verdict(name, not problem, f"gradient masking ({name}): {problem}." if problem else f"{name}: passed.")
        for name, problem in problems.items()
    ]


def _largest(pairs: Iterable[tuple[np.ndarray, np.ndarray, str]], least: float) -> str:
    """The sentence of the pair whose first is right more often by the most; empty if no difference exceeds chance."""
    gaps = []
    for values, reference, sentence in pairs:
        gained, lost = int((values & ~reference).sum()), int((reference & ~values).sum())
        if gained - lost > least * len(values) and mcnemar(gained, lost, len(values)).p < 2 * _CHANCE:
            gaps.append((gained - lost, sentence))
    return max(gaps)[1] if gaps else ""
