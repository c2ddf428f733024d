"""Calibration: against netcal, torchmetrics, scikit-learn, scipy's minimiser, naive loops and hand-worked cases."""

import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_predictions import answer_to, made
from scipy import stats
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.metrics import log_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from hardsight import avc, probabilities
from hardsight.questions.calibration import (
    TEMPERATURES,
    classwise_ece,
    ece,
    fit_temperature,
    reliability,
)

with warnings.catch_warnings():  # its docstrings hold escapes that Python warns of
    warnings.simplefilter("ignore")
    from netcal.metrics import ECE


def drawn(n=600, classes=4, sharp=2.0, seed=0):
    """Logits that are `sharp` times too sure, and labels."""
    draw = np.random.default_rng(seed)
    z = draw.normal(size=(n, classes)) * 1.5
    p = np.exp(log_softmax(z, 1))
    y = np.array([draw.choice(classes, p=row) for row in p])
    return z * sharp, y


def softmax(z):
    return np.exp(log_softmax(z, 1))


def naive_ece(confidence, correct, bins):
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        chosen = [i for i, c in enumerate(confidence) if low < c <= high or (b == 0 and c == 0)]
        if chosen:
            total += abs(sum(correct[i] for i in chosen) - sum(confidence[i] for i in chosen))
    return total / len(confidence)


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("classes", [2, 4])
def test_ece_is_that_of_netcal_torchmetrics_and_a_naive_loop(bins, classes):
    z, y = drawn(classes=classes)
    p = softmax(z)
    confidence, correct = p.max(1), p.argmax(1) == y
    found = ece(confidence, correct, bins)
    assert found == pytest.approx(naive_ece(confidence, correct, bins), abs=1e-12)
    if bins > 1:
        assert found == pytest.approx(ECE(bins).measure(confidence, correct.astype(int)), abs=1e-9)
    theirs = multiclass_calibration_error(torch.from_numpy(p), torch.from_numpy(y), classes, bins)
    assert found == pytest.approx(float(theirs), abs=1e-6)


def test_the_adaptive_error_is_netcals_with_bins_of_equal_mass():
    z, y = drawn(600)
    p = softmax(z)
    confidence, correct = p.max(1), p.argmax(1) == y
    parts = np.array_split(np.argsort(confidence), 10)
    naive = sum(abs(correct[part].sum() - confidence[part].sum()) for part in parts) / 600
    assert ece(confidence, correct, 10, "mass") == pytest.approx(naive, abs=1e-12)
    theirs = ECE(10, equal_intervals=False).measure(confidence, correct.astype(int))
    assert ece(confidence, correct, 10, "mass") == pytest.approx(theirs, abs=0.01)  # its edges lie between samples
    assert reliability(confidence, correct, 10, "mass").n.tolist() == [60] * 10


def test_edges_belong_to_the_bin_below_and_one_to_the_last_and_zero_to_the_first():
    found = reliability([0.0, 0.2, 0.2000001, 0.4, 1.0, 1.0], [0, 1, 0, 0, 1, 0], bins=5)
    assert found.n.tolist() == [2, 2, 2]
    np.testing.assert_allclose(found.confidence, [0.1, 0.30000005, 1.0])
    assert found.accuracy.tolist() == [0.5, 0, 0.5]
    for bins in range(2, 40):  # whatever the rounding of b / bins
        edges = np.arange(1, bins + 1) / bins
        assert reliability(edges, np.ones(bins), bins).n.tolist() == [1] * bins
    for bins in (1, 2, 15):  # nothing falls out at either end
        assert ece(np.ones(7), np.ones(7), bins) == 0
        assert ece(np.zeros(7), np.ones(7), bins) == 1


@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=80), st.integers(1, 20), st.randoms()
)
@settings(max_examples=80, deadline=None)
def test_every_sample_is_in_one_bin_and_ties_share_it_and_no_order_matters(pairs, bins, chance):
    for binning in ("width", "mass"):
        sure, right = np.array([c / 20 for c, _ in pairs]), np.array([r for _, r in pairs])
        found = reliability(sure, right, bins, binning)
        assert found.n.sum() == len(pairs)
        assert (np.diff(found.confidence) > 0).all()  # so nobody that ties was parted
        assert (found.n * found.accuracy).sum() == pytest.approx(right.sum())
        value = ece(sure, right, bins, binning)
        assert 0 <= value <= 1
        if binning == "width":
            assert value == pytest.approx(naive_ece(sure, right, bins), abs=1e-12)
        again = list(range(len(pairs)))
        chance.shuffle(again)
        assert ece(sure[again], right[again], bins, binning) == pytest.approx(value, abs=1e-12)


def test_mass_bins_hold_as_equal_numbers_as_ties_allow():
    assert reliability(np.linspace(0, 1, 103), np.ones(103), 10, "mass").n.tolist() == [11, 10, 10] * 3 + [10]
    assert reliability([0.5] * 50 + [1.0] * 50, np.ones(100), 15, "mass").n.tolist() == [50, 50]
    assert reliability([0.3, 0.4], [1, 0], 15, "mass").n.tolist() == [1, 1]


