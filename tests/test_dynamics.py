"""Records read back: summaries, curves and tables against loops that anyone would write."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from recorded import CLASSES, SAMPLES, as_rows, data, train
from scipy import stats

import hardsight as hs
from hardsight.dynamics.dynamics import COLUMNS
from hardsight.dynamics.summary import MEANS, STANDARDIZED
from hardsight.people.candidates import epoch_means
from hardsight.stats import Moments


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("dynamics") / "run"
    train(path, 12, drop_last=True)
    return path


@pytest.fixture(scope="module")
def frame(run):
    """All rows as anyone's pandas would hold them."""
    dynamics = hs.Dynamics(run)
    rows = [{"id": id_, **row} for (id_, _), row in as_rows(dynamics).items()]
    labels = dict(zip(dynamics.ids, dynamics.labels, strict=True))
    return pd.DataFrame(rows).assign(label=lambda f: f["id"].map(labels)).sort_values(["id", "epoch"])


def test_the_summary_is_what_a_loop_over_the_rows_gives(run, frame):
    found = hs.Dynamics(run).summary().to_pandas().set_index("id")
    for id_, rows in frame.groupby("id"):
        right = (rows["pred"] == rows["label"]).tolist()
        own = found.loc[id_]
        assert own["seen"] == len(rows)
        assert own["forgetting"] == sum(a and not b for a, b in itertools.pairwise(right))
        if any(right):
            assert own["learned"] == rows["epoch"].tolist()[right.index(True)]
        else:
            assert np.isnan(own["learned"])
        assert own["correctness"] == pytest.approx(np.mean(right))
        assert own["variability"] == pytest.approx(np.std(rows["confidence"]), abs=1e-12)
        for column, name in MEANS.items():
            if column != "correct":
                assert own[name] == pytest.approx(rows[column].mean(), rel=1e-12), name
        assert own["pred"] == rows["pred"].iloc[-1]


def test_worked_examples_of_forgetting_and_learning(tmp_path):
    """Right or wrong by hand: never learned, learned at once, forgotten twice."""
    stories = {"never": "000000", "always": "111111", "twice": "010110", "late": "000001"}
    recorder = hs.Recorder(tmp_path / "run")
    weight = torch.eye(2)
    for epoch in range(6):
        x = torch.tensor([[1.0, 0.0] if story[epoch] == "1" else [0.0, 1.0] for story in stories.values()])
        recorder.update(list(stories), SimpleNamespace(features=x, weight=weight, bias=None), [0] * 4)
        recorder.end_epoch()
    found = {row["id"]: row for row in recorder.summary().to_arrow().to_pylist()}
    assert {name: row["forgetting"] for name, row in found.items()} == {"never": 0, "always": 0, "twice": 2, "late": 0}
    assert {name: row["learned"] for name, row in found.items()} == {"never": None, "always": 1, "twice": 2, "late": 6}
    assert found["twice"]["correctness"] == 0.5
    assert found["always"]["aum"] == 1.0
    assert found["never"]["aum"] == -1.0
    p = 1 / (1 + np.exp(-1.0))
    assert found["always"]["confidence"] == pytest.approx(p, rel=1e-6)
    assert found["always"]["el2n"] == pytest.approx(np.sqrt(2) * (1 - p), rel=1e-5)
    assert found["twice"]["variability"] == pytest.approx(p - 0.5, rel=1e-5)  # half the time p, half 1 − p


def test_a_summary_of_some_epochs(run, frame):
    early = frame[frame["epoch"] <= 3].groupby("id")["el2n"].mean()
    found = hs.Dynamics(run).summary((1, 3)).to_pandas().set_index("id")["el2n"]
    pd.testing.assert_series_equal(found.sort_index(), early.sort_index(), check_names=False, rtol=1e-12)


