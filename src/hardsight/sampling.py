"""Samplers that order training by hardness: hard samples more often, or easy samples first.

Call `set_epoch` before each epoch, counted from 0, as in torch. An order depends only on the seed, the epoch and the
hardness. Every process draws the same order; `hardsight.train`, Lightning and accelerate shard it themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from scipy.stats import rankdata
from torch.utils.data import Sampler

from hardsight.data import open_data
from hardsight.dynamics import Dynamics, Recorder
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.recipes import MOST_EPOCHS
from hardsight.records import has_records, read_index
from hardsight.registry import Range, whole_number
from hardsight.table import SampleTable


def hardness_of(
    run: str | Path | SampleTable | Dynamics | Recorder, data: Any, by: str = "avh", *, largest: bool | None = None
) -> np.ndarray:
    """A column of a run in the order of a data set, with its sign changed if necessary so that larger is harder.

    Args:
        run: A scored run (its scores), a recorded run (its summary over the epochs), or a table.
        data: The data set, as for `hardsight.open_data`, or its ids in order; each must have a value in the run.
        by: The column, such as ``avh``, ``forgetting`` or ``learned`` (where samples never learned are the hardest).
        largest: Whether the largest values are the hardest; required for a column that hardsight does not know.
    """
    if isinstance(run, (str, Path)):
        run = Dynamics(run) if has_records(run) else SampleTable.load(run)
    ids = _ids_of(data)
    values = _aligned(run if isinstance(run, SampleTable) else run.summary(), ids, by, largest)
    if (missing := np.isnan(values)).any():
        first, count = printable(ids[int(missing.argmax())]), f"{missing.sum():,} of {len(ids):,} samples have none"
        raise InputError(f"data: {first!r} has no {by} in the run ({count}); give the run of this data set.")
    return values


def latest_hardness(
    run: str | Path | Recorder | Dynamics, data: Any, by: str = "nll", *, largest: bool | None = None
) -> Callable[[], np.ndarray]:
    """A function that returns the latest recorded hardness of each sample (NaN: none yet), for a `CurriculumSampler`.

    Args:
        run: The folder that is being recorded (it need not exist yet), or its recorder.
        data, largest: As for `hardness_of`.
        by: A per-epoch column: ``nll``, ``avh``, ``angle``, ``margin`` …
    """
    path, ids = Path(getattr(run, "path", run)), _ids_of(data)  # pyrefly: ignore[bad-argument-type]
    unknown = np.full(len(ids), np.nan)
    hardness, done, owner = unknown, 0, ""

    def latest() -> np.ndarray:
        nonlocal hardness, done, owner
        index = read_index(path)
        if index.owner != owner:  # a resumed recorder may have gone back
            hardness, done, owner = unknown, 0, index.owner
        recent = unknown
        for epoch in reversed([epoch for epoch in index.epochs if epoch > done]):  # until every sample has a value
            if np.isnan(recent).any():
                recent = np.where(np.isnan(recent), _aligned(Dynamics(path).at(epoch), ids, by, largest), recent)
        hardness = np.where(np.isnan(recent), hardness, recent)
        done = max([done, *(index.epochs[:-1] if index.open else index.epochs)])
        return hardness

    return latest


def within_class(hardness: Any, labels: Any) -> np.ndarray:
    """Rank of each sample within its class, in (0, 1], ties share their mean: hard classes are not drawn more often."""
    values, labels = _checked(hardness), np.asarray(labels)
    if labels.shape != values.shape:
        raise InputError(f"labels must hold one label per sample, {len(values):,}, got shape {labels.shape}.")
    ranks = np.empty(len(values))
    for label in np.unique(labels):
        ranks[labels == label] = rankdata(values[labels == label]) / (labels == label).sum()
    return ranks


def _aligned(table: SampleTable, ids: list[str], by: str, largest: bool | None) -> np.ndarray:
    """The hardness of these ids, in order; NaN if the table has none."""
    rows = pa.table({"id": table.column("id"), "hardness": table.hardness(by, largest=largest)})
    return SampleTable(rows).aligned(ids)["hardness"].to_numpy()


def _ids_of(data: Any) -> list[str]:
    are_ids = isinstance(data, (list, tuple, np.ndarray)) and len(data) and all(isinstance(i, str) for i in data)
    return list(map(str, data)) if are_ids else open_data(data).ids


def _checked(hardness: Any, *, allow_nan: bool = False) -> np.ndarray:
    try:
        values = np.array(hardness.detach().cpu().double() if isinstance(hardness, torch.Tensor) else hardness, float)
    except (TypeError, ValueError):
        raise InputError(f"hardness must be one number per sample, got {type(hardness).__name__}.") from None
    if values.ndim != 1 or not len(values):
        raise InputError(f"hardness must be one number per sample, got shape {values.shape}.")
    if (bad := np.isinf(values) if allow_nan else ~np.isfinite(values)).any():
        count = f"{bad.sum():,} of {len(bad):,}"
        raise InputError(f"hardness must be finite, got {values[bad][0]} at index {bad.argmax()} ({count}).")
    return values


def linear(t: float, start: float = 0.2) -> float:
    """``s + (1 − s)·t``: the same number of new samples in every epoch."""
    return start + (1 - start) * t


def root(t: float, start: float = 0.2) -> float:
    """``√(s² + (1 − s²)·t)``: many new samples at first, fewer later (Platanios et al., 2019)."""
    return (start**2 + (1 - start**2) * t) ** 0.5


def exponential(t: float, start: float = 0.2) -> float:
    """``s^(1 − t)``: grows by the same factor in every epoch (Hacohen and Weinshall, 2019, without their steps)."""
    return start ** (1 - t)


def step(t: float, start: float = 0.2, steps: int = 3) -> float:
    """``s + (1 − s)·⌊steps·t⌋/steps``: constant between jumps."""
    return start + (1 - start) * (int(steps * t + 1e-9) / steps)


# The share of the data in use at time t, from 0 at the start to 1 at the end of the curriculum.
PACINGS: dict[str, Callable[[float], float]] = {f.__name__: f for f in (linear, root, exponential, step)}


class _EpochSampler(Sampler[int]):
    """A new order of indices in every epoch."""

    _order: Any  # maps the random generator of an epoch to its indices

    def __init__(self, seed: int, num_samples: int | None) -> None:
        self.seed, self.epoch, self._started = whole_number("seed", seed, 0), 0, False
        self.num_samples = None if num_samples is None else whole_number("num_samples", num_samples, 1, 2**31 - 1)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that starts next, counted from 0."""
        self.epoch, self._started = whole_number("epoch", epoch, 0), False

    def __iter__(self) -> Iterator[int]:
        if self._started:
            warnings.warn(f"epoch {self.epoch} starts a second time; call set_epoch before each epoch.", stacklevel=2)
        self._started = True
        return iter(self._order(np.random.default_rng([self.seed, self.epoch])).tolist())


