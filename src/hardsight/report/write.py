"""`write_report`: a run as one page."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.chance import ChanceWarning
from hardsight.data import changed_since
from hardsight.errors import InputError, MissingPathError
from hardsight.records import has_records
from hardsight.report import page
from hardsight.report.formatting import counted
from hardsight.report.payload import Draft, make_payload, nothing_yet
from hardsight.report.recorded import Recorded
from hardsight.report.rows import read_rows
from hardsight.report.sample_curves import sample_curves
from hardsight.report.sections import Notice, by_level
from hardsight.report.thumbnails import Thumbnails, choose, make_thumbnails, open_samples
from hardsight.runs import REPORT, check_replaceable, disk_errors, is_page, is_run, write_text
from hardsight.table import SampleTable

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

MOST_BYTES = 15_000_000
_SLACK = 400_000  # of them, for what is not data: scripts, styles, and the text of the page


def write_report(
    run: str | Path | SampleTable,
    out: str | Path | None = None,
    *,
    data: Any = None,
    against: str | Path | SampleTable | None = None,
    groups: Any = None,
    pictures: int = 400,
    tell: Callable[[str], object] | None = None,
) -> Path:
    """Write a run as one page to look at: a single HTML file of at most 15 MB that needs no network.

    Pictures are found through the data set; whatever is the matter with them, the page is written and says so. A run
    that is still being written gives a page of what there is so far. A run that was recorded while a network trained
    shows its last epoch, and beside it the training: curves by group, what drove the loss, a data map.

    Args:
        run: The run folder that was scored or recorded; in Python also a table.
        out: The page to write; ``RUN/report.html`` if not given; in Python ``report.html`` for a table.
        data: Where the images are, unless the run names a folder or an .npz that is still there.
        against: An earlier run over the same samples, to show what became easier or harder.
        groups: CSV or Parquet with a column id and columns to compare by (camera, site, …); in Python also a data
            frame, Arrow table or mapping. Text and small integers in the table's own columns are groups, too.
        pictures: Maximum number of thumbnails.
        tell: Called with each warning that the page shows; `print`, for instance.

    Returns:
        The file that was written.
    """
    if isinstance(pictures, bool) or not isinstance(pictures, int) or pictures < 0:
        raise InputError(f"pictures must be a number of thumbnails, 0 or more, got {pictures!r}.")
    folder = None if isinstance(run, SampleTable) else Path(run)
    table = run if isinstance(run, SampleTable) else _load(run)
    if not len(table) and not table.meta.unfinished:
        raise InputError("run must hold at least one scored sample, got none; score some data first.")
    if isinstance(against, (str, Path)):
        against = _load(against)
    target = Path(out) if out is not None else (folder or Path()) / REPORT
    if target.is_dir():
        raise InputError(f"out must be a file, got the folder {target}; name a file in it.")
    check_replaceable(target, is_page)
    if not len(table):
        payload = nothing_yet(table)
    else:
        rows, dynamics = read_rows(table), _records(folder)
        del table, run  # of a large run only the sorted copy stays in memory
        pa.default_memory_pool().release_unused()
        draft = make_payload(rows, against=against, groups=groups, run=folder, dynamics=dynamics)
        payload = _with_thumbnails(draft, data, pictures)
    text = page.render(payload)
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, text)
    for notice in [*payload["notices"], payload.get("sampling", {})]:
        if notice.get("level") == "alarm":
            warnings.warn(notice["text"], ChanceWarning, stacklevel=2)
        elif notice.get("level") == "warn" and tell is not None:
            tell(notice["text"])
    return target


def _load(run: str | Path) -> SampleTable:
    """The table of a run; the folder of a whole training holds two."""
    inside = [Path(run) / name for name in ("test", "train") if is_run(Path(run) / name)]
    if inside and not is_run(run):
        raise MissingPathError(f"RUN: {run} holds a training; name {' or '.join(map(str, inside))}.")
    return SampleTable.load(run, partial=True)


def _records(folder: Path | None) -> Dynamics | None:
    """What the run recorded while the network trained, if it did."""
    if folder is None or not has_records(folder):
        return None
    from hardsight.dynamics import Dynamics

    return Dynamics(folder)


def _with_thumbnails(draft: Draft, data: Any, most: int) -> dict[str, Any]:
    """The payload with as many thumbnails as fit into the page."""
    payload, rows = draft.payload, draft.inputs.rows
    notices = [Notice(**notice) for notice in payload["notices"]]
    selected = choose(draft.lists, draft.parts, draft.points, draft.cells, most)
    if draft.inputs.recorded is not None and "training" in payload:
        payload["training"]["curves"] = _curves(draft, draft.inputs.recorded, selected)
    thumbnails = Thumbnails(note=f"0 of {counted(len(rows), 'sample')} have pictures")
    if most:
        samples, problem = open_samples(rows.table.meta, data)
        if samples is None:
            thumbnails.notices.append(problem)
        else:
            if changed_since(samples, rows.table.meta):
                changed = f"{samples.origin} has changed since it was scored; pictures may be those of other samples."
                notices.append(Notice("warn", changed))
            room = MOST_BYTES - _SLACK - page.size(payload)
            thumbnails = make_thumbnails(samples, selected, rows.ids_at(selected), len(rows), room)
    notices += [Notice("info" if thumbnails.uris else "warn", text) for text in thumbnails.notices]
    payload["points"]["picture"] = [thumbnails.of_row.get(row, -1) for row in draft.points.tolist()]
    return payload | {
        "notices": [notice._asdict() for notice in by_level(notices)],
        "pictures": thumbnails.uris,
        "picture_note": thumbnails.note,
        "pixelated": thumbnails.pixelated,
    }


def _curves(draft: Draft, recorded: Recorded, pictured: list[int]) -> dict[str, Any]:
    """Curves of the samples that have pictures, of those in lists, and of as many more points as fit."""
    rest = choose(draft.lists, draft.parts, draft.points, draft.cells, len(draft.points))
    rows = list(dict.fromkeys([*pictured, *rest]))
    places = np.searchsorted(draft.points, rows).tolist()
    return sample_curves(recorded, places, draft.inputs.rows.ids_at(rows), len(draft.points))
