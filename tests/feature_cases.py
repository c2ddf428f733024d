"""Feature files in every format, runs over them, and decisions about their samples."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cleaning_cases import scored
from safetensors import safe_open
from safetensors.torch import save_file

from hardsight.data import FeatureSamples

N, CLASSES = 24, 3
RNG = np.random.default_rng(0)
LABELS = np.arange(N) % CLASSES
SMALL = LABELS.astype(np.int8)
FEATURES = RNG.normal(size=(N, 4)).astype(np.float32)
NAMES = ["=cat\n", 'dog\'s "best",', "zèbre ☃\x00"]  # of a spreadsheet's formula, of a CSV, of C
IDS = [f"photo {k}" for k in RNG.permutation(N)]
FORMATS = (".parquet", ".safetensors", ".npz")
SUFFIXES = pytest.mark.parametrize("suffix", FORMATS)
# Rows, not in order: two next to each other are dropped, and those beside and between drops are relabeled.
DROPPED, RELABELED = (3, 4, 17), {16: 0, 5: 1, 23: 0, 0: 2}
DECISIONS = [(row, "drop", None) for row in DROPPED] + [(row, "relabel", k) for row, k in RELABELED.items()]
KEPT = [row for row in range(N) if row not in DROPPED]
EXPECTED = [RELABELED.get(row, int(LABELS[row])) for row in KEPT]


def run_of(file, ids=None, *, names=(), classes=CLASSES, mapping=None, labels=LABELS, known=True):
    """A run over a file, and what a person decided about it, by id and in no order of the rows."""
    samples = FeatureSamples(file)
    ids = samples.ids if ids is None else ids
    source = {"table": str(file.absolute())} if known else None
    table = scored(samples, labels, {16: 0, 5: 1}, classes=classes, names=names, mapping=mapping, source=source)
    assert samples.ids == ids
    return table, decisions_for(ids, names or range(classes))


def decisions_for(ids, texts, decisions=DECISIONS):
    rows = [{"id": ids[row], "action": action, "new_label": None if k is None else str(texts[k])}
            for row, action, k in decisions]  # fmt: skip
    return pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in ("id", "action", "new_label")]))


def write(path, labels=SMALL, **more):
    """The features with labels and more, in the format of the suffix."""
    columns = {"features": FEATURES, "label": labels, **more}
    if path.suffix == ".parquet":
        columns = {name: list(values) if np.ndim(values) == 2 else values for name, values in columns.items()}
        pq.write_table(pa.table(columns), path, row_group_size=10)
    elif path.suffix == ".npz":
        np.savez(path, **columns)
    else:
        save_file({name: torch.as_tensor(values) for name, values in columns.items()}, path, {"made by": "a test"})
    return path


def read(path):
    """The columns of a file as NumPy arrays."""
    if path.suffix == ".parquet":
        return {name: np.array(values) for name, values in pq.read_table(path).to_pydict().items()}
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: arrays[name] for name in arrays.files if name != "hardsight_cleaned"}
    with safe_open(path, "np") as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
