"""Is AVH slower to change than the norm in adversarial training? (AVH, appendix G, which gives no numbers.)

Small CNNs with 128 features are trained by Adam on images as they are, or on the worst that PGD along the logit margin
makes of them. Mean norm and AVH of clean test images are measured at equal distances from the first step to the last.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from hardsight.questions.attacks import attack
from hardsight.scores import compute_scores
from hardsight.studies.declared.adversarial_path import halfway
from hardsight.studies.declared.small_networks import fit, plain_cnn, split_pixels
from hardsight.studies.declared.training import embed
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

_POINTS = 50  # at which norm and AVH are measured
_TEST = 1000
_TRAINING_STEPS, _TEST_STEPS = 5, 40  # of the attacks


@STUDIES.register(
    "adversarial-training",
    question="Is AVH slower to change than the norm in adversarial training?",
    paper="AVH, appendix G",
    factors={"training": ("plain", "adversarial")},
    measures={
        "avh_half": Measure("Share of the training after which mean AVH has made half of its change", True),
        "norm_half": Measure("Share of the training after which the mean norm has made half of its change", True),
        "accuracy": Measure("Accuracy", True, "higher"),
        "attacked": Measure("Accuracy under attack", True, "higher"),
        "avh": Measure("Mean C·AVH when it was last measured", better="lower"),
        "norm": Measure("Mean norm when it was last measured"),
    },
    scales={
        "smoke": Scale(2, 3, settings={"data": "digits", "steps": 100, "eps": 0.1, "lr": 3e-3}),
        "quick": Scale(5, 120, settings={"data": "mnist.npz", "steps": 2000, "eps": 0.1, "lr": 1e-3}),
    },
    compare="training",
    baseline="plain",
)
def _measured(cell: Cell) -> dict[str, float]:
    settings = cell.settings
    training, (pixels, labels), classes = split_pixels(cell.file(settings["data"]), str(cell.device))
    test, y = pixels[:_TEST], labels[:_TEST]
    build = partial(plain_cnn, len(classes), pixels.shape[1])
    worst = partial(attack, name="pgd-margin", eps=settings["eps"])
    course: list[tuple[float, float]] = []
    every, step = max(1, settings["steps"] // _POINTS), 0

    def measure(net: nn.Module) -> None:
        nonlocal step
        if step % every == 0:
            features, _, weight, bias = embed(net, test)  # the network has neither dropout nor batch norm
            scores = compute_scores(features, weight, y, bias, ("avh", "norm"))
            course.append((len(classes) * scores["avh"].mean().item(), scores["norm"].mean().item()))
        step += 1

    def attacked(net: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        return worst(net, x, target, steps=_TRAINING_STEPS, restarts=0).x

    before = attacked if cell.levels["training"] == "adversarial" else None
    options: dict[str, Any] = {"before": before, "after": measure}
    net = fit(build, *training, settings["steps"], 128, settings["lr"], cell.seed, **options)
    values, last = np.array(course), len(course) - 1
    avh_half, norm_half = halfway(values, np.array([last, last])) / last
    hardest = worst(net, test, y, steps=_TEST_STEPS)
    return {
        "avh_half": float(avh_half), "norm_half": float(norm_half), "avh": course[-1][0], "norm": course[-1][1],
        "accuracy": (embed(net, test).logits.argmax(1) == y).double().mean().item(),
        "attacked": (hardest.logits.argmax(1) == y).double().mean().item(),
    }  # fmt: skip
