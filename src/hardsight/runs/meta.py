"""What a run says about itself: ``meta.json``, and ``plan.json`` while it is unfinished, as a typed `Meta`.

A run may be damaged, or come from somebody else. The types are checked once, when the file is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypedDict

from hardsight.errors import InputError, StateError
from hardsight.scores import MOST_CLASSES
from hardsight.stores import as_path
from hardsight.untrusted import read_json, typed

FORMAT = 1
FORMAT_KEY = "hardsight_format"  # marks plan.json and meta.json as ours
PLAN_FILE, META_FILE = "plan.json", "meta.json"


@dataclass
class ModelInfo:
    """The network of a run: its name, the size and place of its head, the hash of its weights."""

    name: str | None = None
    classes: int | None = None
    features: int | None = None
    head: str | None = None
    fingerprint: str | None = None
    function: str | None = None


@dataclass
class DataInfo:
    """The data of a run: where they come from, their hash, and what their ids begin with."""

    origin: str | None = None
    fingerprint: str | None = None
    split: str | None = None


class Source(TypedDict, total=False):
    """What opens the data again."""

    data: str
    table: str  # a file of features or probabilities
    root: str | None
    columns: dict[str, str | None] | None


@dataclass
class Counts:
    """Samples that were scored, that could not be, and whose feature is zero."""

    rows: int = 0
    bad: int = 0
    zero_features: int | None = None


@dataclass
class Recorded:
    """What a recorder counted."""

    samples: int = 0
    epochs: list[int] = field(default_factory=list)
    repeated: int = 0
    unlabelled: int = 0
    bad: int = 0
    refused: int = 0


@dataclass
class Folds:
    """How a run was scored out of sample: ``retrained`` says what was trained on the other folds, head or model."""

    folds: int = 0
    seeds: int | None = None
    retrained: str | None = None
    seed: int | None = None


@dataclass
class Meta:
    """How a table was made; every entry may be missing. The reference of the run folder explains each of them.

    Attributes:
        comparison: What `compare` says about two tables.
        label_errors: What `label_errors` says about the suspects.
        planted: The true class of each label that was changed on purpose, by id.
        unfinished: Whether rows are missing; not stored.
        already_complete: Whether nothing was left to do; not stored.
        extra: Entries that are none of these: the rest of the plan, and those of other versions of hardsight.
    """

    model: ModelInfo = field(default_factory=ModelInfo)
    models: list[str] = field(default_factory=list)
    nets: list[dict[str, Any]] = field(default_factory=list)
    data: DataInfo = field(default_factory=DataInfo)
    source: Source = field(default_factory=Source)
    built: dict[str, str | None] = field(default_factory=dict)
    class_names: list[str] = field(default_factory=list)
    label_mapping: list[int] | None = None
    counts: Counts | None = None
    out_of_sample: Folds | str | bool | None = None
    recorded: Recorded | None = None
    accuracy: float | None = None
    accuracies: list[float | None] = field(default_factory=list)
    seconds: float | None = None
    resumed: int | None = None
    warnings: list[str] = field(default_factory=list)
    unit: str | None = None
    note: str | None = None
    weights: str | None = None
    preprocessing: str | list[str] | None = None
    bias: bool | None = None
    command: list[str] | str | None = None
    versions: dict[str, str] | str | None = None
    created: str | None = None
    python: str | None = None
    device: str | None = None
    seed: Any = None
    comparison: dict[str, Any] = field(default_factory=dict)
    label_errors: dict[str, Any] = field(default_factory=dict)
    planted: dict[str, int] = field(default_factory=dict)
    unfinished: bool = False
    already_complete: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The entries of a JSON object; those of other versions are kept in `extra`.

        Raises:
            InputError: An entry is of another type, or out of range.
        """
        entries = {name: entry for name, entry in content.items() if entry is not None and name != FORMAT_KEY}
        extra = {name: entries.pop(name) for name in [*entries] if name not in _STORED}
        meta = replace(typed(entries, cls), extra=extra)
        classes, features = meta.model.classes or 0, meta.model.features or 0
        most = max(classes, len(meta.class_names)) or MOST_CLASSES
        if not 0 <= classes <= MOST_CLASSES or features < 0:
            raise InputError(f"it names {classes:,} classes (expected {MOST_CLASSES:,} at most) or {features} features")
        if any(not -1 <= place < most for place in meta.label_mapping or ()):
            raise InputError("its label_mapping names classes beyond the model's")
        return meta

    def to_json(self) -> dict[str, Any]:
        """The content of ``meta.json``: every entry that is set."""
        entries = asdict(self, dict_factory=lambda items: {name: entry for name, entry in items if entry is not None})
        stored = {name: entry for name, entry in entries.items() if name in _STORED and entry != {}}
        return {**self.extra, **stored, FORMAT_KEY: FORMAT}


_STORED = {f.name for f in fields(Meta)} - {"unfinished", "already_complete", "extra"}


def read_meta(path: Path) -> Meta:
    """What ``meta.json`` or ``plan.json`` says."""
    content = read_json(path, dict[str, Any])
    version = content.get(FORMAT_KEY)
    if isinstance(version, int) and version > FORMAT:
        raise StateError(
            f"RUN: {path.parent} was written by a newer hardsight (format {version}, this one reads {FORMAT}); upgrade "
            "hardsight."
        )
    try:
        return Meta.from_json(content)
    except InputError as error:
        raise StateError(f"RUN: {path} is damaged: {error}.") from None


def meta_of(run: str | Path) -> Meta:
    """What the ``meta.json`` of a run says; empty if it has none yet."""
    file = as_path(run) / META_FILE
    return read_meta(file) if file.is_file() else Meta()
