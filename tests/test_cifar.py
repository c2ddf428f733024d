"""CIFAR-100's binary files against bytes written one by one, and bytes that are no such file."""

import struct

import numpy as np
import pytest
import torch

import hardsight as hs
from hardsight.cli import main
from hardsight.data import Columns, data_of, open_data

SIDE = 32


def pixel(image, plane, row, column):
    return (37 * image + 101 * plane + 5 * row + column) % 256


def record(image, coarse, fine):
    """One image, byte by byte: super-class, class, then all red, all green, all blue pixels, row by row."""
    planes = [pixel(image, plane, row, column) for plane in range(3) for row in range(SIDE) for column in range(SIDE)]
    return struct.pack("BB3072B", coarse, fine, *planes)


LABELS = {"train": [(4, 0), (1, 1), (14, 2), (0, 95)], "test": [(19, 99), (3, 10)]}


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "cifar-100-binary"
    root.mkdir()
    for split, labels in LABELS.items():
        (root / f"{split}.bin").write_bytes(b"".join(record(k, *pair) for k, pair in enumerate(labels)))
    (root / "coarse_label_names.txt").write_text("".join(f"super{k}\n" for k in range(20)))
    (root / "fine_label_names.txt").write_text("".join(f"class_{k}\n" for k in range(100)))
    return root


@pytest.mark.parametrize("split", LABELS)
@pytest.mark.parametrize("label", [None, "fine", "coarse"])
def test_labels_and_pixels_are_the_bytes(folder, split, label):
    samples = open_data(f"{folder}:{split}", columns=Columns(label=label))
    place = 0 if label == "coarse" else 1
    assert samples.labels.tolist() == [pair[place] for pair in LABELS[split]]
    assert samples.classes[3] == ("super3" if label == "coarse" else "class_3")
    assert samples.ids[:2] == [f"{split}:0", f"{split}:1"]
    tensor = samples.tensor()
    assert tensor.shape == (len(LABELS[split]), 3, SIDE, SIDE)
    assert tensor.dtype == torch.uint8
    for place in ((0, 0, 0, 1), (1, 0, 1, 0), (1, 1, 0, 31), (1, 2, 31, 7)):
        assert tensor[place] == pixel(*place)


def test_a_training_reads_train_and_a_score_test(folder):
    assert [open_data(folder, training=training).split for training in (True, False)] == ["train", "test"]


def test_super_classes_of_an_npz_are_another_array(tmp_path):
    images = np.zeros((3, SIDE, SIDE, 3), np.uint8)
    arrays = {"test_images": images, "test_labels": np.array([0, 1, 95]), "test_coarse": np.array([4, 1, 0])}
    np.savez(tmp_path / "cifar100.npz", **arrays, coarse_classes=[f"super{k}" for k in range(20)])
    coarse = open_data(tmp_path / "cifar100.npz", columns=Columns(label="coarse"))
    assert (coarse.labels.tolist(), coarse.classes[4]) == ([4, 1, 0], "super4")


HOSTILE = {
    "truncated": lambda good: good[:-1],
    "empty": lambda good: b"",
    "one byte more": lambda good: good + b"\0",
    "CIFAR-10": lambda good: b"".join(good[k + 1 : k + 3074] for k in range(0, len(good), 3074)),  # one label each
    "super-class 20": lambda good: bytes([20]) + good[1:],
    "class 100": lambda good: good[:1] + bytes([100]) + good[2:],
    "labels swapped": lambda good: good[:-3074] + bytes([95, 0]) + good[-3072:],
    "a pickle": lambda good: b"\x80\x04cos\nsystem\n(S'touch hacked'\ntR.",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_other_bytes_are_refused_in_one_sentence(folder, name, capsys, monkeypatch):
    monkeypatch.chdir(folder.parent)
    file = folder / "train.bin"
    file.write_bytes(HOSTILE[name](file.read_bytes()))
    with pytest.raises(ValueError, match=r"DATA: .*train\.bin"):
        open_data(f"{folder}:train")
    with pytest.raises(SystemExit) as ended:
        main(["train", f"{folder}:train", "--model", "small-cnn", "-o", "run"])
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (folder.parent / "hacked").exists()


def test_wrong_splits_labels_and_names_are_refused(folder):
    with pytest.raises(ValueError, match="train and test"):
        open_data(f"{folder}:val")
    with pytest.raises(ValueError, match="fine or coarse"):
        open_data(folder, columns=Columns(label="finest"))
    with pytest.raises(ValueError, match="columns"):
        open_data(folder, columns=Columns(image="x"))
    (folder / "test.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"test\.bin"):
        open_data(folder)
    (folder / "coarse_label_names.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="20 classes"):
        open_data(f"{folder}:train", columns=Columns(label="coarse"))
    (folder / "fine_label_names.txt").unlink()
    assert open_data(f"{folder}:train").classes is None


def test_a_folder_of_images_stays_one_whatever_else_lies_in_it(tmp_path):
    from PIL import Image

    for name in ("cat/1.png", "dog/1.png"):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    (tmp_path / "test.bin").write_bytes(b"notes")
    assert open_data(tmp_path).classes == ["cat", "dog"]


def test_a_run_finds_its_images_and_super_classes_again(folder, tmp_path):
    options = ["--model", "small-cnn", "--epochs", "1", "--batch-size", "4", "-o", str(tmp_path / "run")]
    main(["train", str(folder), "--label-column", "coarse", *options])
    run = tmp_path / "run" / "train"
    table = hs.SampleTable.load(run)
    assert sorted(table["label"].tolist()) == [0, 1, 4, 14]
    again = data_of(table.meta)
    assert (len(again), again.labels.tolist(), again.ids[0]) == (4, [4, 1, 14, 0], "train:0")
