"""docs/performance.md: the cost model, and a page that shows the last rows as they are."""

from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture
def performance(benchmark_module):
    return benchmark_module("performance")


@pytest.fixture
def row(benchmark_module):
    def make(case, values=(1.0,), date="2026-01-02", place="box", benchmark="scores", **options):
        fields = benchmark_module("measure").row(benchmark, case, values, options.pop("unit", "s"), **options)
        return {name: str(value) for name, value in fields.items()} | {"date": date, "hardware": place}

    return make


def test_the_cost_model_finds_the_constants_and_predicts_far_shapes(benchmark_module):
    module = benchmark_module("cost_model")
    constants = {"call": 1e-4, "sample": 2e-7, "width": 3e-10, "class": 4e-11, "product": 5e-13, "weight": 1e-12}
    true = module.CostModel(constants, 0, 0, 0)
    shapes = [(n, d, c) for n in (1e3, 1e5) for d in (64, 4096) for c in (10, 1e3, 1e5)]
    model = module.fit(shapes, [true.seconds(*s) for s in shapes])
    assert model.constants == pytest.approx(constants, rel=1e-5)
    assert (model.rows, model.largest) == (12, pytest.approx(0, abs=1e-9))
    assert model.seconds(1e9, 2048, 1000) == pytest.approx(true.seconds(1e9, 2048, 1000))
    noisy = [true.seconds(*s) * (1.2 if i % 2 else 0.8) for i, s in enumerate(shapes)]
    rough = module.fit(shapes, noisy)
    assert min(rough.constants.values()) >= 0
    assert 0.05 < rough.typical <= rough.largest < 0.5


def test_seconds_are_shown_in_a_unit_that_fits(performance):
    values = [0, 3e-11, 5e-7, 0.0123, 90, 130, 8000, 5e5]
    texts = ["0 ps", "30 ps", "500 ns", "12.3 ms", "90 s", "2.17 min", "2.22 h", "5.79 days"]
    assert [performance.quantity(v, "s").replace("\N{NO-BREAK SPACE}", " ") for v in values] == texts
    assert performance.quantity(1414.7, "MiB") == "1,415\N{NO-BREAK SPACE}MiB"
    assert performance.quantity(1.25, "") == "1.25"


def test_a_missed_limit_is_marked_and_nothing_else(performance, row):
    rows = [
        row("fast", baseline="matmul", ratio=1.1, limit=1.3, config="N=1000 D=2 C=3 dtype=bfloat16"),
        row("slow", baseline="matmul", ratio=1.4, limit=1.3),
        row("greedy", baseline="matmul", ratio=1.0, limit=1.3, memory=600.0, memory_limit=512),
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


def test_rows_of_a_sweep_become_a_model_and_predictions(performance, row, benchmark_module):
    true = benchmark_module("cost_model").CostModel(dict.fromkeys(performance.TERMS, 0.0) | {"product": 1e-12}, 0, 0, 0)
    shapes = [(1000, 64, 100), (2000, 64, 100), (1000, 128, 100), (1000, 64, 1000)]
    rows = [
        row(case, [true.seconds(*s)], benchmark="sweep", config=f"N={s[0]} D={s[1]} C={s[2]} dtype=float32")
        for s in shapes
        for case in ("matmul", "all scores")
    ]
    page = performance.page(rows)
    assert "1,000 × 64 × 100" in page  # what the sweep goes through
    assert performance.quantity(1e9 * 2048 * 1000 * 1e-12, "s") in page  # 34.1 min
    figures = benchmark_module("performance_plots").plots(rows)
    drawn = [line.get_xydata() for line in figures["performance-scores.svg"].axes[1].lines]
    assert any(points.ravel().tolist() == pytest.approx([64, 6.4e-3, 128, 1.28e-2]) for points in drawn)  # ms against D


def test_images_per_second_become_days(performance, row):
    rows = [
        row("load", [rate], benchmark="images", config=f"workers={w}", unit="images/s")
        for w, rate in ((1, 100.0), (4, 200.0))
    ]
    assert "| box | 100 | 4 | 200 | 50 | 107 min | 57.9 days |" in performance.page(rows).replace(
        "\N{NO-BREAK SPACE}", " "
    )


def test_the_committed_page_is_drawn_from_the_committed_rows(performance, benchmark_module):
    rows = benchmark_module("measure").read_results()
    again = "run python -m benchmarks.performance"
    assert (DOCS / "performance.md").read_text(encoding="utf-8") == performance.page(rows), again
    for name, figure in benchmark_module("performance_plots").plots(rows).items():
        assert f'id="{figure.get_gid()}"' in (DOCS / "images" / name).read_text(), again


def test_sweeps_change_one_number_at_a_time(benchmark_module):
    sweep = benchmark_module("sweep")
    for device, base in sweep.BASES.items():
        shapes = sweep.shapes(device)
        off = [sum(a != b for a, b in zip(shape, base, strict=True)) for shape in shapes]
        assert off.count(0) == 1
        assert off.count(1) >= 10
        assert len(shapes) == len(set(shapes))
        assert (
            benchmark_module("cost_model").base([{"config": sweep.config(*s, torch.float32)} for s in shapes]) == base
        )
