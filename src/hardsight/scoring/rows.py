"""Features → rows: all columns are computed on the features' device, and copied to the host together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hardsight.angles import as_float64, unit
from hardsight.chance import Chance, chance_of_counts
from hardsight.ensemble import as_lists
from hardsight.fastreading import target_angle
from hardsight.scores import avh_series, bad_rows, compute_scores

# What is stored of the features. "direction" sketches the feature itself, in axes that only one network's samples
# share; "cosines" sketches its cosines to the classes, which networks trained on different folds share; "features"
# stores the features for a head that is still to be fitted.
Keep = Literal["direction", "cosines", "features"]
SKETCH_WIDTH, MOST_PROBABILITIES = 32, 100
_BLOCK = 1 << 25  # numbers of features in one step of a sketch


class Block(NamedTuple):
    """Samples that were scored together: their rows, ids and reasons of the bad ones, and what `Keep` asks for."""

    rows: pa.Table
    bad: pa.Table
    vectors: pa.Table | None = None


class Tally(NamedTuple):
    """Whether all numbers are finite, how many features are zero, and how far predictions agree with labels, if any."""

    finite: bool
    zeros: int
    accuracy: float | None
    chance: Chance | None


class DeviceColumns(NamedTuple):
    """What was computed for some samples, on the device: numbers, stacked by type, and vectors."""

    stacks: Mapping[torch.dtype, tuple[list[str], Tensor]]
    names: list[str]
    vectors: dict[str, Tensor] | None

    def finite(self) -> Tensor:
        """``(N,)`` mask of the samples whose numbers are all finite."""
        return torch.stack([torch.isfinite(stack).all(0) for _, stack in self.stacks.values()]).all(0)

    def column(self, name: str) -> Tensor:
        """One of the numbers, ``(N,)``."""
        return next(stack[names.index(name)] for names, stack in self.stacks.values() if name in names)

    def tally(self, classes: int) -> Tally:
        """The counts that a table's meta data need, in one transfer."""
        norm = self.column("norm")
        numbers, judged = [self.finite().all(), (norm == 0).sum()], {"label", "pred"} <= {*self.names}
        if judged:
            label, pred = self.column("label"), self.column("pred")
            none = label.new_zeros(classes)
            numbers += [(label == pred).sum(), *(none.index_add(0, k, torch.ones_like(k)) for k in (label, pred))]
        finite, zeros, *agreement = torch.cat([number.reshape(-1).long() for number in numbers]).tolist()
        if not judged:
            return Tally(bool(finite), zeros, None, None)
        matches, counts = agreement[0], np.array(agreement[1:]).reshape(2, classes)
        return Tally(bool(finite), zeros, matches / len(norm), chance_of_counts(counts, matches))

    def rows(self, ids: pa.Array) -> pa.Table:
        """The numbers as a table on the host."""
        stacks = [(names, stack.cpu().numpy()) for names, stack in self.stacks.values()]
        arrays = {name: values for names, stack in stacks for name, values in zip(names, stack, strict=True)}
        return pa.table({"id": ids, **{name: arrays[name] for name in self.names}})

    def vector_rows(self, ids: pa.Array) -> pa.Table | None:
        """The vectors as a table on the host."""
        if self.vectors is None:
            return None
        return pa.table({"id": ids, **{name: as_lists(values.cpu().numpy()) for name, values in self.vectors.items()}})


def score_columns(
    features: Tensor,
    weight: Tensor,
    labels: Tensor | None,
    bias: Tensor | None,
    scores: Sequence[str] | None,
    keep: Keep | None,
) -> DeviceColumns:
    """Every column of samples whose features are finite.

    Without `scores`, AVH is computed by the series, with its error bound. Where features are stored for a head that is
    still to be fitted, there is no score but the norm.
    """
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        targets = None if labels is None else labels.to(features.device)
        if keep == "features":
            columns = {"norm": as_float64(features).norm(dim=1)}
        elif scores is None:
            columns = _series_scores(features, weight, targets)
        else:
            columns = compute_scores(features, weight, targets, bias, scores)
        norm = columns.get("norm")
        if targets is not None:  # where the scores are: on the CPU, if the device has no float64
            columns = {"label": targets.to(next(iter(columns.values())).device), **columns}
        stacks = {}
        for dtype in {values.dtype: None for values in columns.values()}:
            names = [name for name, values in columns.items() if values.dtype == dtype]
            stacks[dtype] = names, torch.stack([columns[name] for name in names])
        vectors = None if keep is None else _vectors(features, weight, bias, keep, norm)
    return DeviceColumns(stacks, list(columns), vectors)


