"""Studies with small networks: what each cell trains on, and what is measured of it."""

import numpy as np
import pytest
import torch
from scipy import stats

from hardsight.studies import STUDIES, study
from hardsight.studies.declared import adversarial_training, degraded_training, losses
from hardsight.studies.declared.ranking import mean_hardness
from hardsight.studies.declared.small_networks import fit, plain_cnn
from hardsight.table import SampleTable

LEVELS = {"noise": (0, 0.1, 0.2, 0.3, 0.4), "contrast": (1, 0.6, 0.3, 0.2, 0.1)}


class Recorded:
    """Records of ten classes and four epochs; AVH rises by level, but for noise 0.3 in the first epoch."""

    classes = 10

    def __init__(self, path):
        ids = [f"{kind}/{kind}={level:g}/{k}" for kind, levels in LEVELS.items() for level in levels for k in range(3)]
        self.ids = list(np.random.default_rng(0).permutation(ids))

    def matrix(self, value):
        rows = []
        for id_ in self.ids:
            kind, level = id_.split("/")[1].split("=")
            place = LEVELS[kind].index(float(level))
            height = 0.1 + 0.01 * place * (1 if kind == "noise" else 2)
            avh = np.full(4, height) + 0.001 * int(id_[-1])
            if (kind, level) == ("noise", "0.3"):
                avh[0] = 0
            rows.append({"avh": avh, "norm": np.full(4, 5.0 - place), "correct": np.arange(4) >= place}[value])
        return np.array(rows, float)


def test_degraded_images_are_compared_with_the_level_before(monkeypatch, tmp_path):
    monkeypatch.setattr(degraded_training, "train_cell", lambda *args, **options: None)
    monkeypatch.setattr(degraded_training, "Dynamics", Recorded)
    rows = study("degraded-training", scale="smoke", out=tmp_path, device="cpu", progress=False).rows
    by_level = {(row["degradation"], float(row["level"])): row for row in rows}
    assert list(by_level) == [(kind, level) for kind, levels in LEVELS.items() for level in levels]
    for kind, levels in LEVELS.items():
        for place, level in enumerate(levels):
            row, step = by_level[kind, level], 0.01 if kind == "noise" else 0.02
            assert row["avh"] == pytest.approx(10 * (0.1 + step * place + 0.001))
            assert row["norm"] == pytest.approx(5 - place)
            assert row["accuracy"] == (place <= 3)
            if place:
                assert row["rise"] == pytest.approx(10 * step)
                assert row["ordered"] == (0.75 if (kind, level) == ("noise", 0.3) else 1)
            else:
                assert row.get("rise") is None


def test_only_the_first_images_are_recorded_at_every_level(monkeypatch, tmp_path):
    tested = []

    def stop(cell, data, *args, **options):
        tested.append(data[1])
        raise InterruptedError

    monkeypatch.setattr(degraded_training, "train_cell", stop)
    with pytest.raises(InterruptedError):
        study("degraded-training", scale="smoke", out=tmp_path, device="cpu", progress=False)
    (test,) = tested
    assert len(test) == 2 * 5 * 100
    images = test.tensor().reshape(10, 100, -1)
    assert (images[0] == images[5]).all()  # as they are, in both
    assert all((images[0] != part).any() for k, part in enumerate(images) if k not in (0, 5))
    labels = np.asarray(test.labels).reshape(10, 100)
    assert (labels == labels[0]).all()


