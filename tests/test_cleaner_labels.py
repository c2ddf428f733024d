"""600 digits with 31 wrong labels end cleaner than they began, by the path that the guide describes."""

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run

import hardsight as hs
from hardsight.data import load_digits

NETWORK = """
import torch
from torch import nn

def build():
    torch.manual_seed({seed})
    return nn.Sequential(nn.AvgPool2d({pool}), nn.Flatten(), nn.Linear({width}, 10))
"""


def planted(seed, errors=31):
    """Images, labels of which some are wrong, and true labels."""
    images, truth = (array[:600] for array in load_digits())
    random = np.random.default_rng(seed)
    places = random.choice(600, errors, replace=False)
    labels = truth.copy()
    labels[places] = (truth[places] + random.integers(1, 10, errors)) % 10
    return images, labels, truth


def by_network(command, folder, images, labels, seed, pool):
    """The images scored by a network whose last layer is fitted in folds; the data, and how to find them again."""
    np.savez(folder / "data.npz", images=images, labels=labels)
    width = (8 // pool) ** 2
    (folder / "net.py").write_text(NETWORK.format(seed=seed, pool=pool, width=width))
    command("score", f"{folder}/net.py:build", folder / "data.npz", "--folds", 5, "-o", folder / "run")
    return []


def by_embeddings(command, folder, images, labels, seed, pool):
    """The same of embeddings alone: random features of the pooled images."""
    np.savez(folder / "data.npz", images=images, labels=labels)
    pooled = images.reshape(600, 8 // pool, pool, 8 // pool, pool).mean((2, 4)).reshape(600, -1) / 255
    axes = np.random.default_rng(seed).normal(size=(pooled.shape[1], 16))
    columns = {"id": [f"data:{i}" for i in range(600)], "embedding": list(np.tanh(pooled @ axes)), "label": labels}
    pq.write_table(pa.table(columns), folder / "embeddings.parquet")
    command("score", folder / "embeddings.parquet", "--folds", 5, "-o", folder / "run")
    return ["--data", folder / "data.npz"]


def clean_up(score, folder, seed, pool, call):
    """Accuracy of the network, and wrong labels before, after a review of the suspects alone, and after --auto."""
    images, labels, truth = planted(seed)
    folder.mkdir()
    where = score(partial(passes, call), folder, images, labels, seed, pool)
    passes(call, "clean", folder / "run", *where)
    rows = pq.read_table(folder / "run" / "lists" / "actions.parquet").to_pylist()
    suspects = [row["id"] for row in rows if row["action"] in ("review", "relabel")]
    right = [truth[int(id_.split(":")[1])] for id_ in suspects]
    given = [labels[int(id_.split(":")[1])] for id_ in suspects]
    actions = ["keep" if a == b else "relabel" for a, b in zip(right, given, strict=True)]
    lines = [f"{id_},{action},{label}" for id_, action, label in zip(suspects, actions, right, strict=True)]
    (folder / "decisions.csv").write_text("\n".join(["id,action,new_label", *lines]))
    decided = ["--decisions", folder / "decisions.csv", "--dataset", folder / "reviewed.npz", "--overwrite"]
    passes(call, "clean", folder / "run", *where, *decided)
    refused = call("clean", folder / "run", *where, "--auto", "--dataset", folder / "auto.npz", "--overwrite") != 0
    after = [wrong_labels(folder / "reviewed.npz", truth)]
    after.append(int((labels != truth).sum()) if refused else wrong_labels(folder / "auto.npz", truth))
    return hs.SampleTable.load(folder / "run").accuracy, int((labels != truth).sum()), *after, len(suspects), refused


def wrong_labels(file, truth):
    with np.load(file) as cleaned:
        assert len(cleaned["labels"]) == len(truth)
        return int((cleaned["labels"] != truth).sum())


def passes(call, *args):
    assert call(*args) == 0


@pytest.mark.slow
@pytest.mark.parametrize("score", [by_network, by_embeddings])
def test_a_mediocre_network_leaves_fewer_wrong_labels(tmp_path, capsys, score):
    accuracy, before, reviewed, automatic, suspects, _ = clean_up(
        score, tmp_path / "case", 0, 4, lambda *args: run(capsys, *args)[0]
    )
    assert 0.45 < accuracy < 0.7  # mediocre
    assert before == 31
    assert reviewed < before / 2
    assert automatic <= before
    assert suspects < 400  # fewer than to look at everything
