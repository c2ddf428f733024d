"""Samples as a loader hands them to a model, and whether their labels mean what the model's outputs mean."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.data.samples import Samples, class_index
from hardsight.errors import InputError
from hardsight.extras import first_line
from hardsight.images import to_image, to_tensor
from hardsight.models import Model

# Id, network input, label, and the reason why there is no input.
Item = tuple[str, Any, int | None, str | None]


class Prepared(torch.utils.data.Dataset[Any]):
    """Samples after the model's preprocessing; what cannot be loaded becomes a bad row with its reason."""

    def __init__(self, samples: Samples, model: Model, channels: int | None) -> None:
        self.samples, self.model, self.channels = samples, model, channels
        self._takes = model.takes if model.takes in ("pil", "tensor") else self._probe()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Item:
        return self.item(self.samples.ids[index], lambda: self.samples.load(index, self.channels))

    def item(self, id_: str, load: Callable[[], tuple[Any, Any]]) -> Item:
        """A sample ready for the network, or why it is not."""
        try:
            x, label = load()
            return id_, self.ready(x), self.index(label), None
        except Exception as error:  # anything a decoder, a transform or a user's data set may raise
            return id_, None, None, f"{type(error).__name__}: {first_line(error)}"

    def index(self, label: Any) -> int | None:
        """A label as a class index; a name is looked up among the model's."""
        if label is None:
            return None
        if isinstance(label, str):
            classes = list(self.model.classes or ())
            if label not in classes:
                why = "does not know it" if classes else "has no class names"
                raise InputError(f"the label {label!r} is a name and the model {why}; give class indices")
            return classes.index(label)
        with contextlib.suppress(TypeError):
            return class_index(label)
        raise InputError(f"the label must be a class index (an integer), got {type(label).__name__}")

    def ready(self, x: Any) -> Any:
        """The input of the network."""
        transform = self.model.transform
        if isinstance(x, (Tensor, dict)):  # ready to use, unless the user has said what else to do
            return transform(x) if transform is not None and self.model.takes == "items" else x
        if transform is None:
            return to_tensor(x, self.channels)
        out = transform(to_image(x, self.channels) if self._takes == "pil" else to_tensor(x, self.channels))
        return out if isinstance(out, Tensor) else to_tensor(out, self.channels)

    def _probe(self) -> str:
        """Whether a user's transform takes Pillow images or tensors in [0, 1].

        It takes tensors where it refuses the Pillow images of the first few samples and accepts a tensor of one of
        them. A sample that fails in both forms says nothing about the others: it is a bad row later.
        """
        takes_tensors = False
        for x, _ in self.samples.readable(self.channels) if self.model.transform is not None else ():
            if isinstance(x, (Tensor, dict)) or self._accepts(x, to_image):
                return "pil"
            takes_tensors = takes_tensors or self._accepts(x, to_tensor)
        return "tensor" if takes_tensors else "pil"

    def _accepts(self, x: Any, form: Callable[[Any, int | None], Any]) -> bool:
        """Whether the transform takes a sample in a form."""
        try:
            self.model.transform(form(x, self.channels))  # pyrefly: ignore[not-callable]
        except Exception:
            return False
        return True


def collate(items: Sequence[Item]) -> tuple[list[str], Any, list[int | None], list[tuple[str, str]]]:
    """Good samples stacked, bad ones listed."""
    bad = [(item[0], item[3]) for item in items if item[3] is not None]
    good = [item for item in items if item[3] is None]
    if not good:
        return [], None, [], bad
    ids, inputs, labels, _ = zip(*good, strict=True)
    shapes = {tuple(x.shape) for x in inputs} if isinstance(inputs[0], Tensor) else ()
    if len(shapes) > 1:
        sizes = " and ".join(map(str, sorted(shapes)[:2]))
        # Handed over, not raised: a loader's worker would wrap it in its own traceback.
        mixed = InputError(f"images of different sizes ({sizes}) cannot form a batch: preprocess them to one size.")
        return [], mixed, [], bad
    return list(ids), torch.utils.data.default_collate(list(inputs)), list(labels), bad


def class_mapping(
    model_classes: Sequence[str] | None, data_classes: Sequence[str] | None, outputs: int
) -> np.ndarray | None:
    """Index of each label of the data among the model's outputs, by name; None when the order is the same.

    Raises:
        InputError: The data have more classes than the model, or names that the model does not know.
    """
    names = model_classes or ()
    if data_classes is None or list(data_classes) == list(names):
        return None
    if (mapping := places_by_name(data_classes, names)) is not None:
        return None if np.array_equal(mapping, np.arange(len(mapping))) else mapping
    model_names = {_plain(name) for name in names}
    unknown = [name for name in data_classes if _plain(name) not in model_names]
    if names and not unknown:
        counts = Counter(map(_plain, data_classes)) | Counter(map(_plain, names))
        repeated = counts.most_common(1)[0][0]
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

    None where one of them is not there, or is there twice.

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
