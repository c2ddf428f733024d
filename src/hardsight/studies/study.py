"""What a study is: cells (the levels of some factors × seeds), and a function that measures one cell.

A study is a function under ``@STUDIES.register(...)`` in `hardsight.studies.declared`. The paper's numbers are in
``published/NAME.csv``: one column per factor and detail, and measure, value, sd and source.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hardsight.errors import InputError, MissingPathError
from hardsight.registry import Registry, did_you_mean
from hardsight.runs import beside_lock

BUILT_IN = ("digits",)  # data sets that need no files


class Measure(NamedTuple):
    """A number that a study measures: its title, whether it is shown in percent, and which direction is better."""

    title: str
    percent: bool = False
    better: str = ""  # "higher", "lower", or "" where neither is


@dataclass(frozen=True)
class Scale:
    """How large a study is.

    Attributes:
        seeds: Number of seeds unless the user asks for another one.
        seconds: Approximate time per cell.
        hardware: What that time was measured on.
        settings: What the cells need: epochs, networks, …; names that begin with ``data`` are files of the data folder.
        levels: Levels of factors, where they are not those of the study.
    """

    seeds: int
    seconds: float
    hardware: str = "2 CPU cores"
    settings: Mapping[str, Any] = field(default_factory=dict)
    levels: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Sweep(NamedTuple):
    """What the figure of a study has on its x axis, where the compared levels are values of one option.

    Attributes:
        title: The option.
        places: The value of each level that belongs to it; a text where it is no number.
        log: Whether the axis is logarithmic.
    """

    title: str
    places: Mapping[str, float | str]
    log: bool = False


@dataclass(frozen=True)
class Cell:
    """One computation of a study.

    Attributes:
        levels: The level of each factor.
        seed: The seed.
        settings: Those of the scale.
        data: The user's folder with data sets.
        device: Where to compute.
        weights: The checkpoint that networks start from; None: they start from scratch.
        folder: An empty folder for files that are deleted afterwards.
        common: Folder for what several cells need; see `shared`.
        network: The user's network, for studies that take one: ``timm:NAME``, for instance.
    """

    levels: Mapping[str, str]
    seed: int
    settings: Mapping[str, Any]
    data: Path | None
    device: torch.device
    weights: Path | None
    folder: Path
    common: Path
    network: str | None = None

    def file(self, name: str) -> str:
        """The path of a data set in the data folder; built-in data sets keep their name."""
        return data_file(name, self.data)

    @contextmanager
    def shared(self, name: str) -> Iterator[Path]:
        """A folder that all cells with the same settings and data share; one process at a time.

        Train a source model or a teacher in it: `hardsight.train` resumes or returns what is already there.
        """
        folder = self.common / name
        with beside_lock(folder, -1):  # another process may be training it
            folder.mkdir(parents=True, exist_ok=True)
            yield folder


Row = Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """A comparison that can be rerun.

    Attributes:
        name: In `STUDIES` and on the command line.
        measure: Computes a cell: a row of measures, or rows that `details` tell apart.
        question: What it asks, in one line.
        paper: The table or figure that it is about.
        factors: The levels of each factor; the first factor varies slowest.
        measures: What is measured, the most important first.
        scales: ``smoke`` for tests, ``quick``, ``paper``.
        compare: The factor or detail whose levels are compared; empty if none are.
        baseline: The level that the others are compared with.
        pooled: The level that the paper compares with by Student's t-test with a pooled variance; empty if none.
        details: Other columns that tell the rows of a cell apart.
        data: Files of the data folder that a level of a factor needs, beside those of the settings.
        derive: Adds rows to those of one cell, for numbers that follow from them; also to rows of a CSV.
        sweeps: What the figure shows the first measure against, each in a panel of its own; without, it has a line for
            each combination of levels.
        average: A factor over whose levels the mean of each seed is added, as the level ``average``.
        takes_weights: Whether networks can start from a checkpoint.
        takes_network: Whether the user can name the network.
        family: Name of the family of tests that a line belongs to, by its levels; Holm's correction is within families.
        version: Increased when results change their meaning: older cells are then computed again.
    """

    name: str
    measure: Callable[[Cell], Row | Sequence[Row]]
    question: str
    paper: str
    factors: Mapping[str, Sequence[str]]
    measures: Mapping[str, Measure]
    scales: Mapping[str, Scale]
    compare: str = ""
    baseline: str = ""
    pooled: str = ""
    details: tuple[str, ...] = ()
    data: Mapping[str, Sequence[str]] = field(default_factory=dict)
    derive: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] | None = None
    family: Callable[[Mapping[str, str]], str] | None = None
    sweeps: tuple[Sweep, ...] = ()
    average: str = ""
    takes_weights: bool = False
    takes_network: bool = False
    version: int = 1

    def __post_init__(self) -> None:
        if twice := sorted(self.measures.keys() & {*self.factors, *self.details, "seed"}):
            raise InputError(f"study {self.name}: {twice[0]} is a measure and a level; rename one of them.")
        if self.sweeps and not self.compare:
            raise InputError(f"study {self.name}: a sweep is over the levels of `compare`, which is empty.")

    def scale(self, name: str) -> Scale:
        """A scale by its name."""
        if name not in self.scales:
            raise InputError(f"scale: the study {self.name} has no scale {name!r}; {did_you_mean(name, self.scales)}")
        return self.scales[name]

    def check_measures(self, names: Sequence[str]) -> Sequence[str]:
        """The names, each of which must be a measure."""
        for name in names:
            if name not in self.measures:
                raise InputError(f"measure: {self.name} measures {', '.join(self.measures)}, not {name!r}.")
        return names

    def levels(self, *scales: str) -> dict[str, list[str]]:
        """The levels of each factor at some scales, or at any."""
        sizes = [self.scale(name) for name in scales or self.scales]
        return {
            name: list(dict.fromkeys(level for size in sizes for level in size.levels.get(name, levels)))
            for name, levels in self.factors.items()
        }

    def cells(self, scale: str, seeds: int | None = None) -> Iterator[tuple[dict[str, str], int]]:
        """Levels and seed of every cell. Seeds are the outer loop: a run that is cut short is cut evenly."""
        levels, planned = self.levels(scale), self.scale(scale).seeds
        for seed in range(planned if seeds is None else seeds):
            for combination in itertools.product(*levels.values()):
                yield dict(zip(self.factors, combination, strict=True)), seed

    def files(self, scale: str, levels: Mapping[str, str]) -> list[str]:
        """Names of the data files that a cell reads."""
        names: list[str] = []
        for key, value in self.scale(scale).settings.items():
            if key.startswith("data"):
                names += [value] if isinstance(value, str) else value
        names += [name for level in levels.values() for name in self.data.get(level, ())]
        return [name for name in dict.fromkeys(names) if name not in BUILT_IN]

    @property
    def code(self) -> str:
        """The source of the file that declares it."""
        return inspect.getsource(sys.modules[self.measure.__module__])


STUDIES: Registry[Study] = Registry("study", Study)


def data_file(name: str, folder: Path | None) -> str:
    """The path of a data set in a folder; built-in data sets keep their name. ``A|B`` is A, or else B."""
    if name in BUILT_IN:
        return name
    shown = name.replace("|", " or ")
    if folder is None:
        raise InputError(f"data must name the folder that holds {shown}, got none; or choose --scale smoke.")
    if not folder.is_dir():
        raise MissingPathError(f"data: there is no folder {folder}.")
    for form in name.split("|"):
        if (folder / form).exists():
            return str(folder / form)
    raise MissingPathError(f"data: {folder} has no {shown}; put it there, or choose --scale smoke.")
