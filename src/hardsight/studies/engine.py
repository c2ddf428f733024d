"""Runs a study cell by cell. Several processes may share a folder; what a killed one left is computed by the next.

::

    out/NAME-SCALE/cells/*.json   a finished cell: its key, rows, seconds, and how it was made
    out/NAME-SCALE/common/        trainings that several cells share; may be deleted when the study is complete
    out/NAME-SCALE/rows.csv       rows of all finished cells: a column per factor and detail, seed, measures, provenance
    out/NAME-SCALE/tables.md      means, differences to the baseline, and the paper's numbers
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.csv as pa_csv
import torch
from tqdm import tqdm

from hardsight.devices import find_device
from hardsight.errors import InputError, MissingPathError, StateError
from hardsight.printing import alarm
from hardsight.registry import Option, Range, whole_number
from hardsight.runs import (
    beside_lock,
    content_hash,
    disk_errors,
    provenance,
    source_revision,
    write_json,
    write_text,
    write_whole,
)
from hardsight.studies import declared as _declared  # noqa: F401
from hardsight.studies.study import STUDIES, Cell, Study, data_file
from hardsight.studies.tables import Results, check_levels, conditions, derived, matches
from hardsight.untrusted import read_json
from hardsight.userfile import is_file_function, load_function

_FORMAT = 2


class _Stored(TypedDict):
    key: str
    source: str  # what decides it but for its seed and the network and weights that the user named
    rows: list[dict[str, Any]]


def study(
    name: str,
    *,
    scale: str = "quick",
    seeds: int | None = None,
    where: str | Mapping[str, str] = "",
    data: str | Path | None = None,
    weights: str | Path | None = None,
    network: str | None = None,
    out: str | Path = "studies",
    device: str | torch.device | None = None,
    minutes: float | None = None,
    progress: bool = True,
) -> Results:
    """Run a study, or the part of it that is missing.

    Killed at any point, the same call resumes; several processes with the same `out` share the cells. A cell that
    fails after others succeeded is skipped, and its error is raised at the end.

    Args:
        name: In `hardsight.studies.STUDIES`.
        scale: smoke (seconds, on small data), quick, or paper (as published).
        seeds: How many seeds; the scale's if not given.
        where: Only these levels, as in ``"pair=mnist-usps|usps-mnist and method=cbst"``, or seeds: ``seed=3``.
        data: Folder with the data sets, mnist.npz for instance.
        weights: A checkpoint that networks start from, for studies that can: pretrained on ImageNet, for instance.
        network: A network for studies that take one, such as ``timm:NAME``, with its library's weights unless `weights`
            names others.
        out: Folder to write.
        device: cpu, cuda, cuda:1 or mps; the first GPU if there is one.
        minutes: Start no cell after this time.
        progress: Show a bar (only ever in a terminal).

    Returns:
        The rows of all finished cells, with their tables and figure.

    Examples:
        >>> print(study("two-gaussians", scale="smoke").text())  # doctest: +SKIP
    """
    declared, start = STUDIES[name], time.monotonic()
    wanted = conditions(where, (*declared.factors, "seed"))
    check_levels(wanted, declared.levels(scale))
    if weights is not None and not declared.takes_weights:
        raise InputError(f"weights: the networks of the study {name} always start from scratch; leave --weights out.")
    if weights is not None and not Path(weights).is_file():
        raise MissingPathError(f"weights: there is no file {weights}.")
    named = [Option("seed", int, 0, Range(0)).check(seed, "where: seed") for seed in wanted.pop("seed", ())]
    minutes = None if minutes is None else Option("minutes", float, None, Range(0)).check(minutes, "minutes")
    if seeds is None and named:
        seeds = max(named) + 1
    if network is not None and not declared.takes_network:
        raise InputError(f"network: the study {name} chooses its networks; leave --network out.")
    cells = list(declared.cells(scale, None if seeds is None else whole_number("seeds", seeds, 1)))
    cells = [(levels, seed) for levels, seed in cells if matches(levels, wanted) and (not named or seed in named)]
    folder, checkpoint = (None if path is None else Path(path) for path in (data, weights))
    place = Path(out) / f"{name}-{scale}"
    runner = _Runner(declared, scale, folder, checkpoint, network, place, find_device(device), cells)
    if outdated := sum(runner.is_outdated(*cell) for cell in cells):
        what = "source, versions, hardware, settings or data"
        alarm(f"{name}: {outdated:,} cells are finished with other {what}, and are not used.", "note")
    errors: list[Exception] = []
    missing = list(cells)
    works = any(runner.rows(*cell) is not None for cell in cells)
    with disk_errors(runner.place, "out"), tqdm(total=len(cells), desc=name, disable=None if progress else True) as bar:
        while missing:
            before = len(missing)
            for cell in list(missing):
                if runner.rows(*cell) is None:
                    if minutes is not None and time.monotonic() - start > 60 * minutes:
                        missing.clear()
                        break
                    title = " ".join([*cell[0].values(), f"seed {cell[1]}"])
                    bar.set_postfix_str(title)
                    try:
                        if not runner.compute(*cell):
                            continue  # another process is computing it
                        works = True
                    except Exception as error:
                        if not works:  # no cell has ever succeeded: no use in trying the others
                            raise
                        alarm(f"{title}: {error or type(error).__name__}", "failed")
                        errors.append(error)
                missing.remove(cell)
                bar.update()
            if len(missing) == before:
                time.sleep(0.5)
    results = runner.results()
    if errors:
        raise errors[0]
    return results


@cache
def package_hash() -> str:
    """The source of hardsight: whatever changes in it may change a result."""
    with resources.as_file(resources.files("hardsight")) as folder:
        return content_hash(*(file.read_bytes() for file in sorted(folder.rglob("*.py"))))


@cache
def _file_hash(path: Path, size: int, changed: int) -> str:
    return content_hash(path.read_bytes())


def network_hash(name: str) -> str:
    """What decides a network but a checkpoint: its name, and the versions of libraries or the file that builds it."""
    if is_file_function(name):
        return content_hash(name, data_hash(load_function(name).path))
    return content_hash(name, provenance()["versions"])


def data_hash(path: Path) -> str:
    """The content of a file, or of all files in a folder and their names."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    stats = [file.stat() for file in files]
    hashes = [_file_hash(file, stat.st_size, stat.st_mtime_ns) for file, stat in zip(files, stats, strict=True)]
    return content_hash([file.relative_to(path.parent).as_posix() for file in files], hashes)


