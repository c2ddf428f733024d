"""The numbers of the report: every one against scipy, NumPy or a naive loop."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from naive import triple
from report_runs import cells, in_page, listed
from scipy import stats

import hardsight as hs
from hardsight import SampleTable
from hardsight.errors import InputError
from hardsight.labelerrors import label_errors, noise
from hardsight.report import label_errors as report_label_errors
from hardsight.report import write_report
from hardsight.report.formatting import ID_BYTES, NAME_BYTES, cut, cut_name, json_bytes, number, plain
from hardsight.report.notices import tiles
from hardsight.report.rows import Rows
from hardsight.report.samples import LENGTH, top
from hardsight.report.sections import Column, View, axis, rank_correlation
from hardsight.report.thumbnails import MOST_POINTS, choose_points, spread
from hardsight.report.write import make_payload
from hardsight.stats import holm, moments, wilson


def a_table(n=400, classes=6, **meta):
    torch.manual_seed(0)
    features, weight, labels, bias = triple(n, 12, classes)
    ids = [f"set/{'abc'[i % 3]}/{i:05d}.png" for i in np.random.default_rng(5).permutation(n)]
    table = hs.score_features(features, weight, labels, bias, ids, name="a net")
    table.meta = replace(table.meta, class_names=[f"kind {k}" for k in range(classes)], **meta)
    return table


def fake(n, classes, seed=0, ids=None):
    """A large table of made-up numbers with the columns of a real one."""
    draw = np.random.default_rng(seed)
    label = draw.integers(0, classes, n)
    nll = draw.gamma(0.5, 1.0, n)
    columns = {
        "id": [f"x:{i}" for i in range(n)] if ids is None else ids,
        "label": label,
        "pred": np.where(draw.random(n) < 0.2, draw.integers(0, classes, n), label),
        "avh": (0.6 + 0.2 * nll + 0.1 * draw.standard_normal(n)) / classes,
        "confidence": np.exp(-nll),
        "nll": nll,
        "norm": draw.gamma(9.0, 1.0, n),
    }
    return SampleTable(pa.table(columns), {"model": {"name": "fake", "classes": classes}})


def payload_of(table, **options):
    return make_payload(Rows(table), **options)


def ids_of(payload, rows):
    return [payload["points"]["id"][row] for row in rows]


def test_wilson_is_scipy_s():
    n = np.array([1, 2, 7, 50, 1000, 0])
    k = np.array([0, 1, 7, 13, 999, 0])
    low, high = wilson(k, n)
    for i in range(5):
        expected = stats.binomtest(int(k[i]), int(n[i])).proportion_ci(method="wilson")
        np.testing.assert_allclose([low[i], high[i]], [expected.low, expected.high], atol=1e-12)
    assert np.isnan([low[5], high[5]]).all()


def test_means_and_student_s_intervals_are_scipy_s():
    draw = np.random.default_rng(0)
    values, group = 1e6 + draw.standard_normal(500), draw.integers(-1, 7, 500)
    values[::50] = np.nan
    found = moments(values, group, 8)  # the eighth group is empty
    low, high = found.interval()
    for k in range(7):
        own = values[(group == k) & ~np.isnan(values)]
        expected = stats.t.interval(0.95, len(own) - 1, own.mean(), stats.sem(own))
        np.testing.assert_allclose([low[k], high[k]], expected, rtol=1e-13)
        np.testing.assert_allclose(found.variance[k], own.var(ddof=1), rtol=1e-9)
    assert found.n[7] == 0
    assert np.isnan([found.mean[7], low[7]]).all()
    # Fewer than five samples have no interval.
    low, high = moments(np.arange(9.0), np.array([0, 0, 0, 0, 1, 1, 1, 1, 1]), 2).interval()
    assert np.isnan([low[0], high[0]]).all()
    assert np.isfinite([low[1], high[1]]).all()


@pytest.mark.parametrize("seed", range(5))
def test_holm_is_the_naive_loop(seed):
    p = np.random.default_rng(seed).random(12) ** 3
    p[3] = np.nan
    adjusted, tested = holm(p), [i for i in range(12) if i != 3]
    order, running = sorted(tested, key=lambda i: p[i]), 0.0
    for step, i in enumerate(order):
        running = max(running, min((len(order) - step) * p[i], 1.0))
        assert adjusted[i] == pytest.approx(running)
    assert np.isnan(adjusted[3])
    assert len(holm(np.empty(0))) == 0


def test_ranks_are_scipy_s_mid_ranks():
    rows = Rows(a_table())
    expected = (stats.rankdata(rows.scores["nll"]) - 0.5) / len(rows)
    np.testing.assert_array_equal(rows.rank_logit, expected)
    payload = payload_of(a_table())
    np.testing.assert_allclose(payload["points"]["scores"]["rank_logit"], expected, rtol=5e-4)


@pytest.mark.parametrize("k", [0, 1, 7, 50, 500])
def test_top_is_a_full_sort(k):
    values = np.random.default_rng(k).integers(0, 9, 300).astype(float)  # many ties
    values[::17] = np.nan
    order = sorted((i for i in range(300) if not np.isnan(values[i])), key=lambda i: (-values[i], i))
    assert top(values, k).tolist() == order[:k]


def test_only_errors_raised_on_purpose_leave_suspects_out(monkeypatch):
    def missing(table, *options):
        raise InputError("table must have avh.")

    def broken(table, *options):
        return np.ones(2) + np.ones(3)

    monkeypatch.setattr(report_label_errors, "ranked_labels", missing)
    assert "table must have avh." in report_label_errors.find_suspects(Rows(a_table(30)))
    monkeypatch.setattr(report_label_errors, "ranked_labels", broken)
    with pytest.raises(ValueError, match="broadcast"):
        report_label_errors.find_suspects(Rows(a_table(30)))


def hardest_tile(labels, avh):
    """The interval that is quoted of the hardest class, and its mean."""
    ids = [f"s{i}" for i in range(len(avh))]
    table = SampleTable.from_columns({"id": ids, "label": labels, "pred": labels, "avh": avh})
    [tile] = [one for one in tiles(Rows(table)) if one[0] == "hardest class"]
    mean, low, high = (float(x) for x in re.match(r"\D+([\d.]+), 95% interval ([\d.]+) to ([\d.]+)", tile[2]).groups())
    return int(tile[1].removeprefix("class ")), mean, low, high


def test_the_hardest_class_is_quoted_with_an_interval_for_all_classes_together():
    labels, covered = np.repeat(np.arange(40), 12), 0
    for seed in range(100):
        avh = np.random.default_rng(seed).normal(0.5, 0.1, 480)
        code, mean, low, high = hardest_tile(labels, avh)
        if not seed:
            values = 40 * np.array([avh[labels == k] for k in range(40)])
            hardest = values[values.mean(1).argmax()]
            expected = stats.t.interval(1 - 0.05 / 40, 11, hardest.mean(), stats.sem(hardest))
            assert code == values.mean(1).argmax()
            assert (mean, low, high) == pytest.approx((hardest.mean(), *expected), rel=5e-3)
        covered += low <= 40 * 0.5 <= high
    assert covered >= 88  # each on its own would do so in fewer than 60


def test_hardest_and_easiest_are_the_table_s_and_disagreement_is_the_difference_of_ranks():
    table = a_table()
    payload = payload_of(table)
    assert listed(payload, "hardest") == table.hardest(LENGTH)["id"].tolist()
    assert listed(payload, "easiest") == table.easiest(LENGTH)["id"].tolist()
    gap = stats.rankdata(table["avh"]) - stats.rankdata(table["nll"])
    order = sorted(range(len(table)), key=lambda i: (-gap[i], table["id"][i]))
    expected = [table["id"][i] for i in order if gap[i] > 0][:LENGTH]
    assert listed(payload, "angle_hard") == expected
    back = sorted(range(len(table)), key=lambda i: (gap[i], table["id"][i]))
    assert listed(payload, "logit_hard") == [table["id"][i] for i in back if gap[i] < 0][:LENGTH]
    assert "loss (nll)" in next(one["note"] for one in payload["lists"] if one["key"] == "angle_hard")


def test_lists_by_class_are_full_sorts():
    table = a_table()
    payload = payload_of(table)
    for k in range(6):
        own = [i for i in range(len(table)) if table["label"][i] == k]
        hard = sorted(own, key=lambda i: (-table["avh"][i], table["id"][i]))
        assert ids_of(payload, payload["by_class"]["hardest"][k]) == [table["id"][i] for i in hard[:12]]
        easy = sorted(own, key=lambda i: (table["avh"][i], table["id"][i]))
        assert ids_of(payload, payload["by_class"]["easiest"][k]) == [table["id"][i] for i in easy[:12]]


def test_suspects_are_those_of_label_errors():
    table = a_table()
    payload, found = payload_of(table, run="some run"), label_errors(table)
    suspects = found["id"][found["suspect"]]
    assert listed(payload, "suspects") == suspects.tolist()
    assert payload["label_errors"]["count"] == len(suspects) > 0
    assert payload["label_errors"]["command"] == "hardsight clean 'some run'"
    where = {id_: i for i, id_ in enumerate(payload["points"]["id"])}
    for row in found.to_arrow().slice(0, 50).to_pylist():
        i = where[row["id"]]
        assert payload["points"]["scores"]["suspicion"][i] == pytest.approx(row["suspicion"], rel=1e-3, abs=1e-12)
        assert payload["points"]["suggested"][i] == (-1 if row["suggested"] is None else row["suggested"])
    shares = dict(zip(*(noise(table).rows[c].to_pylist() for c in ("class", "share")), strict=True))
    assert column(payload, "noise") == pytest.approx([shares[k] for k in range(6)], rel=1e-3)


def test_density_is_numpy_s_histogram():
    table = a_table(900)
    payload = payload_of(table)
    view = payload["views"][0]
    x, y = 6 * table["avh"], table["confidence"]
    counts, _, _ = np.histogram2d(
        y, x, (48, 60), [(view["y"]["low"], view["y"]["high"]), (view["x"]["low"], view["x"]["high"])]
    )
    assert view["density"]["counts"] == counts.astype(int).ravel().tolist()
    assert view["density"]["max"] == counts.max()
    assert [v["key"] for v in payload["views"]] == ["avh-confidence", "avh-norm", "ranks", "map-pca"]
    assert all(sum(v["density"]["counts"]) == 900 for v in payload["views"])


def test_values_beyond_the_axis_are_counted_at_its_edge():
    values = np.concatenate([np.linspace(0.2, 1.0, 5000), [1e9]])
    over = axis("norm", "norm", values)
    assert over.high < 10
    assert over.beyond(values) == 1
    assert sum(View("", "", "", over, over).as_dict({"norm": Column(values, "", "", "")})["density"]["counts"]) == 5001


@pytest.mark.parametrize("values", [[0.0], [3.0, 3.0], [-2.0, -2.0], [np.nan], [], [1e-30, 2e-30], [1e30, -1e30]])
def test_an_axis_holds_whatever_there_is(values):
    values = np.array(values, dtype=float)
    over = axis("x", "x", values)
    assert over.low < over.high
    assert over.beyond(values) == 0
    assert len(over.bins(values, 9)) == len(values)


def test_histograms_are_numpy_s():
    table = a_table(500)
    right = table["label"] == table["pred"]
    for found in payload_of(table)["histograms"]["charts"]:
        values = table[found["key"]] * (6 if found["key"] == "avh" else 1)
        edges = np.linspace(found["edges"][0], found["edges"][-1], 41)
        for series, mask in zip(found["series"], (right, ~right), strict=True):
            assert series["counts"] == np.histogram(np.clip(values[mask], edges[0], edges[-1]), edges)[0].tolist()


def test_points_are_few_hold_every_list_and_show_what_is_rare():
    table = fake(60_000, 500)
    payload = payload_of(table)
    points, view = payload["points"], payload["views"][0]
    assert len(points["id"]) == MOST_POINTS
    assert listed(payload, "hardest") == table.hardest(LENGTH)["id"].tolist()
    assert set(points["label"]) == set(range(500))  # every class
    for lists in payload["by_class"].values():
        assert all({points["label"][row] for row in rows} == {k} for k, rows in lists.items())
    drawn = [int(id_.removeprefix("x:")) for id_ in points["id"]]
    x, y = ((view[at]["low"], view[at]["high"]) for at in "xy")
    exact = np.clip(table["confidence"][drawn], *y), np.clip(500 * table["avh"][drawn], *x)
    counts, *_ = np.histogram2d(*exact, (48, 60), (y, x))
    np.testing.assert_array_equal(counts.ravel() > 0, np.array(view["density"]["counts"]) > 0)  # every region


def test_points_are_all_rows_when_they_are_few_and_the_first_of_each_stratum_first():
    assert choose_points(50, np.array([3]), np.zeros(50, int), np.zeros(50, int)).tolist() == list(range(50))
    assert spread(np.array([5, 5, 5, 2, 2, 9])).tolist() == [0, 3, 5, 1, 4, 2]
    assert spread(np.empty(0, dtype=int)).tolist() == []


def test_nothing_depends_on_the_order_of_the_rows():
    table = fake(15_000, 30)
    shuffled = SampleTable(table.to_arrow().take(np.random.default_rng(1).permutation(len(table))), table.meta)
    assert payload_of(table) == payload_of(shuffled)
    small = a_table()
    vectors = small.vectors.take(np.random.default_rng(2).permutation(len(small)))
    mixed = SampleTable(
        small.to_arrow().take(np.random.default_rng(1).permutation(len(small))), small.meta, None, vectors
    )
    assert payload_of(small) == payload_of(mixed)


def column(payload, key):
    return cells(payload["class_table"]["tables"][0], key)


def test_the_class_table_is_the_naive_loop():
    table = a_table(700)
    payload = payload_of(table)
    value, label, pred = 6 * table["avh"], table["label"], table["pred"]
    order = sorted(range(len(table)), key=lambda i: (-value[i], table["id"][i]))
    hardest = set(order[:70])
    assert column(payload, "name") == [f"kind {k}" for k in range(6)]
    for k in range(6):
        own = np.flatnonzero(label == k)
        wilsons = stats.binomtest(int((pred[own] == k).sum()), len(own)).proportion_ci(method="wilson")
        student = stats.t.interval(0.95, len(own) - 1, value[own].mean(), stats.sem(value[own]))
        wrong = pred[own][pred[own] != k]
        taken = max(range(6), key=lambda c: (np.sum(wrong == c), -c))
        expected = {
            "n": len(own),
            "accuracy": [np.mean(pred[own] == k), wilsons.low, wilsons.high],
            "avh": [value[own].mean(), *student],
            "median": np.median(value[own]),
            "hard_share": np.mean([i in hardest for i in own]),
            "norm": table["norm"][own].mean(),
        }
        for key, number_ in expected.items():
            assert column(payload, key)[k] == pytest.approx(number_, rel=1e-3), key
        assert column(payload, "confused")[k] == f"kind {taken} ({np.sum(wrong == taken)})"
        edges = np.linspace(*(payload["class_table"]["edges"][i] for i in (0, -1)), 21)
        assert payload["class_table"]["histograms"][k] == np.histogram(value[own], edges)[0].tolist()


def test_tiles_say_accuracy_and_mean_with_intervals():
    table = a_table(700)
    tiles = {name: {"value": value, "note": note} for name, value, note in payload_of(table)["tiles"]}
    right = int((table["label"] == table["pred"]).sum())
    ends = stats.binomtest(right, 700).proportion_ci(method="wilson")
    assert tiles["accuracy"]["value"] == f"{100 * right / 700:.1f}%"
    assert f"{100 * ends.low:.1f}–{100 * ends.high:.1f}%" in tiles["accuracy"]["note"]
    value = 6 * table["avh"]
    low, high = stats.t.interval(0.95, 699, value.mean(), stats.sem(value))
    assert tiles["mean C·AVH"]["value"] == f"{value.mean():.3g}"
    assert f"{low:.3g} to {high:.3g}, n = 700" in tiles["mean C·AVH"]["note"]


def test_correlations_in_the_notes_are_scipy_s():
    table = a_table()
    rho = stats.spearmanr(table["norm"], table["avh"]).statistic
    note = next(v["note"] for v in payload_of(table)["views"] if v["key"] == "avh-norm")
    assert f"is {rho:+.3f}".replace("-", "−") in note
    assert rank_correlation(np.ones(5), np.arange(5.0)) == (None, 5)


def test_several_nets_show_their_spread():
    table = a_table(60, models=["a", "b", "c"])
    for name, value in {"avh_sd": 0.01, "rank": 7.0, "rank_low": 3.0, "rank_high": 11.0, "agreement": 1.0}.items():
        table = table.with_column(name, np.full(60, value))
    payload = payload_of(table)
    assert payload["points"]["spread"]["avh_sd"][0] == pytest.approx(6 * 0.01)
    assert payload["points"]["spread"]["rank_high"][0] == 11
    assert any("mean over 3 nets (a, b, c)" in notice["text"] for notice in payload["notices"])
    assert payload["groups"]["values"] == {}  # none of these is a group


@pytest.mark.parametrize(
    "text", ["", "a", "x" * 5000, "😀" * 5000, "<&>" * 999, "\x00" * 999, "\ud800" * 999, "é" * 161]
)
def test_text_is_cut_to_its_room(text):
    for shown, length, room in (
        (cut(text), 160, ID_BYTES),
        (cut_name(text), 60, NAME_BYTES),
        (cut_name(text, 24), 60, 24),
    ):
        assert len(shown) <= length
        assert json_bytes(shown) <= room
        shown.encode()
    assert cut("a/" + "b" * 200 + "/c.png").endswith("/c.png")


def test_numbers_are_plain():
    assert plain(np.array([1.23456, np.nan, np.inf, -0.0, 1e-20])) == [1.235, None, None, 0.0, 1e-20]
    assert plain(np.array([3, 4])) == [3, 4]
    assert number(None) is None


def test_a_run_gets_its_page_inside_and_a_table_here(tmp_path, monkeypatch):
    a_table().save(tmp_path / "run")
    path = write_report(tmp_path / "run")
    assert path == tmp_path / "run" / "report.html"
    assert in_page(path)["n"] == 400
    assert in_page(path)["label_errors"]["command"] == f"hardsight clean {tmp_path / 'run'}"
    assert not list(path.parent.glob(".*"))
    assert hs.SampleTable.load(tmp_path / "run").accuracy is not None
    monkeypatch.chdir(tmp_path)
    assert write_report(a_table(30)).resolve() == tmp_path / "report.html"
    assert write_report(a_table(30), "deep/down/page.html").is_file()


def test_a_page_that_cannot_be_made_leaves_the_old_one(tmp_path, monkeypatch):
    target = write_report(a_table(30), tmp_path / "page.html")
    before = target.read_bytes()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        write_report(a_table(40), target)
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def of(**columns):
    return SampleTable.from_columns(columns)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda d: write_report(a_table(9), d), ValueError, "out .*folder"),
        (lambda d: write_report(a_table(9), d / "x", pictures=-1), ValueError, "pictures must"),
        (lambda d: write_report(d / "none"), FileNotFoundError, "no hardsight run"),
        (lambda d: write_report(of(id=np.empty(0, str)), d / "x"), ValueError, "one scored sample"),
        (lambda d: write_report(of(id=["a"], label=["x"]), d / "x"), ValueError, "label .*class numbers"),
        (lambda d: write_report(of(id=["a"], pred=[0], avh=[1.0]), d / "x", against=3), TypeError, "before .*got int"),
    ],
)
def test_bad_input_is_a_sentence(call, error, sentence, tmp_path):
    with pytest.raises(error, match=sentence):
        call(tmp_path)
