"""``python -m benchmarks.performance`` draws ``docs/performance.md`` and its plots from ``results.csv`` alone."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.cost_model import (
    FEWEST,
    TERMS,
    CostModel,
    base,
    fitted,
    groups,
    latest,
    loading,
    precision,
    settings,
    shape,
)
from benchmarks.measure import failures, read_results

DOCS = Path(__file__).parent.parent / "docs"
TARGETS = ("scores", "losses", "large_heads", "folders")  # the rest are other budgets
BUDGETS = ("startup", "demo", "report", "records", "alignment", "selection", "evaluation")
PREDICTED = {
    "ImageNet, 2,048 features": (1_281_167, 2048, 1000),
    "a billion samples, 1,000 classes, 2,048 features": (1e9, 2048, 1000),
    "a million samples, a million classes, 512 features": (1e6, 512, 1e6),
}
UNITS = (
    *((172_800, 86_400, "days"), (7200, 3600, "h"), (120, 60, "min"), (1, 1, "s"), (1e-3, 1e-3, "ms")),
    *((1e-6, 1e-6, "µs"), (1e-9, 1e-9, "ns"), (0, 1e-12, "ps")),
)


def reasons() -> dict[tuple[str, str], str]:
    """Why a target was missed, by benchmark and case."""
    entries = tomllib.loads((Path(__file__).parent / "reasons.toml").read_text(encoding="utf-8"))["reason"]
    return {(entry["benchmark"], case): entry["why"] for entry in entries for case in entry["cases"]}


def page(rows: Sequence[dict]) -> str:
    """The page in Markdown."""
    rows = latest(rows)
    parts = [
        "# Performance",
        "What hardsight costs, and where the limits are. Every number stands in `benchmarks/results.csv` with its "
        "hardware and versions; "
        "`python -m benchmarks.performance` draws this page from it, and `python -m benchmarks NAME` measures again.",
        "A result is checked before it is timed: against a plain float64 computation, on inputs of a new seed in every "
        "run. *Error* is the largest one in units of the stated tolerance, so it must stay below 1. Ratios are medians "
        "of round-by-round ratios in one interleaved run; *memory* is the peak beyond inputs and outputs. A row that "
        "misses its limit says **over**.",
    ]
    sections = {
        "Targets": limits(rows, TARGETS),
        "Cost of all scores": growth(rows),
        "Cost model": models(rows),
        "Images": images(rows),
        "Other budgets": limits(rows, BUDGETS),
    }
    for title, body in sections.items():
        parts += [f"## {title}", *body] if body else []
    parts.append("Reports in detail: [](results/report-speed.md). Trainings and the recorder: [](results/engine.md).")
    return "\n\n".join(part for part in parts if part) + "\n"


def limits(rows: list[dict], benchmarks: Sequence[str]) -> list[str]:
    """Rows that have a limit beside it, and why it was missed: one table per benchmark and hardware."""
    chosen = [r for name in benchmarks for r in rows if r["benchmark"] == name and (r["limit"] or r["memory_limit"])]
    parts = []
    for name, place in dict.fromkeys((r["benchmark"], r["hardware"]) for r in chosen):
        here = [r for r in chosen if (r["benchmark"], r["hardware"]) == (name, place)]
        lines = table(("what", "shape", "limit", "measured", "time", "memory", "error", "n"), map(limit_line, here))
        why = reasons()
        missed = dict.fromkeys(r["case"] for r in here if failures(r) and (name, r["case"]) in why)
        cases: dict[str, list[str]] = {}
        for case in missed:
            cases.setdefault(why[name, case], []).append(case)
        notes = "\n".join(f"- {'; '.join(names)}: {reason}" for reason, names in cases.items())
        parts += [f"`{name}`, **{place}** ({versions(here)})", lines, notes]
    return parts


def limit_line(r: dict) -> tuple[str, ...]:
    """A row of the table of limits."""
    unit = "" if r["ratio"] else r["unit"]
    failed = failures(r)
    measured = quantity(float(r["ratio"] or r["p50"]), unit) + (f" × {r['baseline']}" if r["ratio"] else "")
    memory = quantity(float(r["memory_mib"]), "MiB") if r["memory_mib"] else ""
    if r["memory_limit"]:
        memory += f" of {float(r['memory_limit']):,.0f}" + " **over**" * ("MEMORY" in failed)
    return (
        r["case"],
        shape_text(r["config"]),
        quantity(float(r["limit"]), unit) if r["limit"] else "",
        measured + " **over**" * ("OVER" in failed),
        quantity(float(r["p50"]), r["unit"]) if r["ratio"] else "",
        memory,
        (f"{float(r['error']):.2g}" if r["error"] else "") + " **wrong**" * ("WRONG" in failed),
        r["n"],
    )


def shape_text(config: str) -> str:
    """``131,072 × 2,048 × 1,000 bf16``."""
    values = settings(config)
    sizes = [f"{int(values.pop(name)):,}" for name in ("N", "D", "C") if name in values]
    words = [" × ".join(sizes), precision(values.pop("dtype", "")), *(f"{k} {v}" for k, v in values.items())]
    return " ".join(word for word in words if word)


def quantity(value: float, unit: str) -> str:
    """A number with three digits; seconds in a unit that fits."""
    if unit == "s":
        # From two minutes, hours and days on, so that 90 s stay 90 s.
        _, size, unit = next(u for u in UNITS if value >= u[0])
        value /= size
    number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{number}\N{NO-BREAK SPACE}{unit}" if unit else number


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table, without columns that are empty."""
    lines = list(lines)
    filled = [k for k in range(len(head)) if any(line[k] for line in lines)]
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row[k] for k in filled) + " |" for row in rows)


