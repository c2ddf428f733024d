"""The training loop: one epoch of training, one evaluation, and the state that both change."""

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
from hardsight.training.augment import augment, mixup
from hardsight.training.graphed import GraphedStep
from hardsight.training.losses import Loss, batch_loss, equalize_norms
from hardsight.training.processes import Processes

# Losses are copied to the host every so many steps: more often makes the device wait, less often finds NaN late.
_STEPS_PER_COPY = 64
# Convolution algorithms that cuDNN tries. On an H200 all ten take 9 s before the first step of a ResNet-18 and make a
# step 1% faster than four, which take 2 s; without trying it is 4% slower.
_CUDNN_TRIALS = 4


@dataclass
class Training:
    """A network in training. `network` is trained in place; `result` is evaluated and saved."""

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
        self.loss_parameters = [p for p in self.loss_module.parameters() if p.requires_grad]
        self.needs_head, self.one_norm = (getattr(self.loss, name, False) for name in ("needs_head", "one_norm"))
        if self.one_norm:
            equalize_norms(self.network)
        self.average = Average(self.network, recipe.ema) if recipe.ema else None
        if recipe.compile:
            compile_parts(self.network)
        self.wrapped = self.processes.wrap(self.network)
        self.optimizer = make_optimizer(self.network, recipe, device.type == "cuda", self.loss_parameters)
        self.graph: GraphedStep | None = None

    @property
    def result(self) -> nn.Module:
        return self.network if self.average is None else self.average.module

    def train_epoch(self, source: Source, epoch: int, sampler: Any, recorder: Recorder | None) -> dict[str, Any]:
        """One pass over the data. Its randomness depends only on the seed, the epoch and the process."""
        recipe, device, rank, world = self.recipe, self.processes.device, self.processes.rank, self.processes.world
        batches = split_batches(self.order(len(source), epoch, sampler), recipe.batch_size, recipe.drop_last, world)
        # From 1: with a 0 at the end it would be the seed of the order of the data.
        seed = seed_of(recipe.seed, epoch, 1 + rank)
        seed_all(seed)
        generator, mixup_generator = torch.Generator(device).manual_seed(seed), random.Random(seed)  # noqa: S311
        if hasattr(self.loss, "at") and self.loss.at(epoch - 1):
            self.graph = None  # it has captured the previous numbers
        self.network.train()
        if recipe.frozen_norm:
            for layer in self.network.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    layer.eval()
        graphed = recipe.graph and device.type == "cuda" and world == 1 and source.pixels is not None
        graphed = graphed and all(len(rows) == recipe.batch_size for rows in batches)
        meter = Meter(epoch)
        with ExitStack() as stack:
            captured = (recorder is not None or self.needs_head) and not graphed
            head = stack.enter_context(capture(self.wrapped)) if captured else None
            for step, (rows, x, y, targets) in enumerate(source.batches([rows[rank::world] for rows in batches])):
                self.set_rate(epoch - 1 + step / len(batches))
                if isinstance(x, Tensor) and x.ndim == 4:
                    x = self.to_layout(augment(x, recipe, generator, self.size))
                if recipe.mixup:
                    x, targets = mixup(x, targets, self.classes, recipe.mixup, mixup_generator)
                if graphed:
                    self.graph = self.graph or GraphedStep(self.network, self.logits, self.loss, x, targets)
                    loss, logits, head = self.graph(x, targets)
                else:
                    logits = self.logits(x)
                    loss = batch_loss(self.loss, logits, targets, head)
                    if self.needs_head and world > 1:
                        loss = loss + 0 * logits.sum()  # DDP waits for the gradient of every parameter, even a bias
                    self.optimizer.zero_grad(set_to_none=self.graph is None)  # a graph keeps its gradients in place
                    # Shares of a batch may differ by a sample between processes; their mean must not depend on that.
                    (loss * (len(y) * world / len(batches[step]))).backward()
                    self.processes.average(p.grad for p in self.loss_parameters if p.grad is not None)
                if recorder is not None and head is not None:
                    recorder.update(rows, head, y)
                parts = dict(getattr(self.loss, "last_parts", {}))
                if recipe.clip:
                    parts["gradient"] = nn.utils.clip_grad_norm_(self.network.parameters(), recipe.clip)
                self.optimizer.step()
                if self.average is not None:
                    self.average.update()
                meter.add(loss, logits, y, parts)
        self.processes.broadcast_buffers(self.loss_module)
        if self.one_norm:
            for network in {self.network, self.result}:
                equalize_norms(network)
        means = meter.means(self.processes)
        if recipe.mixup:
            means["accuracy"] = None
        return {**means, "steps": len(batches)}

    def evaluate(self, source: Source, epoch: int, recorder: Recorder | None) -> dict[str, Any]:
        """One pass in eval mode: mean cross-entropy and accuracy."""
        self.processes.broadcast_buffers(self.result)
        rows = torch.arange(self.processes.rank, len(source), self.processes.world)
        meter = Meter(epoch, testing=True)
        self.result.eval()
        with ExitStack() as stack:
            head = None if recorder is None else stack.enter_context(capture(self.result))
            stack.enter_context(torch.no_grad())
            # Without rows of its own a process only takes part in the sums.
            for part, x, y, _ in source.batches(list(rows.split(self.recipe.batch_size)) if len(rows) else []):
                with self.autocast():
                    logits = logits_of(self.result, self.to_layout(x))
                if recorder is not None and head is not None:
                    recorder.update(part, head, y)
                meter.add(F.cross_entropy(logits.float(), y), logits, y)
        means = meter.means(self.processes)
        loss = means["loss"] if math.isfinite(means["loss"]) else None  # JSON has no NaN
        return {"test_loss": loss, "test_accuracy": means["accuracy"]}

    def order(self, count: int, epoch: int, sampler: Any) -> Tensor:
        """Rows in the order of this epoch, the same in every process."""
        seed = seed_of(self.recipe.seed, epoch)
        if sampler is None:
            return torch.randperm(count, generator=torch.Generator().manual_seed(seed))

        def draw() -> list[int]:
            seed_all(seed)
            if isinstance(generator := getattr(sampler, "generator", None), torch.Generator):
                generator.manual_seed(seed)  # no checkpoint holds its state
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch - 1)  # torch counts from 0
            return [int(row) for row in sampler]

        rows = torch.tensor(by_first_process(draw))
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
            return logits_of(self.wrapped, x)

    def to_layout(self, x: Any) -> Any:
        images = self.recipe.channels_last and isinstance(x, Tensor) and x.ndim == 4
        return x.contiguous(memory_format=torch.channels_last) if images else x

    def autocast(self) -> Any:
        bf16 = self.recipe.precision == "bf16"
        return torch.autocast(self.processes.device.type, dtype=torch.bfloat16) if bf16 else nullcontext()

    def state(self) -> dict[str, Any]:
        """The contents of a checkpoint; ``model`` holds the weights to use."""
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
            self.average.started = True
        self.loss_module.load_state_dict(state.get("loss", {}))
        self.optimizer.load_state_dict(state["optimizer"])
        self.history = list(state["history"])


