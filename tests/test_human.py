import gzip
import json
import pickle
import re
import zipfile
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from scipy import stats

from hardsight.people import Human, as_human, coarser, frequency_bins, halves, match, read, read_human
from hardsight.untrusted import read_arrays

COUNTS = np.array([[5, 5, 0], [0, 0, 0], [1, 2, 7], [0, 9, 1]])
IDS = [f"test:{row}" for row in range(4)]
LABELS = np.array([0, 1, 2, 0])
HSF = [0.5, np.nan, 0.7, 0.0]


def write(path, text):
    path.write_text(text)
    return path


def saved(folder, kind):
    """The same answers in every layout that counts can come in."""
    path = folder / kind
    if kind == "cifar10h.npz":
        np.savez(path, counts=COUNTS.astype(np.uint8))
    elif kind == "only.npz":
        np.savez(path, whatever=COUNTS)
    elif kind == "counts.npy":
        np.save(path, COUNTS.astype(np.float64))
    elif kind == "counts.csv":
        rows = [f"{key},{c},{a},{b}" for key, (a, b, c) in zip(IDS, COUNTS.tolist(), strict=True)]
        write(path, "\n".join(["id,2,0,1", *rows]))
    elif kind == "named.parquet":
        parquet.write_table(pa.table({"id": IDS, **dict(zip("zxy", COUNTS.T[[2, 0, 1]], strict=True))}), path)
    elif kind in ("votes.csv", "numbers.csv", "votes.csv.gz"):
        names = "012" if kind == "numbers.csv" else "xyz"
        rows = [
            f"{key},{names[k]}"
            for key, row in zip(IDS, COUNTS.tolist(), strict=True)
            for k in range(3)
            for _ in range(row[k])
        ]
        rows = np.random.default_rng(0).permutation(rows).tolist()
        text = "\n".join(["id,vote", *rows])
        path.write_bytes(gzip.compress(text.encode()) if kind.endswith("gz") else text.encode())
    return path


@pytest.mark.parametrize(
    "kind",
    [
        "cifar10h.npz",
        "only.npz",
        "counts.npy",
        "counts.csv",
        "named.parquet",
        "votes.csv",
        "votes.csv.gz",
        "numbers.csv",
    ],
)
def test_counts_and_votes_in_any_layout_say_the_same(tmp_path, kind):
    found = match(read_human(saved(tmp_path, kind)), IDS[::-1], LABELS[::-1], ["x", "y", "z"])
    np.testing.assert_array_equal(found.hsf, HSF[::-1])
    np.testing.assert_array_equal(found.counts, COUNTS[::-1])
    np.testing.assert_array_equal(found.answers, [10, 10, 0, 10])
    np.testing.assert_array_equal(found.majority, [1, 2, -1, -1])
    expected = [stats.entropy(row) if row.sum() else np.nan for row in COUNTS[::-1]]
    np.testing.assert_allclose(found.entropy, expected, rtol=1e-12)
    assert re.match(r"3 of 4 .*test:1\b", found.overlap)
    assert found.overlap.endswith("1 of 2 samples.")


def test_shares_give_frequencies_but_no_numbers_of_people(tmp_path):
    shares = np.array([[0.9, 0.1], [0.25, 0.75], [0, 0]])
    np.savez(tmp_path / "probs.npz", probs=shares, other=np.zeros(3))
    found = match(read_human(tmp_path / "probs.npz"), IDS[:3], [0, 0, 1])
    np.testing.assert_array_equal(found.hsf, [0.9, 0.25, np.nan])
    assert found.answers is None
    with pytest.raises(ValueError, match=r"splitting .*shares"):
        halves(read_human(tmp_path / "probs.npz"))


def labellings(people=3):
    draw = np.random.default_rng(1)
    random = {f"random_label{k + 1}": draw.integers(0, 4, 20) for k in range(people)}
    return {"clean_label": draw.integers(0, 4, 20), "aggre_label": draw.integers(0, 4, 20), **random}


