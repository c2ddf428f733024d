"""``python -m benchmarks.performance`` draws ``docs/performance.md`` from ``results.csv`` and ``performance.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.measure import failures, read_results

PAGE, TEXTS = Path(__file__).parent.parent / "docs" / "performance.md", Path(__file__).with_suffix(".toml")
# What is shown of a benchmark: rows that have a limit; of those that show how a cost grows, all but the baseline.
SECTIONS = {
    "Targets": ("scores", "losses", "large_heads", "folders"),
    "Growth": ("sweep", "images"),
    "Other budgets": ("startup", "demo", "report", "records", "alignment", "selection", "evaluation"),
}
MARKS = {"OVER": "over", "MEMORY": "over", "WRONG": "wrong"}
# From two minutes, hours and days on, so that 90 s stay 90 s.
UNITS = (
    *((172_800, 86_400, "days"), (7200, 3600, "h"), (120, 60, "min"), (1, 1, "s"), (1e-3, 1e-3, "ms")),
    *((1e-6, 1e-6, "µs"), (1e-9, 1e-9, "ns"), (0, 1e-12, "ps")),
)


def page(rows: Iterable[dict]) -> str:
    """The page in Markdown."""
    rows, texts = latest(rows), tomllib.loads(TEXTS.read_text(encoding="utf-8"))
    parts = [texts["introduction"].strip()]
    for title, benchmarks in SECTIONS.items():
        parts.append(f"## {title}")
        for name in benchmarks:
            reasons = [entry for entry in texts["reason"] if entry["benchmark"] == name]
            parts += tables(rows, name, {case: entry["why"] for entry in reasons for case in entry["cases"]})
    return "\n\n".join(parts) + "\n"


def latest(rows: Iterable[dict]) -> list[dict]:
    """The last row of each case that is still measured: on the last day that its benchmark ran on this hardware."""
    rows = list(rows)
    last = {(r["benchmark"], r["hardware"]): r["date"] for r in rows}
    keys = ("benchmark", "case", "config", "baseline", "hardware")
    current = [r for r in rows if r["date"] == last[r["benchmark"], r["hardware"]]]
    return list({tuple(r[key] for key in keys): r for r in current}.values())


def tables(rows: list[dict], benchmark: str, why: dict[str, str]) -> list[str]:
    """A table of the rows of a benchmark for each hardware, and why limits were missed."""
    rows = [r for r in rows if r["benchmark"] == benchmark]
    grows, baselines = benchmark in SECTIONS["Growth"], {r["baseline"] for r in rows}
    rows = [r for r in rows if r["limit"] or r["memory_limit"] or (grows and r["case"] not in baselines)]
    parts = []
    for place in dict.fromkeys(r["hardware"] for r in rows):
        here = [r for r in rows if r["hardware"] == place]
        head = ("what", "shape", "limit", "ratio", "median [p20, p80]", "memory", "error", "n")
        parts += [f"`{benchmark}`, **{place}** ({versions(here)})", table(head, map(cells, here))]
        cases: dict[str, list[str]] = {}
        for case in dict.fromkeys(r["case"] for r in here if failures(r) and r["case"] in why):
            cases.setdefault(why[case], []).append(case)
        parts += ["\n".join(f"- {'; '.join(names)}: {reason}" for reason, names in cases.items())] if cases else []
    return parts


def cells(r: dict) -> tuple[str, ...]:
    """A row of the CSV as one of a table."""
    failed, unit = failures(r), "" if r["ratio"] else r["unit"]
    over, greedy, wrong = (f" **{mark}**" * (name in failed) for name, mark in MARKS.items())
    spread = [float(r[name]) for name in ("p20", "p80") if int(r["n"]) > 1]
    return (
        r["case"],
        shape_text(settings(r["config"])),
        quantity(float(r["limit"]), unit) if r["limit"] else "",
        f"{quantity(float(r['ratio']), '')} × {r['baseline']}{over}" if r["ratio"] else "",
        quantity(float(r["p50"]), r["unit"], *spread) + ("" if r["ratio"] else over),
        f"{quantity(float(r['memory_mib']), 'MiB')} of {r['memory_limit']}{greedy}"
        if r["memory_limit"] and r["memory_mib"]
        else "",
        (f"{float(r['error']):.2g}" if r["error"] else "") + wrong,
        r["n"],
    )


def settings(config: str) -> dict[str, str]:
    """``N=3 dtype=float32`` as a dictionary."""
    return dict(word.split("=", 1) for word in config.split() if "=" in word)


def shape_text(values: dict[str, str]) -> str:
    """``131,072 × 2,048 × 1,000 bf16``."""
    sizes = [f"{int(values[name]):,}" for name in ("N", "D", "C") if name in values]
    dtype = values.get("dtype", "").replace("bfloat", "bf").replace("float", "fp")
    others = [f"{name} {value}" for name, value in values.items() if name not in ("N", "D", "C", "dtype")]
    return " ".join(word for word in (" × ".join(sizes), dtype, *others) if word)


def quantity(value: float, unit: str, *spread: float) -> str:
    """A number with three digits, and others in brackets; seconds in a unit that fits the first."""
    size = 1.0
    if unit == "s":
        _, size, unit = next(u for u in UNITS if value >= u[0])
    scaled = (x / size for x in (value, *spread))
    number, *others = (f"{x:,.0f}" if x >= 100 else f"{x:.3g}" for x in scaled)
    text = f"{number}\N{NO-BREAK SPACE}{unit}" if unit else number
    return f"{text} [{', '.join(others)}]" if others else text


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


if __name__ == "__main__":
    PAGE.write_text(page(read_results()), encoding="utf-8")
