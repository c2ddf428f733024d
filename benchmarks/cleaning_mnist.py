"""The same as `cleaning_study`, on data that had no part in choosing the rule: MNIST's 60,000 digits.

``python -m benchmarks.cleaning_mnist MNIST.npz OUT.csv [--seeds 3]`` trains an MLP and a linear classifier in five
folds, and an MLP on 200 digits, under the planted errors of `cleaning_nets`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.cleaning_nets import FOLDS, PLANTED, planted
from benchmarks.cleaning_study import rows_of, write_csv

CONFUSED = np.array([6, 7, 3, 5, 9, 3, 0, 1, 3, 4])  # 0 and 6, 1 and 7, 4 and 9, 3, 5 and 8


def fit(net: nn.Module, x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(256):
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


@torch.no_grad()
def logits_of(net: nn.Module, x: Tensor) -> Tensor:
    return net(x)


def in_folds(make, x: Tensor, y: Tensor, seed: int, epochs: int) -> np.ndarray:
    fold = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)) % FOLDS).to(x.device)
    logits = torch.empty(len(x), 10, device=x.device)
    for k in range(FOLDS):
        logits[fold == k] = logits_of(fit(make().to(x.device), x[fold != k], y[fold != k], epochs), x[fold == k])
    return logits.cpu().numpy()


def from_few(x: Tensor, y: Tensor, seed: int) -> np.ndarray:
    few = torch.from_numpy(np.random.default_rng(seed).choice(len(x), 200, replace=False)).to(x.device)
    return logits_of(fit(mlp().to(x.device), x[few], y[few], 60), x).cpu().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mnist", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    arrays = np.load(options.mnist)
    truth = arrays["train_labels"].astype(np.int64)
    x = torch.from_numpy(arrays["train_images"].reshape(len(truth), -1)).to(device).float() / 255
    rows = []
    for name in PLANTED:
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            labels = planted(truth, name, 100 + seed, CONFUSED)
            y = torch.from_numpy(labels).to(device)
            nets = {
                "MLP": in_folds(mlp, x, y, seed, 3),
                "linear": in_folds(lambda: nn.Linear(784, 10), x, y, seed, 2),
                "MLP on 200 digits": from_few(x, y, seed),
            }
            for net, logits in nets.items():
                rows.append({"labels": name, "network": net, "seed": seed, **rows_of(labels, logits, truth)})
                print(*(f"{v:.4g}" if isinstance(v, float) else v for v in rows[-1].values()), sep="  ", flush=True)
    write_csv(options.out, rows)


if __name__ == "__main__":
    main()
