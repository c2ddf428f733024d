"""`evaluate_degraded`, its summaries, its figures and its command: rows are those of the same engine, and stay."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from attacked_networks import untrained as network
from command_line import failure
from scipy import stats
from torch.utils.data import TensorDataset

import hardsight as hs
from hardsight.cli import main
from hardsight.correlation import spearman
from hardsight.data import ArraySamples, load_digits, open_data
from hardsight.figures import draw, plot_degradation, plot_degraded_avh
from hardsight.networks import build_network
from hardsight.questions import (
    DegradedSamples,
    at_every_level,
    degrade,
    evaluate_degraded,
    follows_level,
    human_accuracy,
    mean_by_level,
    read_degraded,
)
from hardsight.questions.levels import level_summary
from hardsight.scoring.blocks import row_blocks


@pytest.fixture
def digits():
    pictures, labels = load_digits()
    return ArraySamples(pictures[:60], labels[:60], "test", "60 digits")


def test_rows_are_those_of_the_network_on_degraded_pixels(digits):
    net = network()
    rows = evaluate_degraded(net, digits, ["noise", "contrast"], preprocess="raw", batch_size=13)
    assert rows.column_names[:6] == ["degradation", "level", "id", "label", "pred", "correct"]
    assert len(rows) == 2 * 5 * 60
    assert pc.unique(rows["level"]).to_pylist()[:5] == [0.0, 0.1, 0.2, 0.3, 0.4]
    x, y = torch.from_numpy(digits.images).float()[:, None] / 255, torch.from_numpy(digits.labels)
    for name, level in (("noise", 0.3), ("contrast", 0.2)):
        own = rows.filter(pc.and_(pc.equal(rows["degradation"], name), pc.equal(rows["level"], level)))
        assert own["id"].to_pylist() == [f"test:{i}" for i in range(60)]
        with torch.no_grad():
            inputs = degrade(x, name, level, own["id"].to_pylist())
            features = net[:-1](inputs)
            logits = net(inputs)
        np.testing.assert_allclose(own["avh"], hs.avh(features, net[-1].weight.detach(), y), atol=1e-5)
        np.testing.assert_allclose(own["confidence"], logits.softmax(1).gather(1, y[:, None])[:, 0], atol=1e-5)
        assert own["correct"].to_pylist() == (logits.argmax(1) == y).tolist()


def test_the_clean_level_is_what_score_says(digits):
    rows = evaluate_degraded(network(), digits, "contrast", [1.0, 0.5], preprocess="raw")
    scored = hs.score(network(), digits, preprocess="raw").to_arrow()
    clean = rows.filter(pc.equal(rows["level"], 1.0))
    assert clean.select(scored.column_names).replace_schema_metadata(None).equals(scored)


def test_preprocessing_comes_after_and_takes_eight_bits_where_it_takes_pictures(digits):
    from torchvision import transforms

    seen = []

    def watch(picture):
        seen.append(np.asarray(picture))
        return transforms.ToTensor()(picture)

    for takes in ("pil", "tensor"):
        seen.clear()
        model = hs.Model(network(), "net", watch if takes == "pil" else transforms.Normalize(0.5, 2.0), takes)
        evaluate_degraded(model, digits, "noise", [0.2])
        if takes == "pil":
            x = torch.from_numpy(digits.images[:1]).float()[:, None] / 255
            expected = degrade(x, "noise", 0.2, ["test:0"])[0, 0].numpy() * 255
            assert seen[0].dtype == np.uint8
            np.testing.assert_allclose(seen[0], expected, atol=0.501)
    x, label = DegradedSamples(digits, "noise", 0.2, rounded=False).load(0, 1)
    assert label == digits.labels[0]
    np.testing.assert_allclose(x[..., 0] * 255, expected, atol=1e-4)


def test_tensors_in_0_1_are_degraded_and_others_refused(digits):
    x = torch.rand(30, 3, 9, 9)
    y = torch.arange(30) % 10
    net = network(channels=3)
    rows = evaluate_degraded(net, TensorDataset(x, y), "noise", [0.2])
    with torch.no_grad():
        logits = net(degrade(x, "noise", 0.2, rows["id"].to_pylist()))
    assert rows["pred"].to_pylist() == logits.argmax(1).tolist()
    with pytest.raises(ValueError, match=r"data .*\[0, 1\], got -"):
        evaluate_degraded(net, TensorDataset(x * 4 - 2, y), "noise")
    with pytest.raises(ValueError, match="preprocess must"):
        evaluate_degraded(net, digits, "noise")


def test_without_labels_scores_are_those_of_the_predicted_class(digits, tmp_path):
    unlabeled = ArraySamples(digits.images, None, "test", "digits")
    rows = evaluate_degraded(network(), unlabeled, "blur", preprocess="raw", out=tmp_path)
    assert "correct" not in rows.column_names
    assert "avh_pred" in rows.column_names
    told = mean_by_level(rows)
    assert pc.unique(told["value"]).to_pylist()[0] == "avh_pred"
    assert plot_degradation({"net": tmp_path}).get_axes()[0].get_lines()


def test_levels_from_before_a_score_was_added_are_read_beside_newer_ones(digits, tmp_path):
    options = {"preprocess": "raw", "out": tmp_path / "run"}
    old = evaluate_degraded(network(), digits, "contrast", [1.0, 0.6], scores=("avh", "confidence"), **options)
    new = evaluate_degraded(network(), digits, "noise", [0.0, 0.1], **options)
    assert "soft_margin" in new.column_names
    assert read_degraded(tmp_path / "run").equals(pa.concat_tables([old, new.select(old.column_names)]))


def test_processes_share_every_level(digits, tmp_path):
    options = {"levels": {"noise": [0.0, 0.1]}, "preprocess": "raw", "device": "cpu"}
    alone = evaluate_degraded(network(), digits, ["contrast", "noise"], batch_size=16, **options)
    for rank in (1, 0):
        rows = evaluate_degraded(
            network(), digits, ["contrast", "noise"], batch_size=16, out=tmp_path / "run", shard=(rank, 2), **options
        )
        assert len(rows) == 28 * 7 if rank else 60 * 7  # units of 16 samples
    assert rows.equals(alone)
    assert read_degraded(tmp_path / "run").equals(alone)
    for rank, count in ((1, 0), (0, 120)):  # all samples are one unit, which the first process scores
        rows = evaluate_degraded(network(), digits, "noise", [0.0, 0.2], preprocess="raw", device="cpu",
                                 out=tmp_path / "small", shard=(rank, 2))  # fmt: skip
        assert len(rows) == count


def test_what_is_done_is_not_done_again_and_a_kill_costs_no_level(digits, tmp_path, monkeypatch):
    def evaluate(names="noise", levels=None, seed=0, **options):
        return evaluate_degraded(
            network(seed), digits, names, levels, preprocess="raw", out=tmp_path / "run", **options
        )

    levels_scored = []

    def counted(model, samples, *args):
        levels_scored.append(samples.level)
        if len(levels_scored) == 3:
            raise KeyboardInterrupt
        return row_blocks(model, samples, *args)

    monkeypatch.setattr("hardsight.scoring.network.row_blocks", counted)
    with pytest.raises(KeyboardInterrupt):
        evaluate()
    assert levels_scored == [0.0, 0.1, 0.2]
    rows = evaluate()
    assert levels_scored == [0.0, 0.1, 0.2, 0.2, 0.3, 0.4]
    assert evaluate().equals(rows)
    assert read_degraded(tmp_path / "run").equals(rows)
    assert len(levels_scored) == 6
    evaluate("noise", [0.05])  # one more level joins
    assert pc.unique(read_degraded(tmp_path / "run")["level"]).to_pylist() == [0.0, 0.05, 0.1, 0.2, 0.3, 0.4]
    for other in ({"seed": 1}, {"gray": True}):
        with pytest.raises(FileExistsError, match=r"noise=0 .*another"):
            evaluate("contrast", [1.0], **other)
    evaluate("contrast", [1.0], seed=1, overwrite=True)
    with pytest.raises(RuntimeError, match=r"several .*gray"):
        read_degraded(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="no degraded images"):
        read_degraded(tmp_path)


@pytest.fixture
def rows():
    """200 pictures of which AVH follows the level, confidence less, and norm not at all."""
    made = np.random.default_rng(0)
    levels = np.array([0.0, 0.1, 0.2, 0.4])
    own = made.normal(size=(200, 1))
    noise = made.normal(size=(3, 200, 4))
    columns = {
        "avh": 0.1 + levels + 0.1 * own + 0.1 * noise[0],
        "confidence": 0.9 - levels + own + noise[1],
        "norm": own + noise[2],
        "correct": noise[0] + own > 5 * levels - 1,
    }
    ids = np.repeat([f"test:{i}" for i in range(200)], 4)
    table = {"degradation": ["noise"] * 800, "level": np.tile(levels, 200), "id": ids}
    return pa.table(table | {name: values.ravel() for name, values in columns.items()}), columns, levels


def test_means_have_the_intervals_of_scipy(rows):
    table, columns, levels = rows
    told = mean_by_level(table).to_pylist()
    assert list(dict.fromkeys(row["value"] for row in told)) == ["correct", "avh", "confidence", "norm"]
    for row in told:
        own = columns[row["value"]][:, levels.tolist().index(row["level"])]
        if row["value"] == "correct":
            ends = stats.binomtest(int(own.sum()), 200).proportion_ci(method="wilson")
        else:
            ends = stats.ttest_1samp(own, 0).confidence_interval()
        assert row["n"] == 200
        np.testing.assert_allclose([row["mean"], row["low"], row["high"]], [own.mean(), *ends], rtol=1e-9)


def test_correlation_with_the_level_is_scipys_and_its_interval_that_of_resampled_pictures(rows):
    table, columns, levels = rows
    made = np.random.default_rng(1)
    for row in follows_level(table, ["avh", "confidence", "norm"]).to_pylist():
        own = columns[row["value"]]
        assert row["spearman"] == pytest.approx(stats.spearmanr(own.ravel(), np.tile(levels, 200))[0], abs=1e-12)
        drawn = [own[made.integers(0, 200, 200)] for _ in range(400)]
        resampled = [stats.spearmanr(matrix.ravel(), np.tile(levels, 200))[0] for matrix in drawn]
        width = (row["high"] - row["low"]) / 2 / 1.96
        assert width == pytest.approx(np.std(resampled), rel=0.15)
        assert (row["pictures"], row["levels"]) == (200, 4)
        assert row["expected"] == (1 if row["value"] == "avh" else -1)
        each = np.array([row["expected"] * stats.spearmanr(one, levels)[0] for one in own])
        share = (each > 1e-12).mean() + (abs(each) <= 1e-12).mean() / 2
        assert row["moves"] == pytest.approx(share)
        assert row["moves_low"] < share < row["moves_high"]


def test_the_interval_of_few_images_is_students(rows):
    table, columns, levels = rows
    [row] = follows_level(table.slice(0, 24), ["avh"]).to_pylist()  # six images
    influence = spearman(columns["avh"][:6].ravel(), np.tile(levels, 6)).influence.reshape(6, 4).mean(1)
    reach = stats.t.ppf(0.975, 4) * stats.sem(influence) * np.sqrt(6 / 3) / (1 - row["spearman"] ** 2)
    ends = np.tanh(np.arctanh(row["spearman"]) + reach * np.array([-1, 1]))
    np.testing.assert_allclose([row["low"], row["high"]], ends, rtol=1e-9)


def test_the_summary_scales_avh_alone_and_puts_people_beside_their_degradation():
    columns = {"degradation": ["noise"] * 2 + ["contrast"] * 2, "level": [0.0, 0.1, 1.0, 0.3], "id": ["a"] * 4}
    rows = pa.table(columns | {"avh": [0.02, 0.04, 0.02, 0.06], "norm": [4.0, 3.0, 4.0, 2.0]})
    people = [{"degradation": "contrast", "level": 0.3, "mean": 0.75}]
    values, lines = level_summary(rows.replace_schema_metadata({"classes": "10"}), people)
    cells = [line.split() for line in lines if line]
    assert cells[:2] == [["noise", "C·AVH", "norm"], ["0", "0.200", "4.000"]]
    assert cells[2:4] == [["0.1", "0.400", "3.000"], ["contrast", "C·AVH", "norm"]]
    assert cells[4:] == [["1", "0.200", "4.000"], ["0.3", "0.600", "2.000"], ["people:", "0.3:", "75%"]]
    assert [row["mean"] for row in values["means"]][:2] == [0.02, 0.04]


def test_the_direction_turns_with_the_degradation_and_little_or_nothing_is_null_or_a_sentence(rows):
    table, _, _ = rows
    contrast = table.set_column(0, "degradation", pa.array(["contrast"] * 800))
    contrast = contrast.set_column(1, "level", pc.subtract(1.0, table["level"]))
    noise, turned = (follows_level(one, ["avh"]).to_pylist()[0] for one in (table, contrast))
    assert turned["expected"] == -1
    assert turned["spearman"] == pytest.approx(-noise["spearman"])
    assert turned["moves"] == noise["moves"]
    with pytest.raises(ValueError, match=r"levels .*noise, got 1"):
        follows_level(table.filter(pc.equal(table["level"], 0.1)))
    few = table.slice(0, 12)  # three pictures
    assert follows_level(few, ["avh"])["spearman"].to_pylist() == [None]
    flat = table.append_column("el2n", pa.array(np.ones(800)))
    assert follows_level(flat, ["el2n"])["spearman"].to_pylist() == [None]
    holed = table.set_column(3, "avh", pa.array(np.r_[np.nan, table["avh"].to_numpy()[1:]]))
    assert follows_level(holed, ["avh"])["pictures"].to_pylist() == [199]


TRIALS = "subj,object_response,category,condition\n" + "a,dog,dog,c30\n" * 3 + "a,na,dog,c30\na,cat,cat,0.10\n"


def test_trials_of_people_become_accuracy_by_level(tmp_path):
    file = tmp_path / "trials.csv"
    file.write_text(TRIALS)
    told = human_accuracy(file).to_pylist()
    assert [(row["degradation"], row["level"], row["n"], row["mean"]) for row in told] == [
        ("contrast", 0.3, 4, 0.75),
        ("noise", 0.1, 1, 1.0),
    ]
    ends = stats.binomtest(3, 4).proportion_ci(method="wilson")
    assert (told[0]["low"], told[0]["high"]) == pytest.approx((ends.low, ends.high))
    file.write_text("experiment," + TRIALS.replace("\na,", "\nuniform-noise,a,").replace("c30", "0.35"))
    assert {row["degradation"] for row in human_accuracy(file).to_pylist()} == {"noise"}
    file.write_text("experiment," + TRIALS.replace("\na,", "\ncontrast,a,"))
    assert {row["degradation"] for row in human_accuracy(file).to_pylist()} == {"contrast"}
    for text, words in (
        ("id,hsf\na,1\n", "table of trials"),
        (TRIALS.replace("c30", "x").replace("0.10", "y"), "no trials"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=words):
            human_accuracy(file)
    with pytest.raises(FileNotFoundError, match=r"human: .*no file"):
        human_accuracy(tmp_path / "none.csv")


def test_figures_draw_the_means_harder_to_the_right(digits, tmp_path):
    run = tmp_path / "run"
    rows = evaluate_degraded(network(), digits, ["noise", "contrast"], preprocess="raw", out=run)
    (tmp_path / "trials.csv").write_text(TRIALS)
    axes = plot_degradation({"a": run, "b": run}, tmp_path / "trials.csv").get_axes()
    assert [axis.get_ylabel() for axis in axes[:4]] == ["norm of the feature", "C · AVH", "accuracy", "confidence"]
    assert axes[0].xaxis_inverted()  # contrast
    assert not axes[4].xaxis_inverted()
    means = mean_by_level(rows, ["avh"])
    expected = 10 * means.filter(pc.equal(means["degradation"], "noise"))["mean"].to_numpy()
    np.testing.assert_allclose(axes[5].get_lines()[1].get_ydata(), expected)
    assert [text.get_text() for text in axes[3].get_legend().get_texts()] == ["a", "b", "people (Geirhos et al.)"]
    figure = plot_degraded_avh({"a": run})
    drawn = [axis for axis in figure.get_axes() if "Spearman" in axis.get_title(loc="left")]
    assert len(drawn) == 2
    assert [tick.get_text() for tick in drawn[0].get_xticklabels()] == ["1", "0.6", "0.3", "0.2", "0.1"]
    shares = drawn[1].collections[0].get_array().reshape(40, 5)
    np.testing.assert_allclose(shares.sum(0), 1)


def test_every_level_recorded_while_training_is_drawn_by_epoch(digits, tmp_path):
    view = at_every_level(digits, "noise", [0.2, 0.0])
    assert len(view) == 120
    assert [view.ids[0], view.ids[61]] == ["noise=0/test:0", "noise=0.2/test:1"]
    np.testing.assert_array_equal(view.images[:60, ..., 0], digits.images)
    np.testing.assert_array_equal(view.images[60:], _rounded(DegradedSamples(digits, "noise", 0.2)))
    net = network()
    recorder = hs.Recorder(tmp_path / "test", name="net", data=view)
    for _ in range(2):
        with torch.no_grad(), hs.capture(net) as head:
            net(torch.from_numpy(view.images).permute(0, 3, 1, 2) / 255)
        recorder.update(view.ids, head, torch.from_numpy(view.labels))
        recorder.end_epoch()
    recorder.close()
    assert draw("degradation", [tmp_path / "test"], out=tmp_path / "d.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="images in memory"):
        at_every_level(TensorDataset(torch.rand(3, 1, 4, 4)), "noise")


def _rounded(samples):
    return np.stack([samples.load(i, 1)[0] for i in range(len(samples))])


MODEL = """
import torch
from torch import nn

