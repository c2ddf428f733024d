"""Margins and energies of trained networks (EL Fig. 5, 6).

``python -m benchmarks.loss_figures OUT.png NAME=FILE.json …``

The files are those that `benchmarks.loss_studies` writes for the first seed. Left: how many test samples have which
margin (the target's logit less the largest other). Right: the energy of each class, minus its mean logit over samples
of one class, from the lowest (the class they belong to) to the highest, averaged over classes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hardsight.figures.style import line_styles, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(files: dict[str, Path]) -> Figure:
    """Both panels, with one line per network in each."""
    figure, axes = new_figure(1, 2)
    margins, energies = axes[0]
    for (name, file), (color, dash) in zip(files.items(), line_styles(len(files), ordered=True), strict=True):
        style = {"color": color, "linestyle": dash, "label": name}
        details = json.loads(file.read_text())
        edges, counts = np.array(details["edges"]), np.array(details["margins"])
        share = counts / counts.sum() / np.diff(edges)
        margins.plot((edges[1:] + edges[:-1]) / 2, share, **style)
        energy = np.sort(np.array(details["energy"]), axis=1).mean(0)
        energies.plot(np.arange(1, len(energy) + 1), energy, **style)
    margins.set(xlabel="margin", ylabel="density of test samples", xlim=(-20, 45))
    energies.set(xlabel="class, by energy", ylabel="mean energy (minus the logit)")
    margins.legend(fontsize=8, frameon=False)
    return figure


if __name__ == "__main__":
    named = {name: Path(file) for name, file in (argument.split("=", 1) for argument in sys.argv[2:])}
    plot(named).savefig(sys.argv[1], dpi=150, metadata={"Software": None})
