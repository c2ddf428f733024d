"""The engine: the loop against a plain one, resuming to the last bit, bad input."""

import json
import math
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

import hardsight as hs
from hardsight.data import ArraySamples, as_pixels, load_digits, mean_and_std
from hardsight.dynamics import Dynamics
from hardsight.presets import PRESETS
from hardsight.recipes import Recipe
from hardsight.training import loop, train
from hardsight.training.augment import mixup, resized_crop, shift
from hardsight.training.checkpoint import Saver, load
from hardsight.training.loop import Training, compile_parts, micro_batches, seed_of, split_batches, synchronize_norms

QUICK = Recipe(epochs=3, batch_size=64, lr=0.05, schedule="constant", weight_decay=0.0)
CPU = torch.device("cpu")


def net(seed=0, classes=10, dropout=0.2):
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
        *(nn.Dropout(dropout), nn.Linear(128, classes)),
    )


def digits(split, start, stop):
    images, labels = load_digits()
    return ArraySamples(images[start:stop], labels[start:stop], split, f"digits {start}–{stop}", list("0123456789"))


def data():
    return digits("train", 0, 500), digits("test", 500, 700)


def trained(out, recipe=QUICK, **options):
    given = {"model": net(), "device": "cpu", "progress": False} | options
    return train(given.pop("model"), *given.pop("data", data()), out=out, recipe=recipe, **given)


def weights(result):
    return {name: value.clone() for name, value in result.model.module.state_dict().items()}


def timeless(history):
    return [{k: v for k, v in row.items() if "second" not in k} for row in history]


def test_shift_is_a_crop_of_the_mirrored_picture():
    x = torch.rand(40, 3, 6, 7)
    moves = torch.randint(-2, 3, (2, 40, 1), generator=torch.Generator().manual_seed(5))
    found = shift(x, 2, torch.Generator().manual_seed(5))
    padded = F.pad(x, (2, 2, 2, 2), mode="reflect")
    for i in range(40):
        top, left = 2 + int(moves[0, i]), 2 + int(moves[1, i])
        assert torch.equal(found[i], padded[i, :, top : top + 6, left : left + 7])
    assert len({tuple(m) for m in moves[:, :, 0].T.tolist()}) > 10


def test_a_random_part_lies_inside_has_the_area_and_is_mirrored_half_the_time():
    n = 2000
    ramp = torch.linspace(0, 1, 64)[:, None].expand(64, 64)  # the value tells the place
    x = torch.stack([ramp, ramp.T]).expand(n, 2, 64, 64)
    part = resized_crop(x, torch.Generator().manual_seed(0), flip=True)
    tall = (part[:, 0, -1, 0] - part[:, 0, 0, 0]).double() * 63 / 63
    wide = (part[:, 1, 0, -1] - part[:, 1, 0, 0]).double()
    assert part.min() >= 0
    assert part.max() <= 1
    area = tall * wide.abs() * (64 / 63) ** 2  # the corners are half a pixel inside
    assert 0.06 < area.min() < 0.12
    assert 0.5 < area.mean() < 0.56  # sides of more than the whole are cut, which takes a little off .54
    assert 0.45 < (wide < 0).double().mean() < 0.55
    ratio = wide.abs() / tall
    assert 0.7 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < 1.45
    assert resized_crop(x[:3], torch.Generator().manual_seed(0), 16).shape == (3, 2, 16, 16)


