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


def escaped(text: str) -> str:
    r"""Text that LaTeX prints as it is.

    Examples:
        >>> print(escaped("50% of_it"))
        50\% of\_it
    """
    return "".join(_SPECIAL.get(sign, sign) for sign in printable(text))


def latex_table(rows: Sequence[Mapping[str, Any]], tests: Sequence[Mapping[str, Any]]) -> str:
    """A line per number, a column per group: mean ± standard deviation over runs, of one run its value.

    Bold is the best of a line where the corrected tests bear it out: a group that is better than the first one, or the
    first one where every other group is worse.

    Args:
        rows: Numbers of runs.
        tests: Of `compare_groups` on them.
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    better = {key_of(row): row["better"] for row in rows}
    flags = {(key_of(test), test["group"]): flag_of(test) for test in tests}
    body, last = [], None
    for key, number in by_number(rows).items():
        finite = {
            group: [row["value"] for row in runs if math.isfinite(row["value"])] for group, runs in number.items()
        }
        values = {group: numbers for group, numbers in finite.items() if numbers}
        if key[0] != last:
            body.append(rf"\hline \multicolumn{{{len(groups) + 1}}}{{l}}{{{escaped(key[0])}}} \\ \hline")
            last = key[0]
        best = _best(key, values, groups, better[key], flags)
        cells = [_cell(values.get(group, []), group == best) for group in groups]
        body.append(" & ".join([escaped(title(key)), *cells]) + r" \\")
    counts = {group: len({row["run"] for row in rows if row["group"] == group and row["run"]}) for group in groups}
    heads = [f"{escaped(group)} ($n = {counts[group]}$)" for group in groups]
    return "\n".join(
        [
            f"% Mean ± standard deviation over n runs. Bold: best, and p < {ALPHA:.2g} against the first column after",
            "% Holm's correction over the tests of a question (for the first column: against every other one).",
            rf"\begin{{tabular}}{{l{'r' * len(groups)}}}",
            " & ".join(["", *heads]) + r" \\",
            *body,
            r"\hline",
            r"\end{tabular}",
            "",
        ]
    )


def title(key: Sequence[Any]) -> str:
    """A number in words: its metric, of what, on what, at what level."""
    _, metric, score, on, level = key
    parts = [metric.replace("_", " "), score, f"on {on}" if on else "", "" if level is None else f"at {level:g}"]
    return ", ".join(part for part in parts if part)


def _best(
    key: tuple[Any, ...],
    values: Mapping[str, list[float]],
    groups: Sequence[str],
    better: str,
    flags: Mapping[tuple[Any, ...], str],
) -> str | None:
    """The group that is best for sure, if any."""
    sign = {"higher": 1, "lower": -1}.get(better)
    means = {group: float(np.mean(values[group])) for group in groups if values.get(group)}
    if sign is None or len(means) < 2:
        return None
    best = max(means, key=lambda group: sign * means[group])
    others = [flags.get((key, group)) for group in means if group != groups[0]]
    sure = set(others) == {"worse"} if best == groups[0] else flags.get((key, best)) == "better"
    return best if sure else None


def _cell(values: Sequence[float], bold: bool) -> str:
    if not values:
        return "--"
    text = digits(float(np.mean(values)))
    text = rf"\mathbf{{{text}}}" if bold else text
    spread = rf" \pm {digits(float(np.std(values, ddof=1)))}" if len(values) > 1 else ""
    return f"${text}{spread}$"


def digits(value: float) -> str:
    """Four digits or so, without exponents where they can be avoided.

    Examples:
        >>> digits(0.97123), digits(-12.3456), digits(1234.5), digits(0.00001234)
        ('0.9712', '-12.35', '1234', '1.23e-05')
    """
    if value and abs(value) < 5e-4:
        return f"{value:.3g}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}" if abs(value) < 1000 else f"{value:.0f}"
