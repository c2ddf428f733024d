"""The files of a training run: how a killed run resumes, and how others read its network, recipe and plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor

from hardsight.errors import InputError, MissingPathError, StateError
from hardsight.extras import first_line
from hardsight.models import Model, load_model
from hardsight.networks import NETWORKS
from hardsight.recipes import SETTINGS, Recipe, saved_settings
from hardsight.records import read_index
from hardsight.runs import LOCK_FILES, differing, disk_errors, remove_files, sweep, write_json, write_whole
from hardsight.runs import begin as begin_folder
from hardsight.runs import discard as discard_run
from hardsight.untrusted import read_json

PLAN, CHECKPOINT, HISTORY, RECORDS = "training.json", "checkpoint.pt", "history.json", ("train", "test")


def begin(path: Path, plan: Mapping[str, Any], overwrite: bool, locks: ExitStack) -> dict[str, Any] | None:
    """Prepare and lock the folder; returns the checkpoint to resume from, None if there is none yet."""
    epochs = plan["recipe"]["epochs"]

    def lost(state: dict[str, Any] | None) -> list[Path]:
        """Folders that lack records of finished epochs of an unfinished training."""
        if state is None or state["epoch"] >= epochs:
            return []
        folders = (path / name for name in plan["record"])
        return [folder for folder in folders if max(read_index(folder).epochs, default=0) < state["epoch"]]

    def finished() -> bool:
        state = load(path)
        return state is not None and (state["epoch"] >= epochs or bool(lost(state)))

    lock = begin_folder(
        path / PLAN,
        plan,
        "training run",
        finished=finished,
        discard=lambda: _remove(path),
        differing=_differing,
        overwrite=overwrite,
    )
    locks.enter_context(lock)
    sweep(path)
    state = load(path)
    if folders := lost(state):
        raise MissingPathError(
            f"out: {folders[0]} lacks records of finished epochs; restore that folder, or overwrite the run."
        )
    return state


def _remove(path: Path) -> None:
    for name in (CHECKPOINT, HISTORY):  # first what would allow resuming
        (path / name).unlink(missing_ok=True)
    for name in RECORDS:
        discard_run(path / name)


def discard(path: Path) -> None:
    """Remove a training run, and no other files."""
    if (path / PLAN).is_file():
        _remove(path)
        remove_files(path, re.compile(rf"{re.escape(PLAN)}|{LOCK_FILES.pattern}"))


def _differing(stored: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """Which entries differ; an older run has the defaults of newer options."""
    recipe = stored.get("recipe")
    defaults = {name: value for name, value in asdict(Recipe()).items() if name != "loss"}
    settings: dict[str, Any] = {"recipe": defaults | saved_settings(recipe)} if isinstance(recipe, dict) else {}
    sampler, current = stored.get("sampler"), plan.get("sampler")
    if isinstance(sampler, dict) and isinstance(current, dict):
        shares = {"num_replicas", "rank"} - current.keys()  # which our samplers once stored, but did not use here
        named = {"_hardness" if name == "_ask" else name: value for name, value in sampler.items()}
        settings["sampler"] = {name: value for name, value in named.items() if name not in shares}
    return differing(stored | settings, plan)


def load(path: Path) -> dict[str, Any] | None:
    """Read the checkpoint of a run, if it has one, as data: nothing in it is executed."""
    try:
        state = torch.load(path / CHECKPOINT, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return None
    except OSError:
        raise
    except Exception:  # torch's message advises executing the file
        state = None
    if isinstance(state, dict) and "optimiser" in state:  # the first edition's spelling
        state["optimizer"] = state.pop("optimiser")
    if not isinstance(state, dict) or not {"model", "optimizer", "epoch", "history"} <= state.keys():
        raise StateError(
            f"out: {path / CHECKPOINT} is damaged or not a checkpoint of a training run; remove it to start again."
        )
    return state


def trained_model(run: Path, model: str | None = None, checkpoint: Path | None = None) -> Model:
    """The network of a training run with its last weights, or a checkpoint's; `model` builds it if hardsight cannot."""
    info = training_plan(run)["model"]
    if model is None and info["name"] not in NETWORKS:
        raise InputError(
            f"RUN: {run} does not say where {info['name']} comes from; name it, for example with --model timm:NAME or "
            f"file.py:function, and --checkpoint {run / CHECKPOINT}."
        )
    trained = load_model(model or f"hardsight:{info['name']}", checkpoint or run / CHECKPOINT)
    # Trained on arrays: the network resizes them itself.
    return replace(trained, transform=None, takes="any") if info["preprocessing"].startswith("none") else trained


def trained_recipe(run: Path) -> Recipe:
    """The recipe of a training run, except its loss."""
    saved = saved_settings(training_plan(run)["recipe"])
    try:
        return Recipe(**{name: value for name, value in saved.items() if name in SETTINGS})
    except InputError as error:
        raise StateError(f"RUN: {run / PLAN} is damaged: its recipe is invalid ({first_line(error)}).") from error


def is_training(run: Any) -> bool:
    """Whether this is the folder of a training run."""
    return isinstance(run, (str, Path)) and (Path(run) / PLAN).is_file()


class _Model(TypedDict):
    name: str
    preprocessing: str


class _Recipe(TypedDict):
    epochs: int
    seed: int


class _Plan(TypedDict):
    model: _Model
    recipe: _Recipe
    loss: NotRequired[str | None]


def training_plan(run: Path) -> dict[str, Any]:
    """The stored plan of a training run: model, recipe and loss."""
    return read_json(run / PLAN, _Plan)


class Saver:
    """Writes checkpoints in the background, one at a time; the last complete one always exists."""

    def __init__(self, path: Path) -> None:
        self._path, self._pool = path, ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        self._copy: Any = None  # what was saved last; the next reuses its memory

    def save(self, state: Mapping[str, Any]) -> None:
        """Copy the state to the host now and write it in the background."""
        self.wait()
        self._copy = _on_host(state, self._copy)
        self._writing = self._pool.submit(self._write, self._copy)

    def wait(self) -> None:
        """Wait until the state is on disk; errors of writing are raised here."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def close(self) -> None:
        self._pool.shutdown()

    def _write(self, state: Mapping[str, Any]) -> None:
        with disk_errors(self._path):
            write_whole(self._path / CHECKPOINT, lambda file: _save(state, file))
            write_json(self._path / HISTORY, state["history"])


def _save(state: Mapping[str, Any], file: Path) -> None:
    with file.open("wb") as stream:
        try:
            torch.save(state, stream)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # a full disk, which torch hides
                raise error.__context__ from None
            raise


def _on_host(value: Any, before: Any = None) -> Any:
    """A copy on the host, in the memory of a previous one: allocating costs more than copying."""
    if isinstance(value, Tensor):
        fits = isinstance(before, Tensor) and (before.shape, before.dtype) == (value.shape, value.dtype)
        return before.copy_(value.detach()) if fits else value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        old = before if isinstance(before, Mapping) else {}
        return {key: _on_host(inner, old.get(key)) for key, inner in value.items()}
    return [_on_host(inner) for inner in value] if isinstance(value, (list, tuple)) else value