def test_mixup_blends_pictures_and_targets_alike():
    x, y = torch.rand(6, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    mixed, targets = mixup(x, y, 3, 0.4, random.Random(1))
    share = random.Random(1).betavariate(0.4, 0.4)
    for i in range(6):
        torch.testing.assert_close(mixed[i], share * x[i] + (1 - share) * x[5 - i])
        expected = np.zeros(3)
        expected[y[i]] += share
        expected[y[5 - i]] += 1 - share
        np.testing.assert_allclose(targets[i], expected, atol=1e-6)


def test_batches_hold_every_row_once_and_a_lone_last_sample_is_left_out():
    order = torch.randperm(130)
    assert sorted(torch.cat(split_batches(order, 32, False, 1)).tolist()) == list(range(130))
    assert [len(b) for b in split_batches(order, 32, True, 1)] == [32] * 4
    assert [len(b) for b in split_batches(order[:97], 32, False, 1)] == [32] * 3
    assert [len(b) for b in split_batches(order[:99], 32, False, 2)] == [32] * 3
    assert len({seed_of(s, e, r) for s in range(5) for e in range(20) for r in range(4)}) == 400


def test_mean_and_std_are_numpys():
    images = np.random.default_rng(0).integers(0, 256, (50, 7, 6, 3), dtype=np.uint8)
    pixels = as_pixels(ArraySamples(images, None, "a", "a"), None, CPU)
    mean, spread = mean_and_std(pixels)
    np.testing.assert_allclose(mean, (images / 255).mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(spread, (images / 255).std((0, 1, 2)), rtol=1e-12)


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_training_is_a_plain_loop_and_records_the_norm_of_its_gradient(tmp_path, clip):
    recipe = Recipe(epochs=2, batch_size=50, lr=0.1, nesterov=True, weight_decay=1e-3, schedule="cosine", clip=clip)
    result = trained(tmp_path / "run", recipe, model=net(dropout=0.0))
    plain, (source, _) = net(dropout=0.0), data()
    optimizer = torch.optim.SGD(plain.parameters(), 0.1, 0.9, weight_decay=1e-3, nesterov=True)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 20)
    x, y = torch.from_numpy(source.images)[:, None] / 255, torch.from_numpy(source.labels)
    for epoch in (1, 2):
        order, norms = torch.randperm(500, generator=torch.Generator().manual_seed(seed_of(0, epoch))), []
        for rows in order.split(50):
            loss = F.cross_entropy(plain(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            norms.append(float(sum(p.grad.double().square().sum() for p in plain.parameters()).sqrt()))
            if clip:
                nn.utils.clip_grad_norm_(plain.parameters(), clip)
            optimizer.step()
            scheduler.step()
        assert result.history[epoch - 1]["gradient"] == pytest.approx(np.mean(norms), rel=1e-4)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(result.model.module.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_micro_batches_hold_the_batch_and_are_as_many_in_every_process():
    for size, accumulate, world, last in ((50, 4, 1, 20), (64, 3, 2, 5), (48, 12, 2, 9), (8, 2, 2, 4), (100, 1, 3, 7)):
        recipe = Recipe(batch_size=size, accumulate=accumulate)
        for length in (size, last):
            batch = torch.randperm(length)
            parts = [micro_batches(batch, recipe, rank, world) for rank in range(world)]
            assert torch.equal(torch.cat([torch.cat(p) for p in parts]).sort()[0], torch.arange(length))
            assert len({len(p) for p in parts}) == 1
            assert len(parts[0]) == accumulate or length < size
            sizes = [len(rows) for p in parts for rows in p]
            assert min(sizes) >= 2
            assert max(sizes) <= max(3, math.ceil(math.ceil(size / world) / accumulate))


@pytest.mark.parametrize(("loss", "optimizer"), [("ce", "sgd"), ("el", "adamw")])
def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path, loss, optimizer):
    def run(name, accumulate):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.Tanh(), nn.Flatten(), nn.Linear(128, 10))
        recipe = Recipe(
            epochs=2, batch_size=50, lr=0.02, optimizer=optimizer, ema=0.5, loss=loss, accumulate=accumulate
        )
        return trained(tmp_path / name, recipe, model=model, data=(digits("train", 0, 470), data()[1])), model

    (whole, one), (parts, four) = (
        run("whole", 1),
        run("parts", 4),
    )  # 13, 13, 12 and 12 of 50, and 10 and 10 of the last 20
    for a, b in ((one, four), (whole.model.module, parts.model.module)):
        for name, value in a.state_dict().items():
            torch.testing.assert_close(b.state_dict()[name], value, rtol=1e-4, atol=2e-6)
    assert [row["steps"] for row in parts.history] == [10, 10]
    for row, expected in zip(timeless(parts.history), timeless(whole.history), strict=True):
        assert row == pytest.approx(expected, rel=1e-5)  # also the norm of the gradient
    for split, count in (
        ("train", 470),
        ("test", 200),
    ):  # rows of the weights before the step, one per sample and epoch
        a, b = Dynamics(tmp_path / "whole" / split), Dynamics(tmp_path / "parts" / split)
        assert (b.ids.tolist(), len(b)) == (a.ids.tolist(), count)
        assert b.meta.recorded.repeated == 0
        np.testing.assert_allclose(b.matrix("avh"), a.matrix("avh"), rtol=1e-4)
        np.testing.assert_allclose(b.matrix("margin"), a.matrix("margin"), rtol=1e-3, atol=1e-4)


def test_micro_batches_of_bf16_and_of_pairs_are_trained_and_recorded(tmp_path, capsys):
    recipe = Recipe(epochs=2, batch_size=50, lr=0.05, schedule="constant", precision="bf16", loss="ce+amc")
    result = trained(tmp_path / "run", replace(recipe, accumulate=3), progress=True)
    assert "micro-batch" in capsys.readouterr().out
    assert result.history[-1]["test_accuracy"] > 0.7
    assert result.history[0]["pairs"] > 0
    hits = Dynamics(tmp_path / "run" / "train").matrix("correct")
    assert hits.mean(0) == pytest.approx([row["accuracy"] for row in result.history])


def test_a_broken_micro_batch_names_its_step(tmp_path):
    calls = iter(range(1000))

    def loss(logits, targets):
        return F.cross_entropy(logits, targets) * (math.nan if next(calls) == 7 else 1.0)

    with pytest.raises(FloatingPointError, match=r"epoch 1, step 3;"):  # the second of its three
        trained(tmp_path / "run", replace(QUICK, accumulate=3), loss=loss)


def test_synchronized_norms_share_their_tensors_with_the_layers_they_replace():
    plain, synced = net(dropout=0.0), net(dropout=0.0)
    layers = synchronize_norms(synced)
    assert [type(layer) for layer in (synced[1], layers["1"])] == [nn.SyncBatchNorm, nn.BatchNorm2d]
    assert list(synced.state_dict()) == list(plain.state_dict())
    x, y = torch.rand(20, 1, 8, 8), torch.arange(20) % 10
    for model in (plain, synced):  # in one process both are the same
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    synced[1] = layers["1"]
    torch.testing.assert_close(synced.state_dict(), plain.state_dict(), rtol=0, atol=0)
    other = net(seed=1)
    synchronize_norms(other)
    other.load_state_dict(plain.state_dict())
    net(seed=2).load_state_dict(other.state_dict())
    assert torch.equal(other.eval()(x), plain.eval()(x))


def test_only_several_processes_synchronize_norms_and_the_user_gets_the_layers_back(monkeypatch):
    recipe = Recipe(sync_batchnorm=True, ema=0.5)
    assert type(Training(net(), recipe, CPU, F.cross_entropy).network[1]) is nn.BatchNorm2d
    monkeypatch.setattr(loop, "rank_and_world", lambda: (0, 2))
    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", lambda network: network)
    model = net()
    before = model[1]
    training = Training(model, recipe, CPU, F.cross_entropy)
    assert [type(part[1]) for part in (training.wrapped, training.result)] == [nn.SyncBatchNorm, nn.BatchNorm2d]
    names = list(training.state()["online"])
    model.eval()
    training.restore_norms()
    assert (model[1], model[1].training, list(model.state_dict())) == (before, False, names)


def test_a_norm_that_does_more_is_not_replaced():
    class WithActivation(nn.BatchNorm2d):  # as timm's BatchNormAct2d, whose activation torch would drop
        def forward(self, x):
            return super().forward(x).relu()

    model = nn.Sequential(nn.Conv2d(1, 8, 3), WithActivation(8), nn.Flatten(), nn.Linear(288, 10))
    with pytest.raises(ValueError, match=r"sync_batchnorm .*'1'.*WithActivation"):
        synchronize_norms(model)
    assert type(model[1]) is WithActivation


def test_the_oracle_is_the_best_epoch_by_the_test_labels_not_the_last(tmp_path):
    spoilt = Recipe(epochs=3, batch_size=50, lr=0.05, schedule="step", steps=(2,), step_factor=100)
    history = trained(tmp_path / "run", spoilt).history
    accuracies = [row["test_accuracy"] for row in history]
    assert accuracies[-1] < max(accuracies)
    assert [row["oracle_test_accuracy"] for row in history] == np.maximum.accumulate(accuracies).tolist()


def test_the_last_records_are_what_scoring_finds(tmp_path):
    result = trained(tmp_path / "run")
    scored = hs.score(result.model, data()[1], progress=False)
    recorded = Dynamics(tmp_path / "run" / "test").at(3)
    order = np.argsort(scored["id"])
    assert recorded["id"].tolist() == scored["id"][order].tolist()
    for name in ("avh", "angle", "norm", "nll", "margin"):
        np.testing.assert_allclose(recorded[name], scored[name][order], rtol=2e-3, atol=1e-5)
    assert result.history[-1]["test_accuracy"] == pytest.approx(scored.accuracy)
    assert result.history[-1]["test_loss"] == pytest.approx(scored["nll"].mean(), rel=1e-3)
    assert result.history[-1]["test_accuracy"] > 0.6
    dynamics = Dynamics(tmp_path / "run" / "train")  # every sample in every epoch
    assert (dynamics.epochs.tolist(), len(dynamics)) == ([1, 2, 3], 500)
    hits = dynamics.matrix("correct")
    assert not np.isnan(hits).any()
    assert hits.mean(0) == pytest.approx([row["accuracy"] for row in result.history])
    assert json.loads((tmp_path / "run" / "history.json").read_text()) == result.history


def test_averaged_weights_are_evaluated_recorded_and_kept(tmp_path):
    online, seen = net(), []

    def watched(logits, targets):
        seen.append(online[5].weight.detach().clone())
        return F.cross_entropy(logits, targets)

    recipe = Recipe(epochs=2, batch_size=100, lr=0.1, schedule="constant", ema=0.8)
    result = trained(tmp_path / "run", recipe, model=online, loss=watched)
    first, *later = [*seen[1:], online[5].weight.detach()]
    for weight in later:
        first = 0.8 * first + 0.2 * weight
    torch.testing.assert_close(result.model.module[5].weight.detach(), first)
    scored = hs.score(result.model, data()[1], progress=False)
    assert result.history[-1]["test_accuracy"] == pytest.approx(scored.accuracy)
    recorded = Dynamics(tmp_path / "run" / "test").at(2)
    np.testing.assert_allclose(recorded["avh"], scored["avh"][np.argsort(scored["id"])], rtol=2e-3)


def test_weights_of_a_network_without_norms_are_averaged(tmp_path):
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))  # no counts to copy
    recipe = Recipe(epochs=2, batch_size=100, lr=0.1, ema=0.5)
    result = trained(tmp_path / "run", recipe, model=plain)
    assert not torch.equal(result.model.module[1].weight, plain[1].weight)
    assert result.history[-1]["test_accuracy"] > 0.2


