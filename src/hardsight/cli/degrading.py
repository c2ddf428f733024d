"""`hardsight evaluate --degrade`: a run's network on pictures that are made harder by degrees, told level by level."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardsight.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from hardsight.evaluation.rebuilding import Rebuilt


def evaluate_levels(
    runs: Sequence[Path],
    degrade: str,
    levels: str | None,
    human: Path | None,
    named: tuple[str | None, Path | None, str | None],
    **options: Any,
) -> None:
    """Try each run's network on degraded pictures, and print what came out.

    Args:
        runs: Run folders.
        degrade: Degradations, with commas between them.
        levels: Of one degradation.
        human: Trials of people.
        named: Model, checkpoint and data, where the run does not say.
        options: Of `hardsight.evaluate_degraded`.
    """
    from hardsight.degradation import chosen_levels, evaluate_degraded, human_accuracy
    from hardsight.evaluation.rebuilding import has_one_network, rebuilt

    names = [name.strip() for name in degrade.split(",") if name.strip()]
    given: Any = None if levels is None else [level.strip() for level in levels.split(",")]
    if levels is not None and len(names) > 1:
        raise InputError(f"--levels goes with one degradation, got {', '.join(names)}; evaluate them one by one.")
    chosen_levels(names, given)  # a misspelt name must not wait until a network is built
    people = None if human is None else human_accuracy(human)
    for run in runs:
        found = rebuilt(run, *named)
        print(f"model: {found.model.name} ({found.model.weights})\ndata: {found.samples.origin}")
        rows = evaluate_degraded(
            found.model,
            found.samples,
            names,
            given,
            out=found.folder,
            head=found.meta.model.head if has_one_network(found.meta) else None,
            use_bias=found.meta.bias is not False,
            **options,
        )
        if not options["grey"]:
            _compare(rows, found)
        _tell(rows, people)
        print(f"wrote {found.folder / 'degraded'}/ — next: hardsight figure degradation {run}")


def _compare(rows: pa.Table, found: Rebuilt) -> None:
    """A warning if clean pictures are not predicted as in the run: then the network is not the one that made it."""
    import warnings

    import pyarrow.compute as pc

    from hardsight.degradation import DEGRADATIONS
    from hardsight.table import SampleTable

    name = rows["degradation"][0].as_py()
    clean = rows.filter(pc.and_(pc.equal(rows["degradation"], name), pc.equal(rows["level"], DEGRADATIONS[name].clean)))
    run = SampleTable.load(found.folder, partial=True).to_arrow()
    at = pc.index_in(clean["id"], value_set=run["id"].combine_chunks())
    alike = pc.mean(pc.equal(clean["pred"], run["pred"].take(at)).cast("double")).as_py()
    if len(clean) and (alike is None or alike < 0.95):
        told = "none of them is in the run" if alike is None else f"{alike:.0%} of them alike"
        warnings.warn(
            f"RUN: {found.folder} predicts its clean pictures otherwise ({told}): is it the same network, "
            "preprocessing and data?",
            UserWarning,
            stacklevel=2,
        )


def _tell(rows: pa.Table, people: pa.Table | None) -> None:
    """Means by level, and how closely they follow it."""
    from hardsight.degradation import follows_level, mean_by_level

    scale = int((rows.schema.metadata or {}).get(b"classes", 1))
    means = mean_by_level(rows).to_pylist()
    if "correct" not in rows.column_names:
        print("without labels: no accuracy, and scores of the predicted class")
    for name in dict.fromkeys(row["degradation"] for row in means):
        own = [row for row in means if row["degradation"] == name]
        values = list(dict.fromkeys(row["value"] for row in own))
        print((f"\n{name:<12}" + "".join(f"{_title(value):<24}" for value in values)).rstrip())
        for level in dict.fromkeys(row["level"] for row in own):
            cells = [_cell(row, scale) for row in own if row["level"] == level]
            print(f"  {level:<10g}" + "".join(f"{cell:<24}" for cell in cells).rstrip())
        if len({row["level"] for row in own}) > 1:
            chosen = rows.filter([one == name for one in rows["degradation"].to_pylist()])
            for row in follows_level(chosen).to_pylist():
                if row["spearman"] is not None:
                    print(
                        f"  {_title(row['value'])} and level: Spearman {row['spearman']:+.3f} "
                        f"[{row['low']:+.3f}, {row['high']:+.3f}]; it gets harder with the picture for "
                        f"{row['moves']:.0%} of {row['pictures']:,}"
                    )
        shown = [] if people is None else [row for row in people.to_pylist() if row["degradation"] == name]
        if shown:
            print("  people: " + ", ".join(f"{row['level']:g}: {row['mean']:.0%}" for row in shown))


def _title(value: str) -> str:
    name = value.removesuffix("_pred")
    return {"correct": "accuracy", "avh": "C·AVH"}.get(name, name)


def _cell(row: dict[str, Any], scale: int) -> str:
    """A mean with its interval."""
    if row["value"] == "correct":
        return f"{row['mean']:.1%} [{row['low']:.1%}, {row['high']:.1%}]"
    times = scale if row["value"].startswith("avh") else 1
    middle, low, high = (times * row[end] for end in ("mean", "low", "high"))
    return f"{middle:.3f}" if low != low else f"{middle:.3f} [{low:.3f}, {high:.3f}]"
