"""What users and strangers hand over: special files, links in circles, headers that lie, values of the wrong kind."""

import os
import zipfile

import numpy as np
import pyarrow as pa
import pytest
import torch
import torchvision
from command_line import run as command
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import Dataset, TensorDataset
from torchvision.datasets import ImageFolder

import hardsight as hs
from hardsight.checkpoints import load_weights, read_checkpoint, read_head
from hardsight.data import Prepared, open_data
from hardsight.errors import HardsightError, InputError, InputTypeError
from hardsight.images import to_image, to_tensor
from hardsight.models import Model


def images(root, *names):
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 20 * number, np.uint8)).save(root / name)
    return root


def flat(classes=2, size=192):
    return nn.Sequential(nn.Flatten(), nn.Linear(size, classes))


# Folders.


def test_a_folder_lists_what_torchvision_lists(tmp_path):
    root = images(tmp_path / "d", "b/2.png", "b/10.PNG", "a/x/1.jpg", "a/x-y/3.jpg", "a/0.bmp", "c/y/z/9.webp")
    (root / "empty").mkdir()
    (root / "a" / "notes.txt").write_text("no image")
    (root / "linked").symlink_to(images(tmp_path / "outside", "l.png"))
    samples, theirs = open_data(root), ImageFolder(str(root), allow_empty=True)
    assert samples.classes == theirs.classes
    assert [(str(samples.path(i)), int(samples.labels[i])) for i in range(len(samples))] == theirs.samples


def test_links_in_circles_list_every_image_once(tmp_path):
    root = images(tmp_path / "d", *(f"{c}/{i}.png" for c in ("cat", "dog") for i in range(6)))
    (root / "cat" / "again").symlink_to(root, target_is_directory=True)
    (root / "dog" / "up").symlink_to(tmp_path, target_is_directory=True)
    (root / "all").symlink_to(root, target_is_directory=True)
    (root / "self").symlink_to(root / "self")
    with pytest.warns(UserWarning, match="links"):
        samples = open_data(root)
    assert samples.classes == ["cat", "dog"]  # a link that leads back is no class, and moves no number
    assert sorted(samples.ids) == sorted(f"d/{c}/{i}.png" for c in ("cat", "dog") for i in range(6))


def test_a_folder_that_two_links_reach_is_read_once(tmp_path):
    images(tmp_path / "outside", "1.png", "2.png")
    root = images(tmp_path / "d", "cat/0.png")
    for name in ("dog", "wolf"):
        (root / name).symlink_to(tmp_path / "outside", target_is_directory=True)
    with pytest.warns(UserWarning, match="wolf"):
        samples = open_data(root)
    assert samples.classes == ["cat", "dog"]
    assert samples.labels.tolist() == [0, 1, 1]


def test_pipes_and_devices_among_images_are_bad_rows(tmp_path):
    root = images(tmp_path / "d", "a/1.png", "b/2.png")
    os.mkfifo(root / "a" / "pipe.png")
    (root / "b" / "zero.png").symlink_to("/dev/zero")
    (root / "b" / "gone.png").symlink_to("nowhere")
    table = hs.score(flat(), root, preprocess="raw", device="cpu", progress=False)
    assert table["id"].tolist() == ["d/a/1.png", "d/b/2.png"]
    assert sorted(table.bad["id"].to_pylist()) == ["d/a/pipe.png", "d/b/gone.png", "d/b/zero.png"]
    page = hs.write_report(table, tmp_path / "page.html", data=root)
    assert page.stat().st_size > 1000


