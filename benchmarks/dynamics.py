"""The AVH paper's observations on CIFAR-10: four networks in training, judged with CIFAR-10H's human frequencies.

``python -m benchmarks.dynamics train CIFAR10.npz OUT LANE …`` trains and records the test samples; a lane is a process,
``densenet121-32:0:30,vgg19-32:0:90`` trains one after the other (preset, seed, epochs).
``python -m benchmarks.dynamics judge CIFAR10H.npz OUT RUN …`` writes ``observations.csv`` and the figures.
The rules behind each verdict stand in the rows.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.engine import write
from hardsight.presets import PRESETS
from hardsight.printing import text_table

SHORTCUTS = {"alexnet": False, "vgg19": False, "resnet50": True, "densenet121": True}


def train(data: str, out: Path, lanes: list[str]) -> None:
    if len(lanes) > 1:
        command = [sys.executable, "-m", "benchmarks.dynamics", "train", data, str(out)]
        processes = [subprocess.Popen([*command, lane]) for lane in lanes]
        raise SystemExit(max(process.wait() for process in processes))
    from hardsight.training import train as run

    for job in lanes[0].split(","):
        name, seed, epochs = job.split(":")
        recipe = PRESETS[name].recipe.replace(epochs=epochs, seed=seed)
        recipe = replace(recipe, precision="bf16", channels_last=True, drop_last=True, graph=True)
        path = out / f"{name}-{seed}"
        done = run(name, f"{data}:train", f"{data}:test", out=path, recipe=recipe, record=("test",), progress=False)
        seconds = sum(row["seconds"] for row in done.history)
        print(f"{job}: accuracy {done.history[-1]['test_accuracy']:.4f}, {seconds:.0f} s", flush=True)


def judge(human: Path, out: Path, runs: list[Path]) -> None:
    from hardsight.dynamics import Dynamics
    from hardsight.figures import draw
    from hardsight.human import read_human
    from hardsight.studies import observations

    found = {path.parent.name if path.name == "test" else path.name: Dynamics(path) for path in runs}
    shortcuts = {name: SHORTCUTS[name.split("-")[0]] for name in found}
    rows = observations(found, read_human(human), shortcuts=shortcuts).to_pylist()
    write(out / "observations.csv", rows)
    for name in ("dynamics", "agreement"):
        draw(name, runs, human=human, out=out / f"{name}-cifar10.png")
    draw("loss-drivers", runs, out=out / "loss-drivers-cifar10.png")
    print("\n".join(text_table(rows, ("verdict", "net", "claim", "measured"))))


def main() -> None:
    if len(sys.argv) < 5 or sys.argv[1] not in ("train", "judge"):
        raise SystemExit(__doc__)
    out = Path(sys.argv[3])
    out.mkdir(parents=True, exist_ok=True)
    if sys.argv[1] == "train":
        train(sys.argv[2], out, sys.argv[4:])
    else:
        judge(Path(sys.argv[2]), out, [Path(run) for run in sys.argv[4:]])


if __name__ == "__main__":
    main()
