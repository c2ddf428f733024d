"""What is made to be looked at: `hardsight demo`, `report`, `clean` and `figure`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from hardsight.cli.alarm import alarm
from hardsight.cli.arguments import optional


def demo(*, out: Annotated[Path, arg(aliases=["-o"], metavar="RUN")] = Path("hardsight-demo"), seed: int = 0) -> None:
    """Train a small network on real digits, score them out of sample, and write a page of it.

    Args:
        out: Run folder to write; an earlier demo there is replaced.
        seed: Seed of folds and training.
    """
    from hardsight.demo import run_demo

    run_demo(out, seed)


def report(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    *,
    out: Annotated[Path | None, arg(aliases=["-o"], metavar="FILE", help_behavior_hint="")] = None,
    data: Annotated[str | None, optional("DATA")] = None,
    against: Annotated[Path | None, optional("RUN")] = None,
    groups: Annotated[Path | None, optional("FILE")] = None,
    pictures: int = 400,
) -> None:
    """Turn a run into one page to look at: RUN/report.html, which opens offline.

    It shows the hardest and easiest samples, where they lie, classes, groups and
    hidden clusters, suspect labels, and how it was all made; of a recorded training
    also how each of it moved.

    Args:
        run: Run folder that hardsight score, hardsight demo or a recorder wrote.
        out: The page to write; RUN/report.html if not given.
        data: Where the pictures are, unless the run names a folder or an .npz that is still there.
        against: An earlier run over the same samples: what became easier or harder.
        groups: CSV or Parquet with a column id and columns to compare by (camera, site, …).
        pictures: How many thumbnails at most.
    """
    from hardsight.extras import printable
    from hardsight.records import has_records
    from hardsight.report import write_report

    def tell(text: str) -> None:
        print(f"warning: {printable(text)}", file=sys.stderr)

    page = write_report(run, out, data=data, against=against, groups=groups, pictures=pictures, tell=tell)
    then = f"hardsight figure dynamics {run}" if has_records(run) else f"hardsight clean {run}"
    print(f"wrote {page} ({page.stat().st_size / 1e6:.1f} MB) — next: open it in a browser; {then}")


def clean(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    *,
    out: Annotated[Path | None, arg(aliases=["-o"], metavar="FOLDER", help_behavior_hint="")] = None,
    dataset: Annotated[Path | None, optional("PATH")] = None,
    data: Annotated[str | None, optional("DATA")] = None,
    by: Annotated[str | None, optional("RANKING")] = None,
    count: Annotated[int | None, optional("N")] = None,
    share: Annotated[float | None, optional("S")] = None,
    decisions: Annotated[Path | None, optional("FILE")] = None,
    auto: bool = False,
    overwrite: bool = False,
) -> None:
    """Write lists of suspect labels to review: RUN/lists/actions.csv and more.

    The suspects are as many as labels are estimated to be wrong. They are for a person
    to review; one is relabeled only where the run shows that this is safe. Your data
    are never changed. --dataset writes a cleaned copy, by what you decided (edit the
    column action of actions.csv and give it back with --decisions) or with --auto by
    what is safe without you.

    Args:
        run: Run folder that hardsight score or hardsight demo wrote, best with --folds.
        out: Folder for the lists; RUN/lists if not given.
        dataset: Also write the cleaned data: a folder for a folder of images, FILE.npz for arrays.
        data: Where the images are, if they have moved or were not named when they were scored.
        by: How to rank the suspects; the measured best if not given.
        count: How many suspects.
        share: Which share of the samples are suspects.
        decisions: CSV or Parquet with id, action (keep, review, relabel, drop) and, to relabel, new_label.
        auto: With --dataset, relabel what is safe without a person; refused where nothing is.
        overwrite: Replace earlier lists (and an earlier cleaned copy).
    """
    from hardsight.cleaning import clean as work
    from hardsight.cleaning import in_words

    done = work(
        run,
        out,
        data=data,
        by=by,
        count=count,
        share=share,
        decisions=decisions,
        auto=auto,
        dataset=dataset,
        overwrite=overwrite,
    )
    if done["chance"]:
        alarm(done["chance"])
    print("\n".join(in_words(done)))


def figure(
    name: Annotated[Positional[str], arg(metavar="NAME")],
    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN", help_behavior_hint="")] = (),
    *,
    out: Annotated[Path | None, arg(aliases=["-o"], metavar="FILE", help_behavior_hint="")] = None,
    data: Annotated[str | None, optional("DATA")] = None,
    groups: Annotated[Path | None, optional("FILE")] = None,
    human: Annotated[Path | None, optional("FILE")] = None,
    seed: int = 0,
) -> None:
    """Draw a figure for a paper: PNG, SVG or PDF, as the name of the file says.

    NAME is one of
    FIGURES

    Args:
        name: Which figure.
        runs: Recorded runs, for figures of training.
        out: The file to write; NAME.png if not given.
        data: What to train a small network on, for figures that do.
        groups: CSV or Parquet with a column id and one to group by.
        human: CSV or Parquet with id and hsf, or annotator counts (N × C) as .npy or .npz in the order of the data.
        seed: Of what is trained or drawn.
    """
    from hardsight.figures import draw

    file = draw(name, runs, data=data, groups=groups, human=human, seed=seed, out=out or Path(f"{name}.png"))
    print(f"wrote {file}")


def with_figures() -> str:
    """The help of `figure` with what there is to draw."""
    from hardsight.figures.catalogue import FIGURES

    listed = "\n\n".join(f"    {name}: {kind.summary}." for name, kind in FIGURES.items())
    return str(figure.__doc__).replace("    NAME is one of\n    FIGURES", f"    NAME is one of\n\n{listed}")