def test_a_checkpoint_holds_what_was_saved_last(tmp_path):
    """The copy on the host is used again, and what comes later must neither change a file nor keep an old number."""
    saver, weight = Saver(tmp_path), torch.zeros(3)
    state = {"model": {"w": weight}, "optimizer": {"state": {0: {"m": torch.ones(2)}}}, "epoch": 1, "history": []}
    saver.save(state)
    weight.fill_(7.0)  # while it is being written
    saver.wait()
    assert load(tmp_path)["model"]["w"].tolist() == [0.0, 0.0, 0.0]
    state["optimizer"]["state"] = {0: {"m": torch.full((4,), 2.0)}, 1: {"m": torch.full((1,), 3.0)}}
    saver.save(state | {"epoch": 2, "history": [{"epoch": 1}]})
    saver.wait()
    saver.close()
    found = load(tmp_path)
    assert found["model"]["w"].tolist() == [7.0, 7.0, 7.0]
    assert [found["optimizer"]["state"][i]["m"].tolist() for i in (0, 1)] == [[2.0] * 4, [3.0]]
    assert (found["epoch"], found["history"]) == (2, [{"epoch": 1}])


def test_labels_may_be_unsigned(tmp_path):
    images, labels = load_digits()
    source = ArraySamples(images[:200], labels[:200].astype(np.uint8), "train", "digits")
    assert len(trained(tmp_path / "run", data=(source, source)).history) == 3


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmsprop"])
def test_other_optimizers_learn(tmp_path, optimizer):
    recipe = Recipe(epochs=5, batch_size=50, optimizer=optimizer, lr=0.01, schedule="one-cycle", warmup=1, crop=1)
    assert trained(tmp_path / "run", recipe, record=()).history[-1]["test_accuracy"] > 0.5
    assert not (tmp_path / "run" / "train").exists()


