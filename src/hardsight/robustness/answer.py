"""Accuracy under attack by ε and by hardness, what attacks do to the scores, and whether to believe the numbers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from hardsight.data import Samples, Source
from hardsight.devices import evaluating, find_device, loader_workers
from hardsight.errors import InputError
from hardsight.heads import capture, find_head, logits_of
from hardsight.models import Model, as_model
from hardsight.questions.answers import Answer, Note, point, row
from hardsight.registry import whole_number
from hardsight.robustness.attacks import ATTACKS, attack, check_eps, check_pixels, loss_gradient
from hardsight.robustness.masking import check_masking
from hardsight.robustness.pixels import pixel_source
from hardsight.scores import compute_scores
from hardsight.stats import mean_interval, share_interval

# Scores of clean and attacked images, at the label.
_SCORES = ("avh", "norm", "confidence")
# Default ε by norm, for gray and for color images.
_EPS = {
    "inf": ((0.05, 0.1, 0.2, 0.3), (1 / 255, 2 / 255, 4 / 255, 8 / 255)),
    "2": ((0.5, 1.0, 2.0, 3.0), (0.125, 0.25, 0.5, 1.0)),
}
# By norm: the attack without a scale that the others are checked against, and the name of the worst of all attacks.
_SCALELESS = {"inf": "pgd-margin", "2": "pgd-margin-l2"}
_WORST = {"inf": "worst", "2": "worst-l2"}
# Samples whose path is followed, and its first step in units of ε: 20 such steps together are as long as ε.
_FOLLOWED, _FIRST = 128, 0.1

_Key = tuple[str, str, float]
_ByEps = dict[str, dict[float, np.ndarray]]


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
    """Attack a network, and check whether the numbers can be believed.

    Random noise and an attack without a scale always run too, because they reveal gradient masking. A sample counts as
    right at ε only if no smaller ε fooled the network. The checks use paths from the image itself, because random
    starts hide useless gradients. Passing them is no proof: mild masking passes, and more steps find more.

    Args:
        model: The network with its preprocessing.
        samples: The labeled data set.
        attacks: Names in `ATTACKS`.
        eps: Distances in pixel units. Default: 0.05, 0.1, 0.2, 0.3 for gray and 1, 2, 4, 8 / 255 for color images;
            under L2, 0.5, 1, 2, 3 and 0.125, 0.25, 0.5, 1.
        limit: Largest number of samples to attack, drawn by the seed.
        hardness: ``(len(samples),)`` values to bin by; the AVH of the clean images by default.
        bins: Number of bins, with equally many samples each.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        batch_size: Samples per batch; changes the results of autoattack only.
        workers: Loader processes, for data that are not arrays.
        seed: Seed of the samples and of the attacks' random draws.
        progress: Show a bar (only ever in a terminal).

    Returns:
        Rows ``accuracy`` by attack and ε (``worst``: under all attacks) with Wilson's interval, ``sanity`` at an ε that
        allows any image, ``accuracy_bin1`` (the easiest) … by hardness, and ``avh``, ``norm``, ``confidence`` at the
        label of clean and attacked images. Curves ``attack``, ``hardness`` and ``trajectory``. Columns are NaN for
        samples that were not drawn.

    Examples:
        >>> from hardsight.data import open_data
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> answer = robustness_answer(net, open_data("digits"), attacks=["fgsm"], eps=[0.5], limit=50, device="cpu")
        >>> [row["score"] for row in answer.rows if row["metric"] == "accuracy"]
        ['clean', 'fgsm', 'pgd-margin', 'noise', 'worst']
    """
    check_attacks(attacks, eps)
    norms = dict.fromkeys(ATTACKS[name].norm for name in attacks)
    names = dict.fromkeys([*attacks, *(_SCALELESS[norm] for norm in norms), *(["noise"] if "inf" in norms else [])])
    limit, bins = whole_number("limit", limit, 1), whole_number("bins", bins, 1)
    where, n = find_device(device), len(samples)
    network, source = pixel_source(as_model(model), samples, where, loader_workers(workers, where))
    if hardness is not None and (np.shape(hardness) != (n,) or not np.isfinite(hardness).all()):
        raise InputError(f"hardness must hold {n:,} finite numbers, one per sample, got {np.shape(hardness)}.")
    drawn = torch.from_numpy(np.sort(np.random.default_rng(seed).permutation(n)[:limit]))
    parts = drawn.split(whole_number("batch_size", batch_size, 1))
    rows, results = _measure(network, source, parts, list(names), eps, seed, progress)

    correct = _correct(results["right"])
    columns = {("accuracy", name, level): values for name, level, values in _flat(correct)}
    for name, level, scores in _flat(results["scores"]):
        columns |= {(metric, name, level): scores[:, i] for i, metric in enumerate(_SCORES)}
    hardness = columns["avh", "clean", 0.0] if hardness is None else np.asarray(hardness)[rows]
    groups = np.array_split(np.argsort(hardness, kind="stable"), min(bins, len(rows)))
    means = columns | {("sanity", name, level): values for name, level, values in _flat(results["reached"])}
    binned = {name: levels for name, levels in correct.items() if name in ("clean", *_WORST.values())}
    means |= {
        (f"accuracy_bin{i}", name, level): values[group]
        for name, level, values in _flat(binned)
        for i, group in enumerate(groups, 1)
    }
    claims = {("accuracy", name) for name in (*attacks, *_WORST.values())}
    every = np.full((len(columns), n), np.nan)
    every[:, rows] = list(columns.values())
    return Answer(
        [
            row("robustness", metric, values.mean(), score=name, level=level, **_interval(values),
                better="higher" if (metric, name) in claims else "")
            for (metric, name, level), values in means.items()
        ],
        [
            point("robustness", curve, x, values.mean(), score=score, **_interval(values))
            for curve, x, score, values in _curves(correct, binned, groups, hardness, results["path"])
        ],
        {f"{metric}:{name}@{level:g}": column for (metric, name, level), column in zip(columns, every, strict=True)},
        list(_notes(results, n, seed, source.labels[torch.from_numpy(rows)])),
    )  # fmt: skip


def check_attacks(attacks: Sequence[str], eps: Sequence[float] | None) -> None:
    """Refuse unknown attacks, and ε that are not distances."""
    if isinstance(attacks, str) or not len(attacks):
        raise InputError(f"attacks must be a list of names such as ('fgsm', 'pgd'), got {attacks!r}.")
    for norm in {ATTACKS[name].norm for name in attacks}:
        for value in eps or ():
            check_eps(value, norm)
    if eps is not None and not any(eps):
        raise InputError(f"eps must hold a distance above 0, got {list(eps)}.")


def _flat(by_eps: _ByEps) -> Iterator[tuple[str, float, np.ndarray]]:
    return ((name, level, values) for name, levels in by_eps.items() for level, values in levels.items())


def _interval(values: np.ndarray) -> dict[str, Any]:
    """Wilson's interval for a share, Student's for any other mean."""
    n = len(values)
    low, high = share_interval(values.sum(), n) if values.dtype == bool else mean_interval(values)
    return {"low": low, "high": high, "n": n}


def _correct(right: _ByEps) -> _ByEps:
    """Whether each sample is right at each ε and below: the larger ball contains the smaller."""
    clean = right["clean"][0.0]
    correct = {
        name: dict(zip(levels, np.logical_and.accumulate([clean, *levels.values()])[1:], strict=True))
        for name, levels in right.items()
    }
    for norm, worst in _WORST.items():
        same_norm = [correct[name] for name in right if name != "clean" and ATTACKS[name].norm == norm]
        if same_norm:
            correct[worst] = {eps: np.all([levels[eps] for levels in same_norm], axis=0) for eps in same_norm[0]}
    return correct


def _curves(
    correct: _ByEps, binned: _ByEps, groups: list[np.ndarray], hardness: np.ndarray, paths: _ByEps
) -> Iterator[tuple[str, float, str, np.ndarray]]:
    """The curve, x, the score, and the values of which y is the mean."""
    for name in list(correct)[1:]:
        for level, values in (correct["clean"] | correct[name]).items():
            yield "attack", level, name, values
    for name, level, values in _flat(binned):
        for group in groups:
            yield "hardness", hardness[group].mean(), f"{name} at {level:.3g}" if level else name, values[group]
    for name, _, path in _flat(paths):
        for i, metric in enumerate((*_SCORES, "fooled")):
            for step, values in enumerate(path[:, :, i].T):
                yield "trajectory", step, f"{metric} {name}", values


def _notes(results: dict[str, _ByEps], n: int, seed: int, labels: Tensor) -> Iterator[Note]:
    which = f"all {n:,} samples" if len(labels) == n else f"{len(labels):,} of {n:,} samples, drawn by seed {seed},"
    text = f"Attacked {which} with {', '.join(list(results['right'])[1:])}. ε is in pixel values from 0 to 1. A sample "
    yield Note("attacks", f"{text}that is fooled at one ε counts as fooled at every larger one.")
    yield from _masking_notes(results)
    if len(labels.unique()) == 1:
        yield Note("one class", f"All attacked samples are of class {int(labels[0])}.")
    clean = results["scores"]["clean"][0.0].mean(0)
    for name, eps, path in _flat(results["path"]):
        fooled = path[:, :, 3].mean(0)
        if fooled[-1]:  # App. G and Fig. 22 of the AVH paper
            means = zip(_SCORES, clean, results["scores"][name][eps].mean(0), strict=False)
            changes = ", ".join(f"{metric} {before:.3g} → {after:.3g}" for metric, before, after in means)
            text = (
                f"{name} at ε = {eps:.3g}: {changes} (means at the label). AVH follows human hardness on natural "
                f"images only (AVH paper, App. G). Of {len(path)} samples followed over {len(fooled) - 1} steps, "
                f"{fooled[-1]:.0%} are fooled, half of them by step {int((fooled >= fooled[-1] / 2).argmax())}."
            )
            yield Note(f"scores under attack: {name}", text)


def _masking_notes(results: dict[str, _ByEps]) -> list[Note]:
    """The verdicts on gradient masking; a network that always predicts one class needs none."""
    clean, pred = results["right"]["clean"][0.0], results["pred"]["clean"][0.0]
    under_attack = [values for kind in ("right", "reached") for _, _, values in _flat(results[kind])]
    if not np.ptp(pred) and not any((values != clean).any() for values in under_attack):
        text = f"The network predicts class {pred[0]} for every image, attacked or not, which is not robustness."
        return [Note("one class predicted", text)]
    flat, unsteady = {loss: by_eps[0.0] for loss, by_eps in results["flat"].items()}, results["unsteady"]["clean"][0.0]
    options = {"ends": results["end"], "reached": results["reached"], "flat": flat, "unsteady": unsteady}
    verdicts = check_masking(clean, results["survived"], **options)
    if failed := [verdict for verdict in verdicts if not verdict.passed]:
        return [Note(f"gradient masking: {verdict.name}", verdict.sentence, "warn") for verdict in failed]
    passed = ", ".join(verdict.name for verdict in verdicts)
    text = f"No sign of gradient masking: passed {passed}. This is no proof: another attack may find more."
    return [Note("no gradient masking", text)]


# ---------------------------------------------------------------------------------------------------------------------
# The attacks, batch by batch. Results are by kind, attack (or "clean", or a loss) and ε:
#   scores    (N, 4) `_SCORES` at the label and whether the network is fooled, for clean images and the scaleless attack
#   right     (N,) whether the network is right all along the attack; survived: along its first path; end: at its end
#   reached   (N,) as survived, at an ε that allows any image, for attacks of several steps
#   path      (M, steps + 1, 4) scores along the scaleless attack at the largest ε, for the first M right samples
#   pred, unsteady, flat  (N,) of clean images: the class, whether a second pass differs, whether a gradient is 0


class _Batch(NamedTuple):
    """A batch of samples and the network under attack; `inner` is the part of it that has the head."""

    network: nn.Module
    inner: nn.Module
    rows: Tensor
    x: Tensor
    y: Tensor

    def clean(self) -> Iterator[tuple[_Key, Tensor]]:
        scores, logits = self.scores()
        yield ("scores", "clean", 0.0), scores
        yield ("pred", "clean", 0.0), logits.argmax(1)
        yield ("right", "clean", 0.0), logits.argmax(1) == self.y
        for loss in ("ce", "margin"):
            again, gradient = loss_gradient(self.network, self.x, self.y, loss)
            yield ("flat", loss, 0.0), ~gradient.flatten(1).any(1)
        spread = (logits.amax(1) - logits.amin(1)).clamp_min(torch.finfo(torch.float32).tiny)
        # More than what the order of sums changes on a GPU.
        yield ("unsteady", "clean", 0.0), (again - logits).abs().amax(1) > 1e-3 * spread

    def attacked(self, name: str, levels: Sequence[float], seed: int, right: Tensor) -> Iterator[tuple[_Key, Tensor]]:
        norm, loss, steps = ATTACKS[name].norm, ATTACKS[name].loss, ATTACKS[name].steps
        for eps in levels:
            result = attack(self.network, self.x, self.y, name, eps=eps, seed=seed, rows=self.rows)
            yield ("right", name, eps), result.logits.argmax(1) == self.y
            yield ("survived", name, eps), result.survived
            yield ("end", name, eps), result.end.argmax(1) == self.y
            if name == _SCALELESS[norm]:
                yield ("scores", name, eps), self._replace(x=result.x).scores()[0]
        if loss is not None and steps > 1:
            eps = 1.0 if norm == "inf" else math.sqrt(self.x[0].numel())
            yield ("reached", name, eps), attack(self.network, self.x, self.y, name, eps=eps, restarts=0).survived
        if name == _SCALELESS[norm] and len(right):
            x, y, eps = self.x[right], self.y[right], levels[-1]
            path = attack(self.network, x, y, name, eps=eps, first=_FIRST, restarts=0, track=True).trajectory
            yield ("path", name, eps), torch.stack([self._replace(x=x, y=y).scores()[0] for x in path], 1)  # pyrefly: ignore

    def scores(self) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), capture(self.inner, find_head(self.inner).path) as head:
            logits = logits_of(self.network, self.x).float()
            scores = compute_scores(head.features.float(), head.weight.float(), self.y, head.bias, _SCORES)
        fooled = (logits.argmax(1) != self.y).float()
        return torch.stack([*(scores[name] for name in _SCORES), fooled], 1), logits


def _measure(
    network: nn.Module,
    source: Source,
    parts: Sequence[Tensor],
    attacks: Sequence[str],
    eps: Sequence[float] | None,
    seed: int,
    progress: bool,
) -> tuple[np.ndarray, dict[str, _ByEps]]:
    """The rows of the samples that could be read, and the results for them."""
    batches: list[dict[_Key, Tensor]] = []
    rows, followed = [], 0
    bar = tqdm(total=len(parts) * len(attacks), unit=" attacks", desc="attacking", disable=None if progress else True)
    with evaluating(network, source.device), bar:
        for at, x, y, _ in source.batches(parts):
            check_pixels(x, "DATA after the preprocessing")
            batch = _Batch(network, source.model.module, at, x, y)
            measured = dict(batch.clean())
            right = measured["right", "clean", 0.0].nonzero()[: _FOLLOWED - followed, 0]
            for name in attacks:
                norm, color = ATTACKS[name].norm, x.ndim == 4 and x.shape[1] > 1
                levels = sorted({float(value) for value in eps or _EPS[norm][color] if value})
                measured |= batch.attacked(name, levels, seed, right)
                bar.update()
            followed += len(right)
            rows.append(at)
            batches.append(measured)
    results: dict[str, _ByEps] = defaultdict(lambda: defaultdict(dict))
    for key in dict.fromkeys(key for batch in batches for key in batch):
        values = torch.cat([batch[key] for batch in batches if key in batch]).cpu().numpy()
        results[key[0]][key[1]][key[2]] = values
    return torch.cat(rows).numpy(), results
