"""When AVH stops, and what lowers the loss: MNIST by iteration (AVH Fig. 15) and digits by epoch (conjecture)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hardsight.dynamics import Dynamics, Recorder
from hardsight.errors import InputError
from hardsight.figures.curves import Run, plot_dynamics
from hardsight.heads import capture
from hardsight.phases import loss_drivers, plateau, plateaus
from hardsight.studies.declared.avh_measures import phase_switch
from hardsight.studies.declared.small_networks import fit, plain_cnn, split_pixels
from hardsight.studies.declared.training import recipe_of, split_digits, train_cell
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def iterations(
    data: Any,
    out: str | Path,
    *,
    count: int = 60,
    batch_size: int = 128,
    lr: float = 3e-3,
    decay: bool = False,
    seed: int = 0,
    device: str | None = None,
) -> Dynamics:
    """Train a small CNN for a few iterations and record the test set after each one (Fig. 15).

    The network has two convolutions (16 and 32 channels) and 128 features; Adam with a constant learning rate, so that
    no curve flattens because the steps shrink.

    Args:
        data: As for `embeddings`.
        out: Where the records go; what is there is overwritten.
        count: Iterations.
        decay: Let the learning rate fall to 0 along a cosine instead.
    """
    training, test, classes = split_pixels(data, device)
    recorder = Recorder(out, overwrite=True, split="test", unit="iteration", class_names=classes)
    ids = torch.arange(len(test[1]))

    def record(net: nn.Module) -> None:
        net.eval()
        with capture(net) as head, torch.no_grad():
            for batch in ids.split(1000):
                net(test[0][batch])
                recorder.update(batch, head, test[1][batch])
        recorder.end_epoch()
        net.train()

    network = lambda: plain_cnn(len(classes), training[0].shape[1])  # noqa: E731
    fit(network, *training, count, batch_size, lr, seed, decay=decay, after=record)
    return Dynamics(out)


_VALUES = ("avh", "angle", "norm", "correct")
_EARLY = "share of its change by iteration 10"


def _early_shares(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the share of the change up to iteration 60 that was made by iteration 10."""
    shares = []
    for row in rows:
        at = {(name, k): row.get(f"{name} at {k}") for name in _VALUES for k in (1, 10, 60)}
        numbers = {key: float(value) for key, value in at.items() if value not in (None, "")}
        whole = {name for name in _VALUES if {(name, 1), (name, 10), (name, 60)} <= numbers.keys()}
        whole -= {name for name in whole if numbers[name, 1] == numbers[name, 60]}  # there is no change to divide
        early = {
            f"{name}: {_EARLY}": (numbers[name, 10] - numbers[name, 1]) / (numbers[name, 60] - numbers[name, 1])
            for name in whole
        }
        shares.append(row | early)
    return shares


@STUDIES.register(
    "iterations",
    question="Does AVH reach its plateau within the first iterations?",
    paper="AVH, Fig. 15",
    factors={"rate": ("constant", "falling")},
    measures={
        **{f"{name} plateau epoch": Measure(f"Iteration at which {name} stops") for name in _VALUES},
        **{f"{name} at {at}": Measure(f"Mean {name} at iteration {at}") for name in _VALUES for at in (1, 10, 30, 60)},
        **{f"{name}: {_EARLY}": Measure(f"Share of the change of {name} by iteration 10") for name in _VALUES},
    },
    derive=_early_shares,
    scales={
        "smoke": Scale(1, 3, settings={"data": "digits", "count": 30}),
        "paper": Scale(5, 60, settings={"data": "mnist.npz", "count": 60}),
    },
)
def _iterations(cell: Cell) -> dict[str, Any]:
    run = iterations(
        cell.file(cell.settings["data"]),
        cell.folder / "run",
        count=cell.settings["count"],
        decay=cell.levels["rate"] == "falling",
        seed=cell.seed,
        device=str(cell.device),
    )
    row: dict[str, Any] = {}
    for name in _VALUES:
        values = run.matrix(name) * (run.classes if name == "avh" else 1)
        mean, end = values.mean(0), plateau(values, run.epochs)
        row |= {f"{name} at {at}": mean[at - 1] for at in (1, 10, 20, 30, 60) if at <= len(mean)}
        row |= {f"{name} plateau {part}": getattr(end, part) for part in ("epoch", "low", "high")}
    return row


def plot_iterations(runs: Mapping[str, Run] | None = None, data: str | None = None, seed: int = 0) -> Figure:
    """Norm, angle and AVH per iteration (Fig. 15).

    Args:
        runs: Runs that were recorded per iteration, by name.
        data: What a small CNN is trained on where there are no runs.
        seed: Seed of its training.
    """
    values = ("norm", "angle", "avh")
    if runs:
        return plot_dynamics(runs, values=values)
    if data is None:
        raise InputError("the figure iterations needs --data, or a RUN that was recorded by iteration.")
    with tempfile.TemporaryDirectory() as folder:
        return plot_dynamics({"small CNN": iterations(data, Path(folder) / "run", seed=seed)}, values=values)


@STUDIES.register(
    "phases",
    question="Do first the angles and then the norms lower the loss?",
    paper="AVH, conjecture",
    factors={},
    measures={
        "accuracy": Measure("Test accuracy", True, "higher"),
        "angles hand over to norms at": Measure("Epoch at which angles hand over to norms"),
        "share of epochs that agree with two phases": Measure("Epochs that agree with two phases", True),
        "change of the loss by_angles": Measure("Change of the loss by angles"),
        "change of the loss by_norms": Measure("Change of the loss by norms"),
        "avh plateau epoch": Measure("Epoch at which AVH stops"),
    },
    scales={
        "smoke": Scale(1, 5, settings={"recipe": {"epochs": 8}}),
        "paper": Scale(5, 30, settings={"recipe": {"epochs": 30}}),
    },
)
def _phases(cell: Cell) -> dict[str, Any]:
    """Digits, of which every fourth is for the test."""
    recipe = recipe_of(cell, "small-cnn", lr=0.001)
    trained = train_cell(cell, split_digits(4), recipe, "small-cnn", record=("test",))
    run = Dynamics(cell.folder / "run" / "test")
    row: dict[str, Any] = {"accuracy": trained.history[-1]["test_accuracy"]}
    for end in plateaus(run).to_pylist():
        names = ("epoch", "low", "high", "later", "later_low", "later_high")
        row |= {f"{end['value']} plateau {name}": end[name] for name in names}
    drivers = loss_drivers(run)
    switch = phase_switch(*(drivers[name].to_numpy(zero_copy_only=False) for name in ("epoch", "driver")))
    row |= {
        "angles hand over to norms at": switch.epoch,
        "share of epochs that agree with two phases": switch.agreement,
    }
    return row | {
        f"change of the loss {part}": np.nansum(drivers[part].to_numpy()) for part in ("by_angles", "by_norms")
    }
