"""What the page says in words: its title, its tiles, its warnings, and how it was made."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np

from hardsight.chance import chance_agreement
from hardsight.report.rows import MANY_CLASSES, Rows
from hardsight.report.suspects import Suspects
from hardsight.report.words import between, counted, cut, cut_name, percent, score_title
from hardsight.runs import Counts, Folds, Meta, Recorded
from hardsight.stats import FEW, LEVEL, moments, wilson

_MADE_LENGTH = 400
MOST_BAD = 100


def title(rows: Rows) -> str:
    """``resnet50 on folder photos``."""
    meta = rows.table.meta
    model = meta.model.name or "a network"
    nets = meta.models
    model = f"{counted(len(nets), 'net')}" if len(nets) > 1 else model
    data = meta.data.origin or counted(len(rows), "sample")
    return f"{cut_name(model)} on {cut_name(data)}"


def sampling(rows: Rows) -> tuple[str, str, str]:
    """Whether samples were scored by a network that had not seen them: ``out``, ``in`` or ``unknown``; level; words."""
    found = rows.table.meta.out_of_sample
    if isinstance(found, Folds):
        folds = found.folds
        seeds = found.seeds or 1
        with_seeds = f", {counted(seeds, 'seed')}" if seeds > 1 else ""
        if found.retrained == "head":
            words = (
                f"Out of sample for the last layer ({folds} folds{with_seeds}): it was refitted on the other folds. If "
                "the features below it were trained on these very labels, wrong ones still hide."
            )
            return "out", "info", words
        how = ": the whole network was retrained on the other folds" if found.retrained == "model" else ""
        words = (
            f"Out of sample ({folds} folds{with_seeds}){how}, so no sample was scored by what had learned its label."
        )
        return "out", "info", words
    if (recorded := rows.table.meta.recorded) and not found:
        return "unknown", "warn" if rows.labelled else "info", _recorded(rows.table.meta, recorded)
    if found:
        return "out", "info", f"Out of sample ({cut(found, 80)}): no sample was scored by what had learned its label."
    kind = "in" if found is False else "unknown"
    words = (
        "Scored by the network as given: if it was trained on these samples, wrong labels hide; score with --folds to "
        "see them."
    )
    return kind, "warn" if rows.labelled else "info", words


def _recorded(meta: Meta, recorded: Recorded) -> str:
    """How the samples of a recorded training were scored."""
    unit, epochs = cut_name(meta.unit or "epoch"), recorded.epochs
    note = f" ({cut(meta.note, 120)})" if meta.note else ""
    when = f"in {unit} {epochs[-1]:,} of a training" if epochs else "while a network trained"
    return (
        f"Recorded {when}{note}. If it learned from these very samples, what it has memorized looks easy and wrong "
        "labels hide; score with --folds to see them."
    )


def notices(rows: Rows, suspects_missing: str, lists_note: str) -> list[dict[str, str]]:
    """What a reader must know before believing the page, the gravest first."""
    meta, table = rows.table.meta, rows.table
    counts = meta.counts or Counts()
    chance = chance_agreement(rows.label, rows.pred)
    alarm = [f"{str(chance)[:1].upper()}{str(chance)[1:]}"] if chance.near else []
    warn: list[str] = []
    info: list[str] = []
    if meta.unfinished:
        warn.append(f"{counted(len(rows), 'sample')} so far; run the report again when it is done.")
    level, words = sampling(rows)[1:]
    (warn if level == "warn" else info).append(words)
    if not rows.labelled:
        info.append("There are no labels: every score is taken at the predicted class, and nothing says who is right.")
    elif (missing := int((rows.label < 0).sum())) > 0:
        warn.append(f"{counted(missing, 'sample has', 'samples have')} no label and are in no class.")
    if (pred_missing := int((rows.pred < 0).sum())) > 0:
        warn.append(f"{counted(pred_missing, 'sample has', 'samples have')} no prediction.")
    present = np.unique(rows.at[rows.at >= 0])
    if len(present) == 1 and len(rows) > 1:
        info.append(f"All samples are of one class ({cut_name(rows.class_name(int(present[0])))}).")
    if rows.classes > MANY_CLASSES:
        info.append(f"The model has {rows.classes:,} classes; the page names those that occur.")
    if lists_note:
        info.append(lists_note)
    if rows.main is None:
        warn.append("The table holds no score that the page knows, so nothing is ranked.")
    elif rows.main != "avh":
        info.append(f"The table holds no AVH; samples are ranked by {score_title(rows.main)}.")
    if rows.main is not None and (nothing := int(np.isnan(rows.value).sum())) > 0:
        warn.append(f"{counted(nothing, 'sample has', 'samples have')} no {score_title(rows.main)} and are not ranked.")
    if suspects_missing and rows.labelled:
        info.append(suspects_missing)
    if len(table.bad):
        warn.append(f"{counted(len(table.bad), 'sample')} could not be scored; see the list at the end.")
    if (zero := counts.zero_features or 0) > 0:
        warn.append(
            f"{counted(zero, 'sample has', 'samples have')} a zero feature, which has the same angle to every class."
        )
    nets = meta.models
    if len(nets) > 1:
        info.append(f"Every score is the mean over {len(nets)} nets ({cut(', '.join(map(str, nets)), 120)}).")
    warn += [cut(text, _MADE_LENGTH, 3 * _MADE_LENGTH) for text in meta.warnings]
    levels = {"alarm": alarm, "warn": warn, "info": info}
    return [{"level": level, "text": text} for level, texts in levels.items() for text in texts]


def tiles(rows: Rows, suspects: Suspects | None) -> list[dict[str, str]]:
    """The numbers at the top."""
    bad = len(rows.table.bad)
    found = [{"name": "samples", "value": f"{len(rows):,}", "note": f"{bad:,} more could not be scored" if bad else ""}]
    if (n := int(rows.judged.sum())) > 0:
        right = int(rows.right.sum())
        low, high = (float(end[0]) for end in wilson(np.array([right]), np.array([n])))
        note = f"95 % interval {100 * low:.1f}–{percent(high)} (Wilson), n = {n:,}"
        found.append({"name": "accuracy", "value": percent(right / n), "note": note})
    known = ~np.isnan(rows.value)
    if rows.main is not None and known.any():
        one = moments(rows.value, np.zeros(len(rows), dtype=np.int64), 1)
        low, high = (float(end[0]) for end in one.interval())
        chance = "; 1 is chance" if rows.main == "avh" else ""
        note = f"{between(low, high)}, n = {int(one.n[0]):,}{chance}"
        found.append({"name": f"mean {score_title(rows.main)}", "value": f"{one.mean[0]:.3g}", "note": note})
        found += _hardest_class(rows)
    if suspects is not None:
        note = f"{percent(suspects.share, 2)} of the labels, to be reviewed"
        found.append({"name": "suspect labels", "value": f"{suspects.count:,}", "note": note})
    spread = rows.optional("avh_sd")
    if spread is not None and (~np.isnan(spread)).any():
        value = rows.classes * float(np.nanmean(spread))
        note = f"mean over the samples, {len(rows.table.meta.models)} nets"
        found.append({"name": "spread of C·AVH between nets (sd)", "value": f"{value:.2g}", "note": note})
    return found


def _hardest_class(rows: Rows) -> list[dict[str, str]]:
    by_class = moments(rows.value, rows.at, rows.codes)
    enough = np.flatnonzero(by_class.n >= FEW)
    if len(enough) < 2:
        return []
    code = int(enough[np.argmax(rows.sign * by_class.mean[enough])])
    # Which class is the hardest was not known beforehand: the intervals of all of them hold together.
    low, high = (float(end[code]) for end in by_class.interval(1 - (1 - LEVEL) / len(enough)))
    note = (
        f"mean {score_title(rows.main)} {by_class.mean[code]:.3g}, {between(low, high)} (corrected for "
        f"{len(enough):,} classes), n = {int(by_class.n[code]):,}"
    )
    name = cut_name(rows.class_name(code))
    return [{"name": "hardest class" if rows.labelled else "hardest predicted class", "value": name, "note": note}]


def bad_rows(rows: Rows) -> dict[str, Any]:
    """Samples that could not be scored, with their reasons."""
    bad = rows.table.bad
    count = len(bad)
    shown = bad.slice(0, MOST_BAD)
    pairs = zip(shown["id"].to_pylist(), shown["error"].to_pylist(), strict=True)
    note = f"The first {MOST_BAD} of {count:,}." if count > MOST_BAD else ""
    return {"count": count, "rows": [[cut(id_), cut(reason, 200, 600)] for id_, reason in pairs], "note": note}


def made(rows: Rows) -> list[list[str]]:
    """How the run was made, name and value."""
    meta = rows.table.meta
    model, data = meta.model, meta.data
    command = meta.command
    versions = meta.versions or {}
    facts = {
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
        "scored": sampling(rows)[2],
        "command": shlex.join(map(str, command)) if isinstance(command, (list, tuple)) else command,
        "made": meta.created,
        "seconds": meta.seconds,
        "device": meta.device,
        "seed": meta.seed,
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else versions,
        "python": meta.python,
    }
    return [[name, cut(value, _MADE_LENGTH, 3 * _MADE_LENGTH)] for name, value in facts.items() if value]
