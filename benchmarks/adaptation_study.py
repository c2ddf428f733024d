"""Does angular confidence choose better pseudo-labels? Self-training between real domains.

``python -m benchmarks.adaptation_study DATA_DIR OUT [--pairs NAME …] [--methods NAME …] [--seeds 3] [--minutes M]
[--smoke]``

DATA_DIR holds svhn.npz, mnist.npz, usps.npz (train_images, train_labels, test_images, test_labels) and
pacs/DOMAIN/CLASS/*.jpg with pacs/official_split.tsv. All methods of a seed begin with the same source model.
The command may be started several times at once: processes share the jobs (pair × method × seed) by lock files, and a
killed one's job is taken up by the next; give each its share of the cores (OMP_NUM_THREADS). What is done is not done
again, and no job begins after ``--minutes``. Seeds are the outer loop, so that what is cut short is cut evenly.
``--smoke`` takes few pictures, a small network and two rounds. `benchmarks.adaptation_report` makes the tables, at the
end of every call.

What was chosen before anything was run, and from where; no target label is used by anything but the report:

* target portion .20 + .05 a round up to .50; thresholds by class, the ranked sample kept (CBST, CRST);
* source portion: as many source samples to chosen ones as VisDA-17's .065 + .0085 a round up to .165 gives there;
* five rounds of about 170 steps, a tenth of the source's largest rate, held constant, new optimiser each round (CRST's
  is constant too); batch norm goes on learning, because these networks are not ImageNet's;
* predictions averaged with the mirrored picture for PACS; a mirrored digit is another digit;
* digits: 32 × 32 colour, ResNet-18 with a 3 × 3 stem; PACS: 96 × 96, the AVH paper's CNN-10; both from new weights
  with 512 features, plain cross-entropy, pictures shifted (digits), or cut and mirrored (PACS; parts of 70 % and more
  in the rounds).
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.adaptation_report import report
from benchmarks.jobs import locked, write_rows
from benchmarks.jobs import work as share
from benchmarks.measure import hardware
from hardsight.adaptation.loop import self_train
from hardsight.adaptation.rounds import SELECTION, read_rounds, round_folder
from hardsight.data import mean_and_std
from hardsight.models import Model
from hardsight.networks import NETWORKS, Normalize
from hardsight.recipes import Recipe
from hardsight.training import train

METHODS = ("cbst", "crst", "cbst+avh", "cbst+avh-slides", "cbst+margin", "cbst+angular_margin")
ROUNDS = 5
TARGET_PORTION = (0.2, 0.05, 0.5)
# VisDA-17's source portions, and how many pictures its source has for one of its target.
_SOURCE_PORTION, _SOURCE_TO_TARGET = (0.065, 0.0085, 0.165), 152_397 / 55_388

_FAST = Recipe(
    nesterov=True, schedule="one-cycle", drop_last=True, precision="bf16", channels_last=True, graph=True
)  # cross-entropy, momentum .9, weight decay 5e-4
_DIGITS = replace(_FAST, batch_size=256, lr=0.1, crop=2)
_PHOTOS = replace(_FAST, batch_size=64, lr=0.05, resized_crop=True, flip=True)


@dataclass(frozen=True)
class Domain:
    """Pictures of one kind, and how a network is trained on them."""

    network: str
    side: int
    recipe: Recipe


@dataclass(frozen=True)
class Pair:
    """A source, a target, and how a round of self-training goes; the batch follows the number of target pictures."""

    source: str
    target: str
    epochs: int
    batch_size: int


DOMAINS = {
    "svhn": Domain("resnet18-32", 32, replace(_DIGITS, epochs=12, warmup=3)),
    "mnist": Domain("resnet18-32", 32, replace(_DIGITS, epochs=6, warmup=1.5)),
    "usps": Domain("resnet18-32", 32, replace(_DIGITS, epochs=20, warmup=5)),
    **{name: Domain("cnn10", 96, replace(_PHOTOS, epochs=60, warmup=10)) for name in ("photo", "art", "sketch")},
}
PAIRS = {
    "svhn-mnist": Pair("svhn", "mnist", 2, 256),
    "mnist-usps": Pair("mnist", "usps", 4, 64),
    "pacs-photo-sketch": Pair("photo", "sketch", 8, 64),
    "pacs-photo-art": Pair("photo", "art", 8, 32),
    "usps-mnist": Pair("usps", "mnist", 2, 256),
}
_FOLDERS = {"photo": "photo", "art": "art_painting", "sketch": "sketch"}


@dataclass(frozen=True)
class Job:
    """One training: of a source (no method), or of a method on a pair from that source."""

    pair: str
    method: str | None
    seed: int

    @property
    def name(self) -> str:
        return f"{self.pair}+{self.method}+{self.seed}" if self.method else f"{PAIRS[self.pair].source}+{self.seed}"


# ---------------------------------------------------------------------------------------------------------------------
# Data: every domain as one .npz of colour pictures of one size.


def prepare(data: Path, out: Path, name: str, smoke: bool) -> Path:
    """Write a domain's pictures as the networks take them, once."""
    path = out / f"{name}.npz"
    with locked(out / f"{name}.lock", wait=True):
        if not path.exists():
            arrays = _pacs(data / "pacs", name) if name in _FOLDERS else _arrays(data / f"{name}.npz")
            kept = {split: _few(arrays[f"{split}_labels"], 12 if smoke else None) for split in ("train", "test")}
            arrays = {key: values[kept[key.partition("_")[0]]] for key, values in arrays.items()}
            for key in ("train_images", "test_images"):
                arrays[key] = in_colour(arrays[key], 16 if smoke else DOMAINS[name].side)
            pixels = torch.from_numpy(arrays["train_images"]).permute(0, 3, 1, 2)
            arrays["mean"], arrays["spread"] = (values.numpy() for values in mean_and_std(pixels))
            with path.with_suffix(".part").open("wb") as file:
                np.savez(file, **arrays)  # pyrefly: ignore[bad-argument-type]
            path.with_suffix(".part").rename(path)
    return path


