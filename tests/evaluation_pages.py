"""Made-up evaluations for the tests of the comparison page and its figures: folders as `hardsight evaluate` writes."""

import json
import math
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from scipy import stats

from hardsight.questions.answers import point, row

BETTER = {"accuracy": "higher", "ece": "lower", "nll": "lower", "auroc": "higher", "fpr95": "lower", "mean": "higher"}
EPS = (0.0, 0.05, 0.1, 0.2, 0.3)


def answers_of(group, rng):
    """Rows and points of one run; a later group is somewhat better."""
    shift = 0.01 * group + rng.normal(0, 0.002)
    rows, points = [], []

    def add(question, metric, value, **more):
        rows.append(row(question, metric, value, n=1000, better=BETTER[metric], **more))

    add("calibration", "accuracy", 0.93 + shift, low=0.915 + shift, high=0.945 + shift)
    for score, level in (("softmax", 0.05), ("avc", 0.4)):
        add("calibration", "ece", level - shift, score=score)
        add("calibration", "nll", 0.3 - shift, score=score)
        points += [
            point("calibration", "reliability", x, min(1, x**1.2 + shift), score=score, n=int(20 + 100 * x))
            for x in np.linspace(1 / 30, 29 / 30, 15)
        ]
    for score in ("msp", "max_logit", "avc"):
        for on in ("fashion_mnist", "noise"):
            add("ood", "auroc", 0.95 + shift, score=score, on=on)
            add("ood", "fpr95", 0.2 - shift, score=score, on=on)
            points += [
                point("ood", "roc", x, x ** (1 / (9 + group)), score=score, on=on) for x in np.linspace(0, 1, 21)
            ]
            for curve, middle in (("inside", 4 + group), ("outside", 1)):
                grid = np.linspace(-2, 8 + group, 40)
                for x, share in zip(grid, stats.norm.pdf(grid, middle, 1.2), strict=True):
                    points.append(point("ood", curve, x, share, score=score, on=on, n=1000))
    for score in ("fgsm", "pgd", "pgd-margin"):
        for eps in EPS:
            held = (0.93 + shift) * np.exp(-eps * (6 - group))
            add("robustness", "accuracy", held, score=score, level=eps, low=held - 0.03, high=held + 0.03)
            points.append(point("robustness", "attack", eps, held, score=score, low=held - 0.03, high=held + 0.03))
    for score in ("logit", "angular"):
        add("margins", "mean", 2 + group + 10 * shift, score=score)
        grid = np.linspace(-4, 10, 30)
        for x, share in zip(grid, stats.norm.pdf(grid, 2 + group, 2), strict=True):
            points.append(point("margins", "margin", x, share, score=score, n=1000))
    for score, least in (("mean over classes", -8), ("class 0", -9), ("class 3", -5)):
        points += [point("margins", "energy", k, least + 0.7 * k - group, score=score, n=100) for k in range(10)]
    return rows, points


def tests_of(rows):
    """Welch against the first group, as many as there are; the correction is none of the page's concern."""
    keys = ("question", "metric", "score", "on", "level", "better")
    held = {}
    for one in rows:
        held.setdefault(tuple(str(one[key]) for key in keys), []).append(one)
    tests = []
    for own in held.values():
        groups = {}
        for one in own:
            groups.setdefault(one["group"], []).append(one["value"])
        (first, base), *others = groups.items()
        for name, values in others:
            several = min(len(base), len(values)) > 1
            found = stats.ttest_ind(values, base, equal_var=False) if several else None
            p = float(found.pvalue) if found else math.nan
            ends = found.confidence_interval() if found else (math.nan, math.nan)
            tests.append({
                **{key: own[0][key] for key in keys}, "group": name, "baseline": first, "mean": np.mean(values),
                "sd": np.std(values, ddof=1) if several else math.nan, "n": len(values), "baseline_mean": np.mean(base),
                "baseline_sd": np.std(base, ddof=1) if several else math.nan, "baseline_n": len(base),
                "difference": np.mean(values) - np.mean(base), "low": ends[0], "high": ends[1], "p": p,
                "p_holm": min(3 * p, 1.0),
                "test": "Welch's t over runs" if found else "", "reason": "" if found else "too few runs",
                "how": f"Welch's t over {len(base)} and {len(values)} runs" if found else "no test: too few runs",
            })  # fmt: skip
    return tests


def write_evaluation(folder, groups=("CE", "EL", "AMC"), seeds=3, notes=(), maps=False, seed=0):
    """A folder of an evaluation."""
    from hardsight.evaluation.folder import SCHEMAS

    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    rows, points, runs = [], [], []
    for k, group in enumerate(groups):
        for s in range(seeds):
            name = f"{group}-{s}" if seeds > 1 else group
            of = {"run": name, "group": group, "seed": s}
            own_rows, own_points = answers_of(k, rng)
            rows += [of | one for one in own_rows]
            points += [of | one for one in own_points]
            runs.append({**of, "name": name, "network": "small-cnn"})
    tables = {"rows": rows, "tests": tests_of(rows), "points": points}
    for name, own in tables.items():
        pq.write_table(pa.Table.from_pylist(own, SCHEMAS[name]), folder / f"{name}.parquet")
    (folder / "notes.json").write_text(json.dumps([asdict(note) for note in notes]))
    plan = {
        "runs": runs,
        "data": {"origin": "digits", "samples": 1000},
        "questions": ["calibration"],
        "command": ["evaluate.py", "CE", "EL"],
        "versions": {"hardsight": "1.2.3"},
        "whole": True,
    }
    (folder / "evaluation.json").write_text(json.dumps(plan))
    if maps:
        write_maps(folder / "maps", [f"{group}-0" if seeds > 1 else group for group in groups], rng)
    return folder


def write_maps(folder, runs, rng):
    """Strips of a picture and a map a run."""
    folder.mkdir(exist_ok=True)
    pictures = []
    for k in range(3):
        strip = rng.integers(0, 255, (96, 100 * (len(runs) + 1) - 4, 3), np.uint8)
        Image.fromarray(strip).save(folder / f"{k:02d}.png")
        of = {
            "classes": {run: f"class {k + (run == runs[-1])}" for run in runs},
            "confidence": dict.fromkeys(runs, 0.913),
        }
        pictures.append({"file": f"{k:02d}.png", "id": f"test:{k}", "label": f"class {k}", **of})
    (folder / "index.json").write_text(json.dumps({"runs": runs, "pictures": pictures}))
