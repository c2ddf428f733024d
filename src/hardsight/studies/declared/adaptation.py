"""Does angular confidence select better pseudo-labels? Self-training between domains.

Fixed before anything was run; no target label is used by anything but the report:

* target portion 0.20, 0.05 more per round, at most 0.50; thresholds by class (CBST, CRST);
* source portion: as many source samples per selected sample as VisDA-17's 0.065 + 0.0085 per round gives there;
* five rounds of about 170 steps at a tenth of the source's rate, held constant, with a new optimizer in each round;
* digits: 32 × 32 color, ResNet-18 with a 3 × 3 stem; PACS: 96 × 96, the AVH paper's CNN-10; both from new weights,
  with cross-entropy. All methods of a seed begin with the same source model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import hardsight as hs
from hardsight.data import ArraySamples, all_labels, load_digits, mean_and_std
from hardsight.errors import StateError
from hardsight.networks import NETWORKS, Normalize
from hardsight.recipes import Recipe
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

TARGET_PORTION = (0.2, 0.05, 0.5)
# VisDA-17's source portions, and its number of source images per target image.
_SOURCE_PORTION, _SOURCE_PER_TARGET = (0.065, 0.0085, 0.165), 152_397 / 55_388
_FAST = Recipe(nesterov=True, schedule="one-cycle", drop_last=True, precision="bf16", channels_last=True, graph=True)
_DIGITS = _FAST.replace(batch_size=256, lr=0.1, crop=2)
_PHOTOS = _FAST.replace(batch_size=64, lr=0.05, resized_crop=True, flip=True, epochs=60, warmup=10.0)
_RECIPES = {
    "svhn": _DIGITS.replace(epochs=12, warmup=3.0),
    "mnist": _DIGITS.replace(epochs=6, warmup=1.5),
    "usps": _DIGITS.replace(epochs=20, warmup=5.0),
    "digits": _DIGITS.replace(epochs=8, warmup=1.0, batch_size=32),
}
_PACS = {"photo": "photo", "art": "art_painting", "sketch": "sketch"}


class Pair(NamedTuple):
    """A source, a target, and a round of self-training; the batch size follows the number of target images."""

    source: str
    target: str
    epochs: int
    batch_size: int


PAIRS = {
    "svhn-mnist": Pair("svhn", "mnist", 2, 256),
    "mnist-usps": Pair("mnist", "usps", 4, 64),
    "pacs-photo-sketch": Pair("photo", "sketch", 8, 64),
    "pacs-photo-art": Pair("photo", "art", 8, 32),
    "usps-mnist": Pair("usps", "mnist", 2, 256),
    "digits-noisy": Pair("digits", "noisy", 1, 32),
}
_FILES = {name: tuple("pacs" if side in _PACS else f"{side}.npz" for side in pair[:2]) for name, pair in PAIRS.items()}
_SMALL = {"network": "small-cnn", "side": 16}


def _at_rounds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rounds, the last one, the best by test labels (an oracle's), and what each validator would select."""
    rounds = [{**row, "at": f"round {float(row['round']):g}"} for row in rows]
    selected = {"last": rounds[-1], "oracle": max(rounds, key=lambda row: float(row["test_accuracy"]))}
    for name in hs.adaptation.VALIDATORS:
        known = [row for row in rounds if row.get(name) not in (None, "")]
        selected |= {f"by {name}": max(known, key=lambda row: float(row[name]))} if known else {}
    return [*rounds, *({**row, "at": at} for at, row in selected.items())]


def _family(levels: dict[str, str]) -> str:
    return "main" if levels["at"] == "last" else levels["at"]


@STUDIES.register(
    "adaptation",
    question="Does angular confidence select better pseudo-labels?",
    paper="AVH, Tables 3 and 4 (VisDA-17)",
    factors={
        "pair": tuple(name for name in PAIRS if name != "digits-noisy"),
        "method": ("cbst", "crst", "cbst+avh", "cbst+avh-slides", "cbst+margin", "cbst+angular_margin"),
    },
    details=("at",),
    measures={
        "test_accuracy": Measure("Accuracy on test images of the target", True, "higher"),
        "test_mean_class": Measure("Mean accuracy of the classes", True, "higher"),
        "target_accuracy": Measure("Accuracy on the images adapted to", True, "higher"),
        "tp_rate": Measure("Correct pseudo-labels", True, "higher"),
        "hard_tp_rate": Measure("Correct pseudo-labels, harder half of those selected", True, "higher"),
        "avc": Measure("Mean angular confidence of those selected"),
        "avh": Measure("Mean AVH of those selected"),
        "confidence": Measure("Mean confidence of those selected"),
        "norm": Measure("Mean norm of those selected"),
    },
    scales={
        "smoke": Scale(
            1,
            3,
            settings=_SMALL | {"rounds": 2, "side": 8, "each": 40, "recipe": {"epochs": 3, "batch_size": 32}},
            levels={"pair": ("digits-noisy",), "method": ("cbst", "cbst+avh")},
        ),
        "quick": Scale(
            3, 60, settings=_SMALL | {"each": 300, "recipe": {"batch_size": 64}}, levels={"pair": ("mnist-usps",)}
        ),
        "paper": Scale(3, 120, "NVIDIA H200"),
    },
    data={name: files for name, files in _FILES.items() if name != "digits-noisy"},
    derive=_at_rounds,
    family=_family,
    compare="method",
    baseline="cbst",
)
def _adapted(cell: Cell) -> list[dict[str, Any]]:
    """One row per round."""
    pair, settings = PAIRS[cell.levels["pair"]], cell.settings
    recipe = _RECIPES.get(pair.source, _PHOTOS).replace(**settings.get("recipe", {}))
    if cell.device.type != "cuda":
        recipe = recipe.replace(precision="float32", graph=False, channels_last=False)
    source, target = (domain(cell, name) for name in pair[:2])
    trained = _source_model(cell, pair.source, source, recipe.replace(seed=cell.seed))
    rounds = recipe.replace(lr=recipe.lr / 10, schedule="constant", warmup=0.0, graph=False, smallest_part=0.7)
    batch_size = settings.get("recipe", {}).get("batch_size", pair.batch_size)
    rows: list[dict[str, Any]] = []
    try:
        hs.self_train(
            trained.model,
            source["train"],
            target["train"],
            test=target["test"],
            method=cell.levels["method"],
            rounds=settings.get("rounds", 5),
            epochs=settings.get("epochs", pair.epochs),
            target_portion=TARGET_PORTION,
            source_portion=source_portion(len(source["train"]), len(target["train"])),
            recipe=rounds.replace(batch_size=batch_size),
            out=cell.folder / "run",
            device=cell.device,
            seed=cell.seed,
            log=rows.append,
            progress=False,
        )
    except StateError:  # it collapsed: the rounds until then are its result
        if not rows:
            raise
    return [{k: v for k, v in row.items() if not isinstance(v, (list, dict))} for row in rows]


