"""How well a perfect predictor of the people could agree with what a sample of them said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import special, stats

from hardsight.errors import InputError
from hardsight.stats import LEVEL

_COEFFICIENTS = {
    "spearman": lambda x, y: float(stats.spearmanr(x, y).statistic),
    "pearson": lambda x, y: float(stats.pearsonr(x, y).statistic),
    "kendall": lambda x, y: float(stats.kendalltau(x, y).statistic),
}
_STEP = 0.1  # of the grid of true frequencies, in logits
_UNSEEN = 0.05  # dissenting answers expected at an image: with fewer, frequencies near 0 or 1 are taken to be equal
_ROUNDS = 500  # of EM; from 300 on, the ceilings of CIFAR-10H stay the same to .003
_FEWEST = 4  # samples
_FEW_PEOPLE = 10  # a sample: below, many truths agree with the counts
_ENDS = (1 - LEVEL) / 2, (1 + LEVEL) / 2


class Ceiling(NamedTuple):
    """What a perfect predictor of the people could reach in one coefficient.

    Attributes:
        coefficient: Its name.
        ceiling: Correlation of true with observed frequencies, mean over simulated worlds.
        low: End of the interval that holds 95 % of the worlds, each with as many samples and answers as were observed.
        high: Its other end.
        split_half: Correlation of the frequencies of two random halves of the people, mean over splits. Of an odd
            number one is left out, so that both halves have as many judgements.
        spearman_brown: Reliability of all people that follows from it, ``m r / (1 + (m − 1) r)``, where m is how many
            times as many as in a half they are: 2, or a little more. 0 where halves do not agree at all.
        fit: Whether simulated people, split in halves too, agree with one another as the observed ones do.
    """

    coefficient: str
    ceiling: float
    low: float
    high: float
    split_half: float
    spearman_brown: float
    fit: str

    @property
    def root(self) -> float:
        """√Spearman–Brown: the ceiling if errors were alike for all samples; with many ties at 1 it is too high."""
        return float(np.sqrt(self.spearman_brown))


def ceiling(
    counts: Any,
    labels: Any,
    coefficients: Sequence[str] = tuple(_COEFFICIENTS),
    seed: int = 0,
    *,
    asked: Any = None,
    worlds: int = 100,
) -> list[Ceiling]:
    """What the best possible score could reach: one that knows how likely a person is to choose the label.

    Frequencies are shares of some tens of people, so even the true ones do not correlate perfectly with them. The
    distribution of the true ones is fitted to the counts without a form given (a binomial mixture on a grid of logits,
    by EM), then samples and people are drawn from it, as many as there were. The simulated people are split in halves
    like the real ones: where their halves do not agree as much as the real ones do, `fit` says so.

    Simulated from a truth like CIFAR-10H's (2,000 samples, 50, 25 or 4 people each), Spearman's ceiling came out at
    .73, .67 and .42 where it was .73, .66 and .44, and the interval held it in 93, 95 and 90 % of 60 runs; Pearson's
    was right to .005. Whether samples that all people agree on differ at all, answers cannot tell: the fit lets them
    differ a little, so that with half of the samples at exactly 1 Spearman's ceiling came out at .93 where it was .97.

    Args:
        counts: Answers by class ``(N, C)``, as in `hardsight.human.Matched`.
        labels: The column of each sample's label; negative: unknown.
        coefficients: Which of ``spearman``, ``pearson``, ``kendall``.
        seed: Of the simulation.
        asked: People asked a sample, where some chose nothing; the sum of the counts without.
        worlds: How many are simulated.

    Examples:
        >>> draw = np.random.default_rng(0)
        >>> chosen = draw.binomial(20, draw.beta(4, 1, 500))
        >>> found = ceiling(np.stack([chosen, 20 - chosen], 1), np.zeros(500, int), ["pearson"])[0]
        >>> round(found.ceiling, 1), round(found.root, 1)
        (0.9, 0.9)
    """
    chosen, people = _chosen(counts, labels, asked)
    if unknown := [name for name in coefficients if name not in _COEFFICIENTS]:
        raise InputError(f"coefficients must be of {', '.join(_COEFFICIENTS)}, got {unknown[0]!r}.")
    draw = np.random.default_rng(seed)
    splits = np.array([_between_halves(chosen, people, coefficients, draw) for _ in range(20)])
    truth, masses = _fitted(chosen, people, worlds, draw)
    reached, between = np.empty((2, worlds, len(coefficients)))
    for world, mass in enumerate(masses.T):
        true = _drawn(truth, mass, len(people), draw)
        answers = draw.binomial(people, true)
        reached[world] = [_correlation(name, true, answers / people) for name in coefficients]
        between[world] = _between_halves(answers, people, coefficients, draw)
    if max(np.isnan(values).mean(0).max() for values in (splits, reached, between)) > 0.5:
        raise InputError("counts must differ between more samples: half of the people often agree on all of them.")
    observed, mean = np.nanmean(splits, axis=0), np.nanmean(reached, axis=0)
    low, high = np.nanquantile(reached, _ENDS, axis=0).tolist()
    times = people[people > 1].mean() / (people[people > 1] // 2).mean()
    agreed = np.maximum(observed, 0.0)
    brown = times * agreed / (1 + (times - 1) * agreed)
    fits = [_fit(one, simulated, np.median(people)) for one, simulated in zip(observed, between.T, strict=True)]
    return list(map(Ceiling, coefficients, mean.tolist(), low, high, observed.tolist(), brown.tolist(), fits))


def _chosen(counts: Any, labels: Any, asked: Any) -> tuple[np.ndarray, np.ndarray]:
    """How many chose the label, of how many, for the samples that were shown to anybody."""
    counts, labels = np.asarray(counts), np.asarray(labels)
    fits = counts.ndim == 2 and labels.shape == counts.shape[:1] and labels.dtype.kind in "iu"
    if not fits or labels.max(initial=-1) >= counts.shape[1]:
        raise InputError(
            f"counts must be (samples × classes) and labels columns of it, one a sample; got shapes {counts.shape} and "
            f"{labels.shape} with labels up to {labels.max(initial=-1)} ({labels.dtype})."
        )
    people = counts.sum(1) if asked is None else np.asarray(asked)
    if people.shape != labels.shape or not (
        np.isfinite(counts).all() and (counts >= 0).all() and (counts % 1 == 0).all()
    ):
        raise InputError(
            "counts must be whole numbers of answers, 0 or more; from shares the number of people is unknown."
        )
    known = (labels >= 0) & (people > 0)
    chosen, people = counts[known, labels[known]].astype(np.int64), people[known].astype(np.int64)
    if (chosen > people).any():
        raise InputError("asked must be at least as many as chose the label.")
    if (people > 1).sum() < _FEWEST:
        raise InputError(f"counts must hold {_FEWEST} samples or more with two answers each, got {(people > 1).sum()}.")
    if np.ptp(chosen / people) == 0:
        raise InputError(
            "counts must differ between samples: all have the same frequency, with which nothing correlates."
        )
    return chosen, people


def _fitted(
    chosen: np.ndarray, people: np.ndarray, worlds: int, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """True frequencies as logits ``(G,)``, and the share of samples at each ``(G, worlds)``.

    Each world has a fit of its own, to samples drawn again from the observed ones: so the interval over worlds also
    holds what is not known of the truth.
    """
    end = special.logit(1 - _UNSEEN / max(float(np.median(people)), 1.0))
    inside = np.arange(_STEP / 2, end, _STEP)
    truth = np.r_[-np.inf, -inside[::-1], inside, np.inf]
    pairs, times = np.unique(np.stack([chosen, people]), axis=1, return_counts=True)
    again = torch.from_numpy(draw.multinomial(len(people), times / len(people), worlds).T / len(people))
    likelihood = torch.from_numpy(stats.binom.pmf(*pairs[:, :, None], special.expit(truth)))
    mass = torch.full((len(truth), worlds), 1 / len(truth), dtype=torch.float64)
    for _ in range(_ROUNDS):  # in torch, whose threads the user can limit
        mass *= likelihood.T @ (again / (likelihood @ mass))
    return truth, (mass / mass.sum(0)).numpy()


def _drawn(truth: np.ndarray, mass: np.ndarray, size: int, draw: np.random.Generator) -> np.ndarray:
    """True frequencies of new samples; spread within a cell of the grid, so that only the ends tie."""
    cells = draw.choice(truth, size, p=mass)
    return special.expit(cells + draw.uniform(-_STEP / 2, _STEP / 2, size))


def _between_halves(
    chosen: np.ndarray, people: np.ndarray, coefficients: Sequence[str], draw: np.random.Generator
) -> list[float]:
    """Correlations of the frequencies of two random halves of the people."""
    chosen, people = chosen[people > 1], people[people > 1]
    size = people // 2
    one = draw.hypergeometric(chosen, people - chosen, size)
    left = chosen - one
    other = draw.hypergeometric(left, people - size - left, size)
    return [_correlation(name, one / size, other / size) for name in coefficients]


def _correlation(name: str, x: np.ndarray, y: np.ndarray) -> float:
    """NaN where there is none, as in a world where everybody agrees."""
    return _COEFFICIENTS[name](x, y) if np.ptp(x) > 0 and np.ptp(y) > 0 else np.nan


def _fit(observed: float, simulated: np.ndarray, people: Any) -> str:
    low, high = np.nanquantile(simulated, _ENDS)
    words = f"halves of people agree at {observed:.3f}, of simulated ones at {np.nanmean(simulated):.3f}"
    words += f" ({low:.3f} to {high:.3f})"
    if not low <= observed <= high:
        return f"{words}: the fitted truth does not reproduce them, so take the ceiling with care"
    if people < _FEW_PEOPLE:
        return (
            f"{words}: the fitted truth reproduces them, but so would others that {people:g} people cannot tell apart"
        )
    return f"{words}: the fitted truth reproduces them"
