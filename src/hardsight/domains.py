"""Domain generalization: train on all domains but one, and test on the domain left out.

A single training yields many networks, one per epoch and option. The result depends on which of them is reported, so
every result names how it was selected:

``train-domain``
    By the accuracy on a held-out part of the training domains.
``leave-one-domain-out``
    By the accuracy on each training domain when it is also left out (for options; see `best_option`).
``last``
    The last epoch.
``oracle``
    By the accuracy on the test domain itself: an upper bound, which nobody can reach without its labels.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from hardsight.data import ArraySamples, JoinedSamples, Samples, View, all_labels, open_data, places_by_name
from hardsight.dynamics import Dynamics
from hardsight.errors import InputError, InputTypeError, MissingPathError
from hardsight.extras import first_line, printable
from hardsight.images import to_image
from hardsight.models import Model
from hardsight.presets import recipe_of
from hardsight.printing import Result, percent
from hardsight.recipes import Recipe
from hardsight.registry import Range, check_choice, did_you_mean, whole_number
from hardsight.training import train

SELECTIONS = ("train-domain", "last", "oracle")
_HELD_OUT = "held out/"  # prefix of the ids of held-out samples
_THREADS = 8
_LARGEST = 10_000  # pixels per side
_NO_NAME = ("", "None", "nan", "NaN", "<NA>", "NaT")  # a missing value of a column, as text


@dataclass(frozen=True)
class DomainRun(Result):
    """A training without one domain.

    Attributes:
        target: The domain that was left out.
        validation: ``(E,)`` accuracy on the held-out part of the training domains after each epoch.
        test: ``(E,)`` accuracy on the domain that was left out.
        path: The run folder.
    """

    target: str
    validation: np.ndarray
    test: np.ndarray
    path: Path

    def __repr__(self) -> str:
        accuracies = [f"{how} {percent(self.accuracy(how))}" for how in SELECTIONS]
        return self._line(self.path, f"without {self.target}", *accuracies)

    def epoch(self, selection: str = "train-domain") -> int:
        """The selected epoch, counted from 1; the first of several that are equally good."""
        check_choice(selection, SELECTIONS, "selection")
        if selection == "last":
            return len(self.test)
        return int(np.argmax(self.validation if selection == "train-domain" else self.test)) + 1

    def accuracy(self, selection: str = "train-domain") -> float:
        """The accuracy on the domain that was left out, in the selected epoch.

        Args:
            selection: One of ``train-domain``, ``last`` and ``oracle``.
        """
        return float(self.test[self.epoch(selection) - 1])


def open_domains(data: Any, domains: str | Iterable[Any] | None = None) -> dict[str, Samples]:
    """The data of each domain, with labels that mean the same in all of them.

    Args:
        data: A folder with one folder per domain, each with one folder per class; or a mapping from names of domains to
            what `hardsight.open_data` takes; or one data set, where `domains` names the domain of each sample.
        domains: The domain of each sample, such as a column of a table, or the name of that column in a data set of
            Hugging Face.

    Examples:
        >>> parts = open_domains("digits", ["a", "b", "c"] * 599)
        >>> {name: len(samples) for name, samples in parts.items()}
        {'a': 599, 'b': 599, 'c': 599}
    """
    if domains is not None:
        if isinstance(domains, Mapping) or not hasattr(domains, "__iter__") or getattr(domains, "ndim", 1) != 1:
            raise InputTypeError(
                f"domains must be a column with one domain per sample, got a {type(domains).__name__}."
            )
        whole = open_data(data)
        values = whole.column(domains) if isinstance(domains, str) else domains
        column = np.asarray([str(name) for name in (values.tolist() if isinstance(values, torch.Tensor) else values)])
        if (missing := np.isin(column, _NO_NAME)).any():
            raise InputError(f"domains must name one domain per sample, got none for sample {missing.argmax()}.")
        if len(column) != len(whole):
            raise InputError(f"domains must name one domain per sample, {len(whole):,}, got {len(column):,}.")
        parts: dict[str, Samples] = {
            str(name): View(whole, np.flatnonzero(column == name)) for name in np.unique(column)
        }
    elif isinstance(data, Mapping):
        parts = {str(name): open_data(part) for name, part in data.items()}
    elif not isinstance(data, (str, Path)):
        raise InputTypeError(
            f"data must be a folder or a mapping of domains, or come with domains, got a {type(data).__name__}."
        )
    else:
        folder = Path(data)
        if not folder.is_dir():
            raise MissingPathError(f"data: there is no folder {str(folder)!r}; name one with a folder per domain.")
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        parts = {name: open_data(folder / name) for name in names}
        if unlabeled := [name for name, samples in parts.items() if samples.labels is None]:
            raise InputError(
                f"data: {folder / unlabeled[0]} has no folder per class; expected {folder.name}/DOMAIN/CLASS/1.png."
            )
    if len(parts) < 2:
        raise InputError(f"data must hold two domains or more, got {', '.join(parts) or 'none'}.")
    return _same_labels(parts)


def _same_labels(parts: dict[str, Samples]) -> dict[str, Samples]:
    """The domains with one order of classes; all of them must have every class."""
    named = all(samples.classes is not None for samples in parts.values())
    names = sorted({name for samples in parts.values() for name in samples.classes or ()}) if named else []
    result, present = {}, {}
    for domain, samples in parts.items():
        labels = all_labels(samples, f"domain {domain}")
        if named:
            if (places := places_by_name(samples.classes or (), names)) is None:
                raise InputError(
                    f"data: class names of the domain {domain} repeat: {', '.join(samples.classes or ())}."
                )
            labels = places[labels]
        result[domain], present[domain] = View(samples, labels=labels, classes=names or None), set(labels.tolist())
    every = sorted(set.union(*present.values()))
    for domain, classes in present.items():
        if missing := [names[label] if names else str(label) for label in every if label not in classes]:
            raise InputError(
                f"data: the domain {domain} has no sample of {', '.join(missing[:5])}; every domain must have every "
                "class. Leave the class or the domain out."
            )
    return result


def decoded(samples: Samples, size: int) -> Samples:
    """Images of files as one array of ``size × size`` RGB pixels, which trains much faster than a loader.

    Args:
        samples: The data; a file that cannot be read is an error.
        size: Pixels per side; images of another size are resized.
    """

    size = whole_number("size", size, 1, _LARGEST)

    def pixels(index: int) -> np.ndarray:
        try:
            image = to_image(samples.load(index, 3)[0], 3)
        except (OSError, ValueError, SyntaxError) as error:  # what Pillow raises
            sample = f"{printable(samples.ids[index])!r} of {printable(samples.origin)}"
            raise InputError(f"data: the image {sample} cannot be read: {first_line(error).rstrip('.')}.") from None
        return np.asarray(image if image.size == (size, size) else image.resize((size, size), 2), dtype=np.uint8)

    with ThreadPoolExecutor(_THREADS) as pool:
        images = np.stack(list(pool.map(pixels, range(len(samples)))))
    return ArraySamples(
        images, all_labels(samples, "data"), samples.split, samples.origin, samples.classes, samples.ids
    )


def leave_one_out(
    model: str | nn.Module | Model,
    domains: Mapping[str, Samples],
    target: str,
    *,
    out: str | Path,
    without: Sequence[str] = (),
    recipe: Recipe | str | None = None,
    loss: Any = None,
    weights: str | Path | None = None,
    validation: float = 0.1,
    seed: int = 0,
    device: str | torch.device | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> DomainRun:
    """Train on all domains but one; after each epoch, measure on their held-out part and on the domain left out.

    Args:
        model, out, recipe, loss, weights, device, overwrite, progress: As for `hardsight.train`.
        domains: As `open_domains` gives them.
        target: The domain to leave out and test on.
        without: Further domains not to train on.
        validation: Share of each class of each training domain that is held out, to select an epoch.
        seed: Random seed of the held-out part and of the training; the recipe's seed is not used.
    """
    seed = whole_number("seed", seed, 0)
    if not isinstance(domains, Mapping) or not all(isinstance(part, Samples) for part in domains.values()):
        raise InputTypeError("domains must be what open_domains returns: a mapping from names to samples.")
    without = [without] if isinstance(without, str) else list(without or ())
    for name in (target, *without):
        _check_domain(name, domains, "target" if name is target else "without")
    Range(0, 1, "()").check(validation, "validation")
    training, held_out = {}, {}
    for number, (name, samples) in enumerate(domains.items()):
        if name not in (target, *without):
            rows = _held_out_rows(np.asarray(samples.labels), validation, np.random.default_rng([seed, number]))
            training[name], held_out[f"{_HELD_OUT}{name}"] = (View(samples, np.flatnonzero(at)) for at in (~rows, rows))
    if not training:
        raise InputError("domains: none is left to train on; give at least one besides those left out.")
    if not isinstance(recipe, Recipe):
        name = recipe or (model if isinstance(model, str) else "")
        recipe = recipe_of(name) if name else Recipe()
    validating = JoinedSamples(held_out)
    if not len(validating):
        raise InputError("domains: the training domains have one sample per class, so that none can be held out.")
    trained = train(
        model,
        JoinedSamples(training),
        JoinedSamples({**held_out, target: domains[target]}),
        out=out,
        recipe=replace(recipe, seed=seed),
        loss=loss,
        weights=weights,
        record=("test",),
        device=device,
        overwrite=overwrite,
        progress=progress,
    )
    dynamics = Dynamics(trained.path / "test")
    # Not by the prefix alone: a domain may be called "held out", too.
    correct, inside = dynamics.matrix("correct"), np.isin(np.asarray(dynamics.ids), np.asarray(validating.ids))
    validated, tested = (np.nanmean(correct[rows], axis=0) for rows in (inside, ~inside))
    return DomainRun(target, validated, tested, trained.path)


def _check_domain(name: str, domains: Mapping[str, Samples], option: str) -> None:
    if not isinstance(name, str) or name not in domains:
        raise InputError(f"{option}: there is no domain {name!r}; {did_you_mean(name, domains)}")


def _held_out_rows(labels: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    """Which samples to hold out: a share of each class, at least one sample and never all."""
    rows = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        rows[members[: min(max(1, round(share * len(members))), len(members) - 1)]] = True
    return rows


def best_option(
    model: str | nn.Module | Model,
    domains: Mapping[str, Samples],
    target: str,
    options: Mapping[str, Mapping[str, Any]],
    *,
    out: str | Path,
    selection: Literal["train-domain", "leave-one-domain-out"] = "train-domain",
    **settings: Any,
) -> tuple[str, DomainRun]:
    """The best of some options (a scale, a rate, a loss), selected without the test domain, and the training with it.

    Args:
        model, domains, target: As for `leave_one_out`.
        options: By name, arguments of `leave_one_out`, such as ``{"8": {"loss": "avh:8"}, "16": {"loss": "avh:16"}}``.
        out: Folder for the trainings: ``out/OPTION``, and ``out/OPTION-without-DOMAIN``.
        selection: ``train-domain``: by the best epoch's accuracy on the held-out part of the training domains;
            ``leave-one-domain-out``: by the mean accuracy on each training domain when it is also left out.
        settings: Further arguments of `leave_one_out`, for every option.
    """
    check_choice(selection, ("train-domain", "leave-one-domain-out"), "selection")
    if not isinstance(options, Mapping) or not options or not all(isinstance(o, Mapping) for o in options.values()):
        raise InputError('options must be one or more mappings by name, such as {"8": {"loss": "avh:8"}}.')
    _check_domain(target, domains, "target")
    allowed = inspect.signature(leave_one_out).parameters.keys() - {"model", "domains", "target", "out", "without"}
    for name, arguments in options.items():
        if not isinstance(name, str) or Path(name).name != name or name == "..":
            raise InputError(f"options: a name must be a text that can name a folder, got {name!r}.")
        for argument in (*arguments, *(settings.keys() - {"without"})):
            if argument not in allowed:
                raise InputError(f"options: {name} sets {argument!r}; {did_you_mean(argument, sorted(allowed))}")
        if twice := settings.keys() & arguments.keys():
            raise InputError(f"options: {name} sets {min(twice)}, which is given for every option, too.")
    without = list(settings.pop("without", ()))

    def run(name: str, domain: str, left_out: Sequence[str]) -> DomainRun:
        folder = Path(out) / (name if domain == target else f"{name}-without-{domain}")
        return leave_one_out(model, domains, domain, out=folder, without=left_out, **settings, **options[name])

    if selection == "train-domain":
        runs = {name: run(name, target, without) for name in options}
        name = max(runs, key=lambda name: runs[name].validation.max())
        return name, runs[name]
    others = [domain for domain in domains if domain not in (target, *without)]
    means = {name: np.mean([run(name, other, [*without, target]).accuracy() for other in others]) for name in options}
    name = max(means, key=means.__getitem__)
    return name, run(name, target, without)
