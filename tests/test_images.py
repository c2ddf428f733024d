"""Any image arrives as the 8-bit RGB or gray that preprocessing takes, or says why it cannot."""

import numpy as np
import pytest
import torch
from PIL import Image, UnidentifiedImageError

from hardsight.images import channels_last, eight_bit, open_image, to_image, to_tensor


@pytest.fixture
def ramp():
    """Every gray from 0 to 255, 16 × 16."""
    return np.arange(256, dtype=np.uint8).reshape(16, 16)


@pytest.fixture
def colors():
    return np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)


def reopened(image, path, channels=3, **options):
    image.save(path, **options)
    return np.asarray(open_image(path, channels))


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tiff", ".ppm", ".webp"])
def test_rgb(colors, tmp_path, suffix):
    options = {"lossless": True} if suffix == ".webp" else {}
    assert np.array_equal(reopened(Image.fromarray(colors), tmp_path / f"x{suffix}", **options), colors)


def test_gray_alpha_and_black_and_white(colors, ramp, tmp_path):
    file = tmp_path / "x.png"
    opened = reopened(Image.fromarray(ramp), file)
    assert opened.shape == (16, 16, 3)
    assert all(np.array_equal(opened[..., c], ramp) for c in range(3))
    assert np.array_equal(reopened(Image.fromarray(ramp), file, channels=1), ramp)
    expected = colors @ np.array([0.299, 0.587, 0.114])  # ITU-R 601, Pillow's choice
    assert np.abs(reopened(Image.fromarray(colors), file, channels=1) - expected).max() <= 1
    rgba = Image.fromarray(np.concatenate([colors, np.full((6, 5, 1), 255, np.uint8)], 2))
    assert np.array_equal(reopened(rgba, file), colors)
    gray = Image.merge("LA", [Image.fromarray(ramp), Image.new("L", (16, 16), 255)])
    assert np.array_equal(reopened(gray, file)[..., 1], ramp)
    binary = Image.fromarray(np.eye(8, dtype=bool))
    assert np.array_equal(reopened(binary, file)[..., 0], 255 * np.eye(8, dtype=np.uint8))


@pytest.mark.parametrize("transparency", [None, 3, bytes([0, 128, 255, 255])])
def test_palette(transparency, tmp_path):
    # As bytes Pillow warns when such an image is made RGB directly, and warnings are errors here.
    image = Image.fromarray(np.array([[0, 1], [2, 3]], np.uint8))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 8, 7])
    options = {} if transparency is None else {"transparency": transparency}
    opened = reopened(image, tmp_path / "x.png", **options)
    assert opened.shape == (2, 2, 3)
    assert opened[0, 0].tolist() == [255, 0, 0]
    assert opened[1, 0].tolist() == [0, 0, 255]
    assert reopened(image, tmp_path / "x.png", channels=1, **options).shape == (2, 2)


@pytest.mark.parametrize("suffix", [".png", ".tiff"])
def test_sixteen_bit_gray_is_scaled_not_clipped(suffix, tmp_path):
    # Pillow's own conversion makes everything from 255 up white.
    values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    opened = reopened(Image.fromarray(values), tmp_path / f"x{suffix}")
    assert np.abs(opened[..., 0] - values / 257).max() <= 1
    assert (opened.min(), opened.max()) == (0, 255)
    assert len(np.unique(opened)) > 200
    assert reopened(Image.fromarray(values), tmp_path / f"x{suffix}", channels=1).shape == (16, 16)


@pytest.mark.parametrize(("mode", "dtype"), [("I;16", "<u2"), ("I;16B", ">u2"), ("I", "<i4")])
def test_integers_of_more_than_eight_bits(mode, dtype):
    image = Image.frombytes(mode, (3, 1), np.array([[0, 257, 65535]], dtype).tobytes())
    assert np.asarray(eight_bit(image, 1)).tolist() == [[0, 1, 255]]
    for value in (-1, 65536):
        with pytest.raises(ValueError, match=r"0–65535 .*scale"):
            eight_bit(Image.fromarray(np.array([[0, value]], np.int32)))


