"""The list of the papers' tables and figures, the tables that gather studies, and the figure of sweeps."""

import contextlib
import csv
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import tyro
from matplotlib import colors
from scipy import stats
from tyro.conf import OmitArgPrefixes

import hardsight as hs
from hardsight.cli import main
from hardsight.cli.options import _check_flags, _given, structure
from hardsight.data import open_data
from hardsight.errors import InputError
from hardsight.figures import FIGURES
from hardsight.figures.sweeps import Panel, Point, plot_sweeps
from hardsight.losses.grammar import parse_loss
from hardsight.networks import NETWORKS
from hardsight.presets import PRESETS
from hardsight.studies import STUDIES, Results, engine, exhibits, gathered, quoted, read_results, study
from hardsight.studies.quoted import published
from hardsight.studies.tables import conditions, sweep_panels

pytestmark = pytest.mark.slow  # rows and tables of ours depend on no version of a library
# The highest number of a caption in each paper with its appendix.
CAPTIONS = {"AVH": (23, 9), "EL": (7, 5), "AMC": (7, 2)}
LISTED = exhibits()


@pytest.mark.parametrize("paper", CAPTIONS)
def test_every_caption_is_listed_once(paper):
    figures, tables = CAPTIONS[paper]
    expected = [f"Fig. {k + 1}" for k in range(figures)] + [f"Table {k + 1}" for k in range(tables)]
    assert sorted(exhibit.name for exhibit in LISTED if exhibit.paper == paper) == sorted(expected)
    assert {exhibit.paper for exhibit in LISTED} == {*CAPTIONS, "AVH slides"}


def parsed(command):
    """The options of a command line as the command would read them; nothing runs."""
    program, name, *arguments = shlex.split(command)
    assert program == "hardsight"
    options = structure(name, arguments)
    _check_flags(name, options, arguments)
    with contextlib.redirect_stderr(None):
        return name, _given(tyro.cli(options, args=arguments, config=(OmitArgPrefixes,)), set())


@pytest.mark.parametrize("exhibit", LISTED, ids=lambda exhibit: f"{exhibit.paper} {exhibit.name}")
def test_every_exhibit_has_commands_that_exist_or_a_reason(exhibit):
    assert bool(exhibit.commands) != bool(exhibit.reason)
    assert exhibit.shows
    written = set()
    for command in exhibit.commands:
        if command.startswith("python -c "):
            _, _, code = shlex.split(command)
            if "build_network" in code:
                exec(code)
                continue
            assert "at_every_level" in code
            assert hs.questions.DEGRADATIONS[code.split("out='")[1].split("'")[0]]
            compile(code, "exhibit", "exec")
            written.add(f"{code.split(chr(39))[-2]}/test")
            continue
        name, options = parsed(command)
        if name == "study":
            kind, gathers = options["name"], {**gathered.TABLES, **gathered.FIGURES}
            assert kind in STUDIES or kind in gathers
            for part in gathers[kind].studies if kind in gathers else [kind]:
                assert options["scale"] in STUDIES[part].scales
            if "weights" in options:
                assert STUDIES[kind if kind in STUDIES else gathers[kind].studies[0]].takes_weights
        elif name == "figure":
            inputs, runs = FIGURES[options["name"]].inputs(), options.get("runs", ())
            assert bool(runs) == bool({"run", "runs"} & set(inputs)) or not inputs.get("run", False)
            assert not [need for need, required in inputs.items() if required and need not in {*options, "run", "name"}]
            assert {str(run) for run in runs} <= written
        elif name in ("train", "adapt"):
            assert options["model"] in {*PRESETS, *NETWORKS}
            assert "loss" not in options or hs.build_loss(options["loss"])
            written |= {str(options.get("out", "run")), f"{options.get('out', 'run')}/test"}
        else:
            assert name == "evaluate"
            assert {str(run) for run in options["runs"]} <= written
            written.add(str(options["out"]))


def test_a_name_is_that_of_one_training_in_all_commands():
    trainings = {}
    for exhibit in LISTED:
        for command in exhibit.commands:
            if command.startswith("hardsight train ") and " -o " in command:
                assert trainings.setdefault(command.rsplit(" -o ", 1)[1], command) == command


