"""SampleTable: looking, combining, saving."""

import base64
import html
import io
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from naive import triple
from PIL import Image
from scipy.stats import rankdata
from torch import nn

import hardsight as hs
from hardsight import SampleTable
from hardsight.adaptation import Adapted
from hardsight.evaluation import Evaluation
from hardsight.labelerrors import Noise
from hardsight.models import Model
from hardsight.runs import Counts, Meta
from hardsight.training import Trained


@pytest.fixture
def table():
    features, weight, labels, bias = triple(50, 12, 6)
    return hs.score_features(features, weight, labels, bias)


def test_columns_are_as_promised(table):
    assert table.columns == ["id", "label", "pred", *hs.SCORES]
    assert table.scores == list(hs.SCORES)
    assert len(table) == 50
    assert table["id"][:2].tolist() == ["data:0", "data:1"]
    assert table["avh"].dtype == np.float64
    assert table.accuracy == np.mean(table["label"] == table["pred"])


def test_rank_one_is_the_hardest_and_ties_share(table):
    assert (table.rank("confidence") == rankdata(table["confidence"])).all()
    tied = SampleTable.from_columns({"id": ["a", "b", "c"], "avh": [0.5, 0.5, 0.1]})
    assert tied.rank("avh").tolist() == [1.5, 1.5, 3.0]
    assert tied.hardest(2)["id"].tolist() == ["a", "b"]  # ties in the order of the ids


def test_missing_scores_are_neither_hard_nor_easy():
    table = SampleTable.from_columns({"id": ["a", "b", "c"], "avh": [np.nan, 0.5, 0.1]})
    assert table.hardest(1)["id"].tolist() == ["b"]
    assert table.easiest(1)["id"].tolist() == ["c"]
    assert np.isnan(table.rank("avh")[0])


def test_quantiles_are_numpys_and_an_unknown_column_gets_a_suggestion(table):
    np.testing.assert_array_equal(table.quantiles("nll", [0.1, 0.9]), np.quantile(table["nll"], [0.1, 0.9]))
    with pytest.raises(KeyError, match=r"'confidense'; .*confidence"):
        table.hardest(3, "confidense")
    with pytest.raises(ValueError, match="numbers, got 'id'"):
        table.quantiles("id")
    for beyond in (1.5, [-0.1, 0.5], [np.nan]):
        with pytest.raises(ValueError, match="between 0 and 1"):
            table.quantiles(q=beyond)


def test_save_and_load_give_the_same_table(table, tmp_path):
    table.save(tmp_path / "run")
    again = SampleTable.load(tmp_path / "run")
    assert again.to_arrow().equals(table.to_arrow())
    assert again.meta.counts == table.meta.counts
    assert list((tmp_path / "run" / "scores").glob("*.parquet"))
    with pytest.raises(FileExistsError, match="overwrite it"):
        table.save(tmp_path / "run")
    table.head(3).save(tmp_path / "run", overwrite=True)
    assert len(SampleTable.load(tmp_path / "run")) == 3


def test_frames_see_the_same_numbers(table, tmp_path):
    table.save(tmp_path / "run")
    frame = table.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert isinstance(table.to_polars(), pl.DataFrame)
    assert table.to_polars()["avh"].to_list() == frame["avh"].tolist() == table["avh"].tolist()
    outside = pd.read_parquet(tmp_path / "run" / "scores")  # no hardsight needed to read a run
    assert outside["avh"].tolist() == table["avh"].tolist()


@pytest.mark.parametrize("form", [dict, pd.DataFrame, pl.DataFrame, pa.table, SampleTable.from_columns])
def test_join_on_the_id(table, form):
    human = form({"id": ["data:3", "data:1", "elsewhere"], "hsf": [0.3, 0.1, 0.9]})
    both = table.join(human, how="inner")
    assert both["id"].tolist() == ["data:1", "data:3"]
    assert both["hsf"].tolist() == [0.1, 0.3]
    left = table.join(human)
    assert len(left) == 50
    assert left.to_arrow()["hsf"].null_count == 48


def test_join_of_two_models_keeps_both(table):
    both = table.join(table, suffix="_b")
    assert both["avh_b"].tolist() == table["avh"].tolist()
    for other, options, message in (
        ({"name": ["a"]}, {}, "column id"),
        ({"id": ["a", "a"]}, {}, "repeat an id"),
        (table, {"how": "outer"}, "'left' or 'inner'"),
    ):
        with pytest.raises(ValueError, match=message):
            table.join(other, **options)
    with pytest.raises(ValueError, match="already has 'label_b'"):
        both.join(table, suffix="_b")


def test_columns_of_the_users_own_survive(table, tmp_path):
    group = np.where(table["label"] < 3, "left", "right")
    table.with_column("group", group).save(tmp_path / "run")
    assert SampleTable.load(tmp_path / "run")["group"].tolist() == group.tolist()
    with pytest.raises(ValueError, match="already"):
        table.with_column("avh", group)


def test_norms_within_class(table):
    scaled = table.with_norm_within_class()["norm_within_class"]
    for k in range(6):
        inside = table["norm"][table["label"] == k]
        np.testing.assert_allclose(scaled[table["label"] == k], (inside - inside.min()) / np.ptp(inside))


