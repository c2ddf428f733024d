"""Samplers that order training by hardness: hard samples more often, or easy samples first.

They are ordinary torch samplers for a `DataLoader`; call `set_epoch` before each epoch, counted from 0, as in torch. An
order depends only on the seed, the epoch and the hardness, so a resumed run needs no sampler state. Every process draws
the same order; `hardsight.train`, Lightning and accelerate shard it themselves.
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
from hardsight.registry import whole_number
from hardsight.table import SampleTable


def hardness_of(
    run: str | Path | SampleTable | Dynamics | Recorder, data: Any, by: str = "avh", *, largest: bool | None = None
) -> np.ndarray:
    """A column of a run in the order of a data set, with its sign changed if necessary so that larger is harder.

    Args:
        run: A scored run (its scores), a recorded run (its summary over the epochs), or a table.
        data: The data set, as for `hardsight.open_data`, or its ids in order; each must have a value in the run.
        by: The column, such as ``avh``, ``forgetting`` or ``aum``. Samples that were never learned (``learned`` is
            null) rank one epoch after the last sample that was.
        largest: Whether the largest values are the hardest; required for a column that hardsight does not know.

    Examples:
        >>> table = SampleTable.from_columns({"id": ["a", "b", "c"], "confidence": [0.9, 0.2, 0.5]})
        >>> hardness_of(table, ["c", "b", "a"], by="confidence").tolist()
        [-0.5, -0.2, -0.9]
    """
    if isinstance(run, (str, Path)):
        run = Dynamics(run) if has_records(run) else SampleTable.load(run)
    table = run if isinstance(run, SampleTable) else run.summary()
    ids = _ids_of(data)
    rows = _aligned(table, ids, by, largest)
    values = rows["hardness"].to_numpy()
    absent = rows["id"].is_null().to_numpy()
    for missing, problem in ((absent, "is not in the run"), (np.isnan(values), f"has no {by} in the run")):
        if missing.any():
            raise InputError(
                f"data: {printable(ids[int(missing.argmax())])!r} {problem} (in all {int(missing.sum()):,} of "
                f"{len(ids):,} samples); give the run of this data set, or only the samples in the run."
            )
    return values


def latest_hardness(
    run: str | Path | Recorder | Dynamics, data: Any, by: str = "nll", *, largest: bool | None = None
) -> Callable[[], np.ndarray]:
    """A function that returns the most recently recorded hardness of each sample, for a `CurriculumSampler`.

    Each call reads only the epochs committed since the previous call, newest first; NaN for samples not yet recorded.

    Args:
        run: The folder that is being recorded (it need not exist yet), or its recorder.
        data: The data set, as for `hardsight.open_data`, or its ids in order.
        by: A per-epoch column: ``nll``, ``avh``, ``angle``, ``margin`` …
        largest: As for `hardness_of`.
    """
    path, ids = Path(getattr(run, "path", run)), _ids_of(data)  # pyrefly: ignore[bad-argument-type]
    hardness, done, owner = np.full(len(ids), np.nan), 0, ""

    def latest() -> np.ndarray:
        nonlocal hardness, done, owner
        index = read_index(path)
        if index.owner != owner:  # a recorder that resumes may have gone back
            hardness, done, owner = np.full(len(ids), np.nan), 0, index.owner
        fresh = np.full(len(ids), np.nan)
        for epoch in reversed([epoch for epoch in index.epochs if epoch > done]):
            if np.isnan(fresh).any():
                values = _aligned(Dynamics(path).at(epoch), ids, by, largest)["hardness"].to_numpy()
                fresh = np.where(np.isnan(fresh), values, fresh)
        hardness = np.where(np.isnan(fresh), hardness, fresh)
        done = max([done, *(index.epochs[:-1] if index.open else index.epochs)])
        return hardness

    return latest


def within_class(hardness: Any, labels: Any) -> np.ndarray:
    """Rank of each sample within its class, as a fraction in (0, 1]; ties share their mean rank.

    A curriculum on these ranks takes the same share of every class, and no class is drawn more often for being hard.

    Examples:
        >>> within_class([0.1, 0.2, 7.0, 9.0], [0, 0, 1, 1]).tolist()
        [0.5, 1.0, 0.5, 1.0]
    """
    values, labels = _checked(hardness), np.asarray(labels)
    if labels.shape != values.shape:
        raise InputError(f"labels must hold one label per sample, {len(values):,}, got shape {labels.shape}.")
    ranks = np.empty(len(values))
    for label in np.unique(labels):
        rows = labels == label
        ranks[rows] = rankdata(values[rows]) / rows.sum()
    return ranks


def _aligned(table: SampleTable, ids: list[str], by: str, largest: bool | None) -> pa.Table:
    """id and hardness in the order of these ids; null where one is not in the table."""
    rows = pa.table({"id": table.to_arrow()["id"], "hardness": table.hardness(by, largest=largest)})
    return table.with_rows(rows).aligned(ids)


def _ids_of(data: Any) -> list[str]:
    if isinstance(data, (list, tuple, np.ndarray)) and len(data) and all(isinstance(i, str) for i in data):
        return [str(i) for i in data]
    return open_data(data).ids


def _checked(hardness: Any, *, allow_nan: bool = False) -> np.ndarray:
    try:
        given = hardness if isinstance(hardness, torch.Tensor) else torch.from_numpy(np.array(hardness, np.float64))
        values = given.detach().cpu().double().numpy()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"hardness must be one number per sample, got {type(hardness).__name__}.") from None
    if values.ndim != 1 or not len(values):
        raise InputError(f"hardness must be one number per sample, got shape {values.shape}.")
    if (bad := np.isinf(values) if allow_nan else ~np.isfinite(values)).any():
        raise InputError(
            f"hardness must be finite, got {values[bad][0]} at index {int(bad.argmax())} ({int(bad.sum()):,} of "
            f"{len(values):,}); remove those samples or fill in a value."
        )
    return values


# Pacing: the share of the data in use at time t, from 0 at the start to 1 at the end of the curriculum.


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


PACINGS: dict[str, Callable[[float], float]] = {f.__name__: f for f in (linear, root, exponential, step)}


class _EpochSampler(Sampler[int]):
    """A new order of indices in every epoch."""

    def __init__(self, seed: int, num_samples: int | None) -> None:
        self.seed, self.epoch, self._started = whole_number("seed", seed, 0), 0, False
        self.num_samples = None if num_samples is None else whole_number("num_samples", num_samples, 1, 2**31 - 1)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that starts next, counted from 0."""
        self.epoch, self._started = whole_number("epoch", epoch, 0), False

    def _generator(self) -> np.random.Generator:
        """The random numbers of this epoch; a warning if it has started before."""
        if self._started:
            warnings.warn(
                f"epoch {self.epoch} starts a second time, with the same samples in the same order; call "
                "sampler.set_epoch(epoch) before each epoch.",
                UserWarning,
                stacklevel=3,
            )
        self._started = True
        return np.random.default_rng([self.seed, self.epoch])


