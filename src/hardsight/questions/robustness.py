"""Robustness: accuracy under attack by ε and by hardness, what attacks do to the scores, and whether to believe it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from hardsight.devices import evaluating
from hardsight.errors import InputError
from hardsight.heads import capture, find_head, logits_of
from hardsight.printing import percent
from hardsight.questions.answers import Answer, mean_of
from hardsight.questions.attacks import ATTACKS, attack, check_eps, loss_gradient
from hardsight.questions.masking import check_masking
from hardsight.questions.pixels import check_pixels, pixel_model
from hardsight.questions.subject import QUESTIONS, CurveKind, Metric, Subject
from hardsight.registry import whole_number
from hardsight.scores import compute_scores

# Scores of clean and attacked images, at the label.
_SCORES = ("avh", "norm", "confidence")
# Default ε by norm, for gray and for color images.
_EPS = {
    "inf": ((0.05, 0.1, 0.2, 0.3), (1 / 255, 2 / 255, 4 / 255, 8 / 255)),
    "2": ((0.5, 1.0, 2.0, 3.0), (0.125, 0.25, 0.5, 1.0)),
}
# By norm: the scale-free attack that the others are checked against, and the name of the worst of all attacks.
_SCALELESS = {"inf": "pgd-margin", "2": "pgd-margin-l2"}
_WORST = {"inf": "worst", "2": "worst-l2"}
# Bins of hardness; samples whose path is followed; its first step in units of ε, so that 20 steps are as long as ε.
_BINS, _FOLLOWED, _FIRST = 4, 128, 0.1

_Key = tuple[str, str, float]
_ByEps = dict[str, dict[float, np.ndarray]]


def _prepare(options: Mapping[str, Any], samples: Any) -> list[dict[str, Any]]:
    """The attacks as a list; unknown ones, and ε that are not distances, are refused."""
    attacks, eps = options["attacks"], options["eps"]
    attacks = ATTACKS.names(attacks)
    if not attacks:
        raise InputError("attacks must name one attack or more.")
    for norm in {ATTACKS[name].norm for name in attacks}:
        for value in eps or ():
            check_eps(value, norm)
    if eps is not None and not any(eps):
        raise InputError(f"eps must hold a distance above 0, got {', '.join(map(str, eps)) or 'none'}.")
    return [{"attacks": attacks}]


@QUESTIONS.register(
    "robustness",
    title="Robustness",
    about="How many predictions stay correct when each image may be changed by ε? ε is in pixel values from 0 to 1, "
    "whatever the network's normalization. “worst” counts samples that resist every attack.",
    telling=(("accuracy", "clean"), ("accuracy", "worst"), ("accuracy", "worst-l2")),
    headline=(("accuracy", "worst"), ("accuracy", "worst-l2")),
    metrics={
        "accuracy": Metric(
            "accuracy", "%",
            ("{how} predictions of {group} stay correct under attack than of {baseline}", "more", "fewer"),
        ),
        "sanity": Metric("accuracy at an ε that allows any image", "%"),
        **{f"accuracy_bin{k}": Metric(f"accuracy, bin {k} by hardness", "%") for k in range(1, _BINS + 1)},
        "avh": Metric("mean AVH"),
        "norm": Metric("mean norm of the feature"),
        "confidence": Metric("mean confidence", "%"),
    },
    curves={
        "attack": CurveKind(
            "Accuracy under attack", "ε (pixel values from 0 to 1)", "accuracy", "%", 0, 1,
            note="It must fall to about 0 for large ε. If it does not, the attack failed, and the network is not "
            "robust.",
        ),
        "hardness": CurveKind(
            "Accuracy by hardness", "mean AVH of the bin", "accuracy", "%", 0, 1, "ranks",
            note="Samples in bins of equal size, the easiest on the left.",
        ),
        "trajectory": CurveKind(
            "Along an attack", "step", "mean",
            note="Means over the samples that were attacked, from the clean image at step 0.",
        ),
    },
    needs="attacks",
    prepare=_prepare,
    decided_by=lambda subject, options: subject.batches if "autoattack" in options["attacks"] else None,
)  # fmt: skip
def ask(
    subject: Subject,
    *,
    attacks: Sequence[str] = ("fgsm", "pgd", "pgd-margin"),
    eps: Sequence[float] | None = None,
    limit: int = 200,
    seed: int = 0,
) -> Answer:
    """Attack a network, and check whether the numbers can be believed.

    Random noise and an attack without a scale always run too, because they reveal gradient masking. A sample counts as
    right at ε only if no smaller ε fooled the network. The checks use paths from the image itself, because random
    starts hide useless gradients. Passing them is no proof: mild masking passes, and more steps find more.

    Args:
        subject: The network and its data.
        attacks: Names in `ATTACKS`.
        eps: Distances in pixel units. Default: 0.05, 0.1, 0.2, 0.3 for gray and 1, 2, 4, 8 / 255 for color images;
            under L2, 0.5, 1, 2, 3 and 0.125, 0.25, 0.5, 1.
        limit: Largest number of samples to attack, drawn by the seed.
        seed: Seed of the samples and of the attacks' random draws; the batch size changes the draws of autoattack only.

    Returns:
        Rows ``accuracy`` by attack and ε (``worst``: under all attacks), ``sanity`` at an ε that allows any image,
        ``accuracy_bin1`` (the easiest) … by AVH, and ``avh``, ``norm``, ``confidence`` at the label of clean and
        attacked images. Curves ``attack``, ``hardness`` and ``trajectory``. Columns are NaN for samples not drawn.
    """
    attacks, n = _prepare({"attacks": attacks, "eps": eps}, None)[0]["attacks"], len(subject.labels)
    norms = dict.fromkeys(ATTACKS[name].norm for name in attacks)
    names = dict.fromkeys([*attacks, *(_SCALELESS[norm] for norm in norms), *(["noise"] if "inf" in norms else [])])
    drawn = np.sort(np.random.default_rng(seed).permutation(n)[: whole_number("limit", limit, 1)])
    rows, results = _measure(subject, drawn, list(names), eps, seed)
    correct, hardness, answer = _correct(results["right"]), subject.avh[rows], Answer(question="robustness")
    for name, level, values in _flat(correct):
        better = "higher" if name in (*attacks, *_WORST.values()) else ""
        answer.mean("accuracy", values, score=name, level=level, better=better, rows=rows, count=n)
    for name, level, scores in _flat(results["scores"]):
        for i, metric in enumerate(_SCORES):
            answer.mean(metric, scores[:, i], score=name, level=level, rows=rows, count=n)
    for name, level, values in _flat(results["reached"]):
        answer.number("sanity", **mean_of(values), score=name, level=level)
    for name in list(correct)[1:]:
        levels = correct["clean"] | correct[name]
        answer.mean_curve("attack", list(levels), list(levels.values()), score=name)
    groups = np.array_split(np.argsort(hardness, kind="stable"), min(_BINS, len(rows)))
    for name, level, values in _flat({name: correct[name] for name in ("clean", *_WORST.values()) if name in correct}):
        for i, group in enumerate(groups, 1):
            answer.number(f"accuracy_bin{i}", **mean_of(values[group]), score=name, level=level)
        score, means = f"{name} at {level:.3g}" if level else name, [hardness[group].mean() for group in groups]
        answer.mean_curve("hardness", means, [values[group] for group in groups], score=score)
    for name, _, path in _flat(results["path"]):
        for i, metric in enumerate((*_SCORES, "fooled")):
            answer.mean_curve("trajectory", range(path.shape[1]), path[:, :, i].T, score=f"{metric} {name}")
    _add_notes(answer, results, subject.labels[rows], n, seed)
    return answer


def _flat(by_eps: _ByEps) -> Iterator[tuple[str, float, np.ndarray]]:
    return ((name, level, values) for name, levels in by_eps.items() for level, values in levels.items())


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


def _add_notes(answer: Answer, results: dict[str, _ByEps], labels: np.ndarray, n: int, seed: int) -> None:
    which = f"all {n:,} samples" if len(labels) == n else f"{len(labels):,} of {n:,} samples, drawn by seed {seed},"
    text = f"Attacked {which} with {', '.join(list(results['right'])[1:])}. ε is in pixel values from 0 to 1. A sample "
    answer.note("attacks", f"{text}that is fooled at one ε counts as fooled at every larger one.")
    clean, pred = results["right"]["clean"][0.0], results["pred"]["clean"][0.0]
    under_attack = [values for kind in ("right", "reached") for _, _, values in _flat(results[kind])]
    if not np.ptp(pred) and not any((values != clean).any() for values in under_attack):
        text = f"The network predicts class {pred[0]} for every image, attacked or not, which is not robustness."
        answer.note("one class predicted", text)
    else:
        verdicts = check_masking(
            clean, results["survived"], ends=results["end"], reached=results["reached"],
            flat={loss: by_eps[0.0] for loss, by_eps in results["flat"].items()},
            unsteady=results["unsteady"]["clean"][0.0],
        )  # fmt: skip
        for verdict in verdicts:
            if not verdict.passed:
                answer.note(f"gradient masking: {verdict.name}", verdict.sentence, "warn")
        if all(verdict.passed for verdict in verdicts):
            passed = ", ".join(verdict.name for verdict in verdicts)
            text = f"No sign of gradient masking: passed {passed}. This is no proof: another attack may find more."
            answer.note("no gradient masking", text)
    if len(set(labels.tolist())) == 1:
        answer.note("one class", f"All attacked samples are of class {labels[0]}.")
    for name, eps, path in _flat(results["path"]):
        fooled = path[:, :, 3].mean(0)
        if fooled[-1]:  # App. G and Fig. 22 of the AVH paper
            means = [results["scores"][key][level].mean(0) for key, level in (("clean", 0.0), (name, eps))]
            changes = ", ".join(f"{metric} {a:.3g} → {b:.3g}" for metric, a, b in zip(_SCORES, *means, strict=False))
            text = (
                f"{name} at ε = {eps:.3g}: {changes} (means at the label). AVH follows human hardness on natural "
                f"images only (AVH paper, App. G). Of {len(path)} samples followed over {len(fooled) - 1} steps, "
                f"{percent(fooled[-1], 0)} are fooled, half of them by step {int((fooled >= fooled[-1] / 2).argmax())}."
            )
            answer.note(f"scores under attack: {name}", text)


# ---------------------------------------------------------------------------------------------------------------------
# The attacks, batch by batch. Results are by kind, attack (or "clean", or a loss) and ε:
#   scores    (N, 4) `_SCORES` at the label and whether the network is fooled, of clean images and the scale-free attack
#   right     (N,) whether the network is right all along the attack; survived: along its first path; end: at its end
#   reached   (N,) as survived, at an ε that allows any image, for attacks of several steps
#   path      (M, steps + 1, 4) scores along the scale-free attack at the largest ε, for the first M right samples
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
    subject: Subject, drawn: np.ndarray, attacks: Sequence[str], eps: Sequence[float] | None, seed: int
) -> tuple[np.ndarray, dict[str, _ByEps]]:
    """The samples that could be read, as indices of the predictions, and the results for them."""
    model = subject.network
    if not subject.data.pixels and model.takes != "items":  # tensors ready to use skip the preprocessing
        model = replace(model, transform=None, takes="any")
    loading, network = pixel_model(model)
    source, readable = subject.source(loading), subject.predictions.rows
    parts = torch.from_numpy(readable[drawn]).split(subject.forward.get("batch_size", 256))
    batches: list[dict[_Key, Tensor]] = []
    rows, followed = [], 0
    total, disable = len(parts) * len(attacks), None if subject.progress else True
    with (
        evaluating(network, source.device),
        tqdm(total=total, unit=" attacks", desc="attacking", disable=disable) as bar,
    ):
        for at, x, y, _ in source.batches(parts):
            check_pixels(x, "DATA after the preprocessing", least=2)
            batch = _Batch(network, source.model.module, at, x, y)
            results = dict(batch.clean())
            right = results["right", "clean", 0.0].nonzero()[: _FOLLOWED - followed, 0]
            for name in attacks:
                color = x.ndim == 4 and x.shape[1] > 1
                levels = sorted({float(value) for value in eps or _EPS[ATTACKS[name].norm][color] if value})
                results |= batch.attacked(name, levels, seed, right)
                bar.update()
            followed += len(right)
            rows.append(np.searchsorted(readable, at.numpy()))
            batches.append(results)
    joined: dict[str, _ByEps] = defaultdict(lambda: defaultdict(dict))
    for kind, name, level in dict.fromkeys(key for batch in batches for key in batch):
        values = [batch[kind, name, level] for batch in batches if (kind, name, level) in batch]
        joined[kind][name][level] = torch.cat(values).cpu().numpy()
    return np.concatenate(rows), joined
