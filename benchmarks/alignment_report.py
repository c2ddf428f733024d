"""Tables of the alignment study from the columns of its nets, on a CPU.

Images and people are split once and for all: `SEED` says which half of the images scores are chosen on, and
`hardsight.human.halves` which half of each image's answers. `report` sees the choosing half only, `final` the other.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special, stats

from hardsight.alignment.candidates import facts
from hardsight.alignment.derived import temperature_confidence, uncertainty
from hardsight.alignment.differences import compare_scores
from hardsight.alignment.leaderboard import leaderboard
from hardsight.alignment.nets import over_nets
from hardsight.comparison import mid_ranks
from hardsight.correlation import COEFFICIENTS
from hardsight.human import Human, halves, match, read_human

SEED, IMAGES = 20200713, 10_000  # a part of the images is split as the whole
_NO_COLUMNS = ("labels", "accuracy", "log_probabilities", "by_epoch")
_DIRECTIONS = {"grand": -1, "mahalanobis": -1, "mahalanobis_margin": -1, "neighbour_agreement": 1}
ALWAYS = ("avh", "angle", "confidence", "angular_margin")
_PAIRED = 12  # so many of the best are tried in pairs

Net = dict[str, np.ndarray]


def direction(name: str) -> int:
    """+1 for what people should choose more often as it grows; ``name@what`` goes the way of its name."""
    base = name.partition("@")[0].removesuffix("_dropout")
    known = facts(base)
    return -1 if " + " in name else _DIRECTIONS[base] if known is None else known.direction


def architecture(net: str) -> str:
    """``resnet18-32`` of ``resnet18-32-0``."""
    return net.rpartition("-")[0]


def read(out: Path) -> dict[str, Net]:
    """The columns of each net by its name and seed, ``resnet18-32-0``."""
    found = {}
    for file in sorted((out / "columns").glob("*.npz")):
        with np.load(file, allow_pickle=False) as arrays:
            net = {name: arrays[name].astype(np.float64) for name in arrays.files}
        net["labels"] = net["labels"].astype(np.int64)
        if "by_epoch" in net:
            net["soft_margin_late"] = net["by_epoch"][:, net["by_epoch"].shape[1] // 2 :].mean(1)
        net["temperature_confidence"] = temperature_confidence(net["log_probabilities"], net["labels"])
        found[file.stem] = net
    if not found:
        raise SystemExit(f"{out / 'columns'} holds no columns; train first")
    return found


def split(human: Path, labels: np.ndarray) -> tuple[np.ndarray, dict[str, Human]]:
    """Which images scores are chosen on, and the people of either half."""
    chosen = np.zeros(IMAGES, bool)
    chosen[np.random.default_rng(SEED).permutation(IMAGES)[: IMAGES // 2]] = True
    people = read_human(human)
    first, second = halves(people, seed=SEED)
    return chosen[: len(labels)], {"choosing": first, "reporting": second, "all": people}


def frequency(people: Human, labels: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Share of people who chose the label, NaN for images of the other half."""
    shares = match(people, [f"test:{i}" for i in range(len(labels))], labels).hsf
    return np.where(images, shares, np.nan)


def groups(nets: Mapping[str, Net]) -> dict[str, Net]:
    """Each net alone, the seeds of each architecture together, and all together."""
    by_kind: dict[str, list[Net]] = {}
    for name, net in nets.items():
        by_kind.setdefault(architecture(name), []).append(net)
    together = {f"{kind} × {len(own)}": ensemble(own) for kind, own in by_kind.items() if len(own) > 1}
    together |= {f"all × {len(nets)}": ensemble(list(nets.values()))} if len(nets) > 1 else {}
    return {**nets, **together}


def ensemble(nets: list[Net]) -> Net:
    """Columns averaged after each was brought to mean 0 and spread 1, and the uncertainty of the mean prediction."""
    shared = [name for name in nets[0] if name not in _NO_COLUMNS and all(name in net for net in nets)]
    found = {name: np.mean([stats.zscore(net[name]) for net in nets], 0) for name in shared}
    members = special.softmax(np.stack([net["log_probabilities"] for net in nets]), axis=2)
    mean = np.log(np.maximum(members.mean(0), 1e-30))
    found |= uncertainty(members) | {"labels": nets[0]["labels"], "log_probabilities": mean}
    found["confidence@mean"] = np.take_along_axis(np.exp(mean), nets[0]["labels"][:, None], 1)[:, 0]
    found["temperature_confidence"] = temperature_confidence(mean, nets[0]["labels"])
    return found


def column(net: Net, name: str) -> np.ndarray:
    """A column by name; ``a + b`` is the mean of their ranks."""
    parts = name.split(" + ")
    if len(parts) == 1:
        return net[name]
    return np.mean([mid_ranks(-direction(part) * net[part]) for part in parts], axis=0)


