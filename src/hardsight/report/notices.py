"""The top of the page, its title, tiles and warnings, and the table of how the run was made."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

import numpy as np

from hardsight.chance import chance_agreement
from hardsight.report.formatting import between, counted, cut, cut_name, percent, score_title
from hardsight.report.label_errors import Suspects
from hardsight.report.planted import planted_counts
from hardsight.report.rows import MANY_CLASSES, Rows, counts
from hardsight.report.sections import Notice, Section
from hardsight.runs import Counts, Folds
from hardsight.stats import FEW, LEVEL, mean_interval, moments, share_interval

_LENGTH = 400  # characters of an untrusted text


def title(rows: Rows) -> str:
    """``resnet50 on folder photos``."""
    meta = rows.meta
    model = counted(len(meta.models), "net") if len(meta.models) > 1 else meta.model.name or "a network"
    return f"{cut_name(model)} on {cut_name(meta.data.origin or counted(len(rows), 'sample'))}"


def sampling(rows: Rows) -> dict[str, str]:
    """Whether samples were scored by a network that had not seen them: the kind is ``out``, ``in`` or ``unknown``."""
    meta = rows.meta
    scored, recorded = meta.out_of_sample, meta.recorded
    if scored:
        text, retrained = f"({cut(scored, 80)})", ""
        if isinstance(scored, Folds):
            text = f"({scored.folds} folds{f', {scored.seeds} seeds' if (scored.seeds or 1) > 1 else ''})"
            retrained = scored.retrained
        if retrained == "head":
            refitted = "it was refitted on the other folds. If the features below it were trained on these very labels"
            text = f"for the last layer {text}: {refitted}, wrong ones still hide."
        else:
            text += ": the whole network was retrained on the other folds" * (retrained == "model")
            text += ", so no sample was scored by a network that had learned its label."
        return {"kind": "out", "badge": "Out of sample", "text": text, "level": "info"}
    kind, badge = ("in", "In sample") if scored is False and not recorded else ("unknown", "Perhaps in sample")
    text = "Scored by the network as given: if it was trained on these samples, wrong labels hide"
    if recorded:
        last = f" in {cut_name(meta.unit or 'epoch')} {recorded.epochs[-1]:,} of" if recorded.epochs else " during"
        text = f"Recorded{last} a training{f' ({cut(meta.note, 120)})' if meta.note else ''}. "
        text += "If the network was trained on these samples, memorized ones look easy and wrong labels hide"
    text += "; score with --folds to see them."
    return {"kind": kind, "badge": badge, "text": text, "level": "warn" if rows.labeled else "info"}


def build(rows: Rows) -> Section:
    """What a reader must know before relying on the page."""
    meta = rows.meta
    chance, score = chance_agreement(rows.label, rows.pred), score_title(rows.main)
    present, bad = np.flatnonzero(counts(rows.at, rows.codes)), len(rows.table.bad)
    unlabeled, unpredicted = (int((codes < 0).sum()) for codes in (rows.label, rows.pred))
    unranked, zero = int(np.isnan(rows.value).sum()), (meta.counts or Counts()).zero_features or 0
    name = rows.class_name(int(present[0])) if len(present) else ""
    nets = f"{len(meta.models)} nets ({cut(', '.join(map(str, meta.models)), 120)})"

    def having(n: int) -> str:
        return counted(n, "sample has", "samples have")

    # Level, whether it applies, text.
    entries = [
        ("alarm", chance.near, f"{str(chance)[:1].upper()}{str(chance)[1:]}"),
        ("warn", meta.unfinished, f"{counted(len(rows), 'sample')} so far; run the report again when it is done."),
        ("info", not rows.labeled, "There are no labels: every score is that of the predicted class."),
        ("warn", rows.labeled and unlabeled, f"{having(unlabeled)} no label and are in no class."),
        ("warn", unpredicted, f"{having(unpredicted)} no prediction."),
        ("info", len(present) == 1 and len(rows) > 1, f"All samples are of one class ({name})."),
        ("info", rows.classes > MANY_CLASSES, f"{rows.classes:,} classes; the page names those that occur."),
        ("warn", rows.main is None, "The table has no score that the page can rank by."),
        ("info", rows.main not in (None, "avh"), f"The table has no AVH; samples are ranked by {score}."),
        ("warn", rows.main and unranked, f"{having(unranked)} no {score} and are not ranked."),
        ("warn", bad, f"{counted(bad, 'sample')} could not be scored; see the list at the end."),
        ("warn", zero, f"{having(zero)} a zero feature, which has the same angle to every class."),
        ("info", len(meta.models) > 1, f"Every score is the mean over {nets}."),
        *(("warn", True, cut(text, _LENGTH, 3 * _LENGTH)) for text in meta.warnings),
    ]
    return Section("opening", notices=[Notice(level, text) for level, applies, text in entries if applies])


def tiles(rows: Rows) -> Iterator[tuple[str, str, str]]:
    """The numbers at the top: name, value and note."""
    bad = len(rows.table.bad)
    if (counts := planted_counts(rows)) is not None:
        found, changed, others = counts
        more = counted(others, "other label looks", "other labels look")
        yield "changed labels found", f"{found} of {changed}", f"{more} wrong to us"
    yield "samples", f"{len(rows):,}", f"{bad:,} more could not be scored" if bad else ""
    if (n := int(rows.judged.sum())) > 0:
        right = int(rows.right.sum())
        low, high = share_interval(right, n)
        yield "accuracy", percent(right / n), f"95% interval {100 * low:.1f}–{percent(high)} (Wilson), n = {n:,}"
    valid = ~np.isnan(values := rows.value)
    if (n := int(valid.sum())) > 0:
        values = values if n == len(rows) else values[valid]
        chance = "; 1 is chance" if rows.main == "avh" else ""
        note = f"{between(*mean_interval(values))}, n = {n:,}{chance}"
        yield f"mean {score_title(rows.main)}", f"{values.mean():.3g}", note
        yield from _hardest_class(rows)
    if isinstance(rows.suspects, Suspects):
        count, labels = rows.suspects.count, int((rows.label >= 0).sum())
        yield "suspect labels", f"{count:,}", f"{percent(count / labels, 2)} of the labels, to be reviewed"
    if "avh_sd" in rows.table and not np.isnan(spread := rows.read("avh_sd")).all():
        note = f"mean over the samples, {len(rows.meta.models)} nets"
        yield "spread of C·AVH between nets (sd)", f"{rows.classes * float(np.nanmean(spread)):.2g}", note


def _hardest_class(rows: Rows) -> Iterator[tuple[str, str, str]]:
    by_class = moments(rows.value, rows.at, rows.codes)
    enough = np.flatnonzero(by_class.n >= FEW)
    if len(enough) < 2:
        return
    code = int(enough[np.argmax(rows.sign * by_class.mean[enough])])
    # The hardest class was selected from all of them: its interval is corrected for that.
    low, high = (float(end[code]) for end in by_class.interval(1 - (1 - LEVEL) / len(enough)))
    ends = f"{between(low, high)} (corrected for {len(enough):,} classes)"
    note = f"mean {score_title(rows.main)} {by_class.mean[code]:.3g}, {ends}"
    title = "hardest class" if rows.labeled else "hardest predicted class"
    yield title, rows.class_name(code), f"{note}, n = {int(by_class.n[code]):,}"


def made(rows: Rows) -> list[list[str]]:
    """How the run was made: names and values."""
    meta = rows.meta
    model, data, command, versions, how = meta.model, meta.data, meta.command, meta.versions or {}, sampling(rows)
    entries = {
        "model": model.name, "nets": ", ".join(map(str, meta.models)), "weights": meta.weights,
        "fingerprint of the weights": model.fingerprint, "head": model.head, "classes": f"{rows.classes:,}",
        "data": data.origin, "fingerprint of the data": data.fingerprint, "preprocessing": meta.preprocessing,
        "bias in the logits": {True: "yes", False: "no", None: None}[meta.bias],
        "recorded": meta.note if meta.recorded else None,
        "scored": f"{how['badge']} {how['text']}" if how["kind"] == "out" else how["text"],
        "command": shlex.join(map(str, command)) if isinstance(command, (list, tuple)) else command,
        "made": meta.created, "seconds": meta.seconds, "device": meta.device, "seed": meta.seed,
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else versions,
        "python": meta.python,
    }  # fmt: skip
    return [[name, cut(value, _LENGTH, 3 * _LENGTH)] for name, value in entries.items() if value]
