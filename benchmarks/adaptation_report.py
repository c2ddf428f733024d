"""Tables of `benchmarks.adaptation_study` from what its jobs wrote.

Under OUT: rounds.csv (all rounds of all runs), summary.csv (means over seeds, and paired differences to CBST),
validators.csv (what choosing a round without target labels costs), choices.csv (what the first round of each method
chose otherwise than CBST, which saw the same network), and a figure per pair where matplotlib is installed.

*last* is the last round. *oracle* is the best round by test labels, which nobody has who needs to adapt.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.jobs import read_rows, write_rows
from hardsight.adaptation.rounds import SELECTION
from hardsight.adaptation.validators import picked
from hardsight.stats import holm, paired_difference

BASELINE = "cbst"
MEASURES = ("test_accuracy", "test_mean_class", "target_accuracy")
_MEANS = ("tp_rate", "confidence", "avc", "avh", "norm")  # of what was chosen, in choices.csv
Run = list[dict[str, Any]]  # the rounds of one method and seed


def report(out: Path, order: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Make every table of a study's folder; returns the summary.

    Args:
        out: The study's folder.
        order: Pairs and methods in the order that they are listed in; what is not named comes last.
    """
    rows = [row for file in sorted((out / "rows").glob("*+*+*.csv")) for row in read_rows(file)]
    places = {name: place for place, name in enumerate(order)}
    rows.sort(key=lambda row: [places.get(row[name], len(places)) for name in ("pair", "method")])
    runs: dict[tuple[str, str, int], Run] = defaultdict(list)
    for row in rows:
        runs[row["pair"], row["method"], row["seed"]].append(row)
    if not runs:
        print("nothing to report yet")
        return []
    summary = summarised(runs)
    write_rows(out / "rounds.csv", rows)
    write_rows(out / "summary.csv", summary)
    write_rows(out / "validators.csv", chosen_rounds(runs))
    write_rows(out / "choices.csv", choices(out, runs))
    if importlib.util.find_spec("matplotlib") is not None:
        draw(out, runs)
    _say(summary)
    return summary


def summarised(runs: Mapping[tuple[str, str, int], Run]) -> list[dict[str, Any]]:
    """A row per pair, method, measure and moment: mean, sd and n over seeds, and the paired difference to CBST."""
    found = []
    for pair in dict.fromkeys(pair for pair, _, _ in runs):
        own = {(method, seed): run for (of, method, seed), run in runs.items() if of == pair}
        for measure in MEASURES:
            firsts = {seed: run[0][measure] for (_, seed), run in own.items()}
            found.append(_row(pair, "source only", measure, "source", firsts, firsts))
            for at in ("last", "oracle"):
                reached: dict[str, dict[int, float]] = defaultdict(dict)
                for (method, seed), run in own.items():
                    reached[method][seed] = _at(run, at)[measure]
                for method, values in reached.items():
                    base = reached.get(BASELINE, {}) if method != BASELINE else {}
                    found.append(_row(pair, method, measure, at, values, firsts, base))
    # One family of tests: the measure and the moment that were chosen beforehand.
    main = [row for row in found if (row["measure"], row["at"]) == (MEASURES[0], "last")]
    adjusted = holm(np.array([np.nan if row["p"] is None else row["p"] for row in main]))
    for row, p in zip(main, adjusted, strict=True):
        row["p_holm"] = None if np.isnan(p) else float(p)
    return found


def _row(
    pair: str,
    method: str,
    measure: str,
    at: str,
    values: Mapping[int, float],
    firsts: Mapping[int, float],
    base: Mapping[int, float] | None = None,
) -> dict[str, Any]:
    of = np.array(list(values.values()))
    over_source = paired(values, firsts) if at != "source" else {}
    over_base = paired(values, base or {})
    return {
        **{"pair": pair, "method": method, "measure": measure, "at": at, "n": len(of)},
        **{"mean": float(of.mean()), "sd": float(of.std(ddof=1)) if len(of) > 1 else None},
        **{f"over_source{end}": over_source.get(name) for end, name in (("", "mean"), ("_low", "low"))},
        **{"over_source_high": over_source.get("high"), "over_cbst": over_base.get("mean")},
        **{"over_cbst_low": over_base.get("low"), "over_cbst_high": over_base.get("high"), "p": over_base.get("p")},
        "p_holm": None,
    }


