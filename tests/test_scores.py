"""Every score against a naive float64 loop, worked examples, extremes, and what other people got wrong."""

import math
import pickle

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from naive import naive_scores, triple

import hardsight as hs
from hardsight.scores import SCORES, check_triple, compute_scores
from hardsight.series import class_sums


def within(values, truth, name):
    relative, absolute = SCORES[name].tolerance
    np.testing.assert_allclose(values, truth, rtol=relative, atol=absolute, err_msg=name)


@pytest.mark.parametrize(
    ("n", "d", "c", "scale"),
    [(40, 16, 2, 1), (40, 16, 10, 1), (40, 8, 100, 1), (30, 32, 100, 5), (20, 16, 1500, 1), (6, 8, 2100, 3)],
)
@pytest.mark.parametrize("biased", [True, False])
def test_all_scores_agree_with_the_naive_loop(n, d, c, scale, biased):
    features, weight, labels, bias = triple(n, d, c, scale=scale)
    bias = bias if biased else None
    truth = naive_scores(features, weight, labels, bias)
    values = compute_scores(features, weight, labels, bias)
    assert values.pop("pred").tolist() == truth.pop("pred").tolist()
    assert values.keys() == truth.keys() == SCORES.keys()
    for name in SCORES:
        within(values[name], truth[name], name)


def test_the_numbers_that_scipy_knows():
    features, weight, labels, bias = triple(60, 24, 12)
    z = (features.double() @ weight.double().T + bias.double()).numpy()
    p = scipy.special.softmax(z, 1)
    values = {k: v.numpy() for k, v in compute_scores(features, weight, labels, bias).items()}
    rows = np.arange(60)
    expected = {"entropy": scipy.stats.entropy(p, axis=1), "free_energy": -scipy.special.logsumexp(z, 1)}
    expected |= {"confidence": p[rows, labels], "nll": -scipy.special.log_softmax(z, 1)[rows, labels]}
    expected |= {"el2n": np.linalg.norm(p - np.eye(12)[labels], axis=1)}
    for name, truth in expected.items():
        np.testing.assert_allclose(values[name], truth, rtol=1e-12, atol=1e-15, err_msg=name)


def test_worked_example():
    """x along the first axis; weights at 60°, 90° and 180° from it."""
    weight = torch.tensor([[0.5, math.sqrt(3) / 2], [0.0, 2.0], [-3.0, 0.0]])
    x, y = torch.tensor([[10.0, 0.0]]), torch.tensor([0])
    expected = {"avh": 60 / 330, "avc": 120 / 210, "angle": math.pi / 3, "angular_margin": math.radians(60 - 90)}
    expected |= {"norm": 10, "margin": 5, "max_logit": 5, "confidence": 1 / (1 + math.exp(-5) + math.exp(-35))}
    for name, value in expected.items():
        assert SCORES[name](x, weight, y).item() == pytest.approx(value), name


def test_values_of_the_paper_for_twelve_classes():
    """PAPERS.md §1.1.5: non-targets at 92° and the target at 30, 45, 60, 75°."""
    for degrees, avh, avc in ((30, 0.029, 0.134), (45, 0.043, 0.122), (60, 0.056, 0.110), (75, 0.069, 0.098)):
        target, other = math.radians(degrees), math.radians(92)
        weight = torch.eye(13)[:12] * math.sin(other)
        weight[:, 12] = math.cos(other)
        weight[0] = torch.eye(13)[0] * math.sin(target) + torch.eye(13)[12] * math.cos(target)
        x, y = torch.eye(13)[12:], torch.tensor([0])
        assert hs.avh(x, weight, y).item() == pytest.approx(avh, abs=6e-4)
        assert hs.avc(x, weight, y).item() == pytest.approx(avc, abs=6e-4)


# p → 1 and other ends.


@pytest.mark.parametrize("gap", [1.0, 10.0, 17.0, 30.0, 100.0, 600.0])
@pytest.mark.parametrize("classes", [3, 80])
def test_digits_are_kept_when_the_model_is_sure(gap, classes):
    """log p is 0 in float64 from a gap of 37 on, 1 − p in float32 from 17 on; ours follow m all the way."""
    weight = torch.zeros(classes, 2)
    weight[0, 0] = gap
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    m = math.log(classes - 1) - gap
    values = compute_scores(x, weight, y, None)
    exact = math.log1p(math.exp(m))
    assert values["nll"].item() == pytest.approx(exact, rel=1e-9)
    others = math.exp(m) / (1 + math.exp(m))
    assert values["el2n"].item() == pytest.approx(others * math.sqrt(1 + 1 / (classes - 1)), rel=1e-9)
    assert 1 - values["confidence"].item() == pytest.approx(others, abs=1e-15)
    assert hs.nll(x, weight, y).item() == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("gap", [50.0, 5000.0])
