"""Pair losses against naive loops, scipy and worked examples; pairings by counting; centers against their equations."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.spatial.distance import pdist

from hardsight.data import load_digits
from hardsight.losses import AMCLoss, CenterLoss, EuclideanContrastiveLoss, contrastive, pair_indices

LOSSES = [AMCLoss, EuclideanContrastiveLoss]
PAIRINGS = ["halves", "classes", "all"]


def batch(n=12, width=6, classes=3, dtype=torch.float64):
    return torch.randn(n, width, dtype=dtype), torch.randint(classes, (n,))


def naive(kind, x, y, pairs, margin):
    """The value of each pair, one at a time."""
    values = []
    for i, j in pairs:
        if kind is AMCLoss:
            d = math.acos(np.dot(x[i], x[j]) / math.sqrt(np.dot(x[i], x[i]) * np.dot(x[j], x[j])))
        else:
            d = math.sqrt(sum((a - b) ** 2 for a, b in zip(x[i], x[j], strict=True)))
        values.append(d**2 if y[i] == y[j] else max(margin - d, 0) ** 2)
    return torch.tensor(values, dtype=torch.float64)


# ---------------------------------------------------------------------------------------------------------------------
# Which pairs.


def listed(labels, pairing):
    return list(zip(*(side.tolist() for side in pair_indices(labels, pairing)), strict=True))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 8, 9])
def test_which_samples_are_compared(n):
    y, half = torch.randint(3, (n,)), n // 2
    halves = [(i, i + half) for i in range(half)]
    assert listed(y, "halves") == halves
    every = listed(y, "all")
    assert len(every) == n * (n - 1) // 2
    assert {frozenset(pair) for pair in every} == {frozenset((i, j)) for i in range(n) for j in range(i)}
    order = sorted(range(n), key=lambda i: y[i])  # neighbors in the order of their labels, and the halves
    assert listed(y, "classes") == [*zip(order[: 2 * half : 2], order[1 : 2 * half : 2], strict=True), *halves]


@pytest.mark.parametrize(("classes", "n"), [(2, 128), (10, 128), (100, 128)])
def test_the_share_of_pairs_of_one_class_is_what_the_docstring_says(classes, n):
    shares = {name: [] for name in PAIRINGS}
    present = []
    for _ in range(300):
        y = torch.randint(classes, (n,))
        present.append(len(y.unique()))
        for name in PAIRINGS:
            left, right = pair_indices(y, name)
            shares[name].append((y[left] == y[right]).double().mean())
    actual = {name: torch.stack(values).mean().item() for name, values in shares.items()}
    assert actual["halves"] == pytest.approx(1 / classes, rel=0.15)
    assert actual["all"] == pytest.approx(1 / classes, rel=0.05)
    expected = (1 - (np.mean(present) - 1) / n + 1 / classes) / 2
    assert actual["classes"] == pytest.approx(expected, rel=0.03)


def test_class_aware_unlike_pairs_show_every_two_classes_to_one_another():
    """Halves of a sorted batch would not: class k would meet k + C/2 and hardly another."""
    met = torch.zeros(10, 10)
    for _ in range(200):
        y = torch.randint(10, (128,))
        left, right = pair_indices(y, "classes")
        met.index_put_((y[left], y[right]), torch.ones(()), accumulate=True)
    met = (met + met.T).masked_fill(torch.eye(10, dtype=torch.bool), math.inf)
    assert met.min() > 100  # of about 256 each


# ---------------------------------------------------------------------------------------------------------------------
# Values.


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("n", [12, 13])
def test_agrees_with_a_loop_over_pairs(kind, pairing, n):
    x, y = batch(n)
    margin = 1.5 if kind is AMCLoss else 3.0
    expected = naive(kind, x.numpy(), y.tolist(), listed(y, pairing), margin)
    assert (expected > 0).sum() > 0
    for reduction, value in (("none", expected), ("sum", expected.sum()), ("mean", expected.mean())):
        loss = kind(margin, pairs=pairing, reduction=reduction, weight=0.3)
        torch.testing.assert_close(loss(x, y), 0.3 * value, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(loss(x.float(), y).double(), 0.3 * value, rtol=1e-5, atol=1e-5)


def test_all_pairs_agree_with_scipy():
    x, y = batch(15)
    same = torch.from_numpy(pdist(y[:, None].numpy(), "hamming") == 0)
    angles, lengths = torch.from_numpy(np.arccos(1 - pdist(x, "cosine"))), torch.from_numpy(pdist(x))
    options = {"pairs": "all", "reduction": "none"}
    torch.testing.assert_close(AMCLoss(2.0, **options)(x, y), contrastive(angles, same, 2.0))
    torch.testing.assert_close(EuclideanContrastiveLoss(4.0, **options)(x, y), contrastive(lengths, same, 4.0))


def test_presets_are_the_paper_s_algorithm_1_and_the_released_code():
    x, y = batch(16)
    values = AMCLoss(reduction="none")(x, y)
    paper, released = AMCLoss(preset="paper")(x, y), AMCLoss(preset="released")(x, y)
    torch.testing.assert_close(paper, 0.1 / 16 * values.sum())  # λ/|B| · Σ over pairs
    torch.testing.assert_close(released, 100 * 0.1 * values.mean())  # wght_max · coeff · mean
    torch.testing.assert_close(released, 200 * paper)
    torch.testing.assert_close(AMCLoss()(x, y), values.mean())


def test_the_length_of_features_does_not_matter_to_the_angle():
    x, y = batch(dtype=torch.float32)
    for pairing in PAIRINGS:
        loss = AMCLoss(2.0, pairs=pairing)
        for size in (1e-30, 1e30):
            torch.testing.assert_close(loss(size * x, y), loss(x, y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("n", [0, 1])
def test_without_a_pair_the_loss_is_0_with_a_zero_gradient(kind, pairing, n):
    x, y = batch(n)
    x.requires_grad_()
    loss = kind(pairs=pairing)(x, y)
    assert loss.item() == 0
    (gradient,) = torch.autograd.grad(loss, x)
    assert gradient.abs().sum() == 0
    assert kind(pairs=pairing, reduction="none")(x, y).shape == (0,)


def test_labels_of_any_integer_type_predicted_true_or_mixed():
    x, y = batch()
    logits, labelled = torch.randn(12, 3), torch.arange(12) < 6
    mixed = torch.where(labelled, y, logits.argmax(1))
    assert AMCLoss(validate=True)(x, -y).isfinite()  # any integers
    for labels in (y, logits.argmax(1), mixed):
        expected = AMCLoss(pairs="classes")(x, labels)
        for dtype in (torch.int32, torch.uint8):
            torch.testing.assert_close(AMCLoss(pairs="classes")(x, labels.to(dtype)), expected)


# ---------------------------------------------------------------------------------------------------------------------
# Gradients.


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_gradients_agree_with_finite_differences(kind, pairing):
    x, y = batch(6, 4)
    loss = kind(1.7 if kind is AMCLoss else 3.1, pairs=pairing)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x: loss(x, y), (x.requires_grad_(),))


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coincident_opposite_and_zero_features_have_no_gradient_where_none_is_defined(kind, pairing, dtype):
    u = torch.randn(1, 5, dtype=dtype)
    zero = torch.zeros_like(u)
    cases = [(u, u), (zero, zero)] + [(u, -2 * u), (u, 3 * u), (u, zero)] * (kind is AMCLoss)
    for first, second in cases:
        for labels in ([0, 0], [0, 1]):
            x = torch.cat([first, second]).requires_grad_()
            loss = kind(pairs=pairing)(x, torch.tensor(labels))
            loss.backward()
            assert torch.isfinite(loss)
            assert x.grad.abs().max() == 0


def test_next_to_coincident_the_gradient_is_small_and_right():
    """Of θ² it has length 2θ; in float32, where arccos of a dot product would be noise."""
    u = F.normalize(torch.randn(50, 16, dtype=torch.float64), dim=1)
    step = torch.randn_like(u)
    step -= (step * u).sum(1, keepdim=True) * u
    v = F.normalize(u + 1e-3 * F.normalize(step, dim=1), dim=1)
    x = torch.cat([u, v]).float().requires_grad_()
    AMCLoss(reduction="sum")(x, torch.zeros(100)).backward()
    torch.testing.assert_close(x.grad.norm(dim=1), torch.full((100,), 2e-3), rtol=1e-3, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_whole_and_so_looks_at_no_value(backend):
    x, y = batch(dtype=torch.float32)
    x.requires_grad_()
    losses = [kind(2.0, pairs=pairing) for kind in LOSSES for pairing in PAIRINGS]
    losses = losses[:1] if backend == "inductor" else losses  # which is slow: the paper's form alone
    everything = lambda x: sum(loss(x, y) for loss in losses)  # noqa: E731
    actual = torch.compile(everything, fullgraph=True, backend=backend)(x)
    torch.testing.assert_close(actual, everything(x))
    gradients = [torch.autograd.grad(loss, x)[0] for loss in (actual, everything(x))]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_amc_brings_real_digits_of_one_class_closer_in_angle():
    images, labels = load_digits()
    x, y = torch.from_numpy(images).flatten(1).float() / 255, torch.from_numpy(labels)
    spread = {}
    for name, amc in (("ce", None), ("halves", AMCLoss()), ("classes", AMCLoss(pairs="classes"))):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
        head = torch.nn.Linear(16, 10)
        optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], 0.01)
        for rows in torch.randperm(len(x)).repeat(2).split(64):
            features = net(x[rows])
            loss = F.cross_entropy(head(features), y[rows])
            if amc is not None:
                loss = loss + amc(features, y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            features = net(x)
            assert (head(features).argmax(1) == y).float().mean() > 0.85
            within = [AMCLoss(pairs="all")(features[y == k], y[y == k]) for k in range(10)]  # mean of θ²
            spread[name] = torch.stack(within).mean().sqrt().item()
    assert spread["halves"] < 0.9 * spread["ce"]
    assert spread["classes"] < 0.9 * spread["halves"]  # more pairs of one class, a stronger pull


# ---------------------------------------------------------------------------------------------------------------------
# Center loss.


def test_center_loss_and_its_centers_follow_the_equations():
    loss = CenterLoss(4, 3, rate=0.3, weight=0.7).double()
    centers = np.zeros((4, 3))
    for _ in range(5):
        x, y = torch.randn(10, 3, dtype=torch.float64), torch.randint(3, (10,))  # class 3 never occurs
        expected = 0.7 * 0.5 * np.mean([np.sum((x[i].numpy() - centers[y[i]]) ** 2) for i in range(10)])
        assert loss(x, y).item() == pytest.approx(expected, rel=1e-12)
        for j in range(4):
            members = x[y == j].numpy()
            centers[j] -= 0.3 * np.sum(centers[j] - members, axis=0) / (1 + len(members))
        np.testing.assert_allclose(loss.centers, centers, rtol=1e-12)
    assert centers[3].tolist() == [0, 0, 0]


def test_centers_are_state_that_moves_in_training_alone_and_reaches_the_class_means():
    x, y = torch.randn(40, 3) + 5, torch.arange(40) % 4
    loss = CenterLoss(4, 3)
    assert not list(loss.parameters())
    loss.eval()
    loss(x, y)
    assert loss.centers.abs().max() == 0
    loss.train()
    for _ in range(60):
        loss(x, y)
    means = torch.stack([x[y == k].mean(0) for k in range(4)])
    torch.testing.assert_close(loss.centers, means, rtol=1e-4, atol=1e-4)
    again = CenterLoss(4, 3)
    again.load_state_dict(loss.state_dict())
    torch.testing.assert_close(again.centers, loss.centers)


def test_center_loss_gradients_go_to_the_features_alone_even_after_the_centers_moved():
    x, y = torch.randn(6, 3, dtype=torch.float64, requires_grad=True), torch.arange(6) % 2
    loss = CenterLoss(2, 3, weight=1.0).double()
    first = loss(x, y)
    centers = loss.centers.clone()
    (first + loss(x, y)).backward()
    torch.testing.assert_close(x.grad, (x.detach() - 0 + x.detach() - centers[y]) / 6)
    loss.eval()
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x: loss(x, y), (x,))


def test_center_loss_of_nothing_is_0_and_of_half_precision_float32():
    loss = CenterLoss(2, 3)
    x = torch.randn(4, 3, requires_grad=True)
    nothing = loss(x[:0], torch.zeros(0, dtype=torch.long))
    nothing.backward()
    assert nothing.item() == 0
    assert x.grad.abs().max() == 0
    assert loss.centers.abs().max() == 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(x.bfloat16(), torch.zeros(4, dtype=torch.uint8)).dtype == torch.float32
    assert loss.centers.dtype == torch.float32


@pytest.mark.slow
def test_center_loss_compiles_whole_and_moves_its_centres():
    x, y = batch(dtype=torch.float32)
    plain, compiled = CenterLoss(3, 6), CenterLoss(3, 6)
    step = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        torch.testing.assert_close(step(x, y), plain(x, y))
        torch.testing.assert_close(compiled.centers, plain.centers)


# ---------------------------------------------------------------------------------------------------------------------
# What is refused, in a sentence.

X, Y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda kind: kind(0.0), "margin must"),
        (lambda kind: kind(math.nan), "margin must"),
        (lambda kind: kind(math.inf), "margin must"),
        (lambda kind: kind(preset="paper", weight=1.0), "weight or preset"),
        (lambda kind: kind(preset="Paper"), "preset .*got 'Paper'"),
        (lambda kind: kind(weight=-1.0), "weight must"),
        (lambda kind: kind(pairs="half"), "pairs .*got 'half'"),
        (lambda kind: kind(reduction="avg"), "reduction .*'avg'"),
        (lambda kind: kind()(X[0], Y), r"features .*\(N, D\).*got \(3,\)"),
        (lambda kind: kind()(X.long(), Y), r"features .* torch\.int64"),
        (lambda kind: kind()(X, Y[:3]), r"labels .*\(4,\), got \(3,\)"),
        (lambda kind: kind()(X, torch.randn(4, 2)), r"\(4, 2\); .*logits\.argmax\(1\)"),
        (lambda kind: kind(validate=True)(X / 0 * 0, Y), "features must .*NaN"),
    ],
)
def test_bad_input_is_a_sentence(kind, call, says):
    with pytest.raises(ValueError, match=says):
        call(kind)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: AMCLoss(3.5), r"margin .*3\.1416\], got 3\.5"),
        (lambda: pair_indices(Y, "none"), "pairs .*'none'"),
        (lambda: CenterLoss(0, 3), "classes .*must"),
        (lambda: CenterLoss(2, 3, rate=1.5), r"rate .*1\.5"),
        (lambda: CenterLoss(2, 3, weight=math.nan), "weight must"),
        (lambda: CenterLoss(2, 4)(X, Y), r"features .*\(N, 4\) .*\(4, 3\)"),
        (lambda: CenterLoss(2, 3)(X, Y[:1]), r"labels .*\(4,\)"),
        (lambda: CenterLoss(2, 3, validate=True)(X, Y + 1), r"labels .*\[0, 1\], got 2"),
        (lambda: CenterLoss(2, 3, validate=True)(X, Y - 1), r"labels .*\[0, 1\], got -1"),
        (lambda: CenterLoss(2, 3, validate=True)(X * math.inf, Y), "features must .*NaN"),
    ],
)
def test_bad_options_are_a_sentence(call, says):
    with pytest.raises(ValueError, match=says):
        call()
