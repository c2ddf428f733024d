"""Any data set: what its samples, labels, class names and ids are, and what is refused before the first batch."""

import io
import zipfile

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

import hardsight as hs
from hardsight.checkpoints import read_head
from hardsight.data import class_mapping, collate, open_data, read_features
from hardsight.data.open import absolute_name
from hardsight.errors import InputError


def ids(samples):
    return samples.ids


def picture(seed, size=(8, 8)):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def save_picture(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed).save(path)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "val"
    for seed, name in enumerate(("cat/1.png", "cat/2.jpg", "dog/sub/1.png", "owl/1.PNG")):
        save_picture(root / name, seed)
    return root


class Tiny(nn.Module):
    """Three outputs for 8 × 8 pictures; it counts its forwards."""

    def __init__(self, channels=3, outputs=3):
        super().__init__()
        self.conv, self.fc, self.forwards = nn.Conv2d(channels, 4, 3), nn.Linear(4, outputs), 0

    def forward(self, x):
        self.forwards += 1
        return self.fc(self.conv(x).mean((2, 3)))


@pytest.fixture
def tiny():
    torch.manual_seed(0)
    return Tiny()


def rows(table):
    """Rows by id, whatever their order."""
    return {row.pop("id"): row for row in table.to_arrow().to_pylist()}


