"""Groups and hidden clusters of the report: intervals that hold, and nothing flagged that is not there."""

import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from report_runs import cells, table_rows
from scipy import stats

from hardsight import SampleTable
from hardsight.ensemble import as_lists
from hardsight.idtables import read_by_id
from hardsight.report.clusters import harder_clusters
from hardsight.report.groups import class_adjusted, find_groups, group_table
from hardsight.report.rows import Rows
from hardsight.report.write import make_payload
from hardsight.stats import holm


def a_table(n=600, classes=4, seed=0, harder=None, **columns):
    """Hardness by class plus noise; rows of the mask `harder` lie higher."""
    draw = np.random.default_rng(seed)
    label = draw.integers(0, classes, n)
    value = 0.5 + 0.2 * label + 0.1 * draw.standard_normal(n) + (0 if harder is None else 0.05 * harder)
    rows = {
        "id": [f"x:{i:05d}" for i in range(n)],
        "label": label,
        "pred": np.where(draw.random(n) < 0.8, label, 0),
        "avh": value / classes,
        **columns,
    }
    return SampleTable(pa.table(rows), {"model": {"classes": classes}})


def only_group(table):
    """The rows of the page's table, each as a mapping."""
    rows = Rows(table)
    (group,), _ = find_groups(rows)
    found = group_table(rows, group)
    return rows, found | {"rows": table_rows(found)}


def test_with_one_class_the_adjusted_t_is_welch_s():
    draw = np.random.default_rng(0)
    values, codes = draw.standard_normal(200), draw.integers(0, 3, 200)
    values[codes == 1] *= 3
    found = class_adjusted(values, np.zeros(200, int), 1, codes, 3)
    for k in range(3):
        own, rest = values[codes == k], values[codes != k]
        assert found.p[k] == pytest.approx(stats.ttest_ind(own, rest, equal_var=False).pvalue, rel=1e-9)
        assert found.value[k] == pytest.approx(own.mean() - values.mean())
        interval = stats.ttest_ind(own, rest, equal_var=False).confidence_interval(0.95)
        shrink = len(rest) / 200  # against the mean that holds the group itself
        assert found.low[k] == pytest.approx(shrink * interval.low)
        assert found.high[k] == pytest.approx(shrink * interval.high)


def test_with_several_classes_it_is_the_naive_loop():
    draw = np.random.default_rng(1)
    at, codes, values = draw.integers(0, 5, 400), draw.integers(-1, 3, 400), draw.standard_normal(400)
    found = class_adjusted(values, at, 5, codes, 3)
    residual = np.array([values[i] - values[at == at[i]].mean() for i in range(400)])
    for k in range(3):
        inside = codes == k
        own, rest = residual[inside], residual[~inside]
        a = b = 0.0
        for c in range(5):
            n_gc, n_rc = np.sum(inside & (at == c)), np.sum(~inside & (at == c))
            weight = n_gc / inside.sum() * n_rc / (n_gc + n_rc)
            a, b = a + weight**2 / n_gc * own.var(ddof=1), b + weight**2 / n_rc * rest.var(ddof=1)
        df = (a + b) ** 2 / (a**2 / (len(own) - 1) + b**2 / (len(rest) - 1))
        assert found.value[k] == pytest.approx(own.mean())
        expected = stats.t.interval(0.95, df, own.mean(), np.sqrt(a + b))
        assert (found.low[k], found.high[k]) == pytest.approx(expected)
        assert found.p[k] == pytest.approx(2 * stats.t.sf(abs(own.mean()) / np.sqrt(a + b), df))


@pytest.mark.parametrize(("groups", "classes"), [(2, 1), (2, 10), (8, 10)])
def test_under_no_difference_the_interval_misses_in_a_twentieth(groups, classes):
    draw, missed = np.random.default_rng(2), []
    for _ in range(400):
        at, codes = draw.integers(0, classes, 300), draw.integers(0, groups, 300)
        values = at + draw.standard_normal(300)
        missed.append(class_adjusted(values, at, classes, codes, groups).p[0] < 0.05)
    assert stats.binomtest(sum(missed), 400, 0.05).pvalue > 0.001


