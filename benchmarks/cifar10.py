"""Real networks on CIFAR-10: every column of a run against a naive float64 computation, and what scoring costs.

``python -m benchmarks.cifar10 CIFAR10.npz OUT`` trains three small ResNets (seeds 0, 1, 2), scores the test set with
each, and writes ``agreement.csv`` and ``speed.csv`` into OUT.
"""

from __future__ import annotations

import csv
import itertools
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hardsight as hs
from benchmarks.measure import interleaved, ratios
from benchmarks.naive_scores import naive_scores

EPOCHS, BATCH = 15, 256
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
        )
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.second(self.first(x)) + self.skip(x)).relu()


def network(width: int = 48) -> nn.Sequential:
    widths = [width, width, 2 * width, 4 * width]
    blocks = [Block(a, b, 1 + (a != b)) for a, b in itertools.pairwise(widths)]
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def trained(x: torch.Tensor, y: torch.Tensor, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = network().to(x.device)
    steps = EPOCHS * (len(x) // BATCH)
    optimiser = torch.optim.SGD(net.parameters(), 0.1, 0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.3, total_steps=steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), device=x.device)[: len(x) // BATCH * BATCH].split(BATCH):
            pictures = x[rows]
            pictures = pictures.flip(3) if torch.rand(()) < 0.5 else pictures
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                loss = F.cross_entropy(net(pictures), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return net.eval()


def agreement(net: nn.Module, data: TensorDataset, seed: int) -> list[dict]:
    table = hs.score(net, data, batch_size=500, progress=False)
    batches = []
    with torch.no_grad(), hs.capture(net) as head:
        for x, _ in DataLoader(data, 500):
            net(x.to(next(net.parameters()).device))
            batches.append(head.features.cpu())
    truth = naive_scores(torch.cat(batches), head.weight.detach().cpu(), data.tensors[1], head.bias.detach().cpu())
    rows = []
    for name in hs.SCORES:
        expected = truth[name].numpy()
        off = np.abs(table[name] - expected)
        relative, absolute = hs.SCORES[name].tolerance
        share = off / (absolute + relative * np.abs(expected))
        rows.append(
            {
                "seed": seed,
                "accuracy": f"{table.accuracy:.4f}",
                "score": name,
                "largest absolute error": f"{off.max():.2g}",
                "share of tolerance used": f"{share.max():.2g}",
                "samples": len(off),
            }
        )
    return rows


def main() -> None:
    arrays, out = np.load(sys.argv[1]), Path(sys.argv[2])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    images = {
        s: (torch.from_numpy(arrays[f"{s}_images"]).permute(0, 3, 1, 2) / 255 - mean) / std for s in ("train", "test")
    }
    labels = {s: torch.from_numpy(arrays[f"{s}_labels"]).long() for s in ("train", "test")}
    data = TensorDataset(images["test"].contiguous(), labels["test"])
    x, y = images["train"].to(device), labels["train"].to(device)
    rows = []
    for seed in range(3):
        start = time.time()
        net = trained(x, y, seed)
        print(f"seed {seed}: trained on {len(x):,} pictures in {time.time() - start:.0f} s", flush=True)
        rows += agreement(net, data, seed)
    torch.save(net.state_dict(), out / "net.pt")

    def bare() -> None:
        with torch.no_grad():
            for pictures, _ in DataLoader(data, 500, num_workers=4, pin_memory=True):
                net(pictures.to(device, non_blocking=True))
        if device.type == "cuda":
            torch.cuda.synchronize()

    def scored() -> None:
        hs.score(net, data, batch_size=500, workers=4, progress=False)

    speed = ratios("cifar10", interleaved({"bare loop": bare, "score": scored}, 7), "bare loop", {})
    for name, table in (("agreement", rows), ("speed", speed)):
        with (out / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, table[0].keys())
            writer.writeheader()
            writer.writerows(table)
        print(*(" ".join(f"{k}={v}" for k, v in r.items() if v != "") for r in table), sep="\n")


if __name__ == "__main__":
    main()
