"""The data cleaned: a folder with one folder per class, or an ``.npz``, relabelled and without what is dropped."""

from __future__ import annotations

import json
import shutil
import unicodedata
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hardsight.cleaning.targets import check_apart, check_target, our_folder, write_file, write_folder
from hardsight.data import DataName, Samples
from hardsight.errors import InputError

_KEY = "hardsight_cleaned"  # in an .npz that was written here: what was done


def check_dataset(target: Path, samples: Samples, source: str | None, overwrite: bool) -> None:
    """Refuse a place that must not be written, before anything is."""
    if samples.root is not None and samples.labels is not None:
        check_apart(target, samples.root)
        check_target(target, overwrite, our_folder)
    elif samples.images is not None:
        if target.suffix != ".npz":
            raise InputError(f"dataset must name an .npz file, because the data are arrays, got {target}.")
        if (file := _npz_file(source)) is not None:
            check_apart(target, file)
        check_target(target, overwrite, _our_npz)
    else:
        raise InputError(
            "dataset: cleaned data can be written for a folder with one folder per class and for arrays (.npz), not "
            f"for {samples.origin}; use the lists."
        )


def write_dataset(
    target: Path, rows: pa.Table, samples: Samples, where: list[int | None], source: str | None
) -> dict[str, Any]:
    """Write the cleaned data.

    Args:
        target: A folder for a folder, an ``.npz`` for arrays; `check_dataset` has looked at it.
        rows: Rows of the lists: ``action``, and ``suggested`` in the data's own numbers.
        samples: The data.
        where: Index of each row's sample among them; None where it is not there.
        source: Name of the data, if they have one.

    Returns:
        How many samples are ``kept`` (those for review, too), ``relabeled``, ``dropped``, ``missing`` (no longer among
        the data) and ``unscored`` (not in the run, left out).
    """
    labels, counts = _new_labels(rows, samples, where)
    if (root := samples.root) is not None:
        done = write_folder(target, lambda folder: _write_images(folder, samples, root, labels, counts))
    else:
        done = write_file(target, lambda file: _write_npz(file, samples, labels, counts, source))
    return {"path": str(target), **done}


def _new_labels(rows: pa.Table, samples: Samples, where: list[int | None]) -> tuple[np.ndarray, dict[str, int]]:
    """The label of every sample of the data, −1 for those left out, and what happens to how many."""
    place = np.array([-1 if index is None else index for index in where], dtype=np.int64)
    action = np.asarray(rows["action"].to_pylist(), dtype=object)
    suggested = rows["suggested"].fill_null(-1).to_numpy()
    relabel, drop, there = action == "relabel", action == "drop", place >= 0
    keep = ~relabel & ~drop
    labels = np.full(len(samples), -1, dtype=np.int64)
    labels[place[keep & there]] = np.asarray(samples.labels)[place[keep & there]]
    labels[place[relabel & there]] = suggested[relabel & there]
    return labels, {
        "kept": int((keep & there).sum()),
        "relabeled": int((relabel & there).sum()),
        "dropped": int(drop.sum()),
        "missing": int((~there & ~drop).sum()),
        "unscored": len(samples) - len(np.unique(place[there])),
    }


def _write_images(
    folder: Path, samples: Samples, root: Path, labels: np.ndarray, counts: dict[str, int]
) -> dict[str, int]:
    classes = [str(name) for name in samples.classes or ()]
    for name in classes:  # an emptied class keeps its folder: the numbers of the others must not move
        (folder / name).mkdir()
    counts, taken = dict(counts), set()
    moved = labels != samples.labels
    for index in np.flatnonzero(labels >= 0)[np.argsort(moved[labels >= 0], kind="stable")]:  # who stays keeps the name
        source = Path(str(samples.path(int(index))))
        inside = Path(classes[labels[index]], *source.relative_to(root).parts[1:])
        inside = _free(inside, taken)
        if not source.is_file():  # moved since it was listed
            counts["relabeled" if moved[index] else "kept"] -= 1
            counts["missing"] += 1
            continue
        (folder / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source.resolve(), folder / inside)  # of a link, the file that it leads to
    return counts


