"""Features on disk: Parquet or safetensors, with the head that belongs to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.data.samples import LABEL_COLUMNS, Columns, class_indices, id_texts, pick_column, shortened
from hardsight.errors import InputError
from hardsight.untrusted import check_regular, check_table

FEATURE_FILES = (".parquet", ".safetensors")
_FEATURE_COLUMNS = ("features", "feature", "embeddings", "embedding", "x")


@dataclass(frozen=True)
class FeatureSet:
    """Features on disk: the triple without its weight."""

    features: Tensor
    labels: Tensor | None
    ids: list[str]
    origin: str
    head: dict[str, Tensor] = field(default_factory=dict)


def read_features(path: str | Path, columns: Columns | None = None) -> FeatureSet:
    """Features from Parquet (a list column) or safetensors; `weight` and `bias` may be in the latter.

    Features are called ``features``, ``embeddings`` or the like (in Parquet, the only list column may have any name),
    labels ``label``, ``target``, ``y`` or the like, ids ``id``. Where labels may have another name, the file is refused
    until `columns` says which: without labels every score is taken at the predicted class.
    """
    path, columns = Path(path), columns or Columns()
    check_regular(path, "DATA")
    table, place = _table(path), f"DATA: {path.name}"
    kinds = {name: _kind(column) for name, column in table.items()}
    matrices = [name for name, kind in kinds.items() if kind == "matrix"]
    only = matrices if path.suffix == ".parquet" and len(matrices) == 1 else ()
    name = pick_column(matrices, None, (*_FEATURE_COLUMNS, *only))
    if name is None:
        raise InputError(f"{place} must hold features, one row of numbers per sample, got {shortened(table)}.")
    if not (rows := len(table[name])):
        raise InputError(f"{place} is empty: it has no rows.")
    id_ = pick_column(table, columns.id, ("id", "ids"), place)
    label = pick_column(table, columns.label, LABEL_COLUMNS, place)
    integers = [key for key, kind in kinds.items() if kind == "integers" and len(table[key]) == rows and key != id_]
    if label is None and integers:  # they may well be the labels
        raise InputError(
            f"{place} has no label column of a usual name ({', '.join(LABEL_COLUMNS)}), but integers in "
            f"{shortened(integers)}; name the labels with --label-column, or leave those columns out of the file."
        )
    ids = [f"{path.stem}:{i}" for i in range(rows)]
    labels, features = None, table[name]
    if id_ is not None:
        ids = id_texts(np.asarray(table[id_]).tolist(), f"DATA: {id_} of {path.name}")
    if label is not None:
        column = table[label].tolist() if isinstance(table[label], Tensor) else table[label]  # NumPy has no bfloat16
        labels = torch.from_numpy(class_indices(np.asarray(column), path.name).astype(np.int64))
    if not isinstance(features, Tensor):
        features = torch.from_numpy(_matrix(features, f"DATA: the {name} column of {path.name}"))
    head = {key: table[key] for key in ("weight", "bias") if isinstance(table.get(key), Tensor)}
    return FeatureSet(features, labels, ids, path.name, head)


def _table(path: Path) -> dict[str, Any]:
    """The columns of a Parquet file, or the tensors of a safetensors file, by name."""
    import pyarrow.parquet as pq
    from safetensors.torch import load_file

    try:
        if path.suffix != ".parquet":
            return load_file(path)
        table = check_table(pq.read_table(path))
        return dict(zip(table.column_names, table.columns, strict=True))
    except Exception as error:  # whatever a parser raises: it must not quote the file
        raise InputError(f"DATA: {path.name} is not a {path.suffix[1:]} file, or it is damaged.") from error


def _kind(column: Any) -> str:
    """``matrix``, ``integers``, or another kind of column."""
    if isinstance(column, Tensor):
        return "matrix" if column.ndim == 2 else "integers" if "int" in str(column.dtype) and column.ndim == 1 else ""
    type_ = str(column.type)
    return "matrix" if "list" in type_.partition("<")[0] else "integers" if "int" in type_[:4] else ""


def _matrix(column: Any, name: str) -> np.ndarray:
    """A column of number lists of one length as ``(N, D)``."""
    import pyarrow.compute as pc

    lengths, flat = pc.unique(pc.list_value_length(column)).to_pylist(), pc.list_flatten(column)
    numbers = any(kind in str(flat.type) for kind in ("int", "float", "double")) and "<" not in str(flat.type)
    if not numbers or column.null_count or flat.null_count or len(lengths) != 1 or not lengths[0]:
        raise InputError(f"{name} must hold number lists of one length in every row.")
    return np.array(flat.combine_chunks().to_numpy(zero_copy_only=False)).reshape(len(column), -1)
