"""People beside the model, for the page: the leaderboard, their answers against each score, and where both disagree."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from hardsight.alignment.candidates import TREATMENTS
from hardsight.alignment.folder import Aligned, last_epoch, read_alignment
from hardsight.comparison import floats, mid_ranks
from hardsight.report.formatting import between, counted, cut_name, number, percent, plain, score_title
from hardsight.report.points import Axis
from hardsight.report.rows import Rows
from hardsight.report.samples import LENGTH, top
from hardsight.report.sections import Column, Inputs, SampleList, Section
from hardsight.report.views import View, score_axis
from hardsight.table import harder_end

HARD = 0.2  # about this share of the samples is called hard, by people and by the model
BINS_X, BINS_Y = 25, 30
_FEWEST = 10  # samples in a bin of the frequency for a median
_HSF = "human selection frequency"
# Columns of the points: title, meaning.
_COLUMNS = {
    "hsf": (_HSF, "Share of people who chose the label."),
    "votes_entropy": ("entropy of the answers", "How much people disagree with one another, in nats."),
}


class People(NamedTuple):
    """What people said of the rows of the page.

    Attributes:
        alignment: What `hardsight align` wrote.
        columns: ``(N,)`` by name, NaN where nobody was asked: ``hsf`` and, where answers are known, ``votes_entropy``.
        hard: ``(2, N)`` whether people and the model find it hard; False where either is not known.
        known: ``(N,)`` whether both are known.
        cut: What people find hard has a frequency up to here.
    """

    alignment: Aligned
    columns: dict[str, np.ndarray]
    hard: np.ndarray
    known: np.ndarray
    cut: float


def build(inputs: Inputs) -> Section | None:
    """The section, where `hardsight align` compared the run with people."""
    rows, people = inputs.rows, read_people(inputs.rows, inputs.run)
    if people is None:
        return None
    columns = {
        name: Column(values, *_COLUMNS[name], harder=harder_end(name)) for name, values in people.columns.items()
    }
    return Section(
        "people",
        "People",
        people_section(rows, people),
        lists=people_lists(rows, people),
        views=people_view(rows, people),
        columns=columns,
    )


def read_people(rows: Rows, run: Any) -> People | None:
    """What `hardsight align` wrote into the run, in the order of the rows; None where it did not."""
    alignment = None if run is None else read_alignment(run)
    if alignment is None:
        return None
    place = pc.index_in(rows.ids, value_set=alignment.people["id"].combine_chunks()).combine_chunks()
    columns = {"hsf": floats(alignment.people["hsf"].take(place))}
    if "entropy" in alignment.people.column_names:
        columns["votes_entropy"] = floats(alignment.people["entropy"].take(place))
    known = ~np.isnan(columns["hsf"]) & ~np.isnan(rows.hardness)
    return People(alignment, columns, *_halves(columns["hsf"], rows.hardness, known))


def _halves(hsf: np.ndarray, hardness: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """What people find hard, as near to a fifth as ties let it be, and as many that are hardest for the model."""
    hard, of = np.zeros((2, len(hsf)), dtype=bool), hsf[known]
    if len(of) < 2 or of.min() == of.max():
        return hard, known, np.nan
    values, counts = np.unique(of, return_counts=True)
    up_to = np.cumsum(counts)[:-1]  # somebody must find something easy
    at = int(np.abs(up_to - HARD * len(of)).argmin())
    hard[0, known] = of <= values[at]
    hard[1, np.flatnonzero(known)[top(hardness[known], int(up_to[at]))]] = True
    return hard, known, float(values[at])


def people_lists(rows: Rows, people: People) -> list[SampleList]:
    """What people find easy and the model hard, and the reverse; the largest difference of ranks first."""
    gap = np.round(rows.rank_main - mid_ranks(-people.columns["hsf"]), 12)
    by_people, by_model = people.hard
    lists = []
    for key, title, among, values in (
        ("people_easy", "People easy, model hard", ~by_people & by_model, gap),
        ("people_hard", "People hard, model easy", by_people & ~by_model, -gap),
    ):
        note = f"By the difference of ranks: people by the share who chose the label, the model by {_main(rows)}."
        lists.append(SampleList(key, title, note, top(np.where(among, values, np.nan), LENGTH)))
    return [listed for listed in lists if len(listed.rows)]


def people_view(rows: Rows, people: People) -> list[View]:
    """People's frequency against the main score, to brush over."""
    if rows.main is None:
        return []
    hsf, x = people.columns["hsf"], Axis("hsf", f"{_HSF} (smaller = harder)", 0.0, 1.0)
    title, note = f"People against {score_title(rows.main)}", "Top left lies what both find hard." * (rows.sign > 0)
    return [View("people", title, note, x, score_axis(rows, rows.main), hsf, rows.value)]


def people_section(rows: Rows, people: People) -> dict[str, Any]:
    """The section for the page."""
    summary, keys = people.alignment.summary, ("name", "verdict", "words")
    return {
        "note": " ".join([f"{cut_name(summary['source'])}: {summary['words']}", *summary.get("notes", [])]),
        "warning": _old(rows, summary),
        "tiles": _tiles(people),
        "board": _board(people),
        "tests": [str(text) for text in people.alignment.differences["words"].to_pylist()],
        "hypotheses": [{key: str(entry[key]) for key in keys} for entry in summary["hypotheses"]],
        "histograms": [_histogram(rows, people, name) for name in rows.scores],
        "quarters": _quarters(rows, people),
    }


