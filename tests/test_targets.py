"""Training toward rows of targets: against labels, against a plain loop, resumed, refused; and frozen batch norm."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hardsight.data import ArraySamples, load_digits
from hardsight.models import Model
from hardsight.recipes import Recipe
from hardsight.training import train
from hardsight.training.augment import resized_crop
from hardsight.training.loop import seed_of

QUICK = Recipe(epochs=2, batch_size=32, lr=0.1, momentum=0.0, schedule="constant", weight_decay=0.0)
IMAGES, LABELS = load_digits()
IMAGES, LABELS = IMAGES[:160], LABELS[:160]
HARD = np.eye(10)[LABELS]


def net(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()),
        *(nn.Dropout(dropout), nn.Linear(64, 10)),
    )


def digits(classes=None, labels=LABELS):
    return ArraySamples(IMAGES, labels, "train", "digits", classes)


def trained(out, recipe=QUICK, model=None, data=None, **options):
    return train(
        net() if model is None else model,
        digits() if data is None else data,
        out=out,
        recipe=recipe,
        device="cpu",
        record=(),
        progress=False,
        **options,
    )


def state(result):
    return result.model.module.state_dict()


def assert_same_bits(a, b):
    for key, value in state(a).items():
        assert torch.equal(value, state(b)[key]), key


def by_hand(cost, epochs=2, frozen=False):
    """Plain SGD in the engine's order: ``cost(logits, rows)`` of each batch."""
    network = net()
    network.train()
    if frozen:
        network[1].eval()
    x = torch.from_numpy(IMAGES)[:, None].float() / 255
    for epoch in range(1, epochs + 1):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed_of(0, epoch)))
        for rows in order.split(32):
            network.zero_grad()
            cost(network(x[rows]), rows).backward()
            with torch.no_grad():
                for p in network.parameters():
                    p -= 0.1 * p.grad
    return network.state_dict()


def soft_rows(seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(10, 0.3), len(LABELS)).astype(np.float32)


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("changes", [{}, {"mixup": 0.4}, {"ema": 0.9, "clip": 0.5}], ids=str)
def test_one_hot_rows_train_as_labels_do_to_the_last_bit(tmp_path, changes, loaded):
    recipe = QUICK.replace(**changes)
    models = [Model(net(0.2), "net", nn.Identity() if loaded else None, "tensor") for _ in range(2)]
    labels = trained(tmp_path / "labels", recipe, models[0])
    rows = trained(tmp_path / "rows", recipe, models[1], targets=HARD)
    assert_same_bits(labels, rows)
    assert rows.history[-1]["accuracy"] == labels.history[-1]["accuracy"]


def test_soft_rows_train_as_a_plain_loop_does(tmp_path):
    t = torch.from_numpy(soft_rows())
    expected = by_hand(lambda z, rows: -(t[rows] * z.log_softmax(1)).sum(1).mean())
    for form in (t, t.numpy(), t.double(), t.tolist()):
        result = trained(tmp_path / type(form).__name__ / str(getattr(form, "dtype", "")), targets=form)
        for key, value in state(result).items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
    loaded = trained(tmp_path / "loaded", model=Model(net(), "net", nn.Identity(), "tensor"), targets=t)
    for key, value in state(loaded).items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)


def test_rows_with_more_mass_are_the_regulariser_of_crst(tmp_path):
    """MRKLD: α times the mean of −log p over classes, on some samples only, is a row t + α/C."""
    alpha, chosen = 0.3, torch.arange(len(LABELS)) % 3 == 0
    rows = HARD + np.where(chosen, alpha / 10, 0)[:, None]
    y = torch.from_numpy(LABELS)

    def cost(z, at):
        log_p = z.log_softmax(1)
        regulariser = torch.where(chosen[at], -log_p.mean(1), 0)
        return F.cross_entropy(z, y[at]) + alpha * regulariser.mean()

    expected = by_hand(cost)
    for key, value in state(trained(tmp_path / "run", targets=rows)).items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)


