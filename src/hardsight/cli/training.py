"""`hardsight train` and `hardsight adapt`."""

from __future__ import annotations

from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

from hardsight import training
from hardsight.adaptation import loop
from hardsight.adaptation.check import CHECK, SELECTED
from hardsight.adaptation.loop import recipe_for_rounds
from hardsight.adaptation.rounds import TRAINING, best, conclusions, round_folder
from hardsight.cli.options import command, numbers, take
from hardsight.cli.scoring import READING, READING_OPTIONS, open_named
from hardsight.errors import InputError
from hardsight.models import load_model
from hardsight.presets import PRESETS, recipe_of
from hardsight.printing import percent
from hardsight.recipes import SETTINGS, parse_settings
from hardsight.training.checkpoint import is_training
from hardsight.training.prepare import execute_file


@command(
    "training.run:train data=<DATA> model=MODEL test=DATA out=RUN recipe=PRESET weights=FILE device=DEVICE workers=N "
    "no_record overwrite",
    "recipes:Recipe() [optimization] epochs=N batch_size=N accumulate=N loss=LOSS label_smoothing=SHARE "
    "optimizer lr=RATE momentum=RATE nesterov weight_decay=RATE clip=NORM ema=RATE frozen_norm sync_batchnorm seed=N",
    "recipes:Recipe() [schedule] schedule warmup=EPOCHS steps=EPOCHS step_factor=FACTOR rampdown=EPOCHS",
    "recipes:Recipe() [augmentation] crop=PIXELS resized_crop smallest_part=SHARE flip mixup=ALPHA",
    "recipes:Recipe() [speed] precision channels_last compile graph drop_last",
    READING_OPTIONS,
)
def train(data: str, model: str, test: str | None = None, **chosen: Any) -> dict[str, Any] | None:
    """Train a classifier and record every sample in every epoch; one line per epoch shows the progress.

    If it is interrupted, the same command resumes after the last finished epoch. Under torchrun (torchrun
    --nproc-per-node 4 -m hardsight train …) every process takes its share of each batch.

    MODEL is a preset (a network and how its paper trains it), a network (resnet18-32), timm:NAME, torchvision:NAME or
    path/to/file.py:function. DATA is anything that hardsight score takes, except features.

    PRESET is {hardsight.presets.PRESETS}. The defaults below are those of the preset that --model or --recipe names; a
    different --epochs rescales its schedule.

    LOSS is OBJECTIVE[@LOGITS][+PAIRS], each NAME[:VALUE,KEY=VALUE,…]. OBJECTIVE: {hardsight.losses.forms(objective)}.
    LOGITS: {hardsight.losses.forms(logits)}. PAIRS: {hardsight.losses.forms(pairs)}. Alone, logits and pairs go with
    ce: amc is ce+amc, and avh is ce@angular. The value of amc and euclid is the weight of the mean over pairs. It is
    half the paper's λ, because the paper divides a sum over half a batch by the batch size: λ = 0.1 is amc:0.05
    (amc:paper), and amc:0.1 is λ = 0.2. A model's file may register more.

    RUN/test holds the records of the test samples, RUN/train those of the training samples as they passed through
    training: hardsight report RUN/test shows them.

    Args:
        data: What to train on; a name without a split means its train split.
        model: What to train.
        recipe: Train as another preset does.
        no_record: Do not record anything.

    Examples:
        hardsight train digits --model small-cnn --epochs 6 --loss el
        hardsight train photos/train --test photos/val --model timm:resnet50 --recipe resnet50 --optimizer adamw
    """
    changes, reading = take(chosen, *SETTINGS), take(chosen, *READING)
    default = recipe_of(chosen.pop("recipe", model))
    execute_file(model, default.replace(seed=changes.get("seed", default.seed)).seed)  # it may register a loss
    recipe = default.replace(**changes)
    samples = open_named(data, training=True, **reading)
    tested = None if test is None else open_named(test, **reading)
    record = () if chosen.pop("no_record", False) else ("train", "test")
    trained = training.train(model, samples, tested, recipe=recipe, record=record, **chosen)
    if not trained.first:  # another process prints
        return None
    last, out = trained.history[-1], trained.path
    accuracy = ""
    if "test_accuracy" in last:
        best = max(trained.history, key=itemgetter("test_accuracy"))
        oracle = f"oracle: {percent(best['test_accuracy'])} after epoch {best['epoch']}, selected by the test labels"
        accuracy = f", test accuracy {percent(last['test_accuracy'])} ({oracle})"
    minimized = "" if recipe.loss == "ce" else f" with the loss {recipe.loss}"
    print(f"{last['epoch']} epoch{'s' * (last['epoch'] != 1)} of {trained.model.name}{minimized}{accuracy}")
    records = out / ("test" if (out / "test").is_dir() else "train")
    page = f" — next: hardsight report {records}   (a page of every sample's training)" if records.is_dir() else ""
    print(f"wrote {out}/{page}")
    return {"run": out, "model": trained.model.name, "history": trained.history}


