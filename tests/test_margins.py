"""Margins and energies: against naive float64 loops, scipy and the registered scores."""

import numpy as np
import pytest
import torch
from made_predictions import answer_to, made
from scipy import stats

from hardsight.predictions import Predictions
from hardsight.questions.margins import energy_by_class, logit_margin
from hardsight.scores import SCORES


def naive_margin(z, y, mask):
    return np.array(
        [row[k] - max([*np.delete(row, k), *([] if mask is None else [mask])]) for row, k in zip(z, y, strict=True)]
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 7, 1000])
def test_the_margin_is_that_of_a_naive_loop(dtype, classes):
    draw = np.random.default_rng(0)
    z, y = draw.normal(-1, 2, (50, classes)).astype(dtype), draw.integers(0, classes, 50)
    z64 = z.astype(np.float64)
    np.testing.assert_array_equal(logit_margin(z, y), naive_margin(z64, y, None))
    np.testing.assert_array_equal(logit_margin(z, y, released=True), naive_margin(z64, y, 0.0))


def test_the_margin_is_the_registered_score_and_the_released_one_differs_where_all_others_are_negative():
    z = np.array([[3.0, -1.0, -2.0], [3.0, 1.0, -2.0], [-3.0, -1.0, -2.0]])
    assert logit_margin(z, [0, 0, 0]).tolist() == [4, 2, -2]
    assert logit_margin(z, [0, 0, 0], released=True).tolist() == [3, 2, -3]
    told, y = made(40)
    expected = SCORES["margin"](told.features, told.weight, y, bias=told.bias)
    np.testing.assert_allclose(logit_margin(told.logits, y), expected, rtol=1e-5, atol=1e-5)


def test_energies_are_class_means_the_own_one_first_and_the_others_sorted():
    told, y = made(200, 6)
    found = energy_by_class(torch.from_numpy(told.logits), y)
    for k in range(6):
        mean = -told.logits[y == k].astype(np.float64).mean(0)
        np.testing.assert_allclose(found[k], [mean[k], *sorted(np.delete(mean, k))], rtol=1e-12)


def test_a_class_without_samples_has_no_energy_and_one_class_is_enough():
    found = energy_by_class([[1.0, 2.0, 0.0]], [2])
    assert np.isnan(found[:2]).all()
    assert found[2].tolist() == [0, -2, -1]
    told, y = made(30)
    answer = answer_to("margins", told, np.zeros_like(y))
    assert all(np.isfinite(r["value"]) for r in answer.rows)
    assert {p["score"] for p in answer.points if p["curve"] == "energy"} == {"mean over classes", "class 0"}


def test_energies_of_very_many_classes_do_not_fill_the_memory():
    classes, draw = 100_000, np.random.default_rng(0)  # a table of classes by classes would take 80 GB
    z, y = draw.normal(size=(6, classes)).astype(np.float32), np.array([5, 5, 70_000, 99_999, 0, 0])
    told = Predictions(list("abcdef"), np.arange(6), z, z, z[:, :2], np.ones(6), z[:2].T, None, logits=z)
    curve = [p["y"] for p in answer_to("margins", told, y).points if p["curve"] == "energy"]
    means = [-z[y == k].astype(np.float64).mean(0) for k in np.unique(y)]
    own = np.mean([mean[k] for mean, k in zip(means, np.unique(y), strict=True)])
    others = np.mean([np.sort(np.delete(mean, k)) for mean, k in zip(means, np.unique(y), strict=True)], 0)
    assert curve[0] == pytest.approx(own)
    assert (curve[1], curve[-1]) == pytest.approx((others[round((classes - 1) / 99) - 1], others[-1]))


def test_the_answer_has_means_intervals_and_columns():
    told, y = made(300)
    answer = answer_to("margins", told, y)
    rows = {(r["metric"], r["score"]): r for r in answer.rows}
    angular = -SCORES["angular_margin"](told.features, told.weight, y).double().numpy()
    for score, values in (("logit", logit_margin(told.logits, y)), ("angular", angular)):
        row = rows["margin", score]
        assert row["value"] == pytest.approx(values.mean(), rel=1e-5)
        expected = stats.t.interval(0.95, 299, values.mean(), stats.sem(values))
        assert (row["low"], row["high"]) == pytest.approx(expected, rel=1e-5)
        below = rows["margin_below_zero", score]
        assert below["value"] == (values < 0).mean()
        wilson = stats.binomtest(int((values < 0).sum()), 300).proportion_ci(method="wilson")
        assert (below["low"], below["high"]) == pytest.approx(tuple(wilson), rel=1e-9)
        bars = [p for p in answer.points if (p["curve"], p["score"]) == ("margin", score)]
        assert sum(bar["n"] for bar in bars) == 300
    # Logits may grow without any answer changing: their margin is no better for being larger.
    assert [rows["margin", score]["better"] for score in ("logit", "angular")] == ["", "higher"]
    assert {rows["margin_below_zero", score]["better"] for score in ("logit", "angular")} == {"lower"}
    energy = -told.logits[np.arange(300), y].astype(np.float64)
    assert rows["energy", "target"]["value"] == pytest.approx(energy.mean())
    for name, column in answer.samples.items():
        metric, score = name.split(":")
        assert column.mean() == pytest.approx(rows[metric, score]["value"], rel=1e-12)
    assert rows["margin_below_zero", "logit"]["value"] == pytest.approx((told.logits.argmax(1) != y).mean(), abs=1e-12)


def test_the_energy_curve_is_short_and_the_bias_of_the_released_margin_is_said_where_it_matters():
    told, y = made(100, 500)
    points = [p for p in answer_to("margins", told, y).points if p["curve"] == "energy"]
    assert len(points) == 100
    assert points[0]["y"] == pytest.approx(np.nanmean(energy_by_class(told.logits, y)[:, 0]), rel=1e-6)
    told, y = made(50)
    told.logits[:] -= 100
    words = " ".join(note.text for note in answer_to("margins", told, y).notes)
    assert "negative in 100.0%" in words
    told.logits[:] += 200
    assert not answer_to("margins", told, y).notes


def test_bad_input_is_a_sentence():
    told, y = made(10)
    spoilt = told.logits.copy()
    spoilt[0, 0] = np.inf
    for call, words in (
        (lambda: logit_margin(spoilt, y), "logits .*1 of 10 rows"),
        (lambda: logit_margin(told.logits, y + 5), "labels must lie"),
        (lambda: logit_margin(told.logits, y[:3]), "labels .*shape"),
        (lambda: energy_by_class(told.logits[:, :1], y), "2 classes"),
        (lambda: answer_to("margins", made(5)[0], y), "labels .*shape"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
