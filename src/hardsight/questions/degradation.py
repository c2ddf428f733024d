"""Does a network find degraded images harder, as people do? Accuracy and scores by level."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from scipy import stats
from torch import Tensor, nn

from hardsight.correlation import fisher_interval, spearman, standard_error
from hardsight.data import Columns, Samples, open_data
from hardsight.errors import ExistingPathError, InputError, MissingPathError, StateError
from hardsight.heads import uncompiled
from hardsight.models import Model, as_model, load_model, network_identity
from hardsight.people.read import read_trials
from hardsight.printing import interval, text_table
from hardsight.questions.answers import Answer, mean_of
from hardsight.questions.degradations import DEGRADATIONS, GRAY, DegradedSamples, chosen_levels
from hardsight.questions.subject import QUESTIONS, CurveKind, Metric, Subject
from hardsight.runs import DEGRADED, read_run
from hardsight.scores import SCORES
from hardsight.scoring.score import score
from hardsight.stats import FEW, share_interval, wilson
from hardsight.table import SampleTable, hardness_sign

# What is shown by default, as far as it is there: accuracy, the AVH paper's values and the bare angle.
_VALUES = ("correct", "avh", "angle", "confidence", "norm")
_METRICS = {"correct": "accuracy"}  # where the metric of an evaluation has another name
_MEANS = pa.schema(
    [("degradation", pa.string()), ("level", pa.float64()), ("value", pa.string()), ("n", pa.int64())]
    + [(name, pa.float64()) for name in ("mean", "low", "high")]
)
_FOLLOWS = pa.schema(
    [("degradation", pa.string()), ("value", pa.string()), ("pictures", pa.int64()), ("levels", pa.int64())]
    + [("expected", pa.int64())]
    + [(name, pa.float64()) for name in ("spearman", "low", "high", "moves", "moves_low", "moves_high")]
)
# Experiments of Geirhos et al. and the columns of their trial tables.
_EXPERIMENTS = {"contrast": "contrast", "uniform-noise": "noise", "noise": "noise"}


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
        for name in _VALUES[1:]:
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


def _values_in(rows: pa.Table) -> list[str]:
    """Columns to show: accuracy where there are labels, and the usual scores (``avh_pred`` without labels)."""
    names = [name if name in rows.column_names else f"{name}_pred" for name in _VALUES]
    return [name for name in names if name in rows.column_names]


def mean_by_level(rows: pa.Table, values: Sequence[str] | None = None) -> pa.Table:
    """Mean of accuracy and scores at every level, with 95% intervals over samples: Wilson's and Student's.

    Args:
        rows: What `evaluate_degraded` returned.
        values: Columns; accuracy (``correct``), AVH, angle, confidence and norm if not given.

    Returns:
        Rows ``degradation``, ``level``, ``value``, ``n``, ``mean``, ``low``, ``high``; no interval below 5 samples.

    Examples:
        >>> rows = pa.table({"degradation": ["noise"] * 2, "level": [0.0, 0.1], "id": ["a"] * 2, "norm": [4.0, 3.0]})
        >>> mean_by_level(rows)["mean"].to_pylist()
        [4.0, 3.0]
    """
    means: list[dict[str, object]] = []
    for name, of_name in _by_degradation(rows):
        levels = of_name["level"].to_numpy()
        for value in _values_in(rows) if values is None else values:
            column = of_name[value].to_numpy()
            for level in pc.unique(of_name["level"]).to_pylist():
                mean = mean_of(column[levels == level])
                mean["mean"] = mean.pop("value")
                means.append({"degradation": name, "level": level, "value": value} | mean)
    return pa.Table.from_pylist(means, schema=_MEANS)


def follows_level(rows: pa.Table, values: Sequence[str] | None = None) -> pa.Table:
    """How closely a score follows the level of a degradation: over all images, and image by image.

    The levels of one image are not independent, so the interval is that of the images: what all levels of an image add
    to the correlation is summed before its spread is taken.

    Args:
        rows: What `evaluate_degraded` returned, two levels or more of each degradation.
        values: Columns; accuracy (``correct``), AVH, angle, confidence and norm if not given.

    Returns:
        Rows ``degradation``, ``value``, ``pictures`` (images with every level) and ``levels`` (how many);
        ``spearman`` of value and level over image × level with ``low``, ``high`` (95%);
        ``expected``: its sign where harder images get harder scores, 1 or −1;
        ``moves``: share of the images whose own values follow their levels in that direction (Spearman above 0;
        an image with no direction counts half), with ``moves_low``, ``moves_high`` (Wilson's).
    """
    follows: list[dict[str, object]] = []
    for name, of_name in _by_degradation(rows):
        levels = pc.unique(of_name["level"]).to_numpy()
        if len(levels) < 2:
            raise InputError(f"rows must hold two levels or more of {name}, got {len(levels)}.")
        images = pc.unique(of_name["id"])
        image = pc.index_in(of_name["id"], value_set=images).to_numpy()
        at = np.argmax(of_name["level"].to_numpy()[:, None] == levels, 1)
        harder = 1 if DEGRADATIONS[name].harder == "higher" else -1
        for value in _values_in(rows) if values is None else values:
            matrix = np.full((len(images), len(levels)), np.nan)
            matrix[image, at] = of_name[value].cast(pa.float64()).to_numpy()
            matrix = matrix[np.isfinite(matrix).all(1)]
            expected = harder * hardness_sign(value)
            row: dict[str, object] = {"degradation": name, "value": value, "pictures": len(matrix)}
            row |= {"levels": len(levels), "expected": expected}
            if len(matrix) >= FEW and np.ptp(matrix) > 0:
                row |= _correlation(matrix, levels) | _moves(matrix, expected * levels)
            follows.append(row)
    return pa.Table.from_pylist(follows, schema=_FOLLOWS)


def _correlation(matrix: np.ndarray, levels: np.ndarray) -> dict[str, float]:
    """Spearman's of all values and their levels, with the interval of rows that were drawn together."""
    rho = spearman(matrix.ravel(), np.tile(levels, len(matrix)))
    error = standard_error(rho.influence.reshape(matrix.shape).mean(1))
    low, high = fisher_interval(rho.value, error, len(matrix))
    return {"spearman": rho.value, "low": low, "high": high}


def _moves(matrix: np.ndarray, levels: np.ndarray) -> dict[str, float]:
    """Share of the rows that rise with the levels."""
    rank = stats.rankdata(levels)
    direction = np.sign((stats.rankdata(matrix, axis=1) * (rank - rank.mean())).sum(1).round(9))
    risen = (direction > 0).sum() + (direction == 0).sum() / 2
    low, high = share_interval(risen, len(matrix))
    return {"moves": risen / len(matrix), "moves_low": low, "moves_high": high}


def _by_degradation(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    for name in pc.unique(rows["degradation"]).to_pylist():
        yield name, rows.filter(pc.equal(rows["degradation"], name))


def level_summary(rows: pa.Table, people: Sequence[dict[str, Any]] = ()) -> tuple[dict[str, Any], list[str]]:
    """Means by level and how closely scores follow it, as values and as lines for a terminal; people beside them."""
    classes = int((rows.schema.metadata or {}).get(b"classes", 1))
    means, follows, lines = mean_by_level(rows).to_pylist(), [], []
    for name, of_name in _by_degradation(rows):
        table: dict[float, dict[str, str]] = {}
        for row in (row for row in means if row["degradation"] == name):
            cells = table.setdefault(row["level"], {name: f"{row['level']:g}"})
            scale, style = (
                classes if row["value"].startswith("avh") else 1,
                ".1%" if row["value"] == "correct" else ".3f",
            )
            mean, low, high = (scale * row[end] for end in ("mean", "low", "high"))
            cells[_title(row["value"])] = interval(mean, low, high, style)
        lines += ["", *text_table(list(table.values()))]
        of_levels = follows_level(of_name).to_pylist() if len(table) > 1 else []
        lines += [
            f"  {_title(row['value'])} and level: Spearman "
            f"{interval(row['spearman'], row['low'], row['high'], '+.3f')}; it gets harder "
            f"with the image for {row['moves']:.0%} of {row['pictures']:,}"
            for row in of_levels
            if row["spearman"] is not None
        ]
        if answers := [f"{row['level']:g}: {row['mean']:.0%}" for row in people if row["degradation"] == name]:
            lines.append(f"  people: {', '.join(answers)}")
        follows += of_levels
    return {"classes": classes, "means": means, "follows": follows, "people": people}, lines


def _title(value: str) -> str:
    name = value.removesuffix("_pred")
    return {"correct": "accuracy", "avh": "C·AVH"}.get(name, name)


def human_accuracy(file: str | Path) -> pa.Table:
    """How often people were right at each level of contrast or noise, from the trials of Geirhos et al. (2018).

    The images were gray, and those with noise had a contrast of 0.3: compare how curves fall, not where they begin.

    Args:
        file: Trial table (CSV, also .gz) with the columns object_response, category and condition: ``c30`` is a
            contrast of 0.3, ``0.10`` a noise of 0.1. A column experiment tells tables of several experiments apart.

    Returns:
        Rows ``degradation``, ``level``, ``n`` (trials), ``mean`` (share that is right), ``low``, ``high`` (Wilson's
        95% interval, as if all trials were of different people).
    """
    trials = read_trials(file, ("object_response", "category", "condition"))
    condition = trials["condition"]
    percent = pc.match_substring_regex(condition, r"^c\d+$")
    if "experiment" in trials.column_names:
        degradation = pa.array([_EXPERIMENTS.get(name) for name in trials["experiment"].to_pylist()], pa.string())
    else:
        degradation = pc.if_else(percent, "contrast", "noise")
    number = pc.replace_substring_regex(condition, "^c", "")
    valid = pc.and_(pc.match_substring_regex(number, r"^\d+(\.\d+)?$"), pc.is_valid(degradation))
    right = pc.equal(trials["object_response"], trials["category"]).cast(pa.float64())
    rows = pa.table({"degradation": degradation, "level": number, "right": right, "percent": percent}).filter(valid)
    if not len(rows):
        raise InputError(f"human: {Path(file).name} holds no trials with contrast (c30) or noise (0.10).")
    level = rows["level"].cast(pa.float64()).to_numpy() / np.where(rows["percent"].to_numpy(), 100, 1)
    groups = rows.set_column(1, "level", pa.array(level)).group_by(["degradation", "level"])
    shares = groups.aggregate([("right", "count"), ("right", "sum")])
    shares = shares.sort_by([("degradation", "ascending"), ("level", "ascending")])
    n, correct = (shares[f"right_{what}"].to_numpy() for what in ("count", "sum"))
    low, high = wilson(correct, n)
    columns = {"degradation": shares["degradation"], "level": shares["level"], "n": n.astype(np.int64)}
    return pa.table(columns | {"mean": correct / n, "low": low, "high": high})
