"""`hardsight evaluate --degrade`: a run's network on images that are degraded level by level."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardsight.cli.arguments import listed
from hardsight.errors import InputError
from hardsight.printing import interval, text_table

if TYPE_CHECKING:
    import pyarrow as pa

_TITLES = {"correct": "accuracy", "avh": "C·AVH"}


def evaluate_levels(
    runs: Sequence[Path], degrade: str, levels: str | None, human: Path | None, network: Sequence[Any], **options: Any
) -> dict[str, Any]:
    """Evaluate each run's network on degraded images, and print and return the means by level.

    Args:
        runs: Run folders.
        degrade: Degradations, with commas between them.
        levels: Levels of one degradation.
        human: Trials of people.
        network: Model, checkpoint and data, where the run does not say.
        options: Of `hardsight.degradation.evaluate_degraded`.
    """
    from hardsight.degradation import chosen_levels, evaluate_degraded, human_accuracy
    from hardsight.evaluation.rebuilding import has_one_network, rebuilt, warn_of_another_network

    names = listed(degrade)
    chosen: Any = None if levels is None else listed(levels)
    if levels is not None and len(names) > 1:
        raise InputError(f"--levels goes with one degradation, got {', '.join(names)}; evaluate them one by one.")
    chosen_levels(names, chosen)  # a misspelled name must not wait until a network is built
    people = [] if human is None else human_accuracy(human).to_pylist()
    values = {}
    for run in runs:
        subject = rebuilt(run, *network)
        print(f"model: {subject.model.name} ({subject.model.weights})\ndata: {subject.samples.origin}")
        head = subject.meta.model.head if has_one_network(subject.meta) else None
        bias = subject.meta.bias is not False
        rows = evaluate_degraded(
            subject.model, subject.samples, names, chosen, out=subject.folder, head=head, use_bias=bias, **options
        )
        if not options["grey"]:
            warn_of_another_network(rows, subject)
        values[str(run)] = _print_levels(rows, people)
        print(f"wrote {subject.folder / 'degraded'}/ — next: hardsight figure degradation {run}")
    return values


def _print_levels(rows: pa.Table, people: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means by level, and how closely they follow it."""
    from hardsight.degradation import follows_level, mean_by_level

    classes = int((rows.schema.metadata or {}).get(b"classes", 1))
    means, follows = mean_by_level(rows).to_pylist(), []
    if "correct" not in rows.column_names:
        print("without labels: no accuracy, and scores of the predicted class")
    for name in dict.fromkeys(row["degradation"] for row in means):
        table: dict[float, dict[str, str]] = {}
        for row in (row for row in means if row["degradation"] == name):
            cells = table.setdefault(row["level"], {name: f"{row['level']:g}"})
            cells[_title(row["value"])] = _cell(row, classes)
        print("\n".join(["", *text_table(list(table.values()))]))
        if len(table) > 1:
            follows += follows_level(rows.filter([d == name for d in rows["degradation"].to_pylist()])).to_pylist()
        for row in follows:
            if row["degradation"] == name and row["spearman"] is not None:
                print(
                    f"  {_title(row['value'])} and level: Spearman "
                    f"{interval(row['spearman'], row['low'], row['high'], '+.3f')}; it gets harder with the image for "
                    f"{row['moves']:.0%} of {row['pictures']:,}"
                )
        if answers := [f"{row['level']:g}: {row['mean']:.0%}" for row in people if row["degradation"] == name]:
            print(f"  people: {', '.join(answers)}")
    return {"classes": classes, "means": means, "follows": follows, "people": people}


def _title(value: str) -> str:
    name = value.removesuffix("_pred")
    return _TITLES.get(name, name)


def _cell(row: dict[str, Any], classes: int) -> str:
    """A mean with its interval."""
    factor = classes if row["value"].startswith("avh") else 1
    style = ".1%" if row["value"] == "correct" else ".3f"
    return interval(factor * row["mean"], factor * row["low"], factor * row["high"], style)
