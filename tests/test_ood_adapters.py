"""pytorch-ood and OpenOOD: our scores there, and their detectors here, against their own measures."""

import importlib
import sys
import types

import numpy as np
import pytest
import torch
from pytorch_ood.api import Detector
from pytorch_ood.detector import KNN, ODIN, EnergyBased, Mahalanobis, MaxLogit, MaxSoftmax
from pytorch_ood.metrics import OODMetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hardsight.data import ArraySamples, load_digits
from hardsight.integrations import ood
from hardsight.integrations.ood import HeadDetector, detect
from hardsight.predictions import predict
from hardsight.questions import DETECTORS, detection, ood_scores

IMAGES, LABELS = load_digits()
NOISE = np.random.default_rng(0).integers(0, 256, (80, 8, 8)).astype(np.uint8)
INSIDE = ArraySamples(IMAGES[:120], LABELS[:120], "test", "digits")
OUTSIDE = ArraySamples(NOISE, None, "test", "noise")
X, STRANGE = (torch.from_numpy(images)[:, None].float() / 255 for images in (IMAGES[:120], NOISE))


@pytest.fixture
def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 10)).eval()


@pytest.mark.parametrize("name", [name for name, of in DETECTORS.items() if of.needs != "training"])
def test_our_scores_are_detectors_there_with_their_sign(net, name):
    detector = HeadDetector(name, net)
    assert isinstance(detector, Detector)
    assert not detector.requires_fit
    assert detector.fit(DataLoader(TensorDataset(X, torch.zeros(120)))) is detector
    assert detector.fit_features(X, torch.zeros(120)) is detector
    with torch.no_grad():
        features = net[:-1](X)
        logits = net[-1](features)
    expected = -ood_scores(logits, features, net[-1].weight, [name])[name]
    np.testing.assert_allclose(detector(X), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(detector.predict_features(features), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(HeadDetector(name, net[-1]).predict_features(features), expected, rtol=1e-5, atol=1e-6)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_the_logit_scores_are_theirs(net):
    with torch.no_grad():
        logits = net(X)
    ours = ood_scores(logits)
    np.testing.assert_allclose(-ours["max_logit"], MaxLogit(None).predict_logits(logits), rtol=1e-6)
    np.testing.assert_allclose(-ours["free_energy"], EnergyBased(None).predict_logits(logits), rtol=1e-5)
    np.testing.assert_allclose(-np.exp(ours["msp"]), MaxSoftmax(None).predict_logits(logits), rtol=1e-5)


def test_their_metrics_take_our_detectors_and_say_the_same(net):
    detector, theirs = HeadDetector("avh", net), OODMetrics()
    theirs.update(detector(X), torch.zeros(120))
    theirs.update(detector(STRANGE), -torch.ones(80))
    ours = detection(-detector(X), -detector(STRANGE))
    assert ours.auroc == pytest.approx(theirs.compute()["AUROC"], abs=1e-6)


@pytest.mark.parametrize(
    ("build", "fit"),
    [
        (lambda net: MaxSoftmax(None), None),  # logits
        (lambda net: KNN(None, k=3), INSIDE),  # features, fitted
        (lambda net: Mahalanobis(None), INSIDE),
        (lambda net: ODIN(net), None),  # inputs, and gradients by them
        (lambda net: HeadDetector("avc", net), None),
    ],
)
def test_any_of_their_detectors_is_judged_as_ours_are(net, build, fit):
    net.train()
    found = detect(build(net), net, INSIDE, OUTSIDE, fit=fit, device="cpu", batch_size=50)
    assert net.training
    assert (found.n_in, found.n_out) == (120, 80)
    net.eval()
    detector = build(net)
    with torch.no_grad():
        if hasattr(detector, "predict_logits"):
            scores = [detector.predict_logits(net(x)) for x in (X, STRANGE)]
        elif hasattr(detector, "predict_features"):
            detector.fit_features(net[:-1](X), torch.from_numpy(LABELS[:120]).long())
            scores = [detector.predict_features(net[:-1](x)) for x in (X, STRANGE)]
    if isinstance(detector, ODIN):
        scores = [detector.predict(x) for x in (X, STRANGE)]
    theirs = OODMetrics()
    for score, label in zip(scores, (0, -1), strict=True):
        theirs.update(score, torch.full((len(score),), label))
    assert found.auroc == pytest.approx(theirs.compute()["AUROC"], abs=1e-3)


def test_a_detector_that_is_not_fitted_and_an_unknown_name_are_sentences(net):
    with pytest.raises(ValueError, match=r"Mahalanobis .*fit="):
        detect(Mahalanobis(None), net, INSIDE, OUTSIDE, device="cpu")
    with pytest.raises(ValueError, match=r"'knn'.* training"):
        HeadDetector("knn", net)
    with pytest.raises(ValueError, match="detector 'knm'"):
        ood.Postprocessor("knm")
    with pytest.raises(ValueError, match="no head found"):
        HeadDetector("avc", nn.ReLU())


# OpenOOD is on no index: a stand-in of the same interface, and its evaluator's calls.
def batches():
    return [{"data": X[i : i + 50], "label": torch.from_numpy(LABELS[i : min(i + 50, 120)])} for i in (0, 50, 100)]


@pytest.mark.parametrize("name", [name for name, of in DETECTORS.items() if of.needs != "training"])
def test_our_scores_are_post_processors(net, name):
    post = ood.Postprocessor(name)
    assert post.setup(net, {}, {}) is None
    assert not post.APS_mode
    predicted, confidence, label = post.inference(net, batches(), False)
    told = predict(net, INSIDE, logits=True, device="cpu")
    np.testing.assert_array_equal(predicted, told.logits.argmax(1))
    expected = ood_scores(told.logits, told.features, told.weight)[name]
    np.testing.assert_allclose(confidence, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(label, LABELS[:120])
    assert predicted.dtype == label.dtype == int


def test_the_post_processor_inherits_from_openood_where_it_is_installed(monkeypatch):
    class Base:
        pass

    package, inner = types.ModuleType("openood"), types.ModuleType("openood.postprocessors")
    package.__spec__ = importlib.machinery.ModuleSpec("openood", None)
    inner.BasePostprocessor = Base
    monkeypatch.setitem(sys.modules, "openood", package)
    monkeypatch.setitem(sys.modules, "openood.postprocessors", inner)
    try:
        assert isinstance(importlib.reload(ood).Postprocessor("avc"), Base)
    finally:
        monkeypatch.undo()
        importlib.reload(ood)
    assert ood.Postprocessor.__mro__[1] is object
