"""Who is who in self-training: source, target, test, and a few labeled target samples; opened, checked, and said."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hardsight.data import Samples, View, all_labels, as_pixels, in_form_of, open_data, places_by_name
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import printable
from hardsight.scoring.checks import check_samples, class_count

# Data sets hold a few pictures twice; more than this share of the test in the target is no accident.
_SHARED = 0.01


@dataclass(frozen=True)
class Role:
    """A data set and what it is for.

    Attributes:
        samples: The data set.
        labels: ``(n,)`` as the source counts its classes; None: unknown.
        words: What it is and what its labels are used for.
    """

    samples: Samples
    labels: np.ndarray | None
    words: str

    def known(self, rows: np.ndarray) -> np.ndarray | None:
        """Labels of some rows, if there are any."""
        return None if self.labels is None else self.labels[rows]

    def counted_as(self, names: list[str] | None) -> Samples:
        """The data set with the labels of its role, which count classes of these names as the network does."""
        return self.samples if self.labels is None else View(self.samples, labels=self.labels, classes=names)


@dataclass(frozen=True)
class Roles:
    """The data sets of self-training; labels of all count classes as the source does."""

    source: Role
    target: Role
    test: Role | None
    labeled: Role | None
    classes: int
    names: list[str] | None

    @property
    def words(self) -> tuple[str, ...]:
        given = (self.source, self.target, self.labeled, self.test)
        return tuple(role.words for role in given if role is not None)

    def renumbered(self, order: np.ndarray | None, names: list[str] | None) -> Roles:
        """The same with labels as a network counts its classes; None: as the source does."""

        def moved(role: Any) -> Any:
            known = role is not None and role.labels is not None
            return replace(role, labels=order[role.labels]) if known and order is not None else role

        return Roles(moved(self.source), moved(self.target), moved(self.test), moved(self.labeled), self.classes, names)


def open_roles(source: Any, target: Any, test: Any = None, labeled: Any = None, *, same_images: bool = False) -> Roles:
    """Open the data sets, and refuse what cannot be adapted.

    Args:
        source: Labeled samples.
        target: Samples whose labels, if any, are for reporting only.
        test: Samples of the target domain for reporting only.
        labeled: A few samples of the target domain whose labels are trained on.
        same_images: Whether `test` may hold pictures of `target`.
    """
    own = _opened(source, "source", training=True)
    labels = all_labels(own, "source")
    classes, names = class_count(own, int(labels.max()) + 1), None if own.classes is None else list(own.classes)
    if classes < 2:
        raise InputError(f"source: it must have two classes or more, got {classes}.")

    def role(data: Any, argument: str, use: str, needed: bool = False, training: bool = True) -> Role:
        samples = _opened(data, argument, training)
        known = all_labels(samples, argument) if needed or samples.declared is not None else samples.labels
        if samples.pixels != own.pixels:
            raise InputError(
                f"{argument}: raw pictures and tensors ready to use cannot be mixed; give it as the source is given."
            )
        known = _as_the_source(samples, known, argument, classes, names)
        use = use if known is not None else "without labels"
        return Role(in_form_of(samples, own), known, f"{argument}: {_counted(samples)}, {use}")

    unseen = role(target, "target", "whose labels are for reporting only")
    few = None if labeled is None else role(labeled, "labeled", "trained on in every round", True)
    if few is not None and (part := _shared(few, unseen)[0]):
        few = replace(few, words=f"{few.words}; {part:.1%} are pictures of the target, too")
    tested = None if test is None else role(test, "test", "for reporting only", training=False)
    true = Role(own, labels, f"source: {_counted(own)}, {classes} classes")
    for name, one in (("source", true), ("labeled", few)):  # of a few labeled ones all may be in a large test
        if tested is not None and one is not None and max(_shared(tested, one)) > _SHARED:
            raise InputError(f"test: it holds pictures of {name}, which are trained on with their labels; give others.")
    if tested is not None and (part := _shared(tested, unseen)[0]):
        if part > _SHARED and not same_images:
            raise InputError(
                f"test: {part:.1%} of its pictures are those of the target, so accuracy on them is no accuracy on new "
                "ones; give others, leave test out, or say that it is meant with same_images (--same-images)."
            )
        tested = replace(tested, words=f"{tested.words}; {part:.1%} are pictures of the target, too")
    return Roles(true, unseen, tested, few, classes, names)


def _counted(samples: Samples) -> str:
    count = f", {len(samples):,} samples"
    return printable(samples.origin).removesuffix(count) + count


def _opened(data: Any, argument: str, training: bool) -> Samples:
    try:
        samples = open_data(data, training=training)
        check_samples(samples, None)
    except (InputError, MissingPathError) as error:
        raise type(error)(f"{argument}: {str(error).removeprefix('DATA: ').replace('DATA is', 'it is')}") from None
    return samples


def _as_the_source(
    samples: Samples, labels: np.ndarray | None, argument: str, classes: int, names: list[str] | None
) -> np.ndarray | None:
    """Labels as the source counts them, None where there are none; or a sentence where the classes are others."""
    if samples.classes is not None and names is not None:
        order = places_by_name(samples.classes, names) if len(samples.classes) == len(names) else None
        if order is None:
            raise InputError(
                f"{argument}: its classes must be those of the source ({_listed(names)}), got "
                f"{_listed(list(samples.classes))}; take out what is not in both, or name them alike."
            )
        if labels is not None and not 0 <= labels.min() <= labels.max() < classes:
            raise InputError(
                f"{argument}: labels must be 0 to {classes - 1}, a number for each of its class names, got "
                f"{int(labels.min())} to {int(labels.max())}; take out samples without a class."
            )
        return None if labels is None else order[labels]
    if labels is None:
        return None
    top = class_count(samples, int(labels.max()) + 1)
    if labels.min() < 0 or top != classes:
        raise InputError(
            f"{argument}: its classes must be those of the source, 0 to {classes - 1}, got {int(labels.min())} to "
            f"{top - 1}; take out what is not in both, or name the classes of both."
        )
    return labels.astype(np.int64)


def _listed(names: list[str]) -> str:
    more = f" … of {len(names)}" if len(names) > 4 else ""
    return ", ".join(printable(name) for name in names[:4]) + more


def _shared(first: Role, second: Role) -> tuple[float, float]:
    """Share of the pictures of the first that are in the second, and of the second that are in the first.

    They are told apart by their pixels, or by the files they are.
    """
    theirs, own = _pictures(second.samples), _pictures(first.samples)
    both = set(theirs) & set(own)
    in_theirs, in_own = (float(np.mean([one in both for one in pictures])) for pictures in (own, theirs))
    return in_theirs, in_own


def _pictures(samples: Samples) -> list[Any]:
    """What tells the pictures of a data set apart."""
    pixels = as_pixels(samples, None, torch.device("cpu"))
    if pixels is not None:
        return [hashlib.sha256(row.tobytes()).digest() for row in pixels.numpy()]
    paths = [path.resolve() for i in range(len(samples)) if (path := samples.path(i)) is not None]
    if paths:
        return paths
    fingerprint = samples.fingerprint()  # which may read the whole data set
    return [(fingerprint, i) for i in range(len(samples))]
