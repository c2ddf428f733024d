"""The ways to label and to choose target samples, by name: CBST, CRST, and both with any score that selects.

Where paper, slides and released code differ, this was chosen:

- AVH's Eq. 4 takes labels from the softmax and selects by AVC; its slides take both from AVC; its introduction
  speaks of both, too. ``cbst+avh`` is Eq. 4, ``cbst+avh-slides`` the slides, ``cbst+avh-hybrid`` what is left.
  Behind any other method ``+avh`` means AVC, too: the paper's "AVH" always selects by AVC.
- CRST's released code multiplies the weight of MRKLD twice, so that its .1 acts as .01. Here it is applied once, as
  printed, and is .1; ``dataclasses.replace(METHODS["crst"], mrkld=0.01)`` is what the released code did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hardsight.errors import InputError
from hardsight.registry import Registry, did_you_mean

_CBST = "Zou et al., Class-Balanced Self-Training, ECCV 2018"
_CRST = "Zou et al., Confidence Regularized Self-Training, ICCV 2019"
_AVH = "Chen et al., Angular Visual Hardness, ICML 2020"

RULES = ("softmax", "avc")  # what can give labels: a confidence of every class


@dataclass(frozen=True)
class Method:
    """How target samples are labeled and chosen; data only, see `hardsight.adaptation.selection.select`.

    Attributes:
        name: What it is called.
        label_by: The confidence that gives labels: ``"softmax"`` or ``"avc"`` (angular visual confidence).
        select_by: What must be high for a sample to be chosen: ``"softmax"``, ``"avc"``, or the name of any score.
        soft: LRENT's soft labels in place of one class per sample.
        alpha: How soft LRENT's are: 0 would be one class per sample.
        mrkld: Weight of MRKLD, which draws predictions on chosen samples to the uniform distribution.
        summary: What it is, in one line.
        reference: Where it comes from.
    """

    name: str
    label_by: str = "softmax"
    select_by: str = "softmax"
    soft: bool = False
    alpha: float = 0.25
    mrkld: float = 0.0
    summary: str = ""
    reference: str = ""


METHODS: Registry[Method] = Registry("self-training method")
METHODS.update(
    (method.name, method)
    for method in (
        Method("cbst", summary="Labels and selection by the softmax.", reference=_CBST),
        Method(
            "crst",
            soft=True,
            mrkld=0.1,
            summary="CBST with soft labels (LRENT) and a regularised network (MRKLD): what AVH's paper calls CRST.",
            reference=_CRST,
        ),
        Method("crst-mrkld", mrkld=0.1, summary="CBST with a regularised network (MRKLD).", reference=_CRST),
        Method("crst-lrent", soft=True, summary="CBST with soft labels (LRENT).", reference=_CRST),
        Method(
            "cbst+avh", select_by="avc", summary="Labels by the softmax, selection by AVC.", reference=f"{_AVH}, Eq. 4"
        ),
        Method(
            "cbst+avh-slides",
            label_by="avc",
            select_by="avc",
            summary="Labels and selection by AVC.",
            reference=f"{_AVH}, slides of the talk",
        ),
        Method(
            "cbst+avh-hybrid",
            label_by="avc",
            summary="Labels by AVC, selection by the softmax.",
            reference="the fourth combination; in neither paper nor slides",
        ),
    )
)


def parse_method(method: str | Method) -> Method:
    """The method of that name, or one whose samples any score selects: ``"cbst+margin"``, ``"crst+angular_margin"``.

    Args:
        method: A name in `METHODS`; one of them without a ``+``, then ``+`` and the name of a score; or a `Method`,
            whose values are checked.

    Examples:
        >>> parse_method("cbst+avh").select_by
        'avc'
        >>> parse_method("crst+avh").select_by, parse_method("cbst+margin").select_by
        ('avc', 'margin')
    """
    from hardsight.scores import SCORES  # here, because names are wanted where torch is not

    if isinstance(method, Method):
        return _checked(method, tuple(SCORES))
    if method in METHODS:
        return METHODS[method]
    base, _, score = str(method).partition("+")
    if base in METHODS and score in SCORES:
        # What is kept for every class, and averaged over mirrored images, need not be computed again.
        rule = {"confidence": "softmax", "avh": "avc"}.get(score, score)
        named = f"As {base}, but {rule} selects."
        return replace(METHODS[base], name=str(method), select_by=rule, summary=named)
    names = dict.fromkeys([*METHODS, *(f"{base}+{score}" for base in METHODS if "+" not in base for score in SCORES)])
    raise InputError(f"there is no self-training method {method!r}; {did_you_mean(method, names)}")


def _checked(method: Method, scores: tuple[str, ...]) -> Method:
    if method.label_by not in RULES:
        raise InputError(f"label_by must be {' or '.join(RULES)}, got {method.label_by!r}.")
    if method.select_by not in (*RULES, *scores):
        raise InputError(f"select_by must be {', '.join(RULES)} or a score in SCORES, got {method.select_by!r}.")
    if not 0 < method.alpha < math.inf:
        raise InputError(f"alpha must be above 0, got {method.alpha}; leave it at 0.25 where labels are not soft.")
    if not 0 <= method.mrkld < math.inf:
        raise InputError(f"mrkld must be a weight of 0 or more, got {method.mrkld}; CRST's is 0.1.")
    return method
