"""Units of work: consecutive samples that a worker scores at once and commits with one marker.

A worker writes the files of a unit under a name with a unique token, then the unit's marker, which names the token.
There is one marker per unit and the last one counts, so a unit may be done again, or by two workers at once.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from hardsight.errors import HardsightError, StateError, StoreError
from hardsight.runs.files import disk_errors, write_json, write_together, write_whole
from hardsight.runs.tables import SCHEMAS, as_written
from hardsight.stores import StorePath, map_paths
from hardsight.untrusted import read_json

PARTS = "parts"  # where the markers are
# A kill costs at most one unit per worker, and a large run does not have too many files.
_MOST_ROWS, _SHARES = 8192, 32
_GROUP_ROWS = 1 << 16
_MARKER = re.compile(r"u(\d{8})\.json|\d{4}-\d{6}-[0-9a-f]+\.json")  # the others are of earlier versions
_TOKEN = re.compile(r"[0-9a-f]{8}")
UNIT_FILES = re.compile(r"u\d{8}(\.json|-[0-9a-f]{8}\.parquet)|\d{4}-\d{6}-[0-9a-f]+\.(json|parquet)")


@dataclass(frozen=True)
class Units:
    """A data set in units: the number of its samples, and how many of them are one unit."""

    samples: int
    rows: int

    @classmethod
    def of(cls, samples: int, batch_size: int, most: int = _MOST_ROWS) -> Units:
        """Units of about a 32nd of the data, at most `most` samples, in whole batches."""
        share = 1 << max(samples // _SHARES, 1).bit_length() - 1  # a power of two, which usual batch sizes divide
        return cls(samples, -(-min(share, most) // batch_size) * batch_size)

    @property
    def count(self) -> int:
        return -(-self.samples // self.rows)

    def places(self, unit: int) -> range:
        """The samples of a unit."""
        return range(unit * self.rows, min((unit + 1) * self.rows, self.samples))

    def left(self, done: Mapping[int, int]) -> list[int]:
        """The units that are not fully committed; `done` has the number of samples in each committed one.

        A process that began at the same moment may have divided the data differently, and its units are not these.
        """
        return [unit for unit in range(self.count) if done.get(unit) != len(self.places(unit))]


def write_unit(path: Path, unit: int, tables: Mapping[str, pa.Table]) -> None:
    """Write some kinds of table as one unit of a run, and commit it: after that it survives any kill."""
    token = secrets.token_hex(4)
    files = {kind: path / kind / f"u{unit:08d}-{token}.parquet" for kind in tables}
    with disk_errors(path):
        rows = {kind: as_written(kind, table) for kind, table in tables.items()}
        writers = {
            kind: partial(pq.write_table, rows[kind], row_group_size=_GROUP_ROWS, write_page_checksum=True)
            for kind in rows
        }
        write_together(*(partial(write_whole, files[kind], writers[kind]) for kind in rows))
        marker = {kind: {"rows": len(tables[kind]), "bytes": file.stat().st_size} for kind, file in files.items()}
        write_json(path / PARTS / f"u{unit:08d}.json", {"token": token, **marker})


def discard_units(path: Path, first: int) -> None:
    """Remove the markers of all units from one on."""
    for marker in (path / PARTS).glob("u*.json"):
        if (match := _MARKER.fullmatch(marker.name)) and int(match[1]) >= first:
            marker.unlink(missing_ok=True)


class Part(NamedTuple):
    """A committed part of a run: its unit (None in runs of earlier versions), its files, and its number of samples."""

    unit: int | None
    files: dict[str, Path]
    samples: int


def read_parts(path: Path, *, damaged: bool = False) -> list[Part]:
    """The committed parts of a run in the order of their samples.

    A committed file that is missing or truncated is an error; with `damaged`, that part is left out, to be done again.
    """

    def part(marker: Path) -> Part | None:
        try:
            return _part(path, marker)
        except StoreError:  # a store that does not answer is not damage
            raise
        except HardsightError:
            if not damaged:
                raise
            return None

    markers = [file for file in sorted((path / PARTS).glob("*.json")) if _MARKER.fullmatch(file.name)]
    return [item for item in map_paths(part, markers) if item is not None]


def remove_unnamed(path: Path) -> None:
    """Remove files that no marker names, which kills and retries leave behind, from a run that nobody else writes."""
    if isinstance(path, StorePath):  # no store has locks that would tell
        return
    named = {file for part in read_parts(path) for file in part.files.values()}
    for file in (file for kind in SCHEMAS for file in (path / kind).glob("*.parquet")):
        if file not in named and UNIT_FILES.fullmatch(file.name):
            file.unlink(missing_ok=True)


def _part(path: Path, marker: Path) -> Part:
    number = marker.stem.removeprefix("u")
    unit = int(number) if number != marker.stem else None
    entries = read_json(marker, dict[str, Any])
    token = entries.pop("token", None) if unit is not None else ""
    name = marker.stem if unit is None else f"{marker.stem}-{token}"  # never a path that the marker itself names
    files = {kind: path / kind / f"{name}.parquet" for kind in entries}
    sizes = {kind: entry.get("bytes") if isinstance(entry, dict) else None for kind, entry in entries.items()}
    if unit is not None and not (isinstance(token, str) and _TOKEN.fullmatch(token)):
        raise StateError(f"RUN: {marker} is damaged: it names no token.")
    for kind, file in files.items():
        if kind not in SCHEMAS or not file.is_file() or file.stat().st_size != sizes[kind]:
            raise StateError(f"RUN: {path} is damaged: {kind}/{file.name} is missing or not as it was written.")
    rows = entries["samples"].get("rows") if "samples" in entries else 0
    return Part(unit, files, rows if isinstance(rows, int) else 0)
