"""A training step as one CUDA graph: forward, loss and backward are launched once and replayed.

A small network's step is hundreds of kernels of some microseconds each, and launching them takes longer than running
them. Replayed together they are one launch.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from hardsight.errors import StateError
from hardsight.extras import first_line
from hardsight.heads import capture, find_head
from hardsight.training.losses import Loss, cost

_WARM_UP = 3


class GraphedStep:
    """Forward, loss and backward of one batch shape, on one device.

    Gradients land in the parameters' own ``grad``, which are written anew in each replay: never zero or replace them.

    Args:
        network: In training mode, with nothing captured yet.
        forward: ``x → logits``, with whatever autocast is wanted.
        loss: ``(logits, targets) → scalar``, or one that needs the head. Numbers in it are recorded as they are now.
        x: A batch of the shape and memory format to come.
        targets: Its targets.
    """

    def __init__(
        self,
        network: nn.Module,
        forward: Callable[[Tensor], Tensor],
        loss: Loss,
        x: Tensor,
        targets: Tensor,
    ) -> None:
        self._x, self._targets = x.clone(), targets.clone()
        self._layer: Any = find_head(network).module
        changed = [network, loss] if isinstance(loss, nn.Module) else [network]
        buffers = [(buffer, buffer.clone()) for module in changed for buffer in module.buffers()]

        def step() -> tuple[Tensor, Tensor, Tensor]:
            with capture(network) as head:
                logits = forward(self._x)
                value = cost(loss, logits, self._targets, head)
                value.backward()
                return value.detach(), logits.detach(), head.features.detach()

        def forget() -> None:
            for module in changed:  # without gradients, so that the graph writes them instead of adding to them
                module.zero_grad(set_to_none=True)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                forget()
                step()
        torch.cuda.current_stream().wait_stream(side)
        forget()
        self._graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self._graph):
                self._loss, self._logits, self._features = step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise StateError(
                "a step cannot be replayed as a CUDA graph, because the network or the loss waits for the GPU or has "
                f"results of changing size ({first_line(error)}); set graph=False in the recipe."
            ) from error
        for buffer, before in buffers:  # warming up has gone into the running statistics
            buffer.copy_(before)

    def __call__(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, SimpleNamespace]:
        """Loss and logits of a batch, and its head as a recorder takes it; gradients are in the parameters."""
        self._x.copy_(x)
        self._targets.copy_(targets)
        self._graph.replay()
        # The next replay writes over what this one wrote.
        head = SimpleNamespace(
            features=self._features.clone(), weight=self._layer.weight.flatten(1), bias=self._layer.bias
        )
        return self._loss.clone(), self._logits, head
