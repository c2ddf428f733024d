"""Graph classification with and without a bonus for well-classified graphs (EL, Table 1)."""

from __future__ import annotations

from typing import Any

import torch

from hardsight.extras import need
from hardsight.graphs import read_tu, train_graphs
from hardsight.studies.study import STUDIES, Cell, Measure, Scale, Sweep

_MEASURES = {
    "accuracy": Measure("Test accuracy of the epoch with the best validation accuracy", True, "higher"),
    "validation": Measure("Validation accuracy of the best epoch", True, "higher"),
    "best": Measure("Best epoch"),
}


def _toy_graphs() -> list[Any]:
    """Rings and stars of 6 to 15 nodes, so that tests need no files."""
    data, graphs = need("torch_geometric.data"), []
    for k in range(60):
        nodes = torch.arange(6 + k % 10)
        hub = torch.zeros_like(nodes[1:])
        edges = torch.stack([nodes, nodes.roll(1)]) if k % 2 else torch.stack([hub, nodes[1:]])
        edges = torch.cat([edges, edges.flip(0)], 1)
        graphs.append(data.Data(x=torch.ones(len(nodes), 1), edge_index=edges, y=torch.tensor([k % 2])))
    return graphs


def _trained(cell: Cell) -> dict[str, float]:
    settings = cell.settings
    graphs = read_tu(cell.file(settings["data"])) if "data" in settings else _toy_graphs()
    run = train_graphs(
        graphs, loss=cell.levels["loss"], seed=cell.seed, device=cell.device, most_epochs=settings["most_epochs"]
    )
    return {"accuracy": run.test, "validation": run.validation, "best": float(run.best)}


# The bonus begins after so many epochs in the released code; the paper does not say so.
for _name, _start in {"PROTEINS": 25, "NCI1": 130}.items():
    _settings = {"data": f"graphs/{_name}", "most_epochs": 1000}
    _ends = {f"el:{end:g},defer={_start}": end for end in (0, 0.25, 0.5, 0.75)} | {f"el:normal,defer={_start}": 1}
    STUDIES.register(
        _name.lower(),
        question=f"Does a bonus for well-classified graphs help on {_name}?",
        paper="EL, Table 1 and Fig. 4",
        factors={"loss": ("ce", *_ends, "el:0.5")},
        measures=_MEASURES,
        scales={
            "smoke": Scale(2, 3, settings={"most_epochs": 3}, levels={"loss": ("ce", "el:0.5")}),
            "quick": Scale(20, 30, "NVIDIA H200", _settings),
            "paper": Scale(50, 30, "NVIDIA H200", _settings | {"most_epochs": 100_000}),
        },
        compare="loss",
        baseline="ce",
        sweeps=(Sweep(f"log end, bonus from epoch {_start + 1}", _ends),),
    )(_trained)
