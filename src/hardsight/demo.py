"""The demo: real digits, a few labels changed on purpose, and networks that find them out of sample."""

from __future__ import annotations

import shlex
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from hardsight.data import ArraySamples, load_digits
from hardsight.errors import ExistingPathError
from hardsight.labelerrors import label_errors
from hardsight.models import Model
from hardsight.networks import small_cnn
from hardsight.printing import percent
from hardsight.runs import is_run, read_run, write_whole
from hardsight.scoring.folds import TrainingData, full_name, one_thread
from hardsight.scoring.score import score
from hardsight.table import SampleTable

FOLDS, EPOCHS, BATCH, CHANGED = 5, 15, 64, 30
DATA_FILE = "digits.npz"


class Demo(NamedTuple):
    """Results of the demo.

    Attributes:
        table: The scores; ``meta.planted`` has the true label of each sample with a changed label, by id.
        page: The page.
        changed: How many labels were changed.
        found: How many of them are suspects.
        others: How many unchanged labels are suspects.
    """

    table: SampleTable
    page: Path
    changed: int
    found: int
    others: int


def run_demo(out: Path = Path("hardsight-demo"), seed: int = 0) -> Demo:
    """Change a few labels, train on four fifths, score the fifth, five times; write the run, its data and its page.

    Args:
        out: Run folder to write; an earlier demo there is replaced.
        seed: Seed of changed labels, folds and training.
    """
    from hardsight.report import write_report

    started = time.time()
    _check_free(out)
    samples, planted = digits_with_wrong_labels(out / DATA_FILE, seed)
    print(f"{len(samples):,} real handwritten digits (8×8, scikit-learn). We changed {len(planted)} of their labels.")
    print(f"Can a network tell which? {FOLDS} folds: no digit is judged by a network that trained on its label.")
    with one_thread():  # layers this small gain nothing from a second thread
        table = score(train, samples, folds=FOLDS, seed=seed, device="cpu")
    table.meta.planted = planted
    table.save(out, overwrite=True)
    arrays: dict[str, Any] = {"digits_images": samples.images, "digits_labels": samples.labels}
    arrays["classes"] = np.array(samples.classes)
    write_whole(out / DATA_FILE, partial(_write_arrays, arrays))
    page = write_report(out)
    suspects = label_errors(table)
    ids = suspects["id"][suspects["suspect"]].tolist()
    found = sum(id_ in planted for id_ in ids)
    demo = Demo(table, page, len(planted), found, len(ids) - found)
    _show(suspects, samples, planted)
    more = f"{demo.others} more look" if demo.others > 1 else "one more looks" if demo.others else "no other looks"
    print(f"found {found} of the {len(planted)} labels we changed; {more} wrong to us")
    accuracy = percent((table["pred"] == table["label"]).mean())
    print(f"wrote {out}/ and {page} in {time.time() - started:.0f} s; accuracy {accuracy}")
    name, decisions = shlex.quote(str(out)), f"{out.absolute().name}-decisions.csv"
    print(f"next: open {page} in a browser, decide about each suspect, and download your decisions")
    print(f"      hardsight clean {name} --decisions ~/Downloads/{shlex.quote(decisions)} --dataset cleaned.npz")
    print("      hardsight score --help   (the same for your own classifier)")
    return demo


def _write_arrays(arrays: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:  # by name, NumPy would add an ending
        np.savez_compressed(file, **arrays)


def _check_free(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier demo."""
    if not is_run(out):
        ours = not out.is_dir() or not any(out.iterdir())
    else:
        ours = read_run(out, partial=True, kinds=())[1].model.function == full_name(train)
    if not ours:
        raise ExistingPathError(f"out: {out} holds something that is not a demo; name another folder.")


def digits_with_wrong_labels(file: Path, seed: int) -> tuple[ArraySamples, dict[str, int]]:
    """The digits of scikit-learn, some with a changed label, and the true label of these by id.

    `file` is where the data will be.
    """
    images, truth = load_digits()
    random = np.random.default_rng(seed)
    places = np.sort(random.choice(len(truth), CHANGED, replace=False))
    labels = truth.copy()
    labels[places] = (truth[places] + random.integers(1, 10, CHANGED)) % 10
    origin = f"{len(truth):,} digits, {CHANGED} with a label that we changed"
    samples = ArraySamples(images, labels, "digits", origin, list("0123456789"))
    samples.source = {"data": f"{file.absolute()}:digits"}
    return samples, {samples.ids[place]: int(truth[place]) for place in places.tolist()}


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


def _show(suspects: SampleTable, samples: ArraySamples, planted: dict[str, int], n: int = 6) -> None:
    """The most suspicious digits in the terminal, two rows of pixels per line."""
    rows = suspects.head(n).to_arrow().to_pylist()
    print(f"\nThe {n} most suspicious labels:\n")
    drawn = [_half_blocks(samples.images[place]) for place in samples.find([row["id"] for row in rows])]
    for line in zip(*drawn, strict=True):
        print("   ".join(text.ljust(16) for text in line).rstrip())
    for row in rows:
        row["verdict"] = f"we changed the {planted[row['id']]}" if row["id"] in planted else "not changed by us"
    for template in ("{id}", "labeled {label}", "looks like a {pred}", "{verdict}"):
        print("  ".join(template.format(**row).ljust(17)[:17] for row in rows).rstrip())
    print()


def _half_blocks(image: np.ndarray) -> list[str]:
    """Each pixel twice as wide as a character and as high as a line: square on most terminals."""
    shades = " ░▒▓█"
    return ["".join(shades[min(int(value) * 5 // 256, 4)] * 2 for value in line) for line in image]
