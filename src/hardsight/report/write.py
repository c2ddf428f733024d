"""`write_report`: a run as one page."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hardsight.chance import ChanceWarning
from hardsight.errors import InputError, MissingPathError
from hardsight.records import has_records
from hardsight.report import page
from hardsight.report.payload import make_payload, nothing_yet
from hardsight.report.rows import read_rows
from hardsight.runs import REPORT, check_replaceable, disk_errors, is_page, is_run, write_text
from hardsight.table import SampleTable

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics


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
        payload = make_payload(
            rows, against=against, group_table=groups, run=folder, dynamics=dynamics, data=data, pictures=pictures
        )
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
