"""The command. Signatures are free of torch and work is imported inside, so that help answers at once."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional, UseAppendAction, arg

if TYPE_CHECKING:
    from hardsight.table import SampleTable


def _optional(metavar: str) -> object:
    """An argument that may be left out: help says what it is, not that its default is None."""
    return arg(metavar=metavar, help_behavior_hint="")


def score(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    data: Annotated[Positional[str | None], _optional("DATA")] = None,
    *,
    out: Annotated[Path, arg(aliases=["-o"], metavar="RUN")] = Path("run"),
    checkpoint: Annotated[Path | None, _optional("FILE")] = None,
    folds: Annotated[int | None, _optional("K")] = None,
    seeds: Annotated[int, arg(metavar="N")] = 1,
    also: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="MODEL", help_behavior_hint="")] = (),
    head: Annotated[str | None, _optional("PATH")] = None,
    label_column: Annotated[str | None, _optional("NAME")] = None,
    id_column: Annotated[str | None, _optional("NAME")] = None,
    image_column: Annotated[str | None, _optional("NAME")] = None,
    device: Annotated[str | None, _optional("NAME")] = None,
    batch_size: int = 64,
    workers: Annotated[int | None, _optional("N")] = None,
    bias: Annotated[bool, arg(help_behavior_hint="")] = True,
    by: str = "avh",
    show: int = 5,
    root: Path = Path("data"),
    streaming: bool = False,
    strict: bool = False,
    overwrite: bool = False,
) -> None:
    """Score every sample of a data set: one exact row each, in RUN/scores/*.parquet.

    Killed at any point, the same command goes on where it stopped.

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
        by: Score to list the hardest by.
        show: How many of the hardest to print.
        root: Where torchvision keeps its data sets.
        streaming: Read a Hugging Face data set as a stream.
        strict: Stop at the first bad sample instead of listing it.
        overwrite: Throw away another run in RUN.
    """
    from hardsight.data import Columns, is_feature_file
    from hardsight.scoring.checks import known_scores

    known_scores([by])  # a misspelt name must not wait for the end of a night's work
    if show < 0:
        raise ValueError(f"--show must be 0 or more, got {show}.")
    columns = Columns(image_column, label_column, id_column)
    features, network = (model, None) if data is None else (data, model)
    if is_feature_file(features):
        if folds is not None or seeds != 1 or also:
            raise ValueError("--folds, --seeds and --also need a model and pictures; features are scored as they are.")
        table = _score_feature_file(features, network, checkpoint, head, columns, bias, strict)
        table.save(out, overwrite=overwrite)
    elif data is None:
        raise ValueError(f"DATA is missing: hardsight score MODEL DATA, got only {model!r}.")
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
            streaming=streaming,
        )
        print(f"data: {table.meta['data']['origin']}")
    _tell(table, out, by, show)


def demo(*, out: Annotated[Path, arg(aliases=["-o"], metavar="RUN")] = Path("hardsight-demo"), seed: int = 0) -> None:
    """Train a small network on real digits, score them out of sample, and write a page of it.

    Args:
        out: Run folder to write; an earlier demo there is replaced.
        seed: Seed of folds and training.
    """
    from hardsight.demo import run_demo

    run_demo(out, seed)


def report(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    *,
    out: Annotated[Path | None, arg(aliases=["-o"], metavar="FILE", help_behavior_hint="")] = None,
    data: Annotated[str | None, _optional("DATA")] = None,
    against: Annotated[Path | None, _optional("RUN")] = None,
    groups: Annotated[Path | None, _optional("FILE")] = None,
    pictures: int = 400,
) -> None:
    """Turn a run into one page to look at: RUN/report.html, which opens offline.

    It shows the hardest and easiest samples, where they lie, classes, groups and
    hidden clusters, suspect labels, and how it was all made; of a recorded training
    also how each of it moved.

    Args:
        run: Run folder that hardsight score, hardsight demo or a recorder wrote.
        out: The page to write; RUN/report.html if not given.
        data: Where the pictures are, if they have moved or were not named when they were scored.
        against: An earlier run over the same samples: what became easier or harder.
        groups: CSV or Parquet with a column id and columns to compare by (camera, site, …).
        pictures: How many thumbnails at most.
    """
    from hardsight.extras import printable
    from hardsight.records import has_records
    from hardsight.report import write_report

    def tell(text: str) -> None:
        print(f"warning: {printable(text)}", file=sys.stderr)

    page = write_report(run, out, data=data, against=against, groups=groups, pictures=pictures, tell=tell)
    then = f"hardsight figure dynamics {run}" if has_records(run) else f"hardsight clean {run}"
    print(f"wrote {page} ({page.stat().st_size / 1e6:.1f} MB) — next: open it in a browser; {then}")


def clean(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    *,
    out: Annotated[Path | None, arg(aliases=["-o"], metavar="FOLDER", help_behavior_hint="")] = None,
    dataset: Annotated[Path | None, _optional("PATH")] = None,
    data: Annotated[str | None, _optional("DATA")] = None,
    by: Annotated[str | None, _optional("RANKING")] = None,
    count: Annotated[int | None, _optional("N")] = None,
    share: Annotated[float | None, _optional("S")] = None,
    overwrite: bool = False,
) -> None:
    """Write lists of labels to keep, to change and to drop: RUN/lists/actions.csv and more.

    The suspects are as many as labels are estimated to be wrong, and every label that
    the network contradicts for sure. A suspect is relabelled when the network is sure
    of another class, and dropped when it is sure of none. Nothing is changed in your
    data; --dataset writes a cleaned copy.

    Args:
        run: Run folder that hardsight score or hardsight demo wrote, best with --folds.
        out: Folder for the lists; RUN/lists if not given.
        dataset: Also write the cleaned data: a folder for a folder of pictures, FILE.npz for arrays.
        data: Where the pictures are, if they have moved or were not named when they were scored.
        by: How to rank the suspects; the measured best if not given.
        count: How many suspects.
        share: Which share of the samples are suspects.
        overwrite: Replace earlier lists (and an earlier cleaned copy).
    """
    from hardsight.cleaning import clean as work
    from hardsight.cleaning import in_words

    done = work(run, out, data=data, by=by, count=count, share=share, dataset=dataset, overwrite=overwrite)
    print("\n".join(in_words(done)))


def train(
    data: Annotated[Positional[str], arg(metavar="DATA")],
    *,
    model: Annotated[str, arg(metavar="MODEL")],
    test: Annotated[str | None, _optional("DATA")] = None,
    out: Annotated[Path, arg(aliases=["-o"], metavar="RUN")] = Path("run"),
    recipe: Annotated[str | None, _optional("PRESET")] = None,
    epochs: Annotated[int | None, _optional("N")] = None,
    batch_size: Annotated[int | None, _optional("N")] = None,
    lr: Annotated[float | None, _optional("RATE")] = None,
    seed: Annotated[int | None, _optional("N")] = None,
    set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME=VALUE", help_behavior_hint="")] = (),
    device: Annotated[str | None, _optional("NAME")] = None,
    workers: Annotated[int | None, _optional("N")] = None,
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

    RUN/test holds the records of the test samples, RUN/train those of the training
    samples as they passed through training: hardsight report RUN/test shows them.

    Args:
        data: What to train on; a name without a split means its train split.
        model: What to train.
        test: What to evaluate on, and to record, after every epoch.
        out: Run folder to write.
        recipe: Train as another preset does.
        epochs: Passes over the data, instead of the preset's; its schedule is stretched to them.
        batch_size: Samples a step, over all processes together.
        lr: Largest learning rate.
        seed: Of weights, order and augmentation.
        set: Any other part of the recipe, as often as you like: optimiser=adamw, schedule=cosine, precision=bf16, …
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.
        record: Do not record anything.
        overwrite: Throw away another run in RUN.
    """
    from hardsight.recipes import changed, recipe_of

    given = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "seed": seed}
    told = [*(f"{name}={value}" for name, value in given.items() if value is not None), *set]
    chosen = changed(recipe_of(recipe or model), told)
    from hardsight.training import train as run

    trained = run(
        model,
        data,
        test,
        out=out,
        recipe=chosen,
        record=("train", "test") if record else (),
        device=device,
        workers=workers,
        overwrite=overwrite,
    )
    if not trained.first:  # another process speaks
        return
    last = trained.history[-1]
    accuracy = f", test accuracy {last['test_accuracy']:.2%}" if "test_accuracy" in last else ""
    print(f"{last['epoch']} epoch{'s' * (last['epoch'] != 1)} of {trained.model.name}{accuracy}")
    seen = out / ("test" if (out / "test").is_dir() else "train")
    page = f" — next: hardsight report {seen}   (a page of every sample's training)" if seen.is_dir() else ""
    print(f"wrote {out}/{page}")


def figure(
    name: Annotated[Positional[str], arg(metavar="NAME")],
    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN", help_behavior_hint="")] = (),
    *,
    out: Annotated[Path | None, arg(aliases=["-o"], metavar="FILE", help_behavior_hint="")] = None,
    data: Annotated[str | None, _optional("DATA")] = None,
    groups: Annotated[Path | None, _optional("FILE")] = None,
    human: Annotated[Path | None, _optional("FILE")] = None,
    seed: int = 0,
) -> None:
    """Draw a figure for a paper: PNG, SVG or PDF, as the name of the file says.

    NAME is one of
    FIGURES

    Args:
        name: Which figure.
        runs: Recorded runs, for figures of training.
        out: The file to write; NAME.png if not given.
        data: What to train a small network on, for figures that do.
        groups: CSV or Parquet with a column id and one to group by.
        human: CSV or Parquet with id and hsf, or annotator counts (N × C) as .npy or .npz in the order of the data.
        seed: Of what is trained or drawn.
    """
    from hardsight.figures import draw

    file = draw(name, runs, data=data, groups=groups, human=human, seed=seed, out=out or Path(f"{name}.png"))
    print(f"wrote {file}")


def _with_figures() -> str:
    """The help of `figure` with what there is to draw."""
    from hardsight.figures.catalogue import FIGURES

    listed = "\n\n".join(f"    {name}: {kind.summary}." for name, kind in FIGURES.items())
    return str(figure.__doc__).replace("    NAME is one of\n    FIGURES", f"    NAME is one of\n\n{listed}")


def doctor() -> None:
    """Check versions, devices, extras, disk and arithmetic, and say in words what is wrong."""
    from hardsight.doctor import examine

    if not examine():
        raise SystemExit(1)


COMMANDS = {
    "demo": demo,
    "score": score,
    "report": report,
    "clean": clean,
    "train": train,
    "figure": figure,
    "doctor": doctor,
}


def main(args: list[str] | None = None) -> None:
    """Entry point: errors are one sentence, Ctrl-C says what is safe."""
    from hardsight import __version__

    args = sys.argv[1:] if args is None else args
    if args in (["--version"], ["-V"]):
        print(f"hardsight {__version__}")
        return
    figure.__doc__ = _with_figures()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks a sign must not turn success into failure
            stream.reconfigure(errors="replace")
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            config=(tyro.conf.FlagCreatePairsOff,),
            prog="hardsight",
            description="See which examples are hard for a classifier. Start with: hardsight demo",
            args=args or ["--help"],
        )
    except KeyboardInterrupt:
        print("\nstopped; what was committed is safe, and the same command resumes.", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # `hardsight score … | head`
        raise SystemExit(0) from None
    except (ValueError, TypeError, RuntimeError, ArithmeticError, OSError, ImportError, LookupError) as error:
        from hardsight.extras import printable

        text: object = error.args[0] if isinstance(error, KeyError) and error.args else error  # it quotes its message
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        print(f"error: {printable(text)}", file=sys.stderr)
        raise SystemExit(2) from None


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
        raise ValueError(f"{other}; leave --also out, or score the others as runs of their own.")
    if folds is not None and is_file_function(names[0]) and takes_training_data(load_function(names[0])):
        if checkpoint is not None:
            raise ValueError(f"--checkpoint: {names[0]} trains its own weights; leave the checkpoint out.")
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
            raise FileNotFoundError(f"--head: there is no file {head}.")
        weight, offset = read_head(head)
    elif model is not None:
        layer = find_head(load_model(model, checkpoint).module, head).module
        weight, offset = layer.weight.flatten(1), layer.bias  # pyrefly: ignore
    elif "weight" in found.head:
        weight, offset = found.head["weight"], found.head.get("bias")
    else:
        raise ValueError(f"--head: {path} holds features but no weight; give a file with the last layer's weight.")
    name = Path(head).name if head else model or Path(path).name
    table = score_features(
        found.features, weight, found.labels, offset if bias else None, found.ids, strict=strict, name=name
    )
    table.meta["data"]["origin"] = found.origin
    return table


def _tell(table: SampleTable, out: Path, by: str, show: int) -> None:
    """What came out, what was written, what to do next."""
    from hardsight.extras import printable

    counts = table.meta.get("counts")
    if counts is None:
        print(f"this process is done; {len(table):,} samples are safe in {out}/ and other processes are still at it.")
        return
    for row in table.hardest(show, by).to_arrow().to_pylist():
        name = by if by in row else f"{by}_pred"
        label = "" if row.get("label") is None else f"label {row['label']}  "
        print(f"  {printable(row['id']):<40} {label}pred {row['pred']}  {name} {row[name]:.6g}")
    accuracy = "" if table.accuracy is None else f", accuracy {table.accuracy:.2%}"
    zeros = f", {counts['zero_features']:,} zero features" if counts.get("zero_features") else ""
    bad = f", {counts['bad']:,} bad (see table.bad)" if counts["bad"] else ""
    print(f"{counts['rows']:,} sample{'s' * (counts['rows'] != 1)} scored{accuracy}{zeros}{bad}")
    if table.meta.get("already_complete"):
        print(f"{out}/ was complete already, nothing was computed; --overwrite does it again.")
        return
    print(f"wrote {out}/ — next: hardsight report {out}   (a page to look at)")
