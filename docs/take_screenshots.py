"""Take the screenshots in docs/images of pages that are made for it: python docs/take_screenshots.py

It needs playwright and a chromium, and takes a few minutes.
"""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from hardsight.data import load_digits

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
MOST_BYTES = 250_000


def report(browser: Browser, file: Path) -> None:
    for scheme, name in (("light", "report"), ("dark", "report-dark")):
        page = opened(browser, file, scheme=scheme)
        save(page, name, 0, 0, 1160, bottom(page, "[data-testid=card] >> nth=3") + 8)  # the first row of cards


def groups(browser: Browser, file: Path) -> None:
    part(opened(browser, file), "groups", "#groups")


def comparison(browser: Browser, file: Path) -> None:
    part(opened(browser, file), "comparison", "#comparison", most=632)


def label_errors(browser: Browser, file: Path) -> None:
    suspects(opened(browser, file, width=900), "label-errors", 12)


def brush(browser: Browser, file: Path) -> None:
    page = opened(browser, file, scheme="dark", height=1400)
    plot = box(page, "#plot-overlay")
    places = [(plot["x"] + x * plot["width"], plot["y"] + y * plot["height"]) for x, y in ((0.55, 0.6), (0.98, 0.92))]
    page.mouse.move(*places[0])
    page.mouse.down()
    page.mouse.move(*places[1], steps=10)
    page.mouse.up()
    page.wait_for_timeout(300)
    top = box(page, "#samples")["y"] + 4
    save(page, "brush", 0, top, 1160, bottom(page, "[data-testid=card] >> nth=7") + 10 - top)


def training(browser: Browser, file: Path) -> None:
    page = opened(browser, file)
    page.get_by_test_id("curve-grouping").select_option(label="hardness (fifths)")
    page.wait_for_timeout(300)
    top = box(page, "#training")["y"]
    save(page, "training", 0, top, 1160, bottom(page, "[data-testid=curves]") + 2 - top)
    part(page, "drivers", "#drivers")


def sample(browser: Browser, file: Path) -> None:
    page = opened(browser, file, height=1000)
    page.get_by_test_id("tab-forgotten").click()
    page.locator("[data-testid=card]").first.click()
    page.wait_for_timeout(300)
    found = box(page, "dialog[open]")
    save(page, "sample", found["x"], found["y"], found["width"], 690)


def opened(browser: Browser, file: Path, scheme: Any = "light", width: int = 1160, height: int = 900) -> Page:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=True)
    page.goto(file.resolve().as_uri())
    page.wait_for_selector("html[data-drawn=all]", state="attached")
    page.add_style_tag(content=".bar { position: static !important }")  # it would follow into the picture
    page.wait_for_timeout(300)
    return page


def suspects(page: Page, name: str, most: int) -> None:
    """The first cards of the suspect labels."""
    page.get_by_test_id("tab-suspects").click()
    page.mouse.move(0, 0)
    page.wait_for_timeout(300)
    cards = page.locator("[data-testid=card]")
    boxes = [cards.nth(i).bounding_box() or {} for i in range(min(most, cards.count()))]
    left, top = (min(b[side] for b in boxes) - 8 for side in ("x", "y"))
    right, low = (max(b[side] + b[length] for b in boxes) + 8 for side, length in (("x", "width"), ("y", "height")))
    save(page, name, left, top, right - left, low - top)


def part(page: Page, name: str, selector: str, most: float = 2000) -> None:
    found = box(page, selector)
    save(page, name, 0, found["y"] - 4, 1160, min(found["height"], most) + 12)


def box(page: Page, selector: str) -> dict[str, float]:
    return dict(page.locator(selector).bounding_box() or {})


def bottom(page: Page, selector: str) -> float:
    found = box(page, selector)
    return found["y"] + found["height"]


def save(page: Page, name: str, x: float, y: float, width: float, height: float) -> None:
    file = IMAGES / f"{name}.png"
    page.screenshot(path=file, clip={"x": x, "y": y, "width": width, "height": height}, full_page=True)
    if file.stat().st_size > MOST_BYTES:
        Image.open(file).convert("RGB").quantize(256).save(file, optimize=True)
    print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")


def make_pages(folder: Path) -> None:
    """The demo, alone, with groups and against a plainer network; noisy labels; the digits of small-studies.md."""
    images, labels = load_digits()
    ink = [f"digits:{i},{pixels.mean() * 16 / 255:.3f}" for i, pixels in enumerate(images)]
    (folder / "groups.csv").write_text("\n".join(["id,ink", *ink]))
    (folder / "train.py").write_text(
        (DOCS / "howto/report.md").read_text().split(":caption: train.py\n")[1].split("```")[0]
    )
    test = np.arange(len(labels)) % 4 == 0
    parts = {"train": (images[~test], labels[~test]), "test": (images[test], labels[test])}
    arrays = {
        f"{part}_{name}": a for part, two in parts.items() for name, a in zip(("images", "labels"), two, strict=True)
    }
    np.savez(folder / "digits.npz", **arrays)
    with patch("tempfile.TemporaryDirectory", lambda: nullcontext(str(folder / "noisy"))):
        (folder / "noisy").mkdir()
        runpy.run_path(str(DOCS.parent / "examples/find_wrong_labels.py"))
    for command in (
        "demo",
        "report hardsight-demo --groups groups.csv -o groups.html",
        "score train.py:train hardsight-demo/digits.npz:digits --folds 5 -o before",
        "report hardsight-demo --against before -o comparison.html",
        "train digits.npz --test digits.npz:test --model small-cnn --epochs 30 --lr 0.001 -o small-cnn",
        "report small-cnn/test",
        "report small-cnn/train",
    ):
        subprocess.run([sys.executable, "-m", "hardsight", *command.split()], cwd=folder, check=True)


PAGES = {
    report: "hardsight-demo/report.html",
    groups: "groups.html",
    comparison: "comparison.html",
    label_errors: "noisy/run/report.html",
    brush: "noisy/run/report.html",
    training: "small-cnn/test/report.html",
    sample: "small-cnn/train/report.html",
}

if __name__ == "__main__":
    with sync_playwright() as tool, tempfile.TemporaryDirectory() as temporary:
        make_pages(Path(temporary))
        browser = tool.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for take, page in PAGES.items():
            take(browser, Path(temporary, page))
