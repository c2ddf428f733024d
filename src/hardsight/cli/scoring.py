"""`hardsight score`: names in, a run folder and a few lines out."""

from __future__ import annotations

import os
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from tyro.conf import Positional, UseAppendAction, arg

from hardsight.cli.aligning import align
from hardsight.cli.arguments import optional
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import printable
from hardsight.printing import text_table
from hardsight.scoring.options import ScoreOptions, Shard

if TYPE_CHECKING:
    from hardsight.table import SampleTable


# Those of the options that the command has, and how it writes them.
_WRITTEN = {
    "out": arg(aliases=["-o"], metavar="RUN"),
    "folds": optional("K"),
    "seeds": arg(metavar="N"),
    "seed": arg(metavar="N"),
    "head": optional("PATH"),
    "use_bias": optional(
        None, name="bias", help="Leave the head's bias out of the logits (the AVH paper's Definition 1)."
    ),
    "batch_size": arg(metavar="N"),
    "workers": optional("N"),
    "device": optional("NAME"),
    "root": arg(metavar="FOLDER"),
    "version": optional("TEXT", name="data-version"),
    "strict": optional(None),
    "overwrite": optional(None),
}


def _options() -> Any:
    """The dataclass that tyro reads: `ScoreOptions` as the command writes them."""
    hints, defaults = get_type_hints(ScoreOptions), {f.name: f.default for f in fields(ScoreOptions)}
    defaults["out"] = Path("run")
    entries = [(name, Annotated[hints[name], mark], field(default=defaults[name])) for name, mark in _WRITTEN.items()]
    return make_dataclass("Scoring", entries, frozen=True, namespace={"__doc__": ScoreOptions.__doc__})


if TYPE_CHECKING:
    Scoring = ScoreOptions
else:
    Scoring = _options()


def score(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    data: Annotated[Positional[str | None], optional("DATA")] = None,
    *,
    checkpoint: Annotated[Path | None, optional("FILE")] = None,
    also: Annotated[UseAppendAction[tuple[str, ...]], optional("MODEL")] = (),
    label_column: Annotated[str | None, optional("NAME")] = None,
    id_column: Annotated[str | None, optional("NAME")] = None,
    image_column: Annotated[str | None, optional("NAME")] = None,
    human: Annotated[Path | None, optional("FILE")] = None,
    by: Annotated[str, arg(metavar="SCORE")] = "avh",
    show: Annotated[int, arg(metavar="N")] = 5,
    scoring: Scoring = Scoring(),
) -> dict[str, Any]:
    """Score every sample of a data set: one row per sample, in RUN/scores/*.parquet.

    If it is interrupted, run the same command again to resume.

    MODEL is timm:NAME, torchvision:NAME, hf:NAME, path/to/file.py:function, or the
    RUN of hardsight train. The function returns the network, (network, transform) or
    (network, transform, class_names); without a transform, images go in as pixels in
    [0, 1]. With --folds it may also take the training data and return what it trained.

    DATA is a folder with one folder per class, FILE.npz[:split],
    torchvision:NAME[:split], hf:NAME[:split], digits, or a FILE.parquet or
    FILE.safetensors with features.

    SCORE is {hardsight.scores.SCORES}.

    Args:
        model: The network to score with; omit it for a feature file with --head.
        data: What to score.
        checkpoint: Weights for the model (.safetensors, or .pt read as data, never executed).
        also: Another model to score with; repeat it for more. Scores are then averaged over the models.
        label_column: Column that holds the label.
        id_column: Column that holds the id.
        image_column: Column that holds the image.
        human: Human answers about the samples, to compare with as hardsight align RUN --human FILE does.
        by: Score to rank the hardest by.
        show: How many of the hardest to print.

    Examples:
        hardsight score timm:resnet50 photos -o run
        hardsight score train.py:train digits --folds 5 -o run
    """
    from hardsight.data import FEATURE_FILES, Columns, open_data
    from hardsight.distributed import wait_for_all
    from hardsight.human import read_human
    from hardsight.scores import SCORES
    from hardsight.scoring.score import score as run

    SCORES.names(by)  # a misspelled name, or a file that cannot be read, must not wait for the end of a night's work
    if human is not None:
        read_human(human)
    if show < 0:
        raise InputError(f"--show must be 0 or more, got {show}.")
    ScoreOptions(**vars(scoring))  # checks them, before a model is built or downloaded
    out, columns = scoring.out or Path("run"), Columns(image_column, label_column, id_column)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if (data or model).endswith(FEATURE_FILES):
        if scoring.folds is not None or scoring.seeds != 1 or also:
            raise InputError("--folds, --seeds and --also need a model and images; features are scored as they are.")
        if processes > 1:
            raise InputError("features are scored in one process; start it without torchrun.")
        table = _score_feature_file(data or model, model if data else None, checkpoint, columns, scoring)
        table.save(out, overwrite=scoring.overwrite)
    elif data is None:
        raise InputError(f"DATA is missing: hardsight score MODEL DATA, got only {model!r}.")
    else:
        together = scoring.overwrite and processes > 1
        if together and "MASTER_ADDR" not in os.environ:
            raise InputError("--overwrite with several processes needs torchrun, by which they can wait for the first.")
        shard = Shard(int(os.environ.get("RANK", 0)), processes, wait_for_all if together else None)
        samples = open_data(data, columns=columns, root=scoring.root, version=scoring.version)
        models = _open_models([model, *also], checkpoint, scoring.folds)
        print(f"data: {printable(samples.origin)}")
        table = run(models, samples, shard=shard, **vars(scoring))
    values = _summary(table, out, by, show)
    if human is not None and table.meta.counts is not None:  # of several processes, the last
        values |= align((out,), human=human)
    return values


