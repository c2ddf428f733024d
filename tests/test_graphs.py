"""Graphs: the TU format, the network, early stopping, and scoring of torch-geometric's own objects."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import hardsight as hs

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
data = pytest.importorskip("torch_geometric.data", exc_type=Exception)

from hardsight import graphs as graph_module  # noqa: E402
from hardsight.graphs import PackedGraphs, SAGPoolNet, read_tu, split_graphs, train_graphs  # noqa: E402


def write_tu(folder, **changes):
    files = {
        "A": "2, 1\n1, 2\n3, 4\n4, 3\n4, 5\n5, 4\n",
        "graph_indicator": "1\n1\n2\n2\n2\n",
        "graph_labels": "1\n-1\n",
        "node_labels": "3\n4\n3\n5\n4\n",
        "node_attributes": "0.5\n1\n2\n3\n4\n",
    }
    for name, text in (files | changes).items():
        if text is not None:
            (folder / f"TOY_{name}.txt").write_text(text)
    return folder


def rings_and_stars(count=40):
    graphs = []
    for k in range(count):
        nodes = torch.arange(6 + k % 5)
        edges = torch.stack([nodes, nodes.roll(1)] if k % 2 else [torch.zeros_like(nodes[1:]), nodes[1:]])
        x = torch.ones(len(nodes), 2) * (1 + k % 2)
        graphs.append(data.Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), y=torch.tensor([k % 2])))
    return graphs


def test_the_text_files_of_a_tu_data_set(tmp_path):
    first, second = read_tu(write_tu(tmp_path))
    assert first.edge_index.tolist() == [[1, 0], [0, 1]]
    assert second.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]  # counted from the graph's first node
    assert second.x.tolist() == [[2, 1, 0, 0], [3, 0, 0, 1], [4, 0, 1, 0]]
    assert (int(first.y), int(second.y)) == (1, 0)  # −1 comes before 1
    bare = read_tu(write_tu(tmp_path, node_labels="1\n" * 5))
    assert bare[0].x.shape == (2, 2)


def test_the_text_files_are_read_as_torch_geometric_reads_them(tmp_path):
    ours = read_tu(write_tu(tmp_path))
    theirs, slices, _ = pytest.importorskip("torch_geometric.io").read_tu_data(str(tmp_path), "TOY")
    assert torch.equal(torch.cat([graph.x for graph in ours]), theirs.x)
    assert torch.equal(torch.cat([graph.y for graph in ours]), theirs.y)
    first, *ends = slices["edge_index"].tolist()
    for graph, start, end in zip(ours, [first, *ends], ends, strict=False):
        assert sorted(graph.edge_index.T.tolist()) == sorted(theirs.edge_index[:, start:end].T.tolist())


@pytest.mark.parametrize(
    "changes",
    [
        {"graph_indicator": "1\n1\n1\n1\n1\n"},  # the second graph has no nodes
        {"graph_indicator": "1\n2\n1\n2\n2\n"},
        {"A": "1, 9\n"},
        {"A": "1, x\n"},
        {"node_labels": "1\n2\n"},
        {"node_labels": "", "node_attributes": ""},
        {"node_attributes": "1\n1, 2\n2\n3\n4\n"},
        {"graph_labels": "1\n"},
        {"graph_labels": "1.5\n2\n"},
    ],
)
def test_bad_files_are_refused(tmp_path, changes):
    with pytest.raises(hs.HardsightError, match="data"):
        read_tu(write_tu(tmp_path, **changes))


def test_files_with_a_byte_order_mark_are_read(tmp_path):
    first, second = read_tu(write_tu(tmp_path, graph_labels="\ufeff1\r\n-1\r\n"))
    assert (int(first.y), int(second.y)) == (1, 0)


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(hs.HardsightError, match="NAME_A"):
        read_tu(tmp_path)


def test_packed_batches_are_those_of_torch_geometric():
    graphs = rings_and_stars()
    for number, graph in enumerate(graphs):  # so that no two are alike
        graph.x = torch.randn(graph.num_nodes, 3, generator=torch.Generator().manual_seed(number))
    lonely = data.Data(x=torch.full((1, 3), 7.0), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.tensor([1]))
    graphs.insert(2, lonely)
    theirs = [graph.clone() for graph in graphs]
    graphs[9].num_nodes = 99  # set by the user; the features decide
    packed = PackedGraphs(graphs, torch.device("cpu"))
    for rows in ([5, 2, 9, 5], [2], list(range(len(graphs)))):
        expected = data.Batch.from_data_list([theirs[row] for row in rows])
        x, edges, member, y = packed.batch(np.array(rows))
        assert torch.equal(x, expected.x)
        assert torch.equal(edges, expected.edge_index)
        assert torch.equal(member, expected.batch)
        assert torch.equal(y, expected.y)


def naive_convolution(layer, x, adjacency):
    """Kipf and Welling (2017): D^(−1/2) (A + I) D^(−1/2) X W + b."""
    looped = adjacency + np.eye(len(x))
    root = looped.sum(1) ** -0.5
    weight, bias = (value.detach().double().numpy() for value in (layer.lin.weight, layer.bias))
    return (root[:, None] * looped * root) @ x @ weight.T + bias


def test_the_network_is_the_written_out_one():
    """Lee et al. (2019): after each convolution the better half of the nodes stays, scaled by its score."""
    torch.manual_seed(0)
    network = SAGPoolNet(3, 2, width=8).eval()
    nodes = torch.arange(11)
    edges = torch.cat([torch.stack([nodes, nodes.roll(k)]) for k in (1, 3)], 1)
    edges = torch.cat([edges, edges.flip(0)], 1)
    graph = data.Data(x=torch.randn(11, 3), edge_index=edges)
    x, adjacency, readouts = graph.x.double().numpy(), np.zeros((11, 11)), []
    adjacency[tuple(edges.numpy())] = 1
    for convolution, pool, size in zip(network.convolutions, network.pools, (6, 3, 2), strict=True):
        x = np.maximum(naive_convolution(convolution, x, adjacency), 0)
        sign = np.sign(pool.select.weight.item())  # of torch-geometric's own: a weight, divided by its length
        score = np.tanh(sign * naive_convolution(pool.gnn, x, adjacency)[:, 0])
        kept = np.argsort(-score)[:size]
        x, adjacency = (x * score[:, None])[kept], adjacency[np.ix_(kept, kept)]
        readouts.append(np.r_[x.max(0), x.mean(0)])
    x = np.sum(readouts, 0)
    linear = [layer for layer in network.layers if isinstance(layer, nn.Linear)]
    for layer in linear:
        x = x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
        x = np.maximum(x, 0) if layer is not linear[-1] else x
    with torch.no_grad():
        logits = network(graph.x, edges, torch.zeros(11, dtype=torch.long))[0]
    np.testing.assert_allclose(logits, x, atol=1e-5)
    dropped = [layer.p for layer in network.modules() if isinstance(layer, nn.Dropout)]
    assert dropped == [0.5]


def test_each_epoch_goes_over_the_training_graphs_in_an_order_of_its_own(monkeypatch):
    graphs, optimizers, epochs, original = rings_and_stars(), [], [[]], torch.optim.Adam

    class Listening:
        def update(self, rows, head, labels):
            assert labels.tolist() == [int(graphs[row].y) for row in rows.tolist()]
            assert len(head.features) == len(rows) <= 7
            epochs[-1] += rows.tolist()

        def end_epoch(self):
            epochs.append([])

    monkeypatch.setattr(
        torch.optim, "Adam", lambda weights, **options: optimizers.append(options) or original(weights, **options)
    )
    options = {"lr": 0.003, "weight_decay": 0.02}
    train_graphs(graphs, recorder=Listening(), most_epochs=2, batch_size=7, device="cpu", seed=4, **options)
    first, second, rest = epochs
    assert sorted(first) == sorted(second) == sorted(split_graphs(len(graphs), 4)[0].tolist())
    assert first != second
    assert rest == []
    assert optimizers == [options]


def test_splits_are_disjoint_and_follow_the_seed():
    parts = split_graphs(1113, 4)
    assert [len(part) for part in parts] == [890, 111, 112]
    assert sorted(np.concatenate(parts).tolist()) == list(range(1113))
    assert not np.array_equal(parts[0], split_graphs(1113, 5)[0])


def test_training_stops_and_keeps_the_network_of_the_best_epoch(tmp_path):
    graphs = rings_and_stars()
    with hs.Recorder(tmp_path / "run") as recorder:
        run = train_graphs(graphs, patience=4, most_epochs=30, lr=0.01, recorder=recorder, device="cpu", seed=1)
    assert run.epochs == min(30, run.best + 4)
    rows = split_graphs(len(graphs), 1)
    table = hs.score(run.model, graphs, device="cpu").to_pandas()
    right = (table["pred"] == table["label"]).to_numpy()
    assert right[rows[1]].mean() == pytest.approx(run.validation)
    assert right[rows[2]].mean() == pytest.approx(run.test)
    summary = recorder.summary().to_pandas()
    assert sorted(summary["id"]) == sorted(f"data:{row}" for row in rows[0])
    assert set(summary["seen"]) == {run.epochs}
    same = train_graphs(graphs, patience=4, most_epochs=30, lr=0.01, device="cpu", seed=1)
    assert (same.best, same.test) == (run.best, run.test)


def test_the_first_epoch_that_is_best_by_validation_is_kept(monkeypatch):
    """With accuracies that differ between the parts and repeat; dropout is on again after each evaluation."""
    scripted = iter([(0.5, 0.1), (0.6, 0.2), (0.6, 0.3), (0.5, 0.9), (0.9, 0.9)])
    weights, training, waiting = [], [], []

    def accuracy(network, batches):
        if not waiting:
            waiting.extend(next(scripted))
            weights.append([weight.detach().clone() for weight in network.parameters()])
        network.eval()
        return waiting.pop(0)

    forward = SAGPoolNet.forward
    monkeypatch.setattr(graph_module, "_accuracy", accuracy)
    monkeypatch.setattr(SAGPoolNet, "forward", lambda self, *x: training.append(self.training) or forward(self, *x))
    run = train_graphs(rings_and_stars(), patience=2, most_epochs=9, lr=0.01, device="cpu")
    assert (run.epochs, run.best, run.validation, run.test) == (4, 2, 0.6, 0.2)
    assert all(map(torch.equal, run.model.parameters(), weights[1]))
    assert not torch.equal(weights[1][0], weights[3][0])
    assert all(training)


def test_a_deferred_bonus_begins_after_its_epoch(monkeypatch):
    graphs, weights = rings_and_stars(), {}
    for loss, best in itertools.product(("ce", "el:0.5,defer=1", "el:0.5"), (1, 2)):
        accuracies = iter([best == 1, 0, best == 2, 0])  # on validation and test graphs, in each epoch
        monkeypatch.setattr(graph_module, "_accuracy", lambda network, batches, values=accuracies: float(next(values)))
        # Several steps per epoch: the first of Adam hardly depends on the size of a gradient.
        run = train_graphs(graphs, loss=loss, most_epochs=2, batch_size=8, lr=0.01, device="cpu")
        weights[loss, best] = torch.cat([weight.flatten() for weight in run.model.parameters()])
    difference = {at: (weights["ce", at[1]] - weights[at]).abs().max().item() for at in weights}
    assert difference["el:0.5,defer=1", 1] < 1e-5
    assert difference["el:0.5", 1] > 1e-3
    assert difference["el:0.5,defer=1", 2] > 1e-3


class Whole(nn.Module):
    """A network that takes the batch as one object."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, data):
        return self.network(data.x, data.edge_index, data.batch)


