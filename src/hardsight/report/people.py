"""People beside the model, for the page: the leaderboard, their answers against each score, and where both disagree."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardsight.comparison import mid_ranks
from hardsight.directions import harder_end
from hardsight.people import Alignment, Outcome, read_alignment
from hardsight.people.alignment import RANKED_BY, last_epoch
from hardsight.people.candidates import TREATMENTS
from hardsight.printing import number_text
from hardsight.report.formatting import between, counted, cut_name, number, percent, plain, score_title
from hardsight.report.rows import Rows, joint_counts
from hardsight.report.samples import largest, top
from hardsight.report.sections import Axis, Column, Section, View, score_axis, table
from hardsight.runs.ids import places_among
from hardsight.tablefiles import floats

HARD = 0.2  # about this share of the samples counts as hard, for people and for the model
BINS_X, BINS_Y = 25, 30
_FEWEST = 10  # samples in a bin of the frequency for a median
_HSF = "human selection frequency"
_OLD = "The run has changed since it was compared with people; run hardsight align again for current numbers."


def build(rows: Rows) -> Section | None:
    """The section, if `hardsight align` has compared the run with people."""
    alignment = None if rows.run is None else read_alignment(rows.run)
    if alignment is None:
        return None
    answers = alignment.people
    place = places_among(rows.ids, answers["id"])  # −1, the position of a NaN, for samples that nobody was asked about
    hsf = np.append(floats(answers["hsf"]), np.nan)[place]
    columns = {"hsf": Column(hsf, _HSF, "Share of people who chose the label.", harder_end("hsf"))}
    if "entropy" in answers.column_names:
        values = np.append(floats(answers["entropy"]), np.nan)[place]
        text = "How much people disagree with one another, in nats."
        columns["votes_entropy"] = Column(values, "entropy of the answers", text, harder_end("votes_entropy"))
    by_people, by_model, quarters = _quarters(rows, hsf)
    gap, main = np.round(rows.rank_main - mid_ranks(-hsf), 12), score_title(rows.main)
    note = f"By the difference of ranks: people by the share who chose the label, the model by {main}."
    easy = largest("people_easy", "People easy, model hard", note, gap, ~by_people & by_model)
    hard = largest("people_hard", "People hard, model easy", note, -gap, by_people & ~by_model)
    views = []
    if rows.main is not None:
        x, both = Axis("hsf", f"{_HSF} (smaller = harder)", 0.0, 1.0), "Top left lies what both find hard."
        views = [View("people", f"People against {main}", both * (rows.sign > 0), x, score_axis(rows, rows.main))]
    current = (alignment.samples, alignment.epoch) == (len(rows), last_epoch(rows.table))
    histograms = [_histogram(rows, hsf, alignment, name) for name in rows.scores]
    return Section(
        "people",
        "People",
        f"{cut_name(alignment.source)}: {' '.join(alignment.notes)}",
        tiles=_tiles(alignment, hsf),
        tables=[quarters, *_board(alignment), *_hypotheses(alignment.hypotheses)],
        notes=[test.sentence for test in alignment.differences],
        data={"warning": "" if current else _OLD, "histograms": histograms},
        lists=[each for each in (easy, hard) if len(each.rows)],
        views=views,
        columns=columns,
    )


def _tiles(alignment: Alignment, hsf: np.ndarray) -> list[tuple[str, str, str]]:
    valid = hsf[~np.isnan(hsf)]
    tiles = [("samples that people were asked about", f"{len(valid):,}", f"of {len(hsf):,}")]
    if len(valid):
        everybody = f"everybody chose the label for {percent((valid == 1).mean())}"
        tiles.append((f"mean {_HSF}", f"{valid.mean():.3f}", everybody))
    if alignment.other is not None:
        tiles.append(("most people chose another class", f"{alignment.other:,}", "the label itself may be wrong"))
    for entry in alignment.ceilings[:1]:
        note = f"what a perfect predictor of people would reach; {between(entry.low, entry.high, '.3f')}"
        tiles.append((f"ceiling ({entry.coefficient.capitalize()})", f"{entry.ceiling:.3f}", note))
    return tiles


def _quarters(rows: Rows, hsf: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """The samples hard for people (about a fifth, depending on ties), as many for the model, and the 2 × 2 table."""
    title = "Easy and hard, for people and the model"
    judged = ~np.isnan(hsf) & ~np.isnan(rows.hardness)
    values, counts = np.unique(hsf[judged], return_counts=True)
    by_people, by_model = np.zeros((2, len(hsf)), dtype=bool)
    if len(values) < 2:
        note = "People found all samples equally hard, or there is no score to compare with."
        return by_people, by_model, table("quarters", title, [], title=title, note=note)
    n, up_to = int(judged.sum()), np.cumsum(counts)[:-1]  # something must be easy
    at = int(np.abs(up_to - HARD * n).argmin())
    k, limit = int(up_to[at]), float(values[at])
    by_people = judged & (hsf <= limit)
    by_model[top(np.where(judged, rows.hardness, np.nan), k)] = True
    easy, hard = ([int((judged & a & b).sum()) for a in (~by_people, by_people)] for b in (~by_model, by_model))
    columns = [
        ("people", "", "text", ["people: easy", "people: hard"]),
        ("easy", "model: easy", "int", easy),
        ("hard", "model: hard", "int", hard),
    ]
    note = (
        f"Hard are {counted(k, 'sample')} for each, {percent(k / n)} of {n:,}: those whose label at most "
        f"{percent(limit, 0)} of people chose, and the model's hardest by {score_title(rows.main)}. By chance, both "
        f"would find about {k * k / n:,.0f} hard."
    )
    return by_people, by_model, table("quarters", "Numbers of samples", columns, title=title, note=note)


def _board(alignment: Alignment) -> list[dict[str, Any]]:
    """The leaderboard: a row per score, the best first."""
    board, by = alignment.leaderboard.to_pylist(), RANKED_BY
    if not board:
        return []

    def values(key: str) -> list[float | None]:
        # More digits than are shown: rounded twice, .3445 would differ from the number in the terminal.
        return [number(row[key], 7) for row in board]

    titles = {key: key.capitalize() for key in ("spearman", "pearson", "kendall") if key in board[0]}
    columns: list[tuple[Any, ...]] = [
        ("title", "score", "text", [cut_name(_title(row["score"])) for row in board]),
        ("kind", "kind", "text", [row["kind"] for row in board]),
        ("chart", "", "chart", [None] * len(board)),
    ]
    for key, title in (titles | {"behind": "behind the best"}).items():
        columns.append((key, title, "decimal", values(key), values(f"{key}_low"), values(f"{key}_high")))
    columns.append(("p_holm", "p (corrected)", "number", values("p_holm")))
    ceilings = {entry.coefficient: entry.ceiling for entry in alignment.ceilings}
    note = (
        f"Ranked by {by.capitalize()}'s correlation with the share of people who chose the label; more is better. How "
        "far a score is behind the best is paired over the samples, its p corrected for the number of scores (Holm); "
        "the best was selected on these same samples, which flatters it."
    )
    caption = "Agreement with people: larger is better, 1 is the maximum."
    chart = {"key": by, "overall": number(ceilings.get(by)), "what": "ceiling"}
    return [table("board", caption, columns, title="Which score agrees best", note=note, sort=by, chart=chart)]


def _title(name: str) -> str:
    """The title of a candidate: ``avh_within_class`` is C·AVH, within class."""
    for ending in TREATMENTS:
        if name.endswith(ending):
            return f"{_title(name.removesuffix(ending))}, {ending.replace('_', ' ').strip()}"
    return score_title(name).replace("_", " ")


def _hypotheses(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    titles = {"name": "hypothesis", "verdict": "verdict", "sentence": "why"}
    columns = [(key, title, "text", [getattr(outcome, key) for outcome in outcomes]) for key, title in titles.items()]
    return [table("hypotheses", "Hypotheses", columns, title="The AVH paper's hypotheses, here")] if outcomes else []


def _histogram(rows: Rows, hsf: np.ndarray, alignment: Alignment, name: str) -> dict[str, Any]:
    """People's frequency against a score: counts in a grid (row 0 is the lowest), and the median by frequency."""
    values, x, y = rows.scores[name], Axis("hsf", _HSF, 0.0, 1.0), score_axis(rows, name)
    if (low := float(np.nanmin(values))) < y.high:  # fits the values; 0 need not be shown
        y = y._replace(low=max(low, y.low))
    column, line = x.bins(hsf, BINS_X), y.bins(values, BINS_Y)
    both = (column >= 0) & (line >= 0)
    counts = joint_counts(line, column, (BINS_Y, BINS_X)).ravel()
    parts = [values[both & (column == k)] for k in range(BINS_X)]
    medians = [float(np.median(part)) if len(part) >= _FEWEST else np.nan for part in parts]
    compared = [
        f"{row['coefficient'].capitalize()} {number_text(row['value'])} ({between(row['low'], row['high'], '.3f')})"
        for row in alignment.rows.to_pylist()
        if row["score"].removesuffix("_pred") == name and row["bin"] == "all" and row["value"] is not None
    ]
    n = f"n = {int(both.sum()):,}"
    note = "; ".join([*compared, f"{n}."]) if compared else f"{n}; not compared with people."
    grid = {"nx": BINS_X, "ny": BINS_Y, "counts": counts.tolist(), "medians": plain(medians)}
    return {"key": name, "title": score_title(name), "note": note, "x": x._asdict(), "y": y._asdict(), **grid}