class HardnessSampler(_EpochSampler):
    """Draws hard samples more often.

    Sample i is drawn with probability ``p_i = (1 − u)·r_i^a / Σ_j r_j^a + u/N``, where r is its rank by hardness (1 the
    easiest, N the hardest, ties share their mean), a is `power` and u is `uniform`. To keep the expected loss
    unchanged, weight each sample's loss by ``1 / (N·p_i)``; p is the attribute `probabilities`.

    Args:
        hardness: One number per sample, larger is harder; see `hardness_of`.
        power: 0 draws uniformly; 1 draws the hardest sample about twice as often as the median one.
        uniform: Share of uniform draws, so that every sample keeps a chance.
        num_samples: Draws per epoch; None: the number of samples.
        replacement: Whether a sample can occur twice in an epoch. If not, draw fewer than all for hardness to matter.
        seed: Seed of the draws, together with the epoch.

    Examples:
        >>> HardnessSampler([0.1, 0.5, 0.9], uniform=0).probabilities.round(3).tolist()  # 1, 2 and 3 of 6
        [0.167, 0.333, 0.5]
    """

    def __init__(
        self, hardness: Any, *, power: float = 1.0, uniform: float = 0.1,
        num_samples: int | None = None, replacement: bool = True, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(seed, num_samples)
        n = len(values := _checked(hardness))
        Range(0).check(power, "power")
        Range(0, 1).check(uniform, "uniform")
        self.num_samples, self.replacement = self.num_samples or n, replacement
        if not replacement and self.num_samples > n:
            raise InputError(f"num_samples={num_samples} is more than the {n:,} samples; set replacement=True.")
        weight = (rankdata(values) / n) ** power
        self.probabilities = (1 - uniform) * weight / weight.sum() + uniform / n

    def __len__(self) -> int:
        return self.num_samples

    def _order(self, random: np.random.Generator) -> np.ndarray:
        p = self.probabilities
        if self.replacement:
            return random.choice(len(p), self.num_samples, p=p)
        # Successive draws at once: the earliest arrivals at rate p (Efraimidis and Spirakis, 2006).
        with np.errstate(divide="ignore"):
            arrival = random.exponential(size=len(p)) / p
        return random.permutation(np.argpartition(arrival, self.num_samples - 1)[: self.num_samples])


class CurriculumSampler(_EpochSampler):
    """Starts with the easiest share of the data and adds harder samples according to a pacing function.

    With a function as `hardness` the curriculum is self-paced: each epoch ranks the samples by their current hardness.
    Samples without one (NaN) come first, so the first epochs go through all data once.

    Args:
        hardness: One number per sample, larger is harder, or a function without arguments that returns them (see
            `latest_hardness`), called once now and once per epoch; it must return the same in every process.
        pacing: A name in `PACINGS`, or a function from time in [0, 1] to a share in (0, 1].
        epochs: Length of the curriculum; epoch e uses ``pacing(min(e / epochs, 1))`` of the data.
        num_samples: Samples per epoch, in passes over the share; None: one pass, so that early epochs are shorter.
        hardest_first: Start with the hardest share instead.
        seed: Seed of the order and of ties, together with the epoch.

    Examples:
        >>> sampler = CurriculumSampler([0.1, 0.9, 0.5, 0.3, 0.7], "linear", epochs=4)
        >>> list(sampler)  # the easiest fifth
        [0]
        >>> sampler.set_epoch(2)
        >>> sorted(sampler)  # three fifths
        [0, 2, 3]
    """

    def __init__(
        self, hardness: Any, pacing: str | Callable[[float], float], epochs: int, *,
        num_samples: int | None = None, hardest_first: bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(seed, num_samples)
        if isinstance(pacing, str) and pacing not in PACINGS:
            raise InputError(f"pacing must be one of {', '.join(PACINGS)} or a function, got {pacing!r}.")
        self.pacing = PACINGS[pacing] if isinstance(pacing, str) else pacing
        self.epochs, self.hardest_first = whole_number("epochs", epochs, 1, MOST_EPOCHS), hardest_first
        for epoch in range(self.epochs + 1):
            if not 0 < (share := self.pacing(t := epoch / self.epochs)) <= 1 + 1e-9:
                raise InputError(f"pacing must give a share in (0, 1], got {share} at t = {t:.3g} (epoch {epoch}).")
        self._hardness = hardness if callable(hardness) else _checked(hardness)
        self._n = len(self._current())

    def _current(self) -> np.ndarray:
        return _checked(self._hardness(), allow_nan=True) if callable(self._hardness) else self._hardness

    def _in_use(self) -> int:
        return max(1, round(self.pacing(min(self.epoch / self.epochs, 1.0)) * self._n))

    def __len__(self) -> int:
        return self.num_samples or self._in_use()

    def _order(self, random: np.random.Generator) -> np.ndarray:
        hardness = self._current()
        if len(hardness) != self._n:
            raise InputError(f"hardness must be one number per sample, {self._n:,} as at first, got {len(hardness):,}.")
        key = -hardness if self.hardest_first else hardness
        # Ties are broken at random, not by the order of the data, which is often by class; and in the same way in every
        # epoch, so that each epoch contains the samples of the previous one as long as hardness stays the same.
        tiebreak = np.random.default_rng([self.seed, 0, 1]).permutation(self._n)
        rows = np.lexsort((tiebreak, np.where(np.isnan(key), -np.inf, key)))[: self._in_use()]
        passes = [random.permutation(rows) for _ in range(-(-len(self) // len(rows)))]
        return np.concatenate(passes)[: len(self)]
