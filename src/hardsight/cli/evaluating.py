"""`hardsight evaluate`: runs in, what they are worth beyond accuracy out, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from hardsight.cli.arguments import optional
from hardsight.errors import InputError


def evaluate(
    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN", help_behavior_hint="")] = (),
    *,
    ood: Annotated[str | None, optional("DATA[,DATA]")] = None,
    attack: Annotated[str | None, optional("NAMES")] = None,
    eps: Annotated[str | None, optional("LIST")] = None,
    explain: bool = False,
    boxes: Annotated[Path | None, optional("FILE")] = None,
    dropout: Annotated[int, arg(metavar="N")] = 0,
    names: Annotated[str | None, optional("A,A,B,B")] = None,
    limit: Annotated[int | None, optional("N")] = None,
    out: Annotated[Path, arg(aliases=["-o"], metavar="OUT")] = Path("evaluation"),
    degrade: Annotated[str | None, optional("NAMES")] = None,
    levels: Annotated[str | None, optional("LEVELS")] = None,
    grey: bool = False,
    human: Annotated[Path | None, optional("FILE")] = None,
    model: Annotated[str | None, optional("MODEL")] = None,
    checkpoint: Annotated[Path | None, optional("FILE")] = None,
    data: Annotated[str | None, optional("DATA")] = None,
    device: Annotated[str | None, optional("NAME")] = None,
    batch_size: int = 64,
    workers: Annotated[int | None, optional("N")] = None,
    overwrite: bool = False,
) -> None:
    """Compare networks by more than accuracy: calibration, margins, clusters, and what you ask for.

    Runs that differ in the seed only form a group. Every group is compared with the first:
    mean ± sd and a paired or Welch test over runs, or over samples where there is one run of
    each, corrected for the number of tests. OUT holds the numbers (Parquet, CSV, LaTeX) and a
    page to look at. What is there already is not computed again.

    --attack takes fgsm, pgd, pgd-l2, pgd-margin, pgd-margin-l2, pgd-dlr, noise and
    autoattack; ε is in pixel values from 0 to 1. --degrade takes contrast, noise, blur, brightness, jpeg,
    resolution and occlusion, which act on raw pixels, before the network's own
    preprocessing; it writes into RUN/degraded.

    Args:
        runs: Run folders that hardsight score or hardsight train wrote; the first is what others are compared with.
        ood: Data of other kinds, which the networks should tell from their own.
        attack: How to change pixels so that the networks err: fgsm,pgd, say.
        eps: How far pixels may be changed: 0.1,0.3 or 8/255, say.
        explain: Where do the networks look (class activation maps), and does their answer rest on it?
        boxes: Where the objects are, for --explain: CSV with id, x0, y0, x1, y1, or masks as .npy.
        dropout: Passes with dropout left on, for what the networks do not know.
        names: The group of each run, in their order, instead of what their settings say.
        limit: Samples that are attacked (200) and explained (500).
        out: Folder to write.
        degrade: Make pictures harder by degrees: noise,contrast, say.
        levels: Of one degradation, instead of its own: 0,0.1,0.2, say.
        grey: Take the colour away first.
        human: Trial table of people on degraded pictures (Geirhos et al.), whose accuracy is told too.
        model: The network, where RUN does not say: what hardsight score takes.
        checkpoint: Its weights.
        data: Where the pictures are, unless the runs name a folder or an .npz that is still there.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        batch_size: Samples a forward.
        workers: Loader processes.
        overwrite: Throw away another evaluation in OUT, or degraded pictures of another network in RUN.
    """
    if not runs:
        raise InputError("RUN is missing: hardsight evaluate RUN [RUN …].")
    named = (model, checkpoint, data)
    if len(runs) != 1 and (model is not None or checkpoint is not None):
        raise InputError(f"--model and --checkpoint go with one RUN, got {len(runs)}.")
    forward = {"device": device, "batch_size": batch_size, "workers": workers, "overwrite": overwrite}
    if degrade is not None:
        from hardsight.cli.degrading import evaluate_levels

        evaluate_levels(runs, degrade, levels, human, named, grey=grey, **forward)
        if not (ood or attack or explain or dropout):
            return
    elif levels is not None or grey or human is not None:
        raise InputError("--levels, --grey and --human go with --degrade; name what to do: --degrade noise,contrast.")
    if boxes is not None and not explain:
        raise InputError("--boxes goes with --explain, which makes the maps that are compared with them.")
    from hardsight.cli.comparing import told
    from hardsight.evaluation import evaluate as evaluate_runs
    from hardsight.report.comparisonpage import write_comparison

    evaluate_runs(
        runs if model is None and checkpoint is None else [_subject(runs[0], *named)],
        data=data,
        ood=_listed(ood),
        attacks=_listed(attack),
        eps=None if eps is None else [_number(text) for text in _listed(eps)],
        explain=explain,
        dropout=dropout,
        boxes=None if boxes is None else str(boxes),
        names=None if names is None else names.split(","),
        limit=limit,
        out=out,
        **forward,
    )
    page = write_comparison(out)
    print("\n".join(told(out)))
    print(f"wrote {out}/ — next: open {page}")


def _listed(text: str | None) -> list[str]:
    return [] if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _number(text: str) -> float:
    """A number, or one over another: 8/255."""
    above, _, below = text.partition("/")
    try:
        return float(above) / (float(below) if below else 1.0)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"--eps must be numbers with commas between them, 0.1 or 8/255 say, got {text!r}.") from None


def _subject(run: Path, model: str | None, checkpoint: Path | None, data: str | None) -> Any:
    """A run whose network or data the user names."""
    from hardsight.evaluation import Subject
    from hardsight.evaluation.rebuilding import rebuilt

    found = rebuilt(run, model, checkpoint, data)
    found.model.module.eval()
    return Subject(run.resolve().name, found.model, found.samples)
