"""What is written: folders that appear only when they are whole, cleaned copies of the data, and images for viewers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hardsight.data import DataName, FeatureSamples, Samples
from hardsight.errors import ExistingPathError, InputError
from hardsight.images import to_image
from hardsight.labelerrors.cleanedfiles import is_cleaned_file, wide_enough, write_archive, write_features
from hardsight.runs import TEMPORARY, temporary_name, write_whole
from hardsight.untrusted import Arrays

MARK = "hardsight-cleaned.json"  # marks a folder as ours, and holds the number of files beside it
IMAGE_BYTES = 64 << 20  # images that are not files are written for viewers up to this size in all


def check_apart(target: Path, other: Path, what: str = "the data themselves") -> None:
    """Refuse to write inside, around or over data that must not change."""
    a, b = target.resolve(), other.resolve()
    if a == b or b in a.parents or a in b.parents:
        raise InputError(f"{target} must not contain, or lie in, {what} ({other}); choose another place.")


def check_target(target: Path, overwrite: bool, file: bool = False) -> None:
    """Refuse to overwrite anything but an earlier result, and that too unless it may be replaced.

    `file` says that the result is a file, not a folder.
    """
    if target.is_symlink():
        raise ExistingPathError(f"{target} is a link; name the place itself.")
    if not target.exists() or (not file and target.is_dir() and not any(target.iterdir())):
        return
    if not (is_cleaned_file(target) if file else _our_folder(target)):
        raise ExistingPathError(f"{target} exists already and was not written by hardsight clean; choose another name.")
    if not overwrite:
        raise ExistingPathError(f"{target} exists already; choose another name, or --overwrite it.")


def _our_folder(folder: Path) -> bool:
    """Whether a folder is an earlier result and holds nothing else."""
    try:
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(mark, dict) and mark.get("files") == sum(len(names) for *_, names in os.walk(folder)) - 1


def write_folder(target: Path, build: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """Build a folder beside the target, mark it, and rename it to the target; returns the summary of `build`."""
    temporary, previous = temporary_name(target.absolute()), temporary_name(target.absolute())
    try:
        temporary.mkdir()
        summary = dict(build(temporary))
        files = sum(len(names) for *_, names in os.walk(temporary))
        mark = json.dumps({"files": files, **summary}, indent=1, default=str)
        (temporary / MARK).write_text(mark, encoding="utf-8")
        check_target(target, overwrite=True)  # again: files may have been added while this one was built
        # A folder cannot be replaced in one step: after a kill between the two renames, `recover` finds both.
        if target.is_dir():
            target.rename(previous)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(previous, ignore_errors=True)
    return summary


def recover(target: Path) -> None:
    """Clean up after a kill: remove half-written files, and restore a complete result if the target is missing."""
    for path in list(target.absolute().parent.glob(".*.tmp")):
        match = TEMPORARY.fullmatch(path.name)
        if match is None or match["target"] != target.name:
            continue
        if _our_folder(path) and not target.exists():
            path.rename(target)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def check_dataset(target: Path, samples: Samples, source: str | None) -> None:
    """Refuse data that cannot be copied, and a target that does not suit them or overlaps with them."""
    features = isinstance(samples, FeatureSamples)
    if samples.labels is None or not (features or samples.root is not None or samples.images is not None):
        raise InputError(
            "dataset: cleaned data can be written for a folder with one folder per class, for arrays (.npz) and for "
            f"feature files, not for {samples.origin}; use the lists."
        )
    suffix = samples.file.suffix if features else ".npz"
    if samples.root is None and target.suffix != suffix:
        data = f"{samples.origin} is one" if features else "the data are arrays"
        raise InputError(f"dataset must be the name of a new {suffix} file, because {data}, got {target}.")
    if (place := samples.file if features else samples.root or _npz_file(source)) is not None:
        check_apart(target, place)


def _npz_file(source: str | None) -> Path | None:
    """The .npz file in a name of data (``FILE.npz[:split]``)."""
    path = Path(DataName.parse(source or "").name)
    return path if path.suffix == ".npz" and path.is_file() else None


def write_dataset(
    target: Path, rows: pa.Table, samples: Samples, index: np.ndarray, source: str | None
) -> dict[str, Any]:
    """Write a cleaned copy: a folder for a folder, an ``.npz`` for arrays, a feature file for a feature file.

    Returns how many samples are ``kept`` (including those for review), ``relabeled``, ``dropped``, ``missing`` (no
    longer in the data) and ``unscored`` (not in the run, left out). `index` is the position of each row among the
    samples.
    """
    action, present = np.asarray(rows["action"].to_pylist(), dtype=str), index >= 0
    drop, relabel = action == "drop", (action == "relabel") & present
    keep = present & ~drop & ~relabel
    labels = np.full(len(samples), -1, dtype=np.int64)  # −1: left out
    labels[index[keep]] = np.asarray(samples.labels)[index[keep]]
    labels[index[relabel]] = rows["suggested"].fill_null(-1).to_numpy()[relabel]
    counts = {"kept": int(keep.sum()), "relabeled": int(relabel.sum()), "dropped": int(drop.sum())}
    counts |= {"missing": int((~present & ~drop).sum()), "unscored": len(samples) - len(np.unique(index[present]))}
    if samples.root is not None:
        counts = write_folder(target, lambda folder: _write_images(folder, samples, labels, counts))
    elif isinstance(samples, FeatureSamples):
        write_whole(target, lambda file: write_features(file, samples, labels, counts))
    else:
        write_whole(target, lambda file: _write_npz(file, samples, labels, counts, _npz_file(source)))
    return {"path": str(target), **counts}


def _write_images(folder: Path, samples: Samples, labels: np.ndarray, counts: dict[str, int]) -> dict[str, int]:
    classes, counts, taken = [str(name) for name in samples.classes or ()], dict(counts), set()
    for name in classes:  # an emptied class keeps its folder: the numbers of other classes must not shift
        (folder / name).mkdir()
    moved, written = labels != samples.labels, np.flatnonzero(labels >= 0)
    for index in written[np.argsort(moved[written], kind="stable")]:  # images that stay keep their names
        source = Path(str(samples.path(int(index))))
        path = _free(Path(classes[labels[index]], *source.relative_to(str(samples.root)).parts[1:]), taken)
        if not source.is_file():  # moved since it was listed
            counts["relabeled" if moved[index] else "kept"] -= 1
            counts["missing"] += 1
            continue
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source.resolve(), folder / path)  # of a link, the file it leads to
    return counts


def _free(path: Path, taken: set[str]) -> Path:
    """A name that no other file has, even if case and accents are ignored."""
    free, n = path, 1
    while (key := unicodedata.normalize("NFC", str(free)).casefold()) in taken:
        n += 1
        free = path.with_name(f"{n}-{path.name[-60:]}")  # in front: its ending says what it is
    taken.add(key)
    return free


def _write_npz(target: Path, samples: Samples, labels: np.ndarray, counts: Any, source: Path | None) -> None:
    written = np.flatnonzero(labels >= 0)
    if source is None:
        arrays = {"images": np.asarray(samples.images)[written], "labels": labels[written]}
        if samples.classes is not None:
            arrays["classes"] = np.array([str(name) for name in samples.classes])
    else:
        arrays = _arrays_of_split(source, samples, written)
        old = arrays[samples.label_key]
        labels = labels[written]
        arrays[samples.label_key] = labels.astype(wide_enough(old.dtype, labels)).reshape(old.shape)
    ids = "ids" if _without_splits(samples) else f"{samples.split}_ids"  # of a cleaned copy they stay
    arrays.setdefault(ids, np.array([samples.ids[index] for index in written], dtype=str))
    write_archive(target, arrays.items(), counts, source)


def _without_splits(samples: Samples) -> bool:
    return not samples.label_key.startswith(f"{samples.split}_") and not samples.label_key.endswith(f"_{samples.split}")


def _arrays_of_split(file: Path, samples: Samples, index: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays with one entry per sample of the split, at an index; without splits all arrays belong to it."""
    stored, split, whole = Arrays(file, "DATA"), samples.split, _without_splits(samples)
    names = [name for name in stored.names if name.startswith(f"{split}_") or name.endswith(f"_{split}")]
    arrays = {name: stored[name] for name in (set(stored.names) - {"classes"} if whole else names)}
    return {name: values[index] for name, values in arrays.items() if values.ndim and len(values) == len(samples)}