@command(
    "adaptation.loop:self_train source=DATA target=DATA model=MODEL test=DATA labeled=DATA checkpoint=FILE out=RUN "
    "same_images device=DEVICE workers=N overwrite",
    "adaptation.loop:self_train [selection] method=METHOD rounds=N portion:target_portion=NUMBER,… "
    "source_portion=NUMBER,… balance=HOW strict",
    "adaptation.loop:self_train [retraining] epochs=N recipe=PRESET batch_size=N lr=RATE set=NAME=VALUE… seed=N",
    "adaptation.loop:self_train [checking] check=N labels=FILE",
)
def adapt(source: str, target: str, model: str, **chosen: Any) -> dict[str, Any]:
    """Adapt a classifier to unlabeled data: label them, select the most confident, retrain, and repeat.

    If it is interrupted, run the same command again to resume. Target labels are never trained on; they and --test are
    used only for the printed table.

    Without target labels, nothing can tell whether a round helped or did harm. --check 200 writes 200 samples to
    RUN/check.csv: label them, run the same command again, and it reports the accuracy of every round and selects one,
    or the unadapted network, whose weights are then in RUN/selected.pt.

    MODEL is the RUN of hardsight train, or what hardsight score takes with its --checkpoint: a trained network. A
    preset or a name alone is trained on the source first, into RUN/source.

    METHOD is {hardsight.adaptation.METHODS}, or cbst+SCORE for any score: cbst+margin. Softmax confidence selects in
    cbst and crst, angular confidence in cbst+avh (Eq. 4 of the AVH paper).

    Args:
        source: Labeled data; a name without a split means its train split.
        target: Data to adapt to, likewise.
        model: What to adapt.
        checkpoint: Weights of MODEL.
        recipe: Retrain as a preset does; else as MODEL was trained, at a constant tenth of its learning rate.
        batch_size: Samples per step.
        lr: Learning rate of the rounds.
        set: Any other setting of the recipe: frozen_norm=true, flip=true, …
        check: Write this many target samples to RUN/check.csv for labeling.
        labels: The labeled samples, if they are in a file other than RUN/check.csv.

    Examples:
        hardsight adapt --source photos/train --target sketches --model trained -o adapted --check 200
        hardsight adapt --source mnist.npz --target usps.npz --test usps.npz:test --model small-cnn --method cbst
    """
    if Path(model).is_dir() and not is_training(model):
        raise InputError(
            f"--model: the folder {model} holds no training; for an adaptation, name "
            "its source/ or rounds/05/training/."
        )
    if "," in chosen.get("balance", ""):
        chosen["balance"] = numbers(chosen["balance"], "--balance")
    changes = take(chosen, "batch_size", "lr") | parse_settings(chosen.pop("set", ()))
    if "seed" in changes:
        raise InputError("--set: the seed of all rounds is --seed.")
    recipe = recipe_for_rounds(model, chosen.pop("recipe", None)).replace(**changes)
    network: Any = model
    if (checkpoint := chosen.pop("checkpoint", None)) is not None:  # a preset or a bare name is one of hardsight's own
        name = PRESETS[model].network if model in PRESETS else model
        network = load_model(name if ":" in name else f"hardsight:{name}", checkpoint)
    adapted = loop.self_train(network, source, target, recipe=recipe, **chosen)
    out, rounds, checked = adapted.path, adapted.rounds.to_pylist(), adapted.checked
    then = f"the network is in {round_folder(out, len(rounds) - 1) / TRAINING}"
    if checked is not None:
        then = f"the weights of round {checked.selected} are in {out / SELECTED}"
    elif "check" in chosen:
        then = f"next: fill in the column label of {out / CHECK}, and run the same command again"
    elif "test" in chosen:
        then = f"next: hardsight report {out / 'test'}"
    elif best(rounds) is not None:
        then = f"next: hardsight figure adaptation {out}"
    print(f"{adapted.text()}\nwrote {out}/ — {then}")
    result = {"run": out, "rounds": rounds, "conclusions": conclusions(rounds)}
    return result if checked is None else result | {"checked": asdict(checked)}
