"""`hardsight evaluate`: runs in, what they are worth beyond accuracy out, side by side."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from hardsight.cli.arguments import Compute, listed, optional
from hardsight.errors import InputError


@dataclass(frozen=True)
class Questions:
    """What to ask besides calibration, margins and clusters."""

    ood: Annotated[str | None, optional("DATA[,DATA]")] = None
    """OOD data, which the networks should tell from their own."""
    attack: Annotated[str | None, optional("NAMES")] = None
    """Adversarial attacks: fgsm,pgd for example."""
    eps: Annotated[str | None, optional("LIST")] = None
    """Strengths of the attacks, in pixel values from 0 to 1: 0.1,0.3 or 8/255."""
    explain: bool = False
    """Where do the networks look (class activation maps), and does their answer rest on it?"""
    boxes: Annotated[Path | None, optional("FILE")] = None
    """Where the objects are, for --explain: CSV with id, x0, y0, x1, y1, or masks as .npy."""
    dropout: Annotated[int, arg(metavar="N")] = 0
    """MC-dropout passes, for uncertainty."""
    limit: Annotated[int | None, optional("N")] = None
    """Samples that are attacked (200) and explained (500)."""


@dataclass(frozen=True)
class Degradation:
    """Degraded images. They act on raw pixels, before preprocessing; the results go to RUN/degraded."""

    degrade: Annotated[str | None, optional("NAMES")] = None
    """Degradations: noise,contrast for example."""
    levels: Annotated[str | None, optional("LEVELS")] = None
    """Levels of one degradation, instead of its own: 0,0.1,0.2 for example."""
    grey: bool = False
    """Remove color first."""
    human: Annotated[Path | None, optional("FILE")] = None
    """Trial table of people on degraded images (Geirhos et al.), to show their accuracy too."""


@dataclass(frozen=True)
class Network:
    """What to evaluate, where RUN does not say."""

    model: Annotated[str | None, optional("MODEL")] = None
    """The network: what hardsight score takes."""
    checkpoint: Annotated[Path | None, optional("FILE")] = None
    """Its weights."""
    data: Annotated[str | None, optional("DATA")] = None
    """Where the images are, unless the runs name a folder or an .npz that is still there."""


def evaluate(
    runs: Annotated[Positional[tuple[Path, ...]], optional("RUN")] = (),
    *,
    out: Annotated[Path, arg(aliases=["-o"], metavar="OUT")] = Path("evaluation"),
    names: Annotated[str | None, optional("A,A,B,B")] = None,
    overwrite: bool = False,
    questions: Questions = Questions(),
    degradation: Degradation = Degradation(),
    network: Network = Network(),
    compute: Compute = Compute(),
) -> dict[str, Any]:
    """Compare networks by more than accuracy: calibration, margins, clusters, and what you ask for.

    Runs that differ only in the seed form a group. Every group is compared with the first:
    mean ± sd and a paired or Welch test over runs, or over samples where there is one run of
    each, corrected for the number of tests. OUT holds the numbers (Parquet, CSV, LaTeX) and a
    page to look at. Results that are already there are not computed again.

    --attack takes {hardsight.robustness.ATTACKS}.

    --degrade takes {hardsight.degradation.DEGRADATIONS}.

    Args:
        runs: Run folders that hardsight score or hardsight train wrote; others are compared with the first.
        out: Folder to write.
        names: The group of each run, in their order, instead of by their settings.
        overwrite: Delete another evaluation in OUT, or degraded images of another network in RUN.

    Examples:
        hardsight evaluate ce-0 ce-1 el-0 el-1 --ood fashion.npz --attack fgsm,pgd -o compared
        hardsight evaluate run --degrade noise,contrast
    """
    if not runs:
        raise InputError("RUN is missing: hardsight evaluate RUN [RUN …].")
    if len(runs) != 1 and (network.model is not None or network.checkpoint is not None):
        raise InputError(f"--model and --checkpoint go with one RUN, got {len(runs)}.")
    options: dict[str, Any] = {**vars(compute), "overwrite": overwrite}
    values: dict[str, Any] = {}
    degrade, levels, grey, human = astuple(degradation)
    if degrade is not None:
        from hardsight.cli.degrading import evaluate_levels

        values["degraded"] = evaluate_levels(runs, degrade, levels, human, astuple(network), grey=grey, **options)
        if not (questions.ood or questions.attack or questions.explain or questions.dropout):
            return values
    elif degradation != Degradation():
        raise InputError("--levels, --grey and --human go with --degrade; name what to do: --degrade noise,contrast.")
    if questions.boxes is not None and not questions.explain:
        raise InputError("--boxes goes with --explain, which makes the maps that are compared with them.")
    from hardsight.evaluation import evaluate as evaluate_runs
    from hardsight.report.comparisonpage import write_comparison
    from hardsight.report.comparisontext import evaluation_lines

    result = evaluate_runs(
        runs if network.model is None and network.checkpoint is None else [_subject(runs[0], network)],
        data=network.data,
        ood=listed(questions.ood),
        attacks=listed(questions.attack),
        eps=None if questions.eps is None else [_number(text) for text in listed(questions.eps)],
        explain=questions.explain,
        dropout=questions.dropout,
        boxes=None if questions.boxes is None else str(questions.boxes),
        names=None if names is None else names.split(","),
        limit=questions.limit,
        out=out,
        **options,
    )
    page = write_comparison(out)
    print("\n".join(evaluation_lines(out)))
    print(f"wrote {out}/ — next: open {page}")
    return {**values, "page": page, "rows": result.rows, "tests": result.tests, "notes": result.words}


def _number(text: str) -> float:
    """A number, or one over another: 8/255."""
    above, _, below = text.partition("/")
    try:
        return float(above) / (float(below) if below else 1.0)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"--eps must be numbers with commas between them, 0.1 or 8/255 say, got {text!r}.") from None


def _subject(run: Path, network: Network) -> Any:
    """A run whose network or data the user names."""
    from hardsight.evaluation import Subject
    from hardsight.evaluation.rebuilding import rebuilt

    subject = rebuilt(run, network.model, network.checkpoint, network.data)
    subject.model.module.eval()
    return Subject(run.resolve().name, subject.model, subject.samples)