@pytest.mark.parametrize("kind", ["npz", "pt of arrays", "pt of tensors"])
def test_of_cifar_n_only_the_three_people_vote(tmp_path, kind):
    given = labellings() | {"worse_label": np.zeros(20, np.int64)}
    path = tmp_path / f"n.{kind[:3].strip()}"
    if kind == "npz":
        np.savez(path, **given)
    else:
        torch.save({k: torch.tensor(v) for k, v in given.items()} if "tensors" in kind else given, path)
    people = read_human(path, classes=["a", "b", "c", "d", "e"])
    votes = [given[f"random_label{k}"] for k in (1, 2, 3)]
    expected = np.stack([np.bincount([vote[i] for vote in votes], minlength=5) for i in range(20)])
    np.testing.assert_array_equal(people.counts, expected)
    clean = given["clean_label"]
    hsf = match(people, [f"train:{i}" for i in range(20)], clean).hsf
    np.testing.assert_allclose(hsf, [np.mean([vote[i] == clean[i] for vote in votes]) for i in range(20)])


def test_of_cifar_100n_one_person_votes(tmp_path):
    given = labellings(0)
    np.savez(
        tmp_path / "n.npz", clean_label=given["clean_label"], noisy_label=np.arange(20) % 7, noisy_coarse_label=[1]
    )
    found = match(read_human(tmp_path / "n.npz"), [f"train:{i}" for i in range(20)], np.arange(20) % 5)
    np.testing.assert_array_equal(found.hsf, [float(i % 7 == i % 5) for i in range(20)])
    assert set(found.answers.tolist()) == {1}


def test_real_raters_are_shares_of_yes_among_those_asked_about_the_label(tmp_path):
    info = np.array([["ILSVRC2012_val_00000001.JPEG", "2"], ["ILSVRC2012_val_00000001.JPEG", "0"], ["b.JPEG", "1"]])
    rating = np.zeros((4, 3, 3), np.int8)  # raters × questions × (no, maybe, yes)
    for rater, question, answer in ((0, 0, 2), (1, 0, 2), (2, 0, 1), (3, 0, 0), (0, 1, 2), (1, 1, 0), (2, 2, 0)):
        rating[rater, question, answer] = 1
    np.savez(tmp_path / "raters.npz", tensor=rating, info=info, ids=np.arange(4))
    people = read_human(tmp_path / "raters.npz")
    ids = ["val/n01/ILSVRC2012_val_00000001.JPEG", "val/n02/b.JPEG", "val/n02/c.JPEG"]
    found = match(people, ids, [2, 1, 1])
    np.testing.assert_array_equal(found.hsf, [0.5, 0.0, np.nan])
    np.testing.assert_array_equal(found.answers, [4, 1, 0])
    assert re.match("2 of 3 .*last part .*val/n02/c", found.overlap)
    np.testing.assert_array_equal(match(people, ids, [0, 2, 1]).hsf, [0.5, np.nan, np.nan])  # b was never asked about 2
    one, other = halves(people)
    np.testing.assert_array_equal(one.counts + other.counts, people.counts)
    np.testing.assert_array_equal(one.asked + other.asked, people.asked)
    with pytest.raises(ValueError, match="only where"):
        coarser(people, [0, 0, 0])


def test_real_json_is_refused_because_sets_are_no_frequencies(tmp_path):
    path = write(tmp_path / "real.json", json.dumps([[1, 2], []]))
    with pytest.raises(ValueError, match=r"frequencies; .*raters\.npz"):
        read_human(path)


TRIALS = """subj,Session,trial,rt,object_response,category,condition,imagename
subject-01,1,1,1.05,knife,knife,c30,0001_cop_s01_c30_knife_10_n03041632_7380.png
subject-02,1,9,0.5,na,knife,c30,0009_cop_s02_c30_knife_10_n03041632_7380.png
subject-03,1,9,0.5,clock,knife,c30,0007_cop_s03_c30_knife_10_n03041632_7380.png
subject-01,1,2,NaN,dog,dog,c100,0002_cop_s01_c100_dog_10_n03_5.png
subject-01,1,3,1.0,knife,oven,c100,0003_cop_s01_c100_oven_10_n03_5.png
"""


