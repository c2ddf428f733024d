"""`hardsight align` and `hardsight evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hardsight.cli.options import command, take
from hardsight.errors import InputError


@command("cli.evaluating:align runs=<RUN…> human=FILE compare=SCORE,… coarser=FILE")
def align(runs: Sequence[Path] = (), *, human: Path, **chosen: Any) -> dict[str, Any]:
    """Compare a run with people: which score agrees with them best, and how well any score could.

    Several runs are compared one by one and then tested over networks: seeds of one architecture are averaged first.
    Results go to RUN/alignment/, and hardsight report RUN shows them.

    FILE is CSV or Parquet with id and hsf (the share of people who chose the label), with a column of counts per class,
    or with one row per answer; counts (samples × classes) as .npy or .npz in the order of the data, such as CIFAR-10H;
    CIFAR-10N; the raters.npz of ImageNet-ReaL; or a table of trials of Geirhos et al.

    Args:
        runs: Run folders that hardsight score or a recorder wrote; RUN/test of a training.
        human: Human answers.
        compare: Scores to test, the first against each of the others; avh,confidence if not given.
        coarser: CSV or Parquet with the columns class and coarse: answers are counted per coarse class.

    Examples:
        hardsight align run --human votes.csv
        hardsight align seed0 seed1 seed2 --human cifar10h-counts.npy --compare avh,confidence,margin
    """
    from hardsight.people import Alignment, align_run, compare_runs, write_alignment
    from hardsight.people.alignment import check_run

    if not runs:
        raise InputError("RUN is missing: hardsight align RUN --human FILE.")
    places = [run.resolve() for run in runs]
    if repeated := [run for run, place in zip(runs, places, strict=True) if places.count(place) > 1]:
        raise InputError(f"RUN must be named once, got {repeated[0]} twice: one network is not two.")
    for run in runs:  # a misspelled run must not wait for the others
        check_run(run)
    aligned: dict[Path, Alignment] = {}
    for run in runs:
        aligned[run] = align_run(run, human, compare=chosen.get("compare"), merge=chosen.get("coarser"))
        folder = write_alignment(run, aligned[run])
        print(f"\n{run}\n" * (len(runs) > 1) + aligned[run].text())
        print(f"wrote {folder}/ — next: hardsight report {run}   (a page with people in it)")
    values: dict[str, Any] = {"runs": {}}
    for run, result in aligned.items():
        tests = [test._asdict() for test in result.differences]
        tables = {"leaderboard": result.leaderboard, "table1": result.table1(), "table2": result.table2()}
        values["runs"][str(run)] = tables | {"differences": tests, "summary": result.summary}
    if len(runs) > 1:
        values["over_networks"], lines = compare_runs(aligned)
        print("", *lines, sep="\n")
    return values


@command(
    "evaluation.run:evaluate runs=<RUN…> out=FOLDER names=NAME,… overwrite",
    "evaluation.run:evaluate [questions] ood=DATA,… detectors=NAME,… attack:attacks=NAME,… eps=NUMBER,… explain "
    "boxes=FILE dropout=N limit=N",
    "evaluation.run:evaluate [degradation] degrade:degradations=NAME,… levels=NUMBER,… gray human=FILE",
    "evaluation.run:evaluate [network] model=MODEL checkpoint=FILE data=DATA",
    "evaluation.run:evaluate [compute] device=DEVICE batch_size=N workers=N",
)
def evaluate(runs: Sequence[Path] = (), **chosen: Any) -> dict[str, Any]:
    """Compare networks by more than accuracy: calibration, margins, clusters, and what you ask for.

    Runs that differ only in the seed form a group. Every group is compared with the first: mean ± sd and a paired or
    Welch test over runs, or over samples if each group has one run, corrected for the number of tests. The output
    folder holds the numbers (Parquet, CSV, LaTeX) and a page. Existing results are not recomputed.

    --detectors takes {hardsight.questions.DETECTORS}; mahalanobis, knn and vim are fitted on the training samples that
    the run recorded.

    --attack takes {hardsight.questions.ATTACKS}.

    --degrade takes {hardsight.questions.DEGRADATIONS}. Degradations act on raw pixels, before preprocessing.

    Args:
        runs: Run folders that hardsight score or hardsight train wrote; the first is the baseline.
        degradations: Image degradations, each at several levels: noise,contrast for example.
        human: Table of human trials on degraded images (Geirhos et al.), to show human accuracy too.
        model: The network, if RUN does not name it: anything that hardsight score takes.
        checkpoint: Its weights.

    Examples:
        hardsight evaluate ce-0 ce-1 el-0 el-1 --ood fashion.npz --attack fgsm,pgd -o compared
        hardsight evaluate run --degrade noise,contrast
    """
    if not runs:
        raise InputError("RUN is missing: hardsight evaluate RUN [RUN …].")
    network, human = take(chosen, "model", "checkpoint"), chosen.pop("human", None)
    if len(runs) != 1 and network:
        raise InputError(f"--model and --checkpoint go with one RUN, got {len(runs)}.")
    for option, needed in (("levels", "degrade"), ("gray", "degrade"), ("boxes", "explain"), ("detectors", "ood")):
        if option in chosen and {"degrade": "degradations"}.get(needed, needed) not in chosen:
            raise InputError(f"--{option} goes with --{needed}, which is not given.")
    if human is not None and "degradations" not in chosen:
        raise InputError("--human goes with --degrade, which is not given.")
    from hardsight.evaluation import evaluate as evaluate_runs
    from hardsight.evaluation.subjects import subject_of, warn_of_another_network
    from hardsight.questions.levels import human_accuracy, level_summary
    from hardsight.report.comparisonpage import evaluation_lines, write_comparison

    people = [] if human is None else human_accuracy(human).to_pylist()
    subjects = [subject_of(runs[0], chosen.get("data"), **network)] if network else list(runs)
    result = evaluate_runs(subjects, **chosen)
    if network or "data" in chosen:
        for run, samples in zip(runs, result.samples.values(), strict=True):
            warn_of_another_network(run, samples)
    page, values = write_comparison(result), {}
    print(*evaluation_lines(result), sep="\n")
    for run, rows in result.levels().items() if "degradations" in chosen else ():
        values.setdefault("degraded", {})[run], lines = level_summary(rows, people)
        print("", run, *lines, sep="\n")
    figure = f", or: hardsight figure degradation {result.path}" if values else ""
    print(f"wrote {result.path}/ — next: open {page}{figure}")
    notes = [asdict(note) for note in result.notes]
    return {**values, "page": page, "rows": result.rows, "tests": result.tests, "notes": notes}
