"""`hardsight adapt`: a labeled domain and an unlabeled one in, an adapted network and a table of its rounds out."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import UseAppendAction, arg

from hardsight.cli.arguments import optional
from hardsight.errors import InputError

if TYPE_CHECKING:
    from hardsight.models import Model


@dataclass(frozen=True)
class Selection:
    """Which pseudo-labels are trained on."""

    method: Annotated[str, arg(metavar="METHOD")] = "cbst+avh"
    """What labels and what selects."""
    rounds: Annotated[int, arg(metavar="N")] = 5
    """How many times to select and retrain."""
    portion: Annotated[str, arg(metavar="FIRST,STEP,MOST")] = "0.2,0.05,0.5"
    """Share of the target that is selected: in the first round, more per round, at most; or one number."""
    source_portion: Annotated[str, arg(metavar="FIRST,STEP,MOST")] = "0.065,0.0085,0.165"
    """Share of the source that is trained on beside it, likewise."""
    balance: Annotated[str, arg(metavar="HOW")] = "class"
    """class: the portion of each class; global: of all together; or the share of each class, with commas."""
    strict: bool = False
    """Select only above the threshold, as the papers print, not at it."""


@dataclass(frozen=True)
class Retraining:
    """How each round trains."""

    epochs: Annotated[int, arg(metavar="N")] = 1
    """Passes over the selected samples, in each round."""
    recipe: Annotated[str | None, optional("PRESET")] = None
    """Retrain as a preset does; else as MODEL was trained, at a constant tenth of its learning rate."""
    batch_size: Annotated[int | None, optional("N")] = None
    """Samples per step."""
    lr: Annotated[float | None, optional("RATE")] = None
    """Learning rate of the rounds."""
    set: Annotated[UseAppendAction[tuple[str, ...]], optional("NAME=VALUE")] = ()
    """Any other part of the recipe, as often as you like: frozen_norm=true, flip=true, …"""
    seed: int = 0
    """Seed of every draw and training."""


def adapt(
    *,
    source: Annotated[str, arg(metavar="DATA")],
    target: Annotated[str, arg(metavar="DATA")],
    model: Annotated[str, arg(metavar="MODEL")],
    test: Annotated[str | None, optional("DATA")] = None,
    labelled: Annotated[str | None, optional("DATA")] = None,
    checkpoint: Annotated[Path | None, optional("FILE")] = None,
    out: Annotated[Path, arg(aliases=["-o"], metavar="RUN")] = Path("run"),
    same_images: bool = False,
    device: Annotated[str | None, optional("NAME")] = None,
    workers: Annotated[int | None, optional("N")] = None,
    overwrite: bool = False,
    selection: Selection = Selection(),
    retraining: Retraining = Retraining(),
) -> dict[str, Any]:
    """Adapt a classifier to unlabeled data: label them, select the most confident, retrain, and again.

    If it is interrupted, run the same command again to resume. Labels of the target are never trained
    on; they and --test are only for the table that is printed.

    MODEL is the RUN of hardsight train, or what hardsight score takes with its
    --checkpoint: a trained network. A preset or a name alone is trained on the source
    first, into RUN/source.

    METHOD is {hardsight.adaptation.METHODS}, or cbst+SCORE for any score: cbst+margin.
    Softmax confidence selects in cbst and crst, angular confidence in cbst+avh (Eq. 4 of
    the AVH paper).

    Args:
        source: Labeled data; a name without a split means its train split.
        target: Data to adapt to, likewise.
        model: What to adapt.
        test: Other data of the target's domain, to report on.
        labelled: A few labeled samples of the target's domain, trained on in every round.
        checkpoint: Weights of MODEL.
        out: Run folder to write.
        same_images: The test may hold images of the target.
        device: cpu, cuda, cuda:1 or mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.
        overwrite: Replace an existing run in RUN.

    Examples:
        hardsight adapt --source photos/train --target sketches --model trained -o adapted
        hardsight adapt --source mnist.npz --target usps.npz --test usps.npz:test --model small-cnn --method cbst
    """
    portions = [_numbers("--portion", selection.portion), _numbers("--source-portion", selection.source_portion)]
    balance: Any = selection.balance
    if balance not in ("class", "global"):
        balance = _numbers("--balance", balance, "class, global or ")
    from hardsight.adaptation.folder import TRAINING, round_folder
    from hardsight.adaptation.loop import self_train
    from hardsight.adaptation.retraining import recipe_for_rounds
    from hardsight.adaptation.rounds import best, conclusions, round_tables
    from hardsight.recipes import parse_settings
    from hardsight.training.saved import is_training

    if Path(model).is_dir() and not is_training(model):
        raise InputError(
            f"--model: the folder {model} holds no training; of an adaptation, name its source/ or rounds/05/training/."
        )
    shorthand = {"batch_size": retraining.batch_size, "lr": retraining.lr}
    changes = {name: value for name, value in shorthand.items() if value is not None} | parse_settings(retraining.set)
    if "seed" in changes:
        raise InputError("--set: the seed of all rounds is --seed.")
    adapted = self_train(
        model if checkpoint is None else _with_weights(model, checkpoint),
        source,
        target,
        test=test,
        method=selection.method,
        labelled=labelled,
        rounds=selection.rounds,
        epochs=retraining.epochs,
        target_portion=portions[0],
        source_portion=portions[1],
        balance=balance,
        strict=selection.strict,
        recipe=recipe_for_rounds(model, retraining.recipe).replace(**changes),
        out=out,
        device=device,
        workers=workers,
        seed=retraining.seed,
        same_images=same_images,
        overwrite=overwrite,
    )
    rows = adapted.rounds.to_pylist()
    sentences = conclusions(rows)
    print(
        "\n".join(["", *round_tables(rows), *(textwrap.fill(line, 100, subsequent_indent="  ") for line in sentences)])
    )
    if test is not None:
        then = f"next: hardsight report {out / 'test'}"
    elif best(rows) is not None:
        then = f"next: hardsight figure adaptation {out}"
    else:  # no accuracy, nothing to draw
        then = f"the network is in {round_folder(out, selection.rounds) / TRAINING}"
    print(f"wrote {out}/ — {then}")
    return {"run": out, "rounds": rows, "conclusions": sentences}


def _numbers(argument: str, text: str, otherwise: str = "") -> Any:
    """One number, or several in a list."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{argument} must be {otherwise}numbers with commas between them, got {text!r}.") from None
    return numbers if len(numbers) > 1 else numbers[0]


def _with_weights(model: str, checkpoint: Path) -> Model:
    """A network with the weights in a file; a preset or a bare name is one of hardsight's own."""
    from hardsight.models import load_model
    from hardsight.presets import PRESETS

    name = PRESETS[model].network if model in PRESETS else model
    return load_model(name if ":" in name else f"hardsight:{name}", checkpoint)
