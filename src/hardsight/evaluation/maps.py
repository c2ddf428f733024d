"""Class activation maps of several networks on the same images, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from hardsight.devices import evaluating
from hardsight.errors import InputError, StateError
from hardsight.evaluation.folder import INSIDE, MAPS, file_name
from hardsight.questions import Subject
from hardsight.questions.gradcam import check_images, explain, find_layer, resize_maps
from hardsight.runs import disk_errors, remove_files, write_json, write_whole
from hardsight.untrusted import check_regular, read_json

# Number of images, their minimum height, and the white pixels between them.
_IMAGES, _HEIGHT, _GAP = 12, 96, 4
# Dark blue to light yellow in steps of equal brightness, and the opacity of the heat over the image.
_RAMP = np.array([(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], dtype=np.float64)
_OPACITY = 0.55


class Gallery(NamedTuple):
    """Images ``(n, H, W, 3)`` uint8 as the first network sees them; by network, maps ``(n, H, W)`` in [0, 1] of the
    predicted classes, these classes ``(n,)``, and their probabilities ``(n,)``.
    """

    images: np.ndarray
    maps: dict[str, np.ndarray]
    classes: dict[str, np.ndarray]
    confidence: dict[str, np.ndarray]


def cam_gallery(subjects: Sequence[Subject], ids: Sequence[str]) -> Gallery:
    """Maps of several networks on the same few images, which form one batch."""
    rows = subjects[0].data.find(list(ids))
    if not ids or None in rows:
        missing = repr(ids[rows.index(None)]) if ids else "no id at all"
        raise InputError(f"ids must be of samples in the data, got {missing}.")
    gallery = Gallery(np.empty((0, 0, 0, 3), np.uint8), {}, {}, {})
    for subject in subjects:
        source = subject.source()
        network, name = source.model.module, subject.name
        with evaluating(network, source.device):
            at, x, *_ = next(source.batches([torch.tensor(rows)]))
            if len(at) < len(rows):
                raise InputError(f"ids: {' '.join(next(iter(source.unreadable.items())))}; leave it out.")
            check_images(x)
            if not len(gallery.images):
                gallery = gallery._replace(images=_as_rgb(x))
            explained = explain(network, find_layer(network, x), x)
            gallery.maps[name] = resize_maps(explained.maps, gallery.images.shape[1:3]).cpu().numpy()
            gallery.classes[name] = explained.classes.cpu().numpy()
            gallery.confidence[name] = explained.logits.float().softmax(1).amax(1).cpu().numpy()
    return gallery


def _as_rgb(x: Tensor) -> np.ndarray:
    """Network inputs as colors; if they are standardized, each image is stretched to its extremes."""
    x = x.float().cpu()
    if x.min() < 0 or x.max() > 1:
        low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
        x = (x - low) / (high - low).clamp_min(1e-12)
    colors = x[:, :3] if x.shape[1] >= 3 else x[:, :1].expand(-1, 3, -1, -1)
    return (colors * 255).round().byte().permute(0, 2, 3, 1).numpy()


def overlay(images: np.ndarray, maps: np.ndarray) -> np.ndarray:
    """Maps ``(n, H, W)`` as heat over images ``(n, H, W, 3)`` uint8.

    Examples:
        >>> overlay(np.zeros((1, 1, 2, 3), np.uint8), np.array([[[0.0, 1.0]]])).tolist()
        [[[[0, 0, 2], [139, 140, 90]]]]
    """
    steps = np.linspace(0, 1, len(_RAMP))
    heat = np.stack([np.interp(maps, steps, channel) for channel in _RAMP.T], axis=-1)
    return np.rint((1 - _OPACITY) * images + _OPACITY * heat).astype(np.uint8)


def write_maps(path: Path, subjects: Sequence[Subject], columns: Mapping[str, np.ndarray]) -> None:
    """Write ``maps/00-ID.png`` …, each an image with the map of every network to its right, and ``index.json``.

    Images range from the easiest to the hardest for the first network, at equal steps in the order of AVH. The index
    holds ``runs``, in the order of the maps, and for each image ``file``, ``id``, ``label``, and by run ``classes``
    (predicted, by name if they have one) and ``confidence``. `columns` are ``id``, ``avh`` and ``label`` of the first
    network.
    """
    from PIL import Image

    order = np.argsort(columns["avh"], kind="stable")
    rows = order[np.unique(np.linspace(0, len(order) - 1, _IMAGES).round().astype(int))]
    ids = [str(columns["id"][row]) for row in rows]
    sources = {"networks": [subject.identity for subject in subjects], "ids": ids}
    index = path / MAPS / "index.json"
    if index.is_file() and sources.items() <= read_json(index, dict[str, Any], "out").items():
        return
    gallery = cam_gallery(subjects, ids)
    columns_of_images = [gallery.images, *(overlay(gallery.images, maps) for maps in gallery.maps.values())]
    classes = subjects[0].network.classes or subjects[0].samples.classes
    entries = []
    with disk_errors(path):
        remove_files(path / MAPS, INSIDE)
        for k, id_ in enumerate(ids):
            strip = Image.fromarray(_strip([images[k] for images in columns_of_images]))
            name = f"{k:02d}-{file_name(id_)}.png"
            write_whole(path / MAPS / name, partial(strip.save, format="PNG"))
            entries.append({
                "file": name, "id": id_, "label": _class(classes, int(columns["label"][rows[k]])),
                "classes": {run: _class(classes, predicted[k]) for run, predicted in gallery.classes.items()},
                "confidence": {run: float(values[k]) for run, values in gallery.confidence.items()},
            })  # fmt: skip
        write_json(index, {**sources, "runs": list(gallery.maps), "pictures": entries})


class _Image(TypedDict):
    file: str
    id: str
    label: str
    classes: dict[str, str]
    confidence: dict[str, float]


class _Index(TypedDict):
    runs: list[str]
    pictures: list[_Image]


def read_maps(path: Path) -> dict[str, Any] | None:
    """The index of the maps of an evaluation, None where there are none.

    Args:
        path: The evaluation's folder. It may be untrusted, so only images inside it are listed.
    """
    file = path / MAPS / "index.json"
    if not file.is_file():
        return None
    index = read_json(file, _Index, "OUT")
    runs = set(index["runs"])
    for entry in index["pictures"]:
        whole = runs <= entry["classes"].keys() & entry["confidence"].keys()
        image = file.parent / Path(entry["file"]).name
        if not whole or entry["file"] != image.name or image.suffix != ".png" or image.is_symlink():
            raise StateError(f"OUT: {file} is damaged: it does not say what each of its images shows.")
        check_regular(image, "OUT")
    if not runs or not index["pictures"]:
        raise StateError(f"OUT: {file} is damaged: it names no images.")
    return index


def _class(names: Sequence[str] | None, index: int) -> str:
    name = str(names[index] if names is not None and index < len(names) else index)
    return f"class {name}" if name.isdigit() else name


def _strip(images: Sequence[np.ndarray]) -> np.ndarray:
    """Images side by side, small ones enlarged without blurring."""
    times = -(-_HEIGHT // images[0].shape[0])
    large = [image.repeat(times, 0).repeat(times, 1) for image in images]
    gap = np.full((large[0].shape[0], _GAP, 3), 255, np.uint8)
    return np.concatenate([part for image in large for part in (gap, image)][1:], axis=1)
