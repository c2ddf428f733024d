"""`hardsight score`: names in, a run folder and a few lines out."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hardsight.checkpoints import read_head
from hardsight.cli.options import command, take
from hardsight.data import (
    FEATURE_FILES,
    Columns,
    FeatureRows,
    FeatureSet,
    Samples,
    holds_images,
    open_data,
    read_features,
)
from hardsight.devices import find_device
from hardsight.distributed import wait_for_all
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import printable
from hardsight.heads import find_head
from hardsight.models import Model, load_model
from hardsight.printing import class_name, percent, score_title, text_table
from hardsight.registry import whole_number
from hardsight.scores import SCORES
from hardsight.scoring import score as scoring
from hardsight.scoring.features import score_feature_rows
from hardsight.scoring.options import ScoreOptions, Shard
from hardsight.scoring.probabilities import score_probabilities
from hardsight.stores import as_path
from hardsight.table import SampleTable
from hardsight.tablefiles import check_new_run, class_count
from hardsight.training.checkpoint import is_training, trained_model

_MOST_BAD = 3  # samples that could not be read, in the terminal
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
        version: Any text that you change whenever the data or the code changes. Needed to resume where hardsight cannot
            tell whether they changed: a data set of your own, a function without source code.
    """
    return open_data(data, columns=_columns(columns), root=root, version=version, training=training)


def _columns(chosen: dict[str, Any]) -> Columns:
    return Columns(*(chosen.get(f"{name}_column") for name in ("image", "label", "id")))


@command(
    "cli.scoring:score model=<MODEL> data=<DATA> out=RUN checkpoint=FILE also=MODEL… human=FILE by=SCORE show=N "
    "out_of_sample shard=I/N",
    "scoring.options:ScoreOptions [scoring] folds=N seeds=N seed=N head=LAYER bias:use_bias batch_size=N "
    "workers=N decode=cpu|gpu device=DEVICE strict overwrite",
    "scoring.options:ScoreOptions [machines] engine=local|ray ray_address=ADDRESS ray_workers=N",
    READING_OPTIONS,
)
def score(
    model: str, data: str | None = None, *, out: Path = Path("run"), by: str = "avh", show: int = 5, **chosen: Any
) -> dict[str, Any]:
    """Score every sample of a data set: one row per sample, in RUN/scores/*.parquet.

    If it is interrupted, run the same command again to resume.

    MODEL is timm:NAME, torchvision:NAME, hf:NAME, path/to/file.py:function, or the RUN of hardsight train. The function
    returns the network, (network, transform) or (network, transform, class_names); without a transform, images go in as
    pixels in [0, 1]. With --folds it may also take the training data and return the trained network.

    DATA is a folder with one folder per class, FILE.npz[:split], tar shards or Parquet with image bytes (FILE.tar,
    images-{000..127}.tar or a folder of them), torchvision:NAME[:split], hf:NAME[:split], digits, or a FILE.parquet,
    FILE.safetensors or FILE.npz with features and labels, scored with --folds or with the head in the file, in MODEL or
    in the file that --head names; or a file with pred_probs and labels.

    SCORE is {hardsight.scores.SCORES}.

    Args:
        model: The network to score with; omit it for a file of features or probabilities.
        data: What to score.
        out: Run folder to write.
        checkpoint: Weights for the model (.safetensors, or .pt read as data, never executed).
        also: Another model to score with. Scores are then averaged over the models.
        human: Human answers about the samples, compared as by hardsight align RUN --human FILE.
        by: Score that ranks the hardest samples; nll for probabilities, which have no angles.
        show: How many of the hardest samples to print.
        out_of_sample: The probabilities in the file come from networks that did not train on these samples.
        shard: Score only part I of N, counted from 0, into a RUN that N processes write; torchrun sets it
            automatically.

    Examples:
        hardsight score timm:resnet50 photos -o run
        hardsight score train.py:train digits --folds 5 -o run
        hardsight score embeddings.parquet --folds 5 -o run
        hardsight score pred_probs.npz --out-of-sample -o run
    """
    SCORES.names(by)  # a misspelled name, or a file that cannot be read, must not wait for the end of a night's work
    whole_number("--show", show, 0)
    human, also, checkpoint = chosen.pop("human", None), chosen.pop("also", ()), chosen.pop("checkpoint", None)
    if human is not None:
        from hardsight.people import read_human

        read_human(human)
    reading, out_of_sample = take(chosen, *READING), chosen.pop("out_of_sample", None)
    rank, processes = _share(chosen.pop("shard", None))
    options = ScoreOptions(out=out, version=reading.get("version"), **chosen)  # checks them
    images = holds_images(data or model, _columns(reading))
    if images and data is None:
        raise InputError(f"{model} holds images, which need a model: hardsight score MODEL DATA.")
    if not images and ((data or model).endswith(FEATURE_FILES) or (data is None and model.endswith(".npz"))):
        if also:
            raise InputError("--also needs a model and images; features have one head.")
        file, columns = as_path(data or model), _columns(reading)
        place = {"table": str(file.absolute()), "columns": asdict(columns)}
        rows = FeatureRows(file, columns) if file.suffix == ".parquet" and options.folds is None else None
        if rows is not None and not rows.probabilities:
            options = replace(options, shard=Shard(rank, processes, _meeting(options, processes)))
            table = _score_rows(rows, model if data else None, checkpoint, options, out_of_sample, place)
        else:
            if processes > 1 or options.engine != "local":
                raise InputError("only features in Parquet, scored by a head, can be divided; start one process.")
            check_new_run(out, options.overwrite)
            features = read_features(file, columns)
            table = _score_file(features, model if data else None, checkpoint, options, out_of_sample)
            table.meta.source, table.meta.data.origin = place, features.origin  # pyrefly: ignore[bad-assignment]
            table.save(out, overwrite=options.overwrite)
    elif data is None:
        raise InputError(f"DATA is missing: hardsight score MODEL DATA, got only {model!r}.")
    else:
        options = replace(options, shard=Shard(rank, processes, _meeting(options, processes)))
        samples = open_named(data, **reading)
        models = _open_models([model, *also], checkpoint, options.folds)
        print(f"data: {printable(samples.origin)}")
        table = scoring.score(models, samples, **vars(options))
    if table.meta.counts is None:
        print(f"this process is done; {len(table):,} samples are safe in {out}/, other processes are still scoring.")
        return {"run": out, "finished": False}
    values = _summary(table, out, by, show)
    if human is not None:  # the last of several processes compares
        from hardsight.cli.evaluating import align

        values |= align((out,), human=human)
    return values


