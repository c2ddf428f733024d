"""Several networks over the same samples: their mean, their spread, and the uncertainty of ranks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.scores import SCORES


def mean_over_nets(scores: pa.Table) -> pa.Table:
    """One row per sample from one row per sample and network (columns ``id``, ``model``, ``pred`` and scores).

    Each score becomes its mean over the networks, with the sample standard deviation as ``<score>_sd``. ``pred`` is
    what most networks predict (in a tie, the most confident class), ``agreement`` their share. ``rank`` is by the mean
    AVH, 1 the hardest; ``rank_low`` and ``rank_high`` are the smallest and the largest rank that any network alone
    gave. Other columns are those of the first network. Samples that any network lacks are left out.
    """
    nets = [scores.filter(pc.equal(scores["model"], name)) for name in pc.unique(scores["model"]).to_pylist()]
    ids = nets[0]["id"].combine_chunks()
    for rows in nets[1:]:
        ids = ids.filter(pc.is_in(ids, value_set=rows["id"].combine_chunks()))
    nets = [rows.take(pc.index_in(ids, value_set=rows["id"].combine_chunks())) for rows in nets]

    def stacked(name: str) -> np.ndarray:
        return np.stack([rows[name].to_numpy().astype(np.float64) for rows in nets])

    columns = {name: nets[0][name] for name in scores.column_names} | _vote(nets)
    for name in [name for name in columns if name.removesuffix("_pred") in SCORES]:
        values = stacked(name)
        columns[name], columns[f"{name}_sd"] = pa.array(values.mean(0)), pa.array(values.std(0, ddof=1))
    by = next((name for name in ("avh", "avh_pred") if name in columns), None)
    if by is not None:
        from scipy.stats import rankdata

        ranks = rankdata(-stacked(by), axis=1)
        columns["rank"] = pa.array(rankdata(-np.asarray(columns[by])))
        columns["rank_low"], columns["rank_high"] = pa.array(ranks.min(0)), pa.array(ranks.max(0))
    return pa.table(columns)


def _vote(nets: list[pa.Table]) -> dict[str, pa.Array]:
    """What most networks predict, and how many of them."""
    preds = np.stack([rows["pred"].to_numpy() for rows in nets])
    votes = np.stack([(preds == pred).sum(0) for pred in preds]).astype(np.float64)
    agreement = votes.max(0) / len(nets)
    if {"max_logit", "free_energy"} <= set(nets[0].column_names):  # their sum is the log-probability of the prediction
        confidences = [np.exp(rows["max_logit"].to_numpy() + rows["free_energy"].to_numpy()) for rows in nets]
        votes += np.clip(np.stack(confidences), 0, 1) / 2
    return {"pred": pa.array(preds[votes.argmax(0), np.arange(preds.shape[1])]), "agreement": pa.array(agreement)}


def mean_vectors(vectors: pa.Table) -> pa.Table:
    """One row per sample: the first network's sketch (each has axes of its own), the mean of the probabilities."""
    names = pc.unique(vectors["model"]).to_pylist()
    first = vectors.filter(pc.equal(vectors["model"], names[0])) if len(names) > 1 else vectors
    if len(names) > 1 and "probabilities" in vectors.column_names:
        total, shared = np.zeros(()), np.ones(len(first), bool)
        for name in names:
            rows = vectors.filter(pc.equal(vectors["model"], name))
            place = pc.index_in(first["id"], value_set=rows["id"].combine_chunks())
            shared &= pc.is_valid(place).to_numpy()
            total = total + matrix(rows.take(pc.fill_null(place, 0)), "probabilities").astype(np.float64)
        mean = as_lists((total / len(names)).astype(np.float32))
        first = first.set_column(first.column_names.index("probabilities"), "probabilities", mean)
        first = first.filter(pa.array(shared))
    return first.drop_columns(["model"])


def matrix(table: pa.Table, column: str, rows: np.ndarray | None = None) -> np.ndarray:
    """A column of lists of one length as ``(N, width)``, or some rows of it, without a second copy of the whole."""
    lists = table[column]
    rows = np.arange(len(lists)) if rows is None else rows
    width, type_ = lists.type.list_size, lists.type.value_type.to_pandas_dtype()
    values, start = np.empty((len(rows), width), type_), 0
    for chunk in lists.chunks:
        here = (rows >= start) & (rows < start + len(chunk))
        flat = np.asarray(chunk.values)[chunk.offset * width : (chunk.offset + len(chunk)) * width]
        values[here] = flat.reshape(-1, width)[rows[here] - start]
        start += len(chunk)
    return values


def as_lists(values: np.ndarray) -> pa.Array:
    """``(N, width)`` as a column of lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
