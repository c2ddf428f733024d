"""What several nets say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hardsight.alignment.closed_forms import in_words
from hardsight.alignment.folder import Aligned
from hardsight.dynamics.recorder import UNNAMED
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.stats import paired_difference


class OverNets(NamedTuple):
    """A number over nets: its mean, 95 % interval and two-sided p of being 0; no interval and no p if nothing varies.

    Attributes:
        mean: Over the units.
        low: End of Student's interval.
        high: Its other end.
        p: Of the mean being 0.
        nets: How many nets there are.
        architectures: How many of them differ in more than the seed.
        words: All that in a sentence.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    nets: int
    architectures: int
    words: str


def over_nets(values: Sequence[float], architectures: Sequence[str] | None = None) -> OverNets:
    """A number of each of several nets, such as a difference of agreements, as a statement about nets.

    An interval over images says what other images would show of the same net. Whether other nets show it, only nets
    can say. Seeds of one architecture are no independent nets: they are averaged first, and architectures are the
    units; where there is only one, its seeds are, and the statement is about that architecture alone.

    Args:
        values: One number a net, all on the same samples.
        architectures: The architecture of each net; None: they all differ.

    Examples:
        >>> found = over_nets([0.04, 0.06, 0.01, 0.03], ["vgg", "vgg", "resnet", "resnet"])
        >>> round(found.mean, 3), found.nets, found.architectures
        (0.035, 4, 2)
    """
    numbers = np.asarray(values, dtype=np.float64)
    names = list(range(len(numbers))) if architectures is None else list(architectures)
    if numbers.ndim != 1 or not len(numbers) or len(names) != len(numbers) or not np.isfinite(numbers).all():
        raise InputError(f"values must be finite numbers, one a net with its architecture; got {values} and {names}.")
    kinds, kind = np.unique(names, return_inverse=True)
    units = np.bincount(kind, numbers) / np.bincount(kind) if len(kinds) > 1 else numbers
    mean, n = float(units.mean()), len(units)
    unit = "architectures" if len(kinds) > 1 else "seeds of one architecture"
    words = f"{mean:+.3f} over {n} {unit}" if n > 1 else f"{mean:+.3f} for one net"
    words += f" ({len(numbers)} nets)" if len(numbers) > n else ""
    if n < 2:
        return OverNets(mean, None, None, None, len(numbers), len(kinds), f"{words}, which says nothing of others.")
    low, high, p = (float(end) if np.isfinite(end) else None for end in paired_difference(units)[1:])
    words += "" if low is None else f", 95 % interval {low:+.3f} to {high:+.3f}"
    words += f", {in_words(p)}; above 0 in {(units > 0).sum()} of {n}."
    return OverNets(mean, low, high, p, len(numbers), len(kinds), words)


def compare_runs(alignments: Mapping[Path, Aligned]) -> tuple[list[dict[str, Any]], list[str]]:
    """The tests that all runs share, over networks and not only over these images: as rows, and as lines to print.

    Args:
        alignments: What was found for each run folder.
    """
    ids = {run: set(result.people["id"].to_pylist()) for run, result in alignments.items()}
    first = next(iter(ids))
    if other := [run for run in ids if ids[run] != ids[first]]:
        return [], [
            "note: no test over networks: they must be compared on the same samples, and those of "
            f"{printable(other[0])} are not those of {printable(first)}."
        ]
    names = {run: result.summary["model"] for run, result in alignments.items()}
    # A recorder may not know what it records: then each run counts as a network of its own.
    unnamed = [run for run, name in names.items() if name in (None, UNNAMED)]
    models = [str(run) if run in unnamed else name for run, name in names.items()]
    differences = [
        {(row["first"], row["second"], row["coefficient"]): row["difference"] for row in result.differences.to_pylist()}
        for result in alignments.values()
    ]
    tests = []
    for key in differences[0]:
        if all(key in of_run for of_run in differences):
            result = over_nets([of_run[key] for of_run in differences], models)
            tests.append(dict(zip(("first", "second", "coefficient"), key, strict=True)) | result._asdict())
    if not tests:
        return [], []
    lines = [f"over networks ({', '.join(map(printable, dict.fromkeys(models)))})"]
    lines += ["{first} ahead of {second}, {coefficient}: {words}".format(**test) for test in tests]
    if unnamed:
        lines.append(
            f"note: {len(unnamed)} of {len(names)} runs do not name their architecture, and each counts as one of its "
            "own; if some differ only in the seed, intervals and p are too small."
        )
    return tests, lines
