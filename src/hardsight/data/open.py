"""Names and objects → samples: folders, lists, shards, ``.npz``, torchvision, Hugging Face, scikit-learn's digits."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate, default_convert

from hardsight.data.cifar import is_cifar100, open_cifar100
from hardsight.data.datasets import DatasetSamples
from hardsight.data.features import FEATURE_FILES
from hardsight.data.folders import open_annotations, open_folder, open_list
from hardsight.data.parquet import NoImagesError, ParquetSamples
from hardsight.data.samples import ArraySamples, Columns, MissingColumnError, Samples, shortened
from hardsight.data.shards import is_pattern, shard_files
from hardsight.data.tars import TarSamples
from hardsight.errors import InputError, InputTypeError, MissingPathError
from hardsight.extras import first_line, need, printable
from hardsight.registry import did_you_mean
from hardsight.runs import Meta
from hardsight.stores import as_path, is_url, map_paths
from hardsight.triple import MOST_CLASSES, as_tensor, check_labels
from hardsight.untrusted import Arrays


class DataName(NamedTuple):
    """A name of data: its kind (``torchvision``, ``hf``, ``sklearn`` or ``path``), the name there, and the split."""

    kind: str
    name: str
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> DataName:
        """Parse a name; if the whole name is an existing path, it is a path."""
        if text in ("digits", "sklearn:digits"):
            return cls("sklearn", "digits")
        text = str(as_path(text)) if is_url(text) else text  # file:// becomes a plain path
        kind, _, name = text.partition(":")
        if kind not in ("torchvision", "hf") or not name or is_url(text):
            kind, name = "path", text
        head, _, tail = name.rpartition(":")
        whole = not head or not tail or "/" in tail or "\\" in tail or (kind == "path" and Path(name).exists())
        return cls(kind, name) if whole else cls(kind, head, tail)

    def __str__(self) -> str:
        """The name in a form that means the same in every working directory."""
        local = self.kind in ("path", "hf") and (Path(self.name).exists() or is_pattern(self.name))
        local = local and not is_url(self.name)
        prefix = f"{self.kind}:" if self.kind in ("torchvision", "hf") else ""
        name = str(Path(self.name).absolute()) if local else self.name
        return prefix + name + (f":{self.split}" if self.split else "")


def open_data(
    data: Any,
    *,
    split: str | None = None,
    ids: Sequence[Any] | None = None,
    columns: Columns | None = None,
    root: str | Path = "data",
    version: str | None = None,
    training: bool = False,
) -> Samples:
    """Open a data set, given by name or as an object, as `Samples`.

    Args:
        data: A folder, ``FILE.npz[:split]``, CIFAR-100's folder ``cifar-100-binary[:split]``, ``LIST.txt`` (``path
            label`` per line), ``LIST.json`` (COCO, iNaturalist), tar shards in the layout of WebDataset or Parquet
            files with images as bytes (``FILE.tar``, ``images-{000..127}.tar``, ``FILE.parquet``,
            ``images-{00..15}.parquet``, or a folder of either), ``torchvision:NAME[:split]``, ``hf:NAME[:split]``,
            ``digits``, a torch or Hugging Face data set, a `DataLoader` (its data set and, if it has one of its own,
            its `collate_fn`), or ``(inputs, labels)``, arrays or tensors.
        split: First part of the ids, for data sets that do not say.
        ids: Your own ids, one per sample.
        columns: Which columns hold image, label and id; of an ``.npz``, which array holds the labels (`label`); of
            CIFAR-100, ``fine`` or ``coarse``.
        root: Where torchvision keeps its files.
        version: Any text that you change whenever you change the data. With it, a run over data that can change
            unnoticed (a `Dataset` of your own) can be resumed.
        training: Whether a name without a split means ``train`` instead of ``test``.

    Examples:
        >>> digits = open_data("digits")
        >>> len(digits), digits.ids[0], digits.classes[:3]
        (1797, 'digits:0', ['0', '1', '2'])
    """
    columns = columns or Columns()
    collate = None
    if isinstance(data, DataLoader):
        collate, data = _own_collate(data), data.dataset
    if isinstance(data, Samples):
        samples = data.reopened()
    elif isinstance(data, (str, Path)):
        if ids is not None:
            raise InputError("ids go with a data set object; a named one has ids of its own (or --id-column).")
        if str(data) == "digits" and Path("digits").is_dir():
            raise InputError("DATA: digits is a folder here, too; write ./digits for it, or sklearn:digits.")
        name = DataName.parse(data if isinstance(data, str) else str(as_path(data)))
        if training and name.split is None and name.kind in ("torchvision", "hf"):
            name = name._replace(split="train")
        samples = _open_named(name, columns, Path(root), training)
        samples.source = {"data": str(name), "root": str(Path(root).absolute()), "columns": asdict(columns)}
    else:
        data = _from_arrays(data)
        _check_indexable(data)
        samples = DatasetSamples(data, split, ids, columns, collate)
    if version is not None:
        samples.version = version
    return samples


def _own_collate(loader: DataLoader[Any]) -> Any:
    """The collate function that a user gave a loader; None where it is torch's, or that of torch-geometric."""
    function = loader.collate_fn
    theirs = type(function).__module__.startswith("torch_geometric.")
    return None if theirs or function in (default_collate, default_convert) else function


