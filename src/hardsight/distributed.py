"""What the processes of one `torch.distributed` job share: an error of the first is everyone's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from hardsight.errors import StateError


def joined_job() -> bool:
    """Whether this process is part of a job of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def by_first_process(work: Callable[[], Any]) -> Any:
    """What `work` returns in the first process, in every process; its error is everyone's.

    Only the first process reads and writes files: several machines need not share a disk. Were its error its own, the
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
        dist.barrier()  # every process ends now, and torch aborts if one of its threads still holds what was sent
        raise failure
    return result


def wait_for_all() -> None:
    """Wait until every process that torchrun started is here, in a job that exists only for that."""
    try:
        dist.init_process_group("gloo")
        dist.barrier()
        dist.destroy_process_group()
    except RuntimeError as error:
        raise StateError("another process of the job failed; its error says why.") from error
