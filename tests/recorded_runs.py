"""Recorded runs for tests: a stand-in made of matrices, and a small network that really trains."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import hardsight as hs
from hardsight.dynamics import Dynamics, Recorder
from hardsight.idtables import groups_by_id
from hardsight.runs import Meta


class Matrices:
    """What `Dynamics` offers, from arrays ``(N, E)`` by column."""

    def __init__(self, columns, labels=None, classes=10, epochs=None):
        self.columns = {name: np.asarray(values, float) for name, values in columns.items()}
        n, count = next(iter(self.columns.values())).shape
        self.ids = np.array([f"test:{i:05d}" for i in range(n)], dtype=object)
        self.labels = np.zeros(n, np.int64) if labels is None else labels
        self.epochs = np.arange(1, count + 1) if epochs is None else np.asarray(epochs)
        self.classes, self.unit, self.meta = classes, "epoch", Meta()

    def __len__(self):
        return len(self.ids)

    def matrix(self, column):
        return self.columns[column]

    def groups(self, by=None):
        return (["all"], np.zeros(len(self), np.int64)) if by is None else groups_by_id(by, pa.array(self.ids))

    def curves(self, by=None, values=()):
        means = {f"{name}_mean": np.nanmean(self.columns[name], 0) for name in values}
        return pa.table({"epoch": self.epochs, **means})


def train_digits(out: Path, *, epochs: int = 12, residual: bool = True, width: int = 24, seed: int = 0):
    """A small MLP on scikit-learn's digits; the 300 that it does not see are recorded after each epoch.

    Returns the run and, for each epoch, the features, weight and bias that were recorded.
    """
    pictures, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pictures / 16, dtype=torch.float32), torch.tensor(labels)
    kept = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = nn.Linear(64, width), nn.Linear(width, width), nn.Linear(width, 10)

        def forward(self, x):
            x = F.relu(self.first(x))
            return self.head(F.relu(self.second(x)) + (x if residual else 0))

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net, recorder = Net(), Recorder(out, split="test", overwrite=True)
        optimiser = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
        test = torch.arange(300)
        for _ in range(epochs):
            for batch in (300 + torch.randperm(900)).split(64):
                loss = F.cross_entropy(net(x[batch]), y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            with hs.capture(net) as head, torch.no_grad():
                net(x[test])
                recorder.update(test, head, y[test])
                kept.append([tensor.clone().double().numpy() for tensor in (head.features, head.weight, head.bias)])
            recorder.end_epoch()
    return Dynamics(out), kept
