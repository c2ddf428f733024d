"""A run is taken for the same one only if everything that decides its rows is the same."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import hardsight as hs
from hardsight import models
from hardsight.data import ArraySamples, Columns, View, load_digits, open_data
from hardsight.questions import DegradedSamples
from hardsight.scores import SCORES
from hardsight.scoring import network as network_module


def network(seed=0, classes=10):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))


class Items(Dataset):
    """A data set of a user's: nobody but its code knows what its items are."""

    def __init__(self, x, y, killed_at=None):
        self.x, self.y, self.killed_at = x, y, killed_at

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if index == self.killed_at:
            raise KeyboardInterrupt
        return self.x[index], int(self.y[index])


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits()
    return torch.from_numpy(images[:40]).float()[:, None] / 255, torch.from_numpy(labels[:40])


def scored(data, out, **options):
    return hs.score(network(), data, out=out, device="cpu", **options)


# ---------------------------------------------------------------------------------------------------------------------
# Data.


@pytest.mark.parametrize("same_object", [True, False])
def test_data_of_a_users_own_are_never_taken_for_the_same(digits, tmp_path, same_object):
    x, y = digits[0].clone(), digits[1].clone()
    data = Items(x, y)
    scored(data, tmp_path / "run")
    y.copy_((y + 1) % 10)
    again = data if same_object else Items(x, y)
    with pytest.raises(FileExistsError, match="version"):
        scored(again, tmp_path / "run")
    with pytest.raises(FileExistsError, match="version"):  # given now, it says nothing about then
        scored(again, tmp_path / "run", version="1")
    table = scored(again, tmp_path / "run", overwrite=True)
    assert table["label"].tolist() == y.tolist()


