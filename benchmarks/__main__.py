"""``python -m benchmarks NAME … [--dry]``, or ``all``; --dry does not write results.csv; no name lists them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.alignment import alignment
from benchmarks.evaluation import evaluation
from benchmarks.losses import losses
from benchmarks.measure import interleaved, ratios, row
from benchmarks.measure import report as show
from benchmarks.records import imagenet
from benchmarks.report import report
from benchmarks.selection import selection


def features() -> list[dict]:
    """Scores of 50,000 × 512 features, 1,000 classes, against the bare float32 matmul."""
    import torch

    from hardsight.scores import SCORES, check_triple, compute_scores

    torch.manual_seed(0)
    x, w, y = torch.randn(50_000, 512), torch.randn(1000, 512) / 512**0.5, torch.randint(0, 1000, (50_000,))
    cases = {
        "matmul": lambda: x @ w.T,
        "avh": lambda: SCORES["avh"](x, w, y),
        "all scores": lambda: compute_scores(*check_triple(x, w, y)),
    }
    with torch.no_grad():
        seconds = interleaved(cases, 15)
    return ratios("features", seconds, "matmul", {"avh": 6.0, "all scores": 6.0})


def folder() -> list[dict]:
    """`hardsight.score` of a folder of JPEGs against a bare forward loop over the same loader."""
    import numpy as np
    import torch
    from PIL import Image
    from torchvision.models import ResNet18_Weights, resnet18

    import hardsight as hs
    from hardsight.data import load_batches, open_data

    torch.manual_seed(0)
    network = resnet18(num_classes=4).eval()
    model = hs.Model(network, "resnet18", ResNet18_Weights.DEFAULT.transforms(), "pil")
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as root:
        for i in range(192):
            Path(root, "pics", str(i % 4)).mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(generator.integers(0, 256, (24, 24, 3), dtype=np.uint8)).resize((256, 256))
            picture.save(f"{root}/pics/{i % 4}/{i}.jpg")
        samples, rows = open_data(f"{root}/pics"), [list(range(i, i + 64)) for i in range(0, 192, 64)]
        runs = iter(range(1000))

        def bare() -> None:
            with torch.no_grad():
                for _, inputs, _, _ in load_batches(samples, model, rows, torch.device("cpu"), 0):
                    network(inputs)

        def scored() -> None:
            hs.score(model, f"{root}/pics", out=f"{root}/run{next(runs)}", device="cpu", workers=0, progress=False)

        seconds = interleaved({"bare loop": bare, "score to a run folder": scored}, 7)
    return ratios("folder", seconds, "bare loop", {"score to a run folder": 1.05})


_MEMORY = """
import resource, sys, torch
from hardsight.scores import compute_scores, check_triple
n, d, c = map(int, sys.argv[1:])
torch.manual_seed(0)
x, w, y = torch.randn(n, d), torch.randn(c, d), torch.randint(0, c, (n,))
compute_scores(*check_triple(x[:64], w[:128], y[:64] % 128))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
compute_scores(*check_triple(x, w, y))
kept = n * 40 * 8 + 2 * 8 * c * d
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 - kept / 2**20)
"""


def memory() -> list[dict]:
    """Peak memory above inputs, float64 weights (twice) and 40 numbers per sample, for growing N and C."""
    rows = []
    for n, d, c in ((50_000, 512, 1000), (200_000, 512, 1000), (2000, 512, 100_000), (50_000, 64, 20_000)):
        values = [
            float(subprocess.run([sys.executable, "-c", _MEMORY, str(n), str(d), str(c)], capture_output=True).stdout)
            for _ in range(3)
        ]
        rows.append(row("memory", f"N={n:,} D={d} C={c:,}", [max(0.0, v) for v in values], "MiB", limit=200))
    return rows


def startup() -> list[dict]:
    """Help, and `import hardsight` (all of its public names) against `import torch`."""

    def python(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    seconds = interleaved(
        {
            "import torch": lambda: python("import torch"),
            "import hardsight": lambda: python("import hardsight"),
            "import hardsight, torch, avh": lambda: python("import hardsight; hardsight.avh; hardsight.capture"),
            "hardsight --help": lambda: subprocess.run(
                [sys.executable, "-m", "hardsight", "--help"], check=True, capture_output=True
            ),
        },
        9,
    )
    rows = ratios("startup", seconds, "import torch", {"import hardsight": 1.2, "import hardsight, torch, avh": 1.2})
    rows[-1] |= {"ratio": "", "baseline": "", "limit": 0.5}
    return rows


def demo() -> list[dict]:
    """The whole demo as a user starts it."""
    with tempfile.TemporaryDirectory() as root:
        command = [sys.executable, "-m", "hardsight", "demo", "-o", f"{root}/run"]
        seconds = interleaved({"hardsight demo": lambda: subprocess.run(command, check=True, capture_output=True)}, 3)
    return [row("demo", "hardsight demo", seconds["hardsight demo"], "s", limit=60)]


BENCHMARKS = {
    f.__name__: f for f in (features, folder, memory, startup, demo, losses, report, alignment, selection, evaluation)
}
BENCHMARKS["records"] = imagenet


def main() -> None:
    names = [a for a in sys.argv[1:] if not a.startswith("--")]
    if not names or any(name not in (*BENCHMARKS, "all") for name in names):
        raise SystemExit(f"usage: python -m benchmarks {'|'.join(BENCHMARKS)}|all [--dry]")
    names = list(BENCHMARKS) if names == ["all"] else names
    kept = [show(BENCHMARKS[name](), save="--dry" not in sys.argv) for name in names]
    raise SystemExit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
