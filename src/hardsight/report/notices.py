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
from hardsight.stats import FEW, LEVEL, moments, wilson

_LENGTH = 400  # characters of a text from outside

_BADGES = {"out": "Out of sample", "in": "In sample", "unknown": "Perhaps in sample"}


class Sampling(NamedTuple):
    """Whether samples were scored by a network that had not seen them: ``out``, ``in`` or ``unknown``."""

    kind: str
    badge: str
    text: str
    level: str

    @property
    def sentence(self) -> str:
        """The whole in words."""
        return f"{self.badge} {self.text}" if self.kind == "out" else self.text


def title(rows: Rows) -> str:
    """``resnet50 on folder photos``."""
    meta = rows.table.meta
    model = counted(len(meta.models), "net") if len(meta.models) > 1 else meta.model.name or "a network"
    return f"{cut_name(model)} on {cut_name(meta.data.origin or counted(len(rows), 'sample'))}"


def sampling(rows: Rows) -> Sampling:
    """How the samples were scored."""
    meta = rows.table.meta
    scored = meta.out_of_sample
    kind, level = "out", "info"
    if isinstance(scored, Folds):
        seeds = scored.seeds or 1
        folds = f"{scored.folds} folds" + (f", {seeds} seeds" if seeds > 1 else "")
        if scored.retrained == "head":
            text = (
                f"for the last layer ({folds}): it was refitted on the other folds. If the features below it were "
                "trained on these very labels, wrong ones still hide."
            )
        else:
            how = ": the whole network was retrained on the other folds" if scored.retrained == "model" else ""
            text = f"({folds}){how}, so no sample was scored by a network that had learned its label."
    elif scored:
        text = f"({cut(scored, 80)}): no sample was scored by a network that had learned its label."
    else:
        kind, level = "in" if scored is False and not meta.recorded else "unknown", "warn" if rows.labelled else "info"
        text = (
            "Scored by the network as given: if it was trained on these samples, wrong labels hide; score with "
            "--folds to see them."
        )
        if meta.recorded:
            note = f" ({cut(meta.note, 120)})" if meta.note else ""
            epochs = meta.recorded.epochs
            when = f"in {cut_name(meta.unit or 'epoch')} {epochs[-1]:,} of a training" if epochs else "during training"
            text = (
                f"Recorded {when}{note}. If the network was trained on these samples, memorized ones look easy and "
                "wrong labels hide; score with --folds to see them."
            )
    return Sampling(kind, _BADGES[kind], text, level)


def build(inputs: Inputs) -> Section:
    """What a reader must know before trusting the page."""
    return Section("opening", notices=list(_notices(inputs.rows)))


def _notices(rows: Rows) -> Iterator[Notice]:
    meta, count = rows.table.meta, _count
    chance = chance_agreement(rows.label, rows.pred)
    if chance.near:
        yield Notice("alarm", f"{str(chance)[:1].upper()}{str(chance)[1:]}")
    if meta.unfinished:
        yield Notice("warn", f"{counted(len(rows), 'sample')} so far; run the report again when it is done.")
    if not rows.labelled:
        yield Notice("info", "There are no labels: every score is taken at the predicted class.")
    elif (n := int((rows.label < 0).sum())) > 0:
        yield Notice("warn", f"{count(n)} no label and are in no class.")
    if (n := int((rows.pred < 0).sum())) > 0:
        yield Notice("warn", f"{count(n)} no prediction.")
    present = np.unique(rows.at[rows.at >= 0])
    if len(present) == 1 and len(rows) > 1:
        yield Notice("info", f"All samples are of one class ({cut_name(rows.class_name(int(present[0])))}).")
    if rows.classes > MANY_CLASSES:
        yield Notice("info", f"The model has {rows.classes:,} classes; the page names those that occur.")
    if rows.main is None:
        yield Notice("warn", "The table has no score that the page can rank by.")
    elif rows.main != "avh":
        yield Notice("info", f"The table has no AVH; samples are ranked by {score_title(rows.main)}.")
    if rows.main is not None and (n := int(np.isnan(rows.value).sum())) > 0:
        yield Notice("warn", f"{count(n)} no {score_title(rows.main)} and are not ranked.")
    if len(rows.table.bad):
        yield Notice("warn", f"{counted(len(rows.table.bad), 'sample')} could not be scored; see the list at the end.")
    if (n := (meta.counts or Counts()).zero_features or 0) > 0:
        yield Notice("warn", f"{count(n)} a zero feature, which has the same angle to every class.")
    if len(meta.models) > 1:
        names = cut(", ".join(map(str, meta.models)), 120)
        yield Notice("info", f"Every score is the mean over {len(meta.models)} nets ({names}).")
    for text in meta.warnings:
        yield Notice("warn", cut(text, _LENGTH, 3 * _LENGTH))


