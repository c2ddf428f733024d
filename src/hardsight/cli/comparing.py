"""What an evaluation found, as a table and sentences for a terminal of 100 columns."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardsight.evaluation import Evaluation

_WIDTH, _NAME, _LABEL = 100, 22, 36
# What tells most; the rest is in the files.
_TELLING = {
    "calibration": ("accuracy", "ece", "nll"),
    "margins": ("margin", "margin_below_zero"),
    "clusters": ("v_measure", "silhouette"),
    "ood": ("auroc", "fpr95"),
    "uncertainty": ("spearman", "error_auroc"),
    "robustness": ("accuracy",),
    "explanation": ("insertion", "deletion", "infidelity", "mass_inside"),
}
_SHORT = {"nll": "NLL", "fpr95": "FPR95", "margin_below_zero": "margin < 0", "spearman": "ρ with AVH"}
_SHORT |= {"error_auroc": "error AUROC"}
_ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}


def heading(found: Evaluation) -> str:
    """Who is compared on what."""
    from hardsight.evaluation.folder import PLAN
    from hardsight.extras import printable

    plan = json.loads((found.path / PLAN).read_text(encoding="utf-8"))
    groups = list(dict.fromkeys(run["group"] for run in plan["runs"]))
    runs = "1 run" if len(plan["runs"]) == 1 else f"{len(plan['runs'])} runs in {len(groups)} group"
    runs += "s" if len(groups) > 1 else ""
    base = f", compared with {printable(groups[0])}" if len(groups) > 1 else ""
    data = f"{printable(plan['data']['origin'])} (n = {plan['data']['samples']:,})"
    return textwrap.fill(f"{runs} over {data}{base}", _WIDTH, break_on_hyphens=False)


def table_of(found: Evaluation) -> list[str]:
    """The telling numbers of every question: a line each, a column a group."""
    from hardsight.evaluation.statistics import ALPHA
    from hardsight.extras import printable

    rows, tests = found.rows.to_pylist(), found.tests.to_pylist()
    groups = list(dict.fromkeys(row["group"] for row in rows))
    runs = {name: len({row["run"] for row in rows if row["group"] == name and row["run"]}) for name in groups}
    heads = [_cut(printable(name)) + (f" ({runs[name]})" if runs[name] > 1 else "") for name in groups]
    # Intervals are left out where groups would not stand side by side with them.
    lines, ends = _lines(rows, tests, groups, intervals=True), True
    if len(_blocks(lines, heads)) > 1:
        lines, ends = _lines(rows, tests, groups, intervals=False), False
    notes = [f"value{' ± sd over runs' if max(runs.values()) > 1 else ''}"]
    notes[0] += f"{' [95 % interval over samples]' if ends else ''}; n: samples; the rest is in rows.csv and tests.csv"
    if len(groups) > 1:
        ways = [re.sub(r"[\d,]+ (and [\d,]+ )?", "", test["how"]) for test in tests if math.isfinite(test["p"])]
        sure = f"p < {ALPHA:.2g} after Holm's correction over all tests of a question"
        how = ", ".join(dict.fromkeys(ways))
        notes.append(f"▲ better, ▼ worse than {heads[0]}: {sure} ({how})" if ways else "nothing could be tested")
    return [*(line for block in _blocks(lines, heads) for line in ("", *block)), "", *_filled(notes)]


def _lines(
    rows: Sequence[dict[str, Any]], tests: Sequence[dict[str, Any]], groups: Sequence[str], intervals: bool
) -> list[list[str]]:
    """Titles, and of every number its label, a cell a group, and n."""
    from hardsight.evaluation.statistics import key_of, wins
    from hardsight.extras import printable

    marks = {(key_of(test), test["group"]): {True: " ▲", False: " ▼", None: ""}[wins(test)] for test in tests}
    lines: list[list[str]] = []
    for question, on in dict.fromkeys((row["question"], row["on"]) for row in rows):
        lines.append([_cut(f"{question}: {printable(on)}" if on else question, _WIDTH)])
        for key, own in _telling([row for row in rows if (row["question"], row["on"]) == (question, on)]).items():
            held = {name: [row for row in own if row["group"] == name] for name in groups}
            cells = [_cell(held[name], intervals) + marks.get((key, name), "") for name in groups]
            lines.append([f"  {_cut(_label(own[0]), _LABEL)}{_ARROWS[own[0]['better']]}", *cells, f"{own[0]['n']:,}"])
    return lines


def told(found: Evaluation) -> list[str]:
    """What must be said; of sentences that differ in their numbers only, the first."""
    from hardsight.extras import printable

    held: dict[str, list[str]] = {}
    alarms = [text for text in found.words if "gradient masking" in text.lower() and "No sign" not in text]
    for text in dict.fromkeys([*alarms, *found.words]):  # what makes numbers worthless comes first
        held.setdefault(re.sub(r"^[^:]*: |[-−+]?[\d.,]+", "", text), []).append(printable(text))
    return _filled(
        f"{first} (And {len(others)} more of the kind, in words.json.)" if others else first
        for first, *others in held.values()
    )


def _filled(texts: Any) -> list[str]:
    return [textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for text in texts]


def _telling(rows: Sequence[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    """The rows to show by number, metric by metric."""
    from hardsight.evaluation.statistics import key_of

    held: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        held.setdefault(key_of(row), []).append(row)
    claimed = {key[1] for key, own in held.items() if own[0]["better"]}
    chosen = [
        key
        for name in _TELLING.get(rows[0]["question"], ())
        for key, own in held.items()
        if key[1] == name and (own[0]["better"] or name not in claimed or key[2] == "clean")
    ]
    return {key: held[key] for key in chosen or list(held)[:6]}


def _label(row: Mapping[str, Any]) -> str:
    from hardsight.extras import printable
    from hardsight.figures.evaluationnames import about, in_percent, metric_title

    title = _SHORT.get(row["metric"], metric_title(row["metric"]))
    parts = f"{title} (%)" if in_percent(row["metric"]) else title, about({**row, "on": ""})
    return printable(" · ".join(part for part in parts if part))


def _cell(rows: Sequence[Mapping[str, Any]], intervals: bool) -> str:
    """Mean ± standard deviation of several runs; of one, its value and interval."""
    import numpy as np

    from hardsight.figures.evaluationnames import written

    known = [row for row in rows if math.isfinite(row["value"])]
    if not known:
        return "–"

    def plain(value: float) -> str:
        return written(known[0]["metric"], value).removesuffix(" %")

    values, low, high = [row["value"] for row in known], known[0]["low"], known[0]["high"]
    if len(known) > 1:
        return f"{plain(float(np.mean(values)))} ± {plain(float(np.std(values, ddof=1)))}"
    return plain(values[0]) + (f" [{plain(low)}, {plain(high)}]" if intervals and low == low and high == high else "")


def _blocks(lines: Sequence[Sequence[str]], heads: Sequence[str]) -> list[list[str]]:
    """The table in as many blocks of columns as the width asks for; the first group stands in each."""
    numbers = [line for line in lines if len(line) > 1]
    first, last = (max([len(line[place]) for line in numbers], default=1) for place in (0, -1))
    widths = [max([len(head), *(len(line[k + 1]) for line in numbers)]) for k, head in enumerate(heads)]
    room, blocks = _WIDTH - first - last - 2, [[0]]
    for k in range(1, len(heads)):
        if len(blocks[-1]) > 1 and sum(widths[j] + 2 for j in (*blocks[-1], k)) > room:
            blocks.append([0])
        blocks[-1].append(k)
    table = [["", *heads, "n"], *lines]

    def printed(line: Sequence[str], block: Sequence[int]) -> str:
        cells = "".join(f"  {line[k + 1]:<{widths[k]}}" for k in block) if len(line) > 1 else ""
        return f"{line[0]:<{first}}{cells}  {line[-1]:>{last}}" if cells else line[0]

    return [[printed(line, block) for line in table] for block in blocks]


def _cut(text: str, width: int = _NAME) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
