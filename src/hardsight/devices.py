"""Where a network runs: its device, loader processes, and temporary eval mode."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hardsight.errors import InputError
from hardsight.extras import first_line, is_graph


@contextmanager
def evaluating(network: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode on the device; afterwards each submodule is restored."""
    modes = {module: module.training for module in network.modules()}
    home = next((p.device for p in network.parameters()), device)
    network.to(device).eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        network.to(home)


def moved(inputs: Any, device: torch.device) -> Any:
    """Inputs of a network on its device; float64 becomes float32 on Apple's mps, which lacks float64."""
    if isinstance(inputs, dict):
        return {key: moved(value, device) for key, value in inputs.items()}
    if is_graph(inputs):
        return inputs.to(device, non_blocking=True)
    if not isinstance(inputs, Tensor):
        return inputs
    if device.type == "mps" and inputs.dtype == torch.float64:
        inputs = inputs.float()
    return inputs.to(device, non_blocking=True)


def find_device(name: str | torch.device | None) -> torch.device:
    """The device to run on, or an error. Each process that torchrun started on a machine has a GPU of its own."""
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    if name is None and usual == "cuda" and (rank := os.environ.get("LOCAL_RANK", "")).isdecimal():
        usual = f"cuda:{int(rank) % torch.cuda.device_count()}"
    try:
        device = torch.device(name or usual)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device must be cpu, cuda, cuda:1 or mps and be present, got {name!r} ({first_line(error)})."
        ) from error
    return device


def loader_workers(workers: int | None, device: torch.device) -> int:
    """Loader processes: as many as were asked for, else enough to keep a GPU busy."""
    cores = os.cpu_count() or 1
    if workers is None:
        return 0 if device.type == "cpu" else min(8, cores)
    most = max(64, 4 * cores)  # more would only wait for one another, and may bring the machine to a halt
    if isinstance(workers, bool) or not isinstance(workers, int) or not 0 <= workers <= most:
        raise InputError(f"workers must be an integer between 0 and {most}, got {workers!r}.")
    return workers
