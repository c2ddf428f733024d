"""Curves of losses over the likelihood: the Encouraging Loss (its paper's Fig. 2 and 3), and what label noise does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hardsight.figures.style import COLOURS, DASHES, GREY, group_colours, line_styles, new_figure
from hardsight.losses import cross_entropy, log_total

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOG_ENDS = (1.0, 0.75, 0.5, 0.25, 0.0)


def _likelihoods() -> tuple[torch.Tensor, torch.Tensor]:
    p = torch.linspace(0.005, 0.995, 397, dtype=torch.float64)
    return p, -torch.logit(p)


def plot_encouraging_loss(figure: Figure | None = None) -> Figure:
    """Cross-entropy, the normal bonus and their sum, and how steep they are at the target logit (EL Fig. 2).

    Args:
        figure: Drawn into this one.
    """
    figure, axes = new_figure(1, 2, figure)
    p, m = _likelihoods()
    ce, total = cross_entropy(m), log_total(m)
    value, pull = axes[0]
    lines = {"cross-entropy": ce, "bonus": total - ce, "Encouraging Loss": total}
    for (label, line), (colour, dash) in zip(lines.items(), line_styles(len(lines)), strict=True):
        value.plot(p, line, color=colour, linestyle=dash, label=label)
    pull.plot(p, 1 - p, color=COLOURS[0], label="cross-entropy")
    pull.plot(p, torch.ones_like(p), color=COLOURS[2], linestyle="-.", label="Encouraging Loss")
    value.set_ylabel("loss")
    pull.set_ylabel("pull on the target logit")
    pull.set_ylim(0, 1.1)
    for axis in axes[0]:
        axis.set_xlabel("likelihood p")
        axis.legend(fontsize=8, frameon=False)
    value.axhline(0, color=GREY, linewidth=0.8)
    return figure


def plot_bonuses(figure: Figure | None = None) -> Figure:
    """The bonus and the loss for several ends of the logarithm, from normal to conservative (EL Fig. 3).

    Args:
        figure: Drawn into this one.
    """
    figure, axes = new_figure(1, 3, figure)
    p, m = _likelihoods()
    ce = cross_entropy(m)
    shades = group_colours(len(_LOG_ENDS), ordered=True)
    for end, colour, dash in zip(_LOG_ENDS, shades, DASHES[: len(_LOG_ENDS)], strict=True):
        at = m.clone().requires_grad_()
        total = log_total(at, end)
        (pull,) = torch.autograd.grad(total.sum(), at)
        label = f"log_end {end:g}" + (" (normal)" if end == 1 else "")
        for axis, line in zip(axes[0], (total.detach() - ce, total.detach(), pull), strict=True):
            axis.plot(p, line, color=colour, linestyle=dash, label=label)
    for axis, line, name in zip(
        axes[0], (0 * p, ce, 1 - p), ("bonus", "loss", "pull on the target logit"), strict=True
    ):
        axis.plot(p, line, color=GREY, linewidth=1, label="cross-entropy")
        axis.set_xlabel("likelihood p")
        axis.set_ylabel(name)
    axes[0, 0].legend(fontsize=8, frameon=False)
    return figure


def plot_label_noise(figure: Figure | None = None) -> Figure:
    """Expected loss of two classes when one label in ten is wrong: the normal bonus falls for ever.

    Args:
        figure: Drawn into this one.
    """
    figure, axes = new_figure(1, 1, figure, width=4.4)
    axis, noise = axes[0, 0], 0.1
    m = torch.linspace(-9, 2, 1101, dtype=torch.float64)
    curves = {"cross-entropy": cross_entropy, "log_end 0.5": lambda m: log_total(m, 0.5)}
    curves |= {"log_end 0.75": lambda m: log_total(m, 0.75), "log_end 1 (normal)": log_total}
    for (name, loss), (colour, dash) in zip(curves.items(), line_styles(len(curves)), strict=True):
        expected = (1 - noise) * loss(m) + noise * loss(-m)
        least = int(expected.argmin())
        best = f", least at p = {torch.sigmoid(-m[least]):.3f}" if least else ", no minimum"
        axis.plot(-m, expected, color=colour, linestyle=dash, label=f"{name}{best}")
        if least:
            axis.plot(-m[least], expected[least], "o", color=colour, markersize=4)
    axis.axvline(torch.logit(torch.tensor(1 - noise)), color=GREY, linewidth=0.8, linestyle=":")
    axis.set_xlabel(f"log-odds of the usual label (dotted: p = {1 - noise:g}, the truth)")
    axis.set_ylabel("expected loss")
    axis.legend(fontsize=8, framealpha=1, edgecolor="none")
    return figure
