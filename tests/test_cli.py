"""The command as a stranger meets it: help, the closing line, and one sentence for every mistake."""

import importlib
import inspect
import json
import math
import pickle
import pkgutil
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import tyro
from command_line import run
from naive import triple
from PIL import Image
from safetensors.torch import save_file

import hardsight
from hardsight import SampleTable
from hardsight.cli import COMMANDS, main
from hardsight.cli import names as listed
from hardsight.cli.options import plain, structure
from hardsight.cli.signatures import REQUIRED, declaration
from hardsight.figures import FIGURES
from hardsight.labelerrors import RANKINGS
from hardsight.questions import ATTACKS, DEGRADATIONS

MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))

def with_names():
    return build(), None, ["ant", "bee", "cat"]

def headless():
    return nn.Sequential(nn.ReLU())

def broken():
    return undefined_name
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a model file and a small folder of pictures."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    generator = np.random.default_rng(0)
    for name in ("ant", "bee", "cat"):
        Path("pics", name).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(generator.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(f"pics/{name}/{i}.png")
    return tmp_path


def python(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options).stdout.strip()


def test_the_first_screen_has_one_line_per_command_and_imports_nothing_heavy(capsys):
    heavy = "print([m for m in ('torch', 'numpy', 'pyarrow', 'tyro') if m in sys.modules])"
    lines = python(f"import sys, hardsight; from hardsight.cli import main\nmain(['--help'])\n{heavy}").splitlines()
    assert lines[-1] == "[]"
    assert len(lines) - 1 <= 24
    assert max(map(len, lines)) <= 88
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(COMMANDS)
    assert run(capsys)[:2] == run(capsys, "-h")[:2] == (0, run(capsys, "--help")[1])
    assert run(capsys, "--version")[1].strip() == f"hardsight {hardsight.__version__}"


def test_scores_and_losses_do_not_import_the_compiler():
    """`torch._dynamo` and Triton take longer to import than torch itself."""
    names = "hardsight.losses, hardsight.scores, hardsight.dynamics"
    assert python(f"import sys, {names}; print([m for m in ('torch._dynamo', 'triton') if m in sys.modules])") == "[]"


def test_help_of_a_command_imports_nothing_heavy():
    """And it lists what is registered all the same, and the defaults of functions that need torch."""
    code = """
import contextlib, io, sys
from hardsight.cli import COMMANDS, main
for name in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([name, "--help"])
    print(name, *(m for m in ("torch", "numpy", "pyarrow", "scipy") if m in sys.modules))
"""
    assert python(code).split("\n") == list(COMMANDS)


def test_the_names_that_help_lists_are_those_registered():
    assert json.loads(listed.FILE.read_text("utf-8")) == listed.registered(), "python -m hardsight.cli.names"


@pytest.mark.parametrize("path", ["scoring.options:ScoreOptions", "evaluation.run:evaluate", "recipes:Recipe"])
def test_what_is_read_from_source_text_is_what_python_reads(path):
    target, read = pkgutil.resolve_name(f"hardsight.{path}"), declaration(path)
    parameters = inspect.signature(target).parameters
    assert list(read.annotations) == list(parameters)
    for name, parameter in parameters.items():
        if name == "shard":  # a default that no option has
            continue
        default = read.default(name, None)
        assert default == (REQUIRED if parameter.default is parameter.empty else parameter.default)
    if path == "recipes:Recipe":
        hints = get_type_hints(target)
        assert {name: read.type(name) for name in hints} == hints


def all_options(options):
    for entry in fields(options):
        yield from all_options(entry.type) if is_dataclass(entry.type) else [(entry.name, get_args(entry.type)[1])]


def test_the_same_option_takes_the_same_value_in_every_command():
    differing = {"out": {"RUN", "FILE", "FOLDER"}, "by": {"SCORE", "RANKING"}, "data": {"DATA", "FOLDER"}}
    values = {}
    for command in COMMANDS:
        for name, about in all_options(structure(command)):
            values.setdefault(name, set()).add(about.metavar)
    assert {name: kinds for name, kinds in values.items() if len(kinds) > 1} == differing


@pytest.mark.parametrize(
    ("args", "nearest"),
    [
        (("train", "digits", "--model", "small-cnn", "--epoch", "3"), "--epochs"),
        (("score", "net.py:build", "pics", "--batchsize=8"), "--batch-size"),
        (("score", "net.py:build", "pics", "--device-name", "cpu"), "--device"),
        (("clean", "run", "--hlep"), "--help"),
    ],
)
def test_a_misspelled_option_is_one_sentence(capsys, args, nearest):
    code, out, err = run(capsys, *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(rf"hardsight {args[0]} .*did you mean {nearest}\b", err)


def test_options_may_be_written_with_underscores_and_negated(here, capsys):
    options = ["--batch_size=2", "--no-bias", "-o", "run", "--show", "0"]
    assert run(capsys, "score", "net.py:build", "pics", *options)[0] == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_ends_with_examples(capsys, name):
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert out.startswith(f"usage: hardsight {name}")
    assert "--json" in out
    assert "{hardsight" not in out  # the names of a registry stand there instead
    groups = [structure(name)]
    groups += [entry.type for entry in fields(groups[0]) if is_dataclass(entry.type)]
    for entry in (entry for group in groups for entry in fields(group) if not is_dataclass(entry.type)):
        assert any(
            getattr(mark, "help", None) for mark in get_args(entry.type)
        )  # which the docstring of the function it calls must explain
    _, _, examples = out.partition("\nexamples:\n")
    lines = examples.splitlines()
    assert 2 <= len(lines) <= 4
    for line in lines:  # which are commands that can be read
        words = line.partition(">")[0].split()
        assert words[:2] == ["hardsight", name]
        tyro.cli(structure(name), args=words[2:], config=(tyro.conf.OmitArgPrefixes,))


def test_help_names_what_is_registered(capsys):
    for name, registry in (("evaluate", ATTACKS), ("evaluate", DEGRADATIONS), ("clean", RANKINGS), ("figure", FIGURES)):
        out = " ".join(run(capsys, name, "--help")[1].split())
        assert ", ".join(registry) in out


@pytest.mark.parametrize(("name", "nearest"), [("scor", "score"), ("Evaluate", "evaluate"), ("zzz", "demo")])
def test_a_misspelled_command_is_one_sentence(capsys, name, nearest):
    code, out, err = run(capsys, name, "x")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(f"{name}.*{nearest}", err)


def test_completion_knows_every_command_and_its_options(capsys):
    code, script, _ = run(capsys, "completion", "bash")
    assert not code
    assert all(re.search(rf"\b{name}\b", script) for name in COMMANDS)
    assert all(f"--{option}" in script for option in ("label-column", "folds", "checkpoint", "json"))
    for words, completed in ((["sc"], "score"), (["score", "--check"], "--checkpoint")):
        shell = f"{script}\nCOMP_WORDS=(hardsight {' '.join(words)}); COMP_CWORD={len(words)}; _tyro_hardsight"
        done = subprocess.run(["bash", "-c", f"{shell}; echo ${{COMPREPLY[@]}}"], capture_output=True, text=True)
        assert done.stdout.split() == [completed]
    assert run(capsys, "completion", "zsh")[1].startswith("#compdef hardsight")
    assert "function _tyro_hardsight" in run(capsys, "completion", "fish")[1]
    assert run(capsys, "completion", "sh")[0] == 2


def test_values_as_json():
    table = pa.table({"id": ["a"], "avh": [math.nan]})
    values = {1: (math.inf, 2.5, None, True), "rows": table, "array": np.arange(2), "at": Path("run")}
    expected = {"1": [None, 2.5, None, True], "rows": [{"id": "a", "avh": None}], "array": [0, 1], "at": "run"}
    assert plain(values) == expected


def test_every_public_name_is_there_or_says_where_it_went():
    assert len(hardsight.__all__) < 50
    for name in (*hardsight.__all__, "losses", "stats"):
        assert getattr(hardsight, name) is not None
        assert name in dir(hardsight)
    for module, names in hardsight._MOVED.items():
        for name in names.split():
            assert hasattr(importlib.import_module(f"hardsight.{module}"), name)
            with pytest.raises(AttributeError, match=rf"hardsight\.{module}\.{name}"):
                getattr(hardsight, name)
    with pytest.raises(AttributeError, match="no attribute 'avhh'"):
        hardsight.avhh  # noqa: B018


def test_score_a_folder_of_pictures(here, capsys):
    code, out, _ = run(capsys, "score", "net.py:build", "pics", "-o", "run", "--show", "2")
    assert code == 0
    assert "preprocessing: none: pixels in [0, 1]" in out
    assert re.search(r"12 samples scored, accuracy [\d.]+%", out)
    assert re.match("wrote run/ .*hardsight report run", out.strip().splitlines()[-1])
    table = SampleTable.load("run")
    assert sorted(table["id"])[:2] == ["pics/ant/0.png", "pics/ant/1.png"]
    assert table.columns[:3] == ["id", "label", "pred"]
    assert json.loads(Path("run/meta.json").read_text())["class_names"] == ["ant", "bee", "cat"]


def test_json_is_all_there_is_on_standard_output(here, capsys):
    code, out, err = run(capsys, "score", "net.py:build", "pics", "-o", "run", "--show", "3", "--json")
    assert code == 0
    values, table = json.loads(out), SampleTable.load("run")
    assert (values["run"], values["rows"], values["accuracy"]) == ("run", 12, table.accuracy)
    assert [row["id"] for row in values["hardest"]] == table.hardest(3)["id"].tolist()
    assert "wrote run/" in err
    for name, key in (("clean", "samples"), ("report", "page")):
        assert key in json.loads(run(capsys, name, "run", "--json")[1])
    names = json.loads(run(capsys, "figure", "list", "--json")[1])["figures"]
    assert [row["figure"] for row in names] == list(FIGURES)
    code, out, _ = run(capsys, "score", "net.py:build", "nowhere", "--json")
    assert (code, out) == (2, "")


def test_what_it_says_to_do_next_works(here, capsys):
    _, out, _ = run(capsys, "score", "net.py:build", "pics", "-o", "run")
    said = re.search(r"next: hardsight (\w+) (\w+)", out)
    code, out, _ = run(capsys, *said.groups())
    assert code == 0
    assert "Content-Security-Policy" in Path("run/report.html").read_text()
    said = re.search(r"next: open it in a browser; hardsight (\w+) (\w+)", out)
    code, out, _ = run(capsys, *said.groups())
    assert code == 0
    assert Path("run/lists/actions.csv").read_text().count("\n") == 13
    assert "kept out of" in out
    code, _, err = run(capsys, *said.groups())
    assert code == 2
    assert "overwrite" in err


TRAIN = """
from pathlib import Path
from torch import nn

with Path("executed").open("a") as file:
    file.write("once ")

def train(data):
    assert len(data) == 8 and data.classes == 3 and data.class_names == ["ant", "bee", "cat"]
    assert data[0][0].size == (12, 12)
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 8), nn.Linear(8, 3))
"""


def test_score_out_of_sample_by_head_and_by_training(here, capsys):
    Path("train.py").write_text(TRAIN)
    code, out, _ = run(capsys, "score", "net.py:build", "pics", "--folds", "3", "-o", "head")
    assert code == 0
    assert "12 samples scored" in out
    assert SampleTable.load("head").meta.out_of_sample.retrained == "head"
    code, out, _ = run(capsys, "score", "train.py:train", "pics", "--folds", "3", "--seeds", "2", "-o", "trained")
    assert code == 0
    assert re.search(r"model: train\.py:train, .*2 of 3 folds", out)
    assert SampleTable.load("trained").meta.models == ["train.py:train seed 0", "train.py:train seed 1"]
    assert Path("executed").read_text() == "once "
    code, _, err = run(capsys, "score", "train.py:train", "pics", "-o", "x")
    assert code == 2
    assert "--folds 5" in err
    code, _, err = run(capsys, "score", "train.py:train", "pics", "-o", "x", "--folds", "3", "--checkpoint", "net.pt")
    assert "own weights" in err


def test_score_with_several_models_and_compare_runs(here, capsys):
    code, _, _ = run(capsys, "score", "net.py:build", "pics", "-o", "two", "--also", "net.py:build")
    assert code == 0
    assert SampleTable.load("two").meta.models == ["net.py:build", "net.py:build (2)"]
    run(capsys, "score", "net.py:build", "pics", "-o", "one")
    code, _, err = run(capsys, "report", "two", "--against", "one", "-o", "page.html", "--pictures", "4")
    assert code == 0
    assert err.startswith("warning: ")
    assert "--folds" in err
    assert err.count("\n") == 1
    assert Path("page.html").read_text().count("data:image/webp") == 4


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("report", "nowhere"), "RUN: nowhere "),
        (("clean", "nowhere"), "RUN: nowhere "),
        (("score", "f.parquet", "--also", "net.py:build"), "--also"),
        (("score", "net.py:build", "pics", "--folds", "1"), "folds .*got 1"),
        (("score", "net.py:build", "pics", "--seeds", "2"), "seeds .*folds"),
        (("score", "net.py:build", "pics", "--folds", "2", "--also", "net.py:build"), "one model"),
        (("score", "net.py:build", "pics", "--also", "net.py:build", "--checkpoint", "x"), "--checkpoint: .*one model"),
    ],
)
def test_reports_and_folds_that_cannot_be(here, capsys, args, words):
    code, _, err = run(capsys, *args)
    assert code == 2
    assert re.search(words, err)
    assert err.count("\n") == 1


