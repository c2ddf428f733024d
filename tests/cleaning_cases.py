"""Runs and data that tests of cleaning start from."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from torchvision.datasets import ImageFolder

import hardsight as hs
from hardsight.labelerrors import clean
from hardsight.labelerrors.copies import MARK


def scored(samples, labels, wrong, *, classes, names=(), mapping=None, bad=(), source=None, unsure=()):
    """A run over some samples: a net that is sure of the class it predicts; `wrong` maps a place to its prediction."""
    ids = samples.ids
    pred = np.array([wrong.get(i, label) for i, label in enumerate(labels)])
    right = pred == labels
    p_pred = np.where(np.isin(np.arange(len(ids)), list(unsure)), 0.4, 0.9)
    keep = ~np.isin(ids, list(bad))
    columns = {
        "id": np.array(ids, dtype=object),
        "label": np.asarray(labels),
        "pred": pred,
        "avh": np.where(right, 0.1, 0.5),
        "confidence": np.where(right, p_pred, 0.05),
        "max_logit": np.zeros(len(ids)),
        "free_energy": np.log(p_pred),
        "margin": np.where(right, 2.0, -2.0),
    }
    meta = {
        "model": {"name": "net", "classes": classes},
        "class_names": list(names),
        "label_mapping": mapping,
        "source": source,
        "out_of_sample": {"folds": 5},
    }
    rows = pa.table({name: pa.array(values[keep]) for name, values in columns.items()})
    return hs.SampleTable(rows, meta, pa.table({"id": pa.array(bad, pa.string()), "error": ["cut short"] * len(bad)}))


def accepted(table, count=None):
    """Decisions of a person who takes every suggestion, and drops the suspects without one."""
    rows = hs.label_errors(table, count=count).to_arrow().to_pylist()
    names = table.meta.class_names or range(10**6)
    rows = [row for row in rows if row["suspect"]] or rows[:1]
    return {
        "id": [row["id"] for row in rows],
        "action": ["keep" if not row["suspect"] else "drop" if row["suggested"] is None else "relabel" for row in rows],
        "new_label": [None if row["suggested"] is None else str(names[row["suggested"]]) for row in rows],
    }


def cleaned(run, out, *, count=None, **options):
    """`clean` by the decisions of such a person."""
    table = run if isinstance(run, hs.SampleTable) else hs.SampleTable.load(run)
    return clean(run, out, count=count, decisions=accepted(table, count), **options)


def files_of(folder):
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file() and p.name != MARK)


def make_photos(root):
    """A folder with one folder per class, hostile names and all; the shade of grey tells the files apart."""
    names = {
        "=cat": ["1.png", "-rf.png", "=1+1.png", "sub/deep.png", "same.png"],
        'dog\'s "best"': ["1.png", "two\nlines.png", "..png", "Same.png"],
        "zèbre ☃": ["last.png", "...png"],
    }
    shade = 0
    for folder, files in names.items():
        for name in files:
            path = root / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), shade := shade + 1).save(path, "PNG")
    return root


def shades(folder):
    """File by class and shade of grey."""
    found = ImageFolder(str(folder), allow_empty=True)
    return {(found.classes[y], Image.open(path).getpixel((0, 0))): Path(path) for path, y in found.samples}


def make_archive(digits, path):
    """The noisy digits as the test split of an .npz that holds more."""
    np.savez_compressed(
        path,
        test_images=digits.pictures,
        test_labels=digits.given.astype(np.uint8)[:, None],
        test_source=np.array([f"scan {i}" for i in range(len(digits.given))]),
        train_images=digits.pictures[:7],
        train_labels=digits.given[:7],
        classes=np.array(list("0123456789")),
        about=np.array("a note"),
    )
    return path


def run_on(table, source, split):
    """The same run, of the data by that name."""
    rows = table.to_arrow()
    ids = pa.array([id_.replace("digits:", f"{split}:") for id_ in rows["id"].to_pylist()])
    meta = replace(table.meta, source={"data": source})
    return hs.SampleTable(rows.set_column(0, "id", ids), meta, table.bad)
