"""Decisions: a file means exactly the samples and classes that it names, whatever characters are in them."""

import csv
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

import hardsight as hs
from hardsight.errors import InputError
from hardsight.labelerrors import clean

IDS = ["=x", "'=x", "''=x", "'x", "x", "a\nb", "a\r\nb", 'quo"ted', "a,b", "007", "7", " x", "NA", "", "x\x00"]
NAMES = ["=cat", "'=cat", "twin", "twin", "3", "007", "7", "NA", "true", "", 'a,"b"', "line\nbreak", "1.0", "#13"]


@pytest.fixture
def table():
    n = len(IDS)
    made = hs.SampleTable.from_columns({"id": IDS, "label": [0] * n, "pred": [0] * n, "margin": np.ones(n)})
    made.meta = replace(made.meta, class_names=NAMES)
    return made


def guarded(text):
    return f"'{text}" if text.startswith(("=", "'")) else text


def decided(table, folder, decisions):
    """Action, class and name by id."""
    clean(table, folder / "lists", count=0, decisions=decisions, overwrite=True)
    rows = pq.read_table(folder / "lists" / "actions.parquet").to_pylist()
    return {row["id"]: (row["action"], row["suggested"], row["suggested_name"]) for row in rows}


@pytest.mark.parametrize("k", range(len(NAMES)))
def test_a_csv_means_exactly_its_ids_and_classes(table, tmp_path, k):
    # A name that several classes have, or none, is written as the number; beside a class called 3, class 3 is #3.
    text = {2: "2", 3: "#3", 9: "9"}.get(k, NAMES[k])
    with (tmp_path / "decisions.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "action", "new_label"])
        writer.writerow([guarded(IDS[k]), "relabel", guarded(text)])
        writer.writerow([guarded(IDS[k - 1]), "drop", ""])
    actions = decided(table, tmp_path, tmp_path / "decisions.csv")
    assert actions.pop(IDS[k]) == ("relabel", k, NAMES[k])
    assert actions.pop(IDS[k - 1])[0] == "drop"
    assert {action for action, *_ in actions.values()} == {"keep"}


def test_texts_of_a_frame_are_not_guarded(table, tmp_path):
    actions = decided(table, tmp_path, {"id": ["'=x"], "action": ["relabel"], "new_label": ["'=cat"]})
    assert actions["'=x"] == ("relabel", 1, "'=cat")


def test_a_name_of_several_classes_needs_the_number(table, tmp_path):
    with pytest.raises(InputError, match="several"):
        decided(table, tmp_path, {"id": ["x"], "action": ["relabel"], "new_label": ["twin"]})
    listed = {"id": ["x"], "action": ["relabel"], "suggested": [3], "suggested_name": ["twin"]}  # as lists have it
    assert decided(table, tmp_path, listed)["x"] == ("relabel", 3, "twin")


def test_a_sample_is_decided_once(table, tmp_path):
    alone = table.with_rows(table.to_arrow().slice(0, 1))
    with pytest.raises(InputError, match="one row"):
        decided(alone, tmp_path, {"id": ["=x", "'=x"], "action": ["keep", "drop"]})
