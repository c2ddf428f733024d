"""Graph classification: the TU data sets, the network of the Encouraging Loss's experiments, and its protocol.

Graphs are those of torch-geometric (the extra ``graph``). Your own network and data need nothing from this module:
`hardsight.score`, `hardsight.capture` and `hardsight.Recorder` take them as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hardsight.devices import find_device
from hardsight.errors import InputError, InputTypeError, MissingPathError
from hardsight.extras import is_graph, need
from hardsight.heads import capture
from hardsight.registry import Range, whole_number
from hardsight.training.losses import loss_of_logits

_MOST_LABELS = 10_000


def read_tu(folder: str | Path) -> list[Any]:
    """The graphs of a TU data set from its text files, as torch-geometric's ``Data`` with x, edge_index and y.

    Node features are the attributes, if there are any, followed by the labels as indicators. Classes are numbered in
    the order of their values.

    Args:
        folder: Where ``NAME_A.txt``, ``NAME_graph_indicator.txt`` and ``NAME_graph_labels.txt`` are, or the folder
            whose ``raw`` holds them.
    """
    data, folder = need("torch_geometric.data"), Path(folder)
    files = sorted([*folder.glob("*_A.txt"), *folder.glob("raw/*_A.txt")])
    if len(files) != 1:
        raise MissingPathError(f"data: {folder} must hold one file NAME_A.txt with the edges, got {len(files)}.")
    start = str(files[0]).removesuffix("A.txt")

    def read(kind: str, dtype: type = np.int64) -> np.ndarray | None:
        file = Path(f"{start}{kind}.txt")
        if not file.is_file():
            return None
        try:
            with warnings.catch_warnings(action="error", category=DeprecationWarning):  # NumPy 2.0 cuts 1.5 off to 1
                return np.loadtxt(file, dtype, delimiter=",", ndmin=2, encoding="utf-8-sig")
        except (ValueError, DeprecationWarning):
            kind = "numbers" if dtype is np.float64 else "integers"
            raise InputError(f"data: {file.name} must hold {kind} separated by commas, as many in each line.") from None

    edges, member, label = (read(kind) for kind in ("A", "graph_indicator", "graph_labels"))
    if edges is None or member is None or label is None:
        raise MissingPathError(f"data: {folder} must hold NAME_graph_indicator.txt and NAME_graph_labels.txt, too.")
    if not (edges.size and member.size and label.size):
        raise InputError(f"data: the files of {folder} must hold at least one graph with an edge, got an empty file.")
    graph, classes = member[:, 0] - 1, np.unique(label[:, 0], return_inverse=True)[1]
    if graph.max() >= len(classes):
        raise InputError(
            f"data: {folder} has nodes of graph {graph.max() + 1:,}, but its graph labels end at {len(classes):,}."
        )
    if (np.diff(graph) < 0).any() or graph.min() < 0 or edges.shape[1] != 2:
        raise InputError(f"data: the nodes of {folder} must be listed graph by graph, and edges be pairs of nodes.")
    sizes = np.bincount(graph, minlength=len(classes))
    if not sizes.all():
        raise InputError(f"data: graph {int(np.argmin(sizes)) + 1} of {folder} has no nodes; leave it out.")
    attributes, kinds = read("node_attributes", np.float64), read("node_labels")
    parts = [] if attributes is None else [torch.tensor(attributes, dtype=torch.float32)]
    ends, listed = torch.from_numpy(edges.T - 1), (part for part in (attributes, kinds) if part is not None)
    if any(len(part) != len(graph) for part in listed) or ends.min() < 0 or ends.max() >= len(graph):
        raise InputError(f"data: the files of {folder} must describe the same {len(graph):,} nodes.")
    if kinds is not None:
        values = kinds[:, 0]
        if int(values.max()) - int(values.min()) >= _MOST_LABELS:
            raise InputError(
                f"data: node labels of {folder} must span less than {_MOST_LABELS:,} values, each is a feature."
            )
        parts.append(F.one_hot(torch.from_numpy(values - values.min())).float())
    if (across := np.flatnonzero(graph[ends[0]] != graph[ends[1]])).size:
        raise InputError(
            f"data: line {across[0] + 1} of {files[0].name} must join nodes of one graph, got those of two."
        )
    x = torch.cat(parts, 1) if parts else torch.ones(len(graph), 1)
    first, owner = np.r_[0, np.cumsum(sizes)], torch.from_numpy(graph)[ends[0]]
    ends, counts = ends[:, owner.argsort(stable=True)], torch.bincount(owner, minlength=len(classes)).tolist()
    return [
        data.Data(x=x[a:b], edge_index=part - int(a), y=torch.tensor([int(y)]))
        for a, b, part, y in zip(first[:-1], first[1:], ends.split(counts, 1), classes, strict=True)
    ]


class SAGPoolNet(nn.Module):
    """Three graph convolutions, each with self-attention pooling, and three linear layers on the sum of their readouts.

    As in Lee et al. (2019) and the Encouraging Loss's experiments: width 128, each pooling keeps half of the nodes, and
    readouts are the maximum and the mean over nodes.

    Args:
        features: Features per node.
        classes: Classes of graphs.
        width: Width of the convolutions.
        ratio: Share of the nodes that each pooling keeps.
        dropout: Dropout of the first layer after the readouts.
    """

    def __init__(self, features: int, classes: int, width: int = 128, ratio: float = 0.5, dropout: float = 0.5) -> None:
        super().__init__()
        layers, width = need("torch_geometric.nn"), whole_number("width", width, 2)
        Range(0, 1, "(]").check(ratio, "ratio")
        Range(0, 1, "[)").check(dropout, "dropout")
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


class PackedGraphs:
    """Graphs end to end on a device, from which a batch is gathered: collating them one by one takes as long as a step.

    Args:
        graphs: With x, edge_index and y, all with as many features per node.
        device: Where they are kept.
    """

    def __init__(self, graphs: Sequence[Any], device: torch.device) -> None:
        for row, graph in enumerate(graphs):
            if problem := _problem(graph, graphs[0]):
                raise InputError(f"graphs: graph {row} {problem}.")
        self.x = torch.cat([graph.x for graph in graphs]).to(device)
        self.y = torch.tensor([int(graph.y) for graph in graphs]).to(device)
        self.edges = torch.cat([graph.edge_index for graph in graphs], 1).to(device)  # numbered within each graph
        self.nodes = np.array([len(graph.x) for graph in graphs])  # `num_nodes` may have any value
        self.edge_counts = np.array([graph.edge_index.shape[1] for graph in graphs])

    def batch(self, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Node features, edges, each node's graph within the batch, and labels, as in torch-geometric."""
        nodes, edges = self.nodes[rows], self.edge_counts[rows]
        shift = np.repeat(np.cumsum(nodes) - nodes, edges)
        places = _ranges(self.nodes, rows), _ranges(self.edge_counts, rows), np.repeat(np.arange(len(rows)), nodes)
        x, edge, member, shift, row = (torch.from_numpy(part).to(self.x.device) for part in (*places, shift, rows))
        return self.x[x], self.edges[:, edge] + shift, member, self.y[row]