def test_bf16_learns_and_records(tmp_path):
    recipe = Recipe(epochs=2, batch_size=50, lr=0.05, precision="bf16", schedule="constant")
    assert trained(tmp_path / "run", recipe).history[-1]["test_accuracy"] > 0.7
    assert len(Dynamics(tmp_path / "run" / "train")) == 500


def test_a_named_network_is_standardised_and_learns(tmp_path):
    recipe = Recipe(epochs=1, batch_size=100, lr=0.05, channels_last=True, label_smoothing=0.1)
    images, labels = load_digits()
    source = ArraySamples(images[:200], labels[:200], "train", "digits")
    result = train("mnist-el", source, out=tmp_path / "run", recipe=recipe, device="cpu", progress=False)
    first = result.model.module.get_submodule("normalise")
    assert first.mean.item() == pytest.approx((images[:200] / 255).mean(), rel=1e-5)
    assert result.history[-1]["loss"] < 2.3
    again = hs.load_model("hardsight:mnist-el", tmp_path / "run" / "checkpoint.pt")
    assert hs.find_head(again.module).classes == 10
    torch.testing.assert_close(again.module.state_dict(), result.model.module.state_dict())


def test_own_loss_own_sampler_and_own_log(tmp_path):
    class Every(torch.utils.data.Sampler):
        def __init__(self):
            self.epochs = []

        def __iter__(self):
            return iter(torch.randperm(500)[:100].tolist())

        def __len__(self):
            return 100

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

    told, shapes = [], set()

    def loss(logits, targets):
        shapes.add((tuple(logits.shape), tuple(targets.shape)))
        return F.multi_margin_loss(logits, targets)

    recipe = Recipe(epochs=2, batch_size=50, schedule="constant")
    sampler = Every()
    trained(
        tmp_path / "run", recipe, loss=loss, sampler=sampler, log=lambda row, step: told.append((row["epoch"], step))
    )
    assert shapes == {((50, 10), (50,))}
    assert sampler.epochs == [0, 1]
    assert told == [(1, 2), (2, 4)]
    seen = Dynamics(tmp_path / "run" / "train").matrix("avh")
    assert (~np.isnan(seen)).sum(0).tolist() == [100, 100]


def test_the_users_logger_gets_numbers_with_names_and_steps(tmp_path):
    calls = []
    result = trained(tmp_path / "run", Recipe(epochs=2, batch_size=50), log=lambda *call: calls.append(call))
    assert [step for _, step in calls] == [10, 20]  # 500 samples, batches of 50
    for (metrics, _), row in zip(calls, result.history, strict=True):
        assert {"epoch", "lr", "loss", "accuracy", "gradient", "test_loss", "test_accuracy"} <= metrics.keys()
        assert all(type(value) is float and value == row[name] for name, value in metrics.items())


