"""The processes of a training: who this one is among those that torchrun started, and what they exchange."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hardsight.devices import find_device


@dataclass(frozen=True)
class Processes:
    """The rank of this process, the number of processes, and the device of this one."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """The value of every process, in order."""
        values: list[Any] = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(values, value)
        return values

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their means over all processes."""
        if self.world > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor /= self.world

    def broadcast_buffers(self, module: nn.Module) -> None:
        """Copy the running statistics of the first process to all; each has averaged over its own samples."""
        if self.world > 1:
            for buffer in module.buffers():
                dist.broadcast(buffer, 0)


@contextmanager
def processes(device: str | torch.device | None) -> Iterator[Processes]:
    """Join the processes that torchrun started, for as long as the context lasts; otherwise this one alone."""
    initialized = dist.is_available() and dist.is_initialized()
    launched = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1
    if not initialized and not launched:
        yield Processes(0, 1, find_device(device))
        return
    if device is None and torch.cuda.is_available():
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    device = find_device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not initialized:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), device)
        dist.barrier()  # torch aborts if a process ends while one of its threads still holds what it sent
    finally:
        if not initialized:
            dist.destroy_process_group()
