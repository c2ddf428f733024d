"""The AVH paper's small experiments."""

import math

import numpy as np
import pytest
import torch
from naive import naive_scores
from scipy import stats

import hardsight as hs
from hardsight import studies


@pytest.fixture(scope="module")
def embedded():
    return studies.embeddings("digits", steps=250)


def test_embeddings_are_those_of_a_network_that_learned(embedded):
    assert embedded.features.shape == (360, 2)
    assert embedded.weight.shape == (10, 2)
    assert embedded.classes == [str(k) for k in range(10)]
    assert embedded.accuracy > 0.3  # two dimensions and a second of training; chance is .1


def test_the_hardness_of_embeddings_is_the_naive_one(embedded):
    expected = naive_scores(embedded.features, embedded.weight, embedded.labels)["avh"]
    np.testing.assert_allclose(embedded.avh, expected, rtol=1e-5)


def test_iterations_record_the_samples_kept_out_after_each_one_and_repeat_exactly(tmp_path):
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first, second = (studies.iterations("digits", tmp_path / name, count=6) for name in "ab")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (first.unit, len(first), first.epochs.tolist()) == ("iteration", 360, [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(first.matrix("avh"), second.matrix("avh"))
    assert np.isfinite(first.matrix("norm")).all()
    changed = studies.iterations("digits", tmp_path / "a", count=4, seed=1)  # what was there is overwritten
    assert changed.epochs.tolist() == [1, 2, 3, 4]


def test_an_npz_is_read_by_its_two_parts(tmp_path):
    draw = np.random.default_rng(0)
    parts = {
        f"{part}_images": draw.integers(0, 255, (n, 12, 12), np.uint8) for part, n in (("train", 64), ("test", 30))
    }
    labels = {f"{part}_labels": np.arange(n) % 3 for part, n in (("train", 64), ("test", 30))}
    np.savez(tmp_path / "data.npz", **parts, **labels)
    found = studies.embeddings(tmp_path / "data.npz", steps=2)
    assert (len(found.features), len(found.weight)) == (30, 3)


def test_data_that_are_no_pictures_in_memory_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    from PIL import Image

    for name in ("a/1.png", "a/2.png", "b/1.png"):
        Image.new("L", (8, 8)).save(tmp_path / name)
    with pytest.raises(ValueError, match=r"data .*memory"):
        studies.embeddings(tmp_path, steps=1)


def test_two_gaussians_lie_on_the_sphere_and_their_doubt_is_the_share_of_the_other_class():
    found = studies.two_gaussians(n=4000, steps=1)
    np.testing.assert_allclose(np.linalg.norm(found.points, axis=1), 1)
    second = np.where(found.labels == 1, 1 - found.doubt, found.doubt)  # probability of the second class
    for low in np.arange(0, 1, 0.2):
        inside = (second >= low) & (second < low + 0.2)
        assert found.labels[inside].mean() == pytest.approx(
            second[inside].mean(), abs=4 * 0.5 / math.sqrt(inside.sum())
        )


def test_avh_finds_the_doubtful_points_of_two_gaussians_better_than_the_norm_does():
    found = studies.two_gaussians()
    by_avh, by_norm = (stats.spearmanr(values, found.doubt).statistic for values in (found.avh, found.norm))
    assert by_avh > 0.8
    assert by_avh > abs(by_norm)


def test_norm_growth_is_what_vectors_of_these_angles_give():
    found = studies.norm_growth()
    weight = torch.eye(2, dtype=torch.float64)
    for k, angle in enumerate((math.pi / 4 - 0.05, math.pi / 4 + 0.05)):
        features = torch.tensor(found.norm)[:, None] * torch.tensor(
            [math.cos(angle), math.sin(angle)], dtype=torch.float64
        )
        labels = torch.zeros(len(features), dtype=torch.int64)
        np.testing.assert_allclose(found.confidence[k], hs.confidence(features, weight, labels), atol=1e-12)
        np.testing.assert_allclose(found.avh[k], hs.avh(features[1:], weight, labels[1:]), atol=1e-12)
