"""JPEGs decoded where the network is: the same batches but for the decoder; Pillow reads what is no plain JPEG."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms
from torchvision.transforms import v2

import hardsight as hs
from hardsight.data import load_batches, open_data
from hardsight.data.decoding import read_jpeg
from hardsight.scoring import score as scoring

TRANSFORM = v2.Compose(
    [v2.ToImage(), v2.Resize(32), v2.CenterCrop(24), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])]
)


class Tiny(nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(channels, 8, 3), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.conv(x).relu().mean((2, 3)))


def picture(seed, mode="RGB", size=(60, 40)):
    values = np.random.default_rng(seed).integers(0, 256, (5, 7, 4), dtype=np.uint8)
    return Image.fromarray(values).resize(size, Image.Resampling.BICUBIC).convert("RGB").convert(mode)


@pytest.fixture
def folder(tmp_path):
    """Plain JPEGs of several sizes and kinds, and what is none: damaged, truncated, CMYK, PNG, no image."""
    for name in ("a", "b", "c"):
        (tmp_path / "pics" / name).mkdir(parents=True)
    root = tmp_path / "pics"
    for i in range(5):
        picture(i, size=(60 + 3 * i, 40 + i)).save(root / "a" / f"{i}.jpg", quality=95, progressive=i == 2)
    picture(5, "L").save(root / "b" / "gray.jpg", quality=95)
    picture(6, "CMYK").save(root / "b" / "cmyk.jpg", quality=95)
    picture(7).save(root / "b" / "png.png")
    picture(8).save(root / "b" / "png-inside.jpg", format="PNG")
    content = (root / "a" / "0.jpg").read_bytes()
    (root / "c" / "truncated.jpg").write_bytes(content[: len(content) // 2])
    (root / "c" / "damaged.jpg").write_bytes(content[:4] + b"\xff\xff\x00\x00" * 9 + content[40:])
    (root / "c" / "text.jpg").write_text("no image")
    (root / "c" / "padded.jpg").write_bytes(content + b"\0" * 100)
    return root


OLDER = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(24), transforms.ToTensor()])


@pytest.fixture(params=[TRANSFORM, OLDER], ids=["v2", "ToTensor"])
def model(request):
    torch.manual_seed(0)
    return hs.Model(Tiny(), "tiny", request.param, "pil")


def batches(model, data, decode, workers=0, size=4):
    samples = open_data(data)
    rows = [list(range(len(samples)))[i : i + size] for i in range(0, len(samples), size)]
    loaded = [*load_batches(samples, model, rows, torch.device("cpu"), workers, decode=decode)]
    inputs = {row: x for rows, xs, _, _ in loaded for row, x in zip(rows, xs if rows else (), strict=True)}
    labels = {row: label for rows, _, labels, _ in loaded for row, label in zip(rows, labels, strict=True)}
    return inputs, labels, {samples.ids[row]: why for *_, bad in loaded for row, why in bad.items()}


@pytest.mark.parametrize(("workers", "size"), [(0, 4), (2, 13)])
def test_batches_are_the_same_but_for_the_decoder(folder, model, workers, size):
    expected, found = batches(model, folder, "cpu"), batches(model, folder, "gpu", workers, size)
    assert found[1:] == expected[1:]
    assert {"pics/c/truncated.jpg", "pics/c/text.jpg"} <= found[2].keys()
    assert found[0].keys() == expected[0].keys()
    ids = open_data(folder).ids
    for row, x in expected[0].items():
        difference = (found[0][row] - x).abs().max() * 127.5  # in levels
        assert difference < (1e-4 if "cmyk" in ids[row] or "png" in ids[row] else 6), ids[row]


def test_only_plain_jpegs_are_left_to_the_device(folder):
    plain = {path.name for path in folder.rglob("*.*") if read_jpeg(path, 3) is not None}
    assert {"0.jpg", "1.jpg", "2.jpg", "3.jpg", "4.jpg", "gray.jpg", "padded.jpg"} <= plain
    assert not plain & {"cmyk.jpg", "png.png", "png-inside.jpg", "truncated.jpg", "text.jpg"}
    assert read_jpeg(folder / "b" / "gray.jpg", None) is None
    assert read_jpeg(folder / "a" / "0.jpg", 1) is None
    assert read_jpeg(folder / "a", 3) is None
    assert read_jpeg(folder / "nowhere.jpg", 3) is None


def test_large_images_are_no_reason_for_a_warning(folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert read_jpeg(folder / "a" / "0.jpg", 3) is not None
    assert not caught


def test_gray_networks_are_fed_by_pillow(folder):
    gray = hs.Model(Tiny(1), "gray", TRANSFORM, "pil")
    expected, found = batches(gray, folder, "cpu"), batches(gray, folder, "gpu")
    assert all(torch.equal(found[0][row], x) for row, x in expected[0].items())
    assert found[1:] == expected[1:]


@pytest.mark.parametrize(
    "transform",
    [
        v2.Compose([v2.ToImage(), v2.Resize((8, 8)), v2.ToDtype(torch.float32)]),  # does not scale: 255 times as large
        lambda image: transforms.ToTensor()(image.resize((8, 8))),
        lambda image: torch.tensor(image.size).float(),
    ],
)
def test_a_preprocessing_of_images_alone_is_refused(folder, transform):
    model = hs.Model(Tiny(), "tiny", transform, "pil")
    with pytest.raises(ValueError, match="decode"):
        batches(model, folder, "gpu")


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"decode": "nvjpeg"}])
def test_wrong_use_is_one_sentence(folder, model, options):
    with pytest.raises(ValueError, match="decode"):
        hs.score(model, folder, **{"decode": "gpu", **options})


@pytest.mark.parametrize("other", ["digits", torch.utils.data.TensorDataset(torch.rand(4, 3, 8, 8))])
def test_what_is_no_file_cannot_be_decoded(model, other, monkeypatch):
    monkeypatch.setattr(scoring, "find_device", lambda name: torch.device("cuda"))
    with pytest.raises(ValueError, match="image files"):
        hs.score(model, other, decode="gpu", workers=0)


@pytest.mark.filterwarnings("ignore:class order")
def test_a_run_that_was_decoded_otherwise_is_another_run(folder, model, tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "check_decode", lambda samples, device: None)
    first = hs.score(model, folder, out=tmp_path / "run", device="cpu")
    with pytest.raises(FileExistsError, match="decode"):
        hs.score(model, folder, out=tmp_path / "run", device="cpu", decode="gpu")
    other = hs.score(model, folder, out=tmp_path / "other", device="cpu", decode="gpu")
    assert other["id"].tolist() == first["id"].tolist()
    assert other.bad.to_pylist() == first.bad.to_pylist()
    np.testing.assert_allclose(other["avh"], first["avh"], rtol=0.02)
    assert not np.array_equal(other["avh"], first["avh"])
    with pytest.raises(FileExistsError, match="decode"):
        hs.score(model, folder, out=tmp_path / "other", device="cpu")


def test_an_image_of_one_color_says_nothing_about_the_preprocessing(folder, model):
    noise = np.random.default_rng(0).integers(127, 130, (40, 60, 3)).astype(np.uint8)
    Image.fromarray(noise).save(folder / "a" / "+.jpg", quality=95)  # the first one
    assert open_data(folder).ids[0] == "pics/a/+.jpg"
    expected, decoded = batches(model, folder, "cpu"), batches(model, folder, "gpu")
    assert decoded[1:] == expected[1:]
    assert (decoded[0][0] - expected[0][0]).abs().max() * 127.5 < 6
    assert not torch.equal(decoded[0][1], expected[0][1])


def test_a_torchvision_that_cannot_decode_on_a_gpu_says_so(folder, model, monkeypatch):
    def decode_jpeg(*_, **__):
        raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support")

    monkeypatch.setattr("torchvision.io.decode_jpeg", decode_jpeg)
    with pytest.raises(ValueError, match=r"decode: .*nvJPEG"):
        batches(model, folder, "gpu")
