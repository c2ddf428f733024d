"""Class activation maps against captum and naive loops; networks are left as they were."""

import gc

import numpy as np
import pytest
import torch
from captum.attr import LayerGradCam
from timm.models.convnext import ConvNeXt
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torchvision.models import ConvNeXt as TorchvisionConvNeXt
from torchvision.models import SwinTransformer as TorchvisionSwin
from torchvision.models import VisionTransformer as TorchvisionViT
from torchvision.models.convnext import CNBlockConfig

from hardsight.networks import build_network
from hardsight.questions import cam as public_cam
from hardsight.questions.gradcam import cam, explain, find_layer, resize_maps


def gap_net(bias=True):
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 6, 3), nn.Tanh()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(6, 5, bias=bias)),
    )


class TestWitnesses:
    @pytest.mark.parametrize("bias", [True, False])
    def test_where_the_head_takes_the_mean_of_the_map_it_is_cam_and_captums(self, bias):
        net, x, y = gap_net(bias).eval(), torch.randn(7, 3, 12, 10), torch.arange(7) % 5
        assert find_layer(net, x).path == "5"
        closed = torch.einsum("nc,nchw->nhw", net[9].weight[y], net[:6](x)).relu().detach()
        maps = cam(net, x, y)
        torch.testing.assert_close(maps, closed / closed.amax((1, 2), keepdim=True).clamp_min(1e-9), atol=1e-5, rtol=0)
        torch.testing.assert_close(maps, captums(net, net[5], x, y), atol=1e-5, rtol=0)

    def test_a_network_that_flattens_agrees_with_captum(self):
        net, x, y = build_network("small-cnn", 10, 1).eval(), torch.rand(5, 1, 8, 8), torch.tensor([1, 2, 3, 4, 9])
        torch.testing.assert_close(cam(net, x, y), captums(net, net.network[5], x, y), atol=1e-5, rtol=0)

    def test_what_follows_the_head_counts(self):
        """With log-softmax behind it the head's weights are not the gradients."""
        net = nn.Sequential(*gap_net(), nn.LogSoftmax(1)).eval()
        x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
        torch.testing.assert_close(cam(net, x, y), captums(net, net[5], x, y), atol=1e-5, rtol=0)

    def test_predicted_classes_are_the_default(self):
        net, x = gap_net().eval(), torch.randn(6, 3, 8, 8)
        assert torch.equal(cam(net, x), cam(net, x, net(x).argmax(1).numpy()))
        assert public_cam is cam


def captums(net, layer, x, y):
    found = LayerGradCam(net, layer).attribute(x, y, relu_attributions=True)[:, 0].detach()
    peak = found.amax((1, 2), keepdim=True)
    return found / torch.where(peak > 0, peak, 1.0)


def tiny_vit(**options):
    return VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=5, **options)


def torchvision_vit():
    net = TorchvisionViT(32, 8, num_layers=2, num_heads=2, hidden_dim=24, mlp_dim=32, num_classes=5)
    nn.init.normal_(net.heads.head.weight)  # torchvision starts it at 0
    return net


CONVNEXT = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)]
# Network, the layer that must be found, the grid of a picture of 32 × 32, and how its output becomes a map.
RECIPES = {
    "timm ViT": (tiny_vit, "blocks.1.norm1", lambda v: v[1:].T.reshape(-1, 4, 4)),
    "timm ViT, averaged": (lambda: tiny_vit(global_pool="avg"), "blocks.1.norm1", lambda v: v[1:].T.reshape(-1, 4, 4)),
    "timm ViT, registers": (lambda: tiny_vit(reg_tokens=3), "blocks.1.norm1", lambda v: v[4:].T.reshape(-1, 4, 4)),
    "torchvision ViT": (torchvision_vit, "encoder.layers.encoder_layer_1.ln_1", lambda v: v[1:].T.reshape(-1, 4, 4)),
    "timm ConvNeXt": (
        lambda: ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 8, 8, 16), output_stride=8, num_classes=5),
        "norm_pre",
        lambda v: v,
    ),
    "torchvision ConvNeXt": (lambda: TorchvisionConvNeXt(CONVNEXT, num_classes=5), "features", lambda v: v),
    "timm Swin": (
        lambda: SwinTransformer(
            img_size=32, patch_size=4, window_size=4, embed_dim=8, depths=(1, 1), num_heads=(1, 2), num_classes=5
        ),
        "norm",
        lambda v: v.permute(2, 0, 1),
    ),
    "torchvision Swin": (
        lambda: TorchvisionSwin([4, 4], 8, [1, 1], [1, 2], [4, 4], num_classes=5),
        "permute",
        lambda v: v,
    ),
}


