"""Any data set: what its samples, labels, class names and ids are, and what is refused before the first batch."""

import io
import zipfile

import datasets
import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

import hardsight as hs
from hardsight.data import DataName, data_of, open_data
from hardsight.runs import Meta


def image(seed, size=(8, 8)):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def save_images(root, *names):
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image(seed).save(root / name)
    return root


@pytest.fixture
def folder(tmp_path):
    return save_images(tmp_path / "val", "cat/1.png", "cat/2.jpg", "dog/sub/1.png", "owl/1.PNG")


class Tiny(nn.Module):
    """Three outputs for 8 × 8 images; it counts its forwards."""

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


def test_folder(folder, monkeypatch):
    samples = open_data(str(folder))
    assert samples.ids == ["val/cat/1.png", "val/cat/2.jpg", "val/dog/sub/1.png", "val/owl/1.PNG"]
    assert samples.classes == ["cat", "dog", "owl"]
    assert samples.labels.tolist() == [0, 0, 1, 2]
    x, label = samples.load(2, channels=3)
    assert (x.size, x.mode, label) == ((8, 8), "RGB", 1)
    assert samples.load(2, channels=1)[0].mode == "L"
    assert samples.path(2) == folder / "dog" / "sub" / "1.png"
    assert samples.find(["val/owl/1.PNG", "val/owl/2.png"]) == [3, None]
    for place, name in ((folder.parent, "val"), (folder.parent, "val/"), (folder, ".")):
        monkeypatch.chdir(place)
        assert open_data(name).ids == samples.ids


def test_folder_ids_stay_when_files_are_added(folder):
    def images():
        samples = open_data(folder)
        return {id_: samples.load(i, 3)[0].tobytes() for i, id_ in enumerate(samples.ids)}

    before, fingerprint = images(), open_data(folder).fingerprint()
    assert open_data(folder).fingerprint() == fingerprint
    save_images(folder, "ant/0.png", "cat/0.png", "cat/11.png", "dog/0.png")  # a new class too, before all others
    (folder / "cat" / "notes.txt").write_text("no image")
    assert len(images()) == 8
    assert before.items() <= images().items()
    assert open_data(folder).fingerprint() != fingerprint


def test_flat_and_empty_folders(tmp_path):
    samples = open_data(save_images(tmp_path / "new", "2.png", "1.png"))
    assert samples.ids == ["new/1.png", "new/2.png"]
    assert (samples.labels, samples.classes, samples.load(0, 3)[1]) == (None, None, None)
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    (tmp_path / "empty" / "cat" / "notes.txt").write_text("no image")
    for place in (tmp_path / "empty", tmp_path / "empty" / "cat"):
        with pytest.raises(ValueError, match=r"DATA: .*/cat/1\.png.*\.jpg"):
            open_data(place)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.npz", "nowhere:test", "nowhere.npz:test", "x.csv", 3])
