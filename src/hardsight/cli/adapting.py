"""`hardsight adapt`: a labelled domain and an unlabelled one in, an adapted network and a table of its rounds out."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import UseAppendAction, arg

from hardsight.cli.arguments import optional
from hardsight.errors import InputError

if TYPE_CHECKING:
    from hardsight.models import Model


def adapt(
    *,
    source: Annotated[str, arg(metavar="DATA")],
    target: Annotated[str, arg(metavar="DATA")],
    model: Annotated[str, arg(metavar="MODEL")],
    test: Annotated[str | None, optional("DATA")] = None,
    labelled: Annotated[str | None, optional("DATA")] = None,
    checkpoint: Annotated[Path | None, optional("FILE")] = None,
    out: Annotated[Path, arg(aliases=["-o"], metavar="RUN")] = Path("run"),
    method: Annotated[str, arg(metavar="METHOD")] = "cbst+avh",
    rounds: Annotated[int, arg(metavar="N")] = 5,
    epochs: Annotated[int, arg(metavar="N")] = 1,
    portion: Annotated[str, arg(metavar="FIRST,STEP,MOST")] = "0.2,0.05,0.5",
    source_portion: Annotated[str, arg(metavar="FIRST,STEP,MOST")] = "0.065,0.0085,0.165",
    balance: Annotated[str, arg(metavar="HOW")] = "class",
    strict: bool = False,
    recipe: Annotated[str | None, optional("PRESET")] = None,
    batch_size: Annotated[int | None, optional("N")] = None,
    lr: Annotated[float | None, optional("RATE")] = None,
    set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME=VALUE", help_behavior_hint="")] = (),
    seed: int = 0,
    same_images: bool = False,
    device: Annotated[str | None, optional("NAME")] = None,
    workers: Annotated[int | None, optional("N")] = None,
    overwrite: bool = False,
) -> None:
    """Adapt a classifier to data without labels: label them by itself, choose the surest, retrain, and again.

    Killed at any point, the same command goes on where it stopped. Labels that the target
    has are never trained on; they and --test are for the table that is printed.

    MODEL is the RUN of hardsight train, or what hardsight score takes with its
    --checkpoint: a network that is trained. A preset or a name alone is trained on the
    source first, into RUN/source.

    METHOD is cbst, crst, crst-mrkld, crst-lrent (softmax confidence selects), cbst+avh
    (the AVH paper's Eq. 4: angular confidence selects), cbst+avh-slides (it labels,
    too), cbst+avh-hybrid, or cbst+SCORE: cbst+margin, say.

    Args:
        source: Labelled data; a name without a split means its train split.
        target: Data to adapt to, likewise.
        model: What to adapt.
        test: Other data of the target's domain, to report on.
        labelled: A few labelled samples of the target's domain, trained on in every round.
        checkpoint: Weights of MODEL.
        out: Run folder to write.
        method: What labels and what selects.
        rounds: How many times to choose and retrain.
        epochs: Passes over what was chosen, in each round.
        portion: Share of the target that is chosen: at first, more a round, at most; or one number.
        source_portion: Share of the source that is trained on beside it, likewise.
        balance: class: the portion of each; global: of all together; or the share of each class, with commas.
        strict: Choose only above the threshold, as the papers print, not at it.
        recipe: Retrain as a preset does; else as MODEL was trained, at a constant tenth of its rate.
        batch_size: Samples a step.
        lr: Learning rate of the rounds.
        set: Any other part of the recipe of the rounds, as often as you like: frozen_norm=true, flip=true, …
        seed: Of every draw and training.
        same_images: The test may hold pictures of the target.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.
        overwrite: Throw away another run in RUN.
    """
    portions = [_numbers("--portion", portion), _numbers("--source-portion", source_portion)]
    shares: Any = balance if balance in ("class", "global") else _numbers("--balance", balance, "class, global or ")
    from hardsight.adaptation.folder import TRAINING, round_folder
    from hardsight.adaptation.loop import self_train
    from hardsight.adaptation.retraining import recipe_for_rounds
    from hardsight.adaptation.rounds import best, conclusions
    from hardsight.recipes import parse_settings
    from hardsight.training.saved import is_training

    if Path(model).is_dir() and not is_training(model):
        raise InputError(
            f"--model: the folder {model} holds no training; of an adaptation, name its source/ or rounds/05/training/."
        )
    given = {"batch_size": batch_size, "lr": lr}
    changes = {name: value for name, value in given.items() if value is not None} | parse_settings(set)
    if "seed" in changes:
        raise InputError("--set: the seed of all rounds is --seed.")
    chosen = recipe_for_rounds(model, recipe).replace(**changes)
    adapted = self_train(
        model if checkpoint is None else _with_weights(model, checkpoint),
        source,
        target,
        test=test,
        method=method,
        labelled=labelled,
        rounds=rounds,
        epochs=epochs,
        target_portion=portions[0],
        source_portion=portions[1],
        balance=shares,
        strict=strict,
        recipe=chosen,
        out=out,
        device=device,
        workers=workers,
        seed=seed,
        same_images=same_images,
        overwrite=overwrite,
    )
    rows = adapted.rounds.to_pylist()
    told = (textwrap.fill(line, 100, subsequent_indent="  ") for line in conclusions(rows))
    print("\n".join(["", *_tables(rows), *told]))
    if test is not None:
        seen = f"next: hardsight report {out / 'test'}"
    elif best(rows) is not None:
        seen = f"next: hardsight figure adaptation {out}"
    else:  # no accuracy, nothing to draw
        seen = f"the network is in {round_folder(out, rounds) / TRAINING}"
    print(f"wrote {out}/ — {seen}")


def _numbers(argument: str, text: str, otherwise: str = "") -> Any:
    """One number, or several in a list."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{argument} must be {otherwise}numbers with commas between them, got {text!r}.") from None
    return found if len(found) > 1 else found[0]


