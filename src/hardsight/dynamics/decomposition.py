"""Angle or norm? The loss of each sample with one of the two from this epoch and the other from the one before.

A logit is ``‖x‖‖w_k‖ cos θ_k + b_k``. With L(θ, r) the loss at angles θ and at norms and biases r, a recorder keeps
L(θ', r) and L(θ, r') beside L(θ', r'), so that every change of the loss can be divided between the two.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from hardsight.dynamics.batches import Rows, joined
from hardsight.records import softplus

# So few numbers at a time that what is computed on the way stays in a processor's cache.
_CHUNK = 1 << 16
_THREADS = 4


def latest(old: Rows | None, new: Rows) -> Rows:
    """The last logits of each sample, by the `place` that it has among all: the new ones, and the old of the others."""
    columns = {name: new.columns[name] for name in ("cosines", "norm", "head", "place")}
    new = new._replace(columns=columns)
    if old is not None:
        new = joined([new, old.take(np.flatnonzero(~np.isin(old.columns["place"], columns["place"])))])
    used = np.bincount(new.columns["head"], minlength=new.heads.shape[1]) > 0
    head = (np.cumsum(used, dtype=np.int32) - 1)[new.columns["head"]]
    return Rows(new.ids, new.columns | {"head": head}, new.heads[:, used])


def swapped_losses(old: Rows | None, new: Rows) -> dict[str, np.ndarray]:
    """Cross-entropy with new angles and old norms, and with old angles and new norms; NaN where there is no old.

    Biases go with the norms: they are whatever of a logit is no angle.
    """
    losses = {name: np.full(len(new.ids), np.nan) for name in ("nll_angles", "nll_norms")}
    if old is None:
        return losses
    place = new.columns["place"]
    row = np.full(max(place.max(initial=-1), old.columns["place"].max(initial=-1)) + 1, -1)
    row[old.columns["place"]] = np.arange(len(old.ids))
    shared = np.flatnonzero(row[place] >= 0)
    step = max(1, _CHUNK // new.heads.shape[2])

    def compute(start: int) -> None:
        rows = shared[start : start + step]
        before, labels = row[place[rows]], new.columns["label"][rows]
        losses["nll_angles"][rows] = _nll((new, rows), (old, before), labels)
        losses["nll_norms"][rows] = _nll((old, before), (new, rows), labels)

    with ThreadPoolExecutor(_THREADS) as pool:  # NumPy computes in several at once
        list(pool.map(compute, range(0, len(shared), step)))
    return losses


def _nll(angles: tuple[Rows, np.ndarray], norms: tuple[Rows, np.ndarray], labels: np.ndarray) -> np.ndarray:
    """Losses at the cosines of some rows, with the norms and biases of others."""
    (source, rows), (rest, others) = angles, norms
    head = rest.columns["head"][others]
    logits = rest.heads[0].take(head, 0).astype(np.float64)
    logits *= source.columns["cosines"].take(rows, 0)
    logits *= rest.columns["norm"][others][:, None]
    logits += rest.heads[1].take(head, 0)
    logits = np.ascontiguousarray(logits.T)  # a few classes beside each other would be added up one by one
    target = logits[labels, np.arange(len(labels))]
    logits[labels, np.arange(len(labels))] = -np.inf
    top = logits.max(0)
    return softplus(top + np.log(np.exp(logits - top).sum(0)) - target)


def save_logits(logits: Rows, path: Path) -> None:
    """Write what `latest` gives, for a recorder that resumes."""
    from safetensors.numpy import save

    c, (lengths, biases) = logits.columns, logits.heads
    arrays = {"cosines": c["cosines"], "norms": c["norm"], "head": c["head"], "lengths": lengths, "biases": biases}
    path.write_bytes(save({k: np.ascontiguousarray(v) for k, v in {**arrays, "place": c["place"]}.items()}))


def load_logits(path: Path, samples: int) -> Rows | None:
    """What `save_logits` wrote of so many samples; None where the file holds something else.

    Old files hold all samples in their order, those without logits with the head −1.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path)
        columns = {"cosines": arrays["cosines"], "norm": arrays["norms"], "head": arrays["head"].astype(np.int32)}
        columns["place"] = arrays.get("place", np.arange(len(columns["head"]))).astype(np.int64)
        rows = np.flatnonzero(columns["head"] >= 0)
        logits = Rows(
            pa.nulls(len(columns["head"]), pa.string()), columns, np.stack([arrays["lengths"], arrays["biases"]])
        )
        logits = logits.take(rows)
        n, (_, heads, classes) = len(rows), logits.heads.shape
        fits = [column.shape == (n,) for name, column in logits.columns.items() if name != "cosines"]
        fits += [logits.columns["cosines"].shape == (n, classes), logits.columns["head"].max(initial=-1) < heads]
        fits += [logits.columns["place"].min(initial=0) >= 0, logits.columns["place"].max(initial=-1) < samples]
    except (SafetensorError, LookupError, TypeError, ValueError):  # KeyError: a type that numpy does not have
        return None
    return logits if all(fits) else None