def assert_same_rows(one, other):
    one, other = rows(one), rows(other)
    assert one.keys() == other.keys()
    for key, row in one.items():  # batches of another size round differently
        assert row == pytest.approx(other[key], rel=1e-4, abs=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Folders.


def test_folder(folder):
    samples = open_data(str(folder))
    assert ids(samples) == ["val/cat/1.png", "val/cat/2.jpg", "val/dog/sub/1.png", "val/owl/1.PNG"]
    assert samples.classes == ["cat", "dog", "owl"]
    assert samples.labels.tolist() == [0, 0, 1, 2]
    x, label = samples.load(2, channels=3)
    assert (x.size, x.mode, label) == ((8, 8), "RGB", 1)
    assert samples.load(2, channels=1)[0].mode == "L"


def test_folder_ids_do_not_depend_on_how_the_folder_is_named(folder, monkeypatch):
    expected = ids(open_data(folder))
    monkeypatch.chdir(folder.parent)
    assert ids(open_data("val")) == expected
    assert ids(open_data("val/")) == expected
    monkeypatch.chdir(folder)
    assert ids(open_data(".")) == expected


def test_folder_ids_stay_when_files_are_added(folder):
    before = {name: open_data(folder).load(i, 3)[0].tobytes() for i, name in enumerate(ids(open_data(folder)))}
    for name in ("ant/0.png", "cat/0.png", "cat/11.png", "dog/0.png"):  # a new class too, before all others
        save_picture(folder / name, 9)
    (folder / "cat" / "notes.txt").write_text("no picture")
    after = open_data(folder)
    assert len(after) == 8
    found = {name: after.load(i, 3)[0].tobytes() for i, name in enumerate(ids(after))}
    assert before.items() <= found.items()


def test_folder_fingerprint(folder):
    first = open_data(folder).fingerprint()
    assert open_data(folder).fingerprint() == first
    save_picture(folder / "cat/3.png", 5)
    assert open_data(folder).fingerprint() != first


def test_flat_folder_has_no_labels(tmp_path):
    for i in (2, 1):
        save_picture(tmp_path / "new" / f"{i}.png", i)
    samples = open_data(tmp_path / "new")
    assert ids(samples) == ["new/1.png", "new/2.png"]
    assert samples.labels is None
    assert samples.classes is None
    assert samples.load(0, 3)[1] is None


def test_folder_without_pictures(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    with pytest.raises(ValueError, match=r"DATA: .*/cat/1\.png.*\.jpg"):
        open_data(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="DATA: no images"):
        open_data(tmp_path / "empty")


@pytest.mark.parametrize("name", ["nowhere", "nowhere.npz", "nowhere:test", "nowhere.npz:test"])
def test_data_that_is_not_there(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"DATA: .*nowhere"):
        open_data(f"{tmp_path}/{name}")


def test_a_file_of_no_known_kind(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n")
    with pytest.raises(ValueError, match=r"DATA: x\.csv"):
        open_data(tmp_path / "x.csv")


def test_data_of_no_known_type():
    with pytest.raises(TypeError, match=r"data must.* int"):
        open_data(3)


# ---------------------------------------------------------------------------------------------------------------------
# Bad pictures become bad rows.


def test_pictures_of_every_kind_in_one_folder(tmp_path, tiny):
    root = tmp_path / "mixed"
    (root / "a").mkdir(parents=True)
    (root / "b").mkdir()
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    rgb = np.asarray(picture(0))
    good = {
        "a/grey.png": Image.fromarray(grey),
        "a/grey16.png": Image.fromarray(grey.astype(np.uint16) * 1000),
        "a/rgba.png": Image.fromarray(np.dstack([rgb, grey])),
        "b/palette.png": Image.fromarray(grey).convert("P"),
        "b/cmyk.jpg": Image.fromarray(rgb).convert("CMYK"),
    }
    for name, made in good.items():
        made.save(root / name, **({"transparency": bytes(range(64))} if "palette" in name else {}))
    (root / "b/text.png").write_text("no picture")
    Image.fromarray(np.ones((8, 8), np.float32)).save(root / "b/float.tiff")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(root / "a/cut.jpg")
    (root / "a/cut.jpg").write_bytes((root / "a/cut.jpg").read_bytes()[:2000])

    tiny.fc = nn.Linear(4, 2)
    table = hs.score(tiny, root, preprocess="raw", out=tmp_path / "run")
    assert set(rows(table)) == {f"mixed/{name}" for name in good}
    bad = dict(zip(table.bad["id"].to_pylist(), table.bad["error"].to_pylist(), strict=True))
    assert set(bad) == {"mixed/a/cut.jpg", "mixed/b/text.png", "mixed/b/float.tiff"}
    assert "truncated" in bad["mixed/a/cut.jpg"]
    assert "cannot identify" in bad["mixed/b/text.png"]
    assert "floating-point" in bad["mixed/b/float.tiff"]
    assert table.meta.counts.bad == 3
    assert hs.SampleTable.load(tmp_path / "run").bad.to_pylist() == table.bad.to_pylist()
    with pytest.raises(ValueError, match=r"'mixed/a/cut\.jpg': .*truncated"):
        hs.score(tiny, root, preprocess="raw", strict=True)


def test_no_good_picture_at_all(tmp_path, tiny):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.png").write_text("no picture")
    with pytest.raises(ValueError, match=r"DATA: .*bad/x\.png: .*identify"):
        hs.score(tiny, tmp_path / "bad", preprocess="raw")


def test_pictures_of_different_sizes_need_preprocessing(tmp_path, tiny):
    for size in (8, 9):
        picture(0, (size, size)).save(tmp_path / f"{size}.png")
    with pytest.raises(ValueError, match=r"different sizes"):
        hs.score(tiny, tmp_path, preprocess="raw")


def test_grey_network_gets_grey_pictures(folder):
    table = hs.score(Tiny(channels=1), folder, preprocess="raw")
    assert len(table) == 4
    assert len(table.bad) == 0


# ---------------------------------------------------------------------------------------------------------------------
# Arrays.


@pytest.fixture
def arrays():
    random = np.random.default_rng(0)
    return {
        "train_images": random.integers(0, 256, (5, 8, 8, 3), dtype=np.uint8),
        "train_labels": np.array([0, 1, 2, 1, 0]),
        "test_images": random.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8),
        "test_labels": np.array([2, 1, 0, 0], dtype=np.uint8),
    }


@pytest.fixture
def npz(tmp_path):
    def save(**arrays):
        np.savez(tmp_path / "set.npz", **arrays)
        return str(tmp_path / "set.npz")

    return save


def test_npz(arrays, npz):
    path = npz(**arrays)
    for name, split, n in ((path, "test", 4), (f"{path}:test", "test", 4), (f"{path}:train", "train", 5)):
        samples = open_data(name)
        assert ids(samples) == [f"{split}:{i}" for i in range(n)]
        assert samples.labels.tolist() == arrays[f"{split}_labels"].tolist()
        x, label = samples.load(1, 3)
        assert np.array_equal(x, arrays[f"{split}_images"][1])
        assert label == 1


def test_npz_says_which_split_it_took(arrays, npz):
    assert open_data(npz(**arrays)).origin == "set.npz, split test (also there: train)"


def test_npz_with_a_split_of_ones_own(arrays, npz):
    path = npz(holdout_images=arrays["test_images"], holdout_labels=arrays["test_labels"])
    assert ids(open_data(f"{path}:holdout"))[0] == "holdout:0"


@pytest.mark.parametrize("x", ["x", "X"])
def test_npz_with_the_names_of_keras(x, arrays, npz):
    names = {f"{x}_test": arrays["test_images"], "y_test": arrays["test_labels"][:, None]}  # Keras's CIFAR is (N, 1)
    samples = open_data(npz(**names, **{f"{x}_train": arrays["train_images"], "y_train": arrays["train_labels"]}))
    assert ids(samples)[0] == "test:0"
    assert samples.labels.tolist() == [2, 1, 0, 0]


def test_npz_without_splits(arrays, npz):
    samples = open_data(npz(images=arrays["test_images"], labels=arrays["test_labels"], classes=["a", "b", "c"]))
    assert ids(samples)[0] == "data:0"
    assert samples.classes == ["a", "b", "c"]


def test_npz_without_labels(arrays, npz, tiny):
    path = npz(test_images=arrays["test_images"])
    assert open_data(path).labels is None
    table = hs.score(tiny, path, preprocess="raw")
    assert "label" not in table
    assert "avh_pred" in table
    assert "avh" not in table


@pytest.mark.parametrize(
    ("changes", "split", "message"),
    [
        ({"test_labels": np.zeros(3, int)}, "", r"4 images.*labels.*\(3,\)"),
        ({"test_labels": np.zeros((4, 3), int)}, "", r"4 images.*labels.*\(4, 3\)"),
        ({"test_labels": np.zeros(4)}, "", "labels.* float64"),
        ({"test_labels": np.array(list("abca"))}, "", "labels.* <U1"),
        (
            {"test_images": np.zeros((4, 192), np.uint8)},
            "",
            r"images .*\(4, 192\)",
        ),
        ({}, ":val", r"'val'.*test_images.*train_labels"),
    ],
)
def test_npz_that_does_not_fit(changes, split, message, arrays, npz):
    with pytest.raises(ValueError, match=rf"DATA: .*{message}"):
        open_data(npz(**arrays | changes) + split)


def test_npz_without_images(npz):
    with pytest.raises(ValueError, match=r"set\.npz .*test_labels, got a\b"):
        open_data(npz(a=np.zeros(3)))


@pytest.mark.parametrize("key", ["test_images", "test_labels", "classes"])
def test_npz_with_pickles_is_refused(key, arrays, npz):
    objects = np.empty(4, object)
    objects[:] = [{"a": 1}] * 4
    with pytest.raises(ValueError, match=rf"DATA: {key} .*Python"):
        open_data(npz(**arrays | {key: objects}))


def test_npz_cut_short_or_damaged(arrays, tmp_path, npz):
    path = tmp_path / "set.npz"
    npz(**arrays)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("test_images.npy").header_offset
    damaged = bytearray(whole)
    damaged[start + 400] ^= 255  # one byte of a picture
    for content in (b"", whole[: len(whole) // 2], b"no archive", bytes(damaged)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"set\.npz .*(short|damaged)"):
            open_data(str(path))


def test_npy_named_npz(tmp_path):
    with (tmp_path / "x.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match=r"DATA: x\.npz is"):
        open_data(tmp_path / "x.npz")


def test_array_fingerprint(arrays, npz):
    first = open_data(npz(**arrays)).fingerprint()
    assert open_data(npz(**arrays)).fingerprint() == first
    arrays["test_images"][3, 2, 1, 0] ^= 1
    assert open_data(npz(**arrays)).fingerprint() != first


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2)], ids=["channels last", "channels first"])
def test_arrays_of_either_channel_order(axes, arrays, npz, tiny):
    expected = hs.score(tiny, npz(**arrays), preprocess="raw")
    arrays["test_images"] = np.ascontiguousarray(arrays["test_images"].transpose(axes))
    assert_same_rows(hs.score(tiny, npz(**arrays), preprocess="raw"), expected)


def test_float_arrays_are_pixels_already(arrays, npz, tiny):
    expected = hs.score(tiny, npz(**arrays), preprocess="raw")
    arrays["test_images"] = (arrays["test_images"] / 255).astype(np.float32)
    assert_same_rows(hs.score(tiny, npz(**arrays), preprocess="raw"), expected)


def test_digits():
    samples = open_data("digits")
    assert (len(samples), samples.ids[1796]) == (1797, "digits:1796")
    assert samples.classes == list("0123456789")
    x, label = samples.load(0, 1)
    assert (x.shape, x.dtype, x.max(), label) == ((8, 8), np.uint8, 255 * 15 // 16, 0)


# ---------------------------------------------------------------------------------------------------------------------
# torchvision and torch.


def test_torchvision_fake_data():
    samples = open_data("torchvision:FakeData")
    assert (len(samples), samples.ids[7]) == (1000, "data:7")
    x, label = samples.load(7, 3)
    assert x.size == (224, 224)
    assert label == torchvision.datasets.FakeData()[7][1]


def test_torchvision_unknown_name():
    with pytest.raises(ValueError, match=r"DATA: .*'CIFAR11'.*CIFAR10\b"):
        open_data("torchvision:CIFAR11")


def test_torchvision_that_cannot_be_fetched(tmp_path, monkeypatch):
    def offline(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", offline)
    with pytest.raises(ValueError, match=r"MNIST.*--root"):
        open_data("torchvision:MNIST:test", root=tmp_path)


class Own(Dataset):
    """A user's data set of pictures."""

    def __init__(self, n=6, **more):
        self.n = n
        vars(self).update(more)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return picture(i), i % 3


def test_torch_dataset():
    samples = open_data(Own())
    assert ids(samples) == [f"data:{i}" for i in range(6)]
    assert samples.labels is None  # nobody knows them beforehand
    assert samples.load(4, 3)[1] == 1
    assert samples.pixels


def test_split_of_a_torch_dataset():
    assert open_data(Own(), split="mine").ids[0] == "mine:0"
    assert open_data(Own(train=True)).ids[0] == "train:0"
    assert open_data(Own(train=False)).ids[0] == "test:0"
    assert open_data(Own(split="extra")).ids[0] == "extra:0"


def test_ids_of_ones_own():
    assert ids(open_data(Own(), ids=range(10, 16))) == ["10", "11", "12", "13", "14", "15"]
    with pytest.raises(ValueError, match=r"ids.* 6, got 3"):
        open_data(Own(), ids=["a", "b", "c"])
    with pytest.raises(ValueError, match="ids go with"):
        open_data("digits", ids=["a"])


def test_repeated_ids_are_refused(tiny):
    with pytest.raises(ValueError, match=r"ids .*unique.*'a'"):
        hs.score(tiny, Own(), ids=["a", "a", "b", "c", "d", "e"], preprocess="raw")


def test_subset_ids_name_the_sample_not_the_place():
    whole = Own(targets=[0, 1, 2, 0, 1, 2])
    samples = open_data(Subset(whole, [4, 1, 3]))
    assert ids(samples) == ["data:4", "data:1", "data:3"]
    assert samples.labels.tolist() == [1, 1, 0]
    assert samples.load(0, 3)[0].tobytes() == picture(4).tobytes()
    nested = open_data(Subset(Subset(whole, [4, 1, 3]), [2, 0]))
    assert ids(nested) == ["data:3", "data:4"]
    halves = random_split(whole, [3, 3], torch.Generator().manual_seed(0))
    assert sorted(ids(open_data(halves[0])) + ids(open_data(halves[1]))) == ids(open_data(whole))


def test_subset_indices_of_any_form():
    for indices in (np.array([4, 1]), torch.tensor([4, 1]), range(4, 0, -3)):
        assert ids(open_data(Subset(Own(), indices))) == ["data:4", "data:1"]


def test_targets_of_any_form():
    for targets in ([0, 1, 2, 0, 1, 2], np.array([0, 1, 2, 0, 1, 2]), torch.tensor([0, 1, 2, 0, 1, 2])):
        assert open_data(Own(targets=targets)).labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_targets_that_are_no_labels_are_left_alone():
    assert open_data(Own(targets=[1.5] * 6)).labels is None
    assert open_data(Own(targets=[0])).labels is None


def test_image_folder_instance(folder):
    for dataset, pixels in ((ImageFolder(folder), True), (ImageFolder(folder, transform=ToTensor()), False)):
        samples = open_data(dataset)
        assert ids(samples) == ids(open_data(folder))
        assert samples.classes == ["cat", "dog", "owl"]
        assert samples.labels.tolist() == [0, 0, 1, 2]
        assert samples.pixels is pixels
    assert ids(open_data(Subset(ImageFolder(folder), [3, 1]))) == ["val/owl/1.PNG", "val/cat/2.jpg"]


def test_tensor_dataset(tiny):
    x, y = torch.rand(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    table = hs.score(tiny, TensorDataset(x, y))  # tensors are inputs: no preprocessing is asked for
    assert table["id"].tolist() == [f"data:{i}" for i in range(6)]
    assert table["label"].tolist() == y.tolist()
    assert table.meta.preprocessing == "none: the data set yields tensors"
    assert "avh_pred" in hs.score(tiny, TensorDataset(x))


def test_data_loader(tiny):
    data = TensorDataset(torch.rand(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2]))
    expected = hs.score(tiny, data)
    assert_same_rows(hs.score(tiny, DataLoader(data, batch_size=2, shuffle=True)), expected)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_ids_do_not_depend_on_workers_or_batches(workers, batch_size, folder, tiny):
    expected = hs.score(tiny, folder, preprocess="raw")
    assert_same_rows(hs.score(tiny, folder, preprocess="raw", workers=workers, batch_size=batch_size), expected)


def test_order_does_not_change_a_row(tiny):
    data = Own(targets=[0, 1, 2, 0, 1, 2])
    shuffled = Subset(data, [5, 2, 0, 4, 1, 3])
    assert_same_rows(hs.score(tiny, shuffled, preprocess="raw"), hs.score(tiny, data, preprocess="raw"))


def test_mappings_with_columns_of_ones_own():
    class Rows(Own):
        def __getitem__(self, i):
            return {"photo": picture(i), "species": i % 3, "key": f"k{i}"}

    samples = open_data(Rows(), columns=hs.Columns(image="photo", label="species", id="key"))
    assert ids(samples)[:2] == ["k0", "k1"]
    assert samples.load(4, 3)[1] == 1
    with pytest.raises(ValueError, match=r"image.*photo, species"):
        open_data(Rows())
    with pytest.raises(ValueError, match=r"'picture'.*photo, species"):
        open_data(Rows(), columns=hs.Columns(image="picture"))


def test_network_inputs_as_a_mapping(tiny):
    class Encoded(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return {"x": torch.full((3, 8, 8), i / 3)}, i

    assert hs.score(tiny, Encoded())["label"].tolist() == [0, 1, 2]


class Stream(IterableDataset):
    """A length alone does not make a data set that can be indexed."""

    def __len__(self):
        return 5

    def __iter__(self):
        return ((torch.full((3, 8, 8), i / 5), i % 3) for i in range(5))


@pytest.mark.parametrize("kind", ["torch", "Hugging Face", "generator"])
def test_what_is_read_in_order_is_refused_with_the_alternatives(kind, hf, tiny):
    data = {"torch": Stream(), "Hugging Face": hf.to_iterable_dataset(), "generator": iter(Stream())}[kind]
    with pytest.raises(TypeError, match=rf"data .*{type(data).__name__}") as error:
        hs.score(tiny, data)
    assert all(word in str(error.value) for word in ("streaming", "list(data)", "hs.capture", "hs.score_features"))
    assert len(hs.score(tiny, list(data), preprocess="raw")) == (6 if kind == "Hugging Face" else 5)


def test_a_broken_sample_is_a_bad_row(tiny):
    class Broken(Own):
        def __getitem__(self, i):
            if i in (0, 4):
                raise KeyError(f"no sample {i}")
            return picture(i), i % 3

    table = hs.score(tiny, Broken(), preprocess="raw")
    assert table["id"].tolist() == ["data:1", "data:2", "data:3", "data:5"]
    assert table.bad["id"].to_pylist() == ["data:0", "data:4"]
    assert "no sample 4" in table.bad["error"][1].as_py()


def test_some_labels_only(tiny):
    class Some(Own):
        def __getitem__(self, i):
            return (picture(i), i % 3) if i else (picture(i),)

    with pytest.raises(ValueError, match=r"labels.*two data"):
        hs.score(tiny, Some(), preprocess="raw")


def test_empty_data(tiny):
    with pytest.raises(ValueError, match="DATA is empty"):
        hs.score(tiny, Own(0), preprocess="raw")


def test_collate_of_nothing_good():
    assert collate([("a", None, None, "broken")]) == ([], None, [], [("a", "broken")])


# ---------------------------------------------------------------------------------------------------------------------
# Hugging Face.


def hf_columns(n=6):
    return {
        "image": [picture(i) for i in range(n)],
        "label": [i % 3 for i in range(n)],
        "key": [f"k{i}" for i in range(n)],
    }


@pytest.fixture
def hf():
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog", "owl"]),
            "key": datasets.Value("string"),
        }
    )
    return datasets.Dataset.from_dict(hf_columns(), features=features, split="test")


def test_hugging_face(hf):
    samples = open_data(hf)
    assert ids(samples) == [f"test:{i}" for i in range(6)]
    assert samples.classes == ["cat", "dog", "owl"]
    assert samples.labels.tolist() == [0, 1, 2, 0, 1, 2]
    x, label = samples.load(4, 3)
    assert np.array_equal(np.asarray(x), np.asarray(picture(4)))
    assert label == 1
    assert samples.pixels


def test_hugging_face_ids_survive_shuffling_and_selection(hf):
    assert ids(open_data(hf.select([4, 1]))) == ["test:4", "test:1"]
    shuffled = open_data(hf.shuffle(seed=1))
    for i, name in enumerate(ids(shuffled)):
        assert np.array_equal(np.asarray(shuffled.load(i, 3)[0]), np.asarray(picture(int(name.split(":")[1]))))


def test_hugging_face_id_column(hf, tiny):
    columns = hs.Columns(id="key")
    assert ids(open_data(hf, columns=columns)) == [f"k{i}" for i in range(6)]
    assert ids(open_data(hf.shuffle(seed=1), columns=columns)) == hf.shuffle(seed=1)["key"][:]
    with pytest.raises(ValueError, match=r"--id-column: .*'name'.*key"):
        hs.score(tiny, hf, columns=hs.Columns(id="name"), preprocess="raw")


def test_hugging_face_columns_of_ones_own(hf):
    renamed = hf.rename_columns({"image": "photo", "label": "species"})
    samples = open_data(renamed, columns=hs.Columns(image="photo", label="species"))
    assert samples.classes == ["cat", "dog", "owl"]
    assert samples.load(4, 3)[1] == 1
    with pytest.raises(ValueError, match=r"'kind'.*photo, species"):
        open_data(renamed, columns=hs.Columns(image="photo", label="kind"))
    with pytest.raises(ValueError, match=r"image.*photo, species"):
        open_data(renamed)


def test_hugging_face_without_labels(hf, tiny):
    assert open_data(hf.remove_columns("label")).labels is None
    assert "avh_pred" in hs.score(tiny, hf.remove_columns("label"), preprocess="raw")


def test_hugging_face_string_labels(tiny):
    columns = hf_columns() | {"label": ["dog", "owl", "cat", "dog", "dog", "cat"]}
    data = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    samples = open_data(data)
    assert samples.classes == ["cat", "dog", "owl"]
    assert samples.labels.tolist() == [1, 2, 0, 1, 1, 0]
    assert samples.load(1, 3)[1] == 2
    # By name they find their place among a model's own classes.
    table = hs.score(hs.Model(tiny, "tiny", classes=["owl", "dog", "cat"]), data)
    assert table["label"].tolist() == [1, 0, 2, 1, 1, 2]


@pytest.mark.parametrize("names", [None, ["owl", "dog", "cat"]])
def test_labels_that_are_names_in_the_items_alone(names, tiny):
    # The data set does not list its classes; the model's names do, and without them it is a sentence.
    data = [(picture(i), label) for i, label in enumerate(["dog", "owl", "cat", "dog", "dog", "cat"])]
    model = hs.Model(tiny, "tiny", classes=names)
    if names is None:
        with pytest.raises(ValueError, match=r"label.*'dog'"):
            hs.score(model, data)
    else:
        assert hs.score(model, data)["label"].tolist() == [1, 0, 2, 1, 1, 2]


def test_hugging_face_missing_labels(hf, tiny):
    data = datasets.Dataset.from_dict(hf_columns() | {"label": [0, 1, 2, None, 1, 2]})
    with pytest.raises(ValueError, match=r"label"):
        hs.score(tiny, data.cast_column("image", datasets.Image()), preprocess="raw")


def test_hugging_face_from_disk(hf, tmp_path):
    hf.save_to_disk(tmp_path / "one")
    assert ids(open_data(f"hf:{tmp_path}/one"))[:2] == ["test:0", "test:1"]
    datasets.DatasetDict({"train": hf, "test": hf.select(range(2))}).save_to_disk(tmp_path / "all")
    assert len(open_data(f"hf:{tmp_path}/all")) == 2
    assert len(open_data(f"hf:{tmp_path}/all:train")) == 6
    with pytest.raises(ValueError, match=r"DATA: .*network"):
        open_data(f"hf:{tmp_path}/all:validation")


def test_hugging_face_that_is_not_there(monkeypatch):
    def offline(*_, **__):
        raise ConnectionError("no route to host\nand a long trace")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ValueError, match=r"'nobody/nothing'.*route to"):
        open_data("hf:nobody/nothing:test")


# ---------------------------------------------------------------------------------------------------------------------
# Raw pictures need a preprocessing, or the word that there is none.


@pytest.mark.parametrize("kind", ["folder", "npz", "dataset", "hf"])
def test_raw_pictures_without_preprocessing_are_an_explicit_choice(kind, folder, arrays, npz, hf, tiny):
    data = {"folder": folder, "npz": npz(**arrays), "dataset": Own(), "hf": hf}[kind]
    with pytest.raises(ValueError, match=r"preprocess must.*preprocess='raw'"):
        hs.score(tiny, data)
    assert tiny.forwards == 0
    table = hs.score(tiny, data, preprocess="raw")
    assert table.meta.preprocessing == "none: pixels in [0, 1]"


def test_transforms_get_what_they_take(hf, tiny):
    # One takes Pillow pictures, the other tensors; nobody says which.
    as_pictures = hs.score(tiny, hf, preprocess=torchvision.transforms.Compose([ToTensor(), _Halved()]))
    as_tensors = hs.score(tiny, hf, preprocess=_Halved())
    assert len(as_pictures) == len(as_tensors) == 6
    assert_same_rows(as_pictures, as_tensors)


class _Halved(nn.Module):
    def forward(self, x):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"expected a tensor, got {type(x).__name__}")
        return x / 2


# ---------------------------------------------------------------------------------------------------------------------
# Features on disk.


@pytest.fixture
def features():
    return np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def parquet(path, table):
    pq.write_table(pa.table(table), path)
    return path


def test_parquet(features, tmp_path):
    path = parquet(tmp_path / "f.parquet", {"id": list("abcde"), "label": [0, 1, 2, 1, 0], "features": list(features)})
    found = read_features(path)
    assert np.array_equal(found.features, features)
    assert found.labels.tolist() == [0, 1, 2, 1, 0]
    assert found.ids == list("abcde")
    assert found.head == {}


def test_parquet_with_little(features, tmp_path):
    # One list column of any name, no labels, no ids.
    found = read_features(parquet(tmp_path / "emb.parquet", {"embedding": list(features), "note": list("vwxyz")}))
    assert np.array_equal(found.features, features)
    assert found.labels is None
    assert found.ids == [f"emb:{i}" for i in range(5)]


def test_parquet_with_columns_of_ones_own(features, tmp_path):
    path = parquet(
        tmp_path / "f.parquet", {"features": list(features), "species": [0, 1, 2, 1, 0], "key": list("abcde")}
    )
    found = read_features(path, hs.Columns(label="species", id="key"))
    assert found.labels.tolist() == [0, 1, 2, 1, 0]
    assert found.ids == list("abcde")
    with pytest.raises(ValueError, match=r"f\.parquet .*'kind'.*species"):
        read_features(path, hs.Columns(label="kind"))


@pytest.mark.parametrize("writer", ["pandas", "polars", "polars array", "fixed size", "large list", "two row groups"])
def test_parquet_of_every_writer(writer, features, tmp_path):
    path, label = tmp_path / "f.parquet", [0, 1, 2, 1, 0]
    if writer == "pandas":
        pd.DataFrame({"features": list(features), "label": label}).to_parquet(path)
    elif writer == "polars":
        pl.DataFrame({"features": features.tolist(), "label": label}).write_parquet(path)
    elif writer == "polars array":
        pl.DataFrame({"features": features, "label": label}).write_parquet(path)
    else:
        flat = pa.array(features.ravel())
        column = {
            "fixed size": lambda: pa.FixedSizeListArray.from_arrays(flat, 4),
            "large list": lambda: pa.array(list(features), pa.large_list(pa.float32())),
            "two row groups": lambda: pa.array(list(features)),
        }[writer]()
        pq.write_table(pa.table({"features": column, "label": label}), path, row_group_size=3)
    found = read_features(path)
    np.testing.assert_allclose(found.features.numpy(), features)
    assert found.labels.tolist() == label


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": [1, 2]}, "named features.* a"),
        ({"a": [[1.0], [2.0]], "b": [[1.0], [2.0]]}, "named features.*a, b"),
        ({"features": [[1.0], [1.0, 2.0]]}, "lists .*one length"),
        ({"features": [[1.0, 2.0], None]}, "lists .*one length"),
        ({"features": [["a"], ["b"]]}, "lists .*one length"),
        ({"features": [[1.0], [2.0]], "label": ["a", "b"]}, r"labels.*f\.parquet.*integers"),
        ({"features": [[1.0], [2.0]], "label": [0, None]}, r"labels.*integers without"),
        ({"features": pa.array([], pa.list_(pa.float32()))}, "empty|no rows"),
    ],
    ids=["no list", "two lists", "ragged", "gap", "text", "text labels", "missing label", "empty"],
)
def test_parquet_that_does_not_fit(table, message, tmp_path):
    with pytest.raises(ValueError, match=rf"DATA: .*({message})"):
        read_features(parquet(tmp_path / "f.parquet", table))


