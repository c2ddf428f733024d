"""Where several networks look in the same pictures, side by side, as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import torch

from hardsight.data import Samples
from hardsight.errors import StateError
from hardsight.evaluation.folder import INSIDE, MAPS, file_name
from hardsight.evaluation.subjects import Case
from hardsight.runs import disk_errors, remove_files, write_json, write_whole
from hardsight.untrusted import check_regular, read_json

# So many pictures, at least so high, with so many white pixels between them.
_PICTURES, _HEIGHT, _GAP = 12, 96, 4


def write_maps(path: Path, cases: Sequence[Case], data: Samples, known: pa.Table, device: torch.device) -> None:
    """``maps/00-ID.png`` …: each a picture and, right of it, the maps of the first run of every group; ``index.json``.

    Pictures are chosen from the easiest to the hardest for the first run, at equal distances in the order of their AVH.
    The index holds ``runs``, in the order of the maps, and of each picture ``file``, ``id``, ``label``, and by run
    ``classes`` (predicted, by name where they have one) and ``confidence``.

    Args:
        path: The evaluation's folder.
        cases: The networks.
        data: The data set.
        known: Columns ``id``, ``avh`` and ``label`` of the first run.
        device: Where to run.
    """
    from PIL import Image

    from hardsight.explanation import cam_gallery, overlay

    order = np.argsort(known["avh"].to_numpy(), kind="stable")
    at = order[np.unique(np.linspace(0, len(order) - 1, _PICTURES).round().astype(int))]
    ids = [known["id"][int(i)].as_py() for i in at]
    first = list({case.group: case for case in reversed(cases)}.values())[::-1]
    made_of = {"networks": [case.network for case in first], "ids": ids}
    index = path / MAPS / "index.json"
    if index.is_file() and made_of.items() <= read_json(index, dict[str, Any], "out").items():
        return
    models = {case.name: case.opened() for case in first}
    found = cam_gallery(models, data, ids, device=device)
    maps = [overlay(found.images, found.maps[name]) for name in models]
    classes = models[first[0].name].classes or data.classes
    told = []
    with disk_errors(path):
        remove_files(path / MAPS, INSIDE)
        for k, id_ in enumerate(ids):
            strip = Image.fromarray(_strip([found.images[k], *(one[k] for one in maps)]))
            name = f"{k:02d}-{file_name(id_)}.png"
            write_whole(path / MAPS / name, lambda file, strip=strip: strip.save(file, "PNG"))
            told.append({
                "file": name, "id": id_, "label": _class(classes, known["label"][int(at[k])].as_py()),
                "classes": {run: _class(classes, own[k]) for run, own in found.classes.items()},
                "confidence": {run: float(own[k]) for run, own in found.confidence.items()},
            })  # fmt: skip
        write_json(index, {**made_of, "runs": list(models), "pictures": told})


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


def _strip(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures beside one another, small ones enlarged without blurring."""
    times = -(-_HEIGHT // pictures[0].shape[0])
    large = [picture.repeat(times, 0).repeat(times, 1) for picture in pictures]
    gap = np.full((large[0].shape[0], _GAP, 3), 255, np.uint8)
    return np.concatenate([part for one in large for part in (gap, one)][1:], axis=1)
