"""How to score, declared once: the command, Python and the pass over the data use the same options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from hardsight.engines import Ray
from hardsight.errors import InputError
from hardsight.registry import Option, whole_number
from hardsight.scores import SCORES
from hardsight.stores import StorePath, as_path


def score_names(scores: str | Iterable[str] | None) -> list[str]:
    """Registered names, all of them by default; always with the norm, by which zero features are counted."""
    names = SCORES.names(SCORES if scores is None else scores)
    return names if "norm" in names else [*names, "norm"]


class Shard(NamedTuple):
    """The share of one of several processes: every `world`-th sample, starting with `rank`.

    `meet` waits until every process has called it; without it, several processes cannot overwrite a run.
    """

    rank: int = 0
    world: int = 1
    meet: Callable[[], object] | None = None


@dataclass(frozen=True)
class ScoreOptions:
    """How to score a data set.

    Args:
        out: Run folder to write while scoring. After an interruption, the same call resumes.
        folds: Score out of sample, in K folds: each fold is scored by a head fitted to the labels of the others on the
            model's features, or, where the model is a training function, by a network trained on the others. A
            network hides the label errors of the data it was trained on.
        seeds: Repeat the folds N times; scores are then averaged, with their standard deviation beside them.
        seed: Seed of the first division into folds; repeats use the next ones.
        head: Path of the last linear layer, where it cannot be found; for features, a file with its weight and bias.
        scores: Names from `SCORES`; all of them by default.
        use_bias: Whether logits include the head's bias; in the AVH paper's Definition 1 they do not.
        vectors: Store a sketch of each feature and, up to 100 classes, the probabilities: for clusters and cleanlab.
        batch_size: Samples per forward pass.
        workers: Loader processes; chosen by device if not given.
        decode: Where JPEG files are decoded and preprocessed: cpu, or gpu, for machines with few processor cores. The
            decoders differ slightly, and so do the scores. Other files are always read on the CPU.
        device: cpu, cuda, cuda:1 or mps; the first GPU if there is one, under torchrun that of the process.
        root: Where torchvision keeps its data sets.
        version: Any text that you change whenever data or code change. Needed to resume where hardsight cannot tell
            whether they changed: a data set of your own, a function without source text.
        strict: Stop at the first bad sample instead of listing it.
        overwrite: Replace an existing run in the folder; other files are left alone.
        progress: Show a progress bar (in a terminal only).
        shard: (rank, world size) of the processes that write `out` together: each scores every world-size-th unit of
            samples, or trains every world-size-th fold, and the last to finish completes the run. Nothing is divided
            unless you ask for it, not even under torchrun.
        engine: Who scores: this process (local), or the workers of a Ray cluster (ray); in Python also an engine of
            `hardsight.engines` with options of its own.
        ray_address: Address of a running Ray cluster; a Ray on this machine if not given.
        ray_workers: How many workers of Ray; one per GPU, or per processor core without GPUs, if not given.
    """

    out: Path | None = None
    folds: int | None = None
    seeds: int = 1
    seed: int = 0
    head: str | None = None  # in Python also the layer itself
    scores: Sequence[str] | None = None
    use_bias: bool = True
    vectors: bool = True
    batch_size: int = 64
    workers: int | None = None
    decode: Literal["cpu", "gpu"] = "cpu"
    device: str | None = None  # in Python also a `torch.device`
    root: Path = Path("data")
    version: str | None = None
    strict: bool = False
    overwrite: bool = False
    progress: bool = True
    shard: Shard = Shard()  # noqa: RUF009 - it cannot be changed
    engine: Literal["local", "ray"] = "local"  # in Python also a `Ray`
    ray_address: str | None = None
    ray_workers: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shard", _shard(self.shard))
        object.__setattr__(self, "out", None if self.out is None else as_path(self.out))
        checked: dict[str, object] = {
            name: whole_number(name, getattr(self, name), 1) for name in ("batch_size", "seeds")
        }
        checked["seed"] = whole_number("seed", self.seed, 0, 2**32 - 1)
        checked["folds"] = None if self.folds is None else whole_number("folds", self.folds, 2)
        for name in ("use_bias", "vectors"):
            checked[name] = Option(name, bool, True).check(getattr(self, name), name)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.decode not in ("cpu", "gpu"):
            raise InputError(f"decode must be cpu or gpu, got {self.decode!r}.")
        if self.seeds > 1 and self.folds is None:
            raise InputError("seeds repeat the folds: give folds too.")
        if self.engine == "ray":
            object.__setattr__(self, "engine", Ray(self.ray_workers, self.ray_address))
            for name in ("ray_workers", "ray_address"):  # the engine has them now
                object.__setattr__(self, name, None)
        elif self.engine != "local" and not isinstance(self.engine, Ray):
            raise InputError(f"engine must be local or ray, got {self.engine!r}.")
        elif self.ray_address is not None or self.ray_workers is not None:
            raise InputError("ray_address and ray_workers go with the engine ray.")
        if self.engine != "local" and (self.out is None or self.shard.world > 1):
            raise InputError("engine: Ray needs out, a run folder that its workers share, and no shards.")
        if self.shard.world > 1 and self.out is None:
            raise InputError("shard needs out, the run folder that the processes share.")
        if self.shard.world > 1 and self.folds is not None and isinstance(self.out, StorePath):
            raise InputError("shard: folds need a run folder with locks, and a store has none; use a disk, or Ray.")


def _shard(given: Any) -> Shard:
    share = Shard(*given) if isinstance(given, (tuple, list)) and 2 <= len(given) <= 3 else Shard(-1)
    numbers = all(isinstance(number, (int, np.integer)) for number in share[:2])
    if not numbers or not 0 <= share.rank < share.world:
        raise InputError(f"shard must be (rank, world) with 0 <= rank < world, got {given!r:.80}.")
    return share