def test_features_that_are_no_file(tmp_path):
    for name in ("f.parquet", "f.safetensors"):
        with pytest.raises(FileNotFoundError, match=f"DATA: .*{name}"):
            read_features(tmp_path / name)
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(ValueError, match=rf"DATA: {name} is"):
            read_features(tmp_path / name)


def test_safetensors(features, tmp_path):
    tensors = {"features": torch.from_numpy(features), "labels": torch.tensor([0, 1, 2, 1, 0])}
    save_file(tensors | {"weight": torch.ones(3, 4), "bias": torch.zeros(3)}, tmp_path / "f.safetensors")
    found = read_features(tmp_path / "f.safetensors")
    assert np.array_equal(found.features, features)
    assert found.labels.tolist() == [0, 1, 2, 1, 0]
    assert found.ids == [f"f:{i}" for i in range(5)]
    assert {name: tuple(t.shape) for name, t in found.head.items()} == {"weight": (3, 4), "bias": (3,)}
    weight, bias = read_head(tmp_path / "f.safetensors")  # the same file may be given as the head
    assert (weight.shape, bias.shape) == ((3, 4), (3,))


def test_safetensors_columns(features, tmp_path):
    save_file({"features": torch.from_numpy(features), "fine": torch.arange(5)}, tmp_path / "f.safetensors")
    with pytest.raises(InputError, match="--label-column"):  # whole numbers of another name may be the labels
        read_features(tmp_path / "f.safetensors")
    assert read_features(tmp_path / "f.safetensors", hs.Columns(label="fine")).labels.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"f\.safetensors .*'coarse'.*fine"):
        read_features(tmp_path / "f.safetensors", hs.Columns(label="coarse"))
    with pytest.raises(ValueError, match=r"f\.safetensors .*'key'"):  # not ignored in silence
        read_features(tmp_path / "f.safetensors", hs.Columns(id="key"))
    save_file({"x": torch.zeros(2)}, tmp_path / "g.safetensors")
    with pytest.raises(ValueError, match=r"g\.safetensors .*features.* x\b"):
        read_features(tmp_path / "g.safetensors")


