"""Labels are those that the items yield, wherever they are used: in rows, folds and training."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Subset, TensorDataset
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.transforms import ToTensor

import hardsight as hs
from hardsight.data import View, all_labels, class_index, datasets, open_data, samples

HALVED = [0] * 12 + [1] * 12


@pytest.fixture
def root(tmp_path):
    """Four classes of six images."""
    for i in range(24):
        file = tmp_path / "pics" / "abcd"[i // 6] / f"{i:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)
    return tmp_path / "pics"


def halved(label):
    return label // 2


class Halves(ImageFolder):
    """A user's class whose items have other labels than its base lists."""

    def __init__(self, root, transform):
        super().__init__(root, transform)
        self.classes = ["low", "high"]

    def __getitem__(self, index):
        x, label = super().__getitem__(index)
        return x, label // 2


def relabeled(kind, root):
    if kind == "target_transform":
        return ImageFolder(root, ToTensor(), target_transform=halved)
    return Halves(root, ToTensor())


def network(outputs=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, outputs))


KINDS = pytest.mark.parametrize("kind", ["target_transform", "subclass"])


@KINDS
def test_every_label_is_the_yielded_one(kind, root):
    samples = open_data(relabeled(kind, root))
    assert all_labels(samples, "data").tolist() == HALVED
    some = Subset(relabeled(kind, root), [23, 0, 12])
    assert all_labels(open_data(some), "data").tolist() == [1, 0, 1]
    assert all_labels(View(samples, np.array([23, 0])), "data").tolist() == [1, 0]
    assert hs.score(network(), relabeled(kind, root))["label"].tolist() == HALVED


@KINDS
def test_folds_are_of_yielded_labels(kind, root):
    used = []

    def train(data):
        used.append((data.classes, np.bincount(data.labels).tolist(), {label for _, label in data}))
        return hs.Model(network(), "net")

    table = hs.score(train, relabeled(kind, root), folds=2)
    assert used == [(2, [6, 6], {0, 1})] * 2
    assert table["label"].tolist() == HALVED
    assert hs.score(network(7), relabeled(kind, root), folds=2).meta.model.classes == 2


@KINDS
def test_training_is_toward_yielded_labels(kind, root, tmp_path, monkeypatch):
    read, used = [], []
    monkeypatch.setattr(samples, "class_index", lambda label: read.append(label) or class_index(label))

    def loss(logits, targets):
        used.extend(targets.tolist())
        return nn.functional.cross_entropy(logits, targets)

    recipe = hs.Recipe(epochs=1, batch_size=8)
    data = relabeled(kind, root)
    trained = hs.train(network(), data, out=tmp_path / "run", recipe=recipe, loss=loss, device="cpu", progress=False)
    assert sorted(used) == HALVED
    assert len(read) == (0 if kind == "target_transform" else 24)  # once, and not at all where a function tells
    assert trained.history[0]["samples"] == 24


def test_plain_torchvision_lists_labels_without_loading(root):
    loads = []

    def loader(path):
        loads.append(path)
        return Image.open(path).convert("RGB")

    samples = open_data(ImageFolder(root, ToTensor(), loader=loader))
    assert all_labels(samples, "data").tolist() == np.repeat(range(4), 6).tolist()
    assert samples.classes == list("abcd")
    assert len(loads) == 1  # to see what kind of samples they are
    assert open_data(ImageFolder(root, target_transform=torch.tensor)).classes == list("abcd")  # the same labels
    assert open_data(relabeled("target_transform", root)).classes is None
    assert open_data(relabeled("subclass", root)).classes == ["low", "high"]
    for transform in (lambda label: label > 1, lambda label: [0.5, 0.5], lambda label: {}[label]):  # no class indices
        assert open_data(ImageFolder(root, target_transform=transform)).labels is None
    data = ImageFolder(root, ToTensor())
    data.targets = [0] * 24  # which are not what it yields
    assert open_data(data).labels.tolist() == hs.score(network(4), data)["label"].tolist()


def made(kind, **more):
    """A data set of torchvision's as it is once its files are read."""
    data = object.__new__(kind)
    facts = {"data": np.zeros((4, 8, 8, 3), np.uint8), "targets": [3, 1, 2, 0], "train": False}
    vars(data).update(facts, **{"transform": None, "target_transform": None, "transforms": None} | more)
    return data


