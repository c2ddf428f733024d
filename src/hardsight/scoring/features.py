"""A Parquet file of features and a head: its rows are read, scored and written unit by unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from tqdm import tqdm

from hardsight.data import FeatureRows
from hardsight.devices import find_device
from hardsight.errors import InputError
from hardsight.runs import SCHEMAS, Units, content_hash, gaps_entry
from hardsight.scores import check_labels
from hardsight.scoring.jobs import UnitJob, run_job, users_scores
from hardsight.scoring.options import ScoreOptions, score_names
from hardsight.scoring.rows import Block, score_block
from hardsight.table import SampleTable
from hardsight.triple import check_triple

_LEAST_ROWS, _UNIT_ROWS, _UNIT_NUMBERS = 1 << 8, 1 << 16, 1 << 24  # rows, and most numbers of features, of a unit


def score_feature_rows(
    data: FeatureRows,
    weight: Tensor,
    bias: Tensor | None,
    options: ScoreOptions,
    *,
    name: str,
    class_names: Sequence[str] | None = None,
    source: Mapping[str, Any] | None = None,
) -> SampleTable:
    """The rows of `score_features` for a file of any size, written to ``options.out`` while they are computed.

    Args:
        data: The file.
        weight: ``(C, D)``.
        bias: ``(C,)``, or None.
        options: How to score.
        name: What to call the model in the table.
        class_names: One name per class.
        source: How to open the file again.
    """
    first = data.read(range(1))[1]
    _, weight, _, bias = check_triple(first, weight, None, bias, finite=False)
    labels = None if data.labels is None else check_labels(data.labels, len(data), len(weight), "the head")
    stamp = [options.version] if options.version is not None else [*(data.stamp or ())]
    columns = [str(data.layout.features), str(data.layout.id)]
    options = replace(options, scores=score_names(options.scores))
    scores = users_scores(options)
    plan = {
        "data": {
            "origin": data.origin, "fingerprint": content_hash(stamp, columns, len(data)), "split": data.path.stem
        },
        "source": dict(source or {}),
        "labels": content_hash(labels),
        "model": {"name": name, "classes": len(weight), "fingerprint": content_hash(weight, bias)},
        "class_names": [str(name) for name in class_names or ()],
        "scores": list(options.scores or ()),
        "bias": bias is not None,
        "vectors": "direction" if options.vectors else None,
        "version": options.version,
        "users_scores": None if scores is None else scores.hash,
        "schemas": {kind: schema.version for kind, schema in SCHEMAS.items()},
        **(gaps_entry(scores) if scores is not None and options.version is None else {}),
    }  # fmt: skip
    device = find_device(options.device)
    most = 1 << min(_UNIT_ROWS, max(_UNIT_NUMBERS // data.width, 1)).bit_length() - 1
    units = Units.of(len(data), min(_LEAST_ROWS, most), most)

    def job(units: Units) -> FeatureJob:
        return FeatureJob(name, units, options, data, weight.to(device), bias, labels)

    return run_job(plan, units, options, job, classes=None, about={})


@dataclass(frozen=True)
class FeatureJob(UnitJob):
    """Units of a file of features."""

    data: FeatureRows
    weight: Tensor
    bias: Tensor | None
    labels: Tensor | None

    def ids(self, places: range) -> Sequence[str]:
        return self.data.ids(places)

    def blocks(self, places: Mapping[int, range], notes: list[str]) -> Iterator[tuple[int, Block]]:
        device, total = find_device(self.options.device), sum(map(len, places.values()))
        weight, bias = self.weight.to(device), None if self.bias is None else self.bias.to(device)
        keep = "direction" if self.options.vectors else None
        with tqdm(total=total, unit=" samples", desc="scoring", disable=None if self.options.progress else True) as bar:
            for unit, part in places.items():
                ids, features = self.data.read(part)
                if features.shape[1] != weight.shape[1]:
                    raise InputError(f"DATA: features of {self.data.origin} differ in length.")
                labels = None if self.labels is None else self.labels[part.start : part.stop]
                yield unit, score_block(ids, features.to(device), weight, labels, bias, self.options.scores, keep)
                bar.update(len(part))
