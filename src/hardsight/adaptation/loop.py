"""`self_train`: label the target, select the most confident samples of each class, retrain, repeat."""

from __future__ import annotations

import copy
import json
import os
import re
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import nn

from hardsight import runs
from hardsight.adaptation import check as checks
from hardsight.adaptation import rounds as tables
from hardsight.adaptation.roles import Roles, open_roles
from hardsight.adaptation.rounds import ROUNDS, SELECTION, TABLE, TRAINING, alarm, read_rounds, round_folder
from hardsight.adaptation.selection import Method, check_balance, parse_method, portion_at, select, target_rows
from hardsight.adaptation.validators import VALIDATORS, picked
from hardsight.chance import chance_agreement
from hardsight.checkpoints import load_weights, read_checkpoint
from hardsight.data import JoinedSamples, Samples, View, class_mapping
from hardsight.errors import InputError, StateError
from hardsight.heads import find_head, uncompiled
from hardsight.models import Model, as_model, network_identity
from hardsight.predictions import Predictions, predict
from hardsight.presets import recipe_of
from hardsight.printing import Result, percent
from hardsight.recipes import MOST_EPOCHS, Recipe, learning_rate
from hardsight.registry import whole_number
from hardsight.scoring.score import score
from hardsight.stores import local_path
from hardsight.training import train
from hardsight.training.checkpoint import CHECKPOINT, discard, is_training, trained_model, trained_recipe
from hardsight.training.loop import seed_of

PLAN, SOURCE, TEST = "adaptation.json", "source", "test"
_CONSTANT: dict[str, Any] = {"schedule": "constant", "warmup": 0.0, "steps": (), "rampdown": 0.0}
_CHECKED = 2000  # source samples that show whether the network is better than chance
_NOTHING = "target: no sample lies above its threshold; use a larger portion, or leave strict out."


