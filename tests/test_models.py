"""Names → models with the preprocessing that belongs to them; checkpoints are data, never code."""

import os
import pickle
import sys
from functools import partial

import numpy as np
import pytest
import timm
import torch
import torchvision.models
import transformers
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torchvision import transforms as T
from torchvision.models._api import WeightsEnum

import hardsight as hs
from hardsight.checkpoints import load_weights, read_checkpoint, read_head
from hardsight.models import as_model, input_channels, network_identity
from hardsight.userfile import load_function


def write(path, text):
    path.write_text(text)
    return path


def small_net(outputs=3):
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs))


SMALL_NET = (
    "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))\n"
)


@pytest.fixture
def net_py(tmp_path):
    """A user's file whose function `net` builds what `small_net` builds."""
    return write(tmp_path / "net.py", SMALL_NET)


def assert_same_weights(module, state):
    own = module.state_dict()
    assert own.keys() == state.keys()
    assert all(torch.equal(own[key], state[key]) for key in own)


# ---------------------------------------------------------------------------------------------------------------------
# Specs.


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        *(
            (spec, r"MODEL .*timm:NAME, .*file\.py")
            for spec in ("resnet50", "timm:", "keras:resnet50", "", ":", "net:build")
        ),
        ("timm:resnet51", r"timm .*'resnet51'; .*resnet5"),
        ("timm:vit_base_patch16", r"timm .*'vit_base_patch16'; .*vit_base_patch16_"),
        ("timm:qqqqqqqq", "timm .*'qqqqqqqq'"),
        ("timm:resnet50.a1_in2k", r"resnet50\.a1_in2k"),
        ("torchvision:resnet51", r"torchvision .*'resnet51'; .*resnet50"),
        ("torchvision:ResNet50", r"torchvision .*'ResNet50'; .*resnet50"),
        ("torchvision:fasterrcnn_resnet50_fpn", "torchvision .*'fasterrcnn_resnet50_fpn'"),  # no classifier
        ("hf:./nothing", r"MODEL: .*hf:.*nothing"),
    ],
)
def test_names_that_are_none(spec, message):
    with pytest.raises(hs.HardsightError, match=message):
        hs.load_model(spec)


# ---------------------------------------------------------------------------------------------------------------------
# A user's own file.


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ("nn.Linear(4, 3)", ("net.py:build", "none: pixels in [0, 1]", None)),
        ("nn.Linear(4, 3), T.Normalize([0.5], [0.25])", ("net.py:build", "Normalize(mean=[0.5], std=[0.25])", None)),
        ("nn.Linear(4, 3), None, ('a', 'b', 'c')", ("net.py:build", "none: pixels in [0, 1]", ["a", "b", "c"])),
        ("hs.Model(nn.Linear(4, 3), 'mine', classes=['a', 'b', 'c'])", ("mine", None, ["a", "b", "c"])),
    ],
)
def test_what_a_file_may_return(tmp_path, returns, expected):
    imports = "import hardsight as hs\nfrom torch import nn\nfrom torchvision import transforms as T\n"
    file = write(tmp_path / "net.py", f"{imports}\ndef build():\n    return {returns}\n")
    model = hs.load_model(f"{file}:build")
    assert isinstance(model.module, nn.Linear)
    name, preprocessing, classes = expected
    assert (model.name, model.classes) == (name, classes)
    assert preprocessing is None or model.preprocessing == preprocessing


def test_file_that_imports_its_neighbour(tmp_path):
    write(tmp_path / "neighbour_of_net.py", "WIDTH = 4\n")
    code = "from torch import nn\nfrom neighbour_of_net import WIDTH\ndef build(): return nn.Linear(WIDTH, 3)\n"
    file = write(tmp_path / "net.py", code)
    before = list(sys.path)
    assert hs.load_model(f"{file}:build").module.in_features == 4
    assert sys.path == before
    sys.modules.pop("neighbour_of_net")


def test_a_file_is_executed_once_until_it_changes(tmp_path):
    file = tmp_path / "net.py"
    code = "from pathlib import Path\nwith Path(__file__ + '.log').open('a') as f: f.write({!r})\ndef build(): pass\n"
    for text in ("a", "bb"):
        file.write_text(code.format(text))
        functions = [load_function(f"{file}:build") for _ in range(2)]
        assert functions[0] == functions[1]
    assert (tmp_path / "net.py.log").read_text() == "abb"
    functions = []  # of files with one name, whose classes loader workers must unpickle
    for folder in ("a", "b", "a"):
        file = tmp_path / folder / "net.py"
        if not file.exists():
            file.parent.mkdir()
            file.write_text("class Resize: pass\n")
        functions.append(load_function(f"{file}:Resize"))
        pickle.loads(pickle.dumps(functions[-1]()))
    assert functions[0] == functions[2] != functions[1]