def test_a_hopeless_sample_is_finite(gap):
    weight = torch.tensor([[-gap, 0.0], [gap, 0.0], [0.0, 1.0]])
    values = compute_scores(torch.tensor([[1.0, 0.0]]), weight, torch.tensor([0]), None)
    assert values["nll"].item() == pytest.approx(2 * gap)
    assert values["confidence"].item() == pytest.approx(math.exp(-2 * gap))
    assert values["el2n"].item() == pytest.approx(math.sqrt(2))
    assert values["entropy"].item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("before", [0, 1500])
def test_prediction_ties_go_to_the_lower_class_as_in_argmax(before):
    weight = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    weight = torch.cat([torch.zeros(before, 2), weight])
    x, labels = torch.tensor([[1.0, 0.0]] * 4), torch.tensor([0, 1, 3, 2]) + before
    assert compute_scores(x, weight, labels, None)["pred"].tolist() == [before] * 4


def test_all_weights_coincide_with_the_feature():
    """0/0: no class is nearer than another, so each has an equal share."""
    for classes in (2, 5, 100):
        weight = torch.ones(classes, 3)
        x, y = torch.ones(2, 3), torch.tensor([0, 1])
        assert hs.avh(x, weight, y).tolist() == pytest.approx([1 / classes] * 2)
        assert hs.avc(-x, weight, y).tolist() == pytest.approx([1 / classes] * 2)


@pytest.mark.parametrize("classes", [4, 70])
def test_zero_features_are_at_chance(classes):
    weight, y = torch.randn(classes, 6), torch.tensor([1])
    values = compute_scores(torch.zeros(1, 6), weight, y, None)
    assert values["avh"].item() == pytest.approx(1 / classes, rel=1e-7)
    assert values["angle"].item() == pytest.approx(math.pi / 2)
    assert values["norm"].item() == 0
    assert values["entropy"].item() == pytest.approx(math.log(classes))


def test_hundred_thousand_classes():
    features, weight, labels, bias = triple(16, 24, 100_000)
    values = compute_scores(features, weight, labels, bias)
    x, w = features.double().numpy(), weight.double().numpy()
    z = x @ w.T + bias.double().numpy()
    cosines = (x / np.linalg.norm(x, axis=1, keepdims=True)) @ (w / np.linalg.norm(w, axis=1, keepdims=True)).T
    angles = np.arccos(cosines)
    rows = np.arange(16)
    within(values["avh"], angles[rows, labels] / angles.sum(1), "avh")
    within(values["confidence"], scipy.special.softmax(z, 1)[rows, labels], "confidence")
    within(values["nll"], -scipy.special.log_softmax(z, 1)[rows, labels], "nll")
    within(values["entropy"], scipy.stats.entropy(scipy.special.softmax(z, 1), axis=1), "entropy")
    assert (values["pred"].numpy() == z.argmax(1)).all()


# What public re-implementations got wrong (docs/choices.md).


def test_norms_are_per_row_and_sums_over_classes_not_over_the_batch():
    features, weight, labels, _ = triple(8, 5, 4)
    alone = torch.cat([hs.avh(features[i : i + 1], weight, labels[i : i + 1]) for i in range(8)])
    louder = torch.cat([features[:4], 100 * features[4:]])
    for given in (features, louder):
        torch.testing.assert_close(hs.avh(given, weight, labels), alone)
    total = sum(hs.avh(features, weight, torch.full((8,), k)) for k in range(4))
    torch.testing.assert_close(total, torch.ones(8))
    assert all(score(features, weight, labels).shape == (8,) for score in SCORES.values())


def test_margins_mask_the_target_with_minus_infinity_not_with_zero():
    """All other logits negative: masking with 0 would make 0 the runner-up."""
    weight = torch.tensor([[1.0, 0.0], [-0.5, 0.1], [-2.0, 0.1]])
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    assert hs.margin(x, weight, y).item() == pytest.approx(1.5)
    nearest = math.atan2(0.1, -0.5)
    assert hs.angular_margin(x, weight, y).item() == pytest.approx(-nearest)


# Options.


def test_without_a_bias_the_logits_are_the_papers():
    features, weight, labels, bias = triple()
    plain = (features @ weight.T).softmax(1)[torch.arange(40), labels]
    torch.testing.assert_close(hs.confidence(features, weight, labels), plain)
    assert not torch.allclose(hs.confidence(features, weight, labels, bias=bias), plain)
    torch.testing.assert_close(hs.avh(features, weight, labels, bias=bias), hs.avh(features, weight, labels))


