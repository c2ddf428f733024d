"""Does a network find degraded images harder, as people do? Accuracy and scores by level."""

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
from hardsight.errors import ExistingPathError, InputError, MissingPathError, StateError
from hardsight.heads import uncompiled
from hardsight.models import Model, as_model, load_model, network_identity
from hardsight.questions.answers import Answer
from hardsight.questions.degradations import DEGRADATIONS, GRAY, DegradedSamples, chosen_levels
from hardsight.questions.levels import VALUES, follows_level
from hardsight.questions.subject import QUESTIONS, CurveKind, Metric, Subject
from hardsight.runs import DEGRADED, read_run
from hardsight.scores import SCORES
from hardsight.scoring.score import score
from hardsight.table import SampleTable

_METRICS = {"correct": "accuracy"}  # where the metric of an evaluation has another name


def _prepare(options: Mapping[str, Any], samples: Samples) -> list[dict[str, Any]]:
    chosen = chosen_levels(options["degradations"], options["levels"])
    _check_pixels(samples)
    return [{"degradations": name, "levels": levels} for name, levels in chosen.items()]


_RIGHT = "degraded images are recognized {how} often by {group} than by {baseline}", "more", "less"
_BY_LEVEL = "Means over the images; the clean ones are at the first level."


@QUESTIONS.register(
    "degradation",
    title="Degraded images",
    about="What happens when images get harder for people: less contrast, more noise? Accuracy and confidence should "
    "fall, and AVH should rise, for most images.",
    telling=(("accuracy", "noise"), ("accuracy", "contrast"), ("level_spearman", "avh · noise")),
    headline=(("accuracy", "noise"), ("accuracy", "contrast")),
    metrics={
        "accuracy": Metric("accuracy", "%", _RIGHT),
        "avh": Metric("mean AVH"),
        "angle": Metric("mean angle"),
        "level_spearman": Metric("Spearman's ρ with the level"),
        "level_follows": Metric("share of images whose score gets harder with the level", "%"),
    },
    curves={
        "accuracy": CurveKind("Accuracy by level", "level", "accuracy", "%", 0, 1, note=_BY_LEVEL),
        "avh": CurveKind("AVH by level", "level", "mean AVH", note=_BY_LEVEL),
        "confidence": CurveKind("Confidence by level", "level", "mean confidence", "%", 0, 1, note=_BY_LEVEL),
        "norm": CurveKind("Feature norm by level", "level", "mean norm", note=_BY_LEVEL),
        "angle": CurveKind("Angle by level", "level", "mean angle", note=_BY_LEVEL),
    },
    level="level",
    needs="degradations",
    prepare=_prepare,
)
def ask(subject: Subject, *, degradations: str = "noise", levels: Sequence[float] = (), gray: bool = False) -> Answer:
    """A network at the levels of one degradation, which acts on raw pixels, before its preprocessing.

    Rows and curves are means by level; ``level_spearman`` and ``level_follows`` are what `follows_level` says.
    """
    answer, ids = Answer(question="degradation"), subject.predictions.ids
    tables = []
    for level in levels or DEGRADATIONS[degradations].levels:
        samples = DegradedSamples(
            subject.readable, degradations, level, gray=gray, rounded=_takes_eight_bits(subject.network)
        )
        predictions = subject.predict(samples)
        if predictions.ids != ids:
            raise InputError(f"{degradations} {level:g}: images that could be read before cannot be read now.")
        table = {"correct": predictions.probabilities.argmax(1) == subject.labels}
        for name in VALUES[1:]:
            values = predictions.at(name, subject.labels)
            table[name] = -values if SCORES[name].higher_is_harder else values
        tables.append(_level_rows({"id": ids, **table}, degradations, level))
        for name, values in table.items():
            metric = _METRICS.get(name, name)
            answer.mean(metric, values, score=degradations, level=level, better="higher" * (metric == "accuracy"))
            answer.mean_curve(metric, [level], [values], score=degradations)
    for row in follows_level(pa.concat_tables(tables)).to_pylist() if len(tables) > 1 else ():
        if row["spearman"] is not None:
            of = {"score": f"{_METRICS.get(row['value'], row['value'])} · {degradations}", "n": row["pictures"]}
            answer.number("level_spearman", row["spearman"], low=row["low"], high=row["high"], **of)
            answer.number("level_follows", row["moves"], low=row["moves_low"], high=row["moves_high"], **of)
    return answer


