"""How well a perfect predictor of people could agree with the answers of a sample of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import special, stats

from hardsight.errors import InputError
from hardsight.registry import check_choice
from hardsight.stats import LEVEL

_SCIPY = {"spearman": stats.spearmanr, "pearson": stats.pearsonr, "kendall": stats.kendalltau}
_STEP = 0.1  # of the grid of true frequencies, in logits
_UNSEEN = 0.05  # dissenting answers expected per image: with fewer, frequencies near 0 or 1 count as equal
_ROUNDS = 500  # of EM; from 300 on, the ceilings of CIFAR-10H stay the same to 0.003
_FEWEST = 4  # samples
_FEW_PEOPLE = 10  # per sample: with fewer, many true distributions fit the counts
_ENDS = (1 - LEVEL) / 2, (1 + LEVEL) / 2


@dataclass(frozen=True)
class Ceiling:
    """What a perfect predictor of people could reach in one coefficient.

    Attributes:
        ceiling: Correlation of true with observed frequencies, mean over simulated worlds.
        low: End of the interval that holds 95% of the worlds, each with as many samples and answers as were observed.
        high: Its other end.
        split_half: Correlation of the frequencies of two random halves of the people, of equal size, mean over splits.
        spearman_brown: The resulting reliability of all people, ``m r / (1 + (m − 1) r)``, where m is the ratio of all
            people to a half: 2, or a little more. 0 if the halves do not agree at all.
        fit: ``"good"`` if simulated people, also split in halves, agree with one another as the observed ones do;
            ``"ambiguous"`` if they do, but there are so few answers that other true distributions fit as well;
            ``"poor"`` if not: then do not rely on the ceiling.
    """

    coefficient: str = ""
    ceiling: float = np.nan
    low: float = np.nan
    high: float = np.nan
    split_half: float = np.nan
    spearman_brown: float = np.nan
    fit: str = ""

    @property
    def root(self) -> float:
        """The ceiling if errors were the same for all samples, √Spearman–Brown; with many ties at 1 it is too high."""
        return float(np.sqrt(self.spearman_brown))


def ceiling(
    counts: Any,
    labels: Any,
    coefficients: Sequence[str] = (*_SCIPY,),
    seed: int = 0,
    *,
    asked: Any = None,
    worlds: int = 100,
) -> list[Ceiling]:
    """The agreement that the best possible score could reach, one that knows how likely people are to choose the label.

    Frequencies are shares of some tens of people, so even the true ones do not correlate perfectly with them. The
    distribution of the true ones is fitted to the counts without assuming a form (a binomial mixture on a grid of
    logits, by EM); then as many samples and people are drawn from it as were observed. Answers cannot tell whether
    samples that all people agree on differ at all: the fit lets them differ a little.

    Args:
        counts: Answers by class ``(N, C)``, as in `hardsight.people.Matched`.
        labels: The column of each sample's label; negative: unknown.
        coefficients: Which of ``spearman``, ``pearson``, ``kendall``.
        seed: Random seed of the simulation.
        asked: People asked per sample, if some chose nothing; the sum of the counts if not given.
        worlds: Number of simulated worlds.

    Examples:
        >>> draw = np.random.default_rng(0)
        >>> votes = draw.binomial(20, draw.beta(4, 1, 500))
        >>> result = ceiling(np.stack([votes, 20 - votes], 1), np.zeros(500, int), ["pearson"])[0]
        >>> round(result.ceiling, 1), round(result.root, 1)
        (0.9, 0.9)
    """
    for name in coefficients:
        check_choice(name, _SCIPY, "coefficients")
    votes, people = _votes(np.asarray(counts), np.asarray(labels), asked)
    draw = np.random.default_rng(seed)
    splits = np.array([_between_halves(votes, people, coefficients, draw) for _ in range(20)])
    truth, masses = _fitted(votes, people, worlds, draw)
    reached, between = np.empty((2, worlds, len(coefficients)))
    for world, mass in enumerate(masses.T):
        cells = draw.choice(truth, len(people), p=mass)
        true = special.expit(cells + draw.uniform(-_STEP / 2, _STEP / 2, len(people)))  # so that only the ends tie
        answers = draw.binomial(people, true)
        reached[world] = [_correlation(name, true, answers / people) for name in coefficients]
        between[world] = _between_halves(answers, people, coefficients, draw)
    if max(np.isnan(values).mean(0).max() for values in (splits, reached, between)) > 0.5:
        raise InputError("counts must differ between more samples: half of the people often agree on all of them.")
    observed = np.nanmean(splits, axis=0)
    agreed, several = np.maximum(observed, 0.0), people[people > 1]
    times = several.mean() / (several // 2).mean()
    low, high = np.nanquantile(between, _ENDS, axis=0)
    fit = np.where(
        (low <= observed) & (observed <= high), "ambiguous" if np.median(people) < _FEW_PEOPLE else "good", "poor"
    )
    columns = np.nanmean(reached, axis=0), *np.nanquantile(reached, _ENDS, axis=0), observed
    columns += times * agreed / (1 + (times - 1) * agreed), fit
    return list(map(Ceiling, coefficients, *(column.tolist() for column in columns)))


def _votes(counts: np.ndarray, labels: np.ndarray, asked: Any) -> tuple[np.ndarray, np.ndarray]:
    """How many people chose the label, and how many were asked, for each sample that was shown to anybody."""
    fits = counts.ndim == 2 and labels.shape == counts.shape[:1] and labels.dtype.kind in "iu"
    if not fits or labels.max(initial=-1) >= counts.shape[1]:
        raise InputError(
            f"counts must be (samples × classes) and labels columns of it, one per sample; got shapes {counts.shape} "
            f"and {labels.shape} with labels up to {labels.max(initial=-1)} ({labels.dtype})."
        )
    people = counts.sum(1) if asked is None else np.asarray(asked)
    if people.shape != labels.shape or not np.isfinite(counts).all() or (counts < 0).any() or (counts % 1).any():
        raise InputError("counts must be whole numbers of answers; from shares the number of people is unknown.")
    known = (labels >= 0) & (people > 0)
    votes, people = counts[known, labels[known]].astype(np.int64), people[known].astype(np.int64)
    if (votes > people).any():
        raise InputError("asked must be at least as many as chose the label.")
    if (several := int((people > 1).sum())) < _FEWEST or np.ptp(votes / people) == 0:
        raise InputError(
            f"counts must hold {_FEWEST} samples or more with two answers each that differ, got {several}."
        )
    return votes, people


def _fitted(
    votes: np.ndarray, people: np.ndarray, worlds: int, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """True frequencies as logits ``(G,)``, and the share of samples at each ``(G, worlds)``.

    Each world is fitted to a resample of the observed samples, so the interval over worlds also covers the uncertainty
    of the fit.
    """
    end = special.logit(1 - _UNSEEN / max(float(np.median(people)), 1.0))
    inside = np.arange(_STEP / 2, end, _STEP)
    truth = np.r_[-np.inf, -inside[::-1], inside, np.inf]
    pairs, times = np.unique(np.stack([votes, people]), axis=1, return_counts=True)
    again = torch.from_numpy(draw.multinomial(len(people), times / len(people), worlds).T / len(people))
    likelihood = torch.from_numpy(stats.binom.pmf(*pairs[:, :, None], special.expit(truth)))
    mass = torch.full((len(truth), worlds), 1 / len(truth), dtype=torch.float64)
    for _ in range(_ROUNDS):  # in torch, whose threads the user can limit
        mass *= likelihood.T @ (again / (likelihood @ mass))
    return truth, (mass / mass.sum(0)).numpy()


def _between_halves(
    votes: np.ndarray, people: np.ndarray, coefficients: Sequence[str], draw: np.random.Generator
) -> list[float]:
    """Correlations of the frequencies of two random halves of the people; with an odd number, one is left out."""
    votes, people = votes[people > 1], people[people > 1]
    size = people // 2
    first = draw.hypergeometric(votes, people - votes, size)
    second = draw.hypergeometric(votes - first, people - size - votes + first, size)
    return [_correlation(name, first / size, second / size) for name in coefficients]


def _correlation(name: str, x: np.ndarray, y: np.ndarray) -> float:
    """NaN if it is undefined, as in a world where everybody agrees."""
    return float(_SCIPY[name](x, y).statistic) if np.ptp(x) > 0 and np.ptp(y) > 0 else np.nan
