"""Jobs that several processes share by lock files, and their rows as CSV."""

from __future__ import annotations

import csv
import fcntl
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar


class Named(Protocol):
    """A job: its name is the name of its files."""

    @property
    def name(self) -> str: ...


Job = TypeVar("Job", bound=Named)


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Whether this process alone has the lock; it ends with the process, however that ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def work(
    jobs: Sequence[Job],
    out: Path,
    deadline: float,
    do: Callable[[Job], object],
    first: Callable[[Job], str | None] = lambda job: None,
) -> None:
    """Do what nobody else does until nothing is left.

    Args:
        jobs: In the order to begin them.
        out: Has ``locks`` and ``rows``; a job is done when its rows are there.
        deadline: Of `time.perf_counter`; no job begins later.
        do: Does a job and leaves ``rows/NAME.csv``.
        first: The name of the job that must be done before, if any; if it fails, those behind it are left too.
    """
    failed: set[str | None] = set()
    left = list(jobs)

    def done(name: str) -> bool:
        return (out / "rows" / f"{name}.csv").exists()

    while left := [job for job in left if not done(job.name) and not failed & {job.name, first(job)}]:
        for job in left:
            if (before := first(job)) is not None and not done(before):
                continue
            with locked(out / "locks" / job.name) as mine:
                if not mine or done(job.name):
                    continue
                if time.perf_counter() > deadline:
                    print("out of time", flush=True)
                    return
                try:
                    do(job)
                except Exception:  # the others go on, and the next start tries again
                    traceback.print_exc()
                    failed.add(job.name)
                break
        else:
            time.sleep(0.2)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as CSV, whole or not at all; the columns are those of all rows."""
    columns = dict.fromkeys(key for row in rows for key in row)
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows
        )
    part.rename(path)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a CSV, numbers as numbers, what is empty as None."""
    with path.open(newline="") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None