def test_hardest_follows_the_direction_of_each_column(run):
    summary = hs.Dynamics(run).summary()
    assert summary.hardest(1, "aum")["aum"][0] == summary["aum"].min()
    assert summary.hardest(1, "forgetting")["forgetting"][0] == summary["forgetting"].max()
    assert summary.hardest(1, "confidence")["confidence"][0] == summary["confidence"].min()
    assert summary.hardest(1, "variability")["variability"][0] == summary["variability"].max()


def test_curves_are_means_and_deviations_of_the_rows(run, frame):
    dynamics = hs.Dynamics(run)
    values = ("avh", "norm", "confidence", "nll", "correct", "angle", "margin")
    for by, key in ((None, None), ("label", "label")):
        found = dynamics.curves(by, values).to_pandas()
        expected = frame.groupby(["epoch"] if key is None else [key, "epoch"])[list(values)].agg(
            ["count", "mean", "std"]
        )
        assert len(found) == len(expected)
        for row in found.to_dict("records"):
            own = expected.loc[row["epoch"] if key is None else (row["group"], row["epoch"])]
            assert row["n"] == own["avh", "count"]
            for value in values:
                assert row[f"{value}_mean"] == pytest.approx(own[value, "mean"], rel=1e-9, abs=1e-12)
                assert row[f"{value}_sd"] == pytest.approx(own[value, "std"], rel=1e-9, abs=1e-9, nan_ok=True)


def test_every_way_to_name_groups_gives_the_same_curves(run):
    dynamics = hs.Dynamics(run)
    group = np.where(dynamics.labels < 2, "low", "high")
    ways = [
        group,
        dict(zip(dynamics.ids, group, strict=True)),
        pd.DataFrame({"id": dynamics.ids, "kind": group}).sample(frac=1, random_state=0),
        pa.table({"kind": group, "id": dynamics.ids}),
    ]
    first, *others = [dynamics.curves(by) for by in ways]
    assert all(other.equals(first) for other in others)
    assert set(first["group"].to_pylist()) == {"high", "low"}
    some = dynamics.curves({dynamics.ids[0]: "a", dynamics.ids[1]: "b", "data:9999": "c"})
    assert set(some["group"].to_pylist()) == {"a", "b"}
    assert dynamics.curves("correctness")["group"].type == pa.float64()


@pytest.mark.parametrize(
    ("by", "says"),
    [
        ([0, 1], f"by .*{SAMPLES}, got 2"),
        ("camera", "by .*'camera'"),
        ({"x": 1}, "by .*no sample"),
        ([float("nan")] * SAMPLES, "by .*no sample"),
        ({"data:1": "a", "data:2": 3}, "by .*one type"),
        (pa.table({"id": ["a"], "b": [1], "c": [2]}), "by .*column id"),
    ],
)
def test_groups_that_make_no_sense_are_one_sentence(run, by, says):
    with pytest.raises(ValueError, match=says):
        hs.Dynamics(run).curves(by)


def test_moments_joined_block_by_block_are_those_of_the_whole():
    rng = np.random.default_rng(0)
    values, group, epoch = 1e6 + rng.standard_normal(5000), rng.integers(-1, 3, 5000), rng.integers(0, 4, 5000)
    values[::7] = np.nan
    moments = Moments(3, 4)
    for part in np.array_split(np.arange(5000), 13):
        moments.add(values[part], group[part] * 4 + epoch[part])
    for g in range(3):
        for e in range(4):
            own = values[(group == g) & (epoch == e)]
            assert moments.n[g, e] == (~np.isnan(own)).sum()
            assert moments.mean[g, e] == pytest.approx(np.nanmean(own), rel=1e-14)
            assert moments.variance[g, e] == pytest.approx(np.nanvar(own, ddof=1), rel=1e-8)


