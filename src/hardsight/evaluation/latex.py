"""The numbers of the groups side by side, as a LaTeX table that needs no package."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    r"""Text that LaTeX prints as it is.

    Examples:
        >>> print(escaped("50% of_it"))
        50\% of\_it
    """
    return "".join(_SPECIAL.get(sign, sign) for sign in printable(text))


def latex_table(rows: Sequence[Mapping[str, Any]], tests: Sequence[Mapping[str, Any]]) -> str:
    """One line per number, one column per group: mean ± standard deviation over runs, of one run its value.

    Bold is the best of a line where the corrected tests confirm it: a group that is better than the first one, or the
    first one where every other group is worse.
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    better = {key_of(row): row["better"] for row in rows}
    flags = {(key_of(test), test["group"]): flag_of(test) for test in tests}
    body, last = [], None
    for key, number in by_number(rows).items():
        finite = {group: [row["value"] for row in of if math.isfinite(row["value"])] for group, of in number.items()}
        values = {group: finite[group] for group in groups if finite.get(group)}
        if key[0] != last:
            body.append(rf"\hline \multicolumn{{{len(groups) + 1}}}{{l}}{{{escaped(key[0])}}} \\ \hline")
            last = key[0]
        of_number = {group: flags.get((key, group), "") for group in values}
        best = _best(values, groups[0], better[key], of_number)
        cells = [_cell(values.get(group, []), group == best) for group in groups]
        body.append(" & ".join([escaped(_title(key)), *cells]) + r" \\")
    counts = {group: len({row["run"] for row in rows if row["group"] == group and row["run"]}) for group in groups}
    head = " & ".join(["", *(f"{escaped(group)} ($n = {counts[group]}$)" for group in groups)])
    return _TABLE.format(alpha=f"{ALPHA:.2g}", columns="r" * len(groups), head=head, body="\n".join(body))


def _title(key: Sequence[Any]) -> str:
    """A number in words: its metric, of what, on what, at what level."""
    _, metric, score, on, level = key
    parts = [metric.replace("_", " "), score, f"on {on}" if on else "", "" if level is None else f"at {level:g}"]
    return ", ".join(part for part in parts if part)


def _best(values: Mapping[str, list[float]], first: str, better: str, flags: Mapping[str, str]) -> str | None:
    """The group that the tests confirm as best, if any."""
    if not better or len(values) < 2:
        return None
    sign = 1 if better == "higher" else -1
    best = max(values, key=lambda group: sign * float(np.mean(values[group])))
    if best == first:
        return best if {flag for group, flag in flags.items() if group != first} == {"worse"} else None
    return best if flags[best] == "better" else None


def _cell(values: Sequence[float], bold: bool) -> str:
    if not values:
        return "--"
    text = _digits(float(np.mean(values)))
    text = rf"\mathbf{{{text}}}" if bold else text
    spread = rf" \pm {_digits(float(np.std(values, ddof=1)))}" if len(values) > 1 else ""
    return f"${text}{spread}$"


def _digits(value: float) -> str:
    """Four digits or so, without exponents where they can be avoided: 0.9712, -12.35, 1234, 1.23e-05."""
    if value and abs(value) < 5e-4:
        return f"{value:.3g}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}" if abs(value) < 1000 else f"{value:.0f}"