def test_with_a_version_they_are(digits, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        scored(Items(*digits, killed_at=20), tmp_path / "run", version="1", batch_size=16)
    assert len(hs.SampleTable.load(tmp_path / "run", partial=True)) == 16
    table = scored(Items(*digits), tmp_path / "run", version="1")
    assert table.meta.resumed == 16
    assert sorted(table["id"]) == sorted(f"data:{i}" for i in range(40))
    assert scored(Items(*digits), tmp_path / "run", version="1").meta.already_complete
    with pytest.raises(FileExistsError, match="version"):
        scored(Items(*digits), tmp_path / "run", version="2")


class Shift:
    def __init__(self, last):
        self.by = np.zeros(3000, np.float32)
        self.by[1500] = last

    def __call__(self, x):
        return x - torch.from_numpy(self.by)[: x.shape[-1]]


def changed(x, index):
    other = x.clone()
    other[index, 0, 3, 3] += 1e-3
    return other


def as_arrays(x, y):
    return ArraySamples((x[:, 0].numpy() * 255).astype(np.uint8), y.numpy(), "digits", "d")


def named(names):
    return hs.Model(network(), "net", classes=list(names))


# What is scored, with which options and network; and what of it differs in a run that is another one.
DIFFERENT = {
    **{f"item {i}": ({}, {"data": lambda x, y, i=i: TensorDataset(changed(x, i), y)}, "data") for i in range(0, 40, 7)},
    "dtype": ({}, {"data": lambda x, y: TensorDataset(x.double(), y)}, "data"),
    "labels": ({}, {"data": lambda x, y: TensorDataset(x, (y + 1) % 10)}, "labels"),
    "labels of a view": (
        {"data": as_arrays, "preprocess": "raw"},
        {"data": lambda x, y: View(as_arrays(x, y), labels=(y.numpy() + 1) % 10)},
        "labels",
    ),
    "a long array": ({"preprocess": Shift(0)}, {"preprocess": Shift(1)}, "preprocessing_hash"),
    "class names": ({"model": named("0123456789")}, {"model": named("abcdefghij")}, "class_names"),
}


OPTIONS = [{"scores": ["avh"]}, {"use_bias": False}, {"vectors": False}, {"version": "1"}]
ONLY = [{"split": "other"}, {"ids": [f"id{i}" for i in range(40)]}, {"preprocess": torch.neg}]
for kind, base, options in (
    ("one", {}, [*OPTIONS, *ONLY]),
    ("two", {"model": [network(0), network(1)]}, OPTIONS),
    ("folds", {"folds": 2}, [*OPTIONS, {"folds": 3}, {"seeds": 2}]),
):
    DIFFERENT |= {f"{kind}, {next(iter(option))}": (base, option, "not the same") for option in options}


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_everything_that_decides_rows_counts(digits, tmp_path, name):
    """All items and not sixteen of them, and not the images alone."""
    base, change, word = DIFFERENT[name]

    def run(data=TensorDataset, model=None, **options):
        x, y = (tensor.clone() for tensor in digits)
        return hs.score(model or network(), data(x, y), out=tmp_path / "run", device="cpu", **options)

    run(**base)
    assert run(**base, batch_size=7).meta.already_complete
    with pytest.raises(FileExistsError, match=word):
        run(**{**base, **change})
    assert hs.SampleTable.load(tmp_path / "run").meta.counts.rows == 40


def fingerprints(*samples):
    found = [sample.fingerprint() for sample in samples]
    assert all(not sample.identity.gaps for sample in samples)
    return found


def test_what_data_are_made_of(digits):
    x, y = digits
    whole = TensorDataset(x, y)
    array = as_arrays(x, y)
    images, labels = array.images, array.labels
    different = [
        open_data(whole),
        open_data(Subset(whole, range(39))),
        open_data(ConcatDataset([whole, whole])),
        open_data(ConcatDataset([whole, TensorDataset(-x, y)])),
        open_data(whole, split="other"),
        open_data(whole, ids=[f"a{i}" for i in range(40)]),
        open_data([(x[i], int(y[i])) for i in range(40)]),
        open_data([(x[i], 0) for i in range(40)]),
        array,
        ArraySamples(images.astype(np.int16), labels, "digits", "d"),
        ArraySamples(images, labels[::-1].copy(), "digits", "d"),
        DegradedSamples(array, "contrast", 0.5),
        DegradedSamples(array, "contrast", 0.5, gray=True),
        DegradedSamples(array, "contrast", 0.5, rounded=False),
        DegradedSamples(array, "contrast", 0.25),
    ]
    assert len(set(fingerprints(*different))) == len(different)
    assert fingerprints(open_data(whole)) == fingerprints(open_data(TensorDataset(x.clone(), y.clone())))


def test_the_same_object_is_the_same_data_within_a_process(digits):
    data = Items(*digits)
    assert open_data(data).fingerprint() == open_data(data).fingerprint() != open_data(Items(*digits)).fingerprint()
    assert open_data(data).identity.key != open_data(data).identity.key  # but not for a plan on disk
    assert open_data(data, version="1").identity == open_data(Items(*digits), version="1").identity


def test_a_subset_of_a_users_own_yields_its_own_items(digits):
    class Negative(Subset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return -x, y

        def __getitems__(self, indices):
            return [self[index] for index in indices]

    whole = TensorDataset(*digits)
    plain, negative = (hs.score(network(), kind(whole, range(20)), device="cpu") for kind in (Subset, Negative))
    assert not np.allclose(plain["avh"], negative["avh"])


def folder_of(path: Path, n=4) -> Path:
    for i in range(n):
        (path / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 40 * i, np.uint8)).save(path / "ab"[i % 2] / f"{i}.png")
    return path


@pytest.mark.parametrize("opened", ["folder", "torchvision"])
def test_an_edited_file_is_other_data(tmp_path, opened):
    folder = folder_of(tmp_path / "pictures")

    def fingerprint(**options):
        if opened == "folder":
            return open_data(folder).fingerprint()
        from torchvision.datasets import ImageFolder

        return fingerprints(open_data(ImageFolder(str(folder), **options)))[0]

    first = fingerprint()
    assert fingerprint() == first
    file = folder / "b" / "3.png"
    times = file.stat()
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns + 1))  # the same size, one nanosecond later
    touched = fingerprint()
    assert touched != first
    file.write_bytes(file.read_bytes() + b"\0")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns + 1))  # the same time, one byte more
    assert fingerprint() not in (first, touched)
    if opened == "torchvision":
        assert fingerprint(transform=np.asarray) != fingerprint()


