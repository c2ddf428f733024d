"""`self_train`: label the target, choose the surest class by class, retrain, and again."""

from __future__ import annotations

import copy
import os
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from hardsight.adaptation import folder
from hardsight.adaptation.methods import Method, parse_method
from hardsight.adaptation.retraining import recipe_at, recipe_for_rounds, to_train_on
from hardsight.adaptation.roles import Roles, open_roles
from hardsight.adaptation.rounds import (
    alarm,
    chosen_row,
    collapse,
    conclusions,
    outcome_row,
    round_line,
    round_tables,
    selection_table,
    validator_row,
)
from hardsight.adaptation.selection import portion_at, select
from hardsight.adaptation.thresholds import check_balance
from hardsight.adaptation.validators import picked
from hardsight.chance import chance_agreement
from hardsight.checkpoints import load_weights, read_checkpoint
from hardsight.data import View, class_mapping
from hardsight.errors import InputError, StateError
from hardsight.heads import find_head, uncompiled
from hardsight.models import Model, as_model, network_identity
from hardsight.predictions import Predictions, predict
from hardsight.presets import recipe_of
from hardsight.printing import Result
from hardsight.recipes import MOST_EPOCHS, Recipe
from hardsight.registry import whole_number
from hardsight.runs import SUMMARY, gaps_entry, provenance
from hardsight.scoring.score import score
from hardsight.training import train
from hardsight.training.checkpoint import CHECKPOINT, is_training, trained_model


@dataclass(frozen=True)
class Adapted(Result):
    """What `self_train` returns.

    Attributes:
        model: The network of the last round with its preprocessing, in eval mode.
        rounds: A row per round, 0 is the source model; see `hardsight.adaptation.rounds`.
        path: The run folder; ``rounds/03/training/checkpoint.pt`` in it holds the weights of the third round.
        words: Which data played which role; the last round, the best by true labels, and what validators pick.
    """

    model: Model
    rounds: pa.Table
    path: Path
    words: tuple[str, ...]

    def __repr__(self) -> str:
        last = self.rounds.to_pylist()[-1]  # the source model is round 0
        shown = {of: last.get(f"{of}_accuracy") for of in ("target", "test")}
        known = [f"{of} accuracy {value:.1%}" for of, value in shown.items() if value is not None]
        return self._line(self.path, self.model.name, f"{last['round']} rounds", *known)

    def text(self) -> str:
        """The table of the rounds, and what came out, as lines for a terminal."""
        rows = self.rounds.to_pylist()
        sentences = (textwrap.fill(line, 100, subsequent_indent="  ") for line in conclusions(rows))
        return "\n".join(["", *round_tables(rows), *sentences])


