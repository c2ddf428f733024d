"""What the dialog shows of a sample beside its scores."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from report_pages import HOSTILE, card_rows

import hardsight as hs
from hardsight.report import neighbors
from hardsight.report.rows import Rows
from hardsight.report.write import make_payload

LOOKS = [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"viewport": {"width": 400, "height": 800}}]


def a_case(n=300, classes=8, width=12, seed=0, names=()):
    """Features, the logits of their head, and the page."""
    draw = torch.Generator().manual_seed(seed)
    weight, bias = torch.randn(classes, width, generator=draw), torch.randn(classes, generator=draw)
    labels = torch.randint(0, classes, (n,), generator=draw)
    features = weight[labels] + 1.5 * torch.randn(n, width, generator=draw)
    ids = [f"x:{i:04d}" for i in np.random.default_rng(1).permutation(n)]  # the page sorts by id
    table = hs.score_features(features, weight, labels, bias, ids)
    table.meta = replace(table.meta, class_names=list(names))
    order = np.argsort(ids)
    return features[order], (features @ weight.T + bias)[order], make_payload(Rows(table))


@pytest.mark.parametrize("classes", [3, 8])
def test_the_most_probable_classes_are_those_of_softmax(classes):
    _, logits, payload = a_case(classes=classes)
    width = min(classes, 5)
    expected = logits.double().softmax(1).topk(width)
    probable = payload["points"]["probable"]
    assert probable["width"] == width
    assert probable["codes"] == expected.indices.ravel().tolist()
    np.testing.assert_allclose(probable["thousandths"], 1000 * expected.values.ravel().numpy(), atol=0.51)


def test_without_probabilities_nothing_is_shown():
    assert "probable" not in a_case(classes=101, n=200)[2]["points"]


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS)
def test_bars_are_as_long_as_the_probabilities(show, look):
    names = [name.encode("utf-8", "replace").decode() for name in HOSTILE[:8]]
    _, logits, payload = a_case(names=names)
    page = show(payload, **look)
    first = card_rows(page)[0]
    page.get_by_test_id("card").first.click()
    rows = page.get_by_test_id("probable").locator("tbody tr")
    expected = logits[first].double().softmax(0).topk(5)
    tracks = [row.locator(".track").bounding_box()["width"] for row in rows.all()]
    bars = [row.locator(".share").bounding_box()["width"] for row in rows.all()]
    np.testing.assert_allclose(np.array(bars) / tracks, expected.values, atol=0.02)
    assert rows.first.locator("td").last.inner_text() == f"{100 * float(expected.values[0]):.1f}%"
    assert page.evaluate("window.pwned") is None
    label = payload["points"]["label"][first]
    marked = [k for k, row in enumerate(rows.all()) if row.locator(".share.label").count()]
    assert marked == [k for k, code in enumerate(expected.indices.tolist()) if code == label]
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= look.get("viewport", {}).get("width", 1200)


def cosine_distances(features):
    """Between the directions of features, by their definition; a sample is no neighbor of itself."""
    units = (features / features.norm(dim=1, keepdim=True)).half().double().numpy()
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    distances = np.linalg.norm(units[:, None] - units[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    return distances


def listed(payload, key):
    return next((part["rows"] for part in payload["lists"] if part["key"] == key), None)


def test_neighbors_and_outliers_are_those_of_all_distances():
    features, _, payload = a_case()
    distances = cosine_distances(features)
    near = payload["points"]["neighbors"]
    places = np.array(near["places"]).reshape(-1, near["k"])
    expected = np.sort(distances, axis=1)[:, :5]
    np.testing.assert_allclose(np.take_along_axis(distances, places, axis=1), expected, atol=1e-5)
    assert (places != np.arange(len(places))[:, None]).all()
    np.testing.assert_allclose(payload["points"]["scores"]["isolation"], expected[:, 4], rtol=1e-3)
    np.testing.assert_allclose(expected[listed(payload, "outliers"), 4], np.sort(expected[:, 4])[::-1][:48], atol=1e-5)
    assert listed(payload, "duplicates") is None


def test_of_many_rows_some_are_compared_and_the_page_says_how_many(monkeypatch):
    monkeypatch.setattr(neighbors, "MOST_ROWS", 100)
    _, _, payload = a_case()
    assert sum(value is not None for value in payload["points"]["scores"]["isolation"]) == 100
    assert "100 samples" in next(part["note"] for part in payload["lists"] if part["key"] == "outliers")


def test_near_duplicates_stand_side_by_side_with_different_labels_first():
    draw = torch.Generator().manual_seed(0)
    weight, labels = torch.randn(4, 12, generator=draw), torch.randint(0, 4, (200,), generator=draw)
    features = torch.randn(200, 12, generator=draw)
    labels[[3, 50, 7, 90, 120]] = torch.tensor([1, 1, 0, 2, 0])
    features[50] = 2 * features[3]  # the same direction and label
    features[90] = features[7] * 1.001 + 1e-3  # almost the same, and another label
    features[120] = features[7]
    ids = [f"x:{i:04d}" for i in range(200)]
    payload = make_payload(Rows(hs.score_features(features, weight, labels, None, ids)))
    assert listed(payload, "duplicates") == [7, 90, 120, 3, 50]


def test_without_sketches_or_with_few_samples_there_are_no_neighbors():
    few = a_case(n=5)[2]
    assert "neighbors" not in few["points"]
    assert listed(few, "outliers") is None


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS)
def test_a_neighbor_opens_and_previous_leads_back(show, look):
    names = [name.encode("utf-8", "replace").decode() for name in HOSTILE[:8]]
    _, _, payload = a_case(names=names)
    page = show(payload, **look)
    page.get_by_test_id("tab-outliers").click()
    first = card_rows(page)[0]
    page.get_by_test_id("card").first.click()
    near = payload["points"]["neighbors"]["places"][5 * first : 5 * first + 5]
    assert page.get_by_test_id("neighbors").get_by_role("button").count() == 5
    page.get_by_test_id("neighbors").get_by_role("button").first.click()
    assert page.get_by_test_id("dialog-id").inner_text() == payload["points"]["id"][near[0]]
    page.get_by_test_id("previous").click()
    assert page.get_by_test_id("dialog-id").inner_text() == payload["points"]["id"][first]
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= look.get("viewport", {}).get("width", 1200)
