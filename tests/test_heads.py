"""Any model: which layer is the head, what it saw, and that a capture fires exactly once or says why not."""

import copy

import pytest
import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torchvision.models import get_model

import hardsight as hs
from hardsight.heads import output_matrices, uncompiled

# Small nets and the one equation that every capture must satisfy.


class Net(nn.Module):
    """A backbone, a head, how they are run, and whatever the test makes of the output."""

    def __init__(self, head=None, wrap=lambda logits: logits, run=lambda net, x: net.fc(net.backbone(x))):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.fc = nn.Linear(8, 5) if head is None else head
        self.wrap, self.run = wrap, run

    def forward(self, x):
        return self.wrap(self.run(self, x))


def recomputed(head):
    """What the head computes from the features, by the triple."""
    return F.linear(head.features, head.weight, head.bias)


def explains(head, logits):
    """Whether the triple gives the logits."""
    torch.testing.assert_close(recomputed(head), logits)


def assert_captures(model, x, path=None, head=None):
    """The triple explains the model's output to float32 rounding, and no hook stays behind."""
    layer = hs.find_head(model, head)
    if path is not None:
        assert layer.path == path
    with torch.no_grad():  # some libraries start the head at zero, which would make the check empty
        for parameter in layer.module.parameters():
            nn.init.normal_(parameter)
    before = hooks(model)
    with torch.no_grad(), hs.capture(model, head) as captured:
        logits = output_matrices(model(x))[0]
    assert hooks(model) == before
    assert captured.path == layer.path
    assert captured.features.shape == (len(x), captured.weight.shape[1])
    assert (captured.bias is None) == (getattr(layer.module, "bias", None) is None)
    assert logits.abs().max() > 0
    assert (recomputed(captured) - logits).abs().max() <= 1e-5 * logits.abs().max()


def hooks(model):
    """Every hook of every module, by name."""
    return {
        (name, kind): dict(value)
        for name, module in model.named_modules()
        for kind, value in vars(module).items()
        if kind.endswith("_hooks") or "_hooks_" in kind
    }


