"""What a run says about itself: the shape of ``meta.json`` and ``plan.json``, checked once, when they are read.

A run may be damaged, or come from somebody else. After this check every entry that the package reads is absent or
of the type that the package writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hardsight.errors import StateError
from hardsight.scores import MOST_CLASSES
from hardsight.untrusted import read_json

_TEXT, _INTEGER, _NUMBER, _NAMES = (str, None), (int, None), (float, None), ([str], None)

META: dict[Any, Any] = {
    "hardsight_format": int,
    "model": ({"name": _TEXT, "classes": _INTEGER, "features": _INTEGER, "head": _TEXT, "fingerprint": _TEXT}, None),
    "models": _NAMES,
    "nets": ([{"name": _TEXT}], None),
    "data": ({"origin": _TEXT, "fingerprint": _TEXT, "split": _TEXT}, None),
    "source": ({"data": str, "root": _TEXT, "columns": ({"image": _TEXT, "label": _TEXT, "id": _TEXT}, None)}, None),
    "built": ({"model": _TEXT, "checkpoint": _TEXT}, None),
    "class_names": _NAMES,
    "label_mapping": ([int], None),
    "counts": ({"rows": int, "bad": int, "zero_features": _INTEGER}, None),
    "out_of_sample": ({"folds": int, "seeds": _INTEGER, "retrained": _TEXT}, str, bool, None),
    "recorded": ({"samples": int, "epochs": [int], "repeated": int, "unlabelled": int, "bad": int}, None),
    "accuracy": _NUMBER,
    "accuracies": ([_NUMBER], None),
    "seconds": _NUMBER,
    "warnings": _NAMES,
    "unit": _TEXT,
    "note": _TEXT,
    "weights": _TEXT,
    "preprocessing": (str, [str], None),
    "bias": (bool, None),
    "command": ([str], str, None),
    "versions": ({str: str}, str, None),
    "created": _TEXT,
    "python": _TEXT,
    "device": _TEXT,
}  # fmt: skip


def read_meta(path: Path) -> dict[str, Any]:
    """What ``meta.json`` or ``plan.json`` says."""
    meta = {name: entry for name, entry in read_json(path, META).items() if entry is not None}
    classes = (meta.get("model") or {}).get("classes")
    if classes is not None and not 0 <= classes <= MOST_CLASSES:
        raise StateError(f"RUN: {path} is damaged: it names {classes:,} classes, expected {MOST_CLASSES:,} at most.")
    if ((meta.get("model") or {}).get("features") or 0) < 0:
        raise StateError(f"RUN: {path} is damaged: it names a negative number of features.")
    known = max(classes or 0, len(meta.get("class_names") or ()))
    if any(not -1 <= place < (known or MOST_CLASSES) for place in meta.get("label_mapping") or ()):
        raise StateError(f"RUN: {path} is damaged: its label_mapping names classes beyond the model's.")
    return meta


def meta_of(run: str | Path) -> dict[str, Any]:
    """What the ``meta.json`` of a run says; nothing where it has none yet."""
    file = Path(run) / "meta.json"
    return read_meta(file) if file.is_file() else {}
