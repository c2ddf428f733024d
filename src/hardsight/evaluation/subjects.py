"""Who is evaluated: runs and networks by name and group, over the same data; checked before anything is computed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from hardsight.answers import Note
from hardsight.data import Samples, View, all_labels, class_mapping, data_of, open_data
from hardsight.errors import InputError, StateError
from hardsight.evaluation.rebuilding import folder_of, network_of, training_of
from hardsight.extras import printable
from hardsight.heads import find_head, uncompiled
from hardsight.models import Model, as_model, network_identity
from hardsight.runs import content_hash
from hardsight.scoring.checks import check_label_range, check_samples
from hardsight.training.checkpoint import HISTORY, training_plan
from hardsight.untrusted import read_json


@dataclass(frozen=True)
class Subject:
    """A network to evaluate, for whoever has networks and no runs.

    Attributes:
        name: What to call it; each its own.
        model: The network with its preprocessing.
        samples: Labeled data, the same for all: anything `hardsight.open_data` takes.
        group: Networks of one group differ in the seed only; None: a group of its own.
        seed: Groups of the same seeds are compared seed by seed; None: unknown.
    """

    name: str
    model: Model | nn.Module
    samples: Any
    group: str | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Case:
    """A network that has passed every check, and can be opened.

    Attributes:
        name: Of the run.
        group: Of its setting.
        seed: Or None.
        network: Fingerprint of weights, code and preprocessing.
        outputs: Its classes.
        labels: ``(N,)`` of all samples, as it counts its classes.
        opened: Builds it.
        notes: What must be known about it.
        told: What else the plan says of it.
    """

    name: str
    group: str
    seed: int | None
    network: str
    outputs: int
    labels: np.ndarray
    opened: Callable[[], Model]
    notes: tuple[Note, ...]
    told: dict[str, Any]

    def counted(self, samples: Samples) -> Samples:
        """The data with labels as the network counts its classes."""
        return View(samples, labels=self.labels)


def open_cases(runs: Sequence[Any], names: Sequence[str] | None = None, data: Any = None) -> tuple[list[Case], Samples]:
    """Every network, and the data that they share; or a sentence.

    Networks are built to look at them and let go of: many need not fit into memory together.

    Args:
        runs: Run folders of ``hardsight score`` or ``train``, or subjects.
        names: The group of each; None: trainings that differ in the seed only form a group.
        data: The data of the runs, where they are not what `hardsight.data.data_of` opens because a run names it.
    """
    runs = list(runs)
    if not runs:
        raise InputError("runs must hold a run folder or more, got none.")
    if names is not None and len(names) != len(runs):
        raise InputError(
            f"names must be one a run, equal ones for a group: expected {len(runs)}, got {len(names)} "
            f"({', '.join(map(printable, names))})."
        )
    if names is not None and not all(str(name).strip() for name in names):
        raise InputError("names must not be empty; give each run the name of its group.")
    drafts = [_from_subject(run) if isinstance(run, Subject) else _from_run(Path(run), data) for run in runs]
    known: dict[str, Samples] = {}
    for draft in drafts:
        if draft.source not in known:
            known[draft.source] = _checked_data(draft)
    first, data = drafts[0], known[drafts[0].source]
    prints = {source: samples.fingerprint() for source, samples in known.items()}
    for draft in drafts:
        if prints[draft.source] != prints[first.source]:
            raise InputError(
                f"runs must be over the same data to be compared: {draft.name} is over "
                f"{printable(known[draft.source].origin)}, {first.name} over {printable(data.origin)}; evaluate them "
                "one by one."
            )
    labels = _labels(data)
    cases = [_case(draft, data, labels) for draft in drafts]
    for place, case in enumerate(cases):
        if case.outputs != cases[0].outputs:
            raise InputError(
                f"runs must tell the same classes apart to be compared: {case.name} has {case.outputs} outputs, "
                f"{cases[0].name} has {cases[0].outputs}; evaluate them one by one."
            )
        for other in cases[:place]:
            if other.network == case.network:
                raise InputError(
                    f"runs must be different networks: {case.name} is the same as {other.name}, and one network is "
                    "not two; leave one out."
                )
    return _named(cases, drafts, names), data


@dataclass(frozen=True)
class _Draft:
    """What is known of a run before its network is built."""

    name: str
    path: str
    group: str | None
    seed: int | None
    source: str
    samples: Callable[[], Samples]
    opened: Callable[[], Model]
    head: str | None = None
    setting: str | None = None
    label: tuple[str, str] = ("", "")
    notes: tuple[Note, ...] = ()


def _from_subject(subject: Subject) -> _Draft:
    samples = subject.samples
    return _Draft(
        name=str(subject.name),
        path="",
        group=subject.group,
        seed=subject.seed,
        source=str(samples) if isinstance(samples, (str, Path)) else f"object {id(samples)}",
        samples=lambda: open_data(samples),
        opened=lambda: as_model(subject.model),
    )


def _from_run(run: Path, data: Any = None) -> _Draft:
    folder, meta = folder_of(run)
    training = training_of(folder)
    if training is None and meta.unfinished:
        raise StateError(f"RUN: {run} is not finished; run the same command again to resume it, then evaluate it.")
    names = meta.class_names or None

    def opened() -> Model:
        model = network_of(folder, meta)
        model.module.eval()
        return model if model.classes is not None or names is None else replace(model, classes=list(names))

    draft = _Draft(
        name=(training or folder).resolve().name,
        path=str(run),
        group=None,
        seed=None,
        source=json.dumps([meta.source, meta.data.split], sort_keys=True),
        samples=lambda: data_of(meta, data),
        opened=opened,
        head=meta.model.head,
    )
    if training is None:
        return draft
    plan = training_plan(training)
    recipe, done = plan["recipe"], _epochs(training)
    if done < recipe["epochs"]:
        raise StateError(
            f"RUN: {run} is not finished ({done} of {recipe['epochs']} epochs); run the same training again to resume "
            "it, then evaluate it."
        )
    setting = {**plan, "recipe": {name: value for name, value in recipe.items() if name != "seed"}}
    notes = ()
    if folder.name == "train":
        text = "It is evaluated on the samples that it was trained on; train with --test to see what is new to it."
        notes = (Note("training samples", text, "warn"),)
    return replace(
        draft,
        seed=recipe["seed"],
        setting=json.dumps(setting, sort_keys=True),
        label=(plan["model"]["name"], str(plan["loss"])),
        notes=notes,
    )


def _epochs(training: Path) -> int:
    """Epochs that a training has behind it."""
    return len(read_json(training / HISTORY, list[dict[str, Any]])) if (training / HISTORY).is_file() else 0


def _checked_data(draft: _Draft) -> Samples:
    samples = draft.samples()
    check_samples(samples, None)
    return samples


def _labels(samples: Samples) -> np.ndarray:
    """Every label of data that have two classes or more."""
    labels = all_labels(samples, "data")
    if len(np.unique(labels)) < 2:
        raise InputError(
            f"data must be of two classes or more, and all {len(labels):,} samples of {samples.origin} are of one."
        )
    return labels


def _case(draft: _Draft, samples: Samples, labels: np.ndarray) -> Case:
    model = draft.opened()
    network = uncompiled(model.module)
    head = find_head(network)
    outputs = head.classes
    if draft.head not in (None, head.path):
        raise InputError(
            f"{draft.name}: it was scored at the layer {draft.head!r}, and evaluating looks at the last linear one, "
            f"{head.path!r}; evaluate a network whose head that is."
        )
    try:
        mapping = class_mapping(model.classes, samples.classes, outputs)
        check_label_range(labels, samples.classes if mapping is not None else None, outputs)
    except InputError as error:
        raise InputError(f"{draft.name}: {error}") from None
    notes = draft.notes
    if network.training:
        text = "It was in train mode; it is evaluated in eval mode, and left as it was."
        notes += (Note("train mode", text, "warn"),)
    return Case(
        name=draft.name,
        group=draft.group or draft.name,
        seed=draft.seed,
        network=content_hash(network_identity(network).key, model.transform, model.takes),
        outputs=outputs,
        labels=labels if mapping is None else mapping[labels],
        opened=draft.opened,
        notes=notes,
        told={"path": draft.path, "model": model.name, "weights": model.weights, "preprocessing": model.preprocessing},
    )


def _named(cases: list[Case], drafts: list[_Draft], names: Sequence[str] | None) -> list[Case]:
    """The cases with names that tell them apart, and with their groups."""
    counts = Counter(case.name for case in cases)
    own = [draft.path if counts[draft.name] > 1 and draft.path else draft.name for draft in drafts]
    if twice := [name for name, count in Counter(own).items() if count > 1]:
        raise InputError(f"names of subjects must differ, but {printable(twice[0])!r} repeats.")
    groups = [str(name).strip() for name in names] if names is not None else _groups(drafts, own)
    return [replace(case, name=name, group=group) for case, name, group in zip(cases, own, groups, strict=True)]


def _groups(drafts: list[_Draft], own: list[str]) -> list[str]:
    """Trainings of one setting by what they are; whatever stands alone by its own name."""
    sizes = Counter(draft.setting for draft in drafts)
    several = {draft.setting: draft.label for draft in drafts if draft.setting and sizes[draft.setting] > 1}
    short = len({network for network, _ in several.values()}) == 1  # the loss alone tells them apart
    words = {setting: loss if short else f"{network} {loss}" for setting, (network, loss) in several.items()}
    repeated = Counter(words.values())
    groups = []
    for draft, name in zip(drafts, own, strict=True):
        label = words.get(draft.setting or "")
        if label is not None and repeated[label] > 1:  # they differ in something else: the first run names them
            label = f"{label} ({next(n for d, n in zip(drafts, own, strict=True) if d.setting == draft.setting)})"
        groups.append(draft.group or label or name)
    return groups
