"""Does a network find degraded images harder, as people do? Accuracy and scores by level."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor, nn

from hardsight.data import Columns, Samples, open_data
from hardsight.errors import ExistingPathError, InputError, MissingPathError, StateError
from hardsight.heads import uncompiled
from hardsight.models import Model, as_model, load_model, network_identity
from hardsight.questions.answers import Answer
from hardsight.questions.degradations import DEGRADATIONS, GRAY, DegradedSamples, chosen_levels
from hardsight.questions.levels import VALUES, follows_level
from hardsight.questions.pixels import check_pixels
from hardsight.questions.subject import QUESTIONS, CurveKind, Metric, Subject
from hardsight.runs import DEGRADED, read_run
from hardsight.scores import SCORES
from hardsight.scoring.score import score
from hardsight.table import SampleTable


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

    Rows and curves are means by level; ``level_spearman`` and ``level_follows`` come from `follows_level`.
    """
    answer, ids = Answer(question="degradation"), subject.predictions.ids
    tables = []
    for level in levels or DEGRADATIONS[degradations].levels:
        predictions = subject.predict(_degraded(subject.readable, subject.network, degradations, level, gray))
        if predictions.ids != ids:
            raise InputError(f"{degradations} {level:g}: images that could be read before cannot be read now.")
        table = {"correct": predictions.probabilities.argmax(1) == subject.labels}
        for name in VALUES[1:]:
            values = predictions.at(name, subject.labels)
            table[name] = -values if SCORES[name].higher_is_harder else values
        tables.append(_at_level(pa.table({"id": ids, **table}), degradations, level))
        for name, values in table.items():
            metric, better = ("accuracy", "higher") if name == "correct" else (name, "")
            answer.mean(metric, values, score=degradations, level=level, better=better)
            answer.mean_curve(metric, [level], [values], score=degradations)
    for row in follows_level(pa.concat_tables(tables)).to_pylist() if len(tables) > 1 else ():
        if row["spearman"] is not None:
            metric = "accuracy" if row["value"] == "correct" else row["value"]
            of = {"score": f"{metric} · {degradations}", "n": row["pictures"]}
            answer.number("level_spearman", row["spearman"], low=row["low"], high=row["high"], **of)
            answer.number("level_follows", row["moves"], low=row["moves_low"], high=row["moves_high"], **of)
    return answer


def _degraded(samples: Samples, model: Model, name: str, level: float, gray: bool) -> DegradedSamples:
    """Rounded to 8 bits where the preprocessing takes images and not tensors, as a file would be."""
    rounded = model.transform is not None and model.takes != "tensor"
    return DegradedSamples(samples, name, level, gray=gray, rounded=rounded)


def _at_level(rows: pa.Table, name: str, level: float) -> pa.Table:
    rows = rows.add_column(0, "level", pa.repeat(float(level), len(rows)))
    return rows.add_column(0, "degradation", pa.repeat(name, len(rows)))


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
    rows = [_at_level(pa.table(columns), name, float(level)) for (name, level), columns in tables.items()]
    return pa.concat_tables(rows).replace_schema_metadata({"classes": str(classes)})


