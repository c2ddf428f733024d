"""What losses share: options checked when set, values checked on request, margins and reductions."""

from __future__ import annotations

import functools
import importlib.util
import math
from typing import Any, Literal, NamedTuple, get_type_hints

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.angles import transformed, working_dtype
from hardsight.errors import InputError
from hardsight.losses.largeheads import head_terms, is_large, margin_between
from hardsight.losses.margins import (
    Curve,
    class_mask,
    cross_entropy_curve,
    margin_loss,
    soft_margin,
    soft_margins,
)
from hardsight.registry import ANY, Option, Range

Reduction = Literal["mean", "sum", "none"]


@functools.cache
def _options(loss: type) -> dict[str, Option]:
    """The attributes of a class that are annotated with a range or with choices."""
    options = [Option.of(name, hint, None) for name, hint in get_type_hints(loss, include_extras=True).items()]
    return {option.name: option for option in options if option.range != ANY or option.choices}


class CheckedLoss(nn.Module):
    """Checks an option whenever it is set, also by a schedule, and the values of a batch if `validate` is set."""

    reduction: Reduction
    validate: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        option = None if value is None or torch.compiler.is_compiling() else _options(type(self)).get(name)
        super().__setattr__(name, value if option is None else option.check(value, name))

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in _options(type(self)) if hasattr(self, name))

    def _check_values(self, largest: float = math.inf, **tensors: Tensor) -> None:
        """Check that ``input`` has no NaN, ``features`` are finite, others in [0, largest]. Waits for the device."""
        if not self.validate or torch.compiler.is_compiling():
            return
        for name, values in tensors.items():
            if name in ("input", "features"):
                bad = values.isnan() if name == "input" else ~values.isfinite()
                rule = "not hold NaN or infinity; check what the model returns, and its learning rate"
            else:
                bad, rule = ~((values >= 0) & (values <= largest)), f"lie in [0, {largest}]"
                if not values.is_floating_point():
                    bad &= values != getattr(self, "ignore_index", math.nan)
            if bad.any():
                raise InputError(f"{name} must {rule}, got {values[bad][0].item()}.")

    def _reduce(self, losses: Tensor, count: Tensor | int) -> Tensor:
        """The losses unreduced, their sum, or their sum divided by `count`."""
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.sum() / count


def check_weights(**weights: Tensor | None) -> None:
    """Check weights where this does not wait for a device: `encouraging_loss` calls it at every step."""
    for name, weight in weights.items():
        if weight is None or weight.device.type != "cpu" or torch.compiler.is_compiling():
            continue
        if not bool((weight >= 0).all()):
            raise InputError(f"{name} must hold numbers that are 0 or more, got {weight.min().item()}.")


@functools.cache
def margin_kernels() -> Any:
    """`hardsight.losses.marginkernels` where it runs, else None."""
    if importlib.util.find_spec("triton") is None or not torch.cuda.is_available():
        return None
    if torch.cuda.get_device_capability() < (8, 0) or torch.version.hip:
        return None
    return importlib.import_module("hardsight.losses.marginkernels")


def kernels_for(input: Tensor, target: Tensor, loss: Any) -> Any:
    """The kernel module for a loss of these logits and class indices, or None if kernels do not apply."""
    if not input.is_cuda or torch.compiler.is_compiling() or loss.validate or loss.reduction == "none":
        return None
    kernels, dtypes = margin_kernels(), (torch.float32, torch.bfloat16, torch.float16)
    if kernels is None or input.ndim != 2 or target.shape != input.shape[:1] or target.dtype != torch.int64:
        return None
    here = target.device == input.device and input.device.index == torch.cuda.current_device()
    fits = input.dtype in dtypes and 2 <= input.shape[1] <= kernels.LARGEST and len(input) > 0
    strides = input.stride(1) == 1 and target.stride(0) == 1
    return kernels if here and fits and strides and not transformed(input) else None


class Terms(NamedTuple):
    """Logits of a batch and the target's share of each class."""

    z: Tensor  # (N, C, …) in float32 or better
    shares: Tensor | None  # (N, C, …); None: each target is one class
    target: Tensor | None  # (N, …) class indices, 0 where ignored; None: distributions
    valid: Tensor  # (N, …): which samples are not ignored
    single: bool  # whether the input was one sample without a batch dimension


