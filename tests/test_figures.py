"""Figures: what is drawn is what was measured, files are whole, and errors are sentences."""

import subprocess
import sys
from functools import partial

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from recorded_runs import Matrices, train_digits
from scipy import stats

import hardsight as hs
from hardsight import figures, phases, studies, training
from hardsight.data import load_digits
from hardsight.figures.style import line_styles, write_figure
from hardsight.studies.declared import adversarial_path, embeddings, iterations, two_gaussians


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    found = {name: train_digits(folder / name, residual=name == "resnet", epochs=10)[0] for name in ("resnet", "vgg")}
    human = np.clip(1.02 - 4 * np.nanmean(found["resnet"].matrix("avh"), 1), 0, 1)
    lines = [f"{key},{value}" for key, value in zip(found["resnet"].ids, human, strict=True)]
    (folder / "human.csv").write_text("\n".join(["id,hsf", *lines]))
    lines = [
        f"{key},{'even' if label % 2 == 0 else 'odd'}"
        for key, label in zip(found["vgg"].ids, found["vgg"].labels, strict=True)
    ]
    (folder / "groups.csv").write_text("\n".join(["id,parity", *lines]))
    return folder, found


def lines_of(axis):
    return {line.get_label(): np.asarray(line.get_ydata(), float) for line in axis.get_lines()}


def test_dynamics_draw_the_means_of_the_groups_with_their_n_and_a_band_of_one_sd(runs):
    _, found = runs
    axes = figures.plot_dynamics(found, np.where(found["vgg"].labels % 2 == 0, "even", "odd")).get_axes()
    assert len(axes) == 8
    even = found["vgg"].labels % 2 == 0
    avh, norm = 10 * found["vgg"].matrix("avh")[even], found["vgg"].matrix("norm")[even]
    label = f"even (n = {even.sum()})"
    np.testing.assert_allclose(lines_of(axes[5])[label], avh.mean(0), rtol=1e-5)
    band = axes[4].collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx((norm.mean(0) + norm.std(0, ddof=1)).max(), rel=1e-5)
    assert axes[4].get_title(loc="left") == "vgg, 300 samples"
    assert [axis.get_ylabel() for axis in axes[:4]] == ["norm of the feature", "C · AVH", "accuracy", "confidence"]
    drawn = axes[3].collections[0].get_paths()[0].vertices[:, 1]
    assert 0 <= drawn.min() <= drawn.max() <= 1  # a probability has no band beyond 1


def test_loss_drivers_draw_both_parts_and_their_sum(runs):
    _, found = runs
    table = phases.loss_drivers(found["vgg"])
    each, summed = figures.plot_loss_drivers({"vgg": found["vgg"]}).get_axes()
    np.testing.assert_allclose(lines_of(summed)["angles"], np.cumsum(table["by_angles"].to_numpy()))
    np.testing.assert_allclose(lines_of(summed)["whole change"], np.cumsum(table["change"].to_numpy()))
    heights = [bar.get_height() for bar in each.containers[1]]
    np.testing.assert_allclose(heights, table["by_norms"].to_numpy())
    ends = np.array([bar.get_y() + bar.get_height() for bar in each.containers[1]])
    same = np.sign(table["by_angles"].to_numpy()) == np.sign(table["by_norms"].to_numpy())
    np.testing.assert_allclose(ends[same], table["change"].to_numpy()[same])
    assert "n = 300" in each.get_title(loc="left")


def test_agreement_is_drawn_upwards_for_every_score(runs):
    _, found = runs
    run = found["resnet"]
    human = np.clip(1.02 - 4 * np.nanmean(run.matrix("avh"), 1), 0, 1)
    table = phases.agreement(run, human)
    axis = figures.plot_agreement({"resnet": run}, human).get_axes()[0]
    drawn = lines_of(axis)
    own = table.to_pandas()
    np.testing.assert_allclose(drawn["−avh"], -own[own["score"] == "avh"]["spearman"])
    np.testing.assert_allclose(drawn["confidence"], own[own["score"] == "confidence"]["spearman"])
    assert "n = 300" in axis.get_title(loc="left")


def test_no_curve_is_left_out_and_no_two_look_alike(runs):
    run = runs[1]["resnet"]
    scores = ("avh", "angle", "confidence", "nll", "soft_margin", "margin", "norm", "el2n", "correct")
    [axis] = figures.plot_agreement({"resnet": run}, np.linspace(0, 1, 300), scores).get_axes()
    drawn = [line for line in axis.get_lines() if not line.get_label().startswith("_")]
    assert [line.get_label().removeprefix("−") for line in drawn] == list(scores)
    assert len({(line.get_color(), str(line._dash_pattern)) for line in drawn}) == len(scores)
    assert len(figures.plot_plateaus(run, values=scores).get_axes()[0].get_legend().get_texts()) == len(scores)


