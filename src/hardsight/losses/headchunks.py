"""One chunk of a large head's classes: sums of its logits, and gradients at its products, in plain torch or kernels.

Logits are in units of log 2, the angular ones less ``s·π/2``. See `hardsight.losses.largeheads`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import warnings
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hardsight.angles import SLOPE_EDGE, angle_of_chords, arccos, cosine_matrix, paired_angle, unit, working_dtype

HeadKind = Literal["linear", "cosine", "angular"]

HALF = (torch.float16, torch.bfloat16)
LOG2E = 1 / math.log(2)
# Numbers of a chunk: gradients at logits in 16 bits, weights that are cast, and what is computed in float32 or better.
_HALF_CHUNK, _CAST_CHUNK, _GPU_CHUNK, _CPU_CHUNK = 2**26, 2**25, 2**24, 2**20
_ROWS_CHUNK = 2**22  # of features, where a dozen temporaries exist


class Sums(NamedTuple):
    """Sums over the other classes of each row; logits z are in units of log 2, the angular ones less ``s·π/2``."""

    level: Tensor  # the largest logit M
    total: Tensor  # Σ 2^(z−M)
    linear: Tensor | None  # Σ (z−M)·2^(z−M), where a scale is learned


def merge(level: Tensor, total: Tensor, linear: Tensor | None) -> Sums:
    """Merge sums ``(S, N)`` over parts of the classes into sums over all of them."""
    top = level.amax(0)
    below = (level - top).clamp_min(-1e4)
    share = torch.exp2(below)
    if linear is not None:
        linear = (share * (linear + below * total)).sum(0)
    return Sums(top, (share * total).sum(0), linear)


class Vectors(NamedTuple):
    """Features or class weights in the form that is multiplied; a linear head has no factors."""

    values: Tensor
    inverse: Tensor | None = None  # factors that turn products into cosines
    shrink: Tensor | None = None  # further factors of the gradient


class Rows(NamedTuple):
    """What both passes need per row."""

    x: Vectors
    scale: Tensor  # over log 2
    target: Tensor  # int32


class PlainChunks:
    """A chunk of classes in plain torch: sums in the forward pass, gradients at the products in the backward pass."""

    def __init__(self, kind: HeadKind, dtype: torch.dtype, device: torch.device) -> None:
        self.kind, self.dtype, self.half = kind, dtype, dtype in HALF and device.type == "cuda"
        self.chunk = _CPU_CHUNK if device.type == "cpu" else _GPU_CHUNK

    def vectors(self, tensor: Tensor, inverse: Tensor | None = None) -> Vectors:
        """Vectors ``(n, D)`` in the form that is multiplied; `inverse` passes their inverse lengths if known."""
        values = tensor.detach().to(self.dtype).contiguous()
        values = values.clone() if self.half and not _aligned(values) else values
        values = values if self.half else values.to(working_dtype(values))
        if self.kind == "linear":
            return Vectors(values)
        if self.half:
            return Vectors(values, self._inverse_lengths(values) if inverse is None else inverse)
        directions, length = unit(values)
        return Vectors(directions, None, length.masked_fill(length == 0, math.inf).reciprocal())

    def _inverse_lengths(self, values: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(values, dim=1, dtype=torch.float32)
        return length.masked_fill_(length == 0, math.inf).reciprocal_()

    def chunks(self, rows: int, weight: Tensor, backward: bool) -> list[slice]:
        """Slices of the classes, each small enough to bound the memory it takes."""
        return slices(len(weight), self.chunk // max(rows, weight.shape[1], 1))

    def sums(self, rows: Rows, w: Vectors, bias: Tensor | None, first: int, linear: bool) -> Sums:
        z, _ = self._logits(rows, w, bias)
        z.masked_fill_(self._mask(z, rows.target, first), -math.inf)
        level = z.amax(1).clamp_min_(-1e30)  # the kernels' value where there is no other class
        z -= level[:, None]
        share = torch.exp2(z)
        return Sums(level, share.sum(1), (z.clamp_min_(-1e4) * share).sum(1) if linear else None)

    def gradient(
        self, rows: Rows, w: Vectors, bias: Tensor | None, first: int, level: Tensor, grad: Tensor, at_target: Tensor
    ) -> Tensor:
        """``grad · 2^(z−level) · (slope of the logit)``, and `at_target` at the target."""
        z, cosines = self._logits(rows, w, bias)
        slope = torch.exp2(z.sub_(level[:, None])).mul_(grad[:, None])
        if w.inverse is not None:
            slope *= w.inverse
        if self.kind == "angular":
            inside = cosines.abs() <= SLOPE_EDGE
            slope *= torch.where(inside, ((1 - cosines) * (1 + cosines)).rsqrt(), 0)
        slope = torch.where(self._mask(z, rows.target, first), at_target[:, None], slope)
        return slope.to(w.values.dtype)

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """``a @ b`` in float32 or better."""
        if self.half:
            return torch.mm(a, b, out_dtype=torch.float32)
        return a @ b if self.kind == "linear" else cosine_matrix(a, b.mT)

    def magnified(self, slope: Tensor, at_target: Tensor, w: Vectors) -> Tensor | None:
        """A factor that brings gradients into the range of float16, which is too small for those of many classes."""
        if not self.half or self.dtype != torch.float16:
            return None
        largest = slope.abs().amax() if w.inverse is None else slope.abs().amax() * w.inverse.amax()
        largest = torch.maximum(largest, at_target.abs().amax()).clamp_min(torch.finfo(slope.dtype).tiny)
        return (2.0**4 if self.kind == "angular" else 2.0**14) / largest  # the slope of an angle is up to 2^10

    def add_product(self, total: Tensor, a: Tensor, b: Tensor, factor: float | Tensor) -> None:
        total += self.multiply(a, b).mul_(factor)

    def weight_gradient(self, slope: Tensor, x: Tensor, w: Vectors, out: Tensor, factor: float | Tensor) -> None:
        """Write the gradient at a chunk of weights, from that at the products."""
        grad = self.multiply(slope.mT, x).mul_(factor)
        self.project(w, grad)
        out.copy_(grad)

    def project(self, vectors: Vectors, grad: Tensor) -> None:
        """Turn gradients at directions into gradients at vectors ``(n, D)``, in place: lengths do not matter."""
        if self.kind == "linear":
            return
        directions = vectors.values if vectors.inverse is None else vectors.values * vectors.inverse[:, None]
        grad -= directions * (directions * grad).sum(1, keepdim=True)
        if vectors.shrink is not None:
            grad *= vectors.shrink[:, None]

    def at_target(self, features: Tensor, rows: Rows, weight: Tensor, index: Tensor) -> Tensor:
        """The product with the weight of the target, or the angle to it."""
        parts = [
            (x * w).sum(1) if self.kind == "linear" else paired_angle(x, w)
            for _, x, w in self._pairs(features, weight, index)
        ]
        return torch.cat(parts) if parts else rows.scale.clone()

    def add_at_target(
        self, features: Tensor, rows: Rows, weight: Tensor, index: Tensor, grad: Tensor, x_grad: Tensor | None
    ) -> Tensor:
        """Add to `x_grad` the gradients of the angles to the targets; return those at the weights of the targets."""
        w_grad = grad.new_empty(features.shape)
        for here, x, w in self._pairs(features, weight, index):
            x, w = x.requires_grad_(), w.requires_grad_()
            with torch.enable_grad():
                angle = paired_angle(x, w)
            at_x, w_grad[here] = torch.autograd.grad(angle, (x, w), grad[here])
            if x_grad is not None:
                x_grad[here] += at_x
        return w_grad

    def _pairs(self, features: Tensor, weight: Tensor, index: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Some rows at a time: features and weights of their targets, in float32 or better."""
        exact = torch.promote_types(self.dtype, torch.float32)
        for here in slices(len(features), _ROWS_CHUNK // max(features.shape[1], 1)):
            x, w = features.detach()[here], weight.detach().index_select(0, index[here])
            yield here, x.to(self.dtype).to(exact), w.to(self.dtype).to(exact)

    def _logits(self, rows: Rows, w: Vectors, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        cosines = self.multiply(rows.x.values, w.values.mT)
        if rows.x.inverse is not None and w.inverse is not None:
            cosines.mul_(rows.x.inverse[:, None]).mul_(w.inverse)
        values = math.pi / 2 - arccos(cosines) if self.kind == "angular" else cosines
        z = values * rows.scale[:, None]
        return z if bias is None else z.add_(bias.to(z) * LOG2E), cosines

    @staticmethod
    def _mask(z: Tensor, target: Tensor, first: int) -> Tensor:
        return (target[:, None] - first) == torch.arange(z.shape[1], device=z.device)


class FusedChunks(PlainChunks):
    """The same in kernels that never write the logits (`hardsight.losses.headkernels`)."""

    def __init__(self, kind: HeadKind, dtype: torch.dtype, device: torch.device, kernels: Any) -> None:
        super().__init__(kind, dtype, device)
        self.head_kernels, self.row_kernels = kernels
        self.memory: Tensor | None = None  # for the gradients of a chunk

    def chunks(self, rows: int, weight: Tensor, backward: bool) -> list[slice]:
        cast = weight.dtype != self.dtype or not weight.is_contiguous() or not _aligned(weight)
        step = _CAST_CHUNK // weight.shape[1] if cast else len(weight)
        return slices(len(weight), min(step, _HALF_CHUNK // max(rows, 1)) if backward else step, 256)

    def _inverse_lengths(self, values: Tensor) -> Tensor:
        return self.row_kernels.inverse_lengths(values)

    def sums(self, rows: Rows, w: Vectors, bias: Tensor | None, first: int, linear: bool) -> Sums:
        target = rows.target - first if first else rows.target
        bias = None if bias is None else bias.float().contiguous()
        x = rows.x
        return merge(
            *self.head_kernels.class_sums(
                x.values, w.values, x.inverse, w.inverse, rows.scale, bias, target, self.kind, linear
            )
        )

    def gradient(
        self, rows: Rows, w: Vectors, bias: Tensor | None, first: int, level: Tensor, grad: Tensor, at_target: Tensor
    ) -> Tensor:
        n, classes = len(level), len(w.values)
        stride = -(-classes // 8) * 8  # rows begin at multiples of 16 bytes
        if self.memory is None:
            self.memory = w.values.new_empty(n * stride)  # the first chunk is the largest
        out = self.memory[: n * stride].view(n, stride)[:, :classes]
        bias = None if bias is None else bias.float().contiguous()
        x, target = rows.x, rows.target - first
        self.head_kernels.gradient_at_products(
            out, x.values, w.values, x.inverse, w.inverse, rows.scale, bias, target, level, grad, at_target, self.kind
        )
        return out

    def add_product(self, total: Tensor, a: Tensor, b: Tensor, factor: float | Tensor) -> None:
        if isinstance(factor, Tensor):
            super().add_product(total, a, b, factor)
        else:
            torch.addmm(total, a, b, out_dtype=torch.float32, out=total)

    def weight_gradient(self, slope: Tensor, x: Tensor, w: Vectors, out: Tensor, factor: float | Tensor) -> None:
        if isinstance(factor, Tensor) or out.dtype not in (torch.float32, slope.dtype):
            return super().weight_gradient(slope, x, w, out, factor)
        options: dict[str, Any] = {"out_dtype": torch.float32} if out.dtype == torch.float32 else {}
        torch.mm(slope.mT, x, out=out, **options)
        return self.project(w, out)

    def project(self, vectors: Vectors, grad: Tensor) -> None:
        if vectors.inverse is not None:
            self.row_kernels.project(vectors.values, vectors.inverse, grad)

    def at_target(self, features: Tensor, rows: Rows, weight: Tensor, index: Tensor) -> Tensor:
        if weight.stride(1) != 1:
            return super().at_target(features, rows, weight, index)
        if self.kind == "linear":
            return self.row_kernels.pair_products(rows.x.values, weight, index)
        return angle_of_chords(*self.row_kernels.pair_chords(rows.x.values, weight, index))

    def add_at_target(
        self, features: Tensor, rows: Rows, weight: Tensor, index: Tensor, grad: Tensor, x_grad: Tensor | None
    ) -> Tensor:
        if weight.stride(1) != 1:
            return super().add_at_target(features, rows, weight, index, grad, x_grad)
        return self.row_kernels.pair_gradient(rows.x.values, weight, index, grad, x_grad)


def _aligned(tensor: Tensor) -> bool:
    """Whether it begins at a multiple of 16 bytes, as kernels load it."""
    return tensor.data_ptr() % 16 == 0


def slices(count: int, step: int, multiple: int = 1) -> list[slice]:
    step = max(step // multiple, 1) * multiple if step >= 64 else 64
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def chunks_of(features: Tensor, kind: HeadKind, dtype: torch.dtype) -> PlainChunks:
    """How chunks of classes are computed with these features."""
    device = features.device
    fused = dtype in HALF and device.type == "cuda" and features.shape[1] % 8 == 0 and len(features) > 0
    kernels = _kernels(device, kind, dtype) if fused else None
    return PlainChunks(kind, dtype, device) if kernels is None else FusedChunks(kind, dtype, device, kernels)


@functools.cache
def _kernels(device: torch.device, kind: HeadKind, dtype: torch.dtype) -> Any:
    """The kernel modules, for tiles and for single rows, if they run here and compute correctly."""
    if importlib.util.find_spec("triton") is None:
        reason = "Triton is not installed"
    elif torch.cuda.get_device_capability(device) < (9, 0):  # without hardware tile loads they do not pay off
        reason = "they need compute capability 9.0"
    else:
        try:
            modules = tuple(importlib.import_module(f"hardsight.losses.{name}kernels") for name in ("head", "row"))
            if kernels_agree(FusedChunks(kind, dtype, device, modules), device):
                return modules
            reason = "what they compute on this GPU is wrong"
        except Exception as error:  # a chip with less memory, or a Triton that cannot compile them
            reason = f"they fail on this GPU ({type(error).__name__}: {error})"
    warnings.warn(f"heads of many classes run without their GPU kernels, which takes longer: {reason}.", stacklevel=2)
    return None


def kernels_agree(fused: PlainChunks, device: torch.device, rows: int = 512, classes: int = 16384) -> bool:
    """Whether the kernels agree with float64, on enough rows and classes for every loop to run several times.

    Checked once per device: if the compiler miscompiles them for some chip, nothing trains on wrong gradients.
    """
    plain = PlainChunks(fused.kind, torch.float64, device)

    def waves(count: int, step: float) -> Tensor:  # not random: no generator is touched
        return torch.arange(count * 128, device=device).mul(step).sin().view(count, 128).to(fused.dtype)

    x, w = waves(rows, 12.9898), waves(classes, 78.233)
    target = torch.arange(rows, device=device) * 31 % classes
    results = []
    for chunks in (fused, plain):
        one = torch.ones(rows, device=device, dtype=torch.promote_types(chunks.dtype, torch.float32))
        head_rows = Rows(chunks.vectors(x), one * (LOG2E if fused.kind == "linear" else 4 * LOG2E), target.int())
        vectors = chunks.vectors(w)
        level, total, _ = chunks.sums(head_rows, vectors, None, 0, False)
        slope = 1024 / total  # within the range of float16
        slope = slope if head_rows.x.inverse is None else slope * head_rows.x.inverse
        grad = chunks.gradient(head_rows, vectors, None, 0, level, slope, -one).double()
        at_target = grad.gather(1, target[:, None])
        grad = grad.scatter(1, target[:, None], 0)
        if head_rows.x.inverse is not None and vectors.inverse is not None:
            grad = grad / (head_rows.x.inverse[:, None] * vectors.inverse)
        results.append((level + total.log2(), at_target, grad))
    (log_sum, at_target, grad), (true_log_sum, _, true_grad) = results
    right = (
        (log_sum - true_log_sum).abs().amax() < 1e-3,
        (at_target == -1).all(),
        (grad - true_grad).norm() < 1e-2 * true_grad.norm(),
    )
    return all(bool(part) for part in right)