class MarginLoss(CheckedLoss, nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` with another function of the soft margin in place of cross-entropy."""

    def __init__(self, weight: Tensor | None = None, *, validate: bool = False, **options: Any) -> None:
        super().__init__(weight, **options)
        Range(0, 1).check(self.label_smoothing, "label_smoothing")
        check_weights(weight=weight)
        self.validate = validate

    @property
    def needs_all_margins(self) -> bool:
        """Whether the target's margin is not enough and the full matrix of logits is needed."""
        return self.label_smoothing > 0

    def from_features(self, features: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        """The loss of the logits of a linear head, ``F.linear(features, weight, bias)``.

        From 67 million logits on (256 MiB) the matrix is never formed: see `hardsight.losses.largeheads.head_terms`.
        Label smoothing, soft targets and `match_gradient` need the full matrix.

        Args:
            features: ``(N, D)``, the input of the head.
            weight: ``(C, D)``, as in `torch.nn.Linear`; not the class weights of the loss.
            target: ``(N,)`` class indices.
            bias: ``(C,)``.

        Examples:
            >>> x, head, y = torch.zeros(2, 4), torch.nn.Linear(4, 3, bias=False), torch.tensor([0, 2])
            >>> from hardsight.losses import EncouragingLoss
            >>> EncouragingLoss(rho=0).from_features(x, head.weight, y)  # log 3
            tensor(1.0986, grad_fn=...)
        """
        if self.needs_all_margins or not is_large(target, features, weight):
            return self(F.linear(features, weight, bias), target)
        self.check_head(features, weight, target)
        at_target, others = head_terms(features, weight, target, bias)
        return self.of_margins(margin_between(others, at_target, target, len(weight)), target)

    def of_margins(self, m: Tensor, target: Tensor) -> Tensor:
        """The loss of soft margins ``(N,)`` at class indices ``(N,)``, wherever the margins come from."""
        return self._reduced(self._terms_of_margins(m, target), self._curve(m).value)

    def _terms_of_margins(self, m: Tensor, target: Tensor) -> Terms:
        valid = target != self.ignore_index
        if self.validate:
            self._check_values(input=torch.where(valid, m, 0))
        return Terms(m.unsqueeze(1), None, torch.where(valid, target.long(), 0), valid, False)

    def _curve(self, m: Tensor) -> Curve:
        """The objective, a function of the soft margin."""
        return cross_entropy_curve(m)

    def terms(self, input: Tensor, target: Tensor) -> Terms:
        """Check logits and targets, and convert them to the form the loss uses."""
        soft = target.shape == input.shape and target.is_floating_point()
        self._check_shapes(input, target, soft)
        single = input.ndim == 1
        z = input.to(working_dtype(input))
        target = target.to(z.dtype) if soft else target.long()  # torch accepts uint8 too
        if single:
            z, target = z.unsqueeze(0), target.unsqueeze(0)
        self._check_values(1 if soft else z.shape[1] - 1, input=z, target=target)
        if soft:
            valid, index = torch.ones_like(z[:, 0], dtype=torch.bool), None
            check = self.validate and not torch.compiler.is_compiling()
            if check and not torch.allclose(target.sum(1), target.new_ones(()), 0, 5e-3):  # bfloat16 is off by 2e-3
                raise InputError(f"soft targets must sum to 1 over classes, got {target.sum(1).min():.3g}.")
        else:
            valid = target != self.ignore_index
            index = target * valid  # 0 where it is ignored
            if not self.label_smoothing:
                return Terms(z, None, index, valid, single)
        shares = target if index is None else class_mask(z, index).to(z.dtype)
        shares = (1 - self.label_smoothing) * shares + self.label_smoothing / z.shape[1]
        return Terms(z, shares, index, valid, single)

    def margins(self, terms: Terms) -> Tensor:
        """Soft margins ``(N, …)`` of the targets, or ``(N, C, …)`` of every class where classes share the target."""
        z, shares, target, *_ = terms
        return soft_margin(z, target) if shares is None and target is not None else soft_margins(z)

    def _factor(self, terms: Terms, weighted: bool = True) -> Tensor:
        """The factor ``(N, …)`` of each sample; a mean is then the sum of the weighted losses."""
        factor = count = terms.valid
        if weighted and self.weight is not None and terms.target is not None:
            count = torch.where(terms.valid, self.weight.to(terms.z)[terms.target], 0)
            factor = count if terms.shares is None else factor
        if self.reduction != "mean":
            return factor.to(terms.z.dtype)
        return factor / count.sum(dtype=terms.z.dtype).clamp_min(torch.finfo(torch.float32).tiny)  # not 0/0

    def _reduced(self, terms: Terms, values: Tensor, weighted: bool = True) -> Tensor:
        """Values of an objective at the soft margins, weighted and reduced."""
        factor = self._factor(terms, weighted)
        if terms.shares is not None:
            share = terms.shares
            if weighted and self.weight is not None:
                share = share * self.weight.to(values).view(-1, *[1] * (values.ndim - 2))
            values = torch.where(share == 0, 0, share * values).sum(1)
        losses = torch.where(factor == 0, 0, values) * factor  # 0 also where a value is infinite
        if self.reduction == "none":
            return losses.squeeze(0) if terms.single else losses
        return losses.sum()

    def _plain(self, terms: Terms) -> Tensor:
        """The loss by plain operations."""
        return self._reduced(terms, self._curve(self.margins(terms)).value)

    def _targets_of_one_pass(self, terms: Terms) -> Tensor | None:
        """Class indices where `margin_loss` applies: one class per sample, and a gradient at the logits only."""
        learned = self.weight is not None and self.weight.requires_grad
        return None if terms.shares is not None or learned or transformed(terms.z) else terms.target

    def _in_one_pass(self, terms: Terms, target: Tensor, **options: bool) -> tuple[Any, ...]:
        """`margin_loss` for class-index targets."""
        z, single, sums = terms.z, terms.single, self.reduction != "none"
        kept = terms._replace(z=target)  # without the logits: what a graph keeps here outlives its backward pass
        again = lambda z: self._plain(kept._replace(z=z))  # noqa: E731
        results = margin_loss(z, target, self._factor(terms), self._curve, again, sums=sums, **options)
        return tuple(t if t is None or sums or not single else t.squeeze(0) for t in results)

    def _by_kernels(self, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor] | None:
        """The loss, and its cross-entropy and bonus, where kernels apply."""
        weight = self.weight
        elsewhere = weight is not None and (weight.device != input.device or weight.shape != input.shape[1:])
        kernels = None if self.label_smoothing or elsewhere else kernels_for(input, target, self)
        numbers = None if kernels is None else self._numbers(kernels)
        if kernels is None or numbers is None:
            return None
        plain = lambda z: self._plain(self.terms(z, target))  # noqa: E731
        mean = self.reduction == "mean"
        return kernels.KernelLoss.apply(input, target, weight, self.ignore_index, mean, numbers, plain)

    def _numbers(self, kernels: Any) -> Any:
        """The objective's parameters for the kernels; None if they cannot compute it."""
        return None

    def _check_shapes(self, input: Tensor, target: Tensor, soft: bool) -> None:
        dim = min(input.ndim - 1, 1)
        classes, shape = input.shape[dim] if input.ndim else 0, input.shape[:dim] + input.shape[dim + 1 :]
        if not input.is_floating_point() or classes < 2:
            raise InputError(
                f"input must hold logits (N, C, …) of two classes or more in floating point, got {tuple(input.shape)} "
                f"{input.dtype}."
            )
        if not soft and (target.shape != shape or target.is_floating_point()):
            raise InputError(
                f"target must hold class indices of shape {tuple(shape)}, or probabilities of shape "
                f"{tuple(input.shape)} in floating point, got {tuple(target.shape)} {target.dtype}."
            )
        self.check_classes(classes)

    def check_head(self, features: Tensor, weight: Tensor, target: Tensor) -> None:
        """Check the inputs of a head whose matrix of logits is never formed."""
        self.check_classes(len(weight))
        self._check_values(len(weight) - 1, features=features, target=target)

    def check_classes(self, classes: int) -> None:
        """Check that class weights, if any, have one entry per class."""
        if self.weight is not None and self.weight.shape != (classes,):
            raise InputError(f"weight must have shape ({classes},), one per class, got {tuple(self.weight.shape)}.")
