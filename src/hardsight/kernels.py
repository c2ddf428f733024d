"""Triton kernels that reduce a tile of the matrix product of features and class weights at once.

`hardsight.gpureading` launches them. They are compiled once for any number of rows.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def arcsine_of(c):
    """Arcsine of cosines, to 1e-7."""
    size = tl.minimum(tl.abs(c), 1.0)
    large = size > 0.5
    t = tl.where(large, 0.5 - 0.5 * size, size * size)
    root = tl.where(large, tl.sqrt(t), size)
    value = root + root * t * arcsine_series(t)
    value = tl.where(large, 1.5707963267948966 - 2 * value, value)
    return tl.where(c < 0, -value, value)


@triton.jit
def arcsine_series(t):
    """``(arcsin √t / √t − 1) / t`` for t ≤ 1/4, minimax; the arcsine is then good to 3e-8."""
    p = 0.05158773412 * t + 0.03919304202
    p = p * t + 0.07554036365
    return p * t + 0.16664926006


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _add_tile(
    products, inverse_x, target, inverse_w, bias, first, classes, last,
    arcsine, level, other_class, exp_sum, exp2_sum, lin_sum, bias_sum, steepest, nearest, nearest_class,
    WIDTH: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Add a tile of products to the sums of its rows. ``lin_sum`` is in units of log 2 until the end.

    Most tiles change no maximum and hold no target: those need no masks and no search for a place.
    """
    LOG2E: tl.constexpr = 1.4426950408889634
    columns = first + tl.arange(0, WIDTH)
    inside = columns < classes
    inverse = tl.load(inverse_w + columns, mask=inside, other=0.0)
    shift_b = inverse  # if there is a bias
    if BIAS:
        shift_b = tl.load(bias + columns, mask=inside, other=0.0)
        highest = tl.max(products + shift_b[None, :], 1)
    else:
        highest = tl.max(products, 1)
    scaled = (products * inverse[None, :]).to(tl.float32)
    steep = tl.max(tl.abs(scaled), 1) * inverse_x
    event = (target >= first) & (target < first + WIDTH)
    event = event | (highest > level) | (steep > tl.minimum(nearest, 0.5))
    if tl.reduce(event.to(tl.int32), 0, _or) > 0 or last:
        products = tl.where((columns[None, :] != target[:, None]) & inside[None, :], products, -1e30)
        if BIAS:
            logits = products + shift_b[None, :]
        else:
            logits = products
        highest = tl.max(logits, 1)
        place = tl.min(tl.where(logits == highest[:, None], columns[None, :], 2147483647), 1)
        other_class = tl.where(highest > level, place, other_class)
        shift = tl.maximum((level - tl.maximum(level, highest)) * LOG2E, -1000.0).to(tl.float32)
        shrink = tl.exp2(shift)
        lin_sum = shrink * (lin_sum + shift * exp_sum)
        exp_sum = shrink * exp_sum
        bias_sum = shrink * bias_sum
        exp2_sum = shrink * shrink * exp2_sum
        level = tl.maximum(level, highest)
        below = ((logits - level[:, None]) * LOG2E).to(tl.float32)
        share = tl.exp2(below)
        exp_sum += tl.sum(share, 1)
        exp2_sum += tl.sum(share * share, 1)
        lin_sum += tl.sum(below * share, 1)
        if BIAS:
            bias_sum += tl.sum(shift_b[None, :] * share, 1)
        cosines = tl.where(products > -1e29, scaled * inverse_x[:, None], -2.0)
        largest = tl.max(cosines, 1)
        place = tl.min(tl.where(cosines == largest[:, None], columns[None, :], 2147483647), 1)
        nearest_class = tl.where(largest > nearest, place, nearest_class)
        nearest = tl.maximum(nearest, largest)
        cosines = tl.where(cosines > -1.5, cosines, 0.0)
        steepest = tl.maximum(steepest, tl.max(tl.abs(cosines), 1))
        arcsine += tl.sum(arcsine_of(cosines), 1)
    else:
        if BIAS:
            below = ((products + shift_b[None, :] - level[:, None]) * LOG2E).to(tl.float32)
        else:
            below = ((products - level[:, None]) * LOG2E).to(tl.float32)
        share = tl.exp2(below)
        exp_sum += tl.sum(share, 1)
        exp2_sum += tl.sum(share * share, 1)
        lin_sum += tl.sum(below * share, 1)
        if BIAS:
            bias_sum += tl.sum(shift_b[None, :] * share, 1)
        cosines = scaled * inverse_x[:, None]
        t = cosines * cosines
        arcsine += tl.sum(cosines + cosines * t * arcsine_series(t), 1)
    return arcsine, level, other_class, exp_sum, exp2_sum, lin_sum, bias_sum, steepest, nearest, nearest_class


