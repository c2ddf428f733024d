"""The numbers of the groups side by side, as a LaTeX table that needs no package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from hardsight.evaluation.statistics import ALPHA, by_number, flag_of, key_of
from hardsight.extras import printable

_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip
_TABLE = r"""% Mean ± standard deviation over n runs. Bold: best, and p < {alpha} against the first column after
% Holm's correction over the tests of a question (for the first column: against every other one).
\begin{{tabular}}{{l{columns}}}
{head} \\
{body}
\hline
\end{{tabular}}
"""


def escaped(text: str) -> str:
    r"""Escape text for LaTeX.

    Examples:
        >>> print(escaped("50% of_it"))
        50\% of\_it
    """
    return "".join(_SPECIAL.get(sign, sign) for sign in printable(text))


def latex_table(rows: Sequence[Mapping[str, Any]], tests: Sequence[Mapping[str, Any]]) -> str:
    """One line per number, one column per group: mean ± standard deviation over runs, or the value of a single run.

    Bold marks the best value of a line if the corrected tests confirm it: a group that is better than the first one, or
    the first one if every other group is worse.
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    flags = {(key_of(test), test["group"]): flag_of(test) for test in tests}
    body, last = [], None
    for key, number in by_number(rows).items():
        if key[0] != last:
            body.append(rf"\hline \multicolumn{{{len(groups) + 1}}}{{l}}{{{escaped(key[0])}}} \\ \hline")
            last = key[0]
        finite = {g: np.array([row["value"] for row in number.get(g, ()) if isfinite(row["value"])]) for g in groups}
        values = {group: of for group, of in finite.items() if len(of)}
        sign = {"higher": 1, "lower": -1, "": 0}[next(iter(number.values()))[0]["better"]]
        best = max(values, key=lambda group: sign * values[group].mean(), default=None)
        others = {flags.get((key, group), "") for group in values if group != groups[0]}
        confirmed = others == {"worse"} if best == groups[0] else flags.get((key, best)) == "better"
        cells = [_cell(of, confirmed and group == best) for group, of in finite.items()]
        _, metric, score, on, level = key
        title = [metric.replace("_", " "), score, f"on {on}" if on else "", "" if level is None else f"at {level:g}"]
        body.append(" & ".join([escaped(", ".join(filter(None, title))), *cells]) + r" \\")
    counts = {group: len({row["run"] for row in rows if row["group"] == group and row["run"]}) for group in groups}
    head = " & ".join(["", *(f"{escaped(group)} ($n = {count}$)" for group, count in counts.items())])
    return _TABLE.format(alpha=f"{ALPHA:.2g}", columns="r" * len(groups), head=head, body="\n".join(body))


def _cell(values: np.ndarray, bold: bool) -> str:
    if not len(values):
        return "--"
    text = rf"\mathbf{{{_digits(values.mean())}}}" if bold else _digits(values.mean())
    spread = rf" \pm {_digits(values.std(ddof=1))}" if len(values) > 1 else ""
    return f"${text}{spread}$"


def _digits(value: float) -> str:
    """About four digits, without an exponent where possible: 0.9712, -12.35, 1234, 1.23e-05."""
    if value and abs(value) < 5e-4:
        return f"{value:.3g}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}" if abs(value) < 1000 else f"{value:.0f}"
