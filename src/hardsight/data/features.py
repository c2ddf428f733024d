"""Features or predicted probabilities on disk: Parquet, safetensors or ``.npz``, with the head that belongs to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from torch import Tensor

from hardsight.data.folders import file_stamp
from hardsight.data.samples import LABEL_COLUMNS, Columns, class_indices, id_texts, pick_column, shortened
from hardsight.errors import InputError, StoreError
from hardsight.extras import printable
from hardsight.runs.ids import repeated_ids
from hardsight.stores import as_path, readable
from hardsight.triple import MULTI_LABEL
from hardsight.untrusted import Arrays, check_regular, check_table

FEATURE_FILES = (".parquet", ".safetensors")  # which hold nothing else; an .npz may also hold images
FEATURE_COLUMNS = ("features", "feature", "embeddings", "embedding", "x")
PROBABILITY_COLUMNS = ("pred_probs", "probs", "probabilities")
_BATCH = 1 << 13  # rows of a stream at a time
_NOTHING = pa.table({})


@dataclass(frozen=True)
class FeatureSet:
    """Features on disk with their labels, or predicted probabilities where there are no features."""

    features: Tensor
    labels: Tensor | None
    ids: list[str]
    origin: str
    head: dict[str, Tensor] = field(default_factory=dict)
    classes: list[str] | None = None  # names of the labels, where the file has them
    numbered: bool = False  # whether labels were names, numbered alphabetically
    probabilities: bool = False  # whether `features` are probabilities
    columns: str = ""  # the columns of the file, for messages


@dataclass(frozen=True)
class StoredLabels:
    """Labels and ids of a feature file; nothing else is read."""

    column: str
    labels: np.ndarray
    ids: list[str] | None  # None where the file has none
    classes: list[str] | None
    named: bool  # whether the file holds names of classes, not numbers


def read_features(path: str | Path, columns: Columns | None = None) -> FeatureSet:
    """Features, or predicted probabilities, from Parquet (a list column), safetensors or ``.npz``.

    Features are called ``features``, ``embeddings`` or the like (in Parquet, the only list column may have any name),
    probabilities ``pred_probs``, ``probs`` or ``probabilities``, labels ``label``, ``target``, ``y`` or the like, ids
    ``id``, class names ``classes``; `weight` and `bias` may be in safetensors and ``.npz``. Labels of Parquet may be
    names. Where labels may have another name, the file is refused until `columns` says which: without labels every
    score is taken at the predicted class.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/set.npz", features=np.ones((3, 8)), labels=[0, 1, 2])
        ...     read_features(f"{folder}/set.npz").features.shape
        torch.Size([3, 8])
    """
    path, columns = as_path(path), columns or Columns()
    check_regular(path, "DATA")
    table = _table(path)
    layout = _layout(path, table, columns)
    name, id_, label, rows = layout.features, layout.id, layout.label, len(table[layout.features])
    labels, features, classes = None, table[name], _class_names(table, path)
    ids = positional_ids(path.stem, rows) if id_ is None else _ids(table[id_], f"{id_} of {path.name}")
    listed = classes is not None
    if label is not None:
        labels, classes = as_labels(table[label], classes, f"{label} of {path.name}")
    if not isinstance(features, Tensor):
        features = torch.from_numpy(_matrix(features, f"DATA: the {name} column of {path.name}"))
    head = {key: table[key] for key in ("weight", "bias") if isinstance(table.get(key), Tensor)}
    numbered, probabilities = classes is not None and not listed, name in PROBABILITY_COLUMNS
    return FeatureSet(features, labels, ids, path.name, head, classes, numbered, probabilities, shortened(table))


class FeatureRows:
    """A Parquet file of features that is read some rows at a time, by the rules of `read_features`.

    Only the labels are in memory as a whole.

    Attributes:
        labels: ``(N,)`` class indices, or None.
        classes: Names of the labels, where they are names.
        stamp: Size and time of the file.
        width: Numbers per feature.
    """

    def __init__(self, path: str | Path, columns: Columns | None = None) -> None:
        self.path = as_path(path)
        check_regular(self.path, "DATA")
        self.origin, self.stamp, columns = self.path.name, file_stamp(self.path), columns or Columns()
        with _damage(self.path), pq.ParquetFile(readable(self.path)) as file:
            self._ends = np.cumsum([0, *(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))])
            empty = check_table(file.schema_arrow.empty_table())
            table = dict(zip(empty.column_names, empty.columns, strict=True))
        self.layout, self.columns = _layout(self.path, table, columns, len(self)), shortened(table)
        self.probabilities = self.layout.features in PROBABILITY_COLUMNS
        self.labels = self.classes = None
        if (label := self.layout.label) is not None:
            column = _table(self.path, [label])[label]
            self.labels, self.classes = as_labels(column, None, f"{label} of {self.origin}")
        self._check_ids()
        self._rows, self._at, self._more = _NOTHING, -1, iter(())
        self.width = self.read(range(1))[1].shape[1]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_rows": _NOTHING, "_at": -1, "_more": iter(())}

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [self.layout.features, *([] if self.layout.id is None else [self.layout.id])]

    def ids(self, places: range) -> list[str]:
        """The ids of some rows."""
        if self.layout.id is None:
            return [f"{self.path.stem}:{place}" for place in places]
        return self.read(places)[0]

    def read(self, places: range) -> tuple[list[str], Tensor]:
        """Ids and features ``(n, D)`` of consecutive rows. Reading on from the last ones is the cheapest."""
        group = np.searchsorted(self._ends, places.start, side="right") - 1
        if places.start < self._at or self._ends[group] > self._at + len(self._rows):
            self._rows, self._at, self._more = _NOTHING, int(self._ends[group]), self._batches(int(group))
        while self._at + len(self._rows) <= places.start:
            self._at += len(self._rows)
            self._rows = next(self._more)
        pieces = [self._rows.slice(places.start - self._at)]
        while sum(map(len, pieces)) < len(places):
            pieces.append(next(self._more))
        if file_stamp(self.path) != self.stamp:  # labels would be of one file and features of another
            raise InputError(f"DATA: {self.origin} has changed since it was opened; start again.")
        joined = pa.concat_tables(pieces)
        rows, self._rows, self._at = joined.slice(0, len(places)), joined.slice(len(places)), places.stop
        name = self.layout.features
        values = torch.from_numpy(_matrix(rows[name], f"DATA: the {name} column of {self.origin}"))
        if self.layout.id is None:
            return self.ids(places), values
        return _ids(rows[self.layout.id], f"{self.layout.id} of {self.origin}"), values

    def _batches(self, group: int, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        groups, names = [*range(group, len(self._ends) - 1)], self.names if names is None else names
        check_regular(self.path, "DATA")
        options = {"buffer_size": 1 << 20, "pre_buffer": False, "page_checksum_verification": True}
        with pq.ParquetFile(readable(self.path), **options) as file:
            batches = file.iter_batches(_BATCH, row_groups=groups, columns=[*names], use_threads=False)
            while True:
                with _damage(self.path):  # which must not report the consumer's errors as damage
                    batch = next(batches, None)
                    rows = None if batch is None else check_table(pa.Table.from_batches([batch]))
                if rows is None:
                    return
                yield rows

    def _check_ids(self) -> None:
        """Refuse ids that are missing or repeat."""
        if (id_ := self.layout.id) is None:
            return

        def read() -> Iterator[pa.Array]:
            start = 0
            for batch in self._batches(0, [id_]):
                column = batch[id_]
                if pa.types.is_string(column.type) and not column.null_count:
                    yield column.combine_chunks()
                else:
                    yield pa.array(_ids(column, f"{id_} of {self.origin}", start), pa.string())
                start += len(column)

        repeated, first = repeated_ids(read)
        if repeated:
            raise InputError(f"ids must be unique, but {printable(first)!r} repeats.")


class _Layout(NamedTuple):
    """Which columns hold what."""

    features: str
    id: str | None
    label: str | None


def _layout(path: Path, table: dict[str, Any], columns: Columns, rows: int | None = None) -> _Layout:
    """Which of the columns, tensors or arrays of a file hold what; a file that cannot be scored is refused.

    `rows` is the number of rows where the columns are not loaded.
    """
    place = f"DATA: {path.name}"
    kinds = {name: _kind(column) for name, column in table.items()}
    matrices = [name for name, kind in kinds.items() if kind == "matrix"]
    only = matrices if path.suffix == ".parquet" and len(matrices) == 1 else ()
    name = pick_column(matrices, None, (*FEATURE_COLUMNS, *PROBABILITY_COLUMNS, *only))
    if name is None:
        images = " (images need a model: hardsight score MODEL DATA)" if path.suffix == ".npz" else ""
        wanted = "must hold features or pred_probs, one row of numbers per sample"
        raise InputError(f"{place} {wanted}, got {shortened(table)}{images}.")
    if not (len(table[name]) if rows is None else rows):
        raise InputError(f"{place} is empty: it has no rows.")
    id_, label = _roles(table, columns, place)
    length = len(table[name])
    integers = [key for key, kind in kinds.items() if kind == "integers" and len(table[key]) == length and key != id_]
    if label is None:
        missing = f"{place} has no label column of a usual name ({', '.join(LABEL_COLUMNS)})"
        if integers:  # they may well be the labels
            raise InputError(
                f"{missing}, but integers in {shortened(integers)}; name the labels with --label-column, or leave "
                "those columns out of the file."
            )
        if name in PROBABILITY_COLUMNS:
            raise InputError(f"{missing}: it has {shortened(table)}; name the labels with --label-column.")
    return _Layout(name, id_, label)


def read_labels(path: Path, columns: Columns | None = None, most: int | None = None) -> StoredLabels:
    """Labels and ids by the rules of `read_features`; of an ``.npz`` no array may have more than `most` bytes."""
    check_regular(path, "DATA")
    place = f"DATA: {path.name}"
    id_, label = _roles(names := _names(path), columns or Columns(), place)
    if label is None:
        raise InputError(f"{place} has no label column of a usual name ({', '.join(LABEL_COLUMNS)}).")
    wanted = {label, *([] if id_ is None else [id_]), *({"classes"} & {*names} if path.suffix == ".npz" else ())}
    table = _table(path, sorted(wanted), most)
    classes = _class_names(table, path)
    labels, classes = as_labels(table[label], classes, f"{label} of {path.name}")
    ids = None if id_ is None else _ids(table[id_], f"{id_} of {path.name}")
    if ids is not None and (len(ids) != len(labels) or len({*ids}) != len(ids)):
        raise InputError(f"{place} must have one id of its own per label in {printable(id_)}.")
    return StoredLabels(label, labels.numpy(), ids, classes, classes is not None and not _is_numeric(table[label]))


def holds_features(path: Path) -> bool:
    """Whether a file holds features or probabilities, by its name and, for an ``.npz``, by the names in it."""
    if path.suffix != ".npz":
        return path.suffix in FEATURE_FILES
    names = {*Arrays(path, "DATA").names} if path.is_file() else set()
    return not names.isdisjoint((*FEATURE_COLUMNS, *PROBABILITY_COLUMNS)) and not any(
        name.endswith("images") for name in names
    )


def positional_ids(stem: str, rows: int) -> list[str]:
    """The ids of a file that has none: its name and the row."""
    return [f"{stem}:{i}" for i in range(rows)]


def _roles(names: Collection[str], columns: Columns, place: str) -> tuple[str | None, str | None]:
    """Which columns hold the ids and the labels; None where there are none."""
    label = pick_column(names, columns.label, LABEL_COLUMNS, place)
    return pick_column(names, columns.id, ("id", "ids"), place), label


def _class_names(table: dict[str, Any], path: Path) -> list[str] | None:
    """The names of the classes that an ``.npz`` lists."""
    listed = path.suffix == ".npz" and isinstance(table.get("classes"), np.ndarray)
    return [str(text) for text in np.ravel(table["classes"])] if listed else None


def _ids(column: Any, origin: str, start: int = 0) -> list[str]:
    return id_texts(np.asarray(column).tolist(), f"DATA: {origin}", start=start)


def _are_numbers(column: Any) -> bool:
    """Whether an Arrow column holds whole numbers and nothing else: then it needs no list of Python's numbers."""
    return isinstance(column, pa.ChunkedArray) and pa.types.is_integer(column.type) and not column.null_count


