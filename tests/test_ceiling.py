import numpy as np
import pytest
from scipy import stats

from hardsight.people import ceiling

# Half of the samples are so easy that one answer in a hundred is another, as with CIFAR-10H.
WEIGHTS, ALPHA, BETA = np.array([0.2, 0.3, 0.5]), np.array([2.0, 11.0, 370.0]), np.array([0.3, 0.6, 4.8])


def truth(draw, size):
    part = draw.choice(3, size, p=WEIGHTS)
    return draw.beta(ALPHA[part], BETA[part])


def answers(draw, true, people):
    chosen = draw.binomial(people, true)
    return np.stack([people - chosen, chosen], axis=1)


def test_the_ceiling_is_what_the_truth_reaches_where_spearman_brown_is_far_above_it():
    draw = np.random.default_rng(0)
    people = draw.integers(47, 64, 5000)
    true = truth(draw, 5000)
    counts = answers(draw, true, people)
    observed = counts[:, 1] / people
    expected = {
        "spearman": stats.spearmanr(true, observed).statistic,
        "pearson": stats.pearsonr(true, observed).statistic,
        "kendall": stats.kendalltau(true, observed).statistic,
    }
    for found in ceiling(counts, np.ones(5000, int), worlds=30):
        assert found.ceiling == pytest.approx(expected[found.coefficient], abs=0.03)
        assert found.low < expected[found.coefficient] < found.high
        assert found.fit == "good"
        assert found.root == pytest.approx(found.spearman_brown**0.5)
        assert found.spearman_brown == pytest.approx(2 * found.split_half / (1 + found.split_half), abs=0.01)
        if found.coefficient != "pearson":
            assert found.root > found.high + 0.05


def test_pearson_s_ceiling_is_the_closed_form_of_beta_binomials():
    draw = np.random.default_rng(1)
    for people, (a, b) in ((5, (3, 2)), (40, (4, 1))):
        counts = answers(draw, draw.beta(a, b, 4000), np.full(4000, people))
        found = ceiling(counts, np.ones(4000, int), ["pearson"], worlds=30)[0]
        assert found.ceiling == pytest.approx(np.sqrt(people / (people + a + b)), abs=0.02)
        half = people // 2
        assert found.split_half == pytest.approx(half / (half + a + b), abs=0.03)
        assert found.root == pytest.approx(found.ceiling, abs=0.02)  # Spearman–Brown holds here, of five people as well


def test_fewer_judgements_have_a_lower_ceiling():
    draw = np.random.default_rng(2)
    true = truth(draw, 3000)
    reached = []
    for people in (50, 25, 10):
        counts = answers(draw, true, np.full(3000, people))
        reached.append(ceiling(counts, np.ones(3000, int), ["spearman"], worlds=20)[0].ceiling)
    assert reached[0] > reached[1] + 0.02
    assert reached[1] > reached[2] + 0.05


def test_people_who_differ_less_than_by_chance_are_noticed():
    chosen = np.random.default_rng(3).integers(
        5, 7, 3000
    )  # of any truth, ten answers differ more from sample to sample
    counts = np.stack([chosen, 10 - chosen], axis=1)
    found = ceiling(counts, np.zeros(3000, int), ["pearson"], worlds=30)[0]
    assert found.split_half < 0
    assert found.fit == "poor"


def test_rows_without_answers_count_for_nothing_and_those_who_chose_nothing_do():
    draw = np.random.default_rng(4)
    counts = answers(draw, draw.beta(3, 1, 300), np.full(300, 12))
    labels = np.ones(300, int)
    expected = ceiling(counts, labels, ["spearman"], worlds=10)
    more = np.r_[counts, np.zeros((5, 2), int), counts[:5]]
    assert ceiling(more, np.r_[labels, np.ones(5, int), np.full(5, -1)], ["spearman"], worlds=10) == expected
    only = counts * [0, 1]
    assert ceiling(only, labels, ["spearman"], asked=np.full(300, 12), worlds=10) == expected
    assert ceiling(counts, labels, ["spearman"], worlds=10, seed=1) != expected


@pytest.mark.parametrize(
    ("counts", "labels", "words"),
    [
        (np.ones((3, 2)) * 9, [0, 0, 0], "4 samples .*got 3"),
        (np.eye(5), np.zeros(5, int), "4 samples .*got 0"),
        (np.full((9, 2), 4), np.zeros(9, int), "differ"),
        (np.array([[9, 0]] * 20 + [[8, 1]]), np.zeros(21, int), "half .*agree"),
        (np.full((9, 2), 0.5), np.zeros(9, int), "shares .*unknown"),
        (np.full((9, 2), np.nan), np.zeros(9, int), "whole numbers"),
        (np.full((9, 2), -1), np.zeros(9, int), "whole numbers"),
        (np.ones((9, 2)), np.full(9, 2), "labels .*2"),
        (np.ones((9, 2)), np.zeros(9), "float64"),
        (np.ones((9, 2)), np.zeros(8, int), r"\(9, 2\) and \(8,\)"),
    ],
)
def test_what_has_no_ceiling_is_refused_in_a_sentence(counts, labels, words):
    with pytest.raises(ValueError, match=words):
        ceiling(counts, labels)


def test_halves_that_disagree_have_no_reliability_and_unknown_coefficients_are_named():
    found = ceiling(np.array([[1, 2], [2, 1], [1, 2], [2, 1], [1, 2]]), np.zeros(5, int), ["pearson"])[0]
    assert found.split_half < -0.3
    assert (found.spearman_brown, found.root) == (0, 0)  # the formula has a pole at −½ here
    with pytest.raises(ValueError, match=r"coefficients .*'tau'"):
        ceiling(np.array([[3, 1], [1, 3], [2, 2], [4, 0]]), np.zeros(4, int), ["tau"])


def test_halves_are_drawn_anew_for_every_split():
    draw, people = np.random.default_rng(2), 6
    votes = np.array([1, 2, 3, 3, 4, 4, 5, 5, 6, 6])
    answers = np.arange(people) < votes[:, None]
    splits = []
    for _ in range(2000):
        shuffled = draw.permuted(answers, axis=1)
        splits.append(stats.pearsonr(shuffled[:, :3].sum(1), shuffled[:, 3:].sum(1)).statistic)
    counts, error = np.stack([votes, people - votes], 1), np.std(splits) / np.sqrt(20)
    for seed in range(8):  # a single split would be √20 times as far from the mean
        (found,) = ceiling(counts, np.zeros(10, int), ["pearson"], seed, worlds=2)
        assert abs(found.split_half - np.mean(splits)) < 3.5 * error
