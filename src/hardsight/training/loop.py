"""The loop: one epoch of training, one pass of evaluation, and the state that both leave."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from hardsight.data import Source
from hardsight.distributed import by_first_process
from hardsight.dynamics import Recorder
from hardsight.errors import DivergedError, InputError
from hardsight.heads import capture, find_head, logits_of
from hardsight.networks import Normalize
from hardsight.recipes import Recipe, learning_rate, momentum_at
from hardsight.training.augment import augment, mix
from hardsight.training.graphed import GraphedStep
from hardsight.training.losses import Loss, cost, to_one_norm
from hardsight.training.processes import Processes

# Losses come to the host after so many steps: more often would make the device wait, more seldom would find a broken
# one late.
_LOOK = 64
# So many ways to compute a convolution are tried. On an H200 all ten take 9 s before the first step of a ResNet-18 and
# make a step 1 % faster than four, which take 2 s; without trying it is 4 % slower.
_TRIED = 4


@dataclass
class Training:
    """A network in training. `network` is trained in place; `result` is what is evaluated and kept."""

    network: nn.Module
    recipe: Recipe
    processes: Processes
    loss: Loss
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        recipe, device = self.recipe, self.processes.device
        self.classes = find_head(self.network).classes
        self.size = next((layer.size for layer in self.network.modules() if isinstance(layer, Normalize)), None)
        layout = torch.channels_last if recipe.channels_last else torch.preserve_format
        self.network.to(device=device, memory_format=layout)  # pyrefly: ignore[no-matching-overload]
        self.loss_module = self.loss.to(device).train() if isinstance(self.loss, nn.Module) else nn.Module()
        self.learned = [p for p in self.loss_module.parameters() if p.requires_grad]
        self.needs_head, self.one_norm = (getattr(self.loss, name, False) for name in ("needs_head", "one_norm"))
        if self.one_norm:
            to_one_norm(self.network)
        self.average = Average(self.network, recipe.ema) if recipe.ema else None
        if recipe.compile:
            compile_parts(self.network)
        self.called = self.processes.wrapped(self.network)
        self.optimizer = make_optimizer(self.network, recipe, fused=device.type == "cuda", learned=self.learned)
        self.graph: GraphedStep | None = None

    @property
    def result(self) -> nn.Module:
        return self.network if self.average is None else self.average.module

    def train_epoch(self, source: Source, epoch: int, sampler: Any, recorder: Recorder | None) -> dict[str, Any]:
        """One pass over the data; everything random in it is a function of the seed, the epoch and the process."""
        recipe, device = self.recipe, self.processes.device
        order = self.order(len(source), epoch, sampler)
        batches = divided(order, recipe.batch_size, recipe.drop_last, self.processes.world)
        # From 1: a 0 at the end would give the seed of the order of the data, and one stream would make both.
        seed = seed_of(recipe.seed, epoch, 1 + self.processes.rank)
        seed_all(seed)
        generator, chance = torch.Generator(device).manual_seed(seed), random.Random(seed)  # noqa: S311
        seen = _Seen(epoch)
        if hasattr(self.loss, "at") and self.loss.at(epoch - 1):
            self.graph = None  # it would go on with the old numbers
        self.network.train()
        if recipe.frozen_norm:
            for layer in self.network.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    layer.eval()
        graphed = (
            *(recipe.graph, device.type == "cuda", self.processes.world == 1, source.pixels is not None),
            *(len(rows) == recipe.batch_size for rows in batches),
        )
        graphed = all(graphed)
        with ExitStack() as stack:
            watched = (recorder is not None or self.needs_head) and not graphed
            head = stack.enter_context(capture(self.called)) if watched else None
            mine = [rows[self.processes.rank :: self.processes.world] for rows in batches]
            for step, (rows, x, y, targets) in enumerate(source.batches(mine)):
                self.set_rate(epoch - 1 + step / len(batches))
                if isinstance(x, Tensor) and x.ndim == 4:
                    x = self.laid_out(augment(x, recipe, generator, self.size))
                if recipe.mixup:
                    x, targets = mix(x, targets, self.classes, recipe.mixup, chance)
                if graphed:
                    self.graph = self.graph or GraphedStep(self.network, self.logits, self.loss, x, targets)
                    loss, logits, head = self.graph(x, targets)
                else:
                    logits = self.logits(x)
                    loss = cost(self.loss, logits, targets, head)
                    if self.needs_head and self.processes.world > 1:
                        loss = loss + 0 * logits.sum()  # processes wait for the gradient of everything, such as a bias
                    self.optimizer.zero_grad(set_to_none=self.graph is None)  # a graph keeps its gradients in place
                    # Shares of one batch may differ by a sample between processes: their mean must not.
                    (loss * (len(y) * self.processes.world / len(batches[step]))).backward()
                    self.processes.average(p.grad for p in self.learned if p.grad is not None)
                if recorder is not None and head is not None:
                    recorder.update(rows, head, y)
                parts = dict(getattr(self.loss, "last_parts", {}))
                if recipe.clip:
                    parts["gradient"] = nn.utils.clip_grad_norm_(self.network.parameters(), recipe.clip)
                self.optimizer.step()
                if self.average is not None:
                    self.average.update()
                seen.add(loss, logits, y, parts)
            seen.look()
        self.processes.same_buffers(self.loss_module)
        if self.one_norm:
            for network in {self.network, self.result}:
                to_one_norm(network)
        means = seen.over(self.processes)
        if recipe.mixup:
            means["accuracy"] = None
        return {**means, "steps": len(batches)}

    def evaluate(self, source: Source, epoch: int, recorder: Recorder | None) -> dict[str, Any]:
        """One pass in eval mode: mean cross-entropy and accuracy."""
        self.processes.same_buffers(self.result)
        rank, world = self.processes.rank, self.processes.world
        rows = torch.arange(rank, len(source), world)
        seen = _Seen(epoch, tested=True)
        self.result.eval()
        with ExitStack() as stack:
            head = None if recorder is None else stack.enter_context(capture(self.result))
            stack.enter_context(torch.no_grad())
            # A share may be empty; then this process only takes part in the sums.
            for part, x, y, _ in source.batches(list(rows.split(self.recipe.batch_size)) if len(rows) else []):
                with self.autocast():
                    logits = logits_of(self.result, self.laid_out(x))
                if recorder is not None and head is not None:
                    recorder.update(part, head, y)
                seen.add(F.cross_entropy(logits.float(), y), logits, y)
            seen.look()
        means = seen.over(self.processes)
        loss = means["loss"] if math.isfinite(means["loss"]) else None  # JSON has no NaN
        return {"test_loss": loss, "test_accuracy": means["accuracy"]}

    def order(self, count: int, epoch: int, sampler: Any) -> Tensor:
        """Rows in the order of this epoch, the same in every process."""
        seed = seed_of(self.recipe.seed, epoch)
        if sampler is None:
            return torch.randperm(count, generator=torch.Generator().manual_seed(seed))

        def drawn() -> list[int]:
            seed_all(seed)
            if isinstance(own := getattr(sampler, "generator", None), torch.Generator):
                own.manual_seed(seed)  # its state is in no checkpoint
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch - 1)  # torch counts them from 0
            return [int(row) for row in sampler]

        rows = torch.tensor(by_first_process(drawn))
        if not len(rows) or rows.min() < 0 or rows.max() >= count:
            raise InputError(f"sampler must yield rows between 0 and {count - 1}, got {rows.tolist()[:5]} ….")
        return rows

    def set_rate(self, time: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.recipe, time)
            if "betas" in group:
                group["betas"] = (momentum_at(self.recipe, time), group["betas"][1])

    def logits(self, x: Any) -> Tensor:
        with self.autocast():
            return logits_of(self.called, x)

    def laid_out(self, x: Any) -> Any:
        pictures = self.recipe.channels_last and isinstance(x, Tensor) and x.ndim == 4
        return x.contiguous(memory_format=torch.channels_last) if pictures else x

    def autocast(self) -> Any:
        bf16 = self.recipe.precision == "bf16"
        return torch.autocast(self.processes.device.type, dtype=torch.bfloat16) if bf16 else nullcontext()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds; ``model`` are the weights to use."""
        online = {} if self.average is None else {"online": self.network.state_dict()}
        return {
            "model": self.result.state_dict(),
            **online,
            "loss": self.loss_module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": len(self.history),
            "history": self.history,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.network.load_state_dict(state.get("online", state["model"]))
        if self.average is not None:
            self.average.module.load_state_dict(state["model"])
            self.average.begun = True
        self.loss_module.load_state_dict(state.get("loss", {}))
        self.optimizer.load_state_dict(state["optimizer"])
        self.history = list(state["history"])


class Average:
    """A moving average of weights and running statistics. (torch's `AveragedModel` makes each step wait for a GPU.)"""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.module, self.begun = copy.deepcopy(network), False
        self._update = get_ema_multi_avg_fn(decay)
        averages, values = ([*module.parameters(), *module.buffers()] for module in (self.module, network))
        floating = [value.is_floating_point() for value in values]
        self._moving = list(compress(averages, floating)), list(compress(values, floating))
        counts = [not kind for kind in floating]
        self._counts = list(compress(averages, counts)), list(compress(values, counts))

    @torch.no_grad()
    def update(self) -> None:
        if self._counts[0]:
            torch._foreach_copy_(*self._counts)
        if self._moving[0] and self.begun:
            self._update(*self._moving, 0)
        elif self._moving[0]:
            torch._foreach_copy_(*self._moving)
        self.begun = True


class _Seen:
    """Loss, hits and parts of the loss of a pass. They stay on the device until looked at."""

    def __init__(self, epoch: int, tested: bool = False) -> None:
        self._epoch, self._tested = epoch, tested
        self._waiting: list[tuple[Tensor, int]] = []
        self._parts: tuple[str, ...] = ()
        self._steps = 0
        self._sums = {"loss": 0.0, "accuracy": 0.0, "samples": 0.0}

    def add(self, loss: Tensor, logits: Tensor, y: Tensor, parts: Mapping[str, Tensor] | None = None) -> None:
        hits = (logits.detach().argmax(1) == y).sum()
        self._parts = tuple(parts or ())
        values = [loss.detach(), hits, *(parts or {}).values()]
        self._waiting.append((torch.stack([value.float() for value in values]), len(y)))
        if len(self._waiting) == _LOOK:
            self.look()

    def look(self) -> None:
        if not self._waiting:
            return
        values = torch.stack([found for found, _ in self._waiting], 1).cpu().double().numpy()
        sizes = np.array([size for _, size in self._waiting])
        losses = values[0]
        broken = np.flatnonzero(~np.isfinite(losses))
        if len(broken) and not self._tested:
            safe = "the checkpoint of the epoch before is safe" if self._epoch > 1 else "there is no checkpoint yet"
            raise DivergedError(
                f"the loss is {losses[broken[0]]} in epoch {self._epoch}, step {self._steps + broken[0] + 1}; {safe}. "
                "Lower the learning rate, let it rise during a warmup, or clip the gradient."
            )
        sums = [(losses * sizes).sum(), values[1].sum(), sizes.sum(), *(values[2:] * sizes).sum(1)]
        for name, value in zip(("loss", "accuracy", "samples", *self._parts), sums, strict=True):
            self._sums[name] = self._sums.get(name, 0.0) + float(value)
        self._steps, self._waiting = self._steps + len(sizes), []

    def over(self, processes: Processes) -> dict[str, Any]:
        """Means over the samples of all processes, and how many those are."""
        sums = processes.total(torch.tensor(list(self._sums.values()), dtype=torch.float64)).tolist()
        found = dict(zip(self._sums, sums, strict=True))
        count = int(found.pop("samples"))
        return {**{name: value / max(count, 1) for name, value in found.items()}, "samples": count}


def seed_of(*numbers: int) -> int:
    """One seed from several numbers; neighbours give unrelated ones. A 0 at the end is as good as no number."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def seed_all(seed: int) -> None:
    """Seed every generator that a network, a data set or a sampler may draw from without naming one."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def divided(order: Tensor, size: int, drop_last: bool, world: int) -> list[Tensor]:
    """Batches over all processes. A last one of fewer than two samples a process has no batch statistics: left out."""
    parts = list(order.split(size))
    if len(parts) > 1 and len(parts[-1]) < (size if drop_last else 2 * world):
        parts.pop()
    return parts


def make_optimizer(
    network: nn.Module, recipe: Recipe, fused: bool, learned: Sequence[Tensor] = ()
) -> torch.optim.Optimizer:
    """The recipe's optimizer over all weights, and over what a loss learns, which does not decay."""
    weights: list[Any] = [p for p in network.parameters() if p.requires_grad]
    if learned:
        weights = [{"params": weights}, {"params": list(learned), "weight_decay": 0.0}]
    common = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
    if recipe.optimizer == "rmsprop":  # the paper's networks use TensorFlow's constants
        return torch.optim.RMSprop(weights, **common, momentum=recipe.momentum, alpha=0.9, eps=1e-3)
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            weights, **common, momentum=recipe.momentum, nesterov=recipe.nesterov, fused=fused or None
        )
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(weights, **common, betas=(recipe.momentum, 0.999), fused=fused or None)


def compile_parts(network: nn.Module) -> None:
    """Compile in place the largest parts that do not hold the head: hooks on the rest are still seen."""
    head = find_head(network).module
    # Blocks share their code, and each shape of one, in training and in evaluation, is compiled anew.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)

    def visit(part: nn.Module) -> None:
        for child in part.children():
            holds = any(inner is head for inner in child.modules())
            if holds or isinstance(child, (nn.ModuleList, nn.ModuleDict)):  # those are never called themselves
                visit(child)
            elif any(True for _ in child.parameters()):
                child.compile(dynamic=False)

    visit(network)


@contextmanager
def steady(device: torch.device) -> Iterator[None]:
    """The caller's random state is left alone, and convolutions of one shape are chosen by trying."""
    cudnn, python, numpy = torch.backends.cudnn, random.getstate(), np.random.get_state()
    before = cudnn.benchmark, cudnn.benchmark_limit
    cudnn.benchmark, cudnn.benchmark_limit = True, _TRIED
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        cudnn.benchmark, cudnn.benchmark_limit = before
        random.setstate(python)
        np.random.set_state(numpy)
