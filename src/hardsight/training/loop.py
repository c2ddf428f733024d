"""The training loop: one epoch of training, one evaluation, and the state that both change."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.data import Source
from hardsight.distributed import average, broadcast, by_first_process, gather, rank_and_world
from hardsight.dynamics import Recorder
from hardsight.errors import DivergedError, InputError
from hardsight.heads import capture, find_head, logits_of
from hardsight.networks import Normalize
from hardsight.recipes import Recipe, learning_rate, momentum_at
from hardsight.training.augment import augment, mixup
from hardsight.training.graphed import GraphedStep
from hardsight.training.losses import Loss, batch_loss, equalize_norms

# Losses are copied to the host every so many batches: more often makes the device wait, less often finds NaN late.
_BATCHES_PER_COPY = 64
# Convolution algorithms that cuDNN tries. On an H200 all ten take 9 s before the first step of a ResNet-18 and make a
# step 1% faster than four, which take 2 s; without trying it is 4% slower.
_CUDNN_TRIALS = 4


class Training:
    """A network in training. `network` is trained in place; `result` is evaluated and saved."""

    def __init__(self, network: nn.Module, recipe: Recipe, device: torch.device, loss: Loss) -> None:
        self.network, self.recipe, self.device, self.loss = network, recipe, device, loss
        self.history: list[dict[str, Any]] = []
        self.rank, self.world = rank_and_world()
        self.classes = find_head(network).classes
        self.size = next((layer.size for layer in network.modules() if isinstance(layer, Normalize)), None)
        layout = torch.channels_last if recipe.channels_last else torch.preserve_format
        network.to(device=device, memory_format=layout)  # pyrefly: ignore[no-matching-overload]
        self.loss_module = loss.to(device).train() if isinstance(loss, nn.Module) else nn.Module()
        self.loss_parameters = [p for p in self.loss_module.parameters() if p.requires_grad]
        self.needs_head, self.one_norm = (getattr(loss, name, False) for name in ("needs_head", "one_norm"))
        if self.one_norm:
            equalize_norms(network)
        self.result, self.update_average = moving_average(network) if recipe.ema else (network, None)
        self.plain_norms = synchronize_norms(network) if recipe.sync_batchnorm and self.world > 1 else {}
        if recipe.compile:
            compile_parts(network)
        self.wrapped: Any = network if self.world == 1 else nn.parallel.DistributedDataParallel(network)
        self.optimizer = make_optimizer(network, recipe, device.type == "cuda", self.loss_parameters)
        self.graph: GraphedStep | None = None

    def train_epoch(self, source: Source, epoch: int, sampler: Any, recorder: Recorder | None) -> dict[str, Any]:
        """One pass over the data. Its randomness depends only on the seed, the epoch and the process."""
        recipe, device, rank, world = self.recipe, self.device, self.rank, self.world
        order = epoch_order(len(source), seed_of(recipe.seed, epoch), epoch, sampler)
        batches = split_batches(order, recipe.batch_size, recipe.drop_last, world)
        # From 1: a final 0 would give the seed of the order of the data.
        seed = seed_of(recipe.seed, epoch, 1 + rank)
        seed_all(seed)
        generator, mixup_generator = torch.Generator(device).manual_seed(seed), random.Random(seed)  # noqa: S311
        if hasattr(self.loss, "at") and self.loss.at(epoch - 1):
            self.graph = None  # it has captured the previous numbers
        self.network.train()
        for layer in self.network.modules() if recipe.frozen_norm else ():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.eval()
        graphed = recipe.graph and device.type == "cuda" and world == 1 and source.pixels is not None
        graphed = graphed and all(len(rows) == recipe.batch_size for rows in batches)
        steps = [micro_batches(rows, recipe, rank, world) for rows in batches]
        loaded, meter = source.batches([rows for parts in steps for rows in parts]), Meter(epoch)
        with ExitStack() as stack:
            captured = (recorder is not None or self.needs_head) and not graphed
            head = stack.enter_context(capture(self.wrapped)) if captured else None
            for step, parts in enumerate(steps):
                set_rate(self.optimizer, recipe, epoch - 1 + step / len(steps))
                if not graphed:
                    self.optimizer.zero_grad(set_to_none=self.graph is None)  # a graph keeps its gradients in place
                results = []
                for last, (rows, x, y, targets) in zip([*[False] * (len(parts) - 1), True], loaded, strict=False):
                    if isinstance(x, Tensor) and x.ndim == 4:
                        x = augment(x, recipe, generator, self.size)
                    if recipe.mixup:
                        x, targets = mixup(x, targets, self.classes, recipe.mixup, mixup_generator)
                    if graphed:
                        forward = partial(self.logits, self.network)
                        self.graph = self.graph or GraphedStep(self.network, forward, self.loss, x, targets)
                        loss, logits, head = self.graph(x, targets)
                    else:  # parts of a batch may differ by a sample; its gradient must not depend on that
                        share = len(y) * world / len(batches[step])
                        loss, logits = self.add_gradient(x, targets, head, share, last)
                    if recorder is not None and head is not None:
                        recorder.update(rows, head, y)
                    results.append((loss, logits, y, dict(getattr(self.loss, "last_parts", {}))))
                average(p.grad for p in self.loss_parameters if p.grad is not None)
                if recipe.clip:
                    norm = nn.utils.clip_grad_norm_(self.network.parameters(), recipe.clip)
                else:  # on the device, and read with the losses
                    norm = nn.utils.get_total_norm([p.grad for p in self.network.parameters() if p.grad is not None])
                self.optimizer.step()
                if self.update_average is not None:
                    self.update_average(1.0 if not self.history and step == 0 else 1 - recipe.ema)
                for loss, logits, y, terms in results:
                    meter.add(step, loss, logits, y, terms | {"gradient": norm})
        broadcast(self.loss_module.buffers())  # each process has averaged over its own samples
        if self.one_norm:
            for network in {self.network, self.result}:
                equalize_norms(network)
        means = meter.means() | {"steps": len(batches)}
        return means | {"accuracy": None} if recipe.mixup else means

    def add_gradient(self, x: Any, targets: Tensor, head: Any, share: float, last: bool) -> tuple[Tensor, Tensor]:
        """Add the gradient of a micro-batch, its `share` of that of the batch; returns its loss and logits."""
        with nullcontext() if last or self.world == 1 else self.wrapped.no_sync():
            logits = self.logits(self.wrapped, x)
            loss = batch_loss(self.loss, logits, targets, head)
            if self.needs_head and self.world > 1:
                loss = loss + 0 * logits.sum()  # DDP waits for the gradient of every parameter, even a bias
            (loss * share).backward()
        return loss.detach(), logits.detach()

    def evaluate(self, source: Source, epoch: int, recorder: Recorder | None) -> dict[str, Any]:
        """One pass in eval mode: mean cross-entropy and accuracy."""
        broadcast(self.result.buffers())
        rows = torch.arange(self.rank, len(source), self.world)
        meter = Meter(epoch, testing=True)
        self.result.eval()
        with ExitStack() as stack:
            head = None if recorder is None else stack.enter_context(capture(self.result))
            stack.enter_context(torch.no_grad())
            # A process without rows only takes part in the sums.
            parts = list(rows.split(self.recipe.batch_size // self.recipe.accumulate)) if len(rows) else []
            for step, (part, x, y, _) in enumerate(source.batches(parts)):
                logits = self.logits(self.result, x)
                if recorder is not None and head is not None:
                    recorder.update(part, head, y)
                meter.add(step, F.cross_entropy(logits.float(), y), logits, y, {})
        means = meter.means()
        loss = means["loss"] if math.isfinite(means["loss"]) else None  # JSON has no NaN
        return {"test_loss": loss, "test_accuracy": means["accuracy"]}

    def logits(self, network: nn.Module, x: Any) -> Tensor:
        if self.recipe.channels_last and isinstance(x, Tensor) and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        bf16 = self.recipe.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext():
            return logits_of(network, x)

    def state(self) -> dict[str, Any]:
        """The contents of a checkpoint; ``model`` holds the weights to use."""
        return {
            "model": self.result.state_dict(),
            **({} if self.result is self.network else {"online": self.network.state_dict()}),
            "loss": self.loss_module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": len(self.history),
            "history": self.history,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.network.load_state_dict(state.get("online", state["model"]))
        self.result.load_state_dict(state["model"])
        self.loss_module.load_state_dict(state.get("loss", {}))
        self.optimizer.load_state_dict(state["optimizer"])
        self.history = list(state["history"])

    def restore_norms(self) -> None:
        """Undo `synchronize_norms`: the network belongs to the user."""
        for path, layer in self.plain_norms.items():
            self.network.set_submodule(path, layer.train(self.network.get_submodule(path).training))


def moving_average(network: nn.Module) -> tuple[nn.Module, Callable[[float], None]]:
    """A copy of a network, and how to move it toward the network by a share. (`AveragedModel` waits for the GPU.)"""
    average = copy.deepcopy(network)
    tensors = [[*module.parameters(), *module.buffers()] for module in (average, network)]
    averages, values = ([tensor for tensor in part if tensor.is_floating_point()] for part in tensors)
    counts: Any = [[tensor for tensor in part if not tensor.is_floating_point()] for part in tensors]

    @torch.no_grad()
    def update(share: float) -> None:
        torch._foreach_lerp_(averages, values, share)
        if counts[0]:
            torch._foreach_copy_(*counts)

    return average, update


class Meter:
    """Sums the loss, its parts and the correct predictions of a pass, on the device until they are copied."""

    def __init__(self, epoch: int, testing: bool = False) -> None:
        self._epoch, self._testing = epoch, testing
        self._names: tuple[str, ...] = ("loss", "accuracy")
        self._pending: list[tuple[int, Tensor, int]] = []
        self._sums: list[list[float]] = []  # of every 64 batches: the values and the number of samples

    def add(self, step: int, loss: Tensor, logits: Tensor, y: Tensor, parts: Mapping[str, Tensor]) -> None:
        self._names = ("loss", "accuracy", *parts)
        values = [loss, (logits.argmax(1) == y).sum(), *parts.values()]
        self._pending.append((step, torch.stack([value.float() for value in values]), len(y)))
        if len(self._pending) == _BATCHES_PER_COPY:
            self._copy()

    def _copy(self) -> None:
        steps, tensors, counts = zip(*self._pending, strict=True)
        values, sizes = torch.stack(tensors, 1).cpu().double().numpy(), np.array(counts)
        broken = np.flatnonzero(~np.isfinite(values[0]))
        if len(broken) and not self._testing:
            safe = "the checkpoint of the previous epoch is safe" if self._epoch > 1 else "there is no checkpoint yet"
            raise DivergedError(
                f"the loss is {values[0, broken[0]]} in epoch {self._epoch}, step {1 + steps[broken[0]]}; {safe}. "
                "Lower the learning rate, add a warmup, or clip the gradient."
            )
        values[0] *= sizes
        values[2:] *= sizes
        self._sums.append([*values.sum(1), sizes.sum()])
        self._pending = []

    def means(self) -> dict[str, Any]:
        """Means over the samples of all processes, and the number of samples."""
        if self._pending:
            self._copy()
        *sums, count = np.sum([row for rows in gather(self._sums) for row in rows], 0).tolist()
        means = dict(zip(self._names, (total / count for total in sums), strict=True))
        return {**means, "samples": int(count)}


def epoch_order(count: int, seed: int, epoch: int, sampler: Any) -> Tensor:
    """Rows in the order of an epoch, the same in every process."""
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


def micro_batches(batch: Tensor, recipe: Recipe, rank: int, world: int) -> Sequence[Tensor]:
    """The share of a process in a batch, in parts no larger than those of a full batch, with two samples or more."""
    # The same number in every process, because layers may exchange their statistics in each.
    count = math.ceil(len(batch) * recipe.accumulate / recipe.batch_size)
    return batch[rank::world].tensor_split(max(1, min(count, len(batch) // (2 * world))))


def make_optimizer(network: nn.Module, recipe: Recipe, fused: bool, of_loss: list[Any]) -> torch.optim.Optimizer:
    """The recipe's optimizer over all weights, and over the parameters of the loss, which do not decay."""
    weights: list[Any] = [p for p in network.parameters() if p.requires_grad]
    if of_loss:
        weights = [{"params": weights}, {"params": of_loss, "weight_decay": 0.0}]
    options: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
    if recipe.optimizer == "rmsprop":  # the paper's networks use TensorFlow's constants
        return torch.optim.RMSprop(weights, **options, momentum=recipe.momentum, alpha=0.9, eps=1e-3)
    options["fused"] = fused or None
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(weights, **options, momentum=recipe.momentum, nesterov=recipe.nesterov)
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(weights, **options, betas=(recipe.momentum, 0.999))


