"""Domain generalization: each domain in turn is left out of training and tested on (AVH, Table 5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardsight.data import ArraySamples, Samples, load_digits
from hardsight.domains import SELECTIONS, best_option, decoded, leave_one_out, open_domains
from hardsight.presets import PRESETS
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

_SCALES = (8, 16, 32, 64)
# The paper's rate and batch size are for fine-tuning; these were chosen on held-out samples of the training domains.
_SCRATCH = {
    "epochs": 40, "batch_size": 128, "lr": 0.05, "schedule": "cosine", "precision": "bf16", "channels_last": True,
    "smallest_part": 0.5, "drop_last": True, "graph": True,
}  # fmt: skip
_KINDS = ("images", "labels")
_SMOKE = {"model": "small-cnn", "recipe": {"epochs": 2}, "scales": (8, 16)}
_PACS = {"data": "pacs", "model": "cnn10-96", "recipe_of": "cnn10-pacs", "recipe": _SCRATCH, "scales": _SCALES}


def _domains(cell: Cell) -> dict[str, Samples]:
    """The domains as arrays; images of files are decoded once for all cells."""
    if "data" not in cell.settings:
        images, labels = load_digits()
        forms = {"plain": images, "inverted": 255 - images, "faint": images // 2, "mirrored": images[:, :, ::-1]}
        return {
            name: ArraySamples(np.ascontiguousarray(form[k::4]), labels[k::4], name, name)
            for k, (name, form) in enumerate(forms.items())
        }
    with cell.shared("decoded") as folder:
        file = folder / "domains.npz"
        if not file.exists():
            parts = {name: decoded(samples, 96) for name, samples in open_domains(cell.file("pacs")).items()}
            arrays = {f"{name}_{kind}": getattr(part, kind) for name, part in parts.items() for kind in _KINDS}
            np.savez(file.with_suffix(".part.npz"), **arrays)
            file.with_suffix(".part.npz").rename(file)
        with np.load(file, allow_pickle=False) as arrays:
            names = [name.removesuffix("_images") for name in arrays.files if name.endswith("_images")]
            return {
                name: ArraySamples(arrays[f"{name}_images"], arrays[f"{name}_labels"], name, name) for name in names
            }


@STUDIES.register(
    "pacs",
    question="Does the AVH loss generalize better to a domain that it has not seen? (Networks from scratch)",
    paper="AVH, Table 5",
    factors={"loss": ("ce", "avh", "el:0.75", "amc:paper", "cosface")},
    measures={
        "accuracy": Measure("Accuracy on the domain that was left out", True, "higher"),
        "scale": Measure("Scale of the AVH loss, chosen on held-out samples of the training domains"),
    },
    scales={
        "smoke": Scale(1, 15, settings=_SMOKE, levels={"loss": ("ce", "avh")}),
        "quick": Scale(5, 40, "NVIDIA H200", _PACS),
    },
    compare="loss",
    baseline="ce",
    details=("target", "selection"),
)
def _pacs(cell: Cell) -> list[dict[str, Any]]:
    settings, domains = cell.settings, _domains(cell)
    recipe = PRESETS[settings.get("recipe_of", settings["model"])].recipe.replace(**settings["recipe"])
    options = {"recipe": recipe, "seed": cell.seed, "device": cell.device, "progress": False}
    rows, loss = [], cell.levels["loss"]
    for target in domains:
        place = {"domains": domains, "target": target, "out": cell.folder / target}
        if loss == "avh":
            scales = {str(scale): {"loss": f"avh:{scale}"} for scale in settings["scales"]}
            name, run = best_option(settings["model"], options=scales, **place, **options)
            rows.append({"target": target, "selection": "train-domain", "scale": float(name)})
        else:
            run = leave_one_out(settings["model"], loss=loss, **place, **options)
        rows += [{"target": target, "selection": how, "accuracy": run.accuracy(how)} for how in SELECTIONS]
    averages = [
        {"target": "average", "selection": how, "accuracy": float(np.mean([_value(rows, t, how) for t in domains]))}
        for how in SELECTIONS
    ]
    return rows + averages


def _value(rows: list[dict[str, Any]], target: str, selection: str) -> float:
    return next(
        row["accuracy"]
        for row in rows
        if (row["target"], row["selection"]) == (target, selection) and "accuracy" in row
    )