class Renamed(CIFAR10):
    """A subclass with the items of its base."""


class Shifted(CIFAR10):
    def __getitem__(self, index):
        x, label = super().__getitem__(index)
        return x, label + 1


@pytest.mark.parametrize(
    ("kind", "more", "labels"),
    [
        (CIFAR10, {}, [3, 1, 2, 0]),
        (Renamed, {}, [3, 1, 2, 0]),
        (Shifted, {}, None),
        (CIFAR10, {"target_transform": halved}, None),  # set later: some of torchvision's classes use it, some do not
        (CIFAR10, {"transforms": lambda x, label: (x, label)}, None),
    ],
)
def test_declared_labels_are_trusted_where_the_items_are_those_of_torchvision(kind, more, labels):
    samples = open_data(made(kind, **more))
    assert (None if samples.labels is None else samples.labels.tolist()) == labels
    assert (None if samples.declared is None else samples.declared.tolist()) == (None if labels else [3, 1, 2, 0])
    assert all_labels(samples, "data").tolist() == [samples.load(i, 3)[1] for i in range(4)]


def test_tensors_of_a_subclass_are_not_what_it_yields():
    class Other(TensorDataset):
        def __getitem__(self, index):
            x, label = super().__getitem__(index)
            return x + 1, 1 - label

    samples = open_data(Other(torch.zeros(4, 3), torch.tensor([0, 1, 1, 0])))
    assert (samples.tensor(), samples.labels) == (None, None)
    assert all_labels(samples, "data").tolist() == [1, 0, 0, 1]
    plain = open_data(type("Same", (TensorDataset,), {})(torch.zeros(4, 3), torch.tensor([0, 1, 1, 0])))
    assert plain.labels.tolist() == [0, 1, 1, 0]
    assert plain.tensor() is not None


def test_a_label_that_cannot_be_read_is_one_sentence(root):
    data = Halves(root, ToTensor())
    (root / "b" / "07.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"folds: .*'pics/b/07.png' "):
        hs.score(lambda data: network(), data, folds=2)


# ---------------------------------------------------------------------------------------------------------------------
# The data are hashed once a run, and again in the next.


@pytest.fixture
def hashes(monkeypatch):
    hashed, identity = [], datasets._dataset_identity
    monkeypatch.setattr(datasets, "_dataset_identity", lambda *given: hashed.append(given) or identity(*given))
    return hashed


def test_a_run_hashes_its_data_once(hashes, tmp_path):
    data = TensorDataset(torch.rand(24, 3, 8, 8), torch.tensor([0, 1] * 12))
    hs.score(network(), data, out=tmp_path / "one")
    assert len(hashes) == 1
    hs.score([network(), network()], data, out=tmp_path / "two")
    assert len(hashes) == 2
    hs.score(lambda part: hs.Model(network(), "net"), data, folds=3, out=tmp_path / "three")
    assert len(hashes) == 3
    test = TensorDataset(torch.rand(8, 3, 8, 8), torch.tensor([0, 1] * 4))
    options = {"recipe": hs.Recipe(epochs=1, batch_size=8), "device": "cpu", "progress": False}
    hs.train(network(), data, test, out=tmp_path / "four", **options)
    assert len(hashes) == 5


def test_the_next_run_notices_a_change_in_place(tmp_path):
    x = torch.rand(24, 3, 8, 8)
    samples = open_data(TensorDataset(x, torch.tensor([0, 1] * 12)))
    hs.score(network(), samples, out=tmp_path / "run")
    assert hs.score(network(), samples, out=tmp_path / "run").meta.already_complete
    x[7] += 1
    for changed in (samples, View(samples)):
        with pytest.raises(FileExistsError, match="data"):
            hs.score(network(), changed, out=tmp_path / "run")


def test_a_version_has_a_hash_of_its_own():
    samples = open_data(made(Shifted))
    assert samples.identity.gaps
    first, second = (open_data(samples, version=version).identity for version in "12")
    assert first.hash != second.hash
    assert not first.gaps