def test_scores_of_graphs_are_those_of_a_loop_over_them():
    torch.manual_seed(0)
    graphs, network = rings_and_stars(12), SAGPoolNet(2, 2).eval()
    tables = [hs.score(net, graphs, device="cpu", batch_size=5) for net in (network, Whole(network))]
    with torch.no_grad(), hs.capture(network) as head:
        for row, graph in enumerate(graphs):
            network(graph.x, graph.edge_index, torch.zeros(len(graph.x), dtype=torch.long))
            expected = hs.avh(head.features, head.weight, graph.y).item()
            assert tables[0]["avh"][row] == pytest.approx(expected, abs=1e-5)
    np.testing.assert_array_equal(tables[0]["avh"], tables[1]["avh"])
    assert tables[0]["label"].tolist() == [int(graph.y) for graph in graphs]


def test_a_graph_without_nodes_is_a_bad_row_and_changed_graphs_are_other_data():
    graphs, network = rings_and_stars(12), SAGPoolNet(2, 2)
    empty = data.Data(x=torch.zeros(0, 2), edge_index=torch.zeros(2, 0, dtype=torch.long), y=torch.tensor([0]))
    table = hs.score(network, [*graphs, empty], device="cpu")
    assert len(table) == 12
    assert table.bad["id"].to_pylist() == ["data:12"]
    half_labeled = [*graphs, data.Data(x=graphs[0].x, edge_index=graphs[0].edge_index)]
    with pytest.raises(hs.HardsightError, match=r"only some .* y"):
        hs.score(network, half_labeled, device="cpu")
    before = hs.open_data(graphs).fingerprint()
    graphs[3].x = graphs[3].x + 1
    assert hs.open_data(graphs).fingerprint() != before