def test_bad_pictures_are_counted(here, capsys):
    Path("pics/ant/text.png").write_text("not a picture")
    whole = Path("pics/bee/0.png").read_bytes()
    Path("pics/bee/cut.png").write_bytes(whole[: len(whole) // 2])
    code, out, _ = run(capsys, "score", "net.py:build", "pics", "-o", "run")
    assert code == 0
    assert "12 samples scored" in out
    for path, reason in (("ant/text.png", "UnidentifiedImageError"), ("bee/cut.png", "OSError")):
        assert re.search(rf"pics/{path}: {reason}", out)
    bad = {row["id"]: row["error"] for row in SampleTable.load("run").bad.to_pylist()}
    assert "UnidentifiedImageError" in bad["pics/ant/text.png"]
    assert "truncated" in bad["pics/bee/cut.png"]
    code, _, err = run(capsys, "score", "net.py:build", "pics", "-o", "strict", "--strict")
    assert code == 2
    assert "'pics/ant/text.png'" in err
    assert not Path("strict/meta.json").exists()


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("executed"),))


def test_a_pickle_that_wants_to_execute_is_refused(here, capsys):
    torch.save({"state_dict": Evil()}, "evil.pt")
    Path("plain.pt").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pt", "plain.pt"):
        code, _, err = run(capsys, "score", "net.py:build", "pics", "--checkpoint", name)
        assert code == 2
        assert re.search(f"{name} .*execute", err)
        assert not Path("executed").exists()