def test_one_of_several_models_in_a_run_can_be_named(tmp_path):
    from hardsight.runs import RunWriter
    from hardsight.tablefiles import split_rows

    rows = SampleTable.from_columns({"id": ["a"], "label": [0], "pred": [0], "avh": [0.5]})
    writer = RunWriter(tmp_path / "run", {})
    for unit, name in enumerate(("m1", "m2")):
        writer.write(split_rows(rows.to_arrow(), rows.bad, name), unit)
    writer.finish(Meta())
    assert SampleTable.load(tmp_path / "run").meta.models == ["m1", "m2"]
    assert len(SampleTable.load(tmp_path / "run", model="m2")) == 1
    with pytest.raises(ValueError, match="no model 'm3'"):
        SampleTable.load(tmp_path / "run", model="m3")


def test_a_table_without_labels(tmp_path):
    features, weight, _, bias = triple(20, 8, 5)
    table = hs.score_features(features, weight, bias=bias)
    assert "label" not in table
    assert table.accuracy is None
    assert "avh_pred" in table.scores
    assert len(table.hardest(3)) == 3  # avh means avh_pred here
    table.save(tmp_path / "run")
    assert SampleTable.load(tmp_path / "run").columns == table.columns


def test_it_shows_itself_and_nothing_in_it_is_executed(table):
    text, page = repr(table), table._repr_html_()
    assert text.startswith("SampleTable: 50 rows × 16 columns")
    assert max(map(len, text.splitlines())) <= 91
    assert len(text.splitlines()) == 8
    assert page.count("<tr>") == 11
    for shown in (text, page):
        assert "data:0" in shown
        assert f"{table.accuracy:.1%}" in shown
        assert shown.count(f"{table['avh'][4]:.4g}") == 1
    odd = SampleTable.from_columns({"id": ["<b>\x1b[1m"], "<i>\x1b": [0.5]})
    assert "<b>" not in odd._repr_html_()
    assert "<i>" not in odd._repr_html_()
    assert "\x1b" not in repr(odd) + odd._repr_html_()


def results(folder):
    """What the other functions return, each with what it should say of itself."""
    model, rng = Model(nn.Linear(64, 10), "small"), np.random.default_rng(0)
    history = [{"accuracy": 0.5, "test_accuracy": 0.25}, {"accuracy": 0.75, "test_accuracy": 0.5}]
    yield Trained(model, history, folder), ["small", "2 epochs", "75.0%", "50.0%"]
    rounds = pa.table({"round": [0, 1, 2], "target_accuracy": [0.2, 0.3, 0.4]})
    yield Adapted(model, rounds, folder, (), (), model), ["small", "2 rounds", "40.0%"]
    rows = pa.table({"run": ["a", "a", "b"], "group": ["a", "a", "b"], "question": ["margins", "ood", "ood"]})
    yield Evaluation(rows, rows, rows, (), {}, folder), ["3 numbers", "a, b", "margins, ood"]
    ids, frequency = [str(k) for k in range(20)], np.linspace(0, 1, 20)
    people = dict(zip(ids, frequency, strict=True))
    columns = {"id": ids, "avh": 1 - frequency, "norm": rng.random(20), "confidence": rng.random(20)}
    yield hs.align(columns, people), ["3 scores", "20 samples", "spearman of avh −1.000"]
    with hs.Recorder(folder) as recorder:
        head = SimpleNamespace(features=torch.rand(4, 3), weight=torch.rand(2, 3), bias=None)
        recorder.update(torch.arange(4), head, torch.zeros(4).long())
        recorder.end_epoch()
        yield recorder, ["epoch 2", "4 samples"]


def test_every_result_prints_as_one_line_and_a_notebook_shows_the_same(tmp_path):
    for result, words in results(tmp_path / "<b>"):
        text = repr(result)
        assert all(word in text for word in [type(result).__name__, *words]), text
        assert len(text.splitlines()) == 1
        page = result._repr_html_()
        assert html.unescape(page).startswith(f"<p>{text}</p>")
        assert page.count("<tr>") == (len(result._shown_rows()) + 1 if result._shown_rows() else 0)
        assert "<b>" not in page


def test_rows_by_slice_mask_and_place():
    columns = {"id": list("abcd"), "label": [0, 1, 1, 0], "pred": [0, 0, 1, 1], "avh": [0.3, 0.9, np.nan, 0.1]}
    table = SampleTable.from_columns(columns, {"class_names": ["ant", "bee"]})
    assert table.class_names == ["ant", "bee"]
    for key, ids in [
        (slice(2), "ab"), (slice(None, None, -2), "db"), (table["pred"] != table["label"], "bd"), ([3, -4], "da"),
        ([], ""), (np.array([2]), "c"),
    ]:  # fmt: skip
        part = table[key]
        assert "".join(part["id"]) == ids
        assert part.columns == table.columns
        assert part.class_names == table.class_names
    assert "".join(table.filter(lambda t: t["label"] == 1)["id"]) == "bc"
    assert "".join(table.sort("avh")["id"])[:3] == "dab"
    assert "".join(table.sort("avh", descending=True)["id"])[:3] == "bad"
    assert "".join(table.sort("label")["id"]) == "adbc"
    for key in ([True, False], [4], [0.5], [[0]], None):
        with pytest.raises((hs.errors.InputError, hs.errors.InputTypeError)):
            table[key]