def test_lines_keep_their_colors_and_dashes():
    assert len(set(line_styles(49))) == 49
    assert len({color for color, _ in line_styles(9, ordered=True)}) == 9


def test_plateaus_are_marked_where_they_were_found(runs):
    _, found = runs
    table = phases.plateaus(found["resnet"])
    axis = figures.plot_plateaus(found["resnet"], "resnet").get_axes()[0]
    marked = {int(line.get_xdata()[0]) for line in axis.get_lines() if line.get_marker() == "o"}
    assert marked == {epoch for epoch in table["epoch"].to_pylist() if epoch is not None}


def test_a_data_map_shows_every_sample(runs):
    _, found = runs
    summary = found["resnet"].summary()
    axis = figures.plot_data_map(found["resnet"]).get_axes()[0]
    points = axis.collections[0].get_offsets()
    order = np.lexsort(points.T)
    expected = np.c_[summary["variability"], summary["confidence"]]
    np.testing.assert_allclose(points[order], expected[np.lexsort(expected.T)], rtol=1e-6)
    assert "n = 300" in axis.get_title(loc="left")


def test_pyplot_keeps_no_state():
    assert len(figures.plot_norm_growth().get_axes()) == 2
    assert matplotlib._pylab_helpers.Gcf.get_num_fig_managers() == 0


NEEDS = {
    "dynamics": (("resnet", "vgg"), {"human": "human.csv"}),
    "loss-drivers": (("resnet", "vgg"), {}),
    "plateaus": (("resnet",), {}),
    "agreement": (("resnet", "vgg"), {"human": "human.csv"}),
    "data-map": (("resnet",), {}),
    "iterations": (("resnet",), {}),
    "two-gaussians": ((), {}),
    "norm-growth": ((), {}),
    "encouraging-loss": ((), {}),
    "bonuses": ((), {}),
    "label-noise": ((), {}),
}


@pytest.mark.parametrize("name", NEEDS)
def test_every_figure_is_written_by_name(name, runs, tmp_path, monkeypatch):
    folder, _ = runs
    monkeypatch.setattr(two_gaussians, "two_gaussians", partial(studies.two_gaussians, n=50, steps=20))
    chosen, options = NEEDS[name]
    files = {option: folder / file for option, file in options.items()}
    out = figures.draw(name, [folder / run for run in chosen], out=tmp_path / f"{name}.png", **files)
    pixels = np.asarray(Image.open(out).convert("L"), float)
    assert pixels.shape[0] > 300
    assert pixels.std() > 5  # not an empty page
    assert [file.name for file in tmp_path.iterdir()] == [f"{name}.png"]


@pytest.mark.slow
def test_figures_that_train_are_written_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings, "embeddings", partial(studies.embeddings, steps=3))
    monkeypatch.setattr(iterations, "iterations", partial(studies.iterations, count=3))
    paths = partial(studies.adversarial_paths, steps=3, count=5)
    monkeypatch.setattr(adversarial_path, "adversarial_paths", paths)
    short, raw_features = {"epochs": 1}, embeddings.raw_features
    monkeypatch.setattr(embeddings, "raw_features", lambda data, loss, **more: raw_features(data, loss, **more | short))
    trained = [
        name
        for name, kind in figures.FIGURES.items()
        if "data" in (inputs := kind.inputs()) and not inputs.get("runs", False)
    ]
    assert trained == ["iterations", "embeddings", "raw-features", "adversarial-path"]
    for name in trained:
        assert figures.draw(name, data="digits", out=tmp_path / f"{name}.svg").stat().st_size > 5000