@dataclass(frozen=True)
class Adapted(Result):
    """What `self_train` returns."""

    model: Model  #: The network of the last round or, where labels were checked, of the selected one, in eval mode.
    rounds: pa.Table  #: One row per round (0 is the source model); see :doc:`/reference/run-folder` for the columns.
    path: Path  #: The run folder; ``rounds/03/training/checkpoint.pt`` in it holds the weights of the third round.
    roles: tuple[str, ...]  #: What each data set is used for.
    outcome: tuple[str, ...]  #: The outcome, in sentences.
    source: Model  #: The network before any adaptation.
    checked: checks.Checked | None = None  #: The accuracy of every round, estimated from labeled samples.

    def __repr__(self) -> str:
        rows, parts = self.rounds.to_pylist(), [] if self.checked is None else [str(self.checked)]
        for name in ("target", "test"):
            first, last = (row.get(f"{name}_accuracy") for row in (rows[0], rows[-1]))
            parts += [] if last is None else [f"{name} accuracy {percent(first)} → {percent(last)}"]
        parts = parts or ["accuracy unknown"]
        return self._line(self.path, self.model.name, f"{rows[-1]['round']} rounds", *parts)

    def _shown_rows(self) -> list[dict[str, Any]]:
        return self.rounds.to_pylist()

    def text(self) -> str:
        """The table of the rounds and the outcome, as lines for a terminal."""
        rows = self.rounds.to_pylist()
        sentences = [textwrap.fill(line, 100, subsequent_indent="  ") for line in self.outcome]
        return "\n".join(["", *tables.round_tables(rows), *sentences, *(self.checked.lines() if self.checked else ())])

    def check(self, labels: Any = None) -> Adapted:
        """Estimate the accuracy of every round from labeled samples, and select one.

        It is the best of the rounds that are better than the source model beyond chance, or else the source model. Its
        weights are written to ``selected.pt`` in the run folder.

        Args:
            labels: ``check.csv`` with the column ``label`` filled in: class names, or numbers where classes have no
                names; or any CSV or Parquet file, frame or mapping with the columns id and label. If None, the
                ``check.csv`` of the run.
        """
        checked = checks.evaluate(self.path, labels)
        network = copy.deepcopy(self.model.module)
        network.load_state_dict(self.source.module.state_dict())
        if checked.selected:
            _load_round(network, self.path, checked.selected)
        checks.save(self.path, checked, network)
        return replace(self, model=replace(self.model, module=network.eval()), checked=checked)


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
    check: int | None = None,
    labels: Any = None,
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

    In each round the network labels the target, the most confident samples of each class are selected, and the network
    is trained on them together with some of the source. Killed at any point, the same call resumes, on a CPU with
    exactly the same result. A network given as an object is not changed. Without target labels nothing can tell
    whether a round helped: label a few samples (`check`).

    Args:
        model: A trained network; the folder of a training run; or a name that `train` takes (``cifar-resnet18``): it is
            then first trained on the source, as its preset says, into ``out/source``.
        source: Labeled samples: anything `hardsight.open_data` takes; a name without a split means its ``train``.
        target: Samples to adapt to, likewise. Labels they may have are for reporting only.
        test: Other samples of the target domain, for reporting only.
        method: What labels and what selects: ``cbst``, ``cbst+avh`` (Eq. 4), ``cbst+margin``, …; in Python also a
            `Method`.
        labeled: A few labeled samples of the target domain, all trained on in every round. Semi-supervised learning
            is the same loop: the labeled samples are the source (at a portion of 1), the pool is the target.
        rounds: How many times to select and retrain.
        epochs: Passes over the selected samples, in each round.
        target_portion: Share of the target to select: (first round, increase per round, maximum), or one number.
        source_portion: Share of the source to train on beside it, drawn anew in each round; likewise.
        balance: ``class``: the portion of each class; ``global``: of all together; or the share of each class.
        strict: Select only above the threshold, as the papers print, not at it.
        recipe: How to retrain; its schedule covers all rounds, each at the rate it begins with, and its epochs and
            seed are those given here. If None, as the source model was trained, with plain cross-entropy at a constant
            tenth of the rate. If it flips images, predictions are means over both. Batches are smaller where a
            round has fewer samples.
        check: Number of target samples to write to ``out/check.csv`` for labeling: with their labels, the same call
            reports the accuracy of every round and selects one.
        labels: The labeled samples, if they are in another file; see `Adapted.check`.
        out: Run folder to write.
        device: cpu, cuda, cuda:1 or mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.
        seed: Seed of every draw and training.
        same_images: The test may hold images of the target.
        overwrite: Replace an existing run in the folder, unless it is an unfinished one of the same adaptation.
        log: Called with each round's row.
        progress: Print the role of each data set, and a line per round.

    Raises:
        RuntimeError: All of the target is predicted to one class, or nothing can be selected; ``rounds.parquet`` holds
            the rounds until then.

    Examples:
        >>> adapted = self_train("source-run", "source.npz:train", "target.npz:train", out="adapted")  # doctest: +SKIP
        >>> adapted.rounds  # doctest: +SKIP
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise StateError("self-training runs in one process; start it without torchrun.")
    rounds, epochs = whole_number("rounds", rounds, 1, MOST_EPOCHS), whole_number("epochs", epochs, 1, MOST_EPOCHS)
    rule, out, where = parse_method(method), local_path(out), {"device": device, "workers": workers}
    portions = _portions("target_portion (--portion)", target_portion), _portions("source_portion", source_portion)
    schedule = replace(recipe_for_rounds(model, recipe).replace(epochs=rounds * epochs), seed=seed)
    roles = open_roles(source, target, test, labeled, same_images=same_images)
    shares = check_balance(balance, roles.classes)
    checks.check_request(out, check, labels, len(roles.target), overwrite)
    given = _trained(model)
    roles = roles if given is None else _numbered_as(given, roles)
    data = {"source": roles.source, "target": roles.target, "test": roles.test, "labelled": roles.labeled}
    plan = {
        "model": str(model) if given is None else f"{given.name} {network_identity(given.module).key}",
        **{name: samples and f"{samples.split} {samples.fingerprint()}" for name, samples in data.items()},
        **{"method": asdict(rule), "rounds": rounds, "epochs": epochs, "target_portion": portions[0]},
        **{"source_portion": portions[1], "balance": shares if isinstance(shares, str) else shares.tolist()},
        **{"strict": strict, "recipe": asdict(schedule), "seed": seed, "format": 1},
        **runs.gaps_entry(*(samples.identity for samples in data.values() if samples)),
    }
    with _locked(out, plan, overwrite) as rows:
        say = print if progress else lambda *_, **__: None
        say("\n".join([*roles.notes, f"method: {rule.name}: {rule.summary}"]))
        if given is None:
            first = recipe_of(str(model))
            first = replace(first, seed=seed, batch_size=min(first.batch_size, len(roles.source)))
            options: dict[str, Any] = {"recipe": first, "record": (), "progress": progress, **where}
            given = train(str(model), roles.source, out=out / SOURCE, **options).model
            roles = _numbered_as(given, roles)
        network = replace(given, module=copy.deepcopy(given.module))
        if rows:
            say(f"{out}: {'all' if len(rows) > rounds else f'{len(rows) - 1} of'} {rounds} rounds are done already.")
            _resume(out, rows, rounds, network)
        else:
            _check_source(network, roles, seed, where)
        for number in range(len(rows), rounds + 1):
            start = time.perf_counter()
            row: dict[str, Any] = {"round": number}
            if number:
                table = tables.read_selection(out, number)
                portion = portion_at(number - 1, *portions[1])
                samples, targets = training_samples(roles, table, rule, portion, number, seed)
                options = {"recipe": recipe_at(schedule, number, epochs, len(samples)), "record": (), "progress": False}
                place = round_folder(out, number) / TRAINING
                trained = train(network, samples, out=place, targets=targets, **options, **where)
                network = trained.model
                row |= tables.selection_row(table, roles.classes) | {"loss": trained.history[-1]["loss"]}
                row |= {"portion": portion_at(number - 1, *portions[0]), "trained_on": len(samples)}
            predictions, measured = _evaluate(network, roles, schedule.flip, where)
            row |= measured
            counts, selected = row["predicted_by_class"], None
            stop = tables.collapse(counts, roles.names)
            if number < rounds and stop is None:
                arrays, portion = (predictions.probabilities, predictions.avc), portion_at(number, *portions[0])
                selection = select(rule, *arrays, predictions.at, portion, balance=shares, strict=strict)
                selected, stop = selection.counts.tolist(), None if len(selection.rows) else _NOTHING
                if stop is None:  # a training that another selection had begun is discarded
                    discard(round_folder(out, number + 1) / TRAINING)
                    table = tables.selection_table(selection, predictions, _labels_of(roles.target, predictions))
                    tables.write(round_folder(out, number + 1) / SELECTION, table)
            row["alarm"] = stop or alarm(counts, (rows or [row])[0]["predicted_by_class"], selected, roles.names)
            row["seconds"] = time.perf_counter() - start
            rows.append(row)
            columns = tables.schema().with_metadata({"classes": json.dumps(roles.names)})
            tables.write(out / TABLE, pa.Table.from_pylist(rows, schema=columns))
            shown = row if stop is None else row | {"alarm": None}  # it is the error
            say(tables.round_line(shown, rounds), flush=True)
            if log is not None:
                log(row)
            if stop is not None:
                raise StateError(stop)
        outcome = tables.conclusions(rows)
        if not (out / runs.SUMMARY).exists():
            if roles.test is not None:
                score(network, roles.test, out=out / TEST, progress=False, **where)
            with runs.disk_errors(out):
                summary = {"words": [*roles.notes, *outcome], "picked": picked(rows), "made": runs.provenance()}
                runs.write_json(out / runs.SUMMARY, summary)
        if check is not None:
            last = predict(network, roles.target, flip=schedule.flip, **where)
            outcome += (checks.write_check(out, roles.target, last, rounds, check, seed),)
            labels = checks.labeled_file(out) if labels is None else labels
    network, given = (replace(net, module=copy.deepcopy(net.module).eval()) for net in (network, given))
    adapted = Adapted(network, read_rounds(out), out, roles.notes, outcome, given)
    return adapted if labels is None else adapted.check(labels)