def _with_weights(model: str, checkpoint: Path) -> Model:
    """A network with the weights in a file; a preset or a bare name is one of hardsight's own."""
    from hardsight.models import load_model
    from hardsight.presets import PRESETS

    name = PRESETS[model].network if model in PRESETS else model
    return load_model(name if ":" in name else f"hardsight:{name}", checkpoint)


# Columns by their titles: the name in rounds.parquet, and how it is written.
_CHOSEN = {
    "round": ("round", "d"),
    "chosen": ("selected", ",d"),
    "share": ("selected_share", ".1%"),
    "imbalance": ("balance_distance", ".3f"),
    "confidence": ("confidence", ".3f"),
    "C·AVC": ("avc", ".3f"),
    "C·AVH": ("avh", ".3f"),
    "norm": ("norm", ".3f"),
    "right": ("tp_rate", ".2%"),
    "of the hard": ("hard_tp_rate", ".2%"),
}
_OUTCOME = {
    "round": ("round", "d"),
    "target": ("target_accuracy", ".2%"),
    "target by class": ("target_mean_class", ".2%"),
    "test": ("test_accuracy", ".2%"),
    "test by class": ("test_mean_class", ".2%"),
}


def _tables(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was chosen, a line a round, and what came of it; only what is known."""
    classes = len(rows[0]["predicted_by_class"])

    def cell(row: Mapping[str, Any], name: str, told: str) -> str:
        return "–" if row[name] is None else format((classes if name in ("avc", "avh") else 1) * row[name], told)

    lines = []
    for titles in (_CHOSEN, _OUTCOME):
        columns = [
            [title, *(cell(row, name, told) for row in rows)]
            for title, (name, told) in titles.items()
            if told != ".2%" or any(row[name] is not None for row in rows)
        ]
        if len(columns) > 1:
            cells = ([text.rjust(max(map(len, column))) for text in column] for column in columns)
            lines += [*map("  ".join, zip(*cells, strict=True)), ""]
    return lines