@triton.jit(do_not_specialize=["rows", "tiles"])
def read_kernel(
    features, weight, products, inverse_x, inverse_w, bias, target,
    arcsine_out, level_out, class_out, exp_out, exp2_out, lin_out, bias_out, steepest_out, cosine_out, nearest_out,
    rows, start_class, end_class, width, tiles,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr, SPAN: tl.constexpr, PARTS: tl.constexpr,
    LOGIT: tl.constexpr, BIAS: tl.constexpr, FURTHER: tl.constexpr,
):  # fmt: skip
    """The sums of a block of rows over some tiles of classes. DEPTH 0: the products exist already, as LOGIT.

    FURTHER: the sums continue those of earlier classes. SPAN, if not 0, is the width over which tensor cores add; the
    rest of an addition is done in float32, which cuts nothing off.
    """
    start = tl.program_id(0) * ROWS
    row = start + tl.arange(0, ROWS)
    valid = row < rows
    inverse = tl.load(inverse_x + row, mask=valid, other=0.0)
    label = tl.load(target + row, mask=valid, other=-1)
    total = tl.zeros([ROWS], tl.float64)
    level = tl.full([ROWS], -1e30, LOGIT)
    nearest, steepest = tl.full([ROWS], -2.0, tl.float32), tl.zeros([ROWS], tl.float32)
    exp_sum, lin_sum, exp2_sum, bias_sum = total, total, steepest, steepest
    other_class = tl.zeros([ROWS], tl.int32)
    nearest_class = other_class
    place = tl.program_id(1).to(tl.int64) * rows + row
    if FURTHER:
        total = tl.load(arcsine_out + place, mask=valid, other=0.0)
        level = tl.load(level_out + place, mask=valid, other=0.0).to(LOGIT)
        other_class = tl.load(class_out + place, mask=valid, other=0)
        exp_sum = tl.load(exp_out + place, mask=valid, other=0.0)
        exp2_sum = tl.load(exp2_out + place, mask=valid, other=0.0)
        lin_sum = tl.load(lin_out + place, mask=valid, other=0.0) * 1.4426950408889634
        bias_sum = tl.load(bias_out + place, mask=valid, other=0.0)
        steepest = tl.load(steepest_out + place, mask=valid, other=0.0)
        nearest = tl.load(cosine_out + place, mask=valid, other=0.0)
        nearest_class = tl.load(nearest_out + place, mask=valid, other=0)
    end = tl.minimum((tl.program_id(1) + 1) * tiles, tl.cdiv(end_class - start_class, CLASSES))
    for tile in tl.range(tl.program_id(1) * tiles, end):
        first, last = start_class + tile * CLASSES, start_class + (tile + 1) * CLASSES >= end_class
        arcsine = tl.zeros([ROWS], tl.float32)
        if DEPTH == 0:
            columns = tile * CLASSES + tl.arange(0, CLASSES)
            size = end_class - start_class
            mask = valid[:, None] & (columns < size)[None, :]
            left = tl.load(products + row[:, None].to(tl.int64) * size + columns[None, :], mask=mask, other=0.0)
            right = left
        else:
            product = tl.zeros([ROWS, CLASSES], tl.float32)
            if SPAN == 0:
                for k in tl.range(0, width, DEPTH):
                    product = tl.dot(features.load([start, k]), weight.load([first, k]).T, product)
            else:
                for k0 in tl.range(0, width, SPAN):
                    part = tl.zeros([ROWS, CLASSES], tl.float32)
                    for k in tl.range(k0, k0 + SPAN, DEPTH):
                        part = tl.dot(features.load([start, k]), weight.load([first, k]).T, part)
                    product += part
            left, right = product, product
            if PARTS == 2:  # a whole tile and what is computed from it may not fit the registers
                left, right = tl.split(tl.permute(tl.reshape(product, (ROWS, 2, CLASSES // 2)), (0, 2, 1)))
        for side in tl.static_range(PARTS):
            (
                arcsine, level, other_class, exp_sum, exp2_sum, lin_sum, bias_sum, steepest, nearest, nearest_class,
            ) = _add_tile(
                left if side == 0 else right, inverse, label, inverse_w, bias,
                first + side * (CLASSES // PARTS), end_class, last,
                arcsine, level, other_class, exp_sum, exp2_sum, lin_sum, bias_sum, steepest, nearest, nearest_class,
                CLASSES // PARTS, BIAS,
            )  # fmt: skip
        total += arcsine.to(tl.float64)
    tl.store(arcsine_out + place, total, mask=valid)
    tl.store(level_out + place, level, mask=valid)
    tl.store(class_out + place, other_class, mask=valid)
    tl.store(exp_out + place, exp_sum, mask=valid)
    tl.store(exp2_out + place, exp2_sum, mask=valid)
    tl.store(lin_out + place, lin_sum * 0.6931471805599453, mask=valid)
    tl.store(bias_out + place, bias_sum, mask=valid)
    tl.store(steepest_out + place, steepest, mask=valid)
    tl.store(cosine_out + place, nearest, mask=valid)
    tl.store(nearest_out + place, nearest_class, mask=valid)


@triton.jit(do_not_specialize=["rows", "squares"])
def series_kernel(
    features, matrix, tiles, linear_out, square_out, rows, columns, squares, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GRAM: tl.constexpr,
):  # fmt: skip
    """Of the products of a block of rows: the squares of the first ones, or their sum weighted by the row if GRAM, and
    the sum of the others. `tiles` are the features as GRAM needs them.
    """
    start = tl.program_id(0) * ROWS
    linear, square = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float64)
    for first in tl.range(0, columns, COLUMNS):
        product = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in tl.range(0, width, DEPTH):
            product = tl.dot(features.load([start, k]), matrix.load([first, k]).T, product)
        if first + COLUMNS > squares:
            inside = (first + tl.arange(0, COLUMNS) < squares)[None, :]
            linear += tl.sum(tl.where(inside, 0.0, product), 1)
            product = tl.where(inside, product, 0.0)
        if GRAM:
            square += tl.sum(product * tiles.load([start, first]).to(tl.float32), 1)
        else:
            square += tl.sum(product * product, 1)
    row = start + tl.arange(0, ROWS)
    tl.store(linear_out + row, linear.to(tl.float64), mask=row < rows)
    tl.store(square_out + row, square, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def length_kernel(vectors, length_out, inverse_out, rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros([ROWS], tl.float64)
    for k in tl.range(0, width, WIDTH):
        column = k + tl.arange(0, WIDTH)
        mask = (row < rows)[:, None] & (column < width)[None, :]
        x = tl.load(vectors + row[:, None].to(tl.int64) * width + column[None, :], mask=mask, other=0.0).to(tl.float64)
        total += tl.sum(x * x, 1)
    length = tl.sqrt(total)
    tl.store(length_out + row, length, mask=row < rows)
    tl.store(inverse_out + row, tl.where(length > 0, 1 / length, 0.0).to(tl.float32), mask=row < rows)


@triton.jit
def _dot(features, weight, x_place, w_place, columns, mask, EXACT: tl.constexpr):
    x = tl.load(features + x_place[:, None] + columns[None, :], mask=mask, other=0.0).to(EXACT)
    return x * tl.load(weight + w_place[:, None] + columns[None, :], mask=mask, other=0.0).to(EXACT)


@triton.jit
def _chords(
    features, weight, x_place, w_place, shrink_x, shrink_w, valid, width, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """``|u − v|²`` and ``|u + v|²`` of the directions u and v."""
    apart = tl.zeros([ROWS], tl.float64)
    together = apart
    for k in tl.range(0, width, WIDTH):
        columns = k + tl.arange(0, WIDTH)
        mask = valid[:, None] & (columns < width)[None, :]
        u = tl.load(features + x_place[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float64)
        v = tl.load(weight + w_place[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float64)
        u, v = u * shrink_x[:, None], v * shrink_w[:, None]
        apart += tl.sum((u - v) * (u - v), 1)
        together += tl.sum((u + v) * (u + v), 1)
    return apart, together


@triton.jit(do_not_specialize=["rows", "stride"])
def pair_kernel(
    features, weight, length_x, length_w, bias, longest, target,
    arcsine, level, other, exp_sum, exp2_sum, lin_sum, bias_sum, steepest, cosine, nearest,
    classes_out, out, chords, rows, stride, width, most_cut, noise, steep_noise, pair_noise,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, EXACT: tl.constexpr, CUT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Recompute the target, the runner-up and the nearest other class of each row exactly, and correct the sums.

    Writes the columns of `hardsight.fastreading.Rows`. Of its angles there are only the chords to the target and to the
    nearest class, which come from the cosine unless that is close to ±1. EXACT is the dtype in which a product of two
    entries has no error.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = row < rows
    y = tl.load(target + row, mask=valid, other=0).to(tl.int64)
    o = tl.load(other + row, mask=valid, other=0).to(tl.int64)
    n = tl.load(nearest + row, mask=valid, other=0).to(tl.int64)
    length = tl.load(length_x + row, mask=valid, other=0.0)
    length_y, length_n = tl.load(length_w + y), tl.load(length_w + n)
    shrink = tl.where(length > 0, 1 / length, 0.0)
    shrink_y = tl.where(length_y > 0, 1 / length_y, 0.0)
    shrink_n = tl.where(length_n > 0, 1 / length_n, 0.0)
    sum_y = tl.zeros([ROWS, WIDTH], EXACT)
    sum_o, sum_n = sum_y, sum_y
    for k in tl.range(0, width, WIDTH):
        columns = k + tl.arange(0, WIDTH)
        mask = valid[:, None] & (columns < width)[None, :]
        sum_y += _dot(features, weight, row * width, y * width, columns, mask, EXACT)
        sum_o += _dot(features, weight, row * width, o * width, columns, mask, EXACT)
        sum_n += _dot(features, weight, row * width, n * width, columns, mask, EXACT)
    logit, other_logit = tl.sum(sum_y.to(tl.float64), 1), tl.sum(sum_o.to(tl.float64), 1)
    cosine_y, cosine_n = logit * shrink * shrink_y, tl.sum(sum_n.to(tl.float64), 1) * shrink * shrink_n
    apart_y, together_y, apart_n, together_n = 2 - 2 * cosine_y, 2 + 2 * cosine_y, 2 - 2 * cosine_n, 2 + 2 * cosine_n
    if tl.max(tl.abs(cosine_y), 0) > 0.9:
        apart_y, together_y = _chords(
            features, weight, row * width, y * width, shrink, shrink_y, valid, width, ROWS, WIDTH
        )  # fmt: skip
    if tl.max(tl.abs(cosine_n), 0) > 0.9:
        apart_n, together_n = _chords(
            features, weight, row * width, n * width, shrink, shrink_n, valid, width, ROWS, WIDTH
        )  # fmt: skip
    empty_y, empty_n = shrink * shrink_y == 0, shrink * shrink_n == 0  # a right angle

    angles, squares = tl.load(arcsine + row, mask=valid), tl.load(exp2_sum + row, mask=valid).to(tl.float64)
    linear, total = tl.load(lin_sum + row, mask=valid), tl.load(exp_sum + row, mask=valid)
    rough = tl.load(level + row, mask=valid)
    bias_o = rough  # if there is a bias
    if BIAS:
        bias_o = tl.load(bias + o).to(tl.float64)
        rough -= bias_o
    reach = length * tl.load(longest)
    if CUT:
        # Tensor cores cut off digits when they add: products are too small by a share that grows with the width. The
        # runner-up tells how large it is, and the sums are corrected to first order.
        shift = linear  # Σ e^(z−M) · (product − that of the runner-up)
        if BIAS:
            shift -= tl.load(bias_sum + row, mask=valid).to(tl.float64) - bias_o * total
        share = (other_logit - rough) / tl.where(other_logit == 0, 1.0, other_logit)
        cut = tl.minimum(tl.maximum(share, -most_cut), most_cut)
        linear += cut * shift * (1 + linear / total)
        total += cut * shift
        angles += cut * angles
        # The remaining error is half that of the runner-up, which all others share, and half their own: they are
        # independent, or those of many equal classes. Partial sums are as large as the product or as a random walk.
        doubt = steep_noise * tl.maximum(tl.abs(other_logit), noise * reach)
        mean = tl.abs((1 - 1 / total) * other_logit + shift / total)
        common = tl.where(cut == share, mean / tl.maximum(tl.abs(other_logit), 1e-30), 1 - 1 / total) * doubt
        common = tl.where(cut == share, tl.minimum(common, 1.5 * most_cut * mean), common)
        alone = tl.minimum(tl.sqrt(tl.maximum(squares - 1, 2.0**-23)), total - 1 + 2.0**-23)
        alone = doubt * tl.maximum(alone, (total - 1) / 4) / total
        moved = tl.sqrt((common * common + alone * alone) / 2) + pair_noise * reach
    else:
        # The others were measured against a rounded runner-up.
        error = rough - other_logit
        linear = (1 + error) * (linear + error * (total - 1))
        total = 1 + (1 + error) * (total - 1)
        squares = 1 + (1 + 2 * error) * (squares - 1)
        # Errors are those of single classes, or of many equal ones; see hardsight.fastreading.
        doubt = noise * reach + steep_noise * tl.abs(other_logit)
        alone = tl.minimum(tl.sqrt(tl.maximum(squares - 1, 2.0**-23)), total - 1 + 2.0**-23)
        moved = doubt * tl.maximum(alone, (total - 1) / 2) / total
    if BIAS:  # the sum of product and bias is rounded as well
        rounding = 2.0**-23 * tl.abs(other_logit + bias_o)
        doubt += rounding
        moved += rounding * (1 - 1 / total)
    strange = (reach > 1e24) | ((reach < 1e-24) & (reach > 0))  # products may overflow or vanish
    if BIAS:
        logit += tl.load(bias + y).to(tl.float64)
        other_logit += bias_o
    tl.store(classes_out + row, y, mask=valid)
    tl.store(classes_out + stride + row, o, mask=valid)
    tl.store(out + row, length, mask=valid)
    tl.store(out + stride + row, logit, mask=valid)
    tl.store(out + 2 * stride + row, other_logit, mask=valid)
    tl.store(out + 5 * stride + row, angles, mask=valid)
    tl.store(out + 6 * stride + row, total, mask=valid)
    tl.store(out + 7 * stride + row, squares, mask=valid)
    tl.store(out + 8 * stride + row, linear, mask=valid)
    tl.store(out + 9 * stride + row, tl.load(steepest + row, mask=valid).to(tl.float64), mask=valid)
    tl.store(out + 10 * stride + row, reach, mask=valid)
    tl.store(out + 11 * stride + row, tl.where(strange, float("inf"), doubt), mask=valid)
    tl.store(out + 12 * stride + row, moved, mask=valid)
    tl.store(chords + row, tl.sqrt(tl.where(empty_y, 1.0, apart_y)), mask=valid)
    tl.store(chords + rows + row, tl.sqrt(tl.where(empty_n, 1.0, apart_n)), mask=valid)
    tl.store(chords + 2 * rows + row, tl.sqrt(tl.where(empty_y, 1.0, together_y)), mask=valid)
    tl.store(chords + 3 * rows + row, tl.sqrt(tl.where(empty_n, 1.0, together_n)), mask=valid)


@triton.jit(do_not_specialize=["rows"])
def angle_kernel(
    features, weight, target, chords, rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """The chords of the angle of each row to its target."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = row < rows
    y = tl.load(target + row, mask=valid, other=0).to(tl.int64)
    product, square_x, square_w = (
        tl.zeros([ROWS], tl.float64),
        tl.zeros([ROWS], tl.float64),
        tl.zeros([ROWS], tl.float64),
    )
    for k in tl.range(0, width, WIDTH):
        columns = k + tl.arange(0, WIDTH)
        mask = valid[:, None] & (columns < width)[None, :]
        x = tl.load(features + (row * width)[:, None] + columns[None, :], mask=mask, other=0.0).to(EXACT)
        w = tl.load(weight + (y * width)[:, None] + columns[None, :], mask=mask, other=0.0).to(EXACT)
        product += tl.sum((x * w).to(tl.float64), 1)
        square_x += tl.sum((x * x).to(tl.float64), 1)
        square_w += tl.sum((w * w).to(tl.float64), 1)
    shrink_x = tl.where(square_x > 0, 1 / tl.sqrt(square_x), 0.0)
    shrink_w = tl.where(square_w > 0, 1 / tl.sqrt(square_w), 0.0)
    cosine = product * shrink_x * shrink_w
    apart, together = 2 - 2 * cosine, 2 + 2 * cosine
    if tl.max(tl.abs(cosine), 0) > 0.9:
        apart, together = _chords(
            features, weight, row * width, y * width, shrink_x, shrink_w, valid, width, ROWS, WIDTH
        )  # fmt: skip
    empty = shrink_x * shrink_w == 0  # a right angle
    tl.store(chords + row, tl.sqrt(tl.where(empty, 1.0, apart)), mask=valid)
    tl.store(chords + rows + row, tl.sqrt(tl.where(empty, 1.0, together)), mask=valid)
