"""Commands that are killed at random moments and started again: what is lost, and what differs from a quiet run."""

from __future__ import annotations

import itertools
import os
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import hardsight as hs
from benchmarks.measure import row
from hardsight.data import ArraySamples, load_digits
from hardsight.runs import content_hash
from hardsight.table import SampleTable

KILLS, IN_A_ROW = 50, 6  # per command, and until one start is left alone


class Verb(NamedTuple):
    """A command: `work` starts or resumes it in a folder, and `result` holds what it wrote there, by name.

    With `shares`, these are what several processes do at the same time, and some or all of them are killed.
    """

    work: Callable[[Path], object]
    result: Callable[[Path], dict[str, Any]]
    shares: tuple[Callable[[Path], object], ...] = ()


def _digits(start: int, stop: int, split: str = "train") -> ArraySamples:
    images, labels = load_digits()
    return ArraySamples(images[start:stop], labels[start:stop], split, "digits", list("0123456789"))


def _network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))


def _fit(data: Any) -> nn.Module:
    """A network of one fold."""
    network = _network()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    x, y = torch.from_numpy(data.images).float()[:, None] / 255, torch.from_numpy(data.labels)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network


_RECIPE = hs.Recipe(epochs=4, batch_size=64, lr=0.05, schedule="constant")


def _record(folder: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    weight, labels = torch.randn(10, 16, generator=draw), torch.arange(2000) % 10
    done = len(hs.Dynamics(folder).epochs) if (folder / "meta.json").exists() else 0
    with hs.Recorder(folder, epoch=done + 1) as recorder:
        for epoch in range(done + 1, 16):
            features = torch.randn(2000, 16, generator=draw.manual_seed(epoch)) + 0.2 * epoch * weight[labels]
            for ids in torch.arange(2000).split(250):
                recorder.update(ids, SimpleNamespace(features=features[ids], weight=weight, bias=None), labels[ids])
            recorder.end_epoch()


def _table(folder: Path) -> dict[str, Any]:
    rows = hs.SampleTable.load(folder).to_arrow().sort_by("id")
    return {name: rows[name].to_pylist() for name in rows.column_names}


def _curves(folder: Path) -> dict[str, Any]:
    dynamics = hs.Dynamics(folder)
    return {"id": dynamics.ids.tolist()} | {name: dynamics.matrix(name) for name in ("avh", "norm", "pred", "nll")}


def _trained(folder: Path) -> dict[str, Any]:
    state = torch.load(folder / "checkpoint.pt", weights_only=True)["model"]
    return {**state, **_curves(folder / "train"), "test": _curves(folder / "test")}


def _adapted(folder: Path) -> dict[str, Any]:
    rounds = sorted((folder / "rounds").glob("*/training/checkpoint.pt"))
    return {str(file.relative_to(folder)): torch.load(file, weights_only=True)["model"] for file in rounds}


def _evaluate(folder: Path) -> Any:
    names = [(group, seed) for group in "ab" for seed in (0, 1)]
    networks = [hs.Model(_network(i), f"net{i}") for i in range(4)]
    data = _digits(0, 400)
    subjects = [hs.questions.Subject(f"{g}{i}", net, data, g, i) for (g, i), net in zip(names, networks, strict=True)]
    options = {"questions": ["calibration", "margins", "clusters"], "degradations": ["contrast"], "levels": [1.0, 0.5]}
    return hs.evaluate(subjects, out=folder, device="cpu", progress=False, **options)


@cache
def _scored() -> SampleTable:
    return hs.score(_network(), _digits(0, 1797), preprocess="raw", device="cpu", progress=False)


def _report(folder: Path) -> Any:
    run, page = folder / "run", folder / "run" / "report.html"
    if not (run / "meta.json").exists():
        _scored().save(run, overwrite=True)
    if page.exists() and "</html>" not in page.read_text("utf-8")[-100:]:
        raise AssertionError("half a page")
    return hs.write_report(run, data=_digits(0, 1797))


def _score(folder: Path) -> Any:
    options = {"preprocess": "raw", "device": "cpu", "batch_size": 16, "progress": False}
    return hs.score(_network(), _digits(0, 1797), out=folder, **options)


def _score_folds(folder: Path) -> Any:
    return hs.score(_fit, _digits(0, 400), folds=3, out=folder, device="cpu", progress=False)


def _fold_heads(folder: Path, shard: tuple[int, int] = (0, 1)) -> Any:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))
    options = {"preprocess": "raw", "device": "cpu", "batch_size": 16, "progress": False, "folds": 2}
    return hs.score(network, _digits(0, 400), out=folder, shard=shard, **options)