@pytest.mark.parametrize(
    "change",
    [
        {"x": torch.zeros(0, 2), "edge_index": torch.zeros(2, 0, dtype=torch.long)},
        {"x": torch.zeros(6, 3)},
        {"x": torch.full((6, 2), float("nan"))},
        {"x": None},
        {"y": None},
        {"y": torch.tensor([-1])},
        {"y": torch.tensor([0, 1])},
        {"y": torch.tensor([0.5])},
        {"y": 1.0},
        {"edge_index": torch.tensor([[0], [6]])},  # of another graph, once they are end to end
        {"edge_index": torch.tensor([[0.0], [1.0]])},
        {"edge_index": torch.tensor([[0], [1], [2]])},
        {"edge_index": torch.tensor([0, 1])},
        {"y": torch.tensor([10**12])},
        {"x": torch.ones(6, 2).double()},
        {"x": torch.tensor(1.0)},
    ],
)
def test_a_graph_that_cannot_be_trained_on_is_named(change):
    graphs = rings_and_stars()
    for name, value in change.items():
        setattr(graphs[5], name, value)
    with pytest.raises(hs.HardsightError, match="graph 5"):
        train_graphs(graphs, most_epochs=1, device="cpu")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"most_epochs": 0}, "most_epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"weight_decay": -1}, "weight_decay"),
        ({"loss": "avh:16"}, "features"),
        ({"seed": 2**70}, "seed"),
        ({"loss": "el:0.5,defer=9", "most_epochs": 9}, "defer=9"),
    ],
)
def test_bad_options_are_refused(options, named):
    with pytest.raises(hs.HardsightError, match=named):
        train_graphs(rings_and_stars(), device="cpu", **options)


