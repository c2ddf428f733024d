"""What all figures share: colors that color-blind readers can distinguish, axes, bands, and writing a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import InputError, MissingPathError
from hardsight.extras import need, printable
from hardsight.runs import check_replaceable, write_whole
from hardsight.stores import local_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colors of Okabe and Ito that are dark enough for lines on white, and dashes for print without color.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
GRAY = "#777777"

TITLES = {
    "avh": "C · AVH",
    "norm": "norm of the feature",
    "norm_within_class": "norm, scaled within its class",
    "correct": "accuracy",
    "confidence": "confidence",
    "nll": "loss",
    "angle": "angle to the label's class (rad)",
    "margin": "margin",
    "el2n": "EL2N",
}


def new_figure(rows: int, columns: int, *, width: float = 3.4, **options: Any) -> tuple[Figure, np.ndarray]:
    """A figure with a grid of axes; pyplot's state is not touched."""
    size = (width * columns + 0.4, 2.6 * rows + 0.5)
    figure = need("matplotlib.figure").Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        if not hasattr(axis, "zaxis"):
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(True, color="#e6e6e6", linewidth=0.6)
            axis.set_axisbelow(True)
    return figure, axes


def line_styles(count: int, *, ordered: bool = False) -> list[tuple[Any, Any]]:
    """A color and a dash per line, different for up to 49 lines: every seven lines, colors get other dashes.

    Lines of `ordered` groups go from dark to light, and are solid if there are more than seven.
    """
    if not ordered:
        laps = [divmod(k, len(COLORS)) for k in range(count)]
        return [(COLORS[at], DASHES[(at + lap) % len(DASHES)]) for lap, at in laps]
    colors = need("matplotlib").colormaps["viridis"](np.linspace(0.0, 0.85, max(count, 2)))  # yellow is invisible
    dashes = DASHES if count <= len(DASHES) else ("-",) * count
    return list(zip(map(tuple, colors[:count]), dashes[:count], strict=True))


def plain(name: object) -> str:
    """Escape a user's text for matplotlib: ``$`` would start math, a leading ``_`` hide a label."""
    text = printable(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def left_title(axis: Axes, text: str, size: int = 10) -> None:
    """A title that starts at the left edge of the axes."""
    axis.set_title(text, loc="left", fontsize=size)


def legend(axis: Axes, *entries: Any, size: int = 8, **options: Any) -> None:
    """A legend to the right of the axes."""
    axis.legend(*entries, loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=size, frameon=False, **options)


def draw_band(axis: Axes, x: Any, middle: Any, low: Any, high: Any, style: tuple[Any, Any], label: str) -> None:
    """A line with a color and a dash, and a band behind it where `low` and `high` are finite."""
    axis.plot(x, middle, color=style[0], linestyle=style[1], linewidth=1.6, label=label)
    axis.fill_between(x, low, high, color=style[0], alpha=0.13, linewidth=0)


# Each file names hardsight as its author, so that it may be overwritten, and has no date.
_MARK = "hardsight figure"
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {"Software": _MARK},
    ".svg": {"Creator": _MARK, "Date": None},
    ".pdf": {"Creator": _MARK, "CreationDate": None},
}


def check_out(out: str | Path, argument: str = "out") -> Path:
    """The path of a figure that can be written, or an error."""
    path = local_path(out)
    if path.suffix.lower() not in _METADATA:
        raise InputError(f"{argument} must end in .png, .svg or .pdf, got {path.name!r}.")
    if not path.parent.is_dir():
        raise MissingPathError(f"{argument}: there is no folder {path.parent}; create it first.")
    check_replaceable(path, lambda file: _MARK.encode() in file.read_bytes(), argument)
    return path


def write_figure(figure: Figure, out: str | Path, argument: str = "out") -> Path:
    """Write a .png, .svg or .pdf file, atomically; the same figure gives the same bytes."""
    path = check_out(out, argument)
    kind = path.suffix.lower()
    settings = {"svg.hashsalt": "hardsight", "svg.fonttype": "none", "pdf.fonttype": 42}
    with need("matplotlib").rc_context(settings):
        write_whole(path, lambda file: figure.savefig(file, format=kind[1:], dpi=160, metadata=_METADATA[kind]))
    return path
