"""Tables of `benchmarks.consequences_study` from what its jobs wrote.

Under OUT/report: rows.csv (every number of every network), summary.csv (means over seeds, paired differences to
cross-entropy, the papers' figures beside them) and words.csv (what the checks said of each network, the gradient
masking by name).

Each p-value is adjusted by Holm in one family: that of the numbers that were chosen beforehand (`MAIN`) in a part, or
that of all other numbers of a question in a part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.adaptation_report import paired
from benchmarks.jobs import read_rows, write_rows
from hardsight.stats import holm

BASELINE = "ce"
# The largest ε of the authors' own attack, .2 of normalised pixels, in pixels: .2 times MNIST's spread.
AUTHORS_EPS = 0.0616


class Key(NamedTuple):
    """What a number is of; None where a row says nothing."""

    part: str
    question: str
    metric: str
    score: str | None = None
    on: str | None = None
    level: float | None = None


MAIN = (
    Key("mnist", "accuracy", "accuracy"),
    *(Key("mnist", "ood", metric, "max_logit", "fashion_mnist") for metric in ("auroc", "fpr95")),
    *(Key("mnist", "robustness", "accuracy", attack, None, 0.1) for attack in ("fgsm", "pgd", "pgd-margin")),
    *(Key("mnist", "margins", "margin", score) for score in ("logit", "angular")),
    Key("mnist", "calibration", "ece", "softmax"),
    Key("cifar10-calibration", "accuracy", "accuracy"),
    *(Key("cifar10-calibration", "calibration", "ece", score) for score in ("softmax", "softmax+T")),
    *(Key("cifar10-calibration", "ood", metric, "max_logit", "svhn") for metric in ("auroc", "fpr95")),
    Key("cifar10-maps", "accuracy", "accuracy"),
    *(Key("cifar10-maps", "explanation", metric) for metric in ("entropy", "area", "deletion", "insertion")),
    Key("cifar10-maps", "clusters", "homogeneity", "kmeans"),
    Key("cifar10-maps", "clusters", "silhouette"),
)

_TABLE_4, _TABLE_1, _AMC = "EL Table 4", "EL Table 1", "AMC Table 1, another network"
_LOG = "EL, released log of another network and of unclipped or default attacks"
# By what it is of and the arm: the figure, and where it stands. The sentence "8.10 % to 0.95 %" beside Table 4 agrees
# with no row of it.
PAPER: dict[tuple[Key, str], tuple[float, str]] = {
    **{
        (Key("mnist", "ood", metric, "max_logit", "fashion_mnist"), arm): (value, _TABLE_4)
        for metric, arm, value in (
            ("auroc", "ce", 0.9568),
            ("auroc", "el-released", 0.9804),
            ("fpr95", "ce", 0.2092),
            ("fpr95", "el-released", 0.0869),
        )
    },
    (Key("mnist", "accuracy", "accuracy"), "ce"): (0.9942, _TABLE_1),
    (Key("mnist", "accuracy", "accuracy"), "el-released"): (0.9956, _TABLE_1),
    **{
        (Key("mnist", "robustness", "accuracy", attack, None, level), arm): (value, _LOG)
        for attack, level, ce, el in (
            ("fgsm", AUTHORS_EPS, 0.8875, 0.9212),
            ("fgsm", 0.3, 0.217, 0.348),
            ("pgd", 0.3, 0.005, 0.112),
        )
        for arm, value in (("ce", ce), ("el-released", el))
    },
    **{
        (Key("cifar10-maps", "accuracy", "accuracy"), arm): (value, _AMC)
        for arm, value in (("ce", 0.8235), ("euclid", 0.8260), ("amc", 0.8297))
    },
}


def report(out: Path, order: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Make every table of a study's folder; returns the summary.

    Args:
        out: The study's folder.
        order: Parts and arms in the order that they are listed in; what is not named comes last.
    """
    rows = _read(out / "rows", order)
    if not rows:
        print("nothing to report yet")
        return []
    summary = summarised(rows)
    folder = out / "report"
    folder.mkdir(exist_ok=True)
    write_rows(folder / "rows.csv", rows)
    write_rows(folder / "summary.csv", summary)
    write_rows(folder / "words.csv", _read(out / "words", order))
    _say(summary)
    return summary


def _read(folder: Path, order: Sequence[str]) -> list[dict[str, Any]]:
    rows = [row for file in sorted(folder.glob("*+*+*.csv")) for row in read_rows(file)]
    places = {name: place for place, name in enumerate(order)}
    return sorted(rows, key=lambda row: [places.get(row[name], len(places)) for name in ("part", "arm")])


def summarised(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row a number and arm: mean, sd and n over seeds, the paired difference to cross-entropy, the papers' figure."""
    found: dict[Key, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    better: dict[Key, str | None] = {}
    for row in rows:
        if row["value"] is not None:
            key = Key(*(row[name] for name in Key._fields))
            found[key][row["arm"]][row["seed"]] = row["value"]
            better[key] = row["better"]
    summary = [
        _row(key, arm, values, {} if arm == BASELINE else arms.get(BASELINE, {}), better[key])
        for key, arms in found.items()
        for arm, values in arms.items()
    ]
    for family in dict.fromkeys(row["family"] for row in summary):
        own = [row for row in summary if row["family"] == family]
        adjusted = holm(np.array([np.nan if row["p"] is None else row["p"] for row in own]))
        for row, p in zip(own, adjusted, strict=True):
            row["p_holm"] = None if np.isnan(p) else float(p)
    return summary


def _row(
    key: Key, arm: str, values: Mapping[int, float], base: Mapping[int, float], better: str | None
) -> dict[str, Any]:
    of = np.array(list(values.values()))
    ahead = paired(values, base)
    paper, source = PAPER.get((key, arm), (None, None))
    return {
        **key._asdict(),
        "arm": arm,
        "better": better,
        "n": len(of),
        "mean": float(of.mean()),
        "sd": float(of.std(ddof=1)) if len(of) > 1 else None,
        "over_ce": ahead.get("mean"),
        **{name: ahead.get(name) for name in ("low", "high", "p")},
        "family": f"{key.part}: {'main' if key in MAIN else key.question}",
        "p_holm": None,
        "paper": paper,
        "paper_source": source,
    }


def _say(summary: Sequence[Mapping[str, Any]]) -> None:
    """What was chosen beforehand, as a table to read."""
    for row in summary:
        if row["family"].endswith(": main"):
            level = "" if row["level"] is None else f" {row['level']:g}"
            named = f"{row['part']:<21}{row['metric']} {row['score'] or ''}{level}"
            spread = "" if row["sd"] is None else f" ± {row['sd']:.4f}"
            ahead = "" if row["over_ce"] is None else f"  {row['over_ce']:+.4f}"
            ahead += "" if row["low"] is None else f" [{row['low']:+.4f}, {row['high']:+.4f}]"
            ahead += "" if row["p_holm"] is None else f" p {row['p_holm']:.3g}"
            paper = "" if row["paper"] is None else f"  paper {row['paper']:.4f}"
            print(f"{named:<52}{row['arm']:<14}{row['mean']:8.4f}{spread}  n = {row['n']}{ahead}{paper}")
