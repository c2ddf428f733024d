"""Losses by name: the catalogue, and the grammar ``OBJECTIVE[@LOGITS][+PAIRS]`` of ``hardsight train --loss``.

Each part is ``name[:value,key=value,flag]``. No torch here: the command reads names before anything is imported. To
add a loss, enter it in `LOSSES` and say in `hardsight.losses.composite` how it is built.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from hardsight.errors import InputError, InputTypeError

Kind = Literal["objective", "logits", "pairs"]


class Number(NamedTuple):
    """An option that is a number: its default, and an interval as it is written, with the ends that belong to it."""

    default: float
    low: float = 0.0
    high: float = math.inf
    ends: str = "[]"
    whole: bool = False


@dataclass(frozen=True)
class LossPart:
    """What the catalogue knows of a part of a loss.

    Attributes:
        kind: What it is: an objective of logits, the logits themselves, or a term of pairs.
        name: As the command takes it.
        summary: What it does.
        reference: Where it is defined.
        options: Name → a number, a flag (False) or words of which the first is the default. A value without a name is
            the first option's.
        words: Values of several options under one name.
        smoothed: Whether the objective takes label smoothing.
        indices: Whether it needs one class a sample, and not a distribution as mixup makes it.
    """

    kind: Kind
    name: str
    summary: str
    reference: str
    options: Mapping[str, Number | tuple[str, ...] | bool] = field(default_factory=dict)
    words: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    smoothed: bool = False
    indices: bool = False

    @property
    def defaults(self) -> dict[str, Any]:
        """Every option with its default."""
        return {name: (option if isinstance(option, bool) else option[0]) for name, option in self.options.items()}


# What objectives that take class weights have in common.
_WEIGHTED: dict[str, Any] = {
    "weight": ("none", "effective"),
    "beta": Number(0.9999, 0, 1),
    "drw": Number(0, whole=True),
}
_PAIRS: dict[str, Any] = {"pairs": ("halves", "classes", "all"), "labels": ("predicted", "true"), "down": False}
_SCALE, _FACE_SCALE = Number(16.0, ends="()"), Number(30.0, ends="()")
_EL = "EL (AAAI 2022)"

LOSSES = {
    part.name: part
    for part in (
        LossPart("objective", "ce", "cross-entropy", "torch.nn.CrossEntropyLoss", _WEIGHTED, smoothed=True),
        LossPart(
            "objective",
            "el",
            "Encouraging Loss: cross-entropy with a bonus that rewards what is already right",
            f"{_EL} Eq. 4–7",
            {
                "log_end": Number(0.75, 0, 1),
                "start": Number(0.0, 0, 1, "[)"),
                "rho": Number(1.0),
                "bonus": ("log", "power", "cosine"),
                "defer": Number(0, whole=True),
                "match": False,
                "released": False,
                **_WEIGHTED,
            },
            {  # the paper's bonuses end where its §4.1 clamps 1 − p; the exact one has no end
                "normal": {"log_end": 1.0, "start": 0.0, "released": True},
                "aggressive": {"log_end": 1.0, "start": 0.5, "released": True},
                "exact": {"log_end": 1.0, "released": False},
            },
            smoothed=True,
        ),
        LossPart(
            "objective",
            "focal",
            "focal loss, which turns away from what is already right",
            "Lin et al. (ICCV 2017)",
            {"gamma": Number(2.0), **_WEIGHTED},
            smoothed=True,
        ),
        LossPart(
            "objective",
            "mirror",
            "squared error of probabilities with a mirror bonus, which is twice the absolute error − 1",
            f"{_EL} Table 5",
            {"activation": ("softmax", "sigmoid")},
        ),
        LossPart(
            "objective",
            "mse",
            "squared error of probabilities",
            f"{_EL} Table 5",
            {"activation": ("softmax", "sigmoid")},
        ),
        LossPart(
            "logits",
            "angular",
            "s·(π − θ): with cross-entropy the AVH loss",
            "AVH (ICML 2020) Eq. 5, with its logarithm",
            {"scale": _SCALE, "learn": False},
        ),
        LossPart(
            "logits",
            "cosine",
            "s·cos θ",
            "NormFace (Wang et al., 2017)",
            {"scale": _SCALE, "learn": False},
        ),
        LossPart(
            "logits",
            "cosface",
            "s·cos θ with a margin off the target's cosine",
            "CosFace, AM-Softmax (2018)",
            {"margin": Number(0.35), "scale": _FACE_SCALE},
            indices=True,
        ),
        LossPart(
            "logits",
            "arcface",
            "s·cos θ with a margin on the target's angle, in radians",
            "ArcFace (Deng et al., 2019)",
            {"margin": Number(0.5, 0, math.pi / 2), "scale": _FACE_SCALE},
            indices=True,
        ),
        LossPart(
            "logits",
            "sphereface",
            "s·cos θ with the target's angle multiplied",
            "SphereFace (Liu et al., 2017)",
            {"margin": Number(4, 1, whole=True), "scale": _FACE_SCALE},
            indices=True,
        ),
        LossPart(
            "logits",
            "ldam",
            "cosface with margins ∝ n^(−¼) for n samples of a class, the largest as told",
            "LDAM (Cao et al., 2019)",
            {"largest": Number(0.5, ends="()"), "scale": _FACE_SCALE},
            indices=True,
        ),
        LossPart(
            "logits",
            "adjusted",
            "logits + τ·log of the class's share of the training data",
            "Menon et al. (ICLR 2021)",
            {"tau": Number(1.0)},
        ),
        LossPart(
            "pairs",
            "amc",
            "angular margin contrastive: neighbours' angles fall, others' rise to the margin",
            "AMC-Loss (CVPRW 2020) Eq. 2, 3",
            {"weight": Number(0.05), "margin": Number(0.5, 0, math.pi, "(]"), **_PAIRS},
            {"paper": {"weight": 0.05}, "released": {"weight": 10.0}},
        ),
        LossPart(
            "pairs",
            "euclid",
            "the same with distances",
            "AMC-Loss (CVPRW 2020) §3.1",
            {"weight": Number(0.05), "margin": Number(1.0, ends="()"), **_PAIRS},
            {"paper": {"weight": 0.05}},
        ),
        LossPart(
            "pairs",
            "center",
            "distance to the moving centre of the class",
            "Wen et al. (ECCV 2016)",
            {"weight": Number(0.003), "rate": Number(0.5, 0, 1, "(]"), "down": False},
            indices=True,
        ),
    )
}
_SHORT = {"avh": "angular"}  # another name
_ONLY_IN_PYTHON = ("spherical", "taylor")
_FORM = "OBJECTIVE[@LOGITS][+PAIRS]"
_SIGNS: dict[Kind, str] = {"objective": "", "logits": "@", "pairs": "+"}


@dataclass(frozen=True)
class Chosen:
    """A part of a loss with all of its options."""

    part: LossPart
    options: dict[str, Any]

    def __str__(self) -> str:
        """What is no default, and always a number that comes first: it says most."""
        first, defaults = next(iter(self.options)), self.part.defaults
        numbered = isinstance(self.part.options[first], Number)
        left = {k: v for k, v in self.options.items() if v != defaults[k] or (k == first and numbered)}
        said = []
        for word, meaning in self.part.words.items():
            if all(self.options[name] == value for name, value in meaning.items()):
                said.append(word)
                left = {name: value for name, value in left.items() if name not in meaning}
                break
        for name, value in left.items():
            text = _in_digits(value)
            said.append(name if value is True else text if name == first else f"{name}={text}")
        return f"{self.part.name}:{','.join(said)}" if said else self.part.name


@dataclass(frozen=True)
class LossName:
    """A loss by name: an objective of logits, plus a term of pairs.

    Attributes:
        objective: What is minimised, a function of logits.
        logits: What the logits are made of; None: the network's own.
        pairs: The term of pairs, if any.
    """

    objective: Chosen
    logits: Chosen | None = None
    pairs: Chosen | None = None

    def __str__(self) -> str:
        return "".join(f"{_SIGNS[chosen.part.kind]}{chosen}" for chosen in self.parts)

    @property
    def parts(self) -> list[Chosen]:
        return [chosen for chosen in (self.objective, self.logits, self.pairs) if chosen is not None]

    @property
    def endless(self) -> bool:
        """Whether the objective falls for ever: the normal bonus without the paper's clamp."""
        told = self.objective.options
        return told.get("log_end") == 1 and told["bonus"] == "log" and told["rho"] > 0 and not told["released"]

    @property
    def clamped(self) -> bool:
        """Whether 1 − p counts as 1e-5 at least, which ends the bonus."""
        return bool(self.objective.options.get("released"))

    def needing_indices(self) -> list[str]:
        """Names of parts that need one class a sample."""
        return [c.part.name for c in self.parts if c.part.indices or c.options.get("labels") == "true"]

    def latest(self) -> int:
        """After how many epochs the last deferred thing begins."""
        return int(max(self.objective.options.get(name, 0) for name in ("defer", "drw")))