# ---------------------------------------------------------------------------------------------------------------------
# Class order.

MODEL = ["cat", "dog", "owl"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (["cat", "dog", "owl"], None),
        (["owl", "cat", "dog"], [2, 0, 1]),
        (["dog", "owl"], [1, 2]),  # some of the model's classes
        (["Cat", "DOG", " owl "], None),  # spelling is not order
        (None, None),
        (["n01", "n02", "n03"], None),  # other words for as many classes: nothing can be said
    ],
)
def test_class_mapping(data, expected):
    mapping = class_mapping(MODEL, data, 3)
    assert expected == (None if mapping is None else mapping.tolist())


def test_class_mapping_ignores_underscores_and_case():
    assert class_mapping(["great white shark", "tench"], ["Tench", "great_white-shark"], 2).tolist() == [1, 0]


def test_class_mapping_of_a_prefix():
    # The first two of three: labels stay as they are.
    mapping = class_mapping(MODEL, ["cat", "dog"], 3)
    assert mapping is None or mapping.tolist() == [0, 1]


def test_class_mapping_unknown_names():
    with pytest.raises(ValueError, match=r"2 of 4 .*ant, bee\."):
        class_mapping(MODEL, ["ant", "bee", "cat", "dog"], 3)


@pytest.mark.parametrize("names", [None, ["x", "y", "z"]])
def test_class_mapping_count(names):
    with pytest.raises(ValueError, match=r"2 classes \(cat, .*3 outputs"):
        class_mapping(names, ["cat", "dog"], 3)