@pytest.mark.parametrize("classes", [7, 90, 1100])
def test_without_labels_the_prediction_is_judged(classes):
    features, weight, _, bias = triple(30, 16, classes)
    pred = (features @ weight.T + bias).argmax(1)
    for name, score in SCORES.items():
        expected = score(features, weight, pred, bias=bias)
        torch.testing.assert_close(score(features, weight, bias=bias), expected, msg=name)
    columns = compute_scores(features, weight, None, bias)
    assert "avh_pred" in columns
    assert "avh" not in columns
    assert "entropy" in columns  # needs no label, keeps its name


@pytest.mark.parametrize("classes", [6, 80])
def test_every_score_is_differentiable(classes):
    features, weight, labels, bias = triple(4, 5, classes, dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (features, weight, bias)]

    assert torch.autograd.gradcheck(lambda f, w, b: tuple(compute_scores(f, w, labels, b).values())[1:], inputs)


def test_gradients_do_not_depend_on_the_block(monkeypatch):
    inputs = [t.requires_grad_() for t in triple(100, 5, 6, dtype=torch.float64) if t.is_floating_point()]
    labels, gradients = torch.arange(100) % 6, []
    for block in (2**20, 1):  # all rows at a time, and 32
        monkeypatch.setattr("hardsight.reading._CPU_BLOCK", block)
        values = compute_scores(inputs[0], inputs[1], labels, inputs[2])
        gradients.append(torch.autograd.grad(sum(values[name].sum() for name in SCORES), inputs))
    torch.testing.assert_close(*gradients)


def test_gradients_at_a_zero_feature_are_finite():
    weight, labels = torch.randn(5, 4, requires_grad=True), torch.tensor([0])
    for name in ("avh", "avc", "angle", "angular_margin"):
        x = torch.zeros(1, 4, requires_grad=True)
        SCORES[name](x, weight, labels).sum().backward()
        assert x.grad.tolist() == [[0.0] * 4]


def test_norm_within_class_is_min_max():
    norms, labels = torch.rand(100), torch.randint(0, 5, (100,))
    scaled = hs.scores.norm_within_class(norms, labels)
    for k in range(5):
        inside = norms[labels == k]
        torch.testing.assert_close(scaled[labels == k], (inside - inside.min()) / (inside.max() - inside.min()))
    assert hs.scores.norm_within_class(torch.ones(3), torch.tensor([0, 0, 1])).tolist() == [0.5] * 3
    gaps = hs.scores.norm_within_class(torch.tensor([1.0, 3.0, torch.nan, 2.0]), torch.tensor([7, 7, -1, -1]))
    assert gaps.tolist() == [
        0.0,
        1.0,
        0.5,
        0.5,
    ]  # numbers of classes may have gaps; a norm that is none spoils its class
    with pytest.raises(ValueError, match="one length"):
        hs.scores.norm_within_class(norms, labels[:4])


@pytest.mark.parametrize("classes", [200, 5000])
@pytest.mark.parametrize("spread", [0.0, 0.05, 1.0])  # every weight but the first on one axis, near it, anywhere
def test_the_series_stays_within_its_bound(classes, spread):
    weight = torch.eye(64)[:1] + 10 * spread**2 * torch.randn(classes, 64)
    weight[0, 1] += 1e-6
    features, labels = (
        (torch.randn(50, 64), torch.arange(50)) if spread == 1 else (torch.eye(64)[:1], torch.tensor([0]))
    )
    truth = hs.avh(features.double(), weight.double(), labels)
    value, error = hs.scores.avh_series(features, weight, labels)
    assert ((value - truth).abs() <= error * (1 + 1e-9)).all()
    assert (error >= 0).all()
    if spread == 1:
        assert (error / truth).max() < 0.05
    if spread == 0:
        assert truth.item() == pytest.approx(1)  # the target's angle is the whole sum
    with pytest.raises(ValueError, match="labels"):
        hs.scores.avh_series(features, weight, None)
    weight[3, 1] = math.nan
    for sums in (None, class_sums(weight)):
        with pytest.raises(ValueError, match="NaN"):
            hs.scores.avh_series(features, weight, labels, sums)


def test_memory_does_not_grow_with_classes_or_samples():
    """Blocks, not (N, C): the largest tensor made on the way is bounded."""
    features, weight, labels, bias = triple(3000, 8, 3000)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    with Watch():
        compute_scores(features, weight, labels, bias)
    assert largest <= 2**20