@contextmanager
def _locked(path: Path, plan: dict[str, Any], overwrite: bool) -> Iterator[list[dict[str, Any]]]:
    """The folder, prepared and locked; yields the rows of the finished rounds.

    The selection of a round is written before the row of the round before it: killed between any two files, it resumes.
    """

    def remove() -> None:
        for name in (runs.SUMMARY, TABLE, *checks.FILES):  # first what would allow resuming
            (path / name).unlink(missing_ok=True)
        for folder in (path / ROUNDS).glob("*/"):
            discard(folder / TRAINING)
            runs.remove_files(folder, re.compile(re.escape(SELECTION)))
        runs.remove_files(path / ROUNDS, re.compile(re.escape(SELECTION)))
        discard(path / SOURCE)
        runs.discard(path / TEST)

    def differing(stored: dict[str, Any], plan: dict[str, Any]) -> list[str]:
        described = {name: plan["method"][name] for name in ("summary", "reference")}  # which do not affect the result
        return runs.differing({**stored, "method": {**stored.get("method", {}), **described}}, plan)

    finished = (path / runs.SUMMARY).exists
    options: dict[str, Any] = {"finished": finished, "discard": remove, "differing": differing, "overwrite": overwrite}
    with runs.begin(path / PLAN, plan, "adaptation", **options):
        for folder in (path, *path.glob(f"{ROUNDS}/*/")):
            runs.sweep(folder)
        yield read_rounds(path).to_pylist() if (path / TABLE).exists() else []


