"""`hardsight study`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hardsight.cli.options import command, take
from hardsight.errors import InputError
from hardsight.printing import text_table
from hardsight.registry import did_you_mean
from hardsight.runs import write_text
from hardsight.studies import engine
from hardsight.studies.study import STUDIES
from hardsight.studies.tables import read_results

_ACTIONS = ("list", "run", "table", "page", "figure")
_MOST = 100  # lines of a table in a terminal


@command(
    "cli.studying:study action=<ACTION> name=<NAME>",
    "studies.engine:study scale=smoke|quick|paper seeds=N where=LEVELS data=FOLDER weights=FILE network=NAME "
    "out=FOLDER device=DEVICE minutes=MINUTES",
    "cli.studying:study rows=FILE measures=NAME,… to=FILE",
)
def study(action: str, name: str | None = None, **options: Any) -> dict[str, Any]:
    """Rerun a comparison of the papers: list, run, table, page or figure.

    list shows all studies, what they cost and which cells are finished. run computes the cells that are missing, one by
    one, and prints the tables; several processes may share a folder. table, page (HTML) and figure show finished cells,
    or rows of another machine with --rows.

    NAME is {hardsight.studies.STUDIES}.

    Args:
        action: list, run, table, page or figure.
        name: The study.
        rows: Rows of a study as CSV; those of --out if not given.
        measures: Which numbers to show; all if not given.
        to: Write tables as Markdown, a page as HTML, or a figure as PNG, SVG or PDF.

    Examples:
        hardsight study run el-mnist --scale paper --data ~/data --seeds 3
        hardsight study table adaptation --scale paper --where pair=svhn-mnist
    """
    if action not in _ACTIONS:
        raise InputError(f"ACTION must be {', '.join(_ACTIONS)}; {did_you_mean(action, _ACTIONS)}")
    if action == "list":
        studies = [_entry(kind, Path(options.get("out", "studies"))) for kind in STUDIES]
        print("\n".join(text_table(studies)))
        return {"studies": studies}
    if name is None:
        raise InputError(f"NAME is missing: hardsight study {action} NAME; hardsight study list shows all.")
    shown = take(options, "rows", "measures", "to")
    measures, where = shown.get("measures", ()), options.get("where", "")
    if action == "run":
        results = engine.study(name, **options)
    else:
        scale = options.get("scale", "paper" if "rows" in shown else "quick")
        file = Path(options.get("out", "studies")) / f"{name}-{scale}" / "rows.csv"
        results = read_results(name, shown.get("rows", file), scale)
    if action in ("page", "figure"):
        to = shown.get("to", Path(f"{name}.{'html' if action == 'page' else 'png'}"))
        if action == "page":
            write_text(to, results.page(measures, where))
        else:
            from hardsight.figures.style import write_figure

            to = write_figure(results.figure(measures, where), to)
        print(f"wrote {to}")
        return {"study": name, "rows": results.rows}
    print(results.text(measures, where, _MOST))
    if action == "run":
        print(f"\n{results.finished:,} of {results.cells:,} cells are finished; wrote {results.path}/")
    if "to" in shown:
        write_text(shown["to"], results.markdown(measures, where))
        print(f"wrote {shown['to']}")
    lines = {
        measure: [line._asdict() for line in results.lines(measure, where)]
        for measure in measures or results.study.measures
    }
    return {"study": name, "rows": results.rows, "lines": lines}


def _entry(name: str, out: Path) -> dict[str, Any]:
    """A study's line in the list."""
    kind = STUDIES[name]
    costs = [f"{scale}: {len(list(kind.cells(scale)))} × {size.seconds:g} s" for scale, size in kind.scales.items()]
    state = ", ".join(f"{scale} {count}" for scale, count in engine.finished_cells(name, out).items())
    return {
        "study": name, "asks": kind.question, "paper": kind.paper, "cells × time": ", ".join(costs),
        "finished": state or "–",
    }  # fmt: skip
