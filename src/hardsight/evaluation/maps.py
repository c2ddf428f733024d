"""Class activation maps of several networks on the same images, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch

from hardsight.errors import StateError
from hardsight.evaluation.folder import INSIDE, MAPS, file_name
from hardsight.questions import Subject
from hardsight.runs import disk_errors, remove_files, write_json, write_whole
from hardsight.untrusted import check_regular, read_json

# Number of images, their least height, and the white pixels between them.
_IMAGES, _HEIGHT, _GAP = 12, 96, 4


def write_maps(
    path: Path, subjects: Sequence[Subject], columns: Mapping[str, np.ndarray], device: torch.device
) -> None:
    """``maps/00-ID.png`` …: each an image and, right of it, the map of every network; and ``index.json``.

    Images are taken from the easiest to the hardest for the first network, at equal distances in the order of AVH. The
    index holds ``runs``, in the order of the maps, and of each image ``file``, ``id``, ``label``, and by run
    ``classes`` (predicted, by name where they have one) and ``confidence``.

    Args:
        path: The evaluation's folder.
        subjects: The networks: the first of every group.
        columns: ``id``, ``avh`` and ``label`` of the first.
        device: Where to run.
    """
    from PIL import Image

    from hardsight.explanation import cam_gallery, overlay

    order = np.argsort(columns["avh"], kind="stable")
    rows = order[np.unique(np.linspace(0, len(order) - 1, _IMAGES).round().astype(int))]
    ids = [str(columns["id"][row]) for row in rows]
    sources = {"networks": [subject.identity for subject in subjects], "ids": ids}
    index = path / MAPS / "index.json"
    if index.is_file() and sources.items() <= read_json(index, dict[str, Any], "out").items():
        return
    models = {subject.name: subject.network for subject in subjects}
    gallery = cam_gallery(models, subjects[0].data, ids, device=device)
    maps = [overlay(gallery.images, gallery.maps[name]) for name in models]
    classes = subjects[0].network.classes or subjects[0].samples.classes
    entries = []
    with disk_errors(path):
        remove_files(path / MAPS, INSIDE)
        for k, id_ in enumerate(ids):
            strip = Image.fromarray(_strip([gallery.images[k], *(images[k] for images in maps)]))
            name = f"{k:02d}-{file_name(id_)}.png"
            write_whole(path / MAPS / name, partial(strip.save, format="PNG"))
            entries.append({
                "file": name, "id": id_, "label": _class(classes, int(columns["label"][rows[k]])),
                "classes": {run: _class(classes, predicted[k]) for run, predicted in gallery.classes.items()},
                "confidence": {run: float(values[k]) for run, values in gallery.confidence.items()},
            })  # fmt: skip
        write_json(index, {**sources, "runs": list(models), "pictures": entries})


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
        path: The evaluation's folder. It may come from somebody else, so only images inside it are named.
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
    """Images beside one another, small ones enlarged without blurring."""
    times = -(-_HEIGHT // images[0].shape[0])
    large = [image.repeat(times, 0).repeat(times, 1) for image in images]
    gap = np.full((large[0].shape[0], _GAP, 3), 255, np.uint8)
    return np.concatenate([part for image in large for part in (gap, image)][1:], axis=1)
