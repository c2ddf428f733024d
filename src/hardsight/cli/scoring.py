"""`hardsight score`: names in, a run folder and a few lines out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from hardsight.cli.aligning import align
from hardsight.cli.arguments import optional
from hardsight.errors import InputError, MissingPathError, StateError

if TYPE_CHECKING:
    from hardsight.table import SampleTable


def score(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    data: Annotated[Positional[str | None], optional("DATA")] = None,
    *,
    out: Annotated[Path, arg(aliases=["-o"], metavar="RUN")] = Path("run"),
    checkpoint: Annotated[Path | None, optional("FILE")] = None,
    folds: Annotated[int | None, optional("K")] = None,
    seeds: Annotated[int, arg(metavar="N")] = 1,
    also: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="MODEL", help_behavior_hint="")] = (),
    head: Annotated[str | None, optional("PATH")] = None,
    label_column: Annotated[str | None, optional("NAME")] = None,
    id_column: Annotated[str | None, optional("NAME")] = None,
    image_column: Annotated[str | None, optional("NAME")] = None,
    device: Annotated[str | None, optional("NAME")] = None,
    batch_size: int = 64,
    workers: Annotated[int | None, optional("N")] = None,
    bias: Annotated[bool, arg(help_behavior_hint="")] = True,
    human: Annotated[Path | None, optional("FILE")] = None,
    by: str = "avh",
    show: int = 5,
    root: Path = Path("data"),
    data_version: Annotated[str | None, optional("TEXT")] = None,
    strict: bool = False,
    overwrite: bool = False,
) -> None:
    """Score every sample of a data set: one exact row each, in RUN/scores/*.parquet.

    Killed at any point, the same command resumes.

    MODEL is timm:NAME, torchvision:NAME, hf:NAME or path/to/file.py:function. The
    function returns the network, (network, transform) or (network, transform,
    class_names); without a transform pictures go in as pixels in [0, 1].

    DATA is a folder with one folder a class, FILE.npz[:split],
    torchvision:NAME[:split], hf:NAME[:split], digits, or a FILE.parquet or
    FILE.safetensors with features.

    With --folds K every sample is scored out of sample: by a head that was fitted to
    the labels of the other folds on MODEL's features, or, where MODEL is
    file.py:function and the function takes the training data, by the network that
    it trains on the other folds.

    Args:
        model: What to score with; for features that come with a --head file, leave it out and name DATA alone.
        data: What to score.
        out: Run folder to write.
        checkpoint: Weights for the model (.safetensors, or .pt read as data, never executed).
        folds: Score out of sample, in so many folds; the data a model was trained on hide their label errors.
        seeds: Repeat the folds so many times; scores are then means with a spread.
        also: One more model to score with, as often as there are; scores are then means with a spread.
        head: Path of the last linear layer in the model; with features, a file with its weight and bias.
        label_column: Column that holds the label.
        id_column: Column that holds the id.
        image_column: Column that holds the image.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        batch_size: Samples a forward.
        workers: Loader processes.
        bias: Leave the head's bias out of the logits (the AVH paper's Definition 1).
        human: What people said of the samples: then compare with them, as hardsight align RUN --human FILE does.
        by: Score to list the hardest by.
        show: How many of the hardest to print.
        root: Where torchvision keeps its data sets.
        data_version: Any text, to be changed whenever the data change; lets a run over a stream be resumed.
        strict: Stop at the first bad sample instead of listing it.
        overwrite: Discard another run in RUN; files that are not the run's are never touched.
    """
    from hardsight.data import Columns, is_feature_file
    from hardsight.scoring.checks import known_scores

    known_scores([by])  # a misspelt name must not wait for the end of a night's work
    if show < 0:
        raise InputError(f"--show must be 0 or more, got {show}.")
    if human is not None:  # nor must a file that cannot be read
        from hardsight.human import read_human

        read_human(human)
    columns = Columns(image_column, label_column, id_column)
    features, network = (model, None) if data is None else (data, model)
    if is_feature_file(features):
        if folds is not None or seeds != 1 or also:
            raise InputError("--folds, --seeds and --also need a model and pictures; features are scored as they are.")
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise InputError("features are scored in one process; start it without torchrun.")
        table = _score_feature_file(features, network, checkpoint, head, columns, bias, strict)
        table.save(out, overwrite=overwrite)
    elif data is None:
        raise InputError(f"DATA is missing: hardsight score MODEL DATA, got only {model!r}.")
    else:
        from hardsight.scoring import score as run

        table = run(
            _named_models([model, *also], checkpoint, folds),
            data,
            folds=folds,
            seeds=seeds,
            out=out,
            head=head,
            columns=columns,
            use_bias=bias,
            batch_size=batch_size,
            workers=workers,
            device=device,
            strict=strict,
            overwrite=overwrite,
            root=root,
            version=data_version,
            shard=_shard(overwrite),
        )
        print(f"data: {table.meta.data.origin}")
    _tell(table, out, by, show)
    if human is not None and table.meta.counts is not None:  # of several processes the last one
        align((out,), human=human)


def _shard(overwrite: bool) -> Any:
    """The share of this process, as torchrun says: the processes of this command are nobody else's."""
    from hardsight.scoring.one import Shard

    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if overwrite and world > 1 and "MASTER_ADDR" not in os.environ:
        raise InputError("--overwrite with several processes needs torchrun, by which they can wait for the first.")
    return Shard(rank, world, _meet if overwrite and world > 1 else None)


def _meet() -> None:
    """Wait until all processes are here."""
    import torch.distributed as dist

    try:
        dist.init_process_group("gloo")
        dist.barrier()
        dist.destroy_process_group()
    except RuntimeError as error:
        raise StateError("another process of the job failed; its error says why.") from error


def _named_models(names: list[str], checkpoint: Path | None, folds: int | None) -> Any:
    """The models, each told with its preprocessing; a function that trains is left to the folds."""
    from hardsight.models import load_model
    from hardsight.userfile import is_file_function, load_function, takes_training_data

    if len(names) > 1 and (checkpoint is not None or folds is not None):
        other = (
            "--checkpoint: one file has the weights of one model"
            if folds is None
            else "--folds: they go with one model"
        )
        raise InputError(f"{other}; leave --also out, or score the others as runs of their own.")
    if folds is not None and is_file_function(names[0]) and takes_training_data(load_function(names[0])):
        if checkpoint is not None:
            raise InputError(f"--checkpoint: {names[0]} trains its own weights; leave the checkpoint out.")
        print(f"model: {names[0]}, trained on {folds - 1} of {folds} folds at a time")
        return names[0]
    loaded = [load_model(name, checkpoint) for name in names]
    for model in loaded:
        print(f"model: {model.name} ({model.weights})\npreprocessing: {model.preprocessing}")
    return loaded if len(loaded) > 1 else loaded[0]


def _score_feature_file(
    path: str, model: str | None, checkpoint: Path | None, head: str | None, columns: Any, bias: bool, strict: bool
) -> SampleTable:
    """Features meet the head in `--head`, in the model, or in their own file."""
    from hardsight.data import read_features
    from hardsight.heads import find_head
    from hardsight.models import load_model, read_head
    from hardsight.scoring import score_features

    found = read_features(path, columns)
    if head is not None and (model is None or Path(head).is_file()):
        if not Path(head).is_file():
            raise MissingPathError(f"--head: there is no file {head}.")
        weight, offset = read_head(head)
    elif model is not None:
        layer = find_head(load_model(model, checkpoint).module, head).module
        weight, offset = layer.weight.flatten(1), layer.bias  # pyrefly: ignore
    elif "weight" in found.head:
        weight, offset = found.head["weight"], found.head.get("bias")
    else:
        raise InputError(f"--head: {path} holds features but no weight; give a file with the last layer's weight.")
    name = Path(head).name if head else model or Path(path).name
    table = score_features(
        found.features, weight, found.labels, offset if bias else None, found.ids, strict=strict, name=name
    )
    table.meta.data.origin = found.origin
    return table


def _tell(table: SampleTable, out: Path, by: str, show: int) -> None:
    """What came out, what was written, what to do next."""
    from hardsight.extras import printable

    counts = table.meta.counts
    if counts is None:
        print(f"this process is done; {len(table):,} samples are safe in {out}/ and other processes are still at it.")
        return
    for row in table.hardest(show, by).to_arrow().to_pylist():
        name = by if by in row else f"{by}_pred"
        label = "" if row.get("label") is None else f"label {row['label']}  "
        print(f"  {printable(row['id']):<40} {label}pred {row['pred']}  {name} {row[name]:.6g}")
    accuracy = "" if table.accuracy is None else f", accuracy {table.accuracy:.2%}"
    zeros = f", {counts.zero_features:,} zero features" if counts.zero_features else ""
    bad = f", {counts.bad:,} bad (see table.bad)" if counts.bad else ""
    print(f"{counts.rows:,} sample{'s' * (counts.rows != 1)} scored{accuracy}{zeros}{bad}")
    if table.meta.already_complete:
        print(f"{out}/ was complete already, nothing was computed; --overwrite does it again.")
        return
    print(f"wrote {out}/ — next: hardsight report {out}   (a page to look at)")