def _is_numeric(column: Any) -> bool:
    """Whether stored labels are numbers."""
    return isinstance(column, Tensor) or np.asarray(column).dtype.kind in "iu"


def as_labels(column: Any, classes: list[str] | None, origin: str) -> tuple[Tensor, list[str] | None]:
    """Labels as class indices, and the names of the classes where the labels are names."""
    if _kind(column) == "matrix":
        raise InputError(f"DATA: labels of {origin} must be one class per sample: {MULTI_LABEL}.")
    if _are_numbers(column):
        return torch.from_numpy(class_indices(column.to_numpy(), origin).astype(np.int64)), classes
    values = np.asarray(column.tolist() if isinstance(column, Tensor) else column)  # NumPy has no bfloat16
    missing = sum(value is None or value != value for value in values.tolist()) if values.dtype.kind in "fO" else 0
    if missing:
        raise InputError(f"DATA: {missing:,} of {len(values):,} labels of {origin} are missing; drop those rows.")
    if values.dtype.kind == "U" or {type(value) for value in values.tolist()} == {str}:
        # As objects: NumPy's texts lose null characters at their ends, and two classes would be one.
        names, indices = np.unique(values.astype(object), return_inverse=True)
        if classes is not None:  # in the order of these
            if unknown := sorted({*names} - {*classes}):
                raise InputError(f"DATA: labels of {origin} name a class that classes does not: {unknown[0]!r}.")
            return torch.from_numpy(np.array([classes.index(name) for name in names])[indices]), classes
        return torch.from_numpy(indices), names.tolist()
    return torch.from_numpy(class_indices(values, origin).astype(np.int64)), classes


def _names(path: Path) -> list[str]:
    """The names of the columns, tensors or arrays."""
    if path.suffix == ".npz":
        return Arrays(path, "DATA").names
    with _damage(path):
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                return list(file.keys())
        return pq.read_schema(readable(path)).names


def _table(path: Path, names: Sequence[str] | None = None, most: int | None = None) -> dict[str, Any]:
    """The columns of a Parquet file, or the tensors or arrays of another, by name; text stays in arrays.

    `names` says which, all of them if it is not given.
    """
    if path.suffix == ".npz":
        stored = Arrays(path, "DATA", most)
        arrays = {name: stored[name] for name in (names or stored.names)}
        return {name: torch.from_numpy(a) if a.dtype.kind in "iufb" and a.ndim else a for name, a in arrays.items()}
    with _damage(path):
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                return {name: file.get_tensor(name) for name in (names or file.keys())}
        with pq.ParquetFile(readable(path)) as file:  # not read_table, which makes columns out of the names of folders
            table = check_table(file.read(None if names is None else [*names]))
        return dict(zip(table.column_names, table.columns, strict=True))


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Turn whatever a parser raises into one sentence that does not quote the file."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
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
