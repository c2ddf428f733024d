"""`hardsight align`: a run and what people said in, how well they agree out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from hardsight.cli.arguments import listed, optional
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.printing import interval, text_table

if TYPE_CHECKING:
    from hardsight.alignment.folder import Aligned

_SHOWN = 12  # scores in the table


def align(
    runs: Annotated[Positional[tuple[Path, ...]], optional("RUN")] = (),
    *,
    human: Annotated[Path, arg(metavar="FILE")],
    compare: Annotated[str | None, optional("SCORE,SCORE")] = None,
    coarser: Annotated[Path | None, optional("FILE")] = None,
) -> dict[str, Any]:
    """Compare a run with people: which score agrees with them best, and how well any could.

    Several runs are compared one by one, and then the tests over networks: seeds of one
    architecture are averaged first. The results are in RUN/alignment/, and hardsight
    report RUN shows them.

    FILE is CSV or Parquet with id and hsf (the share of people who chose the label), with
    a column of counts per class, or with one row per answer; counts (samples × classes)
    as .npy or .npz in the order of the data, such as CIFAR-10H; CIFAR-10N; the raters.npz
    of ImageNet-ReaL; or a table of trials of Geirhos et al.

    Args:
        runs: Run folders that hardsight score or a recorder wrote; RUN/test of a training.
        human: What people said.
        compare: Scores to test, the first against each of the others; avh,confidence if not given.
        coarser: CSV or Parquet with the columns class and coarse: answers are counted on the coarse classes.

    Examples:
        hardsight align run --human votes.csv
        hardsight align seed0 seed1 seed2 --human cifar10h-counts.npy --compare avh,confidence,margin
    """
    from hardsight.alignment.folder import write_alignment
    from hardsight.alignment.nets import compare_runs
    from hardsight.alignment.run import align_run, check_run

    if not runs:
        raise InputError("RUN is missing: hardsight align RUN --human FILE.")
    places = [run.resolve() for run in runs]
    if repeated := [run for run, place in zip(runs, places, strict=True) if places.count(place) > 1]:
        raise InputError(f"RUN must be named once, got {repeated[0]} twice: one network is not two.")
    for run in runs:  # a misspelled run must not wait for the others
        check_run(run)
    alignments: dict[Path, Aligned] = {}
    for run in runs:
        alignments[run] = align_run(run, human, compare=None if compare is None else listed(compare), merge=coarser)
        folder = write_alignment(run, alignments[run])
        print("\n".join([f"\n{run}"] * (len(runs) > 1) + _lines(alignments[run])))
        print(f"wrote {folder}/ — next: hardsight report {run}   (a page with people in it)")
    parts = ("leaderboard", "differences", "summary")
    values = {str(run): {part: getattr(result, part) for part in parts} for run, result in alignments.items()}
    if len(runs) == 1:
        return {"runs": values}
    tests, lines = compare_runs(alignments)
    print("\n".join(["", *lines]))
    return {"runs": values, "over_networks": tests}


def _lines(result: Aligned) -> list[str]:
    summary, board, tests = result.summary, result.leaderboard.to_pylist(), result.differences.to_pylist()
    # Wherever AVH is compared with anything, the bare angle stands beside it.
    compared = {"angle", *(name for test in tests for name in (test["first"], test["second"]))}
    shown = [row for at, row in enumerate(board) if at < _SHOWN or row["score"] in compared]
    lines = [f"people: {printable(summary['source'])}: {printable(summary['words'])}"]
    lines += text_table(_rows(shown, summary["ceilings"]))
    if len(shown) < len(board):
        lines.append(f"… and {len(board) - len(shown):,} more in leaderboard.parquet")
    lines += [test["words"] for test in tests]
    lines += [f"{outcome['name']}: {outcome['verdict']}. {outcome['words']}" for outcome in summary["hypotheses"]]
    return [*lines, *(f"note: {printable(note)}" for note in summary["notes"])]


def _rows(board: Sequence[Mapping[str, Any]], ceilings: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Agreement of each score by each coefficient, with its interval; and the ceiling."""
    from hardsight.correlation import COEFFICIENTS

    title = "agreement (1 is the most)"
    rows = [
        {title: row["score"]} | {c: interval(row[c], row[f"{c}_low"], row[f"{c}_high"]) for c in COEFFICIENTS}
        for row in board
    ]
    most = {c["coefficient"]: interval(c["ceiling"], c["low"], c["high"]) for c in ceilings}
    return rows + ([{title: "ceiling"} | {c: most.get(c, "–") for c in COEFFICIENTS}] if ceilings else [])
