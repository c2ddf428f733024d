"""The grammar of ``--loss``: what is understood, what it is called afterwards, and a sentence for every mistake."""

import math
import pickle
import subprocess
import sys
from functools import partial
from typing import Annotated, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hardsight as hs
from hardsight.cli import main
from hardsight.losses import BONUSES, LOSSES, build_loss, cross_entropy, forms, loss_part, parse_loss
from hardsight.registry import Range

CANONICAL = {
    "ce": "ce",
    " CE ": "ce",
    "EL@ArcFace+AMC:Paper": "el:0.75@arcface:0.5+amc:paper",
    "el": "el:0.75",
    "el:0.75": "el:0.75",
    "el:log_end=0.5": "el:0.5",
    "el:normal": "el:normal",
    "el:1": "el:exact",
    "el:exact": "el:exact",
    "el:exact,match": "el:exact,match",
    "el:aggressive": "el:aggressive",
    "el:log_end=1,start=.5": "el:exact,start=0.5",
    "el:released": "el:0.75,released",
    "el:normal,released,match": "el:normal,match",
    "el:0.5, defer=25": "el:0.5,defer=25",
    "el:bonus=power,rho=2": "el:0.75,rho=2,bonus=power",
    "focal": "focal:2",
    "mirror": "mirror",
    "mse:sigmoid": "mse:sigmoid",
    "avh": "ce@angular:16",
    "avh:32,learn": "ce@angular:32,learn",
    "el@avh": "el:0.75@angular:16",
    "arcface:0.3": "ce@arcface:0.3",
    "arcface:0.3,scale=64": "ce@arcface:0.3,scale=64",
    "ldam": "ce@ldam:0.5",
    "adjusted:2": "ce@adjusted:2",
    "amc": "ce+amc:paper",
    "amc:0.05": "ce+amc:paper",
    "amc:10": "ce+amc:released",
    "amc:released,pairs=classes,labels=true": "ce+amc:released,pairs=classes,labels=true",
    "center": "ce+center:0.003",
    "el:0.5@arcface:0.3+amc:2": "el:0.5@arcface:0.3+amc:2",
    "el+amc@cosine": "el:0.75@cosine:16+amc:paper",
    "cosface:1e+0+euclid:1e-3": "ce@cosface:1+euclid:0.001",
    "ce:weight=effective": "ce:effective",
    "ce:drw=160": "ce:effective,drw=160",
    "el:normal,drw=180,defer=180": "el:normal,defer=180,weight=effective,drw=180",
    "focal:1,beta=0.99": "focal:1,weight=effective,beta=0.99",
}


@pytest.mark.parametrize("text", CANONICAL)
def test_a_name_has_one_canonical_form(text):
    name = parse_loss(text)
    assert str(name) == CANONICAL[text]
    assert parse_loss(str(name)) == name


@pytest.mark.parametrize("name", LOSSES)
def test_every_part_can_be_named_alone_and_is_documented(name):
    part = LOSSES[name]
    assert part.summary
    assert part.reference
    parsed = parse_loss(name)
    assert part in [bound.part for bound in parsed.parts]
    assert parse_loss(str(parsed)) == parsed
    assert f"{name}[" in forms(part.kind)


@given(st.sampled_from(list(LOSSES)), st.data())
def test_any_options_come_back_from_the_name(name, data):
    part, values = LOSSES[name], {}
    for key, option in part.options.items():
        if data.draw(st.booleans()):
            low, high, ends = option.range
            if option.type is bool:
                values[key] = True
            elif option.choices:
                values[key] = data.draw(st.sampled_from(list(option.choices)))
            elif option.type is int:
                values[key] = data.draw(st.integers(math.ceil(low), int(min(high, 1e6))))
            else:
                inside = st.floats(low, min(high, 1e6), exclude_min=True, exclude_max=ends[1] == ")")
                values[key] = data.draw(inside)
    items = [key if value is True else f"{key}={value}" for key, value in values.items()]
    parsed = parse_loss(f"{name}:{','.join(items)}" if items else name)
    assert parse_loss(str(parsed)) == parsed
    bound = next(bound for bound in parsed.parts if bound.part is part)
    if values.keys() & {"beta", "drw"}:
        values["weight"] = "effective"
    assert values.items() <= bound.options.items()