def test_class_mapping_of_imagenet():
    # Its Cardigan (264) is a dog and its cardigan (474) a jacket: exact names come before loose ones.
    names = torchvision.models.ResNet50_Weights.DEFAULT.meta["categories"]
    assert class_mapping(names, names, 1000) is None
    assert class_mapping(names, names[::-1], 1000).tolist() == list(range(999, -1, -1))


def test_class_mapping_of_names_that_repeat():
    names = ["crane", "dog", "crane"]
    assert class_mapping(names, names, 3) is None
    with pytest.raises(ValueError, match="crane"):  # in another order the two cannot be told apart
        class_mapping(names, ["dog", "crane", "crane"], 3)


def test_class_names_must_be_as_many_as_outputs(tiny):
    data = Own(targets=[0, 1, 0, 1, 0, 1], classes=["cat", "dog"])
    with pytest.raises(ValueError, match=r"2 class names.*3 outputs"):
        hs.score(hs.Model(tiny, "tiny", classes=["cat", "dog"]), data)


# ---------------------------------------------------------------------------------------------------------------------
# Labels that do not fit are refused before the first batch.


def _labelled(kind, labels, tmp_path):
    images = np.zeros((len(labels), 8, 8, 3), np.uint8)
    if kind == "npz":
        np.savez(tmp_path / "set.npz", test_images=images, test_labels=np.array(labels))
        return str(tmp_path / "set.npz")
    if kind == "targets":
        return Own(len(labels), targets=labels)
    if kind == "hf":
        data = {"image": [Image.fromarray(x) for x in images], "label": labels}
        return datasets.Dataset.from_dict(data).cast_column("image", datasets.Image())
    return TensorDataset(torch.zeros(len(labels), 3, 8, 8), torch.tensor(labels))