def paired(values: Mapping[int, float], base: Mapping[int, float]) -> dict[str, float | None]:
    """Mean difference over common seeds with Student's 95 % interval and two-sided p.

    Examples:
        >>> found = paired({0: 0.5, 1: 0.7}, {0: 0.4, 1: 0.5, 2: 0.9})
        >>> round(found["mean"], 2), round(found["high"], 2), round(found["p"], 3)
        (0.15, 0.79, 0.205)
    """
    differences = np.array([values[seed] - base[seed] for seed in sorted(values.keys() & base.keys())])
    if not len(differences):
        return {}
    found = paired_difference(differences)
    tested = np.isfinite(found.p)  # one seed, or the same difference every time, has no test
    return {"mean": float(found.value)} | {
        name: float(value) if tested else None for name, value in zip(("low", "high", "p"), found[1:], strict=True)
    }


def _at(run: Run, at: str) -> dict[str, Any]:
    return run[-1] if at == "last" else max(run, key=lambda row: row[MEASURES[0]])


def chosen_rounds(runs: Mapping[tuple[str, str, int], Run]) -> list[dict[str, Any]]:
    """Which round each validator picks in each run, and what that is worth."""
    names = ("pair", "method", "seed")
    return [{**dict(zip(names, key, strict=True)), **row} for key, run in runs.items() for row in picked(run)]


def choices(out: Path, runs: Mapping[tuple[str, str, int], Run]) -> list[dict[str, Any]]:
    """What the first round of each method chose and CBST's did not, and the reverse; both saw the same network."""
    found = []
    for pair, method, seed in runs:
        files = [out / "runs" / f"{pair}+{name}+{seed}" / SELECTION for name in (method, BASELINE)]
        if method == BASELINE or not all(file.exists() for file in files):
            continue
        own, base = map(_selection, files)
        chosen, by_base = own["label"] >= 0, base["label"] >= 0  # rows are the target's, in both
        for who, part, kept in (
            ("both", own, chosen & by_base),
            ("only this", own, chosen & ~by_base),
            ("only cbst", base, by_base & ~chosen),
        ):
            columns = {"tp_rate": part["label"] == part["true"], **part}
            means = {name: float(columns[name][kept].mean()) if kept.any() else None for name in _MEANS}
            named = {"pair": pair, "method": method, "seed": seed, "chosen_by": who}
            found.append({**named, "n": int(kept.sum()), **means})
    return found


def _selection(file: Path) -> dict[str, np.ndarray]:
    """The columns of a selection; what was not chosen has the label −1."""
    table = pq.read_table(file)
    label = table["label"].fill_null(-1).to_numpy()
    return {"label": label, **{column: table[column].to_numpy() for column in ("true", *_MEANS[1:])}}


def draw(out: Path, runs: Mapping[tuple[str, str, int], Run]) -> None:
    """Accuracy against round, a picture per pair, a line per method with its spread over seeds."""
    from hardsight.figures import plot_adaptation, write_figure

    for pair in dict.fromkeys(pair for pair, _, _ in runs):
        lines: dict[str, list[pa.Table]] = defaultdict(list)
        for (of, method, _), run in runs.items():
            if of == pair:
                lines[method].append(pa.Table.from_pylist(run))
        write_figure(plot_adaptation(lines), out / f"{pair}.png")


def _say(summary: Sequence[Mapping[str, Any]]) -> None:
    """Test accuracy of the last round, as a table to read."""
    for row in summary:
        if row["measure"] == MEASURES[0] and row["at"] != "oracle":
            spread = "" if row["sd"] is None else f" ± {100 * row['sd']:.2f}"
            low, high, over = row["over_cbst_low"], row["over_cbst_high"], row["over_cbst"]
            ahead = "" if over is None else f"  {100 * over:+.2f} over {BASELINE}"
            ahead += "" if low is None else f" [{100 * low:+.2f}, {100 * high:+.2f}]"
            print(f"{row['pair']:<18}{row['method']:<20}{100 * row['mean']:6.2f}{spread}  n = {row['n']}{ahead}")
