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

import numpy as np

from hardsight.figures.style import DASHES, group_colours, new_figure


def draw(files: dict[str, Path], out: Path) -> None:
    figure, axes = new_figure(1, 2, None)
    margins, energies = axes[0]
    for (name, file), colour, dash in zip(files.items(), group_colours(len(files), ordered=True), DASHES, strict=False):
        details = json.loads(file.read_text())
        edges, counts = np.array(details["edges"]), np.array(details["margins"])
        share = counts / counts.sum() / np.diff(edges)
        margins.plot((edges[1:] + edges[:-1]) / 2, share, color=colour, linestyle=dash, label=name)
        energy = np.sort(np.array(details["energy"]), axis=1).mean(0)
        energies.plot(np.arange(1, len(energy) + 1), energy, color=colour, linestyle=dash, label=name)
    margins.set(xlabel="margin", ylabel="density of test samples", xlim=(-20, 45))
    energies.set(xlabel="class, by energy", ylabel="mean energy (minus the logit)")
    margins.legend(fontsize=8, frameon=False)
    figure.savefig(out, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    draw({name: Path(file) for name, file in (told.split("=", 1) for told in sys.argv[2:])}, Path(sys.argv[1]))
