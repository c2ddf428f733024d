"""Attacks: captum's pixels, closed forms of linear networks, APGD's accuracy; balls, boxes and bad input."""

import logging
import math
from copy import deepcopy

import pytest
import torch
from attacked_networks import Around, digits, trained
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hardsight.questions import ATTACKS, attack, attacks
from hardsight.questions.attacks import LOSSES, loss_gradient, project

OURS = [name for name in ATTACKS if name != "autoattack"]


@pytest.fixture(scope="module")
def network():
    return trained()


@pytest.fixture(scope="module")
def pictures():
    x, y = digits()
    return x[1400:1600], y[1400:1600]


def left(network, pictures, name="pgd", **options):
    found = attack(network, *pictures, name, **options)
    return found.logits.argmax(1) == pictures[1]


def distance(a, b, norm):
    change = (a - b).flatten(1)
    return change.abs().amax(1) if norm == "inf" else change.norm(dim=1)


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")
def test_fgsm_finds_the_pixels_that_captum_finds(network, pictures):
    from captum.robust import FGSM

    x, y = pictures

    def loss(logits, labels):  # captum takes gradients below 1e-6 for 0
        return 1e9 * nn.functional.cross_entropy(logits, labels, reduction="none")

    theirs = FGSM(network, loss, 0.0, 1.0).perturb(x, 0.1, y)
    assert (attack(network, x, y, "fgsm", eps=0.1).x - theirs).abs().max() < 1e-6


@pytest.mark.parametrize(("norm", "eps"), [("inf", 0.1), ("2", 1.0)])
def test_pgd_is_a_naive_loop_in_float64(network, pictures, norm, eps):
    x, y = pictures[0][:20].double(), pictures[1][:20]
    own, point = deepcopy(network).double(), pictures[0][:20].double()
    for step in range(7):
        point = point.clone().requires_grad_()
        nn.functional.cross_entropy(own(point), y, reduction="sum").backward()
        for i, slope in enumerate(point.grad):
            way = slope.sign() if norm == "inf" else slope / slope.norm()
            change = (
                point[i].detach() - x[i] + eps * math.cos(math.pi * step / 14) ** 2 * way
            )  # half the angle, squared
            length = change.abs().max() if norm == "inf" else change.norm()
            change = change.clamp(-eps, eps) if norm == "inf" else change * min(1.0, eps / length)
            point = point.detach()
            point[i] = (x[i] + change).clamp(0, 1)
    ours = attack(network, *(part[:20] for part in pictures), "pgd", eps=eps, norm=norm, steps=7, track=True)
    assert (ours.trajectory[-1] - point).abs().max() < 1e-4


@pytest.mark.parametrize(("norm", "eps"), [("inf", 0.08), ("inf", 0.12), ("2", 0.6)])
def test_what_the_margin_leaves_is_what_the_two_apgd_of_autoattack_leave(network, pictures, norm, eps):
    from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted

    x, y = pictures
    rest, kind = network(x).argmax(1) == y, {"inf": "Linf", "2": "L2"}[norm]
    options = {"logger": logging.getLogger("apgd"), "n_iter": 30, "eps": eps, "norm": kind, "seed": 0, "device": "cpu"}
    for theirs in (APGDAttack(network, loss="ce", **options), APGDAttack_targeted(network, **options)):
        rest[rest.clone()] &= network(theirs.perturb(x[rest], y[rest])).argmax(1) == y[rest]
    ours = left(network, pictures, {"inf": "pgd-margin", "2": "pgd-margin-l2"}[norm], eps=eps)
    assert 0.2 < rest.float().mean() < 0.9
    assert float(ours.float().mean() - rest.float().mean()) < 0.02


def test_autoattack_leaves_no_more_than_pgd(network, pictures):
    few = pictures[0][:40], pictures[1][:40]
    state = torch.random.get_rng_state()
    found = attack(network, *few, "autoattack", eps=0.3)
    assert (state == torch.random.get_rng_state()).all()
    rest = found.logits.argmax(1) == few[1]
    assert rest.sum() <= left(network, few, "pgd-margin", eps=0.3).sum()
    assert distance(found.x, few[0], "inf").max() < 0.3 + 1e-6
    assert (found.x == found.x.clamp(0, 1)).all()


