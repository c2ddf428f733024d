"""The kernels of large heads in Triton's interpreter on the CPU, against float64: run as a script with a kind."""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import torch

from hardsight.losses import headchunks, headkernels, largeheads, rowkernels
from hardsight.losses.headkernels import Tile


class InterpretedChunks(headchunks.FusedChunks):
    """Kernels as on a GPU; matrix products, which no CPU has from 16 to 32 bits, in float32."""

    def __init__(self, kind, dtype, device):
        super().__init__(kind, dtype, device, (headkernels, rowkernels))
        self.half = True

    def multiply(self, a, b):
        return a.float() @ b.float()

    add_product = headchunks.PlainChunks.add_product

    def weight_gradient(self, slope, x, w, out, factor):
        if out.dtype != torch.float32:
            return headchunks.PlainChunks.weight_gradient(self, slope, x, w, out, factor)
        out.copy_(self.multiply(slope.mT, x).mul_(factor))  # and projected in place, as on a GPU
        return self.project(w, out)


def terms_and_gradients(x, w, b, scale, y, kind, dtype):
    inputs = [t.detach().requires_grad_() for t in (x, w, b if kind == "linear" else scale)]
    row_scale = x.new_ones(len(x), dtype=scale.dtype) if kind == "linear" else inputs[2].expand(len(x))
    at_target, others = largeheads._apply(
        *inputs[:2], inputs[2] if kind == "linear" else None, row_scale, y, kind, dtype
    )
    known = (y >= 0) & (y < len(w))
    c = torch.linspace(-1, 2, len(x)) / 1e3  # as a mean over many rows has it
    grads = torch.autograd.grad((c * others + c.flip(0) * known * at_target).sum(), inputs)
    return [at_target[known], others, *grads]


def check(kind, stored, classes, parts, offset):
    torch.manual_seed(0)
    headkernels.sum_tile = lambda kind, width: Tile(16, 64, 32, 4, 2, min(parts, 2))
    headkernels.gradient_tile = lambda kind: Tile(32, 64, 32, 4, 2, parts)
    x, w = torch.randn(24, 40).half(), (torch.randn(classes, 40) * 0.3).half()
    y = torch.randint(classes, (24,))
    y[0], y[1], y[2], y[3] = -100, classes, classes - 1, y[4]
    x[5], x[6], x[9] = 0, w[y[6]], -w[y[9]]
    if classes > 9:
        w[7], x[8] = 0, 2 * w[(y[8] + 1) % classes] + x[8] / 20  # not too close for the angle to keep its digits
    b, scale = torch.randn(classes) + offset, torch.tensor(9.0)
    w = torch.cat([w.new_zeros(1), w.flatten()])[1:].view_as(w)  # does not begin at a multiple of 16 bytes
    w = w if stored == torch.float16 else w.T.contiguous().T
    found = terms_and_gradients(x.to(stored), w.to(stored), b, scale, y, kind, torch.float16)
    chunks_of, largeheads.chunks_of = largeheads.chunks_of, headchunks.chunks_of
    truth = terms_and_gradients(x.double(), w.double(), b.double(), scale.double(), y, kind, torch.float64)
    largeheads.chunks_of = chunks_of
    for value, expected in zip(found[:2], truth[:2], strict=True):
        assert (value - expected).abs().max() < 4e-6 + 3e-7 * abs(offset), (kind, stored, classes, parts)
    for value, expected in zip(found[2:], truth[2:], strict=True):
        assert (value - expected).norm() < 5e-4 * expected.norm(), (kind, stored, classes, parts)


if __name__ == "__main__":
    torch.set_num_threads(1)
    largeheads.chunks_of = lambda features, kind, dtype: InterpretedChunks(kind, dtype, features.device)
    headchunks._HALF_CHUNK = 24 * 64  # several chunks
    headchunks._CAST_CHUNK = 40 * 128
    for case in ((torch.float16, 133, 1, 0.0), (torch.float32, 70, 4, 100.0)):
        check(sys.argv[1], *case)
    for dtype in (torch.float16, torch.float32):
        chunks = InterpretedChunks(sys.argv[1], dtype, torch.device("cpu"))
        assert headchunks.kernels_agree(chunks, torch.device("cpu"), 40, 300)
