"""Features or predicted probabilities on disk: Parquet, safetensors or ``.npz``, with the head that belongs to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.data.samples import LABEL_COLUMNS, Columns, class_indices, id_texts, pick_column, shortened
from hardsight.errors import InputError
from hardsight.triple import MULTI_LABEL
from hardsight.untrusted import Arrays, check_regular, check_table

FEATURE_FILES = (".parquet", ".safetensors")  # which hold nothing else; an .npz may also hold images
FEATURE_COLUMNS = ("features", "feature", "embeddings", "embedding", "x")
PROBABILITY_COLUMNS = ("pred_probs", "probs", "probabilities")


@dataclass(frozen=True)
class FeatureSet:
    """Features on disk: the triple without its weight. Or predicted probabilities, where there are no features."""

    features: Tensor
    labels: Tensor | None
    ids: list[str]
    origin: str
    head: dict[str, Tensor] = field(default_factory=dict)
    classes: list[str] | None = None  # names of the labels, where the file has them
    numbered: bool = False  # whether labels were names that nothing but the alphabet gave their numbers
    probabilities: bool = False  # whether `features` are probabilities
    columns: str = ""  # the columns of the file, for messages


def read_features(path: str | Path, columns: Columns | None = None) -> FeatureSet:
    """Features, or predicted probabilities, from Parquet (a list column), safetensors or ``.npz``.

    Features are called ``features``, ``embeddings`` or the like (in Parquet, the only list column may have any name),
    probabilities ``pred_probs``, ``probs`` or ``probabilities``, labels ``label``, ``target``, ``y`` or the like, ids
    ``id``, class names ``classes``; `weight` and `bias` may be in safetensors and ``.npz``. Labels of Parquet may be
    names. Where labels may have another name, the file is refused until `columns` says which: without labels every
    score is taken at the predicted class.
    """
    path, columns = Path(path), columns or Columns()
    check_regular(path, "DATA")
    table, place = _table(path), f"DATA: {path.name}"
    kinds = {name: _kind(column) for name, column in table.items()}
    matrices = [name for name, kind in kinds.items() if kind == "matrix"]
    only = matrices if path.suffix == ".parquet" and len(matrices) == 1 else ()
    name = pick_column(matrices, None, (*FEATURE_COLUMNS, *PROBABILITY_COLUMNS, *only))
    if name is None:
        images = " (images need a model: hardsight score MODEL DATA)" if path.suffix == ".npz" else ""
        wanted = "must hold features or pred_probs, one row of numbers per sample"
        raise InputError(f"{place} {wanted}, got {shortened(table)}{images}.")
    if not (rows := len(table[name])):
        raise InputError(f"{place} is empty: it has no rows.")
    id_ = pick_column(table, columns.id, ("id", "ids"), place)
    label = pick_column(table, columns.label, LABEL_COLUMNS, place)
    integers = [key for key, kind in kinds.items() if kind == "integers" and len(table[key]) == rows and key != id_]
    if label is None:
        missing = f"{place} has no label column of a usual name ({', '.join(LABEL_COLUMNS)})"
        if integers:  # they may well be the labels
            raise InputError(
                f"{missing}, but integers in {shortened(integers)}; name the labels with --label-column, or leave "
                "those columns out of the file."
            )
        if name in PROBABILITY_COLUMNS:
            raise InputError(f"{missing}: it has {shortened(table)}; name the labels with --label-column.")
    ids = [f"{path.stem}:{i}" for i in range(rows)]
    labels, features, classes = None, table[name], None
    if path.suffix == ".npz" and isinstance(table.get("classes"), np.ndarray):
        classes = [str(text) for text in np.ravel(table["classes"])]
    if id_ is not None:
        ids = id_texts(np.asarray(table[id_]).tolist(), f"DATA: {id_} of {path.name}")
    listed = classes is not None
    if label is not None:
        labels, classes = read_labels(table[label], classes, f"{label} of {path.name}")
    if not isinstance(features, Tensor):
        features = torch.from_numpy(_matrix(features, f"DATA: the {name} column of {path.name}"))
    head = {key: table[key] for key in ("weight", "bias") if isinstance(table.get(key), Tensor)}
    numbered, probabilities = classes is not None and not listed, name in PROBABILITY_COLUMNS
    return FeatureSet(features, labels, ids, path.name, head, classes, numbered, probabilities, shortened(table))


def read_labels(column: Any, classes: list[str] | None, origin: str) -> tuple[Tensor, list[str] | None]:
    """Labels as class indices, and the names of the classes where the labels are names."""
    if _kind(column) == "matrix":
        raise InputError(f"DATA: labels of {origin} must be one class per sample: {MULTI_LABEL}.")
    values = np.asarray(column.tolist() if isinstance(column, Tensor) else column)  # NumPy has no bfloat16
    missing = sum(value is None or value != value for value in values.tolist()) if values.dtype.kind in "fO" else 0
    if missing:
        raise InputError(f"DATA: {missing:,} of {len(values):,} labels of {origin} are missing; drop those rows.")
    if values.dtype.kind == "U" or {type(value) for value in values.tolist()} == {str}:
        names, indices = np.unique(values.astype(str), return_inverse=True)
        if classes is not None:  # in the order of these
            if unknown := sorted({*names} - {*classes}):
                raise InputError(f"DATA: labels of {origin} name a class that classes does not: {unknown[0]!r}.")
            names, indices = np.array(classes), np.array([classes.index(name) for name in names])[indices]
        return torch.from_numpy(indices), names.tolist()
    return torch.from_numpy(class_indices(values, origin).astype(np.int64)), classes


def _table(path: Path) -> dict[str, Any]:
    """The columns of a Parquet file, or the tensors or arrays of another, by name; text stays in arrays."""
    import pyarrow.parquet as pq
    from safetensors.torch import load_file

    if path.suffix == ".npz":
        stored = Arrays(path, "DATA")
        arrays = {name: stored[name] for name in stored.names}
        return {name: torch.from_numpy(a) if a.dtype.kind in "iufb" and a.ndim else a for name, a in arrays.items()}
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        table = check_table(pq.read_table(path))
        return dict(zip(table.column_names, table.columns, strict=True))
    except Exception as error:  # whatever a parser raises: it must not quote the file
        raise InputError(f"DATA: {path.name} is not a {path.suffix[1:]} file, or it is damaged.") from error


def _kind(column: Any) -> str:
    """``matrix``, ``integers``, or another kind of column."""
    if isinstance(column, Tensor):
        return "matrix" if column.ndim == 2 else "integers" if "int" in str(column.dtype) and column.ndim == 1 else ""
    if isinstance(column, np.ndarray):
        return ""
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
