"""Measures of the class activation maps of one network over many samples, with intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hardsight.data import Samples
from hardsight.errors import InputError
from hardsight.explanation.boxes import masks_of, read_boxes
from hardsight.explanation.gallery import running
from hardsight.explanation.maps import Layer, check_images, explain, find_layer, resize_maps
from hardsight.explanation.measures import area, entropy, infidelity, insertion_deletion, mass_inside
from hardsight.models import Model
from hardsight.predictions import Predictions
from hardsight.questions.answers import Answer, point, row
from hardsight.stats import moments

# Which way is better; a compact map is not a better one.
_BETTER = {"insertion": "higher", "deletion": "lower", "faithfulness": "higher", "infidelity": "lower"}
_BETTER |= {"entropy": "", "area": "", "mass_inside": "higher"}


def explanation_answer(
    model: Model | nn.Module,
    samples: Samples,
    predictions: Predictions | None = None,
    *,
    limit: int | None = 500,
    seed: int = 0,
    boxes: Any = None,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    workers: int | None = None,
) -> Answer:
    """Maps of the predicted classes in numbers: compactness, insertion and deletion, infidelity, mass inside boxes.

    Each image takes some 37 forward passes, hence the limit. A seed draws the same samples for every network, so that
    networks are compared in pairs.

    Args:
        model: A network that has maps (`cam`).
        samples: The data set; labels are not used.
        predictions: Predictions of the network on it, which tell the readable samples; None for all.
        limit: Number of samples, drawn at random; None for all.
        seed: Seed of the draw.
        boxes: Where the objects are: CSV or Parquet file or mapping ``id, x0, y0, x1, y1``, or masks as an array, an
            ``.npy`` or an ``.npz`` file; in the pixels that the network sees.
        batch_size: Images per batch.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.

    Returns:
        Rows and, for every readable sample, columns ``entropy``, ``area``, ``insertion``, ``deletion``,
        ``faithfulness`` (insertion − deletion), ``infidelity`` and, with boxes, ``mass_inside``; NaN where a sample
        was not drawn or has no box.

    Examples:
        >>> from hardsight.data import open_data
        >>> from hardsight.networks import build_network
        >>> answer = explanation_answer(build_network("small-cnn", 10, 1), open_data("digits"), limit=8, device="cpu")
        >>> sorted(answer.samples), answer.rows[0]["n"]
        (['area', 'deletion', 'entropy', 'faithfulness', 'infidelity', 'insertion'], 8)
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, or None for all samples, got {limit}.")
    regions = None if boxes is None else read_boxes(boxes, samples)
    rows = np.arange(len(samples)) if predictions is None else predictions.rows
    count = min(limit or len(rows), len(rows))
    drawn = rows[np.sort(np.random.default_rng(seed).choice(len(rows), count, replace=False))]
    columns = {name: np.full(len(rows), np.nan) for name in _BETTER if regions is not None or name != "mass_inside"}
    curves: dict[str, list[Tensor]] = {"insertion": [], "deletion": []}
    layer: Layer | None = None
    zeros = 0
    with running(model, samples, device, workers) as (network, source):
        for at, x, *_ in source.batches(torch.from_numpy(drawn).split(batch_size)):
            check_images(x)
            layer = layer or find_layer(network, x)
            explained = explain(network, layer, x)
            zeros += int((explained.maps.amax((1, 2)) == 0).sum())
            maps = resize_maps(explained.maps, x.shape[2:])
            both = insertion_deletion(network, x, maps, explained.classes)
            insertion, deletion = both.areas()
            values = {
                "insertion": insertion,
                "deletion": deletion,
                "faithfulness": insertion - deletion,
                "infidelity": infidelity(network, x, maps, explained.logits, explained.classes),
                "entropy": entropy(maps),
                "area": area(maps),
            }
            if regions is not None:
                inside = masks_of(regions, at.numpy(), (x.shape[2], x.shape[3]))
                values["mass_inside"] = mass_inside(maps, inside.to(maps.device))
            for name, of in values.items():
                columns[name][np.searchsorted(rows, at.numpy())] = of.cpu().numpy()
            for name, curve in both._asdict().items():
                curves[name].append(curve.cpu())
    answer = Answer(samples=columns)
    for name, values in columns.items():
        mean, interval = _mean(values)
        answer.rows.append(row("explanation", name, mean, **interval, better=_BETTER[name]))
    for name, parts in curves.items():
        whole = torch.cat(parts).numpy() if parts else np.empty((0, 0))
        for step, values in enumerate(whole.T):
            mean, interval = _mean(values)
            answer.points.append(point("explanation", name, step / (whole.shape[1] - 1), mean, **interval))
    answer.note("maps", f"Maps of the predicted classes of {count:,} samples at layer {layer.path if layer else None}.")
    if zeros:
        text = f"{zeros:,} of {count:,} maps are zero everywhere: nothing speaks for the predicted class. "
        answer.note("zero maps", f"{text}They count as flat.")
    if regions is not None:
        boxed = int(np.isfinite(columns["mass_inside"]).sum())
        answer.note("boxes", f"{boxed:,} of these samples have boxes, in the pixels that the network sees.")
    return answer


def _mean(values: np.ndarray) -> tuple[float, dict[str, Any]]:
    """The mean of the values that are not NaN, and its interval."""
    of = moments(values.astype(np.float64), np.zeros(len(values), np.int64), 1)
    low, high = of.interval()
    return float(of.mean[0]), {"low": float(low[0]), "high": float(high[0]), "n": int(of.n[0])}