class Average:
    """A moving average of weights and running statistics. (torch's `AveragedModel` makes each step wait for a GPU.)"""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.module, self.started = copy.deepcopy(network), False
        self._update = get_ema_multi_avg_fn(decay)
        averages, values = ([*module.parameters(), *module.buffers()] for module in (self.module, network))
        floating = [value.is_floating_point() for value in values]
        counts = [not is_float for is_float in floating]
        self._floats = list(compress(averages, floating)), list(compress(values, floating))
        self._counts = list(compress(averages, counts)), list(compress(values, counts))

    @torch.no_grad()
    def update(self) -> None:
        if self._counts[0]:
            torch._foreach_copy_(*self._counts)
        if self._floats[0] and self.started:
            self._update(*self._floats, 0)
        elif self._floats[0]:
            torch._foreach_copy_(*self._floats)
        self.started = True


class Meter:
    """Sums the loss, its parts and the correct predictions of a pass, on the device until they are copied."""

    def __init__(self, epoch: int, testing: bool = False) -> None:
        self._epoch, self._testing = epoch, testing
        self._pending: list[tuple[Tensor, int]] = []
        self._names: tuple[str, ...] = ("loss", "accuracy")
        self._steps, self._samples, self._sums = 0, 0, np.zeros(2)

    def add(self, loss: Tensor, logits: Tensor, y: Tensor, parts: Mapping[str, Tensor] | None = None) -> None:
        parts = parts or {}
        correct = (logits.detach().argmax(1) == y).sum()
        values = [loss.detach(), correct, *parts.values()]
        self._names = ("loss", "accuracy", *parts)
        self._pending.append((torch.stack([value.float() for value in values]), len(y)))
        if len(self._pending) == _STEPS_PER_COPY:
            self._copy()

    def _copy(self) -> None:
        if not self._pending:
            return
        values = torch.stack([values for values, _ in self._pending], 1).cpu().double().numpy()
        sizes = np.array([size for _, size in self._pending])
        broken = np.flatnonzero(~np.isfinite(values[0]))
        if len(broken) and not self._testing:
            safe = "the checkpoint of the previous epoch is safe" if self._epoch > 1 else "there is no checkpoint yet"
            raise DivergedError(
                f"the loss is {values[0, broken[0]]} in epoch {self._epoch}, step {self._steps + broken[0] + 1}; "
                f"{safe}. Lower the learning rate, add a warmup, or clip the gradient."
            )
        values[0] *= sizes
        values[2:] *= sizes
        sums = values.sum(1)
        self._sums = sums if self._steps == 0 else self._sums + sums
        self._steps, self._samples, self._pending = self._steps + len(sizes), self._samples + int(sizes.sum()), []

    def means(self, processes: Processes) -> dict[str, Any]:
        """Means over the samples of all processes, and the number of samples."""
        self._copy()
        *sums, count = processes.sum(torch.tensor([*self._sums, self._samples], dtype=torch.float64)).tolist()
        loss, accuracy, *parts = (total / max(count, 1) for total in sums)
        named = dict(zip(self._names, (loss, accuracy, *parts), strict=True))
        return {**named, "samples": int(count)}


