"""Aleatoric and epistemic uncertainty from several predictions of every sample: MC dropout, ensembles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from hardsight.correlation import spearman
from hardsight.data import Samples
from hardsight.errors import InputError
from hardsight.models import Model, as_model
from hardsight.predictions import predict
from hardsight.probabilities import check_predictions, uncertainty
from hardsight.questions.answers import Answer
from hardsight.questions.subject import QUESTIONS, Metric, Subject
from hardsight.scores import check_labels
from hardsight.stats import auroc


def dropout_predictions(
    model: Model | nn.Module,
    samples: Samples,
    passes: int = 20,
    *,
    seed: int = 0,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    workers: int | None = None,
) -> np.ndarray:
    """Probabilities ``(T, N, C)`` of several passes with dropout on and all else in eval mode, float32.

    Dropout that is not a layer (a function inside attention, say) stays off, and so does stochastic depth. The
    network's state is restored.

    Args:
        model: The network with its preprocessing; it must have a dropout layer.
        samples: The data set.
        passes: Number of passes, T.
        seed: Seed of the dropout masks.
        batch_size: Samples at a time; what is dropped depends on it.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.

    Examples:
        >>> from hardsight.data import open_data
        >>> net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
        >>> dropout_predictions(net, open_data("digits"), 2, device="cpu").shape
        (2, 1797, 10)
    """
    if passes < 1:
        raise InputError(f"passes must be 1 or more, got {passes}.")
    classifier = as_model(model)
    layers = [m for m in classifier.module.modules() if isinstance(m, _DropoutNd) and m.p > 0]
    if not layers:
        raise InputError(
            "model: it has no dropout layer that drops anything, so every pass would be the same; "
            "train with dropout, or give the probabilities of several networks to uncertainty."
        )
    predictions = []
    with _dropping(layers) as reached, torch.random.fork_rng():
        for number in range(passes):
            torch.manual_seed((seed << 20) + number)
            of_pass = predict(classifier, samples, batch_size=batch_size, device=device, workers=workers)
            predictions.append(of_pass.probabilities)
            if not reached:
                raise InputError("model: its forward reaches none of its dropout layers, so nothing would be dropped.")
    return np.stack(predictions)


@contextmanager
def _dropping(layers: list[_DropoutNd]) -> Iterator[set[int]]:
    """Keep dropout on in each layer's own forward, even in eval mode; yields the layers reached."""
    reached: set[int] = set()
    modes = {layer: layer.training for layer in layers}

    def on(layer: nn.Module, inputs: Any) -> None:
        layer.training = True
        reached.add(id(layer))

    hooks = [layer.register_forward_pre_hook(on) for layer in layers]
    try:
        yield reached
    finally:
        for hook in hooks:
            hook.remove()
        for layer, training in modes.items():
            layer.training = training


def uncertainty_answer(probabilities: Any, avh: Any, labels: Any, source: str) -> Answer:
    """How the parts of the uncertainty correlate with AVH at the label, and how well each detects errors.

    Args:
        probabilities: ``(T, N, C)``: T predictions for N samples.
        avh: ``(N,)``.
        labels: ``(N,)`` class indices.
        source: ``dropout`` or ``ensemble``: the prefix of the score names.
    """
    p = check_predictions(probabilities)
    y = check_labels(labels, p.shape[1], p.shape[2]).numpy()
    hardness = np.asarray(avh, dtype=np.float64)
    parts, wrong = uncertainty(p)._asdict(), p.mean(0, dtype=np.float64).argmax(1) != y
    answer, n = Answer(question="uncertainty"), len(y)
    for part, values in parts.items():
        score = f"{source} {part}"
        answer.number("mean", values.mean(), score=score, n=n)
        value, low, high, _ = spearman(values, hardness)
        answer.number("spearman", value, score=score, low=low, high=high, n=n)
        answer.samples[f"mean:{score}"] = values
    if wrong.all() or not wrong.any():
        always = "never" if wrong.all() else "always"
        answer.note(f"{always} right", f"The mean prediction is {always} right: there is nothing to detect.")
        return answer
    for part, values in {**parts, "avh": hardness}.items():
        area = auroc(values[wrong], values[~wrong])
        ends = {"low": area.low, "high": area.high}
        answer.number("error_auroc", area.value, score=f"{source} {part}", **ends, n=n, better="higher")
    answer.note(
        "AVH at the label",
        "AVH is taken at the label and the other scores are not: it knows the errors that they must detect.",
    )
    return answer


def _prepare(options: Mapping[str, Any], samples: Samples) -> list[dict[str, Any]]:
    if options["dropout"] == 1:
        raise InputError("dropout: one pass has no spread; ask for two or more, 20 say.")
    return [{}]


@QUESTIONS.register(
    "uncertainty",
    title="Uncertainty",
    about="Aleatoric uncertainty (noise in the data) and epistemic uncertainty (what the network has not learned), in "
    "nats, and their relation to hardness and errors.",
    telling=(
        ("spearman", "ensemble epistemic"),
        ("spearman", "dropout epistemic"),
        ("error_auroc", "ensemble total"),
        ("error_auroc", "dropout total"),
    ),
    headline=(("error_auroc", "ensemble total"), ("error_auroc", "dropout total")),
    metrics={
        "mean": Metric("mean, in nats"),
        "spearman": Metric("Spearman's ρ with AVH"),
        "error_auroc": Metric(
            "AUROC of error detection", "%",
            ("uncertainty detects the errors of {group} {how} than of {baseline}", "better", "less well"),
        ),
    },
    needs="dropout",
    prepare=_prepare,
    decided_by=lambda subject, options: subject.batches,
)  # fmt: skip
def ask(subject: Subject, *, dropout: int = 20, seed: int = 0) -> Answer:
    """The uncertainty of MC-dropout passes."""
    passes = dropout_predictions(subject.network, subject.readable, dropout, seed=seed, **subject.forward)
    return uncertainty_answer(passes, subject.avh, subject.labels, "dropout")
