"""The numbers that the papers print, by study; and the AVH paper's tables: 2 and 6 to 9 recomputed, 3 to 5 quoted."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import pyarrow as pa

from hardsight.correlation import fisher_z, p_value

IMAGES = 29987  # with a human selection frequency, of ImageNet's 50,000 for validation (Table 1)
_TEXTS = ("method", "reference", "source")
_SLIP = "the z-scores and Z printed here are those of ResNet-50's Pearson row; the coefficients give Z = {:.2f}"


@cache
def published(name: str) -> list[dict[str, str]]:
    """The numbers of the paper that a study is about."""
    file = resources.files("hardsight.studies") / "published" / f"{name}.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines())) if file.is_file() else []


def published_row(name: str, measure: str, levels: Mapping[str, str]) -> dict[str, str]:
    """What the paper prints for a measure at these levels; empty if nothing."""
    for row in published(name):
        if row["measure"] == measure and all(row.get(factor, level) == level for factor, level in levels.items()):
            return row
    return {}


def printed_tables() -> pa.Table:
    """Every row of Tables 2 and 6 to 9: what the paper printed, and what its own coefficients give.

    The test is Fisher's for two different groups of 29,987 images, one-sided; the images are the same ones, so it is
    the wrong test, and only its arithmetic is checked here. The paper truncates numbers as often as it rounds them, so
    a printed one agrees with ours if it is less than one unit of its last digit away.

    Returns:
        One row per table and coefficient: ``table``, ``net``, ``coefficient``, ``r_avh``, ``r_mc``, ``z_avh``,
        ``z_mc``, ``Z``, ``p_one_sided``, ``p_two_sided``; ``printed_z_avh``, ``printed_z_mc``, ``printed_Z``,
        ``printed_p`` as text; ``agrees``; ``note``.

    Examples:
        >>> rows = printed_tables().to_pylist()
        >>> [(row["table"], row["coefficient"], round(row["Z"], 2)) for row in rows if not row["agrees"]]
        [('9', 'spearman', 5.3)]
        >>> sum(row["p_two_sided"] > 0.05 for row in rows)
        5
    """
    return pa.Table.from_pylist([_recomputed(row) for row in published("avh-tables")])


def _recomputed(printed: dict[str, str]) -> dict[str, Any]:
    avh, mc = float(printed["r_avh"]), float(printed["r_mc"])
    ours = {"z_avh": math.atanh(avh), "z_mc": math.atanh(mc), "Z": fisher_z(avh, mc, IMAGES, IMAGES)}
    p, two_sided = p_value(ours["Z"], sided=1), p_value(ours["Z"])
    agrees = all(_agrees(value, printed[name]) for name, value in (ours | {"p": p}).items())
    note = "" if agrees else _SLIP.format(ours["Z"])
    if two_sided > 0.05:
        note = f"two-sided p = {two_sided:.3f}: not significant at .05"
    row = {name: printed[name] for name in ("table", "net", "coefficient")} | {"r_avh": avh, "r_mc": mc, **ours}
    row |= {"p_one_sided": p, "p_two_sided": two_sided}
    return row | {f"printed_{name}": printed[name] for name in (*ours, "p")} | {"agrees": agrees, "note": note}


def _agrees(value: float, printed: str) -> bool:
    """Whether a printed number is ours, rounded or truncated; "< x" is a bound."""
    if printed.startswith("<"):
        return value < float(printed[1:])
    return abs(value - float(printed)) < 10.0 ** -len(printed.partition(".")[2])


def printed_bins() -> pa.Table:
    """Table 1 as printed, with Fisher's z and the two-sided p-value that each of its coefficients gives.

    Coefficients are absolute values. The numbers of images of the bins add up to all: every image is in one bin,
    although the printed bins share their ends. With these numbers every coefficient of AVH and confidence is
    significant and none of the norm is, as the paper says; but agreement is strongest among the images that are hardest
    for people, not weakest.

    Returns:
        One row per score and bin: ``score``, ``bin``, ``n``, ``r``, ``z``, ``printed_z`` (as text, of all images),
        ``p_two_sided``.

    Examples:
        >>> all_images = {row["score"]: row for row in printed_bins().to_pylist() if row["bin"] == "all"}
        >>> round(all_images["avh"]["z"], 3), all_images["avh"]["printed_z"], all_images["norm"]["p_two_sided"] > 0.05
        (0.377, '0.377', True)
    """
    numbers = {(row["score"], row["bin"], row["measure"]): row["value"] for row in published("people-bins")}
    rows = []
    for (score, bin_, measure), value in numbers.items():
        if measure == "agreement":
            n, r = int(numbers["avh", bin_, "samples"]), float(value)
            row = {"score": score, "bin": bin_, "n": n, "r": r, "z": math.atanh(r)}
            row["printed_z"] = numbers.get((score, bin_, "z"), "")
            rows.append(row | {"p_two_sided": p_value(math.atanh(r) * math.sqrt(n - 3))})
    return pa.Table.from_pylist(rows)


def quoted_domains() -> pa.Table:
    """Table 5 and the table of the slides: accuracies (%) on PACS, as printed. **Quoted**, none is measured here.

    The slides say CNN-9 where the paper says CNN-10, with other numbers for the AVH loss and the same baseline.

    Returns:
        One row per method: ``method``, ``reference``, ``source``, a column per domain, ``average`` as printed and
        ``computed_average``.

    Examples:
        >>> rows = {row["method"]: row for row in quoted_domains().to_pylist()}
        >>> [round(rows[name]["computed_average"], 2) for name in ("CNN-10 + AVH", "CNN-9 + AVH")]
        [72.45, 72.9]
    """
    rows = _rows("domains")
    for row in rows:
        row["computed_average"] = sum(row[name] for name in ("painting", "cartoon", "photo", "sketch")) / 4
    return pa.Table.from_pylist(rows)


def quoted_visda() -> pa.Table:
    """Table 3: accuracies (%) on VisDA-17 by class, as the AVH paper prints them. **Quoted**, none is measured here.

    The means are over the twelve classes. No row has a spread, and the round was probably selected by target labels, as
    the released code of the same family does: such a number goes beside an oracle of ours, not beside a last round.

    Returns:
        One row per method: ``method``, ``reference``, ``quoted`` (always true), a column per class, ``mean`` as printed
        and ``computed_mean``.

    Examples:
        >>> rows = quoted_visda().to_pylist()
        >>> [(row["method"], row["mean"], round(row["computed_mean"], 1)) for row in rows[-3:]]
        [('CBST', 76.4, 76.4), ('CRST', 78.1, 78.1), ('CBST+AVH', 81.5, 81.5)]
    """
    rows = []
    for row in _rows("visda"):
        names, mean = {name: row.pop(name) for name in ("method", "reference")}, row.pop("mean")
        computed = sum(row.values()) / len(row)
        rows.append({**names, "quoted": True, **row, "mean": mean, "computed_mean": computed})
    return pa.Table.from_pylist(rows)


def quoted_selection() -> pa.Table:
    """Table 4: what CBST+AVH and CBST selected at the beginning, as printed. **Quoted.**

    Its column AVH cannot be AVH: at the nearest of twelve classes AVH is at most 1/12 = 0.083, and angular *confidence*
    at least that. It is taken to be AVC.

    Returns:
        One row per method: ``method``, ``tp_rate``, ``avc``, ``confidence``, ``norm``, ``quoted``.

    Examples:
        >>> quoted_selection().to_pylist()[0]["avc"] > 1 / 12
        True
    """
    return pa.Table.from_pylist([row | {"quoted": True} for row in _rows("selection")])


def _rows(name: str) -> list[dict[str, Any]]:
    """The rows of a printed table, with numbers as numbers."""
    return [{key: text if key in _TEXTS else float(text) for key, text in row.items()} for row in published(name)]