def test_intervals_of_the_diagram_are_wilsons():
    z, y = drawn(200)
    found = reliability(softmax(z).max(1), softmax(z).argmax(1) == y, 5)
    for right, n, low, high in zip(found.accuracy * found.n, found.n, found.low, found.high, strict=True):
        expected = stats.binomtest(round(right), int(n)).proportion_ci(method="wilson")
        assert (low, high) == pytest.approx(tuple(expected), abs=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("classes", "bins"), [(2, 15), (4, 1), (4, 10), (40, 15)])
def test_the_classwise_error_is_a_naive_loop_over_classes(classes, bins, dtype):
    z, y = drawn(300, classes)
    p = softmax(z).astype(dtype)
    p[0] = np.eye(classes)[1]  # exactly 0 and 1
    naive = np.mean([naive_ece(p[:, k].astype(np.float64), y == k, bins) for k in range(classes)])
    assert classwise_ece(p, y, bins) == pytest.approx(naive, abs=1e-9)
    each = [ECE(bins).measure(p[:, k].astype(np.float64), (y == k).astype(int)) for k in range(classes)]
    assert bins == 1 or classwise_ece(p, y, bins) == pytest.approx(np.mean(each), abs=2e-3)  # left-closed bins


def test_gaps_of_opposite_sign_in_neighboring_bins_do_not_cancel():
    p = [[0.4, 0.6], [0.6, 0.4]]
    assert classwise_ece(p, [0, 1], bins=2) == pytest.approx(0.6)
    assert classwise_ece(p, [0, 1], bins=1) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 3, 5, 10, 15, 20])
@pytest.mark.parametrize("same", [True, False])
def test_a_network_that_says_chance_and_is_right_by_chance_is_calibrated_by_class(classes, dtype, same):
    p, y = np.full((4 * classes, classes), 1 / classes, dtype), np.arange(4 * classes) % classes
    assert classwise_ece(p, y, classes if same else 15) < 1e-7  # 1 / C is an edge of a bin


@pytest.mark.parametrize("sharp", [0.02, 0.5, 1.0, 3.0, 200.0])
@pytest.mark.parametrize(("classes", "n"), [(2, 300), (6, 900)])
def test_the_temperature_is_where_scipy_finds_the_least_nll(sharp, classes, n):
    z, y = drawn(n, classes, sharp)

    def loss(t):
        return -log_softmax(z / np.exp(t), 1)[np.arange(n), y].mean()

    best = minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded", options={"xatol": 1e-10})
    found = fit_temperature(z, y)
    assert found == pytest.approx(np.exp(best.x), rel=1e-5)
    assert loss(np.log(found)) <= best.fun + 1e-12
    assert fit_temperature(z.astype(np.float32), y) == pytest.approx(found, rel=1e-5)


def test_many_samples_give_the_same_temperature_as_they_would_at_once(monkeypatch):
    z, y = drawn(3000, 5)
    whole = fit_temperature(z, y)
    monkeypatch.setattr(probabilities, "_FEW", 200)
    monkeypatch.setattr(probabilities, "_NUMBERS", 850)
    assert fit_temperature(z, y) == pytest.approx(whole, rel=1e-7)
    # A few samples that can be parted, or tell nothing, are only where the search begins.
    right_first = np.argsort(z[np.arange(3000), y] < z.max(1), kind="stable")
    begins = np.arange(3000) % 15 == 0
    order = np.empty(3000, int)
    order[begins], order[~begins] = np.split(right_first, [begins.sum()])
    assert fit_temperature(z[order[begins]], y[order[begins]]) == TEMPERATURES[0]
    assert fit_temperature(z[order], y[order]) == pytest.approx(whole, rel=1e-6)


def test_separable_and_useless_logits_get_the_bounds():
    z = np.eye(4)[[0, 1, 2, 3]] * 3
    assert fit_temperature(z, [0, 1, 2, 3]) == TEMPERATURES[0]
    assert fit_temperature(z * 1e4, [0, 1, 2, 3]) == TEMPERATURES[0]
    assert fit_temperature(z, [1, 2, 3, 0]) == TEMPERATURES[1]
    assert fit_temperature(np.zeros((5, 3)), [0, 1, 2, 0, 1]) in TEMPERATURES  # every temperature is as good
    z, y = drawn(50, sharp=1e6)
    assert fit_temperature(z, y) == TEMPERATURES[1]