def _share(shard: str | None) -> tuple[int, int]:
    """Rank and number of processes, from ``I/N`` or from torchrun."""
    if shard is None:
        given = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
        if not all(map(str.isdecimal, given)) or not int(given[0]) < int(given[1]):
            raise InputError(f"RANK and WORLD_SIZE must be what torchrun sets, got {given[0]!r} and {given[1]!r}.")
        return int(given[0]), int(given[1])
    rank, _, world = shard.partition("/")
    if not rank.isdecimal() or not world.isdecimal() or not int(rank) < int(world):
        raise InputError(f"--shard must be I/N, a share from 0 to N − 1 of N, got {shard!r}.")
    return int(rank), int(world)


def _meeting(options: ScoreOptions, processes: int) -> Callable[[], object] | None:
    """How the processes of a job wait for one another before a run is overwritten."""
    if not options.overwrite or processes == 1:
        return None
    if "MASTER_ADDR" not in os.environ:
        raise InputError("--overwrite with several processes needs torchrun, so that they can wait for the first.")
    return wait_for_all


def _open_models(names: list[str], checkpoint: Path | None, folds: int | None) -> list[Any]:
    """The models, announced with their preprocessing."""
    if len(names) > 1 and (checkpoint is not None or folds is not None):
        option = "--checkpoint" if folds is None else "--folds"
        raise InputError(f"{option}: it goes with one model; leave --also out, or score the others in separate runs.")
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


def _score_file(
    data: FeatureSet, model: str | None, checkpoint: Path | None, options: ScoreOptions, out_of_sample: bool | None
) -> SampleTable:
    """Score probabilities as they are; features by fitted heads, or by the head in `--head`, the model or the file.

    `out_of_sample` is what the user claims about the probabilities.
    """
    labels, ids, names = data.labels, data.ids, data.classes
    if data.probabilities:
        if model or options.head or options.folds:
            raise InputError(f"{data.origin} holds probabilities, which need no model, --head or --folds.")
        _check_class_order(data)
        if out_of_sample is None:
            print("note: if networks that did not train on these samples predicted them, add --out-of-sample.")
        return score_probabilities(
            data.features, labels, ids, class_names=names, out_of_sample=out_of_sample, name="probabilities"
        )
    if options.folds is None:
        weight, bias, name = _head_for(data, model, checkpoint, options, out_of_sample)
        return scoring.score_features(
            data.features, weight, labels, bias, ids, class_names=names, strict=options.strict, name=name
        )
    _no_out_of_sample(out_of_sample)
    if model or options.head:
        raise InputError("--folds fits a head to the features: leave out the model and --head.")
    if labels is None:
        raise InputError(f"--folds needs labels: {_unlabeled(data)}.")
    folds = {name: getattr(options, name) for name in ("folds", "seeds", "seed", "use_bias", "strict")}
    features = data.features.to(find_device(options.device))
    return scoring.score_features(features, None, labels, None, ids, class_names=names, name="embeddings", **folds)


