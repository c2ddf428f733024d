"""Record a training in a plain PyTorch loop: which digits are forgotten again, and which are never learned?

python examples/record_training.py
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import hardsight as hs

torch.set_num_threads(1)  # a network this small gains nothing from a second one
torch.manual_seed(0)
digits = hs.open_data("digits")
x, y = torch.tensor(digits.images).flatten(1) / 255, torch.tensor(digits.labels)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

with tempfile.TemporaryDirectory() as folder:
    run = Path(folder) / "run"
    recorder = hs.Recorder(run, data=digits)
    with hs.capture(model) as head:
        for _ in range(20):
            for ids in torch.randperm(len(y)).split(100):
                loss = nn.functional.cross_entropy(model(x[ids]), y[ids])
                recorder.update(ids, head, y[ids])  # before the step: features meet the weight that they saw
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            recorder.end_epoch()

    table = recorder.summary()
    print("hardest to keep:")
    for row in table.hardest(5, "forgetting").to_arrow().to_pylist():
        print(
            f"  {row['id']}, a {row['label']}: forgotten {row['forgetting']} times, right in {row['correctness']:.0%}"
        )
    never = [id_ for id_, right in zip(table["id"], table["correctness"], strict=True) if right == 0]
    print("never learned:", ", ".join(never) or "none")

    curves = hs.Dynamics(run).curves(by="label", values=("avh", "correct")).to_pylist()
    last = sorted((row for row in curves if row["epoch"] == 20), key=lambda row: row["avh_mean"])
    print(f"easiest class at the end: {last[0]['group']}, hardest: {last[-1]['group']} (by mean AVH)")

    page = hs.write_report(run)
    print(f"{page.name}: {page.stat().st_size / 1e6:.1f} MB to look at")
