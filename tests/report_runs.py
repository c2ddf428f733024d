"""Recorded runs for the tests of the report, and all that they hold as a naive table."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

import hardsight as hs
from hardsight.dynamics.dynamics import COLUMNS
from hardsight.report import write_report

CLASSES = 4


def record(path, n=80, epochs=7, classes=CLASSES, seen=None, names=None, **options):
    """Records of features that turn to their class and grow, some of them to the wrong one; no network is trained."""
    draw = np.random.default_rng(3)
    width = 6
    weight = torch.tensor(draw.standard_normal((classes, width)), dtype=torch.float32)
    bias = torch.tensor(0.1 * draw.standard_normal(classes), dtype=torch.float32)
    label = torch.tensor(draw.integers(0, classes, n))
    towards = torch.where(torch.tensor(draw.random(n) < 0.15), (label + 1) % classes, label)
    pace = torch.tensor(draw.gamma(2, 0.3, n), dtype=torch.float32)
    recorder = hs.Recorder(path, split="train", class_names=names, **options)
    for epoch in range(1, epochs + 1):
        noise = torch.tensor(draw.standard_normal((n, width)), dtype=torch.float32)
        features = (1 + 0.1 * epoch) * (noise + 0.3 * pace[:, None] * epoch * weight[towards])
        chosen = torch.arange(n) if seen is None else torch.as_tensor(seen(epoch, n))
        head = SimpleNamespace(features=features[chosen], weight=weight * (1 + 0.1 * epoch), bias=bias)
        recorder.update(chosen, head, label[chosen])
        recorder.end_epoch()
    return path


def some(epoch, n):
    """Not the first three in the first epoch, not the last ten in the last, and one that comes and goes."""
    left_out = {1: [0, 1, 2], 4: [5], 7: range(n - 10, n)}.get(epoch, [])
    return [i for i in range(n) if i not in left_out]


def in_page(path):
    """The payload inside a written page."""
    text = path.read_text(encoding="utf-8")
    start = text.index('id="payload">') + len('id="payload">')
    return json.loads(text[start : text.index("</script>", start)])


def report(run, **options):
    return in_page(write_report(run, run / "page.html", **{"pictures": 0, **options}))


def frame(dynamics):
    """All records, naively: one row per sample and epoch."""
    columns = {name: dynamics.matrix(name) for name in COLUMNS}
    at, epoch = np.nonzero(~np.isnan(columns["avh"]))
    rows = pd.DataFrame({name: values[at, epoch] for name, values in columns.items()})
    rows = rows.assign(id=dynamics.ids[at], label=dynamics.labels[at], epoch=dynamics.epochs[epoch])
    return rows.assign(avh=dynamics.classes * rows["avh"], correct=(rows["pred"] == rows["label"]).astype(float))


def listed(payload, key):
    """The ids of a list, in its order."""
    return [payload["points"]["id"][row] for one in payload["lists"] if one["key"] == key for row in one["rows"]]


def texts(payload):
    """All that the page says at its top."""
    return " ".join(notice["text"] for notice in [payload["sampling"], *payload["notices"]])


def grouping(payload, key):
    return next(one for one in payload["training"]["groupings"] if one["key"] == key)


def cells(table, key):
    """A column of a table of the page; of a value with its interval the three numbers."""
    at = next(k for k, column in enumerate(table["columns"]) if column["key"] == key)
    return [row[at] for row in table["rows"]]


def table_rows(table):
    """The rows of a table of the page as mappings."""
    keys = [column["key"] for column in table["columns"]]
    return [dict(zip(keys, row, strict=True)) for row in table["rows"]]


class Case(NamedTuple):
    """A recorded run, its page, and all its records as a naive table."""

    run: Path
    dynamics: hs.Dynamics
    payload: dict
    rows: pd.DataFrame


def whole_run(folder):
    """Every sample in every epoch."""
    run = record(folder / "run", names=["ant", "bee", "cat", "dog"], note="a made-up loop")
    return Case(run, hs.Dynamics(run), report(run), frame(hs.Dynamics(run)))


def run_with_gaps(folder):
    """Samples that some epochs lack, and a group of the user's own."""
    run = record(folder / "run", seen=some)
    site = {"id": [f"train:{i}" for i in range(80)], "site": ["north" if i % 3 else "south" for i in range(80)]}
    return Case(run, hs.Dynamics(run), report(run, groups=site), frame(hs.Dynamics(run)))
