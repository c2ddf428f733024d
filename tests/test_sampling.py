"""Samplers: what they draw against probabilities in closed form, and sizes against the pacing."""

import itertools
import pickle
from functools import partial

import numpy as np
import pytest
import scipy.stats
import torch
from torch.utils.data import DataLoader, TensorDataset

import hardsight as hs
from hardsight.sampling import (
    PACINGS,
    CurriculumSampler,
    HardnessSampler,
    hardness_of,
    latest_hardness,
    linear,
    within_class,
)

HARDNESS = np.array([0.3, 0.1, 0.9, 0.5, 0.7, 0.2, 0.8, 0.4, 0.6, 1.0])


def epochs_of(sampler, epochs):
    drawn = []
    for epoch in epochs:
        sampler.set_epoch(epoch)
        drawn.append(list(sampler))
        assert len(drawn[-1]) == len(sampler)
    return drawn


@pytest.mark.parametrize(("power", "uniform"), [(1.0, 0.1), (2.0, 0.0), (0.0, 0.5), (1.0, 1.0)])
def test_hard_samples_come_as_often_as_the_formula_says(power, uniform):
    sampler = HardnessSampler(HARDNESS, power=power, uniform=uniform, num_samples=20_000)
    ranks = scipy.stats.rankdata(HARDNESS)
    expected = [(1 - uniform) * r**power / sum(ranks**power) + uniform / 10 for r in ranks]
    np.testing.assert_allclose(sampler.probabilities, expected, rtol=1e-12)
    counts = np.bincount(list(sampler), minlength=10)
    assert scipy.stats.chisquare(counts, 20_000 * np.array(expected)).pvalue > 0.001


def test_without_replacement_a_sample_is_chosen_as_in_successive_draws():
    sampler = HardnessSampler([1.0, 2.0, 3.0], power=2.0, uniform=0.1, num_samples=2, replacement=False)
    p = sampler.probabilities
    chosen = [p[i] + sum(p[j] * p[i] / (1 - p[j]) for j in range(3) if j != i) for i in range(3)]
    drawn = epochs_of(sampler, range(6000))
    assert all(len(set(pair)) == 2 for pair in drawn)
    counts = np.bincount(list(itertools.chain(*drawn)), minlength=3)
    left_out = 6000 - counts  # exactly one an epoch, so these are multinomial
    assert scipy.stats.chisquare(left_out, 6000 * (1 - np.array(chosen))).pvalue > 0.001
    first = np.bincount([pair[0] for pair in drawn], minlength=3)
    assert scipy.stats.chisquare(first, counts / 2).pvalue > 0.001  # the place in the epoch tells nothing


def test_scores_on_any_scale_draw_alike_and_ties_alike_and_every_sample_keeps_a_chance():
    np.testing.assert_array_equal(
        HardnessSampler(HARDNESS).probabilities, HardnessSampler(np.exp(9 * HARDNESS) - 50).probabilities
    )
    assert len(set(HardnessSampler([5.0, 5.0, 5.0]).probabilities)) == 1
    assert HardnessSampler(np.arange(1000), power=50, uniform=0.2).probabilities.min() >= 0.2 / 1000


def test_losses_weighted_by_the_inverse_probability_have_the_plain_mean():
    sampler = HardnessSampler(HARDNESS, num_samples=50_000)
    losses = HARDNESS**2
    drawn = np.array(list(sampler))
    weighted = losses[drawn] / (10 * sampler.probabilities[drawn])
    assert abs(weighted.mean() - losses.mean()) < 4 * weighted.std() / 50_000**0.5


@pytest.mark.parametrize("name", PACINGS)
def test_pacing_grows_from_its_start_to_everything(name):
    pacing = PACINGS[name]
    shares = [pacing(t) for t in np.linspace(0, 1, 101)]
    assert shares[0] == pytest.approx(0.2)
    assert shares[-1] == pytest.approx(1.0)
    assert all(b >= a for a, b in itertools.pairwise(shares))
    assert partial(pacing, start=0.05)(0.0) == pytest.approx(0.05)
    halfway = {"linear": 0.6, "root": 0.52**0.5, "exponential": 0.2**0.5, "step": 0.2 + 0.8 / 3}
    assert pacing(0.5) == pytest.approx(halfway[name])