def test_graphs_come_as_torch_geometric_has_them():
    """A list, a data set, a subset, a loader or a batch; labels of any shape with one integer."""
    graphs = rings_and_stars()
    loader = pytest.importorskip("torch_geometric.loader").DataLoader(graphs, 7)
    batch, subset = data.Batch.from_data_list(graphs), torch.utils.data.Subset(graphs, range(len(graphs)))
    runs = [train_graphs(form, most_epochs=1, device="cpu") for form in (graphs, loader, batch, subset, iter(graphs))]
    for form in (lambda y: y[None], lambda y: y[0], int):
        relabeled = [graph.clone() for graph in graphs]
        for graph in relabeled:
            graph.y = form(graph.y)
        runs.append(train_graphs(relabeled, most_epochs=1, device="cpu"))
        assert hs.open_data(relabeled).load(1, None)[1] == 1
    first, *others = (torch.cat([weight.flatten() for weight in run.model.parameters()]) for run in runs)
    assert all(torch.equal(first, weights) for weights in others)


def test_what_is_no_list_of_graphs_of_several_classes_is_refused():
    for graphs in (
        "PROTEINS/raw",
        None,
        [],
        {0: 1},
        rings_and_stars(2)[0],
        rings_and_stars(9),
        rings_and_stars(40)[::2],
    ):
        with pytest.raises(hs.HardsightError, match="graphs"):
            train_graphs(graphs, most_epochs=1, device="cpu")
    for options in ({"width": 0}, {"ratio": -1}, {"dropout": 2}):
        with pytest.raises(hs.HardsightError, match=next(iter(options))):
            SAGPoolNet(2, 2, **options)


