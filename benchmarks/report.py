"""The report of a million samples: seconds, memory and size of the page, and how fast a browser shows it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import row

N, CLASSES, EPOCHS = 1_000_000, 1000, 10

# A run of features that lie near their class, with a group column.
_SCORE = """
import sys
import pyarrow as pa, torch
from hardsight import SampleTable, score_features
out, n, c = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
weight, label = torch.randn(c, 64), torch.randint(c, (n,))
features = weight[label] + 3 * torch.randn(n, 64)
table = score_features(features, weight, label, ids=[f"train:{i}" for i in range(n)])
rows = table.to_arrow().append_column("camera", pa.array(list("abcd") * (n // 4)))
SampleTable(rows, table.meta, None, table.vectors).save(out)
"""

# Records of so many epochs, as a training loop writes them: features that turn to their class, no network.
_RECORD = """
import sys
from types import SimpleNamespace
import torch
from hardsight import Recorder
out, n, c, epochs = sys.argv[1], *map(int, sys.argv[2:5])
draw = torch.Generator().manual_seed(0)
weight, label = torch.randn(c, 32, generator=draw), torch.randint(0, c, (n,), generator=draw)
with Recorder(out, split="train") as recorder:
    for epoch in range(1, epochs + 1):
        for ids in torch.arange(n).split(20_000):
            features = torch.randn(len(ids), 32, generator=draw) + 0.08 * epoch * weight[label[ids]]
            recorder.update(ids, SimpleNamespace(features=features, weight=weight, bias=None), label[ids])
        recorder.end_epoch()
"""

_REPORT = """
import time; start = time.perf_counter()
import resource, sys
import numpy as np
from hardsight.data import ArraySamples
from hardsight.report import write_report
image = np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)
data = ArraySamples(np.broadcast_to(image, (int(sys.argv[2]), 96, 96, 3)), None, "train", "one image many times")
path = write_report(sys.argv[1], data=data)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(time.perf_counter() - start, peak, path.stat().st_size / 1e6)
"""


def report(n: int = N, classes: int = CLASSES, epochs: int = EPOCHS, rounds: int = 3) -> list[dict]:
    """`write_report` of a million rows in a process of its own, imports included, and the page in chromium.

    Once for a run that was scored, once for one whose epochs were recorded (100 classes).
    """
    with tempfile.TemporaryDirectory() as root:
        scored, recorded, few = f"{root}/scored", f"{root}/recorded", min(classes, 100)
        subprocess.run([sys.executable, "-c", _SCORE, scored, str(n), str(classes)], check=True)
        rows = _measured(scored, n, f"N={n:,} C={classes:,}", rounds)
        rows += _in_browser(Path(scored, "report.html"), f"N={n:,} C={classes:,}")
        subprocess.run([sys.executable, "-c", _RECORD, recorded, str(n), str(few), str(epochs)], check=True)
        return rows + _measured(recorded, n, f"N={n:,} C={few:,} epochs={epochs}", rounds)


def _measured(run: str, n: int, case: str, rounds: int) -> list[dict]:
    """Seconds, peak memory and size of the page."""
    command = [sys.executable, "-c", _REPORT, run, str(n)]
    values = [
        [float(word) for word in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]
        for _ in range(rounds)
    ]
    seconds, peak, size = (list(column) for column in zip(*values, strict=True))
    return [
        row("report", f"{case} whole", seconds, "s", limit=60),
        row("report", f"{case} peak", peak, "MiB", limit=2048),
        row("report", f"{case} page", size, "MB", limit=15),
    ]


# From a move of the pointer to the second frame after it: by then the gallery has followed.
_WATCH = """
window.answers = [];
addEventListener("pointermove", () => {
  const start = performance.now();
  requestAnimationFrame(() => requestAnimationFrame(() => window.answers.push(performance.now() - start)));
}, true);
"""


def _in_browser(page: Path, case: str, rounds: int = 5) -> list[dict]:
    """First paint, and the answer to a brush; nothing where there is no browser."""
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        print("no chromium with Playwright: first paint and brush were not measured")
        return []
    paints, answers = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for _ in range(rounds):
            opened = browser.new_page(viewport={"width": 1400, "height": 900})
            opened.goto(page.as_uri())
            opened.wait_for_selector("html[data-drawn=all]", state="attached")
            first = "performance.getEntriesByType('paint').find((e) => e.name === 'first-contentful-paint').startTime"
            paints.append(opened.evaluate(first) / 1000)
            overlay = opened.get_by_test_id("overlay")
            overlay.scroll_into_view_if_needed()
            box = overlay.bounding_box()
            opened.evaluate(_WATCH)
            opened.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.1 * box["height"])
            opened.mouse.down()
            for step in range(1, 11):
                opened.mouse.move(box["x"] + (0.2 + 0.07 * step) * box["width"], box["y"] + 0.08 * step * box["height"])
                opened.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            opened.mouse.up()
            answers.append(max(opened.evaluate("window.answers")) / 1000)
            opened.close()
        browser.close()
    return [
        row("report", f"{case} first paint", paints, "s", limit=2),
        row("report", f"{case} slowest brush", answers, "s", limit=0.2),
    ]
