"""Everything the page draws, as plain lists, texts and numbers, from one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.idtables import read_by_id
from hardsight.report import clusters, notices
from hardsight.report.changes import Changes, change_lists, change_view, changes, comparison_section
from hardsight.report.classes import class_table
from hardsight.report.curves import training_section
from hardsight.report.datamap import Recorded, data_map, described, read_recorded, recorded_lists, recorded_notices
from hardsight.report.groups import MOST_COLUMNS, find_groups, given_groups, group_rows, in_points
from hardsight.report.lists import Listed, by_class, disagreements, hardest_and_easiest
from hardsight.report.people import People, described_people, people_lists, people_section, people_view, read_people
from hardsight.report.points import choose_points
from hardsight.report.rows import MANY_CLASSES, Rows
from hardsight.report.suspects import Suspects, find_suspects, label_errors_section
from hardsight.report.views import View, histograms, views
from hardsight.report.words import NAME_BYTES, cut, cut_name, plain, score_title
from hardsight.scores import SCORES
from hardsight.table import SampleTable, harder_end

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

_NAMES_BYTES = 900_000  # all class names together
_CLUSTER_PICTURES = 4
_NO_SUSPECTS = (
    "Records hold too little to estimate how many labels are wrong: look among the lowest areas under the margin, or "
    "score the data with --folds."
)


@dataclass(frozen=True)
class Made:
    """The payload without pictures, and what it takes to add them.

    Attributes:
        payload: What the page draws.
        rows: The samples, in the order of their ids.
        points: Row of each point.
        cells: Cell of each point in the main view; all in one where there is no view.
        lists: Rows of the lists over all, and the first of each cluster: they ask for pictures first.
        parts: Rows of the lists of classes and clusters.
        recorded: The training that the run recorded, where it did.
    """

    payload: dict[str, Any]
    rows: Rows
    points: np.ndarray
    cells: np.ndarray
    lists: list[np.ndarray]
    parts: list[np.ndarray]
    recorded: Recorded | None


def make_payload(
    rows: Rows, *, against: Any = None, groups: Any = None, run: Any = None, dynamics: Dynamics | None = None
) -> Made:
    """Compute the page.

    Args:
        rows: The samples.
        against: Another run or table to compare with.
        groups: Group columns of the user's own.
        run: The run folder, where there is one: what the next command is to be given.
        dynamics: What the run recorded while the network trained.
    """
    groups = None if groups is None else read_by_id(groups, "groups")
    recorded = None if dynamics is None else read_recorded(rows, dynamics)
    people = read_people(rows, run)
    found_groups, group_notes = find_groups(rows, groups)
    suspects, no_suspects = find_suspects(rows)
    if recorded is not None and suspects is None:
        no_suspects = _NO_SUSPECTS
    changed = None if against is None else changes(rows, against)
    lists = hardest_and_easiest(rows)
    lists += [suspects.listed] if suspects is not None else []
    lists += disagreements(rows)
    lists += recorded_lists(recorded) if recorded is not None else []
    lists += people_lists(rows, people) if people is not None else []
    lists += change_lists(rows, changed) if changed is not None else []
    hard_by_class, easy_by_class, class_note = by_class(rows)
    hidden = clusters.harder_clusters(rows)
    examples = [cluster.members[: clusters.EXAMPLES] for cluster in hidden.clusters]
    seen = views(rows)
    seen += data_map(recorded) if recorded is not None else []
    seen += people_view(rows, people) if people is not None else []
    if changed is not None and (view := change_view(rows, changed)) is not None:
        seen.append(view)
    over_all = [*(listed.rows for listed in lists), *(members[:_CLUSTER_PICTURES] for members in examples)]
    parts = [*examples, *hard_by_class, *easy_by_class]
    cells = seen[0].cells() if seen else np.zeros(len(rows), dtype=np.int64)
    points = choose_points(len(rows), np.concatenate([*over_all, *parts]), cells, rows.at)

    def point_of(index: np.ndarray) -> list[int]:
        return np.searchsorted(points, index).tolist()

    codes = _shown_classes(rows, points, suspects)
    room = int(np.clip(_NAMES_BYTES // max(len(codes), 1), 24, NAME_BYTES))

    def name(code: int) -> str:
        return cut_name(rows.class_name(code), room)

    told = notices.notices(rows, no_suspects, class_note)
    told += [{"level": "info", "text": text} for text in group_notes]
    told += recorded_notices(rows, recorded) if recorded is not None else []
    payload: dict[str, Any] = {
        "title": notices.title(rows),
        "notices": told,
        "sampling": notices.sampling(rows)[0],
        "n": len(rows),
        "classes": [name(code) for code in codes.tolist()],
        "chance": rows.classes,
        "labelled": rows.labelled,
        "tiles": notices.tiles(rows, suspects),
        "scores": {
            **_described(rows, seen),
            **(described(recorded) if recorded is not None else {}),
            **(described_people(people) if people is not None else {}),
        },
        "points": {
            **_points(rows, points, codes, suspects, _columns(rows, seen, changed, recorded, people)),
            "groups": in_points(found_groups, points),
        },
        "pictures": [],
        "picture_note": "",
        "pixelated": False,
        "lists": [_list(listed, point_of) for listed in lists],
        "by_class": {
            "hardest": [point_of(hard_by_class[code]) for code in codes.tolist()],
            "easiest": [point_of(easy_by_class[code]) for code in codes.tolist()],
        },
        "views": [view.as_dict(_drawn(len(points), len(rows))) for view in seen],
        "histograms": histograms(rows),
        "class_table": _renumbered(class_table(rows, suspects.noise if suspects is not None else None, room), codes),
        "groups": [group_rows(rows, group, how=group is found_groups[0]) for group in found_groups],
        "clusters": clusters.as_dict(rows, hidden, point_of, name) if hidden.looked else None,
        "clusters_note": hidden.note,
        "label_errors": label_errors_section(suspects, run) if suspects is not None else None,
        "comparison": comparison_section(rows, changed, room) if changed is not None else None,
        "training": _training(rows, recorded, groups, room) if recorded is not None else None,
        "people": people_section(rows, people) if people is not None else None,
        "bad": notices.bad_rows(rows),
        "made": notices.made(rows),
    }
    return Made(payload, rows, points, np.maximum(cells[points], 0), over_all, parts, recorded)


def _training(rows: Rows, recorded: Recorded, groups: pa.Table | None, room: int) -> dict[str, Any] | None:
    """The section on training; None while there is a single epoch."""
    if not recorded.several:
        return None
    found = [] if groups is None else given_groups(pa.chunked_array([recorded.ids]), groups)[0][-MOST_COLUMNS:]
    return training_section(recorded, found, lambda number: cut_name(rows.name_of(number), room))


def _list(listed: Listed, point_of: Any) -> dict[str, Any]:
    return {"key": listed.key, "title": listed.title, "note": listed.note, "rows": point_of(listed.rows)}


def _drawn(points: int, n: int) -> str:
    if points == n:
        return f" All {n:,} are drawn as points."
    return f" {points:,} of {n:,} are drawn as points, spread so that rare ones are seen; the shading counts all."


def _shown_classes(rows: Rows, points: np.ndarray, suspects: Suspects | None) -> np.ndarray:
    """Codes of the classes that the page names: all of them, or with very many those that a point or row needs."""
    if rows.codes <= MANY_CLASSES:
        return np.arange(rows.codes)
    used = [rows.label[points], rows.pred[points]]
    if suspects is not None:
        used.append(suspects.suggested[points])
    codes = np.unique(np.concatenate(used))
    return codes[codes >= 0]


def _columns(
    rows: Rows, seen: list[View], changed: Changes | None, recorded: Recorded | None, people: People | None
) -> dict[str, np.ndarray]:
    """The numbers of each point: every score, the main one first, and what the views need."""
    main = {rows.main: rows.value} if rows.main is not None else {}
    columns = {**main, **rows.scores}
    for view in seen:
        columns.setdefault(view.x.column, view.xs)
        columns.setdefault(view.y.column, view.ys)
    if changed is not None and changed.by is not None:
        columns["change"] = changed.change
    for more in (recorded, people):
        columns |= more.columns if more is not None else {}
    return columns


def _points(
    rows: Rows, points: np.ndarray, codes: np.ndarray, suspects: Suspects | None, columns: dict[str, np.ndarray]
) -> dict[str, Any]:
    def classes(values: np.ndarray) -> list[int]:
        return _renumber(values[points], codes).tolist()

    label = classes(rows.label)
    spread = {}
    for column in ("avh_sd", "avh_pred_sd", "agreement", "rank", "rank_low", "rank_high"):
        values = rows.optional(column)
        if values is not None:
            scale = rows.classes if column.startswith("avh") else 1
            spread[column.replace("_pred", "")] = plain(scale * values[points])
    return {
        "id": [cut(id_) for id_ in rows.ids_at(points)],
        "label": [value if value >= 0 else None for value in label],
        "pred": classes(rows.pred),
        "picture": [-1] * len(points),
        "scores": {name: plain(values[points]) for name, values in columns.items()},
        "suspicion": plain(suspects.suspicion[points]) if suspects is not None else None,
        "suggested": classes(suspects.suggested) if suspects is not None else None,
        "spread": spread or None,
    }


def _renumber(values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Class codes as places among the classes that the page names; −1 for none."""
    if not len(codes):
        return np.full(len(values), -1)
    place = np.minimum(np.searchsorted(codes, values), len(codes) - 1)
    return np.where((values >= 0) & (codes[place] == values), place, -1)


