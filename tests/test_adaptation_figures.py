"""Figures of self-training draw what the rounds and selections say; quoted tables are the printed ones."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.text import Text
from PIL import Image

from hardsight import figures, studies
from hardsight.data import ArraySamples
from hardsight.figures import plot_adaptation, plot_adaptation_gallery


def rounds(accuracy, tp_rate=None, name="test_accuracy"):
    """Rounds of a run whose intervals are ± .02; round 0 chooses nothing."""
    accuracy = np.asarray(accuracy, float)
    right = [None, *(tp_rate or [None] * (len(accuracy) - 1))]
    columns = {"round": np.arange(len(accuracy)), name: accuracy, "tp_rate": pa.array(right, pa.float64())}
    columns |= {f"{name}_low": accuracy - 0.02, f"{name}_high": accuracy + 0.02}
    ends = {f"tp_rate_{end}": pa.array(right, pa.float64()) for end in ("low", "high")}
    return pa.table({**columns, **ends})


def lines_of(axis):
    return {line.get_label(): line for line in axis.get_lines() if not line.get_label().startswith("_")}


def test_accuracy_is_drawn_by_round_with_the_interval_of_the_samples_and_a_ring_at_the_oracle():
    first, second = plot_adaptation({"cbst": [rounds([0.6, 0.8, 0.7], [0.9, 0.85])]}).get_axes()
    line = lines_of(first)["cbst"]
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([0, 1, 2], [0.6, 0.8, 0.7])
    band = first.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((0.58, 0.82))
    rings = [
        line.get_xydata().tolist() for line in first.get_lines() if line.get_marker() == "o" and len(line.get_xdata())
    ]
    assert rings == [[[1, 0.8]]]
    assert lines_of(second)["cbst"].get_xydata().tolist() == [[1, 0.9], [2, 0.85]]  # round 0 chooses nothing
    assert ("accuracy" in first.get_ylabel(), "pseudo-labels" in second.get_ylabel()) == (True, True)
    labels = [text.get_text() for text in second.get_legend().get_texts()]
    assert (labels[0], "oracle" in labels[1], len(labels)) == ("cbst", True, 2)


def test_several_seeds_become_their_mean_and_std_over_the_rounds_that_all_have():
    values = np.array([[0.5, 0.7, 0.9], [0.6, 0.8, 0.7]])
    runs = [rounds(values[0]), rounds(values[1]), rounds([0.7, 0.6])]  # the third collapsed
    [axis] = plot_adaptation({"crst": runs}).get_axes()
    line = lines_of(axis)["crst (n = 3)"]
    assert line.get_ydata() == pytest.approx([0.6, 0.7])
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((0.5, 0.8))


def test_without_labels_there_is_no_accuracy_to_draw():
    unknown = rounds([0.5]).select(["round"])
    with pytest.raises(ValueError, match=r"RUN: .*labels .*accuracy"):
        plot_adaptation({"cbst": [unknown]})
    two = plot_adaptation({"a": [rounds([0.5, 0.6], name="target_accuracy")], "b": [unknown]})
    assert [axis.get_ylabel() for axis in two.get_axes()] == ["accuracy, target"]


@pytest.fixture
def target():
    images = np.arange(40, dtype=np.uint8)[:, None, None] * np.full((1, 6, 6), 5, np.uint8)
    return ArraySamples(images, np.arange(40) % 2, "train", "made up", ["$cat$", "dog"])


def selection(chosen, label=0):
    """The first 40 ids of a target, of which some are chosen; the true class is the parity."""
    chosen = np.isin(np.arange(40), chosen)
    return pa.table(
        {
            "id": [f"train:{i}" for i in range(40)],
            "label": pa.array(np.full(40, label), mask=~chosen),
            "predicted": np.full(40, label),
            "confidence": np.linspace(0.5, 1, 40),
            "avc": np.linspace(0.4, 0.6, 40),
            "true": np.arange(40) % 2,
        }
    )


@pytest.fixture
def gallery(tmp_path):
    """Draws two runs whose first rounds selected these samples."""

    def draw(first, second, target, seed=0, classes=None):
        runs = {}
        for name, chosen in (first, second):
            runs[name] = tmp_path / name
            (runs[name] / "rounds" / "01").mkdir(parents=True, exist_ok=True)
            pq.write_table(selection(chosen), runs[name] / "rounds" / "01" / "selection.parquet")
            table = rounds([0.6, 0.8]).replace_schema_metadata({"classes": json.dumps(classes)})
            pq.write_table(table, runs[name] / "rounds.parquet")
        return plot_adaptation_gallery(runs, target, seed)

    return draw


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def test_a_gallery_shows_what_one_method_chooses_and_the_other_does_not(target, gallery):
    figure = gallery(("avh", [2, 3, 4]), ("softmax", [4, 7]), target)
    said = texts(figure)
    titles = [text for text in said if "not by" in text]
    assert [re.findall(r"(\w+), not by (\w+): (\d+) of (\d+), ([\d.]+)%", text)[0] for text in titles] == [
        ("avh", "softmax", "2", "3", "50.0"),
        ("softmax", "avh", "1", "2", "0.0"),
    ]
    assert said.count(r"\$cat\$, is dog") == 2  # 3 and 7
    assert said.count(r"\$cat\$") == 1  # 2; 4 is chosen by both
    shown = [int(axis.images[0].get_array()[0, 0] * 255 / 5 + 0.5) for axis in figure.get_axes() if axis.images]
    assert shown == [2, 3, 7]
    other = gallery(("a", [2]), ("b", []), target, classes=["dog", "$cat$"])
    assert "dog" in texts(other)  # as the network counts, which the data need not


def test_a_gallery_of_many_shows_some_drawn_at_random_and_the_same_for_the_same_seed(target, gallery):
    every, none = ("a", np.arange(40)), ("b", [])
    drawn = [texts(gallery(every, none, target, seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    figure = gallery(every, none, target)
    assert sum(bool(axis.images) for axis in figure.get_axes()) == 16
    assert any(text.endswith("not by a: 0 of 0") for text in texts(figure))


def test_a_gallery_of_other_data_is_refused(target, gallery):
    few = ArraySamples(target.images[:2], target.labels[:2], "train", "made up")
    with pytest.raises(ValueError, match=r"data: .*'train:5'"):
        gallery(("a", [5]), ("b", []), few)


def test_both_are_drawn_by_name_from_run_folders(tmp_path, target):
    np.savez(tmp_path / "target.npz", train_images=target.images, train_labels=target.labels)
    for name, chosen in (("avh", [2, 3, 4]), ("softmax", [4, 7])):
        (tmp_path / name / "rounds" / "01").mkdir(parents=True)
        pq.write_table(selection(chosen), tmp_path / name / "rounds" / "01" / "selection.parquet")
        pq.write_table(rounds([0.6, 0.8]), tmp_path / name / "rounds.parquet")
    runs = [tmp_path / "avh", tmp_path / "softmax"]
    line = figures.draw("adaptation", runs, out=tmp_path / "adaptation.png")
    gallery = figures.draw("adaptation-gallery", runs, data=f"{tmp_path}/target.npz", out=tmp_path / "gallery.png")
    for file in (line, gallery):
        assert np.asarray(Image.open(file).convert("L"), float).std() > 5
    with pytest.raises(FileNotFoundError, match=r"RUN: .*rounds\.parquet"):
        figures.draw("adaptation", [tmp_path], out=tmp_path / "no.png")
    with pytest.raises(ValueError, match=r"adaptation-gallery .*2 RUNs, got 1"):
        figures.draw("adaptation-gallery", runs[:1], data="digits", out=tmp_path / "no.png")


def test_quoted_tables_are_those_of_the_paper_and_say_so():
    table = studies.quoted_visda()
    assert table.num_rows == 10
    assert all(table["quoted"].to_pylist())
    classes = table.column_names[3:-2]
    assert len(classes) == 12
    means = np.array([[row[name] for name in classes] for row in table.to_pylist()]).mean(1)
    # The paper rounds and cuts off: half a unit of the last digit, and a little.
    np.testing.assert_allclose(table["mean"].to_numpy(), means, atol=0.0501)
    np.testing.assert_allclose(table["computed_mean"].to_numpy(), means)
    chosen = studies.quoted_selection()
    assert all(chosen["quoted"].to_pylist())
    assert (chosen["avc"].to_numpy() > 1 / 12).all()  # no AVH at the nearest of twelve classes
