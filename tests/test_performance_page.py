"""docs/performance.md: a page that shows the last rows as they are."""

import pytest


@pytest.fixture
def performance(benchmark_module):
    return benchmark_module("performance")


@pytest.fixture
def row(benchmark_module):
    def make(case, values=(1.0,), date="2026-01-02", place="box", benchmark="scores", **options):
        fields = benchmark_module("measure").row(benchmark, case, values, options.pop("unit", "s"), **options)
        return {name: str(value) for name, value in fields.items()} | {"date": date, "hardware": place}

    return make


def test_seconds_are_shown_in_a_unit_that_fits(performance):
    values = [0, 3e-11, 5e-7, 0.0123, 90, 130, 8000, 5e5]
    texts = ["0 ps", "30 ps", "500 ns", "12.3 ms", "90 s", "2.17 min", "2.22 h", "5.79 days"]
    assert [performance.quantity(v, "s").replace("\N{NO-BREAK SPACE}", " ") for v in values] == texts
    assert performance.quantity(1414.7, "MiB") == "1,415\N{NO-BREAK SPACE}MiB"
    assert performance.quantity(1.25, "") == "1.25"
    assert performance.quantity(0.9, "s", 0.8, 1.1) == "900\N{NO-BREAK SPACE}ms [800, 1,100]"


def test_a_missed_limit_is_marked_and_nothing_else(performance, row):
    rows = [
        row("fast", baseline="matmul", ratio=1.1, limit=1.3, config="N=1000 D=2 C=3 dtype=bfloat16"),
        row("slow", baseline="matmul", ratio=1.4, limit=1.3),
        row("greedy", baseline="matmul", ratio=1.0, limit=1.3, memory_mib=600.0, memory_limit=512),
        row("false", baseline="matmul", ratio=1.0, limit=1.3, error=2.0),
    ]
    lines = {line.split("|")[1].strip(): line for line in performance.page(rows).splitlines() if "1.3" in line}
    assert "1,000 × 2 × 3 bf16" in lines["fast"]
    marks = {name: [mark for mark in ("over", "wrong") if f"**{mark}**" in line] for name, line in lines.items()}
    assert list(marks.values()) == [[], ["over"], ["over"], ["wrong"]]


def test_the_page_shows_the_last_row_of_cases_that_are_still_measured(performance, row):
    rows = [
        row("gone", limit=5, date="2026-01-01"),
        row("kept", [1.0], limit=5, date="2026-01-01"),
        row("kept", [3.0], limit=5),
        row("kept", [2.0], limit=5),
        row("elsewhere", limit=5, date="2026-01-01", place="other box"),
    ]
    page = performance.page(rows).replace("\N{NO-BREAK SPACE}", " ")
    assert "gone" not in page
    assert "elsewhere" in page
    assert "| 5 s | 2 s |" in page
    assert "| 5 s | 3 s |" not in page


def test_rows_of_a_sweep_are_shown_without_their_baseline(performance, row):
    config = "N=1000 D=64 C=1000 dtype=float32"
    rows = [
        row("matmul", [3e-5], benchmark="sweep", config=config),
        row("all scores", [6e-5], benchmark="sweep", config=config, baseline="matmul", ratio=2.0),
        row("score_features", baseline="all scores", ratio=1.1, limit=1.2),
    ]
    page = performance.page(rows).replace("\N{NO-BREAK SPACE}", " ")
    assert "| all scores | 1,000 × 64 × 1,000 fp32 | 2 × matmul | 60 µs | 1 |" in page
    assert "| matmul |" not in page


def test_all_that_shows_growth_is_on_the_page(performance, row):
    rates = ((1, [90.0, 100.0, 120.0]), (4, [200.0]))
    rows = [row("load", r, benchmark="images", config=f"workers={w}", unit="images/s") for w, r in rates]
    page = performance.page(rows).replace("\N{NO-BREAK SPACE}", " ")
    assert "| load | workers 1 | 100 images/s [90, 120] | 3 |" in page
    assert "| load | workers 4 | 200 images/s | 1 |" in page


def test_the_committed_page_is_drawn_from_the_committed_rows(performance, benchmark_module):
    rows = benchmark_module("measure").read_results()
    assert performance.PAGE.read_text(encoding="utf-8") == performance.page(rows), (
        "run python -m benchmarks.performance"
    )


def test_every_missed_limit_of_the_committed_rows_is_on_the_page_with_its_reason(performance, benchmark_module):
    measure, page = benchmark_module("measure"), performance.PAGE.read_text(encoding="utf-8")
    shown = {name for names in performance.SECTIONS.values() for name in names}
    missed = [r for r in performance.latest(measure.read_results()) if measure.failures(r) and r["benchmark"] in shown]
    assert page.count("**over**") == len(missed) + 1  # the introduction has one
    notes = [line for line in page.splitlines() if line.startswith("- ")]
    for r in missed:
        assert any(r["case"] in line.partition(": ")[0].removeprefix("- ").split("; ") for line in notes), r


def test_sweeps_change_one_number_at_a_time(benchmark_module):
    scores = benchmark_module("scores")
    for device, base in scores.BASES.items():
        shapes = scores.shapes(device)
        off = [sum(a != b for a, b in zip(shape, base, strict=True)) for shape in shapes]
        assert off.count(0) == 1
        assert off.count(1) >= 10
        assert len(shapes) == len(set(shapes))
