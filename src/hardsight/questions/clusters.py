"""Are features of one class close together? Clusters against classes, silhouettes in angle, and layouts to draw.

AMC-Loss reports homogeneity, completeness and V-measure of the *predictions*, which say nothing about features. Both
are here: ``kmeans`` of the features' directions, and ``predictions``.
"""

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple

import numpy as np
import torch

from hardsight.angles import angle_matrix, unit
from hardsight.errors import InputError
from hardsight.questions.answers import Answer
from hardsight.questions.subject import QUESTIONS, Metric, Subject

# Samples in the silhouette, samples in the layout, and the most numbers per sample in the layout.
_ANGLES, _DRAWN, _WIDTH = 2000, 1000, 30
# Beyond this many samples, k-means works on a part of them at a time.
_AT_ONCE = 10_000


class ClusterMetrics(NamedTuple):
    """How well clusters agree with classes, each in [0, 1]."""

    homogeneity: float
    completeness: float
    v_measure: float
    nmi: float


def cluster_metrics(labels: np.ndarray, assignments: np.ndarray) -> ClusterMetrics:
    """Homogeneity, completeness, V-measure and normalized mutual information of clusters ``(N,)`` against classes.

    NMI is normalized by the mean of the two entropies, and therefore equals the V-measure; both names are in use.

    Examples:
        >>> cluster_metrics(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 2])).completeness
        0.66...
    """
    from sklearn.metrics import homogeneity_completeness_v_measure, normalized_mutual_info_score

    if np.shape(labels) != np.shape(assignments) or np.ndim(labels) != 1 or not len(labels):
        raise InputError(
            f"labels and assignments must be one number per sample, got {np.shape(labels)} and {np.shape(assignments)}."
        )
    parts = homogeneity_completeness_v_measure(labels, assignments)
    return ClusterMetrics(*(float(x) for x in (*parts, normalized_mutual_info_score(labels, assignments))))


