"""Numbers and untrusted text as the page writes them: short, exact, bounded in bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from hardsight.printing import number_text
from hardsight.printing import percent as percent
from hardsight.printing import score_title as score_title

# Characters shown, and the bytes they may take in the page: a name of emoji must not fill it.
ID_LENGTH, ID_BYTES = 160, 480
NAME_LENGTH, NAME_BYTES = 60, 180


def cut(text: Any, length: int = ID_LENGTH, room: int = ID_BYTES) -> str:
    """Text with its middle cut out, limited in characters and in bytes of JSON."""
    text = str(text).encode("utf-8", "replace").decode()  # half a surrogate pair cannot be written to a file
    while length > 2:
        shown = text if len(text) <= length else text[: length // 2] + "…" + text[len(text) - (length - 1) // 2 :]
        if json_bytes(shown) <= room:
            return shown
        length = min(length, len(text)) * 3 // 4
    return "…"


def cut_name(text: Any, room: int = NAME_BYTES) -> str:
    """A class name or a value of a group, cut."""
    return cut(text, NAME_LENGTH, room)


def json_bytes(text: str) -> int:
    """Bytes of text in a page whose JSON is plain ASCII with <, > and & escaped."""
    return len(json.dumps(text)) + 5 * sum(text.count(c) for c in "<>&'")


def plain(values: Iterable[Any], digits: int = 4) -> list[Any]:
    """Numbers for JSON: with a number of significant digits, None for NaN and infinity."""
    values = np.asarray(values)
    return values.tolist() if values.dtype.kind in "iub" else [number(value, digits) for value in values.tolist()]


def number(value: float | None, digits: int = 4) -> float | None:
    """One number for JSON."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.{digits}g}") + 0.0  # no −0


def flags(harder: np.ndarray, p: np.ndarray) -> list[str]:
    """``harder`` or ``easier`` where a corrected p value is at most 5%; `harder` is positive where it is harder."""
    return np.where(p <= 0.05, np.where(harder > 0, "harder", "easier"), "").tolist()


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Elementwise part / whole; NaN where the whole is 0."""
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)


def counted(n: int, singular: str, plural: str | None = None) -> str:
    """``1 sample``, ``1,200 samples``."""
    return f"{n:,} {singular if n == 1 else plural or singular + 's'}"


def between(low: float | None, high: float | None, form: str = ".3g") -> str:
    """An interval in words, or a note that there is none."""
    if low is None or high is None or not (np.isfinite(low) and np.isfinite(high)):
        return "too few samples for an interval"
    return f"95% interval {number_text(low, form)} to {number_text(high, form)}"


def written(value: float | None, kind: str) -> str:
    """A number of a table as text: an ``int``, a ``percent``, a ``decimal``, or a ``number``, perhaps ``signed``."""
    if value is None:
        return "–"
    size, plus = abs(value), "+" if kind == "signed" else ""
    if kind == "percent":
        return percent(value)
    if kind == "int" or 1000 <= size < 1e7:
        style = ",.0f"
    elif kind == "decimal":
        style = ".3f"
    elif 0 < size < 0.0005 or size >= 1e7:
        return re.sub(r"e\+?(−?)0*(\d)", r"e\1\2", number_text(value, f"{plus}.1e"))
    else:
        style = f".{1 if size >= 100 else 2 if size >= 10 else 3}f" if size else ".0f"
    return number_text(value, plus + style)
