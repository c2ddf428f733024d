"""Uncertainty: against naive loops, scipy and closed forms; dropout layers alone drop, and are put back."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import nn

from hardsight.data import ArraySamples
from hardsight.predictions import predict
from hardsight.questions.uncertainty import dropout_predictions, uncertainty, uncertainty_answer


def opinions(t=7, n=40, c=4, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(c, 0.4), (t, n))


def test_the_parts_are_entropies_and_add_up():
    p = opinions()
    found = uncertainty(p)
    total = stats.entropy(p.mean(0), axis=1)
    aleatoric = np.array([np.mean([stats.entropy(p[t, i]) for t in range(7)]) for i in range(40)])
    np.testing.assert_allclose(found.total, total, rtol=1e-12)
    np.testing.assert_allclose(found.aleatoric, aleatoric, rtol=1e-12)
    np.testing.assert_allclose(found.epistemic, total - aleatoric, atol=1e-12)
    kl = np.mean([[stats.entropy(p[t, i], p[:, i].mean(0)) for i in range(40)] for t in range(7)], 0)
    np.testing.assert_allclose(found.epistemic, kl, rtol=1e-9)


def test_closed_forms():
    sure_and_different = np.eye(3)[:, None]
    assert uncertainty(sure_and_different).aleatoric.tolist() == [0]
    np.testing.assert_allclose(uncertainty(sure_and_different).epistemic, np.log(3))
    unsure_and_alike = np.full((5, 2, 8), 1 / 8)
    assert uncertainty(unsure_and_alike).epistemic.tolist() == [0, 0]
    np.testing.assert_allclose(uncertainty(unsure_and_alike).total, np.log(8))
    one = opinions(1)
    assert (uncertainty(one).epistemic == 0).all()
    least = [[[1.0, 5e-324]], [[1.0, 0.0]], [[1.0, 0.0]]]  # whose mean is 0
    assert uncertainty(least).total[0] < 1e-300


@given(st.integers(1, 6), st.integers(2, 50), st.integers(0, 9), st.sampled_from([np.float16, np.float32, np.float64]))
@settings(max_examples=50, deadline=None)
def test_no_part_is_ever_negative_or_above_what_it_can_be(t, c, seed, dtype):
    p = opinions(t, 5, c, seed)
    found = uncertainty(p.astype(dtype))
    for values in found:
        assert (values >= 0).all()
        assert np.isfinite(values).all()
    assert (found.total <= np.log(c) + 0.05).all()
    np.testing.assert_allclose(found.total, uncertainty(p).total, atol=0.05 if dtype == np.float16 else 1e-5)


class Net(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.start = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 16), nn.ReLU())
        self.drop, self.never = nn.Dropout(p), nn.Dropout(0.3)
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        return self.fc(self.drop(self.start(x)))


PIXELS = ArraySamples(np.random.default_rng(0).integers(0, 255, (30, 8, 8)).astype(np.uint8), None, "test", "noise")


def test_only_dropout_drops_and_everything_is_put_back():
    net = Net()
    net.start.eval()
    before = {name: values.clone() for name, values in net.state_dict().items()}
    modes = [m.training for m in net.modules()]
    state = torch.get_rng_state()
    found = dropout_predictions(net, PIXELS, 4, device="cpu")
    assert found.shape == (4, 30, 10)
    np.testing.assert_allclose(found.sum(2), 1, rtol=1e-5)
    assert not np.allclose(found[0], found[1])
    assert [m.training for m in net.modules()] == modes
    assert all(not m._forward_pre_hooks for m in net.modules())
    assert all(torch.equal(values, before[name]) for name, values in net.state_dict().items())  # of the norm, too
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(dropout_predictions(net, PIXELS, 4, device="cpu"), found)
    assert not np.allclose(dropout_predictions(net, PIXELS, 4, seed=1, device="cpu"), found)


def test_passes_average_to_what_dropout_stands_for():
    net = Net(0.2)
    net.fc.weight.data *= 0.1
    plain = predict(net, PIXELS, device="cpu").probabilities
    found = dropout_predictions(net, PIXELS, 60, device="cpu").mean(0)
    np.testing.assert_allclose(found, plain, atol=0.02)


def test_a_model_that_drops_nothing_is_a_sentence():
    for net, words in (
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "no dropout layer"),
        (Net(0.0).requires_grad_(), "reaches none"),  # the other layer is never called
    ):
        with pytest.raises(ValueError, match=words):
            dropout_predictions(net, PIXELS, 2, device="cpu")
    with pytest.raises(ValueError, match=r"passes .*got 0"):
        dropout_predictions(Net(), PIXELS, 0, device="cpu")


def test_the_answer_correlates_with_hardness_and_finds_errors():
    p, draw = opinions(5, 300), np.random.default_rng(1)
    y = np.array([draw.choice(4, p=row) for row in p.mean(0)])
    avh = 1 - p.mean(0)[np.arange(300), y]
    answer = uncertainty_answer(p, avh, y, "dropout")
    rows = {(r["metric"], r["score"].removeprefix("dropout ")): r for r in answer.rows}
    wrong = p.mean(0).argmax(1) != y
    for part, values in uncertainty(p)._asdict().items():
        assert rows["mean", part]["value"] == pytest.approx(values.mean())
        assert rows["spearman", part]["value"] == pytest.approx(stats.spearmanr(values, avh).statistic)
        assert rows["spearman", part]["low"] < rows["spearman", part]["value"] < rows["spearman", part]["high"]
        assert rows["error_auroc", part]["value"] == pytest.approx(roc_auc_score(wrong, values))
    assert rows["error_auroc", "avh"]["value"] == pytest.approx(roc_auc_score(wrong, avh))
    assert rows["error_auroc", "total"]["low"] < rows["error_auroc", "total"]["value"]
    assert any("at the label" in note.text for note in answer.notes)


def test_no_errors_and_constant_hardness_are_said_or_nan():
    p = np.tile(np.eye(3)[None, [0, 1, 2, 0, 1]], (2, 1, 1))
    answer = uncertainty_answer(p, np.ones(5), [0, 1, 2, 0, 1], "dropout")
    assert answer.notes[0].kind == "always right"
    assert all(np.isnan(r["value"]) for r in answer.rows if r["metric"] == "spearman")
    assert uncertainty_answer(p, np.ones(5), [1, 2, 0, 1, 2], "dropout").notes[0].kind == "never right"


def test_bad_input_is_a_sentence():
    p = opinions(2, 3)
    for call, words in (
        (lambda: uncertainty(p[0]), r"\(T, N, C\)"),
        (lambda: uncertainty(p[..., :1]), "two classes"),
        (lambda: uncertainty(p[:0]), r"\(T, N, C\)"),
        (lambda: uncertainty(p * 2), "sum to 1"),
        (lambda: uncertainty(p * np.nan), "NaN"),
        (lambda: uncertainty(-p), "negative"),
        (lambda: uncertainty_answer(p, np.ones(3), [0, 1, 9], "dropout"), "labels must lie"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
