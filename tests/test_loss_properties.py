"""Every loss that can be named, through the same named properties; a loss without an entry here fails."""

import math

import pytest
import torch

from hardsight.losses import LOSSES, build_loss

N, C, D = 24, 5, 8
COUNTS = torch.tensor([50, 20, 10, 5, 1])

# Name → how far float32 may be from float64, absolute + relative, on ordinary features (value, gradient).
TOLERANCES = {
    "ce": (1e-6, 1e-5),
    "el": (2e-6, 1e-5),
    "el:exact": (2e-6, 1e-5),
    "el:exact,start=0.5": (2e-6, 1e-5),
    "el:0.5,bonus=power": (2e-6, 1e-5),
    "el:0.5,bonus=cosine": (2e-6, 1e-5),
    "el:exact,match": (2e-6, 1e-5),
    "el:normal": (1e-5, 1e-4),
    "el:aggressive": (1e-5, 1e-4),
    "el:0.5,weight=effective": (2e-6, 1e-5),
    "focal": (1e-6, 1e-5),
    "mirror": (1e-6, 1e-5),
    "mirror:sigmoid": (1e-6, 1e-5),
    "mse": (1e-6, 1e-5),
    "mse:sigmoid": (1e-6, 1e-5),
    "angular:16": (1e-5, 1e-4),
    "cosine": (1e-5, 1e-4),
    "cosface": (1e-5, 1e-4),
    "arcface": (1e-5, 1e-4),
    "sphereface": (1e-5, 1e-4),
    "ldam": (1e-5, 1e-4),
    "adjusted": (1e-6, 1e-5),
    "el@arcface:0.3": (1e-5, 1e-4),
    "amc:1": (1e-6, 1e-5),
    "amc:1,pairs=classes": (1e-6, 1e-5),
    "amc:1,pairs=all": (1e-6, 1e-5),
    "euclid:1": (1e-5, 1e-5),
    "center:1": (1e-5, 1e-5),
}
DIRECTIONS = ("angular:16", "cosine", "cosface", "arcface", "sphereface", "ldam", "el@arcface:0.3")
PAIRS = ("amc:1", "amc:1,pairs=classes", "amc:1,pairs=all", "euclid:1", "center:1")
BY_CLASS = ("adjusted", "ldam", "effective", "pairs=classes")  # counts of each class, or their order
OURS = ("el", "focal", "mirror", "mse")  # torch's own cross-entropy is NaN without samples
# These see logits through differences alone; a sigmoid asks about each class by itself.
SHIFTED = [name for name in TOLERANCES if "sigmoid" not in name and name not in DIRECTIONS]


def build(name, dtype=torch.float64):
    return build_loss(name, counts=COUNTS, width=D, epochs=10).to(dtype)


