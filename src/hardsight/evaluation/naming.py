"""Titles of metrics and curves of an evaluation, and the format of their numbers; the questions define them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from hardsight.printing import number_text, percent
from hardsight.questions.subject import QUESTIONS, CurveKind, Metric


def _metric(metric: str, question: str = "") -> Metric:
    """How a metric is shown: from its question, or from any other that has it."""
    questions = [QUESTIONS[question]] if question in QUESTIONS else QUESTIONS.values()
    return next((entry.metrics[metric] for entry in questions if metric in entry.metrics), Metric())


def meaning(test: Mapping[str, Any], better: bool) -> str:
    """What a difference means, in plain English.

    Examples:
        >>> test = {"question": "ood", "metric": "fpr95", "group": "EL", "baseline": "CE"}
        >>> meaning(test, better=True)
        'EL accepts less OOD data than CE'
    """
    text, *ways = _metric(test["metric"], test["question"]).meaning
    return text.format(group=test["group"], baseline=test["baseline"], how=ways[not better])


def curve_kind(question: str, curve: str) -> CurveKind:
    """How a curve is drawn; unknown curves get plain titles."""
    curves = QUESTIONS[question].curves if question in QUESTIONS else {}
    return curves.get(curve) or CurveKind(curve.replace("_", " "), "", "")


def score_title(score: str) -> str:
    """The title of a score or an attack."""
    return re.sub(r" at ([\d.]+)$", lambda at: f" at ε = {_strength(float(at[1]))}", score.replace("_", " "))


def metric_title(metric: str) -> str:
    """The title of a metric."""
    return _metric(metric).title or metric.replace("_", " ")


def written(metric: str, value: float | None, signed: bool = False) -> str:
    """A metric's value with its unit, about four digits, and a real minus sign; differences in percentage points."""
    if value is None or not math.isfinite(value):
        return "–"
    plus, size = "+" if signed else "", abs(value)
    if _metric(metric).unit == "%":
        return number_text(100 * value, "+.2f") if signed else percent(value, 2)
    style = ",.0f" if size >= 1000 else ",.1f" if size >= 100 else ",.2f" if size >= 10 else ",.3f"
    return number_text(value, plus + (".2g" if size and not 0.0005 <= size < 1e6 else style))


def variant_title(score: str, on: str, level: float | None, question: str = "") -> str:
    """What tells the numbers of a metric apart: the score or attack, the OOD data set, and the level.

    Examples:
        >>> variant_title("max_logit", "noise", None), variant_title("pgd", "", 8 / 255)
        ('max logit · noise', 'pgd · ε = 8/255')
        >>> variant_title("contrast", "", 0.3, "degradation")
        'contrast · level 0.3'
    """
    name = QUESTIONS[question].level if question in QUESTIONS else "ε"
    at = ""
    if level is not None and math.isfinite(level):
        at = f"{name} {level:g}" if name != "ε" else f"ε = {_strength(level)}" if level > 0 else ""
    return " · ".join(part for part in (score_title(score), on, at) if part)


def number_title(metric: str, score: str, on: str, level: float | None, question: str = "") -> str:
    """A metric and its variant."""
    return ", ".join(filter(None, (metric_title(metric), variant_title(score, on, level, question))))


def _strength(eps: float) -> str:
    """ε as usually written: 8/255, 0.3."""
    steps = 255 * eps
    of_bytes = eps < 0.1 and abs(steps - round(steps)) < 0.005 * steps
    return f"{steps:.0f}/255" if of_bytes else f"{eps:.3g}"
