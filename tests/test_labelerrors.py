"""Label errors: rankings, counting, suspects and actions, with cleanlab, scikit-learn and loops as witnesses."""

import time

import numpy as np
import pyarrow as pa
import pytest
import torch
from cleanlab.count import compute_confident_joint, get_confident_thresholds, num_label_issues
from cleanlab.internal.util import round_preserving_row_totals
from noisy_digits import noisy_digits
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

import hardsight as hs
from hardsight.ensemble import as_lists, mean_over_nets
from hardsight.labelerrors import DEFAULT, RANKINGS, actions, confident_joint, label_errors, noise, probability_matrix


def with_probabilities(p, labels, *, keep=True, **meta):
    """A table of one net with these probabilities, as scoring makes it."""
    logits = np.log(np.maximum(p, 1e-300))
    rows = hs.score_features(np.eye(len(p)), logits.T, labels).to_arrow()  # the feature picks its row of logits
    vectors = pa.table({"id": rows["id"], "probabilities": as_lists(p)}) if keep else None
    return hs.SampleTable(rows, {"model": {"classes": p.shape[1]}, **meta}, None, vectors)


def random_probabilities(n, classes, seed, sharpness=2.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = sharpness * rng.standard_normal((n, classes)) * rng.uniform(0.3, 2, classes)
    logits[np.arange(n), labels] += 2 * rng.random(n)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return p.astype(np.float32), labels


def without_vectors(table):
    return hs.SampleTable(table.to_arrow(), table.meta, table.bad)


@pytest.mark.parametrize("name", list(RANKINGS))
def test_every_ranking_finds_planted_errors_and_says_what_it_is_and_needs(noisy, name):
    suspicion = RANKINGS[name].function(noisy.table)
    assert suspicion.shape == (len(noisy.table),)
    assert suspicion.dtype.kind == "f"
    assert np.isfinite(suspicion).all()
    assert roc_auc_score(noisy.wrong, suspicion) > 0.95
    ranking = RANKINGS[name]
    assert ranking.name == name
    assert ranking.summary.endswith(".")
    assert ranking.reference
    bare = noisy.table.to_arrow().select(["id", "label", "pred"])
    with pytest.raises(ValueError, match=f"{name} needs the"):
        label_errors(hs.SampleTable(bare), name, count=3)


def test_every_score_that_needs_labels_is_a_ranking_in_its_direction(noisy):
    for name, score in hs.SCORES.items():
        assert (name in RANKINGS) == score.needs_labels
    table = noisy.table
    np.testing.assert_array_equal(RANKINGS["nll"].function(table), table["nll"])
    np.testing.assert_array_equal(RANKINGS["margin"].function(table), -table["margin"])
    assert DEFAULT in RANKINGS


def test_disagreement_is_cleanlabs_normalised_margin_also_without_probabilities(noisy):
    ours = RANKINGS["disagreement"].function(noisy.table)
    cleanlabs = RANKINGS["cleanlab_normalized_margin"].function(noisy.table)
    np.testing.assert_allclose((1 + ours) / 2, cleanlabs, atol=1e-6)
    np.testing.assert_allclose(RANKINGS["disagreement"].function(without_vectors(noisy.table)), ours, atol=1e-5)


def test_angular_disagreement_by_a_loop():
    generator = torch.Generator().manual_seed(3)
    x, w, y = torch.randn(30, 5, generator=generator), torch.randn(4, 5, generator=generator), torch.arange(30) % 4
    table = hs.score_features(x, w, y)
    for i, value in enumerate(RANKINGS["angular_disagreement"].function(table)):
        angles = [float(torch.acos(torch.cosine_similarity(x[i], k, dim=0))) for k in w]
        own = angles.pop(int(y[i]))
        assert value == pytest.approx((own - min(angles)) / (own + sum(angles)), abs=1e-5)
    # Where the angle vanishes.
    table = hs.score_features(torch.eye(3), torch.eye(3), torch.tensor([0, 1, 1]))
    suspicion = RANKINGS["angular_disagreement"].function(table)
    assert np.isfinite(suspicion).all()
    assert suspicion.argmax() == 2


def test_adjusted_rankings_have_no_class_mean(noisy):
    for name in ("confidence_adjusted", "avh_adjusted"):
        values = RANKINGS[name].function(noisy.table)
        means = [values[noisy.given == k].mean() for k in range(10)]
        np.testing.assert_allclose(means, 0, atol=1e-12)


def test_cleanlabs_list_comes_first(noisy):
    from cleanlab.filter import find_label_issues

    listed = find_label_issues(noisy.given, noisy.probabilities, return_indices_ranked_by="normalized_margin")
    found = label_errors(noisy.table, "cleanlab_issues")
    assert set(found["id"][: len(listed)]) == {f"digits:{i}" for i in listed}


CASES = [(200, 3, 0), (1000, 7, 1), (500, 40, 2), (60, 50, 3), (30, 2, 4)]


@pytest.mark.parametrize("case", CASES)
def test_the_confident_joint_is_cleanlabs(case):
    p, labels = random_probabilities(*case)
    table = with_probabilities(p, labels)
    np.testing.assert_array_equal(probability_matrix(table), p)
    wide = p.astype(np.float64)
    np.testing.assert_array_equal(
        confident_joint(table).toarray(), compute_confident_joint(labels, wide, calibrate=False)
    )
    ours = confident_joint(table, calibrate=True).toarray()
    theirs = compute_confident_joint(labels, wide, calibrate=True)
    np.testing.assert_allclose(ours.sum(1), np.bincount(labels, minlength=case[1]))
    np.testing.assert_array_equal(ours.sum(1).round(), theirs.sum(1))
    assert np.abs(ours - theirs).max() < 1  # cleanlab rounds to integers
    np.testing.assert_allclose(noise(table).thresholds, get_confident_thresholds(labels, wide), rtol=1e-12)


def test_the_confident_joint_of_real_digits_is_cleanlabs(noisy):
    wide = noisy.probabilities.astype(np.float64)
    theirs = compute_confident_joint(noisy.given, wide, calibrate=False)
    np.testing.assert_array_equal(confident_joint(noisy.table).toarray(), theirs)
    ours = confident_joint(noisy.table, calibrate=True).toarray()
    calibrated = compute_confident_joint(noisy.given, wide, calibrate=True)
    np.testing.assert_array_equal(round_preserving_row_totals(ours), calibrated)
    estimated = num_label_issues(noisy.given, wide, estimation_method="off_diagonal_calibrated")
    assert noise(noisy.table).count == pytest.approx(estimated, abs=5)  # ten rows, each rounded
    lean = noise(without_vectors(noisy.table))  # without probabilities: here the same
    assert lean.count == pytest.approx(noise(noisy.table).count, abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_counting_without_probabilities_errs_where_it_says(case):
    p, labels = random_probabilities(*case, sharpness=0.7)
    exact, lean = with_probabilities(p, labels), with_probabilities(p, labels, keep=False)
    assert noise(exact).exact
    assert noise(exact).unsure == 0
    assert not noise(lean).exact
    moved = np.abs(confident_joint(exact) - confident_joint(lean)).sum() / 2  # from one place to another, or to none
    assert moved <= noise(lean).unsure + case[1]


@pytest.mark.parametrize("rate", [0.02, 0.05, 0.2])
def test_the_estimate_is_near_the_planted_noise(rate):
    noisy = noisy_digits(rate)
    found = noise(noisy.table)
    assert found.low - 0.01 <= noisy.wrong.mean() <= found.high
    assert found.count == pytest.approx(noisy.wrong.sum(), rel=0.25)
    assert found.rows["n"].to_pylist() == np.bincount(noisy.given).tolist()
    assert sum(found.rows["count"].to_pylist()) == pytest.approx(found.count)


def test_intervals_are_wilsons(noisy):
    found, joint = noise(noisy.table), confident_joint(noisy.table).toarray()
    for k, row in enumerate(found.rows.to_pylist()):
        wrong, counted = int(joint[k].sum() - joint[k, k]), int(joint[k].sum())
        witness = binomtest(wrong, counted).proportion_ci(method="wilson")
        assert (row["low"], row["high"]) == pytest.approx((witness.low, witness.high), abs=1e-12)
        assert row["share"] == wrong / counted
        assert row["true_class"] == np.where(np.arange(10) == k, -1, joint[k]).argmax()


def test_the_interval_of_the_whole_holds_the_truth():
    """Wrong counts drawn at a known rate: the interval must hold the rate about 95 times in 100."""
    rng, rate, held = np.random.default_rng(0), 0.1, 0
    for _ in range(200):
        labels = np.repeat([0, 1, 2], [100, 300, 50])
        pred = np.where(rng.random(len(labels)) < rate, (labels + 1) % 3, labels)
        found = noise(certain(labels, pred))
        held += found.low <= rate <= found.high
    assert 180 <= held <= 198


def certain(labels, pred, classes=None, **columns):
    """A net that is equally sure of every prediction."""
    right = labels == pred
    base = {
        "id": np.array([f"data:{i:07d}" for i in range(len(labels))]),
        "label": labels,
        "pred": pred,
        "confidence": np.where(right, 0.9, 0.05),
        "max_logit": np.zeros(len(labels)),
        "free_energy": np.full(len(labels), np.log(0.9)),
        "margin": np.where(right, 3.0, -3.0),
    }
    return hs.SampleTable.from_columns(base | columns, {"model": {"classes": classes or int(labels.max()) + 1}})


def test_classes_without_samples_and_a_single_class():
    found = noise(certain(np.array([0, 0, 2, 2]), np.array([0, 0, 2, 0]), classes=5))
    assert found.rows["share"].to_pylist() == [0, None, 0.5, None, None]
    assert found.rows["true_class"].to_pylist() == [None, None, 0, None, None]
    one_class = certain(np.zeros(4, int), np.zeros(4, int))
    one = noise(one_class)
    assert (one.count, one.low) == (0, 0)
    assert 0 < one.high < 1
    vectors = pa.table({"id": one_class["id"], "probabilities": as_lists(np.ones((4, 1), np.float32))})
    with pytest.raises(ValueError, match="two classes"):
        RANKINGS["cleanlab_self_confidence"].function(hs.SampleTable(one_class.to_arrow(), {}, None, vectors))


def test_a_million_samples_of_5000_classes_take_seconds():
    rng, n, classes = np.random.default_rng(0), 1_000_000, 5_000
    labels = rng.integers(0, classes, n)
    pred = np.where(rng.random(n) < 0.9, labels, rng.integers(0, classes, n))
    table = certain(labels, pred, classes)
    started = time.perf_counter()
    found = noise(table)
    assert time.perf_counter() - started < 5  # about 0.2 s when nothing else runs
    assert found.count == pytest.approx((labels != pred).sum(), rel=0.2)
    started = time.perf_counter()
    assert label_errors(table).meta.label_errors["suspects"] == round(found.count)
    assert time.perf_counter() - started < 10  # about 0.7 s


def test_rows_are_as_promised(noisy):
    found = label_errors(noisy.table)
    columns = ["id", "label", "pred", "suspicion", "rank", "suspect", "suggested", "p_label", "p_pred"]
    assert found.columns == columns
    assert found["rank"].tolist() == list(range(1, len(found) + 1))
    assert (np.diff(found["suspicion"]) <= 0).all()
    assert found.meta.label_errors["by"] == DEFAULT
    differing = found["id"][found["label"] != found["pred"]]
    expected = set(differing[: round(noise(noisy.table).count)])
    assert set(found["id"][found["suspect"]]) == expected
    assert found.meta.label_errors["suspects"] == len(expected)
    at = [int(id_.split(":")[1]) for id_ in found["id"]]
    np.testing.assert_allclose(found["p_label"], noisy.probabilities[at, found["label"]], atol=1e-7)
    np.testing.assert_allclose(found["p_pred"], noisy.probabilities[at].max(1), atol=1e-7)
    lean = label_errors(without_vectors(noisy.table))
    np.testing.assert_allclose(np.sort(lean["p_pred"]), np.sort(found["p_pred"]), atol=1e-6)


def test_suspects_differ_from_their_label_and_suggestions_are_sure(noisy):
    thresholds = noise(noisy.table).thresholds
    for row in label_errors(noisy.table, "avh", share=0.1).to_arrow().to_pylist():
        if row["suspect"]:
            assert row["pred"] != row["label"]
        enough = min(thresholds[row["pred"]] - 1e-6, 0.9)
        sure = row["p_pred"] >= enough if row["suspect"] else False
        assert row["suggested"] == (row["pred"] if sure else None)


def test_count_and_share_say_how_many(noisy):
    assert label_errors(noisy.table, count=7).meta.label_errors["suspects"] == 7
    assert label_errors(noisy.table, share=0.01).meta.label_errors["suspects"] == 18
    assert label_errors(noisy.table, count=0).meta.label_errors["suspects"] == 0
    differing = int((noisy.table["label"] != noisy.table["pred"]).sum())
    assert label_errors(noisy.table, count=10**9).meta.label_errors["suspects"] == differing
    for wrong, words in (
        ({"by": "disagrement"}, "'disagrement'; .*disagreement"),
        ({"count": -1}, "count .*got -1"),
        ({"share": 1.5}, r"share .*got 1\.5"),
        ({"share": float("nan")}, "share .*got nan"),
        ({"count": 1, "share": 0.1}, "not both"),
    ):
        with pytest.raises(ValueError, match=words):
            label_errors(noisy.table, **wrong)


def test_ties_are_in_the_order_of_ids_whatever_the_order_of_rows():
    table = certain(np.array([0, 1, 0, 1]), np.array([1, 0, 1, 0]), id=np.array(["c", "a", "d", "b"]))
    assert label_errors(table)["id"].tolist() == ["a", "b", "c", "d"]


def test_without_labels_is_a_sentence():
    table = hs.score_features(torch.eye(3), torch.eye(3))
    for question in (label_errors, noise, actions, confident_joint):
        with pytest.raises(ValueError, match="need labels"):
            question(table)


def test_samples_without_a_label_come_last_and_are_kept():
    rows = certain(np.array([0, 1, 1, 0]), np.array([1, 1, 1, 0])).to_arrow()
    index = rows.column_names.index("label")
    table = hs.SampleTable(rows.set_column(index, "label", pa.array([0, 1, None, 0])), {"model": {"classes": 2}})
    found = actions(table, count=4)
    last = found.to_arrow().to_pylist()[-1]
    assert (last["id"], last["label"], last["action"], last["p_label"]) == ("data:0000002", None, "keep", None)
    assert noise(table).rows["n"].to_pylist() == [2, 1]


def test_angles_alone_rank_when_told_how_many(noisy):
    angles = hs.SampleTable(noisy.table.to_arrow().select(["id", "label", "pred", "avh"]))
    with pytest.raises(ValueError, match="count or share"):
        label_errors(angles, "avh")
    with pytest.raises(ValueError, match="confidence, max_logit, free_energy"):
        noise(angles)
    found = label_errors(angles, "avh", count=5)
    assert found["suspect"].sum() == 5
    assert found.to_arrow()["p_label"].null_count == found.to_arrow()["suggested"].null_count == len(found)


def test_probabilities_of_some_samples_are_not_enough(noisy):
    some = hs.SampleTable(noisy.table.to_arrow(), noisy.table.meta, None, noisy.table.vectors.slice(0, 100))
    assert not noise(some).exact
    with pytest.raises(ValueError, match="keep the probabilities"):
        probability_matrix(some)


def test_the_note_says_when_samples_may_have_been_trained_on(noisy):
    def notes(**meta):
        found = label_errors(hs.SampleTable(noisy.table.to_arrow(), {"model": {"classes": 10}, **meta}))
        return [note for note in found.meta.label_errors["notes"] if "contradicts" not in note]

    assert notes(out_of_sample={"folds": 5, "retrained": "model"}) == []
    assert "kept out of training" in notes()[0]
    assert "Only the head was refitted" in notes(out_of_sample={"folds": 5, "retrained": "head"})[0]


def test_a_net_that_contradicts_many_labels_says_so(noisy):
    rows, meta = noisy.table.to_arrow(), {"out_of_sample": {"folds": 5}}
    (note,) = label_errors(hs.SampleTable(rows, meta), count=3).meta.label_errors["notes"]
    assert f"contradicts {1 - noisy.table.accuracy:.1%}" in note
    right = rows.set_column(1, "label", rows["pred"])
    assert label_errors(hs.SampleTable(right, meta), count=3).meta.label_errors["notes"] == []


def test_means_over_several_nets_stay_probabilities(noisy):
    labels, x = noisy.table.to_arrow()["label"], noisy.pictures.reshape(len(noisy.given), -1) / 255
    random = np.random.default_rng(0).standard_normal((10, x.shape[1]))  # a net that agrees with the other by chance
    nets = {
        "trained": noisy.table.to_arrow(),
        "random": hs.score_features(x, random, noisy.given, ids=noisy.table["id"]).to_arrow(),
    }
    rows = [rows.append_column("model", pa.repeat(name, len(rows))) for name, rows in nets.items()]
    mean = mean_over_nets(pa.concat_tables(rows).drop_columns(["label"])).append_column("label", labels)
    table = hs.SampleTable(mean, {"model": {"classes": 10}})
    found = label_errors(table, "disagreement")
    differ = found["label"] != found["pred"]
    assert (found["p_label"] + differ * found["p_pred"] <= 1 + 1e-9).all()
    assert (np.abs(found["suspicion"]) <= 1).all()
    assert 0 <= noise(table).share <= 1


def test_planted_errors_are_reviewed_and_the_rest_is_kept(noisy):
    rows = actions(noisy.table).to_arrow().to_pylist()
    true = {f"digits:{i}": int(k) for i, k in enumerate(noisy.true)}
    wrong = {f"digits:{i}": bool(k) for i, k in enumerate(noisy.wrong)}
    by_action = {name: [row for row in rows if row["action"] == name] for name in ("keep", "review")}
    assert sum(map(len, by_action.values())) == len(noisy.table)  # too few for any to be relabeled
    suggested = [row for row in by_action["review"] if row["suggested"] is not None]
    assert len(suggested) > 0.6 * noisy.wrong.sum()
    assert np.mean([row["suggested"] == true[row["id"]] for row in suggested]) > 0.95
    assert np.mean([wrong[row["id"]] for row in by_action["keep"]]) < 0.01
    assert all(row["suggested"] is None for row in by_action["keep"])
    assert all((row["reason"] is None) == (row["action"] == "keep") for row in rows)


def test_what_could_not_be_read_is_dropped_with_its_reason(noisy):
    bad = pa.table({"id": ["digits:x"], "error": ["a truncated file"]})
    found = actions(hs.SampleTable(noisy.table.to_arrow(), noisy.table.meta, bad))
    last = found.to_arrow().to_pylist()[-1]
    assert (last["id"], last["action"], last["reason"], last["label"]) == ("digits:x", "drop", "a truncated file", None)
    assert len(found) == len(noisy.table) + 1


def test_a_sample_without_a_confidence_does_not_spoil_its_class(noisy):
    rows = without_vectors(noisy.table).to_arrow()
    confidence = rows["confidence"].to_numpy().copy()
    confidence[0] = np.nan
    spoilt = rows.set_column(rows.column_names.index("confidence"), "confidence", pa.array(confidence))
    before, after = (noise(hs.SampleTable(r, noisy.table.meta)).count for r in (rows, spoilt))
    assert after == pytest.approx(before, abs=3)
