"""What cleaning does to labels: their errors before and after, for networks of four qualities.

``python -m benchmarks.cleaning_study CIFAR10N.npz LOGITS OUT.csv`` reads what `cleaning_nets` wrote and compares the
labels with CIFAR-10's own: as they are, as ``hardsight clean --auto`` leaves them, as a person leaves them who
reviews every suspect and knows the truth, and as the first edition left them (relabel whatever the network is sure of,
drop the other suspects).
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

import hardsight as hs
from benchmarks.cleaning_nets import HUMAN, NETS, PLANTED
from hardsight.labelerrors.confident import Probabilities


def rows_of(labels: np.ndarray, logits: np.ndarray, truth: np.ndarray) -> dict[str, float | str]:
    """One network under one labeling."""
    ids = [str(i) for i in range(len(labels))]
    table = hs.score_features(logits.astype(np.float32), np.eye(10, dtype=np.float32), labels, ids=ids)
    table.meta.out_of_sample = "test data"  # no image was scored by a network that was trained on its label
    todo = hs.labelerrors.actions(table)
    rows = todo.to_arrow()
    at = rows["id"].cast("int64").to_numpy()
    action, suggested = np.array(rows["action"]), pc.fill_null(rows["suggested"], -1).to_numpy()
    label, right = labels[at], truth[at]
    relabel, suspect = action == "relabel", action != "keep"
    after = np.where(relabel, suggested, label)
    probabilities, gate = Probabilities(table), todo.meta.label_errors["automatic"]
    sure = probabilities.confident[at] & suspect
    dropped = suspect & ~sure
    old = np.where(sure, rows["pred"].to_numpy(), label)
    estimate = todo.meta.label_errors["estimate"]
    return {
        "n": len(labels),
        "accuracy": float(np.mean(probabilities.pred == labels)),
        "accuracy on the truth": float(np.mean(probabilities.pred == truth)),
        "errors before": float(np.mean(label != right)),
        "errors after --auto": float(np.mean(after != right)),
        "errors after review": float(np.mean(np.where(suspect, right, label) != right)),
        "errors by the first edition": float(np.mean((old != right)[~dropped])),
        "suspects": int(suspect.sum()),
        "suspects wrong": float(np.mean((label != right)[suspect])) if suspect.any() else float("nan"),
        "relabeled": int(relabel.sum()),
        "relabeled rightly": float(np.mean((after == right)[relabel])) if relabel.any() else float("nan"),
        "estimated precision": gate.precision if gate.precision is not None else float("nan"),
        "lower bound": gate.low if gate.low is not None else float("nan"),
        "estimate": estimate["count"] / len(labels) if estimate else float("nan"),
        "refused": gate.kind or "",
    }


def write_csv(path: Path, rows: list[dict[str, float | str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cifar10n", type=Path)
    parser.add_argument("logits", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    truth = np.load(options.cifar10n)["clean_label"].astype(np.int64)
    rows = []
    for labeling in (*PLANTED, *HUMAN):
        arrays = np.load(options.logits / f"{labeling.replace(' ', '-').replace('%', '')}.npz")
        for net in NETS:
            for key in sorted(key for key in arrays.files if key.startswith(f"{net}-")):
                logits, seed = arrays[key], key.rpartition("-")[2]
                labels = arrays[f"labels-{seed}"][: len(logits)].astype(np.int64)
                rows.append(
                    {"labels": labeling, "network": net, "seed": seed, **rows_of(labels, logits, truth[: len(logits)])}
                )
                shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in rows[-1].items()}
                print(*shown.values(), sep="  ", flush=True)
    write_csv(options.out, rows)


if __name__ == "__main__":
    main()
