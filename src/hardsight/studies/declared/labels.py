"""Labels that are wrong: which ranking finds them, and what cleaning does to them.

Labels are CIFAR-10N's (given by people) or have planted errors; errors are counted against the original labels. Every
sample is scored by networks that were not trained on its label, unless the level says otherwise. Networks:

* folds, good: a small ResNet, crops and flips, five folds; whole, memorised: one such network trained on everything,
  the latter longer and without crops and flips;
* underfitted: two convolutions, one short training; overfitted: the ResNet fitted to 2,000 images, wrong half of the
  time and confident of it; poor: a linear classifier on 4 × 4 pixels. These three score the first 20,000 images;
* MLP, linear: five folds over MNIST; MLP on 200 digits scores all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hardsight as hs
from hardsight.data import ArraySamples, load_digits
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

HUMAN = {"aggregate": "aggre_label", "random1": "random_label1", "random2": "random_label2", "worst": "worse_label"}
PLANTED = {"original": 0.0, "uniform 5%": 0.05, "uniform 20%": 0.20, "confused 10%": 0.10}
# The class that a confused annotator chooses instead; CIFAR-10 as in Patrini et al. (CVPR 2017), and digits.
_CONFUSED = {"cifar10.npz": [8, 9, 0, 5, 7, 3, 4, 4, 0, 1], "": [6, 7, 3, 5, 9, 3, 0, 1, 3, 4]}
_FOLDS, _SCORED = 5, 20_000
_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)

_CIFAR = {"data": ("cifar10.npz", "cifar10n.npz")}
_MNIST = {"data": ("mnist.npz",), "first_seed": 100}
_SMOKE = {"data": ("digits",)}


def planted(clean: np.ndarray, name: str, seed: int, confused: np.ndarray) -> np.ndarray:
    """The labels with a share of errors, at random or towards the class that is confused."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(len(clean)) < PLANTED[name]
    other = confused[clean] if name.startswith("confused") else (clean + rng.integers(1, 10, len(clean))) % 10
    return np.where(wrong, other, clean)


def _labeled(cell: Cell) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, their labels in this cell, and the original labels."""
    name, level = cell.settings["data"][0], cell.levels["labels"]
    if name == "digits":
        images, truth = load_digits()
    else:
        with np.load(cell.file(name)) as arrays:
            images, truth = arrays["train_images"], arrays["train_labels"].astype(np.int64)
    if level in HUMAN:
        return images, np.load(cell.file("cifar10n.npz"))[HUMAN[level]].astype(np.int64), truth
    confused = np.array(_CONFUSED.get(name, _CONFUSED[""]))
    return images, planted(truth, level, cell.settings.get("first_seed", 0) + cell.seed, confused), truth


def _pixels(images: np.ndarray, device: torch.device) -> Tensor:
    """Normalized color images padded by four pixels, or gray ones as vectors."""
    x = torch.from_numpy(np.ascontiguousarray(images)).to(device).float() / 255
    if images.ndim == 3:
        return x.flatten(1)
    mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (_MEAN, _STD))
    padded = F.pad((x.permute(0, 3, 1, 2) - mean) / std, (4, 4, 4, 4), mode="reflect")
    return padded.to(memory_format=torch.channels_last)


_WAYS = ("folds", "whole", "whole, head on folds", "memorised", "memorised, head on folds")
_study = partial(STUDIES.register, paper="")


@_study(
    "label-errors",
    question="Which ranking finds wrong labels?",
    factors={"labels": ("aggregate", "random1", "worst"), "scored": _WAYS},
    details=("ranking",),
    measures={
        "auroc": Measure("AUROC of wrong labels", better="higher"),
        "average precision": Measure("Average precision", better="higher"),
        "precision@100": Measure("Wrong labels among the first 100", True, "higher"),
        "precision@wrong": Measure("Wrong labels among as many as there are", True, "higher"),
        "wrong share": Measure("Wrong labels", True),
        "estimated share": Measure("Estimated share of wrong labels", True),
        "suspect precision": Measure("Suspects that are wrong", True, "higher"),
        "suspect recall": Measure("Wrong labels that are suspects", True, "higher"),
    },
    scales={
        "smoke": Scale(1, 3, settings=_SMOKE, levels={"labels": ("uniform 20%",), "scored": ("folds",)}),
        "quick": Scale(3, 30, settings=_MNIST, levels={"labels": tuple(PLANTED)[1:], "scored": _WAYS[:2]}),
        "paper": Scale(3, 90, "NVIDIA H200", settings=_CIFAR),
    },
    compare="ranking",
    baseline="nll",
)
def _rankings(cell: Cell) -> list[dict[str, Any]]:
    """One row per ranking, and one of the estimates."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    images, labels, truth = _labeled(cell)
    samples = ArraySamples(images, labels, "train", "noisy labels", [str(k) for k in range(10)])
    scored, options = cell.levels["scored"], {"device": str(cell.device), "progress": False, "batch_size": 1000}
    if scored == "folds":
        table = hs.score(partial(_train, device=cell.device), samples, folds=_FOLDS, seed=cell.seed, **options)
    else:
        torch.manual_seed(1000 + cell.seed)
        network, transform, classes = _train(samples, cell.device, memorize=scored.startswith("memorised"))
        model = hs.Model(network, scored, transform, "any", classes)
        table = hs.score(model, samples, folds=_FOLDS if scored.endswith("on folds") else None, **options)
    place = np.array([int(name.split(":")[1]) for name in table["id"]])
    wrong = table["label"] != truth[place]
    k, rows = int(wrong.sum()), []
    for name, ranking in hs.labelerrors.RANKINGS.items():
        suspicion = ranking.function(table)
        order = np.argsort(-suspicion, kind="stable")
        row = {"ranking": name, "n": len(table), "wrong": k, "auroc": roc_auc_score(wrong, suspicion)}
        row["average precision"] = average_precision_score(wrong, suspicion)
        row |= {f"precision@{top}": wrong[order[:top]].mean() for top in (100, 1000)}
        row |= {"precision@wrong": wrong[order[:k]].mean(), "recall@2×wrong": wrong[order[: 2 * k]].sum() / k}
        rows.append(row)
    found, estimate = hs.label_errors(table), hs.labelerrors.noise(table)
    suspects = np.isin(table["id"], found["id"][found["suspect"]])
    row = {"wrong share": wrong.mean(), "estimated share": estimate.share}
    row |= {"interval low": estimate.low, "interval high": estimate.high, "suspects": int(suspects.sum())}
    row["suspect precision"] = wrong[suspects].mean() if suspects.any() else None
    return [*rows, {**row, "suspect recall": wrong[suspects].sum() / k}]