def parse_loss(text: str) -> LossName:
    """The loss that a name says; its `str` is the canonical name.

    Examples:
        >>> str(parse_loss("avh")), str(parse_loss("amc")), str(parse_loss("el:1"))
        ('ce@angular:16', 'ce+amc:paper', 'el:exact')
        >>> parse_loss("el:0.5,defer=25@arcface:0.3").logits.options
        {'margin': 0.3, 'scale': 30.0}
    """
    if not isinstance(text, str):
        raise InputTypeError(f"loss must be a name here, such as 'el:0.75', got a {type(text).__name__}.")
    first, *rest = re.split(r"([@+])(?=\s*[a-z])", text.lower())  # and not in 1e+3
    found: dict[str, Chosen] = {}
    for sign, piece in [("", first), *zip(rest[::2], rest[1::2], strict=True)]:
        chosen = _parse_part(piece)
        kind, name = chosen.part.kind, chosen.part.name
        if sign and _SIGNS[kind] != sign:
            place = f"after {_SIGNS[kind]}" if _SIGNS[kind] else "first"
            raise InputError(f"loss must be {_FORM}, got {text!r}; {name} goes {place}.")
        if kind in found:
            raise InputError(f"loss: one part of a kind, got {found[kind].part.name} and {name} in {text!r}.")
        found[kind] = chosen
    # Short forms: arcface is ce@arcface, amc is ce+amc.
    return LossName(found.get("objective") or _parse_part("ce"), found.get("logits"), found.get("pairs"))


