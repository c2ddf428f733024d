"""Explanation: measures of the class activation maps of a network over many samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hardsight.data import Samples
from hardsight.devices import evaluating
from hardsight.questions.answers import Answer
from hardsight.questions.boxes import masks_of, read_boxes
from hardsight.questions.gradcam import Layer, check_images, explain, find_layer, resize_maps
from hardsight.questions.mapmeasures import area, entropy, infidelity, insertion_deletion, mass_inside
from hardsight.questions.subject import QUESTIONS, CurveKind, Metric, Subject
from hardsight.registry import whole_number
from hardsight.runs import content_hash

# Which way is better; a compact map is not a better one.
_BETTER = {"insertion": "higher", "deletion": "lower", "faithfulness": "higher", "infidelity": "lower"}
_BETTER |= {"entropy": "", "area": "", "mass_inside": "higher"}
_FAITHFUL = "the maps of {group} explain its predictions {how} than those of {baseline}", "better", "less well"
_OBJECT = "{group} looks at the object {how} than {baseline}", "more", "less"
_PROBABILITY = "probability of the class", "%", 0, 1


def _prepare(options: Mapping[str, Any], samples: Samples) -> list[dict[str, Any]]:
    if options["boxes"] is not None:
        read_boxes(options["boxes"], samples)  # report a mistake in them before the attacks run
    return [{}]


def _content(subject: Subject, options: Mapping[str, Any]) -> str | None:
    boxes = options["boxes"]
    return content_hash(Path(boxes).read_bytes()) if isinstance(boxes, (str, Path)) and Path(boxes).is_file() else None


@QUESTIONS.register(
    "explanation",
    title="Explanation",
    about="Where does the network look: how small is the region, and does the decision depend on it?",
    telling=(("insertion", ""), ("deletion", ""), ("mass_inside", ""), ("area", "")),
    headline=(("mass_inside", ""),),
    metrics={
        **dict.fromkeys(("insertion", "deletion", "faithfulness", "infidelity"), Metric(meaning=_FAITHFUL)),
        "area": Metric("area above half the maximum", "%"),
        "mass_inside": Metric("share of the map inside the box", "%", _OBJECT),
        "entropy": Metric("entropy of the map"),
    },
    curves={
        "insertion": CurveKind(
            "Insertion", "share of the pixels shown", *_PROBABILITY,
            note="Pixels appear in the order of the map, highest first: the sooner the class is recognized, the "
            "better.",
        ),
        "deletion": CurveKind(
            "Deletion", "share of the pixels removed", *_PROBABILITY,
            note="Pixels are removed in the order of the map, highest first: the sooner the class is lost, the better.",
        ),
    },
    needs="explain",
    prepare=_prepare,
    decided_by=_content,
)  # fmt: skip
def ask(subject: Subject, *, boxes: Any = None, limit: int = 500, seed: int = 0) -> Answer:
    """Maps of the predicted classes in numbers: compactness, insertion and deletion, infidelity, mass inside boxes.

    Each image takes about 37 forward passes, hence the limit. A seed draws the same samples for every network, so that
    networks are compared in pairs.

    Args:
        subject: The network, which must have maps (`cam`), and its data.
        boxes: Where the objects are: CSV or Parquet file or mapping ``id, x0, y0, x1, y1``, or masks as an array, an
            ``.npy`` or an ``.npz`` file; in the pixels that the network sees.
        limit: Largest number of samples to explain, drawn by the seed.
        seed: Seed of the draw.

    Returns:
        Rows and columns ``entropy``, ``area``, ``insertion``, ``deletion``, ``faithfulness`` (insertion − deletion),
        ``infidelity`` and, with boxes, ``mass_inside``; columns are NaN where a sample was not drawn or has no box.
    """
    regions = None if boxes is None else read_boxes(boxes, subject.data)
    rows, source = subject.predictions.rows, subject.source()
    n, network = min(whole_number("limit", limit, 1), len(rows)), source.model.module
    drawn = torch.from_numpy(rows[np.sort(np.random.default_rng(seed).choice(len(rows), n, replace=False))])
    columns = {name: np.full(len(rows), np.nan) for name in _BETTER if regions is not None or name != "mass_inside"}
    curves: dict[str, list[np.ndarray]] = {"insertion": [], "deletion": []}
    layer: Layer | None = None
    zeros = 0
    with evaluating(network, source.device):
        for at, x, *_ in source.batches(drawn.split(subject.forward.get("batch_size", 256))):
            check_images(x)
            layer = layer or find_layer(network, x)
            explained = explain(network, layer, x)
            zeros += int((explained.maps.amax((1, 2)) == 0).sum())
            maps = resize_maps(explained.maps, x.shape[2:])
            both = insertion_deletion(network, x, maps, explained.classes)
            insertion, deletion = both.areas()
            values = {"insertion": insertion, "deletion": deletion, "faithfulness": insertion - deletion}
            values["infidelity"] = infidelity(network, x, maps, explained.logits, explained.classes)
            values |= {"entropy": entropy(maps), "area": area(maps)}
            if regions is not None:
                inside = masks_of(regions, at.numpy(), (x.shape[2], x.shape[3]))
                values["mass_inside"] = mass_inside(maps, inside.to(maps.device))
            for name, of_batch in values.items():
                columns[name][np.searchsorted(rows, at.numpy())] = of_batch.cpu().numpy()
            for name, curve in both._asdict().items():
                curves[name].append(curve.cpu().numpy())
    answer = Answer(question="explanation")
    for name, column in columns.items():
        answer.mean(name, column, better=_BETTER[name])
    for name, parts in curves.items():
        steps = np.concatenate(parts).T
        answer.mean_curve(name, np.linspace(0, 1, len(steps)), steps)
    answer.note("maps", f"Maps of the predicted classes of {n:,} samples at layer {layer.path if layer else ''}.")
    if zeros:
        text = (
            f"{zeros:,} of {n:,} maps are zero everywhere: nothing speaks for the predicted class. They count as flat."
        )
        answer.note("zero maps", text)
    if regions is not None:
        boxed = int(np.isfinite(columns["mass_inside"]).sum())
        answer.note("boxes", f"{boxed:,} of these samples have boxes, in the pixels that the network sees.")
    return answer
