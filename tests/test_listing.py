"""Folders of many files: the order and ids that torchvision and the paths give, and what changes the hash."""

import hashlib
import os

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Subset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from hardsight.data import changed_since, open_data
from hardsight.data.folders import FileSamples, file_stamp
from hardsight.runs import Meta, identify, identity
from hardsight.runs.meta import DataInfo


@pytest.fixture
def tree(tmp_path):
    """Folders in folders, names that sort by their bytes, endings in capitals, files that are no images."""
    generator = np.random.default_rng(0)
    for i in range(300):
        folder = tmp_path / "pics" / f"class {i % 7}" / "/".join(map(str, generator.integers(0, 3, i % 4)))
        folder.mkdir(parents=True, exist_ok=True)
        (
            folder / f"{generator.choice(['a', 'B', 'é', '10', '9'])}{i}{(*IMG_EXTENSIONS, '.JPEG', '.txt')[i % 11]}"
        ).touch()
    return tmp_path / "pics"


def test_the_order_is_that_of_torchvision(tree):
    samples = open_data(tree)
    classes = sorted(path.name for path in tree.iterdir())
    expected = make_dataset(tree, {name: i for i, name in enumerate(classes)}, IMG_EXTENSIONS)
    assert [(str(samples.path(i)), label) for i, label in enumerate(samples.labels)] == expected
    assert samples.ids == [f"pics/{os.path.relpath(path, tree)}" for path, _ in expected]


def test_a_folder_that_must_not_be_read_is_a_class_without_images(tree, monkeypatch):
    expected, scandir = [id_ for id_ in open_data(tree).ids if "class 2" not in id_], os.scandir

    def refused(path):
        if "class 2" in str(path):
            raise PermissionError
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    samples = open_data(tree)
    assert samples.ids == expected
    assert "class 2" in samples.classes
    assert 2 not in samples.labels


def test_a_new_class_without_images_is_other_data(tree):
    before = open_data(tree)
    (tree / "class 0a").mkdir()
    after = open_data(tree)
    assert after.ids == before.ids
    assert after.labels.max() == before.labels.max() + 1
    assert after.fingerprint() != before.fingerprint()


def test_names_divided_otherwise_and_times_of_any_size_are_other_data(tmp_path):
    def fingerprint(*names):
        return FileSamples(tmp_path, names, None, (), "").fingerprint()

    assert len({fingerprint("ab", "c"), fingerprint("a", "bc"), fingerprint("abc"), fingerprint("c", "ab")}) == 4
    states = {(None, fingerprint("ab", "c"))}
    for nanoseconds in (-1, 0, 1, 2**31 * 10**9, 15 * 10**18):  # the last one is beyond 64 bits with a sign
        (tmp_path / "ab").touch()
        os.utime(tmp_path / "ab", ns=(0, nanoseconds))
        states.add((file_stamp(tmp_path / "ab"), fingerprint("ab", "c")))  # some file systems clip the time
    assert len(states) == len(dict(states)) == len({hash_ for _, hash_ in states}) > 3
    assert fingerprint("a\0b", "c") == fingerprint("a\0b", "c")  # no file can have such a name


def test_the_hash_is_that_of_its_parts_one_by_one():
    def join(*parts):
        digest = hashlib.sha256()
        for part in parts:
            digest.update(f"{len(part)}:".encode() + part)
        return digest.digest()

    array = np.arange(3, dtype=np.uint8)
    expected = join(
        b"tuple",
        join(b"str", "é\udc80".encode("utf-8", "surrogatepass")),
        join(b"bytearray", b"1:2"),
        join(b"list", join(b"int", b"-7"), join(b"NoneType", b"None")),
        join(b"array", b"uint8", b"(3,)", array.tobytes()),
    )
    assert identify("é\udc80", bytearray(b"1:2"), [-7, None], array).hash == expected.hex()[:32]


def test_a_folder_of_torchvision_is_its_names_times_and_classes(tmp_path):
    def fingerprint(edit=lambda dataset: None):
        dataset = ImageFolder(tmp_path, allow_empty=True)
        edit(dataset)
        return open_data(dataset).fingerprint()

    for name in ("a/1.png", "a/2.png", "b/12.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"no image")

    def other_label(dataset):
        dataset.samples[0] = (dataset.samples[0][0], 1)

    def other_targets(dataset):
        dataset.targets = [0, 2**63, -1]

    states = [fingerprint(), fingerprint(other_label), fingerprint(other_targets)]
    assert fingerprint() == states[0]
    os.utime(tmp_path / "a" / "1.png", ns=(0, 7))
    states.append(fingerprint())
    (tmp_path / "a" / "2.png").write_bytes(b"longer than it was")
    os.utime(tmp_path / "a" / "2.png", ns=(0, 7))
    states.append(fingerprint())
    (tmp_path / "a" / "1.png").rename(tmp_path / "a" / "11.png")
    states.append(fingerprint())
    assert len(set(states)) == len(states)


def test_a_hash_of_several_folders_is_not_compared_with_those_of_older_versions(tmp_path):
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    folder, arrays = ImageFolder(tmp_path), TensorDataset(torch.zeros(2, 3, 4, 4), torch.tensor([0, 1]))
    for dataset in (folder, Subset(folder, [1]), folder + folder, Subset(folder, [1]) + folder + arrays):
        ids = [str(i) for i in range(len(dataset))]
        samples = open_data(dataset, ids=ids)
        assert not changed_since(samples, Meta(data=DataInfo(fingerprint=32 * "0")))
        assert changed_since(samples, Meta(data=DataInfo(fingerprint="files-" + 32 * "0")))
    assert changed_since(open_data(arrays + arrays), Meta(data=DataInfo(fingerprint=32 * "0")))


def test_weights_that_are_hashed_side_by_side_have_the_same_hash(monkeypatch):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300), nn.BatchNorm1d(70_000))
    network[1].weight = network[0].weight  # shared
    before = identify(network)
    with monkeypatch.context() as one_by_one:
        one_by_one.setattr(identity._Hasher, "_hash_weights", lambda self, module: None)
        assert identify(network) == before
    network[2].running_var[69_999] += 1
    assert identify(network).hash != before.hash
    assert identify(network, torch.empty(0, device="meta"), nn.Linear(300, 300, device="meta")).gaps
    network.register_buffer("graph", torch.eye(3).to_sparse())  # which cannot be hashed; all the others can
    sparse = identify(network)
    assert sparse.gaps == ("Tensor",)
    network[2].running_var[69_999] += 1
    assert identify(network).hash != sparse.hash