def test_a_file_that_changes_within_a_second_and_keeps_its_size_is_executed_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "net.py"
    for k in (1, 2):
        file.write_text(f"def build(): return {k}\n")
        os.utime(file, ns=(0, 10**9 + k))  # the bytecode that Python keeps knows seconds only
        assert load_function(f"{file}:build")() == k


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ("None", "nn.Module, .*got NoneType"),
        ("[nn.Linear(4, 3)]", "nn.Module, .*got list"),
        ("nn.Linear", "nn.Module, .*got type"),
        ("nn.Linear(4, 3).state_dict()", "nn.Module, .*got OrderedDict"),
        *((text, "nn.Module, .*got tuple") for text in ("(1, 2)", "()", "(nn.Linear(4, 3), None, None, None)")),
        ("(nn.Linear(4, 3), 'resize')", "transform .*str"),
        ("(nn.Linear(4, 3), None, 'cat')", "class_names.* str"),  # not the three classes c, a and t
        ("(nn.Linear(4, 3), None, 3)", "class_names.* int"),
    ],
)
def test_file_returning_the_wrong_thing(returns, message, tmp_path):
    file = write(tmp_path / "wrong.py", f"from torch import nn\n\ndef build():\n    return {returns}\n")
    with pytest.raises(ValueError, match=f"MODEL: .*{message}"):
        hs.load_model(f"{file}:build")


def test_a_file_or_function_that_is_not_there(net_py):
    with pytest.raises(ValueError, match=r"MODEL .*net\.py:build"):
        hs.load_model(str(net_py))
    with pytest.raises(ValueError, match=r"MODEL: .*'build'; .* net\."):
        hs.load_model(f"{net_py}:build")
    with pytest.raises(FileNotFoundError, match=r"MODEL: .*nowhere\.py"):
        hs.load_model(f"{net_py.parent}/nowhere.py:build")
    write(net_py, "def train(data):\n    return data\n")  # what must be given something trains
    with pytest.raises(ValueError, match=r"net\.py:train .* --folds 5"):
        hs.load_model(f"{net_py}:train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = 2\nz = x / 0\n", r"line 3: ZeroDivisionError"),
        ("import torch\nimport nonexistent_library\n", r"line 2: ModuleNotFoundError"),
        ("def build():\n    pass\n  oops = (\n", r"broken\.py.*line 3"),
        ("def build():\n    x = 1\n    return undefined\n", r"build\(\) .*line 3: NameError"),
        # The line of the user's file, not of the library that it calls.
        ("from torch import nn\ndef build():\n\n    return nn.Linear(-1, 3)\n", r"line 4: RuntimeError"),
    ],
    ids=["import", "missing library", "syntax", "name", "in a library"],
)
def test_errors_in_the_file_name_the_line(text, message, tmp_path):
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(RuntimeError, match=f"MODEL: .*{message}") as error:
        hs.load_model(f"{file}:build")
    assert error.value.__cause__.__traceback__ is not None  # the user's own error, with its lines


# ---------------------------------------------------------------------------------------------------------------------
# Preprocessing belongs to the model.


@pytest.fixture
def no_download(monkeypatch):
    """Pretrained weights, drawn instead of fetched."""
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **kw: create(name, pretrained=False, **kw))
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda self, *_, **__: _state(type(self)))


def _state(weights):
    name = weights.__name__.removesuffix("_Weights").lower()
    return torchvision.models.get_model(name, weights=None).state_dict()


def in_words(transform):
    return " ".join(repr(transform).split())


def test_preprocessing_of_timm_and_torchvision(no_download):
    model = hs.load_model("timm:test_resnet.r160_in1k")
    config = timm.data.resolve_model_data_config(model.module)
    assert model.preprocessing == in_words(timm.data.create_transform(**config, is_training=False))
    assert "160" in model.preprocessing
    assert model.weights == "timm, pretrained"
    assert model.transform(Image.new("RGB", (300, 200))).shape == (3, 160, 160)
    model = hs.load_model("torchvision:squeezenet1_1")
    weights = torchvision.models.SqueezeNet1_1_Weights.DEFAULT
    assert model.preprocessing == in_words(weights.transforms())
    assert "0.485" in model.preprocessing
    assert list(model.classes) == weights.meta["categories"]
    assert "SqueezeNet1_1_Weights" in model.weights
    assert model.transform(Image.new("RGB", (300, 200))).shape == (3, 224, 224)