def recipe_for_rounds(model: Any, recipe: Recipe | str | None = None) -> Recipe:
    """A recipe or the recipe of a preset; otherwise as the model was trained, gently and with plain cross-entropy."""
    if recipe is not None:
        return recipe if isinstance(recipe, Recipe) else recipe_of(recipe)
    if is_training(model):
        base = trained_recipe(Path(model))
    else:
        base = recipe_of(str(model)) if isinstance(model, (str, Path)) else Recipe()
    # Rounds start from a trained network: a tenth of its rate.
    return replace(base, lr=round(base.lr * 0.1, 12), loss="ce", label_smoothing=0.0, mixup=0.0, **_CONSTANT)


def recipe_at(schedule: Recipe, number: int, epochs: int, samples: int) -> Recipe:
    """The recipe of a round, counted from 1, with this many samples: at the schedule's rate when the round begins.

    Examples:
        >>> steps = Recipe(epochs=20, lr=1.0, schedule="step", steps=(7, 14))
        >>> [round(recipe_at(steps, number, 1, 1000).lr, 3) for number in (1, 7, 8, 15)]
        [1.0, 1.0, 0.1, 0.01]
    """
    rate, batch = learning_rate(schedule, (number - 1) * epochs), min(schedule.batch_size, samples)
    return replace(schedule, epochs=epochs, lr=rate, batch_size=batch, seed=seed_of(schedule.seed, number), **_CONSTANT)


def training_samples(
    roles: Roles, table: pa.Table, method: Method, portion: float, number: int, seed: int
) -> tuple[JoinedSamples, np.ndarray]:
    """What a round trains on (some of the source, the selected, the labeled), and a row of targets for each sample."""
    selected, classes = table.filter(pc.is_valid(table["label"])), roles.classes
    labels = selected["label"].to_numpy()
    if method.soft:
        targets = selected["target"].combine_chunks().flatten().to_numpy().reshape(-1, classes)
    else:
        targets = target_rows(labels, classes, method.mrkld)
    count = len(roles.source)
    drawn = np.random.default_rng([seed, number]).permutation(count)[: max(1, int(round(portion * count, 6)))]
    rows = np.array(roles.target.find(selected["id"].to_pylist()), dtype=np.int64)
    # The source comes first: other images are resized to its size, which the network was trained on.
    parts: dict[str, Samples] = {"source": View(roles.source, np.sort(drawn))}
    parts["target"] = View(roles.target, rows, labels=labels)
    if roles.labeled is not None:
        parts["labelled"] = View(roles.labeled, np.arange(len(roles.labeled)))
    all_targets = [targets if name == "target" else target_rows(part.labels, classes) for name, part in parts.items()]
    return JoinedSamples(parts), np.concatenate(all_targets)


