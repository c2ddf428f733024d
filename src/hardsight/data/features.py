"""Features on disk: Parquet or safetensors, with the head that belongs to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.data.samples import LABEL_COLUMNS, Columns, class_indices, id_texts, listed, pick_column
from hardsight.errors import InputError
from hardsight.extras import first_line
from hardsight.untrusted import check_regular, check_table

# Usual names, the most specific first.
_FEATURES = ("features", "feature", "embeddings", "embedding", "x")
_IDS = ("id", "ids")


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
    return (_parquet if path.suffix == ".parquet" else _safetensors)(path, columns)


def _label_column(names: Collection[str], given: str | None, integers: Sequence[str], path: Path) -> str | None:
    """The label column, None where there is none; columns of integers may well be the labels, so they are refused."""
    label = pick_column(names, given, LABEL_COLUMNS, f"DATA: {path.name}")
    if label is None and integers:
        raise InputError(
            f"DATA: {path.name} has no label column of a usual name ({', '.join(LABEL_COLUMNS)}), but integers in "
            f"{listed(integers)}; name the labels with --label-column, or leave those columns out of the file."
        )
    return label


def _parquet(path: Path, columns: Columns) -> FeatureSet:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = check_table(pq.read_table(path))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"DATA: {path.name} is not a Parquet file, or it is damaged.") from error
    types = {field.name: field.type for field in table.schema}
    lists = _of(types, pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    name = pick_column(lists, None, (*_FEATURES, *(lists if len(lists) == 1 else ())))
    if name is None:
        raise InputError(f"DATA: {path.name} must hold one list column of numbers named features, got {listed(types)}.")
    if not len(table):
        raise InputError(f"DATA: {path.name} is empty: it has no rows.")
    id_ = pick_column(types, columns.id, _IDS, f"DATA: {path.name}")
    integers = [name for name in _of(types, pa.types.is_integer) if name != id_]
    label = _label_column(types, columns.label, integers, path)
    ids = [f"{path.stem}:{i}" for i in range(len(table))]
    if id_ is not None:
        kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_dictionary)
        if id_ not in _of(types, *kinds):
            raise InputError(f"DATA: ids of {path.name} must be text or integers, got {types[id_]}.")
        ids = id_texts(table[id_].to_pylist(), f"DATA: {id_} of {path.name}")
    labels = None
    if label is not None:
        if missing := table[label].null_count:
            raise InputError(f"DATA: labels of {path.name} must be integers without gaps, got {missing:,} gaps.")
        labels = torch.from_numpy(class_indices(np.asarray(table[label]), path.name).astype(np.int64))
    return FeatureSet(torch.from_numpy(_matrix(table[name], name, path)), labels, ids, path.name)


def _of(types: dict[str, Any], *kinds: Callable[[Any], bool]) -> list[str]:
    """The columns of some kinds."""
    return [name for name, type_ in types.items() if any(kind(type_) for kind in kinds)]


def _matrix(column: Any, name: str, path: Path) -> np.ndarray:
    """A column of number lists of one length as ``(N, D)``."""
    import pyarrow.compute as pc

    type_ = str(column.type.value_type)
    numbers = type_ in ("halffloat", "float", "double") or type_.removeprefix("u").startswith("int")
    lengths, flat = pc.unique(pc.list_value_length(column)).to_pylist(), pc.list_flatten(column)
    if not numbers or column.null_count or flat.null_count or len(lengths) != 1 or not lengths[0]:
        raise InputError(f"DATA: the {name} column of {path.name} must hold number lists of one length in every row.")
    return np.array(flat.combine_chunks().to_numpy(zero_copy_only=False)).reshape(len(column), -1)


def _safetensors(path: Path, columns: Columns) -> FeatureSet:
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except Exception as error:
        raise InputError(f"DATA: {path.name} is not a safetensors file ({first_line(error)}).") from error
    name = pick_column(tensors, None, _FEATURES)
    if name is None or tensors[name].ndim != 2:
        raise InputError(
            f"DATA: {path.name} must hold a tensor named features, got {listed(tensors)}; expected (samples, width)."
        )
    if columns.id:
        raise InputError(
            f"--id-column: {path.name} has no text {columns.id!r}, only numbers; keep ids in a Parquet file."
        )
    features, rows = tensors[name], len(tensors[name])
    integers = [key for key in tensors if tensors[key].shape == (rows,) and not tensors[key].is_floating_point()]
    label = _label_column(tensors, columns.label, integers, path)
    ids = [f"{path.stem}:{i}" for i in range(rows)]
    head = {key: tensors[key] for key in ("weight", "bias") if key in tensors}
    return FeatureSet(features, None if label is None else tensors[label], ids, path.name, head)