# Bad input: one sentence each.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.tensor([0, 1, 9])}, r"labels .*\[0, 3\].* 9 .*row 2"),
        ({"labels": torch.tensor([0, -1, 2])}, "labels .* -1 .*row 1"),
        ({"labels": torch.tensor([0, 1])}, r"labels .*\(3,\), got \(2,\)"),
        ({"labels": torch.eye(4)[:3].long()}, "one-hot"),
        ({"labels": torch.tensor([0.0, 1.0, 2.0])}, "labels .*integers"),
        ({"features": torch.randn(3, 6)}, "expected 5 .* got 6"),
        ({"features": torch.randn(3)}, r"features .*\(N, D\)"),
        ({"features": torch.full((3, 5), math.nan)}, "features .*3 of 3 rows"),
        ({"features": torch.tensor([[1.0] * 5, [math.inf] * 5, [0.0] * 5])}, r"1 of 3 .*row 1\)"),
        ({"weight": torch.randn(1, 5)}, "2 classes"),
        ({"weight": torch.full((4, 5), math.nan)}, "weight holds NaN"),
        ({"bias": torch.zeros(3)}, r"expected \(4,\), got \(3,\)"),
        ({"bias": torch.tensor([0.0, math.inf, 0, 0])}, "bias holds NaN"),
        ({"features": torch.randn(3, 5, dtype=torch.complex64)}, "real numbers"),
    ],
)
def test_bad_input_gets_a_sentence(change, message):
    given = {"features": torch.randn(3, 5), "weight": torch.randn(4, 5), "labels": torch.arange(3), "bias": None}
    with pytest.raises(ValueError, match=message):
        check_triple(**{**given, **change})


@pytest.mark.parametrize("features", [torch.full((2, 5), 3e38), torch.full((2, 5), 60000.0, dtype=torch.float16)])
def test_large_finite_features_are_not_called_infinite(features):
    assert torch.isfinite(hs.avh(features, torch.randn(4, 5), torch.tensor([0, 1]))).all()


def test_arrays_and_integer_features_are_welcome():
    features, weight, labels, _ = triple()
    torch.testing.assert_close(
        hs.avh(features.numpy(), weight.numpy(), labels.numpy().astype(np.uint8)), hs.avh(features, weight, labels)
    )
    assert hs.avh(np.eye(3, dtype=int), np.eye(3), [0, 1, 2]).tolist() == [0.0] * 3


