"""`train`: the entry point of training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from hardsight.data import Source, open_data, warn_unreadable
from hardsight.distributed import by_first_process, gather, rank_and_world, torchrun_job
from hardsight.dynamics import Recorder
from hardsight.errors import InputError, InputTypeError
from hardsight.models import Model, architecture
from hardsight.presets import PRESETS, recipe_of
from hardsight.printing import Result, percent
from hardsight.recipes import Recipe, learning_rate
from hardsight.runs import content_hash, gaps_entry
from hardsight.stores import local_path
from hardsight.training.checkpoint import CHECKPOINT, RECORDS, Saver, begin
from hardsight.training.loop import Training, preserved_state
from hardsight.training.losses import Loss, loss_identity, make_loss
from hardsight.training.prepare import execute_file, prepare

# Unreadable samples that a row of the history names.
_MOST_NAMED = 5


@dataclass(frozen=True)
class Trained(Result):
    """What `train` returns.

    Attributes:
        model: The network with its preprocessing, in eval mode; with the averaged weights if the recipe has `ema`.
        history: One row per epoch: lr, loss, accuracy, test_loss (cross-entropy), test_accuracy, seconds,
            samples_per_second; oracle_test_accuracy, the best so far, which nobody knows without the test labels;
            gradient, the mean norm of the gradient of all weights before clipping; the parts of a loss that has
            several (ce, bonus, pairs); and under unreadable and test_unreadable, how many samples could not be read,
            and the first of them.
        path: The run folder.
        first: Whether this is the first of the processes that trained together.
    """

    model: Model
    history: list[dict[str, Any]]
    path: Path
    first: bool = True

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {}
        accuracies = {"accuracy": last.get("accuracy"), "test accuracy": last.get("test_accuracy")}
        parts = [f"{name} {percent(value)}" for name, value in accuracies.items() if value is not None]
        return self._line(self.path, self.model.name, f"{len(self.history)} epochs", *parts)

    def _shown_rows(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in row.items() if not isinstance(value, dict)} for row in self.history]


def train(
    model: str | nn.Module | Model,
    data: Any,
    test: Any = None,
    *,
    out: str | Path = "run",
    recipe: Recipe | str | None = None,
    loss: str | Loss | None = None,
    sampler: Iterable[int] | None = None,
    targets: Any = None,
    weights: str | Path | None = None,
    record: Sequence[Literal["train", "test"]] = RECORDS,
    device: str | torch.device | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    log: Callable[[dict[str, float], int], object] | None = None,
    progress: bool = True,
) -> Trained:
    """Train a classifier and record every sample in every epoch.

    If it is killed, the same call resumes after the last finished epoch, and on a CPU it ends with exactly the same
    weights: each epoch seeds torch's, NumPy's and Python's global generators, and their state is restored at the end.
    Under torchrun every process takes its share of each batch.

    Args:
        model: A preset (``cifar-resnet18``), a network (``resnet18-32``), ``timm:NAME`` or ``torchvision:NAME`` (both
            with new weights), ``path/to/file.py:function``, or a network, which is trained from its current weights.
        data: The training data, as for `hardsight.open_data`; a name without a split means its ``train``.
        test: Data to evaluate and record after every epoch.
        out: Run folder to write: ``checkpoint.pt``, ``history.json``, and the records ``train/`` and ``test/``.
        recipe: How to train, or the name of a preset whose recipe to use; by default the recipe of the model's preset.
        loss: A name (``"el:0.75"``, ``"avh"``, ``"el@arcface+amc"``) instead of the recipe's; a `CompositeLoss`; or
            any ``(logits, targets) → scalar``, where targets are class indices, or distributions ``(N, C)`` with
            mixup; label smoothing is then up to the function. The parameters of a module are trained and saved too.
        sampler: Rows in the order of training, iterated once per epoch (after ``set_epoch``, counted from 0, if it has
            one). Each epoch seeds its torch ``generator``, if any; all other randomness must depend on the epoch
            alone, or a resumed run will differ.
        targets: ``(n, C)``, a row of weights t per sample to train toward instead of its label: the loss is
            ``−Σ t log p`` (or another that takes distributions). Weights are 0 or more and need not sum to 1; columns
            are classes in the order of the labels. Accuracy and records still use the labels.
        weights: A checkpoint to start from that fits all but the last layers, such as torchvision's for ImageNet; the
            last ones stay new. Colors are then normalized as for that checkpoint, not by the data.
        record: Which samples to record: ``"train"`` as they pass through training, ``"test"`` in eval mode.
        device: cpu, cuda, cuda:1 or mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.
        overwrite: Replace an existing run in the folder, unless it is the same training and unfinished.
        log: Called after each epoch with the numbers of its row of the history, by name, and the number of steps so
            far: what ``wandb.log`` takes.
        progress: Print a line per epoch.

    Raises:
        FloatingPointError: The loss became NaN or infinite; the checkpoint of the previous epoch, if any, is safe.

    Examples:
        >>> train("small-cnn", "digits.npz", "digits.npz:test", out="run", loss="el")  # doctest: +SKIP
    """
    recipe = _recipe(model, recipe, loss)
    execute_file(model, recipe.seed)
    if isinstance(loss, str):
        recipe, loss = replace(recipe, loss=loss), None
    out = local_path(out)
    recorded: set[str] = {record} if isinstance(record, str) else set(record)
    if wrong := sorted(recorded - set(RECORDS)):
        raise InputError(f"record must hold 'train', 'test' or nothing, got {wrong[0]!r}.")
    with torchrun_job(device) as chosen, preserved_state(chosen), ExitStack() as locks:
        first = rank_and_world()[0] == 0
        samples = {"train": open_data(data, training=True)} | ({} if test is None else {"test": open_data(test)})
        network, sources = prepare(model, samples, recipe, chosen, workers, targets, weights)
        source, talk = sources["train"], progress and first
        blended = bool(recipe.mixup) and "train" in recorded
        recorded = recorded & samples.keys() - ({"train"} if blended else set())
        fingerprints = {name: f"{data.split} {data.fingerprint()}" for name, data in samples.items()}
        used = make_loss(loss, recipe, network.module, source.labels, source.targets is not None)
        # What must be the same for a run to resume. The device and the number of processes may change.
        plan: dict[str, Any] = {
            "model": {
                "name": network.name,
                "layers": architecture(network.module),
                "transform": content_hash(network.transform, network.takes),
                "preprocessing": network.preprocessing,
            },
            "data": fingerprints["train"],
            "test": fingerprints.get("test"),
            "recipe": {name: value for name, value in asdict(recipe).items() if name != "loss"},
            "loss": loss_identity(loss, recipe),
            "sampler": _sampler_identity(sampler),
            "record": sorted(recorded),
            "format": 1,
            **gaps_entry(*(data.identity for data in samples.values())),
            "targets": None if source.targets is None else content_hash(source.targets),
            "weights": None if weights is None else network.weights,
        }
        objective = getattr(used, "objective", None) if loss is None else None
        if getattr(objective, "preset", None) == "released":
            plan["clamp"] = True  # el:normal used to mean the bonus without it, and such a run must not be resumed
        if recipe.schedule == "ramp":
            plan["first_epoch"] = 1  # ramps used to count from 0, and such a run must not be resumed
        state = by_first_process(lambda: begin(out, plan, overwrite, locks))
        training = Training(network.module, recipe, chosen, used)
        locks.callback(training.restore_norms)
        if state is not None:
            training.restore(state)
            if talk:
                print(f"{out}: epoch {len(training.history)} of {recipe.epochs} is already done.")
        if len(training.history) < recipe.epochs:
            for note in _notes(plan["weights"], blended, objective, training) if talk else ():
                print(note)
            _run_epochs(training, sources, sampler, out, recorded, log, talk)
        network = replace(network, module=training.result.eval(), weights=f"trained, {out / CHECKPOINT}", built=None)
        return Trained(network, training.history, out, first)


def _notes(weights: str | None, blended: bool, objective: Any, training: Training) -> list[str]:
    """What the user should know before training starts."""
    apart = training.recipe.accumulate > 1 and getattr(training.loss, "pairs", None) is not None
    notes = {
        f"weights: {weights}.": weights is not None,
        "mixup: a training sample is a blend of two, so training samples are not recorded.": blended,
        "loss: the exact bonus has no end, so logits grow as long as training lasts and few wrong samples count "
        "little; el:normal ends it at a likelihood of 0.99999, as the paper does.": getattr(objective, "endless", 0),
        "loss: it uses only directions, so the head has no bias, and after every epoch its class weights are scaled "
        "to one norm: its predictions are those of the loss.": training.one_norm,
        "accumulate: the loss compares pairs of samples within each micro-batch only.": apart,
    }
    return [note for note, applies in notes.items() if applies]


def _run_epochs(
    training: Training,
    sources: dict[str, Source],
    sampler: Any,
    out: Path,
    record: set[str],
    log: Callable[[dict[str, Any], int], object] | None,
    talk: bool,
) -> None:
    """The remaining epochs: train, evaluate, commit the records, then the checkpoint that belongs to them."""
    recipe, done, first = training.recipe, len(training.history), training.rank == 0
    train, test = sources["train"], sources.get("test")
    held_out = test is not None and test.samples.fingerprint() != train.samples.fingerprint()
    recorders = {
        name: Recorder(
            out / name,
            epoch=done + 1,
            name=data.model.name,
            class_names=data.model.classes,
            data=data.samples,
            held_out=held_out and name == "test",
            note="training batches, as the network saw them" if name == "train" else "in eval mode after each epoch",
        )
        for name, data in sources.items()
        if name in record
    }
    with closing(Saver(out)) as saver:
        for epoch in range(done + 1, recipe.epochs + 1):
            start = time.perf_counter()
            row: dict[str, Any] = {"epoch": epoch, "lr": learning_rate(recipe, epoch - 1)}
            row |= training.train_epoch(train, epoch, sampler, recorders.get("train"))
            row["seconds"] = time.perf_counter() - start
            row["samples_per_second"] = row["samples"] / row["seconds"]
            if test is not None:
                row |= training.evaluate(test, epoch, recorders.get("test"))
                row["oracle_test_accuracy"] = max(r["test_accuracy"] for r in [*training.history, row])
            for name, data in sources.items():
                row |= _unreadable(data, name, warn=first and epoch == done + 1)
            by_first_process(saver.wait)  # a recorder can go back one epoch, not two
            for recorder in recorders.values():
                recorder.end_epoch()
            training.history.append(row)
            by_first_process(lambda: saver.save(training.state()))
            if train.pixels is None:  # loader processes are forked, which is unsafe while a thread writes
                by_first_process(saver.wait)
            if talk:
                print(_line(row, recipe.epochs), flush=True)
            if log is not None and first:
                numbers = {name: float(value) for name, value in row.items() if isinstance(value, (int, float))}
                log(numbers, sum(row["steps"] for row in training.history))
        by_first_process(saver.wait)
        for recorder in recorders.values():
            by_first_process(recorder.close)


def _unreadable(source: Source, name: str, warn: bool) -> dict[str, Any]:
    """The entry of a row about samples that could not be read in its epoch: how many, and the first with reasons."""
    if source.pixels is not None:
        return {}
    reasons = {id_: reason for part in gather(source.unreadable) for id_, reason in part.items()}
    source.unreadable.clear()
    argument, key = ("DATA", "unreadable") if name == "train" else ("test", "test_unreadable")
    if warn:
        warn_unreadable(argument, reasons, len(source), stacklevel=5)
    first = dict(list(reasons.items())[:_MOST_NAMED])
    return {key: {"samples": len(reasons), "first": first}} if reasons else {}


def _line(row: dict[str, Any], epochs: int) -> str:
    """The progress line of an epoch."""
    test = f"  test {percent(row['test_accuracy'])}" if "test_accuracy" in row else ""
    accuracy = "" if row["accuracy"] is None else f"  train {percent(row['accuracy'])}"
    return (
        f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}  lr {row['lr']:.4g}  loss {row['loss']:.4f}{accuracy}{test}"
        f"  {row['seconds']:.1f} s  {row['samples_per_second']:,.0f} samples/s"
    )


def _recipe(model: Any, recipe: Recipe | str | None, loss: Any) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, str):
        named = recipe_of(recipe)
    elif recipe is None:
        named = PRESETS[model].recipe if isinstance(model, str) and model in PRESETS else Recipe()
    else:
        raise InputTypeError(f"recipe must be a Recipe or the name of a preset, got {type(recipe).__name__}.")
    # A function may not fit into a CUDA graph, which only the preset asked for.
    return named if loss is None or isinstance(loss, str) else replace(named, graph=False)


def _sampler_identity(sampler: Any) -> Any:
    """The class of a sampler and a hash of each attribute, except its epoch, generator and private state."""
    if not hasattr(sampler, "__dict__"):
        return None if sampler is None else content_hash(sampler)
    hashes = {"kind": type(sampler).__name__}
    for name, value in vars(sampler).items():
        state = name.startswith("_") and (isinstance(value, bool) or callable(value))
        if not state and name not in ("epoch", "generator"):
            hashes[name] = content_hash(value)
    return hashes