def _from_arrays(data: Any) -> Any:
    """``(inputs, labels)`` as a `TensorDataset`, whose inputs are ready to use; anything else unchanged."""
    if not isinstance(data, tuple) or len(data) != 2 or not all(isinstance(x, (Tensor, np.ndarray)) for x in data):
        return data
    inputs, labels = (as_tensor(name, x) for name, x in zip(("inputs", "labels"), data, strict=True))
    if inputs.ndim < 2 or inputs.dtype == torch.uint8:
        got = f"{inputs.dtype} {tuple(inputs.shape)}"
        raise InputTypeError(f"(inputs, labels) must hold inputs as the network takes them, (N, …), got {got}.")
    check_labels(labels, len(inputs), MOST_CLASSES, "hardsight")
    return TensorDataset(inputs, labels)


def _check_indexable(data: Any) -> None:
    """Refuse what is not a map-style data set, and name the alternatives."""
    kind, array = type(data).__name__, (Tensor, np.ndarray)
    arrays = isinstance(data, (tuple, list)) and data and all(isinstance(x, array) for x in data)
    if arrays and isinstance(data, list):  # perhaps a list of samples
        labels = data[-1]
        arrays = len(data) == 2 and labels.ndim == 1 and "int" in str(labels.dtype) and len(data[0]) == len(labels)
    if isinstance(data, array) or arrays:
        raise InputTypeError(
            f"data must be a data set or its name, got a {kind}: use (inputs, labels), a TensorDataset."
        )
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")) or isinstance(data, IterableDataset):
        raise InputTypeError(
            f"data must be a data set or its name, got {kind}, which has no indices. If it can only be read in order, "
            "load it without streaming, pass list(data) if it fits into memory, or read it once with hs.capture and "
            "hs.score_features."
        )


# What a run names is opened without asking, so it must need no download and no pickle, and its size has a limit.
RECORDED_FILES = 2_000_000  # files and folders under a folder
RECORDED_BYTES = 8 << 30  # of an array


def _open_named(
    name: DataName, columns: Columns, root: Path, training: bool = False, recorded: bool = False
) -> Samples:
    """What a name means; `recorded` says that a run names it, not a user."""
    path = as_path(name.name) if name.kind == "path" else Path(name.name)
    npz, cifar = name.kind == "path" and path.suffix == ".npz", _is_cifar100(name)
    if name.kind == "path" and (shards := shard_files(path, RECORDED_FILES if recorded else None)):
        return _shards(name, shards, columns, recorded)
    if name.kind != "hf" and columns != (Columns(label=columns.label) if npz or cifar else Columns()):
        raise InputError(f"DATA: {name} has no columns; leave --label-column, --id-column and --image-column out.")
    if name.kind == "torchvision":
        return _torchvision(name.name, name.split, root)
    if name.kind == "hf":
        return _hugging_face(name.name, name.split, columns)
    if name.kind == "sklearn":
        return ArraySamples(*load_digits(), "digits", "1,797 real digits (8×8, scikit-learn)", list("0123456789"))
    if npz:
        most = RECORDED_BYTES if recorded else None
        return _npz(path, name.split, "train" if training else None, most, columns.label)
    if cifar:
        split = name.split or ("train" if training else "test")
        return open_cifar100(path, split, columns.label, RECORDED_BYTES if recorded else None)
    if path.is_dir():
        return open_folder(path, RECORDED_FILES if recorded else None)
    if path.suffix == ".txt" and path.is_file():
        return open_list(path)
    if path.suffix == ".json" and path.is_file():
        return open_annotations(path)
    kinds = (
        "a folder, FILE.npz[:split], LIST.txt, LIST.json, FILE.tar, FILE.parquet, torchvision:NAME, hf:NAME or digits"
    )
    if path.name.endswith(FEATURE_FILES) and path.is_file():
        raise InputError(
            f"DATA: {path.name} must hold images: features can only be scored and cleaned (hardsight score, clean)."
        )
    if path.exists():
        raise InputError(f"DATA: {path.name} must be {kinds}.")
    raise MissingPathError(f"DATA: there is no {str(name)!r}; expected {kinds}.")