def sentence(call):
    """What a call is refused with; empty when it is not refused."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


@pytest.fixture
def x():
    return torch.randn(3, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# Libraries.


def by_path(paths):
    """(name, path) of each model, from the names under each path."""
    return [(name, path) for path, names in paths.items() for name in names.split()]


# The AVH paper's four, and others.
TORCHVISION = {"classifier.6": "alexnet vgg19", "fc": "resnet50", "classifier": "densenet121"}
TORCHVISION |= {"classifier.1": "efficientnet_b0", "heads.head": "vit_b_16", "head": "swin_t"}
TORCHVISION_PATHS = {
    "classifier.1": "efficientnet_v2_s mnasnet1_0 squeezenet1_1",  # the last is a convolution
    "classifier.2": "convnext_tiny",
    "classifier.3": "mobilenet_v3_small",
    "classifier.5": "maxvit_t",
    "fc": "googlenet inception_v3 resnext50_32x4d shufflenet_v2_x1_0",  # the first has auxiliary classifiers
    "head": "swin_v2_t",
    "heads.head": "vit_l_32",
}
TIMM = {
    "classifier": "test_efficientnet ghostnet_050",
    "fc": "test_resnet resnet10t",
    "head": "test_vit starnet_s050 xcit_nano_12_p16_224",
    "head.fc": "test_byobnet test_convnext test_mambaout test_nfnet regnetx_002",
    "head.l": "shvit_s1",
}
TIMM_PATHS = {"head": "convmixer_768_32 eva02_tiny_patch14_224", "head.fc": "fastvit_t8 swin_tiny_patch4_window7_224"}


@pytest.mark.parametrize(("name", "path"), by_path(TORCHVISION))
def test_torchvision(name, path):
    size, options = 63 if name == "alexnet" else 32, {"image_size": 32} if name == "vit_b_16" else {}
    model = get_model(name, weights=None, num_classes=7, **options).eval()
    assert_captures(model, torch.randn(2, 3, size, size), path)


@pytest.mark.parametrize(("name", "path"), by_path(TORCHVISION_PATHS))
def test_torchvision_paths(name, path):
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    with torch.device("meta"):
        model = get_model(name, weights=None, num_classes=7, **options)
    layer = hs.find_head(model)
    assert layer.path == path
    assert layer.module is model.get_submodule(path)
    assert layer.module.weight.shape[0] == 7


@pytest.mark.parametrize(("name", "path"), by_path(TIMM))
def test_timm(name, path):
    model, size = timm.create_model(name, num_classes=7).eval(), 160 if name == "test_vit" else 64
    assert_captures(model, torch.randn(2, 3, size, size), path)


@pytest.mark.parametrize(("name", "path"), by_path(TIMM_PATHS))
def test_timm_paths(name, path):
    assert hs.find_head(timm.create_model(name, num_classes=7)).path == path


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "crossvit_9_240", "levit_128s", "repvit_m0_9"])
def test_timm_with_two_heads_lists_them_and_its_advice_works(name):
    model = timm.create_model(name, num_classes=7)
    with pytest.raises(ValueError, match=r"several .*→ 7\), .*→ 7\)") as error:
        hs.find_head(model)
    advised = str(error.value).split("head='")[1].split("'")[0]
    assert hs.find_head(model, advised).module.weight.shape[0] == 7


@pytest.mark.parametrize("name", ["test_resnet", "deit_tiny_distilled_patch16_224"])
def test_timm_without_a_classifier_says_so(name):
    with pytest.raises(ValueError, match=r"head.*num_classes"):
        hs.find_head(timm.create_model(name, num_classes=0))


_VIT = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 32,
    "patch_size": 16,
}  # fmt: skip
_STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}


@pytest.mark.parametrize(
    ("kind", "options", "path"),
    [
        ("ViT", _VIT, "classifier"),
        ("DeiT", _VIT, "classifier"),
        ("Dinov2", _VIT, "classifier"),
        ("ResNet", {"embedding_size": 8, **_STAGES}, "classifier.1"),
        ("ConvNext", _STAGES | {"num_stages": 2}, "classifier"),
        ("RegNet", {"embedding_size": 8, "groups_width": 4, **_STAGES}, "classifier.1"),
        ("Swin", {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2},
         "classifier"),
        ("MobileNetV2", {"image_size": 32, "depth_multiplier": 0.35}, "classifier"),
    ],
)  # fmt: skip
def test_hugging_face(kind, options, path):
    config = getattr(transformers, f"{kind}Config")(**options, num_labels=7)
    model = getattr(transformers, f"{kind}ForImageClassification")(config).eval()
    assert_captures(model, torch.randn(2, 3, 32, 32), path)


def test_hugging_face_teacher_has_two_heads():
    config = transformers.DeiTConfig(**_VIT, num_labels=7)
    with pytest.raises(ValueError, match=r"cls_classifier \(16 → 7\), distillation_classifier \(16 → 7\)"):
        hs.find_head(transformers.DeiTForImageClassificationWithTeacher(config))


# Other shapes of model and head.


def old_weight_norm(layer):
    norm = getattr(torch.nn.utils, "weight_norm", None)
    return layer if norm is None else norm(layer)


def lazy():
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(5))
    assert hs.find_head(model).path == "1"
    model(torch.ones(1, 6))
    return model


SHAPES = {
    "sequential": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 5)), "3"),
    "nested": (lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 8)), nn.Sequential(nn.ReLU(), nn.Linear(8, 5))), "1.1"),
    "the model itself": (lambda: nn.Linear(6, 5), ""),
    "lazy": (lazy, "1"),
    "without bias": (lambda: Net(nn.Linear(8, 5, bias=False)), "fc"),
    "called with a keyword": (lambda: Net(run=lambda net, x: net.fc(input=net.backbone(x))), "fc"),
    "weight norm": (lambda: Net(parametrizations.weight_norm(nn.Linear(8, 5))), "fc"),
    "weight norm by hook": (lambda: Net(old_weight_norm(nn.Linear(8, 5))), "fc"),
    "data parallel": (lambda: nn.DataParallel(Net()), "fc"),
    "averaged": (lambda: torch.optim.swa_utils.AveragedModel(Net()), "fc"),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_of_models(shape, x):
    build, path = SHAPES[shape]
    assert_captures(build(), x, path)


@pytest.mark.parametrize(("inputs", "hidden", "classes"), [(6, 6, 5), (6, 5, 5), (6, 8, 5), (6, 6, 6)])
def test_a_plain_network_of_two_layers(inputs, hidden, classes, x):
    """Whatever its widths: the second layer takes what the first gives, so that the first is no second head."""

    model = Net(nn.Linear(hidden, classes), run=lambda net, x: net.fc(net.backbone(x).relu()))
    model.backbone = nn.Linear(inputs, hidden)
    assert_captures(model, x, "fc")


def test_features_keep_their_graph(x):
    model = Net()
    with hs.capture(model) as head:
        logits = model(x)
    first = model.backbone[0].weight
    expected = torch.autograd.grad(logits.square().sum(), first, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(recomputed(head).square().sum(), first), expected)


@pytest.mark.parametrize(
    ("path", "layers"),
    [
        ("3", lambda conv, pool: (nn.ReLU(), pool, conv, nn.Flatten())),
        ("2", lambda conv, pool: (nn.ReLU(), conv, pool, nn.Flatten())),
        ("2", lambda conv, pool: (pool, conv)),  # returns (N, C, 1, 1)
    ],
)
def test_convolution_head(path, layers):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), *layers(nn.Conv2d(4, 5, 1, bias=path == "3"), nn.AdaptiveAvgPool2d(1)))
    with hs.capture(model) as head:
        output = model(torch.randn(2, 3, 9, 7))
    assert head.path == path
    explains(head, output.flatten(1))


@pytest.mark.parametrize("conv", [nn.Conv2d(4, 8, 3), nn.Conv2d(4, 8, 1, groups=2)])
def test_other_convolutions_are_no_heads(conv):
    with pytest.raises(ValueError, match=r"Sequential .*nn\.Linear .*1×1 convolution"):
        hs.find_head(nn.Sequential(conv))


def test_spectral_norm_in_training(x):
    # Each look at such a weight moves it by one power iteration: the record must be the one look of the forward,
    # and looking for the head must not train the model.
    model = Net(parametrizations.spectral_norm(nn.Linear(8, 5))).train()
    with torch.no_grad():  # far from converged, as after a large step
        nn.init.normal_(model.fc.parametrizations.weight.original)
    state = copy.deepcopy(model.state_dict())
    hs.find_head(model), hs.find_head(model, "fc")
    with hs.capture(model) as head:
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
        logits = model(x)
    explains(head, logits)


def test_positions_are_no_samples_unless_there_is_one():
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5))
    with hs.capture(model), pytest.raises(RuntimeError, match=r"input .*\(2, 4, 8\), expected \(samples"):
        model(torch.randn(2, 4, 6))
    with hs.capture(model) as head:
        model(torch.randn(2, 1, 6))
    assert head.features.shape == (2, 8)


class Result:
    def __init__(self, logits):
        self.logits = logits


@pytest.mark.parametrize(
    "wrap",
    [
        lambda z: {"logits": z},
        lambda z: {"loss": z.sum(), "out": z},
        lambda z: (z, z.sum()),
        lambda z: (z.sum(), z),  # the loss comes first in many libraries
        lambda z: [z],
        Result,
        lambda z: ({"logits": z}, None),
        lambda z: transformers.modeling_outputs.ImageClassifierOutput(logits=z),
    ],
    ids=["dict", "other key", "tuple", "loss first", "list", "object", "nested", "model output"],
)
def test_outputs_of_any_form(wrap, x):
    assert_captures(Net(wrap=wrap), x, "fc")


def test_outputs_without_logits():
    assert [output_matrices(output) for output in ("text", None, torch.zeros(3), {"loss": torch.zeros(())})] == [[]] * 4


# Wrappers.


def test_ddp(process_group, x):
    plain = Net()
    model = nn.parallel.DistributedDataParallel(plain)
    assert_captures(model, x, "fc")
    assert hs.find_head(model).module is plain.fc
    with hs.capture(model) as head:  # gradients still flow through the wrapper
        model(x)
        recomputed(head).sum().backward()
    assert plain.backbone[0].weight.grad is not None


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_model_is_found_but_not_captured(in_place, x):
    plain = Net()
    if in_place:
        (model := plain).compile(backend="eager")
    else:
        model = torch.compile(plain, backend="eager")
    logits = model(x)
    assert hs.find_head(model) == ("fc", plain.fc)
    before = hooks(model)
    advice = r"before model\.compile" if in_place else r"call model\._orig_mod"
    with pytest.raises(ValueError, match=f"compiled.*{advice}"), hs.capture(model):
        pytest.fail("a compiled model must be refused")
    assert hooks(model) == before
    eager = uncompiled(model)
    with hs.capture(eager) as head:
        eager(x)
    explains(head, logits)
    assert head.weight.data_ptr() == plain.fc.weight.data_ptr()
    assert not in_place or model._compiled_call_impl is not None  # the user's model is still compiled


def test_compiled_and_ddp(process_group, x):
    inside = nn.parallel.DistributedDataParallel(torch.compile(Net(), backend="eager"))
    around = torch.compile(nn.parallel.DistributedDataParallel(Net()), backend="eager")
    inside(x)
    for model in (inside, around):
        with pytest.raises((ValueError, RuntimeError), match="compiled"), hs.capture(model):
            model(x)


def test_compiled_backbone_is_fine(x):
    model = Net()
    model.backbone = torch.compile(model.backbone, backend="eager")
    assert_captures(model, x, "fc")


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_compiled_head_is_exact_or_refused(warm, in_place, x):
    # Compiled before: its code does not see hooks. Compiled inside: its code would keep them.
    torch._dynamo.reset()
    model = Net()
    if in_place:
        model.fc.compile(backend="eager")
    else:
        model.fc = torch.compile(model.fc, backend="eager")
    if warm:
        with torch.no_grad():
            model(x)

    def captured():
        with torch.no_grad(), hs.capture(model) as head:
            logits = model(x)
            explains(head, logits)
            before = head.features
        with torch.no_grad():
            model(2 * x)  # nothing of the capture may be left in the compiled code
        assert head.features is before

    refusal = sentence(captured)
    assert not refusal or "compiled" in refusal


def test_compiled_models_score_like_plain_ones(x):
    plain = Net()
    data = torch.utils.data.TensorDataset(x, torch.tensor([0, 1, 2]))
    expected = hs.score(plain, data).to_arrow()
    in_place = copy.deepcopy(plain)
    in_place.compile(backend="eager")
    for model in (torch.compile(plain, backend="eager"), in_place):
        assert hs.score(model, data).to_arrow().equals(expected)


# Which layer: given, ambiguous, missing.


def two_heads():
    model = Net(run=lambda net, x: (net.coarse(net.backbone(x)), net.fine(net.backbone(x))))
    del model.fc
    model.coarse, model.fine = nn.Linear(8, 3), nn.Linear(8, 5)
    return model


def test_a_given_head_wins(x):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    for head in ("0", model[0]):
        assert hs.find_head(model, head) == ("0", model[0])
        with hs.capture(model, head) as captured:
            model(x)
        assert captured.path == "0"
        assert captured.features is x
    timm_model = timm.create_model("test_vit", num_classes=7)
    assert hs.find_head(timm_model, "blocks.0.mlp.fc1").path == "blocks.0.mlp.fc1"


def test_a_given_head_of_ones_own(x):
    # Not an nn.Linear, so it is never guessed: a cosine classifier of the user's.
    class Cosine(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 8))

        def forward(self, x):
            return F.linear(F.normalize(x), F.normalize(self.weight))

    model = Net(Cosine())
    with hs.capture(model, "fc") as head:
        logits = model(x)
    assert head.bias is None
    torch.testing.assert_close(F.normalize(head.features) @ F.normalize(head.weight).T, logits)


def test_a_given_head_settles_an_ambiguous_model(x):
    model = two_heads()
    with pytest.raises(ValueError, match=r"several .*coarse \(8 → 3\), fine \(8 → 5\)\."):
        hs.find_head(model)
    for name, index in (("coarse", 0), ("fine", 1)):
        with hs.capture(model, name) as head:
            logits = model(x)[index]
        explains(head, logits)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("clasifier", r"head='clasifier' .*backbone\.0 \(6 → 8\), fc \(8 → 5\)"),
        ("backbone.1", r"head='backbone\.1' .*ReLU.*fc"),
        ("backbone.0.weight", r"head='backbone\.0\.weight' .*fc \(8 → 5\)"),
        (nn.Linear(8, 5), "head=a Linear .*fc"),
    ],
)
def test_a_wrong_head_lists_the_candidates(head, message):
    with pytest.raises(ValueError, match=message):
        hs.find_head(Net(), head)


@pytest.mark.parametrize("layer", [nn.Embedding(5, 8), nn.LayerNorm((5, 8)), nn.Conv2d(8, 5, 3)])
def test_layers_with_other_weights_are_refused(layer):
    with pytest.raises(ValueError, match=r"\(classes, features\) weight"):
        hs.find_head(Net(layer), "fc")


def test_many_candidates_are_cut_short():
    with pytest.raises(ValueError, match=r"12 \(4 → 4\), .*, 19 \(4 → 4\) and 12 before"):
        hs.find_head(nn.Sequential(*(nn.Linear(4, 4) for _ in range(20))), "head")


# Exactly once, or an error that names the cause.


def test_several_forwards_read_one_by_one(x):
    model = Net()
    with hs.capture(model) as head:
        for scale in (1.0, 2.0):
            logits = model(scale * x)
            explains(head, logits)


def test_nothing_forwarded():
    with hs.capture(Net()) as head:
        for read in (lambda: head.features, lambda: head.weight):
            with pytest.raises(RuntimeError, match="once inside"):
                read()


def twice():
    return Net(run=lambda net, x: net.fc(net.backbone(x)) + net.fc(net.backbone(-x)))


def functional():
    return Net(run=lambda net, x: F.linear(net.backbone(x), net.fc.weight, net.fc.bias))


def other_layer():
    """Another layer computes the output."""
    model = Net(run=lambda net, x: net.classifier(net.backbone(x)))
    model.classifier = nn.Sequential(nn.Linear(8, 4))
    return model


@pytest.mark.parametrize(
    ("build", "run", "message"),
    [
        (Net, lambda model, x: (model(x), model(x)), r"several forward.*head\.features"),
        (Net, lambda model, x: model.fc(torch.randn(3, 8)), r"'fc' .*outside .*forward"),
        (twice, lambda model, x: model(x), "'fc' ran 2 times"),
        (functional, lambda model, x: model(x), r"'fc' .*F\.linear.*fc \(8 → 5\)"),
        (other_layer, lambda model, x: model(x), r"'fc' .*head=.*classifier\.0 \(8 → 4\)"),
    ],
)
def test_anything_but_one_run_of_the_head_is_an_error_that_names_the_cause(build, run, message, x):
    model = build()
    with hs.capture(model, "fc") as head:
        with pytest.raises(RuntimeError, match=message):
            run(model, x)
        if build is not Net:
            with pytest.raises(RuntimeError):  # no input is taken for the features
                _ = head.features
    if build is other_layer:  # the fix that the message offers
        assert_captures(model, x, "classifier.0", head="classifier.0")


def test_head_called_directly_after_a_failed_forward(x):
    # A forward pass that broke off (out of memory, for instance, and caught) is over.
    model = Net(wrap=_broken)
    with hs.capture(model):
        with pytest.raises(ZeroDivisionError):
            model(x)
        with pytest.raises(RuntimeError, match=r"outside .*forward"):
            model.fc(torch.randn(3, 8))


def checkpointed(reentrant):
    """The head lies in the part that backward runs again."""

    def run(net, x):
        return checkpoint(lambda h: net.fc(h).tanh(), net.backbone(x), use_reentrant=reentrant)

    return Net(run=run)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant, x):
    model = checkpointed(reentrant)
    with hs.capture(model) as head, set_checkpoint_early_stop(False):
        logits = model(x)
        torch.testing.assert_close(recomputed(head).tanh(), logits)
        with pytest.raises(RuntimeError, match=r"'fc' .*outside .*checkpointing"):
            logits.sum().backward()


def test_activation_checkpointing_is_harmless_once_the_context_is_closed(x):
    model = checkpointed(reentrant=False)
    with hs.capture(model) as head:
        logits = model(x)
    logits.sum().backward()
    torch.testing.assert_close(recomputed(head).tanh(), logits)


def test_checkpointed_backbone_is_fine(x):
    model = Net(run=lambda net, x: net.fc(checkpoint(net.backbone, x, use_reentrant=False)))
    with hs.capture(model) as head, set_checkpoint_early_stop(False):
        logits = model(x)
        recomputed(head).sum().backward()
    explains(head, logits)


@pytest.mark.parametrize("early_stop", [True, False])
def test_checkpointing_the_whole_model(early_stop, x):
    # Backward is no forward of the user's: it may be refused as checkpointing, but not taken for another forward.
    model = Net(wrap=torch.tanh)
    with hs.capture(model) as head, set_checkpoint_early_stop(early_stop):
        logits = checkpoint(model, x, use_reentrant=False)
        features = head.features
        refusal = sentence(logits.sum().backward)
        assert not refusal or "checkpointing" in refusal
        if not refusal:
            assert torch.equal(head.features, features)
            logits = model(2 * x)  # the next forward of the loop
            torch.testing.assert_close(recomputed(head).tanh(), logits)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("norm", [nn.Identity(), parametrizations.weight_norm, old_weight_norm])
@pytest.mark.parametrize("kind", [{}, {"foreach": True}, {"fused": True}], ids=["plain", "foreach", "fused"])
def test_weight_that_changed_is_an_error(kind, norm, x):
    model = Net(norm(nn.Linear(8, 5)))
    with hs.capture(model) as head:
        model(x).square().sum().backward()
        torch.testing.assert_close(head.weight, model.fc.weight)
        torch.optim.AdamW(model.parameters(), 0.1, **kind).step()
        for read in (lambda: head.weight, lambda: head.bias):
            with pytest.raises(RuntimeError, match="changed since"):
                read()
        logits = model(head.features.new_ones(2, 6))  # a new forward sees the new weight
        explains(head, logits)


def test_loaded_weight_is_an_error(x):
    model = Net()
    with hs.capture(model) as head:
        model(x)
    model.load_state_dict(Net().state_dict())
    with pytest.raises(RuntimeError, match="changed since"):
        _ = head.weight


@pytest.mark.parametrize(
    "later",
    [lambda model, x: model(2 * x), lambda model, x: model.load_state_dict(Net().state_dict(), assign=True)],
    ids=["another forward", "another weight"],
)
def test_what_comes_later_leaves_the_record_alone(later, x):
    model = Net()
    with hs.capture(model) as head:
        logits = model(x)
    later(model, x)
    explains(head, logits)


def test_inference_mode(x):
    with torch.inference_mode():
        model = Net()
        with hs.capture(model) as head:
            logits = model(x)
        explains(head, logits)


def test_features_changed_in_place_are_an_error(x):
    def run(net, x):
        features = net.backbone(x)
        logits = net.fc(features)
        features.mul_(0)
        return logits

    model = Net(run=run)
    with torch.no_grad(), hs.capture(model) as head:
        logits = model(x)
        refusal = sentence(lambda: explains(head, logits))
    assert not refusal or "changed" in refusal


def test_functional_call_uses_the_weight_of_the_call(x):
    model, other = Net(), Net()
    with hs.capture(model) as head:
        logits = torch.func.functional_call(model, dict(other.named_parameters()), (x,))
    explains(head, logits)
    assert head.weight.data_ptr() == other.fc.weight.data_ptr()


def test_fsdp(process_group, x):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    whole, kept = Net(), Net()
    fully_shard(whole, mesh=mesh)
    before = hooks(whole)
    with pytest.raises(ValueError, match=r"'fc' .*\(FSDP\).*Gather"), hs.capture(whole):
        pytest.fail("a sharded head must be refused")
    assert hooks(whole) == before
    fully_shard(kept.backbone, mesh=mesh)
    with hs.capture(kept) as head:  # the fix that the message offers
        logits = kept(x)
    explains(head, logits)


class FullyShardedDataParallel(nn.Module):  # the older FSDP wants a GPU; its name is what tells
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


def test_older_fsdp(x):
    model = FullyShardedDataParallel(Net())
    with pytest.raises(ValueError, match=r"sharded \(FSDP\)"), hs.capture(model):
        pytest.fail("a sharded head must be refused")
    kept = Net()
    kept.backbone = FullyShardedDataParallel(kept.backbone)
    assert_captures(kept, x, "fc")  # the fix that the message offers


# Hooks are gone.


def _broken(_):
    raise ZeroDivisionError("inside the model")


@pytest.mark.parametrize("where", ["model", "body", "contract"])
def test_hooks_are_gone_after_an_error(where, x):
    model = Net(wrap=_broken if where == "model" else lambda z: z)
    model.fc.register_forward_hook(lambda *_: None)  # the user's own hook stays
    before = hooks(model)

    def captured():
        with hs.capture(model):
            assert hooks(model) != before
            model(x)
            if where == "body":
                raise ZeroDivisionError
            model(x)  # unread: against the contract

    with pytest.raises((ZeroDivisionError, RuntimeError)):
        captured()
    assert hooks(model) == before
    model.wrap = lambda z: z
    model(x), model(x), model.fc(torch.ones(1, 8))  # nothing counts forwards any more


def test_contexts_do_not_meet(x):
    model = Net()
    before = hooks(model)
    with hs.capture(model) as outer, hs.capture(model, "backbone.0") as inner:
        logits = model(x)
    assert hooks(model) == before
    assert inner.features is x
    torch.testing.assert_close(recomputed(outer), logits)
