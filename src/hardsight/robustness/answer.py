"""How robust a network is, in rows, curves and notes: accuracy under attack, by hardness, and whether to believe it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from hardsight.answers import Answer, Note, Point, Row, point, row
from hardsight.data import Samples
from hardsight.devices import find_device, loader_workers
from hardsight.errors import InputError
from hardsight.models import Model, as_model
from hardsight.robustness.attacks import ATTACKS, check_eps
from hardsight.robustness.masking import check_masking
from hardsight.robustness.measuring import SCALELESS, TOLD, Measured, measure
from hardsight.robustness.pixels import pixel_source
from hardsight.stats import moments, wilson

# By attack (or "clean", "worst") and ε, (N,) whether a sample is right.
Right = dict[str, dict[float, np.ndarray]]

# What no attack under a norm fools.
_WORST = {"inf": "worst", "2": "worst-l2"}


def robustness_answer(
    model: Model | nn.Module,
    samples: Samples,
    *,
    attacks: Sequence[str] = ("fgsm", "pgd", "pgd-margin"),
    eps: Sequence[float] | None = None,
    limit: int = 1000,
    hardness: np.ndarray | None = None,
    bins: int = 4,
    device: str | torch.device | None = None,
    batch_size: int = 500,
    workers: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Answer:
    """Attack a network, and say what the numbers are worth.

    Random noise and an attack without a scale are always among the attacks, because gradient masking shows against
    them. A sample counts as right at ε when no smaller ε fooled the network either. The checks look at raw numbers of
    paths that begin at the picture, because random starts hide that gradients lead nowhere. Passing them is no proof:
    mild masking (a hidden layer that saturates for some pictures) passes, and attacks with more steps find more.

    Args:
        model: The network with its preprocessing.
        samples: The data set, with labels.
        attacks: Names in `ATTACKS`.
        eps: Distances in pixel units; None: .05, .1, .2, .3 for gray pictures and 1, 2, 4, 8 / 255 for colored ones,
            and under L2 .5, 1, 2, 3 and .125, .25, .5, 1.
        limit: Attack so many samples at most, drawn by the seed.
        hardness: ``(len(samples),)`` what bins are made of; None: the AVH of the clean pictures.
        bins: How many, with equally many samples each.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        batch_size: Samples at a time; only autoattack's draws depend on it.
        workers: Loader processes, for data that are not arrays.
        seed: Of the samples and of what attacks draw.
        progress: Show a bar (only ever in a terminal).

    Returns:
        Rows ``accuracy`` by attack and ε (``worst``: no attack fools it) with Wilson's interval, ``sanity`` at an ε
        that allows any picture, ``accuracy_bin1`` (the easiest) … by hardness, and ``avh``, ``norm``, ``confidence`` at
        the label of clean and attacked pictures. Curves ``attack``, ``hardness`` and ``trajectory``. Columns are NaN
        for samples that were not drawn.

    Examples:
        >>> from hardsight.data import open_data
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> answer = robustness_answer(net, open_data("digits"), attacks=["fgsm"], eps=[0.5], limit=50, device="cpu")
        >>> [row["score"] for row in answer.rows if row["metric"] == "accuracy"]
        ['clean', 'fgsm', 'pgd-margin', 'noise', 'worst']
    """
    every, where = _with_checks(attacks, eps), find_device(device)
    eps = None if eps is None else [value for value in dict.fromkeys(map(float, eps)) if value]
    for name, value in (("limit", limit), ("bins", bins), ("batch_size", batch_size)):
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be 1 or more, got {value!r}.")
    made, source = pixel_source(as_model(model), samples, where, loader_workers(workers, where))
    if hardness is not None and (np.shape(hardness) != (len(samples),) or not np.isfinite(hardness).all()):
        raise InputError(f"hardness must hold {len(samples):,} finite numbers, one a sample, got {np.shape(hardness)}.")
    chosen = np.sort(np.random.default_rng(seed).permutation(len(samples))[:limit])
    found = measure(made.network, source, chosen, every, eps, batch_size=batch_size, seed=seed, progress=progress)

    right = _right(found)
    order = found.told["clean"][0.0][:, 0] if hardness is None else np.asarray(hardness)[found.rows]
    groups = np.array_split(np.argsort(order, kind="stable"), min(bins, len(order)))
    columns = {("accuracy", name, at): values for name, by in right.items() for at, values in by.items()}
    for name, by in found.told.items():
        columns |= {(metric, name, at): told[:, i] for at, told in by.items() for i, metric in enumerate(TOLD)}
    numbers = columns | {("sanity", name, at): v for name, by in found.reached.items() for at, v in by.items()}
    rows = [_row(*key, values, key[1] in (*attacks, *_WORST.values())) for key, values in numbers.items()]
    bars = list(_by_hardness(right, groups, order))
    rows += [bar for bar, _ in bars]
    points = [*_curves(right), *(dot for _, dot in bars), *_paths(found)]
    notes = [
        Note("attacks", _made(found, len(samples), seed)),
        *_verdicts(found),
        *_single_class(source.labels[torch.from_numpy(found.rows)]),
        *_limits(found),
    ]
    whole = {f"{m}:{name}@{at:g}": _spread(v, found.rows, len(samples)) for (m, name, at), v in columns.items()}
    return Answer(rows, points, whole, notes)


def _with_checks(attacks: Sequence[str], eps: Sequence[float] | None) -> list[str]:
    """The attacks, and those that gradient masking shows against; or a sentence."""
    if isinstance(attacks, str) or not len(attacks):
        raise InputError(f"attacks must be a list of names, ('fgsm', 'pgd') say, got {attacks!r}.")
    norms = dict.fromkeys(ATTACKS[name].norm for name in attacks)
    if eps is not None:
        for value in eps:
            for norm in norms:
                check_eps(value, norm)
        if not any(eps):
            raise InputError(f"eps must hold a distance above 0, got {list(eps)}.")
    return list(dict.fromkeys([*attacks, *(SCALELESS[n] for n in norms), *(["noise"] if "inf" in norms else [])]))


def _right(found: Measured) -> Right:
    """What is right at each ε: never more at a larger one, because the larger ball holds the smaller."""
    right: Right = {"clean": {0.0: found.clean}}
    for name, levels in found.eps.items():
        still = found.clean
        for at in levels:
            still = still & found.left[name][at]
            right.setdefault(name, {})[at] = still
    for norm, worst in _WORST.items():
        by = [right[name] for name in found.eps if ATTACKS[name].norm == norm]
        if by:
            right[worst] = {at: np.all([one[at] for one in by], axis=0) for at in by[0]}
    return right


def _row(metric: str, score: str, level: float, values: np.ndarray, claimed: bool = False) -> Row:
    """A mean with its interval: Wilson's of a share, Student's of anything else."""
    if values.dtype == bool:
        low, high = wilson(values.sum(), np.array(len(values)))
    else:
        low, high = moments(values, np.zeros(len(values), int), 1).interval()
    better = "higher" if claimed and metric == "accuracy" else ""
    ends = {"low": float(low.item()), "high": float(high.item())}
    return row("robustness", metric, values.mean(), score=score, level=level, **ends, n=len(values), better=better)


def _point(curve: str, x: float, score: str, told: Row) -> Point:
    ends = {"low": told["low"], "high": told["high"]}
    return point("robustness", curve, x, told["value"], score=score, **ends, n=told["n"])


def _by_hardness(right: Right, groups: list[np.ndarray], order: np.ndarray) -> Iterator[tuple[Row, Point]]:
    """Accuracy in bins of hardness, clean and against everything."""
    for name in ("clean", *_WORST.values()):
        for at, values in right.get(name, {}).items():
            for i, members in enumerate(groups):
                told = _row(f"accuracy_bin{i + 1}", name, at, values[members])
                yield told, _point("hardness", order[members].mean(), f"{name} at {at:.3g}" if at else name, told)


def _curves(right: Right) -> Iterator[Point]:
    for name in list(right)[1:]:
        for at, values in (right["clean"] | right[name]).items():
            yield _point("attack", at, name, _row("accuracy", name, at, values))


def _paths(found: Measured) -> Iterator[Point]:
    """Means of the samples that were followed, step by step."""
    for name, path in found.paths.items():
        for i, metric in enumerate((*TOLD, "fooled")):
            for step, values in enumerate(path[:, :, i]):
                yield _point("trajectory", step, f"{metric} {name}", _row(metric, name, step, values))


# ---------------------------------------------------------------------------------------------------------------------
# Notes.


def _made(found: Measured, count: int, seed: int) -> str:
    n = len(found.rows)
    whole = f"all {count:,} samples" if n == count else f"{n:,} of {count:,} samples, drawn by seed {seed},"
    by_norm = {ATTACKS[name].norm: levels for name, levels in found.eps.items()}
    levels = " and ".join(
        f"ε = {', '.join(f'{at:.3g}' for at in levels)} under {'L∞' if norm == 'inf' else 'L2'}"
        for norm, levels in by_norm.items()
    )
    return (
        f"Attacked: {whole} by {', '.join(found.eps)}, {levels}, in pixel values from 0 to 1. A sample that falls at "
        "one ε counts as fallen at larger ones."
    )


def _verdicts(found: Measured) -> list[Note]:
    """What the checks say; of a network that always says the same there is nothing to check."""
    changed = [(v != found.clean).any() for by in (*found.left.values(), *found.reached.values()) for v in by.values()]
    if not np.ptp(found.pred) and not any(changed):
        text = f"The network says class {found.pred[0]} of every picture, attacked or not, which is no robustness."
        return [Note("one class predicted", text)]
    verdicts = check_masking(
        found.clean, found.held, ends=found.end, reached=found.reached, flat=found.flat, unsteady=found.unsteady
    )
    if failed := [verdict for verdict in verdicts if not verdict.passed]:
        return [Note(f"gradient masking: {verdict.name}", verdict.sentence, "warn") for verdict in failed]
    passed = ", ".join(verdict.name for verdict in verdicts)
    text = f"No sign of gradient masking: passed {passed}. That is no proof: another attack may find more."
    return [Note("no gradient masking", text)]


def _single_class(labels: torch.Tensor) -> list[Note]:
    text = f"All samples are of class {int(labels[0])}; of others nothing was seen."
    return [Note("one class", text)] if len(labels.unique()) < 2 else []


def _limits(found: Measured) -> Iterator[Note]:
    """What happens to AVH, norm and confidence: the AVH paper's App. G and Fig. 22."""
    clean = found.told["clean"][0.0].mean(0)
    for name, path in found.paths.items():
        at, norms, fooled = found.eps[name][-1], path[:, :, 1].mean(1), path[:, :, 3].mean(1)
        if not fooled[-1]:
            continue
        attacked = found.told[name][at].mean(0)
        changes = ", ".join(f"{m} {a:.3g} → {b:.3g}" for m, a, b in zip(TOLD, clean, attacked, strict=True))
        yield Note(
            f"scores under attack: {name}",
            f"{name} at ε = {at:.3g}: {changes} (means, at the label). To people little has changed: AVH follows human "
            f"hardness on natural pictures alone (AVH paper, App. G). Of {path.shape[1]} samples followed over "
            f"{len(path) - 1} steps {fooled[-1]:.0%} are fooled, half of these by step "
            f"{int((fooled >= fooled[-1] / 2).argmax())}; the mean norm is {norms[0]:.3g} first, {norms.min():.3g} at "
            f"step {int(norms.argmin())}, and {norms[-1]:.3g} last.",
        )


def _spread(values: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """A column over the whole data set: NaN for samples that were not attacked."""
    column = np.full(count, np.nan)
    column[rows] = values
    return column
