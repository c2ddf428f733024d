"""A recorded network with its human frequencies, as the judges of the AVH paper's observations take it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import InputError
from hardsight.people import frequency_bins
from hardsight.phases import agreement, plateaus
from hardsight.stats import FEW

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

STRETCH = 3  # fewest epochs of a mean over a stretch
PEOPLE = "human frequencies of 10 samples or more are needed"


@dataclass
class Net:
    """A recorded run with its human frequencies; what several claims need is computed once."""

    name: str
    run: Dynamics
    human: np.ndarray | None
    shortcuts: bool | None
    decays: tuple[int, ...] = ()

    def correlations(self, score: str) -> list[dict[str, Any]]:
        """The rows of `agreement` with a correlation of one score."""
        rows = [row for row in self._agreement if row["score"] == score and row["spearman"] is not None]
        if not rows:
            raise InputError(PEOPLE)
        return rows

    @cached_property
    def _agreement(self) -> list[dict[str, Any]]:
        if self.human is None:
            return []
        return agreement(self.run, self.human, ("avh", "confidence", "norm")).to_pylist()

    @cached_property
    def plateaus(self) -> dict[str, dict[str, Any]]:
        return {row["value"]: row for row in plateaus(self.run).to_pylist()}

    @property
    def avh_moves_on(self) -> str:
        """Why AVH does not fall to a plateau; empty if it does."""
        avh = self.plateaus["avh"]
        why = avh["why"] or ("it rises" if avh["end"] > avh["start"] else "")
        return f"AVH has no plateau: {why}" if why else ""

    @cached_property
    def levels(self) -> np.ndarray:
        if self.human is None:
            raise InputError(PEOPLE)
        return frequency_bins(self.human)

    @property
    def ends(self) -> tuple[str, str]:
        """The lowest and the highest human level with enough samples."""
        kept = [level for level in sorted(set(self.levels) - {None}) if (self.levels == level).sum() >= FEW]
        if len(kept) < 2:
            raise InputError(f"fewer than two human levels have {FEW} samples")
        return kept[0], kept[-1]

    @property
    def stages(self) -> list[np.ndarray]:
        """Indices of the epochs between decays of the learning rate."""
        if not self.decays:
            raise InputError("the epochs at which the learning rate decays are needed")
        parts = np.split(np.arange(len(self.run.epochs)), np.searchsorted(self.run.epochs, self.decays, side="right"))
        if min(map(len, parts)) < 2 * STRETCH:
            raise InputError(f"{2 * STRETCH} epochs are needed before and after every decay")
        return parts

    @property
    def kind(self) -> str:
        if self.shortcuts is None:
            raise InputError("which nets have shortcuts is needed")
        return f"{'with' if self.shortcuts else 'without'} shortcuts"
