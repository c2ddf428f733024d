"""Tests of two correlations by formula: functions of coefficients and the number of samples, each returns z.

Fisher's takes the two correlations to come from different samples, which those of two scores of the same images do
not. Steiger's and Meng's know that they share the samples and one variable. All three take the data to be normal, which
scores that crowd at 1 and human frequencies that tie at 1 are not: ``docs/results/alignment-error-rates.csv`` has the
rates at which each rejects a null that is true. They stand here to compare with what others report.
"""

from __future__ import annotations

import math

from scipy import stats

from hardsight.errors import InputError


def fisher_z(r1: float, r2: float, n1: int, n2: int) -> float:
    """z of two correlations over different samples; what the AVH paper uses, with n1 = n2 = the same images.

    Args:
        r1: The first correlation.
        r2: The second.
        n1: Samples of the first.
        n2: Samples of the second.

    Examples:
        >>> round(fisher_z(0.349, 0.335, 29987, 29987), 2)  # the paper's Table 7, Spearman
        1.94
    """
    _check(min(n1, n2), r1=r1, r2=r2)
    return (math.atanh(r1) - math.atanh(r2)) / math.sqrt(1 / (n1 - 3) + 1 / (n2 - 3))


def steiger(r12: float, r13: float, r23: float, n: int) -> float:
    """z of r12 against r13, correlations of two variables with the same one over the same samples (Steiger, 1980).

    The two are pooled where their covariance is computed (his Z̄₂*).

    Args:
        r12: Correlation of the shared variable with the second.
        r13: Correlation of the shared variable with the third.
        r23: Correlation of the second with the third.
        n: Samples.

    Examples:
        >>> round(steiger(0.3, 0.4, 0.5, 100), 4)
        -1.0718
    """
    _check(n, r12=r12, r13=r13, r23=r23)
    squared = ((r12 + r13) / 2) ** 2
    covariance = r23 * (1 - 2 * squared) - squared * (1 - 2 * squared - r23**2) / 2
    apart = 2 - 2 * covariance / (1 - squared) ** 2
    return _ratio((math.atanh(r12) - math.atanh(r13)) * math.sqrt(n - 3), apart)


def meng(r12: float, r13: float, r23: float, n: int) -> float:
    """z of r12 against r13, correlations of two variables with the same one (Meng, Rosenthal and Rubin, 1992).

    Args:
        r12: Correlation of the shared variable with the second.
        r13: Correlation of the shared variable with the third.
        r23: Correlation of the second with the third.
        n: Samples.

    Examples:
        >>> round(meng(0.63, -0.03, -0.19, 15), 2)  # the example of the paper
        1.68
    """
    _check(n, r12=r12, r13=r13, r23=r23)
    squared = (r12**2 + r13**2) / 2
    f = min((1 - r23) / (2 * (1 - squared)), 1.0)
    h = (1 - f * squared) / (1 - squared)
    return _ratio((math.atanh(r12) - math.atanh(r13)) * math.sqrt(n - 3), 2 * (1 - r23) * h)


def p_value(z: float, sided: int = 2) -> float:
    """p of a normal z: two-sided, or one-sided for the first being the larger.

    Examples:
        >>> round(p_value(1.92, sided=1), 3), round(p_value(1.92), 3)
        (0.027, 0.055)
    """
    return float(stats.norm.sf(z) if sided == 1 else 2 * stats.norm.sf(abs(z)))


def in_words(p: float | None) -> str:
    """A p-value as text; NaN and None are no test."""
    if p is None or math.isnan(p):
        return "no test, because nothing varies"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _ratio(difference: float, variance: float) -> float:
    if abs(difference) < 1e-12:  # rounding, as where two variables are one
        return 0.0
    return difference / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, difference)


def _check(n: int, **correlations: float) -> None:
    for name, r in correlations.items():
        limit = 1 if name == "r23" else math.nextafter(1, 0)
        if not -limit <= r <= limit:
            raise InputError(f"{name} must be a correlation between −1 and 1 (both excluded), got {r}.")
    if n < 4:
        raise InputError(f"n must be 4 or more for Fisher's transformation, got {n}.")