MISTAKES = {
    "": r"OBJECTIVE\[@LOGITS\]\[\+PAIRS\], .*missing",
    "+amc": "name is missing",
    "ell": r"'ell'; .* el\?",
    "arcfase": "'arcfase'; .*arcface",
    "huber": "'huber'; .*ce, el",
    "el:2": r"log_end.*\[0, 1\], got '2'",
    "el:nan": "log_end.*got 'nan'",
    "el:normall": "log_end.*got 'normall'",
    "el:start=1": r"start .*\[0, 1\), got '1'",
    "el:rho=-1": r"rho .*\[0, ∞\), got '-1'",
    "el:rho=inf": r"rho .*\[0, ∞\), got 'inf'",
    "el:defer=2.5": r"defer .*\[0, ∞\), got '2\.5'",
    "el:lgo_end=1": "el .*'lgo_end=1'; .*log_end",
    "el:match=yes": "el's match .*'yes'",
    "el:0.5,0.6": r"el .*'0\.6'",
    "el:normal,start=0.5": "start, in",
    "el:bonus=sine": "bonus .*got 'sine'",
    "ce:inverse": "weight .*got 'inverse'",
    "mirror:tanh": "activation .*got 'tanh'",
    "angular:0": r"scale .*\(0, ∞\), got '0'",
    "sphereface:1.5": r"margin .*integer.*'1\.5'",
    "arcface:2": r"margin .*\[0, 1\.5708",
    "amc:margin=4": r"margin .*\(0, 3\.1416\]",
    "euclid:margin=1e19": r"margin .*\(0, 1e\+18\], got '1e19'",
    "amc:papers": "weight.*got 'papers'",
    "ce@amc": r"'ce@amc'; amc .*\+",
    "ce+arcface": "arcface .*after @",
    "ce@el": "el goes first",
    "ce@cosine@angular": "cosine and angular",
    "amc+center": "amc and center",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_name_that_cannot_be_is_a_sentence(text):
    with pytest.raises(ValueError, match=MISTAKES[text]) as raised:
        parse_loss(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("read", [parse_loss, build_loss])
@pytest.mark.parametrize("name", [0.75, None])
def test_no_name_is_a_sentence_too(read, name):
    with pytest.raises(TypeError, match=rf"loss .*got a {type(name).__name__}"):
        read(name)


def test_what_a_name_needs_is_read_from_it():
    assert parse_loss("el@arcface+amc").needing_indices() == ["arcface"]
    assert parse_loss("el+amc:labels=true").needing_indices() == ["amc"]
    assert parse_loss("ldam+center").needing_indices() == ["ldam", "center"]
    assert parse_loss("el@avh+amc").needing_indices() == []
    assert [parse_loss(name).smoothed for name in ("ce", "el", "focal", "mirror", "mse")] == [True] * 3 + [False] * 2
    assert [parse_loss(name).latest() for name in ("el:defer=25,drw=160", "el:defer=25", "mirror")] == [160, 25, 0]


@pytest.mark.parametrize(
    ("names", "endless"),
    [
        (["el:exact", "el:exact,start=0.5", "el:exact,match", "el:1,defer=3@cosine"], True),
        (["el:0.9", "el:normal", "el:exact,rho=0", "el:1,bonus=power"], False),
    ],
)
def test_only_the_exact_bonus_has_no_end(names, endless):
    assert all(hs.build_loss(name).objective.endless == endless for name in names)


# ---------------------------------------------------------------------------------------------------------------------
# One decorated function is all that a new part needs.


@pytest.fixture
def registered():
    before = dict(LOSSES), dict(BONUSES)

    @BONUSES.register()
    def cubic(m, **_):
        ce = cross_entropy(m)
        return ce - (-3 * ce).exp()

    @loss_part("logits", reference="here")
    def tempered(logits, *, temperature: Annotated[float, Range(0, ends="()")] = 2.0):
        """Logits over a temperature."""
        return logits / temperature

    @loss_part("pairs", reference="here")
    def lengths(features, labels, *, strength: float = 0.1, kind: Literal["mean", "max"] = "mean"):
        """How long features are."""
        values = features.square().sum(1)
        return strength * (values.mean() if kind == "mean" else values.max())

    yield
    for registry, entries in zip((LOSSES, BONUSES), before, strict=True):
        registry.clear()
        registry.update(entries)


def test_new_parts_are_built_by_name(registered):
    x, w, y = torch.randn(8, 4), torch.randn(3, 4), torch.arange(8) % 3
    name = "el:bonus=cubic@tempered:4+lengths:0.5,kind=max"
    assert str(parse_loss(name)) == "el:0.75,bonus=cubic@tempered:4+lengths:0.5,kind=max"
    loss = hs.build_loss(name, epochs=10, warmup=2)
    loss.at(5)
    p = (x @ w.T / 4).softmax(1)[range(8), y]
    expected = (-p.log() - p**3).mean() + 0.5 * x.square().sum(1).max()
    torch.testing.assert_close(loss(x @ w.T, y, x, w), expected)
    loss.at(0)
    torch.testing.assert_close(loss(x @ w.T, y, x, w), (-p.log() - p**3).mean())
    assert "tempered[:temperature]" in forms("logits")
    with pytest.raises(ValueError, match=r"temperature .*\(0, ∞\), got '0'"):
        parse_loss("tempered:0")


def test_new_parts_train_by_name(registered, tmp_path, capsys):
    main(["train", "digits", "--model", "small-cnn", "--epochs", "1", "--device", "cpu", "--no-record",
          "--loss", "el:bonus=cubic@tempered+lengths", "-o", str(tmp_path / "run")])  # fmt: skip
    assert "el:0.75,bonus=cubic@tempered:2+lengths:0.1" in capsys.readouterr().out


def test_a_name_is_registered_once_but_an_edited_function_replaces_itself(registered):
    with pytest.raises(ValueError, match="'tempered'"):
        loss_part("pairs", "tempered", reference="again")(lambda features, labels: features.sum())
    source = "def doubled(logits, *, by: float = {}): return by * logits"
    for value in (2.0, 3.0):
        names = {"__name__": "mine"}
        exec(source.format(value), names)
        loss_part("logits", reference="here")(names["doubled"])
        assert str(parse_loss("doubled")) == f"ce@doubled:{value:g}"


def test_a_flag_that_is_switched_off_comes_back_from_the_name(registered):
    @loss_part("logits", reference="here")
    def flagged(logits, *, centered: bool = True, doubled: bool = True):
        return logits

    for text in ("flagged:centered=false", "flagged:doubled=false", "flagged:centered=false,doubled=false", "flagged"):
        assert str(parse_loss(text)) == f"ce@{text}"
        assert parse_loss(str(parse_loss(text))) == parse_loss(text)


def test_a_class_is_a_part(registered):
    @loss_part("objective", reference="here")
    class scaled(torch.nn.CrossEntropyLoss):  # noqa: N801
        def __init__(self, weight=None, label_smoothing=0.0, *, by: float = 2.0):
            super().__init__(weight, label_smoothing=label_smoothing)
            self.by = by

        def forward(self, input, target):
            return self.by * super().forward(input, target)

    assert str(parse_loss("scaled:drw=2")) == "scaled:2,weight=effective,drw=2"
    z, y = torch.randn(6, 3), torch.arange(6) % 3
    expected = 4 * torch.nn.functional.cross_entropy(z, y, label_smoothing=0.1)
    torch.testing.assert_close(hs.build_loss("scaled:4", label_smoothing=0.1)(z, y), expected)


def test_help_names_every_part_that_is_registered_by_then(registered, capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*LOSSES, "avh", "tempered[:temperature]", "lengths[:strength]"))


def test_names_of_options_are_those_of_the_part_alone(registered):
    """What an option of el or of class weights means there, it does not mean in another part."""

    @loss_part("pairs", reference="here")
    def spread(features, labels, *, weight: float = 0.5, beta: float = 2.0, defer: str = "no"):
        """A power of lengths."""
        return weight * features.abs().pow(beta).mean()

    @loss_part("logits", reference="here")
    def softened(logits, *, beta: float = 2.0, labels: Literal["true", "false"] = "true"):
        """Logits over a number."""
        return logits / beta

    @loss_part("objective", reference="here")
    def scaled(logits, target, *, log_end: float = 1.0, defer: str = "no", released: float = 1.0):
        """Cross-entropy times a number."""
        return log_end * torch.nn.functional.cross_entropy(logits, target)

    name = parse_loss("scaled:1,released=7@softened:beta=4+spread:0.25,beta=3")
    assert str(name) == "scaled:1,released=7@softened:4+spread:0.25,beta=3"
    assert name.pairs.options == {"weight": 0.25, "beta": 3.0, "defer": "no", "labels": "predicted", "down": False}
    assert (name.latest(), name.needing_indices()) == (0, [])
    x, w, y = torch.randn(8, 4), torch.randn(3, 4), torch.arange(8) % 3
    expected = torch.nn.functional.cross_entropy(x @ w.T / 4, y) + 0.25 * x.abs().pow(3).mean()
    loss = hs.build_loss(name, counts=torch.tensor([3, 3, 2]))
    torch.testing.assert_close(loss(x @ w.T, y, x, w), expected)


def test_an_objective_says_when_it_changes(registered):
    @loss_part("objective", reference="here", latest="late")
    def linear(logits, target, *, late: int = 0):
        """A line."""
        return -logits.gather(1, target[:, None]).mean()

    assert parse_loss("linear:late=4").latest() == 4
    with pytest.raises(ValueError, match="epochs is 4"):
        hs.Recipe(epochs=4, loss="linear:late=4")


@pytest.mark.parametrize("name", ["el:0.5,defer=2@arcface:0.3+amc:down", "ce:drw=2+center", "mirror", "focal@ldam"])
def test_a_built_loss_can_be_pickled_with_its_schedules(name):
    context = {"counts": torch.tensor([9, 4, 1]), "width": 4, "epochs": 8, "warmup": 3, "rampdown": 2}
    loss = hs.build_loss(name, **context)
    again = pickle.loads(pickle.dumps(loss))
    features, weight, labels = torch.randn(6, 4), torch.randn(3, 4), torch.arange(6) % 3
    for time in (0, 1, 3, 7):
        loss.at(time)
        again.at(time)
        values = [part(features @ weight.T, labels, features, weight) for part in (loss, again)]
        torch.testing.assert_close(*values, rtol=0, atol=0)


def test_a_parsed_name_can_be_pickled():
    name = parse_loss("el:exact@arcface+amc")
    assert pickle.loads(pickle.dumps(name)) == name


def taking(option):
    """A function of a batch with one option."""
    names = {}
    exec(f"def part(logits, target, *, {option} = 1.0): return logits.sum()", names)
    return names["part"]


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        *(("objective", name) for name in ("label_smoothing", "counts", "width", "weight", "Gamma")),
        *(("logits", name) for name in ("counts", "width", "learn", "T")),
        *(("pairs", name) for name in ("counts", "width", "labels", "down")),
        ("objective", "beta"),
        ("objective", "drw"),
    ],
)
def test_an_option_that_a_name_could_not_set_is_refused(kind, option):
    with pytest.raises(ValueError, match=option) as raised:
        loss_part(kind, "mine", reference="here")(taking(option))
    assert "\n" not in str(raised.value)
    assert "mine" not in LOSSES


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        *((name, {}) for name in ("Mine", "my part", "a:b", "a+b", "a@b", "2d", "größe", "avh")),
        *(("mine", {"presets": {preset: {"gamma": 2.0}}}) for preset in ("Strong", "a,b", "a=b")),
    ],
)
def test_a_name_that_could_not_be_read_is_refused(name, facts):
    wrong = next(iter(facts.get("presets", ())), name)
    with pytest.raises(ValueError, match=f"'{wrong}'".replace("+", r"\+")) as raised:
        loss_part("objective", name, reference="here", **facts)(taking("gamma"))
    assert "\n" not in str(raised.value)
    assert "mine" not in LOSSES