def _arrays(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return dict(arrays)


def in_colour(images: np.ndarray, side: int) -> np.ndarray:
    """``(N, H, W[, 3])`` uint8 → ``(N, side, side, 3)`` uint8, bilinear."""
    images = images[..., None] if images.ndim == 3 else images
    if images.shape[1:3] != (side, side):
        parts = torch.from_numpy(images).permute(0, 3, 1, 2).split(4096)
        resized = [F.interpolate(x.float(), (side, side), mode="bilinear", antialias=True) for x in parts]
        images = torch.cat([x.round().byte() for x in resized]).permute(0, 2, 3, 1).numpy()
    return np.repeat(images, 3, -1) if images.shape[-1] == 1 else np.ascontiguousarray(images)


def _pacs(root: Path, name: str) -> dict[str, np.ndarray]:
    """A domain of PACS by its official lists: train, and crossval for testing."""
    from PIL import Image

    lines = [line.split("\t") for line in (root / "official_split.tsv").read_text().splitlines()]
    own = [(path, split) for path, split in lines if path.startswith(f"{_FOLDERS[name]}/")]
    classes = sorted({path.split("/")[1] for path, _ in own})
    side, found = DOMAINS[name].side, {}
    for ours, theirs in (("train", "train"), ("test", "crossval")):
        paths = [path for path, split in own if split == theirs]
        pictures = [Image.open(root / path).convert("RGB").resize((side, side)) for path in paths]
        found[f"{ours}_images"] = np.stack([np.asarray(picture) for picture in pictures])
        found[f"{ours}_labels"] = np.array([classes.index(path.split("/")[1]) for path in paths])
    return found


def _few(labels: np.ndarray, each: int | None) -> np.ndarray:
    """All rows, or the first few of each class."""
    rows = [np.flatnonzero(labels == k)[:each] for k in np.unique(labels)]
    return np.arange(len(labels)) if each is None else np.sort(np.concatenate(rows))


def source_portion(source: int, target: int) -> tuple[float, float, float]:
    """Portions of so many source samples that give the mix of source and chosen target samples VisDA-17 has."""
    times = _SOURCE_TO_TARGET * target / source
    first, step, most = (min(1.0, times * portion) for portion in _SOURCE_PORTION)
    return first, step, most


# ---------------------------------------------------------------------------------------------------------------------
# Jobs.


def source_model(job: Job, out: Path, smoke: bool) -> tuple[Model, list[dict[str, Any]]]:
    """The source's network, trained by the first who asks; the same for whoever asks again."""
    name = PAIRS[job.pair].source
    domain, file = DOMAINS[name], out / "data" / f"{name}.npz"
    recipe = replace(_on_this_machine(domain.recipe, smoke), seed=job.seed)
    with np.load(file) as arrays:
        first = Normalize(arrays["mean"].tolist(), arrays["spread"].tolist())
        classes = int(arrays["train_labels"].max()) + 1
    torch.manual_seed(job.seed)
    network = nn.Sequential(first, NETWORKS["small-cnn" if smoke else domain.network].build(classes, 3))
    trained = train(
        network,
        f"{file}:train",
        f"{file}:test",
        out=out / "sources" / f"{name}+{job.seed}",
        recipe=recipe,
        record=(),
        progress=False,
    )
    return trained.model, trained.history


def adapt(job: Job, out: Path, smoke: bool) -> list[dict[str, Any]]:
    """One method on one pair, from the source's network; a row per round."""
    pair = PAIRS[job.pair]
    files = {name: out / "data" / f"{name}.npz" for name in (pair.source, pair.target)}
    counts = {name: _count(file) for name, file in files.items()}
    model, history = source_model(job, out, smoke)
    path, domain = out / "runs" / job.name, DOMAINS[pair.source]
    recipe = _on_this_machine(domain.recipe, smoke)
    recipe = replace(recipe, lr=recipe.lr / 10, schedule="constant", warmup=0, graph=False)
    recipe = replace(recipe, batch_size=16 if smoke else pair.batch_size, smallest_part=0.7)
    began = time.perf_counter()
    try:
        self_train(
            model,
            f"{files[pair.source]}:train",
            f"{files[pair.target]}:train",
            test=f"{files[pair.target]}:test",
            method=str(job.method),
            rounds=2 if smoke else ROUNDS,
            epochs=1 if smoke else pair.epochs,
            target_portion=TARGET_PORTION,
            source_portion=source_portion(counts[pair.source], counts[pair.target]),
            recipe=recipe,
            out=path,
            seed=job.seed,
            progress=False,
        )
    except RuntimeError as error:  # collapsed: the rounds until then are its result
        print(f"{job.name}: {error}", flush=True)
    seconds = time.perf_counter() - began
    told = {
        "run_seconds": f"{seconds:.1f}",
        "source_seconds": f"{sum(row['seconds'] for row in history):.1f}",
        "source_test_accuracy": history[-1]["test_accuracy"],
        "hardware": hardware(),
        "torch": torch.__version__,
    }
    named = {"pair": job.pair, "method": job.method, "seed": job.seed}
    rows = [{**named, **row, **told} for row in read_rounds(path).to_pylist()]
    if (first := round_folder(path, 1) / SELECTION).exists():  # for comparisons; none where it collapsed at once
        shutil.copy(first, path / SELECTION)
    return rows


def _count(file: Path) -> int:
    with np.load(file) as arrays:
        return len(arrays["train_labels"])


def _on_this_machine(recipe: Recipe, smoke: bool) -> Recipe:
    if smoke:
        recipe = replace(recipe, epochs=3, warmup=1, batch_size=16, resized_crop=False)
    if smoke or not torch.cuda.is_available():
        recipe = replace(recipe, precision="float32", graph=False, channels_last=False)
    return recipe


def work(jobs: Sequence[Job], out: Path, deadline: float, smoke: bool) -> None:
    """Do what nobody else does until nothing is left; a source comes before its methods."""
    share(
        jobs,
        out,
        deadline,
        lambda job: _do(job, out, smoke),
        lambda job: Job(job.pair, None, job.seed).name if job.method else None,
    )


def _do(job: Job, out: Path, smoke: bool) -> None:
    began = time.perf_counter()
    if job.method:
        rows = adapt(job, out, smoke)
    else:
        rows = [{"source": job.name, **row} for row in source_model(job, out, smoke)[1]]
    flat = [{key: value for key, value in row.items() if not isinstance(value, (list, dict))} for row in rows]
    write_rows(out / "rows" / f"{job.name}.csv", flat)
    if job.method:  # weights of six rounds of a hundred runs would fill the disk
        for name in ("rounds", "test"):
            shutil.rmtree(out / "runs" / job.name / name, ignore_errors=True)
    print(f"{job.name}: {rows[-1]['test_accuracy']:.2%}, {time.perf_counter() - began:.1f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--smoke", action="store_true")
    told = parser.parse_args(arguments)
    deadline = time.perf_counter() + 60 * told.minutes
    for folder in ("data", "locks", "rows", "sources", "runs"):
        (told.out / folder).mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(side for pair in told.pairs for side in (PAIRS[pair].source, PAIRS[pair].target)):
        prepare(told.data, told.out / "data", name, told.smoke)
    jobs = [Job(pair, m, seed) for seed in range(told.seeds) for pair in told.pairs for m in (None, *told.methods)]
    # Sources of a seed first, so that several processes find something to do at once.
    jobs.sort(key=lambda job: (job.seed, job.method is not None))
    work(jobs, told.out, deadline, told.smoke)
    with locked(told.out / "locks" / "report", wait=True):
        report(told.out, (*PAIRS, *METHODS))


if __name__ == "__main__":
    main()