def _open_models(names: list[str], checkpoint: Path | None, folds: int | None) -> Any:
    """The models, announced with their preprocessing."""
    from hardsight.models import Model
    from hardsight.scoring.score import open_model
    from hardsight.training.saved import is_training, trained_model

    if len(names) > 1 and (checkpoint is not None or folds is not None):
        option = "--checkpoint" if folds is None else "--folds"
        raise InputError(f"{option}: it goes with one model; leave --also out, or score the others as other runs.")
    models = [
        trained_model(Path(name), checkpoint=checkpoint)
        if is_training(name)
        else open_model(name, folds=folds, checkpoint=checkpoint)
        for name in names
    ]
    for name, model in zip(names, models, strict=True):
        if isinstance(model, Model):
            print(f"model: {model.name} ({model.weights})\npreprocessing: {model.preprocessing}")
        elif folds is not None:
            print(f"model: {name}, trained on {folds - 1} of {folds} folds at a time")
    return models


def _score_feature_file(
    path: str, model: str | None, checkpoint: Path | None, columns: Any, scoring: ScoreOptions
) -> SampleTable:
    """Features with the head in `--head`, in the model, or in their own file."""
    from hardsight.checkpoints import read_head
    from hardsight.data import read_features
    from hardsight.heads import find_head
    from hardsight.models import load_model
    from hardsight.scoring.score import score_features

    data, head = read_features(path, columns), scoring.head
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
        raise InputError(f"--head: {path} holds features but no weight; give a file with the last layer's weight.")
    name = Path(head).name if head else model or Path(path).name
    bias = bias if scoring.use_bias else None
    table = score_features(data.features, weight, data.labels, bias, data.ids, strict=scoring.strict, name=name)
    table.meta.data.origin = data.origin
    return table


def _summary(table: SampleTable, out: Path, by: str, show: int) -> dict[str, Any]:
    """Print the hardest samples, the counts and what to do next, and return them."""
    counts = table.meta.counts
    if counts is None:
        print(f"this process is done; {len(table):,} samples are safe in {out}/, other processes are still scoring.")
        return {"run": out, "finished": False}
    hardest = table.hardest(show, by).to_arrow().to_pylist()
    score = by if by in table else f"{by}_pred"
    columns = [name for name in ("id", "label", "pred", score) if name in table]
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
