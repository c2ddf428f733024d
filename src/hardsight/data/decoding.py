"""JPEGs decoded and preprocessed on a GPU: loader processes only read the files.

Files that are not plain JPEGs, or that the GPU cannot decode, go through Pillow as usual, which also reports what is
wrong with a file.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from hardsight.errors import InputError
from hardsight.extras import first_line, need
from hardsight.untrusted import check_regular

if TYPE_CHECKING:
    from hardsight.data.prepared import Prepared

# Mean difference of an image that was preprocessed both ways, as a share of its spread. Decoders and resizing differ by
# little (0.005 for torchvision's decoder on the CPU); a preprocessing that scales tensors differently, by far more.
_MOST_DIFFERENCE = 0.1
_LEAST_SPREAD = 0.05  # standard deviation, for values in [0, 1], of an image that is compared this way


class EncodedBatch(NamedTuple):
    """Files of a batch, concatenated, their lengths, and the inputs that the loader prepared (length 0)."""

    content: Tensor
    lengths: list[int]
    prepared: list[Any]


class EncodedFiles(torch.utils.data.Dataset[Any]):
    """Plain JPEGs as the bytes of their files, others as `Prepared` returns them."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared

    def __getitem__(self, index: int) -> tuple[int, Any, int | None, str | None]:
        samples, path = self.prepared.samples, self.prepared.samples.path(index)
        content = None if path is None else read_jpeg(path, self.prepared.channels)
        if content is None:
            return self.prepared[index]
        labeled = self.prepared.labeled and samples.labels is not None
        return index, content, int(samples.labels[index]) if labeled else None, None  # pyrefly: ignore[unsupported-operation]


def read_jpeg(path: Path, channels: int | None) -> bytes | None:
    """The bytes of a whole JPEG in gray or YCbCr; None for any other file, and where it must become gray."""
    from PIL import Image

    try:
        check_regular(path, "image")
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # as in `open_image`
            image = Image.open(file)  # which reads only the header
            plain = image.format == "JPEG" and image.mode in ("RGB", "L") and image.info.get("adobe_transform") != 0
            if not plain or channels == 1 or (channels is None and image.mode == "L"):
                return None
            file.seek(0)
            content = file.read()
    except Exception:  # anything: Pillow says what it is when it opens the file
        return None
    return content if b"\xff\xd9" in content[-1024:] else None  # a truncated file ends without the marker of the end


def collate_encoded(items: Sequence[tuple[int, Any, int | None, str | None]]) -> Any:
    """Good samples as an `EncodedBatch`, bad ones with their reasons."""
    bad = {row: reason for row, _, _, reason in items if reason is not None}
    good = [item for item in items if item[3] is None]
    files = [item[1] if isinstance(item[1], bytes) else b"" for item in good]
    content = torch.frombuffer(bytearray(b"".join(files) or b"\0"), dtype=torch.uint8)
    inputs = EncodedBatch(content, [len(file) for file in files], [x for _, x, *_ in good if not isinstance(x, bytes)])
    return [item[0] for item in good], inputs, [item[2] for item in good], bad


class GpuDecoder:
    """Batches of files → batches of inputs on a device."""

    def __init__(self, prepared: Prepared, device: torch.device) -> None:
        self._prepared, self._device, self._checked = prepared, device, False
        self._io, self._transform = need("torchvision.io"), prepared.model.transform
        transforms = need("torchvision.transforms")
        if type(self._transform) is transforms.Compose:  # `ToTensor` refuses tensors
            steps = [step for step in self._transform.transforms if type(step) is not transforms.ToTensor]
            self._transform = transforms.Compose(steps)

    def items(self, batch: tuple[Any, ...]) -> list[tuple[int, Any, int | None, str | None]]:
        """The samples of a batch as `Prepared` returns them, on the device."""
        rows, encoded, labels, bad = batch
        padding = len(encoded.content) - sum(encoded.lengths)
        files, ready = encoded.content.split([*encoded.lengths, padding])[:-1], iter(encoded.prepared)
        images = iter(self._decode([file for file in files if len(file)]))
        items: list[Any] = [(row, None, None, reason) for row, reason in bad.items()]
        for row, file, label in zip(rows, files, labels, strict=True):
            if not len(file):
                items.append((row, next(ready).to(self._device), label, None))
                continue
            x = self._preprocess(next(images), row)
            items.append(self._prepared[row] if x is None else (row, x, label, None))
        return [(row, x if x is None else x.to(self._device), label, reason) for row, x, label, reason in items]

    def _decode(self, files: list[Tensor]) -> list[Tensor | None]:
        if not files:
            return []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torchvision plans to move its decoders
                return list(self._io.decode_jpeg(files, self._io.ImageReadMode.RGB, device=self._device))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if "not compiled with" in str(error):  # Pillow would take all of them, in this process alone
                raise InputError(
                    f"decode: this torchvision cannot decode on a GPU ({first_line(error)}); leave --decode gpu out."
                ) from error
            # One of them cannot be decoded, or none.
            return [None] if len(files) == 1 else [self._decode([file])[0] for file in files]

    def _preprocess(self, image: Tensor | None, row: int) -> Tensor | None:
        if image is None:
            return None
        values = image.float() / 255
        if not self._checked and values.std() < _LEAST_SPREAD:  # it could not tell two ways of preprocessing apart
            return None
        try:
            x = values if self._transform is None else self._transform(values)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            x = None if self._checked else first_line(error)
        if not self._checked:
            self._check(x, row)
        return x if isinstance(x, Tensor) else None

    def _check(self, x: Tensor | str | None, row: int) -> None:
        """Refuse a preprocessing that gives different results for an image and for its tensor."""
        expected = self._prepared[row][1]
        if not isinstance(expected, Tensor):
            return  # a bad sample says nothing
        self._checked = True
        if isinstance(x, Tensor) and x.shape == expected.shape:
            difference = (x.cpu().float() - expected.float()).abs().mean()
            if difference <= _MOST_DIFFERENCE * expected.float().std():
                return
        why = x if isinstance(x, str) else "its result differs"
        raise InputError(
            f"decode: this preprocessing takes images and not tensors on a GPU ({why}); leave --decode gpu out."
        )
