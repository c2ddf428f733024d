"""The papers' comparisons of losses.

``python -m benchmarks.loss_studies STUDY DATA.npz OUT [--seeds N] [--minutes M] [--model PRESET] [key=value …]``

STUDY is one of

* ``sweep``: cross-entropy against the Encouraging Loss with ``log_end`` 0 … 1, there also with matched gradients and
  with the paper's clamp (EL Fig. 4, 5, 6 and the probe);
* ``rates``: some of them at half and twice the learning rate (EL Table 2);
* ``mnist``: cross-entropy, squared error and their bonuses (EL Tables 1 and 5);
* ``pairs``: cross-entropy, Euclidean contrastive and AMC-Loss (AMC Table 1, Fig. 4).

``--model`` names another preset, ``key=value`` changes its recipe. Rows come to OUT/STUDY.csv one by one; what is there
already is not trained again, and no training begins after ``--minutes``. Seeds are the outer loop, so that what is cut
short is cut evenly. Every number is of the last epoch (``best`` is the papers' rule): nothing is chosen on test data.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hardsight as hs
from benchmarks.measure import hardware
from hardsight.data import all_labels, as_pixels, open_data
from hardsight.presets import PRESETS
from hardsight.recipes import Recipe, parse_settings
from hardsight.training import Trained, train

ENDS = ("el:0", "el:0.25", "el:0.5", "el:0.75", "el:0.9", "el:exact")
TAMED = ("el:exact,match", "el:normal")  # by gradients as long as cross-entropy's; by the paper's clamp


@dataclass(frozen=True)
class Study:
    """Which losses are compared on which network, at which multiples of its learning rate."""

    model: str
    settings: tuple[str, ...]
    losses: tuple[str, ...]
    rates: tuple[float, ...] = (1.0,)


# A large `clip` changes nothing but has the norm of the gradient recorded.
_CIFAR = ("epochs=10", "batch_size=256", "lr=0.2", "warmup=2", "label_smoothing=0", "ema=0", "graph=false", "clip=1e9")
_MNIST = ("epochs=12", "drop_last=true", "precision=bf16", "channels_last=true", "clip=1e9")
STUDIES = {
    "sweep": Study("cifar-resnet18", _CIFAR, ("ce", *ENDS, *TAMED)),
    "rates": Study("cifar-resnet18", _CIFAR, ("ce", "el:0.75", "el:exact", *TAMED), (0.5, 2.0)),
    "mnist": Study(
        "mnist-el",
        _MNIST,
        ("ce", "el:0.75", "el:exact", TAMED[1], "mse", "mirror", "mse:sigmoid", "mirror:sigmoid"),
    ),
    "pairs": Study(
        "cifar-resnet18", _CIFAR, ("ce", "euclid:paper", "amc:paper", "amc:released", "amc:released,pairs=classes")
    ),
}


def run(name: str, data: str, out: Path, seeds: int, minutes: float, model: str | None, settings: list[str]) -> None:
    study, began = STUDIES[name], time.perf_counter()
    preset = model or study.model
    recipe = PRESETS[preset].recipe.replace(**parse_settings([*study.settings, *settings]))
    table = out / f"{name}.csv"
    rows = csv.DictReader(table.read_text().splitlines()) if table.exists() else ()
    done = {(row["model"], row["loss"], row["rate"], row["seed"]) for row in rows}
    for seed in range(seeds):
        for rate in study.rates:
            for loss in study.losses:
                key = (preset, loss, f"{rate:g}", str(seed))
                if key in done:
                    continue
                if time.perf_counter() - began > 60 * minutes:
                    print("out of time", flush=True)
                    return
                details = out / f"{name}-{loss.replace(':', '-')}-{rate:g}.json" if seed == 0 else None
                row = _one(preset, data, out, replace(recipe, loss=loss, lr=rate * recipe.lr, seed=seed), key, details)
                with table.open("a", newline="") as file:
                    writer = csv.DictWriter(file, row, lineterminator="\n")
                    if not file.tell():
                        writer.writeheader()
                    writer.writerow(row)
                print({k: row[k] for k in ("loss", "rate", "seed", "accuracy", "margin", "seconds")}, flush=True)


def _one(preset: str, data: str, out: Path, recipe: Recipe, key: tuple[str, ...], details: Path | None) -> dict:
    began = time.perf_counter()
    path = out / "run"
    trained = train(
        preset, f"{data}:train", f"{data}:test", out=path, recipe=recipe, record=(), overwrite=True, progress=False
    )
    seconds = time.perf_counter() - began
    history = trained.history
    gradients = [row["gradient"] for row in history if "gradient" in row]
    row = {
        **dict(zip(("model", "loss", "rate", "seed"), key, strict=True)),
        "accuracy": f"{history[-1]['test_accuracy']:.4f}",
        "best": f"{max(row['test_accuracy'] for row in history):.4f}",
        "gradient": f"{np.mean(gradients):.4g}" if gradients else "",
        "last_gradient": f"{gradients[-1]:.4g}" if gradients else "",
        **_measured(trained, data, details),
        "epochs": recipe.epochs,
        "lr": f"{recipe.lr:g}",
        "seconds": f"{seconds:.1f}",
        "hardware": hardware(),
        "torch": torch.__version__,
    }
    (path / "checkpoint.pt").unlink(missing_ok=True)
    return row


def _measured(trained: Trained, data: str, details: Path | None) -> dict[str, str]:
    """Margins, energies, clusters, gradients and the probe of a trained network."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import homogeneity_completeness_v_measure as clusters

    network = trained.model.module
    test, train = Outputs.of(network, f"{data}:test"), Outputs.of(network, f"{data}:train")
    truth = test.labels.cpu().numpy()
    classes = np.unique(truth)
    directions = F.normalize(test.features, dim=1).cpu().numpy()
    by_prediction = clusters(truth, test.logits.argmax(1).cpu().numpy())
    by_means = clusters(truth, KMeans(len(classes), n_init=4, random_state=0).fit_predict(directions))
    if details is not None:
        energy = [[float(-test.logits[test.labels == i, k].mean()) for k in classes] for i in classes]
        counts, edges = np.histogram(test.margins.cpu().numpy(), 60)
        details.write_text(json.dumps({"energy": energy, "margins": counts.tolist(), "edges": edges.tolist()}))
    return {
        "margin": f"{test.margins.median().item():.3f}",
        "margin_p5": f"{test.margins.quantile(0.05).item():.3f}",
        "train_margin": f"{train.margins.median().item():.3f}",
        "energy": f"{-test.own.mean().item():.3f}",
        "probe": f"{_probe(train, test):.4f}",
        "homogeneity": f"{by_prediction[0]:.4f}",
        "completeness": f"{by_prediction[1]:.4f}",
        "kmeans_homogeneity": f"{by_means[0]:.4f}",
        "kmeans_completeness": f"{by_means[1]:.4f}",
    }


