"""`SampleTable`: one row per sample, its scores in columns; and which way each column is harder."""

from __future__ import annotations

import html
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.ensemble import mean_over_nets, mean_vectors
from hardsight.errors import ExistingPathError, InputError, MissingKeyError, StateError
from hardsight.extras import need, printable
from hardsight.idtables import as_arrow, read_by_id
from hardsight.printing import cell, text_table
from hardsight.records import has_records, read_index, scores_of
from hardsight.registry import did_you_mean, whole_number
from hardsight.runs import Counts, Meta, RunWriter, is_number, is_run, read_run
from hardsight.scores import SCORES, norm_within_class

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

_SAVED = "saved_table"  # what the plan of a table that was saved as a whole holds


# Every column that hardsight writes about a sample, except the scores, which say it themselves. True: a larger value
# is harder; False: a smaller one is; None: neither, so that nothing can be ranked by it.
COLUMNS: Mapping[str, bool | None] = {
    # What a sample is, and several networks; rank 1 is the hardest.
    **dict.fromkeys(("id", "label", "pred", "model", "fold", "epoch", "error", "avh_error")),
    **dict.fromkeys(("correct", "agreement", "rank", "rank_low", "rank_high"), False),
    # Training: what one epoch records, and the summary over all of them.
    **dict.fromkeys(("angle_sum", "other_angle", "seen")),
    **dict.fromkeys(("nll_angles", "nll_norms", "forgetting", "learned", "variability"), True),
    **dict.fromkeys(("mean_confidence", "aum", "correctness"), False),
    # The page's ranks, 1 the hardest of all; two runs; label errors.
    **dict.fromkeys(("rank_angle", "rank_logit", "rank_change", "suspicion"), True),
    **dict.fromkeys(("fixed", "broken", "relabelled", "p_pred", "suspect", "suggested", "action", "reason")),
    "p_label": False,
    # People, and what is compared with them; degraded images, of which some are harder at lower levels.
    **dict.fromkeys(("hsf", "temperature_confidence"), False),
    **dict.fromkeys(("votes_entropy", "total", "aleatoric", "epistemic"), True),
    **dict.fromkeys(("answers", "majority", "degradation", "level")),
    # Evaluations, named question/metric:score@level.
    **dict.fromkeys(("calibration/nll", "calibration/brier", "uncertainty/mean"), True),
    **dict.fromkeys(("margins/margin_below_zero", "margins/energy", "robustness/avh"), True),
    **dict.fromkeys(("calibration/accuracy", "margins/margin", "clusters/silhouette"), False),
    **dict.fromkeys(("robustness/accuracy", "robustness/norm", "robustness/confidence"), False),
    **dict.fromkeys(("clusters/features", "explanation/insertion", "explanation/deletion", "explanation/faithfulness")),
    **dict.fromkeys(("explanation/infidelity", "explanation/entropy", "explanation/area", "explanation/mass_inside")),
}

# Behind a name these change a value and not its direction: where it is taken, in which run, over what it is averaged.
# (Not "_sd": how far networks differ says nothing about which way is harder.)
_ENDINGS = ("_pred", "_right", "_before", "_change", "_within_class", "_epochs", "_early", "_late", "_z", "_ensemble")


def larger_is_harder(column: str) -> bool | None:
    """Which way a column is harder, by its name: None where it has no direction, or where hardsight does not write it.

    Examples:
        >>> larger_is_harder("avh"), larger_is_harder("confidence_before"), larger_is_harder("rank")
        (True, False, False)
        >>> larger_is_harder("label"), larger_is_harder("camera")
        (None, None)
    """
    column = column.partition(":")[0] if "/" in column else column
    if column in COLUMNS:
        return COLUMNS[column]
    if column in SCORES:
        return SCORES[column].higher_is_harder
    ending = next((ending for ending in _ENDINGS if column.endswith(ending)), "")
    return larger_is_harder(column.removesuffix(ending)) if ending else None


def hardness_sign(column: str, largest: bool | None = None) -> int:
    """1 where a larger value is harder, −1 where a smaller one is, as the column's name says unless `largest` does."""
    larger = larger_is_harder(column) if largest is None else largest
    if larger is None:
        raise InputError(
            f"nothing says which values of {column!r} are harder; to rank by it give largest=True or False."
        )
    return 1 if larger else -1


def harder_end(column: str) -> Literal["larger", "smaller", ""]:
    """The same in a word, for pages; empty where a column has no direction."""
    larger = larger_is_harder(column)
    return "" if larger is None else "larger" if larger else "smaller"


