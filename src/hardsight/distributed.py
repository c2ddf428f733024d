"""The processes of a `torch.distributed` job: their ranks, what they exchange, and what the first does for all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hardsight.devices import find_device
from hardsight.errors import StateError


def joined_job() -> bool:
    """Whether this process is one of several in a job."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank_and_world() -> tuple[int, int]:
    """The rank of this process and the number of processes."""
    return (dist.get_rank(), dist.get_world_size()) if joined_job() else (0, 1)


@contextmanager
def torchrun_job(device: str | torch.device | None) -> Iterator[torch.device]:
    """Join the processes that torchrun started, if any, for as long as the context lasts; yields this one's device."""
    initialized = dist.is_available() and dist.is_initialized()
    launched = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1
    if not initialized and not launched:
        yield find_device(device)
        return
    device = find_device(device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    if not initialized:
        _join("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
        dist.barrier()  # torch aborts if a process ends while one of its threads still holds data that it sent
    finally:
        if not initialized:
            dist.destroy_process_group()


def _join(backend: str) -> None:
    """Join the processes that torchrun started, also after it has restarted them."""
    environment = os.environ
    restarts, world = environment.get("TORCHELASTIC_RESTART_COUNT", "0"), environment["WORLD_SIZE"]
    shared = restarts != "0" and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    options: dict[str, Any] = {}
    # torchrun keeps one store over all restarts, in which a process may find the address of a dead one. Several
    # machines may have counted restarts differently, so they cannot agree on another part of the store.
    if shared and environment.get("LOCAL_WORLD_SIZE") == world:
        address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        store = dist.PrefixStore(f"restart {restarts}", dist.TCPStore(address, port, int(world), is_master=False))
        options = {"store": store, "rank": int(environment["RANK"]), "world_size": int(world)}
    dist.init_process_group(backend, **options)
    dist.barrier()  # a process that refuses its arguments at once would leave the others with a broken connection


def gather(value: Any) -> list[Any]:
    """The value of every process, in order."""
    values: list[Any] = [value]
    if joined_job():
        values *= dist.get_world_size()
        dist.all_gather_object(values, value)
    return values


def average(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by their means over all processes."""
    if joined_job():
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()


def broadcast(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by those of the first process."""
    if joined_job():
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def by_first_process(work: Callable[[], Any]) -> Any:
    """Run `work` in the first process and return its result, or raise its error, in every process.

    Only the first process reads and writes files, so machines need not share a disk. If only the first raised the
    error, the others would wait for it in the next step.
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
        dist.barrier()  # torch aborts if a process ends while one of its threads still holds data that was sent
        raise failure
    return result


def wait_for_all() -> None:
    """Wait for every process that torchrun started, in a temporary process group."""
    try:
        _join("gloo")
        dist.barrier()
        dist.destroy_process_group()
    except RuntimeError as error:
        raise StateError("another process of the job failed; its error says why.") from error
