"""How accurate and how fast is a training with the preset for CIFAR-10, with and without records of all samples?"""

from __future__ import annotations

from typing import Any

from hardsight.studies.declared.training import recipe_of, split_data, train_cell
from hardsight.studies.study import STUDIES, Cell, Measure, Scale


@STUDIES.register(
    "engine",
    question="What does recording every sample cost a training?",
    paper="",
    factors={"recorded": ("nothing", "train and test")},
    details=("steps", "epochs"),
    measures={
        "accuracy": Measure("Test accuracy", True, "higher"),
        "seconds": Measure("Seconds of the whole call", better="lower"),
        "of it training steps": Measure("Seconds of the training steps", better="lower"),
    },
    scales={
        "smoke": Scale(1, 3, settings={"data": "digits", "model": "small-cnn", "recipe": {"epochs": 2}}),
        "paper": Scale(3, 40, "NVIDIA H200", {"data": "cifar10.npz", "model": "cifar-resnet18", "recipe": {}}),
    },
    compare="recorded",
    baseline="nothing",
)
def _trained(cell: Cell) -> dict[str, Any]:
    """The first cell of a process also loads libraries."""
    recipe, record = recipe_of(cell), () if cell.levels["recorded"] == "nothing" else ("train", "test")
    history = train_cell(cell, split_data(cell), recipe, record=record).history
    return {
        "steps": "CUDA graphs" if recipe.graph else "eager",
        "epochs": recipe.epochs,
        "accuracy": history[-1]["test_accuracy"],
        "of it training steps": sum(row["seconds"] for row in history),
    }