def test_of_a_hidden_layer_that_saturates_for_some_little_is_left_that_autoattack_does_not_leave(pictures):
    network = trained(activation=nn.Sigmoid)
    for values in (network[1].weight, network[1].bias):
        values.data *= 100  # which no check for gradient masking sees
    theirs = attack(network, *pictures, "autoattack", eps=0.3).logits.argmax(1) == pictures[1]
    ours = left(network, pictures, "pgd-margin", eps=0.3)
    assert float(ours.float().mean() - theirs.float().mean()) < 0.03


def binary(seed=0):
    """A linear network of two classes, its normal, and its margins at pictures far from black and white."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
    x = 0.4 + 0.2 * torch.rand(300, 1, 6, 6)
    weight = network[1].weight.detach()
    network[1].bias.data = -0.5 * weight.sum(1)  # as many of the one class as of the other
    y = network(x).argmax(1)
    normal = torch.where(y[:, None] == 1, weight[1] - weight[0], weight[0] - weight[1])
    return network, x, y, normal, -LOSSES["margin"](network(x), y).detach()


@pytest.mark.parametrize(("norm", "dual"), [("inf", 1), ("2", 2)])
@pytest.mark.parametrize("loss", ["ce", "margin"])
def test_of_a_binary_linear_network_the_exact_robust_accuracy_is_reached(norm, dual, loss):
    network, x, y, normal, margin = binary()
    reach = torch.linalg.vector_norm(normal, dual, dim=1)  # what ε = 1 takes from the margin
    eps = float((margin / reach).median())
    exact = margin > eps * reach
    far = (margin - eps * reach).abs() > 1e-5
    assert eps < 0.3, "the box must not matter"
    assert 0.3 < exact.float().mean() < 0.7
    found = left(network, (x, y), "pgd", eps=eps, norm=norm, loss=loss)
    assert (found == exact)[far].all()


def test_of_a_binary_linear_network_in_the_box_the_exact_worst_picture_is_found():
    network, _, _, _, _ = binary()
    x = torch.rand(200, 1, 6, 6)
    y = network(x).argmax(1)
    weight = network[1].weight.detach()
    normal = torch.where(y[:, None] == 1, weight[1] - weight[0], weight[0] - weight[1]).view_as(x)
    exact = (x - 0.3 * normal.sign()).clamp(0, 1)
    end = attack(network, x, y, "pgd-margin", eps=0.3, track=True).trajectory[-1]
    assert torch.allclose(end, exact, atol=1e-6)


def test_the_dlr_loss_is_that_of_its_paper_by_hand():
    logits = torch.tensor([[4.0, 1.0, 0.0, -3.0], [1.0, 5.0, 3.0, 0.0]])
    assert LOSSES["dlr"](logits, torch.tensor([0, 0])).tolist() == [-3 / 4, 4 / 4]
    assert LOSSES["margin"](logits, torch.tensor([0, 0])).tolist() == [-3, 4]
    assert torch.isfinite(LOSSES["dlr"](torch.ones(1, 4), torch.tensor([0]))).all()


@pytest.mark.parametrize("name", ["pgd-margin", "pgd-dlr", "pgd-margin-l2"])
def test_a_scale_of_the_logits_changes_nothing_for_attacks_without_a_scale(network, pictures, name):
    eps = 1.0 if name.endswith("l2") else 0.1
    plain = attack(network, *pictures, name, eps=eps)
    for scale in (2.0**13, 2.0**-13):
        scaled = attack(Around(network, after=lambda z, scale=scale: z * scale), *pictures, name, eps=eps)
        assert torch.allclose(scaled.x, plain.x, atol=1e-6)
    ten_thousand = left(Around(network, after=lambda z: z * 1e4), pictures, name, eps=eps)
    assert (ten_thousand != (plain.logits.argmax(1) == pictures[1])).float().mean() <= 0.01


def test_cross_entropy_stands_still_under_large_logits_and_tiny_gradients_still_lead_somewhere(network, pictures):
    right = network(pictures[0]).argmax(1) == pictures[1]
    masked = Around(network, after=lambda z: z * 1e4)
    assert left(masked, pictures, "pgd", eps=1.0)[right].float().mean() > 0.95
    assert not left(masked, pictures, "pgd-margin", eps=1.0).any()
    faint = Around(network, after=lambda z: z * 1e-25)  # the squares of gradients vanish
    plain = attack(network, *pictures, "pgd-margin-l2", eps=1.0)
    assert torch.allclose(attack(faint, *pictures, "pgd-margin-l2", eps=1.0).x, plain.x, atol=1e-3)


@pytest.mark.parametrize("hidden", [0, 48])
@pytest.mark.parametrize("name", ["pgd", "pgd-margin", "pgd-dlr"])
def test_nothing_is_left_where_any_picture_may_become_any_other(hidden, name, pictures):
    assert not left(trained(1, hidden, epochs=3), pictures, name, eps=1.0).any()


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("eps", [0.0, 1 / 255, 0.3, 1.0])
def test_no_picture_leaves_its_ball_or_the_box(network, pictures, name, eps):
    x, y = pictures
    found = attack(network, x, y, name, eps=eps, restarts=1, track=True)
    assert found.x.dtype == found.logits.dtype == torch.float32
    for point in (found.x, *found.trajectory):
        assert distance(point, x, ATTACKS[name].norm).max() <= eps * (1 + 1e-6) + 1e-7
        assert (point == point.clamp(0, 1)).all()
    assert torch.allclose(network(found.x), found.logits, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 3), st.sampled_from(["inf", "2"]), st.integers(0, 10**6))
def test_whatever_the_point_it_comes_back_within(eps, norm, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(3, 2, 2, generator=generator)
    point = project(x + 10 * torch.randn(3, 2, 2, generator=generator), x, eps, norm)
    assert distance(point, x, norm).max() <= eps + 1e-6
    assert (point == point.clamp(0, 1)).all()
    assert torch.allclose(project(point, x, eps, norm), point, atol=1e-6)


def test_a_path_begins_at_the_picture_and_what_was_fooled_on_the_way_stays_fooled(network, pictures):
    short = attack(network, *pictures, "pgd", eps=0.1, steps=5, track=True)
    assert short.trajectory.shape == (6, *pictures[0].shape)
    assert (short.trajectory[0] == pictures[0]).all()
    assert torch.allclose(short.end, network(short.trajectory[-1]), atol=1e-5)
    found = attack(network, *pictures, "pgd", eps=0.1, track=True)
    ever = torch.stack([network(point).argmax(1) != pictures[1] for point in found.trajectory]).any(0)
    assert (ever == (found.logits.argmax(1) != pictures[1])).all()
    assert (found.survived == ~ever).all()
    more = attack(network, *pictures, "pgd-margin", eps=0.1)
    assert (more.logits.argmax(1) == pictures[1]).sum() < more.survived.sum()
    assert (more.survived == left(network, pictures, "pgd-margin", eps=0.1, restarts=0)).all()


@pytest.mark.parametrize("name", ["pgd", "pgd-margin", "pgd-margin-l2", "pgd-dlr", "noise"])
def test_restarts_only_ever_fool_more_and_a_seed_repeats_them(network, pictures, name):
    eps = 0.8 if name.endswith("l2") else 0.1
    fewer = [left(network, pictures, name, eps=eps, restarts=n, seed=1) for n in (0, 2, 12, 12)]
    assert (fewer[1] <= fewer[0]).all()
    assert (fewer[2] <= fewer[1]).all()
    assert (fewer[2] == fewer[3]).all()
    noisy = [attack(network, *pictures, "noise", eps=0.1, seed=seed).x for seed in (0, 0, 1)]
    assert (noisy[0] == noisy[1]).all()
    assert (noisy[0] != noisy[2]).any()


def test_restarts_along_the_margin_aim_at_one_class_at_a_time_the_likeliest_first(network, pictures, monkeypatch):
    x, y = pictures[0][:40], pictures[1][:40]
    right = network(x).argmax(1) == y
    x, y = x[right], y[right]
    others = network(x).scatter(1, y[:, None], -torch.inf).argsort(1, descending=True)
    targets, gradient = [], attacks.loss_gradient

    def watched(network, point, labels, loss, target=None):
        targets.append(target)
        return gradient(network, point, labels, loss, target)

    monkeypatch.setattr(attacks, "loss_gradient", watched)
    attack(network, x, y, "pgd-margin", eps=1e-6, restarts=11)  # which fools nobody
    assert targets[:20] == [None] * 20
    for restart in range(1, 12):
        for target in targets[20 * restart : 20 * restart + 20]:
            assert (target == others[:, (restart - 1) % 9]).all()  # nine other classes, then from the beginning


def test_what_is_drawn_for_a_sample_follows_from_its_number(network, pictures):
    x, y = pictures
    whole = attack(network, x, y, "noise", eps=0.1, seed=4).x
    some = torch.tensor([150, 3, 77])
    assert (attack(network, x[some], y[some], "noise", eps=0.1, seed=4, rows=some).x == whole[some]).all()
    assert (attack(network, x[some], y[some], "noise", eps=0.1, seed=4).x != whole[some]).any()
    start = attack(network, x[:2], y[:2], "noise", eps=0.1, restarts=0).x - x[:2]
    assert (start[0] != start[1]).any()


def test_networks_that_pass_no_gradient_leave_pictures_where_they_are(network, pictures):
    for before in (torch.round, lambda x: (x > 0.5).float(), lambda x: x.detach()):
        found = attack(Around(network, before), *pictures, "pgd-margin", eps=0.3, restarts=0)
        assert (found.x == pictures[0]).all()
    broken = Around(network, after=lambda z: z.clamp_max(1e30).log())  # NaN below 0
    assert torch.isfinite(loss_gradient(broken, *pictures, "ce")[1]).all()


def test_a_network_in_train_mode_is_attacked_in_eval_mode_and_put_back(pictures):
    norm = nn.BatchNorm2d(1)
    network = nn.Sequential(norm, nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 10)).train()
    network[1].eval()
    with torch.no_grad():
        found = [attack(network, *pictures, "pgd", eps=0.1).x for _ in range(2)]
    assert (found[0] == found[1]).all()
    assert [module.training for module in network] == [True, False, True, True]
    assert norm.num_batches_tracked == 0
    assert all(p.grad is None for p in network.parameters())
    assert not pictures[0].requires_grad


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eps": -0.1}, r"eps .*got -0\.1"),
        ({"eps": math.nan}, "eps .*got nan"),
        ({"eps": 8}, "eps .*got 8; .*255"),
        ({"eps": 0.1, "name": "pdg"}, "'pdg'.*pgd"),
        ({"eps": 0.1, "norm": "1"}, "norm .*'1'"),
        ({"eps": 0.1, "loss": "mse"}, "loss .*'mse'"),
        ({"eps": 0.1, "steps": 0}, "steps .*got 0"),
        ({"eps": 0.1, "first": 0.0}, r"first .*got 0\.0"),
        ({"eps": 0.1, "restarts": -1}, "restarts .*got -1"),
        ({"eps": 0.1, "name": "noise", "steps": 3}, "loss must"),
        ({"eps": 0.1, "name": "autoattack", "steps": 3}, "autoattack .*steps"),
    ],
)
def test_what_is_no_attack_is_refused(network, pictures, options, words):
    with pytest.raises(ValueError, match=words):
        attack(network, *pictures, **options)


def test_what_is_no_batch_of_pixels_is_refused(network, pictures):
    x, y = pictures
    for bad, words in [
        ((x * 255).byte(), r"torch\.uint8 .* / 255"),
        (x * 255, r"\[0, 1\], .*0 to 255; .*Normalize"),
        (x - 0.5, r"\[0, 1\], .*-0\.5 to 0\.5"),
        (x * math.nan, r"\[0, 1\], got nan"),
        (x[:0], "one image"),
        (x.numpy(), "float tensor"),
    ]:
        with pytest.raises(ValueError, match=words):
            attack(network, bad, y, eps=0.1)
    with pytest.raises(ValueError, match=r"labels .*integers"):
        attack(network, x, y.float(), eps=0.1)
    with pytest.raises(ValueError, match=r"labels .*\[0, 9\]"):
        attack(network, x, y + 5, eps=0.1)
    with pytest.raises(ValueError, match=r"2 classes .*pgd, got 1"):
        attack(nn.Sequential(nn.Flatten(), nn.Linear(64, 1)), x, y * 0, eps=0.1)
    with pytest.raises(ValueError, match=r"3 classes .*pgd-dlr, got 2"):
        attack(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), x, y * 0, "pgd-dlr", eps=0.1)
    with pytest.raises(TypeError, match=r"network .*nn\.Module"):
        attack(network.forward, x, y, eps=0.1)