@pytest.mark.parametrize("kind", ["npz", "targets", "hf", "tensors"])
@pytest.mark.parametrize(("labels", "came"), [([0, 1, 2, 3], "3"), ([0, 1, -1], "-1"), ([1, 2, 3], "3")])
def test_labels_out_of_range(kind, labels, came, tmp_path, tiny):
    data = _labelled(kind, labels, tmp_path)
    with pytest.raises(ValueError, match=rf"labels .*\[0, 2\].* 3 .*got .*{came}"):
        hs.score(tiny, data, preprocess="raw", out=tmp_path / "run")
    assert tiny.forwards == 0
    assert not (tmp_path / "run").exists()


def test_labels_out_of_range_where_only_the_batch_tells(tiny):
    with pytest.raises(ValueError, match=r"labels .*\[0, 1\] .*got 2"):
        hs.score(Tiny(outputs=2), Own(), preprocess="raw")


def test_labels_out_of_the_data_s_own_names(tiny):
    data = Own(targets=[0, 1, 2, 0, 1, 2], classes=["cat", "dog"])  # two names, three labels
    with pytest.raises(ValueError, match=r"labels .*\[0, 1\] .*data .*2"):
        hs.score(hs.Model(tiny, "tiny", classes=MODEL), data)


def test_class_count_that_does_not_fit(folder):
    model = Tiny(outputs=5)
    with pytest.raises(ValueError, match=r"DATA .*3 .*cat.*5 outputs"):
        hs.score(model, folder, preprocess="raw")
    assert model.forwards == 0