def _free(path: Path, taken: set[str]) -> Path:
    """A name that no other file has, also where capitals and accents do not count."""
    free, n = path, 1
    while (key := unicodedata.normalize("NFC", str(free)).casefold()) in taken:
        n += 1
        free = path.with_name(f"{n}-{path.name[-60:]}")  # before the name: its ending says what it is
    taken.add(key)
    return free


# Arrays.


def _npz_file(source: str | None) -> Path | None:
    """The .npz file that a name of data (``FILE.npz[:split]``) means."""
    if source is None:
        return None
    path = Path(DataName.parse(source).name)
    return path if path.suffix == ".npz" and path.is_file() else None


def _our_npz(file: Path) -> bool:
    if not file.is_file() or not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return f"{_KEY}.npy" in archive.namelist()


def _write_npz(
    target: Path, samples: Samples, labels: np.ndarray, counts: dict[str, int], source: str | None
) -> dict[str, int]:
    chosen = np.flatnonzero(labels >= 0)
    ids = np.array([samples.ids[index] for index in chosen], dtype=str)
    said = np.array(json.dumps(counts))
    file = _npz_file(source)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        if file is None:
            arrays = {"images": np.asarray(samples.images)[chosen], "labels": labels[chosen], "ids": ids, _KEY: said}
            if samples.classes is not None:
                arrays["classes"] = np.array([str(name) for name in samples.classes])
            for key, values in arrays.items():
                _write_array(archive, key, values)
        else:
            changed = _changed_arrays(file, samples, labels, chosen, ids)
            with zipfile.ZipFile(file) as old:
                for info in old.infolist():
                    key = info.filename.removesuffix(".npy")
                    if key not in changed and key != _KEY:  # as it is, byte by byte: nothing is loaded
                        with old.open(info) as a, archive.open(_member(info), "w", force_zip64=True) as b:
                            shutil.copyfileobj(a, b)
            for key, values in {**changed, _KEY: said}.items():
                _write_array(archive, key, values)
    return counts


def _changed_arrays(
    file: Path, samples: Samples, labels: np.ndarray, chosen: np.ndarray, ids: np.ndarray
) -> dict[str, np.ndarray]:
    """The arrays of the cleaned split: those with one entry per sample, for the chosen samples."""
    split = samples.split
    with np.load(file, allow_pickle=False) as arrays:
        label_key = samples.label_key
        if label_key not in arrays.files:
            raise InputError(
                f"DATA: {file.name} has no {label_key!r} any more; name the data that were scored with --data."
            )
        whole = label_key == "labels"  # without splits everything belongs to the samples
        own = [
            k
            for k in arrays.files
            if (whole and k != "classes") or k.startswith(f"{split}_") or k.endswith(f"_{split}")
        ]
        changed = {}
        for key in own:
            try:
                values = arrays[key]
            except ValueError as error:  # a pickle in disguise
                raise InputError(f"DATA: {key} of {file.name} holds Python objects, which are never loaded.") from error
            if values.ndim and len(values) == len(samples):
                changed[key] = values[chosen]
    old = changed[label_key]
    fits = not len(chosen) or labels[chosen].max() <= np.iinfo(old.dtype).max
    changed[label_key] = labels[chosen].astype(old.dtype if fits else np.int64).reshape(old.shape)
    changed.setdefault("ids" if whole else f"{split}_ids", ids)  # cleaned again, ids stay those of the first time
    return changed


def _member(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(info.filename)
    member.compress_type = info.compress_type
    return member


def _write_array(archive: zipfile.ZipFile, key: str, values: np.ndarray) -> None:
    with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.asanyarray(values), allow_pickle=False)
