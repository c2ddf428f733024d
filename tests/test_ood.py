"""Out-of-distribution scores and measures: against naive loops, scikit-learn, scipy, pytorch-ood and torchmetrics."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_predictions import made, ood_answer, strangers
from pytorch_ood.metrics import OODMetrics
from scipy import stats
from scipy.special import logsumexp
from sklearn.covariance import EmpiricalCovariance
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from sklearn.neighbors import NearestNeighbors
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from hardsight.questions import DETECTORS, Training, detection, ood_scores
from hardsight.stats import auroc

LOGIT = ("max_logit", "free_energy", "msp")


def test_the_detectors_are_those_of_the_papers_and_higher_is_more_inside():
    assert [name for name, detector in DETECTORS.items() if detector.needs == "logits"] == list(LOGIT)
    inside, _ = made(400, noise=0.5)
    outside, training = strangers(400), training_of(*made(300, noise=0.5, seed=7))
    own, other = (ood_scores(t.logits, t.features, t.weight, bias=t.bias, training=training) for t in (inside, outside))
    assert set(own) == set(DETECTORS) > {"max_logit", "avc", "norm", "mahalanobis", "knn", "vim"}
    for name, detector in DETECTORS.items():
        assert all(len(text) > 10 for text in (detector.summary, detector.reference))
        assert detection(own[name], other[name]).auroc > (0.55 if name == "norm" else 0.7), name


def training_of(predictions, labels):
    return Training(predictions.features, predictions.logits, labels)


def test_detectors_fitted_on_training_features_are_those_of_other_libraries():
    (inside, _), (known, labels) = made(50, width=12), made(400, width=12, seed=3)
    labels = np.where(labels == 4, 3, labels)  # a class without training samples
    known.features[:, 5] = inside.features[:, 5] = 0  # a feature that is never active
    scores = ood_scores(
        inside.logits, inside.features, inside.weight, ["norm", "mahalanobis", "knn", "vim"], bias=inside.bias,
        training=training_of(known, labels),
    )  # fmt: skip
    x, train = inside.features.astype(float), known.features.astype(float)
    np.testing.assert_allclose(scores["norm"], np.linalg.norm(x, axis=1), rtol=1e-6)
    means = np.stack([train[labels == k].mean(0) for k in range(4)])
    precision = EmpiricalCovariance(assume_centered=True).fit(train - means[labels]).precision_
    distances = [[(row - mean) @ precision @ (row - mean) for mean in means] for row in x]
    np.testing.assert_allclose(scores["mahalanobis"], -np.min(distances, axis=1), rtol=1e-6)
    neighbors = NearestNeighbors(n_neighbors=50).fit(train / np.linalg.norm(train, axis=1, keepdims=True))
    nearest = neighbors.kneighbors(x / np.linalg.norm(x, axis=1, keepdims=True))[0]
    np.testing.assert_allclose(scores["knn"], -nearest[:, -1], rtol=1e-6)
    w, b = inside.weight.astype(float), inside.bias.astype(float)
    origin = -np.linalg.pinv(w) @ b
    _, _, axes = np.linalg.svd(train - origin)
    scale = known.logits.max(1).mean() / np.linalg.norm((train - origin) @ axes[6:].T, axis=1).mean()
    virtual = scale * np.linalg.norm((x - origin) @ axes[6:].T, axis=1)
    np.testing.assert_allclose(scores["vim"], logsumexp(inside.logits, axis=1) - virtual, rtol=1e-5)


def test_mahalanobis_ignores_directions_in_which_no_training_feature_varies():
    (inside, _), (training, labels) = made(30, width=6), made(200, width=6, seed=3)
    training.features[:, 5] = training.features[:, 4]  # a copy in training, and not later
    x, train = inside.features.astype(float), training.features.astype(float)
    scores = ood_scores(
        inside.logits, x, inside.weight, ["mahalanobis"], training=Training(train, training.logits, labels)
    )
    means = np.stack([train[labels == k].mean(0) for k in range(5)])
    precision = EmpiricalCovariance(assume_centered=True).fit(train - means[labels]).precision_  # a pseudo-inverse
    distances = [[(row - mean) @ precision @ (row - mean) for mean in means] for row in x]
    np.testing.assert_allclose(scores["mahalanobis"], -np.min(distances, axis=1), rtol=1e-6)


def test_knn_of_few_training_samples_takes_the_farthest():
    (inside, _), (training, labels) = made(10), made(20, seed=3)
    scores = ood_scores(inside.logits, inside.features, inside.weight, ["knn"], training=training_of(training, labels))
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (inside.features, training.features)]
    farthest = np.linalg.norm(units[0][:, None] - units[1], axis=2).max(1)
    np.testing.assert_allclose(scores["knn"], -farthest, rtol=1e-5)


@pytest.mark.parametrize(("width", "kept"), [(8, 4), (767, 383), (768, 512), (2048, 1000)])
def test_vim_keeps_as_many_directions_as_its_paper(width, kept):
    draw = np.random.default_rng(0)
    lengths = np.linspace(2, 1, width)  # along the axes: the first ones are the principal subspace
    x, weight, logits = draw.normal(size=(5, width)), draw.normal(size=(3, width)), draw.normal(size=(width, 3))
    scores = ood_scores(logits[:5], x, weight, ["vim"], training=Training(np.diag(lengths), logits, np.arange(width)))
    scale = logits.max(1).mean() / (lengths[kept:].sum() / width)
    expected = logsumexp(logits[:5], axis=1) - scale * np.linalg.norm(x[:, kept:], axis=1)
    np.testing.assert_allclose(scores["vim"], expected, rtol=1e-6)


def test_fitted_detectors_agree_with_pytorch_ood():
    library = pytest.importorskip("pytorch_ood.detector")
    (inside, _), (known, labels) = made(40, width=12), made(200, width=12, seed=3)
    features, target = torch.from_numpy(known.features), torch.from_numpy(labels)
    training = training_of(known, labels)
    scores = ood_scores(inside.logits, inside.features, inside.weight, ["mahalanobis", "vim"], bias=inside.bias,
                        training=training)  # fmt: skip
    weight, bias = torch.from_numpy(inside.weight), torch.from_numpy(inside.bias)
    for name, detector in (
        ("mahalanobis", library.Mahalanobis(None)), ("vim", library.ViM(None, d=6, w=weight, b=bias)),
    ):  # fmt: skip
        detector.fit_features(features, target)
        theirs = -detector.predict_features(torch.from_numpy(inside.features)).double().numpy()
        assert stats.spearmanr(theirs, scores[name]).statistic > 0.999, name


@pytest.mark.parametrize("classes", [2, 5, 100])
def test_scores_are_those_of_a_naive_float64_loop(classes):
    told, _ = made(60, classes)
    found = ood_scores(told.logits, told.features, told.weight)
    x, w, z = (values.astype(np.float64) for values in (told.features, told.weight, told.logits))
    for i in range(60):
        angles = [np.arccos(x[i] @ v / np.linalg.norm(x[i]) / np.linalg.norm(v)) for v in w]
        own = int(z[i].argmax())
        p = np.exp(z[i]) / np.exp(z[i]).sum()
        others = [a for k, a in enumerate(angles) if k != own]
        expected = {
            "max_logit": z[i].max(),
            "free_energy": np.log(np.exp(z[i]).sum()),
            "msp": np.log(p.max()),
            "avc": max(np.pi - a for a in angles) / sum(np.pi - a for a in angles),
            "avh": 1 - angles[own] / sum(angles),
            "angular_margin": min(others) - angles[own],
        }
        for name, value in expected.items():
            assert found[name][i] == pytest.approx(value, rel=2e-6, abs=2e-6), name


def test_logits_alone_give_the_three_logit_scores():
    found = ood_scores([[1.0, 2.0, 3.0]])
    assert tuple(found) == LOGIT
    assert all(values.dtype == np.float64 for values in found.values())


def test_scores_of_logits_do_not_tie_where_the_probability_rounds_to_one():
    z = torch.zeros(5, 10)
    z[:, 3] = torch.tensor([20.0, 30.0, 60.0, 200.0, 400.0])
    assert len(set(z.softmax(1).amax(1).tolist())) < 5
    expected = [-np.log1p(9 * np.exp(-gap)) for gap in (20, 30, 60, 200, 400)]
    np.testing.assert_allclose(ood_scores(z)["msp"], expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read_as_what_they_hold(dtype):
    z = torch.randn(40, 6).mul(5).to(dtype)
    for name, values in ood_scores(z).items():
        np.testing.assert_allclose(values, ood_scores(z.double())[name], rtol=2e-6, atol=1e-6)


def test_large_and_equal_logits_are_ordinary():
    found = ood_scores([[1e30, 0.0], [5.0, 5.0]])
    assert found["max_logit"].tolist() == [np.float32(1e30), 5.0]
    np.testing.assert_allclose(found["msp"], [0.0, np.log(0.5)])
    np.testing.assert_allclose(found["free_energy"], [np.float32(1e30), 5 + np.log(2)])


def test_bad_input_is_a_sentence():
    told, _ = made(10)
    z, x, w = told.logits, told.features, told.weight
    spoilt = z.copy()
    spoilt[3, 1] = np.nan
    for call, words in (
        (lambda: ood_scores(z, names=["mps"]), "'mps'; .*msp"),
        (lambda: ood_scores(z, names=["avc"]), "'avc' .*features"),
        (lambda: ood_scores(z, x[:5], w), "10, 5.*5 features"),
        (lambda: ood_scores(z, x, w[:3]), "3 classes"),
        (lambda: ood_scores(spoilt), "1 of 10 .*row 3"),
        (lambda: ood_scores(z[:, :1]), "2 classes"),
        (lambda: ood_scores(z[0]), r"\(N, C\)"),
        (lambda: ood_scores(z[:0]), "a row"),
        (lambda: detection([1.0, np.nan], [0.0]), "inside .*1 of 2 .*: 1"),
        (lambda: detection([1.0], []), "outside must"),
        (lambda: detection([[1.0]], [1.0]), r"inside .*\(N,\)"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


# Scores with many ties.
def draws(seed, n=157, m=83, levels=None):
    draw = np.random.default_rng(seed)
    inside, outside = draw.normal(0.8, 1, n), draw.normal(0, 1, m)
    return (inside, outside) if levels is None else tuple(np.round(x * levels) / levels for x in (inside, outside))


@pytest.mark.parametrize("levels", [None, 4, 1])
@pytest.mark.parametrize("seed", range(3))
def test_the_measures_are_those_of_scikit_learn_torchmetrics_and_pytorch_ood(seed, levels):
    inside, outside = draws(seed, levels=levels)
    found = detection(inside, outside)
    scores, truth = np.concatenate([inside, outside]), np.r_[np.ones(157), np.zeros(83)].astype(int)
    assert found.auroc == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    assert found.aupr_in == pytest.approx(average_precision_score(truth, scores), abs=1e-12)
    assert found.aupr_out == pytest.approx(average_precision_score(1 - truth, -scores), abs=1e-12)
    x, y = torch.from_numpy(scores), torch.from_numpy(truth)
    assert found.auroc == pytest.approx(float(binary_auroc(x.sigmoid(), y)), abs=1e-6)
    assert found.aupr_in == pytest.approx(float(binary_average_precision(x.sigmoid(), y)), abs=1e-5)
    theirs = OODMetrics()
    theirs.update(-x, torch.where(y == 1, 0, -1))
    theirs = theirs.compute()
    assert found.auroc == pytest.approx(theirs["AUROC"], abs=1e-6)
    # They interpolate with trapezes, which lie higher where scores tie.
    assert found.aupr_out == pytest.approx(theirs["AUPR-OUT"], abs=0.01 if levels is None else 0.2)
    let_in, kept, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert found.fpr95 == let_in[kept >= 0.95 - 1e-12].min()
    assert (found.n_in, found.n_out) == (157, 83)


def test_auroc_is_the_mann_whitney_statistic():
    inside, outside = draws(5, levels=3)
    u = stats.mannwhitneyu(inside, outside).statistic
    assert detection(inside, outside).auroc == pytest.approx(u / (157 * 83), abs=1e-12)
    pairs = (inside[:, None] == outside).mean()
    assert detection(inside, outside).tied == pytest.approx(pairs, abs=1e-12)


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=60),
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    st.randoms(),
)
@settings(max_examples=30, deadline=None)
def test_fpr95_is_the_least_of_all_thresholds_and_no_order_matters(inside, outside, chance):
    found = detection(inside, outside)
    every = [
        np.mean(np.array(outside) >= t)
        for t in set(inside) | set(outside)
        if 100 * sum(x >= t for x in inside) >= 95 * len(inside)
    ]
    assert found.fpr95 == min(every)
    chance.shuffle(inside)
    chance.shuffle(outside)
    np.testing.assert_array_equal(detection(inside, outside), found)


def test_exactly_95_percent_of_the_inside_is_enough_for_every_size():
    for n in (20, 40, 60, 100, 140, 1000):
        inside = np.arange(n, dtype=float)
        threshold = n - 0.95 * n  # 5 % lie below
        assert detection(inside, [threshold - 0.5]).fpr95 == 0
        assert detection(inside, [threshold + 0.5]).fpr95 == 1


def test_constant_scores_tell_nothing():
    found = detection(np.ones(30), np.ones(10))
    assert (found.auroc, found.fpr95, found.tied) == (0.5, 1.0, 1.0)
    assert (found.aupr_in, found.aupr_out) == (0.75, 0.25)
    assert found.auroc_low < 0.5 < found.auroc_high
    alone = detection([1.0], [0.0])  # one sample per side has no interval
    assert alone.auroc == 1
    assert np.isnan([alone.auroc_low, alone.auroc_high]).all()


def test_perfect_scores_have_an_interval_that_is_not_a_point():
    found = detection(np.arange(200) + 1000.0, np.arange(20.0))
    assert (found.auroc, found.fpr95) == (1, 0)
    assert (found.aupr_in, found.aupr_out) == pytest.approx((1, 1), abs=1e-12)
    assert 0.8 < found.auroc_low < found.auroc_high == 1
    assert found.fpr95_low == pytest.approx(0, abs=1e-12)
    assert 0.05 < found.fpr95_high < 0.2
    few = detection(np.arange(30) + 100.0, np.arange(20.0))  # there may be none below the true threshold
    assert few.fpr95_high > 0.9
    worst = detection(np.arange(20.0), np.arange(30) + 100.0)
    assert (worst.auroc, worst.fpr95) == (0, 1)


def test_the_variance_of_auroc_is_delongs_by_a_naive_double_loop():
    a, b = draws(3, 40, 25, levels=4)
    wins = np.array([[(x > y) + (x == y) / 2 for y in b] for x in a])
    value = wins.mean()
    error = np.sqrt(wins.mean(1).var(ddof=1) / 40 + wins.mean(0).var(ddof=1) / 25)
    found = auroc(a, b)
    assert found.value == pytest.approx(value, abs=1e-14)
    half = 1.959963984540054 * error / (value * (1 - value))
    ends = [1 / (1 + np.exp(-(np.log(value / (1 - value)) + s * half))) for s in (-1, 1)]
    assert found[1:3] == pytest.approx(ends, abs=1e-12)


def test_delongs_interval_covers_the_truth_as_often_as_it_says():
    draw, truth, hits = np.random.default_rng(0), stats.norm.cdf(1 / np.sqrt(2)), 0
    for _ in range(1000):
        found = auroc(draw.normal(1, 1, 80), draw.normal(0, 1, 60))
        hits += found.low <= truth <= found.high
    assert 0.93 < hits / 1000 < 0.975


def test_the_answer_has_rows_histograms_and_a_curve_for_every_detector():
    (inside, _), outside = made(300, noise=0.6), strangers(200)
    answer = ood_answer(inside, outside, "strangers")
    assert {(r["metric"], r["score"]) for r in answer.rows} == {
        (m, d)
        for m in ("auroc", "aupr_in", "aupr_out", "fpr95")
        for d, of in DETECTORS.items()
        if of.needs != "training"
    }
    assert all(r["on"] == "strangers" and r["n"] == 500 and r["question"] == "ood" for r in answer.rows)
    own, others = (ood_scores(t.logits, t.features, t.weight)["avc"] for t in (inside, outside))
    row = next(r for r in answer.rows if (r["metric"], r["score"]) == ("auroc", "avc"))
    assert row["low"] < row["value"] == detection(own, others).auroc < row["high"]
    for curve, n in (("inside", 300), ("outside", 200)):
        bars = [p for p in answer.points if (p["curve"], p["score"]) == (curve, "avc")]
        assert sum(bar["n"] for bar in bars) == n
        assert sum(bar["y"] for bar in bars) == pytest.approx(1)
    roc = [(p["x"], p["y"]) for p in answer.points if (p["curve"], p["score"]) == ("roc", "avc")]
    assert len(roc) <= 200
    assert roc[0] == (0, 0)
    assert roc[-1] == (1, 1)
    assert np.trapezoid([y for _, y in roc], [x for x, _ in roc]) == pytest.approx(row["value"], abs=0.01)


def test_constant_and_tied_scores_are_said_by_name():
    inside, _ = made(50)
    flat = replace(inside, logits=np.ones_like(inside.logits))
    words = " ".join(note.text for note in ood_answer(flat, flat, "noise", ["max_logit"]).notes)
    assert re.search("max_logit .*same .*noise", words)
    nearly = flat.logits.copy()
    nearly[:, 1:], nearly[::2, 1:] = -35.0, -36.0  # free energies that differ in the last digit
    answer = ood_answer(replace(flat, logits=nearly), flat, "noise", ["free_energy"])
    assert sum(p["n"] for p in answer.points if p["curve"] == "inside") == 50
    rough = replace(inside, logits=inside.logits.round())
    assert "ties: max_logit, noise" in [note.kind for note in ood_answer(rough, rough, "noise", ["max_logit"]).notes]
    assert not ood_answer(inside, strangers(), "noise", ["avc"]).notes
