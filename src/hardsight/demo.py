"""The demo: a small network on real digits, every digit scored by a network that did not train on it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from hardsight.data import load_digits
from hardsight.errors import ExistingPathError
from hardsight.models import Model
from hardsight.networks import small_cnn
from hardsight.runs import is_run, read_run
from hardsight.scoring.folds import TrainingData, full_name, one_thread
from hardsight.scoring.score import score
from hardsight.table import SampleTable

FOLDS, EPOCHS, BATCH = 5, 15, 64


def run_demo(out: Path = Path("hardsight-demo"), seed: int = 0) -> SampleTable:
    """Train on four fifths, score the fifth, five times; write the run and its page; print the hardest digits.

    Args:
        out: Run folder to write; an earlier demo there is replaced.
        seed: Seed of folds and training.
    """
    from hardsight.report import write_report

    started = time.time()
    if is_run(out) and read_run(out, partial=True, kinds=())[1].model.function != full_name(train):
        raise ExistingPathError(f"out: {out} holds a run that is not a demo; name another folder.")
    images, _ = load_digits()
    print(f"{len(images):,} real handwritten digits (8×8, scikit-learn), {FOLDS} folds:")
    print("no digit is scored by a network that saw it in training.")
    with one_thread():  # layers this small gain nothing from a second one
        table = score(train, "digits", folds=FOLDS, seed=seed, out=out, overwrite=True, device="cpu")
    page = write_report(out)
    _show(table, images)
    print(
        f"{len(table):,} digits scored out of sample in {time.time() - started:.0f} s, accuracy {table.accuracy:.2%}."
    )
    print(f"wrote {out}/ and {page}")
    print(f"next: open {page} in a browser")
    print(f"      hardsight clean {out}   (lists the labels to review)")
    print("      hardsight score --help   (the same for your own classifier)")
    return table


def train(data: TrainingData) -> Model:
    """A small network for one fold."""
    x, y = torch.from_numpy(data.images).float()[:, None] / 255, torch.from_numpy(data.labels)
    torch.manual_seed(data.seed)
    network = small_cnn()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.05)
    steps = EPOCHS * -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            loss = F.cross_entropy(network(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return Model(network, "small_cnn")


def _show(table: SampleTable, images: np.ndarray, n: int = 6) -> None:
    """The hardest digits in the terminal, two rows of pixels a line."""
    rows = table.hardest(n).to_arrow().to_pylist()
    print(f"\nThe {n} hardest (C·AVH: 1 is chance, larger is harder):\n")
    drawn = [_half_blocks(images[int(row["id"].split(":")[1])]) for row in rows]
    for line in zip(*drawn, strict=True):
        print("   ".join(text.ljust(16) for text in line).rstrip())
    for template in ("{id}", "{label} read as {pred}", "C·AVH {hardness:.2f}"):
        print("   ".join(template.format(**row, hardness=10 * row["avh"]).ljust(16)[:16] for row in rows).rstrip())
    print()


def _half_blocks(image: np.ndarray) -> list[str]:
    """Each pixel twice as wide as a character and as high as a line: square on most terminals."""
    shades = " ░▒▓█"
    return ["".join(shades[min(int(value) * 5 // 256, 4)] * 2 for value in line) for line in image]
