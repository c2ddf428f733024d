"""Predictions of a network that is only a last layer: features around the classes' directions, and what follows."""

from types import SimpleNamespace

import numpy as np

from hardsight.predictions import Predictions
from hardsight.questions import QUESTIONS, OODData


def answer_to(question, predictions, labels, **options):
    """The answer to a question that looks at nothing but predictions and labels."""
    return QUESTIONS[question].ask(SimpleNamespace(predictions=predictions, labels=labels), **options)


def ood_answer(inside, outside, name, detectors=None, training=None):
    """The answer to the question of OOD data, from predictions for both sets."""
    network = SimpleNamespace(transform=None)
    subject = SimpleNamespace(
        predictions=inside, network=network, predict=lambda data: outside, training_output=training
    )
    given = {} if detectors is None else {"detectors": detectors}
    return QUESTIONS["ood"].ask(subject, ood=OODData(name, None, None), **given)


def made(n=300, classes=5, width=16, noise=1.0, seed=0, scale=3.0, signal=1.0):
    """Predictions and labels; `noise` decides how many are right."""
    draw = np.random.default_rng(seed)
    weight = np.random.default_rng(99).normal(size=(classes, width))
    labels = draw.integers(0, classes, n)
    features = signal * weight[labels] + noise * draw.normal(size=(n, width))
    bias = np.linspace(-0.3, 0.3, classes)
    logits = scale * (features @ weight.T) / width + bias
    p = np.exp(logits - logits.max(1, keepdims=True))
    cosines = features @ weight.T / np.outer(np.linalg.norm(features, axis=1), np.linalg.norm(weight, axis=1))
    left = np.pi - np.arccos(cosines)
    told = {
        "probabilities": p / p.sum(1, keepdims=True),
        "avc": left / left.sum(1, keepdims=True),
        "features": features,
        "norms": np.linalg.norm(features, axis=1),
        "weight": weight * scale / width,
        "bias": bias,
        "logits": logits,
    }
    told = {name: values.astype(np.float32) for name, values in told.items()}
    return Predictions([f"test:{i}" for i in range(n)], np.arange(n), **told), labels


def strangers(n=200, seed=1):
    """Predictions of the same network for features that belong to no class."""
    return made(n, seed=seed, signal=0.0)[0]