def test_one_epoch_is_a_table_of_scores_and_the_run_loads_as_its_last(run, frame):
    dynamics = hs.Dynamics(run)
    table = dynamics.at(12)
    rows = frame.query("epoch == 12").set_index("id")
    for column in ("avh", "confidence", "nll", "norm", "margin", "angle", "el2n"):
        np.testing.assert_allclose(table[column], rows.loc[table["id"], column], rtol=1e-12)
    loaded = hs.SampleTable.load(run)
    assert loaded.to_arrow().equals(table.to_arrow())
    assert loaded.accuracy == pytest.approx(rows["correct"].mean())
    np.testing.assert_allclose(
        loaded["avc"], (np.pi - rows["angle"]) / (CLASSES * np.pi - rows["angle_sum"]), rtol=1e-12
    )
    with pytest.raises(ValueError, match=r"epoch .*1–12, got 13"):
        dynamics.at(13)


def test_matrix_and_curve_hold_the_same_numbers(run):
    dynamics = hs.Dynamics(run)
    found = {name: dynamics.matrix(name) for name in COLUMNS}
    for place, id_ in enumerate(dynamics.ids):
        curve = dynamics.curve(id_)
        assert curve["epoch"].to_pylist() == dynamics.epochs.tolist()
        for name, values in found.items():
            own = np.array([np.nan if value is None else value for value in curve[name].to_pylist()], float)
            np.testing.assert_array_equal(own, values[place])


def test_names_that_are_not_there_and_too_many_groups_are_one_sentence(run, tmp_path, monkeypatch):
    dynamics = hs.Dynamics(run)
    with pytest.raises(KeyError, match=r"'data:x'; .*'data:"):
        dynamics.curve("data:x")
    with pytest.raises(ValueError, match=r"column 'avhh'; .*avh"):
        dynamics.matrix("avhh")
    with pytest.raises(ValueError, match="no column"):
        dynamics.curves(values=("loss!",))
    monkeypatch.setattr("hardsight.idtables.MOST_GROUPS", 5)
    with pytest.raises(ValueError, match="5 groups, got 90"):
        dynamics.curves(np.arange(SAMPLES))
    with pytest.raises(FileNotFoundError, match="no records"):
        hs.Dynamics(tmp_path)


def test_class_names_are_the_groups_of_labels(tmp_path):
    train(hs.Recorder(tmp_path / "run", class_names=["ant", "bee", "cat", "dog"]), 1)
    assert hs.Dynamics(tmp_path / "run").curves("label")["group"].to_pylist() == ["ant", "bee", "cat", "dog"]


def test_iterations_are_epochs_by_another_name(tmp_path):
    x, y = data()
    recorder = hs.Recorder(tmp_path / "run", unit="iteration")
    for _ in range(3):
        recorder.update(range(8), SimpleNamespace(features=x[:8, :6], weight=torch.eye(4, 6), bias=None), y[:8])
        recorder.end_epoch()
    dynamics = hs.Dynamics(tmp_path / "run")
    assert dynamics.unit == "iteration"
    assert repr(dynamics).endswith("iterations 1–3)")
    assert dynamics.steps == {1: 1, 2: 2, 3: 3}


