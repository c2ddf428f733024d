"""A small network trained in a plain loop with a recorder, and every logit of it, for tests of what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from naive import naive_scores
from torch import nn

import hardsight as hs
from hardsight.dynamics.dynamics import COLUMNS

SAMPLES, CLASSES, WIDTH = 90, 4, 6


def data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Points whose class is the largest of their first coordinates, one in eight mislabelled."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, 10, generator=generator)
    y = x[:, :CLASSES].argmax(1)
    wrong = torch.rand(SAMPLES, generator=generator) < 0.125
    return x, torch.where(wrong, (y + 1) % CLASSES, y)


def network(seed: int = 0, classes: int = CLASSES) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))


class Seen:
    """What the loop itself kept: features, weight and bias of every batch."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []

    def add(self, epoch: int, ids: Any, head: Any, y: torch.Tensor) -> None:
        found = {"features": head.features, "weight": head.weight, "bias": head.bias}
        kept = {name: value.detach().double().numpy().copy() for name, value in found.items()}
        self.batches.append({"epoch": epoch, "ids": list(ids), "labels": y.numpy().copy(), **kept})

    def naive(self) -> dict[tuple[str, int], dict[str, float]]:
        """Every recorded number again, one sample at a time, the first time an id is seen in an epoch."""
        rows: dict[tuple[str, int], dict[str, float]] = {}
        for batch in self.batches:
            scores = naive_scores(batch["features"], batch["weight"], batch["labels"], batch["bias"])
            scores["angle_sum"] = scores["angle"] / scores["avh"]
            scores["correct"] = scores["pred"] == batch["labels"]
            for i, id_ in enumerate(batch["ids"]):
                rows.setdefault((str(id_), batch["epoch"]), {name: values[i] for name, values in scores.items()})
        return rows


def train(
    run: Path | hs.Recorder,
    epochs: int = 5,
    *,
    model: nn.Module | None = None,
    batch: int = 16,
    first: int = 1,
    drop_last: bool = False,
    seen: Seen | None = None,
    ids: Any = None,
    stop: int | None = None,
) -> hs.Recorder:
    """A user's loop. `stop` raises after so many steps, as a kill would."""
    x, y = data()
    model = model or network()
    recorder = run if isinstance(run, hs.Recorder) else hs.Recorder(run)
    optimiser = torch.optim.SGD(model.parameters(), 0.3)
    steps = 0
    with hs.capture(model) as head:
        for epoch in range(first, epochs + 1):
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
            parts = [rows for rows in order.split(batch) if not drop_last or len(rows) == batch]
            for rows in parts:
                loss = F.cross_entropy(model(x[rows]), y[rows])
                names = [f"data:{i}" for i in rows.tolist()] if ids is None else ids(rows)
                recorder.update(names, head, y[rows])
                if seen is not None:
                    seen.add(epoch, names, head, y[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                steps += 1
                if stop is not None and steps == stop:
                    raise KeyboardInterrupt
            recorder.end_epoch()
    return recorder


def as_rows(dynamics: hs.Dynamics) -> dict[tuple[str, int], dict[str, Any]]:
    """All rows of the records, by (id, epoch)."""
    columns = {name: dynamics.matrix(name) for name in COLUMNS}
    return {
        (dynamics.ids[i], int(dynamics.epochs[e])): {"epoch": int(dynamics.epochs[e])}
        | {name: None if np.isnan(values[i, e]) else float(values[i, e]) for name, values in columns.items()}
        for i, e in zip(*np.nonzero(~np.isnan(columns["angle"])), strict=True)
    }
