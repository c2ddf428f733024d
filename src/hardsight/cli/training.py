"""`hardsight train`: names in, a trained and recorded run and a few lines out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

from tyro.conf import Positional, UseAppendAction, arg

from hardsight.cli.arguments import optional


def train(
    data: Annotated[Positional[str], arg(metavar="DATA")],
    *,
    model: Annotated[str, arg(metavar="MODEL")],
    test: Annotated[str | None, optional("DATA")] = None,
    out: Annotated[Path, arg(aliases=["-o"], metavar="RUN")] = Path("run"),
    loss: Annotated[str | None, optional("LOSS")] = None,
    recipe: Annotated[str | None, optional("PRESET")] = None,
    epochs: Annotated[int | None, optional("N")] = None,
    batch_size: Annotated[int | None, optional("N")] = None,
    lr: Annotated[float | None, optional("RATE")] = None,
    seed: Annotated[int | None, optional("N")] = None,
    weights: Annotated[Path | None, optional("FILE")] = None,
    set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME=VALUE", help_behavior_hint="")] = (),
    device: Annotated[str | None, optional("NAME")] = None,
    workers: Annotated[int | None, optional("N")] = None,
    record: Annotated[bool, arg(help_behavior_hint="")] = True,
    overwrite: bool = False,
) -> None:
    """Train a classifier and record every sample in every epoch; a line an epoch says how it goes.

    Killed at any point, the same command goes on after the last finished epoch. Under
    torchrun (torchrun --nproc-per-node 4 -m hardsight train …) every process takes its
    share of each batch.

    MODEL is a preset (small-cnn, cifar-resnet18, alexnet-32, mnist-el, …: a network and
    how its paper trains it), a network (resnet18-32), timm:NAME, torchvision:NAME or
    path/to/file.py:function. DATA is what hardsight score takes, but for features.

    LOSS is OBJECTIVE[@LOGITS][+PAIRS], each NAME[:VALUE,KEY=VALUE,…]
    LOSSES

    RUN/test holds the records of the test samples, RUN/train those of the training
    samples as they passed through training: hardsight report RUN/test shows them.

    Args:
        data: What to train on; a name without a split means its train split.
        model: What to train.
        test: What to evaluate on, and to record, after every epoch.
        out: Run folder to write.
        loss: What to minimise, instead of the preset's: el, el:0.5, avh, amc, el@arcface:0.3+amc, ….
        recipe: Train as another preset does.
        epochs: Passes over the data, instead of the preset's; its schedule is stretched to them.
        batch_size: Samples a step, over all processes together.
        lr: Largest learning rate.
        seed: Of weights, order and augmentation.
        weights: Checkpoint to begin with, all but the head: torchvision's of ImageNet, say.
        set: Any other part of the recipe, as often as you like: optimiser=adamw, schedule=cosine, precision=bf16, …
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.
        record: Do not record anything.
        overwrite: Throw away another run in RUN.
    """
    from hardsight.presets import recipe_of
    from hardsight.recipes import changed

    given = {"loss": loss, "epochs": epochs, "batch_size": batch_size, "lr": lr, "seed": seed}
    told = [*(f"{name}={value}" for name, value in given.items() if value is not None), *set]
    chosen = changed(recipe_of(recipe or model), told)
    from hardsight.training import train as run

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
        return
    last = trained.history[-1]
    accuracy = f", test accuracy {last['test_accuracy']:.2%}" if "test_accuracy" in last else ""
    minimised = "" if chosen.loss == "ce" else f" with the loss {chosen.loss}"
    print(f"{last['epoch']} epoch{'s' * (last['epoch'] != 1)} of {trained.model.name}{minimised}{accuracy}")
    seen = out / ("test" if (out / "test").is_dir() else "train")
    page = f" — next: hardsight report {seen}   (a page of every sample's training)" if seen.is_dir() else ""
    print(f"wrote {out}/{page}")


def with_losses() -> str:
    """The help of `train` with the losses that there are."""
    from hardsight.losses import Kind, forms

    listed = "\n\n".join(f"    {kind.upper()}: {forms(kind)}." for kind in get_args(Kind))
    short = "    Alone, logits and pairs go with ce: amc is ce+amc, and avh is ce@angular."
    return str(train.__doc__).replace("\n    LOSSES\n", f"\n\n{listed}\n\n{short}\n")
