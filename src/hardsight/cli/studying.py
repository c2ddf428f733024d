"""`hardsight study`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardsight.cli.options import command, take
from hardsight.errors import InputError, MissingPathError
from hardsight.printing import alarm, text_table
from hardsight.registry import did_you_mean
from hardsight.runs import check_replaceable, disk_errors, is_page, write_text
from hardsight.studies import engine, gathered
from hardsight.studies.exhibits import Exhibit, exhibits
from hardsight.studies.ledger import ledger
from hardsight.studies.rowfiles import read_results
from hardsight.studies.study import STUDIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = ("scale", "where", "out", "rows", "measures", "to")
# The options that each action takes.
_ACTIONS = {
    "list": ("out",),
    "run": ("scale", "seeds", "where", "data", "weights", "network", "out", "device", "minutes", "measures", "to"),
    **dict.fromkeys(("table", "page", "figure"), _SHOWN),
    "claims": ("scale", "out", "rows", "to"),
}
_HTML = (".html", ".htm")
_ENDS = {"run": (".md",), "table": (".md",), "page": _HTML, "claims": (".md", *_HTML)}  # of --to
_MARK = "<!-- Made by `hardsight study`. -->"
_MOST = 100  # lines of a table in a terminal


@command(
    "cli.studying:study action=<ACTION> name=<NAME>",
    "studies.engine:study scale=smoke|quick|paper seeds=N where=LEVELS data=FOLDER weights=FILE network=NAME "
    "out=FOLDER device=DEVICE minutes=MINUTES",
    "cli.studying:study rows=FILE measures=NAME,… to=FILE",
)
def study(action: str, name: str | None = None, **options: Any) -> dict[str, Any]:
    """Rerun a comparison of the papers: list, run, table, page, figure or claims.

    list shows all studies, what they cost and which cells are finished, and every table and figure of the papers with
    the command that makes it. run computes the cells that are missing, one by one, and prints the tables; several
    processes may share a folder. table, page (HTML) and figure show finished cells or, with --rows, rows from another
    machine. claims judges every claim of the papers, or of one of them (NAME is AVH, EL or AMC), on a folder of rows.

    NAME is {hardsight.studies.STUDIES}; or a table or figure of a paper that gathers several studies:
    {hardsight.studies.papertables.TABLES}, {hardsight.studies.papertables.FIGURES}.

    Args:
        action: list, run, table, page, figure or claims.
        name: The study, table or figure; the paper for claims.
        rows: Rows of a study as CSV; for a gathered table, STUDY=FILE,…; for claims a folder of them. If not given, the
            rows in --out.
        measures: Which numbers to show; all if not given.
        to: Write tables and claims as Markdown, pages and claims as HTML, or a figure as PNG, SVG or PDF; only files
            that hardsight wrote are replaced.

    Examples:
        hardsight study run el-mnist --scale paper --data ~/data --seeds 3
        hardsight study table adaptation --scale paper --where pair=svhn-mnist
        hardsight study table el-table-1 --scale paper
        hardsight study claims EL --rows docs/results --to claims.html
    """
    if action not in _ACTIONS:
        raise InputError(f"ACTION must be {', '.join(_ACTIONS)}; {did_you_mean(action, _ACTIONS)}")
    for option in options.keys() - {*_ACTIONS[action]}:
        raise InputError(f"hardsight study {action} does not use --{option}; leave it out.")
    if (to := options.get("to")) is not None:
        _check_to(action, to)
    if action == "list":
        if name is not None:
            raise InputError(f"hardsight study list shows all studies, got {name!r}; leave NAME out.")
        studies = [_entry(kind, Path(options.get("out", "studies"))) for kind in STUDIES]
        print("\n".join(text_table(studies)))
        for paper in dict.fromkeys(exhibit.paper for exhibit in exhibits()):
            lines = [line for exhibit in exhibits() if exhibit.paper == paper for line in _shown(exhibit)]
            print("\n".join(["", *text_table(lines, {"exhibit": paper, "shows": "shows", "command": "command"})]))
        print(
            "\nRun these where the data sets are. DIR is the folder that holds them, FILE a pretrained checkpoint, and "
            "coarse.csv a table with the columns class and coarse.\n"
            "Figures of trainings show one network; train others with --model, and name their runs as well."
        )
        return {"studies": studies, "exhibits": [exhibit._asdict() for exhibit in exhibits()]}
    if action == "claims":
        return _claims(name, options)
    if name is None:
        raise InputError(f"NAME is missing: hardsight study {action} NAME; hardsight study list shows all.")
    if name in {**gathered.TABLES, **gathered.FIGURES}:
        return _gathered(action, name, options)
    if name not in STUDIES:
        names = [*STUDIES, *gathered.TABLES, *gathered.FIGURES]
        raise InputError(f"there is no study, table or figure {name!r}; {did_you_mean(name, names)}")
    shown = take(options, "rows", "measures", "to")
    measures, where = STUDIES[name].check_measures(shown.get("measures", ())), options.get("where", "")
    if action == "run":
        results = engine.study(name, **options)
    else:
        scale = options.get("scale", None if "rows" in shown else "quick")
        if scale is not None:
            STUDIES[name].scale(scale)
        file = Path(options.get("out", "studies")) / f"{name}-{scale}" / "rows.csv"
        results = read_results(name, shown.get("rows", file), scale)
    printed = results.text(measures, where, _MOST)
    if action != "run" and not printed:
        raise InputError(f"where: no rows of {name} match {where or 'these measures'}.")
    if action in ("page", "figure"):
        to = shown.get("to", Path(f"{name}.{'html' if action == 'page' else 'png'}"))
        if action == "page":
            _check_to(action, to)
            _write(to, results.page(measures, where))
        else:
            _draw(to, results.figure(measures, where))
        return {"study": name, "rows": results.rows}
    print(printed)
    if action == "run":
        wrote = f"; wrote {results.path}/" if results.rows else ""
        print(f"\n{results.finished:,} of {results.cells:,} cells are finished{wrote}")
    if "to" in shown:
        _write(shown["to"], f"{results.markdown(measures, where)}\n{_MARK}\n")
    lines = {
        measure: [line._asdict() for line in results.lines(measure, where)]
        for measure in measures or results.study.measures
    }
    return {"study": name, "rows": results.rows, "lines": lines}


def _claims(paper: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Judge the claims of the papers, and print and write the verdicts."""
    folder, scale = options.get("rows", options.get("out", "studies")), options.get("scale", "paper")
    results = ledger(folder, [paper] if paper else (), scale)
    print(results.text())
    if "to" in options:
        html = options["to"].suffix.lower() in _HTML
        _write(options["to"], results.page() if html else results.markdown())
    return {"summary": results.summary(), "claims": [row for name in results.papers for row in results.rows(name)]}


