"""From features to rows: scores of the good samples, reasons for the bad ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hardsight.angles import angle_between_units, as_float64, unit
from hardsight.scores import avh_series, bad_rows, compute_scores

BadSamples = Sequence[tuple[str, str]]  # id and reason


def scored_rows(
    ids: Sequence[str],
    features: Tensor,
    weight: Tensor,
    labels: Tensor | None,
    bias: Tensor | None,
    names: Sequence[str] | None,
) -> tuple[pa.Table, pa.Table]:
    """Rows of the samples whose features are finite, and the others with their reason.

    `names` are the scores to compute; None means AVH by the series, with its error bound.
    """
    ids, features, labels, lost = _finite(ids, features, labels)
    with torch.no_grad():
        at = None if labels is None else labels.to(features.device)
        if names is None:
            value, error = avh_series(features, weight, at)
            directions, norms = unit(as_float64(features))
            target = angle_between_units(directions, unit(as_float64(weight[at]))[0])
            columns = {"avh": value, "avh_error": error, "angle": target, "norm": norms}
        else:
            columns = compute_scores(features, weight, at, bias, names)
    rows = _rows(ids, labels, columns)
    whole = np.all([np.isfinite(rows[name].to_numpy()) for name in columns], axis=0)
    lost += [
        (id_, "the logits overflow: features or weights are too large") for id_ in rows["id"].filter(~whole).to_pylist()
    ]
    return rows.filter(whole), bad_table(lost)


def feature_rows(ids: Sequence[str], features: Tensor, labels: Tensor | None) -> tuple[pa.Table, pa.Table]:
    """Rows without scores: id, label and norm of the samples whose features are finite, and the others."""
    ids, features, labels, lost = _finite(ids, features, labels)
    return _rows(ids, labels, {"norm": as_float64(features).norm(dim=1)}), bad_table(lost)


def _finite(
    ids: Sequence[str], features: Tensor, labels: Tensor | None
) -> tuple[Sequence[str], Tensor, Tensor | None, list[tuple[str, str]]]:
    """Without the samples whose features are broken, which come last with their reason."""
    broken = bad_rows(features).cpu()
    lost = [(ids[i], "the feature holds NaN or infinity") for i in broken.nonzero()[:, 0].tolist()]
    if lost:
        keep = (~broken).nonzero()[:, 0]
        ids, features = [ids[i] for i in keep.tolist()], features[keep.to(features.device)]
        labels = None if labels is None else labels[keep]
    return ids, features, labels, lost


def _rows(ids: Sequence[str], labels: Tensor | None, columns: Mapping[str, Tensor]) -> pa.Table:
    table = {"id": pa.array(ids, pa.string())}
    if labels is not None:
        table["label"] = pa.array(labels.cpu().numpy())
    return pa.table(table | {name: pa.array(values.cpu().numpy()) for name, values in columns.items()})


def bad_table(bad: BadSamples) -> pa.Table:
    """Ids and reasons as a table."""
    ids, errors = zip(*bad, strict=True) if bad else ((), ())
    return pa.table({"id": pa.array(ids, pa.string()), "error": pa.array(errors, pa.string())})


def zero_features(rows: pa.Table) -> int:
    """How many samples had a zero feature, and so an angle of π/2 to every class."""
    return int((rows["norm"].to_numpy() == 0).sum()) if "norm" in rows.column_names else 0