def _score_rows(
    data: FeatureRows,
    model: str | None,
    checkpoint: Path | None,
    options: ScoreOptions,
    out_of_sample: bool | None,
    source: dict[str, Any],
) -> SampleTable:
    """Features in Parquet by a head, unit by unit."""
    weight, bias, name = _head_for(data, model, checkpoint, options, out_of_sample)
    return score_feature_rows(data, weight, bias, options, name=name, class_names=data.classes, source=source)


def _head_for(
    data: FeatureSet | FeatureRows,
    model: str | None,
    checkpoint: Path | None,
    options: ScoreOptions,
    out_of_sample: bool | None,
) -> tuple[Tensor, Tensor | None, str]:
    """Weight, bias and name of the head that is in `--head`, the model or the file."""
    head, stored = options.head, getattr(data, "head", {})
    _check_class_order(data)
    _no_out_of_sample(out_of_sample)
    if head is not None and (model is None or Path(head).is_file()):
        if not Path(head).is_file():
            raise MissingPathError(f"--head: there is no file {head}.")
        weight, bias = read_head(head)
    elif model is not None:
        layer = find_head(load_model(model, checkpoint).module, head).module
        weight, bias = layer.weight.detach().flatten(1), layer.bias  # pyrefly: ignore
    elif "weight" in stored:
        weight, bias = stored["weight"], stored.get("bias")
    else:
        raise InputError(
            f"--head: {data.origin} holds features but no weight; fit a head per fold with --folds 5, or name a file "
            "with the weight."
        )
    if data.classes and len(data.classes) != len(weight):
        raise InputError(f"{data.origin} names {len(data.classes)} classes but the head has {len(weight)}.")
    if data.labels is None:
        print(f"note: {_unlabeled(data)}. Without labels, every score is that of the predicted class.")
    bias = bias.detach() if isinstance(bias, Tensor) and options.use_bias else None
    return weight, bias, Path(head).name if head else model or data.origin


def _check_class_order(data: FeatureSet | FeatureRows) -> None:
    """Refuse class names if a model defined the order of its classes: alphabetical order would be a guess."""
    if data.classes if isinstance(data, FeatureRows) else data.numbered:
        raise InputError(
            f"labels of {data.origin} are names, and nothing maps them to the classes of the model; give class "
            "numbers, or an .npz whose classes are the names in the order of the model."
        )


def _no_out_of_sample(out_of_sample: bool | None) -> None:
    if out_of_sample is not None:
        raise InputError("--out-of-sample is for files of probabilities; for features, use --folds.")


def _unlabeled(data: FeatureSet | FeatureRows) -> str:
    return f"{data.origin} has no label column (it has {data.columns}); name one with --label-column"


def _readable(table: SampleTable, rows: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Rows as the page shows them: classes by name, AVH times the number of classes."""
    names, column = table.class_names, by if by in table else f"{by}_pred"
    factor = class_count(table) if by == "avh" else 1
    lines = []
    for row in rows:
        classes = {name: class_name(names, row[name]) for name in ("label", "pred") if name in row}
        title = score_title(by) + " at pred" * (column != by)
        lines.append({"id": row["id"], **classes, title: None if row[column] is None else factor * row[column]})
    return lines


def _summary(table: SampleTable, out: Path, by: str, show: int) -> dict[str, Any]:
    """Print the hardest samples, the counts and what to do next, and return them."""
    counts: Any = table.meta.counts
    if by == "avh" and "confidence" in table and not {"avh", "avh_pred"} & {*table.columns}:
        by = "nll"  # of probabilities
    hardest = table.hardest(show, by).to_arrow().to_pylist()
    for line in text_table(_readable(table, hardest, by)) if hardest else ():
        print(f"  {line}")
    accuracy = "" if table.accuracy is None else f", accuracy {percent(table.accuracy)}"
    zeros = f", {counts.zero_features:,} zero features" if counts.zero_features else ""
    bad = f", {counts.bad:,} bad" if counts.bad else ""
    print(f"{counts.rows:,} sample{'s' * (counts.rows != 1)} scored{accuracy}{zeros}{bad}")
    for row in table.bad.slice(0, _MOST_BAD).to_pylist():
        print(f"  bad: {printable(row['id'])}: {printable(row['error'])}")
    if counts.bad > _MOST_BAD:
        print(f"  {counts.bad - _MOST_BAD:,} more are listed on the page, and in SampleTable.load({str(out)!r}).bad")
    if table.meta.already_complete:
        print(f"{out}/ was complete already, nothing was computed; --overwrite scores again.")
    else:
        print(f"wrote {out}/ — next: hardsight report {out}   (a page to look at)")
    return {"run": out, "finished": True, **vars(counts), "accuracy": table.accuracy, "hardest": hardest}