def _problem(graph: Any, first: Any) -> str:
    """Why a graph cannot be trained on; empty if it can."""
    x, edges, y = (getattr(graph, name, None) for name in ("x", "edge_index", "y"))
    if x is None and edges is not None:
        return "has no x; give its nodes features, with torch_geometric.transforms.Constant() for instance"
    y = torch.tensor(y) if isinstance(y, (int, float)) else y
    if not (isinstance(x, Tensor) and isinstance(edges, Tensor) and isinstance(y, Tensor)):
        return "must have x, edge_index and y"
    if x.ndim and not len(x):
        return "has no nodes; leave it out"
    if x.ndim != 2 or x.shape[1] != first.x.shape[-1] or x.dtype != torch.float32:
        width = first.x.shape[-1] if first.x.ndim else "features"
        return f"must have x of shape (nodes, {width}), float32, got {tuple(x.shape)}, {x.dtype}"
    if not x.isfinite().all():
        return "must have finite features, got NaN or infinity"
    if y.numel() != 1 or y.is_floating_point() or not 0 <= int(y) < _MOST_LABELS:
        return f"must have y with one class index below {_MOST_LABELS:,}, an integer, got {y.tolist()}, {y.dtype}"
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype != torch.int64:
        return f"must have edge_index of shape (2, edges), int64, got {tuple(edges.shape)}, {edges.dtype}"
    if edges.numel() and not 0 <= edges.min() <= edges.max() < len(x):
        return f"must have edges between its {len(x)} nodes, got nodes {int(edges.min())} to {int(edges.max())}"
    return ""


