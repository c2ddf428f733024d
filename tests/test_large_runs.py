"""Label errors and people's answers of runs whose rows stay on disk are those of runs in memory."""

import weakref

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from test_storedrows import rewrite
from torch import nn

import hardsight as hs
from hardsight import SampleTable, correlation, probabilities, storedrows
from hardsight.errors import InputError
from hardsight.labelerrors import actions, clean, confident_joint, label_errors, lists, noise, probability_matrix
from hardsight.labelerrors.suspects import _order
from hardsight.people import align, align_run, compare_scores, hypotheses, leaderboard, match
from hardsight.people.candidates import candidates
from hardsight.probabilities import fit_temperature, fit_temperature_in_parts
from hardsight.runs import ids as ids_module
from hardsight.runs.ids import places_among

N, CLASSES = 900, 4


@pytest.fixture(scope="module", params=["probabilities", "no probabilities"])
def run(request, tmp_path_factory):
    """Many units, bad samples, ids in no order, equal samples, wrong labels, and samples without a label."""
    path = tmp_path_factory.mktemp("large") / "run"
    torch.manual_seed(0)
    net = nn.Linear(6, CLASSES)
    labels = torch.arange(N) % CLASSES
    features = 3 * net.weight.detach()[labels] + torch.randn(N, 6)
    features[60:120] = features[:60]  # equal samples, of the same class, are ordered by their ids
    features[::97] = torch.nan
    labels = torch.where(torch.rand(N) < 0.1, (labels + 1) % CLASSES, labels)
    ids = [f"b{(i * 97) % N}" for i in range(N)]
    hs.score(net, (features, labels), ids=ids, out=path, batch_size=64, progress=False, version="1")
    for file in (path / "samples").glob("*.parquet"):
        rows = pq.read_table(file)
        if request.param == "probabilities":
            gone = pc.match_substring_regex(rows["id"], "7$")
            labels = pc.if_else(gone, pa.scalar(None, rows["label"].type), rows["label"])
            rewrite(path, file, rows.set_column(rows.column_names.index("label"), "label", labels))
    if request.param == "no probabilities":
        for file in (path / "vectors").glob("*.parquet"):
            rewrite(path, file, pq.read_table(file).drop_columns(["probabilities"]))
    return path


@pytest.fixture(params=[0, 1 << 17])
def both(run, request, monkeypatch):
    """The table in memory, and the same on disk; of more rows than the parameter says only places are kept."""
    eager = SampleTable.load(run)
    monkeypatch.setattr(storedrows, "EAGER_ROWS", 0)
    monkeypatch.setattr(storedrows, "_FEW", request.param)
    lazy = SampleTable.load(run)
    assert lazy.on_disk
    assert not eager.on_disk
    return eager, lazy


def same_rows(one, other):
    """Bit by bit; NaN is NaN, and null is null."""
    assert one.schema.equals(other.schema)
    for name in one.column_names:
        assert one[name].is_null().to_pylist() == other[name].is_null().to_pylist(), name
        np.testing.assert_array_equal(one[name].to_numpy(), other[name].to_numpy(), err_msg=name)


def same_suspects(one, other):
    same_rows(one.to_arrow(), other.to_arrow())
    assert one.meta.label_errors == other.meta.label_errors
    assert one.bad.equals(other.bad)


@pytest.mark.parametrize("by", [None, "disagreement", "avh_adjusted", "angle_and_logit", "confidence"])
def test_label_errors_are_the_same(both, by):
    eager, lazy = both
    expected = label_errors(eager, by=by)
    assert 0 < expected["suspect"].sum() < len(eager)
    same_suspects(label_errors(lazy, by=by), expected)
    same_suspects(label_errors(lazy, by=by, share=0.3), label_errors(eager, by=by, share=0.3))


def test_actions_and_estimates_are_the_same(both):
    eager, lazy = both
    same_suspects(actions(lazy), actions(eager))
    assert (confident_joint(lazy) != confident_joint(eager)).nnz == 0
    one, other = noise(lazy), noise(eager)
    assert one.rows.equals(other.rows)
    assert (one.count, one.low, one.high, one.exact, one.unsure) == (
        *(other.count, other.low, other.high),
        *(other.exact, other.unsure),
    )