def test_trials_become_frequencies_of_images_over_people_and_na_chose_nothing(tmp_path):
    people = read_human(write(tmp_path / "trials.csv", TRIALS))
    assert people.ids.tolist() == ["c30_knife_10_n03041632_7380.png", "c100_dog_10_n03_5.png", "c100_oven_10_n03_5.png"]
    np.testing.assert_allclose(people.hsf, [1 / 3, 1, 0])
    np.testing.assert_array_equal(people.asked, [3, 1, 1])
    assert people.classes == ("knife", "clock", "dog")
    found = match(people, people.ids, [2, 1, 0], ["oven", "dog", "knife"])
    np.testing.assert_allclose(found.hsf, people.hsf)
    np.testing.assert_array_equal(found.majority, [-1, 1, 2])
    assert match(people, people.ids, [0, 0, 0]).majority is None  # without names nobody knows which class is which
    wrong = TRIALS.replace("na,knife", "na,spoon")
    with pytest.raises(ValueError, match=r"one category, .*'c30_knife"):
        read_human(write(tmp_path / "wrong.csv", wrong))


class Hostile:
    def __reduce__(self):
        return (print, ("executed",))


def test_nothing_in_a_file_is_executed_and_what_cannot_be_read_is_said_in_a_sentence(tmp_path, capsys):
    torch.save({"counts": Hostile()}, tmp_path / "bad.pt")
    np.save(tmp_path / "bad.npy", np.array([Hostile()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "bad.npz", counts=np.array([Hostile()], dtype=object))
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(Hostile()))
    (tmp_path / "half.npz").write_bytes((tmp_path / "bad.npz").read_bytes()[:100])
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "list.pt").write_bytes(b"nonsense")
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (9000000000, 900000000), }"
    (tmp_path / "huge.npy").write_bytes(header.ljust(127) + b"\n")
    with zipfile.ZipFile(tmp_path / "damaged.npz", "w") as archive:  # a header that is no Python
        archive.writestr("counts.npy", header.replace(b"}", b"(") + b"\n")
    for path in tmp_path.iterdir():
        with pytest.raises(ValueError, match=r"human: .*without pickle"):
            read_human(path)
    with pytest.raises(FileNotFoundError, match=r"human: .*no file"):
        read_human(tmp_path / "none.csv")
    assert capsys.readouterr().out == ""


