"""`hardsight align`, `score --human` and `figure people` as a stranger meets them."""

import contextlib
import io
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command_line import run
from naive import triple
from PIL import Image
from report_runs import cells, in_page, record
from scipy import stats

import hardsight as hs
from hardsight import figures
from hardsight.cli import main
from hardsight.dynamics.recorder import UNNAMED
from hardsight.people import Human, coarser, read_alignment
from hardsight.table import SampleTable

NAMES = ["ant", "bee", "cat", "dog", "eel"]
PEOPLE = 20


def counted(table, seed=1):
    """Counts of people by class, in the order of the data; they find hard what the model does, up to a point."""
    draw = np.random.default_rng(seed)
    n, classes = len(table), len(NAMES)
    share = np.clip(1.8 - classes * table["avh"] + draw.normal(0, 0.2, n), 0.02, 1)
    chances = np.repeat((1 - share)[:, None] / (classes - 1), classes, 1)
    chances[np.arange(n), table["label"]] = share
    place = np.array([int(key.rpartition(":")[2]) for key in table["id"]])
    counts = np.zeros((n, classes), np.int64)
    counts[place] = draw.multinomial(PEOPLE, chances)
    return counts


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A scored run, people's counts, and the folder with both."""
    folder = tmp_path_factory.mktemp("align")
    torch.manual_seed(0)
    features, weight, labels, bias = triple(300, 12, 5)
    table = hs.score_features(features, weight, labels, bias, [f"test:{i}" for i in range(300)], name="a net")
    table.meta.class_names = NAMES
    table.save(folder / "run")
    np.savez(folder / "people.npz", counts=counted(table))
    return folder


