"""What losses cost: the Encouraging Loss against torch's cross-entropy, and AMC-Loss in a training step.

Ratios are of the fastest of many interleaved runs: a loss takes microseconds, and everything else only adds to them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

import hardsight as hs
from benchmarks.measure import interleaved, row
from hardsight.networks import build_network

SAMPLES, CLASSES = 1024, 1000


def losses() -> list[dict]:
    """Forward and backward of losses on logits of 1,024 samples and 1,000 classes, in float32; a step with AMC-Loss."""
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    torch.manual_seed(0)
    z = torch.randn(SAMPLES, CLASSES, device=device, requires_grad=True)
    y = torch.randint(CLASSES, (SAMPLES,), device=device)
    cases = {
        "compiled cross-entropy": torch.compile(F.cross_entropy, fullgraph=True),
        "compiled EL, log_end .75": torch.compile(hs.EncouragingLoss(), fullgraph=True),
        "compiled EL, log_end 1": torch.compile(hs.EncouragingLoss(log_end=1), fullgraph=True),
        "cross-entropy": F.cross_entropy,
        "EL, log_end .75": hs.EncouragingLoss(),
        "EL, log_end 1": hs.EncouragingLoss(log_end=1),
        "EL, smoothed by .1": hs.EncouragingLoss(label_smoothing=0.1),
        "EL, gradient matched": hs.EncouragingLoss(log_end=1, match_gradient=True),
    }
    times = 50 if gpu else 4

    def work(loss):
        def run():
            for _ in range(times):
                z.grad = None
                loss(z, y).backward()
            if gpu:
                torch.cuda.synchronize()

        return run

    seconds = interleaved({name: work(loss) for name, loss in cases.items()}, 40)
    limit = 1.3 if gpu else 2.0
    rows = []
    for name, values in seconds.items():
        compiled = name.startswith("compiled")
        baseline = "compiled cross-entropy" if compiled else "cross-entropy"
        per = [value / times for value in values]
        ratio = min(values) / min(seconds[baseline])
        rows.append(row("losses", name, per, "s", baseline, ratio, limit if compiled and "EL" in name else None))
    return rows + _amc_step(device)


def _amc_step(device: str) -> list[dict]:
    """A training step of CIFAR's ResNet-18 with and without AMC-Loss on its 512 features."""
    gpu = device == "cuda"
    network = build_network("resnet18-32", 10).to(device)
    samples = 512 if gpu else 16
    x, y = torch.randn(samples, 3, 32, 32, device=device), torch.randint(10, (samples,), device=device)
    amc = hs.AMCLoss(preset="paper")

    def step(pairs: bool):
        def run():
            network.zero_grad(set_to_none=True)
            with hs.capture(network) as head, torch.autocast(device, torch.bfloat16, enabled=gpu):
                logits = network(x)
                loss = F.cross_entropy(logits.float(), y)
                if pairs:
                    loss = loss + amc(head.features, logits.argmax(1))
                else:
                    head.features  # noqa: B018  read as the other one does
            loss.backward()
            if gpu:
                torch.cuda.synchronize()

        return run

    seconds = interleaved({"ResNet-18 step": step(False), "ResNet-18 step + AMC": step(True)}, 60 if gpu else 15)
    fastest = min(seconds["ResNet-18 step"])
    limits = {"ResNet-18 step + AMC": 1.02}
    return [
        row("losses", name, values, "s", "ResNet-18 step", min(values) / fastest, limits.get(name))
        for name, values in seconds.items()
    ]
