"""`draw`: a figure by name, from run folders and files to an image file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hardsight.dynamics import Dynamics
from hardsight.errors import InputError, MissingPathError
from hardsight.figures.catalog import FIGURES
from hardsight.figures.style import check_out, write_figure
from hardsight.records import has_records
from hardsight.stores import as_path

_MOST_RUNS = 20


def draw(
    name: str,
    runs: Sequence[str | Path] = (),
    *,
    data: str | None = None,
    groups: str | Path | None = None,
    human: str | Path | None = None,
    coarser: str | Path | None = None,
    label: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
) -> Path:
    """Draw a figure and write it.

    Args:
        name: Which figure.
        runs: Run folders, for figures of runs.
        data: What to train a small network on, for figures that do.
        groups: CSV or Parquet with a column id and one to group by.
        human: CSV or Parquet with id and hsf, or annotator counts (N × C) as .npy or .npz in the order of the data.
        coarser: CSV or Parquet with the columns class and coarse, for figures of coarse classes.
        label: Number of the class to draw, for figures of each class.
        seed: Random seed of training and sampling.
        out: The file to write: .png, .svg or .pdf; NAME.png if not given.

    Returns:
        The path of the file.
    """
    kind = FIGURES[name]
    inputs = kind.inputs()
    fewest, most = int(inputs.get("runs", "run" in inputs)), _MOST_RUNS if "runs" in inputs else int("run" in inputs)
    if not fewest <= len(runs) <= most:
        count = {0: "no RUN", 1: "one RUN"}.get(most, f"{fewest} to {most} RUNs")
        raise InputError(f"the figure {name} takes {count}, got {len(runs)}.")
    options = {"data": data, "groups": groups, "human": human, "coarser": coarser, "label": label}
    for option, value in options.items():
        if value is None and inputs.get(option):
            raise InputError(f"the figure {name} needs --{option}, got none.")
        if value is not None and option not in inputs:
            raise InputError(f"the figure {name} does not use --{option}; leave it out.")
    if groups is not None and human is not None:
        raise InputError(f"the figure {name} takes --groups or --human, got both; leave one out.")
    out = f"{name}.png" if out is None else out
    check_out(out)  # before anything is trained
    named = named_runs([as_path(run) for run in runs])
    values: dict[str, Any] = {**options, "runs": named, "seed": seed}
    values["name"], values["run"] = next(iter(named.items()), (None, None))
    return write_figure(kind.load()(**{key: value for key, value in values.items() if key in inputs}), out)


def named_runs(paths: Sequence[Path]) -> dict[str, Path]:
    """Runs by the shortest ends of their paths that differ; for RUN/test and RUN/train, at least both names."""
    longest = max((len(path.parts) for path in paths), default=0)
    shortest = 2 if any(path.name in ("train", "test") for path in paths) else 1
    for parts in range(shortest, max(longest, shortest) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return dict(zip(names, paths, strict=True))
    raise InputError(f"every RUN must be named once, got {', '.join(map(str, paths))}.")


def open_run(run: Dynamics | str | Path, name: str, epochs: int = 2) -> Dynamics:
    """A recorded run with at least this many epochs."""
    if isinstance(run, (str, Path)):
        parts = [as_path(run) / part for part in ("test", "train") if has_records(as_path(run) / part)]
        if parts and not has_records(run):
            raise MissingPathError(f"RUN: {run} holds a training; name {' or '.join(map(str, parts))}.")
        run = Dynamics(run)
    if len(run.epochs) < epochs:
        raise InputError(f"RUN: {name} must hold at least two {run.unit}s for this figure, got one.")
    return run