def test_the_command_lists_them_and_programs_read_them(capsys):
    main(["study", "list"])
    printed = capsys.readouterr().out
    for exhibit in LISTED:
        assert exhibit.name in printed
        assert all(command in printed for command in exhibit.commands)
    main(["study", "list", "--json"])
    assert capsys.readouterr().out.count('"paper"') >= len(LISTED)


# ---------------------------------------------------------------------------------------------------------------------
# Tables that gather studies.


@pytest.mark.parametrize("name", gathered.TABLES)
def test_a_gathered_table_names_lines_that_its_studies_have(name):
    table = gathered.TABLES[name]
    for row in table.rows:
        kind = STUDIES[row.study]
        assert len(row.cells) == len(table.columns)
        for entry in row.cells:
            assert entry.measure in kind.measures
            for factor, levels in conditions(entry.where, (*kind.factors, *kind.details)).items():
                allowed = (*kind.levels()[factor], "average") if factor in kind.factors else levels  # of any scale
                assert len(levels) == 1
                assert set(levels) <= set(allowed)
    assert all(row.keys() == gathered.table_rows(name, {})[0].keys() for row in gathered.table_rows(name, {}))


@pytest.mark.parametrize(("scale", "noted"), [("quick", True), ("paper", False)])
def test_a_table_of_another_scale_says_so(tmp_path, scale, noted):
    rows = [{"loss": "ce", "seed": 0, "accuracy": 0.9}]  # quick: digits, where the row says CIFAR-10
    results = {"amc-pairs": Results(STUDIES["amc-pairs"], rows, tmp_path, 0, scale)}
    for text in (gathered.table_text("amc-table-1", results, scale), gathered.table_markdown("amc-table-1", results)):
        assert ("scale quick" in text.replace("--scale quick", "")) == noted


def test_printed_numbers_stand_where_the_papers_have_them():
    rows = gathered.table_rows("el-table-5", {})
    printed = [(row["original loss, paper"][:5], row["+ mirror bonus, paper"][:5]) for row in rows]
    assert printed == [("99.42", "99.56"), ("99.56", "99.66"), ("99.63", "99.69")]
    spearman = [gathered.table_rows(f"avh-table-{k}", {})[0] for k in (2, 6, 7, 8, 9)]
    assert [float(row["AVH, paper"]) for row in spearman] == [0.36, 0.339, 0.349, 0.36, 0.367]


def test_rows_without_a_question_leave_its_cells_open(tmp_path):
    rows = [{"arm": arm, "seed": 0, "question": "accuracy", "metric": "accuracy", "value": 0.9} for arm in ("ce", "el")]
    results = Results(STUDIES["consequences-mnist"], rows, tmp_path, 0)
    table = gathered.table_rows("el-table-4", {"consequences-mnist": results})
    assert [row["AUROC, paper"] for row in table] == ["0.9568", "0.9804"]
    assert not any("AUROC" in row for row in table)  # a column without numbers is left out


