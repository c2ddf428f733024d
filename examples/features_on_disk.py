"""No model at hand: features in a Parquet file, the last layer in a safetensors file, one table out.

python examples/features_on_disk.py
"""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save_file

import hardsight as hs

torch.manual_seed(0)
weight, bias = torch.randn(5, 32), torch.zeros(5)
labels = torch.randint(0, 5, (200,))
features = weight[labels] + 3 * torch.randn(200, 32)

with tempfile.TemporaryDirectory() as folder:
    pq.write_table(pa.table({"features": features.tolist(), "label": labels.tolist()}), f"{folder}/val.parquet")
    save_file({"weight": weight, "bias": bias}, f"{folder}/head.safetensors")

    found, head = hs.read_features(f"{folder}/val.parquet"), load_file(f"{folder}/head.safetensors")
    table = hs.score_features(found.features, head["weight"], found.labels, head["bias"], found.ids)
    table.save(Path(folder) / "run")

    table = hs.SampleTable.load(Path(folder) / "run")
    print(table.hardest(5))
    print("AVH quantiles:", table.quantiles("avh").round(4).tolist())
