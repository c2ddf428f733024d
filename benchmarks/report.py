"""The report of a million samples: seconds, memory and size of the page, and how fast a browser shows it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import torch
from playwright.sync_api import sync_playwright

from benchmarks.measure import row
from hardsight import Recorder, SampleTable, score_features

N, CLASSES, FEW, EPOCHS, ROUNDS, VISITS = 1_000_000, 1000, 100, 10, 3, 5

# In a process of its own, whose memory is counted; imports are part of the time.
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

# From a move of the pointer to the second frame after it: by then the gallery has followed.
_WATCH = """
window.answers = [];
addEventListener("pointermove", () => {
  const start = performance.now();
  requestAnimationFrame(() => requestAnimationFrame(() => window.answers.push(performance.now() - start)));
}, true);
"""


def report() -> list[dict]:
    """`write_report` of a million rows that were scored, and of as many that were recorded; the page in chromium."""
    with tempfile.TemporaryDirectory() as root:
        scored, recorded, case = f"{root}/scored", f"{root}/recorded", f"N={N:,} C={CLASSES:,}"
        _score(scored)
        rows = _measured(scored, case) + _in_browser(Path(scored, "report.html"), case)
        _record(recorded)
        return rows + _measured(recorded, f"N={N:,} C={FEW:,} epochs={EPOCHS}")


def _score(out: str) -> None:
    """A run of features that lie near their class, with a group column."""
    torch.manual_seed(0)
    weight, label = torch.randn(CLASSES, 64), torch.randint(CLASSES, (N,))
    features = weight[label] + 3 * torch.randn(N, 64)
    table = score_features(features, weight, label, ids=[f"train:{i}" for i in range(N)])
    rows = table.to_arrow().append_column("camera", pa.array(list("abcd") * (N // 4)))
    SampleTable(rows, table.meta, None, table.vectors).save(out)


def _record(out: str) -> None:
    """Records as a training loop writes them: features that turn to their class, no network."""
    draw = torch.Generator().manual_seed(0)
    weight, label = torch.randn(FEW, 32, generator=draw), torch.randint(0, FEW, (N,), generator=draw)
    with Recorder(out, split="train") as recorder:
        for epoch in range(1, EPOCHS + 1):
            for ids in torch.arange(N).split(20_000):
                features = torch.randn(len(ids), 32, generator=draw) + 0.08 * epoch * weight[label[ids]]
                head: Any = SimpleNamespace(features=features, weight=weight, bias=None)
                recorder.update(ids, head, label[ids])
            recorder.end_epoch()


def _measured(run: str, case: str) -> list[dict]:
    """Seconds, peak memory and size of the page."""
    command = [sys.executable, "-c", _REPORT, run, str(N)]
    outputs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(ROUNDS)]
    seconds, peak, size = zip(*(map(float, output.split()) for output in outputs), strict=True)
    return [
        row("report", f"{case} whole", seconds, "s", limit=60),
        row("report", f"{case} peak", peak, "MiB", limit=2048),
        row("report", f"{case} page", size, "MB", limit=15),
    ]


def _in_browser(page: Path, case: str) -> list[dict]:
    """First paint, and the answer to a brush; nothing where there is no browser."""
    program = shutil.which("chromium")
    if program is None:
        print("no chromium: first paint and brush were not measured")
        return []
    paints, answers = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for _ in range(VISITS):
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