def test_the_name_of_a_function_and_its_kind_are_checked_too():
    def Camel(logits): ...  # noqa: N802

    with pytest.raises(ValueError, match="'Camel'"):
        loss_part("logits", reference="here")(Camel)
    with pytest.raises(ValueError, match="got 'bonus'"):
        loss_part("bonus", "mine", reference="here")(taking("gamma"))


FILE = """
import torch
from torch import nn

from hardsight.losses import BONUSES, cross_entropy, loss_part

print("executed")
start = torch.rand(1).item()


@BONUSES.register()
def cubic(m, **_):
    ce = cross_entropy(m)
    return ce - (-3 * ce).exp()


@loss_part("logits", reference="here")
def tempered(logits, *, temperature: float = 2.0):
    return logits / temperature


@loss_part("pairs", reference="here")
def lengths(features, labels, *, strength: float = 0.1):
    return strength * features.square().sum(1).mean()


def build():
    print("drew", start)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
"""
NAME = "el:bonus=cubic@tempered:4+lengths"


@pytest.mark.slow
def test_a_file_brings_its_losses_to_the_command(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    command = [sys.executable, "-m", "hardsight", "train", "digits", "--model", "mine.py:build", "--epochs", "1"]
    command += ["--device", "cpu", "--no-record", "--lr", "0.01", "--overwrite"]
    run = partial(subprocess.run, capture_output=True, text=True, cwd=tmp_path)
    first, again, other = (run([*command, "--loss", NAME, "--seed", seed]) for seed in ("3", "3", "4"))
    assert first.returncode == other.returncode == 0, first.stderr + other.stderr
    assert first.stdout.count("executed") == 1
    assert "el:0.75,bonus=cubic@tempered:4+lengths:0.1" in first.stdout
    drawn = [next(line for line in ran.stdout.splitlines() if "drew" in line) for ran in (first, again, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    wrong = run([*command, "--loss", "ce@temperd"])
    assert wrong.returncode == 2
    assert "tempered?" in wrong.stderr


def test_a_file_brings_its_losses_to_the_function(registered, tmp_path):
    for name in ("tempered", "lengths"):
        del LOSSES[name]
    del BONUSES["cubic"]
    (tmp_path / "theirs.py").write_text(FILE)
    state = torch.get_rng_state()
    trained = hs.train(
        f"{tmp_path}/theirs.py:build", "digits", recipe=hs.Recipe(epochs=1, lr=0.01), loss=NAME, out=tmp_path / "run",
        record=(), device="cpu", progress=False,
    )  # fmt: skip
    assert {"ce", "bonus", "pairs"} <= trained.history[0].keys()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "change",
    [("/ temperature", "* temperature"), ("-3 * ce", "-4 * ce"), ("strength * features", "strength * 2 * features")],
)
def test_an_edited_loss_of_a_file_is_another_run(registered, tmp_path, change):
    def run():
        return hs.train(
            f"{file}:build", "digits", recipe=hs.Recipe(epochs=1, lr=0.01), loss="el:bonus=cubic@tempered:4+lengths:1",
            out=tmp_path / "run", record=(), device="cpu", progress=False,
        )  # fmt: skip

    for name in ("tempered", "lengths"):
        del LOSSES[name]
    del BONUSES["cubic"]
    file = tmp_path / "edited.py"
    file.write_text(FILE)
    first = run()
    assert run().history == first.history
    file.write_text(FILE.replace(*change) + "\n")
    with pytest.raises(FileExistsError, match=r"same: loss\)"):
        run()
