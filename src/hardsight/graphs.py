"""Graph classification: the TU data sets, the network of the Encouraging Loss's experiments, and its protocol.

Graphs are those of torch-geometric (the extra ``graph``). Your own network and data need nothing from here:
`hardsight.score`, `hardsight.capture` and `hardsight.Recorder` take them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.devices import find_device
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import need
from hardsight.heads import capture
from hardsight.losses import build_loss
from hardsight.registry import whole_number


def read_tu(folder: str | Path) -> list[Any]:
    """The graphs of a TU data set from its text files, as torch-geometric's ``Data`` with x, edge_index and y.

    Node features are the attributes, if there are any, followed by the labels as indicators. Classes are numbered in
    the order of their values.

    Args:
        folder: Where ``NAME_A.txt``, ``NAME_graph_indicator.txt`` and ``NAME_graph_labels.txt`` are, or the folder of
            which ``raw`` holds them.
    """
    data, folder = need("torch_geometric.data"), Path(folder)
    files = sorted([*folder.glob("*_A.txt"), *folder.glob("raw/*_A.txt")])
    if len(files) != 1:
        raise MissingPathError(f"data: {folder} must hold one file NAME_A.txt with the edges, got {len(files)}.")
    start = str(files[0]).removesuffix("A.txt")

    def read(kind: str, dtype: type = np.int64) -> np.ndarray | None:
        file = Path(f"{start}{kind}.txt")
        try:
            return np.loadtxt(file, dtype=dtype, delimiter=",", ndmin=2) if file.is_file() else None
        except ValueError as error:
            raise InputError(f"data: {file.name} must hold numbers separated by commas ({error}).") from None

    edges, member, label = (read(kind) for kind in ("A", "graph_indicator", "graph_labels"))
    if edges is None or member is None or label is None:
        raise MissingPathError(f"data: {folder} must hold NAME_graph_indicator.txt and NAME_graph_labels.txt, too.")
    graph, classes = member[:, 0] - 1, np.unique(label[:, 0], return_inverse=True)[1]
    if (np.diff(graph) < 0).any() or graph.min() < 0 or graph.max() >= len(classes) or edges.shape[1] != 2:
        raise InputError(f"data: the nodes of {folder} must be listed graph by graph, and edges be pairs of nodes.")
    sizes = np.bincount(graph, minlength=len(classes))
    if not sizes.all():
        raise InputError(f"data: graph {int(np.argmin(sizes)) + 1} of {folder} has no nodes; leave it out.")
    attributes, kinds = read("node_attributes", np.float64), read("node_labels")
    parts = [] if attributes is None else [torch.tensor(attributes, dtype=torch.float32)]
    parts += [] if kinds is None else [F.one_hot(torch.from_numpy(kinds[:, 0] - kinds[:, 0].min())).float()]
    ends = torch.from_numpy(edges.T - 1)
    if any(len(part) != len(graph) for part in parts) or ends.min() < 0 or ends.max() >= len(graph):
        raise InputError(f"data: the files of {folder} must speak of the same {len(graph):,} nodes.")
    x = torch.cat(parts, 1) if parts else torch.ones(len(graph), 1)
    first, owner = np.r_[0, np.cumsum(sizes)], torch.from_numpy(graph)[ends[0]]
    ends, counts = ends[:, owner.argsort(stable=True)], torch.bincount(owner, minlength=len(classes)).tolist()
    return [
        data.Data(x=x[a:b], edge_index=part - int(a), y=torch.tensor([int(y)]))
        for a, b, part, y in zip(first[:-1], first[1:], ends.split(counts, 1), classes, strict=True)
    ]


class SAGPoolNet(nn.Module):
    """Three times a graph convolution and self-attention pooling; the sum of their readouts through three layers.

    As in Lee et al. (2019) and the Encouraging Loss's experiments: width 128, half of the nodes stay, readouts are the
    maximum and the mean over nodes.

    Args:
        features: Features per node.
        classes: Classes of graphs.
        width: Width of the convolutions.
        ratio: Share of the nodes that each pooling keeps.
        dropout: Of the first layer after the readouts.
    """

    def __init__(self, features: int, classes: int, width: int = 128, ratio: float = 0.5, dropout: float = 0.5) -> None:
        super().__init__()
        layers = need("torch_geometric.nn")
        self.convolutions = nn.ModuleList(layers.GCNConv(width if k else features, width) for k in range(3))
        self.pools = nn.ModuleList(layers.SAGPooling(width, ratio, GNN=layers.GCNConv) for _ in range(3))
        self.layers = nn.Sequential(
            *(nn.Linear(2 * width, width), nn.ReLU(), nn.Dropout(dropout)),
            *(nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, classes)),
        )

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        layers, readouts = need("torch_geometric.nn"), []
        for convolution, pool in zip(self.convolutions, self.pools, strict=True):
            x = F.relu(convolution(x, edge_index))
            x, edge_index, _, batch, _, _ = pool(x, edge_index, None, batch)
            readouts.append(torch.cat([layers.global_max_pool(x, batch), layers.global_mean_pool(x, batch)], 1))
        return self.layers(torch.stack(readouts).sum(0))


@dataclass(frozen=True)
class GraphRun:
    """A training on one split.

    Attributes:
        epochs: Epochs until it stopped.
        best: The epoch with the best accuracy on the validation graphs, whose network is kept.
        validation: That accuracy.
        test: The accuracy of that epoch on the test graphs.
        model: The network of that epoch.
    """

    epochs: int
    best: int
    validation: float
    test: float
    model: nn.Module


def split_graphs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the training (80%), validation (10%) and test graphs (10%)."""
    order = np.random.default_rng(seed).permutation(count)
    first, second = int(0.8 * count), int(0.8 * count) + int(0.1 * count)
    return order[:first], order[first:second], order[second:]


