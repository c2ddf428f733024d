"""What a training run leaves on disk, and how a killed one goes on.

::

    run/training.json    what is trained on what and how; a later start that says the same resumes
    run/checkpoint.pt    weights to use (``model``), optimizer, epoch and history: tensors and numbers, no code
    run/history.json     one row an epoch
    run/train/, test/    what the recorder wrote
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardsight.errors import ExistingPathError, MissingPathError, StateError
from hardsight.recipes import Recipe, saved_settings
from hardsight.records import read_index
from hardsight.runs import (
    LOCK_FILES,
    UNIDENTIFIED,
    disk_errors,
    folder_lock,
    foreign_in,
    remove_files,
    write_json,
    write_whole,
)
from hardsight.runs import discard as discard_run

PLAN, CHECKPOINT, HISTORY, RECORDS = "training.json", "checkpoint.pt", "history.json", ("train", "test")
# Names under which they are written until they are whole.
_OURS = re.compile(rf"\.({'|'.join(map(re.escape, (PLAN, CHECKPOINT, HISTORY)))})\.[0-9a-f]+\.tmp")


def begin(path: Path, plan: Mapping[str, Any], overwrite: bool, locks: ExitStack) -> dict[str, Any] | None:
    """Make the folder ready, with its lock in `locks`; returns the checkpoint to resume from, None at the beginning."""
    plan = json.loads(json.dumps(plan, default=str))
    if path.is_file():
        raise ExistingPathError(f"out: {path} is a file; name a folder.")
    with disk_errors(path):
        locks.enter_context(folder_lock(path))
        if not (path / PLAN).exists():
            if any(not _OURS.fullmatch(p.name) and not LOCK_FILES.fullmatch(p.name) for p in path.iterdir()):
                raise ExistingPathError(f"out: {path} has other things in it and no training; choose another folder.")
            write_json(path / PLAN, plan)
        for stray in (p for p in path.iterdir() if _OURS.fullmatch(p.name)):  # what kills left half-written
            stray.unlink(missing_ok=True)
        there = _plan_in(path)
        if there is None and not overwrite:
            raise StateError(
                f"out: {path / PLAN} is damaged; bring it back, overwrite the run, or name another folder."
            )
        differing = _differing(there, plan)
        if differing and not overwrite:
            raise ExistingPathError(
                f"out: {path} holds another training run (not the same: {', '.join(differing)}); choose another "
                f"folder, or overwrite it.{plan.get(UNIDENTIFIED, '')}"
            )
        state = load(path) if (path / CHECKPOINT).exists() and not differing else None
        whole = state is not None and state["epoch"] >= plan["recipe"]["epochs"]
        done = 0 if state is None or whole else state["epoch"]
        lacking = _lacking(path, plan["record"], done) if done else []
        if lacking and not overwrite:
            raise MissingPathError(
                f"out: {path / lacking[0]} lacks records of the {done} epochs that are trained; "
                "bring that folder back, or overwrite the run to begin again."
            )
        # An unfinished run of the same plan is resumed, also with overwrite.
        if overwrite and (differing or whole or lacking):
            if foreign := [name for record in RECORDS for name in foreign_in(path / record)]:
                raise ExistingPathError(f"out: {path} has other things in it ({foreign[0]} …); choose another folder.")
            _remove(path)
            write_json(path / PLAN, plan)
            return None
    return state


def _remove(path: Path) -> None:
    for name in (CHECKPOINT, HISTORY):  # first what would let the rest be resumed
        (path / name).unlink(missing_ok=True)
    for name in RECORDS:
        discard_run(path / name)


def discard(path: Path) -> None:
    """Remove a training run, and nothing that is not the run's."""
    if (path / PLAN).is_file():
        _remove(path)
        remove_files(path, re.compile(rf"{re.escape(PLAN)}|{_OURS.pattern}|{LOCK_FILES.pattern}"))


def _plan_in(path: Path) -> dict[str, Any] | None:
    """The plan in a folder, None where it cannot be read."""
    try:
        plan = json.loads((path / PLAN).read_text(encoding="utf-8"))
    except ValueError:
        return None
    if not isinstance(plan, dict) or not isinstance(plan.get("recipe"), dict):
        return None
    defaults = {name: value for name, value in asdict(Recipe()).items() if name != "loss"}
    return plan | {
        "recipe": {**defaults, **saved_settings(plan["recipe"])}
    }  # an older run did not know of every option


def _lacking(path: Path, records: Sequence[str], epochs: int) -> list[str]:
    """Which of the records do not reach so many epochs."""
    return [name for name in records if max(read_index(path / name).epochs, default=0) < epochs]


def _differing(there: Any, here: Any, name: str = "") -> list[str]:
    """Where two plans differ, by dotted names."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = {**there, **here}
        return [d for key in keys for d in _differing(there.get(key), here.get(key), f"{name}.{key}".lstrip("."))]
    return [] if there == here else [name]


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

    def save(self, state: Mapping[str, Any]) -> None:
        """Copy the state to the host now and write it meanwhile."""
        self.wait()
        self._writing = self._pool.submit(self._write, _on_host(state))

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


def _on_host(value: Any) -> Any:
    """A copy that training no longer changes."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _on_host(inner) for key, inner in value.items()}
    return [_on_host(inner) for inner in value] if isinstance(value, (list, tuple)) else value
