"""Questions that still live in packages of their own; they move to `hardsight.questions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardsight.errors import InputError
from hardsight.questions.answers import Answer
from hardsight.questions.subject import QUESTIONS, CurveKind, Metric, Subject
from hardsight.runs import content_hash


def _prepare_attacks(options: Mapping[str, Any], samples: Any) -> list[dict[str, Any]]:
    from hardsight.robustness.attacks import ATTACKS, check_eps

    attacks, eps = options["attacks"], options["eps"]
    attacks = [attacks] if isinstance(attacks, str) else list(attacks)
    for norm in {ATTACKS[name].norm for name in attacks}:
        for value in eps or ():
            check_eps(value, norm)
    if eps is not None and not any(eps):
        raise InputError(f"eps must hold a distance above 0, got {', '.join(map(str, eps)) or 'none'}.")
    return [{"attacks": attacks}]


_UNDER_ATTACK = "{how} predictions of {group} stay correct under attack than of {baseline}", "more", "fewer"


@QUESTIONS.register(
    "robustness",
    title="Robustness",
    about="How many predictions stay correct when each image may be changed by ε? ε is in pixel values from 0 to 1, "
    "whatever the network's normalization. “worst” counts samples that resist every attack.",
    telling=(("accuracy", "clean"), ("accuracy", "worst"), ("accuracy", "worst-l2")),
    headline=(("accuracy", "worst"), ("accuracy", "worst-l2")),
    metrics={
        "accuracy": Metric("accuracy", "%", _UNDER_ATTACK),
        "sanity": Metric("accuracy at an ε that allows any image", "%"),
        **{f"accuracy_bin{k}": Metric(f"accuracy, bin {k} by hardness", "%") for k in range(1, 11)},
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
    prepare=_prepare_attacks,
    decided_by=lambda subject, options: subject.batches if "autoattack" in options["attacks"] else None,
)  # fmt: skip
def ask_robustness(
    subject: Subject,
    *,
    attacks: Sequence[str] = (),
    eps: Sequence[float] | None = None,
    limit: int = 200,
    seed: int = 0,
) -> Answer:
    """Attack the network."""
    from hardsight.robustness import robustness_answer

    return robustness_answer(
        subject.network, subject.readable, attacks=attacks, eps=eps, limit=limit, hardness=subject.avh, seed=seed,
        progress=subject.progress, **subject.forward,
    )  # fmt: skip


def _prepare_maps(options: Mapping[str, Any], samples: Any) -> list[dict[str, Any]]:
    from hardsight.explanation.boxes import read_boxes

    if options["boxes"] is not None:
        read_boxes(options["boxes"], samples)  # a mistake in them should not wait for the attacks
    return [{}]


def _content(subject: Subject, options: Mapping[str, Any]) -> str | None:
    boxes = options["boxes"]
    return content_hash(Path(boxes).read_bytes()) if isinstance(boxes, (str, Path)) and Path(boxes).is_file() else None


_MAPS = "the maps of {group} explain its predictions {how} than those of {baseline}", "better", "less well"


@QUESTIONS.register(
    "explanation",
    title="Explanation",
    about="Where does the network look: how small is the region, and does the decision depend on it?",
    telling=(("insertion", ""), ("deletion", ""), ("mass_inside", ""), ("area", "")),
    headline=(("mass_inside", ""),),
    metrics={
        "insertion": Metric(meaning=_MAPS),
        "deletion": Metric(meaning=_MAPS),
        "faithfulness": Metric(meaning=_MAPS),
        "infidelity": Metric(meaning=_MAPS),
        "area": Metric("area above half the maximum", "%"),
        "mass_inside": Metric(
            "share of the map inside the box", "%",
            ("{group} looks at the object {how} than {baseline}", "more", "less"),
        ),
        "entropy": Metric("entropy of the map"),
    },
    curves={
        "insertion": CurveKind(
            "Insertion", "share of the pixels shown", "probability of the class", "%", 0, 1,
            note="Pixels appear in the order of the map, highest first: the sooner the class is recognized, the "
            "better.",
        ),
        "deletion": CurveKind(
            "Deletion", "share of the pixels removed", "probability of the class", "%", 0, 1,
            note="Pixels are removed in the order of the map, highest first: the sooner the class is lost, the better.",
        ),
    },
    needs="explain",
    prepare=_prepare_maps,
    decided_by=_content,
)  # fmt: skip
def ask_explanation(subject: Subject, *, boxes: Any = None, limit: int = 500, seed: int = 0) -> Answer:
    """Class activation maps."""
    from hardsight.explanation import explanation_answer

    return explanation_answer(
        subject.network, subject.data, subject.predictions, limit=limit, seed=seed, boxes=boxes, **subject.forward
    )
