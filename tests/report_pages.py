"""Made-up reports for the tests of the page, and a browser to open them in."""

import base64
import io
import re
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

from hardsight.report.page import render
from hardsight.report.sections import table

SIZE = {"width": 1200, "height": 900}
HOSTILE = [
    "</script><script>window.pwned=1</script>",
    '"><img src=x onerror=alert(1)>',
    "__proto__",
    "constructor",
    "שלום \u202etxt.exe\u202c",
    "tab\there \x1b[31m \x00 end",
    "{{ 7 * 7 }} {% raw %} ${7*7} `",
    "' onmouseover='alert(1)",
    "<!-- <style>body{display:none}</style>",
    "\u2028 line \u2029 ends \ud800",
]


def four_digits(values):
    return [float(f"{value:.4g}") for value in values]


def picture(value):
    written = io.BytesIO()
    Image.fromarray(np.full((8, 8), value, dtype=np.uint8)).save(written, "PNG")
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def density(x, y, x_ends, y_ends):
    counts, *_ = np.histogram2d(np.clip(y, *y_ends), np.clip(x, *x_ends), bins=(12, 15), range=(y_ends, x_ends))
    return {"nx": 15, "ny": 12, "counts": counts.astype(int).ravel().tolist(), "max": int(counts.max())}


def make_payload(n=400, names=("ant", "bee", "cat", "dog"), seed=0, **changes):
    """A payload as the contract has it, of made-up samples."""
    names = list(names)
    rng, classes = np.random.default_rng(seed), len(names)
    label = rng.integers(0, classes, n)
    avh = np.array(four_digits(rng.beta(2, 4, n) * 1.6))
    confidence = np.array(four_digits(1 / (1 + np.exp(8 * (avh - 0.8) + rng.normal(0, 0.8, n)))))
    pred = np.where(confidence > 0.4, label, (label + 1) % classes)
    norm = np.array(four_digits(rng.gamma(9, 1, n)))
    order = np.argsort(-avh, kind="stable")
    shown = np.full(n, -1)
    shown[order[:60]] = np.arange(60)[: len(order[:60])]
    doubtful = np.argsort(confidence)[:9]
    wrong = pred != label
    edges = np.linspace(0, 1.6, 9)
    rows = []
    for k, name in enumerate(names):
        own = avh[label == k]
        mean = float(own.mean()) if len(own) else None
        right = float((~wrong[label == k]).mean()) if len(own) else None
        noise = None if k == 1 else round(0.01 * ((7 * k) % 5), 3)
        rows.append([name, len(own), None, right, [mean, None, None], noise])
    titles = [("name", "text"), ("n", "int"), ("histogram", "chart"), ("accuracy", "percent"), ("avh", "number"),
              ("noise", "percent")]  # fmt: skip
    by_class = {"key": "class", "caption": "Classes", "sort": "avh", "ascending": False, "search": "name",
                "codes": list(range(classes)), "rows": rows,
                "columns": [{"key": key, "title": key, "kind": kind} for key, kind in titles]}  # fmt: skip
    site = rng.integers(0, 2, n)
    payload = {
        "title": "small_cnn on digits",
        "notices": [{"level": "warn", "text": "One to beware of."}, {"level": "info", "text": "One thing to know."}],
        "sampling": {"kind": "out", "badge": "Out of sample", "text": "(5 folds).", "level": "info"},
        "n": 10 * n,
        "classes": dict(enumerate(names)),
        "labeled": True,
        "tiles": [("accuracy", "98.1%", "95% interval 97.4–98.7%")],
        "scores": {
            "avh": {"title": "C·AVH", "text": "The angle's share.", "harder": "larger", "kind": "number"},
            "confidence": {"title": "confidence", "text": "Of the label.", "harder": "smaller", "kind": "number"},
            "norm": {"title": "norm", "text": "Length of the feature.", "harder": "smaller", "kind": "number"},
            "suspicion": {"title": "suspicion", "text": "Against the label.", "harder": "", "kind": "number"},
        },
        "points": {
            "id": [f"test/img_{i:04d}.png" for i in range(n)],
            "label": label.tolist(),
            "pred": pred.tolist(),
            "picture": shown.tolist(),
            "scores": {"avh": avh.tolist(), "confidence": confidence.tolist(), "norm": norm.tolist(),
                       "suspicion": four_digits(1 - confidence)},
            "suggested": np.where(confidence < 0.1, pred, -1).tolist(),
            "spread": {
                "avh_sd": [0.0125] * n,
                "rank": (order.argsort() + 1).tolist(),
                "rank_low": [1] * n,
                "rank_high": [9] * n,
            },
            "groups": {"site": site.tolist()},
        },
        "pictures": [picture(4 * k) for k in range(60)],
        "picture_note": f"60 of {10 * n:,} have pictures",
        "pixelated": True,
        "lists": [
            {"key": "hardest", "title": "Hardest", "note": "By C·AVH.", "rows": order[:100].tolist()},
            {"key": "easiest", "title": "Easiest", "note": "By C·AVH.", "rows": order[::-1][:20].tolist()},
            {"key": "suspects", "title": "Label probably wrong", "note": "", "rows": doubtful.tolist()},
        ],
        "by_class": {
            "hardest": {k: order[label[order] == k][:5].tolist() for k in range(classes)},
            "easiest": {k: order[::-1][label[order[::-1]] == k][:5].tolist() for k in range(classes)},
        },
        "views": [
            {
                "key": f"avh-{column}",
                "title": f"AVH against {column}",
                "note": "",
                "x": {"column": "avh", "title": "C·AVH (larger = harder)", "low": 0, "high": 1.6},
                "y": {"column": column, "title": column, "low": 0, "high": high},
                "density": density(avh, values, (0, 1.6), (0, high)),
                "color": "",
            }
            for column, values, high in (("confidence", confidence, 1), ("norm", norm, 20))
        ],
        "histograms": {"charts": [
            {
                "key": "avh",
                "title": "C·AVH",
                "edges": edges.tolist(),
                "series": [
                    {"name": name, "counts": np.histogram(avh[part], edges)[0].tolist()}
                    for name, part in (("right", ~wrong), ("wrong", wrong))
                ],
            }
        ]},
        "class_table": {
            "tables": [by_class],
            "edges": edges.tolist(),
            "histograms": [np.histogram(avh[label == k], edges)[0].tolist() for k in range(classes)],
        },
        "groups": {
            "values": {"site": ["site 0", "site 1"]},
            "tables": [table("group", "Hardness by site", [
                ("value", "site", "text", ["site 0", "site 1"]),
                ("chart", "", "chart", [None, None]),
                ("n", "samples", "int", np.bincount(site, minlength=2)),
                ("mean", "mean C·AVH", "number", np.array([0.5, 0.6]), np.array([0.4, 0.5]), np.array([0.6, 0.7])),
                ("flag", "in words", "flag", ["", "harder"]),
            ], title="By site", note="Means with intervals.", sort="mean", ascending=False, group="site",
               chart={"key": "mean", "overall": float(avh.mean()), "what": "all samples"})],
        },
        "clusters": {
            "note": "Found by k-means.",
            "rows": [{"class": names[0], "n": 9, "mean": [1.0, 0.9, 1.1], "difference": [0.2, 0.1, 0.3],
                      "confused": names[-1], "rows": order[:4].tolist()}],
        },
        "label_errors": {
            "note": "By loss.", "count": 9, "command": "hardsight clean run", "command_note": "Next:",
            "review": {"key": "0123", "labels": {}, "file": "decided.csv", "command": "hardsight clean run --dataset"},
        },
        "comparison": {
            "note": "Against yesterday.",
            "tiles": [("fixed", "7", "")],
            "tables": [table("comparison", "Classes", [("class", "class", "text", names[:1]),
                                                       ("change", "change", "signed", [-0.1], [-0.2], [-0.05]),
                                                       ("flag", "in words", "flag", ["easier"])], sort="change")],
        },
        "bad": {"note": "", "tables": [table("bad", "Bad rows", [("id", "sample", "text", ["test/broken.png"]),
                                                                   ("error", "reason", "text", ["truncated"])])]},
        "made": [["model", "small_cnn"], ["versions", "hardsight 1.2.3, torch 2.13"]],
    }  # fmt: skip
    payload |= changes
    sections = ("label_errors", "comparison", "histograms", "class_table", "groups", "clusters", "bad")
    return payload | {"sections": [{"key": key, "title": key} for key in sections if payload[key] is not None]}