def evaluate_degraded(
    model: Model | nn.Module | str,
    data: Any,
    degradations: Iterable[str] = ("noise", "contrast"),
    levels: Sequence[float] | Mapping[str, Sequence[float]] | None = None,
    *,
    out: str | Path | None = None,
    gray: bool = False,
    preprocess: Callable[[Any], Any] | Literal["raw"] | None = None,
    columns: Columns | None = None,
    overwrite: bool = False,
    **options: Any,
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
        out: Run folder: each level is written to ``out/degraded/NAME=LEVEL/``, and read from there if it exists.
        gray: Remove color first, also at the clean level, as Geirhos et al. did.
        preprocess: Replaces the model's own; a network without preprocessing needs one, or ``"raw"``.
        columns: Which columns of the data hold image, label and id.
        overwrite: Delete levels of another network or data set in `out`.
        **options: Other options of `score`: head, scores, use_bias, batch_size, workers, device, progress, shard,
            engine.

    Returns:
        One row per degradation, level and sample: ``degradation``, ``level``, ``id``, ``label``, ``pred``, ``correct``
        and one column per score. Without labels there is no ``correct``, and scores are taken at the predicted class.
        With several processes (`shard`), the rows committed so far: `read_degraded` has all when the last one is done.
    """
    chosen = chosen_levels(degradations, levels)
    model = load_model(model) if isinstance(model, str) else model
    classifier, samples = as_model(model, preprocess), open_data(data, columns=columns)
    _check_pixels(samples)
    if out is not None and not overwrite:
        source = (network_identity(uncompiled(classifier.module)).key, samples.origin, gray)
        if other := [folder for folder, *_, stored in _stored_levels(Path(out) / DEGRADED) if stored != source]:
            raise ExistingPathError(
                f"RUN: {other[0]} holds images of another network or data set, or one is gray and the other in "
                "color; replace them with --overwrite, or evaluate another run."
            )
    tables = []
    for name, level in ((name, level) for name, levels in chosen.items() for level in levels):
        place = None if out is None else Path(out) / DEGRADED / f"{name}={level:g}"
        with warnings.catch_warnings():
            if level != DEGRADATIONS[name].clean:  # the clean level has warned; for degraded images it means less
                warnings.simplefilter("ignore", UserWarning)
            degraded = _degraded(samples, classifier, name, level, gray)
            options |= {"preprocess": preprocess, "overwrite": overwrite, "vectors": False}
            tables.append(_scored_rows(score(model, degraded, out=place, **options), name, level))
    return pa.concat_tables([table for table in tables if len(table)] or tables[:1])


def _check_pixels(samples: Samples) -> None:
    """Refuse samples that are neither raw images nor pixels: a degradation comes before the preprocessing."""
    if not samples.pixels and (first := samples.first()) is not None:
        check_pixels(first[None] if isinstance(first, Tensor) else first, "data (before the preprocessing)")


def _scored_rows(table: SampleTable, name: str, level: float) -> pa.Table:
    rows = table.to_arrow()
    if "label" in rows.column_names:
        rows = rows.add_column(3, "correct", pc.equal(rows["label"], rows["pred"]))
    info = {"classes": str(table.meta.model.classes), "model": str(table.meta.model.name)}
    return _at_level(rows, name, level).replace_schema_metadata(info)


def read_degraded(run: str | Path) -> pa.Table:
    """The rows that `evaluate_degraded` wrote into a run, in order; scores that some level lacks are left out.

    For a training run, the rows of its test samples, or else of its training samples.
    """
    places = [Path(run, *inside, DEGRADED) for inside in ((), ("test",), ("train",))]
    stored = list(_stored_levels(next((place for place in places if place.is_dir()), places[0])))
    if not stored:
        raise MissingPathError(
            f"RUN: {run} holds no degraded images; make an evaluation with: hardsight evaluate {run} --degrade "
            "noise,contrast -o OUT, and name OUT."
        )
    if len({source for *_, source in stored}) > 1:
        raise StateError(
            f"RUN: {run} holds degraded images of several networks or data sets, or some gray and some in color; "
            "evaluate all of them again with --overwrite."
        )
    order = list(DEGRADATIONS)
    stored.sort(key=lambda of: (order.index(of[1]), abs(of[2] - DEGRADATIONS[of[1]].clean)))
    tables = [_scored_rows(SampleTable.load(folder), name, level) for folder, name, level, _ in stored]
    shared = set.intersection(*(set(table.column_names) for table in tables))  # an older level may lack a newer score
    return pa.concat_tables([table.select([name for name in table.column_names if name in shared]) for table in tables])


def _stored_levels(place: Path) -> Iterator[tuple[Path, str, float, tuple[str, str, bool]]]:
    """Folder, degradation and level of what is whole, and its source: network, data, and whether images are gray."""
    for folder in sorted(place.glob("*=*")):
        if (folder / "meta.json").is_file():
            name, _, level = folder.name.partition("=")
            meta = read_run(folder, kinds=())[1]
            origin, ending = meta.data.origin or "", f", {name} {level}"
            gray = origin.endswith(ending + GRAY)
            data = origin.removesuffix(GRAY if gray else "").removesuffix(ending)
            yield folder, name, DEGRADATIONS[name].check(level), (str(meta.model.fingerprint), data, gray)
