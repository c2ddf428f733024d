"""A page of translated sentences whose tokens are colored by how hard they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hardsight.directions import hardness_sign
from hardsight.errors import InputError
from hardsight.printing import score_title
from hardsight.registry import whole_number
from hardsight.report.formatting import written
from hardsight.report.page import fill
from hardsight.runs import write_text
from hardsight.table import SampleTable
from hardsight.translation import END, Pair, Translation, checked_pairs, hardest_words

_SHADES = 10
_WORDS, _LEAST = 20, 5  # how many words are listed, of those with so many tokens


def write_token_page(
    table: SampleTable,
    translation: Translation,
    pairs: Sequence[Pair],
    out: str | Path,
    *,
    by: str = "avh",
    most: int = 200,
) -> Path:
    """Write one HTML file: the hardest words, and the sentences that are hardest on average first.

    Args:
        table: As `hardsight.translation.token_table` gives it for these pairs.
        translation: The model.
        pairs: The sentences and their translations.
        out: File to write.
        by: The score that colors tokens.
        most: Sentences to show.
    """
    path = Path(out)
    if path.is_dir():
        raise InputError(f"out must be a file, got the folder {path}; name a file in it.")
    pairs, most = checked_pairs(pairs), whole_number("most", most, 1)
    hardness, labels, sign = table.hardness(by), table["label"].tolist(), hardness_sign(by)
    factor = len(translation.target) if by == "avh" else 1  # C·AVH, as in the report
    if labels and max(labels) >= len(translation.target):
        raise InputError(f"translation: its vocabulary of {len(translation.target):,} tokens is not that of table.")
    place = {id_: k for k, id_ in enumerate(table["id"].tolist())}
    order = np.empty(len(hardness))
    order[np.argsort(hardness, kind="stable")] = np.arange(len(hardness)) / max(len(hardness), 1)
    shade, sentences = (order * _SHADES).astype(int), []
    for number, (source, target) in enumerate(pairs):
        rows = [place.get(f"{number}:{position}") for position in range(len(target.split()))]
        for token, row in zip(target.split(), rows, strict=True):
            if row is not None and (scored := translation.target.tokens[labels[row]]) != token:
                raise InputError(
                    f"pairs: sentence {number} has {token!r} where table has {scored!r}; table, model and pairs must "
                    "belong together."
                )
        scores = [hardness[row] for row in rows if row is not None]
        if scores:
            tokens = [
                {"text": token, "shade": "none", "score": "not in the vocabulary"}
                if row is None
                else {
                    "text": token,
                    "shade": int(shade[row]),
                    "score": written(factor * sign * hardness[row], "number"),
                }
                for token, row in zip(target.split(), rows, strict=True)
            ]
            sentences.append((float(np.mean(scores)), {"source": source, "tokens": tokens}))
    if not sentences:
        raise InputError("table must hold tokens of these pairs, got none; make it with token_table.")
    sentences.sort(key=lambda item: -item[0])
    words = [
        ("end of the sentence" if word == translation.target.tokens[END] else word, n, mean * factor)
        for word, n, mean in hardest_words(table, translation.target, by, _LEAST)[:_WORDS]
    ]
    shown = {
        "by": score_title(by), "tokens": f"{len(table):,}", "sentences": [s for _, s in sentences[:most]],
        "all": f"{len(sentences):,}", "words": words, "least": _LEAST,
    }  # fmt: skip
    write_text(path, fill("tokens.html.jinja", shown, (), ("tokens.css",)))
    return path
