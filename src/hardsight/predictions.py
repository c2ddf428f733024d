"""What a network says of every sample of a data set: probabilities, angular confidences and features."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from hardsight.angles import angle_matrix, as_float64
from hardsight.data import Samples, Source, as_pixels
from hardsight.devices import evaluating, find_device, loader_workers
from hardsight.errors import InputError
from hardsight.heads import capture, find_head, logits_of, uncompiled
from hardsight.models import Model, as_model, input_channels
from hardsight.scores import SCORES, check_labels
from hardsight.scoring.checks import check_samples

# A matrix of more bytes is kept in a temporary file.
_IN_MEMORY = 2**30
# Samples whose scores are computed at a time: on a CPU thrice as fast as all at once.
_ROWS = 4096


@dataclass(frozen=True)
class Predictions:
    """What a network says of N samples. With a mirrored view every value but `features` is the mean of both views.

    Attributes:
        ids: Of the samples that could be read.
        rows: ``(N,)`` where they are in the data set, ascending.
        probabilities: ``(N, C)`` softmax.
        avc: ``(N, C)`` angular visual confidence of every class.
        features: ``(N, D)`` input of the last linear layer.
        norms: ``(N,)`` their lengths.
        weight: ``(C, D)`` of the last linear layer.
        bias: ``(C,)``, or None.
        mirrored: ``(N, D)`` features of the mirrored pictures, or None.
        logits: ``(N, C)``, where they were asked for.
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
    _known: dict[str, tuple[np.ndarray, np.ndarray]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def at(self, name: str, labels: np.ndarray | Sequence[int]) -> np.ndarray:
        """A registered score ``(N,)`` at given labels, its sign turned where needed: higher is more confident.

        Args:
            name: In `hardsight.SCORES`.
            labels: ``(N,)`` class indices.
        """
        SCORES.names(name)  # before anything is computed
        wanted = check_labels(np.array(labels), len(self.rows), len(self.weight)).numpy()
        before, values = self._known.get(name, (np.full(len(wanted), -1), np.empty(len(wanted))))
        moved, values = np.flatnonzero(before != wanted), values.copy()  # selecting asks again with a few changed
        for part in np.array_split(moved, -(-len(moved) // _ROWS)) if len(moved) else ():
            values[part] = self._at(name, part, wanted[part])
        self._known[name] = wanted, values
        return values.copy()

    def _at(self, name: str, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The score of some samples, float64, the mean over the views."""
        score, views = SCORES[name], [self.features, *([] if self.mirrored is None else [self.mirrored])]
        weight, bias = (None if x is None else torch.from_numpy(x).to(self.device) for x in (self.weight, self.bias))
        judged = torch.from_numpy(labels).to(self.device)
        parts = (torch.from_numpy(view[rows]).to(self.device) for view in views)
        values = [score(part, weight, judged, bias=bias).cpu().double() for part in parts]
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
    """Run a network over a data set in eval mode; labels are not looked at.

    Arrays go to the device as a whole, as in training. Matrices above 1 GiB are memory-mapped temporary files, which
    are gone with them.

    Args:
        model: The network with its preprocessing.
        samples: The data set.
        flip: Also look at each picture mirrored, and average.
        logits: Keep them, too.
        batch_size: Samples at a time.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.

    Examples:
        >>> from hardsight.data import open_data
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> predict(net, open_data("digits"), device="cpu").probabilities.shape
        (1797, 10)
    """
    found, where = as_model(model), find_device(device)
    check_samples(samples, None)
    network = uncompiled(found.module)
    layer, count = find_head(network), len(samples)
    pixels = as_pixels(samples, input_channels(network), where) if found.transform is None else None
    unlabelled = torch.zeros(count, dtype=torch.long)
    source = Source(samples, unlabelled, pixels, replace(found, module=network), loader_workers(workers, where), where)
    told: dict[str, np.ndarray] = {}
    rows, done = np.empty(count, np.int64), 0
    with evaluating(network, where), capture(network, layer.path) as head, torch.no_grad():
        for at, x, *_ in source.batches(torch.arange(count).tensor_split(-(-count // batch_size))):
            if flip and (not isinstance(x, Tensor) or x.ndim != 4):
                raise InputError("flip: only pictures (N, C, H, W) can be mirrored; set flip=False.")
            both = (x, x.flip(3)) if flip else (x,)
            views = [_told(logits_of(network, view), head.features, head.weight, logits) for view in both]
            means, features = zip(*views, strict=True)
            batch = {name: torch.stack([mean[name] for mean in means]).mean(0) for name in means[0]}
            batch |= dict(zip(("features", "mirrored"), features, strict=False))
            for name, values in batch.items():
                if name not in told:
                    told[name] = _room((count, *values.shape[1:]))
                told[name][done : done + len(at)] = values.float().cpu().numpy()
            rows[done : done + len(at)] = at.numpy()
            done += len(at)
        weight, bias = head.weight.float().cpu().numpy(), None if head.bias is None else head.bias.float().cpu().numpy()
    if bad := source.unreadable:
        first = ": ".join(next(iter(bad.items())))
        warnings.warn(
            f"DATA: {len(bad):,} of {count:,} samples left out because they cannot be read; first: {first}.",
            UserWarning,
            stacklevel=2,
        )
    if not all(np.isfinite(told[name][:done]).all() for name in ("norms", "probabilities")):
        raise InputError(
            "model: its features or logits hold NaN or infinity; train it again, with a lower rate perhaps."
        )
    kept = {name: values[:done] for name, values in told.items()}
    ids = [samples.ids[row] for row in rows[:done]]
    return Predictions(ids, rows[:done], **kept, weight=weight, bias=bias, device=where)


def _told(logits: Tensor, features: Tensor, weight: Tensor, keep: bool) -> tuple[dict[str, Tensor], Tensor]:
    """What one view of a batch gives, and its features. Angles in float64: arccos costs half the digits."""
    z, x, w = (as_float64(tensor) for tensor in (logits, features, weight))
    confidence = torch.pi - angle_matrix(x, w)
    total = confidence.sum(1, keepdim=True)
    nothing = total <= 1e-14 * len(w)  # opposite to every class: equal shares, as `hardsight.avc` has it
    avc = torch.where(nothing, 1 / len(w), confidence / total.masked_fill(nothing, 1.0))
    told = {"probabilities": z.softmax(1), "avc": avc, "norms": torch.linalg.vector_norm(x, dim=1)}
    return told | ({"logits": z} if keep else {}), features


def _room(shape: tuple[int, ...]) -> np.ndarray:
    """An empty float32 array, in a temporary file where it is large."""
    if 4 * int(np.prod(shape)) <= _IN_MEMORY:
        return np.empty(shape, np.float32)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.float32, "w+", shape=shape)
