"""Batches as a loader hands them to a model, and whether labels mean what the model's outputs mean."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from hardsight.data.decoding import EncodedFiles, GpuDecoder, collate_encoded
from hardsight.data.samples import Samples, class_index
from hardsight.errors import InputError, StoreError
from hardsight.extras import first_line, is_graph, need
from hardsight.images import to_image, to_tensor
from hardsight.models import Model, input_channels

# Rows of the data set that could be loaded, their inputs stacked, their labels, and why other rows could not.
Batch = tuple[list[int], Any, list[int | None], dict[int, str]]


def load_batches(
    samples: Samples,
    model: Model,
    rows: Iterable[list[int]],
    device: torch.device,
    workers: int,
    labeled: bool = True,
    decode: Literal["cpu", "gpu"] = "cpu",
) -> Iterator[Batch]:
    """Samples after the model's preprocessing, in batches of the given rows; labels only where they are asked for.

    With ``decode="gpu"`` JPEGs are decoded and preprocessed on the device, and so are the inputs.
    """
    function = collate if samples.collate is None else partial(collate_with, samples.collate)
    options: Any = {"num_workers": workers, "collate_fn": function, "pin_memory": device.type == "cuda"}
    dataset: Any = Prepared(samples, model, labeled)
    decoder = GpuDecoder(dataset, device) if decode == "gpu" else None
    if decoder is not None:
        dataset, options["collate_fn"] = EncodedFiles(dataset), collate_encoded
    for batch in DataLoader(dataset, batch_sampler=rows, **options):
        if decoder is not None:
            batch = collate(decoder.items(batch))
        if isinstance(batch, (InputError, StoreError)):
            raise batch
        yield batch


class Prepared(torch.utils.data.Dataset[Any]):
    """Samples after the model's preprocessing: row, input, label, and the reason where there is no input."""

    def __init__(self, samples: Samples, model: Model, labeled: bool = True) -> None:
        self.samples, self.model, self.labeled = samples, model, labeled
        self.channels = input_channels(model.module)
        self.form = {"pil": to_image, "tensor": to_tensor}.get(model.takes) or self._probe()

    def __getitem__(self, index: int) -> tuple[int, Any, int | None, str | None]:
        try:
            x, label = self.samples.load(index, self.channels)
            if self.samples.collate is not None:
                return index, x, label, None
            return index, self._input(x), self._class_index(label) if self.labeled else None, None
        except StoreError as error:  # the sample is not bad; passed on for the reason given in `collate`
            return index, error, None, None
        except Exception as error:  # anything a decoder, a transform or a user's data set may raise
            return index, None, None, f"{type(error).__name__}: {first_line(error)}"

    def _class_index(self, label: Any) -> int | None:
        """A label as a class index; a name is looked up among the model's."""
        if isinstance(label, str):
            classes = list(self.model.classes or ())
            if label not in classes:
                raise InputError(f"the label {label!r} is not among the model's class names; give class indices")
            return classes.index(label)
        return None if label is None else class_index(label)

    def _input(self, x: Any) -> Any:
        transform = self.model.transform
        if is_graph(x) and not x.num_nodes:
            raise InputError("the graph has no nodes")
        if isinstance(x, (Tensor, dict)) or is_graph(x):  # ready to use, unless the user has said what else to do
            return transform(x) if transform is not None and self.model.takes == "items" else x
        if transform is None:
            return to_tensor(x, self.channels)
        out = transform(self.form(x, self.channels))
        return out if isinstance(out, Tensor) else to_tensor(out, self.channels)

    def _probe(self) -> Callable[[Any, int | None], Any]:
        """The form that a user's transform takes: tensors in [0, 1] where it refuses the Pillow images of the first few
        samples and accepts a tensor. A sample that fails in both forms says nothing: it is a bad row later.
        """
        transform = self.model.transform
        first = [] if transform is None else [x for x, _ in self.samples.readable(self.channels)]
        for form, x in itertools.product((to_image, to_tensor), first):
            with suppress(Exception):
                transform(form(x, self.channels))  # pyrefly: ignore[not-callable]
                return form
        return to_image


def _store_error(items: Sequence[tuple[int, Any, Any, str | None]]) -> StoreError | None:
    return next((item[1] for item in items if isinstance(item[1], StoreError)), None)