def _renumbered(table: dict[str, Any], codes: np.ndarray) -> dict[str, Any]:
    """The class table, whose first column is the class, in the page's numbers."""
    places = _renumber(np.array([row[0] for row in table["rows"]], dtype=np.int64), codes).tolist()
    for row, place in zip(table["rows"], places, strict=True):
        row[0] = place
    return table


def _described(rows: Rows, seen: list[View]) -> dict[str, Any]:
    """What each column of the points means."""
    found = {}
    for name in dict.fromkeys([*([rows.main] if rows.main else []), *rows.scores]):
        score = SCORES[name]
        where = " Taken at the prediction." if score.needs_labels and not rows.labelled else ""
        times = " Times the number of classes: 1 is chance." if name == "avh" else ""
        summary = score.summary.replace("`", "")  # marks of the reference, which the page does not read
        found[name] = {"title": score_title(name), "text": f"{summary}{times}{where}", "harder": harder_end(name)}
    shown = {axis.column: axis.title for view in seen for axis in (view.x, view.y)}
    extra = {
        "rank_angle": "Rank by the angle among all samples, from 0 to 1.",
        "rank_logit": f"Rank by {score_title(rows.logit)} among all samples, from 0 to 1.",
        "before": "The same in the run that this one is compared with.",
    }
    compared = next((view.y.column for view in seen if view.x.column == "before"), "")  # both runs have this score
    for name, text in extra.items():
        if name in shown:
            harder = harder_end(compared if name == "before" else name)
            found[name] = {"title": shown[name], "text": text, "harder": harder}
    if compared:
        found["change"] = {"title": "change", "text": "After minus before.", "harder": harder_end(f"{compared}_change")}
    return found


def nothing_yet(table: SampleTable) -> dict[str, Any]:
    """The page of a run that has not scored a sample yet."""
    model = cut_name(table.meta.model.name or "several nets")
    data = cut_name(table.meta.data.origin or "data")
    waiting = "No sample has been scored yet; run the report again when there are some."
    return {
        "title": f"{model} on {data}",
        "notices": [{"level": "warn", "text": waiting}],
        "sampling": "unknown",
        "n": 0,
        "classes": [],
        "chance": 0,
        "labelled": False,
        "made": [["model", model], ["data", data]],
    }