def train_graphs(
    graphs: Sequence[Any],
    *,
    loss: str = "ce",
    seed: int = 0,
    most_epochs: int = 100_000,
    patience: int = 50,
    batch_size: int = 128,
    lr: float = 5e-4,
    weight_decay: float = 1e-4,
    recorder: Any = None,
    device: str | torch.device | None = None,
) -> GraphRun:
    """Train `SAGPoolNet` on 80% of the graphs until the accuracy on 10% has not improved for `patience` epochs.

    Args:
        graphs: As `read_tu` gives them, or a data set of torch-geometric.
        loss: A name, as for `hardsight.train`; ``el:0.5,defer=25`` begins its bonus after 25 epochs.
        seed: Of the split, the weights and the order.
        most_epochs: Where to stop in any case.
        patience: Epochs without a better accuracy on the validation graphs after which to stop.
        batch_size, lr, weight_decay: Of Adam.
        recorder: A `hardsight.Recorder` for the training graphs.
        device: cpu, cuda, cuda:1 or mps; the first GPU if there is one.
    """
    place, loader = find_device(device), need("torch_geometric.loader").DataLoader
    graphs, rows = list(graphs), split_graphs(len(graphs), whole_number("seed", seed, 0))
    if min(map(len, rows)) < 1:
        raise InputError(f"graphs must be 10 or more, to be split into three parts, got {len(graphs)}.")
    classes = int(max(int(graph.y) for graph in graphs)) + 1
    for row, graph in enumerate(graphs):
        graph.row = torch.tensor([row])
    parts = [[graphs[row] for row in part] for part in rows]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = SAGPoolNet(graphs[0].num_node_features, classes).to(place)
        batches = loader(parts[0], batch_size, shuffle=True, generator=torch.Generator().manual_seed(seed))
        others = [list(loader(part, 1024)) for part in parts[1:]]
        others = [[batch.to(place) for batch in part] for part in others]
        objective, best = build_loss(loss, epochs=most_epochs), (-1.0, 0, 0.0)
        optimizer = torch.optim.Adam(network.parameters(), lr=lr, weight_decay=weight_decay)
        kept: dict[str, Tensor] = {}
        epoch = 0
        for epoch in range(1, most_epochs + 1):
            objective.at(epoch - 1)
            network.train()
            with nullcontext() if recorder is None else capture(network) as head:
                for batch in batches:
                    batch = batch.to(place)
                    value = objective(network(batch.x, batch.edge_index, batch.batch), batch.y)
                    if recorder is not None:
                        recorder.update(batch.row, head, batch.y)
                    optimizer.zero_grad()
                    value.backward()
                    optimizer.step()
            if recorder is not None:
                recorder.end_epoch()
            validation, test = (_accuracy(network, part) for part in others)
            if validation > best[0]:
                best = (validation, epoch, test)
                kept = {name: value.clone() for name, value in network.state_dict().items()}
            if epoch - best[1] >= patience:
                break
    network.load_state_dict(kept)
    return GraphRun(epoch, best[1], best[0], best[2], network.eval())


@torch.no_grad()
def _accuracy(network: nn.Module, batches: Sequence[Any]) -> float:
    network.eval()
    right = [(network(b.x, b.edge_index, b.batch).argmax(1) == b.y) for b in batches]
    return torch.cat(right).float().mean().item()