def test_blends_are_not_recorded_and_that_is_said(tmp_path, capsys):
    recipe = Recipe(epochs=1, batch_size=50, mixup=0.4)
    result = trained(tmp_path / "run", recipe, progress=True)
    assert "not recorded" in capsys.readouterr().out
    assert result.history[0]["accuracy"] is None
    assert not (tmp_path / "run" / "train").exists()
    assert (tmp_path / "run" / "test").exists()


def test_a_line_an_epoch(tmp_path, capsys):
    trained(tmp_path / "run", Recipe(epochs=2, batch_size=50), progress=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("epoch 1/2  lr 0.1  loss ")
    assert "train " in lines[0]
    assert "test " in lines[0]
    assert lines[0].endswith("samples/s")


def test_tensors_pictures_and_names_of_classes(tmp_path):
    from PIL import Image

    images, labels = load_digits()
    tensors = TensorDataset(torch.from_numpy(images[:300])[:, None].float() / 255, torch.from_numpy(labels[:300]))
    recipe = Recipe(epochs=2, batch_size=50, lr=0.05, schedule="constant")
    assert trained(tmp_path / "tensors", recipe, data=(tensors,)).history[-1]["accuracy"] > 0.5
    for split, start in (("training", 0), ("held", 60)):
        for i in range(start, start + 60):
            folder = tmp_path / split / f"class {labels[i]}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[i]).save(folder / f"{i}.png")
    (tmp_path / "training" / "class 3" / "broken.png").write_bytes(b"no picture")
    shutil.rmtree(tmp_path / "held" / "class 0")  # the other classes keep their numbers
    recipe = Recipe(epochs=2, batch_size=20, lr=0.02, flip=True, crop=1, schedule="constant")
    words = r"1 of 61 .*class 3/broken\.png"
    with pytest.warns(UserWarning, match=words) as warned:
        result = trained(tmp_path / "run", recipe, data=(tmp_path / "training", tmp_path / "held"))
    assert len(warned) == 1  # not in every epoch; the rows say it for each
    for row in json.loads((tmp_path / "run" / "history.json").read_text()):
        assert row["unreadable"]["samples"] == 1
        assert "cannot identify" in row["unreadable"]["first"]["training/class 3/broken.png"]
        assert "test_unreadable" not in row
    dynamics = Dynamics(tmp_path / "run" / "test")
    assert dynamics.ids[0].startswith("held/class 1/")
    assert set(dynamics.labels.tolist()) == set(range(1, 10))
    assert result.model.classes == [f"class {k}" for k in range(10)]
    assert len(Dynamics(tmp_path / "run" / "train")) == 60
    (tmp_path / "training" / "class 3" / "broken.png").unlink()
    recipe = Recipe(epochs=1, batch_size=20, resized_crop=True, flip=True)
    named = trained(tmp_path / "named", recipe, model="amc-2d", data=(tmp_path / "training", tmp_path / "held"))
    assert hs.score(named.model, tmp_path / "held", progress=False).accuracy == named.history[0]["test_accuracy"]


def test_the_callers_random_state_is_left_alone(tmp_path):
    model, before = net(), (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    trained(tmp_path / "run", Recipe(epochs=1, batch_size=100), model=model)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


class _KilledError(Exception):
    pass


class KilledAfter:
    """A loss that ends the training after so many steps."""

    def __init__(self, steps):
        self._left = iter(range(steps))

    def __reduce__(self):  # by which losses are told apart
        return KilledAfter, (0,)

    def __call__(self, logits, targets):
        if next(self._left, None) is None:
            raise _KilledError
        return F.cross_entropy(logits, targets, label_smoothing=0.1)


@pytest.mark.parametrize("steps", [3, 8, 11, 19])  # 8 steps an epoch
def test_a_killed_run_resumes_and_ends_the_same_to_the_last_bit(tmp_path, steps):
    recipe = Recipe(
        epochs=3, batch_size=64, optimizer="adam", lr=3e-3, schedule="one-cycle", warmup=1, ema=0.9, crop=1, flip=True
    )
    whole = trained(tmp_path / "whole", recipe, loss=KilledAfter(10**6))
    with pytest.raises(_KilledError):
        trained(tmp_path / "run", recipe, loss=KilledAfter(steps))
    if steps == 11:
        written_by_the_first_edition(tmp_path / "run")
    # What a user's script does: the network is built anew, here even with other weights.
    model = net(seed=0 if steps < 8 else 99)
    again = trained(tmp_path / "run", recipe, model=model, loss=KilledAfter(8 * (3 - steps // 8)))
    assert timeless(again.history) == timeless(whole.history)
    for name, value in weights(whole).items():
        assert torch.equal(weights(again)[name], value), name
    for split in ("train", "test"):
        one, two = Dynamics(tmp_path / "whole" / split), Dynamics(tmp_path / "run" / split)
        assert one.epochs.tolist() == two.epochs.tolist() == [1, 2, 3]
        for name in ("avh", "norm", "margin", "nll_angles"):
            np.testing.assert_array_equal(one.matrix(name), two.matrix(name))


def written_by_the_first_edition(run):
    """Its files called the optimizer and the hardness otherwise, its samplers had a share per process, and its recipes
    had fewer settings."""
    path = run / "training.json"
    plan = json.loads(path.read_text().replace('"optimizer"', '"optimiser"').replace('"_hardness"', '"_ask"'))
    for newer in ("accumulate", "sync_batchnorm"):
        del plan["recipe"][newer]
    if plan["sampler"] is not None:
        plan["sampler"] |= {"num_replicas": "1", "rank": "0"}
    path.write_text(json.dumps(plan))
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    torch.save(
        {"optimiser" if name == "optimizer" else name: part for name, part in state.items()}, run / "checkpoint.pt"
    )


class Shaken(torch.utils.data.Dataset):
    """Digits changed at random, as data sets of others are: with Python's and NumPy's global generators."""

    def __init__(self):
        images, self.targets = load_digits()
        self.images, self.targets = images[:200].astype(np.float32)[:, None] / 255, self.targets[:200]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        noise = random.random() + np.random.normal(size=(1, 8, 8))
        return torch.from_numpy(self.images[index] + 0.1 * noise).float(), int(self.targets[index])


def test_global_generators_and_a_samplers_own_are_seeded_anew_in_each_epoch(tmp_path):
    def run(name, steps):  # 2 steps an epoch
        own = torch.Generator().manual_seed(7)
        sampler = torch.utils.data.RandomSampler(range(200), num_samples=128, generator=own)
        return trained(
            tmp_path / name,
            data=(hs.open_data(Shaken(), version="1"),),
            sampler=sampler,
            loss=KilledAfter(steps),
            workers=0,
        )

    whole = run("whole", 6)
    random.seed(3)
    with pytest.raises(_KilledError):
        run("run", 3)
    again = run("run", 4)
    assert timeless(again.history) == timeless(whole.history)
    assert all(torch.equal(weights(again)[name], value) for name, value in weights(whole).items())


@pytest.mark.parametrize(
    "make",
    [hs.HardnessSampler, lambda hardness: hs.CurriculumSampler(hardness, "root", 3, num_samples=500)],
    ids=["hardness", "curriculum"],
)
def test_a_run_of_the_first_edition_resumes_with_its_sampler(tmp_path, make):
    def run(name, steps):  # 5 steps an epoch
        recipe, sampler = Recipe(epochs=3, batch_size=100), make(np.arange(500.0))
        return trained(tmp_path / name, recipe, sampler=sampler, loss=KilledAfter(steps), record=())

    whole = run("whole", 15)
    with pytest.raises(_KilledError):
        run("run", 7)
    written_by_the_first_edition(tmp_path / "run")
    again = run("run", 10)  # not the epoch that was finished
    assert timeless(again.history) == timeless(whole.history)
    assert all(torch.equal(weights(again)[name], value) for name, value in weights(whole).items())


def test_another_sampler_is_another_run(tmp_path):
    hardness, recipe = np.arange(500.0), Recipe(epochs=1, batch_size=100)

    def run(sampler, name="run"):
        return trained(tmp_path / name, recipe, sampler=sampler, record=())

    sampler = hs.HardnessSampler(hardness, power=1.0)
    run(sampler)
    run(sampler)  # its epoch is no part of it
    run(hs.HardnessSampler(hardness, power=1.0))
    with pytest.raises(FileExistsError, match=r"same: sampler.probabilities\)"):
        run(hs.HardnessSampler(hardness, power=2.0))
    with pytest.raises(FileExistsError, match=r"same: sampler.seed\)"):
        run(hs.HardnessSampler(hardness, seed=1))
    run(hs.CurriculumSampler(hardness, "root", epochs=3), "curriculum")
    run(hs.CurriculumSampler(hardness, "root", epochs=3), "curriculum")
    for other, what in (((-hardness, "root"), "_hardness"), ((hardness, "linear"), "pacing")):
        with pytest.raises(FileExistsError, match=rf"same: sampler.{what}\)"):
            run(hs.CurriculumSampler(*other, epochs=3), "curriculum")
    run(list(range(200)), "list")
    with pytest.raises(FileExistsError, match=r"same: sampler\)"):
        run(list(range(200, 400)), "list")


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = trained(tmp_path / "run", loss=KilledAfter(24))
    again = trained(tmp_path / "run", model=net(seed=5), loss=KilledAfter(24))
    assert again.history == first.history
    assert all(torch.equal(weights(again)[name], value) for name, value in weights(first).items())


def test_another_run_in_the_folder_is_refused_and_named(tmp_path):
    recipe = Recipe(epochs=1, batch_size=100)
    trained(tmp_path / "run", recipe)
    with pytest.raises(FileExistsError, match=r"same: recipe.lr, recipe.seed\)"):
        trained(tmp_path / "run", Recipe(epochs=1, batch_size=100, lr=0.2, seed=3))
    with pytest.raises(FileExistsError, match=r"same: data\)"):
        trained(tmp_path / "run", recipe, data=(digits("train", 1, 501), data()[1]))
    with pytest.raises(FileExistsError, match=r"model.layers"):
        trained(tmp_path / "run", recipe, model=net(classes=11))
    (tmp_path / "run" / "notes.txt").write_text("mine")
    result = trained(tmp_path / "run", Recipe(epochs=2, batch_size=100), overwrite=True)
    assert len(result.history) == 2
    assert Dynamics(tmp_path / "run" / "train").epochs.tolist() == [1, 2]
    assert (tmp_path / "run" / "notes.txt").exists()


def test_overwrite_resumes_what_is_unfinished_and_only_replaces_the_rest(tmp_path):
    with pytest.raises(_KilledError):
        trained(tmp_path / "run", loss=KilledAfter(12), overwrite=True)
    assert len(trained(tmp_path / "run", loss=KilledAfter(16), overwrite=True).history) == 3
    with pytest.raises(_KilledError):  # whole: begun again
        trained(tmp_path / "run", loss=KilledAfter(16), overwrite=True)


def test_a_folder_of_other_things_is_never_written_to(tmp_path):
    (tmp_path / "thesis.tex").write_text("…")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="other files"):
            trained(tmp_path, overwrite=overwrite)
    with pytest.raises(FileExistsError, match="is a file"):
        trained(tmp_path / "thesis.tex")


def test_a_checkpoint_holds_no_code_and_what_is_damaged_is_a_sentence(tmp_path):
    recipe = Recipe(epochs=1, batch_size=100)
    trained(tmp_path / "run", recipe)
    content = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert content["epoch"] == 1
    file = tmp_path / "run" / "checkpoint.pt"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(RuntimeError, match=r"checkpoint\.pt .*damaged .*remove"):
        trained(tmp_path / "run", recipe)
    torch.save(net(), file)  # code: torch says how to execute it
    with pytest.raises(RuntimeError, match=r"checkpoint\.pt is damaged") as caught:
        trained(tmp_path / "run", recipe)
    assert "weights_only" not in str(caught.value)
    (tmp_path / "run" / "training.json").write_text('{"model": ')
    with pytest.raises(RuntimeError, match=r"training\.json .*damaged.*overwrite"):
        trained(tmp_path / "run", recipe)
    assert len(trained(tmp_path / "run", recipe, overwrite=True).history) == 1


def test_what_a_kill_left_half_written_is_swept(tmp_path):
    (tmp_path / "run").mkdir()
    for name in (".training.json.0a1b2c3d.tmp", ".checkpoint.pt.0a1b2c3d.tmp"):
        (tmp_path / "run" / name).write_text("{")
    trained(tmp_path / "run", Recipe(epochs=1, batch_size=100), record=())
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["checkpoint.pt", "history.json", "training.json"]


def test_records_that_are_gone_are_told_and_overwrite_begins_again(tmp_path):
    with pytest.raises(_KilledError):
        trained(tmp_path / "run", loss=KilledAfter(20))
    shutil.rmtree(tmp_path / "run" / "train")
    with pytest.raises(FileNotFoundError, match=r"run.train .*overwrite"):
        trained(tmp_path / "run", loss=KilledAfter(24))
    trained(tmp_path / "run", loss=KilledAfter(24), overwrite=True)
    assert Dynamics(tmp_path / "run" / "train").epochs.tolist() == [1, 2, 3]


def test_a_full_disk_is_told_in_words_for_checkpoints_too(tmp_path):
    resource, signal = pytest.importorskip("resource"), pytest.importorskip("signal")
    before, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    saver = Saver(tmp_path)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        saver.save({"model": {"weight": torch.zeros(10**6)}, "history": []})
        with pytest.raises(OSError, match=r"disk .*full"):
            saver.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
        saver.close()
    assert not list(tmp_path.iterdir())


def test_a_broken_loss_stops_the_run_and_says_where(tmp_path):
    calls = iter(range(1000))

    def loss(logits, targets):
        return F.cross_entropy(logits, targets) * (math.nan if next(calls) == 12 else 1.0)

    with pytest.raises(FloatingPointError, match=r"nan .*epoch 2, step 5;"):
        trained(tmp_path / "run", loss=loss)
    assert torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["epoch"] == 1
    with pytest.raises(FloatingPointError, match=r"epoch 1, step 1; .*checkpoint"):
        trained(tmp_path / "first", loss=lambda logits, targets: math.nan * F.cross_entropy(logits, targets))


def test_a_test_loss_that_is_no_number_is_null(tmp_path):
    class Broken(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (1.0 if self.training else math.nan)

    model = nn.Sequential(nn.Flatten(), Broken(64, 10))
    result = trained(tmp_path / "run", Recipe(epochs=1, batch_size=100), model=model, record=())
    assert result.history[0]["test_loss"] is None
    assert "NaN" not in (tmp_path / "run" / "history.json").read_text()


def test_a_single_grey_picture_does_not_make_a_grey_network(tmp_path):
    from PIL import Image

    for i in range(20):
        (tmp_path / "data" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        picture = Image.new("RGB", (8, 8), (13 * i, 255 - 13 * i, 7))
        (picture.convert("L") if i == 0 else picture).save(tmp_path / "data" / "ab"[i % 2] / f"{i:02}.png")
    result = trained(tmp_path / "run", Recipe(epochs=1, batch_size=10), model="small-cnn", data=(tmp_path / "data",))
    assert result.model.module.get_submodule("normalise").mean.numel() == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": (ArraySamples(np.zeros((9, 8, 8), np.uint8), None, "a", "a"),)}, "class index .*none"),
        ({"data": (ArraySamples(np.zeros((9, 8, 8), np.uint8), np.zeros(9, int), "a", "a"),)}, "two classes"),
        ({"data": (digits("train", 0, 0),)}, "DATA is empty"),
        ({"data": (TensorDataset(torch.rand(9, 1, 8, 8), torch.rand(9)),)}, "labels.*class indices"),
        ({"data": (ArraySamples(np.zeros((9, 8, 8), np.uint8), np.arange(9) - 1, "a", "a"),)}, "indices.* got -1"),
        ({"model": net(classes=5)}, r"labels .*\[0, 4\] .*model .*5"),
        ({"recipe": Recipe(batch_size=501)}, r"batch_size.*\(500\), got 501"),
        ({"recipe": Recipe(batch_size=1)}, "batch_size.* 2 .*got 1"),
        ({"recipe": Recipe(batch_size=9, accumulate=5)}, r"batch_size.* micro-batch \(10\).*got 9"),
        ({"data": (data()[0], digits("test", 0, 9)), "model": net(classes=5)}, r"^DATA: labels .*\[0, 4\]"),
        (
            {"data": (data()[0], ArraySamples(np.zeros((9, 8, 8), np.uint8), np.arange(9) + 9, "a", "a"))},
            r"^test: labels .*\[0, 9\] .*9 to 17",
        ),
        ({"model": "resnet-18", "recipe": Recipe(batch_size=501)}, "no 'resnet-18'"),
        ({"recipe": "cifar-resnet"}, "'cifar-resnet'.* cifar"),
        ({"model": "resnet-18"}, "'resnet-18'.*resnet18-32"),
        ({"model": "torchvision:resnett18"}, "torchvision .*'resnett18'.* resnet"),
        ({"record": ("tests",)}, "record .*'tests'"),
        ({"sampler": [3, 500]}, "sampler .*0 and 499"),
        ({"recipe": Recipe(batch_size=100, crop=8)}, "crop must"),
        ({"device": "cuda:77"}, "device.*cuda:77"),
    ],
)
def test_bad_input_is_a_sentence(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        trained(tmp_path / "run", **options)


@pytest.mark.slow
def test_all_but_the_head_is_compiled():
    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    )
    compile_parts(model)
    compiled = [name for name, part in model.named_modules() if part._compiled_call_impl is not None]
    assert compiled == ["0", "2.0"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_compiled_networks_are_recorded_like_others(tmp_path):
    recipe = Recipe(epochs=1, batch_size=100, lr=0.05, schedule="constant")
    plain = trained(tmp_path / "plain", recipe, model=net(dropout=0.0))
    compiled = trained(tmp_path / "compiled", Recipe(**{**vars(recipe), "compile": True}), model=net(dropout=0.0))
    assert compiled.history[0]["loss"] == pytest.approx(plain.history[0]["loss"], rel=1e-3)
    one, two = (Dynamics(tmp_path / name / "test").matrix("avh") for name in ("plain", "compiled"))
    np.testing.assert_allclose(one, two, rtol=1e-2)


def test_a_loss_of_the_users_is_not_put_into_the_graph_of_a_preset(tmp_path, monkeypatch):
    """It may wait for the device. A recipe that is given, and a loss by name, stay as they are."""
    preset = PRESETS["cifar-resnet18"].recipe.replace(epochs=1, batch_size=100, warmup=0.5)
    assert preset.graph
    monkeypatch.setitem(PRESETS, "cifar-resnet18", replace(PRESETS["cifar-resnet18"], recipe=preset))
    cases = {
        "function": ("cifar-resnet18", F.cross_entropy),
        "name": ("cifar-resnet18", "el:0.75"),
        "given": (preset, F.cross_entropy),
    }
    graphed = {}
    for name, (recipe, loss) in cases.items():
        trained(tmp_path / name, recipe, loss=loss, record=())
        graphed[name] = json.loads((tmp_path / name / "training.json").read_text())["recipe"]["graph"]
    assert graphed == {"function": False, "name": True, "given": True}