def test_columns_of_hugging_face_data_are_part_of_them():
    datasets = pytest.importorskip("datasets")
    rows = {"image": [[[0]], [[1]]], "other": [[[1]], [[0]]], "label": [0, 1], "fine": [1, 0]}
    data = datasets.Dataset.from_dict(rows)
    choices = [Columns(), Columns("other"), Columns(label="fine"), Columns(id="label")]
    assert len(set(fingerprints(*(open_data(data, columns=columns) for columns in choices)))) == 4


# ---------------------------------------------------------------------------------------------------------------------
# Networks, preprocessing, options.


def test_preprocessing_that_replaces_a_named_models_is_another_run(tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), lambda x: x\n"
    )
    name = f"{tmp_path / 'net.py'}:build"
    first = hs.score(name, "digits", out=tmp_path / "run", device="cpu")
    assert hs.score(name, "digits", out=tmp_path / "run", device="cpu").meta.already_complete
    for preprocess in ("raw", Shift(0.5)):
        with pytest.raises(FileExistsError, match="preprocessing_hash"):
            hs.score(name, "digits", preprocess=preprocess, out=tmp_path / "run", device="cpu")
    assert not first.meta.built


def test_a_named_model_with_other_preprocessing_cannot_be_built_from_its_name():
    model = hs.Model(network(), "net", None, built={"model": "hardsight:net", "checkpoint": "a.pt"})
    data = TensorDataset(torch.rand(4, 64), torch.arange(4))
    assert hs.score(model, data).meta.built == model.built
    assert hs.score(model, data, preprocess=torch.neg).meta.built == {}


