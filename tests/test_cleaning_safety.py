"""Cleaning never makes labels worse: what may be relabeled without a person, chance, and a person's decisions."""

import csv
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cleaning_cases import scored, shades
from command_line import run as command
from scipy import stats

import hardsight as hs
from hardsight.chance import ChanceWarning, chance_agreement
from hardsight.data import open_data
from hardsight.errors import HardsightError, InputError
from hardsight.labelerrors import ACTIONS, actions, clean, label_errors
from hardsight.report.rows import Rows
from hardsight.report.write import make_payload
from hardsight.runs import Folds

CLASSES = 10


def observed(n, spread, seed=0, sharpness=1.0):
    """True classes, and the logits of a network that sees them blurred: when it errs the true class comes next."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).standard_normal((CLASSES, 4))
    truth = rng.integers(0, CLASSES, n)
    seen = centers[truth] + spread * rng.standard_normal((n, 4))
    distance = ((seen[:, None] - centers) ** 2).sum(2)
    return truth, (-sharpness * distance / (2 * spread**2)).astype(np.float32)


def planted(truth, share, seed=1, to=None):
    rng = np.random.default_rng(seed)
    other = (truth + rng.integers(1, CLASSES, len(truth))) % CLASSES if to is None else to[truth]
    return np.where(rng.random(len(truth)) < share, other, truth)


def table_of(logits, labels, **meta):
    ids = [f"{i:06d}" for i in range(len(labels))]
    table = hs.score_features(logits, np.eye(CLASSES, dtype=np.float32), labels, ids=ids)
    table.meta = replace(table.meta, **{"out_of_sample": Folds(5), **meta})
    return table


def errors(rows, truth):
    at = np.array([int(id_) for id_ in rows["id"].tolist()])
    after = np.where(rows["action"] == "relabel", np.nan_to_num(rows["suggested"], nan=-1), rows["label"])
    return float((after != truth[at]).mean())


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_random_errors_are_fixed_by_a_good_network_as_precisely_as_estimated(share):
    truth, logits = observed(20_000, 0.25)
    labels = planted(truth, share)
    rows = actions(table_of(logits, labels))
    gate = rows.meta.label_errors["automatic"]
    relabel = rows["action"] == "relabel"
    right = rows["suggested"][relabel] == truth[[int(id_) for id_ in rows["id"][relabel]]]
    assert relabel.sum() > 0.3 * (labels != truth).sum()
    assert gate.low <= right.mean()
    assert gate.low < gate.precision
    assert gate.low >= 0.8
    assert errors(rows, truth) < 0.7 * (labels != truth).mean()


HARMFUL = {
    "right labels": {"share": 0.0},
    "a mediocre network": {"spread": 1.2},
    "a mediocre network that is sure": {"spread": 1.2, "sharpness": 6.0},
    "a poor network": {"spread": 3.0},
    "a good network that is sure": {"share": 0.0, "sharpness": 20.0},
    "probabilities that vanish": {"share": 0.0, "sharpness": 2000.0},
    "errors that people make, too": {"to": np.arange(CLASSES) ^ 1},
}


@pytest.mark.parametrize("case", list(HARMFUL))
def test_labels_are_never_made_worse(case):
    options = {"spread": 0.5, "share": 0.05, "sharpness": 1.0, "to": None} | HARMFUL[case]
    for seed in range(3):
        truth, logits = observed(6000, options["spread"], seed, options["sharpness"])
        labels = planted(truth, options["share"], seed + 10, options["to"])
        rows = actions(table_of(logits, labels))
        assert errors(rows, truth) <= (labels != truth).mean()


def test_a_mediocre_network_relabels_nothing_and_says_why(tmp_path):
    truth, logits = observed(600, 1.2, sharpness=4.0)
    table = table_of(logits, planted(truth, 0.05))
    assert 0.3 < table.accuracy < 0.6
    rows = actions(table)
    assert (rows["action"] != "relabel").all()
    assert rows.meta.label_errors["automatic"].kind == "implausible"
    assert rows.meta.label_errors["estimate"] is None
    arrays = {"images": np.zeros((600, 1, 1), np.uint8), "labels": table["label"], "ids": table["id"].astype(str)}
    np.savez(tmp_path / "d.npz", **arrays)
    for options, named in (({}, "--decisions"), ({"auto": True}, "--auto")):
        with pytest.raises(InputError, match=named):
            clean(table, tmp_path / "lists", data=tmp_path / "d.npz", dataset=tmp_path / "copy.npz", **options)
    assert [p.name for p in tmp_path.iterdir()] == ["d.npz"]


def test_the_estimate_is_the_formula_by_a_loop():
    truth, logits = observed(20_000, 0.25)
    labels = planted(truth, 0.2)
    gate = actions(table_of(logits, labels)).meta.label_errors["automatic"]
    p = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    p = (p / p.sum(1, keepdims=True)).astype(np.float32)  # as a run keeps them
    lower, sure, pred = [], [], p.argmax(1)
    for i in np.flatnonzero(pred != labels):
        above = sum(p[i, k] > p[i, labels[i]] for k in range(CLASSES) if k != pred[i])
        lower.append(1.0 if above > 4 else 0.5 if above == 4 else 0.0)  # of nine classes, the fifth is the middle
        sure.append(p[i, pred[i]])
    lower, sure = np.array(lower), np.array(sure)
    unsure = lower[sure < np.quantile(sure, 0.2)]
    z = stats.norm.ppf(1 - 0.05 / 5 / 2)  # five thresholds are tried
    center = (unsure.mean() + z**2 / 2 / len(unsure)) / (1 + z**2 / len(unsure))
    net = center + z * np.sqrt(unsure.mean() * (1 - unsure.mean()) / len(unsure) + (z / 2 / len(unsure)) ** 2) / (
        1 + z**2 / len(unsure)
    )
    chosen = lower[sure >= gate.threshold].mean()
    wrong = min((chosen - net) / (0.5 - net), 1)
    contradicted = (sure >= gate.threshold).sum() / (p.max(1) >= gate.threshold).sum()
    assert net > 0.1
    assert gate.precision == pytest.approx(wrong * (1 - contradicted * (1 - wrong)), rel=1e-4)


def test_a_network_that_contradicts_most_labels_is_not_believed_however_few_it_is_sure_of():
    rng = np.random.default_rng(0)
    labels, logits = rng.integers(0, CLASSES, 6000), 0.1 * rng.standard_normal((6000, CLASSES)).astype(np.float32)
    logits[np.arange(3000), labels[:3000]] += 20  # knows one half, and nothing about the other
    table = table_of(logits, labels)
    assert table.accuracy < 0.6
    assert hs.labelerrors.noise(table).share < table.accuracy / 2
    assert actions(table).meta.label_errors["automatic"].kind == "implausible"


def test_every_condition_is_needed():
    truth, logits = observed(20_000, 0.25)
    labels = planted(truth, 0.05)
    safe = table_of(logits, labels)
    assert actions(safe).meta.label_errors["automatic"].kind is None
    in_sample = table_of(logits, labels, out_of_sample=None)
    lean = hs.SampleTable(safe.to_arrow(), safe.meta)  # no probabilities of all classes
    swapped = np.arange(CLASSES)
    swapped[[2, 7]] = [7, 2]
    renumbered = table_of(logits, swapped[truth])
    few = table_of(logits[:300], labels[:300])
    kinds = {"in sample": in_sample, "probabilities": lean, "implausible": renumbered, "not shown": few}
    for kind, table in kinds.items():
        rows = actions(table)
        assert rows.meta.label_errors["automatic"].kind == kind
        assert (rows["action"] != "relabel").all()


@pytest.mark.parametrize("by", ["margin", "avh", "confidence_adjusted"])
def test_actions_follow_the_ranking_and_the_counts_agree(by):
    truth, logits = observed(20_000, 0.25)
    table = table_of(logits, planted(truth, 0.05))
    suspects, rows = label_errors(table, by), actions(table, by)
    order = [ACTIONS.index(action) for action in rows["action"]]
    assert order == sorted(order)
    assert rows["rank"].tolist() == list(range(1, len(rows) + 1))
    assert (np.diff(suspects["suspect"].astype(int)) <= 0).all()  # the first of the ranking, and none after
    counted = round(suspects.meta.label_errors["estimate"]["count"])
    assert suspects.meta.label_errors["suspects"] == suspects["suspect"].sum() == counted
    assert (rows["action"] != "keep").sum() == counted


def test_no_label_is_suspect_where_none_is_counted_as_wrong():
    truth, logits = observed(400, 0.05)
    labels = truth.copy()
    labels[:2] = (labels[:2] + 1) % CLASSES
    table = table_of(logits, labels)
    rows = actions(table, count=0)
    assert set(rows["action"]) == {"keep"}
    assert actions(table).meta.label_errors["suspects"] == (actions(table)["action"] == "review").sum()


def test_moments_of_chance_are_those_of_random_permutations():
    rng = np.random.default_rng(0)
    labels, predictions = rng.choice(4, 60, p=[0.6, 0.2, 0.1, 0.1]), rng.choice(5, 60, p=[0.5, 0.3, 0.1, 0.05, 0.05])
    matches = [(labels == rng.permutation(predictions)).mean() for _ in range(20_000)]
    chance = chance_agreement(labels, predictions)
    assert chance.expected == pytest.approx(np.mean(matches), abs=3e-3)
    assert chance.p == pytest.approx(np.mean(np.array(matches) >= chance.accuracy - 1e-9), abs=0.02)
    kappa = (chance.accuracy - chance.expected) / (1 - chance.expected)
    assert chance.kappa == pytest.approx(kappa)


def test_near_chance_is_judged_beside_the_class_prior():
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(1000) < 0.9, 0, 1)
    assert chance_agreement(labels, np.zeros(1000, int)).near  # 90% accurate, and knows nothing
    useful = np.where(rng.random(1000) < 0.15, 1 - labels, labels)
    assert useful.mean() > 0
    assert not chance_agreement(labels, useful).near  # 85% accurate, and knows much
    assert not chance_agreement(labels[:10], 1 - labels[:10]).near  # ten samples say nothing
    unlabeled = np.concatenate([labels, np.full(500, -1)])
    assert chance_agreement(unlabeled, np.zeros(1500, int)).n == 1000
    assert chance_agreement(rng.integers(0, 10, 600), rng.integers(0, 10, 600)).near


def random_table(n=600):
    rng = np.random.default_rng(3)
    return rng.standard_normal((n, CLASSES)).astype(np.float32), rng.integers(0, CLASSES, n)


def test_a_network_at_chance_is_said_first_and_suggests_nothing():
    with pytest.warns(ChanceWarning, match="better than chance"):
        table = table_of(*random_table())
    suspects, rows = label_errors(table), actions(table)
    assert suspects.meta.label_errors["chance"]
    assert suspects.meta.label_errors["notes"] == [suspects.meta.label_errors["chance"]]
    assert suspects.meta.label_errors["suspects"] == 0
    assert suspects.to_arrow()["suggested"].null_count == len(table)
    assert set(rows["action"]) == {"keep"}
    payload = make_payload(Rows(table))
    assert payload["notices"][0]["level"] == "alarm"
    assert "label_errors" not in payload
    assert not [listed for listed in payload["lists"] if listed["key"] == "suspects"]
    assert "suspect labels" not in {name for name, *_ in payload["tiles"]}
    good, logits = observed(600, 0.3)
    notices = make_payload(Rows(table_of(logits, good)))["notices"]
    assert "alarm" not in {notice["level"] for notice in notices}


def test_the_commands_say_chance_first(tmp_path, capsys, monkeypatch):
    logits, labels = random_table()
    run = table_of(logits, labels).save(tmp_path / "run")
    for arguments in (["report", run], ["clean", run]):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            code, _, err = command(capsys, *arguments)
        assert code == 0
        assert "no better than chance" in err.splitlines()[0]
        assert "\033" not in err  # no terminal, no color
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    _, _, err = command(capsys, "clean", run, "--overwrite")
    assert err.startswith("\033[1;31m")
    code, _, err = command(capsys, "clean", run, "--overwrite", "--auto", "--dataset", tmp_path / "copy")
    assert code == 2
    assert not (tmp_path / "copy").exists()


def test_an_edited_list_decides_and_nothing_else_changes(photos, tmp_path):
    samples = open_data(str(photos))
    names = [str(name) for name in samples.classes]
    table = scored(samples, samples.labels, {0: 1, 3: 1, 5: 2}, classes=3, names=names, source=samples.source)
    clean(table, tmp_path / "lists", count=3)
    with (tmp_path / "lists" / "actions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["action"] for row in rows[:4]] == ["review"] * 3 + ["keep"]
    ids = {row["id"].removeprefix("'"): row for row in rows}  # a spreadsheet's guard may stand before an id
    ids[samples.ids[0]]["action"] = "relabel"
    ids[samples.ids[0]]["suggested_name"] = names[2]  # a person knows better than the network
    ids[samples.ids[5]]["action"] = "drop"
    edited = tmp_path / "edited.csv"
    with edited.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    summary = clean(table, tmp_path / "again", count=3, decisions=edited, dataset=tmp_path / "copy")
    assert {action: summary[action] for action in ACTIONS if action != "keep"} == {"relabel": 1, "review": 1, "drop": 1}
    shade = [samples.load(i, None)[0].getpixel((0, 0)) for i in range(len(samples))]
    label = samples.labels.copy()
    label[0] = 2
    expected = {(names[label[i]], shade[i]) for i in range(len(samples)) if i != 5}
    assert set(shades(tmp_path / "copy")) == expected


def test_ids_that_a_spreadsheet_would_calculate_come_back(tmp_path):
    ids = ["=1+1", "'quoted", "-rf", "plain", "@x"]
    columns = {"id": ids, "label": [0, 1, 0, 1, 0], "pred": [1, 1, 0, 1, 0], "margin": [-1.0, 1.0, 1.0, 1.0, 1.0]}
    table = hs.SampleTable.from_columns(columns)
    clean(table, tmp_path / "lists", count=1)
    with (tmp_path / "lists" / "actions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["id"] for row in rows} != set(ids)
    given = {"id": [row["id"] for row in rows], "action": ["keep"] + ["drop"] * 4}
    summary = clean(table, tmp_path / "again", count=1, decisions=given)
    assert (summary["keep"], summary["drop"]) == (1, 4)


def test_bad_decisions_are_refused_before_anything_is_written(photos, tmp_path):
    samples = open_data(str(photos))
    table = scored(samples, samples.labels, {0: 1}, classes=3, source=samples.source)
    first = samples.ids[0]
    cases = [
        ({"id": ["nobody"], "action": ["keep"]}, "nobody"),
        ({"id": [first], "action": ["delete"]}, "delete"),
        ({"id": [first], "action": [None]}, "action"),
        ({"id": [first], "action": ["relabel"]}, "new_label"),
        ({"id": [first], "action": ["relabel"], "new_label": ["wolf"]}, "wolf"),
        ({"id": [first]}, "action"),
        (tmp_path / "nowhere.csv", "nowhere"),
    ]
    for decisions, named in cases:
        with pytest.raises(HardsightError, match=named):
            clean(table, tmp_path / "lists", decisions=decisions, dataset=tmp_path / "copy")
    with pytest.raises(InputError, match="--dataset"):
        clean(table, tmp_path / "lists", auto=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["photos"]


def test_auto_relabels_what_is_safe_and_leaves_the_rest(tmp_path):
    truth, logits = observed(20_000, 0.25)
    labels = planted(truth, 0.05)
    np.savez(tmp_path / "d.npz", images=np.zeros((len(labels), 1, 1), np.uint8), labels=labels)
    samples = open_data(str(tmp_path / "d.npz"))
    table = hs.score_features(logits, np.eye(CLASSES), labels, ids=samples.ids)
    table.meta = replace(table.meta, out_of_sample="test data", source=samples.source)
    summary = clean(table, tmp_path / "lists", auto=True, dataset=tmp_path / "copy.npz")
    with np.load(tmp_path / "copy.npz") as copy:
        assert len(copy["labels"]) == len(labels)
        changed = copy["labels"] != labels
        assert changed.sum() == summary["relabel"] == summary["dataset"]["relabeled"] > 0
        assert (copy["labels"] != truth).mean() < (labels != truth).mean()
        first = samples.ids[np.flatnonzero(changed)[0]]
    keep = {"id": [first], "action": ["keep"]}
    for auto, count in ((True, summary["relabel"] - 1), (False, 0)):  # a person's word outweighs ours
        more = clean(table, tmp_path / f"{auto}", decisions=keep, auto=auto, dataset=tmp_path / f"{auto}.npz")
        assert more["dataset"]["relabeled"] == count


def test_killed_between_the_two_renames_the_old_result_comes_back(photos, tmp_path, monkeypatch):
    samples = open_data(str(photos))
    table = scored(samples, samples.labels, {0: 1}, classes=3)
    lists = tmp_path / "lists"
    clean(table, lists, data=photos)
    before = (lists / "actions.parquet").read_bytes()
    rename = Path.rename

    def killed(self, target):
        if Path(target) == lists.absolute() or Path(target) == lists:
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            clean(table, lists, data=photos, count=0, overwrite=True)
    assert not lists.exists()
    with pytest.raises(InputError):
        clean(table, lists, data=photos, count=-1, overwrite=True)  # a retry that fails
    assert (lists / "actions.parquet").read_bytes() == before
    clean(table, lists, data=photos, count=0, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lists", "photos"]
