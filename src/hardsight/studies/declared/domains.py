"""Domain generalization: each domain in turn is left out of training and tested on (AVH, Table 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hardsight.data import ArraySamples, Samples, load_digits
from hardsight.domains import SELECTIONS, best_option, decoded, leave_one_out, open_domains
from hardsight.presets import PRESETS
from hardsight.studies.declared.training import on_device
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

_SCALES = (8, 16, 32, 64)
_KINDS = ("images", "labels")
# The paper's rate and batch size are for fine-tuning. From scratch, the rate was chosen among 0.02, 0.05 and 0.1 by the
# accuracy of cross-entropy on held-out samples of the training domains.
_SCRATCH = {
    "epochs": 40, "batch_size": 128, "lr": 0.02, "schedule": "cosine", "precision": "bf16", "channels_last": True,
    "smallest_part": 0.5, "drop_last": True, "graph": True,
}  # fmt: skip
_SMOKE = {"recipe_of": "small-cnn", "recipe": {"epochs": 2}, "scales": (8, 16)}
_PACS = {"data": "pacs", "recipe_of": "cnn10-pacs", "recipe": _SCRATCH, "scales": _SCALES}


def _domains(cell: Cell) -> dict[str, Samples]:
    """The domains as arrays, of an eighth of the digits each; images of files are decoded once for all cells."""
    if "data" not in cell.settings:
        images, labels = load_digits()
        forms = {"plain": images, "inverted": 255 - images, "faint": images // 2, "mirrored": images[:, :, ::-1]}
        return {
            name: ArraySamples(np.ascontiguousarray(form[k::8]), labels[k::8], name, name)
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


def _family(levels: Mapping[str, str]) -> str:
    """The paper's claim is about the average over domains, so single domains are another family of tests."""
    return f"{'average' if levels['target'] == 'average' else 'domains'}, {levels['selection']}"


@STUDIES.register(
    "pacs",
    question="Does the AVH loss generalize better to a domain that it has not seen?",
    paper="AVH, Table 5",
    factors={
        "network": ("cnn10", "cnn9", "cnn10-96", "cnn9-96"),
        "loss": ("ce", "avh", "el:0.75", "amc:paper", "cosface"),
        "target": ("art_painting", "cartoon", "photo", "sketch"),
    },
    measures={
        "accuracy": Measure("Accuracy on the domain that was left out", True, "higher"),
        "scale": Measure("Scale of the AVH loss, chosen on held-out samples of the training domains"),
    },
    scales={
        "smoke": Scale(
            1, 5, settings=_SMOKE,
            levels={"network": ("small-cnn",), "loss": ("ce", "avh"), "target": ("plain", "inverted")},
        ),
        "quick": Scale(5, 20, "NVIDIA H200", _PACS, {"network": ("cnn10-96", "cnn9-96")}),
        "paper": Scale(5, 600, "NVIDIA H200", _PACS | {"recipe": {}}, {"network": ("cnn10", "cnn9")}),
    },
    compare="loss",
    baseline="ce",
    details=("selection",),
    average="target",
    family=_family,
    takes_weights=True,
)  # fmt: skip
def _pacs(cell: Cell) -> list[dict[str, Any]]:
    """Without weights, networks start from scratch; the paper's start from ImageNet."""
    settings, (network, loss, target) = cell.settings, cell.levels.values()
    recipe = on_device(PRESETS[settings["recipe_of"]].recipe.replace(**settings["recipe"]), cell.device)
    place = {"domains": _domains(cell), "target": target, "out": cell.folder / "run"}
    options = {"recipe": recipe, "seed": cell.seed, "device": cell.device, "weights": cell.weights, "progress": False}
    scale = {}
    if loss == "avh":
        scales = {str(scale): {"loss": f"avh:{scale}"} for scale in settings["scales"]}
        name, run = best_option(network, options=scales, **place, **options)
        scale = {"scale": float(name)}
    else:
        run = leave_one_out(network, loss=loss, **place, **options)
    return [{"selection": how, "accuracy": run.accuracy(how), **scale} for how in SELECTIONS]