def build(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

def other():
    return build(1)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    pictures, labels = load_digits()
    np.savez("digits.npz", test_images=pictures[:80], test_labels=labels[:80])
    main(["score", "net.py:build", "digits.npz", "-o", "run"])


def test_the_command_asks_of_degraded_images_and_figures_draw_them(here, capsys):
    Path("trials.csv").write_text(TRIALS)
    main(["evaluate", "run", "--degrade", "noise,contrast", "--model", "net.py:build", "--human", "trials.csv"])
    told = capsys.readouterr().out
    for words in ("C·AVH and level: Spearman", "people: 0.3: 75%", "hardsight figure degradation evaluation", "  0.4 "):
        assert words in told
    main(["figure", "degradation", "evaluation", "--human", "trials.csv", "-o", "d.png"])
    main(["figure", "degradation-avh", "evaluation", "-o", "a.svg"])
    assert Path("d.png").stat().st_size > 10_000
    main(["evaluate", "run", "--degrade", "blur", "--levels", "0,0.1", "--gray", "--model", "net.py:build"])
    assert "blur · level 0.1" in Path("evaluation/comparison.html").read_text()


def test_the_question_says_what_evaluate_degraded_says(here, tmp_path):
    nets = [hs.Model(network(seed), f"net{seed}") for seed in (0, 1)]
    data = open_data("digits.npz:test")
    evaluation = hs.evaluate(
        [hs.evaluation.Subject(f"n{k}", net, data) for k, net in enumerate(nets)], questions=(),
        degradations=["noise", "contrast"], levels={"noise": [0, 0.3]}, out="out", device="cpu", progress=False,
    )  # fmt: skip
    for k, net in enumerate(nets):
        expected = evaluate_degraded(net, data, ["noise", "contrast"], {"noise": [0, 0.3]}, device="cpu")
        found = evaluation.levels()[f"n{k}"]
        for name in ("degradation", "level", "id", "label", "correct"):
            assert found[name].to_pylist() == expected[name].to_pylist()
        for name in ("avh", "angle", "confidence", "norm"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)
        rows = {(row["metric"], row["score"], row["level"]): row for row in evaluation.rows.to_pylist()
                if row["run"] == f"n{k}"}  # fmt: skip
        for mean in mean_by_level(found).to_pylist():
            metric = "accuracy" if mean["value"] == "correct" else mean["value"]
            row = rows[metric, mean["degradation"], mean["level"]]
            assert [row[end] for end in ("value", "low", "high")] == [mean[end] for end in ("mean", "low", "high")]
    how = {(test["metric"], test["level"]): test["test"] for test in evaluation.tests.to_pylist()}
    assert how["accuracy", 0.3] == "McNemar's exact test over samples"
    assert how["avh", 0.3] == "paired t over samples"
    assert hs.evaluation.read_evaluation("out").levels()["n1"].equals(evaluation.levels()["n1"])


def test_a_library_network_and_its_checkpoint_are_found_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pictures, labels = load_digits()
    np.savez("digits.npz", images=pictures[:20], labels=labels[:20])
    torch.manual_seed(0)
    torch.save(build_network("small-cnn", 10, 1).state_dict(), "net.pt")
    main(["score", "hardsight:small-cnn", "digits.npz", "--checkpoint", "net.pt", "-o", "run"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    main(["evaluate", "../run", "--degrade", "noise", "--levels", "0"])
    plan = json.loads(Path("evaluation/evaluation.json").read_text())
    assert (plan["runs"][0]["model"], plan["runs"][0]["weights"]) == ("small-cnn", "checkpoint net.pt")
    meta = json.loads(Path("../run/meta.json").read_text())
    meta["built"]["model"] = "evil.py:build"  # a run folder makes no code run
    Path("../run/meta.json").write_text(json.dumps(meta))
    Path("evil.py").write_text("raise SystemExit('ran')")
    assert "cannot be rebuilt" in failure(capsys, "evaluate", "../run", "--degrade", "noise")


@pytest.mark.filterwarnings("default")
def test_evaluate_warns_when_the_network_is_not_that_of_the_run(here, capsys):
    main(["evaluate", "run", "--degrade", "blur", "--model", "net.py:other"])
    assert re.search("warning: RUN: run ", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("evaluate run", "--model .*--checkpoint"),
        ("evaluate --degrade noise", "RUN is missing"),
        ("evaluate run --degrade nois", r"'nois'; .*noise\?"),
        ("evaluate run --degrade noise --levels 0,much", "--levels .*got '0,much'"),
        ("evaluate run --degrade noise,blur --levels 0,.1", "--levels .*noise, blur"),
        ("evaluate run --degrade jpeg --levels 33.5", r"jpeg .*got 33\.5"),
        ("evaluate run --degrade noise", "--model .*--checkpoint"),
        ("evaluate none --degrade noise", "none .*no hardsight"),
        ("evaluate run run --degrade noise --model net.py:build", "one RUN, got 2"),
        ("evaluate run --degrade noise --model net.py:build --human none.csv", r"human: .*none\.csv"),
        ("figure degradation run", "run .*degraded"),
    ],
)
def test_mistakes_are_sentences(here, capsys, args, words):
    assert re.search(words, failure(capsys, *args.split()))


@pytest.mark.slow
def test_a_training_is_evaluated_with_its_own_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pictures, labels = load_digits()
    np.savez("digits.npz", images=pictures[:200], labels=labels[:200])
    given = ["digits.npz", "--model", "small-cnn", "--test", "digits.npz", "-o", "run", "--epochs", "1"]
    main(["train", *given])
    main(["evaluate", "run", "--degrade", "contrast", "--levels", "1,0.3"])
    rows = hs.evaluation.read_evaluation("evaluation").samples["run"]
    recorded = hs.SampleTable.load("run/test")
    assert dict(zip(recorded["id"], recorded["pred"], strict=True)) == dict(
        zip(rows["id"].to_pylist(), rows["pred"].to_pylist(), strict=True)
    )
