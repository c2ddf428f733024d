"""Several passes that make one run: each is a run of its own in ``stages/`` until the last one is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.data import Samples, class_mapping
from hardsight.ensemble import mean_over_nets, mean_vectors
from hardsight.errors import InputError
from hardsight.heads import find_head, uncompiled
from hardsight.models import Model
from hardsight.runs import STAGES, RunWriter, provenance
from hardsight.scoring.one import Options, counts, make_plan, score_one
from hardsight.table import SampleTable, split_rows


class Stages:
    """A run that is made in stages. A stage that is done is not done again; without `out` all stay in memory."""

    def __init__(self, out: Path | None, plan: Mapping[str, Any], overwrite: bool) -> None:
        self._plan = plan
        self._writer = None if out is None else RunWriter(out, plan, overwrite=overwrite)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    @property
    def whole(self) -> SampleTable | None:
        """The run, if it was complete already."""
        if self._writer is None or not self._writer.complete:
            return None
        table = SampleTable.load(self._writer.path)
        table.meta.already_complete = True
        return table

    def table(self, name: str, make: Callable[[Path | None], SampleTable]) -> SampleTable:
        """The table of a stage: read if it is done, else made. `make` writes a run to the path that it gets."""
        if self._writer is None:
            return make(None)
        path = self._writer.path / STAGES / name
        return SampleTable.load(path) if (path / "meta.json").exists() else make(path)

    def finish(
        self, tables: Mapping[str, SampleTable], meta: Mapping[str, Any], options: Options, notes: Sequence[str] = ()
    ) -> SampleTable:
        """The tables by network as one; a sample that is bad for one of them is bad for all."""
        bad = pa.concat_tables([table.bad for table in tables.values()])
        bad = bad.group_by("id", use_threads=False).aggregate([("error", "first")])
        bad = bad.rename_columns(["id", "error"])
        good = {name: _without(table.to_arrow(), bad) for name, table in tables.items()}
        accuracies = [accuracy for table in tables.values() if (accuracy := table.accuracy) is not None]
        meta = {
            **provenance(options.device),
            **self._plan,
            **meta,
            "accuracies": accuracies,
            "warnings": [*notes, *(note for table in tables.values() for note in table.meta.warnings)],
        }
        rows = next(iter(good.values())) if len(good) == 1 else _mean([*good.items()])
        kept = [(name, table.vectors) for name, table in tables.items() if table.vectors is not None]
        kept = [(name, _without(vectors, bad)) for name, vectors in kept]
        vectors = None
        if kept:
            named = [vectors.add_column(1, "model", pa.repeat(name, len(vectors))) for name, vectors in kept]
            vectors = mean_vectors(pa.concat_tables(named))
        table = SampleTable(rows, meta, bad, vectors)
        table.meta.models = list(tables) if len(tables) > 1 else []
        table.meta.counts, table.meta.accuracy = counts(table), table.accuracy
        if self._writer is not None:
            for name, rows in good.items():
                self._writer.write(split_rows(rows, bad, name, dict(kept).get(name)))
            self._writer.finish(table.meta)
        return table


def _without(rows: pa.Table, bad: pa.Table) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows["id"], value_set=bad["id"].combine_chunks()))) if len(bad) else rows


def _mean(named: list[tuple[str, pa.Table]]) -> pa.Table:
    rows = [rows.add_column(1, "model", pa.repeat(name, len(rows))) for name, rows in named]
    return mean_over_nets(pa.concat_tables(rows, promote_options="default")).drop_columns(["model"])


def score_several(
    models: Sequence[Model], samples: Samples, options: Options, out: Path | None, overwrite: bool
) -> SampleTable:
    """Every network over the same samples; each score is their mean, with its spread beside it."""
    models = [replace(model, name=name) for model, name in zip(models, _distinct(models), strict=True)]
    layers = [find_head(uncompiled(model.module), options.head) for model in models]
    numberings = [
        numbering(layer.classes, class_mapping(model.classes, samples.classes, layer.classes))
        for model, layer in zip(models, layers, strict=True)
    ]
    check_same_classes([(model.name, model.classes, n) for model, n in zip(models, numberings, strict=True)])
    plan = make_plan(models, samples, options)
    nets = [
        {"name": model.name, "fingerprint": fingerprint, "head": layer.path}
        for model, fingerprint, layer in zip(models, plan.pop("networks"), layers, strict=True)
    ]
    plan |= {"nets": nets, "preprocessing": [model.preprocessing for model in models]}
    with Stages(out, plan, overwrite) as stages:
        if (whole := stages.whole) is not None:
            return whole
        tables = {}
        for i, model in enumerate(models):
            make = partial(score_one, model, samples, options, overwrite=True, keep="direction")
            tables[model.name] = stages.table(f"net{i}", make)
        first = next(iter(tables.values())).meta
        meta = {
            "model": {"name": " + ".join(tables), "classes": layers[0].classes},
            **{key: getattr(first, key) for key in ("preprocessing", "class_names", "label_mapping", "weights")},
        }
        return stages.finish(tables, meta, options)


def numbering(outputs: int, mapping: np.ndarray | None) -> list[int]:
    """Which of the model's classes each label of the data is, as far as it is not simply its number."""
    return [outputs, *(() if mapping is None else mapping.tolist())]


def check_same_classes(nets: Sequence[tuple[str, Sequence[str] | None, list[int]]]) -> None:
    """Refuse networks that count their classes differently: their rows could not be put together.

    Args:
        nets: Name, class names and numbering of each.
    """
    (first, names, numbers), *others = nets
    for name, other_names, other_numbers in others:
        named = names is not None and other_names is not None
        if numbers != other_numbers or (named and list(names or ()) != list(other_names or ())):
            sizes = f" ({numbers[0]} and {other_numbers[0]})" if numbers[0] != other_numbers[0] else ""
            raise InputError(
                f"the networks must have the same classes in the same order, but {first!r} and {name!r} differ{sizes}."
            )


def _distinct(models: Sequence[Model]) -> list[str]:
    """Their names, with a number behind those that repeat."""
    seen: dict[str, int] = {}
    found = []
    for model in models:
        seen[model.name] = seen.get(model.name, 0) + 1
        found.append(model.name if seen[model.name] == 1 else f"{model.name} ({seen[model.name]})")
    return found