def test_group_means_have_scipy_s_intervals_and_holm_s_flags():
    harder = np.random.default_rng(9).random(600) < 0.3
    table = a_table(harder=harder, camera=np.where(harder, "old", np.where(np.arange(600) % 2, "new", "newer")))
    _, found = only_group(table)
    value, camera = 4 * table["avh"], table["camera"]
    assert found["group"] == "camera"
    assert found["chart"]["overall"] == pytest.approx(value.mean(), rel=1e-3)
    assert [row["n"] for row in found["rows"]] == sorted((row["n"] for row in found["rows"]), reverse=True)
    codes = np.array([["new", "newer", "old"].index(c) for c in camera])
    adjusted = class_adjusted(value, table["label"], 4, codes, 3)
    corrected = dict(zip(["new", "newer", "old"], holm(adjusted.p), strict=True))
    for row in found["rows"]:
        own = value[camera == row["value"]]
        expected = stats.t.interval(0.95, len(own) - 1, own.mean(), stats.sem(own))
        assert row["mean"] == pytest.approx([own.mean(), *expected], rel=1e-3)
        assert row["accuracy"] == pytest.approx(
            np.mean((table["label"] == table["pred"])[camera == row["value"]]), rel=1e-3
        )
        assert (row["flag"] != "") == (corrected[row["value"]] <= 0.05)
        if row["flag"]:
            assert row["adjusted"][1] * row["adjusted"][2] > 0  # the interval excludes 0
    assert next(row["flag"] for row in found["rows"] if row["value"] == "old") == "harder"


def test_a_group_is_flagged_only_after_correction_for_all_groups_of_the_column():
    surprising = 0
    for seed in range(12):
        place = np.random.default_rng(seed).integers(0, 8, 600)
        table = a_table(place=[f"p{k}" for k in place])
        rows = only_group(table)[1]["rows"]
        codes = np.array([int(row["value"][1:]) for row in rows])
        raw = class_adjusted(4 * table["avh"], table["label"], 4, place, 8).p[codes]
        order, largest = np.argsort(raw), 0.0
        for rank, k in enumerate(order):
            largest = min(max(largest, (8 - rank) * raw[k]), 1.0)
            assert rows[k]["p"] == pytest.approx(largest, rel=2e-3)
            assert (rows[k]["flag"] != "") == (largest <= 0.05)
        surprising += raw.min() <= 0.05 < 8 * raw.min()
    assert surprising >= 2


def test_a_mix_of_harder_classes_does_not_make_a_group_harder():
    table = a_table(2000)
    draw = np.random.default_rng(3)
    site = np.where(draw.random(2000) < 0.15 + 0.2 * table["label"], "hard mix", "easy mix")
    _, found = only_group(table.with_column("site", site))
    hard = next(row for row in found["rows"] if row["value"] == "hard mix")
    assert hard["mean"][1] > found["chart"]["overall"]  # harder as it is
    assert abs(hard["adjusted"][0]) < 0.01  # but its classes explain that
    assert all(row["flag"] == "" for row in found["rows"])


def test_a_score_that_falls_with_hardness_flags_the_right_way_round():
    harder = np.arange(400) < 200
    draw = np.random.default_rng(0)
    columns = {"id": [f"{i}" for i in range(400)], "label": np.zeros(400, int), "pred": np.zeros(400, int)}
    columns |= {"confidence": 0.9 - 0.1 * harder + 0.01 * draw.random(400), "half": np.where(harder, "a", "b")}
    _, found = only_group(SampleTable(pa.table(columns)))
    assert {row["value"]: row["flag"] for row in found["rows"]} == {"a": "harder", "b": "easier"}


def test_small_groups_have_no_interval_and_no_flag():
    camera = ["rare"] * 4 + ["usual"] * 596
    _, found = only_group(a_table(harder=100 * (np.arange(600) < 4), camera=camera))
    rare = found["rows"][1]
    assert rare["n"] == 4
    assert rare["mean"][1] is rare["adjusted"][1] is rare["p"] is None
    assert rare["flag"] == ""


def columns_of(table, given=None):
    groups, notes = find_groups(Rows(table), None if given is None else read_by_id(given, "groups"))
    return {group.column: group.values for group in groups}, notes


