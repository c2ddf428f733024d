"""Tables 2 and 6 to 9 of the AVH paper, computed again from the coefficients that they print."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

from hardsight.correlation import fisher_z, p_value

IMAGES = 29987  # with a human selection frequency, of ImageNet's 50,000 for validation (Table 1)

# Table, network, coefficient, then as printed: coefficients of AVH and confidence, their z-scores, Z and p.
_PRINTED = (
    ("2", "ResNet-50", "spearman", "0.360", "0.325", "0.377", "0.337", "4.85", "< .00001"),
    ("2", "ResNet-50", "pearson", "0.385", "0.341", "0.406", "0.355", "6.2", "< .00001"),
    ("2", "ResNet-50", "kendall", "0.257", "0.231", "0.263", "0.235", "3.38", ".0003"),
    ("6", "AlexNet", "spearman", "0.339", "0.325", "0.352", "0.337", "1.92", "0.027"),
    ("6", "AlexNet", "pearson", "0.324", "0.31", "0.336", "0.320", "1.90", "0.028"),
    ("6", "AlexNet", "kendall", "0.244", "0.23", "0.249", "0.234", "1.81", "0.035"),
    ("7", "VGG-19", "spearman", "0.349", "0.335", "0.364", "0.348", "1.94", "0.026"),
    ("7", "VGG-19", "pearson", "0.358", "0.343", "0.374", "0.357", "2.09", "0.018"),
    ("7", "VGG-19", "kendall", "0.244", "0.229", "0.249", "0.233", "1.94", "0.026"),
    ("8", "ResNet-50", "spearman", "0.360", "0.325", "0.377", "0.337", "4.85", "< .00001"),
    ("8", "ResNet-50", "pearson", "0.385", "0.341", "0.406", "0.355", "6.2", "< .00001"),
    ("8", "ResNet-50", "kendall", "0.257", "0.231", "0.263", "0.235", "3.38", ".0003"),
    ("9", "DenseNet-121", "spearman", "0.367", "0.329", "0.4059", "0.355", "6.2", "< .00001"),
    ("9", "DenseNet-121", "pearson", "0.390", "0.347", "0.412", "0.362", "6.09", "< .00001"),
    ("9", "DenseNet-121", "kendall", "0.262", "0.234", "0.268", "0.238", "3.65", ".0001"),
)
_SLIP = "the z-scores and Z printed here are those of ResNet-50's Pearson row; the coefficients give Z = {:.2f}"


def printed_tables() -> pa.Table:
    """The paper's tests of AVH against confidence: what is printed, and what follows from the printed coefficients.

    The test is Fisher's for two different groups of 29,987 images, one-sided; the images are the same ones, so it is
    the wrong test, and only its arithmetic is checked here. The paper cuts numbers off as often as it rounds them, so
    a printed one agrees with ours if it is less than one unit of its last digit away.

    Returns:
        One row a table and coefficient: ``table``, ``net``, ``coefficient``, ``r_avh``, ``r_mc``, ``z_avh``, ``z_mc``,
        ``Z``, ``p_one_sided``, ``p_two_sided``; ``printed_z_avh``, ``printed_z_mc``, ``printed_Z``, ``printed_p`` as
        text; ``agrees``; ``note``.

    Examples:
        >>> rows = printed_tables().to_pylist()
        >>> [(row["table"], row["coefficient"], round(row["Z"], 2)) for row in rows if not row["agrees"]]
        [('9', 'spearman', 5.3)]
        >>> sum(row["p_two_sided"] > 0.05 for row in rows)
        5
    """
    return pa.Table.from_pylist([_row(*line) for line in _PRINTED])


def _row(table: str, net: str, coefficient: str, r_avh: str, r_mc: str, *printed: str) -> dict[str, Any]:
    avh, mc = float(r_avh), float(r_mc)
    ours = {"z_avh": math.atanh(avh), "z_mc": math.atanh(mc), "Z": fisher_z(avh, mc, IMAGES, IMAGES)}
    p, two_sided = p_value(ours["Z"], sided=1), p_value(ours["Z"])
    found = {**ours, "p": p}
    agrees = all(_agrees(value, text) for value, text in zip(found.values(), printed, strict=True))
    note = "" if agrees else _SLIP.format(ours["Z"])
    if two_sided > 0.05:
        note = f"two-sided p = {two_sided:.3f}: not significant at .05"
    return {
        **{"table": table, "net": net, "coefficient": coefficient, "r_avh": avh, "r_mc": mc},
        **{**ours, "p_one_sided": p, "p_two_sided": two_sided},
        **{f"printed_{name}": text for name, text in zip(found, printed, strict=True)},
        **{"agrees": agrees, "note": note},
    }


def _agrees(value: float, printed: str) -> bool:
    """Whether a printed number is ours, rounded or cut off; "< x" is a bound."""
    if printed.startswith("<"):
        return value < float(printed[1:])
    return abs(value - float(printed)) < 10.0 ** -len(printed.partition(".")[2])
