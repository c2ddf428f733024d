"""What is kept of the features beside the scores: a sketch of their direction, and probabilities for few classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from hardsight.angles import as_float64, unit
from hardsight.ensemble import as_lists

# "direction" sketches the feature itself, which only samples of one network share; "cosines" its cosines to the
# classes, which also networks trained on different folds share; "features" keeps the features whole.
Keep = Literal["direction", "cosines", "features"]

SKETCH_WIDTH, MOST_PROBABILITIES = 32, 100


def feature_vectors(
    kept: pa.ChunkedArray, ids: Sequence[str], features: Tensor, weight: Tensor, bias: Tensor | None, keep: Keep
) -> pa.Table:
    """One row a sample of `kept`, which are some of `ids`: ``id`` and what `keep` says.

    A sketch is a random projection to 32 numbers with the same axes in every process; distances between sketches are
    those between directions, give or take a fifth.
    """
    place = torch.tensor(np.asarray(pc.index_in(kept, value_set=pa.array(ids, pa.string()))))
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        x = features[place.to(features.device)].float()
        if keep == "features":
            return pa.table({"id": kept, "features": as_lists(x.cpu().numpy())})
        axes = unit(weight.float())[0].T if keep == "cosines" else torch.eye(x.shape[1], device=x.device)
        sketch = unit(x)[0] @ (axes @ _projection(axes.shape[1]).to(x.device))
        columns: dict[str, Any] = {"id": kept, "sketch": as_lists(sketch.cpu().numpy().astype(np.float16))}
        if len(weight) <= MOST_PROBABILITIES:
            columns["probabilities"] = as_lists(probabilities(x, weight, bias).cpu().numpy())
    return pa.table(columns)


def probabilities(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Softmax of the logits, in float64, so that it agrees with the scores and no TF32 comes near it; as float32."""
    logits = as_float64(features) @ as_float64(weight).T
    return (logits if bias is None else logits + as_float64(bias)).softmax(1).float()


def _projection(width: int) -> Tensor:
    """Nothing is lost where the width is small anyway."""
    if width <= SKETCH_WIDTH:
        return torch.eye(width)
    random = np.random.default_rng(width).standard_normal((width, SKETCH_WIDTH))
    return torch.from_numpy(random.astype(np.float32) / SKETCH_WIDTH**0.5)
