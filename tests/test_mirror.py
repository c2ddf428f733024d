"""The mirror bonus against its definition, torch's own losses, and the arithmetic of why it stalls."""

import pytest
import torch
import torch.nn.functional as F

from hardsight.losses import MirrorMSELoss

ACTIVATIONS = ["softmax", "sigmoid"]
CHECKED = MirrorMSELoss(validate=True)


def probabilities(z, activation):
    return z.softmax(1) if activation == "softmax" else z.sigmoid()


def defined(z, y, activation, mirror):
    """Squared error and bonus as the paper's code has them, element by element."""
    p = probabilities(z.double(), activation)
    error = y * (1 - p) ** 2 + (1 - y) * p**2
    bonus = -(y * p**2 + (1 - y) * (1 - p) ** 2)
    return error + bonus if mirror else error


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("mirror", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agrees_with_its_definition(activation, mirror, dtype):
    z, target = 3 * torch.randn(20, 5, dtype=dtype), torch.randint(5, (20,))
    hot = F.one_hot(target, 5)
    soft = torch.rand(20, 5, dtype=dtype)
    rounding = 4 * torch.finfo(dtype).eps
    for given, y in ((target, hot), (hot, hot), (hot.to(dtype), hot), (soft, soft.double())):
        expected = defined(z, y, activation, mirror)
        for reduction, value in (
            ("mean", expected.mean()),
            ("none", expected.mean(1)),
            ("sum", expected.mean(1).sum()),
        ):
            actual = MirrorMSELoss(activation, mirror, reduction)(z, given)
            assert actual.dtype == dtype
            torch.testing.assert_close(actual.double(), value, rtol=4 * rounding, atol=rounding)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mse_and_mirror_are_twice_the_absolute_error_less_1(activation):
    """Exactly: EL's Table 5 compares the squared with the absolute error."""
    z, target = 3 * torch.randn(50, 7, dtype=torch.float64), torch.randint(7, (50,))
    p, y = probabilities(z, activation), F.one_hot(target, 7).double()
    actual = MirrorMSELoss(activation)(z, target)
    torch.testing.assert_close(actual, 2 * F.l1_loss(p, y) - 1, rtol=0, atol=1e-15)
    torch.testing.assert_close(actual, F.mse_loss(p, y) + (-((1 - (p - y).abs()) ** 2)).mean(), rtol=0, atol=1e-15)
    torch.testing.assert_close(MirrorMSELoss(activation, mirror=False)(z, target), F.mse_loss(p, y), rtol=1e-14, atol=0)


def test_more_dimensions_are_more_samples():
    z, target = torch.randn(2, 5, 3, 4), torch.randint(5, (2, 3, 4))
    flat, rows = z.movedim(1, -1).reshape(-1, 5), target.reshape(-1)
    for activation in ACTIVATIONS:
        for reduction in ("mean", "sum"):
            loss = MirrorMSELoss(activation, reduction=reduction)
            torch.testing.assert_close(loss(z, target), loss(flat, rows))
        loss = MirrorMSELoss(activation, reduction="none")
        torch.testing.assert_close(loss(z, target).reshape(-1), loss(flat, rows))
        torch.testing.assert_close(loss(z, F.one_hot(target, 5).movedim(-1, 1)), loss(z, target))


@pytest.mark.parametrize("classes", [10, 100, 1000])
def test_why_it_stalls_with_many_classes(classes):
    """At the start, p = 1/K, the target logit's slope is 4(K−1)/K³ where cross-entropy has 1 − 1/K."""
    z = torch.zeros(1, classes, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([3])

    def slope(loss):
        (gradient,) = torch.autograd.grad(loss(z, target), z)
        return -gradient[0, 3].item()

    p = 1 / classes
    mirror, plain = MirrorMSELoss(), MirrorMSELoss(mirror=False)
    assert mirror(z, target).item() == pytest.approx(4 * (1 - p) / classes - 1)
    assert slope(mirror) == pytest.approx(4 * p * (1 - p) / classes)
    assert slope(plain) == pytest.approx(slope(mirror) / 2)
    assert slope(F.cross_entropy) == pytest.approx(1 - p)
    assert slope(F.cross_entropy) / slope(mirror) == pytest.approx({10: 25, 100: 2500, 1000: 250_000}[classes])

    # The same steps on free logits: cross-entropy arrives, the mirror has hardly moved.
    reached = {}
    for name, loss in (("ce", F.cross_entropy), ("mirror", mirror)):
        v = torch.zeros(1, classes, requires_grad=True)
        for _ in range(50):
            (gradient,) = torch.autograd.grad(loss(v, target), v)
            v = (v - gradient).detach().requires_grad_()
        reached[name] = v.softmax(1)[0, 3].item()
    assert reached["ce"] > 0.9
    assert reached["mirror"] < {10: reached["ce"], 100: 1.3 * p, 1000: 1.01 * p}[classes]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("mirror", [True, False])
def test_gradients_are_the_slopes_and_keep_their_digits_as_p_goes_to_1(activation, mirror):
    """p = 1 − 1e-12, where 1 − p is 0 in float32."""
    z = torch.tensor([[28.0, 0.0, -0.5], [28.5, -2.0, 0.1]])
    target = torch.tensor([0, 0])
    gradients = []
    for dtype in (torch.float32, torch.float64):
        v = z.to(dtype).requires_grad_()
        gradients += torch.autograd.grad(MirrorMSELoss(activation, mirror)(v, target), v)
    assert gradients[1].abs().min() > 0
    torch.testing.assert_close(gradients[0].double(), gradients[1], rtol=1e-5, atol=0)
    v = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda v: MirrorMSELoss(activation, mirror)(v, torch.tensor([0, 1, 2, 1])), (v,))
    # Huge logits.
    z = torch.tensor([[1e4, -1e4, -1e4], [-1e4, 1e4, -1e4]], requires_grad=True)
    loss = MirrorMSELoss(activation, mirror, "none")(z, torch.tensor([0, 0]))
    assert loss.tolist() == pytest.approx([-1, 1 / 3] if mirror else [0, 2 / 3])
    loss.sum().backward()
    assert z.grad.abs().max() == 0


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_ignored_targets_count_for_nothing(activation):
    z, target = torch.randn(6, 4, requires_grad=True), torch.randint(4, (6,))
    some = target.clone()
    some[::2] = -100
    loss = MirrorMSELoss(activation)
    torch.testing.assert_close(loss(z, some), loss(z[1::2], target[1::2]))
    torch.testing.assert_close(MirrorMSELoss(activation, ignore_index=2)(z, torch.full((6,), 2)), torch.zeros(()))
    many, last = torch.randn(1, 200), torch.tensor([156], dtype=torch.uint8)  # which −100 would be as a uint8
    torch.testing.assert_close(loss(many, last), loss(many, last.long()))
    for nothing in (loss(z, torch.full((6,), -100)), loss(z[:0], target[:0]), loss(z[:0], z[:0].detach())):
        assert nothing.item() == 0
        (gradient,) = torch.autograd.grad(nothing, z)
        assert gradient.abs().max() == 0


@pytest.mark.slow
def test_compiles_whole_and_so_looks_at_no_value():
    z, target = torch.randn(8, 5, requires_grad=True), torch.randint(5, (8,))
    losses = [MirrorMSELoss(activation, mirror) for activation in ACTIVATIONS for mirror in (True, False)]
    everything = lambda z: sum(loss(z, target) for loss in losses)  # noqa: E731
    actual = torch.compile(everything, fullgraph=True, backend="aot_eager")(z)
    torch.testing.assert_close(actual, everything(z))
    torch.testing.assert_close(torch.autograd.grad(actual, z), torch.autograd.grad(everything(z), z))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: MirrorMSELoss("tanh"), "activation .*got 'tanh'"),
        (lambda: MirrorMSELoss(reduction="avg"), "reduction .*'avg'"),
        (lambda: MirrorMSELoss()(torch.zeros(4, 3), torch.zeros(3).long()), r"got \(3,\) .*for \(4, 3\)"),
        (lambda: MirrorMSELoss()(torch.zeros(4), torch.zeros(4)), r"got \(4,\) .*for \(4,\)"),
        (lambda: MirrorMSELoss()(torch.zeros(4, 3), torch.zeros(4)), r"integers, .*torch\.float32"),
        (lambda: CHECKED(torch.zeros(2, 3), torch.tensor([-100, 3])), r"target .*\[0, 2\], got 3"),
        (lambda: CHECKED(torch.zeros(1, 2), torch.tensor([[0.5, 1.5]])), r"target .*\[0, 1\], got 1\.5"),
        (lambda: CHECKED(torch.zeros(1, 2) / 0, torch.tensor([0])), "input must .*NaN"),
    ],
)
def test_bad_input_is_a_sentence(call, says):
    with pytest.raises(ValueError, match=says):
        call()
