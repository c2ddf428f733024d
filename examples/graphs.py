"""Graph classification with torch-geometric: record a training, then score every graph.

python examples/graphs.py [FOLDER]     # a TU data set, such as PROTEINS/raw; without it, rings and stars
"""

import sys
import warnings

import torch

import hardsight as hs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch-geometric's own
    from torch_geometric.data import Data

from hardsight.graphs import read_tu, train_graphs

if len(sys.argv) > 1:
    graphs = read_tu(sys.argv[1])
else:
    graphs = []
    for k in range(60):
        nodes = torch.arange(6 + k % 5)
        edges = torch.stack([nodes, nodes.roll(1)] if k % 2 else [torch.zeros_like(nodes[1:]), nodes[1:]])
        edges = torch.cat([edges, edges.flip(0)], 1)
        graphs.append(Data(x=torch.rand(len(nodes), 4), edge_index=edges, y=torch.tensor([k % 2])))

with hs.Recorder("graphs-run", overwrite=True) as recorder:
    run = train_graphs(graphs, loss="el:0.5,defer=5", most_epochs=30, patience=20, lr=0.01, recorder=recorder)
print(f"accuracy {run.test:.1%} on test graphs, after epoch {run.best} of {run.epochs}")

table = hs.score(run.model, graphs)  # your own network and data set of torch-geometric go in like this, too
print("hardest graphs:")
print(table.hardest(5))
print("most often forgotten in training:")
print(recorder.summary().hardest(5, "forgetting"))
