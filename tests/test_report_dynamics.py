"""Recorded training in the report: curves, drivers of the loss, the data map, single samples, words."""

import base64
import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest
import torch
from report_runs import CLASSES, frame, grouping, record, report, texts
from scipy import stats

import hardsight as hs
from hardsight.phases.drivers import loss_drivers
from hardsight.report import training as training_module
from hardsight.report import write_report
from hardsight.report.rows import Rows
from hardsight.report.samples import LENGTH
from hardsight.report.write import make_payload


def assert_lines(dynamics, rows, group, lines):
    """Lines of the page against pandas, group by group."""
    parts = dict(list(rows.groupby(group, observed=True)))
    assert [line["name"] for line in lines] == list(parts)
    for line, own in zip(lines, parts.values(), strict=True):
        by_epoch = own.groupby("epoch")
        n = by_epoch.size().reindex(dynamics.epochs, fill_value=0)
        assert line["n"] == n.tolist()
        for key in ("avh", "norm", "confidence", "nll", "correct"):
            mean = by_epoch[key].mean().reindex(dynamics.epochs).to_numpy()
            np.testing.assert_allclose(np.array(line[key]["mean"], float), mean, rtol=6e-4)
            if key != "correct":
                spread = by_epoch[key].std(ddof=1).reindex(dynamics.epochs).to_numpy()
                np.testing.assert_allclose(np.array(line[key]["sd"], float), spread, rtol=6e-4)
        for at, right in enumerate(by_epoch["correct"].sum().reindex(dynamics.epochs, fill_value=0)):
            if n.iloc[at]:
                ends = stats.binomtest(int(right), int(n.iloc[at])).proportion_ci(method="wilson")
                found = line["correct"]["low"][at], line["correct"]["high"][at]
                np.testing.assert_allclose(found, (ends.low, ends.high), rtol=6e-4, atol=1e-9)


@pytest.mark.parametrize("which", ["whole", "gaps"])
def test_curves_by_group_are_those_of_pandas(which, request):
    _, dynamics, payload, rows = request.getfixturevalue(which)
    training = payload["training"]
    assert training["epochs"] == dynamics.epochs.tolist() == list(range(1, 8))
    assert_lines(dynamics, rows, np.array(["all samples"] * len(rows)), grouping(payload, "all")["lines"])
    names = dynamics.meta.class_names or [str(k) for k in range(CLASSES)]
    assert_lines(dynamics, rows, rows["label"].map(lambda k: names[k]), grouping(payload, "class")["lines"])
    fifths = pd.qcut(rows.groupby("id")["avh"].mean().rank(method="first"), 5, labels=list(training_module._FIFTHS))
    hardness = grouping(payload, "hardness")
    assert hardness["ordered"]
    assert "by construction" in hardness["note"]
    assert_lines(dynamics, rows, rows["id"].map(fifths), hardness["lines"])


def test_the_user_s_groups_have_curves(gaps):
    _, dynamics, payload, rows = gaps
    site = rows["id"].map(lambda id_: "north" if int(id_.split(":")[1]) % 3 else "south")
    assert_lines(dynamics, rows, site, grouping(payload, "group site")["lines"])
    assert [one["key"] for one in payload["training"]["groupings"]] == ["all", "class", "hardness", "group site"]


def test_a_group_that_was_not_seen_in_an_epoch_has_a_gap_there(tmp_path):
    run = record(tmp_path / "run", seen=lambda epoch, n: range(10 if epoch == 3 else 0, n))
    payload = report(run, groups={"id": [f"train:{i}" for i in range(80)], "early": [i < 10 for i in range(80)]})
    line = next(line for line in grouping(payload, "group early")["lines"] if line["name"] == "true")
    assert line["n"] == [10, 10, 0, 10, 10, 10, 10]
    for key in ("avh", "norm", "correct", "confidence", "nll"):
        assert all(values[2] is None for values in line[key].values())
        assert line[key]["mean"][3] is not None