MISTAKES = {
    "no such folder": (["score", "net.py:build", "nowhere"], "DATA: .*nowhere"),
    "no such file": (["score", "other.py:build", "pics"], r"MODEL: .*other\.py"),
    "no such function": (["score", "net.py:bild", "pics"], "'bild'; .*build, with_names"),
    "function forgotten": (["score", "net.py", "pics"], r"function: net\.py:build"),
    "error in the file": (["score", "net.py:broken", "pics"], r"broken\(\) .*line 16: NameError"),
    "no head": (["score", "net.py:headless", "pics"], "no head found"),
    "wrong head": (
        ["score", "net.py:build", "pics", "--head", "4.x"],
        r"head='4\.x' .*: 4",
    ),
    "unknown model": (["score", "timm:resnet5O", "pics"], "timm .*'resnet5O'; .*resnet5"),
    "unknown torchvision": (["score", "torchvision:resnet5O", "pics"], "torchvision .*'resnet5O'; .*resnet5"),
    "unknown data set": (["score", "net.py:build", "torchvision:CIFAR1O"], "'CIFAR1O'; .*CIFAR10"),
    "unknown kind": (["score", "resnet50", "pics"], "MODEL .*timm:NAME"),
    "no checkpoint": (["score", "net.py:build", "pics", "--checkpoint", "x.pt"], r"--checkpoint: .*x\.pt"),
    "unknown score": (["score", "net.py:build", "pics", "--by", "avg"], "'avg'; .*avh"),
    "data forgotten": (["score", "net.py:build"], "DATA is missing"),
    "no split": (["score", "net.py:build", "pics.npz:val"], "val_images"),
    "labels out of range": (["score", "net.py:build", "wide.npz"], r"labels .*\[0, 2\]"),
    "labels of the wrong length": (["score", "net.py:build", "short.npz"], r"4 images .*labels .*\(3,\)"),
    "empty": (["score", "net.py:build", "empty.npz"], "DATA is empty"),
    "pickled arrays": (["score", "net.py:build", "objects.npz"], r"objects\.npz .*Python objects"),
    "not a zip": (["score", "net.py:build", "fake.npz"], r"fake\.npz .*no"),
    "empty folder": (["score", "net.py:build", "bare"], "no images .*bare"),
    "too few classes": (["score", "net.py:build", "two"], "DATA has 2 classes"),
    "unknown class": (["score", "net.py:with_names", "two"], "model .*dog"),
    "missing keys": (["score", "net.py:build", "pics", "--checkpoint", "part.pt"], r"Missing.*4\.bias"),
    "wrong shape": (
        ["score", "net.py:build", "pics", "--checkpoint", "wide.pt"],
        r"4\.weight.*\[5, 4\].*\[3, 4\]",
    ),
    "cut short": (["score", "net.py:build", "pics", "--checkpoint", "cut.pt"], r"cut\.pt"),
    "head file missing": (["score", "f.safetensors", "--head", "missing.pt"], r"--head: .*missing\.pt"),
    "columns of arrays": (["score", "net.py:build", "pics", "--id-column", "x"], "no columns"),
    "columns to train on": (["train", "pics", "--model", "net.py:build", "--label-column", "x"], "no columns"),
    "negative show": (["score", "net.py:build", "pics", "--show", "-1"], "--show .*0"),
    "objects in a head": (["score", "f.safetensors", "--head", "o.npz"], r"--head: .*o\.npz"),
    "features without a head": (["score", "features.parquet"], r"features\.parquet .*weight"),
    "features of another width": (["score", "features.parquet", "--head", "head.safetensors"], "expected 7 .* got 5"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence(here, capsys, mistake):
    pictures = np.zeros((4, 8, 8, 3), np.uint8)
    np.savez("pics.npz", test_images=pictures, test_labels=np.arange(4) % 3)
    np.savez("wide.npz", test_images=pictures, test_labels=np.arange(4))
    np.savez("short.npz", test_images=pictures, test_labels=np.arange(3))
    np.savez("empty.npz", test_images=pictures[:0], test_labels=np.arange(0))
    np.savez("objects.npz", test_images=np.array([{}, 1], dtype=object))
    Path("fake.npz").write_text("no zip")
    Path("bare").mkdir()
    for name in ("ant", "dog"):
        Path("two", name).mkdir(parents=True)
        Image.new("RGB", (12, 12)).save(f"two/{name}/0.png")
    state = {"0.weight": torch.zeros(4, 3, 3, 3), "0.bias": torch.zeros(4), "4.weight": torch.zeros(3, 4)}
    torch.save(state, "part.pt")
    torch.save({**state, "4.weight": torch.zeros(5, 4), "4.bias": torch.zeros(3)}, "wide.pt")
    Path("cut.pt").write_bytes(Path("wide.pt").read_bytes()[:500])
    pq.write_table(pa.table({"features": np.zeros((4, 5)).tolist(), "label": [0, 1, 2, 0]}), "features.parquet")
    save_file({"weight": torch.zeros(3, 7)}, "head.safetensors")
    save_file({"features": torch.eye(3), "labels": torch.arange(3), "weight": torch.eye(3)}, "f.safetensors")
    np.savez("o.npz", weight=np.array([{}, 1], dtype=object))
    args, sentence = MISTAKES[mistake]
    code, _, err = run(capsys, *args, "-o", "run")
    assert code == 2
    assert re.search(sentence, err)
    assert len(err.strip().splitlines()) == 1
    assert not Path("run").exists()


def test_features_from_parquet_and_safetensors(here, capsys):
    features, weight, labels, bias = triple(20, 6, 4)
    table = pa.table({"name": [f"s{i}" for i in range(20)], "features": features.tolist(), "y": labels.numpy()})
    pq.write_table(table, "f.parquet")
    save_file({"features": features, "labels": labels, "weight": weight, "bias": bias}, "f.safetensors")
    save_file({"weight": weight, "bias": bias}, "head.safetensors")
    truth = hardsight.score_features(features, weight, labels, bias)
    ids = ["--id-column", "name", "--label-column", "y"]
    assert run(capsys, "score", "f.parquet", "--head", "head.safetensors", *ids, "-o", "a")[0] == 0
    assert run(capsys, "score", "f.safetensors", "-o", "b")[0] == 0
    for path, first in (("a", "s0"), ("b", "f:0")):
        found = SampleTable.load(path)
        assert found["id"][0] == first
        for name in hardsight.SCORES:
            assert found[name].tolist() == truth[name].tolist()
    Path("same.py").write_text(
        "import torch\nfrom torch import nn\nfrom safetensors.torch import load_file\n"
        "def build():\n    m = nn.Linear(6, 4)\n    m.load_state_dict(load_file('head.safetensors'))\n    return m\n"
    )
    assert run(capsys, "score", "same.py:build", "f.parquet", *ids, "-o", "c")[0] == 0  # the model's own head
    assert SampleTable.load("c")["avh"].tolist() == truth["avh"].tolist()


def test_the_command_and_the_function_give_the_same_rows(here, capsys):
    run(capsys, "score", "net.py:build", "pics", "-o", "run")
    sys.path.insert(0, str(here))
    try:
        import net
    finally:
        sys.path.pop(0)
    table = hardsight.score(net.build(), "pics", preprocess="raw")
    saved = SampleTable.load("run")
    assert table["id"].tolist() == saved["id"].tolist()
    for name in hardsight.SCORES:
        assert table[name].tolist() == saved[name].tolist()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("net.py:build", "pics", "--overwrite"), "--overwrite .*torchrun"),
        (("f.safetensors",), "features .*one process"),
    ],
)
def test_processes_that_cannot_share_the_work(here, capsys, monkeypatch, args, sentence):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    code, _, err = run(capsys, "score", *args, "-o", "run")
    assert code == 2
    assert re.search(sentence, err)
    assert not Path("run").exists()


