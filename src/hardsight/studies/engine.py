"""Runs a study cell by cell; several processes may share a folder, and a killed one is taken up by the next.

::

    out/NAME-SCALE/cells/*.json   a finished cell: what decided it, its rows, seconds, and how it was made
    out/NAME-SCALE/rows.csv       all of them: a column per factor, seed, the measures, seconds, hardware, torch
    out/NAME-SCALE/tables.md      means, differences to the baseline, and the paper's numbers
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.csv as pa_csv
import torch
from tqdm import tqdm

from hardsight.devices import find_device
from hardsight.errors import StateError
from hardsight.registry import whole_number
from hardsight.runs import beside_lock, content_hash, disk_errors, provenance, write_json, write_text, write_whole
from hardsight.studies import declared as _declared  # noqa: F401
from hardsight.studies.study import STUDIES, Cell, Study, data_file
from hardsight.studies.tables import Results
from hardsight.untrusted import read_json

_FORMAT = 1


class _Stored(TypedDict):
    key: str
    rows: list[dict[str, Any]]


def study(
    name: str,
    *,
    scale: str = "quick",
    seeds: int | None = None,
    data: str | Path | None = None,
    out: str | Path = "studies",
    device: str | torch.device | None = None,
    minutes: float | None = None,
    progress: bool = True,
) -> Results:
    """Run a study, or as much of it as is not there yet.

    Killed at any point, the same call resumes; several at once share the cells.

    Args:
        name: In `hardsight.studies.STUDIES`.
        scale: smoke (seconds, on small data), quick, or paper (as published).
        seeds: How many seeds; the scale's if not given.
        data: Folder with the data sets, mnist.npz for instance.
        out: Folder to write.
        device: cpu, cuda, cuda:1 or mps; the first GPU if there is one.
        minutes: No cell begins later than this.
        progress: Show a bar (only ever in a terminal).

    Returns:
        The rows that are there now, with their tables and figure.

    Examples:
        >>> print(study("two-gaussians", scale="smoke").text())  # doctest: +SKIP
    """
    declared, began = STUDIES[name], time.monotonic()
    cells = list(declared.cells(scale, None if seeds is None else whole_number("seeds", seeds, 1)))
    place, folder = Path(out) / f"{name}-{scale}", None if data is None else Path(data)
    settings, where = dict(declared.scale(scale).settings), find_device(device)
    decided = {"format": _FORMAT, "study": name, "version": declared.version, "code": content_hash(declared.code)}
    decided |= {"package": package_hash(), "settings": settings, "data": _data_identity(settings, folder)}
    with disk_errors(place), tqdm(total=len(cells), desc=name, disable=None if progress else True) as bar:
        missing = list(cells)
        while missing:
            left = len(missing)
            for levels, seed in list(missing):
                file, key = _place(place, decided, levels, seed)
                if not _finished(file, key):
                    if minutes is not None and time.monotonic() - began > 60 * minutes:
                        return _results(declared, place, scale, decided, cells)
                    bar.set_postfix_str(" ".join([*levels.values(), f"seed {seed}"]))
                    cell = Cell(levels, seed, settings, folder, where, file.parent / file.stem)
                    if not _compute(declared, cell, key):
                        continue  # another process is at it
                missing.remove((levels, seed))
                bar.update()
            if len(missing) == left:
                time.sleep(1.0)
    return _results(declared, place, scale, decided, cells)


@cache
def package_hash() -> str:
    """The source of hardsight: whatever changes in it may change a result."""
    package = resources.files("hardsight")
    with resources.as_file(package) as folder:
        return content_hash(*(file.read_bytes() for file in sorted(folder.rglob("*.py"))))


def _data_identity(settings: Mapping[str, Any], folder: Path | None) -> dict[str, str]:
    """The content of the data sets that the settings name."""
    names = [value for key, value in settings.items() if key.startswith("data") and Path(value).suffix]
    return {name: content_hash(Path(data_file(name, folder)).read_bytes()) for name in names}


def _place(folder: Path, decided: Mapping[str, Any], levels: Mapping[str, str], seed: int) -> tuple[Path, str]:
    """The file of a cell, and what its content must say to be this cell's."""
    name = "-".join("".join(c if c.isalnum() or c in "._" else "-" for c in level) for level in levels.values())
    key = content_hash(repr(sorted(decided.items())), repr(sorted(levels.items())), seed)
    return folder / "cells" / f"{name[:80] or 'cell'}-{seed}-{key[:8]}.json", key


def _finished(file: Path, key: str) -> bool:
    try:
        return read_json(file, _Stored, "out")["key"] == key
    except (OSError, StateError):  # none yet, or damaged: it is computed again
        return False


def _compute(declared: Study, cell: Cell, key: str) -> bool:
    """Compute a cell and store it; False if another process has begun it."""
    file = cell.folder.parent / f"{cell.folder.name}.json"
    with ExitStack() as stack:
        try:
            stack.enter_context(beside_lock(file))
        except StateError:
            return False
        if _finished(file, key):
            return True
        shutil.rmtree(cell.folder, ignore_errors=True)
        cell.folder.mkdir(parents=True)
        stack.callback(shutil.rmtree, cell.folder, ignore_errors=True)
        start = time.perf_counter()
        rows = declared.measure(cell)
        rows = [rows] if isinstance(rows, Mapping) else list(rows)
        made = provenance(cell.device)
        details = {"seconds": round(time.perf_counter() - start, 1), "hardware": made["device"]}
        details["torch"] = made["versions"]["torch"]
        content = [{**cell.levels, "seed": cell.seed, **_plain(row), **details} for row in rows]
        write_json(file, {"key": key, "rows": content, "made": made})
        return True


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with numbers that JSON holds."""
    return {name: value.item() if hasattr(value, "item") else value for name, value in row.items()}


def _results(
    declared: Study, place: Path, scale: str, decided: Mapping[str, Any], cells: Sequence[tuple[Mapping[str, str], int]]
) -> Results:
    """The rows of all finished cells, also as CSV."""
    rows: list[dict[str, Any]] = []
    for levels, seed in cells:
        file, key = _place(place, decided, levels, seed)
        if _finished(file, key):
            rows += read_json(file, _Stored, "out")["rows"]
    if rows:
        columns = dict.fromkeys(name for row in rows for name in row)
        table = pa.table({name: [row.get(name) for row in rows] for name in columns})
        write_whole(place / "rows.csv", partial(pa_csv.write_csv, table))
    results = Results(declared, rows, place, len(cells), scale)
    if rows:
        write_text(place / "tables.md", results.markdown())
    return results


def finished_cells(name: str, out: str | Path = "studies") -> dict[str, int]:
    """How many cells of a study a folder holds, by scale; those of earlier versions or other data included.

    Args:
        name: Of the study.
        out: The folder that `study` wrote.
    """
    counts = {scale: len(list(Path(out).glob(f"{name}-{scale}/cells/*.json"))) for scale in STUDIES[name].scales}
    return {scale: count for scale, count in counts.items() if count}