class SampleTable:
    """One row per sample: ``id``, ``label``, ``pred`` and one column per score.

    Attributes:
        meta: How it was made: command, versions, fingerprints, preprocessing, counts.
        bad: Samples that could not be scored: ``id`` and ``error``.
        vectors: What else is known of the samples, by ``id``: a ``sketch`` of the feature's direction and, up to 100
            classes, ``probabilities``; None where they were not kept.

    Examples:
        >>> table = SampleTable.from_columns({"id": ["a", "b"], "label": [0, 1], "pred": [0, 0], "avh": [0.2, 0.7]})
        >>> table.hardest(1)["id"].tolist()
        ['b']
    """

    def __init__(
        self,
        rows: pa.Table | Callable[[], pa.Table],  # what is on a device is fetched when asked for
        meta: Meta | Mapping[str, Any] | None = None,
        bad: pa.Table | None = None,
        vectors: pa.Table | Callable[[], pa.Table | None] | None = None,
    ) -> None:
        self._source = rows
        self.meta = replace(meta) if isinstance(meta, Meta) else Meta.from_json(meta or {})
        self._vectors = vectors  # of a run on disk they are read when asked for
        self.bad = _no_rows("id", "error") if bad is None else bad
        if not callable(rows):
            _ = self._rows

    @cached_property
    def _rows(self) -> pa.Table:
        rows = self._source() if callable(self._source) else self._source
        self._source = None
        if "id" not in rows.column_names:
            raise InputError(f"a SampleTable needs a column id, got {', '.join(rows.column_names)}.")
        if missing := rows["id"].null_count:
            raise InputError(f"ids must name every sample, but {missing:,} of {len(rows):,} are missing.")
        if repeated := len(rows) - len(pc.unique(rows["id"])):
            values = pc.value_counts(rows["id"])
            first = values.filter(pc.greater(values.field("counts"), 1))[0]["values"].as_py()
            raise InputError(f"ids must be unique, but {repeated:,} repeat (first: {first!r}).")
        return rows.combine_chunks()

    def __getstate__(self) -> dict[str, Any]:
        return {"_rows": self._rows, "meta": self.meta, "bad": self.bad, "_vectors": self.vectors}

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any], meta: Meta | Mapping[str, Any] | None = None) -> SampleTable:
        """A table from arrays of one length, by column name."""
        return cls(as_arrow(columns, "columns"), meta)

    @property
    def vectors(self) -> pa.Table | None:
        if callable(self._vectors):
            self._vectors = self._vectors()
        return self._vectors

    # Looking.

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, column: str) -> np.ndarray:
        """A column as a NumPy array."""
        return self._rows[self._checked(column)].to_numpy()

    def __contains__(self, column: str) -> bool:
        return column in self._rows.column_names

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return self._rows.column_names

    @property
    def scores(self) -> list[str]:
        """Columns that are registered scores (``avh``, or ``avh_pred`` without labels)."""
        return [name for name in self.columns if name.removesuffix("_pred") in SCORES]

    @property
    def accuracy(self) -> float | None:
        """Share of labeled rows whose prediction is their label."""
        if "label" not in self or "pred" not in self or self._rows["label"].null_count == len(self):
            return None
        return pc.mean(pc.equal(self._rows["label"], self._rows["pred"]).cast(pa.float64())).as_py()

    @property
    def _title(self) -> str:
        accuracy = "" if self.accuracy is None else f"accuracy {self.accuracy:.1%}"
        notes = ", ".join(filter(None, (printable(self.meta.model.name or ""), accuracy)))
        return f"SampleTable: {len(self):,} rows × {len(self.columns)} columns" + (f" ({notes})" if notes else "")

    def __repr__(self) -> str:
        rows, shown = self._rows.slice(0, 5).to_pylist(), self.columns
        while len((lines := text_table(rows, {name: printable(name) for name in shown}))[0]) > 120 and len(shown) > 1:
            shown = shown[:-1]
        more = "  …" if len(shown) < len(self.columns) else ""
        return "\n".join([self._title, *(line + more for line in lines), *(["…"] if len(self) > 5 else [])])

    def _repr_html_(self) -> str:
        rows = [[cell(value) for value in row.values()] for row in self._rows.slice(0, 10).to_pylist()]
        head, *lines = [[html.escape(text) for text in row] for row in ([printable(n) for n in self.columns], *rows)]
        body = "".join(f"<tr><td>{'</td><td>'.join(line)}</td></tr>" for line in lines)
        table = f"<table><thead><tr><th>{'</th><th>'.join(head)}</th></tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{html.escape(self._title)}</p>{table}{'<p>…</p>' if len(self) > 10 else ''}"

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
        return self._take(self._first(-self.hardness(by, largest=largest), whole_number("n", n, 0)))

    def easiest(self, n: int = 20, by: str = "avh", *, largest: bool | None = None) -> SampleTable:
        """The `n` easiest samples, easiest first; ties in the order of their ids. Options are those of `hardest`."""
        return self._take(self._first(self.hardness(by, largest=largest), whole_number("n", n, 0)))

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
        name = self._score_name(by)
        values = self[name]
        if values.dtype.kind not in "fiub":
            raise InputError(f"by must name a column of numbers, got {by!r}, which holds {values.dtype}.")
        sign, values = hardness_sign(name, largest), values.astype(np.float64)
        if name == "learned":
            values = np.where(np.isnan(values), np.fmax.reduce(values, initial=0) + 1, values)
        return sign * values

    def quantiles(self, by: str = "avh", q: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0)) -> np.ndarray:
        """Quantiles of a score over the rows."""
        return np.nanquantile(self[self._score_name(by)], q)

    # Combining.

    def join(
        self, other: SampleTable | pa.Table | Mapping[str, Any] | Any, *, how: str = "left", suffix: str = "_right"
    ) -> SampleTable:
        """Columns of another table put beside the rows with the same id.

        Args:
            other: A `SampleTable`, an Arrow table, a data frame, or a mapping of columns, with a column ``id``.
            how: ``"left"`` keeps every row (missing values are null), ``"inner"`` keeps the rows found in both.
            suffix: Put after names that are already there.
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
                raise InputError(f"the table has {new!r} already; give another suffix.")
            rows = rows.append_column(new, right[name].take(where))
        return self.with_rows(rows)

    def with_column(self, name: str, values: Any) -> SampleTable:
        """The table with one more column, one value per row."""
        if name in self:
            raise InputError(f"the table has a column {name!r} already.")
        column = pa.array(np.asarray(values))
        if len(column) != len(self):
            raise InputError(f"values must be one per row: expected {len(self):,}, got {len(column):,}.")
        return self.with_rows(self._rows.append_column(name, column))

    def with_rows(self, rows: pa.Table) -> SampleTable:
        """The table with these rows instead of its own; what is known of how it was made stays."""
        return SampleTable(rows, self.meta, self.bad, self._vectors)

    def aligned(self, ids: Any) -> pa.Table:
        """The rows of these ids, in their order; null where an id is not in the table."""
        rows = self.to_arrow()
        return rows.take(
            pc.index_in(pa.array(ids, pa.string()), value_set=rows["id"].cast(pa.string()).combine_chunks())
        )

    def with_norm_within_class(self) -> SampleTable:
        """Adds ``norm_within_class``: norms min–max scaled within each label, as the AVH paper does."""
        if "label" not in self:
            raise InputError("norm_within_class needs labels, and this table has none.")
        scaled = norm_within_class(self["norm"].copy(), self["label"].copy())  # Arrow's memory cannot be written to
        return self.with_column("norm_within_class", scaled.numpy())

    # Elsewhere.

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table, without a copy."""
        return self._rows

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas data frame."""
        need("pandas")
        return self._rows.to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars data frame."""
        return need("polars").from_arrow(self._rows)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a run folder: ``scores/*.parquet``, ``samples/*.parquet`` and ``meta.json``."""
        path = Path(path)
        if not overwrite and is_run(path):
            there = read_run(path, partial=True, kinds=())[1]
            overwrite = _SAVED in there.extra and there.unfinished  # what a kill left of another saving
            if not overwrite:
                raise ExistingPathError(f"RUN: {path} is there already; choose another folder, or overwrite it.")
        vectors = self.vectors  # which may lie in this very folder
        with RunWriter(path, {_SAVED: secrets.token_hex(8)}, overwrite=overwrite) as writer:
            writer.write(split_rows(self._rows, self.bad, self.meta.model.name or "table", vectors))
            counts = replace(self.meta.counts or Counts(), rows=len(self), bad=len(self.bad))
            writer.finish(replace(self.meta, counts=counts))
        return path

    @classmethod
    def load(cls, path: str | Path, *, model: str | None = None, partial: bool = False) -> SampleTable:
        """Read a run folder.

        Args:
            path: The folder.
            model: Which network's scores, when the run holds several. Without it each score is the mean over the
                networks, with ``<score>_sd`` beside it, ``agreement`` (the share that predicts ``pred``) and
                ``rank``, ``rank_low``, ``rank_high`` (by AVH; 1 is the hardest; the range over the networks).
            partial: Also read a run that is not finished.
        """
        table = cls(*_read_table(path, model, partial))
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

    def _first(self, values: np.ndarray, n: int) -> np.ndarray:
        """The rows of the `n` smallest values, the smallest first and NaN last; ties in the order of their ids."""
        rows = np.arange(len(self))
        if 0 < n < len(self):  # only those that may be among them are sorted
            last = np.partition(values, n - 1)[n - 1]
            rows = rows if np.isnan(last) else np.flatnonzero(values <= last)
        ids = self._rows["id"].take(pa.array(rows)).to_numpy()
        return rows[np.lexsort((np.asarray(ids, dtype=str), values[rows]))[:n]]


def split_rows(rows: pa.Table, bad: pa.Table, model: str, vectors: pa.Table | None = None) -> dict[str, pa.Table]:
    """A table of rows as the tables of a run: what a sample is, and what a model makes of it."""
    columns, missing = dict(zip(rows.column_names, rows.columns, strict=True)), pa.nulls(len(rows), pa.int64())
    ids, label, pred = columns.pop("id"), columns.pop("label", missing), columns.pop("pred", missing)
    texts = {name: values for name, values in columns.items() if not is_number(values.type)}
    numbers = {name: values for name, values in columns.items() if name not in texts}
    samples = pa.table({"id": ids, "label": label, "error": pa.nulls(len(rows), pa.string()), **texts})
    scores = pa.table({"id": ids, "model": pa.repeat(model, len(rows)), "pred": pred, **numbers})
    tables = {"samples": pa.concat_tables([samples, bad], promote_options="default"), "scores": scores}
    if vectors is not None:
        tables["vectors"] = vectors.add_column(1, "model", pa.repeat(model, len(vectors)))
    return tables


def _read_table(path: str | Path, model: str | None, partial: bool) -> tuple[Any, ...]:
    """What a `SampleTable` takes: rows, meta, bad samples and how to read the vectors."""
    tables, meta = read_run(path, partial=partial, kinds=("samples", "scores"))
    if not tables and has_records(path):  # of a run that was recorded while it trained: the last epoch
        if not (epochs := read_index(path).epochs):
            raise StateError(f"RUN: {path} is being recorded and holds no finished epoch yet.")
        if (classes := meta.model.classes) is None:
            raise StateError(f"RUN: {path} is damaged: its meta.json does not say how many classes there are.")
        return scores_of(path, epochs[-1], classes), meta
    samples = tables.get("samples", _no_rows("id", "label", "error"))
    scores = tables.get("scores", _no_rows("id", "model", "pred"))
    names = pc.unique(scores["model"]).to_pylist()
    if model is not None:
        if model not in names:
            raise InputError(f"RUN: {path} holds no model {model!r}; {did_you_mean(model, names)}")
        scores = scores.filter(pc.equal(scores["model"], model))
    elif len(names) > 1:
        scores, meta = mean_over_nets(scores), replace(meta, models=names)
    bad = samples.filter(pc.is_valid(samples["error"])).select(["id", "error"])
    if not scores["id"].equals(samples["id"]):  # of a run without a bad sample they are
        samples = samples.take(pc.index_in(scores["id"], value_set=samples["id"].combine_chunks()))
    about = {name: samples[name] for name in samples.column_names if name not in ("id", "error")}
    label = about.pop("label")
    columns = {"id": scores["id"], **({} if label.null_count == len(scores) else {"label": label})}
    columns |= {name: scores[name] for name in scores.column_names if name not in ("id", "model")}
    return pa.table(columns | about), meta, bad, lambda: read_vectors(path, model, partial)


def read_vectors(path: str | Path, model: str | None = None, partial: bool = False) -> pa.Table | None:
    """The vectors of a run, of one network or averaged over all of them; None where none were kept."""
    vectors = read_run(path, partial=partial, kinds=("vectors",))[0].get("vectors")
    if vectors is None:
        return None
    if model is not None:
        vectors = vectors.filter(pc.equal(vectors["model"], model))
    pa.default_memory_pool().release_unused()
    return mean_vectors(vectors)


def _no_rows(*columns: str) -> pa.Table:
    return pa.table({name: pa.array([], pa.string()) for name in columns})