def test_labels_that_are_no_classes(tiny):
    class Soft(Own):
        def __getitem__(self, i):
            return picture(i), [0.5, 0.5, 0.0]

    with pytest.raises(ValueError, match="label"):
        hs.score(tiny, Soft(), preprocess="raw")


def test_floats_are_no_labels(tiny):
    # A regression target must not be cut to an integer in silence.
    data = TensorDataset(torch.zeros(3, 3, 8, 8), torch.tensor([0.2, 1.7, 1.9]))
    with pytest.raises(ValueError, match=r"labels? .*integer"):
        hs.score(tiny, data)


def test_pictures_in_bytes_are_bad_rows_not_crashes(tiny):
    # `datasets.Image(decode=False)` yields encoded bytes in a mapping.
    buffer = io.BytesIO()
    picture(0).save(buffer, "png")

    class Encoded(Own):
        def __getitem__(self, i):
            return buffer.getvalue(), i % 3

    with pytest.raises(ValueError, match=r"DATA: .*first: data:0: "):
        hs.score(tiny, Encoded(), preprocess="raw")


def test_names_of_data_mean_the_same_everywhere(tmp_path, monkeypatch):
    """A folder of the working directory that is called like a kind of data does not confuse it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf").mkdir()
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "sets").mkdir()
    assert absolute_name("hf:someone/set:test") == "hf:someone/set:test"
    assert absolute_name("hf:sets:test") == f"hf:{tmp_path}/sets:test"
    assert absolute_name("torchvision:FakeData:test") == "torchvision:FakeData:test"
    assert absolute_name("hf") == f"{tmp_path}/hf"
    assert absolute_name("digits") == "digits"
