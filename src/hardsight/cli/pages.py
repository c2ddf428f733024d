"""`hardsight demo`, `report`, `clean`, `figure` and `doctor`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from hardsight.cli.arguments import optional
from hardsight.printing import alarm, text_table


def demo(
    *, out: Annotated[Path, arg(aliases=["-o"], metavar="RUN")] = Path("hardsight-demo"), seed: int = 0
) -> dict[str, Any]:
    """Train a small network on real digits, score them out of sample, and write a page.

    Args:
        out: Run folder to write; an earlier demo there is replaced.
        seed: Seed of folds and training.

    Examples:
        hardsight demo
        hardsight demo --seed 1 -o second
    """
    from hardsight.demo import run_demo

    table = run_demo(out, seed)
    return {"run": out, "page": out / "report.html", "samples": len(table), "accuracy": table.accuracy}


def report(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    *,
    out: Annotated[Path | None, optional("FILE", aliases=["-o"])] = None,
    data: Annotated[str | None, optional("DATA")] = None,
    against: Annotated[Path | None, optional("RUN")] = None,
    groups: Annotated[Path | None, optional("FILE")] = None,
    pictures: int = 400,
) -> dict[str, Any]:
    """Turn a run into one page to look at: RUN/report.html, which opens offline.

    It shows the hardest and easiest samples, classes, groups and hidden clusters,
    suspect labels, and how the run was made; for a recorded training also how each
    sample was learned.

    Args:
        run: Run folder that hardsight score, hardsight demo or a recorder wrote.
        out: The page to write; RUN/report.html if not given.
        data: Where the images are, unless the run names a folder or an .npz that is still there.
        against: An earlier run over the same samples, to show what became easier or harder.
        groups: CSV or Parquet with a column id and columns to compare by (camera, site, …).
        pictures: Maximum number of thumbnails.

    Examples:
        hardsight report run
        hardsight report run --groups sites.csv --against earlier
    """
    from hardsight.records import has_records
    from hardsight.report import write_report

    def warn(text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)

    page = write_report(run, out, data=data, against=against, groups=groups, pictures=pictures, tell=warn)
    then = f"hardsight figure dynamics {run}" if has_records(run) else f"hardsight clean {run}"
    print(f"wrote {page} ({page.stat().st_size / 1e6:.1f} MB) — next: open it in a browser; {then}")
    return {"page": page, "bytes": page.stat().st_size}


def clean(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    *,
    out: Annotated[Path | None, optional("FOLDER", aliases=["-o"])] = None,
    dataset: Annotated[Path | None, optional("PATH")] = None,
    data: Annotated[str | None, optional("DATA")] = None,
    by: Annotated[str | None, optional("RANKING")] = None,
    count: Annotated[int | None, optional("N")] = None,
    share: Annotated[float | None, optional("S")] = None,
    decisions: Annotated[Path | None, optional("FILE")] = None,
    auto: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """List the labels that are probably wrong: RUN/lists/actions.csv and more.

    There are as many suspects as labels are estimated to be wrong. They are for a person
    to review; a sample is relabeled only where the run shows that this is safe. Your data
    are never changed. --dataset writes a cleaned copy: by your decisions (edit the column
    action of actions.csv and pass the file to --decisions), or with --auto by what is safe.

    RANKING is {hardsight.labelerrors.RANKINGS}.

    Args:
        run: Run folder that hardsight score or hardsight demo wrote, best with --folds.
        out: Folder for the lists; RUN/lists if not given.
        dataset: Also write the cleaned data: a folder for a folder of images, FILE.npz for arrays.
        data: Where the images are, if they have moved or were not named when they were scored.
        by: How to rank the suspects; the measured best if not given.
        count: Number of suspects.
        share: Suspects as a share of the samples.
        decisions: CSV or Parquet with id, action (keep, review, relabel, drop) and, to relabel, new_label.
        auto: With --dataset, relabel what is safe without a person; refused where nothing is.
        overwrite: Replace earlier lists (and an earlier cleaned copy).

    Examples:
        hardsight clean run
        hardsight clean run --decisions edited.csv --dataset cleaned
    """
    from hardsight import cleaning

    chosen = {"by": by, "count": count, "share": share, "decisions": decisions, "auto": auto}
    summary = cleaning.clean(run, out, data=data, dataset=dataset, overwrite=overwrite, **chosen)
    if summary["chance"]:
        alarm(summary["chance"])
    print("\n".join(cleaning.in_words(summary)))
    return summary


def figure(
    name: Annotated[Positional[str], arg(metavar="NAME")],
    runs: Annotated[Positional[tuple[Path, ...]], optional("RUN")] = (),
    *,
    out: Annotated[Path | None, optional("FILE", aliases=["-o"])] = None,
    data: Annotated[str | None, optional("DATA")] = None,
    groups: Annotated[Path | None, optional("FILE")] = None,
    human: Annotated[Path | None, optional("FILE")] = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Draw a figure for a paper: PNG, SVG or PDF, by the suffix of the file.

    NAME is list, which says what each figure shows, or
    {hardsight.figures.FIGURES}.

    Args:
        name: Which figure, or list.
        runs: Recorded runs, for figures of training.
        out: The file to write; NAME.png if not given.
        data: What to train a small network on, for figures that do.
        groups: CSV or Parquet with a column id and one to group by.
        human: CSV or Parquet with id and hsf, or annotator counts (N × C) as .npy or .npz in the order of the data.
        seed: Seed of what is trained or drawn.

    Examples:
        hardsight figure list
        hardsight figure dynamics run/test -o dynamics.pdf
    """
    from hardsight.figures import FIGURES, draw

    if name == "list":
        rows = [{"figure": name, "shows": kind.summary} for name, kind in FIGURES.items()]
        print("\n".join(text_table(rows)))
        return {"figures": rows}
    file = draw(name, runs, data=data, groups=groups, human=human, seed=seed, out=out or Path(f"{name}.png"))
    print(f"wrote {file}")
    return {"file": file}


def doctor() -> dict[str, Any]:
    """Check versions, devices, extras, disk and arithmetic; say what is wrong and how to fix it.

    Examples:
        hardsight doctor
        hardsight doctor --json
    """
    from hardsight.doctor import examine

    return examine()