def test_printed_rows_have_class_names_and_avh_times_the_number_of_classes(here, capsys):
    _, out, _ = run(capsys, "score", "net.py:with_names", "pics", "-o", "run", "--show", "2")
    title, *lines = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert title == ["id", "label", "pred", "C·AVH"]
    table, names = SampleTable.load("run"), ["ant", "bee", "cat"]
    for line, id_ in zip(lines, table.hardest(2)["id"], strict=True):
        at = table["id"].tolist().index(id_)
        assert line[:3] == [id_, names[table["label"][at]], names[table["pred"][at]]]
        assert float(line[3]) == pytest.approx(3 * table["avh"][at], rel=1e-3)


def test_no_bias_is_the_papers_confidence(here, capsys):
    run(capsys, "score", "net.py:build", "pics", "-o", "with")
    run(capsys, "score", "net.py:build", "pics", "-o", "without", "--no-bias")
    assert SampleTable.load("with")["avh"].tolist() == SampleTable.load("without")["avh"].tolist()
    assert SampleTable.load("with")["confidence"].tolist() != SampleTable.load("without")["confidence"].tolist()


def test_unlabeled_images(here, capsys):
    Path("flat").mkdir()
    for i in range(3):
        Image.new("RGB", (12, 12), (40 * i, 0, 0)).save(f"flat/{i}.jpg")
    code, out, _ = run(capsys, "score", "net.py:build", "flat", "-o", "run")
    assert code == 0
    assert "C·AVH at pred" in out
    assert "accuracy" not in out
    assert "label" not in SampleTable.load("run")