@dataclass(frozen=True)
class Outputs:
    """What a network makes of a data set, in eval mode and without augmentation."""

    logits: Tensor
    features: Tensor
    labels: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, network: nn.Module, data: str) -> Outputs:
        samples, device = open_data(data), next(network.parameters()).device
        pixels = as_pixels(samples, None, device)
        labels = torch.as_tensor(all_labels(samples, "data"), device=device)
        logits, features = [], []
        with hs.capture(network) as head:
            for part in pixels.split(1000):
                logits.append(network(part.float() / 255))
                features.append(head.features.float())
        return cls(torch.cat(logits).float(), torch.cat(features), labels)

    @property
    def own(self) -> Tensor:
        return self.logits.gather(1, self.labels[:, None])[:, 0]

    @property
    def margins(self) -> Tensor:
        return self.own - self.logits.scatter(1, self.labels[:, None], -torch.inf).amax(1)


def _probe(train: Outputs, test: Outputs, epochs: int = 20) -> float:
    """Accuracy of a new linear head that cross-entropy trains on frozen features (of pictures as they are)."""
    torch.manual_seed(0)
    mean, spread = train.features.mean(0), train.features.std(0).clamp_min(1e-6)
    x, head = (
        (train.features - mean) / spread,
        nn.Linear(train.features.shape[1], train.logits.shape[1]).to(train.features),
    )
    optimiser = torch.optim.SGD(head.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), device=x.device).split(512):
            optimiser.zero_grad()
            F.cross_entropy(head(x[rows]), train.labels[rows]).backward()
            optimiser.step()
        rate.step()
    with torch.no_grad():
        return (head((test.features - mean) / spread).argmax(1) == test.labels).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--model", choices=PRESETS)
    parser.add_argument("settings", nargs="*", metavar="key=value")
    told = parser.parse_intermixed_args()
    told.out.mkdir(parents=True, exist_ok=True)
    run(told.study, told.data, told.out, told.seeds, told.minutes, told.model, told.settings)


if __name__ == "__main__":
    main()
