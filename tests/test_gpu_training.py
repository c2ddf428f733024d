"""Training and recording on a GPU: the same numbers as on a CPU, and a graph that is the step it replaces."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from naive import triple
from torch import nn

import hardsight as hs
from hardsight.data import ArraySamples, load_digits
from hardsight.recipes import Recipe
from hardsight.training.graphed import GraphedStep

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

RECIPE = Recipe(epochs=6, batch_size=64, lr=0.1, schedule="cosine", drop_last=True)


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip


def digits(split, start, stop):
    images, labels = load_digits()
    return ArraySamples(images[start:stop], labels[start:stop], split, split, list("0123456789"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_records_of_a_gpu_are_those_of_the_cpu(tmp_path, dtype):
    for device in ("cpu", "cuda"):
        recorder = hs.Recorder(tmp_path / device)
        torch.manual_seed(0)
        for epoch in range(3):
            for batch in range(40):
                x, w, y, b = (t.to(device) for t in triple(32, 64, 10))
                ids = torch.arange(32, device=device) + 32 * batch
                y = (ids + epoch * 0) % 10
                recorder.update(ids, SimpleNamespace(features=x.to(dtype), weight=w, bias=b), y)
            recorder.end_epoch()
    cpu, gpu = hs.Dynamics(tmp_path / "cpu"), hs.Dynamics(tmp_path / "cuda")
    for column in ("angle", "angle_sum", "soft_margin", "norm", "margin", "el2n", "nll_angles", "nll_norms"):
        np.testing.assert_allclose(gpu.matrix(column), cpu.matrix(column), rtol=2**-15, atol=1e-6)
    np.testing.assert_array_equal(gpu.matrix("pred"), cpu.matrix("pred"))


def test_a_graphed_step_is_the_step_it_replaces():
    x, y = torch.rand(32, 1, 8, 8, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
    plain, graphed = net().cuda(), net().cuda()
    step = GraphedStep(graphed, graphed, F.cross_entropy, x, y)
    for a, b in zip(plain.buffers(), graphed.buffers(), strict=True):
        assert torch.equal(a, b)  # warming up left no trace
    optimisers = [torch.optim.SGD(n.parameters(), 0.1, 0.9) for n in (plain, graphed)]
    for round_ in range(4):
        x, y = torch.rand_like(x), torch.randint(0, 10, (32,), device="cuda")
        optimisers[0].zero_grad()
        with hs.capture(plain) as head:
            loss = F.cross_entropy(plain(x), y)
        loss.backward()
        found, _, seen = step(x, y)
        torch.testing.assert_close(found, loss.detach(), rtol=1e-4, atol=1e-5, msg=f"round {round_}")
        torch.testing.assert_close(seen.features, head.features.detach(), rtol=1e-3, atol=1e-4)
        for a, b in zip(plain.parameters(), graphed.parameters(), strict=True):
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-2, atol=1e-4)
        for optimiser in optimisers:
            optimiser.step()
    for a, b in zip(plain.buffers(), graphed.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"graph": True},
        {"graph": True, "precision": "bf16", "channels_last": True, "ema": 0.9, "clip": 1.0, "label_smoothing": 0.1},
        {"graph": True, "mixup": 0.2},
        {"optimizer": "adamw", "lr": 0.01, "precision": "bf16"},
    ],
)
def test_training_on_a_gpu_learns_digits_and_records_what_it_saw(tmp_path, options):
    recipe = replace(RECIPE, **options)
    trained = hs.train(
        net(), digits("train", 0, 1400), digits("test", 1400, 1797), out=tmp_path / "run", recipe=recipe, progress=False
    )
    assert trained.history[-1]["test_accuracy"] > 0.85
    test = hs.Dynamics(tmp_path / "run" / "test")
    assert test.matrix("correct")[:, -1].mean() == pytest.approx(trained.history[-1]["test_accuracy"], abs=0.006)
    if "mixup" not in options:
        train = hs.Dynamics(tmp_path / "run" / "train")
        seen = ~np.isnan(train.matrix("angle"))
        assert seen.sum(0).tolist() == [1400 // 64 * 64] * 6
        right = np.nanmean(train.matrix("correct"), 0)
        np.testing.assert_allclose(right, [row["accuracy"] for row in trained.history], atol=0.006)


def test_the_norm_of_the_gradient_is_the_same_in_a_graph(tmp_path):
    recipe = replace(RECIPE, epochs=2, lr=0.01)
    graph, eager = (
        hs.train(
            net(), digits("train", 0, 640), out=tmp_path / str(on), recipe=replace(recipe, graph=on), progress=False
        )
        for on in (True, False)
    )
    norms = [[row["gradient"] for row in trained.history] for trained in (graph, eager)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)
    assert min(norms[0]) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler uses what torch deprecates, and recommends TF32
def test_compiled_parts_train_and_record(tmp_path):
    trained = hs.train(
        "resnet18-32", digits("train", 0, 512), digits("test", 1400, 1500), out=tmp_path / "run",
        recipe=replace(RECIPE, epochs=2, compile=True), progress=False,
    )  # fmt: skip
    assert len(hs.Dynamics(tmp_path / "run" / "train")) == 512
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]


def test_dropout_draws_anew_in_each_replay_and_seeds_rule_it():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)).cuda()
    x, y = torch.rand(32, 1, 8, 8, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
    step = GraphedStep(network, network, F.cross_entropy, x, y)

    def drawn():
        torch.manual_seed(7)
        return [step(x, y)[1].clone() for _ in range(3)]

    first, again = drawn(), drawn()
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)
    for logits in first:  # half of the inputs are dropped, and another half in each row
        assert len({tuple(row.tolist()) for row in logits}) == 32


def dropped_out():
    torch.manual_seed(0)
    body = nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2)
    return nn.Sequential(*body, nn.Linear(128, 10))


def flat():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_records_on_a_gpu_are_what_scoring_finds(tmp_path, precision):
    recipe = Recipe(
        epochs=2, batch_size=64, lr=0.05, precision=precision, channels_last=True, crop=1, flip=True, ema=0.9
    )
    test = digits("test", 500, 700)
    result = hs.train(
        dropped_out(), digits("train", 0, 500), test, out=tmp_path, recipe=recipe, device="cuda", progress=False
    )
    scored = hs.score(result.model, test, progress=False)
    recorded = hs.Dynamics(tmp_path / "test").at(2)
    close = 2e-3 if precision == "float32" else 0.05
    np.testing.assert_allclose(recorded["avh"], scored["avh"][np.argsort(scored["id"])], rtol=close)


WAITING = {
    "plain": (dropped_out, {"crop": 1, "flip": True, "ema": 0.9, "precision": "bf16", "channels_last": True}),
    "pairs": (flat, {"loss": "el:0.5@arcface+amc"}),
    "center": (flat, {"loss": "center"}),
}


@pytest.mark.parametrize("case", WAITING)
def test_steps_do_not_wait_for_the_gpu(tmp_path, device_waits, case):
    network, options = WAITING[case]
    recipe = Recipe(epochs=1, batch_size=50, lr=0.1, **options)
    waits = {}
    for count in (10, 40):  # steps of an epoch: fewer than are looked at together
        with device_waits() as waited:
            hs.train(
                network(), digits("train", 0, 500), out=tmp_path / str(count), recipe=recipe, device="cuda",
                sampler=list(range(50)) * count, record=("train",) if case == "plain" else (), progress=False,
            )  # fmt: skip
        waits[count] = len(waited)
    assert waits[10] == waits[40] > 0


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", ["avh:8,learn+center", "el:0.5,defer=1@arcface:0.2+amc:1", "ce:drw=2", "adjusted"])
def test_a_gpu_trains_with_a_loss_what_a_cpu_does(tmp_path, name, graph):
    recipe = Recipe(epochs=3, batch_size=50, lr=0.02, drop_last=True, warmup=2, schedule="ramp", loss=name)
    data = digits("train", 0, 300), digits("test", 300, 400)
    here, there = (
        hs.train(
            flat(), *data, out=tmp_path / device, recipe=replace(recipe, graph=graph and device == "cuda"),
            device=device, record=(), progress=False,
        )
        for device in ("cpu", "cuda")
    )  # fmt: skip
    for one, two in zip(here.history, there.history, strict=True):
        for part in {"loss", "ce", "bonus", "pairs"} & one.keys():
            assert two[part] == pytest.approx(one[part], rel=0.02, abs=2e-3)
    first, second = (torch.load(tmp_path / d / "checkpoint.pt", weights_only=True)["loss"] for d in ("cpu", "cuda"))
    torch.testing.assert_close(second, first, rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_graph_takes_rows_and_frozen_norm_as_a_step_does(tmp_path, frozen):
    rows = np.random.default_rng(0).dirichlet(np.full(10, 0.3), 160).astype(np.float32)
    recipe = Recipe(
        epochs=2, batch_size=32, lr=0.1, momentum=0.0, schedule="constant", weight_decay=0.0, drop_last=True,
        frozen_norm=frozen,
    )  # fmt: skip
    states = []
    for graph in (True, False):
        torch.manual_seed(0)
        network = nn.Sequential(
            *(nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()), nn.Linear(64, 10)
        )
        result = hs.train(
            network, digits("train", 0, 160), out=tmp_path / str(graph), recipe=replace(recipe, graph=graph),
            targets=rows, device="cuda", record=(), progress=False,
        )  # fmt: skip
        states.append(result.model.module.state_dict())
    for key, value in states[0].items():
        torch.testing.assert_close(value, states[1][key], rtol=1e-4, atol=1e-5)


def test_a_step_that_waits_for_the_gpu_is_refused_as_a_graph(tmp_path):
    def waiting(logits, targets):
        return F.cross_entropy(logits, targets) * (1.0 if logits.sum().item() else 2.0)

    recipe = replace(RECIPE, epochs=1, graph=True)
    with pytest.raises(RuntimeError, match="graph=False"):
        hs.train(net(), digits("train", 0, 320), out=tmp_path / "run", recipe=recipe, loss=waiting, progress=False)