def test_a_gathered_table_is_run_as_far_as_its_data_are_there(tmp_path, monkeypatch, capsys):
    runs = {}
    monkeypatch.setattr(engine, "study", lambda name, *, where, **options: runs.update({name: where}))
    run = ["study", "run", "amc-table-1", "--scale", "paper", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        main(run)
    assert "mnist.npz" in capsys.readouterr().err
    assert not runs
    for name in ("svhn.npz", "cifar10.npz"):
        (tmp_path / name).touch()
    main(run)
    assert runs["amc-images"]["setting"] == "cifar10|svhn"
    assert "amc-pairs" in runs
    message = capsys.readouterr().err
    assert "mnist.npz" in message
    assert "cifar100.npz" in message
    runs.clear()
    main(["study", "run", "el-table-3", *run[3:]])  # iNaturalist comes first, CIFAR-10 is there
    assert list(runs) == ["cifar10-lt"]
    assert "train2018.json" in capsys.readouterr().err
    (tmp_path / "svhn.npz").unlink()
    (tmp_path / "cifar100.npz").touch()
    assert gathered.with_data("amc-images", "paper", {"setting": "svhn|cifar100-coarse"}, tmp_path) == (
        {"setting": "cifar100-coarse"}, ["svhn.npz"],
    )  # fmt: skip
    with pytest.raises(InputError, match="data must name"):
        gathered.with_data("amc-images", "paper", {}, None)


@pytest.mark.parametrize("name", gathered.FIGURES)
def test_a_gathered_figure_is_of_studies_with_sweeps(name):
    assert all(STUDIES[part].sweeps for part in gathered.FIGURES[name].studies)


def test_levels_of_one_study_do_not_keep_the_others_from_a_gathered_figure():
    files = {"el-log-end": "losses-cifar10-sweep.csv", "proteins": "proteins.csv", "multi30k": "multi30k.csv"}
    results = gathered.read_gathered("el-fig-4", rows={name: f"docs/results/{file}" for name, file in files.items()})
    titles = [axis.get_title("left") for axis in gathered.gathered_figure("el-fig-4", results).axes]
    part = [axis.get_title("left") for axis in gathered.gathered_figure("el-fig-4", results, "pair=de-en").axes]
    assert part == [title for title in titles if "fr-en" not in title]
    assert sum("de-en" in title for title in part) == 1
    with pytest.raises(InputError, match="pear"):
        gathered.gathered_figure("el-fig-4", results, "pear=de-en")


def test_every_printed_number_of_el_is_in_its_table():
    rows = gathered.table_rows("el-table-1", {})
    printed = [(row["CE, paper"], row["EL, paper"]) for row in rows if row["study"] in ("el-mnist", "el-images")]
    assert printed == [
        ("99.42 ± 0.06", "99.56 ± 0.05"), ("92.34 ± 0.70", "92.97 ± 0.42"), ("93.21 ± 0.40", "94.24 ± 0.17"),
        ("74.39 ± 0.70", "75.80 ± 0.09"), ("76.22 ± 0.37", "77.21 ± 0.26"), ("75.49 ± 0.28", "76.43 ± 0.15"),
        ("77.80 ± 0.15", "78.28 ± 0.13"),
    ]  # fmt: skip
    rates = [row["accuracy, %, paper"] for row in gathered.table_rows("el-table-2", {})[4:]]
    assert rates == ["92.34 ± 0.70", "91.53 ± 0.19", "92.74 ± 0.38", "93.69 ± 0.25",
                     "74.39 ± 0.70", "73.57 ± 0.66", "75.80 ± 0.09", "76.37 ± 0.29"]  # fmt: skip


def test_a_gathered_table_is_what_the_rows_say(tmp_path):
    draw, rows = np.random.default_rng(0), []
    losses = {"ce": 0.82, "euclid:paper,down": 0.825, "amc:paper,down": 0.83}
    values = {loss: middle + 0.002 * draw.standard_normal(5) for loss, middle in losses.items()}
    for loss, of in values.items():
        rows += [{"setting": "cifar10", "loss": loss, "seed": k, "accuracy": float(v)} for k, v in enumerate(of)]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    results = gathered.read_gathered("amc-table-1", tmp_path, rows=f"amc-images={tmp_path / 'rows.csv'}")
    table = {row[""]: row for row in gathered.table_rows("amc-table-1", results)}
    row = table["CIFAR-10"]
    assert row["n"] == "5"
    for column, loss in zip(("cross-entropy", "+ Euclid", "+ AMC-Loss"), losses, strict=True):
        assert row[column] == f"{100 * values[loss].mean():.2f} ± {100 * values[loss].std(ddof=1):.2f}"
    test = stats.ttest_ind(values["amc:paper,down"], values["euclid:paper,down"])  # Student's, variances pooled
    assert row["p"] == pytest.approx(test.pvalue)
    assert (row["+ AMC-Loss, paper"], row["p, paper"]) == ("82.97 ± 0.20", 0.0214)
    assert (table["SVHN"]["+ AMC-Loss"], table["SVHN"]["+ AMC-Loss, paper"]) == ("–", "95.52 ± 0.05")
    missing = gathered.missing("amc-table-1", results)
    assert ["amc-pairs" in line for line in missing] == [True]
    assert gathered.missing("avh-table-2", {}, "quick") == ["not measured: hardsight study run people --scale paper"]


def test_gathered_tables_show_the_means_of_committed_rows_at_the_levels_of_the_paper():
    def mean(file, column, **levels):
        with Path("docs/results", file).open(newline="") as opened:
            rows = [row for row in csv.DictReader(opened) if all(row[name] == at for name, at in levels.items())]
        assert len({row["seed"] for row in rows}) == len(rows) > 1
        return np.mean([float(row[column]) for row in rows])

    rows = "consequences-mnist=docs/results/consequences-rows.csv"
    table = {row[""]: row for row in gathered.table_rows("el-table-4", gathered.read_gathered("el-table-4", rows=rows))}
    for title, arm, printed in (("CE", "ce", (0.9568, 0.2092)), ("EL", "el-released", (0.9804, 0.0869))):
        for column, metric, paper in zip(("AUROC", "FPR95"), ("auroc", "fpr95"), printed, strict=True):
            at = {"study": "consequences-mnist", "arm": arm, "metric": metric, "score": "max_logit"}
            value = mean("consequences-rows.csv", "value", on="fashion_mnist", **at)
            assert float(table[title][column].split(" ±")[0]) == pytest.approx(value, abs=5e-5)
            assert float(table[title][f"{column}, paper"]) == paper
    rows = "adaptation=docs/results/adaptation-rounds.csv"
    table = {
        row[""]: row for row in gathered.table_rows("avh-table-3", gathered.read_gathered("avh-table-3", rows=rows))
    }
    for pair, row in table.items():
        for title, method in (("CBST", "cbst"), ("CRST", "crst"), ("CBST+AVH", "cbst+avh")):
            at = {"pair": pair, "method": method, "round": "5"}  # the last one, not the best by test labels
            value = 100 * mean("adaptation-rounds.csv", "test_mean_class", **at)
            assert float(row[title].split(" ±")[0]) == pytest.approx(value, abs=0.006)


def test_a_difference_is_paired_by_seed():
    ce, el = np.array([0.9, 0.8, 0.7]), np.array([0.92, 0.81, 0.73])
    pairs = [("ce", ce), ("el:normal", el)]
    rows = [{"loss": loss, "seed": k, "best": float(v)} for loss, values in pairs for k, v in enumerate(values)]
    results = {"el-mnist": Results(STUDIES["el-mnist"], rows, None, 0)}
    [mnist, *_] = gathered.table_rows("el-table-1", results)
    low, high = stats.ttest_rel(el, ce).confidence_interval()
    shown = [float(part) for part in mnist["difference of EL"].replace("−", "-").replace("[", "").replace("]", "").replace(",", "").split()]  # fmt: skip  # noqa: E501
    assert shown == pytest.approx([2.0, 100 * low, 100 * high], abs=0.006)


def test_only_the_levels_of_a_table_are_run():
    assert gathered.needed("el-table-1", "el-images", "smoke") == {}  # which has other levels
    needed = gathered.needed("el-table-1", "el-images", "paper")
    assert set(needed["loss"].split("|")) == {"ce", "el:0.75", "el:normal"}
    assert "mnist" not in needed["setting"].split("|")  # another study has it
    assert set(gathered.needed("el-table-3", "cifar10-lt", "paper")["ratio"].split("|")) == {"100"}
    assert "target" not in gathered.needed("avh-table-5", "pacs", "paper")  # the average needs all of them
    assert set(gathered.needed("amc-table-1", "amc-pairs", "paper")["loss"].split("|")) == {
        "ce", "euclid:paper", "amc:paper",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table", "el-tabel-1"], "did you mean .*el-table-1"),
        (["figure", "el-table-1"], "el-table-1 is a table"),
        (["table", "el-fig-4"], "el-fig-4 is a figure"),
        (["table", "el-table-1", "--rows", "pacs=x.csv"], "rows must be STUDY=FILE.*'pacs'"),
        (["table", "el-table-1", "--rows", "rows.csv"], "rows must be STUDY=FILE"),
        (["table", "el-table-1", "--rows", "nci1=nowhere.csv"], r"no file nowhere\.csv"),
        (["table", "el-table-1", "--measures", "best"], "--measures"),
        (["table", "el-table-1", "--where", "loss=ce"], "--where"),
        (["figure", "el-fig-4"], "nothing to draw"),
    ],
)
def test_what_cannot_be_gathered_is_refused(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["study", *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert re.search(words, error)


@pytest.mark.slow
def test_a_table_is_run_study_by_study(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["study", "run", "amc-table-1", "--scale", "smoke", "--seeds", "1"])
    printed = capsys.readouterr().out
    assert "82.97 ± 0.20" in printed
    assert (tmp_path / "studies/amc-images-smoke/rows.csv").is_file()
    assert (tmp_path / "studies/amc-pairs-smoke/rows.csv").is_file()
    main(["study", "table", "amc-table-1", "--scale", "smoke", "--to", "table.md"])
    assert "| 95.52 ± 0.05 |" in Path("table.md").read_text()


# ---------------------------------------------------------------------------------------------------------------------
# Tables as printed.


def test_table_1_as_printed_is_consistent():
    rows = {(row["score"], row["bin"]): row for row in quoted.printed_bins().to_pylist()}
    bins = [row["n"] for (score, bin_), row in rows.items() if score == "avh" and bin_ != "all"]
    assert sum(bins) == rows["avh", "all"]["n"] == quoted.IMAGES
    for row in rows.values():
        p = 2 * stats.norm.sf(math.atanh(row["r"]) * math.sqrt(row["n"] - 3))
        assert row["p_two_sided"] == pytest.approx(p)
        assert (p > 0.05) == (row["score"] == "norm")
        assert not row["printed_z"] or abs(float(row["printed_z"]) - np.arctanh(row["r"])) < 1e-3


def test_domains_as_printed_are_those_that_the_study_is_compared_with():
    rows = {row["method"]: row for row in quoted.quoted_domains().to_pylist()}
    names = {
        "painting": "art_painting",
        "cartoon": "cartoon",
        "photo": "photo",
        "sketch": "sketch",
        "average": "average",
    }
    for row in published("pacs"):
        method = row["network"].upper().replace("CNN", "CNN-") + (" + AVH" if row["loss"] == "avh" else "")
        column = next(column for column, target in names.items() if target == row["target"])
        assert rows[method][column] == pytest.approx(100 * float(row["value"]))
    for row in rows.values():
        assert row["computed_average"] == pytest.approx(row["average"], abs=0.011)


# ---------------------------------------------------------------------------------------------------------------------
# Sweeps.


def test_a_sweep_draws_means_spreads_and_the_baseline():
    points = [Point(1.0, 91.0, 0.5, 5, 92.0), Point(0.01, 89.0, 0.25, 3), Point(0.1, 90.0, math.nan, 1)]
    panel = Panel("CIFAR-10", "weight", "accuracy, %", points, "ce", Point("", 88.0, 0.75, 5, 87.0), log=True)
    figure = plot_sweeps([panel, panel._replace(points=[]), panel._replace(log=False)])
    first, second = figure.axes  # what has no points is left out
    assert (first.get_xscale(), second.get_xscale()) == ("log", "linear")
    container = first.containers[0]
    np.testing.assert_allclose(container[0].get_xydata(), [[0.01, 89], [0.1, 90], [1, 91]])
    ends = np.array([segment[:, 1] for segment in container[2][0].get_segments()])
    np.testing.assert_allclose(ends, [[88.75, 89.25], [90, 90], [90.5, 91.5]])
    lines = {line.get_label(): line for line in first.get_lines()}
    assert set(lines["ce"].get_ydata()) == {88.0}
    assert set(lines["ce in the paper"].get_ydata()) == {87.0}
    crosses = lines["in the paper"].get_xydata()
    np.testing.assert_allclose(crosses[np.isfinite(crosses[:, 1])], [[1.0, 92.0]])
    [band] = first.patches
    heights = band.get_path().transformed(band.get_patch_transform()).vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((87.25, 88.75))
    assert colors.to_rgb(band.get_facecolor()) == colors.to_rgb(lines["ce"].get_color())
    assert "n = 1 to 5" in first.get_title(loc="left")


def test_texts_stand_side_by_side_without_a_line():
    points = [Point("exact", 20.0, 1.0, 3), Point("clamped", 90.0, 1.0, 3)]
    [axis] = plot_sweeps([Panel("", "log end 1", "accuracy", points, "ce", None)]).axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["exact", "clamped"]
    line = axis.containers[0][0]
    np.testing.assert_allclose(line.get_xydata(), [[0, 20], [1, 90]])
    assert line.get_linestyle() == "None"
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_sweeps([])


def test_the_sweep_of_committed_rows_is_their_means():
    results = read_results("el-log-end", "docs/results/losses-cifar10-sweep.csv")
    ends, clamps = sweep_panels(results, ["margin"])
    with Path("docs/results/losses-cifar10-sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = {
        loss: np.mean([float(row["margin"]) for row in rows if row["loss"] == loss])
        for loss in ("ce", "el:0", "el:0.25", "el:0.5", "el:0.75", "el:0.9", "el:normal")
    }
    assert ends.at_baseline.mean == pytest.approx(expected.pop("ce"))
    assert [point.x for point in ends.points] == [0, 0.25, 0.5, 0.75, 0.9, 1]
    np.testing.assert_allclose([point.mean for point in ends.points], list(expected.values()))
    assert [point.x for point in clamps.points] == ["clamped", "exact", "matched"]
    assert clamps.points[0].mean == ends.points[-1].mean
    with pytest.raises(ValueError, match="'margins'"):
        results.figure(["margins"])
    accuracy = sweep_panels(results, ["best"])[0]
    assert {point.x: point.paper for point in accuracy.points if math.isfinite(point.paper)} == pytest.approx(
        {0.75: 92.97, 1: 92.74}
    )


def test_a_sweep_names_levels_that_the_study_has_and_the_options_in_them():
    for kind in STUDIES.values():
        for sweep in kind.sweeps:
            assert len(set(sweep.places) & set(kind.factors[kind.compare])) >= 3
            assert kind.baseline not in sweep.places
    weights, margins = STUDIES["amc-sweep"].sweeps
    for sweep in (weights, margins):
        for name, x in sweep.places.items():
            [pairs] = [part for part in parse_loss(name).parts if part.part.kind == "pairs"]
            weight, margin = pairs.options["weight"], pairs.options["margin"]
            assert (2 * weight, margin) == pytest.approx((x, 0.5) if sweep is weights else (0.1, x))
            assert pairs.options["down"] is True


@pytest.mark.parametrize("form", ["folder", "npz"])
def test_super_classes_are_trained_on_where_the_table_has_them(form, tmp_path):
    from hardsight.studies import Cell
    from hardsight.studies.declared import images
    from hardsight.studies.declared.training import split_data

    labels = np.arange(40) % 100
    pixels = np.zeros((40, 3, 32, 32), np.uint8)
    if form == "folder":
        (tmp_path / "cifar-100-binary").mkdir()
        content = b"".join(bytes([k % 20, k]) + x.tobytes() for k, x in zip(labels.tolist(), pixels, strict=True))
        for part in ("train", "test"):
            (tmp_path / f"cifar-100-binary/{part}.bin").write_bytes(content)
    else:
        arrays = {f"{part}_{name}": of for part in ("train", "test")
                  for name, of in (("images", pixels), ("labels", labels), ("coarse", labels % 20))}  # fmt: skip
        np.savez(tmp_path / "cifar100.npz", **arrays)
    for settings, classes in ((images._AMC["cifar100-coarse"], 20), (images._EL["cifar100-resnet50"], 40)):
        cell = Cell({}, 0, settings, tmp_path, None, None, tmp_path, tmp_path)
        training, test = split_data(cell)
        assert len(np.unique(training.labels)) == len(np.unique(test.labels)) == classes


def test_studies_of_folders_read_train_and_val(tmp_path):
    from PIL import Image

    from hardsight.studies import Cell
    from hardsight.studies.declared.training import split_data

    for k, name in enumerate(("train/cat/1.png", "train/dog/2.png", "val/cat/3.png")):
        path = tmp_path / "imagenet" / name
        path.parent.mkdir(parents=True)
        Image.new("RGB", (8, 8), (k, k, k)).save(path)
    cell = Cell({}, 0, {"data": "imagenet"}, tmp_path, None, None, tmp_path, tmp_path)
    training, test = split_data(cell)
    assert (len(training), len(test)) == (2, 1)
    assert open_data(tmp_path / "imagenet/train").classes == ["cat", "dog"]


@pytest.mark.slow
def test_a_rate_multiplies_that_of_the_setting(tmp_path):
    results = study("el-image-rates", scale="smoke", seeds=1, out=tmp_path, device="cpu", progress=False)
    values = {(row["rate"], row["loss"]): row["accuracy"] for row in results.rows}
    assert len(set(values.values())) > 1
    assert set(values) == {(rate, loss) for rate in ("0.5", "2") for loss in ("ce", "el:normal")}
