"""`hardsight align`: a run and what people said in, how well they agree out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from hardsight.cli.arguments import optional
from hardsight.errors import InputError

if TYPE_CHECKING:
    from hardsight.alignment.folder import Aligned

_SHOWN = 12  # scores of the table


def align(
    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN", help_behavior_hint="")] = (),
    *,
    human: Annotated[Path, arg(metavar="FILE")],
    compare: Annotated[str | None, optional("SCORE,SCORE")] = None,
    coarser: Annotated[Path | None, optional("FILE")] = None,
) -> None:
    """Compare a run with people: which score agrees with them best, and how well any could.

    Of several runs each is compared, and what was tested is told over the networks too:
    seeds of one architecture are averaged first.

    FILE is CSV or Parquet with id and hsf (the share of people who chose the label),
    with a column of counts a class, or with one row an answer; counts (samples ×
    classes) as .npy or .npz in the order of the data, such as CIFAR-10H; CIFAR-10N;
    ImageNet-ReaL's raters.npz; or a table of trials of Geirhos et al.

    What comes out is in RUN/alignment/, and hardsight report RUN shows it.

    Args:
        runs: Run folders that hardsight score or a recorder wrote; of a training RUN/test.
        human: What people said.
        compare: Scores to test, the first against each of the others; avh,confidence if not given.
        coarser: CSV or Parquet with the columns class and coarse: answers are counted on the coarse classes.
    """
    from hardsight.alignment.folder import write_alignment
    from hardsight.alignment.run import align_run, check_run

    if not runs:
        raise InputError("RUN is missing: hardsight align RUN --human FILE.")
    places = [run.resolve() for run in runs]
    if twice := [run for run, place in zip(runs, places, strict=True) if places.count(place) > 1]:
        raise InputError(f"RUN must be named once, got {twice[0]} twice: one network is not two.")
    for run in runs:  # a misspelt one must not wait for the others
        check_run(run)
    names = None if compare is None else [name.strip() for name in compare.split(",") if name.strip()]
    every = []
    for run in runs:
        every.append(found := align_run(run, human, compare=names, merge=coarser))
        print("\n".join([f"\n{run}"] * (len(runs) > 1) + _in_words(found)))
        print(f"wrote {write_alignment(run, found)}/ — next: hardsight report {run}   (a page with people in it)")
    if len(runs) > 1:
        print("\n".join(_over_nets(runs, every)))


def _in_words(found: Aligned) -> list[str]:
    """What was found, as lines to print."""
    from hardsight.extras import printable

    summary, board, tests = found.summary, found.leaderboard.to_pylist(), found.differences.to_pylist()
    # Wherever AVH is compared with anything, the bare angle stands beside it.
    compared = {"angle", *(name for test in tests for name in (test["first"], test["second"]))}
    shown = [row for at, row in enumerate(board) if at < _SHOWN or row["score"] in compared]
    lines = [
        f"people: {printable(summary['source'])}: {printable(summary['words'])}",
        *_table(shown, summary["ceilings"]),
    ]
    if len(shown) < len(board):
        lines.append(f"… and {len(board) - len(shown):,} more in leaderboard.parquet")
    lines += [test["words"] for test in tests]
    lines += [f"{one['name']}: {one['verdict']}. {one['words']}" for one in summary["hypotheses"]]
    return [*lines, *(f"note: {printable(note)}" for note in summary["notes"])]


def _over_nets(runs: Sequence[Path], every: Sequence[Aligned]) -> list[str]:
    """What the tests say of networks, not only of these pictures."""
    from hardsight.alignment.nets import over_nets
    from hardsight.dynamics.recorder import UNNAMED
    from hardsight.extras import printable

    ids = [set(found.people["id"].to_pylist()) for found in every]
    if other := [run for run, own in zip(runs, ids, strict=True) if own != ids[0]]:
        return [
            f"\nnote: nothing is told over networks: they must be compared on the same samples, and those of "
            f"{printable(other[0])} are not those of {printable(runs[0])}."
        ]
    # A recorder may not know what it records: then each run stands for a network of its own.
    names = [None if found.summary["model"] == UNNAMED else found.summary["model"] for found in every]
    models = [str(run) if name is None else name for run, name in zip(runs, names, strict=True)]
    tests = [{(t["first"], t["second"], t["coefficient"]): t for t in f.differences.to_pylist()} for f in every]
    shared = [key for key in tests[0] if all(key in own for own in tests)]
    lines = [f"\nover networks ({', '.join(map(printable, dict.fromkeys(models)))})"] if shared else []
    for first, second, coefficient in shared:
        found = over_nets([own[first, second, coefficient]["difference"] for own in tests], models)
        lines.append(f"{first} ahead of {second}, {coefficient}: {found.words}")
    if shared and (unnamed := names.count(None)):
        lines.append(
            f"note: {unnamed} of {len(runs)} runs do not say which architecture they are, and each counts as one of "
            "its own; if some differ in the seed only, intervals and p are too small."
        )
    return lines


def _table(board: Sequence[Mapping[str, Any]], ceilings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Agreement of each score by each coefficient, with its interval; and the ceiling."""
    from hardsight.correlation import COEFFICIENTS

    def cell(value: float | None, low: float | None, high: float | None) -> str:
        if value is None or low is None or high is None:
            return "–" if value is None else f"{value:.3f}"
        return f"{value:.3f} ({low:.3f} to {high:.3f})"

    most = {one["coefficient"]: cell(one["ceiling"], one["low"], one["high"]) for one in ceilings}
    rows = [["agreement (1 is the most)", *COEFFICIENTS]]
    rows += [
        [r["score"], *(cell(r[name], r[f"{name}_low"], r[f"{name}_high"]) for name in COEFFICIENTS)] for r in board
    ]
    rows += [["ceiling", *(most.get(name, "–") for name in COEFFICIENTS)]] if ceilings else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
