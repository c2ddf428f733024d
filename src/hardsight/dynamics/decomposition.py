"""Angle or norm? The loss of each sample with one of the two from this epoch and the other from the one before.

A logit is ``‖x‖‖w_k‖ cos θ_k + b_k``. With L(θ, r) the loss at angles θ and at norms and biases r, a recorder keeps
L(θ', r) and L(θ, r') beside L(θ', r'), so that every change of the loss can be divided between the two.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from hardsight.dynamics.batches import Rows, joined
from hardsight.losses.margins import soft_margin

# So few numbers at a time that what is computed on the way stays in a processor's cache.
_CHUNK, _THREADS = 1 << 16, 4


def compared(old: Rows | None, new: Rows) -> tuple[dict[str, np.ndarray], Rows]:
    """The losses of `swapped_losses`, and the last logits of each sample: new ones, or the old where there are none."""
    rows = new._replace(columns={name: new.columns[name] for name in ("cosines", "norm", "head")})
    before = np.full(len(new.ids), -1)
    if old is not None:
        before = pc.fill_null(pc.index_in(new.ids, value_set=old.ids), -1).to_numpy()
        rest = np.delete(np.arange(len(old.ids)), before[before >= 0])
        rows = joined([rows, old.take(rest)]) if len(rest) else rows
    used, rows.columns["head"] = np.unique(rows.columns["head"], return_inverse=True)
    return swapped_losses(old, new, before), rows._replace(heads=rows.heads[:, used])


def swapped_losses(old: Rows | None, new: Rows, before: np.ndarray) -> dict[str, np.ndarray]:
    """Cross-entropy with new angles and old norms, and with old angles and new norms; NaN where there is no old row.

    Biases go with the norms: whatever of a logit is not the angle. `before` is the old row of each new one, or −1.
    """
    losses = {name: np.full(len(new.ids), np.nan) for name in ("nll_angles", "nll_norms")}
    shared = np.flatnonzero(before >= 0)
    if old is None or not len(shared):
        return losses

    def compute(rows: np.ndarray) -> None:
        labels = torch.from_numpy(new.columns["label"][rows])
        sides = (_parts(new, rows), _parts(old, before[rows]))
        for name, ((angles, _, _), (_, norms, biases)) in zip(losses, (sides, sides[::-1]), strict=True):
            m = soft_margin(angles * norms + biases, labels)
            losses[name][rows] = torch.logaddexp(m, torch.zeros_like(m)).numpy()

    with ThreadPoolExecutor(_THREADS) as pool:  # torch computes several at once
        list(pool.map(compute, np.array_split(shared, 1 + shared.size * new.heads.shape[2] // _CHUNK)))
    return losses


def _parts(source: Rows, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines, norms and biases of some rows, which make up the logits, each ``(N, C)``."""
    c, head = source.columns, source.columns["head"][rows]
    arrays = c["cosines"].take(rows, 0), source.heads[0].take(head, 0), source.heads[1].take(head, 0)
    cosines, lengths, biases = (torch.from_numpy(array).double() for array in arrays)
    return cosines, lengths * torch.from_numpy(c["norm"][rows])[:, None], biases


def save_logits(logits: Rows, ids: pa.Array, path: Path) -> None:
    """Write the last logits of each sample, for a recorder that resumes; `ids` are those of all samples."""
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