def seed_of(*numbers: int) -> int:
    """One seed from several numbers; similar numbers give unrelated seeds. A final 0 changes nothing."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def seed_all(seed: int) -> None:
    """Seed every global generator that a network, a data set or a sampler may use."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def split_batches(order: Tensor, size: int, drop_last: bool, world: int) -> list[Tensor]:
    """Batches over all processes; a last one with fewer than two samples per process has no batch statistics."""
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) < (size if drop_last else 2 * world):
        batches.pop()
    return batches


def make_optimizer(
    network: nn.Module, recipe: Recipe, fused: bool, loss_parameters: Sequence[Tensor] = ()
) -> torch.optim.Optimizer:
    """The recipe's optimizer over all weights, and over the parameters of the loss, which do not decay."""
    weights: list[Any] = [p for p in network.parameters() if p.requires_grad]
    if loss_parameters:
        weights = [{"params": weights}, {"params": list(loss_parameters), "weight_decay": 0.0}]
    options: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
    if recipe.optimizer == "rmsprop":  # the paper's networks use TensorFlow's constants
        return torch.optim.RMSprop(weights, **options, momentum=recipe.momentum, alpha=0.9, eps=1e-3)
    options["fused"] = fused or None
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(weights, **options, momentum=recipe.momentum, nesterov=recipe.nesterov)
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(weights, **options, betas=(recipe.momentum, 0.999))


def compile_parts(network: nn.Module) -> None:
    """Compile in place the largest parts without the head, so that hooks on the head still run."""
    head = find_head(network).module
    # Blocks share their code, and each of their shapes, in training and in evaluation, is compiled anew.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)

    def visit(part: nn.Module) -> None:
        for child in part.children():
            has_head = any(inner is head for inner in child.modules())
            if has_head or isinstance(child, (nn.ModuleList, nn.ModuleDict)):  # these are never called themselves
                visit(child)
            elif any(True for _ in child.parameters()):
                child.compile(dynamic=False)

    visit(network)


@contextmanager
def preserved_state(device: torch.device) -> Iterator[None]:
    """Restore the caller's random state and cuDNN settings afterwards; inside, cuDNN chooses algorithms by trial."""
    cudnn, python, numpy = torch.backends.cudnn, random.getstate(), np.random.get_state()
    before = cudnn.benchmark, cudnn.benchmark_limit
    cudnn.benchmark, cudnn.benchmark_limit = True, _CUDNN_TRIALS
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        cudnn.benchmark, cudnn.benchmark_limit = before
        random.setstate(python)
        np.random.set_state(numpy)
