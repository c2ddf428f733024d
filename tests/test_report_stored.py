"""The page of a run that stays on disk is that of the same run in memory, and takes a few arrays."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from report_runs import in_page
from scipy import stats as scipy_stats
from torch import nn
from torch.utils.data import TensorDataset

import hardsight as hs
from hardsight import SampleTable, storedrows
from hardsight.report import (
    clusters,
    confusions,
    embedding,
    groups,
    label_errors,
    neighbors,
    sections,
    thumbnails,
    write_report,
)
from hardsight.report import rows as rows_module
from hardsight.report.rows import Rows, counts, joint_counts
from hardsight.report.thumbnails import choose_points, spread
from hardsight.report.vectors import direction_blocks, directions, having, sample_of
from hardsight.storedrows import StoredRows

N, CLASSES = 900, 4


def ids_in_order(n):
    return [f"img/{i:05d}" for i in range(n)]


def ids_in_no_order(n):
    return [f"b{(i * 97) % n}" for i in range(n)]  # neither as numbers nor as texts


def a_run(folder, ids, labels="all", vectors=True):
    """Scores of random features in many units; some samples are bad."""
    torch.manual_seed(0)
    features, label = torch.randn(N, 12), torch.arange(N) % CLASSES
    features += 2 * torch.nn.functional.one_hot(label, 12)
    features[::29] = torch.nan
    data = TensorDataset(features) if labels == "none" else (features, label)
    options = {"batch_size": 64, "progress": False, "version": "1", "vectors": vectors}
    model = nn.Linear(12, CLASSES)
    nn.init.eye_(model.weight)  # which is right more often than not, so that there are suspects
    hs.score(model, data, ids=ids, out=folder / "run", **options)
    for file in (folder / "run" / "samples").glob("*.parquet") if labels == "some" else ():
        rows, before = pq.read_table(file), file.stat().st_size
        labels_left = [None if place % 7 == 0 else label for place, label in enumerate(rows["label"].to_pylist())]
        pq.write_table(rows.set_column(1, "label", pa.array(labels_left, pa.int64())), file)
        marker = folder / "run" / "parts" / f"{file.name.split('-')[0]}.json"  # which names the size of the file
        marker.write_text(marker.read_text().replace(f'"bytes": {before}', f'"bytes": {file.stat().st_size}'))
    return folder / "run"


CASES = {
    "in order": (ids_in_order, "all", True),
    "in no order": (ids_in_no_order, "all", True),
    "labels missing": (ids_in_no_order, "some", True),
    "no labels": (ids_in_no_order, "none", True),
    "no vectors": (ids_in_no_order, "all", False),
}


@pytest.fixture(scope="module", params=CASES)
def run(request, tmp_path_factory):
    ids, *options = CASES[request.param]
    return a_run(tmp_path_factory.mktemp("run"), ids(N), *options)


@pytest.fixture
def small_steps(monkeypatch):
    """Blocks of few rows, no room for arrays that may be needed again, and more rows than are drawn or compared."""
    for module in (rows_module, sections, confusions, thumbnails, groups):
        monkeypatch.setattr(module, "BLOCK", 64)
    monkeypatch.setattr(rows_module, "_KEPT", 0)
    monkeypatch.setattr(thumbnails, "MOST_POINTS", 500)
    monkeypatch.setattr(neighbors, "MOST_ROWS", 400)
    monkeypatch.setattr(clusters, "MOST_ROWS", 500)
    monkeypatch.setattr(embedding, "_BLOCK", 50)


def both_pages(run, tmp_path, monkeypatch, **options):
    """The payloads of the pages in memory and on disk."""
    pages = []
    for name, rows in (("memory", 10**12), ("disk", 0)):
        monkeypatch.setattr(storedrows, "EAGER_ROWS", rows)
        with monkeypatch.context() as patch:
            for method in ("to_table", "filter"):  # which read everything
                patch.setattr(StoredRows, method, lambda *_: pytest.fail("read as a whole"))
            pages.append(in_page(write_report(run, tmp_path / f"{name}.html", pictures=0, **options)))
    return pages


def test_the_page_is_the_same(run, tmp_path, monkeypatch):
    eager, lazy = both_pages(run, tmp_path, monkeypatch)
    assert lazy == eager
    assert len(eager["bad"]["tables"][0]["rows"]) == 32
    suspects = [each["rows"] for each in eager["lists"] if each["key"] == "suspects"]
    assert [len(rows) > 5 for rows in suspects] == [True] * eager["labeled"]


def test_the_page_is_the_same_in_small_steps(run, tmp_path, monkeypatch, small_steps):
    camera = {"id": [f"b{i}" for i in range(0, N, 2)], "camera": [f"c{i % 3}" for i in range(0, N, 2)]}
    eager, lazy = both_pages(run, tmp_path, monkeypatch, groups=camera)
    assert lazy == eager
    assert len(eager["points"]["id"]) == 500
    if "clusters" in eager:
        assert "500 samples drawn at random from " in eager["clusters"]["note"]


def test_columns_of_texts_and_numbers_are_groups(tmp_path, monkeypatch):
    """Whatever the order of the rows: the groups are taken to the rows of the page."""
    draw = np.random.default_rng(0)
    columns = {
        "id": ids_in_no_order(N), "label": draw.integers(0, 3, N), "pred": draw.integers(0, 3, N),
        "avh": draw.random(N), "camera": [f"c{i % 4}" for i in range(N)], "site": draw.integers(0, 5, N),
        "path": ids_in_order(N),
    }  # fmt: skip
    SampleTable.from_columns(columns, {"model": {"classes": 3}}).save(tmp_path / "run")
    eager, lazy = both_pages(tmp_path / "run", tmp_path, monkeypatch)
    assert lazy == eager
    monkeypatch.setattr(groups, "BLOCK", 100)
    assert both_pages(tmp_path / "run", tmp_path, monkeypatch)[1] == eager
    assert lazy["groups"]["values"].keys() == {"camera", "site"}
    camera = dict(zip(columns["id"], columns["camera"], strict=True))
    codes = lazy["points"]["groups"]["camera"]
    shown = [lazy["groups"]["values"]["camera"][code] for code in codes]
    assert shown == [camera[id_] for id_ in lazy["points"]["id"]]


def test_the_page_of_some_rows_of_a_large_run(tmp_path, monkeypatch):
    """Rows of a table on disk that were selected or sorted are another order of the same files."""
    run = a_run(tmp_path, ids_in_no_order(N))
    order = np.random.default_rng(1).permutation(868)[:700]
    pages = []
    for name, most in (("memory", 10**12), ("disk", 0)):
        monkeypatch.setattr(storedrows, "EAGER_ROWS", most)
        monkeypatch.setattr(storedrows, "_FEW", 0)
        pages.append(in_page(write_report(SampleTable.load(run)[order], tmp_path / f"{name}.html", pictures=0)))
    assert pages[0] == pages[1]
    assert pages[0]["n"] == 700


def test_rows_and_their_vectors_belong_together(tmp_path, monkeypatch):
    run = a_run(tmp_path, ids_in_no_order(N))
    monkeypatch.setattr(storedrows, "EAGER_ROWS", 0)
    rows, table = Rows(SampleTable.load(run)), SampleTable.load(run)
    assert rows.order is not None
    by_id = dict(zip(table["id"], range(len(table)), strict=True))
    ids = rows.ids.to_pylist()
    assert ids == sorted(table["id"])
    at = np.array([by_id[id_] for id_ in ids])
    np.testing.assert_array_equal(rows.scores["avh"], CLASSES * table["avh"][at])
    np.testing.assert_array_equal(rows.label, table["label"][at])
    np.testing.assert_array_equal(rows.rows_of(at), np.arange(len(at)))
    some = np.array([700, 3, 3, 41])
    assert rows.ids_at(some) == [ids[place] for place in some]
    assert rows.places_of(pa.array(["unknown", ids[700], ids[3]])).tolist() == [-1, 700, 3]
    stored = dict(zip(table.vectors["id"].to_pylist(), table.vectors["sketch"].to_pylist(), strict=True))
    expected = np.array([stored[id_] for id_ in ids], dtype=np.float32)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(directions(rows, some), expected[some], rtol=1e-6)
    blocks = [*direction_blocks(rows, 100)]
    assert max(len(units) for _, units in blocks) <= 100
    places = np.concatenate([where for where, _ in blocks])
    np.testing.assert_array_equal(np.sort(places), np.arange(len(rows)))
    np.testing.assert_allclose(np.concatenate([units for _, units in blocks]), expected[places], rtol=1e-6)
    assert having(rows, "sketch").all()


def peak_of_a_report(folder, n, monkeypatch):
    """Bytes of arrays and texts that a report of `n` rows takes at most."""
    draw = np.random.default_rng(0)
    columns = {"id": ids_in_order(n), "label": draw.integers(0, 5, n), "pred": draw.integers(0, 5, n)}
    columns["pred"][::2] = columns["label"][::2]
    columns |= {name: draw.random(n) for name in ("avh", "confidence", "nll", "norm", "margin", "angle", "entropy")}
    SampleTable.from_columns(columns, {"model": {"classes": 5}}).save(folder / f"{n}")
    del columns
    monkeypatch.setattr(rows_module, "_KEPT", 20 * n)  # two arrays
    table = SampleTable.load(folder / f"{n}")
    tracemalloc.start()
    write_report(table, folder / f"{n}.html", pictures=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_report_takes_a_few_arrays(tmp_path, monkeypatch):
    """Bytes per further row: those of the arrays that are kept, of one sort, and no more."""
    monkeypatch.setattr(storedrows, "EAGER_ROWS", 0)
    for module in (rows_module, sections, confusions, thumbnails):
        monkeypatch.setattr(module, "BLOCK", 4096)
    monkeypatch.setattr("hardsight.stats._BLOCK", 4096)
    monkeypatch.setattr(thumbnails, "MOST_POINTS", 500)
    monkeypatch.setattr(label_errors, "find_suspects", lambda rows: "")
    few, many = (peak_of_a_report(tmp_path, n, monkeypatch) for n in (50_000, 150_000))
    assert few < many
    assert (many - few) / 100_000 < 70


# Steps against the plain way.


@pytest.mark.parametrize("block", [1, 3, 7, 1 << 20])
def test_ranks_are_scipy_s(monkeypatch, block):
    monkeypatch.setattr("hardsight.stats._BLOCK", block)
    draw = np.random.default_rng(block)
    for values in (
        draw.integers(0, 6, 50).astype(float),
        draw.random(50),
        np.ones(20),
        np.empty(0),
        np.full(3, np.nan),
    ):
        values = values.copy()
        values[5:8] = np.nan
        expected = np.full(len(values), np.nan)
        valid = ~np.isnan(values)
        expected[valid] = scipy_stats.rankdata(values[valid])
        np.testing.assert_array_equal(hs.stats.mean_ranks(values), expected)


@pytest.mark.parametrize("block", [3, 1 << 20])
def test_counts_are_loops(monkeypatch, block):
    monkeypatch.setattr(rows_module, "BLOCK", block)
    draw = np.random.default_rng(0)
    a, b = draw.integers(-1, 100, 500).astype(np.int8), draw.integers(-1, 90, 500).astype(np.int8)
    assert counts(a, 101).tolist() == [int((a == k).sum()) for k in range(101)]
    table = joint_counts(a, b, (100, 90))
    assert table[7, 3] == sum((x, y) == (7, 3) for x, y in zip(a, b, strict=True))
    assert table.sum() == ((a >= 0) & (b >= 0)).sum()
    assert table.sum(1).tolist() == counts(a[b >= 0], 100).tolist()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("block", [10, 1 << 20])
def test_points_are_those_of_the_whole_order(monkeypatch, seed, block):
    """The rule, over all rows at once: every required one, then the first of each stratum before every second one."""
    monkeypatch.setattr(thumbnails, "BLOCK", block)
    monkeypatch.setattr(thumbnails, "MOST_POINTS", most := 60)
    draw = np.random.default_rng(seed)
    n = 500
    required = draw.integers(0, n, 9)
    cell, group = draw.geometric(0.2, n) - 2, draw.integers(-1, [1, 40][seed % 2], n).astype(np.int8)
    selected = np.zeros(n, dtype=bool)
    selected[required] = True
    order = np.random.default_rng(thumbnails._SEED).permutation(n)
    room = most - int(selected.sum())
    for strata, share in ((cell, 0.4), (group, 0.4), (np.zeros(n, int), 1.0)):
        free = order[~selected[order] & (strata[order] >= 0)]
        left = most - int(selected.sum())
        selected[free[spread(strata[free])[: min(left, int(share * room))]]] = True
    assert choose_points(n, required, cell, group).tolist() == np.flatnonzero(selected).tolist()


def test_a_sample_of_some_rows_is_drawn_among_them():
    valid = np.arange(100) % 3 == 0
    drawn = sample_of(valid, 10, 0)
    assert len(np.unique(drawn)) == 10
    assert valid[drawn].all()
    assert sample_of(valid, 34, 0).tolist() == np.flatnonzero(valid).tolist()
    assert (
        sample_of(np.ones(100, bool), 10, 0).tolist()
        == np.sort(np.random.default_rng(0).choice(100, 10, False)).tolist()
    )


def test_blocks_of_ids_do_not_depend_on_their_pieces():
    ids = pa.array([str(i) for i in range(23)])
    for size in (1, 5, 23, 100):
        for step in (1, 4, 23):
            pieces = [ids[start : start + step] for start in range(0, 23, step)]
            blocks = [block.to_pylist() for block in label_errors._blocks(pieces, size)]
            assert blocks == [ids[start : start + size].to_pylist() for start in range(0, 23, size)]


def test_decisions_of_a_run_keep_their_key(tmp_path):
    """A page that was written before finds its decisions again: the hash of the whole, where it is one block."""
    from hardsight.runs import content_hash

    table = SampleTable.from_columns({"id": ["b", "a"], "label": [0, 1], "pred": [1, 1], "avh": [0.2, 0.7]})
    lengths, value = np.ones(2, np.int32), 2 * np.array([0.7, 0.2])
    codes = np.array([1, 0]), np.array([1, 1])
    assert label_errors._key(Rows(table)) == content_hash(lengths, "ab", *codes, value, [])
