"""What a round of self-training says of itself, against small cases by hand and plain loops."""

import re

import numpy as np
import pyarrow as pa
import pytest

from hardsight.adaptation.rounds import (
    accuracy_row,
    alarm,
    best,
    collapse,
    conclusions,
    effective_classes,
    selection_row,
)
from hardsight.adaptation.validators import VALIDATORS


def table_of(labels, predicted, true, avh):
    columns = {"label": pa.array(labels, pa.int64()), "predicted": predicted, "true": pa.array(true, pa.int64())}
    return pa.table(columns | {"avh": avh, "avc": avh, "confidence": avh, "norm": avh})


def test_what_was_chosen_is_counted_by_hand():
    # Chosen: 0, 0, 1, 1, of which the second is wrong; the two with the higher AVH are the second and the fourth.
    table = table_of([0, 0, 1, 1, None], [0, 0, 1, 1, 0], [0, 1, 1, 1, 0], [0.1, 0.4, 0.2, 0.3, 0.9])
    row = selection_row(table, 3)
    assert (row["selected"], row["selected_share"]) == (4, 0.8)
    assert (row["tp_rate"], row["hard_tp_rate"]) == (0.75, 0.5)
    assert row["avh"] == pytest.approx(0.25)
    assert row["balance_distance"] == pytest.approx(0.1)  # (.5, .5) against (.6, .4)
    # Wilson's interval of 3 of 4 at z = 1.959964: centre .627, half .327.
    z = 1.959963984540054
    centre, half = (3 / 4 + z**2 / 8) / (1 + z**2 / 4), z / (1 + z**2 / 4) * (3 / 64 + z**2 / 64) ** 0.5
    assert (row["tp_rate_low"], row["tp_rate_high"]) == pytest.approx((centre - half, centre + half))
    unknown = selection_row(table_of([0], [0], [None], [0.5]), 2)
    assert "tp_rate" not in unknown
    none = selection_row(table_of([None], [0], [0], [0.5]), 2)
    assert (none["selected"], none["avh"], none["balance_distance"]) == (0, None, None)


def test_accuracies_agree_with_a_plain_loop():
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.ones(4), 50), rng.integers(0, 3, 50)  # nothing of the fourth class
    row = accuracy_row("test", p, y)
    right = [int(np.argmax(p[i])) == int(y[i]) for i in range(50)]
    by_class = [np.mean([right[i] for i in range(50) if y[i] == k]) for k in range(3)]
    assert row["test_accuracy"] == pytest.approx(sum(right) / 50)
    assert row["test_by_class"] == pytest.approx([*by_class, None])
    assert row["test_mean_class"] == pytest.approx(np.mean(by_class))
    assert accuracy_row("test", p, None) == {}


def test_last_round_and_oracle_are_always_apart():
    def row(number, accuracy, snd):
        ends = {"test_accuracy_low": accuracy, "test_accuracy_high": accuracy, "test_mean_class": accuracy}
        return {"round": number, "test_accuracy": accuracy, **ends, **dict.fromkeys(VALIDATORS, 0.0), "snd": snd}

    rows = [row(0, 0.5, 1.0), row(1, 0.8, 2.0), row(2, 0.8, 9.0), row(3, 0.75, 3.0)]
    assert best(rows) == ("test_accuracy", rows[1])  # the first of equals
    words = conclusions(rows)
    assert re.search(r"round \(3\): .*75\.00%", words[1])
    assert words[1].endswith("; +25.00 points by adapting.")
    assert re.search(r"oracle.*round 1: 80\.00%", words[2])
    assert "snd picks round 2 (80.00%)" in words[3]
    unknown = [{"round": 0, **dict.fromkeys(VALIDATORS, 0.0)}, {"round": 1, **dict.fromkeys(VALIDATORS, 1.0)}]
    assert best(unknown) is None
    assert "information_maximisation 1" in conclusions(unknown)[0]


def test_alarms_and_distances_by_hand():
    assert effective_classes([4, 4, 4, 4]) == pytest.approx(4)
    assert alarm([10, 10, 10], [9, 11, 10], [3, 3, 2]) is None
    uneven = "the selection is as uneven as 1.0 equal classes, 3.0 in the predictions"
    assert alarm([10, 10, 10], [9, 11, 10], [3, 0, 0]) == uneven
    assert re.search(r"1\.3 .*classes, 3\.0 before", alarm([28, 1, 1], [10, 10, 10]))
    names = list("abcdefgh")
    assert (
        alarm([5, 5, *[0] * 6], [5, 5, *[0] * 6], names=names)
        == "nothing is predicted to c, d, e, f, g and 1 more (6 of 8 classes)"
    )
    assert collapse([1, 2]) is None
    assert "one class (b)" in collapse([0, 2], ["a", "b"])