def test_another_schema_is_another_run(digits, tmp_path):
    data = TensorDataset(*digits)
    scored(data, tmp_path / "run")
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    plan["schemas"]["scores"] -= 1
    (tmp_path / "run" / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(FileExistsError, match="schemas"):
        scored(data, tmp_path / "run")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_whole_file_of_a_training_function_counts(tmp_path):
    text = "import torch\nfrom torch import nn\nWIDTH = {}\ndef layers():\n    return nn.Linear(64, 10)\n"
    text += "def train(data):\n    torch.manual_seed(0)\n    return nn.Sequential(nn.Flatten(), layers())\n"
    file = tmp_path / "net.py"
    images, labels = load_digits()
    data = ArraySamples(images[:30], labels[:30], "digits", "d")

    def run():
        return hs.score(f"{file}:train", data, folds=2, out=tmp_path / "run", device="cpu")

    file.write_text(text.format(1))
    run()
    assert run().meta.already_complete
    file.write_text(text.format(2))  # which nothing reads
    with pytest.raises(FileExistsError, match="training"):
        run()


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(64, 10), nn.Linear(10, 10)

    def forward(self, x):
        return self.c(self.a(x.flatten(1)).relu())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_another_layer_is_another_run_out_of_sample(digits, tmp_path):
    net = TwoHeads()

    def run(head):
        return hs.score(net, TensorDataset(*digits), folds=2, head=head, out=tmp_path / "run", device="cpu")

    run(net.a)
    assert run(net.a).meta.already_complete
    with pytest.raises(FileExistsError, match="layer"):
        run(net.c)


def trained_on(data):
    return network(), None, data.class_names


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_class_names_are_part_of_trained_folds(digits, tmp_path):
    def run(names):
        images = (digits[0][:, 0].numpy() * 255).astype(np.uint8)
        data = ArraySamples(images, digits[1].numpy(), "digits", "d", list(names))
        return hs.score(trained_on, data, folds=2, out=tmp_path / "run", device="cpu")

    run("0123456789")
    assert run("0123456789").meta.already_complete
    with pytest.raises(FileExistsError, match="labels"):
        run("abcdefghij")


def test_an_edited_score_is_another_run(digits, tmp_path):
    def register(factor):
        @SCORES.register("scaled_norm", higher_is_harder=True, tolerance=(1e-6, 1e-6), reference="here")
        def scaled_norm(reading):
            """A norm."""
            return factor * SCORES["norm"].of_reading(reading)

    def run():
        return scored(TensorDataset(*digits), tmp_path / "run", scores=["scaled_norm"])

    try:
        register(1)
        first = run()
        assert run().meta.already_complete
        register(2)
        with pytest.raises(FileExistsError, match="users_scores"):
            run()
        again = scored(TensorDataset(*digits), tmp_path / "run", scores=["scaled_norm"], overwrite=True)
    finally:
        del SCORES["scaled_norm"]
    np.testing.assert_allclose(again["scaled_norm"], 2 * first["scaled_norm"])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("options", [{}, {"folds": 2}, {"model": [network(0), network(1)]}])
def test_weights_are_hashed_once(digits, tmp_path, monkeypatch, options):
    hashed, identify = [], network_module.identify

    def counted(*values):
        hashed.extend(value for value in values if isinstance(value, nn.Module))
        return identify(*values)

    for module in (models, network_module):
        monkeypatch.setattr(module, "identify", counted)
    options = {"model": network()} | options
    hs.score(options.pop("model"), TensorDataset(*digits), out=tmp_path / "run", device="cpu", **options)
    assert len(hashed) == len({id(net) for net in hashed}) > 0


# ---------------------------------------------------------------------------------------------------------------------
# Several processes.


def test_nothing_is_divided_unless_asked_for(digits, tmp_path, monkeypatch):
    """Also within somebody's torchrun job."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert len(scored(TensorDataset(*digits), tmp_path / "run")) == 40
    assert len(scored(TensorDataset(*digits), None)) == 40


def test_shards_make_one_run_in_any_order(digits, tmp_path):
    data = TensorDataset(*digits)
    parts = [scored(data, tmp_path / "run", shard=(rank, 3), batch_size=4) for rank in (2, 0, 1)]
    assert [len(part) for part in parts] == [12, 12 + 16, 40]  # with what the others had done
    assert parts[0]["id"].tolist() == [f"data:{i}" for unit in (2, 5, 8) for i in range(4 * unit, 4 * unit + 4)]
    assert [part.meta.counts is not None for part in parts] == [False, False, True]
    table, whole = hs.SampleTable.load(tmp_path / "run"), scored(data, None)
    both = table.join(whole.to_arrow().select(["id", "avh"]), suffix="_whole")
    np.testing.assert_allclose(both["avh"], both["avh_whole"], rtol=1e-5)
    assert table["id"].tolist() == whole["id"].tolist()


def test_a_run_is_whole_only_when_its_last_unit_is_there(digits, tmp_path):
    data = TensorDataset(*digits)  # ten units of four samples, one per process
    whole = [scored(data, tmp_path / "run", shard=(rank, 10), batch_size=4).meta.counts for rank in range(10)]
    assert [counts is not None for counts in whole] == [False] * 9 + [True]
    assert whole[-1].rows == 40


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"shard": (2, 2)}, "shard"),
        ({"shard": (-1, 2)}, "shard"),
        ({"shard": (0, 2), "out": None}, "out"),
        ({"shard": (0, 2), "overwrite": True}, "overwrite"),
    ],
)
def test_shards_that_cannot_be(digits, tmp_path, options, word):
    with pytest.raises(ValueError, match=word):
        scored(TensorDataset(*digits), **{"out": tmp_path / "run", **options})
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------------------------------------------------
# What is pending when something goes wrong.


@pytest.mark.parametrize("out", [True, False])
def test_a_bad_label_in_a_later_batch_says_so_and_loses_nothing(digits, tmp_path, out):
    labels = digits[1].clone()
    labels[20] = 99
    folder = tmp_path / "run" if out else None
    with pytest.raises(ValueError, match="99"):
        scored(Items(digits[0], labels), folder, batch_size=16)
    if out:
        assert len(hs.SampleTable.load(tmp_path / "run", partial=True)) == 16


def test_the_fingerprint_of_data_in_existing_runs_is_what_it_was():
    """Written by version 0.1.0; were it another one, every older run would be said to be over other data."""
    data = TensorDataset(torch.arange(12.0).reshape(3, 4), torch.tensor([0, 1, 2]))
    assert open_data(data).fingerprint() == "7b5cacab78ed1107af2b21b35b0d0c85"
