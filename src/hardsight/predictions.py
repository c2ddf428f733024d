"""The predictions of a network for a data set: probabilities, angular confidences and features."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from hardsight.angles import angle_matrix, as_float64
from hardsight.data import Samples, Source, warn_unreadable
from hardsight.devices import evaluating, find_device, loader_workers
from hardsight.errors import InputError
from hardsight.heads import capture, find_head, logits_of
from hardsight.models import Model, as_model
from hardsight.scores import SCORES, check_labels
from hardsight.scoring.checks import check_samples

# A matrix with more bytes than this is kept in a temporary file.
_IN_MEMORY = 2**30
# Samples whose scores are computed at a time: on a CPU three times as fast as all at once.
_ROWS = 4096


@dataclass(frozen=True)
class Predictions:
    """The predictions of a network for N samples. With a mirrored view, every value but `features` is the mean of both.

    Attributes:
        ids: Ids of the samples that could be read.
        rows: ``(N,)`` their positions in the data set, ascending.
        probabilities: ``(N, C)`` softmax.
        avc: ``(N, C)`` angular visual confidence of every class.
        features: ``(N, D)`` input of the last linear layer.
        norms: ``(N,)`` the norms of the features.
        weight: ``(C, D)`` of the last linear layer.
        bias: ``(C,)``, or None.
        mirrored: ``(N, D)`` features of the mirrored images, or None.
        logits: ``(N, C)``, if requested.
        device: Where scores are computed, some rows at a time.
    """

    ids: list[str]
    rows: np.ndarray
    probabilities: np.ndarray
    avc: np.ndarray
    features: np.ndarray
    norms: np.ndarray
    weight: np.ndarray
    bias: np.ndarray | None
    mirrored: np.ndarray | None = None
    logits: np.ndarray | None = None
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - it cannot be changed
    _cache: dict[str, tuple[np.ndarray, np.ndarray]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def at(self, name: str, labels: np.ndarray | Sequence[int]) -> np.ndarray:
        """A registered score ``(N,)`` at given labels, with the sign that makes higher more confident.

        Args:
            name: In `hardsight.SCORES`.
            labels: ``(N,)`` class indices.
        """
        SCORES.names(name)  # before anything is computed
        target = check_labels(np.array(labels), len(self.rows), len(self.weight)).numpy()
        before, values = self._cache.get(name, (np.full(len(target), -1), np.empty(len(target))))
        changed, values = np.flatnonzero(before != target), values.copy()  # self-training changes a few at a time
        for part in np.array_split(changed, -(-len(changed) // _ROWS)) if len(changed) else ():
            values[part] = self._at(name, part, target[part])
        self._cache[name] = target, values
        return values.copy()

    def _at(self, name: str, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The score of some samples, float64, the mean over the views."""
        score, views = SCORES[name], [self.features, *([] if self.mirrored is None else [self.mirrored])]
        weight, bias = (None if x is None else torch.from_numpy(x).to(self.device) for x in (self.weight, self.bias))
        target = torch.from_numpy(labels).to(self.device)
        parts = (torch.from_numpy(view[rows]).to(self.device) for view in views)
        values = [score(part, weight, target, bias=bias).cpu().double() for part in parts]
        mean = torch.stack(values).mean(0).numpy()
        return -mean if score.higher_is_harder else mean


def predict(
    model: Model | nn.Module,
    samples: Samples,
    *,
    flip: bool = False,
    logits: bool = False,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    workers: int | None = None,
) -> Predictions:
    """Run a network over a data set in eval mode; labels are not used.

    Arrays go to the device as a whole, as in training. Matrices above 1 GiB are memory-mapped temporary files, deleted
    along with them.

    Args:
        model: The network with its preprocessing.
        samples: The data set.
        flip: Average over each image and its mirror image.
        logits: Keep the logits, too.
        batch_size: Samples per forward pass.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.

    Examples:
        >>> from hardsight.data import open_data
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> predict(net, open_data("digits"), device="cpu").probabilities.shape
        (1797, 10)
    """
    model, device = as_model(model), find_device(device)
    check_samples(samples, None)
    source = Source.of(model, samples, device, loader_workers(workers, device))
    network, count = source.model.module, len(samples)
    layer = find_head(network)
    columns: dict[str, np.ndarray] = {}
    rows, done = np.empty(count, np.int64), 0
    with evaluating(network, device), capture(network, layer.path) as head, torch.no_grad():
        for at, x, *_ in source.batches(torch.arange(count).tensor_split(-(-count // batch_size))):
            if flip and (not isinstance(x, Tensor) or x.ndim != 4):
                raise InputError("flip: only images (N, C, H, W) can be mirrored; set flip=False.")
            views = [
                (_values(logits_of(network, view), head.features, head.weight, logits), head.features)
                for view in ((x, x.flip(3)) if flip else (x,))
            ]
            values, features = zip(*views, strict=True)
            batch = {name: torch.stack([view[name] for view in values]).mean(0) for name in values[0]}
            batch |= dict(zip(("features", "mirrored"), features, strict=False))
            for name, column in batch.items():
                if name not in columns:
                    columns[name] = _room((count, *column.shape[1:]))
                columns[name][done : done + len(at)] = column.float().cpu().numpy()
            rows[done : done + len(at)] = at.numpy()
            done += len(at)
        weight, bias = head.weight.float().cpu().numpy(), None if head.bias is None else head.bias.float().cpu().numpy()
    warn_unreadable("DATA", source.unreadable, count)
    if not all(np.isfinite(columns[name][:done]).all() for name in ("norms", "probabilities")):
        raise InputError("model: its features or logits hold NaN or infinity; train it again, at a lower rate perhaps.")
    columns = {name: column[:done] for name, column in columns.items()}
    ids = [samples.ids[row] for row in rows[:done]]
    return Predictions(ids, rows[:done], **columns, weight=weight, bias=bias, device=device)


def _values(logits: Tensor, features: Tensor, weight: Tensor, keep_logits: bool) -> dict[str, Tensor]:
    """The values of one view of a batch. Angles in float64: arccos costs half the digits."""
    z, x, w = (as_float64(tensor) for tensor in (logits, features, weight))
    confidence = torch.pi - angle_matrix(x, w)
    total = confidence.sum(1, keepdim=True)
    opposite = total <= 1e-14 * len(w)  # to every class: equal shares, as in `hardsight.avc`
    avc = torch.where(opposite, 1 / len(w), confidence / total.masked_fill(opposite, 1.0))
    values = {"probabilities": z.softmax(1), "avc": avc, "norms": torch.linalg.vector_norm(x, dim=1)}
    return values | ({"logits": z} if keep_logits else {})


def _room(shape: tuple[int, ...]) -> np.ndarray:
    """An empty float32 array, in a temporary file if it is large."""
    if 4 * int(np.prod(shape)) <= _IN_MEMORY:
        return np.empty(shape, np.float32)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.float32, "w+", shape=shape)
