"""Whether accuracy under attack can be believed: gradient masking makes attacks fail, which looks like robustness.

Each check compares what attacks left over with what they must leave over if gradients lead where they should (Athalye,
Carlini and Wagner, 2018; Carlini et al., 2019). A difference counts when it is more than a few points and more than
chance: McNemar's exact test over the same samples, one-sided, at .001.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import stats

from hardsight.errors import InputError
from hardsight.robustness.attacks import ATTACKS
from hardsight.stats import wilson

# By attack and ε, (N,) whether a sample is right.
Right = Mapping[str, Mapping[float, np.ndarray]]

# Differences that count, set with 16 healthy networks on digits in view: there none was above .07 (scale, of a linear
# one), .005 (weaker) or 0 (above clean).
_SCALE, _WEAKER, _ABOVE_CLEAN = 0.2, 0.05, 0.02
_CHANCE = 0.001
_SCALELESS = ("margin", "dlr")
# Where any picture may become any other, an attack that works leaves nothing; and no healthy gradient is exactly 0.
_LEFT_OVER, _FLAT = 0.05, 0.01

_FLAT_BECAUSE = {
    "ce": "cross-entropy vanishes in float32 under large logits, and attacks along it stand still; believe those along "
    "the margin",
    "margin": "the network passes none to its pixels (steps, saturation, a detached layer), and no attack along "
    "gradients shows robustness; try autoattack, part of which needs none",
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
    """Look for gradient masking.

    Numbers must be raw: at each ε what the attack found there on its way from the picture itself, whatever it found at
    smaller ones or from random starts.

    Args:
        clean: ``(N,)`` whether each sample is right without attack.
        left: By attack and ε, ``(N,)`` whether it is right all along the attack.
        ends: The same at the end of the attack's path; None: as `left`.
        reached: The same as `left` at an ε that turns any picture into any other: 1 under L∞.
        flat: By loss (``"ce"``, ``"margin"``), ``(N,)`` whether its gradient at the picture is exactly 0.
        unsteady: ``(N,)`` whether the network says something else when asked again.

    Returns:
        One verdict per check.

    Examples:
        >>> right = np.arange(100) < 90
        >>> stuck = {"pgd": {0.3: right}, "pgd-margin": {0.3: np.arange(100) < 5}}
        >>> [verdict.name for verdict in check_masking(right, stuck) if not verdict.passed]
        ['scale']
    """
    clean = np.asarray(clean, bool)
    if clean.ndim != 1 or not len(clean):
        raise InputError(f"clean must hold True or False for one sample or more, got shape {clean.shape}.")
    how = {name: ATTACKS[name] for name in left}
    pairs = [(a, b) for a in how for b in how if how[a].norm == how[b].norm and how[b].steps > 1]
    problems = {
        "stronger attacks": _worst(
            left,
            [(a, b) for a, b in pairs if how[a].steps == 1],
            _WEAKER,
            "{b} leaves {y} right at ε = {eps} and {a}, which is weaker, {x}; its gradients lead nowhere",
        ),
        "noise": _worst(
            left,
            [(a, b) for a, b in pairs if how[a].steps == 0],
            _WEAKER,
            "{b} leaves {y} right at ε = {eps} and random {a} {x}; its gradients are worth less than chance",
        ),
        "scale": _worst(
            left,
            [(a, b) for a, b in pairs if how[a].steps > 1 and how[a].loss in _SCALELESS and how[b].loss == "ce"],
            _SCALE,
            "{b} leaves {y} right at ε = {eps} and {a} {x}; cross-entropy fades under large logits, so believe {a}",
        ),
        "above clean": _above_clean(clean, left if ends is None else ends),
    }
    if reached is not None:
        problems["large ε"] = _kept(reached)
    for loss, values in (flat or {}).items():
        # Where the margin is flat, too, the network is to blame and not the loss.
        alone = (
            np.asarray(values) & ~np.asarray((flat or {}).get("margin", False)) if loss == "ce" else np.asarray(values)
        )
        share = float(alone[clean].mean()) if clean.any() else 0.0
        because = f"the gradient is exactly 0 for {share:.1%} of the samples that are right: {_FLAT_BECAUSE[loss]}"
        problems[f"flat {loss}"] = because if share > _FLAT else None
    if unsteady is not None:
        share = float(np.mean(unsteady))
        problems["randomness"] = None if not share else (
            f"asked twice, the network says something else of {share:.1%} of the pictures; one draw's gradient is not "
            "the next one's, and attacks that do not average over draws overstate robustness"
        )  # fmt: skip
    return [
        Verdict(
            name, problem is None, f"{name}: passed." if problem is None else f"gradient masking ({name}): {problem}."
        )
        for name, problem in problems.items()
    ]


def _worst(left: Right, pairs: list[tuple[str, str]], points: float, sentence: str) -> str | None:
    """Of pairs of attacks of which the second must not leave more right, the one where it leaves the most."""
    found = [
        (float(left[b][eps].mean() - left[a][eps].mean()), a, b, eps)
        for a, b in pairs
        for eps in left[a].keys() & left[b].keys()
        if _more(left[b][eps], left[a][eps], points)
    ]
    if not found:
        return None
    _, a, b, eps = max(found)
    return sentence.format(a=a, b=b, eps=f"{eps:.3g}", x=f"{left[a][eps].mean():.1%}", y=f"{left[b][eps].mean():.1%}")


def _above_clean(clean: np.ndarray, ends: Right) -> str | None:
    above = [
        (float(values.mean()), name, eps)
        for name, by in ends.items()
        for eps, values in by.items()
        if ATTACKS[name].steps and _more(values, clean, _ABOVE_CLEAN)
    ]
    if not above:
        return None
    share, name, eps = max(above)
    return f"{share:.1%} are right after {name} at ε = {eps:.3g} and {clean.mean():.1%} before; it goes the wrong way"


def _kept(reached: Right) -> str | None:
    kept = [
        f"{name} leaves {values.mean():.1%} right at ε = {eps:.3g}"
        for name, by in reached.items()
        for eps, values in by.items()
        if wilson(values.sum(), np.array(len(values)))[0] > _LEFT_OVER
    ]
    if not kept:
        return None
    return f"{', '.join(kept)}, where any picture may become any other; the attack fails at smaller ε, too"


def _more(values: np.ndarray, than: np.ndarray, points: float) -> bool:
    """Whether more are right, by so many points, and not by chance."""
    gained, lost = int((values & ~than).sum()), int((than & ~values).sum())
    if gained - lost <= points * len(values):
        return False
    return stats.binomtest(gained, gained + lost, alternative="greater").pvalue < _CHANCE