def angular_silhouette(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Silhouette of each sample by angle: near 1 deep inside its class, below 0 if closer to another.

    Every sample is compared with every other: give it a few thousand features ``(N, D)``.

    Examples:
        >>> angular_silhouette(np.array([[1.0, 0], [2.0, 0], [0, 1.0], [0, 3.0]]), np.array([0, 0, 1, 1])).tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    from sklearn.metrics import silhouette_samples

    if not 2 <= (classes := len(np.unique(labels))) < len(labels):
        raise InputError(
            f"labels must have at least two classes and fewer classes than samples, got {classes} of {len(labels)}."
        )
    directions = torch.from_numpy(np.asarray(features, np.float64))
    angles = angle_matrix(directions, directions).numpy()
    np.fill_diagonal(angles, 0.0)  # arccos is good to half the digits there
    return silhouette_samples(angles, labels, metric="precomputed")


def angular_kmeans(features: np.ndarray, k: int, seed: int = 0) -> np.ndarray:
    """Clusters ``(N,)`` of the features' directions; the same whatever the number of cores.

    Examples:
        >>> clusters = angular_kmeans(np.array([[1.0, 0], [9.0, 0.1], [0, 1.0]]), 2)
        >>> bool(clusters[0] == clusters[1] != clusters[2])
        True
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    directions = _unit(features)[0]
    kind = KMeans if len(directions) <= _AT_ONCE else MiniBatchKMeans
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # collapsed features have fewer directions than clusters
        return kind(min(k, len(directions)), n_init=4, random_state=seed).fit_predict(directions)


_TOGETHER = "{group} clusters the samples of a class {how} than {baseline}", "better", "less well"


@QUESTIONS.register(
    "clusters",
    title="Clusters",
    about="Are the features of a class close together, and far from those of other classes?",
    telling=(("v_measure", "kmeans"), ("silhouette", "")),
    headline=(("v_measure", "kmeans"),),
    metrics={
        "homogeneity": Metric(meaning=_TOGETHER),
        "completeness": Metric(meaning=_TOGETHER),
        "v_measure": Metric("V-measure", "", _TOGETHER),
        "nmi": Metric("normalized mutual information", "", _TOGETHER),
        "silhouette": Metric("silhouette in angle", "", _TOGETHER),
    },
)
def ask(subject: Subject, *, seed: int = 0) -> Answer:
    """How well k-means of the features, and the predictions, agree with the labels; silhouettes by angle.

    The seed is for k-means, and for drawing samples if all would take too long. The column ``features`` ``(N, K)`` is
    for `layout`: the features, or, if these are wide, K ≤ 30 numbers with their norms and nearly their angles.
    """
    predictions, labels, answer = subject.predictions, np.asarray(subject.labels), Answer(question="clusters")
    features, classes = predictions.features, len(np.unique(labels))
    if classes < 2 or classes >= len(labels):
        reason = "all samples are of one class" if classes < 2 else "every class has one sample"
        answer.note("no clusters", f"Clusters cannot be compared with classes: {reason}.")
        return answer
    divisions = {
        "kmeans": angular_kmeans(features, classes, seed),
        "predictions": predictions.probabilities.argmax(1),
    }
    for score, assignments in divisions.items():
        for name, value in cluster_metrics(labels, assignments)._asdict().items():
            answer.number(name, value, score=score, n=len(labels), better="higher")
    drawn = np.random.default_rng(seed).permutation(len(labels))[:_ANGLES]
    if 2 <= len(np.unique(labels[drawn])) < len(drawn):
        silhouette = angular_silhouette(features[drawn], labels[drawn])
        answer.mean("silhouette", silhouette, better="higher", rows=drawn, count=len(labels))
        if len(drawn) < len(labels):
            text = f"The silhouette is that of {len(drawn):,} samples among one another, drawn at random."
            answer.note("silhouette", text)
    if (empty := int((predictions.norms == 0).sum())) > 0:
        text = f"{empty:,} features are zero and have no direction: k-means sees them at the origin."
        answer.note("zero features", text)
    drawn = drawn[:_DRAWN]
    if features.shape[1] in (2, 3) or len(drawn) >= 5:
        narrowed = _narrowed(features[drawn], seed)
        answer.samples["features"] = np.full((len(labels), narrowed.shape[1]), np.nan, narrowed.dtype)
        answer.samples["features"][drawn] = narrowed
    return answer


def layout(features: np.ndarray, how: Literal["tsne", "sphere", "plane"] = "tsne", *, seed: int = 0) -> np.ndarray:
    """Coordinates ``(N, 2)`` or ``(N, 3)`` to draw features at.

    Args:
        features: ``(N, D)``; for t-SNE of 10,000 samples allow a minute.
        how: ``"tsne"`` of the features' directions; ``"sphere"``: directions of features of two or three numbers;
            ``"plane"``: features of two numbers as they are.
        seed: Seed of t-SNE.

    Examples:
        >>> layout(np.array([[0.0, 4.0]]), "sphere").tolist()
        [[0.0, 1.0]]
    """
    if np.ndim(features) != 2 or not np.isfinite(features).all():
        raise InputError(f"features must be finite numbers (N, D), got shape {np.shape(features)} or NaN in it.")
    n, width = np.shape(features)
    if how == "plane":
        if width != 2:
            raise InputError(f"how='plane' needs features of 2 numbers, got {width}; take 'tsne'.")
        return np.asarray(features)
    directions = _unit(features)[0]
    if how == "sphere":
        if width not in (2, 3):
            raise InputError(f"how='sphere' needs features of 2 or 3 numbers, got {width}; take 'tsne'.")
        return directions
    if n < 5:
        raise InputError(f"features must be of at least 5 samples for a layout, got {n}.")
    if how != "tsne":
        raise InputError(f"how must be 'tsne', 'sphere' or 'plane', got {how!r}.")
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        start = "pca" if directions.std() > 0 else "random"
        return TSNE(perplexity=min(30.0, (n - 1) / 3), init=start, random_state=seed).fit_transform(directions)


def _unit(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    directions, lengths = unit(torch.from_numpy(np.array(features, np.float32)))
    return directions.numpy(), lengths.numpy().reshape(-1, 1)


def _narrowed(features: np.ndarray, seed: int) -> np.ndarray:
    """Vectors of a few numbers with the same lengths and, as nearly as possible, the same angles between them."""
    if features.shape[1] <= _WIDTH:
        return features
    directions, lengths = _unit(features)
    from sklearn.utils.extmath import randomized_svd
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        axes, sizes, _ = randomized_svd(directions, _WIDTH, random_state=seed)
    return lengths * _unit(axes * sizes)[0]
