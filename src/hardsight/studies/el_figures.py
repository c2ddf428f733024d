"""Losses against the likelihood: the Encouraging Loss (Fig. 2 and 3 of its paper), and the effect of label noise."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from hardsight.figures.style import COLORS, GRAY, line_styles, new_figure
from hardsight.losses import cross_entropy, log_total

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOG_ENDS = (1.0, 0.75, 0.5, 0.25, 0.0)
_P = torch.linspace(0.005, 0.995, 397, dtype=torch.float64)  # likelihoods


def plot_encouraging_loss() -> Figure:
    """Cross-entropy, the normal bonus and their sum, and their slopes at the target logit (EL Fig. 2)."""
    figure, axes = new_figure(1, 2)
    m = -torch.logit(_P)
    ce, total = cross_entropy(m), log_total(m)
    value, pull = axes[0]
    lines = {"cross-entropy": ce, "bonus": total - ce, "Encouraging Loss": total}
    for (label, line), (color, dash) in zip(lines.items(), line_styles(len(lines)), strict=True):
        value.plot(_P, line, color=color, linestyle=dash, label=label)
    pull.plot(_P, 1 - _P, color=COLORS[0], label="cross-entropy")
    pull.plot(_P, torch.ones_like(_P), color=COLORS[2], linestyle="-.", label="Encouraging Loss")
    pull.set_ylim(0, 1.1)
    for axis, label in ((value, "loss"), (pull, "|gradient| at the target logit")):
        axis.set(xlabel="likelihood p", ylabel=label)
        axis.legend(fontsize=8, frameon=False)
    value.axhline(0, color=GRAY, linewidth=0.8)
    return figure


def plot_bonuses() -> Figure:
    """The bonus and the loss for several ends of the logarithm, from normal to conservative (EL Fig. 3)."""
    figure, axes = new_figure(1, 3)
    m = (-torch.logit(_P)).requires_grad_()
    ce = cross_entropy(m.detach())
    for end, (color, dash) in zip(_LOG_ENDS, line_styles(len(_LOG_ENDS), ordered=True), strict=True):
        total = log_total(m, end)
        (pull,) = torch.autograd.grad(total.sum(), m)
        label = f"log_end {end:g}" + (" (normal)" if end == 1 else "")
        for axis, line in zip(axes[0], (total.detach() - ce, total.detach(), pull), strict=True):
            axis.plot(_P, line, color=color, linestyle=dash, label=label)
    names = ("bonus", "loss", "|gradient| at the target logit")
    for axis, line, name in zip(axes[0], (0 * _P, ce, 1 - _P), names, strict=True):
        axis.plot(_P, line, color=GRAY, linewidth=1, label="cross-entropy")
        axis.set(xlabel="likelihood p", ylabel=name)
    axes[0, 0].legend(fontsize=8, frameon=False)
    return figure


def plot_label_noise() -> Figure:
    """Expected loss of two classes when one label in ten is wrong: with the normal bonus it has no minimum."""
    figure, axes = new_figure(1, 1, width=4.4)
    axis, noise = axes[0, 0], 0.1
    m = torch.linspace(-9, 2, 1101, dtype=torch.float64)
    losses = {"cross-entropy": cross_entropy}
    losses |= {f"log_end {end:g}": partial(log_total, log_end=end) for end in (0.5, 0.75)}
    losses["log_end 1 (normal)"] = log_total
    for (name, loss), (color, dash) in zip(losses.items(), line_styles(len(losses)), strict=True):
        expected = (1 - noise) * loss(m) + noise * loss(-m)
        lowest = int(expected.argmin())
        label = f"{name}, minimum at p = {torch.sigmoid(-m[lowest]):.3f}" if lowest else f"{name}, no minimum"
        axis.plot(-m, expected, color=color, linestyle=dash, label=label)
        if lowest:
            axis.plot(-m[lowest], expected[lowest], "o", color=color, markersize=4)
    axis.axvline(torch.logit(torch.tensor(1 - noise)), color=GRAY, linewidth=0.8, linestyle=":")
    axis.set(xlabel=f"log-odds of the usual label (dotted: p = {1 - noise:g}, the truth)", ylabel="expected loss")
    axis.legend(fontsize=8, framealpha=1, edgecolor="none")
    return figure
