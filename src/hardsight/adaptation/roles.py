"""The data sets of self-training: source, target, test, and a few labeled target samples; opened and checked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hardsight.data import Samples, View, all_labels, as_pixels, in_form_of, open_data, places_by_name
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import printable
from hardsight.printing import percent
from hardsight.scoring.checks import check_samples, class_count

# Data sets contain a few duplicates; a larger share of the test set in the target is no accident.
_SHARED = 0.01


@dataclass(frozen=True)
class Roles:
    """The data sets, their labels (where they have any) numbered as in the source, and a note on each."""

    source: Samples
    target: Samples
    test: Samples | None
    labeled: Samples | None
    classes: int
    names: list[str] | None
    notes: tuple[str, ...]

    def renumbered(self, order: np.ndarray | None, names: list[str] | None) -> Roles:
        """The same with labels in a network's class order; None: in the source's."""
        data: dict[str, Any] = {role: getattr(self, role) for role in ("source", "target", "test", "labeled")}
        for role, samples in data.items():
            if samples is not None and samples.labels is not None:
                labels = samples.labels if order is None else order[samples.labels]
                data[role] = View(samples, labels=labels, classes=names)
        return replace(self, **data, names=names)


def open_roles(source: Any, target: Any, test: Any = None, labeled: Any = None, *, same_images: bool = False) -> Roles:
    """Open the data sets and refuse what cannot be adapted; `same_images` allows images of the target in the test."""
    first = _open(source, "source", training=True)
    labels = all_labels(first, "source")
    classes, names = class_count(first, int(labels.max()) + 1), None if first.classes is None else list(first.classes)
    if classes < 2:
        raise InputError(f"source: it must have two classes or more, got {classes}.")
    first = View(first, labels=labels, classes=names)
    notes = {"source": f"source: {_described(first)}, {classes} classes"}

    def role(data: Any, argument: str, use: str, needed: bool = False, training: bool = True) -> Samples:
        samples = _open(data, argument, training)
        if samples.pixels != first.pixels:
            raise InputError(f"{argument}: raw images and ready tensors cannot be mixed; use the form of the source.")
        labels = all_labels(samples, argument) if needed or samples.declared is not None else samples.labels
        order = _class_order(samples, labels, argument, classes, names)
        notes[argument] = f"{argument}: {_described(samples)}, {'without labels' if labels is None else use}"
        formed = in_form_of(samples, first)
        return formed if labels is None else View(formed, labels=order[labels], classes=names)

    unlabeled = role(target, "target", "whose labels are for reporting only")
    few = None if labeled is None else role(labeled, "labeled", "trained on in every round", True)
    tested = None if test is None else role(test, "test", "for reporting only", training=False)
    for name, other in (("source", first), ("labeled", few)):  # all of a few labeled ones may be in a large test set
        if tested is not None and other is not None and max(_shared(tested, other)) > _SHARED:
            raise InputError(f"test: it holds images of {name}, which are trained on with their labels; use others.")
    for name, samples in (("labeled", few), ("test", tested)):
        if samples is not None and (share := _shared(samples, unlabeled)[0]):
            if name == "test" and share > _SHARED and not same_images:
                what = f"{percent(share)} of its images are those of the target"
                raise InputError(f"test: {what}; use others, or allow it with same_images (--same-images).")
            notes[name] += f"; {percent(share)} of its images are in the target, too"
    return Roles(first, unlabeled, tested, few, classes, names, tuple(notes.values()))


def _described(samples: Samples) -> str:
    count = f", {len(samples):,} samples"
    return printable(samples.origin).removesuffix(count) + count


def _open(data: Any, argument: str, training: bool) -> Samples:
    try:
        samples = open_data(data, training=training)
        check_samples(samples)
    except (InputError, MissingPathError) as error:
        raise type(error)(f"{argument}: {str(error).removeprefix('DATA: ').replace('DATA is', 'it is')}") from None
    return samples


def _class_order(samples: Samples, labels: Any, argument: str, classes: int, names: list[str] | None) -> np.ndarray:
    """The source's number of each class: by name where both have names."""

    def listed(names: Any) -> str:
        return ", ".join(map(printable, names[:4])) + (f" … of {len(names)}" if len(names) > 4 else "")

    order: np.ndarray | None = np.arange(classes)
    if samples.classes is not None and names is not None:
        order = places_by_name(samples.classes, names) if len(samples.classes) == len(names) else None
    if order is None:
        got = f"got {listed(samples.classes)}; remove or rename the others"
        raise InputError(f"{argument}: its classes must be those of the source ({listed(names)}), {got}.")
    top = classes if labels is None else max(class_count(samples, 0), int(labels.max()) + 1)
    if top != classes or (labels is not None and labels.min() < 0):
        got = f"got {int(labels.min())} to {top - 1}; remove other classes, or name the classes of both"
        raise InputError(f"{argument}: labels must be 0 to {classes - 1}, as in the source, {got}.")
    return order


def _shared(first: Samples, second: Samples) -> tuple[float, float]:
    """Share of the images of the first that are in the second, and of the second in the first."""
    keys = [_image_keys(samples) for samples in (first, second)]
    both = set(keys[0]) & set(keys[1])
    in_second, in_first = (float(np.mean([key in both for key in images])) for images in keys)
    return in_second, in_first


def _image_keys(samples: Samples) -> list[Any]:
    """What identifies the images of a data set: their pixels, or their files."""
    pixels = as_pixels(samples, None, torch.device("cpu"))
    if pixels is not None:
        return [hashlib.sha256(row.tobytes()).digest() for row in pixels.numpy()]
    paths = [path.resolve() for i in range(len(samples)) if (path := samples.path(i)) is not None]
    fingerprint = "" if paths else samples.fingerprint()  # which may read the whole data set
    return paths or [(fingerprint, i) for i in range(len(samples))]
