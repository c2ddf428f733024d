"""Errors meant for the user are one sentence and exit status 2; a bug of ours keeps its traceback."""

import builtins
import errno
import inspect
import subprocess
import sys

import pytest
import torch
from command_line import run

import hardsight as hs
from hardsight import errors
from hardsight.cli import pages

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c is not errors.HardsightError]


@pytest.fixture
def failing(monkeypatch, capsys):
    """Exit code, standard output and standard error of a command whose work raises this error."""

    def call(error):
        def work() -> None:
            raise error

        monkeypatch.setattr(pages, "doctor", work)
        return run(capsys, "doctor")

    return call


@pytest.mark.parametrize("kind", CLASSES)
def test_each_error_is_ours_and_the_built_in_that_a_caller_expects(kind):
    assert issubclass(kind, hs.HardsightError)
    assert kind.__bases__[1] in vars(builtins).values()
    assert str(kind("left is 3")) == "left is 3"  # a KeyError would add quotes


@pytest.mark.parametrize("kind", [errors.HardsightError, *CLASSES])
def test_an_error_of_ours_is_one_line(failing, kind):
    assert failing(kind("count must be 1,\ngot \x1b[31m0.")) == (2, "", "error: count must be 1,\\ngot \\x1b[31m0.\n")


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"), IndexError(3), ValueError("x"), TypeError("x"), RuntimeError("x"), AssertionError("x"),
        FileNotFoundError(errno.ENOENT, "No such file", "ours.json"), OSError("x"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_bug_is_no_sentence(failing, error):
    with pytest.raises(type(error)) as raised:
        failing(error)
    assert raised.value is error


def test_a_bug_ends_the_process_with_a_traceback():
    code = "from hardsight.cli import main, pages\npages.doctor = lambda: {}['x']\nmain(['doctor'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("Traceback")
    assert ended.stderr.endswith("KeyError: 'x'\n")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
def test_what_the_machine_refuses_is_a_sentence(failing, number):
    code, _, err = failing(OSError(number, "Refused", "a\x1bb.parquet"))
    assert (code, err) == (2, "error: Refused: a\\x1bb.parquet\n")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left"), "No space left"),  # without the name of a file
        (torch.OutOfMemoryError("Tried to allocate\n20 GiB"), "--batch-size"),
        (MemoryError(), "--batch-size"),
    ],
)
def test_a_full_disk_and_memory_that_runs_out_are_a_sentence(failing, error, words):
    code, _, err = failing(error)
    assert (code, err.count("\n")) == (2, 1)
    assert words in err


class Refusing(torch.nn.Module):
    """Raises this error in its forward."""

    def __init__(self, error):
        super().__init__()
        self.fc, self.error = torch.nn.Linear(4, 3), error

    def forward(self, x):
        raise self.error


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (errors.InputError("x"), errors.InputError),
        (torch.OutOfMemoryError("x"), torch.OutOfMemoryError),
        (MemoryError(), MemoryError),
        (ValueError("the head is not ours"), errors.StateError),  # whatever it says, it is the model's
    ],
)
def test_scoring_wraps_what_the_model_raises_but_not_our_errors(raised, kind):
    data = torch.utils.data.TensorDataset(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))
    with pytest.raises(kind) as caught:
        hs.score(Refusing(raised), data)
    assert type(caught.value) is kind