def test_tied_runners_up_share_the_gradient():
    weight = torch.tensor([[0.0, 1], [1, 0], [1, 0], [-1, 0.3]], dtype=torch.float64, requires_grad=True)
    features = torch.tensor([[2.0, 0.5]], dtype=torch.float64, requires_grad=True)
    z = features @ weight.T
    expected = torch.autograd.grad(z[:, 1:].logsumexp(1) - z[:, 0], (features, weight))
    gradients = torch.autograd.grad(hs.SCORES["soft_margin"](features, weight, torch.tensor([0])), (features, weight))
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("classes", [10, 100, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_weights_tie_whatever_the_matrix_product_rounds(classes, dtype):
    """Every class twice: the lower of the two is predicted, whichever label is judged."""
    features, weight, labels, _ = triple(60, 512, classes, dtype=dtype)
    half = classes // 2
    weight[half : 2 * half] = weight[:half]
    exact = [[math.fsum((x * w).tolist()) for w in weight.double()[:half]] for x in features.double()[:5]]
    expected = np.argmax(exact, 1)
    for target in (labels, labels * 0, (labels + half) % classes):
        assert compute_scores(features, weight, target, None)["pred"][:5].tolist() == expected.tolist()
    assert (compute_scores(features, weight, labels, None)["pred"] < half).all()


@pytest.mark.parametrize("classes", [3, 80, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("apart", [1e-3, 1e-6])
def test_collapsed_heads(classes, dtype, apart):
    """All weights almost in one direction, the feature's: every angle is taken from the vectors."""
    base = torch.randn(32, dtype=torch.float64)
    weight = (base + apart * torch.randn(classes, 32, dtype=torch.float64)).to(dtype)
    features, labels = (2 * base).to(dtype).repeat(8, 1), torch.arange(8) % classes
    angles = hs.angles.paired_angle(features.double()[:, None], weight.double()[None])
    target = angles[torch.arange(8), labels]
    values = compute_scores(features, weight, labels, None)
    np.testing.assert_allclose(values["angle"], target, rtol=1e-6)
    np.testing.assert_allclose(values["avh"], target / angles.sum(1), rtol=1e-6)


def test_angles_of_a_hundred_millionth():
    x, weight = torch.tensor([[1.0, -1e-8]]).double(), torch.tensor([[1, 0], [1, 1e-8]]).double()
    assert hs.avh(x, weight, torch.tensor([0])).item() == pytest.approx(1 / 3, rel=1e-6)


def test_scores_travel_between_processes():
    assert pickle.loads(pickle.dumps(hs.avh)) is hs.avh


# Where float32 could not tell.


def large_logits():
    """Two others tie for the runner-up with huge logits."""
    weight = torch.randn(200, 64)
    features = 300 * weight[:20] + torch.randn(20, 64)
    weight[100:120] = weight[:20] * (1 + 1e-6)
    return features, weight, torch.arange(20), None


def large_bias():
    features, weight, labels, _ = triple(20, 16, 100)
    return features, weight, labels, torch.full((100,), 1e7)


def twins():
    """Every class twice, almost."""
    features, weight = 30 * torch.randn(60, 64), torch.randn(200, 64)
    return features, torch.cat([weight, weight * (1 + 2e-7)]), (features @ weight.T).argmax(1), None


@pytest.mark.parametrize("make", [large_logits, large_bias, twins])
def test_large_and_nearly_equal_logits(make):
    features, weight, labels, bias = make()
    target = labels[:1].expand(len(labels)) if make is large_bias else labels  # it must not be written to
    truth, values = naive_scores(features, weight, target, bias), compute_scores(features, weight, target, bias)
    assert values["pred"].tolist() == truth["pred"].tolist()
    for name in SCORES:
        within(values[name], truth[name], name)


@pytest.mark.parametrize("apart", [40, 1030])
def test_near_ties_of_small_logits_are_settled_in_float64(apart):
    """Every class twice, apart by less than float32 can tell."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 64, generator=draw)
    weight[:, 0] = 0
    weight /= weight.norm(dim=1, keepdim=True)
    features = weight + torch.randn(40, 64, generator=draw) / 8  # at some 45° from its class: no cosine is steep
    features[:, 0] = 0.1
    features /= features.norm(dim=1, keepdim=True)
    twins = weight.clone()
    twins[:, 0] = torch.where(torch.arange(40) % 2 == 0, 1e-8, -1e-8)  # every other twin wins by 1e-9
    weight = torch.cat([weight, torch.randn(apart - 40, 64, generator=draw) / 100, twins])
    logits = features.double() @ weight.double().T
    first, second = logits.topk(2).values.T
    assert ((first - second) < 2e-9).all()
    assert (logits.argmax(1) >= apart).tolist() == [True, False] * 20
    values = compute_scores(features, weight, logits.argmin(1), None)
    assert values["pred"].tolist() == logits.argmax(1).tolist()


@pytest.mark.parametrize("last", [True, False])
def test_opposite_weights(last):
    """A third of the weights point away but for 2e-4 radians, which float32 cosines round to π."""
    draw = torch.Generator().manual_seed(0)
    direction = torch.randn(1, 64, generator=draw)
    features = torch.tensor([[1.0], [2.0], [0.5]]) * direction
    opposite = -(direction + 2e-4 * torch.randn(512, 64, generator=draw))
    weight = torch.cat([torch.randn(1024, 64, generator=draw), opposite])
    weight = weight if last else weight.flip(0)
    labels = torch.tensor([0, 5, 7]) + (0 if last else 600)
    angles = hs.angles.paired_angle(features.double()[:, None], weight.double()[None])
    ordered = angles.sort(1).values
    assert ordered[:, 1024:].min() > math.pi - 1e-3
    assert ordered[:, 0].min() > 0.5
    assert ordered[:, 1023].max() < math.pi - 0.5
    expected = angles[torch.arange(3), labels] / angles.sum(1)
    within(compute_scores(features, weight, labels, None)["avh"], expected, "avh")
    within(hs.avh(features.double(), weight.double(), labels), expected, "avh")


@pytest.mark.parametrize("size", [1e-42, 1e-44])
def test_denormal_features_have_the_angles_that_their_numbers_say(size):
    draw = torch.Generator().manual_seed(0)
    features = size * torch.randn(12, 64, generator=draw).abs()
    weight = torch.randn(80, 64, generator=draw).abs()  # all cosines of one sign, so that errors add up
    labels = torch.arange(12)
    assert (features.abs().amax(1) > 0).all()
    truth = naive_scores(features, weight, labels)
    values = compute_scores(features, weight, labels, None)
    for name in ("avh", "avc", "angle", "angular_margin", "norm"):
        within(values[name], truth[name], name)
