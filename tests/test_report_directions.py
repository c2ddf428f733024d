"""Pages of tables that rank by a score that falls with hardness, lack some predictions, or have very many classes."""

import numpy as np
import pyarrow as pa
import pytest
from report_runs import cells, record, report, table_rows
from scipy import stats
from test_report_groups import with_sketches

from hardsight import SampleTable, records
from hardsight.report import classes as class_module
from hardsight.report import comparison, disagreement, training
from hardsight.report import samples as samples_module
from hardsight.report.classes import confusions, medians
from hardsight.report.clusters import harder_clusters
from hardsight.report.rows import Rows
from hardsight.report.samples import by_class
from hardsight.report.sections import Axis, axis
from hardsight.stats import holm

N, CLASSES = 400, 4


def a_run(seed=0, classes=CLASSES, names=True, **columns):
    """Samples with a confidence and nothing that is ranked before it."""
    draw = np.random.default_rng(seed)
    label = draw.integers(0, 4, N)
    columns = {
        "id": [f"x:{i:03d}" for i in range(N)],
        "label": label,
        "pred": np.where(draw.random(N) < 0.7, label, draw.integers(0, 4, N)),
        "confidence": draw.random(N),
        **columns,
    }
    meta = {"model": {"name": "net", "classes": classes}, "class_names": list("abcd") if names else []}
    return SampleTable(pa.table(columns), meta)


def class_table(rows):
    return class_module.build(rows).tables[0]