def self_train(
    model: str | Path | nn.Module | Model,
    source: Any,
    target: Any,
    *,
    test: Any = None,
    method: str | Method = "cbst+avh",
    labeled: Any = None,
    rounds: int = 5,
    epochs: int = 1,
    target_portion: float | Sequence[float] = (0.2, 0.05, 0.5),
    source_portion: float | Sequence[float] = (0.065, 0.0085, 0.165),
    balance: str | Sequence[float] = "class",
    strict: bool = False,
    recipe: Recipe | str | None = None,
    out: str | Path = "run",
    device: str | torch.device | None = None,
    workers: int | None = None,
    seed: int = 0,
    same_images: bool = False,
    overwrite: bool = False,
    log: Callable[[dict[str, Any]], object] | None = None,
    progress: bool = True,
) -> Adapted:
    """Adapt a classifier to a domain without labels by class-balanced self-training.

    In each round the network labels the target, the surest samples of each class are chosen, and the network is
    trained on them together with some of the source. Killed at any point, the same call goes on where it stopped, on a
    CPU to the same bits. A network given as an object is left as it is.

    Args:
        model: A trained network; the folder of a training run; or a name that `train` takes (``cifar-resnet18``): it is
            then trained on the source first, as its preset says, into ``out/source``.
        source: Labeled samples: anything `hardsight.open_data` takes; a name without a split means its ``train``.
        target: Samples to adapt to, likewise. Labels they may have are for reporting only.
        test: Other samples of the target domain, for reporting only.
        method: What labels and what selects: ``cbst``, ``cbst+avh`` (Eq. 4), ``cbst+margin``, …; in Python also a
            `Method`.
        labeled: A few labeled samples of the target domain, all trained on in every round. Semi-supervised learning
            is the same loop: the labeled samples are the source (at a portion of 1), the pool is the target.
        rounds: How many times to select and retrain.
        epochs: Passes over the selected samples, in each round.
        target_portion: Share of the target to select: in the first round, more per round, at most; or one number.
        source_portion: Share of the source to train on beside it, drawn anew in each round; likewise.
        balance: ``class``: the portion of each class; ``global``: of all together; or the share of each class.
        strict: Select only above the threshold, as the papers print, not at it.
        recipe: How to retrain; its schedule goes over all rounds, each at the rate it begins with, and its epochs and
            seed are those given here. If None, as the source model was trained, with plain cross-entropy at a constant
            tenth of the rate. Where it mirrors pictures, predictions are means over both. Batches are smaller where a
            round has fewer samples.
        out: Run folder to write.
        device: cpu, cuda, cuda:1 or mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.
        seed: Seed of every draw and training.
        same_images: The test may hold images of the target.
        overwrite: Replace an existing run in the folder, unless it is an unfinished one of the same adaptation.
        log: Called with each round's row.
        progress: Print who is who, and a line per round.

    Raises:
        RuntimeError: All of the target is predicted to one class, or nothing can be chosen; ``rounds.parquet`` holds
            the rounds until then.

    Examples:
        >>> adapted = self_train("cifar-resnet18", "svhn.npz", "mnist.npz", test="mnist.npz:test")  # doctest: +SKIP
        >>> adapted.rounds.select(["round", "selected", "tp_rate", "test_accuracy"])  # doctest: +SKIP
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise StateError("self-training runs in one process; start it without torchrun.")
    rounds, epochs = whole_number("rounds", rounds, 1, MOST_EPOCHS), whole_number("epochs", epochs, 1, MOST_EPOCHS)
    way = parse_method(method)
    portions = _portions("target_portion (--portion)", target_portion), _portions("source_portion", source_portion)
    whole = recipe_for_rounds(model, recipe).replace(epochs=rounds * epochs)
    roles = open_roles(source, target, test, labeled, same_images=same_images)
    shares = check_balance(balance, roles.classes)
    settings = _Settings(way, rounds, epochs, *portions, shares, strict, replace(whole, seed=seed), seed)
    given, out, where = _given(model), Path(out), {"device": device, "workers": workers}
    if given is not None:
        roles = _agreed(given, roles)
    data = {name: getattr(roles, name) for name in ("source", "target", "test", "labeled")}
    data["labelled"] = data.pop("labeled")  # as runs on disk spell it
    plan = {
        "model": str(model) if given is None else f"{given.name} {network_identity(given.module).key}",
        **{name: role and f"{role.samples.split} {role.samples.fingerprint()}" for name, role in data.items()},
        **asdict(settings),
        "balance": shares if isinstance(shares, str) else shares.tolist(),
        "format": 1,
        **gaps_entry(*(role.samples.identity for role in data.values() if role)),
    }
    locks = ExitStack()
    rows = folder.begin(out, plan, overwrite, locks)
    say = print if progress else lambda *_, **__: None
    summary = way.summary if way.summary[1:2].isupper() else way.summary[:1].lower() + way.summary[1:]
    say("\n".join([*roles.words, f"method: {way.name}: {summary}"]))
    if given is None:
        own, at = recipe_of(str(model)), out / folder.SOURCE
        own = replace(own, seed=seed, batch_size=min(own.batch_size, len(roles.source.samples)))
        given = train(str(model), roles.source.samples, out=at, recipe=own, record=(), progress=progress, **where).model
        roles = _agreed(given, roles)
    network = replace(given, module=copy.deepcopy(given.module))
    if not rows:
        _check_source(network, roles, seed, where)
    if rows:
        say(f"{out}: {'all' if len(rows) > rounds else f'{len(rows) - 1} of'} {rounds} rounds are done already.")
        _go_on(out, rows, rounds, network)
    for number in range(len(rows), rounds + 1):
        began = time.perf_counter()
        row: dict[str, Any] = {"round": number}
        if number:
            network, told = _retrained(network, roles, settings, number, out, where)
            row |= told
        found, told = _seen(network, roles, whole.flip, where)
        row |= told
        counts, chosen = row["predicted_by_class"], None
        stop = collapse(counts, roles.names)
        if number < rounds and stop is None:
            chosen = _choose(found, roles, settings, number + 1, out)
            stop = _NOTHING if not sum(chosen) else None
        row["alarm"] = stop or alarm(counts, (rows or [row])[0]["predicted_by_class"], chosen, roles.names)
        row["seconds"] = time.perf_counter() - began
        rows.append(row)
        folder.write_rounds(out, rows, roles.names)
        say(round_line(row if stop is None else row | {"alarm": None}, rounds), flush=True)  # the error has the words
        if log is not None:
            log(row)
        if stop is not None:
            raise StateError(stop)
    words = (*roles.words, *conclusions(rows))
    if not (out / SUMMARY).exists():
        if roles.test is not None:
            score(network, roles.test.counted_as(roles.names), out=out / folder.TEST, progress=False, **where)
        folder.write_summary(out, {"words": words, "picked": picked(rows), "made": provenance()})
    locks.close()
    return Adapted(replace(network, module=network.module.eval()), folder.read_rounds(out), out, words)


@dataclass(frozen=True)
class _Settings:
    """What decides the weights, beside the data and the network that it begins with."""

    method: Method
    rounds: int
    epochs: int
    target_portion: tuple[float, float, float]
    source_portion: tuple[float, float, float]
    balance: str | np.ndarray
    strict: bool
    recipe: Recipe
    seed: int


def _retrained(
    network: Model, roles: Roles, settings: _Settings, number: int, out: Path, where: dict[str, Any]
) -> tuple[Model, dict[str, Any]]:
    """The network after a round's training, and what was trained on."""
    table = folder.read_selection(out, number)
    share = portion_at(number - 1, *settings.source_portion)
    samples, targets = to_train_on(roles, table, settings.method, share, number, settings.seed)
    trained = train(
        network,
        samples,
        out=folder.round_folder(out, number) / folder.TRAINING,
        recipe=recipe_at(settings.recipe, number, settings.epochs, len(samples)),
        targets=targets,
        record=(),
        progress=False,
        **where,
    )
    told = {"portion": portion_at(number - 1, *settings.target_portion), "trained_on": len(samples)}
    return trained.model, chosen_row(table, roles.classes) | told | {"loss": trained.history[-1]["loss"]}