def _degraded(folder: Path) -> Any:
    options = {"preprocess": "raw", "device": "cpu", "batch_size": 16, "progress": False}
    return hs.questions.evaluate_degraded(_network(), _digits(0, 400), "noise", [0.0, 0.2], out=folder, **options)


def _degraded_rows(folder: Path) -> dict[str, Any]:
    rows = hs.questions.read_degraded(folder)
    return {name: rows[name].to_pylist() for name in rows.column_names}


def _train(folder: Path) -> Any:
    return hs.train(_network(), _digits(0, 500), _digits(500, 800, "test"), out=folder, recipe=_RECIPE, device="cpu")


def _adapt(folder: Path) -> Any:
    recipe = _RECIPE.replace(epochs=1)
    return hs.self_train(
        _fit(_digits(0, 500)), _digits(0, 500), _digits(500, 900, "target"), out=folder, rounds=3, epochs=1,
        recipe=recipe, device="cpu", progress=False,
    )  # fmt: skip


VERBS = {
    "score": Verb(_score, _table),
    "score --folds": Verb(_score_folds, _table),
    "score --folds, heads": Verb(_fold_heads, _table),
    "score --folds --shard": Verb(_fold_heads, _table, tuple(partial(_fold_heads, shard=(i, 2)) for i in range(2))),
    "degradation levels": Verb(_degraded, _degraded_rows),
    "Recorder": Verb(_record, _curves),
    "train": Verb(_train, _trained),
    "adapt": Verb(_adapt, _adapted),
    "evaluate": Verb(_evaluate, lambda folder: {p.name: p.read_bytes() for p in folder.glob("*.parquet")}),
    "report": Verb(_report, lambda folder: {"page": (folder / "run" / "report.html").read_bytes()}),
}


def _started(work: Callable[[Path], object], folder: Path) -> int:
    """The process id of a child that runs a command and ends; nothing needs to be imported again."""
    if child := os.fork():
        return child
    code = 1
    try:
        with Path(f"{folder}.log").open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            work(folder)
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _ended(children: Sequence[int], seconds: float | None) -> dict[int, int]:
    """The exit codes of the children that end within so many seconds."""
    deadline, codes = time.monotonic() + (1e9 if seconds is None else seconds), {}
    while len(codes) < len(children) and time.monotonic() < deadline:
        for child in [child for child in children if child not in codes]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                codes[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return codes


def _finish(verb: Verb, folder: Path, chance: random.Random, longest: float) -> int:
    """Run a command to its end, killing it at random moments; returns how many processes were killed."""
    killed = 0
    for count in itertools.count():
        children = [_started(work, folder) for work in verb.shares or (verb.work,)]
        codes = _ended(children, chance.uniform(0, longest) if count < IN_A_ROW else None)
        alive = [child for child in children if child not in codes]
        victims = chance.sample(alive, chance.randint(1, len(alive))) if len(alive) > 1 else alive
        for child in victims:
            os.kill(child, signal.SIGKILL)
        codes |= _ended(alive, None)
        if any(code for child, code in codes.items() if child not in victims):
            raise RuntimeError(f"after {killed} kills: {Path(f'{folder}.log').read_text()[-2000:]}")
        if not victims:
            return killed
        killed += len(victims)
    raise AssertionError


def faults(kills: int = KILLS, verbs: tuple[str, ...] = tuple(VERBS), seed: int = 0) -> Iterator[dict]:
    """Kill each command at random moments, resume it, and compare what it wrote with an undisturbed run."""
    torch.set_num_threads(1)
    chance = random.Random(seed)
    for name in verbs:
        verb, differing, killed, runs = VERBS[name], [], 0, 0
        with tempfile.TemporaryDirectory() as root:
            Path(root, "quiet").mkdir()
            verb.work(Path(root, "quiet", "run"))  # here, so that the children find all modules imported
            started = time.monotonic()
            verb.work(Path(root, "again"))
            seconds = time.monotonic() - started
            expected = {key: content_hash(value) for key, value in verb.result(Path(root, "quiet", "run")).items()}
            while killed < kills:
                folder = Path(root, str(runs), "run")
                folder.parent.mkdir()
                killed += _finish(verb, folder, chance, 1.1 * seconds)
                result = {key: content_hash(value) for key, value in verb.result(folder).items()}
                differing.append(sum(result.get(key) != expected.get(key) for key in {**expected, **result}))
                runs += 1
        config = f"kills={killed} runs={runs} seconds={seconds:.1f}"
        yield row("faults", name, [sum(differing)], "differences", config, limit=0)