def test_an_archive_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "read_arrays", partial(read_arrays, most=1 << 10))
    np.savez_compressed(tmp_path / "bomb.npz", counts=np.zeros((1000, 10)))
    with pytest.raises(ValueError, match=r"unpacks .*0 GiB"):
        read_human(tmp_path / "bomb.npz")
    np.savez_compressed(tmp_path / "many.npz", **{f"counts{i}": np.zeros((10, 10)) for i in range(2)})
    with pytest.raises(ValueError, match=r"unpacks .*0 GiB"):
        read_human(tmp_path / "many.npz")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,hsf\na,1", "id .*got name"),
        ("id,hsf\na,1.5\nb,-1", r"frequencies .*1\.5"),
        ("id,hsf\na,many", "hsf .*got string"),
        ("id,hsf\na,1\na,0.5", "1 rows repeat"),
        ("id\na", "got id"),
        ("id,hsf\n", "got id, hsf"),
        ("id,a,b\nx,1,-3", "counts .*got -3"),
        ("id,a,b\nx,1,inf", "counts .*got inf"),
        ("id,0,999999999\nx,1,1\ny,1,1\nz,1,1", "got 3 × 1,000,000,000"),
        ("id,vote\nx,inf", "votes .*got inf"),
        ("id,a,b\nx,1.5,3", r"row 0 .*4\.5"),
        ("id,a,b\nx,dog,3", "a must .*got string"),
        ("id,vote\nx,-1", "votes .*got -1"),
        ("id,vote\nx,1e9", "votes .*got 1e"),
        ("id,vote\nx,", "answers, .*got 0 × "),
        ("", "CSV"),
        ("id,hsf,hsf\na,1,1", "hsf repeats"),
    ],
)
def test_tables_that_make_no_sense_are_refused_in_a_sentence(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        read_human(write(tmp_path / "people.csv", text))


def test_arrays_that_make_no_sense_are_refused_in_a_sentence(tmp_path):
    for counts, words in (
        (np.ones(3), r"counts .*float64 .*\(3,\)"),
        (np.array([[1.0, np.nan]]), "counts .*got nan"),
        (np.array([["a"]]), r"counts .*got <U1"),
        (np.array([[1, np.inf]]), "counts .*got inf"),
        (np.array(5), r"counts .*\[\(\)\]"),
    ):
        np.save(tmp_path / "counts.npy", counts)
        with pytest.raises(ValueError, match=words):
            read_human(tmp_path / "counts.npy")
    np.savez(tmp_path / "two.npz", first=COUNTS, second=COUNTS)
    with pytest.raises(ValueError, match="got first, second"):
        read_human(tmp_path / "two.npz")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("counts", "no array")
    with pytest.raises(ValueError, match="text"):
        read_human(tmp_path / "text.npz")
    for info, words in (
        (np.array(3), "raters × questions"),
        (np.array([["a", "-5"]]), "number.*class"),
        (np.array([["a", "9999999999"]]), "got 1 × 10,000,000,000"),
    ):
        np.savez(tmp_path / "raters.npz", tensor=np.ones((2, 1, 3)), info=info)
        with pytest.raises(ValueError, match=words):
            read_human(tmp_path / "raters.npz")
    with pytest.raises(ValueError, match="got 1 × 1,000,000,000"):  # which would take 12 GB
        read_human(write(tmp_path / "columns.csv", "id,0,999999999\na,1,1\n"))
    with pytest.raises(ValueError, match=r"3 columns .*2 classes"):
        read_human(saved(tmp_path, "cifar10h.npz"), classes=["a", "b"])


def test_empty_answers_of_a_table_count_for_nothing(tmp_path):
    people = read_human(write(tmp_path / "votes.csv", "id,vote\na,cat\na,\nb,dog\nb,cat\n"))
    np.testing.assert_array_equal(match(people, ["a", "b"], [0, 0], ["cat", "dog"]).hsf, [1, 0.5])
    columns = {"imagename": ["x.png", None, "y.png"], "category": ["cat", "cat", None], "object_response": ["cat"] * 3}
    assert as_human(pa.table(columns)).ids.tolist() == ["x.png"]
    # Columns called 01 and 1 are no numbers of classes: one would hide the other.
    assert read_human(write(tmp_path / "n.csv", "id,01,1\na,3,1\n")).classes == ("01", "1")


def test_frequencies_are_taken_from_mappings_tables_and_arrays():
    table = pa.table({"id": [IDS[2], IDS[0], IDS[3]], "frequency": [0.7, 0.5, 0.0]})
    pairs = dict(zip(table["id"].to_pylist(), table["frequency"].to_pylist(), strict=True))
    columns = {"id": list(pairs), "hsf": list(pairs.values())}
    for given in (
        table,
        table.to_pandas(),
        pairs,
        pairs | {IDS[1]: None},
        columns,
        as_human(pairs),
        np.array(HSF),
        HSF,
    ):
        np.testing.assert_array_equal(match(given, IDS, LABELS).hsf, HSF)
    np.testing.assert_array_equal(match(pd.Series(HSF), IDS, LABELS).hsf, HSF)
    np.testing.assert_array_equal(match(torch.tensor(COUNTS), IDS, LABELS).hsf, HSF)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"other": 1.0}, "4 samples: .*'other' .*'test:0'"),
        (np.zeros(2), r"\(4\), got 2; .*mapping"),
        (["a", "b", "c", "d"], "human .*numbers"),
        (0.5, "counts or frequencies"),
        ({"id": IDS, "hsf": [0.5]}, "human .*one length"),
        (np.full(4, np.nan), "frequency, got none"),
        (np.full(4, np.inf), "frequencies .*inf"),
        (np.zeros((4, 3)), "nobody was asked"),
        (np.zeros((2, 3)), "2 rows .*got 'test:2'"),
        (np.ones((4, 2)), "2 classes, .*label is 2"),
        (np.ones((4, 3, 2)), "sample.*shape"),
    ],
)
def test_what_does_not_belong_to_the_samples_is_refused_in_a_sentence(given, words):
    with pytest.raises(ValueError, match=words):
        match(given, IDS, LABELS)


def test_answers_that_contradict_themselves_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="mine: counts"):
        Human(None, None, None, "mine")
    with pytest.raises(ValueError, match="mine: more people"):
        Human(np.array(IDS), COUNTS, None, "mine", asked=np.ones(4))


