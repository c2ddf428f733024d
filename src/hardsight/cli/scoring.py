"""`hardsight score`: names in, a run folder and a few lines out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from hardsight.checkpoints import read_head
from hardsight.cli.options import command, take
from hardsight.data import FEATURE_FILES, Columns, FeatureSet, Samples, open_data, read_features
from hardsight.distributed import wait_for_all
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import printable
from hardsight.heads import find_head
from hardsight.models import Model, load_model
from hardsight.printing import text_table
from hardsight.registry import whole_number
from hardsight.scores import SCORES
from hardsight.scoring import score as scoring
from hardsight.scoring.options import ScoreOptions, Shard
from hardsight.table import SampleTable
from hardsight.training.checkpoint import is_training, trained_model

READING = "image_column", "label_column", "id_column", "root", "version"
READING_OPTIONS = (
    "cli.scoring:open_named [reading] image_column=NAME label_column=NAME id_column=NAME root=FOLDER "
    "data-version:version=TEXT"
)


def open_named(
    data: str, *, root: Path = Path("data"), version: str | None = None, training: bool = False, **columns: str
) -> Samples:
    """Open the data that a command names.

    Args:
        image_column: Column that holds the image.
        label_column: Column that holds the label.
        id_column: Column that holds the id.
        root: Where torchvision keeps its data sets.
        version: Any text that you change whenever data or code change. Needed to resume where hardsight cannot tell
            whether they changed: a data set of your own, a function without source text.
    """
    return open_data(data, columns=_columns(columns), root=root, version=version, training=training)


def _columns(chosen: dict[str, Any]) -> Columns:
    return Columns(*(chosen.get(f"{name}_column") for name in ("image", "label", "id")))


@command(
    "cli.scoring:score model=<MODEL> data=<DATA> out=RUN checkpoint=FILE also=MODEL… human=FILE by=SCORE show=N",
    "scoring.options:ScoreOptions [scoring] folds=K seeds=N seed=N head=LAYER bias:use_bias batch_size=N "
    "workers=N decode=PLACE device=NAME strict overwrite",
    READING_OPTIONS,
)
def score(
    model: str, data: str | None = None, *, out: Path = Path("run"), by: str = "avh", show: int = 5, **chosen: Any
) -> dict[str, Any]:
    """Score every sample of a data set: one row per sample, in RUN/scores/*.parquet.

    If it is interrupted, run the same command again to resume.

    MODEL is timm:NAME, torchvision:NAME, hf:NAME, path/to/file.py:function, or the RUN of hardsight train. The function
    returns the network, (network, transform) or (network, transform, class_names); without a transform, images go in as
    pixels in [0, 1]. With --folds it may also take the training data and return what it trained.

    DATA is a folder with one folder per class, FILE.npz[:split], torchvision:NAME[:split], hf:NAME[:split], digits, or
    a FILE.parquet or FILE.safetensors with features; its head is in the file, in MODEL, or in a file that --head names.

    SCORE is {hardsight.scores.SCORES}.

    Args:
        model: The network to score with; omit it for a feature file with --head.
        data: What to score.
        out: Run folder to write.
        checkpoint: Weights for the model (.safetensors, or .pt read as data, never executed).
        also: Another model to score with. Scores are then averaged over the models.
        human: Human answers about the samples, to compare with as hardsight align RUN --human FILE does.
        by: Score to rank the hardest by.
        show: How many of the hardest to print.

    Examples:
        hardsight score timm:resnet50 photos -o run
        hardsight score train.py:train digits --folds 5 -o run
    """
    SCORES.names(by)  # a misspelled name, or a file that cannot be read, must not wait for the end of a night's work
    whole_number("--show", show, 0)
    human, also, checkpoint = chosen.pop("human", None), chosen.pop("also", ()), chosen.pop("checkpoint", None)
    if human is not None:
        from hardsight.people import read_human

        read_human(human)
    reading = take(chosen, *READING)
    options = ScoreOptions(out=out, version=reading.get("version"), **chosen)  # checks them
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if (data or model).endswith(FEATURE_FILES):
        if also or chosen.keys() & {"folds", "seeds"}:
            raise InputError("--folds, --seeds and --also need a model and images; features are scored as they are.")
        if processes > 1:
            raise InputError("features are scored in one process; start it without torchrun.")
        table = _score_features(
            read_features(data or model, _columns(reading)), model if data else None, checkpoint, options
        )
        table.save(out, overwrite=options.overwrite)
    elif data is None:
        raise InputError(f"DATA is missing: hardsight score MODEL DATA, got only {model!r}.")
    else:
        if options.overwrite and processes > 1 and "MASTER_ADDR" not in os.environ:
            raise InputError("--overwrite with several processes needs torchrun, by which they can wait for the first.")
        waits = wait_for_all if options.overwrite and processes > 1 else None
        options = replace(options, shard=Shard(int(os.environ.get("RANK", 0)), processes, waits))
        samples = open_named(data, **reading)
        models = _open_models([model, *also], checkpoint, options.folds)
        print(f"data: {printable(samples.origin)}")
        table = scoring.score(models, samples, **vars(options))
    if table.meta.counts is None:
        print(f"this process is done; {len(table):,} samples are safe in {out}/, other processes are still scoring.")
        return {"run": out, "finished": False}
    values = _summary(table, out, by, show)
    if human is not None:  # of several processes, the last compares
        from hardsight.cli.evaluating import align

        values |= align((out,), human=human)
    return values


def _open_models(names: list[str], checkpoint: Path | None, folds: int | None) -> list[Any]:
    """The models, announced with their preprocessing."""
    if len(names) > 1 and (checkpoint is not None or folds is not None):
        option = "--checkpoint" if folds is None else "--folds"
        raise InputError(f"{option}: it goes with one model; leave --also out, or score the others as other runs.")
    models: list[Any] = []
    for name in names:
        trained = trained_model(Path(name), checkpoint=checkpoint) if is_training(name) else None
        model = trained or scoring.open_model(name, folds=folds, checkpoint=checkpoint)
        if isinstance(model, Model):
            print(f"model: {model.name} ({model.weights})\npreprocessing: {model.preprocessing}")
        elif folds is not None:
            print(f"model: {name}, trained on {folds - 1} of {folds} folds at a time")
        models.append(model)
    return models


def _score_features(data: FeatureSet, model: str | None, checkpoint: Path | None, options: ScoreOptions) -> SampleTable:
    """Features with the head in `--head`, in the model, or in their own file."""
    head = options.head
    if head is not None and (model is None or Path(head).is_file()):
        if not Path(head).is_file():
            raise MissingPathError(f"--head: there is no file {head}.")
        weight, bias = read_head(head)
    elif model is not None:
        layer = find_head(load_model(model, checkpoint).module, head).module
        weight, bias = layer.weight.flatten(1), layer.bias  # pyrefly: ignore
    elif "weight" in data.head:
        weight, bias = data.head["weight"], data.head.get("bias")
    else:
        raise InputError(f"--head: {data.origin} holds features but no weight; name a file with the weight.")
    name = Path(head).name if head else model or data.origin
    bias = bias if options.use_bias else None
    table = scoring.score_features(data.features, weight, data.labels, bias, data.ids, strict=options.strict, name=name)
    table.meta.data.origin = data.origin
    return table


def _summary(table: SampleTable, out: Path, by: str, show: int) -> dict[str, Any]:
    """Print the hardest samples, the counts and what to do next, and return them."""
    counts: Any = table.meta.counts
    hardest = table.hardest(show, by).to_arrow().to_pylist()
    columns = [name for name in ("id", "label", "pred", by if by in table else f"{by}_pred") if name in table]
    for line in text_table(hardest, columns) if hardest else ():
        print(f"  {line}")
    accuracy = "" if table.accuracy is None else f", accuracy {table.accuracy:.2%}"
    zeros = f", {counts.zero_features:,} zero features" if counts.zero_features else ""
    bad = f", {counts.bad:,} bad (see table.bad)" if counts.bad else ""
    print(f"{counts.rows:,} sample{'s' * (counts.rows != 1)} scored{accuracy}{zeros}{bad}")
    if table.meta.already_complete:
        print(f"{out}/ was complete already, nothing was computed; --overwrite does it again.")
    else:
        print(f"wrote {out}/ — next: hardsight report {out}   (a page to look at)")
    return {"run": out, "finished": True, **vars(counts), "accuracy": table.accuracy, "hardest": hardest}