@pytest.mark.parametrize("which", ["whole", "gaps"])
def test_drivers_of_the_loss_are_those_of_phases_and_add_up(which, request):
    _, dynamics, payload, rows = request.getfixturevalue(which)
    lines = payload["training"]["drivers"]["lines"]
    assert [line["name"] for line in lines] == ["all samples", *training_module._FIFTHS]
    expected = loss_drivers(dynamics).to_pandas().set_index("epoch").reindex(dynamics.epochs)
    for key in ("change", "by_angles", "by_norms"):
        np.testing.assert_allclose(np.array(lines[0][key], float), expected[key], rtol=6e-4, atol=1e-6)
    for line in lines:
        angles, norms, change = (np.array(line[key], float) for key in ("by_angles", "by_norms", "change"))
        assert np.isnan(change[0])
        np.testing.assert_allclose((angles + norms)[1:], change[1:], rtol=1e-3, atol=1e-3)
    rows = rows.sort_values(["id", "epoch"])  # and from the definition
    old = rows.groupby("id")["nll"].shift()
    by_angles = (rows["nll_angles"] - old + rows["nll"] - rows["nll_norms"]) / 2
    naive = by_angles.groupby(rows["epoch"]).mean().to_numpy()
    np.testing.assert_allclose(np.array(lines[0]["by_angles"], float), naive, rtol=1e-3, atol=1e-6)


def test_norms_of_few_classes_are_drawn_each_of_many_in_sum(whole, tmp_path):
    _, dynamics, payload, _ = whole
    heads = dynamics.heads.to_pandas().pivot(index="class", columns="epoch", values="norm")
    lines = payload["training"]["heads"]["lines"]
    assert [line["name"] for line in lines] == ["ant", "bee", "cat", "dog"]
    np.testing.assert_allclose([line["mean"] for line in lines], heads, rtol=6e-4)
    run = record(tmp_path / "run", n=300, epochs=3, classes=30)
    payload = report(run)
    heads = hs.Dynamics(run).heads.to_pandas().groupby("epoch")["norm"]
    ends = (heads.max(), heads.mean(), heads.min())
    for line, expected in zip(payload["training"]["heads"]["lines"], ends, strict=True):
        np.testing.assert_allclose(line["mean"], expected, rtol=6e-4)
    np.testing.assert_allclose(payload["training"]["heads"]["lines"][1]["sd"], heads.std(ddof=0), rtol=6e-4)
    rows = frame(hs.Dynamics(run))
    hardest = rows.groupby(["label", "id"])["avh"].mean().groupby("label").mean().nlargest(12).index
    by_class = grouping(payload, "class")
    assert [line["name"] for line in by_class["lines"]] == [str(k) for k in sorted(hardest)]
    assert "12 hardest of 30" in by_class["note"]