def agreements(net: Net, names: list[str], hsf: np.ndarray) -> dict[str, dict[str, Any]]:
    """Rows of the leaderboard by score."""
    columns = {name: column(net, name) for name in names if all(part in net for part in name.split(" + "))}
    rows = leaderboard(columns, hsf, directions={name: direction(name) for name in columns}).to_pylist()
    return {row["score"]: row for row in rows}


def table(nets: Mapping[str, Net], names: list[str], hsf: np.ndarray) -> list[dict[str, Any]]:
    """One row per score: its mean agreement over architectures, and that of every net and ensemble."""
    found = {name: agreements(net, names, hsf) for name, net in groups(nets).items()}
    rows = []
    for score in names:
        row: dict[str, Any] = {"score": score}
        for coefficient in ("spearman", "pearson", "kendall"):
            own = {net: found[net][score][coefficient] for net in nets if score in found[net]}
            own = {net: value for net, value in own.items() if value is not None}
            if own:
                over = over_nets(list(own.values()), [architecture(net) for net in own])
                row |= {coefficient: over.mean, f"{coefficient}_low": over.low, f"{coefficient}_high": over.high}
                row |= {"architectures": over.architectures, "nets": over.nets}
        for net, board in found.items():
            row |= {f"{net} {c}": board[score][c] for c in ("spearman", "pearson") if score in board}
        rows.append(row)
    return sorted(rows, key=lambda row: -row.get("spearman", -2))


def report(human: Path, out: Path) -> list[dict[str, Any]]:
    """Every candidate and pairs of the best, on the choosing half; written to ``choosing.csv``."""
    nets = read(out)
    labels = next(iter(nets.values()))["labels"]
    images, people = split(human, labels)
    hsf = frequency(people["choosing"], labels, images)
    names = list(dict.fromkeys(name for net in groups(nets).values() for name in net if name not in _NO_COLUMNS))
    rows = table(nets, names, hsf)
    best = [row["score"] for row in rows if row.get("nets") == len(nets)][:_PAIRED]
    rows += table(nets, [f"{a} + {b}" for a, b in itertools.combinations(best, 2)], hsf)
    rows.sort(key=lambda row: -row.get("spearman", -2))
    _write(out / "choosing.csv", rows)
    _show(rows[:40] + [row for row in rows[40:] if row["score"] in ALWAYS])
    return rows


def final(human: Path, out: Path, names: list[str]) -> list[dict[str, Any]]:
    """The named scores beside AVH and confidence on the other half of the images; written to ``reporting.csv``.

    Twice: with the other half of the people, and with all of them (nobody's answer to these images was used to choose).
    """
    nets = read(out)
    labels = next(iter(nets.values()))["labels"]
    images, people = split(human, labels)
    names = list(dict.fromkeys([*names, *ALWAYS]))
    rows: list[dict[str, Any]] = []
    for who in ("reporting", "all"):
        hsf = frequency(people[who], labels, ~images)
        rows += [{"people": who, **row} for row in table(nets, names, hsf)]
    _write(out / "reporting.csv", rows)
    _show(rows)
    tests = _avh_against_confidence(nets, frequency(people["all"], labels, ~images))
    _write(out / "avh-confidence.csv", tests)
    return rows


def _avh_against_confidence(nets: Mapping[str, Net], hsf: np.ndarray) -> list[dict[str, Any]]:
    """The paper's claim, tested on each net and over nets."""
    people = {f"test:{i}": share for i, share in enumerate(hsf.tolist())}
    rows = []
    for coefficient in COEFFICIENTS:
        own = []
        for name, net in nets.items():
            columns = {"id": np.array(list(people)), **{score: net[score] for score in ("avh", "confidence")}}
            own.append(compare_scores(columns, "avh", "confidence", people, coefficient=coefficient))
            rows.append({"net": name, **own[-1]._asdict()})
        over = over_nets([one.difference for one in own], [architecture(net) for net in nets])
        rows.append({"net": "over nets", "coefficient": coefficient, "words": over.words})
        print(f"AVH ahead of confidence, {coefficient}: {over.words}")
    return rows


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    fields = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows([{k: f"{v:.4f}" if isinstance(v, float) else v for k, v in row.items()} for row in rows])


def _show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        text = f"{row.get('people', ''):<10}{row['score']:<48}"
        for c in (c for c in ("spearman", "pearson") if c in row):
            text += f" {row[c]:.3f}" + ("" if row[f"{c}_low"] is None else f" ± {row[c] - row[f'{c}_low']:.3f}")
        together = {key.removesuffix(" spearman"): value for key, value in row.items() if key.endswith(" spearman")}
        print(text, *(f"  {name} {value:.3f}" for name, value in together.items() if "×" in name and value is not None))
