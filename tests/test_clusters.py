"""Clusters against classes: scikit-learn, naive loops and features made on purpose."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_predictions import answer_to
from sklearn import metrics

from hardsight.predictions import Predictions
from hardsight.questions.clusters import angular_kmeans, angular_silhouette, cluster_metrics, layout

codes = st.lists(st.integers(0, 3), min_size=2, max_size=12)


class TestMetrics:
    @settings(max_examples=30)
    @given(codes, st.randoms())
    def test_they_are_scikit_learns(self, labels, random):
        labels = np.array(labels)
        found = np.array([random.randrange(3) for _ in labels])
        ours = cluster_metrics(labels, found)
        assert ours.homogeneity == pytest.approx(metrics.homogeneity_score(labels, found))
        assert ours.completeness == pytest.approx(metrics.completeness_score(labels, found))
        assert ours.v_measure == pytest.approx(metrics.v_measure_score(labels, found))
        assert ours.nmi == pytest.approx(ours.v_measure)

    def test_a_case_worked_by_hand(self):
        """Four samples, classes aabb, clusters xxxy: mutual information .2158, entropies .6931 and .5623 nats."""
        found = cluster_metrics(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]))
        information = math.log(2) - 0.75 * (2 / 3 * math.log(3 / 2) + 1 / 3 * math.log(3))
        assert found.homogeneity == pytest.approx(information / math.log(2))
        assert found.completeness == pytest.approx(information / (0.75 * math.log(4 / 3) + 0.25 * math.log(4)))


class TestSilhouette:
    def test_it_is_that_of_a_naive_loop_over_angles(self):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(12, 4)), np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3])
        angle = [[math.acos(np.clip(a @ b / np.linalg.norm(a) / np.linalg.norm(b), -1, 1)) for b in x] for a in x]
        expected = []
        for i in range(12):
            apart = {k: [angle[i][j] for j in range(12) if y[j] == k and j != i] for k in range(4)}
            own = apart.pop(y[i])
            other = min(map(np.mean, apart.values()))
            expected.append((other - np.mean(own)) / max(other, np.mean(own)) if own else 0.0)
        np.testing.assert_allclose(angular_silhouette(x, y), expected, atol=1e-6)

    def test_it_is_scikit_learns_of_the_angles(self):
        x, y = np.random.default_rng(1).normal(size=(40, 5)).astype(np.float32), np.arange(40) % 3
        unit = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float64)
        angle = np.arccos(np.clip(unit @ unit.T, -1, 1))
        np.fill_diagonal(angle, 0)
        expected = metrics.silhouette_samples(angle, y, metric="precomputed")
        np.testing.assert_allclose(angular_silhouette(x, y), expected, atol=1e-5)

    def test_norms_do_not_matter(self):
        x, y = np.random.default_rng(2).normal(size=(30, 5)), np.arange(30) % 3
        scale = np.exp(np.random.default_rng(3).normal(size=(30, 1)) * 10)
        np.testing.assert_allclose(angular_silhouette(x * scale, y), angular_silhouette(x, y), atol=1e-6)

    @pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
    def test_one_class_or_one_sample_each(self, labels):
        with pytest.raises(ValueError, match=r"labels .*two classes"):
            angular_silhouette(np.eye(3), np.array(labels))


def told(features, labels, classes=3, right=1.0):
    """Predictions with these features, right for a share of the samples."""
    n = len(features)
    said = np.where(np.arange(n) < right * n, labels, (labels + 1) % classes)
    probabilities = np.eye(classes, dtype=np.float32)[said]
    weight = np.ones((classes, features.shape[1]), np.float32)
    norms = np.linalg.norm(features, axis=1)
    ids = [f"test:{i}" for i in range(n)]
    return Predictions(ids, np.arange(n), probabilities, probabilities, features, norms, weight, None)


def blobs(n=90, width=6, spread=0.1, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    features = np.eye(3, width)[labels] + spread * rng.normal(size=(n, width))
    return (features * rng.uniform(0.5, 50, (n, 1))).astype(np.float32), labels


class TestAnswer:
    def test_classes_that_lie_apart_are_found_whatever_their_norms(self):
        features, labels = blobs()
        found = {
            (row["metric"], row["score"]): row for row in answer_to("clusters", told(features, labels), labels).rows
        }
        assert found["v_measure", "kmeans"]["value"] == pytest.approx(1)
        assert found["silhouette", ""]["value"] > 0.7
        assert found["silhouette", ""]["low"] < found["silhouette", ""]["value"] < found["silhouette", ""]["high"]
        assert all(row["better"] == "higher" and row["n"] == 90 for row in found.values())
        assert metrics.adjusted_rand_score(labels, angular_kmeans(blobs(spread=0.05)[0], 3)) == 1

    def test_predictions_are_another_thing_than_features(self):
        """What AMC-Loss reports is a function of the confusion matrix: features without any order pass it."""
        features, labels = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32), np.arange(90) % 3
        answer = answer_to("clusters", told(features, labels), labels)
        found = {(row["metric"], row["score"]): row["value"] for row in answer.rows}
        assert found["v_measure", "predictions"] == pytest.approx(1)
        assert found["v_measure", "kmeans"] < 0.2
        assert abs(found["silhouette", ""]) < 0.1
        half = answer_to("clusters", told(features, labels, right=0.5), labels)
        values = {(row["metric"], row["score"]): row["value"] for row in half.rows}
        said = np.where(np.arange(90) < 45, labels, (labels + 1) % 3)
        assert values["nmi", "predictions"] == pytest.approx(metrics.normalized_mutual_info_score(labels, said))

    @pytest.mark.parametrize("width", [2, 3, 6, 200])
    def test_features_are_kept_with_their_lengths_and_angles(self, width):
        features, labels = blobs(width=width, spread=0.01)
        found = answer_to("clusters", told(features, labels), labels).samples
        assert set(found) == {"silhouette", "features"}
        assert found["features"].shape == (90, min(width, 30))
        lengths = np.linalg.norm(features, axis=1, keepdims=True)
        assert lengths.max() > 2 * lengths.min()
        np.testing.assert_allclose(np.linalg.norm(found["features"], axis=1, keepdims=True), lengths, rtol=1e-5)
        kept, unit = found["features"] / lengths, features / lengths
        np.testing.assert_allclose(kept @ kept.T, unit @ unit.T, atol=0.02)
        if width <= 6:
            np.testing.assert_array_equal(found["features"], features)

    def test_many_samples_are_looked_at_in_part_and_it_is_said(self, monkeypatch):
        monkeypatch.setattr("hardsight.questions.clusters._ANGLES", 40)
        monkeypatch.setattr("hardsight.questions.clusters._DRAWN", 20)
        monkeypatch.setattr("hardsight.questions.clusters._AT_ONCE", 50)
        features, labels = blobs()
        found = answer_to("clusters", told(features, labels), labels)
        assert np.isfinite(found.samples["silhouette"]).sum() == 40
        assert np.isfinite(found.samples["features"]).all(1).sum() == 20
        silhouette = next(row for row in found.rows if row["metric"] == "silhouette")
        assert silhouette["value"] == pytest.approx(np.nanmean(found.samples["silhouette"]))
        assert silhouette["n"] == 40
        assert "40 samples" in found.notes[0].text

    def test_the_same_every_time(self):
        features, labels = blobs(spread=0.6)
        one, two = (answer_to("clusters", told(features, labels), labels, seed=4) for _ in range(2))
        assert repr(one.rows) == repr(two.rows)
        for name in one.samples:
            np.testing.assert_array_equal(one.samples[name], two.samples[name])

    def test_a_single_class_is_a_sentence(self):
        features, labels = blobs()
        found = answer_to("clusters", told(features, labels), np.zeros(90, int))
        assert not found.rows
        assert [("one class" in note.text) for note in found.notes] == [True]
        few = answer_to("clusters", told(features[:3], labels[:3]), labels[:3])
        assert "one sample" in few.notes[0].text

    def test_collapsed_and_zero_features(self):
        same, labels = np.ones((30, 4), np.float32), np.arange(30) % 3
        found = {
            (row["metric"], row["score"]): row["value"]
            for row in answer_to("clusters", told(same, labels), labels).rows
        }
        assert found["homogeneity", "kmeans"] == pytest.approx(0, abs=1e-9)
        assert found["silhouette", ""] == pytest.approx(0, abs=1e-6)
        zero = answer_to("clusters", told(np.zeros((30, 4), np.float32), labels), labels)
        assert "30 features are zero" in zero.notes[0].text
        assert all(np.isfinite(row["value"]) for row in zero.rows)

    def test_shapes_that_differ(self):
        with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
            cluster_metrics(np.zeros(2), np.zeros(3))


class TestLayout:
    def test_tsne_keeps_neighbours_and_repeats(self):
        features, labels = blobs()
        places = layout(features)
        assert places.shape == (90, 2)
        assert metrics.silhouette_score(places, labels) > 0.5
        np.testing.assert_array_equal(places, layout(features))

    def test_the_sphere_is_the_features_directions(self):
        flat = layout(np.array([[3.0, 4.0], [0.0, 0.0], [-1e-20, 0]]), "sphere")
        np.testing.assert_allclose(flat, [[0.6, 0.8], [0, 0], [-1, 0]], atol=1e-6)

    @pytest.mark.parametrize(
        ("features", "how", "sentence"),
        [
            (np.ones((9, 4)), "sphere", "features .*got 4; .*'tsne'"),
            (np.ones((9, 4)), "pca", "how .*'pca'"),
            (np.ones((3, 4)), "tsne", "5 samples"),
            (np.full((9, 4), np.nan), "tsne", "features .*finite"),
            (np.ones(9), "tsne", r"features .*\(N, D\)"),
        ],
    )
    def test_what_cannot_be_laid_out(self, features, how, sentence):
        with pytest.raises(ValueError, match=sentence):
            layout(features, how)