def test_other_modes(ramp, colors, tmp_path):
    cyan = reopened(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), tmp_path / "x.jpg", quality=100)
    assert cyan.shape == (8, 8, 3)
    assert np.abs(cyan[0, 0].astype(int) - [0, 255, 255]).max() <= 4
    assert reopened(Image.new("CMYK", (8, 8), (0, 0, 0, 255)), tmp_path / "x.tiff").max() == 0
    for mode in ("YCbCr", "HSV", "RGBX"):
        assert eight_bit(Image.new(mode, (4, 4)), 3).getbands() == ("R", "G", "B")
        assert eight_bit(Image.new(mode, (4, 4)), 1).getbands() == ("L",)
    # Gray stays gray and color stays color when nobody says.
    sixteen = Image.fromarray(ramp.astype(np.uint16) * 257)
    for gray in (Image.fromarray(ramp), Image.fromarray(ramp).convert("LA"), Image.new("1", (4, 4)), sixteen):
        assert eight_bit(gray).mode == "L"
    for mode in ("RGB", "RGBA", "P", "CMYK"):
        assert eight_bit(Image.fromarray(colors).convert(mode)).mode == "RGB"
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "x.tiff")
    with pytest.raises(ValueError, match=r"floating-point .*scale"):
        open_image(tmp_path / "x.tiff")


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("kept", [0.5, 0.95])
def test_truncated_files(suffix, kept, tmp_path):
    file = tmp_path / f"x{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises((OSError, SyntaxError), match=r"truncated|broken"):
        open_image(file)


@pytest.mark.parametrize("content", [b"", b"this is no image\n", b"\x89PNG\r\n\x1a\n"])
def test_files_that_only_look_like_images(content, tmp_path):
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(UnidentifiedImageError, match=r"identify .*x\.png'"):
        open_image(tmp_path / "x.png")


def test_large_images_do_not_warn(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert reopened(Image.new("RGB", (12, 12)), tmp_path / "large.png").shape == (12, 12, 3)
    Image.new("RGB", (100, 100)).save(tmp_path / "bomb.png")  # more than twice as many is still refused
    with pytest.raises(Image.DecompressionBombError):
        open_image(tmp_path / "bomb.png")


# ---------------------------------------------------------------------------------------------------------------------
# Arrays and tensors.


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 9), (8, 9, 1)),
        ((8, 9, 1), (8, 9, 1)),
        ((8, 9, 3), (8, 9, 3)),
        ((1, 8, 9), (8, 9, 1)),
        ((3, 8, 9), (8, 9, 3)),
        ((4, 8, 9), (8, 9, 4)),
        ((3, 8, 3), (3, 8, 3)),  # either way round: channels last, as on disk
    ],
)
def test_channels_last(shape, expected):
    assert channels_last(np.zeros(shape)).shape == expected
    with pytest.raises(ValueError, match=r"axes, .*\(2, 8, 9, 3\)"):
        channels_last(np.zeros((2, 8, 9, 3)))


def test_arrays_as_images(colors, ramp):
    for values in (colors, colors.transpose(2, 0, 1)):
        assert np.array_equal(np.asarray(to_image(values)), colors)
    for values in (ramp, ramp.astype(np.uint16) * 257):
        assert np.array_equal(np.asarray(to_image(values, 1)), ramp)
    for dtype in (np.int64, np.float32):
        with pytest.raises(ValueError, match=f"uint8 or uint16 .*{np.dtype(dtype)}"):
            to_image(ramp.astype(dtype))
    assert np.array_equal(np.asarray(to_image(colors)), colors)
    assert to_image(Image.fromarray(colors), 1).mode == "L"


def test_to_tensor(colors, ramp):
    x = to_tensor(colors)
    assert (x.shape, x.dtype) == ((3, 6, 5), torch.float32)
    torch.testing.assert_close(x, torch.from_numpy(colors / 255).permute(2, 0, 1).float())
    torch.testing.assert_close(to_tensor(Image.fromarray(colors)), x)
    assert to_tensor(ramp, 1).shape == (1, 16, 16)
    assert to_tensor(ramp, 3).shape == (3, 16, 16)
    assert to_tensor(colors, 1).shape == (1, 6, 5)
    values = np.random.default_rng(0).normal(size=(6, 5, 3))  # floats are taken as they are
    torch.testing.assert_close(to_tensor(values), torch.from_numpy(values).permute(2, 0, 1).float())
    gray = to_tensor(values[..., 0], 3)
    assert gray.shape == (3, 6, 5)
    assert torch.equal(gray[0], gray[2])
    for channels in (1, None):
        assert to_tensor(values[..., 0], channels).shape == (1, 6, 5)
