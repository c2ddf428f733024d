"""A head watched inside another library's loop: what it sees of a batch goes to a recorder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn

from hardsight.dynamics import Recorder
from hardsight.errors import InputError, StateError
from hardsight.heads import HeadLayer, capture, find_head, unwrap


def where(run: str | Path | Recorder, stage: str) -> tuple[Recorder | None, Path]:
    """The recorder that was given, if it was, and the folder to write."""
    if stage not in ("train", "validation"):
        raise InputError(f"stage must be 'train' or 'validation', got {stage!r}.")
    return (None, Path(run)) if isinstance(run, (str, Path)) else (run, run.path)


def recorder_at(run: str | Path, epoch: int | None, options: Mapping[str, Any]) -> Recorder:
    """A recorder that begins, or goes on at an epoch: then what is there is kept, whatever the options say."""
    goes_on: dict[str, Any] = {} if epoch is None else {"epoch": epoch, "overwrite": False}
    return Recorder(run, **{**options, **goes_on})


class Watch:
    """Hands what the head saw of a batch to a recorder while the forward is still running.

    There the features meet the weight that they saw, whatever the trainer does next: accumulate gradients, step, or
    run the batch again. The first forward after `expect` counts; forwards that nobody expects are not recorded.

    Args:
        model: The classifier, wrapped or not.
        recorder: Where the batches go.
        head: The layer, or its path, when `hardsight.find_head` should not choose.
    """

    def __init__(self, model: nn.Module, recorder: Recorder, head: str | nn.Module | None = None) -> None:
        layer = find_head(model, head)
        if any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in _around(model, layer)):
            raise InputError(
                f"model: the head {layer.path!r} is inside a compiled module, and compiled code does not see hooks; "
                "compile the part before the head only, or train without compiling."
            )
        self._recorder, self._path = recorder, layer.path
        self._batch: tuple[Any, Any] | None = None
        self._ran_once = self._unsaved = False
        self._hooks = ExitStack()
        # The layer alone: a trainer may call its model through any method, but a layer is called to be run.
        self._head = self._hooks.enter_context(capture(layer.module))
        self._head.path = layer.path
        self._hooks.callback(layer.module.register_forward_hook(self._ran).remove)

    def expect(self, ids: Any, labels: Any) -> None:
        """Say which samples the next forward is about."""
        self._batch = (ids, labels)

    def forget(self) -> None:
        """Say that the batch is over.

        Raises:
            RuntimeError: It is, and the head has not run in any batch so far.
        """
        self._batch = None
        if not self._ran_once:
            raise StateError(
                f"the head {self._path!r} did not run in the first batch: another layer makes the output (name it with "
                "head=), or its weight is used through F.linear."
            )

    def flush(self) -> None:
        """Commit what came since the last commit, so that a run resumed inside the epoch lacks nothing."""
        if self._unsaved:
            self._recorder.flush()
            self._unsaved = False

    def end_epoch(self) -> None:
        """Commit the epoch."""
        self._recorder.end_epoch()
        self._unsaved = False

    def close(self) -> None:
        """Take the hooks away."""
        self._hooks.close()

    def _ran(self, *_: Any) -> None:
        features = self._head.features  # read in any case: unread features make the next forward an error
        if self._batch is None:
            return
        (ids, labels), self._batch = self._batch, None
        if len(ids) != len(features):
            raise StateError(
                f"the head {self._path!r} saw {len(features)} rows in a batch of {len(ids)} ids: several views of a "
                "sample, or a batch that was cut or mixed after its ids were read, cannot be recorded."
            )
        self._recorder.update(ids, self._head, labels)
        self._ran_once = self._unsaved = True


def _around(model: nn.Module, layer: HeadLayer) -> list[nn.Module]:
    """The model and every module that holds the head, and the head."""
    names = layer.path.split(".")
    return [model, *(unwrap(model).get_submodule(".".join(names[:depth])) for depth in range(len(names) + 1))]
