"""What do the losses buy? Out-of-distribution detection, robustness, calibration, maps and clusters, on real data.

``python -m benchmarks.consequences_study DATA_DIR OUT [--parts NAME …] [--seeds N] [--minutes M] [--smoke]``

DATA_DIR holds mnist.npz, cifar10.npz (train_images, train_labels, test_images, test_labels), fashion_mnist.npz and,
where there is one, svhn.npz (test_images, test_labels). Parts:

* ``mnist``: cross-entropy, the Encouraging Loss as the paper has it on MNIST (``log_end`` 1, its clamp) and
  with ``log_end`` .75: Fashion-MNIST as strangers (EL Table 4), attacks (EL Fig. 7), margins, calibration;
* ``cifar10-calibration``: cross-entropy and the Encouraging Loss with and without label smoothing: calibration,
  margins, and SVHN as strangers;
* ``cifar10-maps``: cross-entropy, with Euclidean pairs, with AMC-Loss at the paper's and at the released weight: maps
  and clusters (AMC Fig. 2, 5, 6); cross-entropy's networks are those of the part before;
* ``page``: `hardsight evaluate` of the first CIFAR-10 networks of cross-entropy, Encouraging Loss and AMC-Loss.

Jobs are shared by processes as in `benchmarks.adaptation_study`; give each its share of the cores (OMP_NUM_THREADS).
The first seed of everything and the page come first, then a round of one CIFAR-10 seed and two MNIST seeds, then
another; ``--seeds`` is for fewer. ``--smoke`` takes few pictures and a small network. `benchmarks.consequences_report`
makes the tables, at the end of every call.

Recipes are those of the studies of losses (`hardsight study list`), settings those of the papers, and every network is
judged as its last
epoch left it: nothing is chosen on test data. Halves, images and starts of attacks are the same for all networks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.consequences_report import AUTHORS_EPS, report
from benchmarks.jobs import locked, work, write_rows
from benchmarks.measure import hardware
from hardsight.data import open_data
from hardsight.evaluation import evaluate
from hardsight.explanation import explanation_answer
from hardsight.presets import PRESETS
from hardsight.questions import QUESTIONS, Answer, Subject
from hardsight.questions.answers import row
from hardsight.questions.ood import open_ood
from hardsight.recipes import Recipe, parse_settings
from hardsight.report.comparisonpage import write_comparison
from hardsight.robustness import robustness_answer
from hardsight.stats import wilson
from hardsight.training import Trained, train

# Name → loss, label smoothing.
ARMS = {
    "ce": ("ce", 0.0),
    "el-released": ("el:normal", 0.0),
    "el": ("el:0.75", 0.0),
    "ce-smooth": ("ce", 0.1),
    "el-smooth": ("el:0.75", 0.1),
    "euclid": ("euclid:paper", 0.0),
    "amc": ("amc:paper", 0.0),
    "amc-released": ("amc:released", 0.0),
}


@dataclass(frozen=True)
class Part:
    """Which networks are trained on what, and what they are asked."""

    data: str
    arms: tuple[str, ...]
    questions: tuple[str, ...]
    rounds: tuple[tuple[int, ...], ...]  # seeds, in the order that they are spent time on
    strangers: str | None = None


_FIVE, _THREE, _ONE = ((0,), (1, 2), (3, 4)), ((0,), (1,), (2,)), ((0,),)
PARTS = {
    "mnist": Part(
        "mnist", ("ce", "el-released", "el"), ("ood", "robustness", "margins", "calibration"), _FIVE, "fashion_mnist"
    ),
    "cifar10-calibration": Part(
        "cifar10", ("ce", "el", "ce-smooth", "el-smooth"), ("calibration", "ood", "margins"), _THREE, "svhn"
    ),
    "cifar10-maps": Part("cifar10", ("ce", "euclid", "amc", "amc-released"), ("explanation", "clusters"), _THREE),
    "page": Part("cifar10", ("ce", "el", "amc"), (), _ONE, "svhn"),
}
# Preset and changes to its recipe: short trainings. Several processes share a GPU, so a step needs no CUDA graph.
_RECIPES = {
    "mnist": ("mnist-el", ("epochs=12", "drop_last=true", "precision=bf16", "channels_last=true")),
    "cifar10": ("cifar-resnet18", ("epochs=10", "batch_size=256", "lr=0.2", "warmup=2", "ema=0", "graph=false")),
}
# Attacks with their strengths, in pixels.
_ATTACKS = (
    (("fgsm", "pgd", "pgd-margin", "pgd-dlr"), (AUTHORS_EPS, 0.1, 0.2, 0.3, 0.5)),
    (("pgd-l2", "pgd-margin-l2"), (1.0, 2.0, 3.0, 10.0)),
)


@dataclass(frozen=True)
class Job:
    """One network and all that it is asked in a part; of the page, all its networks."""

    part: str
    arm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.part}+{self.arm}+{self.seed}"


@dataclass(frozen=True)
class Place:
    """Where data are and results go, and whether this is a trial."""

    data: Path
    out: Path
    smoke: bool

    def file(self, name: str) -> Path:
        """A data set; in a trial a few samples of each class at half the size, written once."""
        path = self.data / f"{name}.npz"
        if not self.smoke or not path.exists():
            return path
        small = self.out / "data" / path.name
        with locked(self.out / "locks" / f"data-{name}", wait=True):
            if not small.exists():
                with np.load(path) as arrays:
                    few = {key: arrays[key][_few(arrays[f"{key.partition('_')[0]}_labels"])] for key in arrays}
                kept = {key: values[:, ::2, ::2] if values.ndim > 1 else values for key, values in few.items()}
                np.savez(small, **kept)  # pyrefly: ignore[bad-argument-type]
        return small


def _few(labels: np.ndarray) -> np.ndarray:
    return np.sort(np.concatenate([np.flatnonzero(labels == k)[:8] for k in np.unique(labels)]))


def network(data: str, arm: str, seed: int, place: Place) -> Trained:
    """A network, trained by the first who asks; the same for whoever asks again."""
    loss, smoothing = ARMS[arm]
    preset, settings = ("small-cnn", ("epochs=2", "batch_size=16", "drop_last=true"))
    if not place.smoke:
        preset, settings = _RECIPES[data]
    recipe = PRESETS[preset].recipe.replace(**parse_settings(settings))
    recipe = _on_this_machine(replace(recipe, loss=loss, label_smoothing=smoothing, seed=seed))
    name, file = f"{data}+{arm}+{seed}", place.file(data)
    with locked(place.out / "locks" / f"network-{name}", wait=True):
        return train(
            preset,
            f"{file}:train",
            f"{file}:test",
            out=place.out / "runs" / name,
            recipe=recipe,
            record=("test",) if seed == 0 else (),  # `hardsight evaluate` finds the data by its records
            progress=False,
        )


def _on_this_machine(recipe: Recipe) -> Recipe:
    return recipe if torch.cuda.is_available() else replace(recipe, precision="float32", channels_last=False)


def answers(part: Part, trained: Trained, place: Place) -> Iterator[Answer]:
    """All that a part asks a network, on the test set."""
    model, limit = trained.model, 8 if place.smoke else 1000
    samples = open_data(f"{place.file(part.data)}:test")
    subject = Subject("network", model, samples, forward={"batch_size": 1000})
    right = subject.predictions.probabilities.argmax(1) == subject.labels
    low, high = map(float, wilson(right.sum(), np.array(len(right))))
    yield Answer([row("accuracy", "accuracy", right.mean(), low=low, high=high, n=len(right), better="higher")])
    for question in ("calibration", "margins"):
        if question in part.questions:
            yield QUESTIONS[question].ask(subject)
    if "ood" in part.questions and part.strangers and (file := place.file(part.strangers)).exists():
        [ood] = open_ood([(part.strangers, f"{file}:test")], samples)
        yield QUESTIONS["ood"].ask(subject, ood=ood)
    if "clusters" in part.questions:
        yield QUESTIONS["clusters"].ask(subject)
    if "explanation" in part.questions:
        yield explanation_answer(model, samples, limit=limit, seed=0)
    if "robustness" in part.questions:
        for attacks, strengths in _ATTACKS:
            eps = strengths[:2] if place.smoke else strengths
            yield robustness_answer(model, samples, attacks=attacks, eps=eps, limit=limit, hardness=subject.avh, seed=0)


def _do(job: Job, place: Place) -> None:
    began = time.perf_counter()
    part, named = PARTS[job.part], {"part": job.part, "arm": job.arm, "seed": job.seed}
    if job.part == "page":
        rows, words = make_page(part, place), []
    else:
        trained = network(part.data, job.arm, job.seed, place)
        seconds = time.perf_counter() - began
        found = list(answers(part, trained, place))
        rows = [one for answer in found for one in answer.rows]
        rows.append(row("training", "seconds", seconds, n=len(trained.history)))
        words = [{**named, "words": note.text} for answer in found for note in answer.notes]
    on = {"hardware": hardware(), "torch": torch.__version__}
    write_rows(place.out / "words" / f"{job.name}.csv", words)
    # What is done is told by the rows: they come last.
    write_rows(place.out / "rows" / f"{job.name}.csv", [{**named, **_known(one), **on} for one in rows])
    print(f"{job.name}: {time.perf_counter() - began:.1f} s", flush=True)


def _known(one: Any) -> dict[str, Any]:
    """A row with nothing in place of NaN."""
    return {key: None if value != value else value for key, value in one.items()}


def make_page(part: Part, place: Place) -> list[Any]:
    """What `hardsight evaluate` makes of the first network of each arm; its rows are the bytes of what there is."""
    runs = {arm: network(part.data, arm, 0, place).path for arm in part.arms}
    strangers = place.file(str(part.strangers))
    out = evaluate(
        list(runs.values()),
        names=list(runs),
        ood=[(part.strangers, f"{strangers}:test")] if strangers.exists() else [],
        attacks=("fgsm", "pgd", "pgd-margin"),
        explain=True,
        limit=8 if place.smoke else 500,
        out=place.out / "page",
        batch_size=500,
        progress=False,
    ).path
    files = {"page": write_comparison(out), **{arm: run / "checkpoint.pt" for arm, run in runs.items()}}
    return [row("page", "bytes", file.stat().st_size, score=name, n=1) for name, file in files.items()]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--smoke", action="store_true")
    told = parser.parse_args(arguments)
    deadline = time.perf_counter() + 60 * told.minutes
    for folder in ("data", "locks", "rows", "runs", "words"):
        (told.out / folder).mkdir(parents=True, exist_ok=True)
    place = Place(told.data, told.out, told.smoke)
    work(jobs(told.parts, told.seeds), told.out, deadline, lambda job: _do(job, place))
    with locked(told.out / "locks" / "report", wait=True):
        report(told.out, (*PARTS, *ARMS))


def jobs(parts: Sequence[str], seeds: int) -> list[Job]:
    """All jobs in their order."""
    return [
        Job(name, arm, seed)
        for at in range(len(_FIVE))
        for name, part in PARTS.items()
        if name in parts
        for seed in (part.rounds[at] if at < len(part.rounds) else ())
        if seed < seeds
        for arm in (("all",) if name == "page" else part.arms)
    ]


if __name__ == "__main__":
    main()
