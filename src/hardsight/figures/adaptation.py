"""Self-training: accuracy against round, and what one method chooses and another does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.errors import InputError
from hardsight.extras import need
from hardsight.figures.style import COLOURS, GREY, draw_band, line_styles, new_figure, plain
from hardsight.images import to_tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hardsight.data import Samples

_PANELS = {
    "test_accuracy": "accuracy, test",
    "target_accuracy": "accuracy, target",
    "tp_rate": "pseudo-labels that are right",
    "hard_tp_rate": "of those with the higher AVH",
}
_SHOWN = 16  # pictures of each side of the gallery


def plot_adaptation(runs: Mapping[str, pa.Table | Sequence[pa.Table]], figure: Figure | None = None) -> Figure:
    """Accuracy and right pseudo-labels against round, a line per method (Fig. 6). Round 0 is the source model.

    A ring is the best round by labels, the oracle; the last round is where the line ends. The band is a 95 % interval
    over the samples of one run; of several runs, their mean ± one standard deviation.

    Args:
        runs: By name the rounds of a run (`hardsight.adaptation.read_rounds`), or those of several seeds.
        figure: Drawn into this one.
    """
    tables = {name: [given] if isinstance(given, pa.Table) else list(given) for name, given in runs.items()}
    shown = [column for column in _PANELS if any(_known(table, column) for own in tables.values() for table in own)]
    if not shown:
        raise InputError("RUN: without labels of the target or of a test set there is no accuracy to draw, got none.")
    figure, axes = new_figure(1, len(shown), figure)
    for (name, own), (colour, dash) in zip(tables.items(), line_styles(len(tables)), strict=True):
        for axis, column in zip(axes[0], shown, strict=True):
            known = [table for table in own if _known(table, column)]
            if known:
                _draw_line(axis, known, column, plain(name), colour, dash)
    for axis, column in zip(axes[0], shown, strict=True):
        axis.set_xlabel("round")
        axis.set_ylabel(_PANELS[column])
        axis.xaxis.get_major_locator().set_params(integer=True)
        if column.endswith("accuracy"):
            axis.plot([], [], "o", color=GREY, fillstyle="none", label="best by labels (oracle)")
    shown_once = dict(zip(*reversed(axes[0, 0].get_legend_handles_labels()), strict=True))
    axes[0, -1].legend(
        shown_once.values(), shown_once, loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, frameon=False
    )
    return figure


def _known(table: pa.Table, column: str) -> bool:
    return column in table.column_names and table[column].null_count < len(table)


def _draw_line(axis: Axes, tables: Sequence[pa.Table], column: str, name: str, colour: Any, dash: Any) -> None:
    """Rounds that every run has."""
    parts = [table.filter(table[column].is_valid()) for table in tables]
    rounds = sorted(set.intersection(*(set(part["round"].to_pylist()) for part in parts)))
    values = np.array([[dict(zip(*_pairs(part, column), strict=True))[at] for at in rounds] for part in parts])
    middle = values.mean(0)
    if len(parts) > 1:
        low, high = middle - values.std(0, ddof=1), np.minimum(middle + values.std(0, ddof=1), 1)
        name = f"{name} (n = {len(parts)})"
    else:
        ends = (dict(zip(*_pairs(parts[0], f"{column}_{end}"), strict=True)) for end in ("low", "high"))
        low, high = (np.array([end[at] for at in rounds]) for end in ends)
    draw_band(axis, rounds, middle, low, high, colour, name, dash)
    if column.endswith("accuracy") and len(rounds):
        best = int(middle.argmax())
        axis.plot(rounds[best], middle[best], "o", color=colour, fillstyle="none", markersize=7)


def _pairs(table: pa.Table, column: str) -> tuple[list[int], list[float]]:
    return table["round"].to_pylist(), table[column].to_pylist()


def plot_adaptation_gallery(
    first: tuple[str, pa.Table],
    second: tuple[str, pa.Table],
    samples: Samples,
    seed: int = 0,
    figure: Figure | None = None,
    names: Sequence[str] | None = None,
) -> Figure:
    """Samples that one method chooses and another does not, and the reverse (Fig. 21), drawn at random.

    Above each picture stands what it was taken for; where that is known to be wrong it is coloured, and the true class
    follows. Below it are its confidence and its AVC at that class.

    Args:
        first: Name and selection of a round (`hardsight.adaptation.read_selection`).
        second: Those of the other method, best of the same round: the first, which all methods take from one network.
        samples: The target data, for the pictures.
        seed: Of which of them are shown.
        figure: Drawn into this one.
        names: Of the classes as the network counts them; if None, those of the samples.
    """
    names = names or samples.classes
    if figure is None:
        figure = need("matplotlib.figure").Figure(figsize=(9, 7), layout="constrained")
    figure.clear()
    for part, (name, own), (other, others) in zip(
        figure.subfigures(2, 1), (first, second), (second, first), strict=True
    ):
        only = _only(own, others)
        chosen = len(own) - own["label"].null_count
        words = f"chosen by {plain(name)}, not by {plain(other)}: {len(only):,} of {chosen:,}"
        right = [row["label"] == row["true"] for row in only if row["true"] is not None]
        if right:
            words += f", {np.mean(right):.1%} with the right label"
        part.suptitle(words, x=0.01, ha="left", fontsize=10)
        places = np.sort(np.random.default_rng(seed).permutation(len(only))[:_SHOWN])
        rows = [only[place] for place in places]
        axes = part.subplots(2, _SHOWN // 2)
        for axis in axes.flat:
            axis.set_axis_off()
        positions = samples.find([row["id"] for row in rows])
        for axis, row, place in zip(axes.flat[: len(rows)], rows, positions, strict=True):
            if place is None:
                raise InputError(f"data: there is no sample {row['id']!r} in it; give the target that was adapted to.")
            _draw_picture(axis, samples, place, row, names)
    return figure


def _only(own: pa.Table, others: pa.Table) -> list[dict[str, Any]]:
    """Rows that are chosen (have a label) in one selection and not in the other, in order."""
    taken = set(others.filter(others["label"].is_valid())["id"].to_pylist())
    return [row for row in own.to_pylist() if row["label"] is not None and row["id"] not in taken]


def _draw_picture(
    axis: Axes, samples: Samples, place: int, row: Mapping[str, Any], names: Sequence[str] | None
) -> None:
    pixels = to_tensor(samples.load(place, None)[0]).clamp(0, 1).permute(1, 2, 0).numpy()
    axis.imshow(pixels[..., 0] if pixels.shape[-1] == 1 else pixels, cmap="grey", vmin=0, vmax=1)

    def named(k: Any) -> str:
        return plain(names[k]) if names else str(k)

    wrong = row["true"] is not None and row["true"] != row["label"]
    title = f"{named(row['label'])}, is {named(row['true'])}" if wrong else named(row["label"])
    axis.set_title(title, fontsize=7, color=COLOURS[1] if wrong else "black", pad=2)
    axis.text(
        0.5,
        -0.03,
        f"p {row['confidence']:.3f}\nAVC {row['avc']:.3f}",
        transform=axis.transAxes,
        fontsize=6,
        color=GREY,
        ha="center",
        va="top",
    )
