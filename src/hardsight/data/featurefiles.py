"""The feature file of a run, opened again for its labels and ids alone."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hardsight.data.features import FEATURE_FILES, holds_features, positional_ids, read_labels
from hardsight.data.open import RECORDED_BYTES
from hardsight.data.samples import Columns, Samples
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import printable
from hardsight.runs import Identity, Meta, content_hash
from hardsight.stores import as_path, readable
from hardsight.untrusted import check_regular


class FeatureSamples(Samples):
    """Samples that are rows of a file of features or probabilities, which are not loaded.

    Args:
        path: The file.
        columns: Which columns hold label and id.
        stem: Prefix of the ids if the file has none.
        most: Largest size in bytes of an array in an ``.npz``.
    """

    pixels = False

    def __init__(
        self, path: Path, columns: Columns | None = None, stem: str | None = None, most: int | None = None
    ) -> None:
        stored = read_labels(path, columns, most)
        self.file, self.most, self.origin = path, most, path.name
        self.label_key, self.labels, self.classes, self.named = (
            stored.column,
            stored.labels,
            stored.classes,
            stored.named,
        )
        self.positional, self.split = stored.ids is None, stem or path.stem
        self.ids = positional_ids(self.split, len(stored.labels)) if stored.ids is None else stored.ids

    def __len__(self) -> int:
        return len(self.ids)

    def _load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        raise InputError(f"DATA: {self.origin} holds features, not images.")

    @cached_property
    def identity(self) -> Identity:
        return Identity(content_hash(self.labels, self.ids), ("features",))


def features_of(meta: Meta, data: Any, rows: int) -> FeatureSamples | None:
    """The feature file of a run with this many samples; `data` says where it is now. None if the data are not features.

    What the run itself names follows the rules of `data_of`: it is opened only if it is an absolute path of a regular
    file in a format without pickle, with as many rows as the run, and arrays of at most `RECORDED_BYTES`.
    """
    recorded = meta.source.get("table")
    columns = (meta.source.get("columns") or {}) if recorded is not None else {}
    named = {key: columns[key] for key in ("label", "id") if isinstance(columns.get(key), str)}
    if data is not None:
        images = "data" in meta.source  # a Parquet file may hold either
        if images or not isinstance(data, (str, Path)) or not holds_features(as_path(data)):
            return None
        path, most = as_path(data), None
    elif recorded is None:
        return None
    else:
        path, most, shown = Path(recorded), RECORDED_BYTES, printable(recorded)[:200]
        if not path.is_absolute() or path.suffix not in (*FEATURE_FILES, ".npz"):
            raise InputError(
                f"The run names {shown!r} as its data, which is not a local feature file; name it with --data."
            )
        if not path.exists():
            raise MissingPathError(f"DATA: there is no {shown!r}, which the run names as its data.")
        check_regular(path, "DATA")
        if path.suffix == ".parquet":
            _check_rows(path.name, _row_count(path), rows)  # a small file can claim any number of them
    samples = FeatureSamples(path, Columns(**named), None if recorded is None else Path(recorded).stem, most)
    if data is None or samples.positional:
        _check_rows(path.name, len(samples), rows)
    return samples


def _row_count(path: Path) -> int:
    try:
        return pq.read_metadata(readable(path)).num_rows
    except Exception as error:
        raise InputError(f"DATA: {path.name} is not a parquet file, or it is damaged.") from error


def _check_rows(name: str, rows: int, scored: int) -> None:
    if rows != scored:
        raise InputError(
            f"DATA: {name} has {rows:,} rows, but the run has {scored:,}: it has changed since it was scored, or it is "
            "another file."
        )
