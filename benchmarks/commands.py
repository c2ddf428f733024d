"""Whole commands as a user starts them: help and imports, the demo, and `score` of a folder."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import interleaved, ratios, row


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