def _seen(network: Model, roles: Roles, flip: bool, where: dict[str, Any]) -> tuple[Predictions, dict[str, Any]]:
    """Predictions on the target, and how good they and those on the test are."""
    found = predict(network, roles.target.samples, flip=flip, **where)
    row = outcome_row("target", found.probabilities, roles.target.known(found.rows)) | validator_row(found)
    if roles.test is not None:
        tested = predict(network, roles.test.samples, flip=flip, **where)
        row |= outcome_row("test", tested.probabilities, roles.test.known(tested.rows))
    counts = np.bincount(found.probabilities.argmax(1), minlength=roles.classes)
    return found, row | {"predicted_by_class": counts.tolist()}


_CHECKED = 2000  # source samples that tell whether the network knows anything


def _check_source(network: Model, roles: Roles, seed: int, where: dict[str, Any]) -> None:
    """Refuse a network at or near chance: all that it would teach itself is noise."""
    samples = roles.source.samples
    rows = np.sort(np.random.default_rng(seed).permutation(len(samples))[:_CHECKED])
    predictions = predict(network, View(samples, rows), **where)
    labels = roles.source.known(rows[predictions.rows])
    if labels is not None and (chance := chance_agreement(labels, predictions.probabilities.argmax(1))).near:
        raise StateError(f"model: {chance}")


_NOTHING = (
    "target: no sample lies above its threshold, so there is nothing to train on; choose a larger portion, or leave "
    "strict out."
)


def _choose(found: Predictions, roles: Roles, settings: _Settings, number: int, out: Path) -> list[int]:
    """Write what is chosen for a round, unless that is nothing; how many of each class."""
    chosen = select(
        settings.method,
        found.probabilities,
        found.avc,
        found.at,
        portion_at(number - 1, *settings.target_portion),
        balance=settings.balance,
        strict=settings.strict,
    )
    if len(chosen.rows):
        table = selection_table(chosen, found, roles.target.known(found.rows), settings.method.soft)
        folder.write_selection(out, number, table)
    return chosen.counts.tolist()


def _portions(argument: str, given: float | Sequence[float]) -> tuple[float, float, float]:
    """First, step and last of a portion that grows; of a single number, itself."""
    told = [float(value) for value in (given if isinstance(given, Sequence) else (given,))]
    told = [told[0], 0.0, told[0]] if len(told) == 1 else told
    if len(told) != 3:
        raise InputError(f"{argument} must be one number, or three: at first, more a round, at most; got {len(told)}.")
    first, step, most = told
    try:
        portion_at(0, first, step, most)
    except InputError as error:
        raise InputError(f"{argument}: {error}") from None
    return first, step, most


def _given(model: Any) -> Model | None:
    """The trained network that was given; None where a name stands for one that is still to be trained."""
    if is_training(model):
        model = trained_model(Path(model))
    elif isinstance(model, (str, Path)):
        return None
    found = as_model(model)
    return replace(found, module=uncompiled(found.module))


def _agreed(model: Model, roles: Roles) -> Roles:
    """The roles with labels as the network counts its classes; or a sentence where it has others."""
    outputs = find_head(model.module).classes
    if outputs != roles.classes:
        raise InputError(
            f"model: it must have as many outputs as the source has classes ({roles.classes}), got {outputs}; train a "
            "head for them first."
        )
    order = class_mapping(model.classes, roles.names, outputs) if model.classes else None
    return roles.renumbered(order, list(model.classes or roles.names or ()) or None)


def _go_on(out: Path, rows: list[dict[str, Any]], rounds: int, network: Model) -> None:
    """Give the network the weights of the last round that is whole; a sentence where self-training ended there."""
    last = rows[-1]
    chosen = folder.round_folder(out, len(rows)) / folder.SELECTION
    if np.count_nonzero(last["predicted_by_class"]) < 2 or (len(rows) <= rounds and not chosen.exists()):
        raise StateError(last["alarm"])
    if len(rows) > 1:
        weights = folder.round_folder(out, len(rows) - 1) / folder.TRAINING / CHECKPOINT
        load_weights(network.module, read_checkpoint(weights), str(weights))
