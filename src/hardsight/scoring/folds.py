"""Out of sample: every sample is scored by a head, or a network, that did not see its label in training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from hardsight.data import Samples, View, all_labels
from hardsight.devices import find_device
from hardsight.ensemble import matrix
from hardsight.errors import InputError
from hardsight.extras import first_line, printable
from hardsight.models import Model, network_identity, returned_model
from hardsight.runs import FEATURES, STAGES, Meta, content_hash
from hardsight.scores import bad_rows
from hardsight.scoring.checks import class_count
from hardsight.scoring.jobs import complete_table, last_step, open_run
from hardsight.scoring.network import Part, check_same_classes, combine, make_plan, score_network, stage_options
from hardsight.scoring.options import ScoreOptions, Shard
from hardsight.scoring.rows import bad_table, score_block
from hardsight.table import SampleTable
from hardsight.userfile import FileFunction


class TrainingData(Dataset[Any]):
    """The samples to train one fold's network on: items ``(image, label)`` as the data set yields them.

    Attributes:
        labels: ``(n,)`` class indices in the data's own numbering.
        classes: How many classes there are.
        class_names: Their names, or None.
        images: All images as one array, where the data are arrays.
        fold: Which fold is held out.
        seed: A seed that differs for every fold and repeat; torch has been seeded with it.
    """

    def __init__(self, samples: Samples, index: np.ndarray, labels: np.ndarray, fold: int, seed: int) -> None:
        self._samples, self._index = samples, index
        self.labels, self.fold, self.seed = labels[index], fold, seed
        self.classes = class_count(samples, int(labels.max()) + 1)
        self.class_names = None if samples.classes is None else list(samples.classes)

    @property
    def images(self) -> np.ndarray:
        if self._samples.images is None:
            raise AttributeError("images: the data are not arrays; read them one by one, data[i].")
        return self._samples.images[self._index]

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        place = int(self._index[index])
        try:
            x = self._samples.load(place, None)[0]
        except Exception as error:
            raise InputError(
                f"sample {printable(self._samples.ids[place])!r} cannot be read ({first_line(error)}); catch this to "
                "train without it."
            ) from error
        if isinstance(x, (np.ndarray, Tensor)):
            x = x.copy() if isinstance(x, np.ndarray) else x.clone()  # a change in place must not reach the data
        return x, int(self.labels[index])


def assign_folds(labels: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """A fold for each sample: random, with each class spread over the folds as evenly as possible.

    Examples:
        >>> fold = assign_folds(np.array([0] * 6 + [1] * 3), 3, seed=0)
        >>> [sorted(fold[:6].tolist()), sorted(fold[6:].tolist())]
        [[0, 0, 1, 1, 2, 2], [0, 1, 2]]
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), dtype=np.int64)
    fold[order] = np.arange(len(labels)) % folds  # the samples of a class lie together and are dealt out like cards
    return fold


def score_folds(
    model: Model | Callable[[TrainingData], Any], samples: Samples, options: ScoreOptions, folds: int
) -> SampleTable:
    """Score every fold by a head fitted to the other folds or, with a training function, a network trained on them."""
    check_folds(folds, len(samples))
    if samples.labels is None and next((label for _, label in samples.readable()), 0) is None:
        raise InputError(f"folds needs labels, and {samples.origin} has none.")
    if samples.labels is not None and samples.labels.min() < 0:
        raise InputError(f"DATA: labels must be class indices from 0, got {int(samples.labels.min())}.")
    division = _division(options, folds)
    if isinstance(model, Model):
        return _score_refitted(model, samples, options, {**division, "retrained": "head"})
    return _score_trained(model, samples, options, {**division, "retrained": "model"})


def check_folds(folds: int | None, samples: int) -> int:
    """The number of folds, if this many samples can be divided into them."""
    if folds is None or not 2 <= folds <= samples:
        raise InputError(f"folds must be between 2 and the number of samples ({samples:,}), got {folds}.")
    return folds


def _division(options: ScoreOptions, folds: int) -> dict[str, Any]:
    """The division into folds; the seed only if it is not the default, so that older runs can be resumed."""
    return {"folds": folds, "seeds": options.seeds} | ({"seed": options.seed} if options.seed else {})


