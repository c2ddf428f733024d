"""Hidden clusters that are harder than the rest of their class: found on one half, measured on the other."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.ensemble import matrix
from hardsight.report.formatting import counted, number, score_title
from hardsight.report.rows import Rows
from hardsight.report.sections import Inputs, Section
from hardsight.stats import FEW, holm, student

MOST_ROWS, MOST_CLASSES = 200_000, 300
LEAST = 40  # samples of a class that is looked at: twenty to find its clusters, twenty to measure them
MOST_SHOWN, EXAMPLES = 24, 8
_PICTURED = 4  # examples that have pictures first
_SEED = 20260802


class Cluster(NamedTuple):
    """A part of a class, measured on samples that did not shape it."""

    code: int
    members: np.ndarray  # rows of the measured half, the most typical first
    mean: float
    low: float
    high: float
    difference: float
    difference_low: float
    difference_high: float
    p: float


class Search(NamedTuple):
    """Harder clusters, the hardest first, and how they were looked for, or why they were not."""

    clusters: list[Cluster]
    note: str
    tested: bool


def build(inputs: Inputs) -> Section:
    """Clusters, or why there are none."""
    search = harder_clusters(inputs.rows)
    examples, parts = ([cluster.members[:k] for cluster in search.clusters] for k in (_PICTURED, EXAMPLES))
    note = search.note if search.clusters or not search.tested else f"{search.note} No cluster stands out."
    lines = [_line(inputs, cluster) for cluster in search.clusters]
    return Section("clusters", "Hidden clusters", {"note": note, "rows": lines}, examples=examples, parts=parts)


def harder_clusters(rows: Rows) -> Search:
    """k-means of the features' directions within each class; clusters significantly harder than the rest of it."""
    from threadpoolctl import threadpool_limits

    where, directions = _directions(rows)
    if directions is None:
        return Search([], "Hidden clusters need the sketches of the features, which this run does not keep.", False)
    group = rows.at[where]
    usable = np.bincount(group[group >= 0], minlength=rows.codes)
    large = np.flatnonzero(usable >= LEAST)
    large = large[np.argsort(-usable[large], kind="stable")][:MOST_CLASSES]
    if not len(large):
        return Search([], f"No class has the {LEAST} samples that it takes to look for hidden clusters.", False)
    tested: list[Cluster] = []
    order = np.argsort(group, kind="stable")
    starts, ends = (np.searchsorted(group[order], large, side=side) for side in ("left", "right"))
    with threadpool_limits(1):  # a class is small: more threads wait for one another
        for code, start, end in zip(large.tolist(), starts.tolist(), ends.tolist(), strict=True):
            members = order[start:end]
            tested += _clusters_of(rows, code, where[members], directions[members])
    corrected = holm(np.array([cluster.p for cluster in tested]))
    harder = [
        cluster._replace(p=float(p))
        for cluster, p in zip(tested, corrected, strict=True)
        if p <= 0.05 and rows.sign * cluster.difference > 0
    ]
    harder.sort(key=lambda cluster: (-rows.sign * cluster.difference, cluster.code))
    most = f" The {MOST_SHOWN} hardest are shown." if len(harder) > MOST_SHOWN else ""
    note = (
        f"k-means of the features' directions within each of {counted(len(large), 'class', 'classes')}, fitted on one "
        f"half of the samples and measured on the other; {score_title(rows.main)} against the rest of the class with "
        f"Welch's interval. {counted(len(harder), 'cluster')} of {len(tested):,} are harder at 5 % after Holm's "
        f"correction.{most}"
    )
    return Search(harder[:MOST_SHOWN], note, True)


def _directions(rows: Rows) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows that have a sketch and a hardness, at most `MOST_ROWS`, and their unit sketches."""
    none = np.empty(0, dtype=np.int64)
    vectors = rows.table.vectors
    if rows.main is None or vectors is None or "sketch" not in vectors.column_names:
        return none, None
    place = pc.index_in(rows.ids, value_set=vectors["id"].cast(pa.string()).combine_chunks())
    place = pc.fill_null(place, -1).to_numpy()
    where = np.flatnonzero((place >= 0) & ~np.isnan(rows.value) & (rows.at >= 0))
    generator = np.random.default_rng(_SEED)
    if len(where) > MOST_ROWS:
        where = np.sort(generator.choice(where, MOST_ROWS, replace=False))
    if not len(where) or vectors["sketch"].null_count:
        return none, None
    sketch = matrix(vectors, "sketch", place[where]).astype(np.float32)
    length = np.linalg.norm(sketch, axis=1, keepdims=True)
    return where, sketch / np.where(length > 0, length, 1.0)


def _clusters_of(rows: Rows, code: int, where: np.ndarray, directions: np.ndarray) -> list[Cluster]:
    """Clusters of one class with their measurements on the half that was not fitted."""
    from sklearn.cluster import KMeans, MiniBatchKMeans

    shuffled = np.random.default_rng(_SEED + 1 + code).permutation(len(where))
    fitted, measured = shuffled[: len(where) // 2], np.sort(shuffled[len(where) // 2 :])
    different = len(np.unique(directions[fitted[:1000]], axis=0))  # k-means warns of more centres than points
    k = min(max(int(np.sqrt(len(fitted)) / 3), 2), 8, different)
    if k < 2:
        return []
    kind = KMeans if len(fitted) <= 10_000 else MiniBatchKMeans
    model = kind(k, n_init=2, max_iter=50, random_state=_SEED).fit(directions[fitted])
    distance = model.transform(directions[measured])
    nearest, values = distance.argmin(1), rows.value[where[measured]]
    clusters = []
    for cluster in range(k):
        inside = nearest == cluster
        inner, rest = values[inside], values[~inside]
        if len(inner) < FEW or len(rest) < FEW:
            continue
        a, b = inner.var(ddof=1) / len(inner), rest.var(ddof=1) / len(rest)
        gap = student(inner.mean() - rest.mean(), a, len(inner) - 1, b, len(rest) - 1)
        mean = student(inner.mean(), a, len(inner) - 1)
        typical = np.argsort(distance[inside, cluster], kind="stable")
        members = where[measured[inside][typical]]
        ends = (mean.low, mean.high, gap.value, gap.low, gap.high, gap.p)
        clusters.append(Cluster(code, members, float(inner.mean()), *(float(end) for end in ends)))
    return clusters


def _line(inputs: Inputs, cluster: Cluster) -> dict[str, Any]:
    """One cluster for the page."""
    label, pred = inputs.rows.label[cluster.members], inputs.rows.pred[cluster.members]
    wrong = pred[(label >= 0) & (pred >= 0) & (label != pred)]
    numbers = {name: number(value) for name, value in cluster._asdict().items() if name not in ("code", "members")}
    return {
        "class": inputs.class_name(cluster.code),
        "n": len(cluster.members),
        **numbers,
        "confused": inputs.class_name(int(np.bincount(wrong).argmax())) if len(wrong) else "",
        "rows": cluster.members[:EXAMPLES],
    }