def test_rows_in_another_order_have_their_probabilities(both):
    eager, lazy = both
    order = np.random.default_rng(0).permutation(len(eager))[: len(eager) // 2]
    same_suspects(label_errors(lazy[order]), label_errors(eager[order]))
    if not noise(eager).exact:
        with pytest.raises(InputError):
            probability_matrix(lazy)
        return
    expected = np.stack(eager.vectors["probabilities"].to_pylist())
    np.testing.assert_array_equal(probability_matrix(lazy), expected)
    np.testing.assert_array_equal(probability_matrix(lazy[order]), expected[order])
    np.testing.assert_array_equal(probability_matrix(eager[order]), expected[order])


@pytest.mark.parametrize("decided", [False, True])
def test_lists_are_the_same_and_written_in_pieces(both, tmp_path, monkeypatch, decided):
    eager, lazy = both
    decisions = None
    if decided:
        names = [eager["id"][5], eager["id"][7], eager.bad["id"][1].as_py()]
        decisions = {"id": names, "action": ["drop", "relabel", "keep"], "new_label": [None, "2", None]}
    whole = clean(eager, tmp_path / "whole", decisions=decisions)
    monkeypatch.setattr(lists, "_ROWS", 100)
    monkeypatch.setattr(lists, "_BYTES", 8 * 13 * 250)
    pieces = clean(lazy, tmp_path / "pieces", decisions=decisions)
    assert {**pieces, "lists": None} == {**whole, "lists": None}
    assert pieces["samples"] == len(eager) + len(eager.bad)
    for file in (tmp_path / "whole").iterdir():
        other = tmp_path / "pieces" / file.name
        if file.suffix == ".parquet":
            same_rows(pq.read_table(file), pq.read_table(other))
        elif file.suffix != ".json":
            assert file.read_bytes() == other.read_bytes()
    rows = pq.read_table(tmp_path / "pieces" / "actions.parquet")
    by_id = SampleTable(rows).aligned(eager["id"])
    for name in eager.scores:
        assert by_id[name].combine_chunks().equals(eager.column(name).combine_chunks())


def test_an_order_is_arrows_with_ids_only_where_values_tie():
    draw = np.random.default_rng(0)
    for n in (1, 2, 50, 400):
        suspicion = draw.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, *draw.normal(size=5)], n)
        contradicted = (draw.random(n) < 0.4) & np.isfinite(suspicion)
        ids = pa.array([f"{k}" for k in draw.permutation(n)])
        rows = pa.table({"id": ids, "contradicted": contradicted, "suspicion": suspicion})
        keys = [("contradicted", "descending"), ("suspicion", "descending"), ("id", "ascending")]
        expected = pc.sort_indices(rows, sort_keys=keys).to_numpy()
        np.testing.assert_array_equal(_order(SampleTable(rows), contradicted, suspicion), expected)


def answers(table, share, seed=0):
    """Human frequencies of some of the samples, in no order, with one id that the run lacks."""
    draw = np.random.default_rng(seed)
    ids = draw.permutation(table["id"])[: int(share * len(table))].tolist()
    hsf = draw.binomial(10, np.clip(0.9 - 0.5 * draw.random(len(ids)), 0, 1)) / 10
    return pa.table({"id": [*ids, "elsewhere"], "hsf": [*hsf, 0.5]})


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_people_are_matched_and_compared_alike(both, run, share, monkeypatch):
    eager, lazy = both
    people = answers(eager, share)
    if "label" not in eager:
        return
    for norm in ("global", "class"):
        one, other = (align(table, people, norm=norm) for table in (lazy, eager))
        same_rows(one.rows, other.rows)
        same_rows(one.people, other.people)
        assert (one.notes, one.samples) == (other.notes, len(eager))
    assert one.people.num_rows == int(share * len(eager))
    for test in ("bootstrap", "jackknife"):
        options = {"test": test, "resamples": 100}
        assert compare_scores(lazy, "avh", "margin", people, **options) == compare_scores(
            eager, "avh", "margin", people, **options
        )
    same_rows(leaderboard(lazy, people), leaderboard(eager, people))
    assert hypotheses(lazy, people, resamples=100) == hypotheses(eager, people, resamples=100)
    one = align_run(run, people)
    monkeypatch.setattr(storedrows, "EAGER_ROWS", 10**9)
    other = align_run(run, people)
    assert one.samples == other.samples == len(eager)
    assert one.differences == other.differences
    assert one.hypotheses == other.hypotheses
    for name in ("people", "rows", "leaderboard"):
        same_rows(getattr(one, name), getattr(other, name))
    assert one.notes == other.notes


def test_norms_are_scaled_by_all_samples_and_not_by_those_people_saw(both):
    eager, lazy = both
    if eager.column("label").null_count:
        return
    people = answers(eager, 0.1)
    asked = eager.aligned(people["id"]).drop_null()["id"].to_pylist()
    scaled = dict(zip(eager["id"], eager.with_norm_within_class()["norm_within_class"], strict=True))
    given = dict(zip(people["id"].to_pylist(), people["hsf"].to_pylist(), strict=True))
    expected = correlation.pearson(np.array([scaled[k] for k in asked]), np.array([given[k] for k in asked])).value
    rows = align(lazy, people, norm="class", scores=["norm"], coefficients=["pearson"]).rows.to_pylist()
    assert rows[0]["value"] == pytest.approx(expected, rel=1e-9)


def test_candidates_of_a_run_on_disk_are_those_of_one_in_memory(both, run, monkeypatch):
    lazy = candidates(run)
    monkeypatch.setattr(storedrows, "EAGER_ROWS", 10**9)
    eager = candidates(run)
    assert lazy.columns == eager.columns
    for name in eager.columns:
        np.testing.assert_array_equal(lazy[name], eager[name], err_msg=name)