class TestRecipes:
    @pytest.mark.parametrize("name", RECIPES)
    def test_maps_have_the_grid_and_react_to_the_class_and_are_those_of_a_naive_loop(self, name):
        build, layer, to_map = RECIPES[name]
        net = build().eval()
        for parameter in net.parameters():  # layer scale and the like begin so small that nothing comes through
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
        x = torch.randn(3, 3, 32, 32)
        assert find_layer(net, x).path == layer
        maps = torch.stack([cam(net, x, [k] * 3) for k in range(5)])
        assert maps.shape == (5, 3, 4, 4)
        assert maps.isfinite().all()
        assert maps.amax((2, 3)).max() == 1
        assert (maps.amax((2, 3)) > 0).float().mean() > 0.5
        assert not torch.allclose(maps[0], maps[1], atol=0.05)
        for k in range(2):
            for i in range(2):
                expected = naive(net, net.get_submodule(layer), x[i : i + 1], k, to_map)
                np.testing.assert_allclose(maps[k, i].numpy(), expected, atol=2e-4)

    def test_behind_the_last_block_of_a_class_token_vit_every_map_is_zero(self):
        """The reason for the recipe: what users meet when they take the last layer."""
        assert not cam(tiny_vit(), torch.randn(2, 3, 32, 32), layer="blocks.1").any()

    def test_hugging_face_names_its_norms_otherwise(self):
        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.layernorm_before, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)

            def forward(self, x):
                y = self.layernorm_before(x)
                return x + self.attention(y, y, y)[0]

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.projection, self.layers = nn.Conv2d(3, 8, 4, 4), nn.Sequential(Layer(), Layer())
                self.classifier = nn.Linear(8, 3)

            def forward(self, x):
                return self.classifier(self.layers(self.projection(x).flatten(2).transpose(1, 2)).mean(1))

        net, x = Net(), torch.randn(2, 3, 8, 16)
        assert find_layer(net, x).path == "layers.1.layernorm_before"
        assert cam(net, x).shape == (2, 2, 4)


def naive(net, layer, x, k, to_map):
    """One sample, one class, the whole graph, loops."""
    seen = []
    handle = layer.register_forward_hook(lambda _, __, out: seen.append(out) or out.retain_grad())
    net(x)[0, k].backward()
    handle.remove()
    values, slopes = (to_map(t.detach()[0].double()).numpy() for t in (seen[0], seen[0].grad))
    net.zero_grad()
    channels, height, width = values.shape
    out = np.zeros((height, width))
    for c in range(channels):
        out += slopes[c].sum() / (height * width) * values[c]
    out = np.maximum(out, 0)
    return out / out.max() if out.max() > 0 else out


