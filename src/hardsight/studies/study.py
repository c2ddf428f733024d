"""What a study is: cells, which are levels of some factors times seeds, and a function that measures one of them.

A study is one file in `hardsight.studies.declared`: the function under ``@STUDIES.register(...)``. Numbers of the paper
are in ``published/NAME.csv``: a column per factor, and measure, value, sd and source.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hardsight.errors import InputError, MissingPathError
from hardsight.registry import Registry, did_you_mean


class Measure(NamedTuple):
    """A number that a study measures: its title, whether it is shown in percent, and which way is better."""

    title: str
    percent: bool = False
    better: str = ""  # "higher", "lower", or "" where neither is


@dataclass(frozen=True)
class Scale:
    """How large a study is.

    Attributes:
        seeds: How many, unless the user says otherwise.
        seconds: That a cell takes, about.
        hardware: On which that is.
        settings: What the cells need to know: epochs, data, …
        levels: Of factors, where they are fewer than all.
    """

    seeds: int
    seconds: float
    hardware: str = "2 CPU cores"
    settings: Mapping[str, Any] = field(default_factory=dict)
    levels: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One computation of a study.

    Attributes:
        levels: The level of each factor.
        seed: The seed.
        settings: Those of the scale.
        data: The folder with data sets, as the user named it.
        device: Where to compute.
        folder: An empty folder for files that are deleted afterwards.
    """

    levels: Mapping[str, str]
    seed: int
    settings: Mapping[str, Any]
    data: Path | None
    device: torch.device
    folder: Path

    def file(self, name: str) -> str:
        """A data set of the folder; names without a suffix (``digits``) are data sets of hardsight."""
        return data_file(name, self.data)


Row = Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """A comparison that can be run again.

    Attributes:
        name: In `STUDIES` and on the command line.
        measure: Computes a cell: a row of measures, or rows that other columns tell apart (see `details`).
        question: What it asks, in one line.
        paper: The table or figure that it is about.
        factors: The levels of each factor; the first factor varies slowest.
        measures: What is measured, the most important first.
        scales: ``smoke`` for tests, ``quick``, ``paper``.
        compare: The factor whose levels are compared; empty if none are.
        baseline: The level that the others are compared with.
        details: Other columns that tell the rows of a cell apart.
        version: Goes up when results change their meaning: cells of before are then computed again.
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
    details: tuple[str, ...] = ()
    version: int = 1

    def scale(self, name: str) -> Scale:
        """A scale by its name, or a sentence."""
        if name not in self.scales:
            raise InputError(f"scale: the study {self.name} has no scale {name!r}; {did_you_mean(name, self.scales)}")
        return self.scales[name]

    def cells(self, scale: str, seeds: int | None = None) -> Iterator[tuple[dict[str, str], int]]:
        """Levels and seed of every cell. Seeds are the outer loop: what is cut short is cut evenly."""
        chosen = self.scale(scale)
        levels = [chosen.levels.get(name, levels) for name, levels in self.factors.items()]
        for seed in range(chosen.seeds if seeds is None else seeds):
            for combination in itertools.product(*levels):
                yield dict(zip(self.factors, combination, strict=True)), seed

    @property
    def code(self) -> str:
        """The source of the file that declares it."""
        return inspect.getsource(sys.modules[self.measure.__module__])


STUDIES: Registry[Study] = Registry("study", Study)


def data_file(name: str, folder: Path | None) -> str:
    """The path of a data set; names without a suffix are data sets of hardsight."""
    if not Path(name).suffix:
        return name
    if folder is None:
        raise InputError(f"data must name the folder that holds {name}, got none; or choose --scale smoke.")
    if not (folder / name).exists():
        raise MissingPathError(f"data: {folder} has no {name}; put it there, or choose --scale smoke.")
    return str(folder / name)
