"""Find and fix wrong labels: a twentieth of the labels of digits made wrong, scored in folds, listed, cleaned.

python examples/find_wrong_labels.py
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import hardsight as hs
from hardsight.data import load_digits

torch.set_num_threads(1)  # a network this small gains nothing from a second one


def train(data):
    """A network for one fold: `data` holds the other folds, with the labels that they have."""
    x, y = torch.from_numpy(data.images).flatten(1) / 255, torch.from_numpy(data.labels)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, data.classes))
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimiser.step()
    return network


images, truth = load_digits()
rng = np.random.default_rng(0)
wrong = rng.random(len(truth)) < 0.05
labels = np.where(wrong, (truth + rng.integers(1, 10, len(truth))) % 10, truth)

with tempfile.TemporaryDirectory() as folder:
    data, run = Path(folder) / "digits.npz", Path(folder) / "run"
    np.savez(data, images=images, labels=labels)
    table = hs.score(train, data, folds=5, out=run)  # no digit is scored by a network that saw its label
    page = hs.write_report(run)
    print(f"{page.name}: {page.stat().st_size / 1e6:.1f} MB to look at")

    found = hs.label_errors(table)
    print(found.head(5))
    suspects = [int(id_.split(":")[1]) for id_ in found["id"][found["suspect"]]]
    noise = hs.labelerrors.noise(table)
    print(f"{wrong.sum()} labels are wrong; estimated: {noise.count:.0f} ({noise.low:.1%} to {noise.high:.1%})")
    print(f"{len(suspects)} suspects, {wrong[suspects].sum()} of them wrong")

    hs.clean(run)  # lists to review; here a person who knows the truth decides about every suspect
    right = [str(truth[place]) for place in suspects]
    decisions = {"id": [f"data:{place}" for place in suspects], "action": ["relabel"] * len(right), "new_label": right}
    done = hs.clean(run, decisions=decisions, dataset=Path(folder) / "cleaned.npz", overwrite=True)
    left = (np.load(done["dataset"]["path"])["labels"] != truth).sum()
    print(f"{len(suspects)} reviewed: {left} wrong labels are left")