def test_every_entry_of_the_registry_names_a_function_and_the_registry_needs_no_torch():
    assert all(callable(kind.load()) for kind in figures.FIGURES.values())
    code = "import sys, hardsight.figures; sys.exit(any(n in sys.modules for n in ('torch', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_coarse_classes_count_people_on_their_merged_answers(runs, tmp_path):
    folder, found = runs
    run = found["vgg"]
    labels, draw = np.asarray(run.labels), np.random.default_rng(0)
    shares = np.full((300, 10), 0.03)
    shares[np.arange(300), labels] += 0.7 * draw.beta(4, 1, 300)
    counts = np.array([draw.multinomial(50, row / row.sum()) for row in shares])
    lines = [",".join(["id", *map(str, range(10))])]
    lines += [",".join([key, *map(str, row)]) for key, row in zip(run.ids, counts.tolist(), strict=True)]
    (tmp_path / "counts.csv").write_text("\n".join(lines))
    coarse = {k: "many" if k < 6 else "some" if k < 9 else "single" for k in range(10)}
    table = ["class,coarse", *(f"{k},{name}" for k, name in coarse.items())]
    (tmp_path / "coarse.csv").write_text("\n".join(table))
    files = {"human": tmp_path / "counts.csv", "coarser": tmp_path / "coarse.csv"}
    axes = [
        axis for axis in figures.plot_coarse_classes(folder / "vgg", **files).axes if axis.get_ylabel() != "samples"
    ]
    norm = hs.SampleTable.load(folder / "vgg")
    norm = dict(zip(norm["id"].tolist(), norm["norm"].tolist(), strict=True))
    for axis, name in zip(axes, ("many", "some", "single"), strict=True):
        columns = [k for k in range(10) if coarse[k] == name]
        members = np.isin(labels, columns)
        frequency = counts[members][:, columns].sum(1) / 50
        rho = stats.spearmanr([norm[key] for key in np.array(run.ids)[members]], frequency).statistic
        title = axis.get_title(loc="left")
        assert f"{len(columns)} class" in title
        assert f"n = {members.sum()}" in title
        assert f"Spearman {rho:.3f} ".replace("-", "−") in title
    drawn = figures.draw("coarse-classes", [folder / "vgg"], out=tmp_path / "coarse.png", **files)
    assert drawn.stat().st_size > 5000
    with pytest.raises(ValueError, match="--coarser"):
        figures.draw("coarse-classes", [folder / "vgg"], human=files["human"], out=tmp_path / "coarse.png")


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_the_same_figure_gives_the_same_file(kind, tmp_path):
    files = [figures.draw("norm-growth", out=tmp_path / f"{k}.{kind}").read_bytes() for k in range(2)]
    assert files[0] == files[1]


NAMES = ("$\\frac{$", "$x_0$", "_hidden", "a\nb")


def test_names_of_groups_and_runs_are_drawn_letter_by_letter(runs, tmp_path):
    _, found = runs
    run = found["vgg"]
    groups = np.array(NAMES, dtype=object)[run.labels % 4]
    figure = figures.plot_dynamics({"$\\frac{$": run}, groups)
    text = write_figure(figure, tmp_path / "names.svg").read_text()
    for name in ("$\\frac{$ (n = ", "$x_0$ (n = ", "_hidden (n = ", "a\\nb (n = ", "$\\frac{$, 300 samples"):
        assert name in text
    name = "$\\frac{$"
    for kind in (
        figures.plot_plateaus(run, name),
        figures.plot_data_map(run, name),
        figures.plot_agreement({name: run}, np.linspace(0, 1, 300)),
        figures.plot_loss_drivers({name: run}),
    ):
        assert name in write_figure(kind, tmp_path / "names.svg").read_text()


def test_more_groups_than_can_be_told_apart_are_refused(runs):
    _, found = runs
    most = figures.plot_dynamics({"vgg": found["vgg"]}, np.arange(300) % 20)
    most.draw_without_rendering()
    legend = most.get_axes()[-1].get_legend().get_window_extent()
    assert 0 <= legend.y0 <= legend.y1 <= most.bbox.y1  # none is cut off
    with pytest.raises(ValueError, match=r"groups: .*20 .*got 21"):
        figures.plot_dynamics({"vgg": found["vgg"]}, np.arange(300) % 21)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short")
    train_digits(folder / "net" / "test", epochs=1)
    return folder


@pytest.mark.parametrize("name", ["dynamics", "plateaus", "agreement", "loss-drivers", "iterations"])
def test_one_epoch_is_no_course(name, runs, short, tmp_path):
    human = {"human": runs[0] / "human.csv"} if name == "agreement" else {}
    with pytest.raises(ValueError, match=r"net/test .*two epochs"):
        figures.draw(name, [short / "net" / "test"], out=tmp_path / "figure.png", **human)


def test_runs_that_cannot_be_drawn_are_refused(runs, short, tmp_path):
    folder, _ = runs
    with pytest.raises(FileNotFoundError, match=r"training; .*\S+net/test\."):
        figures.draw("data-map", [short / "net"], out=tmp_path / "figure.png")
    with pytest.raises(ValueError, match=r"RUN .*once"):
        figures.draw("dynamics", [folder / "vgg", folder / "vgg"], out=tmp_path / "two.svg")
    few = "\n".join((folder / "human.csv").read_text().splitlines()[:10])
    (tmp_path / "few.csv").write_text(few)
    with pytest.raises(ValueError, match=r"human: 10 .*vgg .*got 9"):
        figures.draw("agreement", [folder / "vgg"], human=tmp_path / "few.csv", out=tmp_path / "figure.png")