def score_block(
    ids: Sequence[str],
    features: Tensor,
    weight: Tensor,
    labels: Tensor | None,
    bias: Tensor | None,
    scores: Sequence[str] | None,
    keep: Keep | None,
) -> Block:
    """Rows of the samples whose features and scores are finite; the others are bad (see `score_columns`)."""
    broken = bad_rows(features)
    bad = [(ids[i], "the feature holds NaN or infinity") for i in broken.nonzero()[:, 0].tolist()]
    if bad:
        good = (~broken).nonzero()[:, 0]
        ids, features = [ids[i] for i in good.tolist()], features[good]
        labels = None if labels is None else labels[good.to(labels.device)]
    columns, names = score_columns(features, weight, labels, bias, scores, keep), pa.array(ids, pa.string())
    rows, vectors, finite = columns.rows(names), columns.vector_rows(names), columns.finite().cpu().numpy()
    if not finite.all():
        reason = "the logits overflow: features or weights are too large"
        bad += [(id_, reason) for id_ in names.filter(~finite).to_pylist()]
        rows, vectors = rows.filter(finite), None if vectors is None else vectors.filter(finite)
    return Block(rows, bad_table(bad), vectors)


def _series_scores(features: Tensor, weight: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
    avh, error = avh_series(features, weight, labels)  # which requires labels
    angle = target_angle(features, weight, torch.as_tensor(labels))
    norm = torch.cat([unit(as_float64(block))[1] for block in features.split(4096)])
    return {"avh": avh, "avh_error": error, "angle": angle, "norm": norm}


def _vectors(
    features: Tensor, weight: Tensor, bias: Tensor | None, keep: Keep, norm: Tensor | None
) -> dict[str, Tensor]:
    """What is stored of the features: a sketch and, for few classes, the probabilities; or the features themselves.

    A sketch is a random projection to 32 numbers with the same axes in every process; it preserves distances between
    directions to about a fifth.
    """
    if keep == "features":
        return {"features": features.float()}
    width = len(weight) if keep == "cosines" else features.shape[1]
    axes = torch.eye(width) if width <= SKETCH_WIDTH else _random_axes(width)
    axes = axes.to(features.device)
    vectors = {"sketch": _sketch(features, unit(weight.float())[0].T @ axes if keep == "cosines" else axes, norm)}
    if len(weight) <= MOST_PROBABILITIES:  # in float64, so that they agree with the scores
        logits = as_float64(features) @ as_float64(weight).T + (0 if bias is None else as_float64(bias))
        vectors["probabilities"] = logits.softmax(1).float()
    return vectors


def _sketch(features: Tensor, axes: Tensor, norm: Tensor | None) -> Tensor:
    """Directions of features on some axes, in half precision."""
    kind = features.dtype
    fast = features.is_cuda and kind in (torch.bfloat16, torch.float16) and norm is not None
    if fast and ((norm == 0) | (norm.log().abs() < 60)).all():
        # Three numbers of 8 bits or more hold all digits of a float32, and tensor cores multiply them without rounding.
        parts = [axes.to(kind)]
        for _ in range(2):
            parts.append((axes - sum(part.float() for part in parts)).to(kind))
        products = torch.mm(features, torch.cat(parts, 1), out_dtype=torch.float32).unflatten(1, (3, -1)).sum(1)
        return (products / norm.masked_fill(norm == 0, 1).float()[:, None]).half()
    steps = features.split(max(1, _BLOCK // features.shape[1]))  # in float32 all of them may not fit
    return torch.cat([(unit(step.float())[0] @ axes).half() for step in steps])


@lru_cache(maxsize=8)
def _random_axes(width: int) -> Tensor:
    random = np.random.default_rng(width).standard_normal((width, SKETCH_WIDTH)).astype(np.float32)
    return torch.from_numpy(random / SKETCH_WIDTH**0.5)


def numbered_ids(count: int) -> list[str]:
    """Ids of samples that come without any."""
    return [f"data:{i}" for i in range(count)]


def bad_table(bad: Sequence[tuple[str, str]]) -> pa.Table:
    """Ids and reasons as a table."""
    return pa.table({name: pa.array([row[i] for row in bad], pa.string()) for i, name in enumerate(("id", "error"))})


def concatenate(blocks: Sequence[Block]) -> Block:
    """Concatenate blocks; those without a row lack most columns."""
    rows, bad = (pa.concat_tables(part, promote_options="default") for part in list(zip(*blocks, strict=True))[:2])
    vectors = [block.vectors for block in blocks if block.vectors is not None]
    return Block(rows, bad, pa.concat_tables(vectors) if vectors else None)