def _labels_of(samples: Samples, predictions: Predictions) -> np.ndarray | None:
    return None if samples.labels is None else samples.labels[predictions.rows]


def _evaluate(network: Model, roles: Roles, flip: bool, where: dict[str, Any]) -> tuple[Predictions, dict[str, Any]]:
    """Predictions on the target, and their accuracy and that on the test set."""
    predictions = predict(network, roles.target, flip=flip, **where)
    probabilities, features = predictions.probabilities, predictions.features
    row = tables.accuracy_row("target", probabilities, _labels_of(roles.target, predictions))
    row |= {name: float(validator(probabilities, features)) for name, validator in VALIDATORS.items()}
    if roles.test is not None:
        tested = predict(network, roles.test, flip=flip, **where)
        row |= tables.accuracy_row("test", tested.probabilities, _labels_of(roles.test, tested))
    counts = np.bincount(probabilities.argmax(1), minlength=roles.classes)
    return predictions, row | {"predicted_by_class": counts.tolist()}


def _check_source(network: Model, roles: Roles, seed: int, where: dict[str, Any]) -> None:
    """Refuse a network at or near chance: it could only teach itself noise."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(roles.source))[:_CHECKED])
    samples = View(roles.source, rows)
    predictions = predict(network, samples, **where)
    labels = _labels_of(samples, predictions)
    if labels is not None and (chance := chance_agreement(labels, predictions.probabilities.argmax(1))).near:
        raise StateError(f"model: {chance}")


def _portions(argument: str, given: float | Sequence[float]) -> tuple[float, float, float]:
    """Start, step and maximum of a growing portion; a single number stays constant."""
    values = [float(value) for value in np.atleast_1d(given)]
    if len(values) not in (1, 3):
        raise InputError(f"{argument} must be one number or three (first, step, maximum), got {len(values)}.")
    first, step, most = values if len(values) == 3 else (values[0], 0.0, values[0])
    try:
        portion_at(0, first, step, most)
    except InputError as error:
        raise InputError(f"{argument}: {error}") from None
    return first, step, most


def _trained(model: Any) -> Model | None:
    """The trained network; None for a name that is still to be trained."""
    if is_training(model):
        model = trained_model(Path(model))
    elif isinstance(model, (str, Path)):
        return None
    network = as_model(model)
    return replace(network, module=uncompiled(network.module))


def _numbered_as(model: Model, roles: Roles) -> Roles:
    """The roles with labels in the network's class order, if it has the same classes."""
    outputs = find_head(model.module).classes
    if outputs != roles.classes:
        raise InputError(f"model: its outputs must be the classes of the source ({roles.classes}), got {outputs}.")
    order = class_mapping(model.classes, roles.names, outputs) if model.classes else None
    return roles.renumbered(order, list(model.classes or roles.names or ()) or None)


def _resume(out: Path, rows: list[dict[str, Any]], rounds: int, network: Model) -> None:
    """Load the weights of the last finished round; if self-training ended there, raise the reason again."""
    selection = round_folder(out, len(rows)) / SELECTION
    if np.count_nonzero(rows[-1]["predicted_by_class"]) < 2 or (len(rows) <= rounds and not selection.exists()):
        raise StateError(rows[-1]["alarm"])
    if len(rows) > 1:
        _load_round(network.module, out, len(rows) - 1)


def _load_round(module: nn.Module, out: Path, number: int) -> None:
    weights = round_folder(out, number) / TRAINING / CHECKPOINT
    load_weights(module, read_checkpoint(weights), str(weights))
