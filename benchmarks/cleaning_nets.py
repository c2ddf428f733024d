"""Networks of four qualities under seven labelings of CIFAR-10: their out-of-sample logits, for `cleaning_study`.

``python -m benchmarks.cleaning_nets CIFAR10.npz CIFAR10N.npz OUT [--seeds 3] [--seconds 560]`` writes one
``LABELING.npz`` per labeling with ``labels`` and, per network and seed, logits as float16. Labelings: CIFAR-10N's
aggregate, random1 and worst, the original labels, and three planted errors. Networks:

* good: a small ResNet, 15 epochs, crops and flips, five folds over all 50,000 images;
* underfitted: two convolutions, one short epoch; overfitted: the ResNet fitted to 2,000 images without augmentation,
  wrong about half the time and confident of it; poor: a linear classifier on 4 × 4 pixels. These are trained on the
  last 30,000 images and score the first 20,000.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cifar10 import MEAN, STD, network

HUMAN = {"aggregate": "aggre_label", "random1": "random_label1", "worst": "worse_label"}
PLANTED = {"original": 0.0, "uniform 5%": 0.05, "uniform 20%": 0.20, "confused 10%": 0.10}
# Which class a confused annotator gives instead; as in Patrini et al. (CVPR 2017), for all ten classes.
CONFUSED = np.array([8, 9, 0, 5, 7, 3, 4, 4, 0, 1])
SCORED = 20_000  # images that the weak networks score
FOLDS = 5


def planted(clean: np.ndarray, name: str, seed: int, confused: np.ndarray = CONFUSED) -> np.ndarray:
    """The labels with the share of errors that `PLANTED` names, at random or towards the class that is confused."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(len(clean)) < PLANTED[name]
    other = confused[clean] if name.startswith("confused") else (clean + rng.integers(1, 10, len(clean))) % 10
    return np.where(wrong, other, clean)


def fit(net: nn.Module, x: Tensor, y: Tensor, epochs: int, lr: float, *, augment: bool, batch: int = 512) -> nn.Module:
    """SGD with one cycle; `x` is padded by four pixels."""
    steps = max(epochs * (len(x) // batch), 1)
    optimizer = torch.optim.SGD(net.parameters(), lr, 0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), device=x.device)[: len(x) // batch * batch].split(batch):
            top, left, flip = (*np.random.randint(0, 9, 2), np.random.rand() < 0.5) if augment else (4, 4, False)
            images = x[rows, :, top : top + 32, left : left + 32]
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                loss = F.cross_entropy(net(images.flip(3) if flip else images), y[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


@torch.no_grad()
def logits_of(net: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return torch.cat([net(part[:, :, 4:36, 4:36]).float() for part in x.split(5000)])


def resnet(x: Tensor) -> nn.Module:
    return network(64).to(x.device, memory_format=torch.channels_last)


def good(x: Tensor, y: Tensor, seed: int) -> Tensor:
    fold = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)) % FOLDS).to(x.device)
    logits = torch.empty(len(x), 10, device=x.device)
    for k in range(FOLDS):
        net = fit(resnet(x), x[fold != k], y[fold != k], 15, 0.4, augment=True)
        logits[fold == k] = logits_of(net, x[fold == k])
    return logits


def underfitted(x: Tensor, y: Tensor, seed: int) -> Tensor:
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10)).to(x.device, memory_format=torch.channels_last)
    return logits_of(fit(net, x[SCORED:], y[SCORED:], 2, 0.05, augment=True), x[:SCORED])


def overfitted(x: Tensor, y: Tensor, seed: int) -> Tensor:
    few = torch.from_numpy(np.random.default_rng(seed).choice(np.arange(SCORED, len(x)), 2000, False)).to(x.device)
    return logits_of(fit(resnet(x), x[few], y[few], 40, 0.1, augment=False, batch=100), x[:SCORED])


def poor(x: Tensor, y: Tensor, seed: int) -> Tensor:
    net = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 10)).to(x.device)
    return logits_of(fit(net, x[SCORED:], y[SCORED:], 1, 0.02, augment=False), x[:SCORED])


NETS = {"overfitted": overfitted, "underfitted": underfitted, "poor": poor, "good": good}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("cifar10n", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--labelings", nargs="+", default=[*HUMAN, *PLANTED])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no training after so long")
    options = parser.parse_args()
    started = time.time()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    human = np.load(options.cifar10n)
    clean = human["clean_label"].astype(np.int64)
    mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (MEAN, STD))
    x = torch.from_numpy(np.load(options.cifar10)["train_images"]).to(device).permute(0, 3, 1, 2).float() / 255
    x = F.pad((x - mean) / std, (4, 4, 4, 4), mode="reflect").to(memory_format=torch.channels_last)
    for name in options.labelings:
        arrays: dict[str, np.ndarray] = {}
        for seed in range(options.seeds):
            labels = human[HUMAN[name]].astype(np.int64) if name in HUMAN else planted(clean, name, seed)
            arrays[f"labels-{seed}"] = labels.astype(np.int8)
            y = torch.from_numpy(labels).to(device)
            for net, train in NETS.items():
                if time.time() - started > options.seconds:
                    continue
                torch.manual_seed(seed)
                np.random.seed(seed)
                logits = train(x, y, seed).cpu()
                arrays[f"{net}-{seed}"] = (logits - logits.amax(1, keepdim=True)).half().numpy()
                right = (logits.argmax(1).numpy() == clean[: len(logits)]).mean()
                print(f"{time.time() - started:4.0f} s  {name}  {net}  seed {seed}: {right:.1%} right", flush=True)
        np.savez(options.out / f"{name.replace(' ', '-').replace('%', '')}.npz", **arrays)


if __name__ == "__main__":
    main()