def _source_model(cell: Cell, name: str, source: dict[str, ArraySamples], recipe: Recipe) -> hs.training.Trained:
    """The network of the source domain, trained by the first cell that needs it."""
    images = source["train"].images
    mean, std = mean_and_std(torch.from_numpy(images).permute(0, 3, 1, 2))
    first = Normalize(mean.tolist(), std.tolist())
    network = cell.settings.get("network", "cnn10" if name in _PACS else "resnet18-32")
    torch.manual_seed(cell.seed)
    classes = len(np.unique(all_labels(source["train"], "source")))
    module = nn.Sequential(first, NETWORKS[network].build(classes, 3))
    with cell.shared(f"{name}-{cell.seed}") as folder:
        options = {"out": folder / "run", "recipe": recipe, "device": cell.device, "record": (), "progress": False}
        return hs.train(module, source["train"], source["test"], **options)


def source_portion(source: int, target: int) -> tuple[float, float, float]:
    """Portions of the source that mix as many source and selected target samples as on VisDA-17."""
    first, step, most = (min(1.0, _SOURCE_PER_TARGET * target / source * part) for part in _SOURCE_PORTION)
    return first, step, most


def domain(cell: Cell, name: str) -> dict[str, ArraySamples]:
    """Training and test images of a domain in color and at one size."""
    if name in ("digits", "noisy"):
        arrays = _digits(noisy=name == "noisy")
    elif name in _PACS:
        arrays = _pacs(Path(cell.file("pacs")), _PACS[name])
    else:
        with np.load(cell.file(f"{name}.npz")) as file:
            arrays = {split: (file[f"{split}_images"], file[f"{split}_labels"]) for split in ("train", "test")}
    side = cell.settings.get("side", 96 if name in _PACS else 32)
    parts = {}
    for split, (images, labels) in arrays.items():
        rows = [np.flatnonzero(labels == k)[: cell.settings.get("each")] for k in np.unique(labels)]
        few = np.sort(np.concatenate(rows))
        parts[split] = ArraySamples(in_color(images[few], side), labels[few].astype(np.int64), split, name)
    return parts


def _digits(noisy: bool) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """scikit-learn's digits; every fifth is for the test. As a target they are paler and noisy."""
    images, labels = load_digits()
    if noisy:
        noise = np.random.default_rng(0).normal(40, 30, images.shape)
        images = (0.6 * images + noise).clip(0, 255).astype(np.uint8)
    test = np.arange(len(labels)) % 5 == 0
    return {"train": (images[~test], labels[~test]), "test": (images[test], labels[test])}


def _pacs(root: Path, folder: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A domain of PACS by its official lists: train, and crossval for the test."""
    from PIL import Image

    lines = [line.split("\t") for line in (root / "official_split.tsv").read_text(encoding="utf-8").splitlines()]
    lines = [(path, split) for path, split in lines if path.startswith(f"{folder}/")]
    classes = sorted({path.split("/")[1] for path, _ in lines})
    parts = {}
    for ours, theirs in (("train", "train"), ("test", "crossval")):
        paths = [path for path, split in lines if split == theirs]
        images = [np.asarray(Image.open(root / path).convert("RGB").resize((96, 96))) for path in paths]
        parts[ours] = np.stack(images), np.array([classes.index(path.split("/")[1]) for path in paths])
    return parts


def in_color(images: np.ndarray, side: int) -> np.ndarray:
    """``(N, H, W[, 3])`` uint8 → ``(N, side, side, 3)`` uint8, bilinear."""
    images = images[..., None] if images.ndim == 3 else images
    if images.shape[1:3] != (side, side):
        parts = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).split(4096)
        resized = [F.interpolate(part.float(), (side, side), mode="bilinear", antialias=True) for part in parts]
        images = torch.cat([part.round().byte() for part in resized]).permute(0, 2, 3, 1).numpy()
    return np.repeat(images, 3, -1) if images.shape[-1] == 1 else np.ascontiguousarray(images)
