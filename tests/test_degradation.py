"""Degradation: what is random belongs to the sample, clean is clean, and levels mean what they say."""

import io
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats

from hardsight.questions import DEGRADATIONS, degrade
from hardsight.questions.degradations import chosen_levels, sample_keys, threefry, uniform

IDS = [f"test:{i}" for i in range(40)]


@pytest.fixture
def images():
    return torch.rand(40, 3, 12, 10, generator=torch.Generator().manual_seed(1))


def naive_threefry(key, counter):
    """Threefry-2x32, 20 rounds, one number at a time."""
    word = 2**32 - 1
    ks = [*key, key[0] ^ key[1] ^ 0x1BD11BDA]
    x = [(counter[0] + ks[0]) & word, (counter[1] + ks[1]) & word]
    for r in range(20):
        by = (13, 15, 26, 6, 17, 29, 16, 24)[r % 8]
        x[0] = (x[0] + x[1]) & word
        x[1] = ((x[1] << by | x[1] >> (32 - by)) & word) ^ x[0]
        if r % 4 == 3:
            s = r // 4 + 1
            x = [(x[0] + ks[s % 3]) & word, (x[1] + ks[(s + 1) % 3] + s) & word]
    return x


def test_threefry_gives_the_published_words():
    # Known answers of the authors' library, Random123: key, counter, words.
    for key, counter, words in (
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ):
        assert tuple(naive_threefry(key, counter)) == words
    keys, counters = sample_keys("noise", IDS[:5]), torch.arange(7)
    first, second = threefry(keys, counters)
    for i, key in enumerate(keys.tolist()):
        for j in counters.tolist():
            assert [int(first[i, j]), int(second[i, j])] == naive_threefry(key, (j, 0))


def test_numbers_are_uniform_within_a_sample_over_samples_and_in_pairs():
    drawn = uniform(sample_keys("noise", [f"test:{i}" for i in range(400)]), 501).numpy()
    assert drawn.shape == (400, 501)
    assert 0 <= drawn.min() < drawn.max() < 1
    for values in (drawn, drawn[:, 0], drawn[0], drawn[:, -1]):
        counts = np.histogram(values, 20, (0, 1))[0]
        assert stats.chisquare(counts).pvalue > 1e-4
    # Neighbours in a picture, the same place of neighbouring ids, and the two words of one counter.
    for a, b in ((drawn[:, :-1], drawn[:, 1:]), (drawn[:-1], drawn[1:]), (drawn[:, :250], drawn[:, 251:501])):
        pairs = np.histogram2d(a.ravel(), b.ravel(), 8, [(0, 1), (0, 1)])[0]
        assert stats.chisquare(pairs.ravel()).pvalue > 1e-4
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.01


def test_other_degradations_and_ids_draw_other_numbers():
    keys = torch.cat([sample_keys(name, IDS) for name in ("noise", "occlusion")])
    assert len({tuple(key) for key in keys.tolist()}) == 80
    assert sample_keys("noise", []).shape == (0, 2)
    assert len(sample_keys("noise", ["\udcff bad bytes", 7])) == 2


@pytest.mark.parametrize("name", DEGRADATIONS)
def test_a_picture_is_degraded_the_same_in_any_batch_and_order(name, images):
    level = DEGRADATIONS[name].levels[2]
    whole = degrade(images, name, level, IDS)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2)).tolist()
    parts = [degrade(images[part], name, level, [IDS[i] for i in part]) for part in (order[:7], order[7:])]
    torch.testing.assert_close(torch.cat(parts), whole[order], atol=1e-6, rtol=0)
    if DEGRADATIONS[name].random:
        assert torch.equal(torch.cat(parts), whole[order])


