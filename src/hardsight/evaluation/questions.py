"""What is asked of each network: one job a question, each a function of what the network says of the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hardsight.answers import Answer, Note
from hardsight.data import Samples, View, in_form_of, open_data
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import printable
from hardsight.models import Model
from hardsight.predictions import Predictions, predict
from hardsight.registry import did_you_mean
from hardsight.runs import content_hash
from hardsight.scoring.checks import check_samples

# Questions that need nothing but the network and its data; the others follow from other arguments.
QUESTIONS = ("calibration", "margins", "clusters")
# Samples that are attacked and explained unless told otherwise: some 350 gradients and 40 forwards each.
_ATTACKED, _EXPLAINED = 200, 500


class OtherData(NamedTuple):
    """Data that a network was not made for.

    Attributes:
        name: What rows call them.
        samples: The data.
        formed: In the size and the colours of the network's own data, for networks that take arrays as they are.
        notes: What must be known about them.
    """

    name: str
    samples: Samples
    formed: Samples
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class Options:
    """What is asked, and how it is computed."""

    questions: tuple[str, ...]
    strangers: tuple[OtherData, ...] = ()
    attacks: tuple[str, ...] = ()
    eps: tuple[float, ...] | None = None
    explain: bool = False
    dropout: int = 0
    boxes: Any = None
    limit: int | None = None
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - it cannot be changed
    batch_size: int = 256
    workers: int | None = None
    seed: int = 0
    progress: bool = True

    @property
    def forward(self) -> dict[str, Any]:
        return {"device": self.device, "batch_size": self.batch_size, "workers": self.workers}


@dataclass(frozen=True)
class Seen:
    """A network and its data; what it says of them is computed once, when the first question wants it."""

    model: Model
    samples: Samples
    options: Options

    @cached_property
    def predictions(self) -> Predictions:
        return predict(self.model, self.samples, logits=True, **self.options.forward)

    @cached_property
    def labels(self) -> np.ndarray:
        return np.asarray(self.samples.labels)[self.predictions.rows]

    @cached_property
    def avh(self) -> np.ndarray:
        return -self.predictions.at("avh", self.labels)

    @cached_property
    def readable(self) -> Samples:
        """The samples that the predictions are of."""
        rows = self.predictions.rows
        return self.samples if len(rows) == len(self.samples) else View(self.samples, rows)


class Job(NamedTuple):
    """A question with its options: ``made_of`` is all that decides its answer beside the network and its data."""

    question: str
    made_of: Any
    ask: Callable[[Seen], Answer]


def jobs(options: Options) -> list[Job]:
    """What is asked of each run, in order."""
    found = [Job("samples", None, _samples)]
    found += [Job(name, options.seed, _ASKED[name]) for name in options.questions]
    for one in options.strangers:
        found.append(Job("ood", [one.name, one.samples.identity.key], partial(_ood, strangers=one)))
    drawn_in_batches = [options.batch_size, options.device.type]
    if options.dropout:
        found.append(Job("uncertainty", [options.dropout, options.seed, *drawn_in_batches], _dropout))
    if options.attacks:
        told = [options.attacks, options.eps, options.limit or _ATTACKED, options.seed]
        told += drawn_in_batches if "autoattack" in options.attacks else []
        found.append(Job("robustness", told, _robustness))
    if options.explain:
        told = [options.limit or _EXPLAINED, options.seed, _content(options.boxes)]
        found.append(Job("explanation", told, _explanation))
    return found


def _content(boxes: Any) -> str | None:
    """What changes when the boxes do."""
    if isinstance(boxes, (str, Path)) and Path(boxes).is_file():
        return content_hash(Path(boxes).read_bytes())
    if isinstance(boxes, Mapping):
        return content_hash(*((name, list(column)) for name, column in boxes.items()))
    return None if boxes is None else content_hash(boxes)


# ---------------------------------------------------------------------------------------------------------------------
# The questions.


def _samples(seen: Seen) -> Answer:
    predicted = seen.predictions.probabilities.argmax(1)
    return Answer(samples={"label": seen.labels, "pred": predicted, "avh": seen.avh})


def _calibration(seen: Seen) -> Answer:
    from hardsight.calibration import calibration_answer

    return calibration_answer(seen.predictions, seen.labels, seed=seen.options.seed)


def _margins(seen: Seen) -> Answer:
    from hardsight.margins import margins_answer

    return margins_answer(seen.predictions, seen.labels)


def _clusters(seen: Seen) -> Answer:
    from hardsight.clusters import clusters_answer

    return clusters_answer(seen.predictions, seen.labels, seen.options.seed)


_ASKED: dict[str, Callable[[Seen], Answer]] = {"calibration": _calibration, "margins": _margins, "clusters": _clusters}


def _ood(seen: Seen, strangers: OtherData) -> Answer:
    from hardsight.ood import ood_answer

    # Preprocessing of its own brings pictures of any size to what the network takes.
    others = strangers.formed if seen.model.transform is None else strangers.samples
    outside = predict(seen.model, others, logits=True, **seen.options.forward)
    return ood_answer(seen.predictions, outside, strangers.name)


def _dropout(seen: Seen) -> Answer:
    from hardsight.uncertainty import dropout_predictions, uncertainty_answer

    options = seen.options
    passes = dropout_predictions(
        seen.model, seen.readable, passes=options.dropout, seed=options.seed, **options.forward
    )
    return said_by("dropout", uncertainty_answer(passes, seen.avh, seen.labels))


def _robustness(seen: Seen) -> Answer:
    from hardsight.robustness import robustness_answer

    options = seen.options
    return robustness_answer(
        seen.model,
        seen.readable,
        attacks=options.attacks,
        eps=options.eps,
        limit=options.limit or _ATTACKED,
        hardness=seen.avh,
        seed=options.seed,
        progress=options.progress,
        **options.forward,
    )


def _explanation(seen: Seen) -> Answer:
    from hardsight.explanation import explanation_answer

    options = seen.options
    return explanation_answer(
        seen.model, seen.samples, seen.predictions, limit=options.limit or _EXPLAINED, seed=options.seed,
        boxes=options.boxes, **options.forward,
    )  # fmt: skip


def said_by(whose: str, answer: Answer) -> Answer:
    """An answer of several forwards, whose rows and curves say so: dropout, or an ensemble."""
    rows = [_renamed(row, whose) for row in answer.rows]
    points = [_renamed(point, whose) for point in answer.points]
    return replace(answer, rows=rows, points=points, samples={_said(n, whose): v for n, v in answer.samples.items()})


def _renamed(told: Any, whose: str) -> Any:
    return {**told, "score": f"{whose} {told['score']}".strip()}


def _said(column: str, whose: str) -> str:
    metric, _, rest = column.partition(":")
    return f"{metric}:{whose} {rest}".strip()


# ---------------------------------------------------------------------------------------------------------------------
# What is checked before the first forward.


def check_asked(
    questions: Sequence[str],
    attacks: Sequence[str],
    eps: Sequence[float] | None,
    dropout: int,
    limit: int | None,
    batch_size: int,
) -> None:
    """Refuse what cannot be asked."""
    for name in questions:
        if name not in QUESTIONS:
            raise InputError(
                f"there is no question {name!r}; {did_you_mean(name, QUESTIONS)} What else is asked follows from ood, "
                "attacks, explain and dropout."
            )
    if attacks:
        from hardsight.robustness.attacks import ATTACKS, check_eps

        for norm in {ATTACKS[name].norm for name in attacks}:
            for value in eps or ():
                check_eps(value, norm)
        if eps is not None and not any(eps):
            raise InputError(f"eps must hold a distance above 0, got {', '.join(map(str, eps)) or 'none'}.")
    elif eps is not None:
        raise InputError("eps is the strength of attacks, and there are none; name some: attacks=('fgsm', 'pgd').")
    counts = ("dropout", dropout, 0), ("limit", 1 if limit is None else limit, 1), ("batch_size", batch_size, 1)
    for name, number, least in counts:
        if int(number) != number or number < least:
            raise InputError(f"{name} must be an integer {least} or more, got {number!r}.")
    if dropout == 1:
        raise InputError("dropout: one pass has no spread; ask for two or more, 20 say.")


def open_ood(ood: Sequence[Any], own: Samples) -> tuple[OtherData, ...]:
    """The out-of-distribution data sets in the form of a run's own data, or a sentence.

    Args:
        ood: What `hardsight.open_data` takes, or ``(name, data)``.
        own: The runs' own data.
    """
    found: list[OtherData] = []
    for data in ood:
        name, data = data if isinstance(data, tuple) else (None, data)
        try:
            samples = open_data(data)
            check_samples(samples, None)
            name = name or (Path(data).name if isinstance(data, (str, Path)) else samples.origin)
            strangers = _formed(printable(name), samples, own)
        except (InputError, MissingPathError) as error:
            raise type(error)(f"ood: {str(error).removeprefix('DATA: ')}") from None
        if strangers.name in [one.name for one in found]:
            raise InputError(f"ood: {strangers.name!r} is there twice; give each data set a name: (name, data).")
        found.append(strangers)
    return tuple(found)


def _formed(name: str, samples: Samples, own: Samples) -> OtherData:
    if samples.pixels != own.pixels:
        raise InputError(
            f"{name}: raw pictures and tensors ready to use cannot be mixed; give it as the run's own data are given."
        )
    notes: list[Note] = []
    shapes = [_shape(one) for one in (samples, own)]
    formed = in_form_of(samples, own)  # a sentence of its own where that cannot be
    if formed is not samples:
        size, wanted = (" × ".join(map(str, shape or ())) for shape in shapes)
        text = (
            f"{name}: its pictures are {size} and were brought to {wanted}, as the run's own are: a network may tell "
            "the scaling, not what is in them. Better give pictures of that size."
        )
        notes.append(Note(f"resized: {name}", text, "warn"))
    elif None not in shapes and shapes[0] != shapes[1]:
        raise InputError(
            f"{name}: its samples are {shapes[0]} and the run's own are {shapes[1]}; give samples of that shape."
        )
    if samples.fingerprint() == own.fingerprint() or _same(samples.tensor(), own.tensor()):
        text = f"{name}: these are the run's own data, so nothing is out of distribution; give others."
        notes.append(Note(f"same data: {name}", text, "warn"))
        warnings.warn(f"ood: {text}", UserWarning, stacklevel=4)
    return OtherData(name, samples, formed, tuple(notes))


def _shape(samples: Samples) -> tuple[int, ...] | None:
    """The shape of a sample that is a tensor or an array; None of a picture that the preprocessing will resize."""
    values = samples.tensor()
    if values is not None:
        return tuple(values.shape[1:])
    first = samples.first()
    return tuple(first.shape) if isinstance(first, Tensor) else None


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and bool(torch.equal(a, b))