def _score_refitted(model: Model, samples: Samples, options: ScoreOptions, division: dict[str, Any]) -> SampleTable:
    """The network's features, unchanged, and for each fold a head fitted to the labels of the other folds."""
    identity = network_identity(model.module)
    plan = make_plan([model], samples, options, networks=[identity])
    network = {"name": model.name, "fingerprint": identity.hash}
    plan |= {"model": network, "preprocessing": model.preprocessing, "out_of_sample": division}
    with open_run(plan, options) as run:
        if run is not None and run.complete:
            return complete_table(run)
        gathering = stage_options(replace(options, vectors=True), FEATURES)
        whole = score_network(model, samples, gathering, keep="features", identity=identity)
        if whole.meta.unfinished:
            return whole
        with last_step(run) as mine:
            if not mine:  # another process fits the heads
                whole.meta.counts, whole.meta.unfinished = None, True
                return whole
            stored: Any = whole.vectors
            place = np.asarray(pc.index_in(whole.to_arrow()["id"], value_set=stored["id"].combine_chunks()))
            features = torch.from_numpy(matrix(stored, "features", place)).to(find_device(options.device))
            parts, facts = _refit(
                features, whole["label"], whole["id"], model.name, samples.classes, class_count(samples, 0), options
            )
            facts["model"] = {**network, **facts["model"]}
            facts["warnings"] += whole.meta.warnings
            plan |= {"weights": whole.meta.weights, "preprocessing": whole.meta.preprocessing, **facts}
            parts.append((parts[0][0], SampleTable(parts[0][1].to_arrow()[:0], None, whole.bad)))
            return combine(run, plan, parts, samples.ids, options)


def score_feature_folds(
    features: Tensor,
    labels: Tensor,
    ids: Sequence[str],
    name: str,
    class_names: Sequence[str] | None,
    options: ScoreOptions,
) -> SampleTable:
    """Score features without a head: each fold by a head fitted to the labels of the other folds."""
    count = check_folds(options.folds, len(features))
    broken = bad_rows(features)
    bad = [(ids[i], "the feature holds NaN or infinity") for i in broken.nonzero()[:, 0].tolist()]
    if len(bad) == len(ids):
        raise InputError("features hold NaN or infinity in every row.")
    good = (~broken).nonzero()[:, 0]
    y, selected = labels[good].cpu().numpy(), np.asarray(ids, dtype=object)[good.cpu().numpy()]
    parts, facts = _refit(features[good].float(), y, selected, name, class_names, int(y.max()) + 1, options)
    parts.append((parts[0][0], SampleTable(parts[0][1].to_arrow()[:0], None, bad_table(bad))))
    facts |= {"out_of_sample": _division(options, count) | {"retrained": "head"}, "bias": options.use_bias}
    facts["model"] = {"name": name, **facts["model"]}
    facts["data"] = {"origin": f"{len(features):,} features of width {features.shape[1]}"}
    return combine(None, facts | {"scores": list(options.scores or ())}, parts, ids, options)


def _refit(
    features: Tensor,
    labels: np.ndarray,
    ids: np.ndarray,
    name: str,
    class_names: Sequence[str] | None,
    count: int,
    options: ScoreOptions,
) -> tuple[list[Part], dict[str, Any]]:
    """A table per fold, scored by a head fitted to the other folds, and the run's meta data about these heads.

    `count` is the number of classes in the labels' numbering.
    """
    # Classes without a sample have no direction, and would count in every sum of angles.
    present, labels = np.unique(labels, return_inverse=True)
    if len(present) < 2:
        raise InputError("folds needs two classes or more to tell apart, and all samples are of one.")
    targets, strengths = torch.from_numpy(labels), set()

    def score_fold(held_out: np.ndarray, _: int, seed: int) -> SampleTable:
        train = torch.from_numpy(~held_out).to(features.device)
        x, y = features[train], targets.to(features.device)[train]
        strength = choose_strength(x, y, len(present), seed, bias=options.use_bias)
        strengths.add(strength)
        weight, bias = fit_head(x, y, len(present), strength, bias=options.use_bias)
        keep = "direction" if options.vectors else None
        rows, bad, vectors = score_block(
            ids[held_out].tolist(), features[~train], weight, targets[held_out], bias, options.scores, keep
        )
        return SampleTable(rows, {"model": {"name": _seed_name(name, seed, options)}}, bad, vectors)

    folds = int(options.folds or 0)
    parts = _over_folds(score_fold, labels, folds, options)
    names, mapping = list(class_names or ()), np.full(max(count, int(present.max()) + 1, len(class_names or ())), -1)
    mapping[present] = np.arange(len(present))
    gaps = len(mapping) > len(present)
    if names or gaps:
        names = [names[k] if k < len(names) else str(k) for k in present.tolist()]
    return parts, {
        "model": {"classes": len(present), "head": f"refitted on {folds - 1} of {folds} folds"},
        "class_names": names,
        "label_mapping": mapping.tolist() if gaps else None,
        "strengths": sorted(strengths),
        "warnings": _rare_class_notes(labels, folds),
    }