def test_partial_overlap_is_reported_with_names():
    given = {f"test:{row}": 0.5 for row in range(2, 8)}
    found = match(given, IDS, LABELS)
    assert re.match(r"2 of 4 [^;]*; [^;]*test:0, test:1; 4 of 6 rows .*\(test:4, test:5, test:6 …\)\.", found.overlap)
    rows = match(np.ones((6, 3)), IDS[:3], LABELS[:3]).overlap
    assert re.match(r"3 of 3 .*; 3 of 6 rows .*\(3, 4, 5\)\.", rows)


def test_rows_are_never_guessed_for_files():
    with pytest.raises(ValueError, match=r"not guessed: .*CSV"):
        match(COUNTS, ["val/cat/a.png", "val/cat/b.png", "val/dog/c.png", "val/dog/d.png"], LABELS)
    with pytest.raises(ValueError, match="row of"):
        match(COUNTS, ["train:0", "test:0"], [0, 0])


def test_names_of_files_match_only_where_no_whole_id_does_and_only_if_they_are_unique():
    ids = ["val/cat/1.png", "val/dog/2.png", "1.png"]
    assert match({"1.png": 0.5, "2.png": 1.0}, ids, [0, 0, 0]).overlap.startswith("1 of 3 ")
    found = match({"cat/1.png": 0.5, "2.png": 1.0}, ids, [0, 0, 0])
    np.testing.assert_array_equal(found.hsf, [0.5, 1.0, np.nan])
    with pytest.raises(ValueError, match=r"'1\.png' .*'val/cat/1\.png'"):
        match({"1.png": 0.5}, ["val/cat/1.png", "val/dog/1.png"], [0, 0])
    with pytest.raises(ValueError, match="1 samples"):  # another split is another sample
        match({"train:0": 0.5}, ["test:0"], [0])


def test_the_majority_warns_of_another_order():
    counts = np.eye(3)[[0, 1, 2, 0] * 5] * 9
    labels = np.array([0, 1, 2, 0] * 5)
    ids = [f"test:{row}" for row in range(20)]
    assert match(counts, ids, labels).overlap.endswith(" 0 of 20 samples.")
    assert re.search(" 20 of 20 samples.*order", match(counts, ids, (labels + 1) % 3).overlap)


def test_answers_by_name_need_the_names_of_the_classes():
    votes = pd.DataFrame({"id": ["a", "a", "b"], "annotator": [1, 2, 1], "label": ["cat", "dog", "cat"]})
    np.testing.assert_array_equal(match(votes, ["a", "b"], [1, 0], ["cat", "dog", "emu"]).hsf, [0.5, 1.0])
    none_chose_emu = match(votes, ["a", "b"], [2, 0], ["cat", "dog", "emu"])
    np.testing.assert_array_equal(none_chose_emu.hsf, [0.0, 1.0])
    for names in (None, ["cats", "dogs"]):
        with pytest.raises(ValueError, match=r"by name, .*cat"):
            match(votes, ["a", "b"], [1, 0], names)
    other = match(votes, ["a", "b"], [0, 0], ["cat"])  # an answer that is no class still counts as one
    np.testing.assert_array_equal(other.hsf, [0.5, 1.0])
    np.testing.assert_array_equal(other.counts, [[1, 1], [1, 0]])


def test_merged_classes_share_their_answers():
    by_number = coarser(Human(None, COUNTS, None, "x", classes=("a", "b", "c")), [1, 0, 1])
    by_name = coarser(
        Human(None, COUNTS, None, "x", classes=("a", "b", "c")), {"a": "vehicle", "b": "animal", "c": "vehicle"}
    )
    merged = np.stack([COUNTS[:, 1], COUNTS[:, 0] + COUNTS[:, 2]], axis=1)
    expected = [0.5, np.nan, 0.8, 0.1]
    for people, names in ((by_number, None), (by_name, None), (by_name, ["a", "b", "c"])):
        found = match(people, IDS, LABELS, names)
        np.testing.assert_allclose(found.hsf, expected)
    np.testing.assert_array_equal(by_number.counts, merged)
    np.testing.assert_array_equal(match(by_number, IDS, LABELS).columns, [1, 0, 1, 1])
    turned = match(by_name, IDS, [2, 1, 0, 2], ["c", "b", "a"])  # the labels of a run that orders classes otherwise
    np.testing.assert_allclose(turned.hsf, expected)
    unknown = match(by_name, IDS, [3, 1, 0, 2], ["a", "b", "c", "d"])  # nobody was asked about the fourth
    np.testing.assert_array_equal(unknown.columns, [-1, 1, 0, 0])
    assert np.isnan(unknown.hsf[0])