def _count(n: int) -> str:
    return counted(n, "sample has", "samples have")


def tiles(rows: Rows, suspects: Suspects | str) -> list[dict[str, str]]:
    """The numbers at the top."""
    bad = len(rows.table.bad)
    rows_ = [("samples", f"{len(rows):,}", f"{bad:,} more could not be scored" if bad else "")]
    if (n := int(rows.judged.sum())) > 0:
        right = int(rows.right.sum())
        low, high = (float(end[0]) for end in wilson(np.array([right]), np.array([n])))
        note = f"95 % interval {100 * low:.1f}–{percent(high)} (Wilson), n = {n:,}"
        rows_.append(("accuracy", percent(right / n), note))
    if rows.main is not None and not np.isnan(rows.value).all():
        overall = moments(rows.value, np.zeros(len(rows), dtype=np.int64), 1)
        low, high = (float(end[0]) for end in overall.interval())
        chance = "; 1 is chance" if rows.main == "avh" else ""
        note = f"{between(low, high)}, n = {int(overall.n[0]):,}{chance}"
        rows_.append((f"mean {score_title(rows.main)}", f"{overall.mean[0]:.3g}", note))
        rows_ += _hardest_class(rows)
    if isinstance(suspects, Suspects):
        note = f"{percent(suspects.share, 2)} of the labels, to be reviewed"
        rows_.append(("suspect labels", f"{suspects.count:,}", note))
    spread = rows.optional("avh_sd")
    if spread is not None and (~np.isnan(spread)).any():
        note = f"mean over the samples, {len(rows.table.meta.models)} nets"
        rows_.append(("spread of C·AVH between nets (sd)", f"{rows.classes * float(np.nanmean(spread)):.2g}", note))
    return [{"name": name, "value": value, "note": note} for name, value, note in rows_]


def _hardest_class(rows: Rows) -> list[tuple[str, str, str]]:
    by_class = moments(rows.value, rows.at, rows.codes)
    enough = np.flatnonzero(by_class.n >= FEW)
    if len(enough) < 2:
        return []
    code = int(enough[np.argmax(rows.sign * by_class.mean[enough])])
    # The hardest class was selected from all of them: its interval is corrected for that.
    low, high = (float(end[code]) for end in by_class.interval(1 - (1 - LEVEL) / len(enough)))
    note = (
        f"mean {score_title(rows.main)} {by_class.mean[code]:.3g}, {between(low, high)} (corrected for "
        f"{len(enough):,} classes), n = {int(by_class.n[code]):,}"
    )
    return [("hardest class" if rows.labelled else "hardest predicted class", cut_name(rows.class_name(code)), note)]


def made(rows: Rows) -> list[list[str]]:
    """How the run was made: names and values."""
    meta = rows.table.meta
    model, data, command, versions = meta.model, meta.data, meta.command, meta.versions or {}
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
        "scored": sampling(rows).sentence,
        "command": shlex.join(map(str, command)) if isinstance(command, (list, tuple)) else command,
        "made": meta.created,
        "seconds": meta.seconds,
        "device": meta.device,
        "seed": meta.seed,
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else versions,
        "python": meta.python,
    }
    return [[name, cut(value, _LENGTH, 3 * _LENGTH)] for name, value in entries.items() if value]