def test_names_cannot_command_the_terminal(here, capsys):
    hostile = "\x1b[31mRED\x1b]0;owned\x07.png"
    Path("pics/ant/0.png").rename(f"pics/ant/{hostile}")
    Path("pics/bee/two\nlines.png").write_text("no picture")
    code, out, err = run(capsys, "score", "net.py:build", "pics", "-o", "run", "--show", "20")
    assert code == 0
    assert "\x1b" not in out + err
    assert "\x1b" not in repr(SampleTable.load("run"))
    _, _, err = run(capsys, "score", "net.py:build", "pics", "-o", "strict", "--strict")
    assert len(err.strip().splitlines()) == 1


def test_odd_files_are_rows_or_bad_rows(here, capsys):
    Path("pics/ant/gone.png").symlink_to("nowhere.png")
    Path("pics/bee/1.png").rename("pics/bee/\udcff.png")  # a byte that is no UTF-8
    code, _, err = run(capsys, "score", "net.py:build", "pics", "-o", "run")
    assert code == 0, err
    table = SampleTable.load("run")
    assert table.bad["id"].to_pylist() == ["pics/ant/gone.png"]
    assert "pics/bee/\\xff.png" in table["id"]


@pytest.mark.slow
def test_a_terminal_without_our_signs(here):
    done = subprocess.run(
        [sys.executable, "-m", "hardsight", "score", "net.py:build", "pics", "-o", "run"],
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "wrote run/" in done.stdout


def test_a_builder_may_import_its_neighbours(here, capsys):
    Path("neighbour.py").write_text("WIDTH = 4\n")
    Path("late.py").write_text(MODEL.replace("def build():", "def build():\n    import neighbour"))
    before = list(sys.path)
    assert run(capsys, "score", "late.py:build", "pics", "-o", "run")[0] == 0
    assert sys.path == before


def test_an_error_in_a_worker_is_still_one_sentence(here, capsys):
    Image.new("RGB", (20, 20)).save("pics/ant/large.png")
    code, _, err = run(capsys, "score", "net.py:build", "pics", "-o", "run", "--workers", "1")
    assert code == 2
    assert "different sizes" in err
    assert len(err.strip().splitlines()) == 1


def test_a_complete_run_says_that_nothing_was_computed(here, capsys):
    run(capsys, "score", "net.py:build", "pics", "-o", "run")
    code, out, _ = run(capsys, "score", "net.py:build", "pics", "-o", "run")
    assert code == 0
    assert "nothing was computed" in out
    Image.new("RGB", (12, 12), (9, 9, 9)).save("pics/ant/0.png")
    code, _, err = run(capsys, "score", "net.py:build", "pics", "-o", "run")
    assert code == 2
    assert "same: data" in err


def test_the_run_of_a_training_is_scored_with_its_last_weights(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["train", "digits", "--model", "small-cnn", "--epochs", "1", "--device", "cpu", "-o", "trained"])
    main(["score", "trained", "digits", "--device", "cpu", "-o", "scored"])
    weights = ["--checkpoint", "trained/checkpoint.pt", "--device", "cpu"]
    main(["score", "hardsight:small-cnn", "digits", *weights, "-o", "by"])
    a, b = SampleTable.load("scored"), SampleTable.load("by")
    assert a["avh"].tolist() == b["avh"].tolist()
    assert a.accuracy == b.accuracy > 0.3


def test_options_and_data_are_checked_before_the_users_file_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("open('ran', 'w').close()\n")
    for arguments in (["digits", "--batch-size", "0"], ["digits", "--seeds", "2"], ["nothere"]):
        with pytest.raises(SystemExit) as stop:
            main(["score", "net.py:build", *arguments])
        assert stop.value.code == 2
    assert not Path("ran").exists()