def test_frequencies_of_merged_classes_are_counted_anew_and_unknown_labels_have_none():
    people = Human(None, COUNTS, np.array(HSF), "x")
    assert match(coarser(people, [0, 0, 1]), IDS, LABELS).hsf[0] == 1.0  # all ten chose a or b
    np.testing.assert_array_equal(match(COUNTS, IDS, [-1, 0, 2, -1]).hsf, [np.nan, np.nan, 0.7, np.nan])


def test_a_question_per_class_keeps_its_own_number_of_people():
    counts, asked = np.array([[3, 1], [2, 6]]), np.array([[4, 10], [8, 7]])
    people = Human(np.array(["x", "y"]), counts, None, "x", classes=("b", "a"), asked=asked, by_name=True)
    found = match(people, ["x", "y"], [0, 1], ["a", "b"])  # the run orders classes otherwise
    np.testing.assert_allclose(found.hsf, [1 / 10, 2 / 8])


@pytest.mark.parametrize(
    ("human", "mapping", "words"),
    [
        ({"a": 1.0}, [0], "counts .*frequencies"),
        (COUNTS, {"a": "b"}, "3 classes; none for '0'"),
        (COUNTS, [0, 1], "class number .*3 classes"),
        (COUNTS, [0, -1, 1], "class number .*3 classes"),
        (Human(None, COUNTS, None, "x", ("a", "b", "c")), {"a": "x", "b": "x"}, "none for 'c'"),
        (Human(None, COUNTS, None, "x", columns=np.arange(3)), [0, 0, 1], "merged once"),
    ],
)
def test_mappings_that_leave_classes_out_are_refused(human, mapping, words):
    with pytest.raises(ValueError, match=words):
        coarser(human, mapping)


def test_halves_of_the_people_are_hypergeometric():
    counts = np.tile([7, 4, 0, 2], (4000, 1))
    counts[0] = 0
    one, other = halves(Human(None, counts, None, "x"), seed=3)
    np.testing.assert_array_equal(one.counts + other.counts, counts)
    sizes = one.counts[1:].sum(1)
    assert set(sizes.tolist()) == {6, 7}
    assert sizes.mean() == pytest.approx(6.5, abs=0.03)
    six = one.counts[1:][sizes == 6]
    law = stats.multivariate_hypergeom([7, 4, 0, 2], 6)
    np.testing.assert_allclose(six.mean(0), law.mean(), atol=0.1)
    np.testing.assert_allclose(np.cov(six.T, bias=True), law.cov(), atol=0.1)
    again, otherwise = (halves(Human(None, counts, None, "x"), seed=seed)[0].counts for seed in (3, 4))
    np.testing.assert_array_equal(again, one.counts)
    assert (otherwise != one.counts).any()
    # Those who chose nothing are kept.
    people = Human(None, np.array([[2, 0]] * 50), None, "x", asked=np.full(50, 6))
    one, other = halves(people)
    assert (one.asked == 3).all()
    assert (other.asked == 3).all()
    assert set(one.counts[:, 0].tolist()) == {0, 1, 2}


def test_frequencies_lie_in_one_bin_each():
    draw = np.r_[np.random.default_rng(15).random(100), 0, 0.2, 0.4, 0.6, 0.8, 1]
    expected = ["[0, 0.2)", "[0.2, 0.4)", "[0.4, 0.6)", "[0.6, 0.8)", "[0.8, 1]"]
    assert frequency_bins(draw).tolist() == [expected[sum(x >= e for e in (0.2, 0.4, 0.6, 0.8))] for x in draw]
    assert frequency_bins(np.array([0.4, 0.5, 1.0]), (0.5, 1)).tolist() == [None, "[0.5, 1]", "[0.5, 1]"]
    for edges in ((0.5,), (0, 0), (1, 0), (0, np.nan)):
        with pytest.raises(ValueError, match="edges must"):
            frequency_bins(draw, edges)
