"""The kernels of the fast reading in Triton's interpreter on the CPU, against float64: run as a script."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import torch
from readings import errors, inputs

from hardsight import fastreading, gpureading
from hardsight.angles import paired_angle
from hardsight.gpureading import Tile
from hardsight.reading import Reading
from hardsight.series import class_sums

TILES = {
    True: Tile(32, 64, 32, 0, 2, 4, 3),
    False: Tile(16, 64, 0, 0, 1, 4, 3),
}  # with and without kernels' own products


def check(kind, dtype, n, d, c, biased, labeled, processors):
    """Read all rows by kernels; those that are sure must be within the tolerances, and most must be sure."""
    x, w, y = inputs(kind, n, d, c, dtype)
    b = torch.randn(c, 2)[:, 1] if biased else None  # not contiguous, as a column of the weight is not
    y[0] = c - 1
    x[3], x[5], x[7] = 0, 3 * w[y[5]], -w[y[7]]
    labels, gpureading._processors = y if labeled else None, lambda device: processors
    fields, sure = fastreading.read_fast(x, w, labels, b)
    off, same = errors(Reading(c, *fields), sure, x, w, labels, b)
    case = (kind, dtype, n, d, c, biased, labeled, processors)
    assert max(off.values()) < 1, (case, off)
    assert same, case
    assert (~sure).sum() <= 4, (case, sure)


def check_angles(dtype, n, d, c):
    """Angles to targets that lie anywhere, on the feature, opposite to it, and nowhere."""
    x, w, y = inputs("random", n, d, c, dtype)
    x[0], x[1], x[2], w[y[3]] = 3 * w[y[0]], -w[y[1]], 0, 0
    y = torch.stack([y, y + 1], 1)[:, 0]  # not contiguous, either
    truth = paired_angle(x.double(), w[y].double())
    assert torch.allclose(gpureading.target_angle(x, w, y), truth, rtol=1e-9, atol=1e-9)


def check_series(n, d, c):
    """Products with sums over classes: those of Ŵ itself if it has fewer rows than columns, or of ŴᵀŴ."""
    x, w, _ = inputs("positive", n, d, c, torch.half)
    sums = class_sums(w, torch.half)
    assert sums.gram == (c > d)
    first, rest = sums.matrix.double().split([sums.squares, len(sums.matrix) - sums.squares])
    products = x.double() @ first.T
    square = (products * (x if sums.gram else products)).sum(1)
    tile = Tile(32, 64, 32, 0, 1, 4, 3)
    results = gpureading.series_products(x, sums.matrix, sums.squares, sums.gram, tile)
    for ours, truth in zip(results, ((x.double() @ rest.T).sum(1), square, x.double().norm(dim=1)), strict=True):
        assert torch.allclose(ours, truth, rtol=1e-5), (n, d, c)


def check_cut(share):
    """Sums of products that are all too small by a share are corrected by what the runner-up tells of it."""
    x, w, y = inputs("positive", 40, 64, 100, torch.half)
    truth, rough = (factor * (x.double() @ w.double().T) for factor in (1.0, 1 - share))
    whole = []
    for products in (truth, rough):
        cosines = products / x.double().norm(dim=1, keepdim=True) / w.double().norm(dim=1)
        z = products.scatter(1, y[:, None], -torch.inf)
        level, other = z.max(1)
        below = (z - level[:, None]).clamp_min(-1e3)
        e = below.exp()
        arcsine = cosines.asin().scatter(1, y[:, None], 0)
        numbers = (
            e.sum(1),
            e.square().sum(1).float(),
            (below * e).sum(1),
            torch.zeros(40),
            cosines.abs().amax(1).float(),
        )
        nearest = cosines.scatter(1, y[:, None], -2).max(1)
        whole.append(
            gpureading.Sums(arcsine.sum(1), level, other.int(), *numbers, nearest.values.float(), nearest.indices.int())
        )
    read, noise = gpureading._read_sums, gpureading._noise
    gpureading._read_sums, gpureading._noise = lambda *_: whole[1], lambda *_: (1e-2, 0.0, 0.0, 0.0)
    numbers = gpureading.read_rows(x, w, y, None, False, TILES[True])[1]
    gpureading._read_sums, gpureading._noise = read, noise
    for row, name in ((5, "arcsine"), (6, "exp_sum"), (8, "lin_sum")):
        exact, before = (getattr(sums, name) for sums in whole)
        assert (numbers[row] - exact).norm() < 0.1 * (before - exact).norm(), name


if __name__ == "__main__":
    torch.manual_seed(0)
    check_cut(1e-4)
    fastreading.read_rows = lambda x, w, y, b, logits, precise: gpureading.read_rows(
        x, w, y, b, precise, TILES[x.dtype == w.dtype == torch.half and x.shape[1] % 8 == 0]
    )
    for labeled in (True, False):
        check("positive", torch.half, 40, 64, 100, True, labeled, 1)
        check("trained", torch.half, 40, 72, 133, False, labeled, 1)
        check("positive", torch.float32, 37, 50, 200, True, labeled, 1)
        check("random", torch.half, 33, 50, 70, False, labeled, 1)  # rows of a length that is no multiple of 16 bytes
        check("positive", torch.half, 40, 64, 257, True, labeled, 8)  # classes shared by several programs
        check("random", torch.float32, 33, 64, 65, False, labeled, 8)  # the last of which has a single class
    TILES[True] = Tile(32, 64, 32, 64, 2, 4, 3)
    check("positive", torch.half, 40, 160, 100, True, True, 1)  # tensor cores add over 64, 64 and 32
    gpureading._MOST_PRODUCTS = 37 * 64  # products of 64 classes at a time
    for labeled in (True, False):
        check("positive", torch.float32, 37, 50, 200, True, labeled, 1)
        check("random", torch.float32, 33, 64, 129, False, labeled, 8)
    check_angles(torch.half, 37, 70, 9)
    check_angles(torch.float32, 37, 300, 9)
    check_series(37, 64, 40)  # squares and the linear part share a tile
    check_series(37, 72, 64)  # they do not
    check_series(70, 72, 100)
