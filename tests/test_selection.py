"""Choosing pseudo-labels: cases worked by hand, a naive reference that loops and counts in fractions, and bad input."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardsight.adaptation import selection
from hardsight.adaptation.selection import (
    METHODS,
    Method,
    class_thresholds,
    lrent_chosen,
    lrent_labels,
    parse_method,
    portion_at,
    pseudo_labels,
    select,
    target_rows,
)
from hardsight.scores import SCORES

# Six samples, three classes; nobody is predicted to the last one.
P = np.array([[0.9, 0.1, 0], [0.8, 0.1, 0.1], [0.6, 0.4, 0], [0.55, 0.45, 0], [0.3, 0.7, 0], [0.4, 0.6, 0]])
AVC = np.array(
    [[0.5, 0.3, 0.2], [0.6, 0.2, 0.2], [0.45, 0.35, 0.2], [0.4, 0.42, 0.18], [0.3, 0.5, 0.2], [0.2, 0.6, 0.2]]
)

# By softmax predicted: 0 0 0 0 1 1. Half of four is two: λ_0 = .8; half of two is one: λ_1 = .7.
# p/λ: (1.125, .14), (1, .14), (.75, .57), (.69, .64), (.375, 1), (.5, .86): labels 0 0 0 0 1 1.
# By AVC predicted: 0 0 0 1 1 1. Half of three is one: λ_0 = .6 and λ_1 = .6: labels 0 0 0 1 1 1.
BY_HAND = {
    # p at the label .9 .8 .6 .55 | .7 .6 against .8 | .7
    "cbst": ([0, 1, 4], [0, 0, 1], [0.8, 0.7], [0.8, 0.7], [0]),
    # AVC at the prediction .5 .6 .45 .4 | .5 .6: β = .5 | .6
    "cbst+avh": ([0, 1, 5], [0, 0, 1], [0.8, 0.7], [0.5, 0.6], [1]),
    # AVC at the label .5 .6 .45 | .42 .5 .6 against .6 | .6
    "cbst+avh-slides": ([1, 5], [0, 1], [0.6, 0.6], [0.6, 0.6], []),
    # p at AVC's prediction .9 .8 .6 | .45 .7 .6: β = .9 | .7
    "cbst+avh-hybrid": ([0, 4], [0, 1], [0.6, 0.6], [0.9, 0.7], []),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_four_combinations_of_rules_are_as_worked_by_hand(name):
    rows, labels, label_thresholds, select_thresholds, above = BY_HAND[name]
    found = select(name, P, AVC, None, 0.5)
    assert found.rows.tolist() == rows
    assert found.labels.tolist() == labels
    assert found.label_thresholds.tolist() == [*label_thresholds, np.inf]
    assert found.select_thresholds.tolist() == [*select_thresholds, np.inf]
    assert found.counts.tolist() == [labels.count(0), labels.count(1), 0]
    assert found.predicted.tolist() == ([3, 3, 0] if "slides" in name or "hybrid" in name else [4, 2, 0])
    assert found.targets.tolist() == np.eye(3)[labels].tolist()
    assert found.targets.dtype == np.float32
    assert select(name, P, AVC, None, 0.5, strict=True).rows.tolist() == above


def test_label_moves_to_class_that_network_is_unsure_of():
    # Predicted 0 0 0 1, a third: λ = .9 and .5. The third sample has .52/.9 = .58 and .48/.5 = .96.
    p = [[0.9, 0.1], [0.8, 0.2], [0.52, 0.48], [0.5, 0.5 + 1e-9]]
    found = select("cbst", p, portion=1 / 3)
    assert pseudo_labels(np.array(p), found.label_thresholds)[0].tolist() == [0, 0, 1, 1]
    assert found.rows.tolist() == [0, 3]  # .48 is still below .5
    # AVC chooses it: of class 1 the ranked one has .5, and it has .55 at the label it moved to.
    avc = [[0.6, 0.4], [0.6, 0.4], [0.45, 0.55], [0.5, 0.5]]
    moved = select("cbst+avh", p, avc, portion=1 / 3)
    assert dict(zip(moved.rows.tolist(), moved.labels.tolist(), strict=True)) == {0: 0, 1: 0, 2: 1, 3: 1}


def test_balances_are_as_worked_by_hand():
    values, predicted = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [0, 0, 0, 0, 1, 1]
    # Half of all six are three; a class without samples still has none.
    assert class_thresholds(values, predicted, 3, 0.5, balance="global").tolist() == [0.7, 0.7, np.inf]
    # Half of six are three: two thirds of them are two, one third is one, of the last class there are none.
    thresholds = class_thresholds(values, predicted, 3, 0.5, balance=np.array([2 / 3, 1 / 3, 0]))
    assert thresholds.tolist() == [0.8, 0.5, np.inf]
    # Five sixths of three are two, capped at none; one sixth of three is half a sample, so none.
    assert class_thresholds(values, predicted, 3, 0.5, balance=[1 / 6, 0, 5 / 6]).tolist() == [np.inf] * 3
    # A class with few samples keeps its best one; a portion is rounded down as if it had been multiplied exactly.
    assert class_thresholds([0.3, 0.9, 0.6], [1, 1, 1], 2, 0.01).tolist() == [np.inf, 0.9]
    hundred = np.arange(100.0)[::-1]
    assert class_thresholds(hundred, np.zeros(100, int), 1, 0.29).tolist() == [71.0]  # .29 * 100 = 28.999999999999996
    # All of them: more of class 1 than there are.
    assert class_thresholds(values, predicted, 3, 1.0, balance=[0, 1.0, 0]).tolist() == [np.inf, 0.4, np.inf]


def test_all_that_tie_with_the_ranked_sample_are_chosen_and_none_of_them_if_strict():
    p = np.array([[1.0, 0.0]] * 6 + [[0.9, 0.1]] * 4)  # saturated: the portion asks for two
    assert select("cbst", p, portion=0.2).rows.tolist() == [0, 1, 2, 3, 4, 5]
    assert select("cbst", p, portion=0.2, strict=True).rows.tolist() == []


def test_of_equal_ratios_the_lower_class_wins_and_a_class_without_samples_counts_as_one_and_is_never_chosen():
    for row, thresholds, label in (
        ([0.25, 0.5, 0.25], [0.25, 0.5, 0.25], 0),
        ([0.5, 0.4], [np.inf, 0.5], 1),  # .5 and .8
        ([0.6, 0.4], [np.inf, 0.8], 0),  # .6 and .5
    ):
        labels, values = pseudo_labels(np.array([row]), thresholds)
        assert (labels.tolist(), values.tolist()) == ([label], [row[label]])


def test_portion_one_takes_everyone_and_one_class_may_have_all():
    p = np.column_stack([np.linspace(0.6, 1, 9), 1 - np.linspace(0.6, 1, 9)])
    found = select("cbst", p, portion=1.0)
    assert found.rows.tolist() == list(range(9))
    assert found.counts.tolist() == [9, 0]
    assert select("cbst", p, portion=1.0, balance="global").rows.tolist() == list(range(9))


def test_portions_grow_to_the_most():
    assert [portion_at(r) for r in range(8)] == [0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.5]
    assert [portion_at(r, 0.03, 0.0025, 0.06) for r in (0, 1, 12, 13)] == [0.03, 0.0325, 0.06, 0.06]
    assert portion_at(3, 1, 0, 1) == 1.0


def naive_thresholds(values, predicted, classes, portion, balance):
    thresholds = []
    for k in range(classes):
        own = sorted((v for v, c in zip(values, predicted, strict=True) if c == k), reverse=True)
        if balance == "global":
            everyone = sorted(values, reverse=True)
            n = max(1, portion * len(values) // 1)
            thresholds.append(everyone[n - 1] if own else np.inf)
            continue
        n = (
            max(1, portion * len(own) // 1)
            if balance == "class"
            else min(portion * len(values) * balance[k] // 1, len(own))
        )
        thresholds.append(own[n - 1] if own and n else np.inf)
    return thresholds


def naive_argmax(row, thresholds):
    best, ratio = 0, -1.0
    for k, (value, threshold) in enumerate(zip(row, thresholds, strict=True)):
        if value / (1.0 if threshold == np.inf else threshold) > ratio:
            best, ratio = k, value / (1.0 if threshold == np.inf else threshold)
    return best


def naive_select(labels_from, selects, portion, balance, strict):
    classes = len(labels_from[0])
    predicted = [naive_argmax(row, [1.0] * classes) for row in labels_from]
    at = [[row[k] for row, k in zip(m, predicted, strict=True)] for m in (labels_from, selects)]
    label_thresholds, select_thresholds = (naive_thresholds(v, predicted, classes, portion, balance) for v in at)
    kept = []
    for i, row in enumerate(labels_from):
        k = naive_argmax(row, label_thresholds)
        value, limit = selects[i][k], select_thresholds[k]
        if value > limit or (value == limit and not strict):
            kept.append((i, k))
    return kept, label_thresholds, select_thresholds


@st.composite
def targets(draw):
    """Two matrices of eighths, so that ties are frequent and fractions exact; a portion; a balance."""
    samples, classes = draw(st.integers(1, 30)), draw(st.integers(2, 5))
    eighths = st.lists(st.integers(0, 8), min_size=classes, max_size=classes).filter(any)
    p, avc = (np.array(draw(st.lists(eighths, min_size=samples, max_size=samples))) / 8 for _ in range(2))
    portion = Fraction(draw(st.integers(1, 20)), 20)
    parts = draw(eighths)
    prior = [Fraction(part, sum(parts)) for part in parts]
    return p, avc, portion, draw(st.sampled_from(["class", "global", prior])), draw(st.booleans())


@settings(max_examples=150, deadline=None)
@given(targets(), st.sampled_from(list(BY_HAND)))
def test_selection_equals_naive_loops(target, name):
    p, avc, portion, balance, strict = target
    method, arrays = METHODS[name], {"softmax": p.tolist(), "avc": avc.tolist()}
    kept, label_thresholds, select_thresholds = naive_select(
        arrays[method.label_by], arrays[method.select_by], portion, balance, strict
    )
    given_balance = balance if isinstance(balance, str) else np.array([float(part) for part in balance])
    small = [matrix.astype(np.float32) for matrix in (p, avc)]
    found = select(name, *small, None, float(portion), balance=given_balance, strict=strict)
    assert list(zip(found.rows.tolist(), found.labels.tolist(), strict=True)) == kept
    assert found.label_thresholds.tolist() == label_thresholds
    assert found.select_thresholds.tolist() == select_thresholds
    assert found.counts.sum() == len(kept)
    assert found.predicted.sum() == len(p)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 6), st.floats(0.001, 1.0), st.integers(0, 10**6))
def test_threshold_is_the_value_of_that_rank(samples, classes, portion, seed):
    draw = np.random.default_rng(seed)
    values, predicted = draw.normal(size=samples).round(1), draw.integers(0, classes, samples)
    for k, threshold in enumerate(class_thresholds(values, predicted, classes, portion)):
        own = values[predicted == k]
        n = max(1, int(np.floor(portion * len(own) + 1e-6)))
        assert threshold == np.inf if not len(own) else (own > threshold).sum() < n <= (own >= threshold).sum()


def test_order_of_samples_and_names_of_classes_do_not_matter():
    draw = np.random.default_rng(0)
    p = draw.dirichlet(np.full(7, 0.5), 500)
    samples, classes = draw.permutation(500), draw.permutation(7)
    found, turned = select("cbst", p), select("cbst", p[samples][:, classes])
    where = np.argsort(samples)[found.rows]
    assert sorted(where.tolist()) == turned.rows.tolist()
    assert dict(zip(where.tolist(), found.labels.tolist(), strict=True)) == dict(
        zip(turned.rows.tolist(), classes[turned.labels].tolist(), strict=True)
    )


@pytest.mark.parametrize("name", METHODS)
def test_blocks_and_files_change_nothing(name, monkeypatch, tmp_path):
    draw = np.random.default_rng(1)
    p, avc = (draw.dirichlet(np.full(5, 0.3), 333).astype(np.float32) for _ in range(2))
    whole = select(name, p, avc)
    monkeypatch.setattr(selection, "_BLOCK", 64)
    np.save(tmp_path / "p.npy", p)
    found = select(name, np.load(tmp_path / "p.npy", mmap_mode="r"), avc)
    np.testing.assert_array_equal(found.rows, whole.rows)
    np.testing.assert_array_equal(found.labels, whole.labels)
    np.testing.assert_array_equal(found.targets, whole.targets)
    monkeypatch.setattr(selection, "_BLOCK", 6)  # rows in a sentence are counted over all blocks
    with pytest.raises(ValueError, match="in row 4"):
        select("cbst", with_value(np.nan))


def test_memory_beside_the_input_is_bounded_by_the_samples():
    wide = np.lib.stride_tricks.sliding_window_view(np.random.default_rng(0).random(100_299, dtype=np.float32), 300)
    tracemalloc.start()
    select("cbst+avh", wide, wide)  # 120 MB if it were not a view
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20 + 40 * len(wide)


def test_soft_labels_and_their_rule_are_as_worked_by_hand():
    # p/λ = 1 and 1/2; to the fourth 1 and 1/16, which add up to 17/16.
    np.testing.assert_allclose(lrent_labels([[0.5, 0.5]], [0.5, 1.0]), [[16 / 17, 1 / 17]], rtol=1e-15)
    # Fourth powers: (.9/.8, .1/.5) 1.602 + .002; (.79/.8, .21/.5) .951 + .031; (.75/.8, .45/.5) .772 + .656.
    assert lrent_chosen([[0.9, 0.1], [0.79, 0.21], [0.75, 0.45]], [0.8, 0.5]).tolist() == [True, False, True]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.25, 1.0, 3.0]))
def test_soft_rule_equals_the_printed_one(seed, alpha):
    draw = np.random.default_rng(seed)
    p, thresholds = draw.dirichlet(np.full(4, 1.0), 40), draw.uniform(0.3, 1, 4)
    y = lrent_labels(p, thresholds, alpha)
    naive = (p / thresholds) ** (1 / alpha)
    np.testing.assert_allclose(y, naive / naive.sum(1, keepdims=True), rtol=1e-9, atol=1e-300)
    safe = np.where(y > 0, y, 1.0)
    printed = -(y * np.log(p)).sum(1) + alpha * (safe * np.log(safe)).sum(1) + (y * np.log(thresholds)).sum(1)
    sure = np.abs(printed) > 1e-9
    np.testing.assert_array_equal(lrent_chosen(p, thresholds, alpha)[sure], (printed < 0)[sure])


def test_soft_labels_choose_all_that_hard_ones_do_and_become_them_as_alpha_vanishes():
    p = np.random.default_rng(2).dirichlet(np.full(6, 2.0), 400).astype(np.float32)
    hard = select("cbst", p)
    assert set(hard.rows) < set(select("crst-lrent", p).rows)
    sharp = select(replace(METHODS["crst-lrent"], alpha=1e-8), p)
    np.testing.assert_array_equal(sharp.rows, hard.rows)
    np.testing.assert_allclose(sharp.targets, hard.targets, atol=1e-6)


def test_soft_labels_bear_zeros_and_tiny_thresholds():
    y = lrent_labels([[0.0, 1.0, 0.0], [1e-300, 0.5, 0.5], [1e-40, 1e-42, 0.0]], [1e-300, 1.0, np.inf])
    assert np.isfinite(y).all()
    np.testing.assert_allclose(y.sum(1), 1.0, rtol=1e-12)
    assert y.argmax(1).tolist() == [1, 0, 0]
    # In float32 these powers would overflow.
    assert np.isfinite(lrent_labels(np.float32([[1.0, 1e-30]]), [1e-30, 1.0], 0.01)).all()
    assert lrent_chosen([[0.0, 1.0]], [1e-300, 1.0]).tolist() == [True]


def test_mrkld_is_one_more_number_in_every_place_of_a_row():
    rows, p = target_rows([2, 0], 4, mrkld=0.1), np.random.default_rng(0).dirichlet(np.ones(4), 2)
    np.testing.assert_allclose(rows.sum(1), 1.1, rtol=1e-6)
    by_row = -(rows * np.log(p)).sum(1)
    printed = -np.log(p[[0, 1], [2, 0]]) - 0.1 / 4 * np.log(p).sum(1)
    np.testing.assert_allclose(by_row, printed, rtol=1e-6)


def test_crst_is_soft_and_regularised():
    p = np.random.default_rng(3).dirichlet(np.full(3, 0.5), 100)
    found = select("crst", p)
    soft = lrent_labels(p[found.rows], found.label_thresholds)
    np.testing.assert_allclose(found.targets, soft + 0.1 / 3, rtol=1e-6)
    np.testing.assert_array_equal(soft.argmax(1), found.labels)
    assert target_rows(soft, 3).dtype == np.float32


def test_any_score_selects_by_its_value_at_the_label():
    asked = []

    def at(name, labels):
        asked.append(name)
        return AVC[np.arange(len(P)), labels] * 10 - 100  # a score may be negative

    found = select("cbst+margin", P, None, at, 0.5)
    assert found.rows.tolist() == [0, 1, 5]  # as AVC
    np.testing.assert_allclose(found.select_thresholds, [-95, -94, np.inf])
    assert asked == ["margin"]  # no label moved, so nothing is asked again


def test_ranked_sample_is_chosen_even_if_the_score_is_not_the_same_to_the_last_bit():
    noise = np.random.default_rng(0)
    p = noise.dirichlet(np.full(4, 0.5), 200)
    judged = select("cbst+angular_margin", p, None, lambda _, k: p[np.arange(200), k] - 1e-9 * noise.random(200), 0.2)
    predicted = p.argmax(1)
    for k in range(4):
        assert (judged.labels[predicted[judged.rows] == k] == k).sum() >= 0.2 * (predicted == k).sum() - 1


def test_soft_labels_may_be_selected_by_another_score():
    for method in ("crst+avc", "crst+avh", "crst-mrkld+avh"):  # AVH's name is the paper's, which selects by AVC
        found = select(method, P, AVC, None, 0.5)
        assert found.rows.tolist() == BY_HAND["cbst+avh"][0]
    assert (found.targets > 0.1 / 3 - 1e-6).all()


def test_methods_are_found_by_name_and_every_score_selects():
    assert parse_method("cbst+confidence").select_by == "softmax"
    assert parse_method("crst+el2n").soft
    for name in SCORES:
        assert parse_method(f"cbst+{name}").name == f"cbst+{name}"
    for name, method in METHODS.items():
        assert parse_method(method) is parse_method(name) is method
        assert method.summary.endswith(".")
        assert method.reference
    assert (METHODS["cbst+avh"].label_by, METHODS["cbst+avh"].select_by) == ("softmax", "avc")
    assert (METHODS["crst"].soft, METHODS["crst"].mrkld, METHODS["crst"].alpha) == (True, 0.1, 0.25)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cbst+avg", "cbst\\+av"),
        ("cbts", "cbst"),
        ("cbst+avh+margin", "'cbst"),
        ("", "method ''"),
        (3, "method 3"),
        (Method("own", label_by="margin"), "label_by .*'margin'"),
        (Method("own", select_by="sofmax"), "select_by"),
        (Method("own", alpha=0.0), "alpha must"),
        (Method("own", mrkld=-0.1), "mrkld"),
        (Method("own", mrkld=float("nan")), "mrkld"),
    ],
)
def test_unknown_method_is_one_sentence(name, hint):
    with pytest.raises(ValueError, match=hint) as error:
        parse_method(name)
    assert "\n" not in str(error.value)


def with_value(value):
    p = P.copy()
    p[4, 1] = value
    return p


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda: select("cbst", with_value(np.nan)), "nan .*row 4"),
        (lambda: select("cbst", with_value(-0.1)), "-0.1 .*row 4"),
        (lambda: select("cbst", with_value(np.inf)), "inf .*row 4"),
        (lambda: select("crst", P * [[0]]), "none in row 0"),
        (lambda: select("cbst", np.zeros((0, 3))), "target is empty"),
        (lambda: select("cbst", P[0]), "softmax .*\\(N, C\\)"),
        (lambda: select("cbst+avh", P), "cbst\\+avh .*avc"),
        (lambda: select("cbst+avh", P, AVC[:, :2]), "\\(6, 3\\) and \\(6, 2\\)"),
        (lambda: select("cbst+avh", P, AVC * np.nan), "finite, got nan"),
        (lambda: select("cbst+margin", P), "at must .*margin"),
        (lambda: select("cbst+margin", P, at=lambda *_: [1.0]), "values and classes"),
        (lambda: select("cbst+margin", P, at=lambda *_: np.full(6, np.nan)), "nan .*row 0"),
        (lambda: select("cbst", P, portion=0), "portion .*\\(0, 1\\], got 0"),
        (lambda: select("cbst", P, portion=1.5), "portion .*got 1.5"),
        (lambda: select("cbst", P, portion=float("nan")), "got nan"),
        (lambda: select("cbst", P, balance="clas"), "balance .*got 'clas'"),
        (lambda: select("cbst", P, balance=[0.5, 0.4, 0.0]), "balance .*0.9"),
        (lambda: select("cbst", P, balance=[1.5, -0.5, 0.0]), "balance must"),
        (lambda: select("cbst", P, balance=[0.5, 0.5]), "balance .*3 shares"),
        (lambda: select("cbst", P, balance=[np.nan, 0.5, 0.5]), "balance .*3 shares"),
        (lambda: class_thresholds([1.0, 2.0], [0, 5], 2, 0.5), "labels .*0 to 1, got"),
        (lambda: class_thresholds([1.0], [0.5], 2, 0.5), "integers"),
        (lambda: class_thresholds([[1.0]], [0], 2, 0.5), "values and classes"),
        (lambda: pseudo_labels(P, [0.5, 0.5, 0.0]), "thresholds .*\\(3,\\)"),
        (lambda: pseudo_labels(P, [0.5, 0.5, np.nan]), "thresholds must"),
        (lambda: pseudo_labels(P, [0.5, 0.5]), "thresholds must"),
        (lambda: lrent_labels([[0.0, 0.0]], [1.0, 1.0]), "every row"),
        (lambda: lrent_labels(P, [1.0, 1.0, 1.0], alpha=0), "alpha must"),
        (lambda: target_rows([[0.5, 0.5]], 3), "labels .*\\(M, 3\\)"),
        (lambda: target_rows([3], 3), "labels .*0 to 2"),
        (lambda: portion_at(0, 0.0, 0.05, 0.5), "portion .*\\(0, 1\\]"),
        (lambda: portion_at(0, 0.5, 0.05, 1.5), "portion .*\\(0, 1\\]"),
        (lambda: portion_at(0, 0.5, 0.05, 0.2), "not shrink"),
        (lambda: portion_at(0, 0.5, -0.05, 0.6), "not shrink"),
        (lambda: portion_at(0, 0.5, float("nan"), 0.6), "not shrink"),
        (lambda: portion_at(-1), "in round -1"),
    ],
)
def test_bad_input_is_one_sentence(bad, words):
    with pytest.raises(ValueError, match=words) as error:
        bad()
    assert "\n" not in str(error.value)