def test_graphs_that_do_not_fit_the_network_or_each_other_are_one_sentence():
    graphs, network = rings_and_stars(12), SAGPoolNet(2, 2)
    graphs[3].x = torch.ones(len(graphs[3].x), 3)
    with pytest.raises(hs.HardsightError, match="widths"):
        hs.score(network, graphs, device="cpu")
    for graph in graphs:
        graph.x = None
    with pytest.raises(hs.HardsightError, match="takes x"):
        hs.score(network, graphs, device="cpu")
    with pytest.raises(hs.HardsightError, match="has no x"):
        train_graphs(graphs, device="cpu")
    graphs = rings_and_stars(12)
    with pytest.raises(hs.HardsightError, match="takes h, adjacency"):
        hs.score(Taking(network, lambda h, adjacency: None), graphs, device="cpu")
    for graph in graphs:
        graph.y = graph.y.float()
    with pytest.raises(hs.HardsightError, match=r"integer.*float32"):
        hs.score(network, graphs, device="cpu")


class Taking(nn.Module):
    """A network whose `forward` is a function."""

    def __init__(self, network, function):
        super().__init__()
        self.network, self.forward = network, function


def test_a_network_may_ask_for_the_number_of_graphs():
    graphs, network, asked = rings_and_stars(12), SAGPoolNet(2, 2).eval(), []

    def forward(x, edge_index, batch, num_graphs, batch_size=None):
        asked.append((num_graphs, batch_size))
        return network(x, edge_index, batch)

    table = hs.score(Taking(network, forward), graphs, device="cpu", batch_size=5)
    assert asked[-3:] == [(5, 5), (5, 5), (2, 2)]
    np.testing.assert_array_equal(table["avh"], hs.score(network, graphs, device="cpu", batch_size=5)["avh"])


@pytest.mark.parametrize(
    "changes",
    [
        {"A": "2, 1\n2, 3\n"},  # an edge between two graphs
        {"graph_indicator": ""},
        {"node_labels": "0\n1\n0\n1\n900000000\n"},
        {"node_labels": "-9223372036854775808\n9223372036854775807\n0\n0\n0\n"},  # whose span is no 64-bit integer
    ],
)
def test_files_that_mix_graphs_or_fill_the_memory_are_refused(tmp_path, changes):
    with pytest.raises(hs.HardsightError, match="data"):
        read_tu(write_tu(tmp_path, **changes))


def test_losses_may_follow_the_classes_of_the_training_graphs(monkeypatch):
    graphs, counts = rings_and_stars(), []
    original = graph_module.loss_of_logits
    monkeypatch.setattr(
        graph_module,
        "loss_of_logits",
        lambda name, **context: counts.append(context["counts"]) or original(name, **context),
    )
    train_graphs(graphs, loss="ce:weight=effective", most_epochs=1, device="cpu", seed=2)
    labels = [int(graphs[row].y) for row in split_graphs(len(graphs), 2)[0]]
    assert counts[0].tolist() == np.bincount(labels).tolist()