def _title(name: str) -> str:
    """What a candidate is called: ``avh_within_class`` is C·AVH, within class."""
    for ending in TREATMENTS:
        if name.endswith(ending):
            return f"{_title(name.removesuffix(ending))}, {ending.replace('_', ' ').strip()}"
    return score_title(name).replace("_", " ")


def _main(rows: Rows) -> str:
    return score_title(rows.main)


def _old(rows: Rows, summary: dict[str, Any]) -> str:
    """A sentence where the run has gone on since people were compared with it."""
    if summary.get("samples") == len(rows) and summary.get("epoch") == last_epoch(rows.table):
        return ""
    return "The run has changed since it was compared with people; run hardsight align again for numbers of today."


def _tiles(people: People) -> list[dict[str, str]]:
    summary, hsf = people.alignment.summary, people.columns["hsf"]
    asked = ~np.isnan(hsf)
    n = int(asked.sum())
    tiles = [{"name": "samples that people were asked about", "value": f"{n:,}", "note": f"of {len(hsf):,}"}]
    if n:
        mean = f"{hsf[asked].mean():.3f}"
        note = f"everybody chose the label for {percent((hsf[asked] == 1).mean())}"
        tiles.append({"name": f"mean {_HSF}", "value": mean, "note": note})
    if summary.get("other") is not None:
        note = "the label itself may be wrong"
        tiles.append({"name": "most people chose another class", "value": f"{summary['other']:,}", "note": note})
    for entry in summary.get("ceilings", [])[:1]:
        name = f"ceiling ({entry['coefficient'].capitalize()})"
        note = f"what a perfect predictor of people would reach; {between(entry['low'], entry['high'], '.3f')}"
        tiles.append({"name": name, "value": f"{entry['ceiling']:.3f}", "note": note})
    return tiles


def _board(people: People) -> dict[str, Any]:
    """The leaderboard: a row per score, the best first."""
    lines = []
    for row in people.alignment.leaderboard.to_pylist():
        # More digits than are shown: rounded twice, .3445 would be another number here than in the terminal.
        numbers = {key: value and float(f"{value:.7g}") for key, value in row.items() if not isinstance(value, str)}
        lines.append({**numbers, "title": cut_name(_title(row["score"])), "kind": row["kind"]})
    ceilings = {one["coefficient"]: one["ceiling"] for one in people.alignment.summary.get("ceilings", [])}
    by = people.alignment.summary["coefficient"]
    note = (
        f"Ranked by {by.capitalize()}'s correlation with the share of people who chose the label, turned so that more "
        "is better. How far a score is behind the best is paired over the samples, and p is corrected for their number "
        "(Holm); the best was found on these very samples, which flatters it."
    )
    return {"rows": lines, "coefficient": by, "ceiling": number(ceilings.get(by)), "note": note}


def _histogram(rows: Rows, people: People, name: str) -> dict[str, Any]:
    """People's frequency against a score: counts in a grid (row 0 is the lowest), and the median by frequency."""
    hsf, values = people.columns["hsf"], rows.scores[name]
    x, y = Axis("hsf", _HSF, 0.0, 1.0), score_axis(rows, name)
    if (low := float(np.nanmin(values))) < y.high:  # room for what there is; 0 need not be seen
        y = replace(y, low=max(low, y.low))
    column, line = x.bins(hsf, BINS_X), y.bins(values, BINS_Y)
    both = (column >= 0) & (line >= 0)
    counts = np.bincount((line * BINS_X + column)[both], minlength=BINS_X * BINS_Y)
    parts = [values[both & (column == k)] for k in range(BINS_X)]
    medians = [float(np.median(part)) if len(part) >= _FEWEST else np.nan for part in parts]
    return {
        "key": name,
        "title": score_title(name),
        "note": _coefficients(people, name, int(both.sum())),
        "x": x.as_dict(),
        "y": y.as_dict(),
        "nx": BINS_X,
        "ny": BINS_Y,
        "counts": counts.tolist(),
        "medians": plain(medians),
    }


def _coefficients(people: People, name: str, n: int) -> str:
    """What `align` found for a score over all samples, in words."""
    parts = []
    for row in people.alignment.rows.to_pylist():
        if row["score"].removesuffix("_pred") == name and row["bin"] == "all" and row["value"] is not None:
            ends = between(row["low"], row["high"], ".3f")
            parts.append(f"{row['coefficient'].capitalize()} {row['value']:.3f} ({ends})")
    return "; ".join([*parts, f"n = {n:,}."]) if parts else f"n = {n:,}; not compared with people."


def _quarters(rows: Rows, people: People) -> dict[str, Any] | None:
    """The two-by-two: rows are people, columns the model, easy first."""
    by_people, by_model = people.hard
    n, k = int(people.known.sum()), int(by_people.sum())
    if not k:
        return None
    sides = itertools.product((~by_people, by_people), (~by_model, by_model))
    counts = [int((a & b & people.known).sum()) for a, b in sides]
    note = (
        f"Hard are {counted(k, 'sample')} for each, {percent(k / n)} of {n:,}: for people those whose label at most "
        f"{percent(people.cut, 0)} chose, for the model the hardest by {_main(rows)}. Were the two unrelated, both "
        f"would find about {k * k / n:,.0f} hard."
    )
    return {"counts": [counts[:2], counts[2:]], "note": note}