@pytest.mark.parametrize("name", ["d.npz", "w.pt", "people.csv", "people.npy"])
def test_pipes_are_never_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    openers = {"d.npz": open_data, "w.pt": read_checkpoint}
    with pytest.raises(HardsightError, match=name.partition(".")[0]):
        openers.get(name, hs.read_human)(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("list.txt", "a.png 0\nsecret words\n", "line 2"),
        ("list.txt", "a.png 0\n/home/secret.png 1\n", "line 2"),
        ("list.txt", "a.png 99999999999999999999999\n", r"list\.txt"),
        ("people.csv", "id,hsf\na,0.5\nsecret words,1,2,3\n", "people"),
    ],
)
def test_a_parser_does_not_quote_the_file(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as error:
        (open_data if name == "list.txt" else hs.read_human)(tmp_path / name)
    assert "secret" not in str(error.value)


# Which form a transform takes.


class Rows(Dataset):
    """Arrays that are decoded when they are asked for; the first cannot be."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index], index % 2


def takes(transform, values):
    samples = open_data(Rows(values))
    return {to_image: "pil", to_tensor: "tensor"}[Prepared(samples, Model(flat(), "net", transform)).form]


def test_one_bad_sample_does_not_decide_for_all():
    good = [np.full((8, 8, 3), i, np.uint8) for i in range(4)]
    odd = Image.fromarray(np.zeros((8, 8), np.float32))  # no known scale: it cannot become an image of 8 bits
    seen = []

    def fails_at_first(x):
        seen.append(x)
        if len(seen) == 1:
            raise OSError("the first image cannot be read")
        return torchvision.transforms.functional.to_tensor(x) if isinstance(x, Image.Image) else x

    assert takes(torchvision.transforms.ToTensor(), [odd, *good]) == "pil"
    assert takes(fails_at_first, good) == "pil"
    assert takes(lambda x: x.mode, good) == "pil"  # works only with images
    assert takes(torchvision.transforms.Normalize([0.5] * 3, [0.5] * 3), good) == "tensor"
    assert takes(torchvision.transforms.Normalize([0.5] * 3, [0.5] * 3), [odd, *good]) == "tensor"
    assert takes(lambda x: 1 / 0, good) == "pil"  # fails for all: their own error is what the rows say
    assert takes(lambda x: x - 0.5, [value / 255 for value in good]) == "tensor"


def test_a_bad_first_sample_is_one_bad_row(tmp_path):
    root = images(tmp_path / "d", "a/2.png", "b/3.png", "b/4.png")
    (root / "a" / "1.png").write_bytes(b"no image")
    crop = torchvision.transforms.Compose([torchvision.transforms.Resize(8), torchvision.transforms.ToTensor()])
    table = hs.score(flat(), root, preprocess=crop, device="cpu", progress=False)
    assert table.bad["id"].to_pylist() == ["d/a/1.png"]
    assert len(table) == 3


# Checkpoints and heads.


def test_checkpoints_of_old_torch_are_loaded(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    old = {name: value + 1 for name, value in net.state_dict().items() if not name.endswith("num_batches_tracked")}
    torch.save({"state_dict": {f"module.{k}": v for k, v in old.items()}, "best_prec1": 94.0}, tmp_path / "old.th")
    load_weights(net, read_checkpoint(tmp_path / "old.th"), "old.th")
    torch.testing.assert_close(net.state_dict()["1.running_var"], torch.full((4,), 2.0))
    assert net.state_dict()["1.num_batches_tracked"] == 0
    del old["1.running_mean"]  # all else must still be there
    with pytest.raises(InputError, match="running_mean"):
        load_weights(net, old, "old.th")


def test_a_hugging_face_model_has_the_classes_of_its_checkpoint(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    small = {"embedding_size": 4, "hidden_sizes": [8], "depths": [1]}
    config = transformers.ResNetConfig(**small, id2label={0: "cat", 1: "dog", 2: "owl"})
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path / "net")
    transformers.ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(tmp_path / "net")
    tuned = transformers.ResNetForImageClassification(transformers.ResNetConfig(**small, num_labels=5)).eval()
    save_file(tuned.state_dict(), tmp_path / "tuned.safetensors")
    (tmp_path / "net" / "model.safetensors").unlink()  # the weights come from the checkpoint alone
    model = hs.load_model(f"hf:{tmp_path}/net", tmp_path / "tuned.safetensors")
    assert model.classes is None  # three names do not fit five classes
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(model.module.eval()(x).logits, tuned(x).logits)


def test_checkpoints_that_are_none(tmp_path):
    plain = torch.ones(2, 3)
    cases = {
        "integers": {0: plain, 1: plain},
        "sparse": {"weight": plain.to_sparse()},
        "endless": {"weight": torch.ones(1, 64).expand(10**9, 64)},
        "nested": {"state_dict": {("a",): plain}},
        "list": [plain],
    }
    for name, content in cases.items():
        torch.save(content, tmp_path / f"{name}.pt")
        with pytest.raises(InputError, match=name):
            read_head(tmp_path / f"{name}.pt")
    torch.save({"weight": plain, 7: plain}, tmp_path / "mixed.pt")
    assert read_head(tmp_path / "mixed.pt")[0].shape == (2, 3)
    (tmp_path / "text.pt").write_text("secret words")
    with pytest.raises(InputError, match="text") as error:
        read_checkpoint(tmp_path / "text.pt")
    assert "secret" not in str(error.value)
    with pytest.raises(InputError, match="complex"):
        load_weights(nn.Linear(3, 2), {"weight": plain + 1j, "bias": torch.ones(2)}, "w.pt")
    with pytest.raises(InputError, match="weight"):
        hs.score_features(torch.ones(4, 8), torch.ones(1, 8).expand(10**9, 8), torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("damage", ["directory", "header", "zero width", "member", "cut"])
def test_archives_that_lie(tmp_path, damage):
    file = tmp_path / "d.npz"
    np.savez(file, images=np.zeros((4, 8, 8), np.uint8), labels=np.zeros(4, int), weight=np.ones((2, 3)))
    content = bytearray(file.read_bytes())
    if damage == "directory":
        content[content.index(b"PK\x01\x02") :][:4] = b"XXXX"
        place = content.index(b"PK\x01\x02")
        content[place : place + 4] = b"XXXX"
    elif damage == "member":
        content[130:180] = bytes(50)
    elif damage == "cut":
        content = content[: len(content) // 2]
    file.write_bytes(content)
    if damage in ("header", "zero width"):
        shape = "(1000000000000, 8, 8)" if damage == "header" else "(1000000000000, 8, 0)"
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        with zipfile.ZipFile(file, "w") as archive:
            for name in ("images.npy", "weight.npy"):
                archive.writestr(name, b"\x93NUMPY\x01\x00\x76\x00" + header.encode() + bytes(256))
    with pytest.raises(HardsightError, match=r"d\.npz"):
        open_data(file)
    if damage != "zero width":
        with pytest.raises(HardsightError, match=r"d\.npz"):
            read_head(file)
    else:  # what no score takes
        with pytest.raises(HardsightError, match="weight"):
            hs.score_features(torch.ones(2, 3), np.ones((10**12, 0)), None)


# Labels, ids and arguments in Python.


X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 0, 1])
W = torch.eye(4)[:2]


@pytest.mark.parametrize("ids", [["a", None, "b", "c", "d", "e"], [0.0, 1.0, 2.0, 3.0, 4.0, float("nan")]])
def test_missing_ids_are_refused(ids):
    with pytest.raises(InputError, match="id"):
        hs.score_features(X, W, Y, ids=ids)
    with pytest.raises(InputError, match="id"):
        hs.score(nn.Linear(4, 2), TensorDataset(X, Y), ids=ids, device="cpu")
    with pytest.raises(InputError, match="ids"):
        hs.SampleTable(pa.table({"id": pa.array(ids, from_pandas=True), "avh": [0.0] * 6}))
    assert hs.score_features(X, W, Y, ids=torch.arange(6))["id"].tolist() == list("012345")  # tensors are numbers


@pytest.mark.parametrize(
    "labels", [Y.bool(), Y.numpy().astype("timedelta64[s]"), Y.numpy().astype("datetime64[s]"), ["a"] * 6, 3, object()]
)
def test_labels_of_the_wrong_kind(labels):
    with pytest.raises(HardsightError, match="labels"):
        hs.score_features(X, W, labels)


@pytest.mark.parametrize("labels", [[True, False], np.array([1, 2], "timedelta64[s]"), [0, 10**12], [0, 10**9]])
def test_labels_of_arrays_of_the_wrong_kind(tmp_path, labels):
    np.savez(tmp_path / "d.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.array(labels))
    with pytest.raises(InputError, match="labels"):
        open_data(tmp_path / "d.npz")


def test_truth_values_are_no_classes():
    class Pairs(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return X[index], [True, np.bool_(True)][index]

    with pytest.raises(InputError, match="class index"):
        hs.score(nn.Linear(4, 2), Pairs(), device="cpu", progress=False)


def test_a_weight_that_is_none():
    for weight in (None, "W", [[1.0], [1.0, 2.0]], {"a": 1}, W + 1j):
        with pytest.raises(HardsightError, match="weight"):
            hs.score_features(X, weight, Y)


def test_a_list_of_arrays_is_no_data_set_and_a_list_of_samples_is_one():
    for data in ([X, Y], (X,), X):
        with pytest.raises(InputTypeError, match="TensorDataset"):
            hs.score(nn.Linear(4, 2), data)
    pairs = [(x, int(y)) for x, y in zip(X, Y, strict=True)]
    assert open_data(pairs).load(3, None)[1] == 1
    assert len(open_data([X[0], X[1]])) == 2


def test_workers_and_epochs_have_a_limit():
    for workers in (100_000, -1, 2.5, True):
        with pytest.raises(InputError, match="workers"):
            hs.score(nn.Linear(4, 2), TensorDataset(X, Y), workers=workers, device="cpu")
    with pytest.raises(InputError, match="epochs"):
        hs.Recipe(epochs=99999999999999999999)


@pytest.mark.parametrize("where", ["file", "function"])
@pytest.mark.parametrize("code", ["0", "'stop'", ""])
def test_a_file_that_ends_the_program_is_an_error(tmp_path, capsys, where, code):
    build = f"sys.exit({code})" if where == "function" else "pass"
    (tmp_path / "net.py").write_text(
        f"import sys\ndef build():\n    {build}\n" + (f"sys.exit({code})\n" if where == "file" else "")
    )
    exit_code, _, err = command(capsys, "score", f"{tmp_path}/net.py:build", "digits", "-o", tmp_path / "run")
    assert exit_code == 2
    assert "net.py" in err
