"""What all figures share: colours that the colour-blind tell apart, axes, bands, and how a file is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import InputError, MissingPathError
from hardsight.extras import need, printable
from hardsight.runs import check_replaceable, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, dark enough for lines on white; and a second sign for print without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
GREY = "#777777"

# What a value is called on an axis.
TITLES = {
    "avh": "C · AVH",
    "norm": "norm of the feature",
    "correct": "accuracy",
    "confidence": "confidence",
    "nll": "loss",
    "angle": "angle to the label's class (rad)",
    "margin": "margin",
    "el2n": "EL2N",
}


def new_figure(
    rows: int, columns: int, figure: Figure | None = None, *, width: float = 3.4, **options: Any
) -> tuple[Figure, np.ndarray]:
    """A figure (or the one given, emptied) with a grid of axes, without touching pyplot's state."""
    if figure is None:
        size = (width * columns + 0.4, 2.6 * rows + 0.5)
        figure = need("matplotlib.figure").Figure(figsize=size, layout="constrained")
    else:
        figure.clear()
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        if hasattr(axis, "zaxis"):
            continue
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, color="#e6e6e6", linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def group_colours(count: int, *, ordered: bool) -> list[Any]:
    """One colour a group: from dark to light where groups are in order, else as different as can be."""
    if not ordered and count <= len(COLOURS):
        return list(COLOURS[:count])
    colours = need("matplotlib").colormaps["viridis"]
    return [colours(x) for x in np.linspace(0.0, 0.85, max(count, 2))[:count]]  # yellow is lost on white


def line_styles(count: int) -> list[tuple[str, Any]]:
    """A colour and a dash for each line, no two alike up to 49: after every seventh line colours meet other dashes."""
    laps = [divmod(k, len(COLOURS)) for k in range(count)]
    return [(COLOURS[at], DASHES[(at + lap) % len(DASHES)]) for lap, at in laps]


def plain(name: object) -> str:
    """A name of the user's as matplotlib shows it letter by letter: ``$`` would begin maths, ``_`` hide a label."""
    text = printable(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def draw_band(axis: Axes, x: Any, middle: Any, low: Any, high: Any, colour: Any, label: str, dash: Any = "-") -> None:
    """A line and, where its ends are known, a band behind it."""
    axis.plot(x, middle, color=colour, linestyle=dash, linewidth=1.6, label=label)
    axis.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)


# What each kind of file is told: who wrote it, so that it may be replaced, and no date.
_MARK = "hardsight figure"
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {"Software": _MARK},
    ".svg": {"Creator": _MARK, "Date": None},
    ".pdf": {"Creator": _MARK, "CreationDate": None},
}


def check_out(out: str | Path) -> Path:
    """The path of a picture that can be written, or a sentence."""
    path = Path(out)
    if path.suffix.lower() not in _METADATA:
        raise InputError(f"out must end in .png, .svg or .pdf, got {path.name!r}.")
    if not path.parent.is_dir():
        raise MissingPathError(f"out: there is no folder {path.parent}; make it first.")
    check_replaceable(path, lambda file: _MARK.encode() in file.read_bytes())
    return path


def write_figure(figure: Figure, out: str | Path) -> Path:
    """Write a .png, .svg or .pdf; the name appears when the file is whole, and the same figure gives the same file."""
    path = check_out(out)
    kind = path.suffix.lower()
    settings = {"svg.hashsalt": "hardsight", "svg.fonttype": "none", "pdf.fonttype": 42}
    with need("matplotlib").rc_context(settings):
        write_whole(
            path, lambda temporary: figure.savefig(temporary, format=kind[1:], dpi=160, metadata=_METADATA[kind])
        )
    return path
