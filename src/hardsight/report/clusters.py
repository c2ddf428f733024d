"""Hidden clusters that are harder than the rest of their class: found on one half, measured on the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardsight.report.formatting import counted, number, score_title
from hardsight.report.rows import Rows
from hardsight.report.sections import Section
from hardsight.report.vectors import directions, having, sample_of
from hardsight.stats import FEW, Difference, holm, mean_interval, welch_difference

MOST_ROWS, MOST_CLASSES = 200_000, 300
LEAST = 40  # samples of a class that is looked at: twenty to find its clusters, twenty to measure them
MOST_SHOWN, EXAMPLES = 24, 8
_PICTURED = 4  # examples, those with pictures first
_SEED = 20260802


class Cluster(NamedTuple):
    """A part of a class, measured on samples that did not shape it: rows, the most typical first, and the gap to it."""

    code: int
    members: np.ndarray
    gap: Difference


def build(rows: Rows) -> Section | None:
    """The clusters, where there are some."""
    clusters, note = harder_clusters(rows)
    if not clusters:
        return None
    lines = []
    for code, members, gap in clusters:
        wrong = rows.pred[members][rows.judged[members] & ~rows.right[members]]
        values = rows.value[members]
        lines.append({
            "class": rows.class_name(code), "n": len(members),
            "mean": [number(value) for value in (values.mean(), *mean_interval(values))],
            "difference": [number(float(value)) for value in gap[:3]], "p": number(float(gap.p)),
            "confused": rows.class_name(int(np.bincount(wrong).argmax())) if len(wrong) else "",
            "rows": members[:EXAMPLES],
        })  # fmt: skip
    examples, parts = ([cluster.members[:k] for cluster in clusters] for k in (_PICTURED, EXAMPLES))
    return Section("clusters", "Hidden clusters", note, data={"rows": lines}, examples=examples, parts=parts)


def harder_clusters(rows: Rows) -> tuple[list[Cluster], str]:
    """Clusters that are significantly harder than the rest of their class, the hardest first, and a note."""
    from threadpoolctl import threadpool_limits

    valid = having(rows, "sketch") & ~np.isnan(rows.value) & (rows.at >= 0)
    where, total = sample_of(valid, MOST_ROWS, _SEED), int(valid.sum())
    if not len(where):
        return [], ""
    group = rows.at[where]
    count = np.bincount(group, minlength=rows.codes)
    large = np.flatnonzero(count >= LEAST)
    large = large[np.argsort(-count[large], kind="stable")][:MOST_CLASSES]
    if not len(large):
        return [], ""
    tested: list[Cluster] = []
    units = directions(rows, where)
    by_class = np.split(np.argsort(group, kind="stable"), np.cumsum(count)[:-1])
    with threadpool_limits(1):  # a class is small: more threads would only wait for one another
        for code in large.tolist():
            tested += _clusters_of(rows, code, where[by_class[code]], units[by_class[code]])
    corrected = holm(np.array([cluster.gap.p for cluster in tested]))
    tested = [c._replace(gap=c.gap._replace(p=p)) for c, p in zip(tested, corrected, strict=True)]
    harder = [cluster for cluster in tested if cluster.gap.p <= 0.05 and rows.sign * cluster.gap.value > 0]
    harder.sort(key=lambda cluster: (-rows.sign * cluster.gap.value, cluster.code))
    more = f" The {MOST_SHOWN} hardest are shown." if len(harder) > MOST_SHOWN else ""
    more += f" Among {len(where):,} samples drawn at random from {total:,}." if total > len(where) else ""
    return harder[:MOST_SHOWN], (
        f"k-means of the features' directions within each of {counted(len(large), 'class', 'classes')}, fitted on half "
        f"of the samples; {score_title(rows.main)} of the other half against the rest of the class (Welch's test). "
        f"Harder at 5% after Holm's correction: {counted(len(harder), 'cluster')} of {len(tested):,}.{more}"
    )


def _clusters_of(rows: Rows, code: int, where: np.ndarray, directions: np.ndarray) -> list[Cluster]:
    """Clusters of one class with their measurements on the half that was not fitted."""
    from sklearn.cluster import KMeans, MiniBatchKMeans

    shuffled = np.random.default_rng(_SEED + 1 + code).permutation(len(where))
    fitted, measured = shuffled[: len(where) // 2], np.sort(shuffled[len(where) // 2 :])
    different = len(np.unique(directions[fitted[:1000]], axis=0))  # k-means warns of more centers than points
    k = min(max(int(np.sqrt(len(fitted)) / 3), 2), 8, different)
    if k < 2:
        return []
    kind = KMeans if len(fitted) <= 10_000 else MiniBatchKMeans
    model = kind(k, n_init=2, max_iter=50, random_state=_SEED).fit(directions[fitted])
    distance = model.transform(directions[measured])
    nearest, values, clusters = distance.argmin(1), rows.value[where[measured]], []
    for cluster in range(k):
        inside = nearest == cluster
        if FEW <= inside.sum() <= len(inside) - FEW:
            typical = np.argsort(distance[inside, cluster], kind="stable")
            gap = welch_difference(values[inside], values[~inside])
            clusters.append(Cluster(code, where[measured[inside][typical]], gap))
    return clusters