def test_an_epoch_in_which_every_sample_was_broken_is_empty(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    head = SimpleNamespace(features=torch.ones(3, 4), weight=torch.eye(2, 4), bias=None)
    recorder.update(range(3), head, [0, 1, 0])
    recorder.end_epoch()
    head.features = torch.full((3, 4), float("nan"))
    recorder.update(range(3), head, [0, 1, 0])
    with pytest.warns(UserWarning, match="3 of 3 .*epoch 2"):
        recorder.end_epoch()
    dynamics = hs.Dynamics(tmp_path / "run")
    assert dynamics.epochs.tolist() == [1, 2]
    assert len(dynamics.at(2)) == 0
    assert np.isnan(dynamics.matrix("avh")[:, 1]).all()


def exploding(recorder, epochs, exploded=None, flushed=None):
    """Twelve epochs of margins that rank the samples alike but for noise; in one of them logits explode at random."""
    draw = np.random.default_rng(0)
    hardness = draw.normal(size=60)
    for epoch in range(1, epochs + 1):
        margin = 2 - hardness + draw.normal(size=60)
        margin = 1e5 * draw.normal(size=60) if epoch == exploded else margin
        features = torch.tensor(np.stack([margin, np.full(60, 0.1)], 1), dtype=torch.float32)
        weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        for rows in torch.arange(60).split(20):
            recorder.update(rows, SimpleNamespace(features=features[rows], weight=weight, bias=None), [0] * 20)
            if epoch == flushed:
                recorder.flush()
        recorder.end_epoch()
    return hardness


@pytest.mark.parametrize("exploded", [1, 7, 12])
def test_one_epoch_with_exploding_logits_does_not_decide_the_summary(tmp_path, exploded):
    recorder = hs.Recorder(tmp_path / "run")
    hardness = exploding(recorder, 12, exploded, flushed=exploded)
    dynamics = hs.Dynamics(tmp_path / "run")
    summary = dynamics.summary()
    hardness = hardness[[int(id_.split(":")[1]) for id_ in summary["id"]]]
    plain = dynamics.matrix("margin").mean(1)
    assert abs(stats.spearmanr(plain, hardness).statistic) < 0.4
    assert stats.spearmanr(summary["aum"], hardness).statistic < -0.8
    assert stats.spearmanr(summary["nll"], hardness).statistic > 0.7
    # The exploded epoch has the size of the median one, and the others are as they were.
    margin = dynamics.matrix("margin")
    size = np.sqrt((margin**2).mean(0))
    margin[:, exploded - 1] *= np.median(size) / size[exploded - 1]
    np.testing.assert_allclose(summary["aum"], margin.mean(1), rtol=1e-10)
    assert recorder.summary().to_arrow().equals(summary.to_arrow())
    resumed = hs.Recorder(tmp_path / "run", epoch=13)
    assert resumed.summary().to_arrow().equals(summary.to_arrow())
    before = dynamics.summary(epochs=(2, 6))  # without it, plain means
    np.testing.assert_allclose(before["aum"], dynamics.matrix("margin")[:, 1:6].mean(1), rtol=1e-10)


def test_without_an_explosion_the_summary_holds_plain_means(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    exploding(recorder, 12)
    summary, dynamics = recorder.summary(), hs.Dynamics(tmp_path / "run")
    for name, column in (("aum", "margin"), ("nll", "nll"), ("norm", "norm")):
        np.testing.assert_allclose(summary[name], dynamics.matrix(column).mean(1), rtol=1e-10)
    assert summary.to_arrow().equals(dynamics.summary().to_arrow())


def test_standardized_means_are_what_a_loop_over_the_epochs_gives(tmp_path):
    """Samples with unequal visits; one epoch explodes, one is constant, and one sees a single sample."""
    draw = np.random.default_rng(0)
    hardness, recorder, rows = draw.normal(size=40), hs.Recorder(tmp_path / "run"), []
    for epoch in range(1, 11):
        ids = np.flatnonzero(draw.random(40) < 0.7) if epoch != 9 else np.array([3])
        margin = {4: 1e5 * draw.normal(size=40), 6: np.full(40, 0.1)}.get(epoch, 2 - hardness + draw.normal(size=40))
        features = torch.tensor(np.stack([margin, np.full(40, 0.1)], 1), dtype=torch.float32)[ids]
        recorder.update(
            ids.tolist(), SimpleNamespace(features=features, weight=torch.eye(2), bias=None), [0] * len(ids)
        )
        recorder.end_epoch()
    dynamics = hs.Dynamics(tmp_path / "run")
    rows = pd.DataFrame([{"id": id_, **row} for (id_, _), row in as_rows(dynamics).items()])
    for first, last in ((1, 10), (1, 4), (5, 10)):
        summary = dynamics.summary((first, last)).to_pandas().set_index("id")
        part = rows[rows["epoch"].between(first, last)]
        for name in STANDARDIZED:
            scores = {id_: [] for id_ in part["id"]}
            for _, epoch in part.groupby("epoch"):
                spread = np.std(epoch[name].to_numpy()) if epoch[name].nunique() > 1 else 0.0
                for id_, value in zip(epoch["id"], epoch[name], strict=True):
                    scores[id_].append((value - epoch[name].mean()) / spread if spread else 0.0)
            expected = pd.Series({id_: np.mean(values) for id_, values in scores.items()}).loc[summary.index]
            np.testing.assert_allclose(summary[f"{name}_z"], expected, rtol=1e-9, atol=1e-9, err_msg=name)
    summary = dynamics.summary().to_pandas().set_index("id")
    hard = [hardness[int(id_.split(":")[1])] for id_ in summary.index]
    assert stats.spearmanr(summary["margin_z"], hard).statistic < -0.75
    assert abs(stats.spearmanr(rows.groupby("id")["margin"].mean().loc[summary.index], hard).statistic) < 0.4
    assert dynamics.summary().hardest(1, "margin_z")["margin_z"][0] == summary["margin_z"].min()


def test_a_run_recorded_before_the_runner_up_angle_was_is_read_and_resumed(tmp_path):
    train(tmp_path / "run", 2).close()
    folder = tmp_path / "run" / "dynamics"
    index = json.loads((folder / "index.json").read_text())
    (entry,) = index["files"]
    rows = pq.read_table(folder / entry["name"]).drop_columns("other_angle")
    pq.write_table(rows, folder / entry["name"])
    entry["bytes"] = (folder / entry["name"]).stat().st_size
    (folder / "index.json").write_text(json.dumps(index))
    dynamics = hs.Dynamics(tmp_path / "run")
    assert dynamics.summary().to_arrow()["angular_margin"].null_count == SAMPLES
    assert dynamics.summary().to_arrow()["angular_margin_z"].null_count == SAMPLES
    assert not np.isnan(dynamics.summary()["avh"]).any()
    assert dynamics.curve("data:3")["angular_margin"].null_count == 2
    assert "angular_margin" not in dynamics.at(2).columns
    train(hs.Recorder(tmp_path / "run", epoch=3), 3, first=3).close()
    resumed = hs.Dynamics(tmp_path / "run")
    assert np.isnan(resumed.matrix("angular_margin")).all(0).tolist() == [True, True, False]
    np.testing.assert_allclose(resumed.summary()["angular_margin"], resumed.at(3)["angular_margin"], atol=1e-12)


def test_a_run_without_soft_margins_has_no_late_one_until_it_resumes(tmp_path):
    train(tmp_path / "run", 2).close()
    folder = tmp_path / "run" / "dynamics"
    (entry,) = json.loads((folder / "index.json").read_text())["files"]
    rows = pq.read_table(folder / entry["name"]).drop_columns("soft_margin")
    pq.write_table(rows, folder / entry["name"])
    summary = hs.Dynamics(tmp_path / "run").summary()
    assert summary.to_arrow()["soft_margin_late"].null_count == SAMPLES
    assert not np.isnan(summary["avh_z"]).any()
    assert "soft_margin_late" not in epoch_means(hs.Dynamics(tmp_path / "run"), summary["id"])
    train(hs.Recorder(tmp_path / "run", epoch=3), 3, first=3).close()
    resumed = hs.Dynamics(tmp_path / "run")
    last = resumed.at(3)["soft_margin"]
    np.testing.assert_allclose(resumed.summary()["soft_margin_late"], (last - last.mean()) / last.std(), atol=1e-9)


def late_margins(cells, samples):
    """The soft margin standardized in each epoch, averaged over the later half: (sample, value) by epoch, in loops."""
    epochs = len(cells)
    values = {sample: [] for sample in samples}
    for epoch in range(epochs // 2, epochs):
        numbers = np.array([value for _, value in cells[epoch]])
        spread = np.sqrt(np.mean((numbers - numbers.mean()) ** 2)) if len(set(numbers)) > 1 else 0.0
        for sample, value in cells[epoch]:
            values[sample].append((value - numbers.mean()) / spread if spread else 0.0)
    return np.array([np.mean(of) if of else np.nan for of in values.values()])


@pytest.mark.parametrize(
    ("epochs", "exploded", "constant", "unseen"),
    [(1, 0, 0, 0), (2, 0, 0, 2), (5, 4, 0, 3), (8, 6, 7, 0), (9, 2, 5, 8), (3, 0, 3, 0)],
)
def test_the_late_soft_margin_is_what_a_loop_over_the_later_half_gives(tmp_path, epochs, exploded, constant, unseen):
    """Samples with unequal visits; an epoch explodes, one is constant, one sees a single sample; the last never."""
    draw, samples = np.random.default_rng(epochs), 30
    hardness, cells, recorder = draw.normal(size=samples), [], hs.Recorder(tmp_path / "run")
    for epoch in range(1, epochs + 1):
        ids = np.flatnonzero(draw.random(samples) < 0.7) if epoch != unseen else np.array([3])
        ids = ids[ids < samples - 1] if epoch > epochs // 2 else np.union1d(ids, [samples - 1])
        # Two classes and the label's logit −m: m itself is the soft margin.
        m = 1e5 * draw.normal(size=samples) if epoch == exploded else hardness + draw.normal(size=samples) - 0.5 * epoch
        m = np.full(samples, -2.0) if epoch == constant else m
        features = torch.tensor(np.stack([-m, np.zeros(samples)], 1), dtype=torch.float32)[ids]
        recorder.update(
            ids.tolist(), SimpleNamespace(features=features, weight=torch.eye(2), bias=None), [0] * len(ids)
        )
        recorder.end_epoch()
        cells.append(list(zip(ids.tolist(), (-features[:, 0]).double().tolist(), strict=True)))
    table = hs.Dynamics(tmp_path / "run").summary()
    numbers = [int(id_.split(":")[1]) for id_ in table["id"]]
    expected = late_margins(cells, range(samples))[numbers]
    np.testing.assert_allclose(table["soft_margin_late"], expected, rtol=1e-5, atol=1e-7)
    assert recorder.summary().to_arrow().equals(table.to_arrow())
    part = hs.Dynamics(tmp_path / "run").summary((2, epochs)) if epochs > 1 else None
    if part is not None:  # the later half of these epochs
        numbers = [int(id_.split(":")[1]) for id_ in part["id"]]
        expected = late_margins(cells[1:], range(samples))[numbers]
        np.testing.assert_allclose(part["soft_margin_late"], expected, rtol=1e-5, atol=1e-7)
    if epochs > 1 and unseen != epochs:
        hardest = table.hardest(1, "soft_margin_late")["soft_margin_late"][0]
        assert hardest == np.nanmax(table["soft_margin_late"])
    means = epoch_means(hs.Dynamics(tmp_path / "run"), table["id"])  # what align calls by this name
    np.testing.assert_allclose(means["soft_margin_late"], table["soft_margin_late"], rtol=1e-12, atol=1e-12)
    if epochs == 9:
        seen = ~np.isnan(table["soft_margin_late"])
        assert np.isnan(table["soft_margin_late"][table["id"] == f"data:{samples - 1}"]).all()
        order = [hardness[int(id_.split(":")[1])] for id_ in table["id"]]
        assert stats.spearmanr(table["soft_margin_late"][seen], np.array(order)[seen]).statistic > 0.5


def test_the_late_soft_margin_of_a_resumed_run_is_that_of_an_unbroken_one(tmp_path):
    train(tmp_path / "whole", 6)
    train(tmp_path / "broken", 4)
    train(hs.Recorder(tmp_path / "broken", epoch=3), 2 + 4, first=3)  # epochs 3 and 4 are recorded again
    whole, broken = (hs.Dynamics(tmp_path / name) for name in ("whole", "broken"))
    margins = broken.matrix("soft_margin")[:, 3:]
    expected = ((margins - margins.mean(0)) / margins.std(0)).mean(1)
    np.testing.assert_allclose(broken.summary()["soft_margin_late"], expected, rtol=1e-9, atol=1e-12)
    assert whole.summary()["id"].tolist() == broken.summary()["id"].tolist()
    assert whole.summary((1, 2))["soft_margin_late"] == pytest.approx(broken.summary((1, 2))["soft_margin_late"])
