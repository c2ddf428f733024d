"""Checking self-training with a few labels: the draw, the estimates against known accuracies, files and mistakes."""

import csv

import numpy as np
import pytest
import torch
from test_self_train import TARGET, adapted, fitted, net, weights  # noqa: F401 - fixtures
from torch import nn
from torch.utils.data import TensorDataset

from hardsight.adaptation import check, loop
from hardsight.adaptation.check import draw, estimate, read_check
from hardsight.adaptation.rounds import read_selection
from hardsight.checkpoints import load_weights, read_checkpoint
from hardsight.data import open_data
from hardsight.figures import plot_adaptation
from hardsight.models import Model
from hardsight.predictions import predict
from hardsight.stats import detectable_difference, mcnemar, weighted_share, wilson

SHARES = [0.4, 0.2, 0.15, 0.1, 0.08, 0.05, 0.02]


def population(n=2000, accuracy=0.8, changes=((0.1, 0.95), (0.2, 0.3)), seed=0):
    """Predictions ``(n, rounds)`` and true classes; a change: which share a round alters, how often rightly."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(7, n, p=SHARES)
    wrong = (truth + rng.integers(1, 7, n)) % 7
    first = np.where(rng.random(n) < accuracy, truth, wrong)
    rounds = [first]
    for share, right in changes:
        altered = np.where(rng.random(n) < right, truth, wrong)
        rounds.append(np.where(rng.random(n) < share, altered, first))
    return np.stack(rounds, 1), truth


def test_a_draw_has_equal_chances_in_each_group_and_every_predicted_class_gets_its_share():
    predicted, _ = population(n=300)
    apart = (predicted != predicted[:, :1]).any(1)
    drawn = np.zeros(300)
    for seed in range(2000):
        rows, shares = draw(predicted, 60, seed)
        assert len(set(rows.tolist())) == 60
        assert shares.sum() == pytest.approx(1)
        for group in (apart, ~apart):  # known sizes: the estimate of any total is unbiased
            assert shares[group[rows]].sum() == pytest.approx(group.mean())
            counts, n = np.bincount(predicted[rows][group[rows]][:, 0], minlength=7), group[rows].sum()
            expected = n * np.bincount(predicted[group][:, 0], minlength=7) / group.sum()
            assert (np.abs(counts - expected) < 1 + 1e-9).all()
        drawn[rows] += 1
    for group in (apart, ~apart):
        chance = drawn[group].mean() / 2000
        assert np.abs(drawn[group] / 2000 - chance).max() < 5 * np.sqrt(chance * (1 - chance) / 2000)
    assert drawn[apart].mean() / drawn[~apart].mean() == pytest.approx(3, rel=0.1)
    assert draw(predicted, 60, 5)[0].tolist() == draw(predicted, 60, 5)[0].tolist()


@pytest.mark.parametrize("count", [2, 3, 299, 300])
def test_a_draw_may_be_tiny_or_the_whole_target_and_rounds_may_agree(count):
    predicted, truth = population(n=300)
    for classes in (predicted, predicted[:, :1].repeat(3, 1)):
        rows, shares = draw(classes, count, 0)
        assert (len(set(rows.tolist())), round(shares.sum(), 9)) == (count, 1)
        checked = estimate(classes[rows], shares, truth[rows])
    assert (checked.selected, checked.rounds[2]["difference"], checked.rounds[2]["p"]) == (0, 0.0, 1.0)
    rows, shares = draw(predicted, 300, 0)
    exact = [row["accuracy"] for row in estimate(predicted[rows], shares, truth[rows]).rounds]
    assert exact == pytest.approx((predicted == truth[:, None]).mean(0).tolist())


@pytest.mark.slow
@pytest.mark.parametrize(("n", "count", "accuracy"), [(2000, 150, 0.8), (3000, 100, 0.97), (500, 200, 0.5)])
def test_intervals_cover_the_true_accuracies_and_the_estimates_are_unbiased(n, count, accuracy):
    predicted, truth = population(n, accuracy)
    true, draws = (predicted == truth[:, None]).mean(0), 300
    values, covered = np.empty((draws, 3)), np.zeros((2, 3))
    for seed in range(draws):
        rows, shares = draw(predicted, count, seed)
        found = estimate(predicted[rows], shares, truth[rows]).rounds
        values[seed] = [row["accuracy"] for row in found]
        covered[0] += [row["accuracy_low"] <= t <= row["accuracy_high"] for row, t in zip(found, true, strict=True)]
        differences = zip(found[1:], true[1:] - true[0], strict=True)
        covered[1, 1:] += [row["difference_low"] <= d <= row["difference_high"] for row, d in differences]
    assert (covered[0] / draws >= 0.93).all()
    assert (covered[1, 1:] / draws >= 0.93).all()
    assert (np.abs(values.mean(0) - true) < 4 * values.std(0) / np.sqrt(draws) + 1e-9).all()


@pytest.mark.slow
def test_a_worse_round_is_never_selected_a_better_one_is_and_chance_rarely():
    def selected(changes, seeds=200, count=150):
        predicted, truth = population(accuracy=0.7, changes=changes)
        pairs = ((rows, shares) for rows, shares in (draw(predicted, count, seed) for seed in range(seeds)))
        return [estimate(predicted[rows], shares, truth[rows]).selected for rows, shares in pairs]

    assert set(selected([(0.3, 0.2), (0.5, 0.1)])) == {0}
    better = selected([(0.3, 0.1), (0.4, 0.95), (0.2, 0.9)])
    assert np.mean(np.array(better) == 2) > 0.9
    assert 1 not in better
    assert np.mean(np.array(selected([(0.2, 0.7), (0.2, 0.7), (0.2, 0.7)])) > 0) < 0.05


def test_rounds_are_compared_sample_by_sample():
    truth, first = np.zeros(200, int), np.r_[np.zeros(150, int), np.ones(50, int)]
    second = np.r_[np.zeros(162, int), np.ones(38, int)]  # as before, and 12 more are right
    checked = estimate(np.stack([first, second], 1), np.full(200, 1 / 200), truth)
    assert checked.rounds[1]["p"] == pytest.approx(2 * 0.5**12)  # unpaired, 75% and 81% of 200 are p = 0.15
    assert checked.selected == 1
    test = mcnemar(12, 0, 12)
    assert checked.rounds[1]["difference"] == pytest.approx(0.06)
    assert checked.rounds[1]["difference_low"] == pytest.approx(0.06 * float(test.low))
    swapped = estimate(np.stack([second, first], 1), np.full(200, 1 / 200), truth)
    assert (swapped.selected, swapped.rounds[1]["difference"]) == (0, pytest.approx(-0.06))


@pytest.mark.slow
def test_the_promised_power_is_the_power():
    rng = np.random.default_rng(0)
    for n, level in ((40, 0.05), (150, 0.01)):
        share = (1 + detectable_difference(n, level)) / 2
        wins = rng.binomial(n, share, 2000)
        power = np.mean([float(mcnemar(int(k), n - int(k), n).p) <= level for k in wins[:400]])
        assert 0.74 < power < 0.87
    assert detectable_difference(3) == detectable_difference(0) == np.inf


def test_a_weighted_share_of_one_group_is_wilsons():
    value, low, high = weighted_share(np.array([18]), np.array([20]), np.array([1.0]))
    assert (value, low, high) == pytest.approx((0.9, *map(float, wilson(np.array(18), np.array(20)))))
    value, low, high = weighted_share(np.array([18, 2]), np.array([20, 20]), np.array([0.75, 0.25]))
    assert value == pytest.approx(0.7)
    assert low < 0.7 < high


BARE = TensorDataset(TARGET.tensors[0])


def checked_run(net, out, **options):  # noqa: F811
    given = {"target": BARE, "test": None, "rounds": 3, "epochs": 3, "check": 120, **options}
    return adapted(net, out, **given)


def rows_of(out):
    with (out / "check.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def fill(out, label=lambda row, true: str(true), order=None):
    """What a person does: write a label beside each sample, perhaps after sorting the file."""
    rows = rows_of(out)
    for row in rows:
        row["label"] = label(row, int(TARGET.tensors[1][int(row["id"].rpartition(":")[2])]))
    with (out / "check.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows if order is None else [rows[i] for i in order])


def test_samples_are_drawn_labeled_and_judged_and_the_selected_network_is_written(net, tmp_path):  # noqa: F811
    out = tmp_path / "run"
    first = checked_run(net, out)
    assert (first.checked, "unknown" in repr(first)) == (None, True)
    assert any("8 times out of 10" in note for note in first.outcome)
    rows = rows_of(out)
    assert (len(rows), {row["label"] for row in rows}, list(rows[0])) == (120, {""}, ["id", "label"])
    before = (out / "check.csv").read_bytes()
    assert checked_run(net, out).checked is None
    assert (out / "check.csv").read_bytes() == before  # the same samples
    fill(out)
    result = checked_run(net, out)  # the same call notices the labels
    again = first.check()
    assert again.checked == result.checked
    fill(out, order=np.random.default_rng(0).permutation(120))
    assert first.check(out / "check.csv").checked == result.checked  # samples are found by id
    data, truth = open_data(TARGET), TARGET.tensors[1].numpy()
    for row in result.checked.rounds:
        network = nn.Sequential(nn.Linear(2, 3))
        state = net.state_dict()
        if row["round"]:
            state = read_checkpoint(out / f"rounds/0{row['round']}/training/checkpoint.pt")
        load_weights(network, state, "weights")
        true = (predict(network, data, device="cpu").probabilities.argmax(1) == truth).mean()
        assert row["accuracy_low"] <= true <= row["accuracy_high"]
        if row["round"] == result.checked.selected:
            stored = read_checkpoint(out / "selected.pt")
            assert all(torch.equal(stored[name], value) for name, value in network.state_dict().items())
            assert torch.equal(weights(result), weights(again))
            assert torch.equal(result.model.module[0].weight, network[0].weight)
    assert result.checked.selected > 0
    assert read_check(out) == result.checked
    [axis] = [axis for axis in plot_adaptation({"cbst": out}).get_axes() if "labeled" in axis.get_ylabel()]
    assert axis.get_lines()[0].get_ydata().tolist() == [row["accuracy"] for row in result.checked.rounds]
    assert f"round {result.checked.selected} selected" in repr(result)
    predicted = read_selection(out, 1)["predicted"].to_numpy()  # of round 0
    assert result.checked.rounds[0]["accuracy"] == pytest.approx((predicted == truth).mean(), abs=0.1)


def test_labels_that_show_no_gain_keep_the_source_model(net, tmp_path):  # noqa: F811
    result = checked_run(net, tmp_path / "run")
    ids = {row["id"] for row in rows_of(tmp_path / "run")}
    table = read_selection(tmp_path / "run", 1)
    labels = {"id": [], "label": []}
    for row in table.to_pylist():  # people agree with round 0 throughout
        if row["id"] in ids:
            labels["id"].append(row["id"])
            labels["label"].append(row["predicted"])
    kept = result.check(labels)
    assert kept.checked.selected == 0
    assert kept.checked.rounds[0]["accuracy"] == 1.0
    assert torch.equal(weights(kept), torch.cat([value.flatten() for value in net.state_dict().values()]))
    assert "source model is selected" in kept.text()
    assert "worse than the source model" in kept.text()


def test_mistakes_are_one_sentence_each(net, tmp_path):  # noqa: F811
    out = tmp_path / "run"
    for count in (0, -3, 1, 301, 2.5):
        with pytest.raises(ValueError, match=r"check.* \[2, 300\], got"):
            checked_run(net, tmp_path / "other", check=count)
    with pytest.raises(FileNotFoundError, match="--check"):
        checked_run(net, tmp_path / "other", check=None, labels={"id": [], "label": []})
    with pytest.raises(FileNotFoundError, match="no file"):
        checked_run(net, tmp_path / "other", labels=tmp_path / "nowhere.csv")
    assert not (tmp_path / "other").exists()
    result = checked_run(net, out, check=20)
    ids = [row["id"] for row in rows_of(out)]
    zeros = ["0"] * 20
    for labels, words in (
        ({"id": ids, "label": [*zeros[:12], *[None] * 8]}, "8 of 20 .*no label"),
        ({"id": ids[:5], "label": zeros[:5]}, "15 of 20 .*no label"),
        ({"id": ids, "label": [*zeros[:19], "3"]}, "'3' is not a class"),
        ({"id": ids, "label": [*zeros[:19], "cat"]}, "'cat'"),
        ({"id": [*ids, ids[0]], "label": [*zeros, "1"]}, "row.* id"),
        ({"id": [*ids[:19], "train:9999"], "label": zeros}, "'train:9999'"),
        ({"id": ids, "labels": zeros}, "column label"),
        ({"label": zeros}, "column id"),
    ):
        with pytest.raises(ValueError, match=words):
            result.check(labels)
    assert not (out / "selected.pt").exists()
    fill(out, lambda row, true: str(true) if row["id"] != ids[3] else "")
    with pytest.raises(ValueError, match=f"1 of 20 .*{ids[3]}"):
        checked_run(net, out, check=20)
    labeled = (out / "check.csv").read_bytes()
    for options in ({"check": 30}, {"check": 20, "overwrite": True, "seed": 1}):  # nobody's labels are written over
        with pytest.raises(FileExistsError, match="has labels"):
            checked_run(net, out, **options)
        assert (out / "check.csv").read_bytes() == labeled


def test_killed_between_the_files_of_a_draw_the_same_call_resumes(net, tmp_path, monkeypatch):  # noqa: F811
    whole, out = tmp_path / "whole", tmp_path / "run"
    checked_run(net, whole)
    for name in ("draw", "write"):
        with monkeypatch.context() as patch:
            patch.setattr(check, name, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                checked_run(net, out)
        assert not (out / "check.parquet").exists()
    result = checked_run(net, out)
    assert (out / "check.csv").read_bytes() == (whole / "check.csv").read_bytes()
    fill(out)
    with monkeypatch.context() as patch:
        patch.setattr(check, "write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            result.check()
    assert checked_run(net, out).checked == result.check().checked
    checked_run(net, out, overwrite=True, check=None)
    assert not (out / "check.json").exists()
    assert (out / "check.csv").exists()


def test_class_names_and_files_are_what_a_person_sees(tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for part in ("source", "target"):
        for k, name in enumerate(("cat", "true")):  # the name of a class may look like something else
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(20):
                pixels = rng.integers(0, 100, (4, 4), dtype=np.uint8) + np.uint8(120 * k)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{i}.png")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    with torch.no_grad():
        network[1].weight.copy_(torch.stack([-torch.ones(16), torch.ones(16)]))
        network[1].bias.copy_(torch.tensor([8.0, -8.0]))
    model = Model(
        network,
        "flat",
        transform=lambda x: torch.as_tensor(np.asarray(x.convert("L")) / 255.0).float()[None],
        takes="pil",
    )
    out, options = tmp_path / "run", {"rounds": 1, "device": "cpu", "progress": False, "workers": 0, "check": 10}
    result = loop.self_train(model, str(tmp_path / "source"), str(tmp_path / "target"), out=out, **options)
    rows = rows_of(out)
    assert list(rows[0]) == ["id", "file", "label"]
    assert all(row["file"].endswith(row["id"].removeprefix("target/")) for row in rows)
    fill_with = {row["id"]: row["id"].split("/")[-2].upper() for row in rows}
    checked = result.check({"id": list(fill_with), "label": list(fill_with.values())}).checked
    assert checked.rounds[0]["accuracy"] == 1.0
