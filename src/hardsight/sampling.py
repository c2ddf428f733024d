"""Orders of training made from hardness: hard samples more often, or the easy ones first.

`hardness_of` lines a run up with a data set. The samplers are ordinary torch samplers of indices for a `DataLoader`::

    hardness = hs.sampling.hardness_of("run", data, by="avh")
    sampler = hs.CurriculumSampler(hardness, "root", epochs=30)
    loader = DataLoader(data, batch_size=128, sampler=sampler)
    for epoch in range(90):
        sampler.set_epoch(epoch)
        for images, labels in loader: ...

Epochs are counted from 0, as torch counts them. What is drawn depends on the seed, the epoch and the hardness alone, so
a resumed run needs no state of the sampler.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from scipy.stats import rankdata
from torch.utils.data import Sampler

from hardsight.data import open_data
from hardsight.distributed import by_first_process
from hardsight.dynamics import Dynamics, Recorder
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.recipes import MOST_EPOCHS
from hardsight.records import has_records, read_index
from hardsight.registry import whole_number
from hardsight.table import SampleTable

# ---------------------------------------------------------------------------------------------------------------------
# Hardness in the order of a data set; larger is harder.


def hardness_of(
    run: str | Path | SampleTable | Dynamics | Recorder, data: Any, by: str = "avh", *, largest: bool | None = None
) -> np.ndarray:
    """A column of a run in the order of a data set, turned so that larger is harder.

    Args:
        run: A scored run (its scores), a recorded run (its summary over the epochs), or a table.
        data: The data set as `hardsight.open_data` takes it, or its ids in order.
        by: The column, such as ``avh``, ``forgetting`` or ``aum``. Where ``learned`` is null (never learned) the sample
            counts as learned one epoch after the last that was.
        largest: Whether the largest values are the hardest; needed for a column that is not one of hardsight's.

    Raises:
        ValueError: The run lacks samples of the data set, or has no number for them.

    Examples:
        >>> table = SampleTable.from_columns({"id": ["a", "b", "c"], "confidence": [0.9, 0.2, 0.5]})
        >>> hardness_of(table, ["c", "b", "a"], by="confidence").tolist()
        [-0.5, -0.2, -0.9]
    """
    if isinstance(run, (str, Path)):
        run = Dynamics(run) if has_records(run) else SampleTable.load(run)
    table = run if isinstance(run, SampleTable) else run.summary()
    ids = _ids_of(data)
    values, found = _in_order(table, ids, by, largest)
    for lacking, what in ((~found, "is not in the run"), (np.isnan(values), f"has no {by} in the run")):
        if lacking.any():
            first = printable(ids[int(lacking.argmax())])
            raise InputError(
                f"data: {first!r} {what}, and so it is for {int(lacking.sum()):,} of {len(ids):,} samples; "
                "give the run of this data set, or only the samples that it holds."
            )
    return values


def latest_hardness(
    run: str | Path | Recorder | Dynamics, data: Any, by: str = "nll", *, largest: bool | None = None
) -> Callable[[], np.ndarray]:
    """A function that tells what a recorder last saw of each sample: what `SelfPacedSampler` asks every epoch.

    Each call reads the epochs that were committed since the call before, the newest first, until every sample is known;
    NaN where none has it yet.

    Args:
        run: The folder that is being recorded (it need not be there yet), or its recorder.
        data: The data set as `hardsight.open_data` takes it, or its ids in order.
        by: A column of one epoch: ``nll``, ``avh``, ``angle``, ``margin`` …; turned so that larger is harder.
        largest: As for `hardness_of`.
    """
    path, ids = Path(getattr(run, "path", run)), _ids_of(data)  # pyrefly: ignore[bad-argument-type]
    hardness, done, owner = np.full(len(ids), np.nan), 0, ""

    def latest() -> np.ndarray:
        nonlocal hardness, done, owner
        index = read_index(path)
        if index.owner != owner:  # a recorder that resumes may have gone back
            hardness, done, owner = np.full(len(ids), np.nan), 0, index.owner
        new, fresh = [epoch for epoch in index.epochs if epoch > done], np.full(len(ids), np.nan)
        recorded = Dynamics(path) if new else None
        for epoch in reversed(new):
            if recorded is None or not np.isnan(fresh).any():
                break
            fresh = np.where(np.isnan(fresh), _in_order(recorded.at(epoch), ids, by, largest)[0], fresh)
        hardness = np.where(np.isnan(fresh), hardness, fresh)
        finished = index.epochs[:-1] if index.open else index.epochs
        done = max([done, *finished[-1:]])
        return hardness

    return latest


def within_class(hardness: Any, labels: Any) -> np.ndarray:
    """Rank of each sample among those of its class, as a share in (0, 1]; ties have the mean of their ranks.

    With it a curriculum takes the same share of every class, and a sampler does not draw a hard class more often.

    Examples:
        >>> within_class([0.1, 0.2, 7.0, 9.0], [0, 0, 1, 1]).tolist()
        [0.5, 1.0, 0.5, 1.0]
    """
    values, labels = _checked(hardness), np.asarray(labels)
    if labels.shape != values.shape:
        raise InputError(f"labels must hold one label per sample, {len(values):,}, got shape {labels.shape}.")
    shares = np.empty(len(values))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        shares[rows] = rankdata(values[rows]) / len(rows)
    return shares


def _in_order(table: SampleTable, ids: Sequence[str], by: str, largest: bool | None) -> tuple[np.ndarray, np.ndarray]:
    """A column turned so that larger is harder, in the order of ids (NaN where it is missing), and who is there."""
    values = table.hardness(by, largest=largest)
    where = pc.index_in(pa.array(ids, pa.string()), value_set=table.to_arrow()["id"].cast(pa.string()).combine_chunks())
    found = pc.is_valid(where).to_numpy(zero_copy_only=False)
    if not len(table):
        return np.full(len(ids), np.nan), found
    return np.where(found, values[pc.fill_null(where, 0).to_numpy()], np.nan), found


def _ids_of(data: Any) -> list[str]:
    if isinstance(data, (list, tuple, np.ndarray)) and len(data) and all(isinstance(i, str) for i in data):
        return [str(i) for i in data]
    return open_data(data).ids


def _checked(hardness: Any, *, unknown: bool = False) -> np.ndarray:
    try:
        given = hardness if isinstance(hardness, torch.Tensor) else torch.from_numpy(np.array(hardness, np.float64))
        values = given.detach().cpu().double().numpy()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"hardness must be one number per sample, got {type(hardness).__name__}.") from None
    if values.ndim != 1 or not len(values):
        raise InputError(f"hardness must be one number per sample, got shape {values.shape}.")
    bad = np.isinf(values) if unknown else ~np.isfinite(values)
    if bad.any():
        raise InputError(
            f"hardness must be finite, got {values[bad][0]} at index {int(bad.argmax())} ({int(bad.sum()):,} of "
            f"{len(values):,}); leave those samples out, or say how hard they are."
        )
    return values


# ---------------------------------------------------------------------------------------------------------------------
# Pacing: which share of the data is used at time t, from 0 at the start to 1 at the end of the curriculum.


def linear(t: float, start: float = 0.2) -> float:
    """``s + (1 − s)·t``: as many new samples in every epoch."""
    return start + (1 - start) * t


def root(t: float, start: float = 0.2) -> float:
    """``√(s² + (1 − s²)·t)``: many new samples at first, fewer and fewer later (Platanios et al., 2019)."""
    return (start**2 + (1 - start**2) * t) ** 0.5


def exponential(t: float, start: float = 0.2) -> float:
    """``s^(1 − t)``: grows by the same factor in every epoch (Hacohen and Weinshall, 2019, without their steps)."""
    return start ** (1 - t)


def step(t: float, start: float = 0.2, steps: int = 3) -> float:
    """``s + (1 − s)·⌊steps·t⌋/steps``: the same share for a while, then a jump."""
    return start + (1 - start) * (int(steps * t + 1e-9) / steps)


PACINGS: dict[str, Callable[[float], float]] = {f.__name__: f for f in (linear, root, exponential, step)}


# ---------------------------------------------------------------------------------------------------------------------
# Samplers.

MOST_DRAWS = 2**31 - 1


class _EpochSampler(Sampler[int]):
    """An order of indices for each epoch, shared out to processes."""

    def __init__(self, seed: int, num_replicas: int, rank: int) -> None:
        self.seed, self.num_replicas = whole_number("seed", seed, 0), whole_number("num_replicas", num_replicas, 1)
        self.rank = whole_number("rank", rank, 0)
        if self.rank >= self.num_replicas:
            raise InputError(f"rank must be below num_replicas={num_replicas}, got {rank}.")
        self.epoch, self._begun = 0, False

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins, counted from 0."""
        self.epoch, self._begun = whole_number("epoch", epoch, 0), False

    def __len__(self) -> int:
        return self._size() // self.num_replicas

    def __iter__(self) -> Iterator[int]:
        if self._begun:
            warnings.warn(
                f"epoch {self.epoch} begins a second time, with the same samples in the same order; call "
                "sampler.set_epoch(epoch) before each epoch.",
                UserWarning,
                stacklevel=2,
            )
        self._begun = True
        order = self._draw(np.random.default_rng([self.seed, self.epoch]))
        return iter(order[: len(self) * self.num_replicas][self.rank :: self.num_replicas].tolist())

    def _size(self) -> int:
        raise NotImplementedError

    def _draw(self, random: np.random.Generator) -> np.ndarray:
        raise NotImplementedError

    def _enough(self, size: int) -> None:
        if size < self.num_replicas:
            raise InputError(f"an epoch would have {size} samples for {self.num_replicas} processes; draw more.")