def test_thumbnails_are_those_of_the_rows(tmp_path):
    """Each row has its own image; without the data the table is shown without any."""
    images = np.zeros((12, 8, 8, 3), np.uint8) + (20 * np.arange(12, dtype=np.uint8))[:, None, None, None]
    np.savez(tmp_path / "data.npz", test_images=images, test_labels=np.arange(12) % 2)
    table = hs.score(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), str(tmp_path / "data.npz"), preprocess="raw")
    shown = table[[5, 2]]._repr_html_()
    pixels = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(code))))[0, 0].tolist()
        for code in re.findall(r"data:image/webp;base64,([^\"]+)", shown)
    ]
    assert pixels == [[100] * 3, [40] * 3]
    assert table._repr_html_().count("<img") == 10
    (tmp_path / "data.npz").unlink()
    assert "<img" not in table._repr_html_()
    assert table._repr_html_().count("<tr>") == 11


def test_noise_and_a_head_show_themselves():
    with hs.capture(nn.Linear(4, 3)) as head:
        assert "3 classes × 4 features" in repr(head)
        assert "no batch" in repr(head)
    rows = pa.table({"class": [0, 1], "n": [60, 40], "count": [1.0, 4.0], "share": [1 / 60, 0.1]})
    noise = Noise(rows, 5.0, 0.05, 0.02, 0.11, True, 0, np.ones(2))
    assert "5 of 100 labels" in repr(noise)
    assert "5.0% [2.0%, 11.0%]" in repr(noise)
    assert noise._repr_html_().index("<td>40</td>") < noise._repr_html_().index(
        "<td>60</td>"
    )  # most wrong labels first


def test_bad_features_are_listed_not_hidden(tmp_path):
    features, weight, labels, _ = triple(10, 8, 5)
    features[3, 2], features[7, 0], features[5] = torch.nan, torch.inf, 0
    table = hs.score_features(features, weight, labels)
    assert table.bad.to_pylist() == [
        {"id": "data:3", "error": "the feature holds NaN or infinity"},
        {"id": "data:7", "error": "the feature holds NaN or infinity"},
    ]
    assert table.meta.counts == Counts(8, 2, 1)
    table.save(tmp_path / "run")
    again = SampleTable.load(tmp_path / "run")
    assert again.bad.to_pylist() == table.bad.to_pylist()
    assert len(again) == 8
    with pytest.raises(ValueError, match="2 of 10 rows"):
        hs.score_features(features, weight, labels, strict=True)


def test_score_features_refuses_what_makes_no_sense():
    features, weight, labels, _ = triple(10, 8, 5)
    with pytest.raises(ValueError, match="no rows"):
        hs.score_features(features[:0], weight, labels[:0])
    with pytest.raises(ValueError, match="expected 10, got 3"):
        hs.score_features(features, weight, labels, ids=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"'avg'; .*avh"):
        hs.score_features(features, weight, labels, scores=["avg"])


def test_the_series_is_an_option_for_features():
    features, weight, labels, _ = triple(10, 32, 2000)
    table = hs.score_features(features, weight, labels, denominator="series")
    truth = hs.score_features(features, weight, labels, scores=["avh"])
    assert (np.abs(table["avh"] - truth["avh"]) <= table["avh_error"] + 1e-9).all()


def test_columns_ids_and_counts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="1 repeat \\(first: 'a'\\)"):
        SampleTable.from_columns({"id": ["a", "b", "a"], "avh": [1.0, 2.0, 3.0]})
    table = SampleTable.from_columns({"id": ["a", "b"], "avh": [0.1, 0.2]})
    with pytest.raises(ValueError, match="expected 2, got 3"):
        table.with_column("site", [1, 2, 3])
    for n in (2.5, -1, "2"):
        with pytest.raises(ValueError, match=r"^n must"):
            table.hardest(n)


@pytest.mark.parametrize("n", [0, 1, 7, 30, 39, 40, 41, 100])
def test_the_first_few_are_those_of_the_whole_order(n):
    draw = np.random.default_rng(n)
    values = draw.integers(0, 6, 40).astype(float)  # many ties
    values[draw.permutation(40)[:8]] = np.nan
    values[draw.permutation(40)[:2]] = -np.inf, np.inf
    ids = [f"{k}" for k in draw.permutation(40)]
    table = hs.SampleTable.from_columns({"id": ids, "camera": values})
    known = sorted((v, i) for v, i in zip(values, ids, strict=True) if v == v)
    missing = sorted(i for v, i in zip(values, ids, strict=True) if v != v)
    assert table.easiest(n, "camera", largest=True)["id"].tolist() == [*(i for _, i in known), *missing][:n]
    known = sorted((-v, i) for v, i in known)
    assert table.hardest(n, "camera", largest=True)["id"].tolist() == [*(i for _, i in known), *missing][:n]
