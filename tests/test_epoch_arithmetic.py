"""What a commit computes with whole arrays, against the same thing written one sample at a time."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardsight.dynamics.decomposition import Logits, swapped_losses
from hardsight.dynamics.ids import first_rows, numbered
from hardsight.records import softplus


def logits(n, classes, heads, seed, largest=30.0):
    rng = np.random.default_rng(seed)
    return Logits(
        rng.uniform(-1, 1, (n, classes)).astype(np.float32),
        (largest * rng.random(n)).astype(np.float32),
        rng.integers(0, heads, n).astype(np.int32),
        rng.uniform(0, 2, (heads, classes)).astype(np.float32),
        rng.standard_normal((heads, classes)).astype(np.float32),
    )


def naive_loss(cosines, norm, lengths, biases, label):
    """log(1 + Σ exp(z_k − z_y)) over the other classes, in Python's floats."""
    z = [float(c) * float(norm) * float(w) + float(b) for c, w, b in zip(cosines, lengths, biases, strict=True)]
    differences = [value - z[label] for k, value in enumerate(z) if k != label]
    top = max(differences)
    m = top + math.log(math.fsum(math.exp(d - top) for d in differences))
    return max(m, 0.0) + math.log1p(math.exp(-abs(m)))


@pytest.mark.parametrize("classes", [2, 3, 10, 211])
@pytest.mark.parametrize("largest", [1.0, 30.0, 1e4])
def test_losses_with_swapped_norms_are_those_of_each_sample(classes, largest):
    """Many samples, so that there are several chunks; some of which are not known from before."""
    n = 70_000 // classes
    old, new = logits(n, classes, 5, 0, largest), logits(n, classes, 3, 1, largest)
    old.head[:: max(2, n // 50)] = -1
    labels = np.random.default_rng(2).integers(0, classes, n)
    got = swapped_losses(old, new, labels)
    np.testing.assert_array_equal(np.isnan(got["nll_angles"]), old.head < 0)
    np.testing.assert_array_equal(np.isnan(got["nll_norms"]), old.head < 0)
    for row in [*range(12), *range(n - 12, n)]:
        if old.head[row] >= 0:
            for name, angles, norms in (("nll_angles", new, old), ("nll_norms", old, new)):
                head = norms.head[row]
                parts = angles.cosines[row], norms.norms[row], norms.lengths[head], norms.biases[head]
                np.testing.assert_allclose(got[name][row], naive_loss(*parts, labels[row]), rtol=1e-11)


def test_logits_of_some_samples_are_replaced_and_nothing_else_changes():
    old = logits(9, 4, 6, 0)
    old.head[[0, 7]] = -1
    before = {name: value.copy() for name, value in vars(old).items()}
    at = np.array([1, 2, 7])
    new = logits(3, 4, 2, 1)
    both = old.updated(at, new)
    for row in range(9):
        source, place = (new, at.tolist().index(row)) if row in at else (old, row)
        np.testing.assert_array_equal(both.cosines[row], source.cosines[place])
        assert both.norms[row] == source.norms[place]
        assert (both.head[row] < 0) == (source.head[place] < 0)
        if both.head[row] >= 0:
            np.testing.assert_array_equal(both.lengths[both.head[row]], source.lengths[source.head[place]])
            np.testing.assert_array_equal(both.biases[both.head[row]], source.biases[source.head[place]])
    assert len(both.lengths) == len(both.biases) == len({*both.head.tolist()} - {-1})  # others are forgotten
    for name, value in vars(old).items():  # a commit that fails after this is repeated with the old ones
        np.testing.assert_array_equal(value, before[name])


@given(st.lists(st.integers(0, 8), max_size=30))
def test_the_first_row_of_each_number(at):
    expected = [at.index(number) if number in at else -1 for number in range(9)]
    assert first_rows(np.array(at, np.int64), 9).tolist() == expected


@given(st.sets(st.text(max_size=3)), st.lists(st.text(max_size=3), max_size=20))
def test_ids_are_places_among_all_of_them_sorted(before, ids):
    ordered = pa.array(before, pa.string())
    ordered = ordered.take(pc.sort_indices(ordered))
    every, old, new = numbered(ordered, pa.array(ids, pa.string()))
    names = every.to_pylist()
    assert names == sorted(before | set(ids), key=str.encode)
    assert [names[place] for place in old] == ordered.to_pylist()
    assert [names[place] for place in new] == ids


def test_softplus_is_log_of_one_and_an_exponential():
    m = np.array([-800.0, -40.0, -1.0, -1e-12, 0.0, 1e-12, 1.0, 40.0, 800.0, np.inf, -np.inf, np.nan])
    with np.errstate(invalid="ignore"):
        expected = np.logaddexp(0.0, m)
    np.testing.assert_allclose(softplus(m), expected, rtol=4e-16)