@pytest.mark.parametrize("names", [["cat", "dog", "owl"], None])
def test_preprocessing_and_names_of_hugging_face(tmp_path, names):
    labels = {"id2label": dict(enumerate(names))} if names else {"num_labels": 3}  # which makes up LABEL_0, …
    config = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[8], depths=[1], **labels)
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.1, 0.2, 0.3])
    processor.save_pretrained(tmp_path)
    model = hs.load_model(f"hf:{tmp_path}")
    assert model.classes == names
    assert model.preprocessing == in_words(transformers.AutoImageProcessor.from_pretrained(tmp_path))
    x = model.transform(Image.new("RGB", (50, 40)))
    assert x.shape == (3, 32, 32)
    # Black is minus mean over deviation: the processor's own numbers are used.
    torch.testing.assert_close(x[:, 0, 0], -torch.tensor([0.1, 0.2, 0.3]) / torch.tensor(processor.image_std))


class Halved:
    def __call__(self, x, by=2):
        return x / by


def test_preprocessing_in_words_is_the_same_in_every_process():
    # It is part of a run's plan: an address in memory would keep a killed run from being resumed.
    for build in (lambda: test_input_channels, lambda: lambda x: x / 2, Halved, lambda: partial(Halved(), by=4)):
        texts = [hs.Model(nn.Linear(4, 3), "net", build()).preprocessing for _ in range(2)]
        assert texts[0] == texts[1]
        assert " at 0x" not in texts[0]


class ReadTimeoutError(Exception):
    """As a library that downloads raises it."""

    __module__ = "httpx2"


@pytest.mark.parametrize("spec", ["timm:test_resnet", "torchvision:squeezenet1_1"])
@pytest.mark.parametrize("error", [OSError, ReadTimeoutError, TypeError, AttributeError, KeyError])
def test_weights_that_cannot_be_loaded_are_a_sentence_and_a_bug_is_none(monkeypatch, spec, error):
    def failing(*_, **__):
        raise error("no route to host\nand a long trace")

    monkeypatch.setattr(timm, "create_model", failing)
    monkeypatch.setattr(WeightsEnum, "get_state_dict", failing)
    with pytest.raises(hs.HardsightError if error in (OSError, ReadTimeoutError) else error) as caught:
        hs.load_model(spec)
    if isinstance(caught.value, hs.HardsightError):
        assert spec in str(caught.value)
        assert "no route to host)" in str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints.


def prefixed(prefix, state):
    return {prefix + key: value for key, value in state.items()}


STATES = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"state_dict": state, "epoch": 3},
    "model": lambda state: {"model": state, "optimizer": {"lr": 0.1}},
    "model_state_dict": lambda state: {"model_state_dict": state},
    "average": lambda state: {"model_ema": prefixed("module.", state)},
    "nested": lambda state: {"epoch": 1, "model": {"state_dict": state}},
    "weights before average": lambda state: {"model": state, "model_ema": {k: v + 1 for k, v in state.items()}},
    "ema": lambda state: prefixed("ema_model.", state) | {"n_averaged": torch.tensor(3)},
    "ddp": lambda state: prefixed("module.", state),
    "compiled": lambda state: prefixed("_orig_mod.", state),
    "prefix": lambda state: prefixed("model.", state),
    "ddp compiled": lambda state: {"state_dict": prefixed("module._orig_mod.", state)},
    "lightning": lambda state: {"state_dict": prefixed("model._orig_mod.", state), "hyper_parameters": {}},
}
SAVED = {
    **{name: lambda net, file, wrap=wrap: torch.save(wrap(net.state_dict()), file) for name, wrap in STATES.items()},
    "safetensors": lambda net, file: save_file(net.state_dict(), file),
    "older torch": lambda net, file: torch.save(net.state_dict(), file, _use_new_zipfile_serialization=False),
    "of DataParallel": lambda net, file: torch.save(nn.DataParallel(net).state_dict(), file),
    "of torch.compile": lambda net, file: torch.save(torch.compile(net).state_dict(), file),
    "of AveragedModel": lambda net, file: torch.save(torch.optim.swa_utils.AveragedModel(net).state_dict(), file),
}