def test_text_booleans_and_small_integers_of_the_table_are_groups():
    n = 600
    table = a_table(
        place=["a", "b", "c"] * 200,
        indoor=np.arange(n) % 2 == 0,
        year=2000 + np.arange(n) % 7,
        fold=np.arange(n) % 5,
        agreement=np.ones(n),
        many=np.arange(n) % 60,
        size=np.random.default_rng(0).random(n),
        path=[f"/x/{i}" for i in range(n)],
        boxes=[[1, 2]] * n,
        kind=pa.array(["u", "v"] * 300).dictionary_encode(),
    )
    found, _ = columns_of(table)
    assert set(found) == {"place", "indoor", "year", "kind"}
    assert found["indoor"] == ["false", "true"]


def test_the_thirty_largest_values_are_shown_and_the_rest_counted():
    values = [f"v{i % 40:02d}" for i in range(560)] + ["v39"] * 40
    table = a_table(many=values)
    groups, _ = find_groups(Rows(table))
    assert groups[0].values == ["v39", *[f"v{i:02d}" for i in range(29)]]
    assert re.search("30 largest of 40 .*140 samples", groups[0].note)
    assert (groups[0].codes == -1).sum() == 140


def test_groups_are_read_from_whatever_holds_them(tmp_path):
    table = a_table()
    ids, side = table["id"].tolist(), ["left", "right"] * 300
    frame = pd.DataFrame({"id": ids, "side": side})
    frame.to_csv(tmp_path / "g.csv", index=False)
    frame.to_parquet(tmp_path / "g.parquet")
    given = [tmp_path / "g.csv", str(tmp_path / "g.parquet"), frame, pl.DataFrame({"id": ids, "side": side})]
    given += [
        pa.table({"id": ids, "side": side}),
        {"id": ids, "side": side},
        SampleTable(pa.table({"id": ids, "side": side})),
    ]
    results = [make_payload(Rows(table), group_table=one)["groups"] for one in given]
    assert all(result == results[0] for result in results)
    assert cells(results[0]["tables"][0], "value") == ["left", "right"]


def test_ids_in_a_csv_keep_their_zeros(tmp_path):
    (tmp_path / "g.csv").write_text("id,side\n007,a\n008,a\n009,b\n")
    table = SampleTable.from_columns({"id": ["007", "008", "009"], "avh": [1.0, 2.0, 3.0]})
    assert columns_of(table, tmp_path / "g.csv")[0] == {"side": ["a", "b"]}


def test_quantities_are_cut_into_fifths_and_gaps_counted():
    table = a_table()
    age = np.random.default_rng(0).random(500) * 80
    rows = Rows(table)
    (group,), notes = find_groups(rows, read_by_id({"id": table["id"][:500], "age": age}, "groups"))
    assert len(group.values) == 5
    assert np.bincount(group.codes[group.codes >= 0]).tolist() == [100] * 5
    assert "fifths" in group.note
    assert "100 samples" in group.note
    assert [note[:19] for note in notes] == ["groups: 500 of 600 "]
    for value, code in zip(age, group.codes[:500], strict=True):
        low, high = map(float, group.values[code].split(" to "))
        assert low * 0.999 <= value <= high * 1.001


def test_nan_is_no_group():
    year = np.where(np.arange(600) < 10, np.nan, 2000.0 + np.arange(600) % 2)
    assert columns_of(a_table(year=year))[0] == {"year": ["2000", "2001"]}


