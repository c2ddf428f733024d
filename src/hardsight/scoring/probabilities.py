"""Predicted probabilities and labels alone: the rows of `score` without angles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import torch

from hardsight.data import id_texts
from hardsight.ensemble import as_lists
from hardsight.errors import InputError
from hardsight.probabilities import check_probabilities
from hardsight.reading import read_logits
from hardsight.scores import SCORES, check_labels
from hardsight.scoring.checks import check_ids, warn_if_chance
from hardsight.scoring.network import finish
from hardsight.scoring.rows import MOST_PROBABILITIES, numbered_ids
from hardsight.table import SampleTable


def score_probabilities(
    pred_probs: Any,
    labels: Any,
    ids: Sequence[Any] | None = None,
    *,
    class_names: Sequence[str] | None = None,
    out_of_sample: bool | None = None,
    name: str = "probabilities",
) -> SampleTable:
    """The rows of `score` from predicted probabilities and labels: every score that needs no features.

    Args:
        pred_probs: ``(N, C)`` probabilities of the classes, best by networks that did not train on these samples.
        labels: ``(N,)`` class indices.
        ids: One id per row; ``data:0``, ``data:1`` … if not given.
        class_names: One name per column.
        out_of_sample: Whether the samples were kept out of training, for instance by cross-validation; None if unknown.
        name: What to call the model in the table.

    Examples:
        >>> table = score_probabilities([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]], [0, 1, 0])
        >>> table.hardest(1, "confidence")["id"].tolist()
        ['data:2']
    """
    p = check_probabilities("pred_probs", pred_probs)
    if labels is None:
        raise InputError("labels must be given, one class index per row of pred_probs.")
    target = check_labels(labels, len(p), p.shape[1], "pred_probs")
    names = [str(class_name) for class_name in class_names or ()]
    if names and len(names) != p.shape[1]:
        raise InputError(f"class_names must be one per column of pred_probs ({p.shape[1]}), got {len(names)}.")
    texts = numbered_ids(len(p)) if ids is None else id_texts(ids, "ids", len(p))
    check_ids(texts)
    # The logarithms are logits: they give every score but those of angles and norms.
    reading = read_logits(p.clamp_min(torch.finfo(torch.float32).tiny).log(), target)
    columns = {score.name: score.of_reading(reading) for score in SCORES.values() if score.logits}
    columns = {"label": target, "pred": reading.pred, **{k: v for k, v in columns.items() if torch.isfinite(v).all()}}
    rows = pa.table({"id": pa.array(texts, pa.string()), **{key: values.numpy() for key, values in columns.items()}})
    kept = p.shape[1] <= MOST_PROBABILITIES
    vectors = pa.table({"id": rows["id"], "probabilities": as_lists(p.float().numpy())}) if kept else None
    about: dict[str, Any] = {"model": {"name": name, "classes": p.shape[1]}, "class_names": names}
    about |= {"data": {"origin": f"{len(p):,} rows of probabilities"}, "out_of_sample": out_of_sample}
    about["scores"] = [column for column in columns if column in SCORES]
    return warn_if_chance(finish(None, SampleTable(rows, None, None, vectors), about))
