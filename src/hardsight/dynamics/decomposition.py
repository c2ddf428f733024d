"""Angle or norm? The loss of each sample with one of the two from this epoch and the other from the one before.

A logit is ``‖x‖‖w_k‖ cos θ_k + b_k``. With L(θ, r) the loss at angles θ and at norms and biases r, a recorder keeps
L(θ', r) and L(θ, r') beside L(θ', r'), so that every change of the loss can be divided between the two.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from hardsight.dynamics.batches import Rows, joined
from hardsight.losses.margins import soft_margin

# So few numbers at a time that what is computed on the way stays in a processor's cache.
_CHUNK = 1 << 16


def without(rows: Rows, ids: pa.Array) -> Rows:
    """The rows of all other samples."""
    return rows.take(np.flatnonzero(pc.is_null(pc.index_in(rows.ids, value_set=ids)).to_numpy(zero_copy_only=False)))


def latest(old: Rows | None, new: Rows) -> Rows:
    """The last logits of each sample: the new ones, and the old ones of the other samples."""
    rows = new._replace(columns={name: new.columns[name] for name in ("cosines", "norm", "head")})
    rows = rows if old is None else joined([rows, without(old, new.ids)])
    used, rows.columns["head"] = np.unique(rows.columns["head"], return_inverse=True)
    return rows._replace(heads=rows.heads[:, used])


def swapped_losses(old: Rows | None, new: Rows) -> dict[str, np.ndarray]:
    """Cross-entropy with new angles and old norms, and with old angles and new norms; NaN where there is no old.

    Biases go with the norms: they are whatever of a logit is no angle.
    """
    losses = {name: np.full(len(new.ids), np.nan) for name in ("nll_angles", "nll_norms")}
    if old is None:
        return losses
    before = pc.fill_null(pc.index_in(new.ids, value_set=old.ids), -1).to_numpy()
    shared = np.flatnonzero(before >= 0)
    for rows in np.array_split(shared, 1 + shared.size * new.heads.shape[2] // _CHUNK):
        labels = torch.from_numpy(new.columns["label"][rows])
        sides = (_parts(new, rows), _parts(old, before[rows]))
        for name, ((angles, _, _), (_, norms, biases)) in zip(losses, (sides, sides[::-1]), strict=True):
            m = soft_margin(angles * norms + biases, labels)
            losses[name][rows] = torch.logaddexp(m, torch.zeros_like(m)).numpy()
    return losses


def _parts(source: Rows, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines, norms and biases of some rows, of which the logits are made, each ``(N, C)``."""
    c, head = source.columns, source.columns["head"][rows]
    arrays = c["cosines"].take(rows, 0), source.heads[0].take(head, 0), source.heads[1].take(head, 0)
    cosines, lengths, biases = (torch.from_numpy(array).double() for array in arrays)
    return cosines, lengths * torch.from_numpy(c["norm"][rows])[:, None], biases


def save_logits(logits: Rows, ids: pa.Array, path: Path) -> None:
    """Write what `latest` returns, for a recorder that resumes; `ids` are those of all samples."""
    from safetensors.numpy import save

    c, (lengths, biases) = logits.columns, logits.heads
    arrays = {"cosines": c["cosines"], "norms": c["norm"], "head": c["head"], "lengths": lengths, "biases": biases}
    arrays["place"] = pc.index_in(logits.ids, value_set=ids).to_numpy()
    path.write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def load_logits(path: Path, ids: pa.Array) -> Rows | None:
    """What `save_logits` wrote; None where the file holds something else."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path)
        columns = {"cosines": arrays["cosines"], "norm": arrays["norms"], "head": arrays["head"].astype(np.int64)}
        heads = np.stack([arrays["lengths"], arrays["biases"]])
        logits = Rows(ids.take(pa.array(arrays["place"])), columns, heads)
        n, (_, k, classes) = len(logits.ids), heads.shape
        fits = columns["cosines"].shape == (n, classes) and columns["norm"].shape == columns["head"].shape == (n,)
        fits = fits and bool(np.all((columns["head"] >= 0) & (columns["head"] < k)))
    except (SafetensorError, LookupError, TypeError, ValueError):  # KeyError: a type that numpy does not have
        return None
    return logits if fits else None
