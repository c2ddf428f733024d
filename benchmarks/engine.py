"""The training engine on CIFAR-10: accuracy and seconds of ``cifar-resnet18``, and what recording costs a step.

``python -m benchmarks.engine CIFAR10.npz OUT [recorded] [plain] [overhead] [SEEDS] [key=value …]`` writes
``recorded.csv`` and ``plain.csv`` (training with and without records of all samples) and ``overhead.csv`` (the cost of
recording per step, and of a commit) to OUT; by default all three. ``key=value`` changes the recipe
(``epochs=20 lr=0.5 compile=true``). Seconds are those of the whole call: data to the device, training, evaluation after
every epoch, checkpoints and records. The first call of a process also loads libraries.
The file holds train_images, train_labels, test_images, test_labels.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import hardsight as hs
from benchmarks.measure import hardware, ratios, row
from hardsight.data import Source, as_pixels, open_data
from hardsight.distributed import torchrun_job
from hardsight.dynamics import Recorder
from hardsight.networks import build_network
from hardsight.presets import PRESETS
from hardsight.recipes import Recipe, parse_settings
from hardsight.training import train
from hardsight.training.loop import Training, preserved_state

# Batch, steps of one measurement (the recorder reads 32 batches together) and measurements.
ON_GPU, ON_CPU = (512, 96, 10), (32, 32, 5)


def accuracy(data: str, out: Path, recipe: Recipe, seeds: int, record: tuple[str, ...]) -> list[dict]:
    rows = []
    for seed in range(seeds):
        path = out / f"seed{seed}-{'recorded' if record else 'plain'}"
        start = time.perf_counter()
        trained = train(
            "cifar-resnet18",
            f"{data}:train",
            f"{data}:test",
            out=path,
            recipe=replace(recipe, seed=seed),
            record=record,
            overwrite=True,
            progress=seed == 0,
        )
        seconds = time.perf_counter() - start
        last = trained.history[-1]
        rows.append(
            {
                "seed": seed,
                "recorded": " and ".join(record) or "nothing",
                "accuracy": f"{last['test_accuracy']:.4f}",
                "seconds": f"{seconds:.1f}",
                "of it training steps": f"{sum(row['seconds'] for row in trained.history):.1f}",
                "epochs": recipe.epochs,
                "hardware": hardware(),
                "torch": torch.__version__,
            }
        )
        print(" ".join(f"{k}={v}" for k, v in rows[-1].items()), flush=True)
    accuracies = [float(row["accuracy"]) for row in rows]
    times = [float(row["seconds"]) for row in rows]
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else float("nan")
    print(
        f"recorded {rows[0]['recorded']}: accuracy {statistics.mean(accuracies):.4f} ± {spread:.4f} "
        f"(n = {len(accuracies)}), {statistics.median(times):.1f} s (median; {min(times):.1f}–{max(times):.1f})"
    )
    return rows


def overhead(data: str, out: Path, recipe: Recipe, device: str, batch: int, steps: int, rounds: int) -> list[dict]:
    """Training steps with and without a recorder, alternating, and the commit of an epoch."""
    samples = open_data(f"{data}:train")
    recipe = replace(recipe, batch_size=batch, epochs=1_000)
    with torchrun_job(device) as where, preserved_state(where):
        network = build_network("resnet18-32", 10)
        pixels = as_pixels(samples, 3, where)
        source = Source(samples, torch.from_numpy(samples.labels).long(), pixels, hs.Model(network, "net"), 0, where)
        training = Training(network, recipe, where, nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing))
        seconds: dict[str, list[float]] = {"plain": [], "recorded": []}
        commits: list[float] = []
        recorder = Recorder(out / f"overhead-{where.type}", overwrite=True, split=samples.split)
        for repeat in range(rounds + 1):  # the first is a warm-up
            rows = torch.randperm(len(samples))[: batch * steps].tolist()
            for name in ("plain", "recorded") if repeat % 2 else ("recorded", "plain"):
                start = time.perf_counter()
                training.train_epoch(source, 1, rows, recorder if name == "recorded" else None)
                if where.type == "cuda":
                    torch.cuda.synchronize()
                seconds[name].append((time.perf_counter() - start) / steps)
            start = time.perf_counter()
            recorder.end_epoch()
            commits.append(time.perf_counter() - start)
        measured = {name: values[1:] for name, values in seconds.items()}
    steps_as = "CUDA graphs" if recipe.graph else "eager"
    case = f"step, {where.type}, {steps_as}, batch {batch}, {steps} steps"
    rows = ratios(case, measured, "plain", {"recorded": 1.02})
    rows.append(row("recorder", f"commit of {batch * steps:,} samples", commits[1:], "s", limit=0.05))
    for line in rows:
        print(f"{line['benchmark']}: {line['case']} {line['p50']} s ({line['p20']}–{line['p80']}), "
              f"× {line['ratio']} (n = {line['n']})", flush=True)  # fmt: skip
    return rows


def write(path: Path, rows: list[dict]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    data, out, arguments = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    seeds = next((int(a) for a in arguments if a.isdecimal()), 3)
    recipe = PRESETS["cifar-resnet18"].recipe.replace(**parse_settings(a for a in arguments if "=" in a))
    parts = {"recorded", "plain", "overhead"}
    parts = parts.intersection(arguments) or parts
    out.mkdir(parents=True, exist_ok=True)
    for part, record in (("recorded", ("train", "test")), ("plain", ())):
        if part in parts:
            write(out / f"{part}.csv", accuracy(data, out, recipe, seeds, record))
    if "overhead" in parts and torch.cuda.is_available():
        rows = overhead(data, out, replace(recipe, graph=True), "cuda", *ON_GPU)
        write(out / "overhead.csv", rows + overhead(data, out, replace(recipe, graph=False), "cuda", *ON_GPU))
    elif "overhead" in parts:
        recipe = replace(recipe, precision="float32", compile=False, graph=False)
        write(out / "overhead.csv", overhead(data, out, recipe, "cpu", *ON_CPU))


if __name__ == "__main__":
    main()