def _score_trained(
    train: Callable[[TrainingData], Any], samples: Samples, options: ScoreOptions, division: dict[str, Any]
) -> SampleTable:
    """For each fold a network that the user's function trains on the other folds."""
    if options.engine != "local":
        raise InputError("engine: Ray scores an existing network; to train one per fold, use local processes.")
    name = train.name if isinstance(train, FileFunction) else getattr(train, "__name__", "train")
    network, labels = {"name": name, "function": full_name(train)}, all_labels(samples, "folds")
    plan = make_plan([], samples, options, train)
    plan |= {"model": network, "labels": content_hash(labels, samples.classes), "out_of_sample": division}
    with open_run(plan, options) as run:
        if run is not None and run.complete:
            return complete_table(run)
        metas: list[Meta] = []

        def score_fold(held_out: np.ndarray, fold: int, seed: int) -> SampleTable:
            place = stage_options(options, f"seed{seed}-fold{fold}").out
            if place is not None and (place / "meta.json").exists():
                table = SampleTable.load(place)
            else:
                data = TrainingData(samples, np.flatnonzero(~held_out), labels, fold, seed * division["folds"] + fold)
                with torch.random.fork_rng():
                    torch.manual_seed(data.seed)
                    model = returned_model(train(data), name)
                model = replace(model, name=_seed_name(model.name, seed, options))
                rest, here = View(samples, np.flatnonzero(held_out)), {"out": None, "shard": Shard(), "progress": False}
                table = score_network(model, rest, replace(options, **here), keep="cosines")
                if place is not None:  # whole or not at all: the rows of a fold belong to one training
                    table.save(place, overwrite=True)
            metas.append(table.meta)
            first, other = (
                (meta.model.classes, meta.label_mapping, meta.class_names) for meta in (metas[0], table.meta)
            )
            check_same_classes(first, other, f"the first fold and fold {fold + 1}")
            return table

        if run is not None and options.shard.world > 1:
            _over_folds(score_fold, labels, division["folds"], options, options.shard)
            if len([*(run.path / STAGES).glob("*/meta.json")]) < options.seeds * division["folds"]:
                return SampleTable.load(run.path, partial=True)  # other processes are still training
        with last_step(run) as mine:
            if run is not None and not mine:
                return SampleTable.load(run.path, partial=True)
            metas.clear()
            parts = _over_folds(score_fold, labels, division["folds"], options)
            first = metas[0]
            plan |= {key: getattr(first, key) for key in ("preprocessing", "class_names", "label_mapping")}
            name = str(first.model.name).removesuffix(f" seed {options.seed}")
            plan |= {
                "model": {**network, "name": name, "classes": first.model.classes, "head": first.model.head},
                "weights": "trained on the other folds",
                "warnings": _rare_class_notes(labels, division["folds"]),
            }
            return combine(run, plan, parts, samples.ids, options)


