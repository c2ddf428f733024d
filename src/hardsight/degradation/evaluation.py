"""A network on degraded pictures: the engine of `score` over a degraded view of the data set, level by level.

Of a run, each level is a run of its own in ``RUN/degraded/NAME=LEVEL/``: what is done is not computed again, and a
killed evaluation goes on where it stopped.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor, nn

from hardsight.data import Columns, Samples, open_data
from hardsight.degradation.degradations import DEGRADATIONS, checked_level, chosen_levels
from hardsight.degradation.views import GRAY, DegradedSamples
from hardsight.errors import ExistingPathError, InputError, MissingPathError, StateError
from hardsight.heads import uncompiled
from hardsight.models import Model, as_model, load_model, network_identity
from hardsight.runs import DEGRADED, read_run
from hardsight.scores import SCORES
from hardsight.scoring.score import score
from hardsight.table import SampleTable


def evaluate_degraded(
    model: Model | nn.Module | str,
    data: Any,
    degradations: Iterable[str] = ("noise", "contrast"),
    levels: Sequence[float] | Mapping[str, Sequence[float]] | None = None,
    *,
    out: str | Path | None = None,
    gray: bool = False,
    head: str | nn.Module | None = None,
    preprocess: Callable[[Any], Any] | Literal["raw"] | None = None,
    columns: Columns | None = None,
    scores: Iterable[str] = tuple(SCORES),
    use_bias: bool = True,
    batch_size: int = 64,
    workers: int | None = None,
    device: str | torch.device | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> pa.Table:
    """Score every sample at every level of some degradations, which act on raw pixels in [0, 1].

    The model's own preprocessing comes after the degradation. Where it takes pictures and not tensors, degraded ones
    are rounded to 8 bits, as a file would be. Data sets that yield tensors must yield pixels in [0, 1].
    Noise is that of the picture's own pixels: a preprocessing that makes pictures smaller averages some of it away.

    Args:
        model: An `nn.Module`, a `Model`, or a name, as for `score`.
        data: A data set or its name, as for `score`.
        degradations: Names from `DEGRADATIONS`.
        levels: Levels of one degradation, instead of its own; in Python also by name. The clean level comes first.
        out: Run folder: each level is written to ``out/degraded/NAME=LEVEL/``, and read where it is there already.
        gray: Remove color first, also at the clean level, as Geirhos et al. did.
        head: Path of the last linear layer, when it should not be looked for.
        preprocess: Replaces the model's own; a network that came without any needs one, or ``"raw"``.
        columns: Which columns of the data hold image, label and id.
        scores: Names from `SCORES`.
        use_bias: False takes logits without the head's bias.
        batch_size: Samples a forward.
        workers: Loader processes.
        device: Where to run; the first GPU if there is one.
        overwrite: Throw away levels of another network or data set in `out`.
        progress: Show a bar (only ever in a terminal).

    Returns:
        One row per degradation, level and sample: ``degradation``, ``level``, ``id``, ``label``, ``pred``, ``correct``
        and one column per score. Without labels there is no ``correct``, and scores are taken at the predicted class.
    """
    wanted = chosen_levels(degradations, levels)
    model = load_model(model) if isinstance(model, str) else model
    known = as_model(model, preprocess)
    samples = open_data(data, columns=columns)
    if not samples.pixels:
        _check_tensors(samples)
    rounded = known.transform is not None and known.takes != "tensor"
    if out is not None and not overwrite:
        own = (network_identity(uncompiled(known.module)).key, samples.origin, gray)
        if other := [one.folder for one in _done(Path(out) / DEGRADED) if one.made_of != own]:
            raise ExistingPathError(
                f"RUN: {other[0]} holds pictures of another network or data set, or the one is gray and the other in "
                "color; --overwrite what is there, or evaluate another run."
            )
    tables = []
    for name, level in wanted:
        degraded = DegradedSamples(samples, name, level, gray=gray, rounded=rounded)
        with warnings.catch_warnings():
            if level != DEGRADATIONS[name].clean:  # the clean level has said it; of ruined pictures it means less
                warnings.simplefilter("ignore", UserWarning)
            table = score(
                model,
                degraded,
                out=None if out is None else Path(out) / DEGRADED / f"{name}={level:g}",
                head=head,
                preprocess=preprocess,
                scores=scores,
                use_bias=use_bias,
                vectors=False,
                batch_size=batch_size,
                workers=workers,
                device=device,
                overwrite=overwrite,
                progress=progress,
            )
        tables.append(_rows(table, name, level))
    return pa.concat_tables(tables)


def _check_tensors(samples: Samples) -> None:
    first = samples.first()
    picture = isinstance(first, Tensor) and first.ndim == 3 and first.is_floating_point()
    if not picture or not (float(first.min()) >= 0 and float(first.max()) <= 1):
        got = f"{first.dtype} {tuple(first.shape)}" if isinstance(first, Tensor) else type(first).__name__
        got += f" from {float(first.min()):.3g} to {float(first.max()):.3g}" if picture else ""
        raise InputError(
            "data must yield raw pictures, or tensors (channels, H, W) of pixels in [0, 1], because a degradation "
            f"comes before the preprocessing; got {got}. Leave the preprocessing to the model: preprocess=…"
        )


def _rows(table: SampleTable, name: str, level: float) -> pa.Table:
    rows = table.to_arrow()
    if "label" in rows.column_names:
        rows = rows.add_column(3, "correct", pc.equal(rows["label"], rows["pred"]))
    rows = rows.add_column(0, "level", pa.repeat(level, len(rows)))
    told = {"classes": str(table.meta.model.classes), "model": str(table.meta.model.name)}
    return rows.add_column(0, "degradation", pa.repeat(name, len(rows))).replace_schema_metadata(told)


def read_degraded(run: str | Path) -> pa.Table:
    """The rows that `evaluate_degraded` wrote into a run: every degradation and level that is whole, in order.

    Of a training, those of its test samples, or else of its training samples. Scores that some level lacks are left
    out.
    """
    places = [Path(run, *inside, DEGRADED) for inside in ((), ("test",), ("train",))]
    place = next((place for place in places if place.is_dir()), places[0])
    found = list(_done(place))
    if not found:
        raise MissingPathError(
            f"RUN: {run} holds no degraded pictures; make them with: hardsight evaluate {run} --degrade noise,contrast"
        )
    if len({one.made_of for one in found}) > 1:
        raise StateError(
            f"RUN: {run} holds degraded pictures of several networks or data sets, or some gray and some in color; "
            "evaluate all of them again with --overwrite."
        )
    ways = list(DEGRADATIONS)
    found.sort(key=lambda one: (ways.index(one.name), abs(one.level - DEGRADATIONS[one.name].clean)))
    tables = [_rows(SampleTable.load(one.folder), one.name, one.level) for one in found]
    shared = set.intersection(*(set(table.column_names) for table in tables))  # an older level may lack a newer score
    return pa.concat_tables([table.select([name for name in table.column_names if name in shared]) for table in tables])


class _Level(NamedTuple):
    """A level that is whole, and what it was made of: network, data, and whether they were made gray."""

    folder: Path
    name: str
    level: float
    made_of: tuple[str, str, bool]


def _done(place: Path) -> Iterator[_Level]:
    for folder in sorted(place.glob("*=*")):
        if (folder / "meta.json").is_file():
            name, _, level = folder.name.partition("=")
            meta = read_run(folder, kinds=())[1]
            origin, ending = meta.data.origin or "", f", {name} {level}"
            gray = origin.endswith(ending + GRAY)
            of = origin.removesuffix(GRAY if gray else "").removesuffix(ending)
            yield _Level(folder, name, checked_level(name, level), (str(meta.model.fingerprint), of, gray))
