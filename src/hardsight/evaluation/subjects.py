"""Run folders as subjects: their networks and data, rebuilt from the metadata of the runs."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.data import Samples, View, all_labels, data_of, open_data
from hardsight.errors import HardsightError, InputError, MissingPathError, StateError
from hardsight.extras import printable
from hardsight.models import Model, load_model
from hardsight.printing import percent
from hardsight.questions import Note, Subject
from hardsight.runs import Folds, Meta, is_run, read_run
from hardsight.scoring.checks import check_samples
from hardsight.stores import local_path
from hardsight.table import SampleTable
from hardsight.training.checkpoint import HISTORY, PLAN, RECORDS, trained_model, training_plan
from hardsight.untrusted import read_json

# Names that stand for a library's own network. A run may come from somebody else: no file of Python is run, and
# nothing that anybody may upload (``hf:``) is fetched, because a run folder names it.
_LIBRARIES = ("timm:", "torchvision:", "hardsight:")


def open_subjects(
    runs: Sequence[Any], names: Sequence[str] | None = None, data: Any = None
) -> tuple[list[Subject], Samples]:
    """Subjects with names and groups that tell them apart, and the labeled data that they share; no network is built.

    Arguments are those of `hardsight.evaluate`.
    """
    if not runs:
        raise InputError("runs must hold at least one run folder, got none.")
    if names is not None and (len(names) != len(runs) or not all(str(name).strip() for name in names)):
        raise InputError(
            f"names must be one per run, none of them empty and equal ones for a group: expected {len(runs)}, got "
            f"{len(names)} ({', '.join(map(printable, names))})."
        )
    opened: dict[str, Samples] = {}
    subjects = [replace(run) if isinstance(run, Subject) else subject_of(local_path(run), data, opened) for run in runs]
    first = subjects[0]
    for subject in subjects:
        source = str(subject.samples) if isinstance(subject.samples, (str, Path)) else f"object {id(subject.samples)}"
        if source not in opened:
            opened[source] = open_data(subject.samples)
        subject.samples = opened[source]
        check_samples(subject.samples, None)
        if subject.samples.fingerprint() != first.samples.fingerprint():
            raise InputError(
                f"runs must be over the same data to be compared: {subject.name} is over "
                f"{printable(subject.samples.origin)}, {first.name} over {printable(first.samples.origin)}; evaluate "
                "them one by one."
            )
    labels = all_labels(first.samples, "data")
    if len(np.unique(labels)) < 2:
        raise InputError(
            f"data must have two classes or more, but all {len(labels):,} samples of {first.samples.origin} are of one."
        )
    counts = Counter(subject.name for subject in subjects)
    unique = [subject.path if counts[subject.name] > 1 and subject.path else subject.name for subject in subjects]
    if repeated := [name for name, count in Counter(unique).items() if count > 1]:
        raise InputError(f"names of runs must differ, but {printable(repeated[0])!r} repeats; leave one out.")
    groups = [str(name).strip() for name in names] if names is not None else _groups(subjects, unique)
    for subject, name, group in zip(subjects, unique, groups, strict=True):
        subject.name, subject.group = name, group
    samples = first.samples
    return subjects, samples if samples.labels is not None else View(samples, labels=labels, classes=samples.classes)


def subject_of(
    run: Path,
    data: Any = None,
    opened: dict[str, Samples] | None = None,
    *,
    model: str | None = None,
    checkpoint: Path | None = None,
) -> Subject:
    """A run folder (for a training, the whole or its ``test`` or ``train``) as a subject, whose network is built later.

    `data` says where the data are, `model` and `checkpoint` what to build, if the run does not; `opened` holds the data
    of other runs by their source.
    """
    folder, meta = folder_of(run)
    training, opened = training_of(folder), {} if opened is None else opened
    source = json.dumps([meta.source, meta.data.split], sort_keys=True)

    def build() -> Model:
        built = network_of(folder, meta, model, checkpoint)
        built.module.eval()
        return built if built.classes is not None or not meta.class_names else replace(built, classes=meta.class_names)

    def subject(**of: Any) -> Subject:
        if source not in opened:
            opened[source] = data_of(meta, data)
        head = meta.model.head if model is None else None
        return Subject((training or folder).resolve().name, build, opened[source], path=str(run), head=head, **of)

    if training is None:
        if meta.unfinished:
            raise StateError(f"RUN: {run} is not finished; run the same command again to resume it, then evaluate it.")
        return subject()
    recipe = training_plan(training)["recipe"]
    done = len(read_json(training / HISTORY, list[dict[str, Any]])) if (training / HISTORY).is_file() else 0
    if done < recipe["epochs"]:
        raise StateError(
            f"RUN: {run} is not finished ({done} of {recipe['epochs']} epochs); run the same training again to resume "
            "it, then evaluate it."
        )
    text = "It is evaluated on the samples that it was trained on; train with --test to evaluate it on new samples."
    notes = (Note("training samples", text, "warn"),) if folder.name == "train" else ()
    records = training / "train"
    known = (lambda: data_of(read_run(records, partial=True, kinds=())[1])) if is_run(records) else None
    return subject(seed=recipe["seed"], training=known, notes=notes)


def warn_of_another_network(run: Path, samples: pa.Table) -> None:
    """A warning if the predictions differ from those in the run, which then used another network."""
    folder, stored = folder_of(run)[0], None
    with suppress(HardsightError):  # a run without rows has nothing to compare with
        stored = SampleTable.load(folder, partial=True).to_arrow()
    if stored is not None and "pred" in stored.column_names:
        at = pc.index_in(samples["id"], value_set=stored["id"].combine_chunks())
        same = pc.mean(pc.equal(samples["pred"], stored["pred"].take(at)).cast("double")).as_py()
        if same is None or same < 0.95:
            share = "none of them is in the run" if same is None else f"{percent(same, 0)} of them the same"
            text = f"RUN: {folder} predicts its samples differently ({share}): is it the same network, preprocessing "
            warnings.warn(f"{text}and data?", UserWarning, stacklevel=2)


def folder_of(run: Path) -> tuple[Path, Meta]:
    """The folder that holds the rows of a run, and its metadata; for a training, those of its test samples."""
    folder = run
    if (run / PLAN).is_file():
        folder = next((run / name for name in reversed(RECORDS) if is_run(run / name)), run)
        if folder == run:
            raise MissingPathError(f"RUN: {run} was trained without records; name what to evaluate: {run}/test.")
    return folder, read_run(folder, partial=True, kinds=())[1]


def training_of(folder: Path) -> Path | None:
    """The training whose records a folder holds, or None."""
    return folder.parent if folder.name in RECORDS and (folder.parent / PLAN).is_file() else None


def network_of(folder: Path, meta: Meta, model: str | None = None, checkpoint: Path | None = None) -> Model:
    """The network of a run: from its training, from the arguments, or from the library that the run names."""
    training = training_of(folder)
    if training is not None:
        return trained_model(training, model, checkpoint)
    if model is not None:
        return load_model(model, checkpoint)
    name, built = meta.model.name or "a network", meta.built
    if meta.nets or isinstance(meta.out_of_sample, Folds):
        raise InputError(f"RUN: {folder} was made with several networks ({name}); name the one to try with --model.")
    network = built.get("model") or ""
    if not network.startswith(_LIBRARIES):
        raise InputError(
            f"RUN: {folder} was made with {name!r}, which cannot be rebuilt from that name alone; give the network "
            "with --model (and --checkpoint), as for scoring."
        )
    return load_model(network, checkpoint or built.get("checkpoint"))


def _setting(subject: Subject) -> tuple[str, str, str] | None:
    """What the trainings of a group share, the plan without its seed, and the names of network and loss."""
    training = training_of(folder_of(Path(subject.path))[0]) if subject.path else None
    if training is None:
        return None
    plan = training_plan(training)
    shared = {**plan, "recipe": {name: value for name, value in plan["recipe"].items() if name != "seed"}}
    return json.dumps(shared, sort_keys=True), plan["model"]["name"], str(plan["loss"])


def _groups(subjects: Sequence[Subject], names: Sequence[str]) -> list[str]:
    """The name of each run's group: the setting of trainings, or the name of a run that stands alone."""
    settings = [_setting(subject) for subject in subjects]
    several = [setting for setting, count in Counter(settings).items() if setting is not None and count > 1]
    short = len({network for _, network, _ in several}) == 1  # the loss alone tells them apart
    labels = {setting: setting[2] if short else f"{setting[1]} {setting[2]}" for setting in several}
    repeated = Counter(labels.values())
    for setting, label in labels.items():
        if repeated[label] > 1:  # they differ in something else: the first run names them
            labels[setting] = f"{label} ({names[settings.index(setting)]})"
    return [
        subject.group or (labels.get(setting, name) if setting else name)
        for subject, setting, name in zip(subjects, settings, names, strict=True)
    ]