def set_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, time: float) -> None:
    """Set the learning rate, and Adam's β₁, to those of a time in epochs."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(recipe, time)
        if "betas" in group:
            group["betas"] = (momentum_at(recipe, time), group["betas"][1])


def compile_parts(network: nn.Module, head: nn.Module | None = None) -> None:
    """Compile in place the largest parts without the head, so that hooks on the head still run."""
    head = head or find_head(network).module
    # Blocks share their code, and each of their shapes, in training and in evaluation, is compiled anew.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    for child in network.children():
        has_head = any(inner is head for inner in child.modules())
        if has_head or isinstance(child, (nn.ModuleList, nn.ModuleDict)):  # these are never called themselves
            compile_parts(child, head)
        elif any(True for _ in child.parameters()):
            child.compile(dynamic=False)


def synchronize_norms(network: nn.Module) -> dict[str, Any]:
    """Replace each batch norm by torch's SyncBatchNorm, which shares its tensors; returns the layers by path."""
    layers = {p: layer for p, layer in network.named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)}
    for path, layer in layers.items():
        if type(layer).forward not in (nn.modules.batchnorm._BatchNorm.forward, nn.SyncBatchNorm.forward):
            raise InputError(
                f"recipe: sync_batchnorm cannot replace the layer {path!r}, because {type(layer).__name__} does more "
                "than batch norm; set sync_batchnorm=False."
            )
    nn.SyncBatchNorm.convert_sync_batchnorm(network)
    return layers


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