@pytest.mark.parametrize("name", DEGRADATIONS)
def test_clean_is_bit_for_bit_and_every_level_is_further_away(name, images):
    how = DEGRADATIONS[name]
    smooth = torch.nn.functional.interpolate(images[:, :, :4, :3], (24, 20), mode="bilinear")  # like a photograph
    for dtype in (torch.float32, torch.float64, torch.float16):
        made = [degrade(smooth.to(dtype), name, level, IDS) for level in how.levels]
        assert torch.equal(made[0], smooth.to(dtype))
        assert all(one.dtype == dtype and one.min() >= 0 and one.max() <= 1 for one in made)
    away = [float((degrade(smooth, name, level, IDS) - smooth).abs().mean()) for level in how.levels]
    assert away[0] == 0
    assert all(a < b for a, b in pairwise(away))
    assert how.levels[0] == how.clean
    assert how.harder == ("lower" if how.levels[1] < how.clean else "higher")
    assert how.summary.endswith(".")


def test_the_papers_levels_are_the_usual_ones_and_contrast_shrinks_towards_middle_grey(images):
    assert DEGRADATIONS["contrast"].levels == (1.0, 0.6, 0.3, 0.2, 0.1)
    assert DEGRADATIONS["noise"].levels == (0.0, 0.1, 0.2, 0.3, 0.4)
    expected = 0.3 * images.double().numpy() + 0.35
    np.testing.assert_allclose(degrade(images, "contrast", 0.3), expected, atol=1e-7)


def test_noise_is_uniform_of_its_width_and_clipped_and_only_wider_at_the_next_level():
    grey = torch.full((40, 3, 12, 10), 0.5)
    narrow, wide = (degrade(grey, "noise", level, IDS) - grey for level in (0.1, 0.4))
    assert stats.kstest(narrow.flatten().numpy(), stats.uniform(-0.1, 0.2).cdf).pvalue > 1e-4
    torch.testing.assert_close(wide, 4 * narrow, atol=1e-6, rtol=0)
    dark = degrade(torch.zeros(40, 3, 12, 10), "noise", 0.4, IDS)
    assert float((dark == 0).float().mean()) == pytest.approx(0.5, abs=0.02)


def test_grey_takes_colour_away_first_as_scikit_image_does(images):
    expected = images.double().numpy().transpose(0, 2, 3, 1) @ np.array([0.2125, 0.7154, 0.0721])
    for name, level in (("contrast", 1.0), ("noise", 0.0), ("noise", 0.2)):
        made = degrade(images, name, level, IDS, gray=True)
        assert made.shape == images.shape
        assert torch.equal(made[:, 0], made[:, 1])  # noise is grey too
        if level == DEGRADATIONS[name].clean:
            np.testing.assert_allclose(made[:, 2], expected, atol=1e-6)
    one = images[:, :1]
    assert torch.equal(degrade(one, "contrast", 1.0, gray=True), one)
    made = degrade(images, "contrast", 1.0, gray=True)
    made[:, 0] = 0  # no two channels share their memory
    assert made[:, 1].max() > 0


def test_blur_is_scipys_and_scales_with_the_picture(images):
    made = degrade(images[:4], "blur", 0.08)
    sigma = 0.08 * 10
    expected = ndimage.gaussian_filter(images[:4].numpy(), (0, 0, sigma, sigma), mode="mirror", radius=(0, 0, 3, 3))
    np.testing.assert_allclose(made, expected, atol=2e-6)
    assert float(degrade(images, "blur", 0.5).std()) < 0.1  # wider than the picture


def test_resolution_keeps_the_size_and_loses_the_detail_and_the_same_share_of_each_side():
    board = (torch.arange(16)[:, None] + torch.arange(16)) % 2 * torch.ones(1, 1, 1, 1)
    made = degrade(board, "resolution", 0.25)
    assert made.shape == board.shape
    assert float((made[..., 4:-4, 4:-4] - 0.5).abs().max()) < 0.05
    flat = torch.full((1, 3, 9, 7), 0.3)
    torch.testing.assert_close(degrade(flat, "resolution", 0.0), flat)
    wide = torch.rand(1, 1, 8, 32, generator=torch.Generator().manual_seed(0))
    fewer = torch.nn.functional.interpolate(wide, (4, 16), mode="bilinear", antialias=True)
    expected = torch.nn.functional.interpolate(fewer, (8, 32), mode="bilinear", antialias=True)
    torch.testing.assert_close(degrade(wide, "resolution", 0.5), expected, atol=1e-5, rtol=0)


