"""Ties and even counts: medians of two middle values, and who comes first among equals."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from report_runs import cells

from hardsight import SampleTable
from hardsight.ensemble import mean_over_nets
from hardsight.report.classes import confusions, medians
from hardsight.report.rows import Rows
from hardsight.report.sections import Column
from hardsight.report.training import recorded_lists
from hardsight.report.write import make_payload


@pytest.mark.parametrize("seed", range(4))
def test_medians_are_numpys_for_odd_even_and_no_values(seed):
    draw = np.random.default_rng(seed)
    group = np.repeat([0, 1, 3, 4, -1], [4, 5, 2, 1, 3])  # nobody is in group 2
    values = draw.integers(0, 6, len(group)).astype(float) * 10
    values[draw.integers(0, len(group), 2)] = np.nan
    order = draw.permutation(len(group))
    expected = [np.median(own) if len(own := values[(group == k) & ~np.isnan(values)]) else np.nan for k in range(5)]
    np.testing.assert_array_equal(medians(values[order], group[order], 5), expected)


def test_the_median_of_two_is_their_mean():
    assert medians(np.array([1.0, 4.0, 2.0, 90.0]), np.zeros(4, int), 1).tolist() == [3.0]


def equally_hard(n, first):
    """Samples of one hardness, the first ids of class 0, in the opposite order of their ids."""
    numbers = np.arange(n)[::-1]
    ids, label = [f"{i:03d}" for i in numbers], (numbers >= first).astype(int)
    return SampleTable.from_columns({"id": ids, "label": label, "pred": 0 * label, "avh": np.full(n, 0.25)})


def test_of_equally_hard_samples_the_first_ids_are_the_hardest_tenth():
    payload = make_payload(Rows(equally_hard(40, first=10)))
    (table,) = payload["class_table"]["tables"]
    assert cells(table, "hard_share") == [4 / 10, 0]  # four of forty: 000 to 003
    hardest = next(one["rows"] for one in payload["lists"] if one["key"] == "hardest")
    easiest = next(one["rows"] for one in payload["lists"] if one["key"] == "easiest")
    assert [payload["points"]["id"][row] for row in hardest[:3]] == ["000", "001", "002"]
    assert [payload["points"]["id"][row] for row in easiest[:3]] == ["000", "001", "002"]


def test_of_equally_frequent_confusions_the_smaller_class_is_named():
    columns = {"id": list("abcdef"), "label": [0, 0, 0, 0, 1, 1], "pred": [2, 1, 2, 1, 0, 1], "avh": [0.1] * 6}
    most, count = confusions(Rows(SampleTable.from_columns(columns)))
    assert (most[:2].tolist(), count[:3].tolist()) == ([1, 0], [2, 1, 0])


def test_equal_keys_are_ordered_by_the_second_key_and_then_by_row():
    columns = {"forgetting": [1.0, 2, 1, 1, 1, 0], "aum": [5.0, 9, 3, 3, 4, 0], "learned": [1.0] * 6}
    columns |= {"soft_margin_late": [2.0, 3, 2, 1, 2, 0]}
    columns = {name: Column(np.array(values), "", "", "") for name, values in columns.items()}
    lists = {each.key: each.rows.tolist() for each in recorded_lists(SimpleNamespace(columns=columns, unit="epoch"))}
    assert lists["forgotten"] == [1, 2, 3, 4, 0]
    assert lists["late_margin"] == [1, 2, 4, 0, 3, 5]


def networks(preds, sure, avh):
    """As many networks as rows; `sure` is the log-probability of each network's prediction."""
    rows = []
    for k, (pred, log_p, hardness) in enumerate(zip(preds, sure, avh, strict=True)):
        ids = [str(i) for i in range(len(pred))]
        columns = {"id": ids, "model": [f"net {k}"] * len(pred), "pred": pred, "avh": hardness}
        rows.append(pa.table(columns | {"max_logit": log_p, "free_energy": [0.0] * len(pred)}))
    return mean_over_nets(pa.concat_tables(rows))


def test_a_tied_vote_goes_to_the_most_confident_network_and_equal_ranks_share_their_mean():
    table = networks(
        preds=[[1, 1, 0], [2, 2, 0]],
        sure=[[-0.1, -0.9, -0.5], [-0.9, -0.1, -0.5]],
        avh=[[0.2, 0.2, 0.1], [0.4, 0.4, 0.1]],
    )
    assert table["pred"].to_pylist() == [1, 2, 0]
    assert table["agreement"].to_pylist() == [0.5, 0.5, 1.0]
    assert table["rank"].to_pylist() == [1.5, 1.5, 3.0]
    assert table["rank_low"].to_pylist() == [1.5, 1.5, 3.0]


def test_a_majority_outvotes_a_more_confident_network():
    table = networks(preds=[[1], [1], [2]], sure=[[-3.0], [-3.0], [0.0]], avh=[[0.1]] * 3)
    assert table["pred"].to_pylist() == [1]
    assert table["agreement"].to_pylist() == [2 / 3]