def test_the_answer_judges_each_half_with_the_temperature_of_the_other():
    told, y = made(400, scale=30.0)
    answer = answer_to("calibration", told, y, seed=3)
    rows = {(r["metric"], r["score"]): r["value"] for r in answer.rows}
    first, second = np.array_split(np.random.default_rng(3).permutation(400), 2)
    for name, raw in (("softmax", told.logits.astype(np.float64)), ("avc", np.log(told.avc.astype(np.float64)))):
        t = np.ones(400)
        t[first], t[second] = (fit_temperature(raw[half], y[half]) for half in (second, first))
        assert rows["temperature", name] == pytest.approx(np.sqrt(t[first[0]] * t[second[0]]), rel=1e-4)
        for score, z in ((name, raw), (f"{name}+T", raw / t[:, None])):
            p = softmax(z)
            sure, right = p.max(1), p.argmax(1) == y
            assert rows["ece", score] == pytest.approx(ece(sure, right), abs=1e-3)
            assert rows["ace", score] == pytest.approx(ece(sure, right, binning="mass"), abs=1e-5)
            assert rows["classwise_ece", score] == pytest.approx(classwise_ece(p, y), abs=1e-3)
            assert rows["nll", score] == pytest.approx(log_loss(y, p), rel=1e-4)
            assert rows["brier", score] == pytest.approx(((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean(), rel=1e-4)
            diagram, bins = [p for p in answer.points if p["score"] == score], reliability(sure, right)
            for axis, values in zip(("x", "y", "low", "high", "n"), bins, strict=True):
                np.testing.assert_allclose([p[axis] for p in diagram], values, rtol=1e-3)
    better = {(r["metric"], r["score"]): r["better"] for r in answer.rows}
    assert (better["ece", "softmax"], better["ece", "avc"], better["accuracy", "softmax"]) == ("lower", "", "higher")
    assert rows["nll", "softmax+T"] < rows["nll", "softmax"]
    assert rows["ece", "softmax+T"] < rows["ece", "softmax"]
    assert rows["ece", "avc+T"] < rows["ece", "avc"]
    assert rows["accuracy", "softmax"] == pytest.approx((told.logits.argmax(1) == y).mean(), abs=1e-12)
    assert rows["accuracy", "avc"] == pytest.approx((told.avc.argmax(1) == y).mean(), abs=1e-12)
    for name, column in answer.samples.items():
        metric, score = name.split(":")
        assert column.mean() == pytest.approx(rows[metric, score], rel=1e-9)
    assert answer_to("calibration", told, y, seed=3).rows == answer.rows
    assert "over 5 classes" in answer.notes[-1].text  # where others lie at right angles the largest AVC is 2 / (C + 1)
    assert float(avc(torch.eye(200)[:1], torch.eye(200), [0])) == pytest.approx(2 / 201)


def test_separable_data_are_said_and_a_class_exactly_opposite_has_a_finite_loss():
    told, y = made(60, noise=0.01)
    answer = answer_to("calibration", told, y)
    assert any(re.match(r"softmax: .*0\.001", note.text) for note in answer.notes)
    assert all(np.isfinite(r["value"]) for r in answer.rows)
    assert next(r for r in answer.rows if (r["metric"], r["score"]) == ("ece", "softmax+T"))["value"] < 1e-6
    told, y = made(60)
    told.avc[0] = [0, 1, 0, 0, 0]
    y[0] = 0
    assert all(np.isfinite(r["value"]) for r in answer_to("calibration", told, y).rows)


def test_half_precision_and_tensors_are_read():
    z, y = drawn(200)
    half = torch.from_numpy(z).half()
    p = half.float().softmax(1)
    confidence, correct = p.amax(1), p.argmax(1) == torch.from_numpy(y)
    assert ece(confidence.half(), correct) == pytest.approx(
        ece(confidence.half().numpy().astype(float), correct.numpy())
    )
    assert fit_temperature(half, y) == pytest.approx(fit_temperature(half.double(), y), rel=1e-5)


def test_bad_input_is_a_sentence():
    told, y = made(10)
    p = told.probabilities.astype(np.float64)
    for call, words in (
        (lambda: ece([0.5, 1.2], [1, 0]), r"confidence .*1\.2 .*row 1"),
        (lambda: ece([0.5, -0.1], [1, 0]), r"got -0\.1 .*row 1"),
        (lambda: ece([0.5, np.nan], [1, 0]), "nan .*row 1"),
        (lambda: ece([0.5], [1, 0]), "of one length"),
        (lambda: ece([], []), "N ≥ 1"),
        (lambda: ece([0.5], [2]), "^correct must"),
        (lambda: ece([0.5], [1], bins=0), "bins .*got 0"),
        (lambda: ece([0.5], [1], binning="log"), "binning .*'log'"),
        (lambda: classwise_ece(told.logits * 9, y), "^probabilities must"),
        (lambda: classwise_ece(p[:, :1], y), "2 classes"),
        (lambda: classwise_ece(p * np.nan, y), "probabilities hold NaN"),
        (lambda: fit_temperature(told.logits, y + 9), "labels must lie"),
        (lambda: fit_temperature(told.logits * np.inf, y), "logits .*infinity"),
        (lambda: answer_to("calibration", made(1)[0], [0]), "2 samples"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