class Viewer:
    """Rows for FiftyOne and Spotlight: class names, and paths of files or PNG images of arrays.

    Images are those of the first rows, up to `IMAGE_BYTES`.
    """

    def __init__(self, samples: Samples | None) -> None:
        self.samples, self.left = samples, IMAGE_BYTES

    def rows(self, rows: pa.Table, places: np.ndarray | None) -> pa.Table:
        """The next rows of the lists; `places` are their sample indices, −1 for none."""
        paths: list[str | None] = [None] * len(rows)
        images: list[bytes | None] = [None] * len(rows)
        for row, place in enumerate([] if places is None else places.tolist()):
            if self.samples is None or place < 0:
                continue
            if (path := self.samples.path(place)) is not None:
                with contextlib.suppress(UnicodeDecodeError):  # only UTF-8 can be written in a table
                    paths[row] = os.fsencode(path.absolute()).decode()
            elif self.left >= 0:
                image = _png(self.samples, place)
                self.left -= len(image or b"")
                images[row] = image if self.left >= 0 else None
        columns: dict[str, Any] = {"id": rows["id"]}
        columns |= {"filepath": pa.array(paths, pa.string()), "image": pa.array(images, pa.binary())}
        renamed = {"ground_truth": "label_name", "prediction": "pred_name", "suggested": "suggested_name"}
        columns |= {name: rows[column] for name, column in renamed.items()}
        left_out = {*columns, *renamed.values(), "label", "pred"}
        return pa.table(columns | {name: rows[name] for name in rows.column_names if name not in left_out})


def _png(samples: Samples, index: int) -> bytes | None:
    """A sample as PNG; None if it is not an image (tensors of unknown scale) or cannot be read."""
    file = io.BytesIO()
    with contextlib.suppress(Exception):
        x = samples.load(index, None)[0]
        if isinstance(x, np.ndarray) and x.dtype == bool:
            x = x.astype(np.uint8) * 255
        to_image(x).save(file, "PNG")
    return file.getvalue() or None