def _exists(file: Path) -> bool:
    return file.exists()


def _is_cifar100(name: DataName) -> bool:
    return name.kind == "path" and not is_url(name.name) and is_cifar100(Path(name.name))


def _shards(name: DataName, files: list[Path], columns: Columns, recorded: bool) -> Samples:
    if name.split is not None:
        raise InputError(f"DATA: {name} has no splits; name the files of a split, as in train-{{000..127}}.tar.")
    if missing := [file for file, there in zip(files, map_paths(_exists, files), strict=True) if not there]:
        raise MissingPathError(f"DATA: there is no {missing[0]}, nor {len(missing) - 1:,} other files of {name}.")
    if files[0].suffix == ".parquet":
        if recorded:
            raise InputError(
                f"DATA: {name} holds Parquet, which no run can open; name the data with --data to open it."
            )
        try:
            return ParquetSamples(files, columns)
        except NoImagesError as error:
            raise InputError(f"{error} Features can only be scored (hardsight score, hs.score_features).") from error
    if columns != Columns(label=columns.label):
        raise InputError(f"DATA: {name} has no columns; leave --id-column and --image-column out.")
    return TarSamples(files, columns, RECORDED_FILES if recorded else None)


def data_of(meta: Meta, data: Any = None) -> Samples:
    """The data set of a run, from its meta data; `data` says where it is now, or what it is where the run cannot.

    A run may come from somebody else. So what it names is opened only where it is a plain folder of at most
    `RECORDED_FILES` entries, tar shards of at most as many members, an ``.npz`` with arrays of at most
    `RECORDED_BYTES`, or the digits of scikit-learn: nothing is downloaded or unpickled. The user must name
    anything else with `data`, also Parquet: nothing limits what a few bytes of it unpack to. For feature files, which
    hold no images, there is `features_of`.
    """
    source, split = meta.source, meta.data.split  # ids begin with the split, whatever the data are called now
    text = source.get("data") if data is None else data
    if text is None:
        raise InputError("The run does not say where its images are; name the data with --data to see them.")
    if not isinstance(text, (str, Path)):
        return open_data(text, split=split)
    name = DataName.parse(text if isinstance(text, str) else str(as_path(text)))
    columns = source.get("columns")
    columns = {k: v for k, v in columns.items() if k in ("image", "label", "id")} if isinstance(columns, dict) else {}
    columns = {key: value for key, value in columns.items() if isinstance(value, str)}
    labeled = name.name.endswith(".npz") or _is_cifar100(name)
    if labeled and split != "data":
        name = name._replace(split=name.split or split)
    if data is None:
        path, shown = Path(name.name), printable(name.name)[:200]
        local = name.kind == "path" and path.is_absolute()
        tar = path.suffix == ".tar"
        if local and not path.exists() and not is_pattern(name.name):
            raise MissingPathError(f"DATA: there is no {shown!r}, which the run names as its data.")
        if name.kind != "sklearn" and not (local and (path.is_dir() or tar or path.suffix == ".npz")):
            raise InputError(
                f"The run names {shown!r} as its data, and only a folder, tar shards or an .npz file are opened "
                "because a run names them; name the data with --data to open them."
            )
        samples = _open_named(name, Columns(label=columns.get("label")), Path(), recorded=True)
        samples.source = {**source}
    else:
        with_columns = name.kind == "hf" or labeled or shard_files(as_path(name.name))
        samples = open_data(str(name) if name.split else text, columns=Columns(**columns) if with_columns else None)
    if split and samples.root is not None:
        samples.split = split
    return samples