class HardnessSampler(_EpochSampler):
    """Draws hard samples more often.

    Sample i is drawn with probability ``p_i = (1 − u)·r_i^a / Σ_j r_j^a + u/N``, where r is its rank by hardness (1 the
    easiest, N the hardest, ties share their mean), a is `power` and u is `uniform`. Ranks make scores of any scale
    comparable. To keep the expected loss unchanged, weight each sample's loss by ``1 / (N·p_i)``; see `probabilities`.

    Args:
        hardness: One number per sample, larger is harder; see `hardness_of`.
        power: How strongly to prefer hard samples: 0 draws uniformly, 1 draws the hardest about twice as often as
            the median.
        uniform: Share of uniform draws, so that every sample keeps a chance.
        num_samples: Draws per epoch; None: as many as there are samples.
        replacement: Whether a sample can occur twice in an epoch. Without replacement, `num_samples` must be smaller
            than the data for hardness to have any effect.
        seed: Seed of the draws, together with the epoch.

    Attributes:
        probabilities: p of each sample.
    """

    def __init__(
        self,
        hardness: Any,
        *,
        power: float = 1.0,
        uniform: float = 0.1,
        num_samples: int | None = None,
        replacement: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(seed, num_samples)
        n = len(values := _checked(hardness))
        if not 0 <= power < float("inf"):
            raise InputError(f"power must be 0 or more, got {power}; for easy samples first use a CurriculumSampler.")
        if not 0 <= uniform <= 1:
            raise InputError(f"uniform must be a share in [0, 1], got {uniform}.")
        self.num_samples, self.replacement = self.num_samples or n, replacement
        if not replacement and self.num_samples > n:
            raise InputError(
                f"num_samples={num_samples:,} is more than the {n:,} samples; draw fewer, or set replacement=True."
            )
        weight = (rankdata(values) / n) ** power
        self.probabilities = (1 - uniform) * weight / weight.sum() + uniform / n

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        random, p, n = self._generator(), self.probabilities, len(self.probabilities)
        if self.replacement:
            return iter(random.choice(n, self.num_samples, p=p).tolist())
        # Successive draws at once: the earliest arrivals at rate p (Efraimidis and Spirakis, 2006).
        with np.errstate(divide="ignore"):
            arrival = random.exponential(size=n) / p
        return iter(random.permutation(np.argpartition(arrival, self.num_samples - 1)[: self.num_samples]).tolist())


class CurriculumSampler(_EpochSampler):
    """Starts with the easiest share of the data and adds harder samples as a pacing function says.

    With a function as `hardness` the curriculum is self-paced: each epoch ranks the samples by their current hardness.
    Samples without one (NaN) come first, so the first epochs go through all data once.

    Args:
        hardness: One number per sample, larger is harder (see `hardness_of` and `within_class`), or a function without
            arguments that returns them (see `latest_hardness`). The function is called once now, for the number of
            samples, and once per epoch; it must return the same in every process.
        pacing: A name in `PACINGS`, or a function from time in [0, 1] to a share in (0, 1].
        epochs: Length of the curriculum; epoch e uses ``pacing(min(e / epochs, 1))`` of the data.
        num_samples: Samples per epoch: passes over the share, each shuffled anew, until there are this many.
            None: one pass, so that early epochs are shorter.
        hardest_first: Start with the hardest share instead.
        seed: Seed of the order and of ties, together with the epoch.

    Examples:
        >>> sampler = CurriculumSampler([0.5, 0.1, 0.9, 0.3], "linear", epochs=4)
        >>> sampler.set_epoch(3)
        >>> len(sampler), sorted(sampler)
        (3, [0, 1, 3])
    """

    def __init__(
        self,
        hardness: Any,
        pacing: str | Callable[[float], float],
        epochs: int,
        *,
        num_samples: int | None = None,
        hardest_first: bool = False,
        seed: int = 0,
    ) -> None:
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

    def _share(self) -> int:
        """Number of samples in use in this epoch."""
        return max(1, round(self.pacing(min(self.epoch / self.epochs, 1.0)) * self._n))

    def __len__(self) -> int:
        return self.num_samples or self._share()

    def __iter__(self) -> Iterator[int]:
        random, hardness = self._generator(), self._current()
        if len(hardness) != self._n:
            raise InputError(f"hardness must be one number per sample, {self._n:,} as at first, got {len(hardness):,}.")
        key = -hardness if self.hardest_first else hardness
        # Ties are broken at random, not by the order of the data, which is often by class; and in the same way in every
        # epoch, so that each epoch contains the samples of the previous one as long as hardness stays the same.
        tiebreak = np.random.default_rng([self.seed, 0, 1]).permutation(self._n)
        rows = np.lexsort((tiebreak, np.where(np.isnan(key), -np.inf, key)))[: self._share()]
        passes = [random.permutation(rows) for _ in range(-(-len(self) // len(rows)))]
        return iter(np.concatenate(passes)[: len(self)].tolist())