def test_plateaus_of_a_run_that_stays_are_not_drawn(runs):
    run = Matrices({name: np.tile(np.linspace(0, 1, 9)[:, None] / 3, 2) for name in ("avh", "correct", "nll", "norm")})
    for epochs in (2, 20):
        run.columns = {name: np.repeat(values[:, :1], epochs, 1) for name, values in run.columns.items()}
        run.epochs = np.arange(1, epochs + 1)
        axis = figures.plot_plateaus(run).get_axes()[0]
        assert not [line for line in axis.get_lines() if line.get_marker() == "o"]


def test_runs_of_one_name_are_told_apart_and_groups_of_a_file_become_lines(runs, tmp_path):
    folder, _ = runs
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "vgg").symlink_to(folder / "vgg")
    both = [folder / "vgg", tmp_path / "other" / "vgg"]
    text = figures.draw("dynamics", both, groups=folder / "groups.csv", out=tmp_path / "two.svg").read_text()
    assert "other/vgg, 300 samples" in text
    assert "even (n = " in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "dynamic"}, r"'dynamic'; .*dynamics\?"),
        ({"name": "xyz"}, "'xyz'; .*dynamics, loss-drivers"),
        ({"name": "dynamics"}, "dynamics .*20 RUNs, got 0"),
        ({"name": "norm-growth", "runs": ["a"]}, "norm-growth .*RUN, got 1"),
        ({"name": "data-map", "runs": ["a", "b"]}, "data-map .*RUN, got 2"),
        ({"name": "agreement", "runs": ["a"]}, "agreement .*--human"),
        ({"name": "embeddings"}, "embeddings .*--data"),
        ({"name": "iterations"}, "iterations .*--data, .*RUN"),
        ({"name": "data-map", "runs": ["a"], "human": "h.csv"}, "data-map .*not .*--human"),
        ({"name": "dynamics", "runs": ["a"], "human": "h.csv", "groups": "g.csv"}, "--groups .*--human, .*both"),
        ({"name": "norm-growth", "out": "figure.jpg"}, r"out .*'figure\.jpg'"),
        ({"name": "norm-growth", "out": "nowhere/figure.png"}, "out: .*folder nowhere"),
        ({"name": "data-map", "runs": ["nowhere"]}, "nowhere .*no records"),
    ],
)
def test_what_a_figure_lacks_is_said_in_a_sentence(arguments, words, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        figures.draw(**{"out": tmp_path / "figure.png", **arguments})
    assert not list(tmp_path.iterdir())


def test_a_figure_that_cannot_be_written_leaves_what_was_there(tmp_path):
    figure = Figure()
    old = write_figure(figure, tmp_path / "figure.png").read_bytes()
    figure.savefig = lambda *args, **kwargs: (_ for _ in ()).throw(OSError("no room"))
    with pytest.raises(OSError, match="no room"):
        write_figure(figure, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes() == old
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_raw_features_are_the_networks_own_of_five_digits(monkeypatch):
    kept = []

    def remembered(*arguments, **options):
        kept.append(training.train(*arguments, **options))
        return kept[-1]

    monkeypatch.setattr(embeddings, "train", remembered)
    figure = embeddings.plot_raw_features("digits", epochs=2)
    images, labels = load_digits()
    test, drawn = np.arange(len(labels)) % 5 == 0, np.isin(labels, [0, 1, 2, 3, 6])
    assert [trained.history[0]["loss"] > 0 for trained in kept] == [True, True]
    assert ["pairs" in trained.history[0] for trained in kept] == [False, True]  # cross-entropy, then with AMC-Loss
    for row, trained in enumerate(kept):
        for column, part in enumerate((~test & drawn, test & drawn)):
            axis = figure.get_axes()[2 * row + column]
            with hs.capture(trained.model.module) as head, torch.no_grad():
                trained.model.module(torch.from_numpy(images[part])[:, None] / 255)
            assert len(axis.collections) == 5
            for label, points in zip((0, 1, 2, 3, 6), axis.collections, strict=True):
                np.testing.assert_allclose(points.get_offsets(), head.features[labels[part] == label], atol=1e-4)
    with pytest.raises(ValueError, match="npz"):
        embeddings.raw_features("photos")