def _train(data: Any, device: torch.device, memorize: bool = False) -> tuple[nn.Module, Any, list[str]]:
    """A network that knows nothing of noise; to memorize, it trains longer and without crops and flips."""
    from torchvision.transforms import Normalize

    x, y = _pixels(data.images, device), torch.from_numpy(data.labels.astype(np.int64)).to(device)
    classes = [str(k) for k in range(10)]
    if x.ndim == 2:
        net = _fit_vectors(_mlp(x), x, y, _epochs(x, 3) * (5 if memorize else 1))
        return nn.Sequential(nn.Flatten(), net), Normalize((0.0,), (1.0,)), classes
    return _fit(_resnet(), x, y, 36 if memorize else 12, 0.4, not memorize), Normalize(_MEAN, _STD), classes


@_study(
    "cleaning",
    question="Are labels better or worse after cleaning?",
    factors={
        "labels": (*PLANTED, "aggregate", "random1", "worst"),
        "network": ("overfitted", "underfitted", "poor", "good"),
    },
    measures={
        "errors before": Measure("Wrong labels before", True, "lower"),
        "errors after --auto": Measure("Wrong labels after clean --auto", True, "lower"),
        "errors after review": Measure("Wrong labels after every suspect was reviewed", True, "lower"),
        "accuracy on the truth": Measure("Accuracy of the network on the original labels", True, "higher"),
        "suspects wrong": Measure("Suspects that are wrong", True, "higher"),
        "relabeled": Measure("Labels that --auto changed"),
        "relabeled rightly": Measure("New labels that are right", True, "higher"),
        "estimated precision": Measure("Estimated share of new labels that are right", True),
        "lower bound": Measure("Lower bound of that share", True),
    },
    scales={
        "smoke": Scale(1, 3, settings=_SMOKE, levels={"labels": ("uniform 20%",), "network": ("MLP", "linear")}),
        "quick": Scale(
            3, 20, settings=_MNIST, levels={"labels": tuple(PLANTED), "network": ("MLP", "linear", "MLP on 200 digits")}
        ),
        "paper": Scale(3, 60, "NVIDIA H200", settings=_CIFAR),
    },
)  # fmt: skip
def _cleaned(cell: Cell) -> dict[str, Any]:
    """Errors of the labels as they are, after ``clean --auto``, and after a person who knows the truth reviewed all."""
    images, labels, truth = _labeled(cell)
    torch.manual_seed(cell.seed)
    x, y = _pixels(images, cell.device), torch.from_numpy(labels).to(cell.device)
    logits = _NETWORKS[cell.levels["network"]](x, y, cell.seed).float().cpu().numpy()
    n = len(logits)
    truth, ids = truth[:n], [str(i) for i in range(n)]
    table = hs.score_features(logits, np.eye(10, dtype=np.float32), labels[:n], ids=ids)
    # No sample was scored by a network that was trained on its label, but for those of "MLP on 200 digits".
    table.meta.out_of_sample = "test data"
    todo = hs.labelerrors.actions(table)
    rows = todo.to_arrow()
    at = rows["id"].cast("int64").to_numpy()
    action, suggested = np.array(rows["action"]), pc.fill_null(rows["suggested"], -1).to_numpy()
    label, right = table["label"][at], truth[at]
    relabel, suspect = action == "relabel", action != "keep"
    after, review = np.where(relabel, suggested, label), np.where(suspect, right, label)
    gate, estimate = todo.meta.label_errors["automatic"], todo.meta.label_errors["estimate"]
    return {
        "n": len(table),
        "accuracy": table.accuracy,
        "accuracy on the truth": np.mean(table["pred"] == truth),
        "errors before": np.mean(label != right),
        "errors after --auto": np.mean(after != right),
        "errors after review": np.mean(review != right),
        "suspects": int(suspect.sum()),
        "suspects wrong": np.mean((label != right)[suspect]) if suspect.any() else None,
        "relabeled": int(relabel.sum()),
        "relabeled rightly": np.mean((after == right)[relabel]) if relabel.any() else None,
        "estimated precision": gate.precision,
        "lower bound": gate.low,
        "estimate": estimate["count"] / len(table) if estimate else None,
        "refused": gate.kind or "",
    }


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
        )
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return (self.second(self.first(x)) + self.skip(x)).relu()


