"""The papers' networks: layers as printed, known numbers of weights, a head that is found, pixels in."""

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

import hardsight as hs
from hardsight.networks import NETWORKS, Normalize, build_network, image_transform

# Weights with 10 classes and 3 channels (1 for 28 pixels). torchvision's own are counted from torchvision; ResNet-18,
# ResNet-50 and DenseNet-121 for CIFAR are the figures that other people's code gives (11.17 M, 23.52 M, 6.96 M).
WEIGHTS = {
    "resnet18-32": 11_173_962,
    "resnet50-32": 23_520_842,
    "densenet121-32": 6_956_426,
    "vgg19-32": 20_024_384 + 2 * (512 * 512 + 512) + 512 * 10 + 10,  # the sixteen convolutions of VGG-19
}
SMALL = [name for name, network in NETWORKS.items() if (network.size or 0) < 224]


def built(name, classes=10):
    channels = 1 if NETWORKS[name].size == 28 else 3
    size = NETWORKS[name].size or 12
    return build_network(name, classes, channels).eval(), torch.rand(2, channels, size, size)


def convolutions(network):
    return [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]


def features(network, x):
    with torch.no_grad(), hs.capture(network) as head:
        network(x)
    return head.features


def count(network):
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_every_small_network_has_a_head_that_runs_once(name):
    network, x = built(name, classes=7)
    with torch.no_grad(), hs.capture(network) as head:
        logits = network(x)
    assert logits.shape == (2, 7)
    computed = head.features @ head.weight.T + (0 if head.bias is None else head.bias)
    torch.testing.assert_close(computed, logits)


@pytest.mark.parametrize("name", ["alexnet", "resnet50", "densenet121", "efficientnet_b0"])
def test_large_networks_are_torchvisions_own(name):
    network, _ = built(name, classes=7)
    assert count(network) == count(torchvision.models.get_model(name, num_classes=7))
    assert hs.find_head(network).classes == 7


def test_vgg19_is_the_plain_one():
    with torch.device("meta"):  # 140 million weights that nobody looks at
        network = NETWORKS["vgg19"].build(10, 3)
    assert count(network) == 139_611_210
    assert len(convolutions(network)) == 16
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in network.modules())


@pytest.mark.parametrize("name", WEIGHTS)
def test_small_forms_have_the_known_number_of_weights(name):
    assert count(built(name)[0]) == WEIGHTS[name]


@pytest.mark.parametrize(("depth", "weights"), [(32, 464_154), (8, 75_290)])
def test_narrow_resnets_go_around_their_blocks_without_weights(depth, weights):
    network, x = built(f"resnet{depth}-32")
    assert count(network) == weights
    assert len(convolutions(network)) == depth - 1
    assert features(network, x).shape == (2, 64)
    block = next(layer for layer in network.modules() if getattr(layer, "more", 0)).eval()
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    pixels = torch.rand(2, 16, 6, 6)
    out = block(pixels)
    torch.testing.assert_close(out[:, :16], pixels[:, :, ::2, ::2])
    assert out.shape == (2, 32, 3, 3)
    assert not out[:, 16:].any()


def test_cnn10_is_as_appendix_f_prints_it():
    network, x = built("cnn10", classes=7)
    expected = [(7, 64), *[(3, width) for width in (64, 128, 256) for _ in range(3)]]
    assert [(c.kernel_size[0], c.out_channels) for c in convolutions(network)] == expected
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in network.modules()) == 4
    assert features(network, x).shape == (2, 512)


def test_amc13_is_as_table_2_prints_it():
    network, x = built("amc13")
    layers = convolutions(network)
    expected = [(3, 128, 1)] * 3 + [(3, 256, 1)] * 3 + [(3, 512, 0), (1, 256, 0), (1, 128, 0)]
    assert [(c.kernel_size[0], c.out_channels, c.padding[0]) for c in layers] == expected
    pools = sum(isinstance(layer, (nn.MaxPool2d, nn.AdaptiveAvgPool2d)) for layer in network.modules())
    assert len(layers) + pools + 1 == 13  # with the linear layer
    assert features(network, x).shape == (2, 128)


@pytest.mark.parametrize("width", [2, 3])
def test_small_amc_networks_have_features_that_can_be_drawn(width):
    network, x = built(f"amc-{width}d")
    maps = []
    pool = next(layer for layer in network.modules() if isinstance(layer, nn.AdaptiveAvgPool2d))
    pool.register_forward_pre_hook(lambda _, args: maps.append(tuple(args[0].shape)))
    assert features(network, x).shape == (2, width)
    assert maps == [(2, 64, 5, 5)]  # "Global average pool 5 × 5 → 1 × 1"


def test_mnist_el_has_eleven_convolutions_576_inputs_and_no_bias():
    network, _ = built("mnist-el")
    assert [c.out_channels for c in convolutions(network)] == [64] * 11
    linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(576, 256), (256, 10)]
    assert linear[-1].bias is None


def test_noise_is_for_training_only():
    network, x = built("amc-2d")
    with torch.no_grad():
        assert torch.equal(network(x), network(x))
        noise = network.get_submodule("network.0").train()
        assert 0.14 < (noise(torch.zeros(100, 1, 28, 28))).std() < 0.16


def test_pixels_are_standardized_and_resized():
    x = torch.rand(4, 3, 40, 40)
    layer = Normalize([0.5, 0.4, 0.3], [0.1, 0.2, 0.3])
    expected = torchvision.transforms.functional.normalize(x, [0.5, 0.4, 0.3], [0.1, 0.2, 0.3])
    torch.testing.assert_close(layer(x), expected)
    resized = torchvision.transforms.functional.resize(x, [32, 32], antialias=True)
    torch.testing.assert_close(Normalize([0.0] * 3, [1.0] * 3, 32)(x), resized)


def test_images_of_any_shape_become_squares():
    from PIL import Image

    image = Image.fromarray(np.zeros((300, 500, 3), np.uint8))
    assert image_transform(224)(image).shape == (3, 224, 224)
    assert image_transform(224, margin=True)(image).shape == (3, 256, 256)
    assert image_transform(32)(image).shape == (3, 32, 32)


def test_every_network_says_what_it_is_and_an_unknown_one_is_refused():
    assert all(network.summary and network.reference and network.name == name for name, network in NETWORKS.items())
    with pytest.raises(ValueError, match=r"'resnet18_32'; .*resnet18-32"):
        build_network("resnet18_32", 10)


def test_a_saved_network_is_loaded_by_name(tmp_path):
    network = build_network("amc-2d", 4, 1)
    torch.save({"model": network.state_dict(), "epoch": 3}, tmp_path / "checkpoint.pt")
    loaded = hs.load_model("hardsight:amc-2d", tmp_path / "checkpoint.pt")
    x = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        assert torch.equal(loaded.module.eval()(x), network.eval()(x))
    with pytest.raises(ValueError, match="weights"):
        hs.load_model("hardsight:amc-2d")
    with pytest.raises(ValueError, match="mean amc-2d"):
        hs.load_model("hardsight:amc2d")
