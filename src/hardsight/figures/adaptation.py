"""Self-training: accuracy per round, and what one method selects and another does not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.adaptation import read_check, read_rounds, read_selection
from hardsight.data import open_data
from hardsight.errors import InputError
from hardsight.extras import need
from hardsight.figures.style import COLORS, GRAY, draw_band, legend, line_styles, new_figure, plain
from hardsight.images import to_tensor
from hardsight.printing import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hardsight.data import Samples

_PANELS = {
    "test_accuracy": "accuracy, test",
    "target_accuracy": "accuracy, target",
    "checked_accuracy": "accuracy, labeled samples",
    "tp_rate": "pseudo-labels that are right",
    "hard_tp_rate": "of those with the higher AVH",
}
_SHOWN = 16  # images in each half of the gallery


def plot_adaptation(runs: Mapping[str, str | Path | Sequence[pa.Table]]) -> Figure:
    """Accuracy and correct pseudo-labels per round, one line per method (Fig. 6). Round 0 is the source model.

    A ring marks the best round by labels, the oracle; the line ends at the last round. The band is a 95% interval over
    the samples of one run, or the mean ± 1 sd of several runs.

    Args:
        runs: Folders of `hardsight adapt` by name, or the rounds of several seeds (`hardsight.adaptation.read_rounds`).
    """
    tables = {name: [_read(run)] if isinstance(run, (str, Path)) else run for name, run in runs.items()}
    lines = {column: {name: _rounds(seeds, column) for name, seeds in tables.items()} for column in _PANELS}
    shown = [column for column in _PANELS if any(lines[column].values())]
    if not shown:
        raise InputError("RUN: without labels of the target or of a test set there is no accuracy to draw, got none.")
    figure, axes = new_figure(1, len(shown))
    for axis, column in zip(axes[0], shown, strict=True):
        for (name, seeds), style in zip(lines[column].items(), line_styles(len(tables)), strict=True):
            if seeds:
                x, middle, low, high = _mean_of_seeds(seeds)
                label = f"{plain(name)} (n = {len(seeds)})" if len(seeds) > 1 else plain(name)
                draw_band(axis, x, middle, low, high, style, label)
                if column.endswith("accuracy") and x:
                    best = int(middle.argmax())
                    axis.plot(x[best], middle[best], "o", color=style[0], fillstyle="none", markersize=7)
        axis.set(xlabel="round", ylabel=_PANELS[column])
        axis.xaxis.get_major_locator().set_params(integer=True)
        if column.endswith("accuracy"):
            axis.plot([], [], "o", color=GRAY, fillstyle="none", label="best by labels (oracle)")
    entries = dict(zip(*reversed(axes[0, 0].get_legend_handles_labels()), strict=True))
    legend(axes[0, -1], entries.values(), entries)
    return figure


def _read(run: str | Path) -> pa.Table:
    """The rounds of a run, with the accuracies that labeled samples gave, if any."""
    table, checked = read_rounds(run), read_check(run)
    rows = [] if checked is None else checked.rounds
    for name in ("accuracy", "accuracy_low", "accuracy_high") if rows else ():
        table = table.append_column(f"checked_{name}", pa.array([row[name] for row in rows]))
    return table


def _rounds(seeds: Sequence[pa.Table], column: str) -> list[dict[int, list[float | None]]]:
    """Value, low and high by round, of each seed that has any."""
    names = (column, f"{column}_low", f"{column}_high")
    rounds = [{row["round"]: [row.get(name) for name in names] for row in table.to_pylist()} for table in seeds]
    rounds = [{at: values for at, values in seed.items() if values[0] is not None} for seed in rounds]
    return list(filter(None, rounds))


def _mean_of_seeds(seeds: list[dict[int, list[float | None]]]) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray]:
    """The rounds that all seeds have; their mean ± 1 sd, or the values and the interval of a single seed."""
    x = sorted(set.intersection(*map(set, seeds)))
    values = np.array([[seed[at] for at in x] for seed in seeds], dtype=float).reshape(len(seeds), -1, 3)
    if len(seeds) == 1:
        return x, *values[0].T
    middle, sd = values[..., 0].mean(0), values[..., 0].std(0, ddof=1)
    return x, middle, middle - sd, np.minimum(middle + sd, 1)


def plot_adaptation_gallery(runs: Mapping[str, str | Path], data: str | Samples, seed: int = 0) -> Figure:
    """Samples that one method selects in its first round and another does not, and the reverse (Fig. 21), at random.

    Above each image is its pseudo-label, colored and followed by the true class where it is known to be wrong; below
    are the confidence and the AVC of the pseudo-label.

    Args:
        runs: Two folders of `hardsight adapt` by name. In the first round both start from the same network.
        data: The target data, for the images.
        seed: Seed of the random choice.
    """
    if len(runs) != 2:
        raise InputError(f"the figure adaptation-gallery takes 2 RUNs, got {len(runs)}.")
    first, second = ((name, read_selection(run, 1)) for name, run in runs.items())
    samples = open_data(data, training=True) if isinstance(data, str) else data
    classes = (read_rounds(next(iter(runs.values()))).schema.metadata or {}).get(b"classes", "null")
    names = json.loads(classes) or samples.classes
    figure = need("matplotlib.figure").Figure(figsize=(9, 7), layout="constrained")
    halves = zip(figure.subfigures(2, 1), (first, second), (second, first), strict=True)
    for half, (name, selection), (other, others) in halves:
        taken = set(others.filter(others["label"].is_valid())["id"].to_pylist())
        selected = [row for row in selection.to_pylist() if row["label"] is not None]
        only = [row for row in selected if row["id"] not in taken]
        title = f"selected by {plain(name)}, not by {plain(other)}: {len(only):,} of {len(selected):,}"
        correct = [row["label"] == row["true"] for row in only if row["true"] is not None]
        title += f", {percent(np.mean(correct))} with the right label" if correct else ""
        half.suptitle(title, x=0.01, ha="left", fontsize=10)
        rows = [only[k] for k in np.sort(np.random.default_rng(seed).permutation(len(only))[:_SHOWN])]
        axes = half.subplots(2, _SHOWN // 2)
        for axis in axes.flat:
            axis.set_axis_off()
        positions = samples.find([row["id"] for row in rows])
        for axis, row, position in zip(axes.flat[: len(rows)], rows, positions, strict=True):
            if position is None:
                raise InputError(f"data: there is no sample {row['id']!r} in it; give the target that was adapted to.")
            _draw_image(axis, samples.load(position, None)[0], row, names)
    return figure


def _draw_image(axis: Axes, image: Any, row: Mapping[str, Any], names: Sequence[str] | None) -> None:
    pixels = to_tensor(image).clamp(0, 1).permute(1, 2, 0).numpy()
    axis.imshow(pixels[..., 0] if pixels.shape[-1] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
    label, true = (plain(names[k]) if names and k is not None else str(k) for k in (row["label"], row["true"]))
    wrong = row["true"] is not None and row["true"] != row["label"]
    axis.set_title(f"{label}, is {true}" if wrong else label, fontsize=7, color=COLORS[1] if wrong else "black", pad=2)
    text = f"p {row['confidence']:.3f}\nAVC {row['avc']:.3f}"
    axis.text(0.5, -0.03, text, transform=axis.transAxes, fontsize=6, color=GRAY, ha="center", va="top")
