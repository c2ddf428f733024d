"""Features on disk: Parquet or safetensors, with the head that belongs to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hardsight.data.samples import Columns
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import first_line


@dataclass(frozen=True)
class FeatureSet:
    """Features on disk: the triple without its weight."""

    features: Tensor
    labels: Tensor | None
    ids: list[str]
    origin: str
    head: dict[str, Tensor] = field(default_factory=dict)


def is_feature_file(name: str) -> bool:
    return name.endswith((".parquet", ".safetensors"))


def read_features(path: str | Path, columns: Columns | None = None) -> FeatureSet:
    """Features from Parquet (a list column) or safetensors (`features`, `labels`; `weight` and `bias` may be there)."""
    path, columns = Path(path), columns or Columns()
    if not path.is_file():
        raise MissingPathError(f"DATA: there is no file {path}.")
    return (_features_parquet if path.suffix == ".parquet" else _features_safetensors)(path, columns)


def _features_parquet(path: Path, columns: Columns) -> FeatureSet:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except pa.ArrowException as error:
        raise InputError(f"DATA: {path.name} is no Parquet file ({first_line(error)}).") from error
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    lists = [f.name for f in table.schema if any(kind(f.type) for kind in kinds)]
    name = "features" if "features" in lists else lists[0] if len(lists) == 1 else None
    if name is None:
        raise InputError(
            f"DATA: {path.name} must hold one list column of numbers named features, "
            f"got {', '.join(table.column_names)}."
        )
    if not len(table):
        raise InputError(f"DATA: {path.name} is empty: it has no rows.")
    column = table[name].combine_chunks()
    flat = np.asarray(column.flatten())
    lengths = np.diff(np.asarray(column.offsets)) if hasattr(column, "offsets") else np.array([column.type.list_size])
    if column.null_count or len(set(lengths.tolist())) > 1 or flat.dtype == object:
        raise InputError(f"DATA: the {name} column of {path.name} must hold number lists of one length in every row.")

    def pick(given: str | None, usual: Sequence[str]) -> np.ndarray | None:
        if given is not None and given not in table.column_names:
            raise InputError(f"DATA: {path.name} has no column {given!r}; it has {', '.join(table.column_names)}.")
        found = given or next((n for n in usual if n in table.column_names), None)
        return None if found is None else np.asarray(table[found])

    labels, ids = pick(columns.label, ("label", "labels", "y")), pick(columns.id, ("id", "ids"))
    if labels is not None and not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"DATA: labels of {path.name} must be integers without gaps, got {labels.dtype}.")
    return FeatureSet(
        torch.from_numpy(flat.reshape(len(table), -1).copy()),
        None if labels is None else torch.from_numpy(labels.astype(np.int64)),
        [f"{path.stem}:{i}" for i in range(len(table))] if ids is None else [str(i) for i in ids],
        path.name,
    )


def _features_safetensors(path: Path, columns: Columns) -> FeatureSet:
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except Exception as error:
        raise InputError(f"DATA: {path.name} is no safetensors file ({first_line(error)}).") from error
    if "features" not in tensors:
        raise InputError(f"DATA: {path.name} must hold a tensor named features, got {', '.join(tensors) or 'nothing'}.")
    labels = tensors.get(columns.label) if columns.label else tensors.get("labels", tensors.get("label"))
    if columns.label and labels is None:
        raise InputError(f"DATA: {path.name} has no tensor {columns.label!r}; it has {', '.join(tensors)}.")
    if columns.id:
        raise InputError(
            f"--id-column: {path.name} has no text {columns.id!r}, only numbers; keep ids in a Parquet file."
        )
    ids = [f"{path.stem}:{i}" for i in range(len(tensors["features"]))]
    head = {key: tensors[key] for key in ("weight", "bias") if key in tensors}
    return FeatureSet(tensors["features"], labels, ids, path.name, head)