def test_of_many_epochs_some_are_drawn_and_no_change_of_the_loss_is_lost(tmp_path, monkeypatch):
    run = record(tmp_path / "run", n=20, epochs=23, unit="iteration")
    full = report(run)["training"]
    monkeypatch.setattr(training_module, "MOST_EPOCHS", 8)
    payload = report(run)
    training = payload["training"]
    assert training["unit"] == "iteration"
    assert re.search("23 iterations.* 8 ", training["note"])
    assert len(training["epochs"]) == 8
    assert [training["epochs"][0], training["epochs"][-1]] == [1, 23]
    places = [full["epochs"].index(epoch) for epoch in training["epochs"]]
    assert training["groupings"][0]["lines"][0]["avh"]["mean"] == [
        full["groupings"][0]["lines"][0]["avh"]["mean"][at] for at in places
    ]
    for key in ("change", "by_angles", "by_norms"):
        few, many = (np.array(one["drivers"]["lines"][0][key], float) for one in (training, full))
        np.testing.assert_allclose(np.nancumsum(few), np.nancumsum(many)[places], rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("which", ["whole", "gaps"])
def test_points_carry_the_summary_of_their_sample(which, request):
    _, _, payload, rows = request.getfixturevalue(which)
    scores, points = payload["points"]["scores"], payload["points"]
    by_id = dict(list(rows.groupby("id")))
    for at, id_ in enumerate(points["id"]):
        own = by_id[id_]
        right = own["correct"].to_numpy() > 0
        assert scores["forgetting"][at] == sum(a and not b for a, b in itertools.pairwise(right))
        assert scores["learned"][at] == (own["epoch"].to_numpy()[right][0] if right.any() else None)
        expected = {
            "aum": own["margin"].mean(),
            "mean_confidence": own["confidence"].mean(),
            "variability": own["confidence"].std(ddof=0),
            "correctness": right.mean(),
        }
        for name, value in expected.items():
            assert scores[name][at] == pytest.approx(value, rel=6e-4, abs=1e-7)
        if which == "gaps":
            assert scores["seen"][at] == len(own)
    assert ("seen" in scores) == (which == "gaps")
    for name in ("forgetting", "learned", "aum", "soft_margin_late", "mean_confidence", "variability", "correctness"):
        assert payload["scores"][name]["text"]
    assert [scores["confidence"][0], scores["norm"][0]] == pytest.approx(  # those of the last epoch stay
        by_id[points["id"][0]][["confidence", "norm"]].iloc[-1].tolist(), rel=6e-4
    )


def test_the_data_map_is_a_view_with_all_samples(whole):
    payload = whole.payload
    view = next(one for one in payload["views"] if one["key"] == "datamap")
    x, y = (np.array(payload["points"]["scores"][view[axis]["column"]]) for axis in "xy")
    shown = view["x"]["column"], view["y"]["column"], view["color"]
    assert shown == ("variability", "mean_confidence", "correctness")
    ends = [(view[axis]["low"], view[axis]["high"]) for axis in "yx"]
    counts, *_ = np.histogram2d(y, x, bins=(view["density"]["ny"], view["density"]["nx"]), range=ends)
    assert np.abs(counts.ravel() - view["density"]["counts"]).sum() <= 2  # points hold four digits
    assert "7 epochs" in view["note"]


def test_lists_are_sorted_as_they_say(whole):
    _, dynamics, payload, _ = whole
    summary = dynamics.summary().to_pandas()
    rows = {one["key"]: [payload["points"]["id"][i] for i in one["rows"]] for one in payload["lists"]}
    forgotten = summary[summary["forgetting"] > 0].sort_values(["forgetting", "aum"], ascending=[False, True])
    assert rows["forgotten"] == forgotten["id"].head(LENGTH).tolist()
    assert rows["late_margin"] == summary.sort_values("soft_margin_late")["id"][::-1].head(LENGTH).tolist()
    assert rows["low_aum"] == summary.sort_values("aum")["id"].head(LENGTH).tolist()
    never = summary[summary["learned"].isna()].sort_values("aum")
    late = summary.dropna(subset=["learned"]).sort_values(["learned", "aum"], ascending=[False, True])
    first = never["id"].head(LENGTH // 2).tolist()
    assert len(first) > 0
    assert rows["late"] == [*first, *late["id"]][:LENGTH]
    note = next(one["note"] for one in payload["lists"] if one["key"] == "late")
    assert note.startswith(f"{len(never)} samples ")


def decoded(curve, points, epochs):
    """16-bit steps between the smallest and the largest value, as the page reads them."""
    steps = np.frombuffer(base64.b64decode(curve["steps"]), "<u2").reshape(points, epochs)
    return np.where(steps == 65535, np.nan, curve["low"] + curve["width"] * steps.astype(float) / 65534)


@pytest.mark.parametrize("which", ["whole", "gaps"])
def test_every_sample_s_curve_is_in_the_page_to_a_four_thousandth(which, request):
    _, dynamics, payload, rows = request.getfixturevalue(which)
    found = payload["training"]["curves"]
    ids = [payload["points"]["id"][i] for i in found["points"]]
    assert sorted(found["points"]) == list(range(len(payload["points"]["id"])))
    assert found["note"] == ""
    for name in ("avh", "confidence", "norm"):
        expected = rows.pivot(index="id", columns="epoch", values=name).loc[ids].to_numpy()
        width = np.nanmax(expected) - np.nanmin(expected)
        shown = decoded(found[name], len(ids), len(dynamics.epochs))
        np.testing.assert_allclose(shown, expected, atol=0.51 * width / 4094)
        assert np.isnan(shown).any() == (which == "gaps")


def test_where_not_all_curves_fit_the_listed_ones_come_first(whole, monkeypatch):
    run, full = whole.run, whole.payload
    monkeypatch.setattr(training_module, "CURVES_BYTES", 20 * (8 * 3 * 7 + 24) // 3)
    payload = report(run)
    found = payload["training"]["curves"]
    assert len(found["points"]) == 20
    heads = [one["rows"][0] for one in full["lists"] if one["rows"]]
    assert set(heads) <= set(found["points"])
    assert found["note"].startswith("20 of 80 points")
    assert len(json.dumps(found)) <= training_module.CURVES_BYTES + 500


def test_numbers_that_are_all_the_same_or_missing_are_coded():
    same = training_module.coded(np.full((2, 3), 5.0))
    assert decoded(same, 2, 3).tolist() == [[5.0] * 3] * 2
    none = training_module.coded(np.full((1, 2), np.nan))
    assert np.isnan(decoded(none, 1, 2)).all()


def test_the_page_says_what_was_recorded(whole, gaps):
    payload = whole.payload
    assert re.search(r"epoch 7 .*\(a made-up loop\)", texts(payload))
    assert ["recorded", "a made-up loop"] in payload["made"]
    assert payload["title"].startswith("a network in training")
    assert "not seen" not in texts(payload)
    assert "under the margin" in texts(payload)
    payload = gaps.payload
    assert payload["n"] == 70
    assert re.search("epoch 7.* 10 samples", texts(payload))
    assert re.search("14 samples .*every epoch", texts(payload))


def test_one_epoch_has_no_curves_and_says_so(tmp_path):
    payload = report(record(tmp_path / "run", epochs=1))
    assert "training" not in payload
    assert "One epoch is" in texts(payload)
    assert [one["key"] for one in payload["lists"]] == ["hardest", "easiest", "angle_hard", "logit_hard"]
    assert "datamap" not in [one["key"] for one in payload["views"]]


def test_an_unfinished_epoch_is_said(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 4, generator=draw)
    for epoch in range(3):
        head = SimpleNamespace(features=torch.randn(30, 4, generator=draw), weight=weight, bias=None)
        recorder.update(torch.arange(30), head, torch.arange(30) % 3)
        recorder.end_epoch() if epoch < 2 else recorder.flush()
    assert "Epoch 3 is not" in texts(report(tmp_path / "run"))


def test_readings_that_are_no_numbers_are_counted(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    for epoch in range(2):
        head = SimpleNamespace(features=torch.randn(30, 4), weight=torch.randn(3, 4), bias=None)
        head.features[:2] = torch.nan if epoch else 1.0
        recorder.update(torch.arange(30), head, torch.arange(30) % 3)
        if epoch:
            with pytest.warns(UserWarning, match="NaN or infinite"):
                recorder.end_epoch()
        else:
            recorder.end_epoch()
    assert "2 readings were NaN" in texts(report(tmp_path / "run"))


def test_a_run_that_goes_on_being_recorded_is_shown_as_it_was_when_it_was_opened(tmp_path):
    run = record(tmp_path / "run", n=60, epochs=3)
    rows, before = Rows(hs.SampleTable.load(run)), hs.Dynamics(run)
    expected = make_payload(rows, dynamics=hs.Dynamics(run))
    recorder = hs.Recorder(run, epoch=4, split="train")
    head = SimpleNamespace(features=torch.randn(5, 6), weight=torch.randn(CLASSES, 6), bias=torch.zeros(CLASSES))
    recorder.update(torch.arange(60, 65), head, torch.zeros(5, dtype=torch.long))
    recorder.end_epoch()
    assert make_payload(rows, dynamics=before)["training"] == expected["training"]
    assert before.records.block(["norm"], where=pc.field("id").isin(["train:60", "train:7"])).table.num_rows == 3


def test_without_the_swapped_losses_there_are_no_drivers(whole, monkeypatch):
    monkeypatch.setattr(
        training_module, "split_change", lambda old, *_: training_module.LossChange(*[np.full(len(old), np.nan)] * 3)
    )
    payload = report(whole.run)
    assert payload["training"]["drivers"]["lines"] == []
    assert "not known here" in payload["training"]["drivers"]["note"]
    assert payload["training"]["groupings"]


RANKS, SKETCHED = ("rank_angle", "rank_logit"), ("isolation", "pca_x", "pca_y")


def test_a_run_without_records_is_as_it_was(tmp_path):
    torch.manual_seed(0)
    table = hs.score_features(torch.randn(50, 6), torch.randn(4, 6), torch.randint(0, 4, (50,)))
    table.save(tmp_path / "run")
    payload = report(tmp_path / "run")
    assert "training" not in payload
    assert set(payload["points"]["scores"]) == {*table.scores, *RANKS, *SKETCHED}
    assert not any(view["color"] for view in payload["views"])


def test_the_folder_of_a_training_names_its_two_runs(tmp_path):
    record(tmp_path / "training" / "train", n=20, epochs=2)
    with pytest.raises(FileNotFoundError, match=r"a training; \w+ \S+training/train\.$"):
        write_report(tmp_path / "training")
    record(tmp_path / "training" / "test", n=20, epochs=2)
    with pytest.raises(FileNotFoundError, match=r"\S+training/test \w+ \S+training/train\.$"):
        write_report(tmp_path / "training")


def test_the_order_in_which_batches_came_does_not_matter(tmp_path):
    def turned(epoch, n):
        return np.random.default_rng(epoch).permutation(n)

    one, other = (report(record(tmp_path / name, seen=seen)) for name, seen in (("a", None), ("b", turned)))
    assert one["training"] == other["training"]
    assert one["points"] == other["points"]
