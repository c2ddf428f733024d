"""What decides a result has an identity: the same for equal things, another for others, whatever they print."""

import dataclasses
import enum
import functools
import importlib
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

from hardsight.models import architecture
from hardsight.runs import content_hash, identify

SCALE = 2.0


def scaled(x, by=1.0):
    return x * by * SCALE


def shifted(by):
    return lambda x: x - by


class Subtract:
    def __init__(self, mean):
        self.mean = mean

    def __call__(self, x):
        return x - self.mean


@dataclasses.dataclass
class Crop:
    size: int


class Mode(enum.Enum):
    NEAREST = 0
    LINEAR = 1


def long_array(value):
    array = np.zeros(5000, np.float32)
    array[2500] = value
    return array


def network(scale=1.0):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    layers.scale = scale
    return layers


DIFFERENT = {
    "numbers": (1, 1.0),
    "texts": ("1", 1),
    "bytes": (b"a", "a"),
    "nesting": ([["a"], "b"], ["a", ["b"]]),
    "order": ([1, 2], [2, 1]),
    "signed zero": (0.0, -0.0),
    "array in the middle": (long_array(0), long_array(1e-9)),
    "dtype": (np.zeros(4, np.float32), np.zeros(4, np.int32)),
    "shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "object array": (np.array(["a"] * 2000 + ["b"], object), np.array(["a"] * 2000 + ["c"], object)),
    "tensor": (torch.zeros(5), torch.tensor([0, 0, 0, 0, 1e-9])),
    "tensor dtype": (torch.zeros(2), torch.zeros(2, dtype=torch.float16)),
    "state": (Subtract(long_array(0)), Subtract(long_array(1e-9))),
    "dataclass": (Crop(1), Crop(2)),
    "enum": (Mode.NEAREST, Mode.LINEAR),
    "closure": (shifted(0.0), shifted(0.5)),
    "partial": (functools.partial(scaled, by=1), functools.partial(scaled, by=2)),
    "one line": (lambda x: x + 1, lambda x: x + 2),
    "library functions": (torch.sin, torch.cos),
    "methods": (Subtract(1).__call__, Subtract(2).__call__),
    "classes": (Crop, Mode),
    "paths": (pathlib.Path("a"), pathlib.Path("b")),
    "module attribute": (network(), network(2.0)),
    "module weights": (network(), network().half()),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_things_have_another_identity(name):
    one, other = DIFFERENT[name]
    assert not identify(one).gaps
    assert not identify(other).gaps
    assert identify(one) == identify(one)
    assert identify(one).hash != identify(other).hash


def test_equal_things_have_the_same_identity():
    cycle = []
    cycle.append(cycle)
    makers = (
        lambda: Subtract(long_array(1)),
        lambda: shifted(0.25),
        lambda: {"b": [1, {2, 3}], "a": Crop(3)},
        lambda: cycle,
        network,
    )
    for make in makers:
        assert identify(make()) == identify(make())
    assert identify({"a": 1, "b": 2}) == identify({"b": 2, "a": 1})


def test_a_global_that_a_function_reads_is_part_of_it(monkeypatch):
    first = identify(scaled)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert identify(scaled) != first


def test_a_global_that_only_has_the_name_of_an_attribute_is_no_part_of_it(monkeypatch):
    first = identify(Subtract(1.0))
    monkeypatch.setitem(globals(), "mean", 3.0)
    assert identify(Subtract(1.0)) == first


def test_what_cannot_be_hashed_is_a_gap_and_equals_nothing():
    generator = (x for x in "ab")
    assert identify([1, generator]).gaps
    assert content_hash(generator) != content_hash(generator)
    space = {}
    exec("def sourceless(x): return x", space)
    assert "sourceless" in identify(space["sourceless"]).gaps[0]


def test_a_network_is_its_weights_code_and_attributes_but_not_its_mode():
    net = network()
    first, layers = identify(net), architecture(net)
    assert identify(net.eval()) == identify(net.train()) == first
    handle = net.register_forward_hook(lambda *_: None)
    assert identify(net) != first  # it could change the output
    handle.remove()
    with torch.no_grad():
        net[1].weight[0, 0] += 1
    assert identify(net) != first
    assert architecture(net) == layers  # which is a network without its weights
    assert architecture(network(2.0)) != layers
    assert architecture(nn.Sequential(nn.Flatten(), nn.Linear(5, 3))) != layers


def test_identity_is_the_same_in_every_process_and_sees_the_source(tmp_path, monkeypatch):
    text = """
        import numpy as np

        MEANS = {"a": np.arange(3), "b": {"x", "y", "z"}}

        class Transform:
            def __call__(self, x):
                return x - MEANS["a"] * FACTOR
    """
    code = "from hardsight.runs import identify; from my_transform import Transform; print(identify(Transform()).hash)"
    hashes = []
    for factor in ("1", "2"):
        (tmp_path / factor).mkdir()
        (tmp_path / factor / "my_transform.py").write_text(textwrap.dedent(text).replace("FACTOR", factor))
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / factor)
            patch.delitem(sys.modules, "my_transform", raising=False)
            hashes.append(identify(importlib.import_module("my_transform").Transform()).hash)
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path / "2", capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == hashes[1] != hashes[0]