def _takes_eight_bits(model: Model) -> bool:
    return model.transform is not None and model.takes != "tensor"


def _level_rows(columns: Mapping[str, Any], name: str, level: float) -> pa.Table:
    rows = pa.table(dict(columns))
    return pa.table({"degradation": pa.repeat(name, len(rows)), "level": pa.repeat(float(level), len(rows))} | {
        column: rows[column] for column in rows.column_names})  # fmt: skip


def levels_of(samples: pa.Table, classes: int) -> pa.Table:
    """One row per degradation, level and sample, from the samples of one run of an evaluation."""
    tables: dict[tuple[str, str], dict[str, Any]] = {}
    for column in samples.column_names:
        question, _, rest = column.partition("/")
        value, _, at = rest.partition(":")
        if question == "degradation" and "@" in at:
            name, _, level = at.partition("@")
            of_level = tables.setdefault((name, level), {"id": samples["id"], "label": samples["label"]})
            right = value == "accuracy"
            of_level["correct" if right else value] = pc.greater(samples[column], 0) if right else samples[column]
    if not tables:
        raise MissingPathError("OUT: the evaluation has no degraded images; evaluate with --degrade noise,contrast.")
    rows = [_level_rows(columns, name, float(level)) for (name, level), columns in tables.items()]
    return pa.concat_tables(rows).replace_schema_metadata({"classes": str(classes)})


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

    The model's own preprocessing comes after the degradation. Where it takes images and not tensors, degraded ones are
    rounded to 8 bits, as a file would be. Data sets that yield tensors must yield pixels in [0, 1].
    Noise is added to the original pixels: a preprocessing that makes images smaller averages some of it away.

    Args:
        model: An `nn.Module`, a `Model`, or a name, as for `score`.
        data: A data set or its name, as for `score`.
        degradations: Names from `DEGRADATIONS`.
        levels: Levels of one degradation, instead of the defaults; in Python also by name. The clean level comes first.
        out: Run folder: each level is written to ``out/degraded/NAME=LEVEL/``, and read where it is there already.
        gray: Remove color first, also at the clean level, as Geirhos et al. did.
        head: Path of the last linear layer, when it should not be looked for.
        preprocess: Replaces the model's own; a network that came without any needs one, or ``"raw"``.
        columns: Which columns of the data hold image, label and id.
        scores: Names from `SCORES`.
        use_bias: False takes logits without the head's bias.
        batch_size: Samples per forward pass.
        workers: Loader processes.
        device: Where to run; the first GPU if there is one.
        overwrite: Delete levels of another network or data set in `out`.
        progress: Show a bar (only ever in a terminal).

    Returns:
        One row per degradation, level and sample: ``degradation``, ``level``, ``id``, ``label``, ``pred``, ``correct``
        and one column per score. Without labels there is no ``correct``, and scores are taken at the predicted class.
    """
    chosen = chosen_levels(degradations, levels)
    model = load_model(model) if isinstance(model, str) else model
    classifier, samples = as_model(model, preprocess), open_data(data, columns=columns)
    _check_pixels(samples)
    if out is not None and not overwrite:
        source = (network_identity(uncompiled(classifier.module)).key, samples.origin, gray)
        if other := [level.folder for level in _stored_levels(Path(out) / DEGRADED) if level.source != source]:
            raise ExistingPathError(
                f"RUN: {other[0]} holds images of another network or data set, or the one is gray and the other in "
                "color; --overwrite what is there, or evaluate another run."
            )
    tables = []
    for name, level in ((name, level) for name, levels in chosen.items() for level in levels):
        with warnings.catch_warnings():
            if level != DEGRADATIONS[name].clean:  # the clean level has warned; of degraded images it means less
                warnings.simplefilter("ignore", UserWarning)
            table = score(
                model,
                DegradedSamples(samples, name, level, gray=gray, rounded=_takes_eight_bits(classifier)),
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
        tables.append(_scored_rows(table, name, level))
    return pa.concat_tables(tables)


def _check_pixels(samples: Samples) -> None:
    first = None if samples.pixels else samples.first()
    if first is None:
        return
    image = isinstance(first, Tensor) and first.ndim == 3 and first.is_floating_point()
    if not image or not (float(first.min()) >= 0 and float(first.max()) <= 1):
        got = f"{first.dtype} {tuple(first.shape)}" if isinstance(first, Tensor) else type(first).__name__
        got += f" from {float(first.min()):.3g} to {float(first.max()):.3g}" if image else ""
        raise InputError(
            "data must yield raw images, or tensors (channels, H, W) of pixels in [0, 1], because a degradation "
            f"comes before the preprocessing; got {got}. Leave the preprocessing to the model: preprocess=…"
        )


def _scored_rows(table: SampleTable, name: str, level: float) -> pa.Table:
    rows = table.to_arrow()
    if "label" in rows.column_names:
        rows = rows.add_column(3, "correct", pc.equal(rows["label"], rows["pred"]))
    info = {"classes": str(table.meta.model.classes), "model": str(table.meta.model.name)}
    rows = _level_rows({column: rows[column] for column in rows.column_names}, name, level)
    return rows.replace_schema_metadata(info)


def read_degraded(run: str | Path) -> pa.Table:
    """The rows that `evaluate_degraded` wrote into a run, in order; scores that some level lacks are left out.

    Of a training, those of its test samples, or else of its training samples.
    """
    places = [Path(run, *inside, DEGRADED) for inside in ((), ("test",), ("train",))]
    stored = list(_stored_levels(next((place for place in places if place.is_dir()), places[0])))
    if not stored:
        raise MissingPathError(
            f"RUN: {run} holds no degraded images; make an evaluation with: hardsight evaluate {run} --degrade "
            "noise,contrast -o OUT, and name OUT."
        )
    if len({level.source for level in stored}) > 1:
        raise StateError(
            f"RUN: {run} holds degraded images of several networks or data sets, or some gray and some in color; "
            "evaluate all of them again with --overwrite."
        )
    order = list(DEGRADATIONS)
    stored.sort(key=lambda level: (order.index(level.name), abs(level.level - DEGRADATIONS[level.name].clean)))
    tables = [_scored_rows(SampleTable.load(level.folder), level.name, level.level) for level in stored]
    shared = set.intersection(*(set(table.column_names) for table in tables))  # an older level may lack a newer score
    return pa.concat_tables([table.select([name for name in table.column_names if name in shared]) for table in tables])


class _StoredLevel(NamedTuple):
    """A level that is whole, and its source: network, data, and whether the images are gray."""

    folder: Path
    name: str
    level: float
    source: tuple[str, str, bool]


def _stored_levels(place: Path) -> Iterator[_StoredLevel]:
    for folder in sorted(place.glob("*=*")):
        if (folder / "meta.json").is_file():
            name, _, level = folder.name.partition("=")
            meta = read_run(folder, kinds=())[1]
            origin, ending = meta.data.origin or "", f", {name} {level}"
            gray = origin.endswith(ending + GRAY)
            data = origin.removesuffix(GRAY if gray else "").removesuffix(ending)
            source = (str(meta.model.fingerprint), data, gray)
            yield _StoredLevel(folder, name, DEGRADATIONS[name].check(level), source)
