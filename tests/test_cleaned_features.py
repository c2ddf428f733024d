"""Cleaned feature files: every column is as it was, but for rows that were dropped and labels that were decided."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cleaning_cases import scored
from command_line import run as command
from feature_cases import (
    CLASSES,
    EXPECTED,
    FEATURES,
    IDS,
    KEPT,
    LABELS,
    NAMES,
    RNG,
    SUFFIXES,
    N,
    decisions_for,
    read,
    run_of,
    write,
)
from report_runs import report
from safetensors import safe_open

import hardsight as hs
from hardsight.data import FeatureSamples
from hardsight.errors import InputError
from hardsight.labelerrors import clean, cleanedfiles


@SUFFIXES
@pytest.mark.parametrize("known", [True, False])
def test_labels_follow_the_ids_and_all_else_stays(suffix, known, tmp_path):
    number = RNG.normal(size=N)
    file = write(tmp_path / f"f{suffix}", number=number)
    table, decisions = run_of(file, [f"f:{row}" for row in range(N)], known=known)
    before, target = file.read_bytes(), tmp_path / "new" / f"cleaned{suffix}"
    summary = clean(table, tmp_path / "lists", data=None if known else file, decisions=decisions, dataset=target)
    done = summary["dataset"]
    assert (done["kept"], done["relabeled"], done["dropped"]) == (N - 7, 4, 3)
    assert (done["missing"], done["unscored"]) == (0, 0)
    copy, original = read(target), read(file)
    assert list(copy) == list(original)
    np.testing.assert_array_equal(copy["features"], FEATURES[KEPT])
    np.testing.assert_array_equal(copy["number"], number[KEPT])
    assert copy["label"].tolist() == EXPECTED
    assert copy["label"].dtype == original["label"].dtype
    assert all(copy[name].dtype == original[name].dtype for name in copy)
    assert file.read_bytes() == before
    assert sorted(p.name for p in target.parent.iterdir()) == [target.name]


def test_parquet_keeps_types_metadata_groups_and_compression(tmp_path):
    """Columns of every kind, also those that Arrow cannot filter."""
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(N * 4.0).reshape(N, 2, 2))
    columns = {
        "key": pa.array(IDS),
        "features": pa.FixedSizeListArray.from_arrays(pa.array(FEATURES.ravel()), 4),
        "species": pa.array(LABELS, pa.int8()),
        "label": pa.array([f"not this {row}" for row in range(N)]),
        "view": pa.array([f"v{row}" for row in range(N)], pa.string_view()),
        "category": pa.array([f"c{row % 5}" for row in range(N)]).dictionary_encode(),
        "struct": pa.array([{"a": row, "b": [None, str(row)]} for row in range(N)]),
        "map": pa.array([[("a", row)] for row in range(N)], pa.map_(pa.string(), pa.int16())),
        "time": pa.array(np.arange(N), pa.timestamp("ns", "Europe/Berlin")),
        "nulls": pa.array([None if row % 3 else row for row in range(N)], pa.uint16()),
        "tensor": tensors,
        "features.x": pa.array(np.arange(N), pa.float16()),
    }
    table = pa.table(columns).replace_schema_metadata({"author": "somebody", b"\xff": b"\xfe"})
    field = table.schema.field("species").with_metadata({"unit": "class"}).with_nullable(False)
    table = table.cast(table.schema.set(2, field))
    file, target = tmp_path / "f.parquet", tmp_path / "c.parquet"
    pq.write_table(table, file, row_group_size=10, compression="zstd")
    samples = FeatureSamples(file, hs.Columns(label="species", id="key"))
    source = {"table": str(file), "columns": {"image": None, "label": "species", "id": "key"}}
    run = scored(samples, LABELS, {16: 0}, classes=CLASSES, source=source)
    clean(run, tmp_path / "lists", decisions=decisions_for(IDS, range(CLASSES)), dataset=target)
    copy, original = pq.read_table(target), pq.read_table(file)
    metadata = dict(copy.schema.metadata)
    assert json.loads(metadata.pop(b"hardsight_cleaned"))["relabeled"] == 4
    assert copy.replace_schema_metadata(metadata).schema.equals(original.schema, check_metadata=True)
    rows = original.to_pylist()
    assert copy.to_pylist() == [{**rows[row], "species": k} for row, k in zip(KEPT, EXPECTED, strict=True)]
    stored = pq.ParquetFile(target).metadata
    groups = [stored.row_group(i) for i in range(stored.num_row_groups)]
    assert [group.num_rows for group in groups] == [8, 9, 4]
    assert {group.column(0).compression for group in groups} == {"ZSTD"}


def test_row_groups_are_copied_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(cleanedfiles, "_BATCH_ROWS", 4)  # 3 and 4 are in two batches, 4 to 7 of 10 in one
    file = write(tmp_path / "f.parquet", row=np.arange(N))
    table, decisions = run_of(file)
    clean(table, tmp_path / "lists", decisions=decisions, dataset=tmp_path / "c.parquet")
    copy = read(tmp_path / "c.parquet")
    assert (copy["row"].tolist(), copy["label"].tolist()) == (KEPT, EXPECTED)


@pytest.mark.parametrize("writer", ["arrow", "large", "view", "pandas", "categorical", "polars", "polars categorical"])
def test_names_stay_names_of_the_same_type(writer, tmp_path):
    """Names are written as they are in the file, whatever characters they hold, and categories keep their order."""
    file, target = tmp_path / "f.parquet", tmp_path / "c.parquet"
    texts = [NAMES[k] for k in LABELS]
    if writer.startswith("polars"):
        kind = pl.Categorical if "categorical" in writer else pl.String
        frame = {"id": IDS, "features": FEATURES, "label": pl.Series(texts, dtype=kind)}
        pl.DataFrame(frame).write_parquet(file, row_group_size=10)
    elif writer in ("pandas", "categorical"):
        categories = [NAMES[2], "never", NAMES[0], NAMES[1]]
        labels = pd.Categorical(texts, categories, ordered=True) if writer == "categorical" else texts
        frame = pd.DataFrame({"id": IDS, "features": list(FEATURES), "label": labels})
        frame.to_parquet(file, row_group_size=10)
    else:
        kind = {"arrow": pa.string(), "large": pa.large_string(), "view": pa.string_view()}[writer]
        columns = {"id": IDS, "features": list(FEATURES), "label": pa.array(texts, kind)}
        pq.write_table(pa.table(columns), file, row_group_size=10)
    names = sorted(NAMES)  # the numbers of the classes are by the alphabet
    labels = np.array([names.index(text) for text in texts])
    run, _ = run_of(file, IDS, names=names, labels=labels)
    clean(run, tmp_path / "lists", decisions=decisions_for(IDS, NAMES), dataset=target)
    copy = pq.read_table(target)
    assert copy["label"].to_pylist() == [NAMES[k] for k in EXPECTED]
    assert copy["id"].to_pylist() == [IDS[row] for row in KEPT]
    assert copy["label"].type == pq.read_table(file)["label"].type
    assert copy.schema.remove_metadata() == pq.read_table(file).schema.remove_metadata()
    if writer == "categorical":
        again = pd.read_parquet(target)["label"].cat
        assert (again.categories.tolist(), again.ordered) == (categories, True)


def test_names_of_an_npz_are_not_cut(tmp_path):
    """A class that no sample has may have a longer name than the others."""
    classes = np.array(["a", "b", "a much longer name"])
    file = write(tmp_path / "f.npz", np.array(["a", "b"])[LABELS % 2], classes=classes)
    run, _ = run_of(file, names=classes.tolist(), labels=LABELS % 2)
    decisions = {"id": ["f:2"], "action": ["relabel"], "new_label": [str(classes[2])]}
    clean(run, tmp_path / "lists", decisions=decisions, dataset=tmp_path / "c.npz")
    copy = read(tmp_path / "c.npz")
    assert copy["label"].tolist() == [str(classes[2]) if row == 2 else "ab"[k] for row, k in enumerate(LABELS % 2)]
    assert copy["classes"].tolist() == classes.tolist()


@SUFFIXES
def test_numbers_of_the_file_are_kept_when_the_models_are_others(suffix, tmp_path):
    """Labels 2, 4 and 6: heads that are fitted to them have the classes 0, 1 and 2."""
    file = write(tmp_path / f"f{suffix}", (2 * LABELS + 2).astype(np.uint8))
    mapping = [-1, -1, 0, -1, 1, -1, 2]
    run, decisions = run_of(file, names=["2", "4", "6"], mapping=mapping)
    rows = clean(run, tmp_path / "early", count=1)["suspects"]  # without the file: the run knows its numbers
    assert {row["suggested"] for row in rows} <= {"2", "4", "6"}
    listed = pq.read_table(tmp_path / "early" / "actions.parquet").to_pylist()
    assert {row["label"] for row in listed} == {2, 4, 6}
    clean(run, tmp_path / "lists", decisions=decisions, dataset=tmp_path / f"c{suffix}")
    copy = read(tmp_path / f"c{suffix}")
    assert copy["label"].tolist() == [2 * k + 2 for k in EXPECTED]


@SUFFIXES
def test_a_number_that_the_type_cannot_hold_widens_it(suffix, tmp_path):
    file, decisions = write(tmp_path / f"f{suffix}"), {"id": ["f:6"], "action": ["relabel"], "new_label": ["200"]}
    run, _ = run_of(file, classes=201)
    clean(run, tmp_path / "lists", decisions=decisions, dataset=tmp_path / f"c{suffix}")
    copy = read(tmp_path / f"c{suffix}")["label"]
    assert copy.tolist() == [200 if row == 6 else k for row, k in enumerate(LABELS.tolist())]


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_what_is_not_per_sample_stays_even_with_as_many_classes_as_samples(suffix, tmp_path):
    more = {"weight": RNG.normal(size=(N, 4)), "bias": RNG.normal(size=N), "scalar": np.array(7), "short": np.ones(5)}
    if suffix == ".npz":
        more |= {"classes": np.array([f"class {k}" for k in range(N)]), "when": np.arange(N).astype("M8[D]")}
        more |= {"sites": np.array([f"site {row}" for row in range(N)])}
    else:
        more |= {"half": torch.arange(N * 3).reshape(N, 3, 1).to(torch.bfloat16)}
    file = write(tmp_path / f"f{suffix}", **more)
    names = [] if suffix != ".npz" else more["classes"].tolist()
    run, decisions = run_of(file, classes=N, names=names)
    clean(run, tmp_path / "lists", decisions=decisions, dataset=(target := tmp_path / f"c{suffix}"))
    if suffix == ".safetensors":
        with safe_open(target, "pt") as copy:
            assert copy.metadata()["made by"] == "a test"
            half = copy.get_tensor("half")
            assert torch.equal(half, more["half"][KEPT])
            assert half.dtype == torch.bfloat16
            assert copy.get_tensor("label").tolist() == EXPECTED
            copy = {name: copy.get_tensor(name).numpy() for name in more if name != "half"}
    else:
        copy = read(target)
        for name in ("when", "sites"):
            np.testing.assert_array_equal(copy[name], more[name][KEPT])
        assert set(copy) == {*read(file)}
    for name in ("weight", "bias", "scalar", "short", *(["classes"] if names else [])):
        np.testing.assert_array_equal(copy[name], more[name])


def test_probabilities_are_cleaned_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    p = np.full((N, CLASSES), 0.05)
    p[np.arange(N), LABELS] = 0.9
    given = LABELS.copy()
    given[[2, 9]] = [1, 1]
    np.savez_compressed("probs.npz", pred_probs=p, labels=given.astype(np.int16), ids=np.array(IDS))
    assert command(capsys, "score", "probs.npz", "--out-of-sample", "-o", "run")[0] == 0
    code, out, _ = command(capsys, "clean", "run", "--count", "2", "--json")
    rows = json.loads(out)["suspects"]
    assert (code, {row["id"]: row["suggested"] for row in rows}) == (0, {IDS[2]: "2", IDS[9]: "0"})
    with Path("decisions.csv").open("w", newline="") as file:
        chosen = [[IDS[9], "relabel", "0"], [IDS[2], "relabel", "2"], [IDS[1], "drop", ""]]
        csv.writer(file).writerows([["id", "action", "new_label"], *chosen])
    arguments = ("clean", "run", "--decisions", "decisions.csv", "--overwrite", "--dataset", "cleaned.npz")
    assert command(capsys, *arguments)[0] == 0
    with np.load("cleaned.npz") as copy:
        assert copy["labels"].dtype == np.int16
        assert copy["labels"].tolist() == np.delete(LABELS, 1).tolist()
        assert copy["ids"].tolist() == np.delete(IDS, 1).tolist()
        np.testing.assert_array_equal(copy["pred_probs"], np.delete(p, 1, 0))


def blobs(count=150):
    """Three clusters, and labels of which five are planted wrong."""
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 3, count)
    x = (rng.normal(size=(count, 5)) + 8 * np.eye(3, 5)[truth]).astype(np.float32)
    wrong = {int(i): int((truth[i] + 1) % 3) for i in rng.choice(count, 5, replace=False)}
    given = np.array([wrong.get(i, int(k)) for i, k in enumerate(truth)])
    return x, truth, given, wrong


def test_embeddings_with_planted_errors_come_back_right(tmp_path, capsys, monkeypatch):
    """The whole way: score with folds, look at what clean prints, decide, and read the copy."""
    monkeypatch.chdir(tmp_path)
    x, truth, given, wrong = blobs()
    names = np.array(["=cmd", "owl", "[red]cat[/red]\x1b[31m"])  # in an order that is not the alphabet's
    frame = pd.DataFrame({"vector": list(x), "kind": names[given], "label_was": names[truth]})
    frame.to_parquet("emb.parquet", row_group_size=40)
    assert command(capsys, "score", "emb.parquet", "--folds", "5", "-o", "run", "--label-column", "kind")[0] == 0
    code, out, err = command(capsys, "clean", "run", "--count", "5")
    assert code == 0
    assert "images" not in out + err  # a feature file has none to miss
    assert "\x1b" not in out
    lines = [line.split() for line in out.splitlines() if line.startswith("  emb:")]
    assert {line[0] for line in lines} == {f"emb:{i}" for i in wrong}
    shown = {line[0]: (line[1], line[2]) for line in lines}
    plain = [name.replace("\x1b", "\\x1b") for name in names]
    assert shown == {f"emb:{i}": (plain[k], plain[truth[i]]) for i, k in wrong.items()}
    decisions = pd.read_csv("run/lists/actions.csv", keep_default_na=False)
    decisions["action"] = decisions["action"].replace("review", "relabel")
    decisions.to_csv("decisions.csv", index=False)
    code, out, _ = command(
        capsys, "clean", "run", "--decisions", "decisions.csv", "--overwrite", "--count", "5", "--dataset", "c.parquet"
    )
    assert code == 0
    assert "  emb:" not in out  # decided already
    copy = pd.read_parquet("c.parquet")
    assert copy["kind"].tolist() == copy["label_was"].tolist() == names[truth].tolist()
    np.testing.assert_array_equal(np.stack(copy["vector"]), x)


def test_ten_suspects_are_printed_and_the_others_counted(tmp_path, capsys):
    ids, labels = [f"photo {k}" for k in RNG.permutation(150)], np.arange(150) % 3
    wrong = {row: (int(labels[row]) + 1) % 3 for row in range(13)}
    table = scored(SimpleNamespace(ids=ids), labels, wrong, classes=CLASSES, names=NAMES, unsure=[4])
    run = table.save(tmp_path / "run")
    code, out, err = command(capsys, "clean", run, "--count", "13", "--json")
    assert code == 0
    summary = json.loads(out)
    listed = pq.read_table(run / "lists" / "actions.parquet").to_pylist()[:10]
    assert [row["id"] for row in summary["suspects"]] == [row["id"] for row in listed]
    for row, other in zip(summary["suspects"], listed, strict=True):
        place = ids.index(row["id"])
        assert row["label"] == NAMES[labels[place]]
        assert row["suggested"] == (None if place == 4 else NAMES[wrong[place]])  # nothing where it is not confident
        assert (row["suspicion"], row["p_label"]) == (other["suspicion"], other["p_label"])
        assert row["p_label"] == pytest.approx(0.05)
    assert sum(line.startswith("  photo") for line in err.splitlines()) == 10
    assert "  3 more" in err
    code, out, _ = command(capsys, "clean", run, "--count", "2", "--overwrite")
    assert sum(line.startswith("  photo") for line in out.splitlines()) == 2
    assert "more" not in out.split("wrote")[0]
    decisions = tmp_path / "d.csv"
    decisions.write_text("id,action\n")
    code, out, _ = command(capsys, "clean", run, "--count", "2", "--overwrite", "--json", "--decisions", decisions)
    assert (code, json.loads(out)["suspects"]) == (0, [])


def test_ids_of_the_file_decide_where_it_has_them(tmp_path):
    file, other, target = (tmp_path / name for name in ("f.parquet", "other.parquet", "c.parquet"))
    table, decisions = run_of(write(file, id=IDS), IDS)
    write(other, id=[f"x{id_}" for id_ in IDS])
    with pytest.raises(InputError, match="no sample"):
        clean(table, tmp_path / "lists", decisions=decisions, dataset=target, data=other)
    write(other, id=[IDS[0], *IDS[:-1]])
    with pytest.raises(InputError, match="one id"):
        clean(table, tmp_path / "lists", decisions=decisions, dataset=target, data=other)
    # The same samples in another order, one of them gone and one new: other features of them, say.
    order = RNG.permutation(np.delete(np.arange(N), 8))
    rows = {"id": [*(IDS[row] for row in order), "new"], "features": [[1.0, 2.0]] * N, "y": [*LABELS[order], 1]}
    pq.write_table(pa.table(rows), other)
    done = clean(table, tmp_path / "lists", decisions=decisions, dataset=target, data=other)["dataset"]
    assert (done["missing"], done["unscored"]) == (1, 1)
    new = dict(zip((IDS[row] for row in KEPT), EXPECTED, strict=True))
    copy = read(target)
    assert copy["id"].tolist() == [IDS[row] for row in order if row in KEPT]
    assert copy["y"].tolist() == [new[id_] for id_ in copy["id"]]


def test_classes_that_only_their_names_tell_apart_are_told_apart(tmp_path):
    """Names in the file are matched by name: its alphabet may begin elsewhere than that of the run."""
    file, target = tmp_path / "f.parquet", tmp_path / "c.parquet"
    write(file, [NAMES[k] for k in LABELS], id=IDS)
    table, _ = run_of(file, IDS, names=sorted(NAMES), labels=[sorted(NAMES).index(NAMES[k]) for k in LABELS])
    write(file, ["!first", *(NAMES[k] for k in LABELS[1:])], id=["new", *IDS[1:]])
    decisions = decisions_for(IDS, NAMES, [(5, "relabel", 1), (9, "drop", None)])
    clean(table, tmp_path / "lists", decisions=decisions, dataset=target, data=file)
    copy = read(target)
    expected = {IDS[row]: NAMES[1 if row == 5 else k] for row, k in enumerate(LABELS) if row not in (0, 9)}
    assert dict(zip(copy["id"].tolist(), pq.read_table(target)["label"].to_pylist(), strict=True)) == expected


def test_the_page_shows_the_command_for_the_format(tmp_path):
    table, _ = run_of(write(tmp_path / "f.parquet"))
    for source, copy in (("f.parquet", "run-cleaned.parquet"), ("f.npz", "run-cleaned.npz"), ("x.a; rm -r ~", ".npz")):
        table.meta.source = {"table": str(tmp_path / source)}
        table.save(tmp_path / "run", overwrite=True)
        shown = report(tmp_path / "run")["label_errors"]["review"]["command"]
        assert f"{copy} --overwrite" in shown
        assert "rm -r" not in shown
        assert "--data" not in shown.replace("--dataset", "")
