"""What a training run leaves on disk, and how a killed one goes on.

::

    run/training.json    what is trained on what and how; a later start that says the same resumes
    run/checkpoint.pt    weights to use (``model``), optimiser, epoch and history: tensors and numbers, no code
    run/history.json     one row an epoch
    run/train/, test/    what the recorder wrote
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardsight.extras import first_line
from hardsight.runfolder import disk_in_words, write_whole

PLAN, CHECKPOINT, HISTORY, RECORDS = "training.json", "checkpoint.pt", "history.json", ("train", "test")


def begin(path: Path, plan: Mapping[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """Make the folder ready; returns the checkpoint to go on from, None at the beginning."""
    plan = json.loads(json.dumps(plan, default=str))
    if path.is_file():
        raise FileExistsError(f"out: {path} is a file; name a folder.")
    with disk_in_words(path):
        path.mkdir(parents=True, exist_ok=True)
        if not (path / PLAN).exists():
            if any(path.iterdir()):
                raise FileExistsError(f"out: {path} has other things in it and no training run; choose another folder.")
            _write_json(path / PLAN, plan)
            return None
        differing = _differing(json.loads((path / PLAN).read_text()), plan)
        if differing and not overwrite:
            raise FileExistsError(
                f"out: {path} holds another training run (not the same: {', '.join(differing)}); choose another "
                "folder, or overwrite it."
            )
        state = load(path) if (path / CHECKPOINT).exists() and not differing else None
        whole = state is not None and state["epoch"] >= plan["recipe"]["epochs"]
        if overwrite and (differing or whole):  # an unfinished run of the same plan is resumed, also with overwrite
            for name in (CHECKPOINT, HISTORY):  # first what would let the rest be resumed
                (path / name).unlink(missing_ok=True)
            for name in RECORDS:
                shutil.rmtree(path / name, ignore_errors=True)
            _write_json(path / PLAN, plan)
            return None
    return state


def _differing(there: Any, here: Any, name: str = "") -> list[str]:
    """Where two plans differ, by dotted names."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = {**there, **here}
        return [d for key in keys for d in _differing(there.get(key), here.get(key), f"{name}.{key}".lstrip("."))]
    return [] if there == here else [name]


def load(path: Path) -> dict[str, Any]:
    """The checkpoint of a run, read as data: nothing in it is executed."""
    try:
        return torch.load(path / CHECKPOINT, map_location="cpu", weights_only=True)
    except Exception as error:
        raise RuntimeError(
            f"out: {path / CHECKPOINT} cannot be read ({first_line(error)}); remove it to begin again."
        ) from error


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
        with disk_in_words(self._path):
            write_whole(self._path / CHECKPOINT, lambda file: torch.save(state, file), secrets.token_hex(4))
            _write_json(self._path / HISTORY, state["history"])


def _on_host(value: Any) -> Any:
    """A copy that training no longer changes."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _on_host(inner) for key, inner in value.items()}
    return [_on_host(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _write_json(path: Path, content: Any) -> None:
    write_whole(path, lambda file: file.write_text(json.dumps(content, indent=1)), secrets.token_hex(4))
