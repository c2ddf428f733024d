"""What a training run leaves on disk, and how a killed one goes on.

::

    run/training.json    what is trained on what and how; a later start that says the same resumes
    run/checkpoint.pt    weights to use (``model``), optimizer, epoch and history: tensors and numbers, no code
    run/history.json     one row per epoch
    run/train/, test/    what the recorder wrote
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardsight.errors import MissingPathError, StateError
from hardsight.recipes import Recipe, saved_settings
from hardsight.records import read_index
from hardsight.runs import LOCK_FILES, differing, disk_errors, remove_files, sweep, write_json, write_whole
from hardsight.runs import begin as begin_folder
from hardsight.runs import discard as discard_run

PLAN, CHECKPOINT, HISTORY, RECORDS = "training.json", "checkpoint.pt", "history.json", ("train", "test")


def begin(path: Path, plan: Mapping[str, Any], overwrite: bool, locks: ExitStack) -> dict[str, Any] | None:
    """Make the folder ready, with its lock in `locks`; returns the checkpoint to resume from, None at the beginning."""
    lock = begin_folder(
        path / PLAN,
        plan,
        "training run",
        finished=lambda: _finished(path, plan),
        discard=lambda: _remove(path),
        differing=_differing,
        overwrite=overwrite,
    )
    locks.enter_context(lock)
    sweep(path)
    state = _state(path)
    if lacking := _lacking(path, plan, state):
        raise MissingPathError(
            f"out: {path / lacking[0]} lacks records of epochs that are trained; bring that folder back, or overwrite "
            "the run to begin again."
        )
    return state


def _finished(path: Path, plan: Mapping[str, Any]) -> bool:
    """Whether nothing is left to train, or records are gone that nothing can bring back."""
    state = _state(path)
    return state is not None and (state["epoch"] >= plan["recipe"]["epochs"] or bool(_lacking(path, plan, state)))


def _state(path: Path) -> dict[str, Any] | None:
    return load(path) if (path / CHECKPOINT).exists() else None


def _remove(path: Path) -> None:
    for name in (CHECKPOINT, HISTORY):  # first what would let the rest be resumed
        (path / name).unlink(missing_ok=True)
    for name in RECORDS:
        discard_run(path / name)


def discard(path: Path) -> None:
    """Remove a training run, and nothing that is not the run's."""
    if (path / PLAN).is_file():
        _remove(path)
        remove_files(path, re.compile(rf"{re.escape(PLAN)}|{LOCK_FILES.pattern}"))


def _differing(stored: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """An older run did not know of every option of a recipe."""
    recipe = stored.get("recipe")
    defaults = {name: value for name, value in asdict(Recipe()).items() if name != "loss"}
    settings = {"recipe": defaults | saved_settings(recipe)} if isinstance(recipe, dict) else {}
    return differing(stored | settings, plan)


def _lacking(path: Path, plan: Mapping[str, Any], state: Mapping[str, Any] | None) -> list[str]:
    """Which records do not reach the epochs that an unfinished training has done."""
    if state is None or state["epoch"] >= plan["recipe"]["epochs"]:
        return []
    return [name for name in plan["record"] if max(read_index(path / name).epochs, default=0) < state["epoch"]]


def load(path: Path) -> dict[str, Any]:
    """The checkpoint of a run, read as data: nothing in it is executed."""
    try:
        state = torch.load(path / CHECKPOINT, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception:  # whose words are advice to execute what is in it
        state = None
    if isinstance(state, dict) and "optimiser" in state:  # as the first edition wrote it
        state["optimizer"] = state.pop("optimiser")
    if not isinstance(state, dict) or not {"model", "optimizer", "epoch", "history"} <= state.keys():
        raise StateError(
            f"out: {path / CHECKPOINT} is damaged or no checkpoint of a training run; remove it to begin again."
        )
    return state


class Saver:
    """Writes checkpoints beside the training, one at a time; the last whole one is always there."""

    def __init__(self, path: Path) -> None:
        self._path, self._pool = path, ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        self._copy: Any = None  # what was saved last, whose memory the next takes

    def save(self, state: Mapping[str, Any]) -> None:
        """Copy the state to the host now and write it meanwhile."""
        self.wait()
        self._copy = _on_host(state, self._copy)
        self._writing = self._pool.submit(self._write, self._copy)

    def wait(self) -> None:
        """Until what was saved is on disk; an error of the writing is raised here."""
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
            if isinstance(error.__context__, OSError):  # a full disk, over which torch then stumbles
                raise error.__context__ from None
            raise


def _on_host(value: Any, before: Any = None) -> Any:
    """A copy that training no longer changes, in the memory of one before: new memory costs more than the copying."""
    if isinstance(value, Tensor):
        fits = isinstance(before, Tensor) and (before.shape, before.dtype) == (value.shape, value.dtype)
        return before.copy_(value.detach()) if fits else value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        old = before if isinstance(before, Mapping) else {}
        return {key: _on_host(inner, old.get(key)) for key, inner in value.items()}
    return [_on_host(inner) for inner in value] if isinstance(value, (list, tuple)) else value