def test_points_know_their_group():
    table = a_table(place=["a", "b", "c"] * 200)
    payload = make_payload(Rows(table))
    names = [payload["groups"]["values"]["place"][k] for k in payload["points"]["groups"]["place"]]
    assert names == table["place"].tolist()


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({"name": ["a"]}, ValueError, "groups .*id, .*name"),
        ({"id": ["a", "a"], "g": [1, 1]}, ValueError, "groups .*per id"),
        ({"id": ["a", "b"], "g": [1]}, ValueError, "groups .*one length"),
        ({"id": ["a", "b"], "g": [1, "x"]}, ValueError, "groups .*one length"),
        (3, TypeError, "groups .*got int"),
        (pa.table({"id": pa.array([["a"]]), "cam": ["x"]}), ValueError, "ids .*got list"),
        ("nowhere.csv", FileNotFoundError, r"no file nowhere\.csv"),
    ],
)
def test_bad_groups_are_a_sentence(given, error, sentence):
    with pytest.raises(error, match=sentence):
        make_payload(Rows(a_table()), group_table=given)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("g.parquet", "no", r"g\.parquet is no"),
        ("g.csv", "id,cam,cam\nx:00000,a,b\n", "cam repeats"),
        ("g.csv", "id,id,cam\nx:00000,x,b\n", "id repeats"),
    ],
)
def test_bad_files_of_groups_are_a_sentence(name, text, words, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        make_payload(Rows(a_table()), group_table=tmp_path / name)


def test_groups_that_match_nothing_say_so():
    found, notes = columns_of(a_table(), {"id": ["other"], "g": ["a"]})
    assert found == {}
    assert "0 of 600" in notes[0]
    assert "g is not shown" in notes[1]


def with_sketches(planted, n=1500, seed=0):
    """Three classes; in the first a fifth of the samples point elsewhere, and are harder if `planted`."""
    draw = np.random.default_rng(seed)
    label = draw.integers(0, 3, n)
    odd = (label == 0) & (draw.random(n) < 0.2)
    centres = np.eye(8)[[0, 1, 2]] * 4
    sketch = centres[label] + 0.7 * draw.standard_normal((n, 8))
    sketch[odd] += 5 * np.eye(8)[5]
    value = 0.6 + 0.1 * draw.standard_normal(n) + 0.2 * (odd & planted)
    ids = [f"x:{i}" for i in range(n)]
    rows = pa.table({"id": ids, "label": label, "pred": np.where(odd, 2, label), "avh": value / 3})
    vectors = pa.table({"id": ids, "sketch": as_lists(sketch.astype(np.float16))})
    vectors = vectors.take(draw.permutation(n)[: n - 50])  # in another order, and not all
    return SampleTable(rows, {"model": {"classes": 3}, "class_names": ["cat", "cow", "dog"]}, None, vectors), odd


def test_a_planted_cluster_is_found_and_measured_on_the_other_half():
    table, odd = with_sketches(planted=True)
    rows = Rows(table)
    clusters, _ = harder_clusters(rows)
    assert clusters
    for cluster in clusters:  # k-means may cut it in two
        members = rows.ids_at(cluster.members)
        assert np.mean([odd[int(id_.split(":")[1])] for id_ in members]) > 0.95
        assert cluster.gap.low < 0.2 < cluster.gap.high
    assert 0.3 * odd.sum() < sum(len(cluster.members) for cluster in clusters) < 0.6 * odd.sum()
    found, own = make_payload(rows)["clusters"]["rows"][0], rows.value[clusters[0].members]
    expected = stats.t.interval(0.95, len(own) - 1, own.mean(), stats.sem(own))
    assert found["mean"] == pytest.approx([own.mean(), *expected], rel=1e-3)
    assert (found["class"], found["confused"], found["n"]) == ("cat", "dog", len(clusters[0].members))
    assert len(found["rows"]) == 8


@pytest.mark.parametrize("seed", range(6))
def test_no_cluster_is_harder_where_none_is(seed):
    clusters, note = harder_clusters(Rows(with_sketches(planted=False, seed=seed)[0]))
    assert clusters == []
    assert "0 clusters of" in note


def test_without_sketches_or_samples_there_are_no_clusters():
    assert "clusters" not in make_payload(Rows(a_table()))
    few, _ = with_sketches(planted=True, n=90)
    assert harder_clusters(Rows(few))[0] == []


def test_two_groups_are_one_test():
    """One group against the other is the same question as the other against the one."""
    draw = np.random.default_rng(5)
    camera = np.where(draw.random(600) < 0.5, "A", "B")
    rows, section = only_group(a_table(harder=camera == "A", camera=camera))
    first, second = section["rows"]
    assert first["p"] == pytest.approx(second["p"])
    group = find_groups(rows)[0][0]
    adjusted = class_adjusted(rows.value, rows.at, rows.codes, group.codes, 2)
    assert {row["value"]: row["p"] for row in section["rows"]} == pytest.approx(
        dict(zip(group.values, adjusted.p, strict=True)), rel=1e-3
    )