def _gathered(action: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """A table or figure of a paper that gathers studies: run them, show it."""
    table = name in gathered.TABLES
    if action not in ("run", "table" if table else "figure"):
        raise InputError(f"{name} is a {'table' if table else 'figure'}: hardsight study {action} is for studies.")
    shown = take(options, "rows", "measures", "to")
    if "measures" in shown:
        raise InputError(f"measures: {name} always shows the measures of the paper; leave --measures out.")
    if "to" in shown and action == "run" and not table:
        raise InputError(f"to: {name} is a figure; hardsight study figure {name} --to draws it.")
    where, out = options.pop("where", ""), options.get("out", "studies")
    scale = options.get("scale", "paper" if "rows" in shown else "quick")
    if where and table:
        raise InputError(f"where: {name} always shows the levels of the paper; leave --where out.")
    if action == "run":
        _run_all(name, scale, options)
    results = gathered.read_gathered(name, out, scale, str(shown.get("rows", "")))
    if not table and action == "figure":
        _draw(shown.get("to", Path(f"{name}.png")), gathered.gathered_figure(name, results, where))
    if table:
        print(gathered.table_text(name, results, scale))
        if "to" in shown:
            _write(shown["to"], f"{gathered.table_markdown(name, results)}\n{_MARK}\n")
    else:
        print("\n".join(gathered.missing(name, results, scale)))
    return {"name": name, "rows": gathered.table_rows(name, results) if table else [], "studies": list(results)}


def _check_to(action: str, to: Path) -> None:
    """Refuse a file that cannot be written, or that hardsight did not write, before anything is computed for it."""
    from hardsight.figures.style import check_out

    with disk_errors(to, "to"):
        if action not in _ENDS:
            check_out(to, "to")
        elif to.suffix.lower() not in _ENDS[action]:
            raise InputError(f"to must end in {' or '.join(_ENDS[action])}, got {to.name!r}.")
        else:
            check_replaceable(to, _is_ours, "to")


def _is_ours(file: Path) -> bool:
    text = file.read_bytes()
    return is_page(file) or _MARK.encode() in text or b"\n% Made by `hardsight study" in text


def _write(to: Path, text: str) -> None:
    """Write a page, and print where."""
    with disk_errors(to, "to"):
        write_text(to, text)
    print(f"wrote {to}")


def _draw(to: Path, figure: Figure) -> None:
    """Write a figure, and print where."""
    from hardsight.figures.style import write_figure

    with disk_errors(to, "to"):
        print(f"wrote {write_figure(figure, to, 'to')}")


def _run_all(name: str, scale: str, options: dict[str, Any]) -> None:
    """Run the cells that a table or figure needs and whose data exist, in the remaining time."""
    start, minutes = time.monotonic(), options.pop("minutes", None)
    weights, data, errors, ran = options.pop("weights", None), options.get("data"), list[Exception](), False
    for study in gathered.gathered(name).studies:
        more = dict(options)
        if minutes is not None:
            more["minutes"] = max(0.0, minutes - (time.monotonic() - start) / 60)
        if weights is not None and STUDIES[study].takes_weights:
            more["weights"] = weights
        if scale not in STUDIES[study].scales:
            print(f"{study} has no scale {scale}")
            continue
        try:
            where, absent = gathered.with_data(study, scale, gathered.needed(name, study, scale), data)
        except MissingPathError as error:
            errors.append(error)
            continue
        if absent:
            alarm(f"{study}: {data} has no {', '.join(absent)}; the rows that need it are left out.", "not run")
        engine.study(study, where=where, **more)
        ran = True
    if errors and not ran:
        raise errors[0]
    for error in errors:
        alarm(error, "not run")


def _shown(exhibit: Exhibit) -> list[dict[str, str]]:
    """The lines of a table or figure in the list: one per command, or the reason why there is none."""
    commands = exhibit.commands or (f"none: {exhibit.reason}",)
    titles = [(exhibit.name, exhibit.shows), *[("", "")] * (len(commands) - 1)]
    return [{"exhibit": n, "shows": s, "command": c} for (n, s), c in zip(titles, commands, strict=True)]


def _entry(name: str, out: Path) -> dict[str, Any]:
    """A study's line in the list."""
    kind = STUDIES[name]
    costs = [f"{scale}: {len(list(kind.cells(scale)))} × {size.seconds:g} s" for scale, size in kind.scales.items()]
    state = ", ".join(f"{scale} {count}" for scale, count in engine.finished_cells(name, out).items())
    return {
        "study": name, "asks": kind.question, "paper": kind.paper, "cells × time": ", ".join(costs),
        "finished": state or "–",
    }  # fmt: skip