@pytest.mark.parametrize("name", SAVED)
def test_formats_and_wrappings_of_state_dicts(name, tmp_path, net_py):
    network, file = small_net(), tmp_path / f"weights.{'safetensors' if name == 'safetensors' else 'pt'}"
    SAVED[name](network, file)
    model = hs.load_model(f"{net_py}:net", str(file))
    assert_same_weights(model.module, network.state_dict())
    assert model.weights == f"checkpoint {file.name}"


def test_a_layer_that_is_called_like_a_prefix():
    # Nothing is stripped from keys that fit as they are.
    network, other = (nn.ModuleDict({"model": nn.Linear(4, 3)}) for _ in range(2))
    load_weights(other, network.state_dict(), "weights.pt")
    assert_same_weights(other, network.state_dict())


MISFITS = {
    "missing": (lambda state: state.pop("0.bias"), r"Missing .*\"0\.bias\""),
    "unexpected": (lambda state: state.update(extra=torch.zeros(2)), r"Unexpected .*\"extra\""),
    "shape": (lambda state: state.update({"2.weight": torch.zeros(5, 6)}), r"2\.weight.*\[3, 6\]"),
    "another network": (lambda state: [state.pop(key) for key in [*state][1:]], r"Missing .*\"2\.bias\""),
    "control sequences": (lambda state: state.update({"\x1b[2J\n": torch.zeros(2)}), r"\\x1b"),
    "complex": (lambda state: state.update({"2.bias": torch.zeros(3) + 1j}), r"2\.bias is complex"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_misfit_is_named_in_one_sentence_and_changes_nothing(misfit, tmp_path):
    change, key = MISFITS[misfit]
    network, state = small_net(), small_net().state_dict()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    change(state)
    torch.save(state, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=key) as error:
        load_weights(network, read_checkpoint(tmp_path / "weights.pt"), "folder/weights.pt")
    assert str(error.value).startswith("--checkpoint: weights.pt ")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
    assert_same_weights(network, before)


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize(
    ("spec", "build"),
    [
        ("timm:test_efficientnet", lambda: timm.create_model("test_efficientnet", num_classes=7)),
        ("timm:test_vit.r160_in1k", lambda: timm.create_model("test_vit", num_classes=7)),
        ("torchvision:resnet18", lambda: torchvision.models.resnet18(num_classes=7)),
        ("torchvision:squeezenet1_1", lambda: torchvision.models.squeezenet1_1(num_classes=7)),
    ],
)
def test_number_of_classes_comes_from_the_checkpoint(spec, build, prefix, tmp_path):
    network = build()
    torch.save({prefix + k: v for k, v in network.state_dict().items()}, tmp_path / "weights.pt")
    model = hs.load_model(spec, tmp_path / "weights.pt")
    assert len(hs.find_head(model.module).module.weight) == 7
    assert_same_weights(model.module, network.state_dict())
    assert model.weights == "checkpoint weights.pt"
    if spec == "torchvision:squeezenet1_1":  # its preprocessing stays, ImageNet's names do not belong to these weights
        assert model.preprocessing == in_words(torchvision.models.SqueezeNet1_1_Weights.DEFAULT.transforms())
        assert model.classes is None


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_torchvision_networks_with_auxiliary_classifiers(name, tmp_path):
    # Built without weights they warn about their initialisation, which a checkpoint replaces anyway.
    with torch.device("meta"):
        network = torchvision.models.get_model(name, weights=None, num_classes=7, init_weights=False)
    network = network.to_empty(device="cpu")
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    model = hs.load_model(f"torchvision:{name}", tmp_path / "weights.pt")
    assert len(hs.find_head(model.module).module.weight) == 7


class Malice:
    """Unpickling it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("as_pickle", ["torch", "older torch", "plain pickle"])
def test_a_pickle_that_wants_to_execute_is_refused(as_pickle, tmp_path):
    torch.save(small_net(), tmp_path / "whole.pt")
    with pytest.raises(ValueError, match=r"whole\.pt .*state_dict\(\)"):
        read_checkpoint(tmp_path / "whole.pt")
    file, trace = tmp_path / "evil.pt", tmp_path / "executed"
    content = {"state_dict": small_net().state_dict(), "extra": Malice(trace)}
    if as_pickle == "plain pickle":
        file.write_bytes(pickle.dumps(Malice(trace), protocol=2))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=as_pickle == "torch")
    with pytest.raises(ValueError, match=r"--checkpoint: evil\.pt .*execute") as error:
        read_checkpoint(file)
    assert not trace.exists()
    assert "mkdir" in str(error.value)  # what it wanted
    assert "weights_only" not in str(error.value)  # no advice to allow it
    assert "\n" not in str(error.value)
    pickle.loads(pickle.dumps(Malice(trace)))  # the trap was armed
    assert trace.exists()


@pytest.mark.parametrize(("suffix", "save"), [(".pt", torch.save), (".safetensors", save_file)])
def test_truncated_checkpoints(suffix, save, tmp_path):
    file = tmp_path / f"cut{suffix}"
    save(small_net().state_dict(), file)
    whole = file.read_bytes()
    for kept in (0, 10, len(whole) // 2, int(0.99 * len(whole))):
        file.write_bytes(whole[:kept])
        with pytest.raises(ValueError, match=rf"--checkpoint: cut\{suffix} .*truncated"):
            read_checkpoint(file)


def test_checkpoints_without_weights(tmp_path):
    endless = {}
    endless["model"] = endless
    for content in ({"epoch": 3}, {}, [torch.zeros(2)], torch.zeros(2), endless):
        torch.save(content, tmp_path / "odd.pt")
        with pytest.raises(ValueError, match=r"--checkpoint: odd\.pt holds"):
            read_checkpoint(tmp_path / "odd.pt")
    for path in (tmp_path / "nowhere.pt", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"--checkpoint: .*no file"):
            read_checkpoint(path)


# ---------------------------------------------------------------------------------------------------------------------
# A head by itself.


def test_read_head(tmp_path):
    layer = nn.Linear(4, 3)
    state = {name: value.detach() for name, value in layer.state_dict().items()}
    torch.save(state, tmp_path / "head.pt")
    save_file({f"fc.{name}": value for name, value in state.items()}, tmp_path / "head.safetensors")
    np.savez(tmp_path / "head.npz", **{name: value.numpy() for name, value in state.items()})
    for suffix in ("pt", "safetensors", "npz"):
        weight, bias = read_head(tmp_path / f"head.{suffix}")
        assert torch.equal(weight, layer.weight)
        assert torch.equal(bias, layer.bias)
    save_file({"weight": torch.ones(3, 4)}, tmp_path / "head.safetensors")
    assert read_head(tmp_path / "head.safetensors")[1] is None
    save_file(small_net().state_dict(), tmp_path / "head.safetensors")
    with pytest.raises(ValueError, match=r"--head: head\.safetensors .* 0\."):
        read_head(tmp_path / "head.safetensors")


# ---------------------------------------------------------------------------------------------------------------------
# Around.


def test_fingerprint():
    network = small_net()
    first = network_identity(network)
    assert network_identity(network) == first
    assert network_identity(nn.DataParallel(network)) == first
    assert network_identity(torch.compile(network)) == first
    network._compile_kwargs = {}  # as Lightning's torch.compile leaves it
    assert network_identity(network) == first
    with torch.no_grad():
        network[2].weight[1, 2] += 1e-3
    assert network_identity(network) != first
    buffered = nn.Sequential(nn.BatchNorm1d(4))
    first = network_identity(buffered)
    buffered[0].running_mean[0] = 1  # buffers decide too
    assert network_identity(buffered) != first
    assert network_identity(small_net().bfloat16()) != network_identity(small_net())


def test_as_model(net_py):
    network = small_net()
    assert as_model(network).name == "Sequential"
    assert as_model(torch.compile(network)).name == "Sequential"
    assert as_model(f"{net_py}:net").name == "net.py:net"
    normalize = T.Normalize([0.5], [0.5])
    assert as_model(network, normalize).transform is normalize
    named = hs.Model(network, "mine", T.CenterCrop(8), "pil")
    assert as_model(named) is named
    assert as_model(named, normalize).takes == "items"  # another transform may take something else
    with pytest.raises(TypeError, match=r"model .*nn\.Module.*OrderedDict"):
        as_model(network.state_dict())


def test_input_channels():
    assert input_channels(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3))) == 1
    assert input_channels(nn.Sequential(nn.Conv2d(3, 4, 3))) == 3
    assert input_channels(nn.Linear(4, 3)) is None  # it does not say
    assert input_channels(nn.Conv2d(12, 4, 1)) is None