def test_jpeg_is_what_a_file_would_hold():
    x = torch.nn.functional.interpolate(torch.rand(1, 1, 8, 8), (64, 64), mode="bicubic").clamp(0, 1)
    file = io.BytesIO()
    Image.fromarray((x[0, 0] * 255).round().byte().numpy()).save(file, "jpeg", quality=10)
    expected = np.asarray(Image.open(file)) / 255
    np.testing.assert_allclose(degrade(x, "jpeg", 10)[0, 0], expected, atol=1e-6)


def test_occlusion_hides_its_share_at_a_place_of_the_samples_own():
    white = torch.ones(400, 3, 30, 40)
    ids = [f"test:{i}" for i in range(400)]
    small, large = (degrade(white, "occlusion", level, ids) == 0.5 for level in (0.1, 0.4))
    assert float(large.float().mean()) == pytest.approx(0.4, abs=0.02)
    assert bool((large | ~small).all())  # what is hidden stays hidden
    hidden = small[:, 0]
    assert torch.equal(hidden, hidden.any(2)[:, :, None] & hidden.any(1)[:, None, :])  # a rectangle
    tops = hidden.any(2).float().argmax(1).numpy()
    assert set(tops) == set(range(30 - 9 + 1))  # everywhere it fits
    assert stats.chisquare(np.bincount(tops)).pvalue > 1e-4
    assert bool((degrade(white[:2], "occlusion", 1.0, ids[:2]) == 0.5).all())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "nois"}, r"'nois'; .*noise\?"),
        ({"name": "fog"}, r"'fog'; .*contrast, noise"),
        ({"level": 1.5}, r"noise .*\[0, 1\], got 1\.5"),
        ({"level": float("nan")}, r"noise .*\[0, 1\], got nan"),
        ({"level": "much"}, r"noise .*\[0, 1\], got 'much'"),
        ({"name": "jpeg", "level": 7.5}, r"jpeg .*got 7\.5"),
        ({"ids": None}, r"ids .*noise"),
        ({"ids": ["a"]}, r"expected 2, got 1"),
        ({"images": torch.zeros(2, 3, 4, 4, dtype=torch.uint8)}, r"torch\.uint8 \(2, 3, 4, 4\)"),
        ({"images": torch.zeros(3, 4, 4)}, r"torch\.float32 \(3, 4, 4\)"),
        ({"images": np.zeros((2, 3, 4, 4))}, r"got ndarray"),
        ({"images": torch.zeros(2, 4, 4, 4)}, r"1 or 3 channels.*\(2, 4, 4, 4\)"),
        ({"images": torch.zeros(2, 3, 0, 4)}, r"got .*\(2, 3, 0, 4\)"),
        ({"images": torch.full((2, 3, 4, 4), 1.1)}, r"\[0, 1\], got 1\.1 to 1\.1"),
        ({"images": torch.full((2, 3, 4, 4), float("nan"))}, r"nan to nan"),
    ],
)
def test_bad_input_is_a_sentence(change, words):
    given = {"images": torch.zeros(2, 3, 4, 4), "name": "noise", "level": 0.1, "ids": ["a", "b"]} | change
    with pytest.raises(ValueError, match=words):
        degrade(**given)


@pytest.mark.parametrize(
    ("names", "levels", "words"),
    [
        ([], None, "one degradation"),
        (["noise", "contrast"], [0.1], "levels .*noise, contrast"),
        (["noise"], {"blur": [0.1]}, "levels .*'blur'.* noise"),
        (["noise"], [], "levels of noise"),
        (["noise"], [0.1, 2], r"noise .*\[0, 1\], got 2"),
    ],
)
def test_levels_that_cannot_be_are_a_sentence(names, levels, words):
    with pytest.raises(ValueError, match=words):
        chosen_levels(names, levels)
