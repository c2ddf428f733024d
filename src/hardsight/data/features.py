"""Features on disk: Parquet or safetensors, with the head that belongs to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.data.samples import LABEL_COLUMNS, Columns, class_indices, id_texts
from hardsight.errors import InputError
from hardsight.extras import first_line, printable
from hardsight.untrusted import check_regular, check_table


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
    """Features from Parquet (a list column) or safetensors; `weight` and `bias` may be in the latter.

    Features are called ``features``, ``embeddings`` or the like (in Parquet, the only list column may have any name),
    labels ``label``, ``target``, ``y`` or the like, ids ``id``. Where labels may have another name, the file is refused
    until `columns` says which: without labels every score is taken at the predicted class.
    """
    path, columns = Path(path), columns or Columns()
    check_regular(path, "DATA")
    return (_features_parquet if path.suffix == ".parquet" else _features_safetensors)(path, columns)


# What others call them, the most specific first.
_FEATURES = ("features", "feature", "embeddings", "embedding", "x")
_IDS = ("id", "ids")


def _column(
    names: Sequence[str], given: str | None, usual: Sequence[str], path: Path, what: str = "column"
) -> str | None:
    """The column that the user names, or the first that has one of the usual names."""
    if given is not None and given not in names:
        raise InputError(f"DATA: {path.name} has no {what} {given!r}; it has {_listed(names)}.")
    return given or next((name for name in usual if name in names), None)


def _check_labelled(label: str | None, candidates: Sequence[str], path: Path) -> None:
    """Refuse to leave out what may well be the labels."""
    if label is None and candidates:
        raise InputError(
            f"DATA: {path.name} has no label column of a usual name ({', '.join(LABEL_COLUMNS)}), but whole numbers in "
            f"{_listed(candidates)}; name the labels with --label-column, or leave those columns out of the file."
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(printable(name)[:80] for name in names[:12]) or "nothing"


def _features_parquet(path: Path, columns: Columns) -> FeatureSet:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = check_table(pq.read_table(path))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"DATA: {path.name} is no Parquet file, or it is damaged.") from error
    names = table.column_names
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    lists = [f.name for f in table.schema if any(kind(f.type) for kind in kinds)]
    name = next((name for name in _FEATURES if name in lists), lists[0] if len(lists) == 1 else None)
    if name is None:
        raise InputError(
            f"DATA: {path.name} must hold one list column of numbers named features, got {_listed(names)}."
        )
    if not len(table):
        raise InputError(f"DATA: {path.name} is empty: it has no rows.")
    label, id_ = _column(names, columns.label, LABEL_COLUMNS, path), _column(names, columns.id, _IDS, path)
    others = [f.name for f in table.schema if pa.types.is_integer(f.type) and f.name != id_]
    _check_labelled(label, others, path)
    ids = None if id_ is None else table[id_]
    if ids is not None and not _is_id(ids.type):
        raise InputError(f"DATA: ids of {path.name} must be text or whole numbers, got {ids.type}.")
    return FeatureSet(
        torch.from_numpy(_rectangle(table[name], name, path)),
        None if label is None else torch.from_numpy(_labels(table[label], path).astype(np.int64)),
        [f"{path.stem}:{i}" for i in range(len(table))]
        if ids is None
        else id_texts(ids.to_pylist(), f"DATA: {id_} of {path.name}"),
        path.name,
    )


def _is_id(type_: Any) -> bool:
    import pyarrow as pa

    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_dictionary)
    return any(kind(type_) for kind in kinds)


def _rectangle(column: Any, name: str, path: Path) -> np.ndarray:
    """A column of number lists of one length as ``(N, D)``."""
    import pyarrow.compute as pc

    values = column.type.value_type
    number = str(values) in ("halffloat", "float", "double") or str(values).removeprefix("u").startswith("int")
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    flat = pc.list_flatten(column)
    if not number or column.null_count or flat.null_count or len(lengths) != 1 or not lengths[0]:
        raise InputError(f"DATA: the {name} column of {path.name} must hold number lists of one length in every row.")
    return np.array(flat.combine_chunks().to_numpy(zero_copy_only=False)).reshape(len(column), -1)


def _labels(column: Any, path: Path) -> np.ndarray:
    if column.null_count:
        raise InputError(f"DATA: labels of {path.name} must be integers without gaps, got {column.null_count:,} gaps.")
    return class_indices(np.asarray(column), path.name)


def _features_safetensors(path: Path, columns: Columns) -> FeatureSet:
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except Exception as error:
        raise InputError(f"DATA: {path.name} is no safetensors file ({first_line(error)}).") from error
    names = list(tensors)
    name = next((name for name in _FEATURES if name in tensors), None)
    if name is None or tensors[name].ndim != 2:
        raise InputError(
            f"DATA: {path.name} must hold a tensor named features, got {_listed(names)}; expected (samples, width)."
        )
    if columns.id:
        raise InputError(
            f"--id-column: {path.name} has no text {columns.id!r}, only numbers; keep ids in a Parquet file."
        )
    features, label = tensors[name], _column(names, columns.label, LABEL_COLUMNS, path, "tensor")
    others = [key for key in names if tensors[key].shape == features.shape[:1] and not tensors[key].is_floating_point()]
    _check_labelled(label, others, path)
    ids = [f"{path.stem}:{i}" for i in range(len(features))]
    head = {key: tensors[key] for key in ("weight", "bias") if key in tensors}
    return FeatureSet(features, None if label is None else tensors[label], ids, path.name, head)
