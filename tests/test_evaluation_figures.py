"""Figures of an evaluation draw what its files say."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluation_pages import EPS, write_evaluation
from PIL import Image

from hardsight import figures
from hardsight.evaluation import read_evaluation
from hardsight.figures import plot_attacks, plot_clusters, plot_energy, plot_maps, plot_ood

NAMES = ("reliability", "ood", "robustness", "margins", "energy", "maps", "clusters")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = write_evaluation(tmp_path_factory.mktemp("figures") / "out", groups=("CE", "$EL_"), seeds=2, maps=True)
    rng = np.random.default_rng(0)
    (folder / "samples").mkdir()
    for k, run in enumerate(("CE-0", "CE-1", "EL-0", "EL-1")):
        directions = rng.normal(size=(30, 5))
        directions[25:] = np.nan
        write_samples(folder, f"{k:02d}-{run}", directions, np.arange(30) % 3)
    return folder


def write_samples(folder, name, directions, labels):
    column = pa.FixedSizeListArray.from_arrays(pa.array(directions.ravel()), directions.shape[1])
    pq.write_table(pa.table({"label": labels, "clusters/features": column}), folder / "samples" / f"{name}.parquet")


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_written_by_name(name, out, tmp_path):
    file = figures.draw(name, [out], out=tmp_path / f"{name}.png")
    assert np.asarray(Image.open(file).convert("L"), float).std() > 5


def test_accuracy_under_attack_is_a_line_a_group_with_the_spread_of_its_runs(out):
    found = read_evaluation(out)
    axes = plot_attacks(out).get_axes()
    assert [axis.get_title() for axis in axes] == ["fgsm", "pgd", "pgd-margin"]
    line = next(line for line in axes[1].get_lines() if line.get_label() == "CE (n = 2)")
    assert line.get_xdata().tolist() == list(EPS)
    own = [
        [p["y"] for p in found.points.to_pylist() if (p["curve"], p["score"], p["run"]) == ("attack", "pgd", run)]
        for run in ("CE-0", "CE-1")
    ]
    np.testing.assert_allclose(line.get_ydata(), np.mean(own, 0))
    band = axes[1].collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(band[:, 1].max(), (np.mean(own, 0) + np.std(own, 0, ddof=1)).max())
    assert r" (n = 2)" in axes[2].get_legend().get_texts()[1].get_text()


def test_the_energy_of_a_class_is_its_panel_alone(out, tmp_path):
    panels = {axis.get_title(): axis for axis in plot_energy(out).axes}
    (name, whole) = next((name, axis) for name, axis in panels.items() if name.startswith("class "))
    label = int(name.removeprefix("class "))
    [axis] = plot_energy(out, label).axes
    assert axis.get_title() == name
    for line, other in zip(axis.get_lines(), whole.get_lines(), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), other.get_xydata())
    assert figures.draw("energy", [out], label=label, out=tmp_path / "energy.png").stat().st_size > 5000
    with pytest.raises(ValueError, match="no class 99"):
        plot_energy(out, 99)
    with pytest.raises(ValueError, match="--label"):
        figures.draw("margins", [out], label=label, out=tmp_path / "margins.png")


def test_own_and_strange_data_stand_side_by_side_a_column_a_group(out):
    axes = plot_ood(out).get_axes()
    assert len(axes) == 3 * 2 * 2  # detectors, data sets, groups
    assert [text.get_text() for text in axes[1].get_legend().get_texts()] == [
        "in-distribution data (n = 2)",
        "fashion_mnist (n = 2)",
    ]
    assert axes[0].get_title() == "CE"
    assert axes[3].get_legend().get_texts()[1].get_text() == "noise (n = 2)"


def test_energy_has_a_panel_for_the_mean_and_for_every_class(out):
    axes = plot_energy(out).get_axes()
    assert [axis.get_title() for axis in axes] == ["mean over classes", "class 0", "class 3"]
    assert [axis.get_lines()[0].get_ydata()[0] for axis in axes] == pytest.approx([-8, -9, -5])


def test_no_group_is_left_out_and_no_two_look_alike(tmp_path):
    names = [f"loss {k}" for k in range(16)]
    folder = write_evaluation(tmp_path / "many", groups=names, seeds=1)
    lines = plot_energy(folder).get_axes()[0].get_lines()
    assert [line.get_label() for line in lines] == names
    assert len({(line.get_color(), str(line.get_linestyle()), str(line._dash_pattern)) for line in lines}) == 16


def test_clusters_are_points_by_class_of_each_groups_first_run(out):
    axes = plot_clusters(out).get_axes()
    assert [axis.get_title() for axis in axes] == ["CE", r"\$EL_"]
    assert [len(dots.get_offsets()) for dots in axes[0].collections] == [9, 8, 8]  # 25 have a place


def test_features_of_three_numbers_lie_on_a_ball(tmp_path):
    folder = write_evaluation(tmp_path / "ball", groups=("CE",), seeds=1)
    (folder / "samples").mkdir()
    write_samples(folder, "00-CE", 5 * np.eye(3), np.arange(3))
    [axis] = plot_clusters(folder).get_axes()
    assert axis.name == "3d"
    assert [dots._offsets3d[k][0] for k, dots in enumerate(axis.collections)] == [1, 1, 1]


def test_features_of_two_numbers_keep_their_lengths(tmp_path):
    folder = write_evaluation(tmp_path / "plane", groups=("CE",), seeds=1)
    (folder / "samples").mkdir()
    features = np.array([[3.0, 4.0], [0.5, 0.0], [0.0, -7.0]])
    write_samples(folder, "00-CE", features, np.arange(3))
    [axis] = plot_clusters(folder).get_axes()
    np.testing.assert_array_equal(np.concatenate([dots.get_offsets() for dots in axis.collections]), features)
    assert len(axis.get_xticks()) > 1  # here places mean something


def test_maps_are_strips_with_what_each_network_said(out):
    axes = plot_maps(out).get_axes()
    assert [text.get_text() for text in axes[0].texts] == ["class 0", "CE: class 0, 91%", r"\$EL_: class 1, 91%"]


@pytest.mark.parametrize(("name", "missing"), [("robustness", "robustness"), ("ood", "ood"), ("maps", "--explain")])
def test_what_was_not_asked_is_a_sentence(name, missing, tmp_path):
    folder = write_evaluation(tmp_path / "out", groups=("CE",), seeds=1)
    points = pq.read_table(folder / "points.parquet").to_pylist()
    kept = [p for p in points if p["question"] == "margins"]
    pq.write_table(pa.Table.from_pylist(kept, pq.read_schema(folder / "points.parquet")), folder / "points.parquet")
    with pytest.raises(ValueError, match=missing):
        figures.draw(name, [folder], out=tmp_path / "figure.png")
    assert json.loads((folder / "evaluation.json").read_text())["whole"]
