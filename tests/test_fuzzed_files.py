"""Files damaged at random, with a fixed seed: every failure is an error of ours, written for the user."""

import copy
import io
import json
import random
import shutil
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from recorded_runs import train_digits
from safetensors.torch import save
from torch import nn

import hardsight as hs
from hardsight.checkpoints import load_weights, read_checkpoint, read_head
from hardsight.data import data_of, open_data, read_features
from hardsight.dynamics import Dynamics, Recorder
from hardsight.errors import HardsightError
from hardsight.evaluation.subjects import folder_of, network_of
from hardsight.labelerrors import clean
from hardsight.report import write_report

CASES = 25
NUMBERS = (-1, 0, 10**12, 10**30, 0.5, float("inf"))
VALUES = (None, True, *NUMBERS, "", "x", "../x", "\ud800", [], [None], ["x"], {}, {"x": 1})


def damaged_json(text, chance):
    """A JSON text with one value replaced or removed, or with some characters changed."""
    if chance.random() < 0.15:
        return damaged_bytes(text.encode(), chance)
    content = json.loads(text)
    holder, places = content, []
    while isinstance(holder, (dict, list)) and holder:
        places.append((holder, chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))))
        holder = places[-1][0][places[-1][1]]
    holder, key = chance.choice(places)
    if chance.random() < 0.15:
        del holder[key]
    else:
        holder[key] = copy.deepcopy(chance.choice(VALUES))
    return json.dumps(content).encode()


def damaged_bytes(content, chance):
    """The bytes with a stretch changed, cut off or repeated; the length stays, or not."""
    content = bytearray(content)
    start = chance.randrange(len(content))
    end = min(len(content), start + chance.choice((1, 4, 40)))
    kind = chance.choice(("flip", "zero", "cut", "double", "flip", "flip"))
    if kind == "flip":
        content[start:end] = bytes(chance.randrange(256) for _ in range(end - start))
    elif kind == "zero":
        content[start:end] = bytes(end - start)
    elif kind == "cut":
        del content[start:]
    else:
        content[start:start] = content[start:end]
    return bytes(content)