def test_a_temperature_is_the_same_in_parts():
    torch.manual_seed(0)
    logits, labels = 5 * torch.randn(20_000, 3).double().numpy(), np.random.default_rng(0).integers(0, 3, 20_000)
    logits[np.arange(20_000), labels] += 4
    parts = [slice(start, start + 1777) for start in range(0, 20_000, 1777)]
    temperature = fit_temperature_in_parts(lambda: ((logits[part], labels[part]) for part in parts), len(logits))
    assert temperature == pytest.approx(fit_temperature(logits, labels), rel=1e-9)


def test_a_temperature_keeps_no_part_in_memory(monkeypatch):
    monkeypatch.setattr(probabilities, "_FEW", 10)
    seen = []

    def parts():
        for start in range(0, 400, 40):
            logits = np.random.default_rng(start).normal(size=(40, 5))
            assert sum(part() is not None for part in seen) <= 2  # of this pass and of the one before
            seen.append(weakref.ref(logits))
            yield logits, np.where(np.arange(40) % 4, logits.argmax(1), logits.argmin(1))

    assert probabilities.fit_temperature_in_parts(parts, 400) > 0
    assert len(seen) > 10


def test_covariances_of_influences_in_a_file_are_those_in_memory(monkeypatch):
    draw = np.random.default_rng(0)
    hsf, columns = draw.integers(0, 9, 500) / 8, {f"c{k}": draw.normal(size=500) for k in range(5)}
    directions = dict.fromkeys(columns, 1)
    expected = leaderboard(columns, hsf, directions=directions)
    monkeypatch.setattr(correlation, "_MANY", 100)  # the smaller type of places, too
    monkeypatch.setattr(correlation, "_BLOCK", 37)
    stored = leaderboard(columns, hsf, directions=directions)
    assert stored["score"].equals(expected["score"])
    for name in ("spearman", "kendall_high", "behind", "behind_low", "p", "p_holm"):
        np.testing.assert_allclose(stored[name].to_numpy(), expected[name].to_numpy(), rtol=1e-9)


def test_above_a_million_samples_the_test_is_the_jackknife(monkeypatch):
    draw = np.random.default_rng(0)
    columns = {"id": [str(k) for k in range(60)], "avh": draw.normal(size=60), "margin": draw.normal(size=60)}
    people = dict(zip(columns["id"], draw.random(60), strict=True))
    assert compare_scores(columns, "avh", "margin", people, resamples=100).test == "bootstrap"
    monkeypatch.setattr("hardsight.people.differences.MOST_RESAMPLED", 59)
    assert compare_scores(columns, "avh", "margin", people).test == "jackknife"
    assert compare_scores(columns, "avh", "margin", people, test="bootstrap", resamples=100).test == "bootstrap"


@pytest.mark.parametrize("many", [0, 20, 1 << 20])
@pytest.mark.parametrize("collide", [False, True])
def test_places_among_others(monkeypatch, many, collide):
    monkeypatch.setattr(ids_module, "_MANY", many)
    monkeypatch.setattr(ids_module, "_PIECE", 7)
    if collide:  # different ids with the same hash
        lengths = lambda ids: pc.binary_length(ids.cast(pa.string())).fill_null(0).to_numpy().astype(np.uint64) % 3  # noqa: E731
        monkeypatch.setattr(ids_module, "id_hashes", lengths)
    draw = np.random.default_rng(0)
    for _ in range(60):
        texts = sorted({"".join(draw.choice(list("abé"), draw.integers(0, 5))) for _ in range(draw.integers(1, 60))})
        others = draw.permutation(np.array(texts, object)).tolist()
        ids = draw.choice(np.array([*texts, "zz", "no", None], object), draw.integers(0, 50)).tolist()
        cut = draw.integers(0, len(ids) + 1)
        pieces = pa.chunked_array([pa.array(ids[:cut], pa.string()), pa.array(ids, pa.string()).slice(cut)])
        expected = [others.index(id_) if id_ in others else -1 for id_ in ids]
        assert places_among(pieces, pa.array(others, pa.string())).tolist() == expected
        assert places_among(pa.array(others), pa.chunked_array([others[:3], others[3:]], pa.string())).tolist() == list(
            range(len(others))
        )


def test_answers_are_matched_by_hash_as_by_text(monkeypatch):
    ids = [f"img/{k}" for k in range(50)]
    people = pa.table({"id": [f"img/{k}" for k in range(49, -3, -2)], "hsf": np.arange(26) / 26})
    expected = match(people, ids, [0] * 50)
    monkeypatch.setattr(ids_module, "_MANY", 0)
    hashed = match(people, ids, [0] * 50)
    np.testing.assert_array_equal(hashed.hsf, expected.hsf)
    assert hashed.hsf[49] == 0
    assert hashed.hsf[47] == 1 / 26
    assert np.isnan(hashed.hsf[48])
    assert hashed.overlap == expected.overlap