def versions(rows: list[dict]) -> str:
    """Day, Python, torch and Triton of some rows."""
    names = {"date": "", "python": "Python ", "torch": "torch ", "triton": "Triton "}
    values = {name: sorted({r[name] for r in rows if r[name]}) for name in names}
    return ", ".join(names[name] + " and ".join(texts) for name, texts in values.items() if texts)


def growth(rows: list[dict]) -> list[str]:
    """The plot against N, D and C."""
    if not groups(rows):
        return []
    bases = [f"{place}: {' × '.join(f'{k:,}' for k in base(chosen))}" for (place, _), chosen in groups(rows).items()]
    return [
        "One of N (samples), D (features) and C (classes) changes, the others stay (" + "; ".join(bases) + "). "
        f"Dots are measured, the dashed line is the cost model below; with fewer than {FEWEST} classes everything is "
        "float64, and the model does not apply.",
        "![All scores and the bare matrix product against samples, width and classes](images/performance-scores.svg)",
    ]


def models(rows: list[dict]) -> list[str]:
    """Constants, how well they fit, and predictions."""
    cost = fitted(rows)
    if not cost:
        return []
    names = [f"{place}, {precision(dtype)}" for place, dtype in cost]
    constants = [(f"`{name}`", *(quantity(m.constants[name], "s") for m in cost.values())) for name in TERMS]
    off = [
        ("rows", *(str(m.rows) for m in cost.values())),
        ("median error of the fit", *(f"{m.typical:.0%}" for m in cost.values())),
        ("largest error of the fit", *(f"{m.largest:.0%}" for m in cost.values())),
        ("largest error at shapes that were not fitted", *(other_shapes(rows, key, cost[key]) for key in cost)),
    ]
    predicted = [(what, *(quantity(m.seconds(*s), "s") for m in cost.values())) for what, s in PREDICTED.items()]
    return [
        "`seconds = call + N·(sample + width·D + class·C + product·D·C) + weight·D·C`, fitted to the relative errors "
        "of the rows above, with constants of at least 0. "
        "The 2-core machine did other work meanwhile: its ratios hold, its seconds are too high and spread.",
        table(("constant", *names), [*constants, *off]),
        "Predicted, for features that are on the device:",
        table(("all scores of", *names), predicted),
        copies(rows),
    ]


def other_shapes(rows: list[dict], key: tuple[str, str], model: CostModel) -> str:
    """How far predictions are off for the shapes of the targets."""
    others = groups(rows, "scores").get(key, [])
    errors = [abs(model.seconds(*shape(r)) / float(r["p50"]) - 1) for r in others]
    return f"{max(errors):.0%} (n = {len(errors)})" if errors else ""


def copies(rows: list[dict]) -> str:
    """What it costs to bring a billion features to the device."""
    texts = []
    for r in rows:
        if r["benchmark"] == "sweep" and r["case"] == "copy to the device":
            rate = int(settings(r["config"])["bytes"]) / float(r["p50"])
            texts.append(
                f"A billion bf16 features of width 2,048 are 4.1 TB: {quantity(4.096e12 / rate, 's')} from pinned "
                f"memory to the {r['hardware']} ({rate / 1e9:.0f} GB/s), and {quantity(4.096e12 / 5e9, 's')} from a "
                "disk that reads 5 GB/s."
            )
    return "\n".join(texts)


def images(rows: list[dict]) -> list[str]:
    """Images per second against workers."""
    loaded = loading(rows)
    if not loaded:
        return []
    lines = []
    for place, points in loaded.items():
        workers, rate = max(points)
        rates = [f"{min(points)[1]:,.0f}", str(workers), f"{rate:,.0f}", f"{rate / workers:,.0f}"]
        lines.append([place, *rates, quantity(1_281_167 / rate, "s"), quantity(1e9 / rate, "s")])
    head = ("hardware", "images/s, 1 worker", "workers", "images/s", "per worker", "ImageNet", "a billion images")
    return [
        "From JPEG files of 500 × 375 to batches of 224 × 224, decoded on the CPU by PIL. Scoring a folder takes as "
        "long as its loader or its network, whichever is slower; a GPU usually waits for the loader.",
        "![Images per second against workers](images/performance-images.svg)",
        table(head, lines),
    ]


def main() -> None:
    """Write the page and its plots."""
    from benchmarks.performance_plots import plots
    from hardsight.figures.style import write_figure

    rows = read_results()
    (DOCS / "performance.md").write_text(page(rows), encoding="utf-8")
    for name, figure in plots(rows).items():
        write_figure(figure, DOCS / "images" / name)


if __name__ == "__main__":
    main()