@pytest.mark.parametrize("name", PACINGS)
def test_an_epoch_holds_the_easiest_share_and_all_of_the_epoch_before(name):
    hardness = np.random.default_rng(0).normal(size=500)
    sampler = CurriculumSampler(hardness, name, epochs=7)
    drawn = epochs_of(sampler, range(10))
    for epoch, indices in enumerate(drawn):
        expected = round(PACINGS[name](min(epoch / 7, 1)) * 500)
        assert set(indices) == set(np.argsort(hardness)[:expected].tolist())
        assert len(indices) == expected
    assert sorted(drawn[7]) == sorted(drawn[9]) == list(range(500))
    assert drawn[7] != drawn[9]


def test_hardest_first_is_the_other_way_round():
    easy = CurriculumSampler(-HARDNESS, "linear", 5)
    hard = CurriculumSampler(HARDNESS, "linear", 5, hardest_first=True)
    assert epochs_of(easy, range(6)) == epochs_of(hard, range(6))
    hard.set_epoch(0)
    assert set(hard) == {9, 2}


def test_num_samples_makes_every_epoch_as_long_with_passes_over_the_share():
    drawn = epochs_of(CurriculumSampler(HARDNESS, lambda t: 0.3, 5, num_samples=10), range(3))
    easiest = set(np.argsort(HARDNESS)[:3].tolist())
    for indices in drawn:
        assert len(indices) == 10
        assert [set(indices[i : i + 3]) for i in (0, 3, 6)] == [easiest] * 3


def test_ties_are_broken_by_chance_and_stay_broken():
    sampler = CurriculumSampler(np.zeros(1000), "linear", 10)
    sets = [set(indices) for indices in epochs_of(sampler, range(11))]
    assert all(a <= b for a, b in itertools.pairwise(sets))
    assert 300 < np.mean(list(sets[0])) < 700  # not the first 200 of the data, which are often one class


def test_within_class_takes_the_same_share_of_every_class():
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    hardness = np.random.default_rng(1).normal(size=100) + 10 * labels  # class 2 is the hardest by far
    plain = CurriculumSampler(hardness, lambda t: 0.5, 1)
    balanced = CurriculumSampler(within_class(hardness, labels), lambda t: 0.5, 1)
    assert np.bincount(labels[list(plain)], minlength=3).tolist() == [50, 0, 0]
    assert np.bincount(labels[list(balanced)]).tolist() == [30, 15, 5]


def test_self_paced_asks_anew_and_tries_the_unknown_first():
    known = np.full(6, np.nan)
    sampler = CurriculumSampler(lambda: known, lambda t: 0.5, 4)
    first = epochs_of(sampler, [0])[0]
    known[first] = [9.0, 9.0, 9.0]
    second = epochs_of(sampler, [1])[0]
    assert set(second) == set(range(6)) - set(first)
    known[second] = [1.0, 2.0, 30.0]
    assert set(epochs_of(sampler, [2])[0]) >= set(second[:2])
    known[:] = [5, 4, 3, 2, 1, 0]
    assert set(epochs_of(sampler, [3])[0]) == {3, 4, 5}


def test_self_paced_learns_from_a_recorder_what_it_last_saw(tmp_path):
    ids = [f"data:{i}" for i in range(8)]
    latest = latest_hardness(tmp_path / "run", ids)
    assert np.isnan(latest()).all()
    recorder = hs.Recorder(tmp_path / "run")
    torch.manual_seed(1)
    weight = torch.randn(3, 4)
    expected = np.full(8, np.nan)
    for seen in ([0, 1, 2, 3, 4], [3, 4, 5], [4, 7]):
        features, labels = torch.randn(len(seen), 4), torch.randint(0, 3, (len(seen),))
        labels = torch.tensor([i % 3 for i in seen])
        recorder.update(torch.tensor(seen), _Head(features, weight), labels)
        recorder.end_epoch()
        expected[seen] = torch.nn.functional.cross_entropy(features @ weight.T, labels, reduction="none").numpy()
        np.testing.assert_allclose(latest(), expected, rtol=2e-4)
    assert np.isnan(latest()[6])
    sampler = CurriculumSampler(latest, lambda t: 0.5, 3)
    assert set(sampler) == {6, *np.argsort(np.where(np.isnan(expected), 99, expected))[:3].tolist()}
    again = CurriculumSampler(latest_hardness(recorder, ids), lambda t: 0.5, 3)  # resumed: no state but the run
    again.set_epoch(0)
    sampler.set_epoch(0)
    assert list(again) == list(sampler)