def triple(dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(N, D, generator=generator, dtype=torch.float64)
    weight = scale * torch.randn(C, D, generator=generator, dtype=torch.float64)
    target = torch.randint(C, (N,), generator=generator)
    target[::2] = (features @ weight.T).argmax(1)[::2]  # half are right, as in life
    return features.to(dtype), weight.to(dtype), target


def value(name, features, weight, target, *, shift=0.0, loss=None):
    """The loss and its gradient at features and class weights."""
    features, weight = (t.detach().clone().requires_grad_() for t in (features, weight))
    loss = build(name, features.dtype) if loss is None else loss
    actual = loss(features @ weight.T + shift, target, features, weight)
    pairs = zip(torch.autograd.grad(actual, (features, weight), allow_unused=True), (features, weight), strict=True)
    return actual.detach(), [torch.zeros_like(t) if g is None else g for g, t in pairs]


def close(actual, expected, tolerance):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_every_part_of_the_catalogue_is_here():
    named = {piece.split(":")[0] for name in TOLERANCES for piece in name.replace("@", "+").split("+")}
    assert named == set(LOSSES)


@pytest.mark.parametrize("name", TOLERANCES)
def test_float32_is_float64_to_its_tolerance(name):
    at_value, at_gradient = TOLERANCES[name]
    expected, gradients = value(name, *triple())
    actual, ours = value(name, *triple(torch.float32))
    assert actual.dtype == torch.float32
    close(actual.double(), expected, at_value)
    for gradient, exact in zip(ours, gradients, strict=True):
        close(gradient.double(), exact, at_gradient)


@pytest.mark.parametrize("name", TOLERANCES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_logits_give_a_float32_loss(name, dtype):
    features, weight, target = (t.to(dtype) if t.is_floating_point() else t for t in triple())
    loss = build(name, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        logits = (features.float() @ weight.float().T).to(dtype)
        actual = loss(logits, target, features, weight)
    expected = build(name, torch.float32)(logits.float(), target, features.float(), weight.float())
    assert actual.dtype == torch.float32
    close(actual, expected, 1e-5)


@pytest.mark.parametrize("name", [name for name in TOLERANCES if name not in PAIRS])
def test_the_order_of_samples_does_not_matter(name):
    features, weight, target = triple()
    order = torch.randperm(N)
    close(value(name, features[order], weight, target[order])[0], value(name, features, weight, target)[0], 1e-12)


@pytest.mark.parametrize("name", [name for name in TOLERANCES if not any(word in name for word in BY_CLASS)])
def test_the_order_of_classes_does_not_matter(name):
    features, weight, target = triple()
    order = torch.randperm(C)
    other = torch.empty_like(order).scatter_(0, order, torch.arange(C))[target]
    close(value(name, features, weight[order], other)[0], value(name, features, weight, target)[0], 1e-12)


@pytest.mark.parametrize("name", SHIFTED)
def test_a_constant_on_all_logits_changes_nothing(name):
    expected, gradients = value(name, *triple())
    actual, ours = value(name, *triple(), shift=3.0)
    close(actual, expected, 1e-10)
    close(ours[0], gradients[0], 1e-10)


@pytest.mark.parametrize("name", DIRECTIONS)
def test_lengths_do_not_matter_to_directions(name):
    features, weight, target = triple()
    expected = value(name, features, weight, target)[0]
    for lengths in (1e-20, 1e20):
        close(value(name, lengths * features, weight, target)[0], expected, 1e-10)
        close(value(name, features, lengths * weight, target)[0], expected, 1e-10)


@pytest.mark.parametrize("name", TOLERANCES)
def test_extremes_are_finite_with_finite_gradients(name):
    features, weight, target = triple(torch.float32)
    zero = features.clone()
    zero[0] = 0
    same = features.clone()
    same[1], same[2] = weight[target[1]], -weight[target[2]]  # on its class, and opposite to it
    twins = features[:1].repeat(N, 1)
    for x, w in ((1e4 * features, weight), (zero, weight), (same, weight), (twins, weight), (features, 0 * weight)):
        actual, gradients = value(name, x, w, target)
        assert actual.isfinite(), name
        assert all(gradient.isfinite().all() for gradient in gradients), name


@pytest.mark.parametrize("name", TOLERANCES)
def test_a_batch_of_one_and_of_none(name):
    features, weight, target = triple()
    assert value(name, features[:1], weight, target[:1])[0].isfinite()
    if name.startswith(OURS):
        actual, gradients = value(name, features[:0], weight, target[:0])
        assert actual.item() == 0
        assert not gradients[1].any()


@pytest.mark.parametrize("name", [name for name in TOLERANCES if "match" not in name])  # a constant to the gradient
def test_gradients_are_the_slopes(name):
    features, weight, target = (t[:6] if t.shape[0] == N else t for t in triple())
    loss = build(name).eval()  # centers stay where they are
    features, weight = features.requires_grad_(), weight.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: loss(x @ w.T, target, x, w), (features, weight), atol=1e-6)


@pytest.mark.parametrize("name", [name for name in TOLERANCES if name not in PAIRS and "@" not in name])
def test_two_classes_and_many(name, recwarn):
    for classes in (2, 2000):
        generator = torch.Generator().manual_seed(1)
        features, weight = (torch.randn(n, D, generator=generator) for n in (4, classes))
        loss = build_loss(name, counts=torch.ones(classes), width=D, epochs=10)
        actual = loss(features @ weight.T, torch.tensor([0, 1, 1, 0]), features, weight)
        assert math.isfinite(actual.item())


@pytest.mark.parametrize("name", [name for name in TOLERANCES if name not in DIRECTIONS])
def test_masked_logits_are_the_limit_of_very_small_ones(name):
    features, weight, target = triple()

    def at(low):
        logits = (features @ weight.T).detach()
        logits[::3] = torch.where(torch.arange(C) == target[::3, None], 0.3, low)  # every class but the target
        logits[1, (target[1] + 1) % C] = low
        logits.requires_grad_()
        actual = build(name)(logits, target, features, weight)
        return actual.detach(), torch.autograd.grad(actual, logits)[0]

    actual, gradient = at(-math.inf)
    expected, limit = at(-1e4)
    assert gradient.isfinite().all()
    if name.startswith("el:exact") and "match" not in name:  # every masked sample is a reward without end
        assert actual == -math.inf
        close(gradient[::3].gather(1, target[::3, None]), torch.full((8, 1), -1 / N, dtype=torch.float64), 1e-12)
    elif "match" in name:
        assert not actual.isnan()
    else:
        close(actual, expected, 1e-12)
        close(gradient, limit, 1e-12)
