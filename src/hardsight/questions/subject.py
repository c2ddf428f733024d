"""`Subject`: a network with its data, on which questions are asked; and `QUESTIONS`, the registry of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from hardsight.data import Samples, Source, View, all_labels, class_mapping, open_data
from hardsight.devices import find_device, loader_workers
from hardsight.errors import InputError
from hardsight.heads import find_head, uncompiled
from hardsight.models import Model, as_model, network_identity
from hardsight.predictions import Predictions, predict
from hardsight.questions.answers import Answer, Note
from hardsight.registry import Registry
from hardsight.runs import content_hash
from hardsight.scoring.checks import check_label_range


class Opinion(NamedTuple):
    """The predictions of one network of an ensemble."""

    ids: list[str]
    probabilities: np.ndarray
    avh: np.ndarray
    labels: np.ndarray


@dataclass(eq=False)
class Subject:
    """A network to evaluate that has no run folder.

    Attributes:
        name: What to call it; no two may have the same name.
        model: The network with its preprocessing, or a function that builds it when it is needed.
        samples: Labeled data, the same for all: anything `hardsight.open_data` takes.
        group: Networks of one group differ in the seed only; None: a group of its own.
        seed: Groups of the same seeds are compared seed by seed; None: unknown.
        training: Labeled training data, for OOD detectors that are fitted on their features; None: unknown.
    """

    name: str
    model: Model | nn.Module | Callable[[], Model | nn.Module]
    samples: Any
    group: str | None = None
    seed: int | None = None
    training: Any = None
    path: str = field(default="", kw_only=True, repr=False)  # of a run
    head: str | None = field(default=None, kw_only=True, repr=False)  # the layer that a run was scored at
    notes: tuple[Note, ...] = field(default=(), kw_only=True, repr=False)
    forward: dict[str, Any] = field(default_factory=dict, kw_only=True, repr=False)  # device, batch_size, workers
    progress: bool = field(default=False, kw_only=True, repr=False)

    @cached_property
    def network(self) -> Model:
        """The network, built at first use."""
        model = self.model if isinstance(self.model, (Model, nn.Module)) else self.model()
        model = as_model(model)
        return replace(model, module=uncompiled(model.module))

    @cached_property
    def outputs(self) -> int:
        """The number of its classes."""
        head = find_head(self.network.module)
        if self.head not in (None, head.path):
            raise InputError(
                f"{self.name}: it was scored at the layer {self.head!r}, but evaluate uses the last linear layer, "
                f"{head.path!r}; evaluate a network whose head that is."
            )
        return head.classes

    @cached_property
    def identity(self) -> str:
        """A hash of weights, code and preprocessing."""
        model = self.network
        return content_hash(network_identity(model.module).key, model.transform, model.takes)

    @cached_property
    def data(self) -> Samples:
        """The samples, with labels in the network's class order."""
        return self._labeled(open_data(self.samples))

    def _labeled(self, samples: Samples) -> Samples:
        labels = all_labels(samples, "data")
        try:
            mapping = class_mapping(self.network.classes, samples.classes, self.outputs)
            check_label_range(labels, samples.classes if mapping is not None else None, self.outputs)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None
        return View(samples, labels=labels if mapping is None else mapping[labels])

    @property
    def batches(self) -> list[Any]:
        """What random draws made batch by batch depend on."""
        return [self.forward.get("batch_size"), find_device(self.forward.get("device")).type]

    def source(self, model: Model | None = None) -> Source:
        """The labeled data as batches on the device, preprocessed for the network, or for another model."""
        device = find_device(self.forward.get("device"))
        workers = loader_workers(self.forward.get("workers"), device)
        return Source.of(model or self.network, self.data, device, workers, torch.as_tensor(self.data.labels))

    def predict(self, samples: Samples) -> Predictions:
        """Predictions with logits for any data."""
        return predict(self.network, samples, logits=True, **self.forward)

    @cached_property
    def predictions(self) -> Predictions:
        """For the samples that can be read."""
        return self.predict(self.data)

    @cached_property
    def labels(self) -> np.ndarray:
        """Of the samples that can be read, in the order of the predictions."""
        return np.asarray(self.data.labels)[self.predictions.rows]

    @cached_property
    def avh(self) -> np.ndarray:
        """At the label, in the order of the predictions."""
        return -self.predictions.at("avh", self.labels)

    @cached_property
    def opinion(self) -> Opinion:
        """What an ensemble needs from it."""
        return Opinion(self.predictions.ids, self.predictions.probabilities, self.avh, self.labels)

    @cached_property
    def readable(self) -> Samples:
        """The samples that have predictions."""
        rows = self.predictions.rows
        return self.data if len(rows) == len(self.data) else View(self.data, rows)

    @cached_property
    def training_data(self) -> Samples:
        """The training data; an error if they are unknown."""
        if self.training is None:
            raise InputError(
                "detectors: it is unknown what the network was trained on; evaluate a run of hardsight train that "
                "recorded its training samples, or give Subject(…, training=data)."
            )
        return self._labeled(open_data(self.training() if callable(self.training) else self.training))

    @cached_property
    def training_output(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Features, logits and labels of the training data."""
        of = self.predict(self.training_data)
        return of.features, of.logits, np.asarray(self.training_data.labels)[of.rows]


class Metric(NamedTuple):
    """How a metric is shown."""

    title: str = ""  # the metric's name if empty
    unit: str = ""  # % for percentages
    # A sentence on a difference with {group}, {baseline} and {how}, which is the second text or, for worse, the third.
    meaning: tuple[str, str, str] = ("{group} is {how} than {baseline}", "better", "worse")


class CurveKind(NamedTuple):
    """How a curve is drawn.

    Its shape is ``line``; ``bars``: points are centers of bars and the shares in them, drawn as densities; ``bins`` of
    confidence, and ``ranks``: points are means of n samples each.
    """

    title: str
    x: str  # title of the axis
    y: str
    unit: str = ""  # % where y is a percentage
    least: float | None = None  # no value is smaller
    most: float | None = None
    shape: str = "line"
    against: str = ""  # a second curve, of OOD data, drawn beside this one for each group
    diagonal: bool = False  # whether the line x = y is drawn, too
    note: str = ""  # how to read it


@dataclass(frozen=True)
class Question:
    """A question: how it is asked, and how its answer is shown.

    Attributes:
        name: Its name in `QUESTIONS`.
        ask: ``(subject, *, options) → Answer``.
        title: Of its section.
        about: What it asks.
        telling: Its most informative numbers, as pairs of metric and score. None depends on the scale of the logits,
            unless the question is about that scale.
        headline: The first of these pairs that was measured is what its sentence is about, whatever the tests find.
        metrics: How its metrics are shown.
        curves: How its curves are drawn.
        level: What the levels of its rows are called.
        needs: The option of `hardsight.evaluate` that asks it; empty: its name in ``questions``.
        prepare: ``(options, samples)`` → the options of each time it is asked, as dictionaries; it checks them before
            any network is opened.
        decided_by: ``(subject, options)`` → what decides the answer beside the network, its data and the options:
            `Subject.batches` where random draws depend on them, the content of a file that an option names.
        version: Goes up when its numbers change their meaning: stored answers are then computed again.
    """

    name: str
    ask: Callable[..., Answer]
    title: str
    about: str
    telling: tuple[tuple[str, str], ...] = ()
    headline: tuple[tuple[str, str], ...] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    curves: Mapping[str, CurveKind] = field(default_factory=dict)
    level: str = "ε"
    needs: str = ""
    prepare: Callable[[Mapping[str, Any], Samples], list[dict[str, Any]]] = lambda options, samples: [{}]
    decided_by: Callable[[Subject, Mapping[str, Any]], Any] | None = None
    version: int = 1

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Values of the options that `ask` takes: those that are given and not None, else its defaults."""
        parameters = [p for p in inspect.signature(self.ask).parameters.values() if p.kind is p.KEYWORD_ONLY]
        values = {p.name: p.default if given.get(p.name) is None else given[p.name] for p in parameters}
        return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


QUESTIONS: Registry[Question] = Registry("question", Question)
