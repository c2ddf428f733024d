"""Wrong labels that people really gave: our rankings, cleanlab's and the loss's on CIFAR-10N, same nets, same folds.

``python -m benchmarks.label_errors CIFAR10.npz CIFAR10N.npz OUT [--labels aggregate …] [--seeds 3] [--nets folds …]``
trains small ResNets on each noisy labelling of the 50,000 training pictures and scores the pictures in several ways:
``folds``, by nets that were trained on the other four fifths; ``whole``, by one net that was trained on all of them, as
it is and with its head refitted on folds; ``memorised``, the same with a net that was trained to know them by heart.
It writes ``rankings.csv`` and ``estimates.csv`` into OUT. CIFAR10N.npz holds ``clean_label`` and the labellings.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn
from torchvision.transforms import Normalize

import hardsight as hs
from benchmarks.cifar10 import MEAN, STD, network
from hardsight.data import ArraySamples
from hardsight.labelerrors import RANKINGS, actions, label_errors, noise, probability_matrix

KEYS = {
    "aggregate": "aggre_label", "random1": "random_label1", "random2": "random_label2", "random3": "random_label3",
    "worst": "worse_label",
}  # fmt: skip
FOLDS, EPOCHS, BATCH = 5, 12, 512
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def train(data) -> tuple[nn.Module, Normalize, list[str]]:
    """SGD with one cycle, random crops and flips; nothing in it knows of noise."""
    return _trained(data, EPOCHS, augment=True)


def memorise(data) -> tuple[nn.Module, Normalize, list[str]]:
    """Longer, and without crops and flips: until the training labels are known by heart."""
    return _trained(data, 3 * EPOCHS, augment=False)


def _trained(data, epochs: int, augment: bool) -> tuple[nn.Module, Normalize, list[str]]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (MEAN, STD))
    x = torch.from_numpy(data.images).to(device).permute(0, 3, 1, 2).float().div_(255).sub_(mean).div_(std)
    x = F.pad(x, (4, 4, 4, 4), mode="reflect").to(memory_format=torch.channels_last)
    y = torch.from_numpy(data.labels.astype(np.int64)).to(device)
    net = network(64).to(device, memory_format=torch.channels_last)
    steps = epochs * (len(x) // BATCH)
    optimiser = torch.optim.SGD(net.parameters(), 0.1, 0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.4, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), device=device)[: len(x) // BATCH * BATCH].split(BATCH):
            top, left, flip = 4, 4, False
            if augment:
                top, left, flip = (*torch.randint(0, 9, (2,)).tolist(), bool(torch.rand(()) < 0.5))
            pictures = x[rows, :, top : top + 32, left : left + 32]
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = F.cross_entropy(net(pictures.flip(3) if flip else pictures), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return net.eval(), Normalize(MEAN, STD), CLASSES


WHOLE = {"whole": train, "memorised": memorise}


class Whole:
    """All samples as a training function sees them."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels


def measured(table: hs.SampleTable, clean: np.ndarray, where: dict) -> tuple[list[dict], dict]:
    """How well each ranking finds the labels that differ from the clean ones, and what the estimates say."""
    index = np.array([int(i.split(":")[1]) for i in table["id"]])
    truth, labels = clean[index], table["label"]
    wrong = labels != truth
    k = int(wrong.sum())
    rows = []
    for name, ranking in RANKINGS.items():
        suspicion = ranking.function(table)
        order = np.argsort(-suspicion, kind="stable")
        rows.append(
            {
                **where,
                "ranking": name,
                "n": len(table),
                "wrong": k,
                "auroc": roc_auc_score(wrong, suspicion),
                "average precision": average_precision_score(wrong, suspicion),
                **{f"precision@{top}": wrong[order[:top]].mean() for top in (100, 1000)},
                "precision@wrong": wrong[order[:k]].mean(),  # and recall: as many are taken as there are
                "recall@2×wrong": wrong[order[: 2 * k]].sum() / k,
            }
        )
    return rows, {**where, **estimates(table, truth)}