def changed_since(samples: Samples, meta: Meta) -> bool:
    """Whether data differ from what a run scored. For a folder only the ids count: its files may have been copied."""
    scored = meta.data.fingerprint
    if scored is None or samples.root is not None or samples.identity.gaps or samples.version is not None:
        return False
    current = samples.fingerprint()
    return len(current) == len(scored) and current != scored  # older ones have other lengths


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """The real handwritten digits that come with scikit-learn: uint8 ``(1797, 8, 8)`` and labels."""
    from sklearn.datasets import load_digits as load

    pixels, labels = load(return_X_y=True)
    images = np.asarray(pixels).reshape(-1, 8, 8) * 255 / 16
    return images.round().astype(np.uint8), np.asarray(labels, dtype=np.int64)


# Usual names for images and labels of a split.
_NPZ_KEYS = (("{}_images", "{}_labels"), ("x_{}", "y_{}"), ("X_{}", "y_{}"))


def _npz(path: Path, split: str | None, default: str | None, most: int | None, label: str | None) -> Samples:
    """A split of the arrays; `label` names other labels, with the split before or after it where there are splits."""
    arrays = Arrays(path, "DATA", most)
    splits = {
        name: (images.format(name), labels.format(name))
        for name in dict.fromkeys(("test", "val", "train", split or "test"))
        for images, labels in _NPZ_KEYS
        if images.format(name) in arrays.names
    }
    if split is None and "images" in arrays.names:
        splits, default = {"data": ("images", "labels")}, "data"
    split = split or default or next(iter(splits), "test")
    if split not in splits:
        got = shortened(sorted(arrays.names))
        raise InputError(f"DATA: {path.name} must hold {split}_images and {split}_labels, got {got}.")
    image_key, label_key = splits.pop(split)
    ids, classes = arrays.get("ids" if label_key == "labels" else f"{split}_ids"), arrays.get("classes")
    if label is not None:
        usual = [label] if label_key == "labels" else [f"{split}_{label}", f"{label}_{split}"]
        label_key = next((key for key in usual if key in arrays.names), "")
        if not label_key:
            got = shortened(arrays.names)
            raise MissingColumnError(f"DATA: {path.name} has no array {' or '.join(usual)}; it has {got}.")
        classes = arrays.get(f"{label}_classes")  # other labels have other names
    if classes is not None and classes.ndim != 1:
        raise InputError(f"DATA: classes of {path.name} must be one name per class, got shape {classes.shape}.")
    samples = ArraySamples(
        arrays[image_key],
        arrays.get(label_key),
        split,
        f"{path.name}, split {split}" + (f" (also there: {', '.join(splits)})" if splits else ""),
        None if classes is None else [str(name) for name in classes],
        None if ids is None or ids.ndim != 1 else ids.tolist(),
    )
    samples.label_key = label_key
    return samples


def _torchvision(name: str, split: str | None, root: Path) -> Samples:
    datasets = need("torchvision.datasets")
    if name not in datasets.__all__:
        raise InputError(f"DATA: torchvision has no data set {name!r}; {did_you_mean(name, datasets.__all__)}")
    dataset_class = getattr(datasets, name)
    parameters = inspect.signature(dataset_class.__init__).parameters
    options: dict[str, Any] = {"root": str(root)} if "root" in parameters else {}
    if "train" in parameters:
        options["train"] = split == "train"
        split = split or "test"
    elif "split" in parameters and split:
        options["split"] = split
    try:
        try:
            dataset = dataset_class(**options)
        except (RuntimeError, FileNotFoundError):
            if "download" not in parameters:
                raise
            dataset = dataset_class(**options, download=True)
    except Exception as error:
        raise InputError(
            f"DATA: torchvision's {name} is not in {root} and could not be opened or downloaded ({first_line(error)}); "
            "put it there, or say where it is with --root."
        ) from error
    return DatasetSamples(dataset, split)


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