def collate(items: Sequence[tuple[int, Any, int | None, str | None]]) -> Batch | InputError | StoreError:
    """Good samples stacked, bad ones with their reasons."""
    if error := _store_error(items):
        return error
    bad = {row: reason for row, _, _, reason in items if reason is not None}
    good = [item for item in items if item[3] is None]
    inputs = [item[1] for item in good]
    if len({tuple((name, x.shape) for name, x in tokens.items()) for tokens in inputs if isinstance(tokens, dict)}) > 1:
        return InputError(
            "texts of different lengths cannot form a batch: pad them to one length, or pass a DataLoader with the "
            "tokenizer's collate function."
        )
    shapes = sorted({tuple(x.shape) for x in inputs if isinstance(x, Tensor)})
    if len(shapes) > 1:  # handed over, not raised: a loader's worker would wrap it in its own traceback
        sizes = " and ".join(map(str, shapes[:2]))
        return InputError(f"images of different sizes ({sizes}) cannot form a batch: preprocess them to one size.")
    if inputs and is_graph(inputs[0]):
        attributes = [set(graph.keys()) for graph in inputs]
        if lacking := set.union(*attributes) - set.intersection(*attributes):
            return InputError(f"graphs must have the same attributes, but only some of them have {min(lacking)}.")
        try:
            stacked = need("torch_geometric.data").Batch.from_data_list(inputs)
        except RuntimeError as error:  # of torch.cat
            return InputError(f"graphs must have attributes of the same widths to form a batch ({first_line(error)}).")
    else:
        stacked = torch.utils.data.default_collate(inputs) if inputs else None
    return [item[0] for item in good], stacked, [item[2] for item in good], bad


def collate_with(
    function: Callable[[list[Any]], tuple[Any, Any]], items: Sequence[tuple[int, Any, Any, str | None]]
) -> Any:
    """A batch of good samples as a user's function collates it, with its labels apart, and bad samples with reasons."""
    if error := _store_error(items):
        return error
    bad = {row: reason for row, _, _, reason in items if reason is not None}
    good = [item for item in items if item[3] is None]
    if not good:
        return [], None, [], bad
    try:
        inputs, targets = function([item[1] for item in good])
        labels = None if targets is None else [class_index(label) for label in targets]
    except Exception as error:  # whatever a user's function raises
        return InputError(
            f"the collate function of the DataLoader failed ({type(error).__name__}: {first_line(error)})."
        )
    columns = [labels, *(inputs.values() if isinstance(inputs, dict) else [inputs])]
    if {len(x) for x in columns if isinstance(x, list) or (isinstance(x, Tensor) and x.ndim)} - {len(good)}:
        return InputError(f"the collate function of the DataLoader must return one row per sample, here {len(good)}.")
    listed = [item[2] for item in good]
    if labels is None:
        labels = [None if label is None else class_index(label) for label in listed]
    elif any(isinstance(label, int) and label != other for label, other in zip(listed, labels, strict=True)):
        return InputError("the collate function of the DataLoader changes the labels: change them in the data set.")
    return [item[0] for item in good], inputs, labels, bad


def class_mapping(
    model_classes: Sequence[str] | None, data_classes: Sequence[str] | None, outputs: int
) -> np.ndarray | None:
    """Index of each label of the data among the model's outputs, by name; None when the order is the same.

    Raises:
        InputError: The data have more classes than the model, or names that the model does not know.
    """
    names = list(model_classes or ())
    if data_classes is None or list(data_classes) == names:
        return None
    if (mapping := places_by_name(data_classes, names)) is not None:
        return None if np.array_equal(mapping, np.arange(len(mapping))) else mapping
    model_names = {_plain(name) for name in names}
    unknown = [name for name in data_classes if _plain(name) not in model_names]
    if not unknown:
        repeated = (Counter(map(_plain, data_classes)) | Counter(map(_plain, names))).most_common(1)[0][0]
        raise InputError(f"class names repeat ({repeated}), so they cannot tell which label is which output.")
    if len(unknown) < len(data_classes):
        raise InputError(
            f"DATA has {len(unknown)} of {len(data_classes)} classes that the model does not know: "
            f"{', '.join(unknown[:5])}{' …' if len(unknown) > 5 else ''}."
        )
    if len(data_classes) != outputs:
        raise InputError(
            f"DATA has {len(data_classes)} classes ({', '.join(data_classes[:3])} …) but the model has {outputs} "
            "outputs, and their names do not tell which is which; give the model's class names or matching data."
        )
    return None


def places_by_name(names: Sequence[str], among: Sequence[str]) -> np.ndarray | None:
    """Index of each name among others: exactly, or else ignoring case, dashes and underscores.

    None if one of them is missing or appears twice.

    Examples:
        >>> places_by_name(["T-shirt", "bag"], ["Bag", "t_shirt", "coat"])
        array([1, 0])
    """
    for form in (str, _plain):
        index = {form(name): i for i, name in enumerate(among)}
        wanted = [form(name) for name in names]
        if set(wanted) <= index.keys() and len(index) == len(among) and len(set(wanted)) == len(wanted):
            return np.array([index[name] for name in wanted])
    return None


def _plain(name: str) -> str:
    return " ".join(str(name).lower().replace("_", " ").replace("-", " ").split())
