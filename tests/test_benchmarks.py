"""The harness of benchmarks/: checks, timing, memory and the rows that it writes."""

import csv
import time

import pytest
import torch


@pytest.fixture
def measure(benchmark_module):
    return benchmark_module("measure")


@pytest.fixture
def command(benchmark_module, monkeypatch, tmp_path):
    """Runs `python -m benchmarks` with benchmarks of a test; returns exit code and rows of the CSV."""
    main, measure = benchmark_module("__main__"), benchmark_module("measure")
    path = tmp_path / "results.csv"

    def run(benchmark, *options):
        monkeypatch.setattr(main, "BENCHMARKS", {"it": "module"})
        monkeypatch.setattr(main, "load", lambda name: benchmark)
        code = main.main(["it", "--csv", str(path), *options])
        return code, measure.read_results(path) if path.exists() else []

    return run


def test_a_ratio_is_the_median_of_the_rounds(measure):
    value = measure.ratio([3.0, 4.0, 4.0], [1.0, 2.0, 4.0])
    assert value == 2  # 3, 2, 1: neither 4/2 nor 3/1
    rows = [measure.row("b", "c", [1.0], "s", baseline="fast", ratio=of, limit=1.5) for of in (1.0, value)]
    assert [measure.failures(r) for r in rows] == [[], ["OVER"]]


def test_rows_hold_the_percentiles(measure):
    row = measure.row("b", "c", [5.0, 1.0, 2.0, 3.0, 4.0, 0.0], "s")
    assert [float(row[name]) for name in ("p20", "p50", "p80")] == [1, 2.5, 4]
    assert row["n"] == "6"
    assert tuple(row) == measure.COLUMNS
    with pytest.raises(TypeError):
        measure.row("b", "c", [1.0], "s", memory=3)  # a column that there is not


def test_cases_are_timed_in_turn(measure):
    order = []
    cases = {name: lambda name=name: order.append(name) for name in "ab"}
    seconds = measure.interleaved(cases, 2, repeats=2)
    assert "".join(order) == "aabb" * 3  # the first round is to warm up
    assert [len(values) for values in seconds.values()] == [2, 2]


def test_memory_beyond_inputs_and_outputs(measure):
    pages = torch.ones(40, 2**18)  # 40 MiB that are there before

    def work():
        copy = pages + 1
        return copy[:20] * 2  # 40 MiB on the way, 20 are returned

    peak = measure.peak_memory(work)
    if peak is None:
        pytest.skip("the system does not count")
    assert 30 < peak < 60
    assert measure.peak_memory(work, kept=0) == pytest.approx(peak + 20, abs=8)


@pytest.mark.slow
def test_a_failed_check_fails_the_row_and_the_exit_code(command, measure, capsys):
    def benchmark(error):
        case = measure.Case("c", lambda: None, check=lambda seed: error)
        return lambda: iter([measure.Comparison([case], "N=1", rounds=1)])

    assert command(benchmark(0.9))[0] == 0
    code, rows = command(benchmark(1.1))
    assert code == 1
    assert "WRONG" in capsys.readouterr().out
    assert [r["error"] for r in rows] == ["0.9", "1.1"]
    assert rows[0]["config"].split()[0] == "N=1"
    assert command(benchmark(float("nan")))[0] == 1


@pytest.mark.slow
def test_a_limit_of_time_or_memory_that_is_exceeded_fails(command, measure):
    def benchmark(**limits):
        fast = measure.Case("fast", lambda: None)
        slow = measure.Case("slow", lambda: time.sleep(0.01), "fast", **limits)
        return lambda: iter([measure.Comparison([fast, slow], rounds=3)])

    assert command(benchmark())[0] == 0
    assert command(benchmark(limit=1.0))[0] == 1
    grown = [measure.row("b", "c", [1.0], "s", memory_mib=3, memory_limit=2)]
    assert command(lambda: grown)[0] == 1


@pytest.mark.slow
def test_checks_see_a_new_seed_in_every_run_unless_it_is_given(command, measure):
    seeds = []

    def benchmark():
        yield measure.Comparison(
            [measure.Case("c", lambda: None, check=lambda seed: seeds.append(seed) or 0)], rounds=1
        )

    for options in ((), (), ("--seed", "7")):
        command(benchmark, *options)
    assert seeds[0] != seeds[1]
    assert seeds[2] == 7