def _over_folds(
    score_fold: Callable[[np.ndarray, int, int], SampleTable],
    labels: np.ndarray,
    folds: int,
    options: ScoreOptions,
    shard: Shard = Shard(),  # noqa: B008 - it cannot be changed
) -> list[Part]:
    """A table for every fold of every seed, with the name of its network; with `shard`, only those of this process.
    `score_fold` takes the held-out samples, the fold and the seed."""
    from tqdm import tqdm

    divisions = range(options.seed, options.seed + options.seeds)
    share = [*product(divisions, range(folds))][shard.rank :: shard.world]
    parts, hidden = [], None if options.progress else True
    for seed, fold in tqdm(share, unit=" folds", desc="folds", disable=hidden):
        table = score_fold(assign_folds(labels, folds, seed) == fold, fold, seed)
        parts.append((str(table.meta.model.name), table.with_column("fold", np.full(len(table), fold))))
    return parts


def _seed_name(name: str, seed: int, options: ScoreOptions) -> str:
    return f"{name} seed {seed}" if options.seeds > 1 else name


def full_name(train: Callable[..., Any]) -> str:
    """Module and name of a training function."""
    inner = train.function if isinstance(train, FileFunction) else train.func if isinstance(train, partial) else train
    return f"{inner.__module__}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"


def _rare_class_notes(labels: np.ndarray, folds: int) -> list[str]:
    counts, notes = np.unique(labels, return_counts=True)[1], []
    if alone := int((counts < 2).sum()):
        notes.append(
            f"{alone:,} classes have a single sample, which is scored by a head that has never seen its class: its "
            "scores say nothing about its label."
        )
    if few := int(((counts >= 2) & (counts < folds)).sum()):
        notes.append(
            f"{few:,} {'class has' if few == 1 else 'classes have'} fewer samples than there are folds ({folds}): "
            "a model fitted to so few of them doubts their labels too easily."
        )
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=4)
    return notes


# ---------------------------------------------------------------------------------------------------------------------
# The head that is fitted: regularized multinomial logistic regression.

STRENGTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # of the penalty, to choose from
_SMALL = 1 << 24  # numbers up to which a second thread costs more than it saves on a busy machine


@contextmanager
def one_thread(small: bool = True) -> Iterator[None]:
    """One thread for small work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if small else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fit_head(
    features: Tensor, labels: Tensor, classes: int, strength: float, *, bias: bool = True, steps: int = 200
) -> tuple[Tensor, Tensor | None]:
    """Weight ``(C, D)`` and bias ``(C,)`` that minimize mean cross-entropy + strength/2 · ‖weight·scale‖².

    `scale` is the root mean square of the features' norms, so that one strength fits every network. Features are
    neither centered nor scaled by axis: that would rotate the weights, and with them every angle. It starts from zero:
    a head that has seen the labels would leak them.
    """
    scale = features.square().sum(1).mean().sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    x = features.float() / scale
    weight = torch.zeros(classes, x.shape[1], device=x.device, requires_grad=True)
    offset = torch.zeros(classes, device=x.device, requires_grad=bias)
    solver = torch.optim.LBFGS(
        [weight, offset] if bias else [weight],
        max_iter=steps,
        history_size=10,
        tolerance_grad=1e-6,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        solver.zero_grad()
        value = F.cross_entropy(x @ weight.T + offset, labels) + strength / 2 * weight.square().sum()
        value.backward()
        return value

    with one_thread(x.device.type == "cpu" and x.numel() <= _SMALL):
        solver.step(loss)  # pyrefly: ignore[bad-argument-type]
    return weight.detach() / scale, offset.detach() if bias else None


def choose_strength(
    features: Tensor, labels: Tensor, classes: int, seed: int, *, bias: bool = True, most: int = 20_000
) -> float:
    """The strength of `STRENGTHS` with the smallest cross-entropy on a fifth of these samples, held out for it."""
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))[:most].to(features.device)
    validation, used = order[: len(order) // 5], order[len(order) // 5 :]
    if not len(validation):
        return STRENGTHS[-2]
    losses = []
    for strength in STRENGTHS:
        weight, offset = fit_head(features[used], labels[used], classes, strength, bias=bias)
        logits = features[validation].float() @ weight.T
        losses.append(float(F.cross_entropy(logits if offset is None else logits + offset, labels[validation])))
    return STRENGTHS[losses.index(min(losses))]
