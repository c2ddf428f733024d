"""Is a classifier better than chance? Its agreement with the labels, compared with chance agreement."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hardsight.printing import percent
from hardsight.triple import MOST_CLASSES

# Below this share of the way from chance to perfect agreement (Cohen's kappa) a classifier is near chance, however
# certain the difference is; with fewer samples than this there is no verdict.
NEAR, FEWEST = 0.1, 20
_LEVEL = 0.01


class ChanceWarning(UserWarning):
    """A network that is no better than chance; the command prints it first, and in red."""


@dataclass(frozen=True)
class Chance:
    """How far predictions agree with labels beyond chance.

    Attributes:
        n: Labeled samples.
        accuracy: Share of labels that equal the prediction.
        expected: That share if predictions were assigned to the samples at random: the class prior, for a network that
            always predicts the most frequent class.
        kappa: ``(accuracy − expected) / (1 − expected)``, Cohen's kappa; NaN if `expected` is 1.
        p: Probability of such a high accuracy under random assignment (one-sided, normal approximation).
    """

    n: int
    accuracy: float
    expected: float
    kappa: float
    p: float

    @property
    def near(self) -> bool:
        """Whether the predictions are at or near chance."""
        return self.n >= FEWEST and np.isfinite(self.kappa) and (self.p > _LEVEL or self.kappa < NEAR)

    def __str__(self) -> str:
        return (
            f"the network is no better than chance on these labels (accuracy {percent(self.accuracy)}; "
            f"{percent(self.expected)} by chance, n = {self.n:,}): check its weights, its preprocessing and the order "
            "of its classes before you use any of this."
        )


def chance_agreement(labels: np.ndarray, predictions: np.ndarray) -> Chance:
    """Agreement of predictions with labels, and the agreement expected if the same predictions are assigned at random.

    The moments of the number of matches under a random permutation are exact.

    Args:
        labels: ``(N,)`` classes; negative for samples without a label.
        predictions: ``(N,)`` predicted classes.

    Examples:
        >>> chance_agreement(np.array([0, 0, 0, 1] * 10), np.array([0, 0, 0, 0] * 10)).near  # always the same class
        True
    """
    labeled = labels >= 0
    if not labeled.all():
        labels, predictions = labels[labeled], predictions[labeled]
    codes, matches = [labels, predictions], int((labels == predictions).sum())
    if any(x.dtype.kind not in "iu" or not len(x) or x.min() < 0 or x.max() >= MOST_CLASSES for x in codes):
        codes = np.split(np.unique(np.concatenate(codes), return_inverse=True)[1], 2)
    width = int(max(x.max(initial=0) for x in codes)) + 1
    return chance_of_counts(np.stack([np.bincount(part, minlength=width) for part in codes]), matches)


def chance_of_counts(counts: np.ndarray, matches: int) -> Chance:
    """The same from ``(2, C)`` counts, how often each class is a label and how often it is predicted."""
    n = int(counts[0].sum())
    if n < 2:
        return Chance(n, float("nan"), float("nan"), float("nan"), float("nan"))
    a, b = counts[:, counts.any(0)].astype(np.float64)
    product = a * b
    mean = product.sum() / n
    variance = (product * (n - a) * (n - b)).sum() + product.sum() ** 2 - (product**2).sum()
    sd = np.sqrt(variance / (n**2 * (n - 1)))
    p = math.erfc((matches - 0.5 - mean) / sd / math.sqrt(2)) / 2 if sd > 0 else 1.0  # scipy.stats is slow to import
    kappa = (matches - mean) / (n - mean) if mean < n else float("nan")
    return Chance(n, matches / n, mean / n, float(kappa), p)
