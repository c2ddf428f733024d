"""Decoupled operators against loops in float64, and paths of adversarial examples against what the network says."""

import math

import numpy as np
import pytest
import torch
from naive import naive_scores
from torch import nn

from hardsight.studies.declared import adversarial_path
from hardsight.studies.declared.adversarial_path import Decoupled, adversarial_paths, d_spherenet, halfway


def decoupled(x, w):
    """cos θ of two lists of numbers; 0 for an input of zeros."""
    norm = math.sqrt(sum(v * v for v in x))
    length = math.sqrt(sum(v * v for v in w))
    return 0.0 if norm == 0 else sum(a * b for a, b in zip(x, w, strict=True)) / (norm * length)


def test_a_linear_layer_is_the_loop():
    torch.manual_seed(0)
    layer, x = nn.Linear(5, 3).double(), torch.randn(7, 5, dtype=torch.float64)
    x[2] = 0
    x[3] *= 100
    got = Decoupled(layer)(x)
    weight = layer.weight.tolist()
    expected = [[decoupled(row, vector) for vector in weight] for row in x.tolist()]
    np.testing.assert_allclose(got.detach(), expected, atol=1e-12)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_is_the_loop_over_its_patches(stride):
    torch.manual_seed(1)
    layer = nn.Conv2d(2, 3, 3, stride=stride, padding=1).double()
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    x[1, :, :3, :3] = 0  # a patch of zeros in its corner
    got = Decoupled(layer)(x)
    padded = nn.functional.pad(x, (1, 1, 1, 1)).numpy()
    for n in range(2):
        for k in range(3):
            for i in range(got.shape[2]):
                for j in range(got.shape[3]):
                    patch = padded[n, :, i * stride : i * stride + 3, j * stride : j * stride + 3]
                    expected = decoupled(patch.ravel().tolist(), layer.weight[k].flatten().tolist())
                    assert got[n, k, i, j].item() == pytest.approx(expected, abs=1e-12)


def test_gradients_are_those_of_differences_and_finite_at_zero():
    torch.manual_seed(2)
    layer = Decoupled(nn.Conv2d(1, 2, 2).double())
    assert torch.autograd.gradcheck(layer, torch.randn(1, 1, 3, 3, dtype=torch.float64, requires_grad=True))
    zeros = torch.zeros(1, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    layer(zeros).sum().backward()
    assert torch.isfinite(zeros.grad).all()


def test_d_spherenet_does_not_see_the_length_of_its_input_and_keeps_its_features_plain():
    torch.manual_seed(3)
    network = d_spherenet(10, 1, 2)
    kinds = [type(layer) for layer in network if isinstance(layer, (nn.Conv2d, nn.Linear, Decoupled))]
    assert kinds == [Decoupled, Decoupled, Decoupled, nn.Linear, nn.Linear]
    x = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(network(x), network(7 * x))


def test_halfway_is_counted_from_the_start_to_the_switch():
    values = np.array([[10.0, 1.0], [6.0, 1.2], [4.0, 1.4], [2.0, 2.0], [50.0, 0.0]])
    assert halfway(values, np.array([3, 3])).tolist() == [1, 3]
    assert halfway(values, np.array([4, 2])).tolist() == [4, 1]


@pytest.fixture(scope="module", params=["cnn", "d-spherenet"])
def paths(request):
    return adversarial_paths("digits", request.param, steps=150, count=30)


def test_paths_begin_right_and_their_scores_are_the_naive_ones(paths):
    assert paths.features.shape == (41, 30, 2)
    assert not paths.fooled[0].any()
    for step in (0, 17, 40):
        expected = naive_scores(paths.features[step], paths.weight, paths.labels)
        np.testing.assert_allclose(paths.avh[step], expected["avh"], rtol=1e-4)
        np.testing.assert_allclose(paths.norm[step], np.linalg.norm(paths.features[step], axis=1), rtol=1e-5)


def test_the_switch_is_the_first_step_with_another_class(paths):
    for k, switch in enumerate(paths.switch.tolist()):
        column = paths.fooled[:, k].tolist()
        assert switch == (column.index(True) if True in column else -1)
    assert (paths.switch > 0).any()


def test_attacks_stay_within_eps(monkeypatch):
    kept = []

    def remembered(net, x, y, *arguments, **options):
        result = real(net, x, y, *arguments, **options)
        kept.append((x, result.trajectory, options["eps"]))
        return result

    real = adversarial_path.attack
    monkeypatch.setattr(adversarial_path, "attack", remembered)
    adversarial_paths("digits", steps=20, count=5, eps=0.1)
    [(x, trajectory, eps)] = kept
    assert eps == 0.1
    assert (trajectory - x).abs().max() <= 0.1 + 1e-6
    assert (trajectory[0] == x).all()
    with pytest.raises(ValueError, match="network"):
        adversarial_paths("digits", "resnet")


def test_the_figure_draws_the_paths(monkeypatch, paths):
    monkeypatch.setattr(adversarial_path, "adversarial_paths", lambda *arguments, **options: paths)
    plane, cnn, spherenet = adversarial_path.plot_adversarial_path("digits").axes
    k = adversarial_path._typical(paths)
    lines = {line.get_label(): line for line in plane.get_lines()}
    np.testing.assert_allclose(
        lines["one sample, each step"].get_xydata(), np.c_[paths.norm[:, k], 10 * paths.avh[:, k]]
    )
    at = paths.switch[k]
    np.testing.assert_allclose(lines["class flip"].get_xydata(), [[paths.norm[at, k], 10 * paths.avh[at, k]]])
    for axis in (cnn, spherenet):
        crosses = axis.collections[-1].get_offsets()
        np.testing.assert_allclose(crosses, paths.features[-1, paths.switch > 0])