@contextmanager
def chromium():
    """A browser, or the reason why there is none."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="the page is tested with Playwright, which is not installed"
    )
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("the page is tested in Debian's chromium, which is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opener(browser, folder):
    """A function that opens a payload as a file. At the end: no message, no dialog, no request but for the file."""
    contexts, messages, requests = [], [], []

    def open_page(payload, address="", **options):
        file = folder / f"page{len(contexts)}.html"
        file.write_text(render(payload), encoding="utf-8")
        context = browser.new_context(**{"viewport": SIZE, "reduced_motion": "reduce", **options})
        contexts.append(context)
        page = context.new_page()
        page.messages = messages
        page.on("console", lambda message: message.type in ("error", "warning") and messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("dialog", lambda dialog: (messages.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri() + address)
        page.wait_for_selector("html[data-drawn=all]", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not messages
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    pages = {(folder / f"page{k}.html").as_uri() for k in range(len(contexts))}
    assert {url.partition("#")[0] for url in requests if url.startswith("file:")} == pages


def column(payload, name):
    return np.array(payload["points"]["scores"][name])


def status(page):
    return page.get_by_test_id("gallery-status").inner_text()


def card_rows(page):
    return [int(card.get_attribute("data-row")) for card in page.get_by_test_id("card").all()]


def settle(page):
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def luminance(page, name):
    """Of a colour by its name in the style, as WCAG defines it."""
    page.evaluate("(name) => { document.body.style.color = `var(--${name})`; }", name)
    colour = page.evaluate("getComputedStyle(document.body).color")
    page.evaluate("() => { document.body.style.color = ''; }")
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one, other):
    """Of two luminances."""
    light, dark = sorted((one, other), reverse=True)
    return (light + 0.05) / (dark + 0.05)
