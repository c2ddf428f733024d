"""The map of the features: scikit-learn's components, and a brush over it."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from report_pages import HOSTILE, settle, status
from sklearn.decomposition import PCA
from test_report_details import LOOKS, a_case

from hardsight.report import embedding


def stored(features):
    """Directions as the run stores them, in half precision."""
    units = torch.nn.functional.normalize(features, dim=1).half().float()
    return torch.nn.functional.normalize(units, dim=1).numpy()


def on_map(payload, key="pca"):
    return np.array([payload["points"]["scores"][f"{key}_{end}"] for end in "xy"]).T


@pytest.mark.parametrize("block", [7, 100_000])
def test_the_map_is_scikit_learn_s_pca(monkeypatch, block):
    monkeypatch.setattr(embedding, "_BLOCK", block)
    features, _, payload = a_case()
    pca = PCA(2).fit(stored(features))
    expected, places = pca.transform(stored(features)), on_map(payload)
    np.testing.assert_allclose(np.abs(places), np.abs(expected), atol=2e-3)
    assert np.abs(np.corrcoef(places.T, expected.T)[[0, 1], [2, 3]]).min() > 0.9999  # the same sign for all samples
    view = next(view for view in payload["views"] if view["key"] == "map-pca")
    assert f"{100 * pca.explained_variance_ratio_[0]:.1f}%" in view["x"]["title"]
    assert sum(view["density"]["counts"]) == 300


def test_umap_is_used_where_it_is_installed(monkeypatch):
    class UMAP:
        def __init__(self, n_neighbors, random_state):
            assert n_neighbors == 15

        def fit_transform(self, units):
            return 10 * units[:, :2]

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=UMAP, __spec__=SimpleNamespace()))
    features, _, payload = a_case()
    np.testing.assert_allclose(on_map(payload, "umap"), 10 * stored(features)[:, :2], rtol=2e-3, atol=1e-3)
    monkeypatch.setattr(embedding, "MOST_UMAP", 299)
    assert [view["key"] for view in a_case()[2]["views"] if "map" in view["key"]] == ["map-pca"]


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS)
def test_the_map_is_brushed(show, look):
    names = [name.encode("utf-8", "replace").decode() for name in HOSTILE[:8]]
    _, _, payload = a_case(names=names)
    page = show(payload, **look)
    page.get_by_test_id("view").select_option(label="Map of the features (PCA)")
    page.get_by_test_id("brush-x0").fill("0.1")
    page.get_by_test_id("brush-y1").fill("0.2")
    settle(page)
    x, y = on_map(payload).T
    assert status(page).startswith(f"0 of {((x >= 0.1) & (y <= 0.2)).sum()} brushed")
    page.get_by_test_id("card").first.click()
    assert "component" not in page.get_by_test_id("dialog").inner_text()
    assert page.evaluate("window.pwned") is None
