"""Every table and figure of the three papers and the slides of one: the command that makes it here, or why none can.

One line of ``published/exhibits.csv`` each. Commands run where the data sets are; DIR is the folder that holds them,
FILE a checkpoint pretrained on ImageNet. Figures of trainings are of one network where the paper has several.
"""

from __future__ import annotations

from typing import NamedTuple

from hardsight.studies.quoted import published


class Exhibit(NamedTuple):
    """A table or figure of a paper.

    Attributes:
        paper: AVH, AVH slides, EL or AMC.
        name: Its number, or the title of the slide.
        shows: What it shows.
        commands: What makes it, one after the other; empty if nothing can.
        reason: Why nothing can; empty otherwise.
    """

    paper: str
    name: str
    shows: str
    commands: tuple[str, ...]
    reason: str


def exhibits() -> list[Exhibit]:
    """All tables and figures, in the order of their papers.

    Examples:
        >>> [exhibit.commands for exhibit in exhibits() if (exhibit.paper, exhibit.name) == ("AVH", "Fig. 20")]
        [('hardsight figure norm-growth',)]
    """
    return [
        Exhibit(
            row["paper"], row["exhibit"], row["shows"], tuple(filter(None, row["command"].split(" && "))), row["reason"]
        )
        for row in published("exhibits")
    ]
