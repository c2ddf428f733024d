"""`hardsight train`: names in, a trained and recorded run and a few lines out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_type_hints

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from hardsight.cli.arguments import optional
from hardsight.recipes import Recipe, parse_settings


def _options(*names: str) -> Any:
    """Fields of `Recipe` as options, a group of them in the help: those that are not given are not in the result."""
    hints = get_type_hints(Recipe, include_extras=True)
    types = {name: Literal["true", "false"] if hints[name] is bool else hints[name] for name in names}
    options = {name: Annotated[type_, arg(help_behavior_hint="")] for name, type_ in types.items()}
    group = TypedDict("group", options, total=False)  # pyrefly: ignore[invalid-argument]
    group.__doc__ = "\n\nAttributes:" + str(Recipe.__doc__).replace("`", "").partition("Attributes:")[2]
    return group


if TYPE_CHECKING:
    Optimization = Schedule = Augmentation = Speed = dict[str, Any]
else:
    Optimization = _options(
        *("epochs", "batch_size", "loss", "label_smoothing", "optimizer", "lr", "momentum", "nesterov"),
        *("weight_decay", "clip", "ema", "frozen_norm", "seed"),
    )
    Schedule = _options("schedule", "warmup", "steps", "step_factor", "rampdown")
    Augmentation = _options("crop", "resized_crop", "smallest_part", "flip", "mixup")
    Speed = _options("precision", "channels_last", "compile", "graph", "drop_last")


def train(
    data: Annotated[Positional[str], arg(metavar="DATA")],
    *,
    model: Annotated[str, arg(metavar="MODEL")],
    test: Annotated[str | None, optional("DATA")] = None,
    out: Annotated[Path, arg(aliases=["-o"], metavar="RUN")] = Path("run"),
    recipe: Annotated[str | None, optional("PRESET")] = None,
    weights: Annotated[Path | None, optional("FILE")] = None,
    device: Annotated[str | None, optional("NAME")] = None,
    workers: Annotated[int | None, optional("N")] = None,
    record: Annotated[bool, arg(help_behavior_hint="")] = True,
    overwrite: bool = False,
    set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME=VALUE", help_behavior_hint="")] = (),
    optimization: OmitArgPrefixes[Optimization],
    schedule: OmitArgPrefixes[Schedule],
    augmentation: OmitArgPrefixes[Augmentation],
    speed: OmitArgPrefixes[Speed],
) -> dict[str, Any] | None:
    """Train a classifier and record every sample in every epoch; one line per epoch shows the progress.

    If it is interrupted, the same command resumes after the last finished epoch. Under
    torchrun (torchrun --nproc-per-node 4 -m hardsight train …) every process takes its
    share of each batch.

    MODEL is a preset (small-cnn, cifar-resnet18, alexnet-32, mnist-el, …: a network and
    how its paper trains it), a network (resnet18-32), timm:NAME, torchvision:NAME or
    path/to/file.py:function. DATA is what hardsight score takes, except features.

    LOSS is OBJECTIVE[@LOGITS][+PAIRS], each NAME[:VALUE,KEY=VALUE,…]

    OBJECTIVE: {hardsight.losses.forms(objective)}.

    LOGITS: {hardsight.losses.forms(logits)}.

    PAIRS: {hardsight.losses.forms(pairs)}.

    Alone, logits and pairs go with ce: amc is ce+amc, and avh is ce@angular. The file of
    a model may register others.

    Everything from --epochs on changes the recipe of the preset. With other --epochs its schedule is rescaled.

    RUN/test holds the records of the test samples, RUN/train those of the training
    samples as they passed through training: hardsight report RUN/test shows them.

    Args:
        data: What to train on; a name without a split means its train split.
        model: What to train.
        test: What to evaluate on, and to record, after every epoch.
        out: Run folder to write.
        recipe: Train as another preset does.
        weights: Checkpoint to start from, all but the head: torchvision's for ImageNet, for instance.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.
        record: Do not record anything.
        overwrite: Replace an existing run in RUN.
        set: An option of the recipe, as hardsight adapt takes them: optimizer=adamw, flip=true, …

    Examples:
        hardsight train digits --model small-cnn --epochs 6 --loss el
        hardsight train photos/train --test photos/val --model timm:resnet50 --recipe resnet50 --optimizer adamw
    """
    from hardsight.presets import recipe_of
    from hardsight.training import train as run
    from hardsight.training.prepare import execute_file

    changes = optimization | schedule | augmentation | speed | parse_settings(set)
    preset = recipe_of(recipe or model)
    execute_file(model, preset.replace(seed=changes.get("seed", preset.seed)).seed)
    chosen = preset.replace(**changes)
    trained = run(
        model,
        data,
        test,
        out=out,
        recipe=chosen,
        weights=weights,
        record=("train", "test") if record else (),
        device=device,
        workers=workers,
        overwrite=overwrite,
    )
    if not trained.first:  # another process speaks
        return None
    last = trained.history[-1]
    accuracy = f", test accuracy {last['test_accuracy']:.2%}" if "test_accuracy" in last else ""
    minimized = "" if chosen.loss == "ce" else f" with the loss {chosen.loss}"
    print(f"{last['epoch']} epoch{'s' * (last['epoch'] != 1)} of {trained.model.name}{minimized}{accuracy}")
    records = out / ("test" if (out / "test").is_dir() else "train")
    page = f" — next: hardsight report {records}   (a page of every sample's training)" if records.is_dir() else ""
    print(f"wrote {out}/{page}")
    return {"run": out, "model": trained.model.name, "history": trained.history}
