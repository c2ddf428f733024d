"""Runs whose rows stay on disk give what runs in memory give."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import hardsight as hs
from hardsight import SampleTable, storedrows
from hardsight.errors import StateError
from hardsight.runs import RunWriter, Units, units
from hardsight.runs.ids import repeated_ids
from hardsight.storedrows import StoredRows
from hardsight.tablefiles import read_table

N = 301


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of many units with bad samples, ids in no order, and a text column that some units lack."""
    path = tmp_path_factory.mktemp("stored") / "run"
    torch.manual_seed(0)
    features, labels = torch.randn(N, 12), torch.arange(N) % 5
    features[::29] = torch.nan  # the first of all samples, and two in one unit
    ids = [f"b{(i * 97) % N}" for i in range(N)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "_GROUP_ROWS", 3)  # rows lie in several groups of a file
        hs.score(nn.Linear(12, 5), (features, labels), ids=ids, out=path, batch_size=8, progress=False, version="1")
    for number, file in enumerate(sorted((path / "samples").glob("*.parquet"))):
        rows = pq.read_table(file)
        if number % 2:  # as a user's own column would come into some parts
            rows = rows.append_column("camera", pa.array([f"c{len(id_)}" for id_ in rows["id"].to_pylist()]))
            rewrite(path, file, rows)
    return path


def rewrite(path, file, rows):
    """Another content for a file of a run, with the size that the marker then has to name."""
    before = file.stat().st_size
    pq.write_table(rows, file)
    marker = path / "parts" / f"{file.name.split('-')[0]}.json"
    marker.write_text(marker.read_text().replace(f'"bytes": {before}', f'"bytes": {file.stat().st_size}'))


@pytest.fixture
def both(run, monkeypatch):
    """The table in memory, and the same on disk."""
    eager = SampleTable.load(run)
    monkeypatch.setattr(storedrows, "EAGER_ROWS", 0)
    lazy = SampleTable.load(run)
    assert isinstance(lazy._rows, StoredRows)
    assert not isinstance(eager._rows, StoredRows)
    return eager, lazy


def test_rows_are_the_same(both):
    eager, lazy = both
    assert lazy.columns == eager.columns
    assert lazy.to_arrow().equals(eager.to_arrow())
    assert lazy.to_pandas().equals(eager.to_pandas())
    assert lazy.bad.sort_by("id").equals(eager.bad.sort_by("id"))
    assert lazy.vectors.equals(eager.vectors)
    assert (len(lazy), lazy.accuracy, lazy.meta) == (len(eager), eager.accuracy, eager.meta)
    assert repr(lazy) == repr(eager)


@pytest.mark.parametrize("few", [0, 1 << 17])  # only places are kept of more than `few` rows
def test_operations_are_the_same(both, monkeypatch, few):
    eager, lazy = both
    monkeypatch.setattr(storedrows, "_FEW", few)
    extra = {"id": [f"b{i}" for i in range(0, N, 3)], "extra": np.arange(len(range(0, N, 3)))}
    draw = np.random.default_rng(0)
    shuffled = draw.permutation(len(eager))
    operations = {
        "hardest": lambda t: t.hardest(7),
        "easiest": lambda t: t.easiest(7, "norm", largest=True),
        "all of them": lambda t: t.hardest(10_000, "nll"),
        "filter": lambda t: t.filter(lambda rows: rows["label"] != rows["pred"]),
        "sort": lambda t: t.sort("norm", descending=True),
        "slice": lambda t: t[3:200:7],
        "places": lambda t: t[shuffled],
        "twice": lambda t: t[shuffled][shuffled][5:50],
        "repeats and none": lambda t: t.head(0),
        "join": lambda t: t.join(extra),
        "inner join": lambda t: t.join(extra, how="inner"),
        "column": lambda t: t.with_column("new", shuffled)[shuffled].hardest(5, "new", largest=True),
        "within class": lambda t: t.with_norm_within_class(),
    }
    for name, operation in operations.items():
        assert operation(lazy).to_arrow().equals(operation(eager).to_arrow()), name
    some = ["b7", "unknown", "b3", "b7"]
    assert lazy.aligned(some).equals(eager.aligned(some))
    assert lazy[shuffled].aligned(some).equals(eager.aligned(some))
    np.testing.assert_array_equal(lazy.rank("avh"), eager.rank("avh"))
    np.testing.assert_array_equal(lazy.quantiles("avh"), eager.quantiles("avh"))


def test_pieces_of_a_column_are_the_column(both):
    eager, lazy = both
    for name in eager.columns:
        assert pa.chunked_array(list(lazy.pieces(name))).combine_chunks().equals(eager.column(name).combine_chunks())


def test_a_column_is_read_alone_and_again_only_if_there_is_no_room(both, monkeypatch):
    lazy, read = both[1], []
    reader = storedrows._read_column
    monkeypatch.setattr(storedrows, "_read_column", lambda *args: read.append(args[1]) or reader(*args))
    first = lazy["avh"]
    assert {*read} == {"avh"}
    count = len(read)
    assert (lazy["avh"] == first).all()
    assert len(read) == count
    monkeypatch.setattr(storedrows, "_CACHE", 0)
    lazy["norm"], lazy["avh"]
    assert len(read) == 3 * count


def test_a_finished_run_says_so_if_it_changes(both, run, tmp_path, monkeypatch):
    monkeypatch.setattr(storedrows, "EAGER_ROWS", 0)
    shutil.copytree(run, copy := tmp_path / "run")
    lazy = SampleTable.load(copy)
    for file in (copy / "scores").glob("*"):
        file.unlink()
    with pytest.raises(StateError, match="overwritten"):
        lazy["avh"]


