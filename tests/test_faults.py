"""The short form of `python -m benchmarks faults`: killed at random moments, resumed, equal to an undisturbed run."""

import time
from types import SimpleNamespace

import pytest
from forked import exit_code, fork

pytestmark = pytest.mark.slow


@pytest.fixture
def faults(benchmark_module):
    return benchmark_module("faults")


@pytest.mark.parametrize("verb", ["score", "score --folds", "Recorder", "train", "adapt", "evaluate", "report"])
def test_nothing_is_lost(faults, verb):
    def killed():
        [row] = faults.faults(kills=2, verbs=(verb,))
        assert float(row["p50"]) == 0, row

    assert exit_code(fork(killed)) == 0  # a process of its own: it sets the number of threads


def test_a_command_that_resumes_differently_is_noticed(faults, monkeypatch):
    def work(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(len([*folder.iterdir()]))).touch()
        time.sleep(0.4)

    def result(folder):
        return {"starts": len([*folder.iterdir()]), "constant": 1}

    monkeypatch.setitem(faults.VERBS, "broken", faults.Verb(work, result))
    times = iter([0.2])
    monkeypatch.setattr(faults.random, "Random", lambda seed: SimpleNamespace(uniform=lambda *_: next(times, 60.0)))
    [row] = faults.faults(kills=1, verbs=("broken",))
    assert float(row["p50"]) == 1