def survives(action, *args):
    """Whether an action succeeds; what it raises must be an error of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            action(*args)
        except HardsightError:
            return False
    return True


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    rng = np.random.default_rng(0)
    np.savez(folder / "d.npz", images=rng.integers(0, 256, (60, 8, 8), np.uint8), labels=np.arange(60) % 3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    hs.score(net, folder / "d.npz", preprocess="raw", folds=2, out=folder / "run", device="cpu", progress=False)
    return folder / "run"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    run = tmp_path_factory.mktemp("recorded") / "run"
    train_digits(run, epochs=2, width=4)
    return run


def use_run(run, out):
    """What a reader does with a run."""
    table = hs.SampleTable.load(run)
    clean(table, out / "lists")
    write_report(run, out / "page.html", pictures=4)


def use_source(run, _):
    folder, meta = folder_of(run)
    data_of(meta)
    assert not survives(network_of, folder, meta)  # a network of one's own cannot be built again


def use_records(run, out):
    dynamics = Dynamics(run)
    dynamics.summary()
    dynamics.matrix("avh")
    dynamics.curves(by="label")
    dynamics.curve(0)
    dynamics.at(int(dynamics.epochs[-1]))
    hs.SampleTable.load(run)
    dynamics.heads.validate(full=True)
    write_report(run, out / "page.html", pictures=0)
    with Recorder(run, epoch=int(dynamics.epochs[-1]) + 1, split="test") as recorder:
        recorder.summary()


def fuzz_run(original, files, damage, uses, seed, tmp_path, cases=CASES):
    """Damage one file of a copy of a run again and again, and use the copy; returns how often that worked."""
    chance, passed = random.Random(seed), 0
    for case in range(cases):
        run, out = tmp_path / f"run{case}", tmp_path / f"out{case}"
        shutil.copytree(original, run)
        out.mkdir()
        file = chance.choice(sorted(run.glob(files)))
        content = file.read_bytes()
        file.write_bytes(damage(content.decode() if damage is damaged_json else content, chance))
        outcomes = [survives(use, run, out) for use in uses]
        passed += all(outcomes)
        shutil.rmtree(run)
        shutil.rmtree(out)
    return passed


def use_unfinished(run, out):
    hs.SampleTable.load(run, partial=True)
    write_report(run, out / "page.html", pictures=4)


@pytest.mark.parametrize(
    ("files", "use", "seed"),
    [("meta.json", use_run, 1), ("parts/*.json", use_run, 1), ("plan.json", use_unfinished, 6)],
)
def test_what_a_run_says_of_itself(scored, tmp_path, files, use, seed):
    if use is use_unfinished:
        scored = shutil.copytree(scored, tmp_path / "run", ignore=shutil.ignore_patterns("meta.json"))
    assert 0 < fuzz_run(scored, files, damaged_json, [use, use_source], seed, tmp_path) < CASES


def same_length(content, chance):
    """Damage that the length of a file does not show."""
    changed = damaged_bytes(content, chance)
    return changed if len(changed) == len(content) else bytes(reversed(content))


@pytest.mark.parametrize("kind", ["samples", "scores", "vectors"])
def test_parts_of_a_run(scored, tmp_path, kind):
    assert fuzz_run(scored, f"{kind}/*.parquet", same_length, [use_run], 2, tmp_path, CASES // 2) < CASES // 2


def recast(kind, column, type_):
    def damage(content, _):
        table = pq.read_table(io.BytesIO(content))
        place = table.column_names.index(column)
        if type_ is None:
            table = table.drop_columns([column])
        elif isinstance(type_, pa.DataType):
            table = table.set_column(place, column, pa.array([None] * len(table), type_))
        else:
            table = table.set_column(place, column, pa.array([type_] * len(table)))
        return written(pq.write_table, table)

    return kind, damage


def claimed(run):
    """Make the markers agree with the files: what a hostile writer would do."""
    for marker in (run / "parts").glob("*.json"):
        entries = json.loads(marker.read_text())
        for kind in [name for name in entries if name != "token"]:
            entries[kind]["bytes"] = (run / kind / f"{marker.stem}-{entries['token']}.parquet").stat().st_size
        marker.write_text(json.dumps(entries))


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        recast("scores", "pred", 10**12),
        recast("scores", "pred", "x"),
        recast("scores", "pred", None),
        recast("scores", "id", None),
        recast("scores", "id", pa.string()),
        recast("scores", "avh", "hard"),
        recast("samples", "label", 10**12),
        recast("samples", "label", "cat"),
        recast("samples", "id", b"\xff"),
        recast("vectors", "sketch", "x"),
        recast("vectors", "sketch", [1.0, 2.0]),
        recast("vectors", "probabilities", 0.5),
        recast("vectors", "model", None),
    ],
)
def test_columns_of_another_type(scored, tmp_path, kind, damage):
    run = tmp_path / "run"
    shutil.copytree(scored, run)
    for file in (run / kind).glob("*.parquet"):
        file.write_bytes(damage(file.read_bytes(), None))
    claimed(run)
    (tmp_path / "out").mkdir()
    assert not survives(use_run, run, tmp_path / "out")


@pytest.mark.parametrize(
    ("files", "damage", "seed", "cases"),
    [
        ("dynamics/index.json", damaged_json, 3, CASES),
        ("meta.json", damaged_json, 4, CASES // 2),
        ("dynamics/*[0-9a-f].*", same_length, 5, CASES // 2),
    ],
)
def test_records(recorded, tmp_path, files, damage, seed, cases):
    assert fuzz_run(recorded, files, damage, [use_records], seed, tmp_path, cases) < cases


def written(write, content):
    stream = io.BytesIO()
    write(content, stream)
    return stream.getvalue()


def archive(**arrays):
    return written(lambda content, stream: np.savez(stream, **content), arrays)


def parquet(**columns):
    return written(pq.write_table, pa.table(columns))


def load_head(path):
    weight, bias = read_head(path)
    hs.score_features(torch.ones(2, 4), weight, torch.tensor([0, 1]), bias)


def load_features(path):
    features = read_features(path)
    hs.score_features(features.features, torch.ones(3, 4), features.labels, ids=features.ids)


def load_state(path):
    load_weights(nn.Linear(4, 3), read_checkpoint(path), path.name)


def score_arrays(path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    hs.score(net, path, preprocess="raw", device="cpu", progress=False)


STATE = {"weight": torch.arange(12.0).reshape(3, 4), "bias": torch.ones(3)}
LABELS = np.array([0, 1, 2, 0])
INPUTS = {
    "data.npz": (
        archive(images=np.zeros((4, 4, 4), np.uint8), labels=LABELS, ids=np.array(list("abcd"))),
        score_arrays,
    ),
    "head.npz": (archive(**{name: tensor.numpy() for name, tensor in STATE.items()}), load_head),
    "people.npz": (archive(counts=np.ones((4, 3), int)), hs.read_human),
    "head.safetensors": (save(STATE), load_head),
    "state.safetensors": (save(STATE), load_state),
    "features.safetensors": (save({"features": torch.ones(4, 4), "labels": torch.tensor(LABELS)}), load_features),
    "state.pt": (written(torch.save, STATE), load_state),
    "features.parquet": (
        parquet(features=[[1.0] * 4] * 4, label=LABELS, id=list("abcd")),
        load_features,
    ),
    "people.parquet": (
        parquet(id=list("abcd"), hsf=[0.1, 0.2, 0.3, 1.0]),
        hs.read_human,
    ),
    "people.csv": (b"id,hsf\na,0.5\nb,1\n", hs.read_human),
    "list.txt": (b"a.png 0\nb.png 1\n", open_data),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(tmp_path, name):
    content, opener = INPUTS[name]
    (tmp_path / name).write_bytes(content)
    assert survives(opener, tmp_path / name)
    chance = random.Random(f"{name} 0")
    for _ in range(100):
        (tmp_path / name).write_bytes(damaged_bytes(content, chance))
        survives(opener, tmp_path / name)
