"""Data that are given as arrays or loaders give the rows of a data set."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hardsight as hs

X = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32))
Y = torch.arange(60) % 3


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        (X.numpy(), Y.numpy()),
        DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True),
    ],
    ids=["tensors", "arrays", "loader"],
)
def test_the_rows_are_those_of_a_data_set(data):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    expected = hs.score(network, TensorDataset(X, Y), device="cpu").to_arrow()
    assert hs.score(network, data, device="cpu").to_arrow().equals(expected)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, torch.eye(3)[Y]), "multi-label"),
        ((X, Y[:9]), r"shape \(60,\)"),
        ((X, Y.float()), "integers"),
        ((X, Y - 1), "got -1"),
        ((X[:, 0], Y), "inputs"),
        (((255 * X).byte(), Y), "inputs"),
        (TensorDataset(X, torch.eye(3)[Y]), "multi-label"),
        ([(x, torch.tensor([1.0, 0.0, 1.0])) for x in X], "multi-label"),
    ],
)
def test_what_does_not_fit_is_one_sentence(data, message):
    with pytest.raises(hs.HardsightError, match=message):
        hs.score(nn.Linear(4, 3), data, device="cpu")
