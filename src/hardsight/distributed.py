"""Work that the first process of a `torch.distributed` job does for all; its errors are raised in all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from hardsight.errors import StateError


def joined_job() -> bool:
    """Whether this process is one of several in a job."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def by_first_process(work: Callable[[], Any]) -> Any:
    """Run `work` in the first process and return its result, or raise its error, in every process.

    Only the first process reads and writes files, so machines need not share a disk. If it alone raised the error, the
    others would wait for it in the next step.
    """
    if not joined_job():
        return work()
    outcome: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            outcome = [(work(), None)]
        except Exception as error:
            outcome = [(None, error)]
    dist.broadcast_object_list(outcome, 0)
    result, failure = outcome[0]
    if failure is not None:
        dist.barrier()  # torch aborts if a process ends while one of its threads still holds what was sent
        raise failure
    return result


def wait_for_all() -> None:
    """Wait for every process that torchrun started, in a process group that exists only for that."""
    try:
        dist.init_process_group("gloo")
        dist.barrier()
        dist.destroy_process_group()
    except RuntimeError as error:
        raise StateError("another process of the job failed; its error says why.") from error
