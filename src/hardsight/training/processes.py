"""One process or several: what torchrun says, and the few messages that training needs."""

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
    """Which process this is, of how many, and the device it computes on."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world > 1:
            if self.device.type == "cuda":
                values = values.to(self.device)  # NCCL sends from there only
            dist.all_reduce(values)
        return values.cpu()

    def gathered(self, value: Any) -> list[Any]:
        """The value of every process, in order."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def average(self, tensors: Iterable[Tensor]) -> None:
        """The mean over all processes, written in place."""
        if self.world > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor /= self.world

    def same_buffers(self, module: nn.Module) -> None:
        """The first process's running statistics, everywhere: each process has averaged over its own samples."""
        if self.world > 1:
            for buffer in module.buffers():
                dist.broadcast(buffer, 0)

    def wrapped(self, module: nn.Module) -> nn.Module:
        """The network as the training step calls it."""
        return module if self.world == 1 else nn.parallel.DistributedDataParallel(module)


@contextmanager
def processes(device: str | torch.device | None) -> Iterator[Processes]:
    """The processes that torchrun started, joined for as long as the context lasts; otherwise this one alone."""
    begun = dist.is_available() and dist.is_initialized()
    launched = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1
    if not begun and not launched:
        yield Processes(0, 1, find_device(device))
        return
    if device is None and torch.cuda.is_available():
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    found = find_device(device)
    if found.type == "cuda":
        torch.cuda.set_device(found)
    if not begun:
        dist.init_process_group("cpu:gloo,cuda:nccl" if found.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), found)
        dist.barrier()  # torch aborts when a process ends while one of its threads still holds what it sent
    finally:
        if not begun:
            dist.destroy_process_group()