def test_label_smoothing_shrinks_a_row_and_spreads_its_share(tmp_path):
    rows = soft_rows()
    smoothed = trained(tmp_path / "a", QUICK.replace(label_smoothing=0.2), targets=rows)
    by_rows = trained(tmp_path / "b", targets=0.8 * rows + 0.2 / 10)
    for key, value in state(smoothed).items():
        torch.testing.assert_close(value, state(by_rows)[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", ["el:0.75", "avh", "focal"])
def test_other_losses_take_rows_too(tmp_path, loss):
    labels = trained(tmp_path / "labels", loss=loss)
    rows = trained(tmp_path / "rows", loss=loss, targets=HARD)
    for key, value in state(labels).items():
        torch.testing.assert_close(value, state(rows)[key], rtol=1e-4, atol=1e-5)


def test_columns_follow_the_class_names_of_the_data(tmp_path):
    names = list("0123456789")
    place = np.array([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])  # of each label among the network's outputs
    turned = digits([names[i] for i in place], np.argsort(place)[LABELS])
    models = [Model(net(), "net", classes=names) for _ in range(2)]
    straight = trained(tmp_path / "a", model=models[0], data=digits(names), targets=soft_rows())
    mapped = trained(tmp_path / "b", model=models[1], data=turned, targets=soft_rows()[:, place])
    assert_same_bits(straight, mapped)


def test_a_killed_run_with_targets_ends_as_if_it_had_not_been(tmp_path):
    recipe = QUICK.replace(epochs=3, momentum=0.9)
    whole = trained(tmp_path / "whole", recipe, net(0.2), targets=soft_rows())

    def kill(row, steps):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "killed", recipe, net(0.2), targets=soft_rows(), log=kill)
    assert_same_bits(whole, trained(tmp_path / "killed", recipe, net(0.2), targets=soft_rows()))


def test_other_targets_are_another_run(tmp_path):
    trained(tmp_path / "run", targets=soft_rows())
    for other in (soft_rows(1), None):
        with pytest.raises(FileExistsError, match="same: targets"):
            trained(tmp_path / "run", targets=other)


def test_a_run_from_before_an_option_goes_on(tmp_path):
    trained(tmp_path / "run", QUICK)
    plan = json.loads((tmp_path / "run" / "training.json").read_text())
    for name in ("frozen_norm", "smallest_part"):
        del plan["recipe"][name]
    del plan["targets"], plan["weights"]
    (tmp_path / "run" / "training.json").write_text(json.dumps(plan))
    assert len(trained(tmp_path / "run", QUICK).history) == 2
    with pytest.raises(FileExistsError, match=r"same: recipe\.frozen_norm"):
        trained(tmp_path / "run", QUICK.replace(frozen_norm=True))


def with_value(value):
    rows = soft_rows()
    rows[7, 3] = value
    return rows


BAD = {
    "too few rows": (soft_rows()[:-1], r"targets .*\(160, 10\), got \(159, 10\)"),
    "too few classes": (soft_rows()[:, :-1], r"targets .*\(160, 10\), got \(160, 9\)"),
    "labels": (LABELS, r"targets .*\(160, 10\), got \(160,\)"),
    "NaN": (with_value(np.nan), "targets .*got nan"),
    "infinite": (with_value(np.inf), "targets .*got inf"),
    "negative": (with_value(-0.5), r"targets .*got -0\.5"),
    "words": ([["a"] * 10] * 160, "targets .*got list"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_targets_are_refused_in_a_sentence_before_anything_is_written(tmp_path, case):
    targets, words = BAD[case]
    with pytest.raises((ValueError, TypeError), match=words):
        trained(tmp_path / "run", targets=targets)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("loss", ["arcface", "ce+amc:labels=true"])
def test_a_loss_that_needs_one_class_a_sample_says_so(tmp_path, loss):
    with pytest.raises(ValueError, match=r"targets: (arcface|amc) "):
        trained(tmp_path / "run", loss=loss, targets=HARD)


def test_frozen_norm_keeps_the_statistics_and_is_a_plain_loop_with_batch_norm_in_eval_mode(tmp_path):
    trained(tmp_path / "before", model=(model := net()))  # statistics that differ from the start's
    before = {key: value.clone() for key, value in model.state_dict().items()}
    frozen = trained(tmp_path / "frozen", QUICK.replace(frozen_norm=True), model)
    for key in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(state(frozen)[key], before[key])
    assert not torch.equal(state(frozen)["1.weight"], before["1.weight"])  # it still learns

    expected = by_hand(lambda z, rows: F.cross_entropy(z, torch.from_numpy(LABELS)[rows]), frozen=True)
    fresh, usual = trained(tmp_path / "fresh", QUICK.replace(frozen_norm=True)), trained(tmp_path / "usual")
    for key, value in state(fresh).items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(state(fresh)["0.weight"], state(usual)["0.weight"])
    assert not torch.equal(state(usual)["1.running_mean"], net().state_dict()["1.running_mean"])


def test_a_random_part_is_never_smaller_than_the_smallest():
    ramp = torch.linspace(0, 1, 64)
    x = torch.stack([ramp.expand(64, 64), ramp[:, None].expand(64, 64)]).expand(256, 2, 64, 64)
    parts = resized_crop(x, torch.Generator().manual_seed(0), smallest=0.7)
    spans = parts.amax((2, 3)) - parts.amin((2, 3))
    areas = spans.prod(1)  # in units of the picture, less a pixel
    assert 0.66 < areas.min() < 0.75
    assert areas.max() > 0.95
    with pytest.raises(ValueError, match=r"smallest_part .*got 0"):
        Recipe(smallest_part=0)
