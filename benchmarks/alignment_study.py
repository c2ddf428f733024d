"""Which score agrees best with people? CIFAR-10H over several architectures and seeds.

``python -m benchmarks.alignment_study CIFAR10.npz CIFAR10H.npz OUT [--seeds 3] [--nets NAME …] [--minutes M]
[key=value …]``
trains every net with every seed, records the test images in each epoch, and writes every candidate column of each net
to OUT/columns/NET-SEED.npz. What is there already is not trained again, no training begins after ``--minutes``, and
seeds are the outer loop, so that what is cut short is cut evenly. ``key=value`` changes the recipes; ``--smoke`` trains
on a few hundred images to see that everything runs.

Then it makes OUT/choosing.csv from those files, on the choosing half of images and people; ``… --report`` does only
that.
``… --final NAME …`` makes OUT/reporting.csv on the other half: once, for scores that were chosen before.
No column knows what people said. The split stands in `benchmarks.alignment_report`.
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.alignment_report import final, report
from benchmarks.neighbours import neighbours
from hardsight.alignment.candidates import epoch_means
from hardsight.alignment.derived import uncertainty, within_class
from hardsight.data import all_labels, as_pixels, open_data
from hardsight.dynamics import Dynamics
from hardsight.heads import capture, find_head
from hardsight.presets import PRESETS
from hardsight.questions import DEGRADATIONS, degrade
from hardsight.recipes import Recipe, parse_settings
from hardsight.records import rounded
from hardsight.scores import SCORES, compute_scores
from hardsight.training import train

# Cross-entropy alone: smoothed labels would move angles and margins.
_COMMON = ("label_smoothing=0", "lr=0.4", "ema=0", "graph=true")
NETS = {
    "resnet18-32": ("epochs=30",),
    "amc13": ("epochs=30", "lr=0.1"),
    "vgg19-32": ("epochs=30", "lr=0.02", "batch_size=256"),
    "densenet121-32": ("epochs=12", "lr=0.2"),
    "resnet50-32": ("epochs=15", "lr=0.1"),
    "alexnet-32": ("epochs=30", "lr=0.02", "batch_size=256"),
    "small-cnn": ("epochs=15", "lr=0.1"),  # to see that everything runs
    # Trainings that do not memorise: a margin to keep, and parts of pictures.
    "resnet18-32+cosface": ("epochs=30", "loss=ce@cosface"),
    "resnet18-32+crops": ("epochs=30", "resized_crop=true", "crop=0"),
}
DEFAULT = ("resnet18-32", "densenet121-32", "resnet50-32", "vgg19-32", "alexnet-32", "amc13")
_SMOKE = ("epochs=3", "batch_size=32", "precision=float32", "graph=false", "warmup=1")
# Scores that are followed through changed pictures and other geometries.
_VIEWED = ("avh", "angular_margin", "confidence", "nll", "soft_margin")
_ANGLES = ("avh", "angle", "angular_margin")
DEGRADED = ("noise", "contrast", "blur", "resolution", "occlusion")  # each at its two mildest levels
NEIGHBOURS, SOFTNESS, PASSES = (10, 50, 200), 0.07, 20


@dataclass(frozen=True)
class Pictures:
    """Pixels in [0, 1] on the device, labels and ids."""

    pixels: Tensor
    labels: Tensor
    ids: list[str]

    @classmethod
    def of(cls, data: str, device: torch.device) -> Pictures:
        samples = open_data(data)
        pixels = as_pixels(samples, None, device)
        if pixels is None:
            raise SystemExit(f"{data} must hold arrays of pictures")
        labels = torch.as_tensor(all_labels(samples, "data"), device=device)
        return cls(pixels, labels, samples.ids)


def run(data: str, out: Path, nets: list[str], seeds: int, minutes: float, smoke: bool, settings: list[str]) -> None:
    began = time.perf_counter()
    columns = out / "columns"
    columns.mkdir(parents=True, exist_ok=True)
    data = _few(data, out / "few.npz") if smoke else data
    for seed in range(seeds):
        for net in nets:
            target = columns / f"{net}-{seed}.npz"
            if target.exists():
                continue
            if time.perf_counter() - began > 60 * minutes:
                print("out of time", flush=True)
                return
            told = [*_COMMON, *NETS[net], *(_SMOKE if smoke else ()), *settings, f"seed={seed}"]
            recipe = PRESETS["cifar-resnet18"].recipe.replace(**parse_settings(told))
            found = _one(net.partition("+")[0], data, out / "run", recipe)
            part = target.with_suffix(".part")
            with part.open("wb") as file:
                np.savez_compressed(file, **found)
            part.rename(target)


def _few(data: str, path: Path) -> str:
    with np.load(data, allow_pickle=False) as arrays:
        np.savez(path, **{name: arrays[name][: 600 if "train" in name else 300] for name in arrays.files})  # pyrefly: ignore
    return str(path)


def _one(net: str, data: str, path: Path, recipe: Recipe) -> dict[str, np.ndarray]:
    began = time.perf_counter()
    trained = train(
        net, f"{data}:train", f"{data}:test", out=path, recipe=recipe, record=("test",), overwrite=True, progress=False
    )
    seconds = time.perf_counter() - began
    network = trained.model.module
    device = next(network.parameters()).device
    known, test = (Pictures.of(f"{data}:{split}", device) for split in ("train", "test"))
    found = measured(network, known, test) | _over_epochs(Dynamics(path / "test"), test.ids)
    shutil.rmtree(path)
    accuracy, more = trained.history[-1]["test_accuracy"], time.perf_counter() - began - seconds
    print(f"{net} seed {recipe.seed}: accuracy {accuracy:.4f}, {seconds:.0f} s + {more:.0f} s", flush=True)
    probabilities = found.pop("log_probabilities").astype(np.float16)
    kept = {name: rounded(values.astype(np.float32)) for name, values in found.items()}
    labels = test.labels.cpu().numpy().astype(np.int16)
    return {**kept, "labels": labels, "accuracy": np.array(accuracy), "log_probabilities": probabilities}


def _over_epochs(dynamics: Dynamics, ids: list[str]) -> dict[str, np.ndarray]:
    place = {key: row for row, key in enumerate(dynamics.ids.tolist())}
    rows = np.array([place[key] for key in ids])
    found = epoch_means(dynamics, ids)
    found["by_epoch"] = dynamics.matrix("soft_margin")[rows]
    return found


@torch.no_grad()
def measured(network: nn.Module, known: Pictures, test: Pictures) -> dict[str, np.ndarray]:
    """Every candidate column of the test pictures; ``name@what`` is a score in other circumstances."""
    head: Any = find_head(network).module
    weight, bias = head.weight.detach().float(), None if head.bias is None else head.bias.detach().float()
    pixels, y = test.pixels.float() / 255, test.labels
    train_layers, layers = activations(network, known.pixels), activations(network, pixels)
    x, among = layers.pop("head"), train_layers.pop("head")
    found = _scores(x, weight, y, bias)
    found["avh_within_class"] = within_class(found["avh"], y.cpu().numpy())
    found["grand"] = found["el2n"] * found["norm"]  # length of the head's gradient
    logits = x @ weight.T if bias is None else x @ weight.T + bias
    found["log_probabilities"] = logits.log_softmax(1).cpu().numpy()
    found |= _geometries(x, among, weight, y, known.labels)
    found |= _neighbourhoods(x, among, y, known.labels)
    depths = []
    for size, layer in layers.items():
        rows = neighbours(layer, train_layers[size], min(50, len(among)))[1]
        depths.append((known.labels[rows] == y[:, None]).double().mean(1).cpu().numpy())
        found[f"neighbour_agreement@{size}px"] = depths[-1]
    found["neighbour_agreement@depths"] = np.mean([*depths, found["neighbour_agreement@50"]], 0)

    def viewed(name: str, views: list[Tensor]) -> None:
        each = [_scores(activations(network, view, "head")["head"], weight, y, bias, _VIEWED) for view in views]
        found.update({f"{score}@{name}": np.mean([one[score] for one in each], 0) for score in each[0]})

    shifted = F.pad(pixels, (2, 2, 2, 2), mode="reflect")
    side = pixels.shape[-1]
    moved = [shifted[..., a : a + side, b : b + side] for a, b in ((0, 0), (0, 4), (2, 2), (4, 0), (4, 4))]
    viewed("views", [view for one in moved for view in (one, one.flip(3))])
    for name in DEGRADED:
        viewed(name, [degrade(pixels, name, level, ids=test.ids) for level in DEGRADATIONS[name].levels[1:3]])
    for score in _VIEWED:
        found[f"{score}@degraded"] = np.mean([found[f"{score}@{name}"] for name in DEGRADED], 0)
    return found | _dropout(network, pixels)


def _scores(x: Tensor, weight: Tensor, y: Tensor, bias: Tensor | None, names: tuple[str, ...] = tuple(SCORES)) -> dict:
    found = {name: values.cpu().numpy() for name, values in compute_scores(x, weight, y, bias, names).items()}
    found.pop("pred")
    return found


@torch.no_grad()
def activations(network: nn.Module, pixels: Tensor, only: str = "", batch: int = 1000) -> dict[str, Tensor]:
    """What the head saw (``head``) and, for every resolution, the last activations at it, averaged over positions."""
    parts: dict[str, list[Tensor]] = {}
    last: dict[str, Tensor] = {}

    def look(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and output.shape[-1] > 1:
            last[str(output.shape[-1])] = output

    hooks = [] if only else [module.register_forward_hook(look) for module in network.modules()]
    try:
        for images in pixels.split(batch):
            last.clear()
            with capture(network) as head:
                network(images if images.is_floating_point() else images.float() / 255)
            parts.setdefault("head", []).append(head.features.float())
            for size, output in last.items():
                parts.setdefault(size, []).append(output.float().mean((2, 3)))
    finally:
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(part) for name, part in parts.items()}


def _geometries(x: Tensor, among: Tensor, weight: Tensor, y: Tensor, theirs: Tensor) -> dict[str, np.ndarray]:
    """The same angles around other points and to other vectors.

    A softmax does not see a vector that is added to all class weights, and ReLU features share a large mean; AVH sees
    both. Class means stand for the head where its weights point elsewhere.
    """
    middle = among.mean(0)
    means = torch.stack([among[theirs == label].mean(0) for label in range(len(weight))])
    spaces = {
        "centred": (x - middle, weight - weight.mean(0)),
        "means": (x, means),
        "centred_means": (x - middle, means - middle),
    }
    inside = (among - means[theirs]).double()
    values, axes = torch.linalg.eigh(inside.T @ inside / len(inside))
    white = (axes / (values + values.mean() * 1e-2).sqrt()).float()
    spaces["whitened"] = ((x - middle) @ white, (means - middle) @ white)
    found = {}
    for name, (features, vectors) in spaces.items():
        each = _scores(features, vectors, y, None, _ANGLES)
        found |= {f"{score}@{name}": values for score, values in each.items()}
    distance = torch.cdist(x @ white, means @ white).square()
    own = distance.gather(1, y[:, None])[:, 0]
    other = distance.scatter(1, y[:, None], torch.inf).amin(1)
    return found | {"mahalanobis": own.cpu().numpy(), "mahalanobis_margin": (own - other).cpu().numpy()}


def _neighbourhoods(x: Tensor, among: Tensor, y: Tensor, theirs: Tensor) -> dict[str, np.ndarray]:
    cosines, rows = neighbours(x, among, min(max(NEIGHBOURS), len(among)))
    same = (theirs[rows] == y[:, None]).double()
    found = {f"neighbour_agreement@{k}": same[:, :k].mean(1) for k in NEIGHBOURS}
    weights = (cosines.double() / SOFTNESS).softmax(1)
    found["neighbour_agreement@soft"] = (same * weights).sum(1)
    # Neighbourhoods of one mind still differ by how near they are.
    found["neighbour_agreement@near"] = same.mean(1) + cosines[:, :50].double().mean(1)
    own = neighbours(x, k=min(50, len(x) - 1))[1]
    found["neighbour_agreement@own"] = (y[own] == y[:, None]).double().mean(1)
    return {name: values.cpu().numpy() for name, values in found.items()}


def _dropout(network: nn.Module, pixels: Tensor) -> dict[str, np.ndarray]:
    """Uncertainty from passes with dropout, for networks that have some."""
    layers = [m for m in network.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0]
    if not layers:
        return {}
    torch.manual_seed(0)
    for layer in layers:
        layer.train()
    with torch.no_grad():
        passes = [torch.cat([network(part).float().softmax(1) for part in pixels.split(1000)]) for _ in range(PASSES)]
    for layer in layers:
        layer.eval()
    found = uncertainty(torch.stack(passes).double().cpu().numpy())
    return {f"{name}_dropout": values for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("human", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=DEFAULT)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--final", nargs="+", metavar="NAME")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    told = parser.parse_intermixed_args()
    if told.final:
        final(told.human, told.out, told.final)
    elif told.report:
        report(told.human, told.out)
    else:
        run(told.data, told.out, told.nets, told.seeds, told.minutes, told.smoke, told.settings)
        report(told.human, told.out)


if __name__ == "__main__":
    main()