def flipped(file, chance):
    """One bit of the values in a Parquet file is another; its length stays."""
    content = bytearray(file.read_bytes())
    footer = int.from_bytes(content[-8:-4], "little") + 8
    content[chance.integers(4, len(content) - footer)] ^= 1 << chance.integers(8)
    file.write_bytes(content)


@pytest.mark.parametrize("most", [0, N], ids=["on disk", "in memory"])
@pytest.mark.parametrize("kind", ["samples", "scores", "vectors"])
def test_a_bit_that_flips_never_becomes_another_number(run, tmp_path, monkeypatch, kind, most):
    good, chance = SampleTable.load(run), np.random.default_rng(0)
    damaged = good.save(tmp_path / "run")
    file = next((damaged / kind).iterdir())
    content = file.read_bytes()
    monkeypatch.setattr(storedrows, "EAGER_ROWS", most)
    noticed = 0
    for _ in range(10):
        flipped(file, chance)
        try:
            table = SampleTable.load(damaged)
            assert table.to_arrow().equals(good.to_arrow())
            assert table.vectors.equals(good.vectors)
        except StateError:
            noticed += 1
        file.write_bytes(content)
    assert noticed > 5  # the others are in the head of a page, in numbers that no reader uses


@pytest.mark.parametrize("kind", ["samples", "scores", "vectors"])
def test_files_in_another_order_are_read_as_a_whole(run, tmp_path, monkeypatch, kind):
    shutil.copytree(run, copy := tmp_path / "run")
    expected = SampleTable.load(copy).to_arrow().sort_by("id")
    file = sorted((copy / kind).glob("*.parquet"))[3]
    rows = pq.read_table(file)
    rewrite(copy, file, rows.take(pa.array(np.arange(len(rows))[::-1])))
    monkeypatch.setattr(storedrows, "EAGER_ROWS", 0)
    table = SampleTable.load(copy)
    assert not isinstance(table._rows, StoredRows)
    assert table.to_arrow().sort_by("id").equals(expected)


def test_a_missing_part_and_a_repeated_id_are_damage(run, tmp_path, monkeypatch):
    monkeypatch.setattr(storedrows, "EAGER_ROWS", 0)
    shutil.copytree(run, lost := tmp_path / "lost")
    sorted((lost / "parts").glob("*.json"))[5].unlink()
    with pytest.raises(StateError, match="parts are missing"):
        SampleTable.load(lost)
    shutil.copytree(run, twice := tmp_path / "twice")
    for kind in ("samples", "scores", "vectors"):
        first, last = (sorted((twice / kind).glob("*.parquet"))[unit] for unit in (1, 7))
        rows = pq.read_table(last)
        ids = pq.read_table(first)["id"].to_pylist()[:1] + rows["id"].to_pylist()[1:]
        rewrite(twice, last, rows.set_column(rows.column_names.index("id"), "id", pa.array(ids)))
    with pytest.raises(StateError, match="1 ids repeat"):
        SampleTable.load(twice)


def test_of_several_networks_each_score_is_the_mean_as_in_memory(tmp_path, monkeypatch):
    torch.manual_seed(1)
    data = torch.randn(80, 6), torch.arange(80) % 3
    hs.score([nn.Linear(6, 3), nn.Linear(6, 3)], data, out=tmp_path / "run", progress=False, version="1")
    expected = SampleTable.load(tmp_path / "run")
    monkeypatch.setattr(storedrows, "EAGER_ROWS", 0)
    assert SampleTable.load(tmp_path / "run").to_arrow().equals(expected.to_arrow())
    model = expected.meta.models[1]
    assert (
        SampleTable.load(tmp_path / "run", model=model).to_arrow().equals(read_table(tmp_path / "run", model, False)[0])
    )


def test_an_unfinished_run_is_read_as_far_as_it_is(tmp_path, monkeypatch):
    units = Units(20, 10)
    with RunWriter(tmp_path / "run", {"a": 1}, units=units) as writer:
        rows = pa.table({"id": [str(i) for i in range(10)], "label": [0] * 10, "error": pa.nulls(10, pa.string())})
        scores = pa.table({"id": rows["id"], "model": ["m"] * 10, "pred": [0] * 10, "avh": np.arange(10.0)})
        writer.write({"samples": rows, "scores": scores}, 1)
    monkeypatch.setattr(storedrows, "EAGER_ROWS", 0)
    table = SampleTable.load(tmp_path / "run", partial=True)
    assert table.meta.unfinished
    assert isinstance(table._rows, StoredRows)
    assert table["avh"].tolist() == list(range(10))


def test_large_frames_are_announced(both, monkeypatch):
    monkeypatch.setattr("hardsight.table._LARGE", 1)
    with pytest.warns(UserWarning, match=r"rows .* GB"):
        both[1].to_pandas()
    assert both[1].to_pandas(["id", "avh"]).columns.tolist() == ["id", "avh"]  # says nothing


def test_repeated_ids_are_counted_exactly():
    draw = np.random.default_rng(0)
    letters = list("ab\0é")
    for _ in range(50):
        texts = ["".join(draw.choice(letters, draw.integers(0, 4))) for _ in range(draw.integers(1, 60))]
        cut = draw.integers(0, len(texts) + 1)
        pieces = [pa.array(texts[:cut], pa.string()), pa.array(texts, pa.string()).slice(cut)]
        count, first = repeated_ids(lambda pieces=pieces: pieces)
        assert count == len(texts) - len(set(texts))
        assert first is None or texts.count(first) > 1
    long = ["x" * 5000 + "ab", "x" * 5000 + "ba", "x" * 904 + "ab" + "x" * 4096, "x" * 904 + "ba" + "x" * 4096]
    assert repeated_ids(lambda: [pa.array(long), pa.array(long[:1])]) == (1, long[0])