def test_a_cell_of_small_networks_trains_on_the_data_of_its_level(monkeypatch, tmp_path):
    shape = {"cifar10": (30, 32, 32, 3), "svhn": (40, 32, 32, 3), "mnist": (50, 28, 28)}
    for name, size in shape.items():
        images, labels = np.zeros(size, np.uint8), np.arange(size[0]) % 10
        parts = {
            f"{part}_{kind}": of for part in ("train", "test") for kind, of in (("images", images), ("labels", labels))
        }
        np.savez(tmp_path / f"{name}.npz", **parts)
    trained = []

    def stop(cell, data, recipe, network):
        trained.append((cell.levels, len(data[0]), recipe.loss, recipe.flip, network))
        raise InterruptedError

    monkeypatch.setattr(losses, "train_cell", stop)
    for levels, _ in STUDIES["amc-small"].cells("quick", 1):
        with pytest.raises(InterruptedError):
            study(
                "amc-small", scale="quick", seeds=1, where=levels, data=tmp_path, out=tmp_path / "out", device="cpu",
                progress=False,
            )  # fmt: skip
    assert len({(levels["setting"], loss) for levels, _, loss, *_ in trained}) == len(trained) == 15
    for levels, size, loss, flip, network in trained:
        assert size == shape[levels["setting"]][0]
        assert flip == (levels["setting"] == "cifar10")  # a mirrored number is none
        assert network == "strided-cnn"
        assert ("amc" in loss) == ("amc" in levels["loss"])


def test_agreement_of_a_network_is_positive_where_people_choose_easy_images():
    draw = np.random.default_rng(0)
    human = draw.binomial(20, 0.8, 400) / 20
    avh = 0.1 - 0.01 * human + 0.002 * draw.normal(size=400)
    columns = {"id": np.arange(400).astype(str), "label": np.arange(400) % 10, "pred": np.arange(400) % 10, "avh": avh}
    human[:50] = np.nan
    (first, *bins) = mean_hardness(SampleTable.from_columns(columns), human)
    assert first["agreement"] == pytest.approx(-stats.spearmanr(avh[50:], human[50:]).statistic)
    assert first["agreement"] > 0.3
    assert bins
    assert not any("agreement" in row for row in bins)
    assert "agreement" not in mean_hardness(SampleTable.from_columns(columns))[0]


def test_steps_of_a_training_see_what_is_made_of_their_batch():
    x, y = torch.rand(64, 1, 8, 8), torch.arange(64) % 4
    calls = []

    def blank(net, images, labels):
        calls.append((images, labels))
        return torch.zeros_like(images)

    options = {"steps": 6, "batch_size": 16, "lr": 0.01, "seed": 0}
    build = lambda: plain_cnn(4, 1)  # noqa: E731
    blanked = fit(build, x, y, **options, before=blank)
    same = fit(build, torch.zeros_like(x), y, **options)
    assert all(torch.equal(a, b) for a, b in zip(blanked.parameters(), same.parameters(), strict=True))
    assert len(calls) == 6
    rows = [(x == image).flatten(1).all(1).nonzero().item() for image in calls[0][0]]
    assert torch.equal(y[rows], calls[0][1])


def test_adversarial_training_resists_attacks_and_its_course_is_measured_on_clean_images(tmp_path, monkeypatch):
    courses = []
    halfway = adversarial_training.halfway
    monkeypatch.setattr(adversarial_training, "halfway", lambda *args: courses.append(args) or halfway(*args))
    rows = study("adversarial-training", scale="smoke", seeds=1, out=tmp_path, device="cpu", progress=False).rows
    plain, adversarial = rows
    assert (plain["training"], adversarial["training"]) == ("plain", "adversarial")
    assert adversarial["attacked"] > plain["attacked"] + 0.05
    for row, (values, last) in zip(rows, courses, strict=True):
        assert len(values) == 50
        assert last.tolist() == [49, 49]
        assert values[-1].tolist() == pytest.approx([row["avh"], row["norm"]])
        assert values[-1, 0] < 1 < values[-1, 1]  # C·AVH is below 1 once a network has learned
        assert 0 < row["avh_half"] < 1


@pytest.mark.slow
def test_networks_are_ranked_after_every_epoch_and_the_last_one_is_that_of_the_scores(tmp_path):
    rows = study("net-ranking", scale="smoke", out=tmp_path, device="cpu", progress=False).rows
    by_bin = {row["bin"]: row for row in rows}
    assert [name for name in by_bin if name.startswith("epoch")] == ["epoch 1", "epoch 2", "epoch 3"]
    for measure in ("avh", "accuracy"):
        assert by_bin["epoch 3"][measure] == pytest.approx(by_bin["all samples"][measure], abs=1e-6)
    assert by_bin["epoch 1"]["avh"] > by_bin["epoch 3"]["avh"]