def estimates(table: hs.SampleTable, truth: np.ndarray) -> dict:
    """The noise estimate against the truth, the suspects, and what acting on them does to the labels."""
    from cleanlab.count import num_label_issues
    from cleanlab.filter import find_label_issues

    labels, found, estimate = table["label"], label_errors(table), noise(table)
    at = {id_: i for i, id_ in enumerate(table["id"])}
    wrong = labels != truth
    suspects = np.array([at[i] for i in found["id"][found["suspect"]]], dtype=int)
    done = actions(table)
    place = np.array([at[i] for i in done["id"]])
    relabel, keep = done["action"] == "relabel", done["action"] == "keep"
    suggested = done["suggested"]
    after = np.where(relabel, np.nan_to_num(suggested, nan=-1), done["label"])
    left = relabel | keep
    per_class = np.array([wrong[labels == c].mean() for c in range(10)])
    listed = find_label_issues(labels, probability_matrix(table), n_jobs=1)
    return {
        "accuracy on noisy": table.accuracy,
        "accuracy on clean": float((table["pred"] == truth).mean()),
        "wrong share": wrong.mean(),
        "estimated share": estimate.share,
        "interval low": estimate.low,
        "interval high": estimate.high,
        "cleanlab share": num_label_issues(labels, probability_matrix(table)) / len(table),
        "class share mean error": np.abs(np.array(estimate.rows["share"]) - per_class).mean(),
        "suspects": len(suspects),
        "suspect precision": wrong[suspects].mean() if len(suspects) else np.nan,
        "suspect recall": wrong[suspects].sum() / wrong.sum(),
        "cleanlab issues": int(listed.sum()),
        "cleanlab precision": wrong[listed].mean(),
        "cleanlab recall": wrong[listed].sum() / wrong.sum(),
        "relabelled": int(relabel.sum()),
        "relabelled rightly": (after == truth[place])[relabel].mean(),
        "dropped": int((done["action"] == "drop").sum()),
        "dropped were wrong": wrong[place[done["action"] == "drop"]].mean(),
        "label accuracy before": 1 - wrong.mean(),
        "label accuracy after": (after == truth[place])[left].mean(),
        "kept share": left.mean(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("cifar10n", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--labels", nargs="+", choices=KEYS, default=["aggregate", "random1", "worst"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nets", nargs="+", choices=("folds", *WHOLE), default=["folds", *WHOLE])
    parser.add_argument("--samples", type=int, default=50_000)
    options = parser.parse_args()
    images = np.load(options.cifar10)["train_images"][: options.samples]
    human = np.load(options.cifar10n)
    clean = human["clean_label"].astype(np.int64)
    quiet = {"progress": False, "batch_size": 1000}
    rankings, sums = [], []
    for name in options.labels:
        labels = human[KEYS[name]].astype(np.int64)[: options.samples]
        samples = ArraySamples(images, labels, "train", f"CIFAR-10N {name}", CLASSES)
        run = options.out / f"run-{name}"
        started = time.time()
        tables = {}
        if "folds" in options.nets:
            tables["folds", "mean"] = hs.score(train, samples, folds=FOLDS, seeds=options.seeds, out=run, **quiet)
            for seed in range(options.seeds if options.seeds > 1 else 0):
                tables["folds", str(seed)] = hs.SampleTable.load(run, model=f"train seed {seed}")
        for how in [how for how in WHOLE if how in options.nets]:
            for seed in range(options.seeds):
                torch.manual_seed(1000 + seed)
                network_, transform, classes = WHOLE[how](Whole(images, labels))
                model = hs.Model(network_, how, transform, "any", classes)
                tables[how, str(seed)] = hs.score(model, samples, **quiet)
                tables[f"{how}, head on folds", str(seed)] = hs.score(model, samples, folds=FOLDS, **quiet)
        for (how, seed), table in tables.items():
            rows, estimate = measured(table, clean, {"labels": name, "scored": how, "seed": seed})
            rankings += rows
            sums.append(estimate)
        print(f"{name}: {time.time() - started:.0f} s", flush=True)
        for file, rows in (("rankings", rankings), ("estimates", sums)):
            with (options.out / f"{file}.csv").open("w", newline="") as target:
                writer = csv.DictWriter(target, rows[0].keys())
                writer.writeheader()
                writer.writerows({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in r.items()} for r in rows)


if __name__ == "__main__":
    main()