def test_what_was_read_before_is_not_read_again(tmp_path, monkeypatch):
    """A sample that no epoch has seen must not make every question a pass over all of them."""
    read, real = [], hs.Dynamics.at
    monkeypatch.setattr(hs.Dynamics, "at", lambda dynamics, epoch: read.append(epoch) or real(dynamics, epoch))
    latest = latest_hardness(tmp_path / "run", [f"data:{i}" for i in range(4)], by="norm")
    recorder = hs.Recorder(tmp_path / "run")

    def record(rows, size, end=True):
        recorder.update(rows, _Head(torch.full((len(rows), 2), float(size)), torch.eye(2)), [i % 2 for i in rows])
        recorder.end_epoch() if end else recorder.flush()

    def known():
        return np.abs(latest() / 2**0.5).round(2).tolist()

    for size in (1, 2, 3):
        record([0, 1], size)
        assert known()[:2] == [size, size]
    assert read == [1, 2, 3]
    record([2], 4, end=False)  # an epoch that goes on is asked again
    assert known()[:3] == [3, 3, 4]
    record([1], 4)
    assert known()[:3] == [3, 4, 4]
    assert np.isnan(known()[3])
    assert read == [1, 2, 3, 4, 4]
    recorder = hs.Recorder(tmp_path / "run", epoch=2)  # gone back: what came after is forgotten
    assert known()[:2] == [1, 1]
    assert np.isnan(known()[2])
    record([0, 1, 2, 3], 9)
    assert known() == [9, 9, 9, 9]
    read.clear()
    assert latest_hardness(recorder, [f"data:{i}" for i in range(4)], by="norm")().shape == (4,)
    assert read == [2]  # the newest is enough


class _Head:
    bias = None

    def __init__(self, features, weight):
        self.features, self.weight = features, weight