@pytest.fixture(scope="module")
def told(made):
    """What the command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(["align", str(made / "run"), "--human", str(made / "people.npz")])
    return out.getvalue()


@pytest.fixture(scope="module")
def aligned(made, told):
    return read_alignment(made / "run")


def test_it_says_what_agrees_what_was_written_and_what_to_do_next(made, told, capsys):
    lines = told.strip().splitlines()
    assert lines[0].startswith("people: people.npz: 300 of 300 ")
    for name in ("avh", "angle", "confidence", "ceiling"):
        assert re.search(rf"^{name} +0\.\d{{3}} \[0\.\d{{3}}, 0\.\d{{3}}\]", told, re.MULTILINE)
    for name in range(1, 5):
        assert re.search(rf"^Hypothesis {name}: (holds|does not hold|not decided)\. ", told, re.MULTILINE)
    assert f"hardsight report {made / 'run'}" in lines[-1]
    said = re.search(r"next: hardsight (\w+) (\S+)", told)
    assert run(capsys, *said.groups())[0] == 0
    people = in_page(made / "run" / "report.html")["people"]
    _, board, hypotheses = people["tables"]
    assert cells(board, "spearman")[0][0] > 0.3
    assert people["notes"] == [line for line in lines if "paired bootstrap" in line]
    assert len(hypotheses["rows"]) == 4


def test_the_rows_are_scipy_s(made, aligned):
    table = SampleTable.load(made / "run")
    counts = np.load(made / "people.npz")["counts"]
    place = np.array([int(key.rpartition(":")[2]) for key in table["id"]])
    hsf = counts[place, table["label"]] / counts[place].sum(1)
    people = dict(zip(aligned.people["id"].to_pylist(), aligned.people["hsf"].to_pylist(), strict=True))
    np.testing.assert_allclose([people[key] for key in table["id"]], hsf)
    found = {
        (row["score"], row["coefficient"]): row["value"] for row in aligned.rows.to_pylist() if row["bin"] == "all"
    }
    board = {row["score"]: row for row in aligned.leaderboard.to_pylist()}
    for score, sign in (("avh", -1), ("confidence", 1), ("norm", 1)):
        for name, witness in (
            ("spearman", stats.spearmanr), ("pearson", stats.pearsonr), ("kendall", stats.kendalltau),
        ):  # fmt: skip
            expected = float(witness(table[score].astype(float), hsf).statistic)
            assert board[score][name] == pytest.approx(sign * expected, abs=1e-9)
            assert found[score, name] == pytest.approx(expected, abs=1e-9)
    majority = counts.argmax(1)[place]
    tied = (counts == counts.max(1, keepdims=True)).sum(1)[place] > 1
    assert aligned.other == int(((majority != table["label"]) & ~tied).sum())
    assert aligned.people["answers"].to_pylist() == [PEOPLE] * 300


def test_avh_is_tested_against_confidence_by_every_coefficient(aligned):
    found = aligned.differences
    assert [test[:2] for test in found] == [("avh", "confidence")] * 3
    assert {test.coefficient for test in found} == {"spearman", "pearson", "kendall"}
    board = {row["score"]: row for row in aligned.leaderboard.to_pylist()}
    for test in found:
        name = test.coefficient
        assert test.difference == pytest.approx(board["avh"][name] - board["confidence"][name], abs=1e-9)
        assert test.low < test.difference < test.high


def test_the_summary_is_plain_json(made, aligned):
    summary = json.loads((made / "run" / "alignment" / "summary.json").read_text())
    assert summary["samples"] == 300
    assert {one["coefficient"] for one in summary["ceilings"]} == {"spearman", "pearson", "kendall"}
    assert [one["verdict"] in ("holds", "does not hold", "not decided") for one in summary["hypotheses"]] == [True] * 4
    assert summary["made"]["versions"]["numpy"]


COARSE = ["insect", "insect", "beast", "beast", "fish"]


def coarse_file(path, names):
    path.write_text("\n".join(["class,coarse", *(f"{name},{COARSE[k]}" for k, name in enumerate(names))]))
    return path


def test_answers_are_counted_on_coarser_classes_and_other_scores_compared(made, capsys, tmp_path):
    table = SampleTable.load(made / "run")
    table.save(tmp_path / "run")
    command = ("align", tmp_path / "run", "--human", made / "people.npz", "--compare", "margin, norm", "--coarser")
    code, out, _ = run(capsys, *command, coarse_file(tmp_path / "coarse.csv", NAMES))
    assert code == 0
    tests = read_alignment(tmp_path / "run").differences
    assert [test[:2] for test in tests] == [("margin", "norm")] * 3
    assert all(test.sentence in out for test in tests)
    counts = np.load(made / "people.npz")["counts"]
    people = read_alignment(tmp_path / "run").people.to_pydict()
    label = dict(zip(table["id"], table["label"].tolist(), strict=True))
    for key, hsf in zip(people["id"], people["hsf"], strict=True):
        row = counts[int(key.rpartition(":")[2])]
        same = [k for k in range(5) if COARSE[k] == COARSE[label[key]]]
        assert hsf == pytest.approx(row[same].sum() / PEOPLE)
    for content, words in (
        ("class,rough\nant,1", "got class, rough"),
        ("class,coarse\nant,1", "none for 'bee'"),
    ):
        (tmp_path / "wrong.csv").write_text(content)
        code, _, err = run(capsys, *command, tmp_path / "wrong.csv")
        assert code == 2
        assert words in err


def test_classes_without_names_are_merged_by_number(tmp_path):
    people = Human(None, np.arange(10).reshape(2, 5), None, "people.npz")
    found = coarser(people, coarse_file(tmp_path / "coarse.csv", range(5)))
    assert found.counts.tolist() == [[1, 5, 4], [11, 15, 9]]
    with pytest.raises(ValueError, match=r"5 classes; none for '0'"):
        coarser(people, coarse_file(tmp_path / "named.csv", NAMES))
    with pytest.raises(ValueError, match=r"counts .*frequencies"):
        coarser(Human(None, None, np.ones(3), "people.csv"), tmp_path / "coarse.csv")


@pytest.mark.slow
def test_several_runs_are_told_over_networks_with_seeds_averaged_first(capsys, made, tmp_path):
    features, weight, labels, bias = triple(300, 12, 5)
    for seed, name in enumerate(("wide", "wide", "deep")):
        torch.manual_seed(seed)
        noisy = features + torch.randn_like(features)
        hs.score_features(noisy, weight, labels, bias, [f"test:{i}" for i in range(300)], name=name).save(
            tmp_path / str(seed)
        )
    runs = [tmp_path / str(seed) for seed in range(3)]
    code, out, err = run(capsys, "align", *runs, "--human", made / "people.npz")
    assert (code, err) == (0, "")
    assert "over networks (wide, deep)\n" in out
    found = [read_alignment(path).differences[0] for path in runs]
    assert found[0].coefficient == "spearman"
    expected = hs.people.over_nets([test.difference for test in found], ["wide", "wide", "deep"]).sentence
    assert f"avh ahead of confidence, spearman: {expected}\n" in out
    assert "over 2 architectures (3 networks)" in expected
    code, _, err = run(capsys, "align", "--human", made / "people.npz")
    assert (code, err.count("\n")) == (2, 1)
    assert "RUN is missing" in err


@pytest.mark.slow
def test_runs_that_are_one_or_of_other_samples_are_not_told_over_networks(capsys, made, tmp_path):
    features, weight, labels, bias = triple(300, 12, 5)
    for name, rows in (("one", slice(0, 300)), ("two", slice(0, 300)), ("fewer", slice(0, 200))):
        ids = [f"test:{i}" for i in range(300)][rows]
        hs.score_features(features[rows], weight, labels[rows], bias, ids, name=UNNAMED).save(tmp_path / name)
    one, two, fewer = (tmp_path / name for name in ("one", "two", "fewer"))
    again = tmp_path / "link"
    again.symlink_to(one)
    human = ("--human", made / "people.npz")
    for runs, words in (
        ((one, again), f"RUN .*{one} twice"),
        ((one, tmp_path / "none"), f"RUN: {tmp_path / 'none'} "),
    ):
        code, out, err = run(capsys, "align", *runs, *human)
        assert (code, out) == (2, "")
        assert re.search(words, err)
        assert read_alignment(one) is None  # found before anything was computed
    out = run(capsys, "align", one, fewer, *human)[1]
    assert re.search(rf"{fewer} .*not .*{one}", out)
    assert "over networks (" not in out
    out = run(capsys, "align", one, two, *human)[1]
    assert re.search("2 of 2 runs .*architecture", out)


def test_a_recorded_training_is_its_last_epoch_and_means_over_the_epochs(capsys, tmp_path):
    path = record(tmp_path / "net" / "test", epochs=4)
    dynamics = hs.Dynamics(path)
    draw = np.random.default_rng(0)
    hsf = np.clip(1.2 - 3 * dynamics.matrix("avh").mean(1) + draw.normal(0, 0.05, len(dynamics)), 0, 1).round(2)
    lines = [f"{key},{value}" for key, value in zip(dynamics.ids, hsf, strict=True)][:70]
    (tmp_path / "people.csv").write_text("\n".join(["id,hsf", *lines]))
    code, out, err = run(capsys, "align", path, "--human", tmp_path / "people.csv")
    assert (code, err) == (0, "")
    assert "70 of 80" in out  # what does not overlap is told
    found = read_alignment(path)
    assert found.epoch == 4
    board = {row["score"]: row for row in found.leaderboard.to_pylist()}
    mean = stats.zscore(dynamics.matrix("avh"), axis=0).mean(1)
    expected = -stats.spearmanr(mean[:70], hsf[:70]).statistic
    assert board["avh_epochs"]["spearman"] == pytest.approx(expected, abs=1e-6)
    expected = -stats.spearmanr(dynamics.matrix("avh")[:70, -1], hsf[:70]).statistic
    assert board["avh"]["spearman"] == pytest.approx(expected, abs=1e-6)
    code, _, err = run(capsys, "align", tmp_path / "net", "--human", tmp_path / "people.csv")
    assert code == 2
    assert f"holds a training; name {path}" in err


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (None, (), r"human: .*people\.csv"),
        ("id,hsf\nother/1.png,0.5\nother/2.png,1\n", (), r"people\.csv .*300 samples"),
        ("id,hsf\ntest:0,1.5\ntest:1,1\n", (), r"people\.csv: .*1\.5"),
        ("id,hsf\ntest:0,0.5\ntest:1,1\n", (), "got 2"),
        ("id,hsf\n" + "".join(f"test:{i},1\n" for i in range(300)), (), ""),
        ("id,hsf\ntest:0,0.5\n", ("--compare", "avh,confidenc"), "compare .*'?confidenc\\b"),
        ("id,hsf\ntest:0,0.5\n", ("--compare", "avh"), "compare .*got avh"),
        ("id,hsf\ntest:0,0.5\n", ("--compare", ","), "compare .*got none"),
    ],
)
def test_what_cannot_be_compared_is_told_in_one_sentence(made, capsys, tmp_path, content, options, words):
    SampleTable.load(made / "run").save(tmp_path / "run")
    if content is not None:
        (tmp_path / "people.csv").write_text(content)
    code, _, err = run(capsys, "align", tmp_path / "run", "--human", tmp_path / "people.csv", *options)
    assert code == 2
    assert err.startswith("error: ")
    assert err.strip().count("\n") == 0
    assert re.search(words, err)
    assert not (tmp_path / "run" / "alignment").exists()


def test_samples_without_labels_are_refused(made, capsys, tmp_path):
    rows = SampleTable.load(made / "run").to_arrow().drop_columns(["label"])
    SampleTable(rows, {"model": {"name": "a net", "classes": 5}}).save(tmp_path / "run")
    code, _, err = run(capsys, "align", tmp_path / "run", "--human", made / "people.npz")
    assert code == 2
    assert "no labels" in err


def test_scoring_can_end_with_people(made, capsys, tmp_path, monkeypatch):
    torch.manual_seed(0)
    features, weight, labels, bias = triple(60, 12, 5)
    rows = {"feature": list(features.numpy()), "label": labels.numpy(), "id": [f"test:{i}" for i in range(60)]}
    pq.write_table(pa.table(rows), tmp_path / "features.parquet")
    torch.save({"weight": weight, "bias": bias}, tmp_path / "head.pt")
    monkeypatch.chdir(tmp_path)
    command = ("score", "features.parquet", "--head", "head.pt", "-o", "run", "--human")
    code, _, err = run(capsys, *command, "nothing.csv")
    assert code == 2
    assert "nothing.csv" in err
    assert not (tmp_path / "run").exists()  # told before anything is scored
    code, out, err = run(capsys, *command, made / "people.npz")
    assert (code, err) == (0, "")
    assert "60 samples scored" in out
    assert re.match("wrote run/alignment/ .*hardsight report run", out.strip().splitlines()[-1])
    assert len(read_alignment("run").people) == 60


def test_help_tells_what_a_file_may_hold(capsys):
    code, out, _ = run(capsys, "align", "--help")
    assert code == 0
    for word in ("CIFAR-10H", "Geirhos", "--compare", "--coarser"):
        assert word in out


# ---------------------------------------------------------------------------------------------------------------------
# The figure.


def test_the_figure_counts_every_sample_once(made):
    table = SampleTable.load(made / "run")
    hsf = np.random.default_rng(0).integers(0, 21, 300) / 20
    hsf[:4] = np.nan
    drawn = figures.plot_people({"a net": made / "run"}, hsf).get_axes()
    panels = [axis for axis in drawn if axis.get_xlabel() == "human selection frequency"]
    assert [axis.get_ylabel() for axis in panels] == [
        "C · AVH", "angle to the label's class (rad)", "confidence", "norm, scaled within its class",
    ]  # fmt: skip
    for axis in panels:
        assert axis.collections[0].get_array().filled(0).sum() == 296
        assert axis.get_title(loc="left").startswith("a net, n = 296\nSpearman ")
    rho = stats.spearmanr(table["avh"][4:], hsf[4:]).statistic
    assert f"Spearman {rho:.3f} [" in panels[0].get_title(loc="left")
    last = 5 * np.median(table["avh"][hsf >= 0.96])
    assert panels[0].get_lines()[0].get_ydata()[-1] == pytest.approx(last)


def test_the_figure_is_drawn_from_runs_of_either_kind(made, capsys, tmp_path):
    path = record(tmp_path / "net" / "test", n=40, epochs=2, classes=5)
    out = tmp_path / "people.png"
    code, told, _ = run(capsys, "figure", "people", made / "run", path, "--human", made / "people.npz", "-o", out)
    assert (code, told) == (0, f"wrote {out}\n")
    with Image.open(out) as picture:
        assert picture.width > picture.height
    code, _, err = run(capsys, "figure", "people", path, "-o", out)
    assert code == 2
    assert re.search("people .*--human", err)
    assert run(capsys, "align", path, "--human", made / "people.npz")[0] == 0
    assert run(capsys, "figure", "people", path, "-o", out)[0] == 0  # the run has people in it now
