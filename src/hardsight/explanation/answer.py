"""Do maps of one network say more than those of another? Numbers over many samples, with intervals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from hardsight.answers import Answer, Point, Row, point, row
from hardsight.data import Samples, Source
from hardsight.devices import evaluating, find_device, loader_workers
from hardsight.errors import InputError
from hardsight.explanation.maps import check_images, explain, on_picture
from hardsight.explanation.measures import area, entropy, infidelity, insertion_deletion, mass_inside
from hardsight.explanation.places import Place, find_place
from hardsight.explanation.regions import read_regions
from hardsight.models import Model, as_model
from hardsight.predictions import Predictions
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
    """Maps of the predicted classes, in numbers: compactness, insertion and deletion, infidelity, mass inside boxes.

    Each picture is looked at some 37 times, hence the limit. The same seed chooses the same samples for every network,
    so that networks are compared in pairs.

    Args:
        model: A network that has maps (`cam`).
        samples: The data set; labels are not looked at.
        predictions: Of the network on it: they say which samples can be read. None: all.
        limit: Samples to look at, chosen at random; None: all.
        seed: Chooses them.
        boxes: Where the objects are: CSV or Parquet file or mapping ``id, x0, y0, x1, y1``, or masks as an array, an
            ``.npy`` or an ``.npz`` file; in the pixels that the network sees.
        batch_size: Pictures at a time.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.

    Returns:
        Rows and, for every readable sample, columns ``entropy``, ``area``, ``insertion``, ``deletion``,
        ``faithfulness`` (insertion − deletion), ``infidelity`` and, with boxes, ``mass_inside``; NaN where a sample
        was not chosen or has no box.

    Examples:
        >>> from hardsight.data import open_data
        >>> from hardsight.networks import build_network
        >>> answer = explanation_answer(build_network("small-cnn", 10, 1), open_data("digits"), limit=8, device="cpu")
        >>> sorted(answer.samples), answer.rows[0]["n"]
        (['area', 'deletion', 'entropy', 'faithfulness', 'infidelity', 'insertion'], 8)
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, or None for all samples, got {limit}.")
    regions = None if boxes is None else read_regions(boxes, samples)
    rows = np.arange(len(samples)) if predictions is None else predictions.rows
    count = len(rows) if limit is None else min(limit, len(rows))
    chosen = np.sort(np.random.default_rng(seed).choice(len(rows), count, replace=False))
    names = [name for name in _BETTER if regions is not None or name != "mass_inside"]
    columns = {name: np.full(len(rows), np.nan) for name in names}
    curves: dict[str, list[np.ndarray]] = {"insertion": [], "deletion": []}
    zeros = 0
    place: Place | None = None
    with running(model, samples, device, workers) as (network, source):
        for at, x, *_ in source.batches(torch.from_numpy(rows[chosen]).split(batch_size)):
            check_images(x)
            place = place or find_place(network, x)
            found = explain(network, place, x)
            zeros += int((found.maps.amax((1, 2)) == 0).sum())
            maps = on_picture(found.maps, x.shape[2:])
            both = insertion_deletion(network, x, maps, found.classes)
            insertion, deletion = both.areas()
            values = {
                "insertion": insertion,
                "deletion": deletion,
                "faithfulness": insertion - deletion,
                "infidelity": infidelity(network, x, maps, found.logits, found.classes),
                "entropy": entropy(maps),
                "area": area(maps),
            }
            if regions is not None:
                inside = regions.inside(at.numpy(), (x.shape[2], x.shape[3]))
                values["mass_inside"] = mass_inside(maps, inside.to(maps.device))
            where = np.searchsorted(rows, at.numpy())
            for name, of in values.items():
                columns[name][where] = of.cpu().numpy()
            for name, curve in zip(curves, both, strict=True):
                curves[name].append(curve.cpu().numpy())
    answer = Answer(_rows(columns), _points(curves), columns)
    answer.note(
        "maps", f"Maps of the predicted classes of {count:,} samples at layer {place.path}." if place else "No sample."
    )
    if zeros:
        answer.note(
            "zero maps",
            f"{zeros:,} of {count:,} maps are zero everywhere: nothing in the picture speaks for the predicted class "
            "there. They count as flat.",
        )
    if regions is not None:
        boxed = int(np.isfinite(columns["mass_inside"]).sum())
        answer.note("boxes", f"Boxes are known of {boxed:,} of these samples, in the pixels that the network sees.")
    return answer


def _rows(columns: dict[str, np.ndarray]) -> list[Row]:
    made = []
    for name, values in columns.items():
        mean, low, high, n = _mean(values)
        made.append(row("explanation", name, mean, low=low, high=high, n=n, better=_BETTER[name]))
    return made


def _points(curves: dict[str, list[np.ndarray]]) -> list[Point]:
    made = []
    for name, parts in curves.items():
        whole = np.concatenate(parts) if parts else np.empty((0, 0))
        for step, values in enumerate(whole.T):
            mean, low, high, n = _mean(values)
            made.append(point("explanation", name, step / (whole.shape[1] - 1), mean, low=low, high=high, n=n))
    return made


def _mean(values: np.ndarray) -> tuple[float, float, float, int]:
    """Mean, its interval, and the number of values that are there."""
    of = moments(values.astype(np.float64), np.zeros(len(values), np.int64), 1)
    low, high = of.interval()
    return float(of.mean[0]), float(low[0]), float(high[0]), int(of.n[0])


@contextmanager
def running(
    model: Model | nn.Module, samples: Samples, device: str | torch.device | None, workers: int | None = None
) -> Iterator[tuple[nn.Module, Source]]:
    """A network in eval mode on the device, and its data as batches there; then all is as it was."""
    where = find_device(device)
    source = Source.of(as_model(model), samples, where, loader_workers(workers, where))
    with evaluating(source.model.module, where):
        yield source.model.module, source