SAMPLERS = {
    "weighted": lambda **k: HardnessSampler(HARDNESS, **k),
    "without replacement": lambda **k: HardnessSampler(HARDNESS, num_samples=7, replacement=False, **k),
    "curriculum": lambda **k: CurriculumSampler(HARDNESS, "root", 4, **k),
    "repeating": lambda **k: CurriculumSampler(HARDNESS, "root", 4, num_samples=11, **k),
    "self-paced": lambda **k: CurriculumSampler(HARDNESS.copy, "linear", 4, **k),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_order_depends_on_seed_and_epoch_alone(name):
    make = SAMPLERS[name]
    forwards = epochs_of(make(seed=3), range(6))
    torch.manual_seed(9)
    np.random.seed(9)
    backwards = epochs_of(make(seed=3), reversed(range(6)))
    assert forwards == backwards[::-1]
    assert forwards != epochs_of(make(seed=4), range(6))
    assert forwards[4] != forwards[5]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_loader_with_workers_sees_what_the_sampler_draws(name):
    data = TensorDataset(torch.arange(10))
    sampler = SAMPLERS[name](seed=1)
    loader = DataLoader(data, batch_size=3, sampler=sampler, num_workers=2 if name == "curriculum" else 0)
    for epoch in (0, 4):
        sampler.set_epoch(epoch)
        seen = torch.cat([batch[0] for batch in loader]).tolist()
        assert len(loader) == -(-len(seen) // 3)
        sampler.set_epoch(epoch)
        assert seen == list(sampler)


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_can_be_sent_to_another_process_and_an_epoch_begun_twice_is_told(name):
    sampler = SAMPLERS[name](seed=5)
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)
    with pytest.warns(UserWarning, match="epoch 0 .*second"):
        list(sampler)


def test_hardness_of_a_table_is_in_the_order_of_the_data_and_larger_is_harder():
    table = hs.SampleTable.from_columns(
        {"id": ["a", "b", "c"], "avh": [0.1, 0.2, 0.3], "confidence": [0.9, 0.5, 0.1], "aum": [3.0, 2.0, -1.0]}
    )
    for by in ("avh", "confidence", "aum"):
        assert np.argsort(hardness_of(table, ["c", "a", "b"], by=by)).tolist() == [1, 2, 0]
    np.testing.assert_array_equal(hardness_of(table, np.array(["c", "a"])), [0.3, 0.1])


def test_hardness_of_a_scored_run_and_a_data_set(tmp_path):
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    hs.score_features(x, torch.randn(3, 4), y, ids=[f"data:{i}" for i in range(12)]).save(tmp_path / "run")
    table = hs.SampleTable.load(tmp_path / "run")
    expected = dict(zip(table["id"], table["avh"], strict=True))
    found = hardness_of(tmp_path / "run", TensorDataset(x, y))
    np.testing.assert_array_equal(found, [expected[f"data:{i}"] for i in range(12)])


def test_hardness_of_a_recorded_run_is_its_summary(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    weight = torch.eye(3)
    for epoch in range(2):  # sample 0 is learned at once, 1 in the second epoch, 2 never
        features = torch.tensor([[2.0, 0, 0], [0, 1.0, 0] if epoch else [1.0, 0, 0], [1.0, 0, 0]])
        recorder.update([0, 1, 2], _Head(features, weight), torch.tensor([0, 1, 2]))
        recorder.end_epoch()
    ids = ["data:2", "data:1", "data:0"]
    for run in (tmp_path / "run", hs.Dynamics(tmp_path / "run"), recorder):
        assert hardness_of(run, ids, by="learned").tolist() == [3, 2, 1]
        for by in ("aum", "correctness", "nll", "avh"):
            assert np.argsort(hardness_of(run, ids, by=by)).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HardnessSampler([0.1, np.nan, 0.2]), "hardness .*nan .*\\(1 of 3\\)"),
        (lambda: CurriculumSampler([0.1, np.inf], "linear", 2), "hardness .*got inf"),
        (lambda: HardnessSampler([]), "hardness .*\\(0,\\)"),
        (lambda: HardnessSampler(np.ones((3, 2))), "hardness .*\\(3, 2\\)"),
        (lambda: HardnessSampler(["a"]), "hardness .*got list"),
        (lambda: HardnessSampler([1.0], power=-1), "power .*got -1"),
        (lambda: HardnessSampler([1.0], uniform=1.5), "uniform .*got 1.5"),
        (lambda: HardnessSampler([1.0], num_samples=0), "num_samples .*got 0"),
        (lambda: HardnessSampler([1.0], num_samples=2, replacement=False), "num_samples=2 .*1 samples"),
        (lambda: HardnessSampler([1.0], seed=-1), "seed .*got -1"),
        (lambda: HardnessSampler([1.0]).set_epoch(-1), "epoch .*got -1"),
        (lambda: HardnessSampler([1.0]).set_epoch(1.5), "epoch .*got 1.5"),
        (lambda: CurriculumSampler([1.0], "sudden", 2), "linear, .*'sudden'"),
        (lambda: CurriculumSampler([1.0], lambda t: t, 2), "got 0.0 .*\\(epoch 0\\)"),
        (lambda: CurriculumSampler([1.0], lambda t: 1 + t, 2), "got 1.5 .*\\(epoch 1\\)"),
        (lambda: CurriculumSampler([1.0], "linear", 0), "epochs .*got 0"),
        (lambda: within_class([1.0, 2.0], [0]), "label.* 2, .*\\(1,\\)"),
    ],
)
def test_bad_input_is_a_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_hardness_that_changes_its_length_is_told_and_a_run_without_an_epoch_knows_nothing_yet(tmp_path):
    answers = iter([np.ones(4), np.ones(3)])
    sampler = CurriculumSampler(lambda: next(answers), linear, 2)
    with pytest.raises(ValueError, match="4 as at"):
        list(sampler)
    hs.Recorder(tmp_path / "run")
    assert np.isnan(latest_hardness(tmp_path / "run", ["a", "b"])()).all()


def test_missing_ids_are_counted_and_the_first_is_named():
    table = hs.SampleTable.from_columns({"id": ["a", "b"], "avh": [0.1, np.nan], "word": ["x", "y"]})
    with pytest.raises(ValueError, match=r"'c' .*2 of 3 samples"):
        hardness_of(table, ["a", "c", "d"])
    with pytest.raises(ValueError, match=r"'b' .*avh .*1 of 2"):
        hardness_of(table, ["a", "b"])
    with pytest.raises(ValueError, match=r"by .*got 'word'"):
        hardness_of(table, ["a"], by="word")
    with pytest.raises(KeyError, match=r"'avg'; .*avh"):
        hardness_of(table, ["a"], by="avg")
    with pytest.raises(TypeError, match=r"data .*list_iterator"):
        hardness_of(table, iter([1]))
