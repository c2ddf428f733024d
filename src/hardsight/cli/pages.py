"""`hardsight demo`, `report`, `clean`, `figure` and `doctor`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardsight.cli.options import command
from hardsight.extras import printable
from hardsight.printing import alarm, percent, text_table


@command("demo:run_demo out=RUN seed=N")
def demo(**chosen: Any) -> dict[str, Any]:
    """Change 30 labels of real digits, find them with networks that did not train on them, and write a page.

    Nothing is downloaded, and it takes less than a minute.

    Examples:
        hardsight demo
        hardsight demo --seed 1 -o second
    """
    from hardsight.demo import run_demo

    demo = run_demo(**chosen)
    values = {name: getattr(demo, name) for name in ("changed", "found", "others", "page")}
    return {"run": demo.page.parent, "samples": len(demo.table), "accuracy": demo.table.accuracy, **values}


@command("report.write:write_report run=<RUN> out=FILE data=DATA against=RUN groups=FILE pictures=N")
def report(run: Path, **chosen: Any) -> dict[str, Any]:
    """Turn a run into one page to look at: RUN/report.html, which opens offline.

    It shows the hardest and easiest samples, classes, groups and hidden clusters, suspect labels, and how the run was
    made; for a recorded training also how each sample was learned.

    Examples:
        hardsight report run
        hardsight report run --groups sites.csv --against earlier
    """
    from hardsight.records import has_records
    from hardsight.report import write_report

    page = write_report(run, **chosen, tell=lambda text: print(f"warning: {text}", file=sys.stderr))
    then = f"hardsight figure dynamics {run}" if has_records(run) else f"hardsight clean {run}"
    print(f"wrote {page} ({page.stat().st_size / 1e6:.1f} MB) — next: open it in a browser; {then}")
    return {"page": page, "bytes": page.stat().st_size}


@command(
    "labelerrors.lists:clean run=<RUN> out=FOLDER dataset=PATH data=DATA by=RANKING count=N share=SHARE decisions=FILE "
    "auto overwrite"
)
def clean(**chosen: Any) -> dict[str, Any]:
    """List the labels that are probably wrong: RUN/lists/actions.csv and more.

    The number of suspects is the estimated number of wrong labels. They are for a person to review; a sample is
    relabeled only where the run shows that this is safe. Your data are never changed. --dataset writes a cleaned copy:
    with your decisions (made on the page of hardsight report, or in the column action of actions.csv; pass the file to
    --decisions), or with --auto only what is safe. The copy of a feature file has the same format.

    RANKING is {hardsight.labelerrors.RANKINGS}.

    Examples:
        hardsight clean run
        hardsight clean run --decisions edited.csv --dataset cleaned
        hardsight clean run --decisions edited.csv --data features.parquet --dataset cleaned.parquet
    """
    from hardsight import labelerrors

    summary = labelerrors.clean(**chosen)
    if summary["chance"]:
        alarm(summary["chance"])
    print("\n".join(cleaning_lines(summary)))
    return summary


def cleaning_lines(summary: Mapping[str, Any]) -> list[str]:
    """The summary of `clean` as lines to print."""
    counts = ", ".join(f"{action} {summary[action]:,}" for action in ("relabel", "review", "keep", "drop"))
    lost = f" ({summary['unreadable']:,} could not be read)" if summary["unreadable"] else ""
    lines = [f"{summary['samples']:,} samples by {summary['by']}: {counts}{lost}", *_suspect_lines(summary)]
    if estimate := summary["estimate"]:
        lines.append(
            f"confident learning counts {round(estimate['count']):,} labels as wrong, among them confident mistakes of "
            "the network"
        )
    gate, dataset = summary["automatic"], summary.get("dataset")
    if summary["relabel"] and not summary["decided"]:
        lines.append(
            f"safe to relabel without a person: {summary['relabel']:,}, of which about "
            f"{percent(gate['precision'], 0)} get the right label (at least {percent(gate['low'], 0)})"
        )
    elif summary["review"] and not summary["decided"]:
        lines.append(f"none is safe to relabel without a person: {gate['reason']}")
    lines += [f"note: {printable(note)}" for note in summary["notes"] if note != summary["chance"]]
    if dataset:
        written, relabeled, dropped = dataset["kept"] + dataset["relabeled"], dataset["relabeled"], dataset["dropped"]
        lines.append(f"wrote {dataset['path']}: {written:,} samples, {relabeled:,} relabeled; {dropped:,} dropped")
        reasons = {"missing": "they are no longer in the data", "unscored": "the run did not score them"}
        lines += [f"  {dataset[k]:,} more are left out because {why}" for k, why in reasons.items() if dataset[k]]
    edit = f"edit the column action of {summary['lists']}/actions.csv"
    then = f" — next: decide on the page of hardsight report, or {edit}; then --decisions FILE --dataset COPY"
    then = then if summary["review"] and not dataset else ""
    return [*lines, f"wrote {summary['lists']}/{then}"]


def _suspect_lines(summary: Mapping[str, Any]) -> list[str]:
    """The first suspects as a table, and where to find the rest."""
    rows, count = summary["suspects"], summary["relabel"] + summary["review"]
    titles = {"id": "id", "label": "label", "suggested": "suggested", "suspicion": "suspicion", "p_label": "p(label)"}
    lines = [f"  {line}" for line in text_table(rows, titles)] if rows else []
    if rows and count > len(rows):
        more = f"{count - len(rows):,} more are in {summary['lists']}/actions.csv"
        lines.append(f"  {more}, and on the page of hardsight report")
    return lines


@command(
    "figures.drawing:draw name=<NAME> runs=<RUN…> out=FILE data=DATA groups=FILE human=FILE coarser=FILE label=N seed=N"
)
def figure(name: str, **chosen: Any) -> dict[str, Any]:
    """Draw a figure for a paper: PNG, SVG or PDF, by the suffix of the file.

    NAME is list, which describes every figure, or {hardsight.figures.FIGURES}.

    Examples:
        hardsight figure list
        hardsight figure dynamics run/test -o dynamics.pdf
    """
    from hardsight.figures import FIGURES, draw

    if name == "list":
        rows = [{"figure": name, "shows": kind.summary} for name, kind in FIGURES.items()]
        print("\n".join(text_table(rows)))
        return {"figures": rows}
    file = draw(name, **chosen)
    print(f"wrote {file}")
    return {"file": file}


@command()
def doctor() -> dict[str, Any]:
    """Check versions, devices, extras, disk and arithmetic; say what is wrong and how to fix it.

    Examples:
        hardsight doctor
        hardsight doctor --json
    """
    from hardsight.doctor import examine

    return examine()