class HardnessSampler(_EpochSampler):
    """Draws hard samples more often.

    Sample i is drawn with ``p_i = (1 − u)·r_i^a / Σ_j r_j^a + u/N``: r is its rank by hardness (1 the easiest, N the
    hardest, ties share the mean), a the `power` and u the share that is drawn `uniform`. Ranks, because scores differ
    in scale: whatever grows with hardness gives the same order. To keep the mean loss what it was, weight each
    sample's loss by ``1 / (N·p_i)``; the p are in `probabilities`.

    Args:
        hardness: One number per sample, larger is harder; see `hardness_of`.
        power: How strongly to prefer hard samples; 0 draws all alike, 1 the hardest about twice as
            often as the median.
        uniform: Share of the draws that is uniform, so that every sample keeps a chance.
        num_samples: Draws in an epoch over all processes; None as many as there are samples.
        replacement: Whether a sample may come twice in an epoch. Without, successive draws leave out what was drawn,
            and the epoch is shuffled afterwards; `num_samples` must then be smaller than the data for any effect.
        seed: Of what is drawn, together with the epoch.
        num_replicas: How many processes share an epoch. Each takes every `num_replicas`-th draw of the same order, and
            the few that cannot be shared evenly are left out. Leave it at 1 where a trainer shares out itself.
        rank: Which of them this is.

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
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(seed, num_replicas, rank)
        values = _checked(hardness)
        if not 0 <= power < float("inf"):
            raise InputError(f"power must be 0 or more, got {power}; for easy samples first take a CurriculumSampler.")
        if not 0 <= uniform <= 1:
            raise InputError(f"uniform must be a share in [0, 1], got {uniform}.")
        weight = (rankdata(values) / len(values)) ** power
        self.probabilities = (1 - uniform) * weight / weight.sum() + uniform / len(values)
        self.num_samples = (
            len(values) if num_samples is None else whole_number("num_samples", num_samples, 1, MOST_DRAWS)
        )
        self.replacement = replacement
        if not replacement and self.num_samples > len(values):
            raise InputError(
                f"num_samples={num_samples:,} is more than the {len(values):,} samples, so some must come twice; "
                "draw fewer, or with replacement=True."
            )
        self._enough(self.num_samples)

    def _size(self) -> int:
        return self.num_samples

    def _draw(self, random: np.random.Generator) -> np.ndarray:
        p, n = self.probabilities, len(self.probabilities)
        if self.replacement:
            return random.choice(n, self.num_samples, p=p)
        # Successive draws in one go: arrival times at rate p, the earliest first (Efraimidis and Spirakis, 2006).
        with np.errstate(divide="ignore"):
            arrival = random.exponential(size=n) / p
        return random.permutation(np.argpartition(arrival, self.num_samples - 1)[: self.num_samples])


class SelfPacedSampler(_EpochSampler):
    """Begins with the share of the data that is easiest now, and asks anew in every epoch how hard each sample is.

    Samples that nobody has seen yet (NaN) come first: what has not been tried cannot be called hard. So the first
    epochs go once through all data. A sample that is left out keeps the hardness it had when it was last seen, unless
    `hardness` tells otherwise. With `num_replicas` the first process asks and tells the others, so that all draw alike.

    Args:
        hardness: A function without arguments that returns one number per sample, larger is harder, NaN unknown: see
            `latest_hardness`. It is called once beforehand, for the number of samples, and once in every epoch.
        pacing: One of `PACINGS` by name, or a function from time in [0, 1] to a share in (0, 1].
        epochs: How many epochs the curriculum lasts; epoch e uses ``pacing(min(e / epochs, 1))`` of the data.
        num_samples: Samples in an epoch over all processes: the share is gone through again, shuffled anew, until there
            are so many. None: the share once, so that early epochs are shorter.
        hardest_first: Take the hardest share instead of the easiest.
        seed: Of the order and of who comes first among equals, together with the epoch.
        num_replicas: As in `HardnessSampler`.
        rank: As in `HardnessSampler`.
    """

    def __init__(
        self,
        hardness: Callable[[], Any],
        pacing: str | Callable[[float], float],
        epochs: int,
        *,
        num_samples: int | None = None,
        hardest_first: bool = False,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(seed, num_replicas, rank)
        if isinstance(pacing, str) and pacing not in PACINGS:
            raise InputError(f"pacing must be one of {', '.join(PACINGS)} or a function, got {pacing!r}.")
        self.pacing = PACINGS[pacing] if isinstance(pacing, str) else pacing
        self.epochs, self.hardest_first = whole_number("epochs", epochs, 1, MOST_EPOCHS), hardest_first
        self.num_samples = None if num_samples is None else whole_number("num_samples", num_samples, 1, MOST_DRAWS)
        if not callable(hardness):
            raise InputError(
                f"hardness must be a function that is asked every epoch, got {type(hardness).__name__}; "
                "for hardness that stays take a CurriculumSampler."
            )
        self._ask = hardness
        self._n = len(_checked(hardness(), unknown=True))
        for epoch in range(self.epochs + 1):
            if not 0 < (share := self.pacing(epoch / self.epochs)) <= 1 + 1e-9:
                raise InputError(
                    f"pacing must give a share in (0, 1], got {share} at t = {epoch / self.epochs:.3g} (epoch {epoch})."
                )
            self._enough(self._share(epoch) if self.num_samples is None else self.num_samples)

    def _share(self, epoch: int) -> int:
        """How many samples are in use in an epoch."""
        return max(1, round(self.pacing(min(epoch / self.epochs, 1.0)) * self._n))

    def _size(self) -> int:
        return self._share(self.epoch) if self.num_samples is None else self.num_samples

    def _now(self) -> np.ndarray:
        hardness = by_first_process(self._asked) if self.num_replicas > 1 else self._asked()
        if len(hardness) != self._n:
            raise InputError(f"hardness must be one number per sample, {self._n:,} as at first, got {len(hardness):,}.")
        return hardness

    def _asked(self) -> np.ndarray:
        return _checked(self._ask(), unknown=True)

    def _draw(self, random: np.random.Generator) -> np.ndarray:
        hardness = self._now()
        late = -hardness if self.hardest_first else hardness
        # Among equals chance decides, not the order of the data, which is often by class; the same chance in every
        # epoch, so that with hardness that stays each epoch's samples contain those of the one before.
        chance = np.random.default_rng([self.seed, 0, 1]).permutation(self._n)
        used = np.lexsort((chance, np.where(np.isnan(late), -np.inf, late)))[: self._share(self.epoch)]
        passes = [random.permutation(used) for _ in range(-(-self._size() // len(used)))]
        return np.concatenate(passes)[: self._size()]


class CurriculumSampler(SelfPacedSampler):
    """Begins with the easiest share of the data and adds harder samples as a pacing function says.

    Args:
        hardness: One number per sample, larger is harder; see `hardness_of`, `within_class` for shares of each class.
        pacing: As in `SelfPacedSampler`, and so are the others.

    Examples:
        >>> sampler = CurriculumSampler([0.5, 0.1, 0.9, 0.3], "linear", epochs=4)
        >>> for epoch in range(5):
        ...     sampler.set_epoch(epoch)
        ...     print(len(sampler), sorted(sampler))
        1 [1]
        2 [1, 3]
        2 [1, 3]
        3 [0, 1, 3]
        4 [0, 1, 2, 3]
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
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(
            _checked(hardness).copy,  # unlike a lambda it can be sent to another process
            pacing,
            epochs,
            num_samples=num_samples,
            hardest_first=hardest_first,
            seed=seed,
            num_replicas=num_replicas,
            rank=rank,
        )

    def _now(self) -> np.ndarray:
        return self._ask()