@dataclass
class _Runner:
    """One study at one scale in one folder."""

    study: Study
    scale: str
    data: Path | None
    weights: Path | None
    network: str | None
    place: Path
    device: torch.device
    cells: Sequence[tuple[Mapping[str, str], int]]

    def __post_init__(self) -> None:
        study, self.settings = self.study, dict(self.study.scale(self.scale).settings)
        self.made = provenance(self.device)
        # Precision, speed and the recipe depend on the device; numbers on the versions.
        self.source = content_hash(
            [_FORMAT, study.name, study.version, self.scale, content_hash(study.code), package_hash()],
            [self.made["device"], self.made["versions"]],
            self.settings,
        )
        self.start = content_hash(
            None if self.weights is None else data_hash(self.weights),
            None if self.network is None else network_hash(self.network),
        )
        self.hashes: dict[str, str] = {}
        for name in sorted({name for levels, _ in self.cells for name in study.files(self.scale, levels)}):
            self._hash(name)  # a file that is missing is reported before anything is computed

    def _hash(self, name: str) -> str:
        """The content of a data file."""
        if name not in self.hashes:
            self.hashes[name] = data_hash(Path(data_file(name, self.data)))
        return self.hashes[name]

    def _source(self, levels: Mapping[str, str]) -> str:
        """What decides cells with these levels, but for their seed and for where their networks start."""
        return content_hash(self.source, {file: self._hash(file) for file in self.study.files(self.scale, levels)})

    def _place(self, levels: Mapping[str, str], seed: int) -> tuple[Path, str, str]:
        """The file of a cell, its key, and the key of what it shares with others."""
        name = "-".join("".join(c if c.isalnum() or c in "._" else "-" for c in level) for level in levels.values())
        common = content_hash(self._source(levels), self.start)
        key = content_hash(common, dict(levels), seed)
        return self.place / "cells" / f"{name[:80] or 'cell'}-{seed}-{key[:8]}.json", key, common

    def rows(self, levels: Mapping[str, str], seed: int) -> list[dict[str, Any]] | None:
        """The rows of a cell; None if it is not there yet, or damaged."""
        file, key, _ = self._place(levels, seed)
        try:
            stored = read_json(file, _Stored, "out")
        except (OSError, StateError):
            return None
        return stored["rows"] if stored["key"] == key else None

    def is_outdated(self, levels: Mapping[str, str], seed: int) -> bool:
        """Whether a cell is finished, but only with other source, versions, hardware, settings or data."""
        file, _, _ = self._place(levels, seed)
        stem, _, _ = file.stem.rpartition("-")
        others = list(file.parent.glob(f"{stem}-{'?' * 8}.json"))
        return bool(others) and not any(self._is_current(other, levels) for other in others)

    def _is_current(self, file: Path, levels: Mapping[str, str]) -> bool:
        """Whether a finished cell differs from the present ones in its seed, network and weights alone."""
        with suppress(OSError, StateError):  # damaged
            return read_json(file, _Stored, "out")["source"] == self._source(levels)
        return False

    def compute(self, levels: Mapping[str, str], seed: int) -> bool:
        """Compute a cell and store it; False if another process is at it."""
        file, key, common = self._place(levels, seed)
        with ExitStack() as stack:
            try:
                stack.enter_context(beside_lock(file))
            except StateError:
                return False
            if self.rows(levels, seed) is not None:
                return True
            folder = file.with_suffix("")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            start = time.perf_counter()
            shared = self.place / "common" / common[:16]
            cell = Cell(levels, seed, self.settings, self.data, self.device, self.weights, folder, shared, self.network)
            rows = self.study.measure(cell)
            rows = [rows] if isinstance(rows, Mapping) else list(rows)
            versions = self.made["versions"]
            details = {"seconds": round(time.perf_counter() - start, 1), "hardware": self.made["device"]}
            details["torch"] = versions["torch"]
            if self.study.takes_weights:
                details["weights"] = "" if self.weights is None else self.weights.name
            details["versions"] = " ".join(f"{name} {version}" for name, version in versions.items())
            details["revision"] = source_revision() or f"source {package_hash()[:12]}"
            details["rerun"] = self._command(levels, seed)
            if self.study.takes_network:
                details["network"] = self.network or ""
            rows = [{**levels, "seed": seed, **row, **details} for row in rows]
            # JSON holds no NumPy numbers.
            rows = [{k: v.item() if hasattr(v, "item") else v for k, v in row.items()} for row in rows]
            write_json(file, {"key": key, "source": self._source(levels), "rows": rows, "made": self.made})
            return True

    def _command(self, levels: Mapping[str, str], seed: int) -> str:
        """The command that computes a cell; FOLDER and FILE stand for the user's."""
        where = " and ".join(f"{name}={level}" for name, level in {**levels, "seed": seed}.items())
        command = f"hardsight study run {self.study.name} --scale {self.scale} --where {shlex.quote(where)}"
        command += " --data FOLDER" if self.study.files(self.scale, levels) else ""
        command += "" if self.network is None else f" --network {shlex.quote(self.network)}"
        return command + ("" if self.weights is None else " --weights FILE")

    def results(self) -> Results:
        """The rows of the cells that were asked for; those of all finished cells are written as CSV and as tables."""
        rows = [row for cell in self.cells for row in self.rows(*cell) or ()]
        results = Results(self.study, derived(self.study, rows), self.place, len(self.cells), self.scale)
        if rows:
            with beside_lock(self.place / "rows.csv", -1):  # no process writes a shorter list over a longer one
                every = self._finished()
                columns = dict.fromkeys(name for row in every for name in row)
                table = pa.table({name: [row.get(name) for row in every] for name in columns})
                write_whole(self.place / "rows.csv", partial(pa_csv.write_csv, table))
                whole = replace(results, rows=derived(self.study, every), cells=0)
                write_text(self.place / "tables.md", whole.markdown())
        return results

    def _finished(self) -> list[dict[str, Any]]:
        """The rows of every cell in the folder that the present source, settings and data give, in the study's order.

        Another call may have asked for other levels or seeds, or named another network; what it computed stays.
        """
        cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        order = self.study.levels(self.scale)
        named = self.network or "", "" if self.weights is None else self.weights.name
        for file in (self.place / "cells").glob("*.json"):
            with suppress(OSError, StateError, LookupError, ValueError):  # damaged, or its data is not here
                stored = read_json(file, _Stored, "out")
                first, *_ = rows = stored["rows"]
                levels = {name: first[name] for name in order}
                start = first.get("network") or "", first.get("weights") or ""
                _, key, _ = self._place(levels, first["seed"])
                if stored["key"] == key or (start != named and stored["source"] == self._source(levels)):
                    place = tuple(order[name].index(level) for name, level in levels.items())
                    cells[first["seed"], place, start] = rows
        return [row for _, rows in sorted(cells.items()) for row in rows]


def finished_cells(name: str, out: str | Path = "studies") -> dict[str, int]:
    """How many cells of a study a folder holds, by scale; those of earlier versions or other data included.

    Args:
        name: Of the study.
        out: The folder that `study` wrote.
    """
    counts = {scale: len(list(Path(out).glob(f"{name}-{scale}/cells/*.json"))) for scale in STUDIES[name].scales}
    return {scale: count for scale, count in counts.items() if count}
