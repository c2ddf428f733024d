"""What a commit computes with whole arrays, against the same thing written one sample at a time."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardsight.dynamics.batches import Rows, numbered
from hardsight.dynamics.decomposition import compared
from hardsight.records import DERIVED


def logits(n, classes, heads, seed, largest=30.0, ids=None):
    rng = np.random.default_rng(seed)
    columns = {
        "cosines": rng.uniform(-1, 1, (n, classes)).astype(np.float32),
        "norm": (largest * rng.random(n)).astype(np.float32),
        "head": rng.integers(0, heads, n).astype(np.int32),
    }
    weights = [rng.uniform(0, 2, (heads, classes)), rng.standard_normal((heads, classes))]
    return Rows(pa.array([str(i) for i in ids or range(n)]), columns, np.stack(weights).astype(np.float32))


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
    gone = np.arange(n) % max(2, n // 50) == 0
    old = old.take(np.random.default_rng(3).permutation(np.flatnonzero(~gone)))
    new.columns["label"] = labels = np.random.default_rng(2).integers(0, classes, n)
    losses, _ = compared(old, new)
    np.testing.assert_array_equal(np.isnan(losses["nll_angles"]), gone)
    np.testing.assert_array_equal(np.isnan(losses["nll_norms"]), gone)
    before = {int(id_): row for row, id_ in enumerate(old.ids.to_pylist())}
    for row in [*range(12), *range(n - 12, n)]:
        if not gone[row]:
            for name, (angles, i), (norms, j) in (
                ("nll_angles", (new, row), (old, before[row])),
                ("nll_norms", (old, before[row]), (new, row)),
            ):
                lengths, biases = norms.heads[:, norms.columns["head"][j]]
                parts = angles.columns["cosines"][i], norms.columns["norm"][j], lengths, biases
                np.testing.assert_allclose(losses[name][row], naive_loss(*parts, labels[row]), rtol=1e-11)


def test_logits_of_some_samples_are_replaced_and_nothing_else_changes():
    old, new = logits(7, 4, 6, 0, ids=[1, 2, 3, 4, 5, 6, 8]), logits(3, 4, 2, 1, ids=[1, 2, 7])
    before = {name: value.copy() for name, value in old.columns.items()}
    new.columns["label"] = np.zeros(3, np.int64)
    _, both = compared(old, new)
    assert sorted(both.ids.to_pylist()) == [str(i) for i in range(1, 9)]
    for row, id_ in enumerate(both.ids.to_pylist()):
        source = new if id_ in ("1", "2", "7") else old
        i = source.ids.to_pylist().index(id_)
        np.testing.assert_array_equal(both.columns["cosines"][row], source.columns["cosines"][i])
        assert both.columns["norm"][row] == source.columns["norm"][i]
        weights = source.heads[:, source.columns["head"][i]]
        np.testing.assert_array_equal(both.heads[:, both.columns["head"][row]], weights)
    assert both.heads.shape[1] == len({*both.columns["head"].tolist()})  # others are forgotten
    for name, value in old.columns.items():  # a commit that fails after this is repeated with the old ones
        np.testing.assert_array_equal(value, before[name])


@given(st.sets(st.text(max_size=3)), st.lists(st.text(max_size=3), max_size=20))
def test_ids_are_places_among_all_of_them_sorted(before, ids):
    ordered = pa.array(before, pa.string())
    ordered = ordered.take(pc.sort_indices(ordered))
    every, old, new = numbered(ordered, pa.array(ids, pa.string()))
    names = every.to_pylist()
    assert names == sorted(before | set(ids), key=str.encode)
    assert [names[place] for place in old] == ordered.to_pylist()
    assert [names[place] for place in new] == ids


def test_loss_and_confidence_of_a_soft_margin_keep_their_digits():
    m = np.array([-800.0, -40.0, -1.0, -1e-12, 0.0, 1e-12, 1.0, 40.0, 800.0, np.inf, -np.inf, np.nan])
    with np.errstate(invalid="ignore"):
        expected = np.logaddexp(0.0, m)
    np.testing.assert_allclose(DERIVED["nll"][1](m), expected, rtol=4e-16)
    np.testing.assert_allclose(DERIVED["confidence"][1](m), np.exp(-expected), rtol=2e-14)
