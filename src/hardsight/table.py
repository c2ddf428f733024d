"""`SampleTable`: one row per sample, its scores in columns."""

from __future__ import annotations

import html
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.directions import hardness_sign
from hardsight.errors import InputError, InputTypeError, MissingKeyError
from hardsight.extras import need, printable
from hardsight.idtables import as_arrow, check_ids, read_by_id
from hardsight.printing import html_table, percent, text_table
from hardsight.registry import did_you_mean, whole_number
from hardsight.runs import Counts, Meta, RunWriter, is_number
from hardsight.runs.ids import places_among
from hardsight.scores import SCORES, norm_within_class
from hardsight.storedrows import StoredRows
from hardsight.stores import as_path
from hardsight.tablefiles import SAVED, check_new_run, no_rows, read_table, split_rows

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

Rows = pa.Table | StoredRows  # in memory, or on disk

_SHOWN = 10  # rows in a notebook
_LARGE = 1 << 30  # bytes of a data frame above which to warn
_WIDE = 88  # characters of a line in a terminal


class SampleTable:
    """One row per sample: ``id``, ``label``, ``pred`` and one column per score.

    Attributes:
        meta: How it was made: command, versions, fingerprints, preprocessing, counts.
        bad: Samples that could not be scored: ``id`` and ``error``.
        vectors: Further data of the samples, by ``id``: a ``sketch`` of the feature's direction and, for up to 100
            classes, ``probabilities``; None if they were not kept.

    Examples:
        >>> table = SampleTable.from_columns({"id": ["a", "b"], "label": [0, 1], "pred": [0, 0], "avh": [0.2, 0.7]})
        >>> table.hardest(1)["id"].tolist()
        ['b']
    """

    def __init__(
        self,
        rows: Rows | Callable[[], Rows],  # fetched from the device on demand
        meta: Meta | Mapping[str, Any] | None = None,
        bad: pa.Table | None = None,
        vectors: Rows | Callable[[], Rows | None] | None = None,
    ) -> None:
        self._source = rows
        self.meta = replace(meta) if isinstance(meta, Meta) else Meta.from_json(meta or {})
        self._vectors = vectors  # for a run on disk they are read on demand
        self.bad = no_rows("id", "error") if bad is None else bad
        if not callable(rows):
            _ = self._rows

    @cached_property
    def _rows(self) -> Rows:
        rows = self._source() if callable(self._source) else self._source
        self._source = None
        if isinstance(rows, StoredRows):  # whose ids were checked when it was opened
            return rows
        if "id" not in rows.column_names:
            raise InputError(f"a SampleTable needs a column id, got {', '.join(rows.column_names)}.")
        check_ids(rows["id"])
        return rows.combine_chunks()

    def __getstate__(self) -> dict[str, Any]:
        return {"_rows": self.to_arrow(), "meta": self.meta, "bad": self.bad, "_vectors": self.vectors}

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any], meta: Meta | Mapping[str, Any] | None = None) -> SampleTable:
        """A table from arrays of one length, by column name."""
        return cls(as_arrow(columns, "columns"), meta)

    @property
    def vectors(self) -> pa.Table | None:
        vectors = self.stored_vectors
        return vectors.to_table() if isinstance(vectors, StoredRows) else vectors

    @property
    def stored_vectors(self) -> Rows | None:
        """The vectors, which stay on disk if the run is large."""
        if callable(self._vectors):
            self._vectors = self._vectors()
        return self._vectors

    @property
    def on_disk(self) -> bool:
        """Whether the rows stay on disk, as for a large run."""
        return isinstance(self._rows, StoredRows)

    @property
    def vector_places(self) -> np.ndarray:
        """The row of each sample among the vectors, −1 if it has none."""
        vectors = self.stored_vectors
        if vectors is None:
            return np.full(len(self), -1)
        if isinstance(self._rows, StoredRows) and isinstance(vectors, StoredRows):
            return self._rows.places  # their ids were compared when the run was opened
        return places_among(self._rows["id"].cast(pa.string()), vectors["id"])

    # Looking.

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, key: str) -> np.ndarray: ...

    @overload
    def __getitem__(self, key: slice | Sequence[int] | Sequence[bool] | np.ndarray) -> SampleTable: ...

    def __getitem__(self, key: Any) -> Any:
        """A column by name, as a NumPy array; or some rows, by a slice, a mask or positions, as a table."""
        if isinstance(key, str):
            return self.column(key).to_numpy()
        if isinstance(key, slice):
            return self._take(np.arange(len(self))[key])
        places = np.asarray(key)
        if places.ndim != 1 or (places.size and places.dtype.kind not in "biu"):
            raise InputTypeError(f"a table takes a column, a slice, a mask or places of rows, got {key!r:.80}.")
        if places.dtype.kind == "b" and len(places) != len(self):
            raise InputError(f"a mask must have one entry per row: expected {len(self):,}, got {len(places):,}.")
        if places.dtype.kind in "iu" and places.size and not -len(self) <= places.min() <= places.max() < len(self):
            raise InputError(f"places must be rows of the table, which has {len(self):,}.")
        return self._take(np.arange(len(self))[places if places.size else slice(0)])

    def column(self, name: str) -> pa.ChunkedArray:
        """A column by name, as an Arrow array; nothing else of a large run is read."""
        return self._rows[self._checked(name)]

    def pieces(self, name: str) -> Iterator[pa.Array]:
        """A column by name in pieces; for a large run on disk, none of them stays in memory."""
        for piece in self.row_pieces(name):
            yield from piece[name].chunks

    def row_pieces(self, *names: str) -> Iterator[pa.Table]:
        """Some columns in pieces, like `pieces` for one."""
        rows, columns = self._rows, [*map(self._checked, names)]
        yield from rows.pieces(columns) if isinstance(rows, StoredRows) else [rows.select(columns)]

    def read_rows(self, places: np.ndarray, names: Sequence[str]) -> pa.Table:
        """Columns of some rows, as Arrow arrays; nothing else of a large run is read."""
        rows = self._rows
        if isinstance(rows, StoredRows):
            return rows.read_rows(places, names)
        return rows.select([*names]).take(pa.array(places))

    @property
    def stored_rows(self) -> Rows:
        """The rows, which stay on disk if the run is large."""
        return self._rows

    def __contains__(self, column: str) -> bool:
        return column in self._rows.column_names

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return self._rows.column_names

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, by number; empty if the run does not know them."""
        return list(self.meta.class_names)

    @property
    def scores(self) -> list[str]:
        """Columns that are registered scores (``avh``, or ``avh_pred`` without labels)."""
        return [name for name in self.columns if name.removesuffix("_pred") in SCORES]

    @property
    def accuracy(self) -> float | None:
        """Share of labeled rows whose prediction is their label."""
        if "label" not in self or "pred" not in self:
            return None
        matches = [pc.equal(rows["label"], rows["pred"]) for rows in self.row_pieces("label", "pred")]
        labeled = sum(len(part) - part.null_count for part in matches)
        return sum(pc.sum(part).as_py() or 0 for part in matches) / labeled if labeled else None

    @property
    def _title(self) -> str:
        accuracy = "" if self.accuracy is None else f"accuracy {percent(self.accuracy)}"
        notes = ", ".join(filter(None, (printable(self.meta.model.name or ""), accuracy)))
        return f"SampleTable: {len(self):,} rows × {len(self.columns)} columns" + (f" ({notes})" if notes else "")

    def __repr__(self) -> str:
        rows, shown = self._rows.slice(0, 5).to_pylist(), self.columns
        while len((lines := text_table(rows, {name: printable(name) for name in shown}))[0]) > _WIDE and len(shown) > 1:
            shown = shown[:-1]
        more = "  …" if len(shown) < len(self.columns) else ""
        return "\n".join([self._title, *(line + more for line in lines), *(["…"] if len(self) > 5 else [])])

    def _repr_html_(self) -> str:
        first = self._rows.slice(0, _SHOWN)
        table = html_table(first.to_pylist(), self.columns, self._images(first["id"].to_pylist()))
        return f"<p>{html.escape(self._title)}</p>{table}{'<p>…</p>' if len(self) > _SHOWN else ''}"

    def _images(self, ids: Sequence[Any]) -> dict[int, str]:
        """Thumbnails by row, if the run knows its images and they can be read."""
        if not self.meta.source:
            return {}
        from hardsight.data import data_of
        from hardsight.images import sample_image, thumbnail_uri

        images = {}
        with warnings.catch_warnings(action="ignore"), suppress(Exception):  # a table can also be shown without images
            samples = data_of(self.meta)
            for row, place in enumerate(samples.find([str(name) for name in ids])):
                with suppress(Exception):  # an unreadable image leaves a gap
                    images |= {} if place is None else {row: thumbnail_uri(sample_image(samples, place)[0])}
        return images

    def head(self, n: int = 5) -> SampleTable:
        """The first `n` rows."""
        return self._take(np.arange(min(whole_number("n", n, 0), len(self))))

    def hardest(self, n: int = 20, by: str = "avh", *, largest: bool | None = None) -> SampleTable:
        """The `n` hardest samples, hardest first; ties in the order of their ids.

        Args:
            n: How many.
            by: The column.
            largest: Whether the largest values are the hardest; needed for a column that hardsight does not write.
        """
        return self._take(self._first((-part for part in self._hardness(by, largest)), whole_number("n", n, 0)))

    def easiest(self, n: int = 20, by: str = "avh", *, largest: bool | None = None) -> SampleTable:
        """The `n` easiest samples, easiest first; ties in the order of their ids. Options are those of `hardest`."""
        return self._take(self._first(self._hardness(by, largest), whole_number("n", n, 0)))

    def filter(self, mask: Any) -> SampleTable:
        """The rows where a mask is true; a function is called with the table and returns the mask.

        Examples:
            >>> table = SampleTable.from_columns({"id": ["a", "b"], "label": [0, 1], "pred": [0, 0]})
            >>> table.filter(lambda t: t["pred"] != t["label"])["id"].tolist()
            ['b']
        """
        return self[np.asarray(mask(self) if callable(mask) else mask, dtype=bool)]

    def sort(self, by: str, *, descending: bool = False) -> SampleTable:
        """The rows ordered by a column, missing values last; ties keep their order. `hardest` knows directions."""
        keys = [(self._checked(by), "descending" if descending else "ascending")]
        return self._take(pc.sort_indices(pa.table({by: self.column(by)}), sort_keys=keys).to_numpy())

    def rank(self, by: str = "avh", *, largest: bool | None = None) -> np.ndarray:
        """Rank of each row: 1 is the hardest; ties share the mean of their ranks; NaN stays NaN."""
        from scipy.stats import rankdata

        return rankdata(-self.hardness(by, largest=largest), nan_policy="omit")

    def hardness(self, by: str = "avh", *, largest: bool | None = None) -> np.ndarray:
        """A column as float64, its sign such that larger is harder.

        Args:
            by: The column. Where ``learned`` is null (never learned) the sample counts as learned one epoch after the
                last that was.
            largest: Whether the largest values are the hardest; needed for a column that hardsight does not write.
        """
        return np.concatenate([np.empty(0), *self._hardness(by, largest)])

    def _hardness(self, by: str, largest: bool | None) -> Iterator[np.ndarray]:
        name = self._numeric(by)
        sign, missing = hardness_sign(name, largest), np.nan
        if name == "learned":
            missing = max((pc.max(part).as_py() or 0 for part in self.pieces(name)), default=0) + 1
        for part in self.pieces(name):
            values = part.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            yield sign * np.where(np.isnan(values), missing, values)

    def quantiles(self, by: str = "avh", q: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0)) -> np.ndarray:
        """Quantiles of a score over the rows that have it."""
        levels = np.asarray(q, dtype=np.float64)
        if not ((levels >= 0) & (levels <= 1)).all():
            raise InputError(f"q must lie between 0 and 1, got {q!r:.80}.")
        return np.nanquantile(self.column(self._numeric(by)).cast(pa.float64(), safe=False).to_numpy(), levels)

    # Combining.

    def join(
        self, other: SampleTable | pa.Table | Mapping[str, Any] | Any, *, how: str = "left", suffix: str = "_right"
    ) -> SampleTable:
        """Columns of another table put beside the rows with the same id.

        Args:
            other: A `SampleTable`, an Arrow table, a data frame, or a mapping of columns, with a column ``id``.
            how: ``"left"`` keeps every row (missing values are null), ``"inner"`` keeps the rows found in both.
            suffix: Added to names that already exist.
        """
        if how not in ("left", "inner"):
            raise InputError(f"how must be 'left' or 'inner', got {how!r}.")
        right, rows = read_by_id(other, "other"), self._rows
        where = pc.index_in(rows["id"].cast(pa.string()), value_set=right["id"].combine_chunks())
        if how == "inner":
            rows, where = rows.filter(pc.is_valid(where)), where.drop_null()
        for name in right.column_names:
            if name == "id":
                continue
            new = name + suffix if name in rows.column_names else name
            if new in rows.column_names:
                raise InputError(f"the table already has {new!r}; give another suffix.")
            rows = rows.append_column(new, right[name].take(where))
        return self.with_rows(rows)

    def with_column(self, name: str, values: Any) -> SampleTable:
        """The table with one more column, one value per row."""
        if name in self:
            raise InputError(f"the table already has a column {name!r}.")
        column = pa.array(np.asarray(values))
        if len(column) != len(self):
            raise InputError(f"values must be one per row: expected {len(self):,}, got {len(column):,}.")
        return self.with_rows(self._rows.append_column(name, column))

    def select_rows(self, places: np.ndarray, columns: Sequence[str]) -> Rows:
        """Some columns of rows in any order; those of a large run stay on disk."""
        return self._rows.select(columns).take(pa.array(places))

    def with_rows(self, rows: Rows) -> SampleTable:
        """The table with these rows instead of its own, and the same metadata."""
        return SampleTable(rows, self.meta, self.bad, self._vectors)

    def aligned(self, ids: Any) -> pa.Table:
        """The rows of these ids, in order; null if an id is not in the table."""
        rows, ids = self._rows, pa.array(ids, pa.string())
        places = pc.index_in(ids, value_set=rows["id"].cast(pa.string()).combine_chunks())
        if isinstance(rows, StoredRows):  # which takes no nulls: its rows are put where their ids are
            here = rows.take(places.drop_null())
            rows = here.to_table() if isinstance(here, StoredRows) else here
            at = np.cumsum(places.is_valid().to_numpy(zero_copy_only=False)) - 1
            places = pa.array(at, mask=places.is_null().to_numpy(zero_copy_only=False))
        return rows.take(places)

    def with_norm_within_class(self) -> SampleTable:
        """Adds ``norm_within_class``: norms min–max scaled within each label, as the AVH paper does."""
        if "label" not in self:
            raise InputError("norm_within_class needs labels, and this table has none.")
        scaled = norm_within_class(self["norm"].copy(), self["label"].copy())  # Arrow's memory cannot be written to
        return self.with_column("norm_within_class", scaled.numpy())

    # Elsewhere.

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table: without a copy, but all rows of a large run on disk are read."""
        return self._rows.to_table() if isinstance(self._rows, StoredRows) else self._rows

    def to_pandas(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The rows as a pandas data frame; for a large run on disk, a warning says how large it will be.

        Args:
            columns: Which columns; all of them if not given.
        """
        return self._for_frame(columns).to_pandas()

    def to_polars(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """The rows as a polars data frame; `columns` as in `to_pandas`."""
        return need("polars").from_arrow(self._for_frame(columns))

    def _for_frame(self, columns: Sequence[str] | None) -> pa.Table:
        if columns is not None:
            return pa.table({name: self.column(name) for name in columns})
        if isinstance(self._rows, StoredRows) and (size := self._rows.nbytes) > _LARGE:
            warnings.warn(
                f"all {len(self.columns)} columns of {len(self):,} rows take about {size / 1e9:.1f} GB of memory; name "
                'those you need: columns=["id", "avh"].',
                UserWarning,
                stacklevel=3,
            )
        return self.to_arrow()

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a run folder: ``scores/*.parquet``, ``samples/*.parquet`` and ``meta.json``."""
        path = as_path(path)
        overwrite = check_new_run(path, overwrite)
        vectors = self.vectors  # which may lie in this same folder
        with RunWriter(path, {SAVED: secrets.token_hex(8)}, overwrite=overwrite) as writer:
            writer.write(split_rows(self.to_arrow(), self.bad, self.meta.model.name or "table", vectors))
            counts = replace(self.meta.counts or Counts(), rows=len(self), bad=len(self.bad))
            writer.finish(replace(self.meta, counts=counts))
        return path

    @classmethod
    def load(cls, path: str | Path, *, model: str | None = None, partial: bool = False) -> SampleTable:
        """Read a run folder.

        Args:
            path: The folder.
            model: Which network's scores, if the run holds several. If not given, each score is the mean over the
                networks, with ``<score>_sd`` beside it, ``agreement`` (the share that predicts ``pred``) and ``rank``,
                ``rank_low``, ``rank_high`` (by AVH; 1 is the hardest; the range over the networks).
            partial: Also read a run that is not finished.
        """
        table = cls(*read_table(path, model, partial))
        pa.default_memory_pool().release_unused()  # a large run would keep twice its size
        return table

    # Inside.

    def _take(self, index: np.ndarray) -> SampleTable:
        return self.with_rows(self._rows.take(pa.array(index)))

    def _checked(self, column: str) -> str:
        if column not in self:
            raise MissingKeyError(f"the table has no column {column!r}; {did_you_mean(column, self.columns)}")
        return column

    def _score_name(self, by: str) -> str:
        return self._checked(f"{by}_pred" if by not in self and f"{by}_pred" in self else by)

    def _numeric(self, by: str) -> str:
        type_ = self._rows.schema.field(name := self._score_name(by)).type
        if not is_number(type_):
            raise InputError(f"by must name a column of numbers, got {by!r}, which holds {type_}.")
        return name

    def _first(self, parts: Iterable[np.ndarray], n: int) -> np.ndarray:
        """The rows of the `n` smallest values, smallest first and NaN last; ties in the order of their ids."""
        rows, values, start = np.empty(0, np.int64), np.empty(0), 0
        for part in parts:
            rows, values = np.append(rows, np.arange(start, start + len(part))), np.append(values, part)
            start += len(part)
            if 0 < n < len(values):  # keep only those that may be among them
                last = np.partition(values, n - 1)[n - 1]
                kept = slice(None) if np.isnan(last) else values <= last
                rows, values = rows[kept], values[kept]
        ids = self.read_rows(rows, ["id"])["id"].cast(pa.string())
        keys = [("value", "ascending"), ("id", "ascending")]
        return rows[pc.sort_indices(pa.table({"value": values, "id": ids}), sort_keys=keys).to_numpy()[:n]]
