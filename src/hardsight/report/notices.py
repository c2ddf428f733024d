"""The top of the page, its title, tiles and warnings, and the table that says how the run was made."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from hardsight.chance import chance_agreement
from hardsight.report.formatting import between, counted, cut, cut_name, percent, score_title
from hardsight.report.label_errors import Suspects
from hardsight.report.rows import MANY_CLASSES, Rows
from hardsight.report.sections import Inputs, Notice, Section
from hardsight.runs import Counts, Folds
from hardsight.stats import FEW, LEVEL, mean_interval, moments, share_interval

_LENGTH = 400  # characters of a text from outside

_BADGES = {"out": "Out of sample", "in": "In sample", "unknown": "Perhaps in sample"}


class Sampling(NamedTuple):
    """Whether samples were scored by a network that had not seen them: ``out``, ``in`` or ``unknown``."""

    kind: str
    badge: str
    text: str
    level: str


def title(rows: Rows) -> str:
    """``resnet50 on folder photos``."""
    meta = rows.table.meta
    model = counted(len(meta.models), "net") if len(meta.models) > 1 else meta.model.name or "a network"
    return f"{cut_name(model)} on {cut_name(meta.data.origin or counted(len(rows), 'sample'))}"


def sampling(rows: Rows) -> Sampling:
    """How the samples were scored."""
    meta = rows.table.meta
    scored = meta.out_of_sample
    if scored:
        text = f"({cut(scored, 80)}): no sample was scored by a network that had learned its label."
        if isinstance(scored, Folds):
            seeds = f", {scored.seeds} seeds" if (scored.seeds or 1) > 1 else ""
            text = {
                "head": f"for the last layer ({scored.folds} folds{seeds}): it was refitted on the other folds. If the "
                "features below it were trained on these very labels, wrong ones still hide.",
                "model": f"({scored.folds} folds{seeds}): the whole network was retrained on the other folds, so no "
                "sample was scored by a network that had learned its label.",
            }.get(
                scored.retrained or "",
                f"({scored.folds} folds{seeds}), so no sample was scored by a network that had learned its label.",
            )
        return Sampling("out", _BADGES["out"], text, "info")
    text = "Scored by the network as given: if it was trained on these samples, wrong labels hide"
    if meta.recorded:
        note = f" ({cut(meta.note, 120)})" if meta.note else ""
        epochs = meta.recorded.epochs
        when = f"in {cut_name(meta.unit or 'epoch')} {epochs[-1]:,} of a training" if epochs else "during training"
        text = (
            f"Recorded {when}{note}. If the network was trained on these samples, memorized ones look easy and wrong "
            "labels hide"
        )
    kind = "in" if scored is False and not meta.recorded else "unknown"
    level = "warn" if rows.labeled else "info"
    return Sampling(kind, _BADGES[kind], f"{text}; score with --folds to see them.", level)


def build(inputs: Inputs) -> Section:
    """What a reader must know before trusting the page."""
    return Section("opening", notices=list(_notices(inputs.rows)))


def _notices(rows: Rows) -> Iterator[Notice]:
    meta = rows.table.meta

    def warn(n: int | None, text: str) -> Iterator[Notice]:
        if n:
            yield Notice("warn", f"{counted(n, 'sample has', 'samples have')} {text}")

    chance = chance_agreement(rows.label, rows.pred)
    if chance.near:
        yield Notice("alarm", f"{str(chance)[:1].upper()}{str(chance)[1:]}")
    if meta.unfinished:
        yield Notice("warn", f"{counted(len(rows), 'sample')} so far; run the report again when it is done.")
    if not rows.labeled:
        yield Notice("info", "There are no labels: every score is taken at the predicted class.")
    else:
        yield from warn(int((rows.label < 0).sum()), "no label and are in no class.")
    yield from warn(int((rows.pred < 0).sum()), "no prediction.")
    present = np.unique(rows.at[rows.at >= 0])
    if len(present) == 1 and len(rows) > 1:
        yield Notice("info", f"All samples are of one class ({rows.class_name(int(present[0]))}).")
    if rows.classes > MANY_CLASSES:
        yield Notice("info", f"The model has {rows.classes:,} classes; the page names those that occur.")
    if rows.main is None:
        yield Notice("warn", "The table has no score that the page can rank by.")
    else:
        if rows.main != "avh":
            yield Notice("info", f"The table has no AVH; samples are ranked by {score_title(rows.main)}.")
        yield from warn(int(np.isnan(rows.value).sum()), f"no {score_title(rows.main)} and are not ranked.")
    if len(rows.table.bad):
        yield Notice("warn", f"{counted(len(rows.table.bad), 'sample')} could not be scored; see the list at the end.")
    zero = (meta.counts or Counts()).zero_features
    yield from warn(zero, "a zero feature, which has the same angle to every class.")
    if len(meta.models) > 1:
        names = cut(", ".join(map(str, meta.models)), 120)
        yield Notice("info", f"Every score is the mean over {len(meta.models)} nets ({names}).")
    for text in meta.warnings:
        yield Notice("warn", cut(text, _LENGTH, 3 * _LENGTH))


def tiles(rows: Rows, suspects: Suspects | str) -> Iterator[tuple[str, str, str]]:
    """The numbers at the top: name, value and note."""
    bad = len(rows.table.bad)
    yield "samples", f"{len(rows):,}", f"{bad:,} more could not be scored" if bad else ""
    if (n := int(rows.judged.sum())) > 0:
        right = int(rows.right.sum())
        low, high = share_interval(right, n)
        yield "accuracy", percent(right / n), f"95 % interval {100 * low:.1f}–{percent(high)} (Wilson), n = {n:,}"
    if (n := int((~np.isnan(rows.value)).sum())) > 0:
        values = rows.value[~np.isnan(rows.value)]
        chance = "; 1 is chance" if rows.main == "avh" else ""
        note = f"{between(*mean_interval(values))}, n = {n:,}{chance}"
        yield f"mean {score_title(rows.main)}", f"{values.mean():.3g}", note
        yield from _hardest_class(rows)
    if isinstance(suspects, Suspects):
        yield "suspect labels", f"{suspects.count:,}", f"{percent(suspects.share, 2)} of the labels, to be reviewed"
    spread = rows.optional("avh_sd")
    if spread is not None and (~np.isnan(spread)).any():
        note = f"mean over the samples, {len(rows.table.meta.models)} nets"
        yield "spread of C·AVH between nets (sd)", f"{rows.classes * float(np.nanmean(spread)):.2g}", note


def _hardest_class(rows: Rows) -> Iterator[tuple[str, str, str]]:
    by_class = moments(rows.value, rows.at, rows.codes)
    enough = np.flatnonzero(by_class.n >= FEW)
    if len(enough) < 2:
        return
    code = int(enough[np.argmax(rows.sign * by_class.mean[enough])])
    # The hardest class was selected from all of them: its interval is corrected for that.
    low, high = (float(end[code]) for end in by_class.interval(1 - (1 - LEVEL) / len(enough)))
    note = (
        f"mean {score_title(rows.main)} {by_class.mean[code]:.3g}, {between(low, high)} (corrected for "
        f"{len(enough):,} classes), n = {int(by_class.n[code]):,}"
    )
    yield "hardest class" if rows.labeled else "hardest predicted class", rows.class_name(code), note


def made(rows: Rows) -> list[list[str]]:
    """How the run was made: names and values."""
    meta = rows.table.meta
    model, data, command, versions, how = meta.model, meta.data, meta.command, meta.versions or {}, sampling(rows)
    entries = {
        "model": model.name,
        "nets": ", ".join(map(str, meta.models)),
        "weights": meta.weights,
        "fingerprint of the weights": model.fingerprint,
        "head": model.head,
        "classes": f"{rows.classes:,}",
        "data": data.origin,
        "fingerprint of the data": data.fingerprint,
        "preprocessing": meta.preprocessing,
        "bias in the logits": {True: "yes", False: "no", None: None}[meta.bias],
        "recorded": meta.note if meta.recorded else None,
        "scored": f"{how.badge} {how.text}" if how.kind == "out" else how.text,
        "command": shlex.join(map(str, command)) if isinstance(command, (list, tuple)) else command,
        "made": meta.created,
        "seconds": meta.seconds,
        "device": meta.device,
        "seed": meta.seed,
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else versions,
        "python": meta.python,
    }
    return [[name, cut(value, _LENGTH, 3 * _LENGTH)] for name, value in entries.items() if value]