def test_an_error_does_not_lose_the_other_comparisons(command, measure):
    def benchmark():
        yield measure.Comparison([measure.Case("broken", lambda: 1 / 0)], rounds=1)
        yield measure.Comparison([measure.Case("sound", lambda: None)], rounds=1)
        raise ValueError

    code, rows = command(benchmark)
    assert code == 1
    assert [r["case"] for r in rows] == ["sound"]


def test_what_cannot_run_is_skipped(command, measure, capsys):
    def benchmark():
        yield measure.row("b", "c", [1.0], "s")
        raise measure.Skipped("needs a GPU")

    code, rows = command(benchmark)
    assert (code, len(rows)) == (0, 1)
    assert "needs a GPU" in capsys.readouterr().err


def test_dry_writes_nothing(command, measure, capsys):
    code, rows = command(lambda: [measure.row("b", "c", [1.0], "s", config="N=3")], "--dry")
    assert (code, rows) == (0, [])
    assert "N=3" in capsys.readouterr().out


def test_unknown_names_are_refused(benchmark_module):
    with pytest.raises(SystemExit) as stopped:
        benchmark_module("__main__").main(["nothing-like-it"])
    assert stopped.value.code == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_every_benchmark_has_a_function_and_a_line(benchmark_module):
    main = benchmark_module("__main__")
    assert all(main.load(name).__doc__ for name in main.BENCHMARKS)
    assert len(main.listing().splitlines()) == len(main.BENCHMARKS)


def test_committed_results_have_the_columns(measure):
    with measure.RESULTS.open(newline="") as file:
        assert tuple(next(csv.reader(file))) == measure.COLUMNS
    rows = measure.read_results()
    assert all(float(r["p20"]) <= float(r["p50"]) <= float(r["p80"]) and int(r["n"]) > 0 for r in rows)
    assert [r["p50"] for r in rows[:3]] == [
        "0.3142",
        "0.3984",
        "0.5445",
    ]  # of the first run, whose column had another name


# The truth of the checks.


def test_the_truth_is_that_of_the_tests(benchmark_module):
    from naive import naive_scores

    module = benchmark_module("scores")
    for family in ("random", "trained", "aligned", "ties", "bias"):
        x, w, y, bias = module.draw(family, 12, 8, 6, torch.float32, "cpu", 3)
        expected = naive_scores(x, w, y, bias)
        for name, values in module.naive_scores(x, w, y, bias).items():
            if name != "logits":
                torch.testing.assert_close(values, torch.from_numpy(expected[name]), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_scores_pass_the_check_that_benchmarks_run(benchmark_module, dtype):
    for shape in ((16, 9), (40, 200)):
        assert benchmark_module("scores").score_check(*shape, dtype, "cpu")(5) <= 1


def test_the_check_sees_small_errors_and_the_wrong_of_equal_classes(benchmark_module):
    from hardsight.scores import SCORES, compute_scores

    module = benchmark_module("scores")
    inputs = module.draw("ties", 32, 16, 10, torch.float32, "cpu", 1)
    columns = compute_scores(*inputs)
    assert module.largest_error(columns, *inputs)[0] <= 1
    for name in columns:
        if name == "pred":
            off = torch.where(columns["pred"] < 5, columns["pred"] + 5, columns["pred"])
        else:
            relative, absolute = SCORES[name].tolerance
            off = columns[name] + 3 * (absolute + relative * columns[name].abs())
        error, worst = module.largest_error(columns | {name: off}, *inputs)
        assert (error > 1, worst) == (True, name)


def test_the_series_is_checked_against_its_own_bound(benchmark_module, monkeypatch):
    scores = benchmark_module("scores")
    shape = (8, 300, torch.float32, "cpu")
    assert scores.series_error(*shape, seed=2) <= 1
    series = scores.avh_series
    monkeypatch.setattr(scores, "avh_series", lambda *t: (series(*t)[0], series(*t)[1] * 1e-6))
    assert scores.series_error(*shape, seed=2) > 1