class TestWhatIsFound:
    def test_an_activation_that_is_used_again_and_again(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.act, self.fc = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Linear(4, 3)

            def forward(self, x):
                return self.fc(self.act(self.b(self.act(self.a(x)))).mean((2, 3)))

        net, x = Net(), torch.randn(2, 1, 8, 8)
        layer = find_layer(net, x)
        assert (layer.path, layer.call) == ("act", 2)
        assert cam(net, x).shape == (2, 4, 4)
        torch.testing.assert_close(cam(net, x), cam(net, x, layer="act"))

    def test_what_is_changed_in_place_afterwards(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)

            def forward(self, x):
                return self.fc(torch.relu_(self.conv(x)).mean((2, 3)))

        net, x, y = Net(), torch.randn(2, 1, 6, 6), torch.tensor([0, 1])
        values = net.conv(x).detach()
        weights = torch.einsum("nc,nchw->nc", net.fc.weight[y].detach(), (values > 0).float())
        expected = torch.einsum("nc,nchw->nhw", weights, values).relu()
        expected /= expected.amax((1, 2), keepdim=True).clamp_min(1e-9)
        torch.testing.assert_close(cam(net, x, y), expected, atol=1e-5, rtol=0)

    def test_pooling_is_looked_through_and_a_layer_can_be_named(self):
        net, x = build_network("vgg19-32", 10), torch.rand(1, 3, 32, 32)
        assert cam(net, x).shape == (1, 2, 2)  # before the last pool
        assert cam(net, x, layer="network.17").shape == (1, 8, 8)

    def test_bfloat16(self):
        net, x = gap_net(), torch.randn(2, 3, 12, 12)
        y = torch.tensor([1, 2])
        low = cam(net.bfloat16(), x.bfloat16(), y)
        assert low.dtype == torch.float32
        assert (low - cam(net.float(), x, y)).abs().max() < 0.1


class TestHostile:
    def test_a_map_that_nothing_speaks_for_is_zero(self):
        net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
        net[4].weight.data.fill_(-1.0)
        assert torch.equal(cam(net, torch.rand(3, 1, 4, 4)), torch.zeros(3, 4, 4))
        net[0].weight.data.zero_(), net[0].bias.data.fill_(-1.0)
        assert torch.equal(cam(net, torch.rand(3, 1, 4, 4)), torch.zeros(3, 4, 4))

    @pytest.mark.parametrize("scale", [1e-15, 1e15])
    def test_the_size_of_the_logits_does_not_matter(self, scale):
        net, x, y = gap_net(), torch.randn(3, 3, 8, 8), [0, 1, 2]
        before = cam(net, x, y)
        net[-1].weight.data.mul_(scale), net[-1].bias.data.mul_(scale)
        torch.testing.assert_close(cam(net, x, y), before, atol=1e-5, rtol=0)

    def test_no_positions_no_map_and_tokens_that_no_recipe_knows(self):
        flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
        tokens = nn.Conv2d(1, 8, 4, 4), nn.Flatten(2), nn.Conv1d(8, 8, 1), nn.Flatten(), nn.Linear(32, 3)
        for net, words in ((flat, r"^model: .*\.$"), (nn.Sequential(*tokens), r"tokens; .*layer=")):
            with pytest.raises(ValueError, match=words):
                cam(net, torch.rand(2, 1, 8, 8))

    @pytest.mark.parametrize(("layer", "sentence"), [("Tanh", "layer='Tanh'"), ("7", "'7' .*positions")])
    def test_layers_that_cannot_be(self, layer, sentence):
        with pytest.raises(ValueError, match=sentence):
            cam(gap_net(), torch.rand(2, 3, 8, 8), layer=layer)

    def test_logits_that_do_not_depend_on_the_layer(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)

            def forward(self, x):
                return self.fc(self.conv(x).detach().square().mean((2, 3)))

        with pytest.raises(ValueError, match=r"layer='conv': .*logits"):
            cam(Net(), torch.rand(2, 1, 8, 8))

    @pytest.mark.parametrize("classes", [[0], [0, 5], [0, -1], [0.0, 1.0], [[0, 1]]])
    def test_classes_that_are_not(self, classes):
        with pytest.raises(ValueError, match=r"classes .*0 to 4"):
            cam(gap_net(), torch.rand(2, 3, 8, 8), classes)

    @pytest.mark.parametrize("images", [np.zeros((2, 3, 8, 8)), torch.zeros(3, 8, 8), torch.zeros(0, 3, 8, 8)])
    def test_images_that_are_not(self, images):
        with pytest.raises(ValueError, match=r"images .*float"):
            cam(gap_net(), images)

    def test_weights_that_are_no_numbers(self):
        net = gap_net()
        net[4].weight.data.fill_(torch.nan)
        with pytest.raises(ValueError, match="NaN or infinity"):
            cam(net, torch.rand(2, 3, 8, 8))


class TestNothingIsLeftBehind:
    @pytest.mark.parametrize("build", [gap_net, lambda: build_network("small-cnn", 5, 3), tiny_vit])
    def test_hooks_modes_gradients_flags_and_grad_mode(self, build):
        net = build().train()
        next(net.children()).eval()
        next(net.parameters()).requires_grad_(False)
        weights = {name: value.clone() for name, value in net.state_dict().items()}
        modes = [module.training for module in net.modules()]
        flags = [p.requires_grad for p in net.parameters()]
        for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with context():
                before = torch.is_grad_enabled()
                maps = cam(net, torch.rand(2, 3, 32, 32))
                assert torch.is_grad_enabled() == before
            assert not maps.requires_grad
        assert maps.any()
        assert [module.training for module in net.modules()] == modes
        assert [p.requires_grad for p in net.parameters()] == flags
        assert all(p.grad is None for p in net.parameters())
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
        assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())

    def test_hooks_are_gone_after_an_error(self):
        net = gap_net().train()
        with pytest.raises(RuntimeError):
            cam(net, torch.rand(2, 4, 8, 8))
        with pytest.raises(ValueError, match="classes"):
            cam(net, torch.rand(2, 3, 8, 8), [9, 9])
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
        assert net.training

    @pytest.mark.parametrize("pooled", [True, False])
    def test_a_thousand_batches_do_not_leak(self, pooled):
        end = [nn.AdaptiveAvgPool2d(1)] if pooled else []
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), *end, nn.Flatten(), nn.Linear(2 if pooled else 8, 2))
        x = torch.rand(2, 1, 4, 4)

        layer = find_layer(net.eval(), x)

        def alive(batches):
            for _ in range(batches):
                explain(net, layer, x)
            for _ in range(batches // 20):
                cam(net, x)
            return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

        gc.collect()
        gc.disable()  # cycles that wait for the collector hold memory of the device, too
        try:
            assert alive(10) == alive(500)
        finally:
            gc.enable()


def test_a_map_is_spread_over_the_picture_without_leaving_its_range():
    maps = resize_maps(torch.rand(3, 4, 4), (32, 32))
    assert maps.shape == (3, 32, 32)
    assert 0 <= maps.min() <= maps.max() <= 1
    assert torch.equal(resize_maps(maps, (32, 32)), maps)