def test_data_that_is_not_there_or_of_no_known_kind(name, tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n")
    error = {"x.csv": ValueError, 3: TypeError}.get(name, FileNotFoundError)
    with pytest.raises(error, match=rf"(?i)data.*{'int' if name == 3 else name.partition(':')[0]}"):
        open_data(name if name == 3 else f"{tmp_path}/{name}")


@pytest.mark.parametrize("name", ["x.parquet", "x.safetensors"])
def test_features_are_no_data_but_for_scoring(name, tmp_path):
    (tmp_path / name).write_bytes(b"features")
    with pytest.raises(ValueError, match=rf"DATA: {name} .*hardsight score"):
        open_data(tmp_path / name)


def test_names_of_data_mean_the_same_everywhere(tmp_path, monkeypatch):
    """A folder of the working directory that is called like a kind of data is not taken for it."""
    monkeypatch.chdir(tmp_path)
    for name in ("hf", "torchvision", "sets"):
        (tmp_path / name).mkdir()
    for name, expected in {
        "hf:someone/set:test": "hf:someone/set:test",
        "hf:sets:test": f"hf:{tmp_path}/sets:test",
        "torchvision:FakeData:test": "torchvision:FakeData:test",
        "hf": f"{tmp_path}/hf",
        "sklearn:digits": "digits",
    }.items():
        assert str(DataName.parse(name)) == expected
    save_images(tmp_path / "digits", "a/1.png", "b/2.png")
    with pytest.raises(ValueError, match=r"\./digits"):
        open_data("digits")
    assert (len(open_data("./digits")), len(open_data("sklearn:digits"))) == (2, 1797)


# ---------------------------------------------------------------------------------------------------------------------
# Bad images become bad rows.


def test_images_of_every_kind_in_one_folder(tmp_path, tiny):
    root = tmp_path / "mixed"
    (root / "a").mkdir(parents=True)
    (root / "b").mkdir()
    gray = np.arange(64, dtype=np.uint8).reshape(8, 8)
    rgb = np.asarray(image(0))
    good = {
        "a/gray.png": Image.fromarray(gray),
        "a/gray16.png": Image.fromarray(gray.astype(np.uint16) * 1000),
        "a/rgba.png": Image.fromarray(np.dstack([rgb, gray])),
        "b/palette.png": Image.fromarray(gray).convert("P"),
        "b/cmyk.jpg": Image.fromarray(rgb).convert("CMYK"),
    }
    for name, content in good.items():
        content.save(root / name, **({"transparency": bytes(range(64))} if "palette" in name else {}))
    (root / "b/text.png").write_text("no image")
    Image.fromarray(np.ones((8, 8), np.float32)).save(root / "b/float.tiff")
    image(0, (64, 64)).save(root / "a/cut.jpg")
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


def test_folders_that_cannot_be_scored(tmp_path, tiny):
    (tmp_path / "x.png").write_text("no image")
    with pytest.raises(ValueError, match=r"DATA: .*/x\.png: .*identify"):  # no good image at all
        hs.score(tiny, tmp_path, preprocess="raw")
    image(0).save(tmp_path / "8.png")
    gray = hs.score(Tiny(channels=1), tmp_path, preprocess="raw")
    assert (len(gray), len(gray.bad)) == (1, 1)
    image(0, (9, 9)).save(tmp_path / "9.png")
    with pytest.raises(ValueError, match=r"different sizes"):
        hs.score(tiny, tmp_path, preprocess="raw")


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


OBJECTS = np.array([{"a": 1}] * 4, object)  # np.savez pickles them


def test_npz(arrays, npz):
    path = npz(**arrays)
    for name, split, n in ((path, "test", 4), (f"{path}:test", "test", 4), (f"{path}:train", "train", 5)):
        samples = open_data(name)
        assert samples.ids == [f"{split}:{i}" for i in range(n)]
        assert samples.labels.tolist() == arrays[f"{split}_labels"].tolist()
        x, label = samples.load(1, 3)
        assert np.array_equal(x, arrays[f"{split}_images"][1])
        assert label == 1
    first = open_data(path)
    assert first.origin == "set.npz, split test (also there: train)"
    assert open_data(npz(**arrays)).fingerprint() == first.fingerprint()
    arrays["test_images"][3, 2, 1, 0] ^= 1
    assert open_data(npz(**arrays)).fingerprint() != first.fingerprint()


@pytest.mark.parametrize(
    ("keys", "split", "first"),
    [
        (("x_test", "y_test", "x_train"), "", "test:0"),  # Keras
        (("X_test", "y_test", "X_train"), "", "test:0"),
        (("holdout_images", "holdout_labels", "other"), ":holdout", "holdout:0"),
        (("images", "labels", "train_images"), "", "data:0"),
    ],
)
def test_npz_with_other_names(keys, split, first, arrays, npz):
    values = arrays["test_images"], arrays["test_labels"][:, None], arrays["train_images"]  # Keras's labels are (N, 1)
    samples = open_data(npz(**dict(zip(keys, values, strict=True)), classes=["a", "b", "c"]) + split)
    assert samples.ids[0] == first
    assert samples.labels.tolist() == [2, 1, 0, 0]
    assert samples.classes == ["a", "b", "c"]


def test_other_labels_of_an_npz_by_name(arrays, npz, tmp_path):
    n = len(arrays["test_labels"])
    path = npz(**arrays, test_coarse=np.arange(n) % 2, classes=["a", "b", "c"], coarse_classes=["even", "odd"])
    fine, coarse = open_data(path), open_data(path, columns=hs.Columns(label="coarse"))
    assert coarse.labels.tolist() == (np.arange(n) % 2).tolist() != fine.labels.tolist()
    assert (coarse.classes, coarse.label_key, coarse.ids) == (["even", "odd"], "test_coarse", fine.ids)
    assert coarse.fingerprint() != fine.fingerprint()
    meta = Meta(source=coarse.source)  # a run opens the same labels again
    assert data_of(meta).labels.tolist() == data_of(meta, path).labels.tolist() == coarse.labels.tolist()
    np.savez(tmp_path / "whole.npz", images=arrays["test_images"], labels=arrays["test_labels"], super=np.ones(n, int))
    assert set(open_data(tmp_path / "whole.npz", columns=hs.Columns(label="super")).labels) == {1}
    with pytest.raises(ValueError, match="test_fine or fine_test"):
        open_data(path, columns=hs.Columns(label="fine"))
    with pytest.raises(ValueError, match="has no columns"):
        open_data(path, columns=hs.Columns(label="coarse", id="x"))


def test_npz_without_labels(arrays, npz, tiny):
    path = npz(test_images=arrays["test_images"])
    assert open_data(path).labels is None
    table = hs.score(tiny, path, preprocess="raw")
    assert not {"label", "avh"} & set(table.columns)
    assert "avh_pred" in table
    with pytest.raises(ValueError, match=r"set\.npz .*test_labels, got a\b"):
        open_data(npz(a=np.zeros(3)))


@pytest.mark.parametrize(
    ("changes", "split", "message"),
    [
        ({"test_labels": np.zeros(3, int)}, "", r"4 images.*labels.*\(3,\)"),
        ({"test_labels": np.zeros((4, 3), int)}, "", r"4 images.*labels.*\(4, 3\)"),
        ({"test_labels": np.zeros(4)}, "", "labels.* float64"),
        ({"test_labels": np.array(list("abca"))}, "", "labels.* <U1"),
        ({"test_images": np.zeros((4, 192), np.uint8)}, "", r"images .*\(4, 192\)"),
        ({"test_images": np.zeros((4, 8, 8), bool)}, "", "images .*bool"),
        ({"test_ids": np.array(["a", "b"])}, "", "ids .*4, got 2"),
        ({"classes": np.array([["a", "b"]])}, "", r"classes .*\(1, 2\)"),
        ({}, ":val", r"val_images.*test_images.*train_labels"),
        ({"test_images": OBJECTS}, "", "test_images .*Python"),
        ({"test_labels": OBJECTS}, "", "test_labels .*Python"),
        ({"classes": OBJECTS}, "", "classes .*Python"),
    ],
)
def test_npz_that_does_not_fit(changes, split, message, arrays, npz):
    with pytest.raises(ValueError, match=rf"DATA: .*{message}"):
        open_data(npz(**arrays | changes) + split)


def test_npz_cut_short_or_damaged(arrays, tmp_path, npz):
    path = tmp_path / "set.npz"
    npz(**arrays)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("test_images.npy").header_offset
    damaged = bytearray(whole)
    damaged[start + 400] ^= 255  # one byte of an image
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    for content in (b"", whole[: len(whole) // 2], b"no archive", bytes(damaged), array.getvalue()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"set\.npz .*(truncated|damaged)"):
            open_data(str(path))


@pytest.mark.parametrize("kind", ["channels last", "channels first", "float"])
def test_arrays_of_any_layout_are_the_same_pixels(kind, arrays, npz, tiny):
    expected = hs.score(tiny, npz(**arrays), preprocess="raw")
    images = arrays["test_images"]
    if kind == "float":
        images = (images / 255).astype(np.float32)
    elif kind == "channels first":
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    path = npz(**arrays | {"test_images": images})
    assert_same_rows(hs.score(tiny, path, preprocess="raw"), expected)
    assert open_data(path).tensor().shape == (4, 3, 8, 8)


def test_digits():
    samples = open_data("digits")
    assert (len(samples), samples.ids[1796]) == (1797, "digits:1796")
    assert samples.classes == list("0123456789")
    x, label = samples.load(0, 1)
    assert (x.shape, x.dtype, x.max(), label) == ((8, 8), np.uint8, 255 * 15 // 16, 0)
    assert samples.tensor().shape == (1797, 1, 8, 8)


# ---------------------------------------------------------------------------------------------------------------------
# torchvision and torch.


def test_torchvision_by_name(tmp_path, monkeypatch):
    samples = open_data("torchvision:FakeData")
    assert (len(samples), samples.ids[7]) == (1000, "data:7")
    x, label = samples.load(7, 3)
    assert (x.size, label) == ((224, 224), torchvision.datasets.FakeData()[7][1])
    with pytest.raises(ValueError, match=r"DATA: .*'CIFAR11'.*CIFAR10\b"):
        open_data("torchvision:CIFAR11")

    def offline(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", offline)
    with pytest.raises(ValueError, match=r"MNIST.*--root"):
        open_data("torchvision:MNIST:test", root=tmp_path)


class Own(Dataset):
    """A user's data set of images."""

    def __init__(self, n=6, **more):
        self.n = n
        vars(self).update(more)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return image(i), i % 3


class Listed(Own):
    """It yields the labels that it lists, which only reading its items can tell."""

    def __getitem__(self, i):
        return image(i), self.targets[i]


LABELS = [0, 1, 2, 0, 1, 2]


def test_torch_dataset():
    samples = open_data(Own())
    assert samples.ids == [f"data:{i}" for i in range(6)]
    assert samples.load(4, 3)[1] == 1
    assert (samples.labels, samples.tensor(), samples.path(0), samples.pixels) == (None, None, None, True)
    for more, split in (({"train": True}, "train"), ({"train": False}, "test"), ({"split": "extra"}, "extra")):
        assert open_data(Own(**more)).ids[0] == f"{split}:0"
    assert open_data(Own(), split="mine").ids[0] == "mine:0"


def test_ids_of_ones_own(tiny):
    assert open_data(Own(), ids=range(10, 16)).ids == ["10", "11", "12", "13", "14", "15"]
    assert open_data(Subset(Own(), [3, 1]), ids=["a", "b"]).ids == ["a", "b"]
    with pytest.raises(ValueError, match=r"ids.* 6, got 3"):
        open_data(Own(), ids=["a", "b", "c"])
    with pytest.raises(ValueError, match="ids go with"):
        open_data("digits", ids=["a"])
    with pytest.raises(ValueError, match=r"ids .*unique.*'a'"):
        hs.score(tiny, Own(), ids=["b", "a", "a", "c", "d", "e"], preprocess="raw")


def test_subset_ids_name_the_sample_not_the_place():
    whole = Own(targets=LABELS)
    samples = open_data(Subset(whole, [4, 1, 3]))
    assert samples.ids == ["data:4", "data:1", "data:3"]
    assert samples.declared.tolist() == [1, 1, 0]
    assert samples.load(0, 3)[0].tobytes() == image(4).tobytes()
    assert open_data(Subset(Subset(whole, [4, 1, 3]), [2, 0])).ids == ["data:3", "data:4"]
    halves = random_split(whole, [3, 3], torch.Generator().manual_seed(0))
    assert sorted(open_data(halves[0]).ids + open_data(halves[1]).ids) == open_data(whole).ids
    for indices in (np.array([4, 1]), torch.tensor([4, 1]), range(4, 0, -3)):
        assert open_data(Subset(whole, indices)).ids == ["data:4", "data:1"]
    assert len(open_data(Subset(whole, []))) == 0


@pytest.mark.parametrize("form", [list, np.array, torch.tensor])
def test_targets_are_listed_labels_where_they_are_class_indices(form):
    assert open_data(Own(targets=form(LABELS))).declared.tolist() == LABELS
    assert open_data(Own(targets=form(LABELS))).labels is None  # its items may yield others
    assert open_data(Own(targets=form([1.5] * 6))).declared is None
    assert open_data(Own(targets=form([0]))).declared is None


def test_image_folder_instance(folder):
    for dataset, pixels in ((ImageFolder(folder), True), (ImageFolder(f"{folder}/", transform=ToTensor()), False)):
        samples = open_data(dataset)
        assert samples.ids == open_data(folder).ids
        assert samples.classes == ["cat", "dog", "owl"]
        assert samples.labels.tolist() == [0, 0, 1, 2]
        assert samples.pixels is pixels
    assert open_data(Subset(ImageFolder(folder), [3, 1])).ids == ["val/owl/1.PNG", "val/cat/2.jpg"]


def test_tensor_dataset(tiny):
    x, y = torch.rand(6, 3, 8, 8), torch.tensor(LABELS)
    data = TensorDataset(x, y)
    table = hs.score(tiny, data)  # tensors are inputs: no preprocessing is asked for
    assert table["id"].tolist() == [f"data:{i}" for i in range(6)]
    assert table["label"].tolist() == y.tolist()
    assert table.meta.preprocessing == "none: the data set yields tensors"
    assert "avh_pred" in hs.score(tiny, TensorDataset(x))
    assert_same_rows(hs.score(tiny, DataLoader(data, batch_size=2, shuffle=True)), table)
    assert torch.equal(open_data(Subset(data, [4, 1])).tensor(), x[[4, 1]])


@pytest.mark.parametrize(("workers", "batch_size"), [(0, 1), (1, 1), (1, 3), (2, 1), (2, 3)])
def test_rows_do_not_depend_on_workers_batches_or_order(workers, batch_size, folder, tiny):
    expected = hs.score(tiny, folder, preprocess="raw")
    assert_same_rows(hs.score(tiny, folder, preprocess="raw", workers=workers, batch_size=batch_size), expected)
    shuffled = Subset(Own(), [5, 2, 0, 4, 1, 3])
    assert_same_rows(hs.score(tiny, shuffled, preprocess="raw"), hs.score(tiny, Own(), preprocess="raw"))


def test_mappings_with_columns_of_ones_own():
    data = [{"photo": image(i), "species": i % 3, "key": f"k{i}"} for i in range(6)]
    samples = open_data(data, columns=hs.Columns(image="photo", label="species", id="key"))
    assert samples.ids[:2] == ["k0", "k1"]
    assert samples.load(4, 3)[1] == 1
    with pytest.raises(ValueError, match=r"image.*photo, species"):
        open_data(data)
    with pytest.raises(ValueError, match=r"'picture'.*photo, species"):
        open_data(data, columns=hs.Columns(image="picture"))
    for wrong in (data, [(image(0), 1)]):  # another column, and items without any
        with pytest.raises(ValueError, match=r"DATA .*'name'"):
            open_data(wrong, columns=hs.Columns(image="photo", id="name")).ids  # noqa: B018


def test_network_inputs_as_a_mapping(tiny):
    data = [({"x": torch.full((3, 8, 8), i / 3)}, i) for i in range(3)]
    assert hs.score(tiny, data)["label"].tolist() == [0, 1, 2]


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
            return image(i), i % 3

    table = hs.score(tiny, Broken(), preprocess="raw")
    assert table["id"].tolist() == ["data:1", "data:2", "data:3", "data:5"]
    assert table.bad["id"].to_pylist() == ["data:0", "data:4"]
    assert "no sample 4" in table.bad["error"][1].as_py()


def test_an_unreadable_sample_of_ones_own_data_does_not_stop_training(tmp_path):
    class Broken(Own):
        def __getitem__(self, i):
            return (torch.full((3, 8, 8), i / 9), i % 3) if i != 4 else 1 / 0

    options = {"recipe": hs.Recipe(epochs=1, batch_size=3), "device": "cpu", "progress": False}
    with pytest.warns(UserWarning, match=r"1 of 9 samples.*data:4"):
        trained = hs.train(Tiny(), Broken(9), out=tmp_path / "run", **options)
    assert trained.history[0]["unreadable"]["samples"] == 1
    with pytest.raises(ValueError, match=r"DATA: .*division"):
        hs.train(Tiny(), Items(lambda i: 1 / 0), out=tmp_path / "none", **options)
    with pytest.raises(ValueError, match="DATA is empty"):
        hs.score(Tiny(), Own(0), preprocess="raw")


# ---------------------------------------------------------------------------------------------------------------------
# Hugging Face.


CLASSES = ["cat", "dog", "owl"]
NAMES = ["dog", "owl", "cat", "dog", "dog", "cat"]


def hf_data(labels=LABELS, kind=None):
    columns = {"image": [image(i) for i in range(6)], "label": labels, "key": [f"k{i}" for i in range(6)]}
    features = {"image": datasets.Image(), "label": kind or datasets.ClassLabel(names=CLASSES)}
    features |= {"key": datasets.Value("string")}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features), split="test")


@pytest.fixture
def hf():
    return hf_data()


def test_hugging_face(hf):
    renamed = hf.rename_columns({"image": "photo", "label": "species"})
    for data, columns in ((hf, None), (renamed, hs.Columns(image="photo", label="species"))):
        samples = open_data(data, columns=columns)
        assert samples.ids == [f"test:{i}" for i in range(6)]
        assert samples.classes == CLASSES
        assert samples.labels.tolist() == LABELS
        x, label = samples.load(4, 3)
        assert np.array_equal(np.asarray(x), np.asarray(image(4)))
        assert label == 1
        assert samples.pixels
    with pytest.raises(ValueError, match=r"'kind'.*photo, species"):
        open_data(renamed, columns=hs.Columns(image="photo", label="kind"))
    with pytest.raises(ValueError, match=r"image.*photo, species"):
        open_data(renamed)


def test_hugging_face_ids_survive_shuffling_and_selection(hf, tiny):
    assert open_data(hf.select([4, 1])).ids == ["test:4", "test:1"]
    assert open_data(Subset(hf.select([4, 1]), [1])).ids == ["test:1"]
    shuffled = open_data(hf.shuffle(seed=1))
    for i, name in enumerate(shuffled.ids):
        assert np.array_equal(np.asarray(shuffled.load(i, 3)[0]), np.asarray(image(int(name.split(":")[1]))))
    columns = hs.Columns(id="key")
    assert open_data(hf, columns=columns).ids == [f"k{i}" for i in range(6)]
    assert open_data(Subset(hf, [4, 1]), columns=columns).ids == ["k4", "k1"]
    assert open_data(hf.shuffle(seed=1), columns=columns).ids == hf.shuffle(seed=1)["key"][:]
    with pytest.raises(ValueError, match=r"DATA .*'name'.*key"):
        hs.score(tiny, hf, columns=hs.Columns(id="name"), preprocess="raw")


def test_labels_that_are_names(tiny):
    data = hf_data(NAMES, datasets.Value("string"))
    samples = open_data(data)
    assert samples.classes == CLASSES
    assert samples.labels.tolist() == [1, 2, 0, 1, 1, 0]
    assert samples.load(1, 3)[1] == 2
    # By name they find their place among a model's own classes, and in items alone only there.
    model = hs.Model(tiny, "tiny", classes=["owl", "dog", "cat"])
    items = [(image(i), name) for i, name in enumerate(NAMES)]
    for named in (data, items):
        assert hs.score(model, named)["label"].tolist() == [1, 0, 2, 1, 1, 2]
    for classes in (None, ["a", "b", "c"]):
        with pytest.raises(ValueError, match=r"label.*'dog'"):
            hs.score(hs.Model(tiny, "tiny", classes=classes), items)


def test_hugging_face_without_labels(hf, tiny):
    assert open_data(hf.remove_columns("label")).labels is None
    assert "avh_pred" in hs.score(tiny, hf.remove_columns("label"), preprocess="raw")
    with pytest.raises(ValueError, match=r"1 of 6 labels"):
        hs.score(tiny, hf_data([0, 1, 2, None, 1, 2], datasets.Value("int64")), preprocess="raw")


def test_hugging_face_by_name(hf, tmp_path, monkeypatch):
    hf.save_to_disk(tmp_path / "one")
    assert open_data(f"hf:{tmp_path}/one").ids[:2] == ["test:0", "test:1"]
    datasets.DatasetDict({"train": hf, "test": hf.select(range(2))}).save_to_disk(tmp_path / "all")
    assert len(open_data(f"hf:{tmp_path}/all")) == 2
    assert len(open_data(f"hf:{tmp_path}/all:train")) == len(open_data(f"hf:{tmp_path}/all", training=True)) == 6
    with pytest.raises(ValueError, match=r"DATA: .*network"):
        open_data(f"hf:{tmp_path}/all:validation")

    def offline(*_, **__):
        raise ConnectionError("no route to host\nand a long trace")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ValueError, match=r"'nobody/nothing'.*route to"):
        open_data("hf:nobody/nothing:test")


# ---------------------------------------------------------------------------------------------------------------------
# Raw images need a preprocessing, or the word that there is none.


@pytest.mark.parametrize("kind", ["folder", "npz", "dataset", "hf"])
def test_raw_images_without_preprocessing_are_an_explicit_choice(kind, folder, arrays, npz, hf, tiny):
    data = {"folder": folder, "npz": npz(**arrays), "dataset": Own(), "hf": hf}[kind]
    with pytest.raises(ValueError, match=r"preprocess must.*preprocess='raw'"):
        hs.score(tiny, data)
    assert tiny.forwards == 0
    table = hs.score(tiny, data, preprocess="raw")
    assert table.meta.preprocessing == "none: pixels in [0, 1]"


def test_transforms_get_what_they_take(hf, tiny):
    # One takes Pillow images, the other tensors; nobody says which.
    as_images = hs.score(tiny, hf, preprocess=torchvision.transforms.Compose([ToTensor(), _Halved()]))
    as_tensors = hs.score(tiny, hf, preprocess=_Halved())
    assert len(as_images) == len(as_tensors) == 6
    assert_same_rows(as_images, as_tensors)


class _Halved(nn.Module):
    def forward(self, x):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"expected a tensor, got {type(x).__name__}")
        return x / 2


# ---------------------------------------------------------------------------------------------------------------------
# Labels that do not fit are refused before the first batch.


def _labeled(kind, labels, tmp_path):
    images = np.zeros((len(labels), 8, 8, 3), np.uint8)
    if kind == "npz":
        np.savez(tmp_path / "set.npz", test_images=images, test_labels=np.array(labels))
        return str(tmp_path / "set.npz")
    if kind == "targets":
        return Listed(len(labels), targets=labels)
    if kind == "hf":
        data = {"image": [Image.fromarray(x) for x in images], "label": labels}
        return datasets.Dataset.from_dict(data).cast_column("image", datasets.Image())
    return TensorDataset(torch.zeros(len(labels), 3, 8, 8), torch.tensor(labels))


@pytest.mark.parametrize("kind", ["npz", "targets", "hf", "tensors"])
@pytest.mark.parametrize(("labels", "came"), [([0, 1, 2, 3], "3"), ([0, 1, -1], "-1"), ([1, 2, 3], "3")])
def test_labels_out_of_range(kind, labels, came, tmp_path, tiny):
    data = _labeled(kind, labels, tmp_path)
    with pytest.raises(ValueError, match=rf"labels .*\[0, 2\].* 3 .*got .*{came}"):
        hs.score(tiny, data, preprocess="raw", out=tmp_path / "run")
    assert tiny.forwards == 0
    assert not (tmp_path / "run").exists()


def test_class_names_and_labels_that_do_not_fit(tiny, folder):
    data = Own(targets=LABELS, classes=["cat", "dog"])  # two names, three labels
    with pytest.raises(ValueError, match=r"labels .*\[0, 1\] .*data .*2"):
        hs.score(hs.Model(tiny, "tiny", classes=CLASSES), data)
    with pytest.raises(ValueError, match=r"labels .*\[0, 1\] .*got 2"):  # where only the batch tells
        hs.score(Tiny(outputs=2), Own(), preprocess="raw")
    with pytest.raises(ValueError, match=r"2 class names.*3 outputs"):
        hs.score(hs.Model(tiny, "tiny", classes=["cat", "dog"]), data)
    model = Tiny(outputs=5)
    with pytest.raises(ValueError, match=r"DATA .*3 .*cat.*5 outputs"):
        hs.score(model, folder, preprocess="raw")
    assert model.forwards == 0


class Items(Own):
    """A data set that makes its items from their indices."""

    def __init__(self, item):
        super().__init__(item=item)

    def __getitem__(self, i):
        return self.item(i)


PNG = io.BytesIO()
image(0).save(PNG, "png")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Items(lambda i: (image(i), [0.5, 0.5, 0.0])), "label"),  # probabilities
        (Items(lambda i: (image(i), i % 3) if i else (image(i),)), "labels.*two data"),
        (
            TensorDataset(torch.zeros(3, 3, 8, 8), torch.tensor([0.2, 1.7, 1.9])),
            "labels .*integer",
        ),  # not cut to integers
        (Items(lambda i: (PNG.getvalue(), i % 3)), "DATA: .*first: data:0: "),  # as `datasets.Image(decode=False)`
    ],
    ids=["probabilities", "some labels", "floats", "bytes"],
)
def test_items_that_cannot_be_scored(data, message, tiny):
    with pytest.raises(ValueError, match=message):
        hs.score(tiny, data, preprocess="raw")