def test_the_least_confident_are_the_hardest():
    table = a_run()
    rows = Rows(table)
    assert (rows.main, rows.sign) == ("confidence", -1)
    order = np.argsort(table["confidence"])
    hardest, easiest = samples_module.build(rows).lists
    assert hardest.rows.tolist() == order[:48].tolist()
    assert easiest.rows.tolist() == order[::-1][:48].tolist()
    lists, _ = by_class(rows)
    for code in range(CLASSES):
        own = order[table["label"][order] == code].tolist()
        assert lists["hardest"][code].tolist() == own[:12]
        assert lists["easiest"][code].tolist() == own[::-1][:12]
    tenth = set(order[: N // 10].tolist())
    shares = [np.mean([i in tenth for i in np.flatnonzero(table["label"] == code)]) for code in range(CLASSES)]
    assert cells(class_table(rows), "hard_share") == pytest.approx(shares, rel=1e-3)


def test_of_too_many_classes_the_least_confident_are_listed(monkeypatch):
    monkeypatch.setattr(class_module, "MANY_CLASSES", 2)
    table = a_run()
    means = [table["confidence"][table["label"] == code].mean() for code in range(CLASSES)]
    listed = class_table(Rows(table))
    assert listed["codes"] == sorted(np.argsort(means)[:2].tolist())


def test_ranks_of_angle_and_confidence_are_both_of_hardness():
    draw = np.random.default_rng(1)
    table = a_run(avh=draw.random(N) / CLASSES)
    rows = Rows(table)
    assert (rows.main, rows.logit) == ("avh", "confidence")
    gap = stats.rankdata(table["avh"]) - stats.rankdata(-table["confidence"])
    angle, logit = disagreement.build(rows).lists
    assert angle.rows[0] == gap.argmax()
    assert logit.rows[0] == gap.argmin()


def test_a_cluster_of_small_confidence_is_harder():
    table, odd = with_sketches(planted=True)
    value = 3 * table["avh"]
    columns = {"id": table["id"], "label": table["label"], "pred": table["pred"]}
    for confidence, share in ((1 - value, 1.0), (value, 0.0)):  # turned round, the others of the class are harder
        rows = pa.table({**columns, "confidence": confidence})
        rows = Rows(SampleTable(rows, table.meta, None, table.vectors))
        clusters, _ = harder_clusters(rows)
        assert clusters
        for cluster in clusters:
            assert cluster.gap.value < 0
            members = [int(id_.split(":")[1]) for id_ in rows.ids_at(cluster.members)]
            assert odd[members].mean() == pytest.approx(share, abs=0.05)


def two_runs():
    """Confidence falls in class 0, rises twice as much in class 1, stays in the others; ten samples were relabelled."""
    draw = np.random.default_rng(3)
    before = a_run(4)
    label = before["label"]
    gain = np.select([label == 0, label == 1], [-0.1, 0.2], 0.0) + 0.05 * draw.standard_normal(N)
    label = label.copy()
    label[:10] = (label[:10] + 1) % 4
    return before, a_run(5, label=label, confidence=before["confidence"] + gain)


def test_where_confidence_falls_samples_became_harder():
    before, after = two_runs()
    rows = Rows(after)
    rows.against = before
    section = comparison.build(rows)
    found = section.columns["change"].values
    change = after["confidence"] - before["confidence"]
    np.testing.assert_allclose(found[10:], change[10:], atol=1e-12)
    harder, easier = (samples.rows.tolist() for samples in section.lists)
    assert (harder[0], easier[0]) == (np.nanargmin(found), np.nanargmax(found))
    lines = {row["class"]: row for row in table_rows(section.tables[0])}
    assert [lines[name]["flag"] for name in "ab"] == ["harder", "easier"]
    assert list(lines)[:2] == ["b", "a"]  # by how much, whatever the direction
    tests = []
    for code, name in enumerate("abcd"):
        own = (after["label"] == code) & ~np.isnan(found)
        np.testing.assert_allclose(lines[name]["before"], before["confidence"][own].mean(), rtol=1e-3)
        np.testing.assert_allclose(lines[name]["after"], after["confidence"][own].mean(), rtol=1e-3)
        tests.append(stats.ttest_rel(after["confidence"][own], before["confidence"][own]).pvalue)
    np.testing.assert_allclose([lines[name]["p"] for name in "abcd"], holm(np.array(tests)), rtol=1e-3, atol=1e-12)


def test_relabelled_samples_do_not_count_in_the_accuracies_of_two_runs():
    before, after = two_runs()
    rows = Rows(after)
    rows.against = before
    (table,) = comparison.build(rows).tables
    lines = {row["class"]: row for row in table_rows(table)}
    same = np.arange(N) >= 10
    for code, name in enumerate("abcd"):
        own = same & (after["label"] == code)
        for table, key in ((after, "accuracy"), (before, "accuracy_before")):
            assert lines[name][key] == pytest.approx(np.mean(table["pred"][own] == code), rel=1e-3), key


def test_samples_without_a_prediction_are_neither_right_nor_wrong():
    table = a_run()
    missing = np.arange(N) % 5 == 0
    table = a_run(pred=pa.array(table["pred"], mask=missing))
    rows = Rows(table)
    label, pred = rows.label[~missing], rows.pred[~missing]
    assert not rows.judged[missing].any()
    expected = [np.mean(pred[label == code] == code) for code in range(CLASSES)]
    assert [cell[0] for cell in cells(class_table(rows), "accuracy")] == pytest.approx(expected, rel=1e-3)
    most, count = confusions(rows)
    for code in range(CLASSES):
        wrong = pred[(label == code) & (pred != code)]
        times = np.bincount(wrong, minlength=CLASSES)
        assert (most[code], count[code]) == (times.argmax(), times.max())


def test_equally_frequent_confusions_name_the_smaller_class():
    rows = Rows(a_run(label=np.zeros(N, int), pred=np.where(np.arange(N) % 2, 3, 1)))
    assert [part[0] for part in confusions(rows)] == [1, N // 2]


def test_among_very_many_classes_each_keeps_its_number():
    label = np.random.default_rng(6).choice([7, 4000, 9999], N)
    pred = np.random.default_rng(7).choice([7, 5, 9999], N)
    rows = Rows(a_run(classes=10_000, names=False, label=label, pred=pred))
    assert rows.numbers.tolist() == [5, 7, 4000, 9999]
    np.testing.assert_array_equal(rows.numbers[rows.label], label)
    np.testing.assert_array_equal(rows.numbers[rows.pred], pred)


def test_medians_of_even_and_odd_numbers_are_numpy_s():
    values, group = np.array([9.0, 1, 2, 7, 5, np.nan, 4]), np.array([0, 0, 1, 1, 1, 1, -1])
    np.testing.assert_array_equal(medians(values, group, 3), [5.0, 5.0, np.nan])


def test_values_below_and_above_an_axis_are_beyond_it():
    assert Axis("x", "x", 0.0, 1.0).beyond(np.array([-1.0, 0.0, 0.5, 1.0, 2.0, np.nan])) == 2
    assert axis("x", "x", np.linspace(0.5, 1.0, 99)).low == pytest.approx(0.5)  # zero is far away
    assert axis("x", "x", np.linspace(0.3, 1.0, 99)).low == 0.0


def test_curves_do_not_depend_on_how_many_records_are_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_GROUP_ROWS", 16)  # what is read at a time is whole groups of rows
    run = record(tmp_path / "run")
    together = report(run)["training"]
    monkeypatch.setattr(training, "_TOGETHER", 70)  # ten samples of seven epochs
    assert report(run)["training"] == together