def _resnet(width: int = 64) -> nn.Sequential:
    widths = [width, width, 2 * width, 4 * width]
    blocks = [_Block(a, b, 1 + (a != b)) for a, b in itertools.pairwise(widths)]
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def _two_convolutions() -> nn.Sequential:
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


def _fit(net: nn.Module, x: Tensor, y: Tensor, epochs: int, lr: float, augment: bool, batch: int = 512) -> nn.Module:
    """SGD with one cycle; images are padded by four pixels."""
    net = net.to(x.device).to(memory_format=torch.channels_last)
    steps = max(epochs * (len(x) // batch), 1)
    optimizer = torch.optim.SGD(net.parameters(), lr, 0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), device=x.device)[: len(x) // batch * batch].split(batch):
            top, left, flip = 4, 4, False
            if augment:
                top, left, flip = *torch.randint(0, 9, (2,)).tolist(), bool(torch.rand(()) < 0.5)
            images = x[rows, :, top : top + 32, left : left + 32]
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                loss = F.cross_entropy(net(images.flip(3) if flip else images), y[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def _fit_vectors(net: nn.Module, x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    optimizer = torch.optim.Adam(net.to(x.device).parameters(), 2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(256):
            loss = F.cross_entropy(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net


@torch.no_grad()
def _logits(net: nn.Module, x: Tensor) -> Tensor:
    if x.ndim == 2:
        return net(x)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        logits = torch.cat([net(part[:, :, 4:36, 4:36]).float() for part in x.split(5000)])
    return (logits - logits.amax(1, keepdim=True)).half()


def _in_folds(x: Tensor, y: Tensor, seed: int, fit: Callable[[Tensor, Tensor], nn.Module]) -> Tensor:
    fold = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)) % _FOLDS).to(x.device)
    logits = torch.empty(len(x), 10, device=x.device)
    for k in range(_FOLDS):
        logits[fold == k] = _logits(fit(x[fold != k], y[fold != k]), x[fold == k]).float()
    return logits


def _mlp(x: Tensor) -> nn.Module:
    return nn.Sequential(nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Linear(128, 10))


def _good(x: Tensor, y: Tensor, seed: int) -> Tensor:
    return _in_folds(x, y, seed, lambda x, y: _fit(_resnet(), x, y, 15, 0.4, True))


def _underfitted(x: Tensor, y: Tensor, seed: int) -> Tensor:
    return _logits(_fit(_two_convolutions(), x[_SCORED:], y[_SCORED:], 2, 0.05, True), x[:_SCORED])


def _overfitted(x: Tensor, y: Tensor, seed: int) -> Tensor:
    few = torch.from_numpy(np.random.default_rng(seed).choice(np.arange(_SCORED, len(x)), 2000, False)).to(x.device)
    return _logits(_fit(_resnet(), x[few], y[few], 40, 0.1, False, batch=100), x[:_SCORED])


def _poor(x: Tensor, y: Tensor, seed: int) -> Tensor:
    net = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 10))
    return _logits(_fit(net, x[_SCORED:], y[_SCORED:], 1, 0.02, False), x[:_SCORED])


def _mlp_in_folds(x: Tensor, y: Tensor, seed: int) -> Tensor:
    return _in_folds(x, y, seed, lambda x, y: _fit_vectors(_mlp(x), x, y, _epochs(x, 3)))


def _linear_in_folds(x: Tensor, y: Tensor, seed: int) -> Tensor:
    return _in_folds(x, y, seed, lambda x, y: _fit_vectors(nn.Linear(x.shape[1], 10), x, y, _epochs(x, 2)))


def _epochs(x: Tensor, many: int) -> int:
    return many if len(x) > 10_000 else 30


def _few(x: Tensor, y: Tensor, seed: int) -> Tensor:
    few = torch.from_numpy(np.random.default_rng(seed).choice(len(x), 200, replace=False)).to(x.device)
    return _logits(_fit_vectors(_mlp(x), x[few], y[few], 60), x)


_NETWORKS = {
    "good": _good, "underfitted": _underfitted, "overfitted": _overfitted, "poor": _poor,
     "MLP": _mlp_in_folds, "linear": _linear_in_folds, "MLP on 200 digits": _few,
}  # fmt: skip
