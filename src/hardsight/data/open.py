"""Names and objects → samples: folders, lists, ``.npz``, torchvision, Hugging Face and the digits of scikit-learn."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from hardsight.data.datasets import DatasetSamples
from hardsight.data.folders import open_folder, open_list
from hardsight.data.samples import ArraySamples, Columns, Samples, listed
from hardsight.errors import InputError, InputTypeError, MissingPathError
from hardsight.extras import first_line, need, printable
from hardsight.registry import did_you_mean
from hardsight.runs import Meta
from hardsight.untrusted import Arrays


def open_data(
    data: Any,
    *,
    split: str | None = None,
    ids: Sequence[Any] | None = None,
    columns: Columns | None = None,
    root: str | Path = "data",
    version: str | None = None,
) -> Samples:
    """Whatever a user calls a data set, as `Samples`.

    Args:
        data: A folder, ``FILE.npz[:split]``, ``LIST.txt`` (``path label`` per line), ``torchvision:NAME[:split]``,
            ``hf:NAME[:split]``, ``digits``, a torch or Hugging Face data set, or a `DataLoader` (whose data set is
            taken).
        split: First part of the ids, for data sets that do not say.
        ids: Your own ids, one per sample.
        columns: Which columns hold image, label and id.
        root: Where torchvision keeps its files.
        version: Any text that you change whenever you change the data. With it, a run over data that can change
            unnoticed (a `Dataset` of your own) can be resumed.
    """
    columns = columns or Columns()
    data = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(data, Samples):
        samples = data if version is None else copy(data)
    elif isinstance(data, (str, Path)):
        if ids is not None:
            raise InputError("ids go with a data set object; a named one has ids of its own (or --id-column).")
        samples = _named(str(data), columns, Path(root))
        where = str(Path(root).absolute())
        samples.source = {"data": absolute_name(str(data)), "root": where, "columns": asdict(columns)}
    else:
        _check_indexable(data)
        samples = DatasetSamples(data, split, ids, columns)
    if version is not None:
        samples.version = version
    return samples


def _check_indexable(data: Any) -> None:
    """Refuse what is not a map-style data set, and name the alternatives."""
    kind = type(data).__name__
    several = isinstance(data, (tuple, list)) and data and all(isinstance(x, (Tensor, np.ndarray)) for x in data)
    if several and isinstance(data, list):  # perhaps a list of samples
        labels = data[-1]
        several = len(data) == 2 and labels.ndim == 1 and "int" in str(labels.dtype) and len(data[0]) == len(labels)
    if isinstance(data, (Tensor, np.ndarray)) or several:
        got = f"a {kind} of arrays" if several else "an array"
        raise InputTypeError(f"data must be a data set or its name, got {got}: use TensorDataset(inputs, labels).")
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, IterableDataset):
        return
    if not hasattr(data, "__iter__"):
        raise InputTypeError(f"data must be a data set or its name, got {kind}.")
    raise InputTypeError(
        f"data must have a length and indices, and {kind} can only be read in order: load it without streaming, pass "
        "list(data) if it fits into memory, or read it once yourself with hs.capture and hs.score_features."
    )


def absolute_name(name: str) -> str:
    """A name of data that means the same in every working directory."""
    kind, _, rest = name.partition(":")
    if kind == "hf" and rest:
        return f"hf:{absolute_name(rest)}"
    path, split = split_off(name) if not Path(name).exists() else (name, None)
    if name == "digits" or (kind == "torchvision" and rest) or not Path(path).exists():
        return name
    return str(Path(path).absolute()) + (f":{split}" if split else "")


# What a run names is opened without asking, so it must need no download and no pickle, and its size has a limit.
RECORDED_FILES = 2_000_000  # files and folders under a folder
RECORDED_BYTES = 8 << 30  # of an array


def data_of(meta: Meta, data: Any = None) -> Samples:
    """The data set of a run, from its meta data; `data` says where it is now, or what it is where the run cannot.

    A run may come from somebody else. So what it names is opened only where it is a plain folder of at most
    `RECORDED_FILES` entries, an ``.npz`` with arrays of at most `RECORDED_BYTES`, or the digits of scikit-learn:
    nothing is downloaded, unpickled or read as text. Anything else the user must name with `data`.
    """
    source = meta.source
    split = meta.data.split  # ids begin with it, whatever the data are called now
    if data is None:
        samples = _recorded(source.get("data"), split)
        samples.source = {**source}
    elif isinstance(data, (str, Path)):
        name = _with_split(str(data), split)
        columns = Columns(**{key: (source.get("columns") or {}).get(key) for key in ("image", "label", "id")})
        samples = open_data(name, columns=columns if name.startswith("hf:") else None)
    else:
        return open_data(data, split=split)
    if split and samples.root is not None:
        samples.split = split
    return samples


def _recorded(name: str | None, split: str | None) -> Samples:
    """What a run names as its data, within the limits of what may be opened without asking."""
    if name is None:
        raise InputError("The run does not say where its images are; name the data with --data to see them.")
    path, wanted = split_off(_with_split(name, split))
    if name == "digits":
        return open_data(name)
    if Path(name).is_absolute() and Path(name).is_dir():
        return open_folder(name, RECORDED_FILES)
    if Path(path).is_absolute() and path.endswith(".npz"):
        return _npz(Path(path), wanted, RECORDED_BYTES)
    shown = printable(name)[:200]
    if Path(path).is_absolute() and not Path(path).exists():
        raise MissingPathError(f"DATA: there is no {shown!r}, which the run names as its data.")
    raise InputError(
        f"The run names {shown!r} as its data, and only a folder or an .npz file is opened because a run names it; "
        "name the data with --data to open them."
    )


def _with_split(name: str, split: str | None) -> str:
    return f"{name}:{split}" if name.endswith(".npz") and split and split != "data" else name


def changed_since(samples: Samples, meta: Meta) -> bool:
    """Whether data differ from what a run scored. Of a folder only the ids tell: its files may have been copied."""
    scored = meta.data.fingerprint
    if scored is None or samples.root is not None or samples.unseen or samples.version is not None:
        return False
    fingerprint = samples.fingerprint()
    return len(fingerprint) == len(scored) and fingerprint != scored  # an older hardsight hashed in another way


def _named(name: str, columns: Columns, root: Path) -> Samples:
    kind, _, rest = name.partition(":")
    if columns != Columns() and kind != "hf":
        raise InputError(
            f"DATA: {name} has no columns to choose from; leave --label-column, --id-column and --image-column out."
        )
    if kind == "torchvision" and rest:
        return _torchvision(*split_off(rest), root, columns)
    if kind == "hf" and rest:
        return _hugging_face(*split_off(rest), columns)
    if name == "digits":
        images, labels = load_digits()
        return ArraySamples(images, labels, "digits", "1,797 real digits (8×8, scikit-learn)", list("0123456789"))
    path, split = split_off(name) if not Path(name).exists() else (name, None)
    if path.endswith(".npz"):
        return _npz(Path(path), split)
    if Path(path).is_dir():
        return open_folder(path)
    if path.endswith(".txt") and Path(path).is_file():
        return open_list(path)
    if not Path(path).exists():
        raise MissingPathError(
            f"DATA: there is no {name!r}; expected a folder, FILE.npz[:split], LIST.txt, torchvision:NAME, hf:NAME, "
            "digits, or FILE.parquet/.safetensors with features."
        )
    raise InputError(f"DATA: {Path(path).name} is neither a folder, an .npz, .txt, .parquet nor a .safetensors file.")


def split_off(name: str) -> tuple[str, str | None]:
    """A name without its ``:split``, and the split."""
    head, colon, tail = name.rpartition(":")
    return (head, tail) if colon and tail and "/" not in tail and "\\" not in tail else (name, None)


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """The real handwritten digits that come with scikit-learn: uint8 ``(1797, 8, 8)`` and labels."""
    from sklearn.datasets import load_digits as load

    pixels, labels = load(return_X_y=True)
    images = np.asarray(pixels).reshape(-1, 8, 8) * 255 / 16
    return images.round().astype(np.uint8), np.asarray(labels, dtype=np.int64)


# Usual names for images and labels of a split.
_NPZ_KEYS = (("{}_images", "{}_labels"), ("x_{}", "y_{}"), ("X_{}", "y_{}"))


def _npz(path: Path, split: str | None, most: int | None = None) -> Samples:
    arrays = Arrays(path, "DATA", most)
    splits = {
        name: (images.format(name), labels.format(name))
        for name in ("test", "val", "train", *([split] if split else []))
        for images, labels in _NPZ_KEYS
        if images.format(name) in arrays.names
    }
    if split is None and "images" in arrays.names:
        splits, split = {"data": ("images", "labels")}, "data"
    if not splits or (split is not None and split not in splits):
        what = f"has no split {split!r}" if split else "holds no images"
        got = listed(sorted(arrays.names))
        raise InputError(f"DATA: {path.name} {what}; expected test_images and test_labels, got {got}.")
    split = split or next(iter(splits))
    image_key, label_key = splits[split]
    ids, classes = arrays.get("ids" if label_key == "labels" else f"{split}_ids"), arrays.get("classes")
    if classes is not None and classes.ndim != 1:
        raise InputError(f"DATA: classes of {path.name} must be one name per class, got shape {classes.shape}.")
    others = ", ".join(name for name in splits if name != split)
    samples = ArraySamples(
        arrays[image_key],
        arrays.get(label_key),
        split,
        f"{path.name}, split {split}" + (f" (also there: {others})" if others else ""),
        None if classes is None else [str(name) for name in classes],
        None if ids is None or ids.ndim != 1 else ids.tolist(),
    )
    samples.label_key = label_key
    return samples


def _torchvision(name: str, split: str | None, root: Path, columns: Columns) -> Samples:
    datasets = need("torchvision.datasets")
    if name not in datasets.__all__:
        raise InputError(f"DATA: torchvision has no data set {name!r}; {did_you_mean(name, datasets.__all__)}")
    dataset_class = getattr(datasets, name)
    parameters = inspect.signature(dataset_class.__init__).parameters
    options: dict[str, Any] = {"root": str(root)} if "root" in parameters else {}
    if "train" in parameters:
        options["train"] = split == "train"
    elif "split" in parameters and split:
        options["split"] = split
    try:
        dataset = dataset_class(**options)
    except (RuntimeError, FileNotFoundError) as error:
        if "download" not in parameters:
            raise InputError(f"DATA: torchvision's {name} could not be opened ({first_line(error)}).") from error
        try:
            dataset = dataset_class(**options, download=True)
        except Exception as failure:
            raise InputError(
                f"DATA: torchvision's {name} is not in {root} and could not be downloaded ({first_line(failure)}); "
                "put it there, or say where it is with --root."
            ) from failure
    return DatasetSamples(dataset, split or ("test" if "train" in parameters else None), columns=columns)


def _hugging_face(name: str, split: str | None, columns: Columns) -> Samples:
    datasets = need("datasets")
    try:
        if Path(name, "dataset_info.json").exists() or Path(name, "dataset_dict.json").exists():
            dataset = datasets.load_from_disk(name)
            dataset = dataset[split or "test"] if isinstance(dataset, datasets.DatasetDict) else dataset
        elif Path(name).is_dir():
            dataset = datasets.load_dataset("imagefolder", data_dir=name, split=split or "train")
        else:
            dataset = datasets.load_dataset(name, split=split or "test")
    except Exception as error:
        raise InputError(
            f"DATA: Hugging Face's {name!r} could not be opened ({first_line(error)}); check name, split and network."
        ) from error
    return DatasetSamples(dataset, split, columns=columns)