def _ranges(sizes: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Positions of some parts of an array whose parts have these sizes."""
    starts, kept = (np.cumsum(sizes) - sizes)[rows], sizes[rows]
    return np.arange(kept.sum()) + np.repeat(starts - (np.cumsum(kept) - kept), kept)


def _listed(graphs: Any) -> list[Any]:
    """The graphs of a list, a data set or a batch."""
    if not isinstance(graphs, (str, Path, Mapping)) and (not is_graph(graphs) or hasattr(graphs, "to_data_list")):
        if hasattr(graphs, "__getitem__") and hasattr(graphs, "__len__"):  # a `Subset` has nothing else
            return [graphs[row] for row in range(len(graphs))]
        if hasattr(graphs, "__iter__"):
            return list(graphs)
    raise InputTypeError(f"graphs must be a list of torch-geometric's Data, as read_tu gives it, got {graphs!r:.80}.")


def split_graphs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the training (80%), validation (10%) and test graphs (10%)."""
    order = np.random.default_rng(seed).permutation(count)
    first, second = int(0.8 * count), int(0.8 * count) + int(0.1 * count)
    return order[:first], order[first:second], order[second:]


def train_graphs(
    graphs: Any,
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
        graphs: As `read_tu` gives them, or a data set, a loader or a batch of torch-geometric.
        loss: The name of a loss of logits, as for `hardsight.train`; ``el:0.5,defer=25`` begins its bonus after 25
            epochs.
        seed: Random seed of the split, the weights and the order.
        most_epochs: The maximum number of epochs.
        patience: Stop after this many epochs without a better accuracy on the validation graphs.
        batch_size, lr, weight_decay: Settings of Adam.
        recorder: A `hardsight.Recorder` for the training graphs.
        device: cpu, cuda, cuda:1 or mps; the first GPU if there is one.
    """
    graphs = _listed(graphs.dataset if isinstance(graphs, DataLoader) else graphs)
    place, most_epochs = find_device(device), whole_number("most_epochs", most_epochs, 1)
    batch_size, patience = whole_number("batch_size", batch_size, 1), whole_number("patience", patience, 1)
    Range(0, ends="()").check(lr, "lr")
    Range(0).check(weight_decay, "weight_decay")
    parts = split_graphs(len(graphs), whole_number("seed", seed, 0, 2**63 - 1))
    if min(map(len, parts)) < 1:
        raise InputError(f"graphs must be 10 or more, to be split into three parts, got {len(graphs)}.")
    need("torch_geometric")
    packed = PackedGraphs(graphs, place)
    if len(packed.y.unique()) < 2:
        raise InputError("graphs must have two or more classes, got one.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = SAGPoolNet(packed.x.shape[1], int(packed.y.max()) + 1).to(place)
        first, *rest = (cast(Any, part) for part in parts)
        order = DataLoader(first, batch_size, shuffle=True, generator=torch.Generator().manual_seed(seed))
        others = [[packed.batch(rows.numpy()) for rows in DataLoader(part, 1024)] for part in rest]
        counts = torch.bincount(packed.y[parts[0]].cpu(), minlength=int(packed.y.max()) + 1)
        objective, best = loss_of_logits(loss, counts=counts, epochs=most_epochs).to(place), (-1.0, 0, 0.0)
        optimizer = torch.optim.Adam(network.parameters(), lr=lr, weight_decay=weight_decay)
        kept: dict[str, Tensor] = {}
        epoch = 0
        for epoch in range(1, most_epochs + 1):
            objective.at(epoch - 1)
            network.train()
            with nullcontext() if recorder is None else capture(network) as head:
                for rows in order:
                    x, edges, member, y = packed.batch(rows.numpy())
                    value = objective(network(x, edges, member), y)
                    if recorder is not None:
                        recorder.update(rows, head, y)
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
def _accuracy(network: nn.Module, batches: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]) -> float:
    network.eval()
    right = [(network(x, edges, member).argmax(1) == y) for x, edges, member, y in batches]
    return torch.cat(right).float().mean().item()