def forms(kind: Kind) -> str:
    """How parts of a kind are written, in one line: what stands in brackets may be left out.

    Examples:
        >>> forms("pairs")
        'amc[:weight|paper|released], euclid[:weight|paper], center[:weight]'
    """
    said = []
    for part in LOSSES.values():
        if part.kind == kind:
            first, option = next(iter(part.options.items()))
            values = [first] if isinstance(option, Number) else option[1:] if isinstance(option, tuple) else []
            said.append(f"{part.name}[:{'|'.join([*values, *part.words])}]")
    return ", ".join(said)


def _parse_part(text: str) -> Chosen:
    name, colon, rest = (piece.strip() for piece in text.partition(":"))
    part = LOSSES.get(_SHORT.get(name, name))
    if part is None:
        if not name:
            raise InputError(f"loss must be {_FORM}, each NAME[:VALUE,KEY=VALUE,FLAG], and a name is missing.")
        if name in _ONLY_IN_PYTHON:
            raise InputError(
                f"loss: {name} logits are for loops of one's own (hardsight.{name}_logits): the network's prediction "
                "would need them too."
            )
        raise InputError(f"loss: there is no {name!r}; {_near(name, [*LOSSES, *_SHORT])}")
    told: dict[str, Any] = {}
    for i, item in enumerate(rest.split(",") if colon else ()):
        for option, value in _parse_item(part, item.strip(), first=i == 0).items():
            if told.get(option, value) != value:
                raise InputError(f"loss: {name} is told its {option} twice, in {text!r}.")
            told[option] = value
    if told.keys() & {"beta", "drw"}:  # of the weights
        told["weight"] = "effective"
    return Chosen(part, {**part.defaults, **told})


def _parse_item(part: LossPart, item: str, first: bool) -> Mapping[str, Any]:
    """The options that one of the things between commas sets."""
    key, equals, text = (piece.strip() for piece in item.partition("="))
    if not equals:
        if item in part.words:
            return part.words[item]
        if part.options.get(item) is False:
            return {item: True}
        if not first:
            raise InputError(f"loss: {part.name} does not know {item!r}; {_near(item, _known(part))}")
        key, text = next(iter(part.options)), item
    option = part.options.get(key)
    if option is None or isinstance(option, bool):
        hint = _near(key, _known(part)) if option is None else f"write {key} alone."
        raise InputError(f"loss: {part.name} does not know {item!r}; {hint}")
    return {key: _value(f"{part.name}'s {key}", option, text, part.words if not equals else {})}


def _value(what: str, option: Number | tuple[str, ...], text: str, words: Mapping[str, Any]) -> Any:
    if not isinstance(option, Number):
        if text not in option:
            raise InputError(f"loss: {what} must be {' or '.join(option)}, got {text!r}.")
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    low, high = option.low, option.high
    inside = low <= value <= high and math.isfinite(value) and not (option.whole and value % 1)
    if not inside or (value == low and option.ends[0] == "(") or (value == high and option.ends[1] == ")"):
        kind = "an integer" if option.whole else "a number"
        end = f"{high:.5g}{option.ends[1]}" if math.isfinite(high) else "∞)"
        also = f", or {' or '.join(words)}" if words else ""
        raise InputError(f"loss: {what} must be {kind} in {option.ends[0]}{low:g}, {end}{also}, got {text!r}.")
    return int(value) if option.whole else value


def _known(part: LossPart) -> list[str]:
    return [*part.options, *part.words]


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 2, 0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}."


def _in_digits(value: Any) -> str:
    """A number as short as it can be read back."""
    return value if isinstance(value, str) else f"{value:g}" if float(f"{value:g}") == value else repr(value)
