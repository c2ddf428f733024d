"""Things by name: lookups, suggestions, and options as signatures declare them."""

import math
from typing import Annotated, Literal

import numpy as np
import pytest
import torch

from hardsight.errors import InputError
from hardsight.registry import Option, Range, Registry, did_you_mean, options_of


@pytest.fixture
def shapes():
    shapes = Registry("shape", lambda name, function, **facts: (name, function, facts))

    @shapes.register(round=True)
    def circle(): ...

    @shapes.register("box", round=False)
    def square(): ...

    return shapes


def test_an_entry_is_made_of_its_name_function_and_facts(shapes):
    name, function, facts = shapes["circle"]
    assert (name, function.__name__, facts) == ("circle", "circle", {"round": True})
    assert shapes["box"][1].__name__ == "square"
    assert list(shapes) == ["circle", "box"]


def test_an_unknown_name_is_an_input_error_that_names_the_nearest(shapes):
    with pytest.raises(InputError, match="circle") as caught:
        shapes["circel"]
    assert "box" not in str(caught.value)
    assert shapes.get("circel") is None
    with pytest.raises(InputError, match="box"):
        shapes.names(["circle", "bx"])
    assert shapes.names("box") == ["box"]
    assert shapes.names(("box", "circle")) == ["box", "circle"]


def test_a_name_is_registered_once(shapes):
    with pytest.raises(InputError, match="circle"):
        shapes.register("circle")(len)
    assert shapes["circle"][1] is not len


def test_suggestions_list_all_where_none_is_near_and_stay_short():
    assert did_you_mean("zzz", ["avh", "norm"]) == "there are avh, norm."
    assert len(did_you_mean("zzz", [f"name{i}" for i in range(500)])) < 200
    assert did_you_mean("x", []) == "there are none."


@pytest.mark.parametrize(
    ("range_", "inside", "outside"),
    [
        (Range(0, 1), [0, 1, 0.5], [-1e-9, 1 + 1e-9, math.nan, math.inf, -math.inf]),
        (Range(0, 1, "()"), [0.5], [0, 1]),
        (Range(0, 1, "[)"), [0], [1]),
        (Range(0, 1, "(]"), [1], [0]),
        (Range(0), [0, 1e300], [-1, math.inf]),
        (Range(), [-1e300], [math.nan, math.inf]),
        (Range(0, 2**63 - 1), [2**62], [2**63, 10**400]),
    ],
)
def test_a_range_holds_what_its_brackets_say(range_, inside, outside):
    assert all(range_.holds(value) for value in inside)
    assert not any(range_.holds(value) for value in outside)


def declared(
    x,
    positional=3.0,
    *,
    scale: Annotated[float, Range(0, ends="()")] = 16.0,
    count: Annotated[int, Range(1, 9)] = 2,
    kind: Literal["a", "b"] = "a",
    flag: bool = False,
    steps: tuple[Annotated[float, Range(0)], ...] = (),
    needed: float,
): ...


def test_options_are_the_keywords_with_a_default():
    options = options_of(declared)
    defaults = {"scale": 16.0, "count": 2, "kind": "a", "flag": False, "steps": ()}
    assert {name: option.default for name, option in options.items()} == defaults
    assert options["kind"].choices == ("a", "b")


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("scale", "1e-3", 1e-3), ("scale", np.float32(0.5), 0.5), ("scale", torch.tensor(2), 2.0), ("count", "4", 4),
        ("count", 4.0, 4), ("count", "4.0", 4), ("count", "6e0", 6), ("kind", "b", "b"), ("flag", "true", True),
        ("flag", False, False), ("steps", "30,60", (30.0, 60.0)), ("steps", [1, 2], (1.0, 2.0)), ("steps", "", ()),
    ],
)  # fmt: skip
def test_values_and_their_texts_become_what_the_function_takes(name, given, value):
    checked = options_of(declared)[name].check(given, name)
    assert checked == value
    assert type(checked) is type(value)


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1, 10**18 + 7, -(2**53) - 1])
def test_integers_are_exact_also_from_a_text(number):
    option = Option("seed", int, 0)
    assert option.check(number, "seed") == option.check(str(number), "seed") == number
    assert option.check(np.int64(number), "seed") == number


@pytest.mark.parametrize("text", ["9" * 400, "9" * 5000, "1e400", "2.5", "9007199254740993x", ""])
def test_other_texts_are_no_integers(text):
    with pytest.raises(InputError, match=r"^seed"):
        Option("seed", int, 0).check(text, "seed")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("scale", 0), ("scale", "nan"), ("scale", True), ("scale", None), ("scale", [1]), ("count", 2.5), ("count", 10),
        ("count", True), ("kind", "c"), ("kind", 1), ("flag", 1), ("flag", "yes"), ("steps", "1,-1"), ("steps", 3),
    ],
)  # fmt: skip
def test_other_values_are_refused_by_the_name_of_the_option(name, given):
    with pytest.raises(InputError, match=f"^the {name}"):
        options_of(declared)[name].check(given, f"the {name}")


def test_an_entry_of_a_registry_is_a_choice():
    bonuses = Registry("bonus")
    bonuses.register("log")(math.log)
    option = Option.of("bonus", Annotated[str, bonuses], "log")
    assert option.check("log", "bonus") == "log"
    with pytest.raises(InputError):
        option.check("exp", "bonus")
