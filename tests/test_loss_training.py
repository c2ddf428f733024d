"""Losses in the engine: every name trains, parts are logged, heads of directions predict, and kills cost nothing."""

import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from forked import as_torchrun
from torch import nn

import hardsight as hs
from hardsight.cli import main
from hardsight.data import ArraySamples, load_digits
from hardsight.losses import (
    LOSSES,
    AMCLoss,
    AVHLoss,
    BoundLogits,
    CenterLoss,
    CompositeLoss,
    EncouragingLoss,
    EuclideanContrastiveLoss,
    FocalLoss,
    MirrorMSELoss,
    adjusted_logits,
    angular_logits,
    arcface_logits,
    build_loss,
    cosface_logits,
    cosine_logits,
    effective_number_weights,
    ldam_margins,
)
from hardsight.presets import PRESETS
from hardsight.recipes import Recipe, parse_settings
from hardsight.schedules import Scheduled, deferred
from hardsight.training import train
from hardsight.training.losses import equalize_norms

QUICK = Recipe(epochs=3, batch_size=50, lr=0.1, schedule="constant", weight_decay=1e-4)
COUNTS = torch.tensor([40.0, 10.0, 5.0])


def net(seed=0, dropout=0.0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 10)
    )


def digits(split, start, stop):
    images, labels = load_digits()
    return ArraySamples(images[start:stop], labels[start:stop], split, f"digits {start}–{stop}", list("0123456789"))


def trained(out, recipe=QUICK, **options):
    given = {"model": net(), "device": "cpu", "progress": False, "record": ()} | options
    data = given.pop("data", (digits("train", 0, 300), digits("test", 300, 400)))
    return train(given.pop("model"), *data, out=out, recipe=recipe, **given)


def triple(n=24, d=6, c=3):
    return torch.randn(n, d), torch.randn(c, d), torch.arange(n) % c


# ---------------------------------------------------------------------------------------------------------------------
# Composing.

X, W, Y = triple()
Z = X @ W.T
BY_HAND = {
    "ce": lambda: F.cross_entropy(Z, Y),
    "el:0.5": lambda: EncouragingLoss(log_end=0.5)(Z, Y),
    "el:exact": lambda: EncouragingLoss(log_end=1.0)(Z, Y),
    "el:exact,start=0.5": lambda: EncouragingLoss(log_end=1.0, start=0.5)(Z, Y),
    "el:normal": lambda: EncouragingLoss(log_end=1.0, preset="released")(Z, Y),
    "el:aggressive": lambda: EncouragingLoss(log_end=1.0, start=0.5, preset="released")(Z, Y),
    "el:exact,match": lambda: EncouragingLoss(log_end=1.0, match_gradient=True)(Z, Y),
    "el:bonus=power,rho=2": lambda: EncouragingLoss(bonus="power", rho=2.0)(Z, Y),
    "focal:1": lambda: FocalLoss(1.0)(Z, Y),
    "mirror:sigmoid": lambda: MirrorMSELoss("sigmoid")(Z, Y),
    "mse": lambda: MirrorMSELoss(mirror=False)(Z, Y),
    "ce:effective": lambda: F.cross_entropy(Z, Y, effective_number_weights(COUNTS)),
    "avh:8": lambda: AVHLoss(8.0)(X, W, Y),
    "avh:8,learn": lambda: AVHLoss(8.0)(X, W, Y),
    "el:exact@cosine:4": lambda: EncouragingLoss(log_end=1.0)(cosine_logits(X, W, 4.0), Y),
    "arcface:0.3,scale=8": lambda: F.cross_entropy(arcface_logits(X, W, Y, 0.3, 8.0), Y),
    "ldam:0.4": lambda: F.cross_entropy(cosface_logits(X, W, Y, ldam_margins(COUNTS, 0.4)), Y),
    "focal@adjusted:2": lambda: FocalLoss()(adjusted_logits(Z, COUNTS, 2.0), Y),
    "amc": lambda: F.cross_entropy(Z, Y) + AMCLoss(preset="paper")(X, Z.argmax(1)),
    "amc:released,labels=true,margin=1,pairs=all": lambda: (
        F.cross_entropy(Z, Y) + 10 * AMCLoss(margin=1.0, pairs="all")(X, Y)
    ),
    "el+euclid:2": lambda: EncouragingLoss()(Z, Y) + EuclideanContrastiveLoss(weight=2.0)(X, Z.argmax(1)),
    "center:1": lambda: F.cross_entropy(Z, Y) + X.square().sum() / (2 * len(X)),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_name_is_what_one_would_write_by_hand(name):
    loss = build_loss(name, counts=COUNTS, width=6)
    torch.testing.assert_close(loss(Z, Y, X, W), BY_HAND[name](), rtol=1e-5, atol=1e-6)


def test_parts_add_up_to_the_loss_and_hold_no_graph():
    features = X.clone().requires_grad_()
    loss = CompositeLoss(EncouragingLoss(), partial(arcface_logits, margin=0.3), AMCLoss(preset="released"))
    value = loss(features @ W.T, Y, features, W)
    assert list(loss.last_parts) == ["ce", "bonus", "pairs"]
    torch.testing.assert_close(sum(loss.last_parts.values()), value.detach())
    assert not any(part.requires_grad for part in loss.last_parts.values())
    value.backward()
    assert features.grad.abs().sum() > 0
    for objective, pairs, names in (
        (nn.CrossEntropyLoss(), AMCLoss(), ["ce", "pairs"]),
        (MirrorMSELoss(), AMCLoss(), ["objective", "pairs"]),
        (F.cross_entropy, None, []),
    ):
        composed = CompositeLoss(objective, pairs=pairs)
        composed(Z, Y, X, W)
        assert list(composed.last_parts) == names


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("options", [{}, {"weight_bonus": False}, {"match_gradient": True}, {"log_end": 0.5, "rho": 2}])
def test_parts_cost_no_second_look_at_the_logits_and_change_no_number(options, smoothing, monkeypatch):
    objective = EncouragingLoss(torch.rand(Z.shape[1]), label_smoothing=smoothing, **options)
    logits = [Z.clone().requires_grad_() for _ in range(2)]
    values = [loss(z, Y) for loss, z in zip((objective, CompositeLoss(objective)), logits, strict=True)]
    grads = [torch.autograd.grad(value, z)[0] for value, z in zip(values, logits, strict=True)]
    assert torch.equal(*values)
    assert torch.equal(*grads)
    composed, looks, terms = CompositeLoss(objective), [], EncouragingLoss.terms
    expected = objective.parts(Z, Y)._asdict()
    monkeypatch.setattr(EncouragingLoss, "terms", lambda *args: looks.append(args) or terms(*args))
    composed(Z, Y)
    assert composed.last_parts == expected
    assert len(looks) == 1


def test_an_encouraging_loss_of_another_class_is_called_as_it_is():
    class Half(EncouragingLoss):
        def forward(self, input, target):
            return super().forward(input, target) / 2

    loss = CompositeLoss(Half())
    assert torch.equal(loss(Z, Y), EncouragingLoss()(Z, Y) / 2)
    assert list(loss.last_parts) == ["ce", "bonus"]


def test_predicted_pairs_are_what_the_network_predicts_and_not_what_a_margin_makes_of_it():
    """A margin lowers the target's logit: taken from those logits, samples that are right would change sides."""
    margin = partial(arcface_logits, margin=1.0, scale=8.0)
    logits = cosine_logits(X, W, 8.0)
    target = logits.argmax(1)
    assert (margin(X, W, target).argmax(1) != target).any()
    loss = CompositeLoss(nn.CrossEntropyLoss(), margin, AMCLoss(pairs="all"))
    loss(logits, target, X, W)
    torch.testing.assert_close(loss.last_parts["pairs"], AMCLoss(pairs="all")(X, target))


def test_a_composed_loss_moves_and_saves_what_it_holds():
    loss = CompositeLoss(
        nn.CrossEntropyLoss(weight=torch.ones(3)), BoundLogits(angular_logits, learn=True, scale=8.0), CenterLoss(3, 6)
    )
    assert set(loss.state_dict()) == {"objective.weight", "logits.log_scale", "pairs.centers"}
    assert [name for name, _ in loss.named_parameters()] == ["logits.log_scale"]
    ldam = CompositeLoss(nn.CrossEntropyLoss(), partial(cosface_logits, margin=ldam_margins(COUNTS), scale=30.0))
    assert ldam.to(torch.float64).logits.margin.dtype == torch.float64
    hook = Scheduled(ldam.logits, scale=lambda t: 10.0 + t)
    assert not hook.at(2.0)  # a tensor: what was recorded with it need not be made anew
    torch.testing.assert_close(
        ldam(Z, Y, X, W), F.cross_entropy(cosface_logits(X, W, Y, ldam_margins(COUNTS), 12.0), Y)
    )


def test_soft_targets_go_where_they_can():
    soft = F.one_hot(Y, 3) * 0.7 + 0.1
    for name in ("ce", "el", "focal", "mirror", "avh", "el@cosine", "adjusted", "amc"):
        assert torch.isfinite(build_loss(name, counts=COUNTS)(Z, soft, X, W))
    for name in ("arcface", "cosface", "sphereface", "ldam"):
        with pytest.raises(ValueError, match="leave mixup out"):
            build_loss(name, counts=COUNTS)(Z, soft, X, W)
    for name in ("amc:labels=true", "center"):
        with pytest.raises(ValueError, match=r"true labels"):
            build_loss(name, counts=COUNTS, width=6)(Z, soft, X, W)


@pytest.mark.parametrize(
    ("work", "pattern"),
    [
        (lambda: build_loss("avh")(Z, Y), r"features and weight"),
        (lambda: build_loss("adjusted"), r"adjusted .*\(counts\)"),
        (lambda: build_loss("ce:drw=3"), r"^loss: ce .*\(counts\)"),
        (lambda: build_loss("center", counts=COUNTS), r"center .*\(width\)"),
        (lambda: CompositeLoss(EncouragingLoss(reduction="none")), "objective: .*reduction"),
        (lambda: CompositeLoss(nn.CrossEntropyLoss(), pair_labels="both"), "pair_labels .*'both'"),
        (lambda: CompositeLoss(AVHLoss()), "objective .*AVHLoss"),
        (lambda: CompositeLoss(nn.CrossEntropyLoss(), partial(adjusted_logits, Z)), "logits: name"),
    ],
)
def test_compositions_that_cannot_be_are_sentences(work, pattern):
    with pytest.raises(ValueError, match=pattern):
        work()


def test_bf16_under_autocast_comes_out_in_float32():
    for name in ("ce", "el:exact@avh+amc", "mirror"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = build_loss(name)(Z.bfloat16(), Y, X.bfloat16(), W)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, build_loss(name)(Z, Y, X, W), rtol=0.05, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["el:0.75@arcface+amc", "ce:effective@angular:16,learn+center"])
def test_a_composed_loss_is_one_graph(name):
    torch._dynamo.reset()
    loss = build_loss(name, counts=COUNTS, width=6)
    whole = torch.compile(loss, fullgraph=True, backend="eager")
    plain = build_loss(name, counts=COUNTS, width=6)
    torch.testing.assert_close(whole(Z, Y, X, W), plain(Z, Y, X, W), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# With time.


def test_the_weight_of_pairs_is_the_released_schedule():
    for preset, top in (("paper", 0.05), ("released", 10.0)):
        loss = build_loss(f"amc:{preset}", epochs=300, warmup=80, rampdown=50)
        for epoch in (0, 1, 40, 79, 80, 299):  # counted from 0
            loss.at(epoch)
            share = 0 if epoch == 0 else math.exp(-5 * (1 - epoch / 80) ** 2) if epoch < 80 else 1
            assert loss.pairs.weight * loss.pair_weight == pytest.approx(top * share)
    down = build_loss("amc:down", epochs=300, warmup=80, rampdown=50)
    down.at(275)
    assert down.pair_weight == pytest.approx(math.exp(-12.5 * 0.25))
    steady = build_loss("amc:down", epochs=300, rampdown=50)
    steady.at(0)
    assert steady.pair_weight == 1  # without a warmup the first epoch is like the others
    plain = build_loss("amc:3", epochs=300)
    plain.at(0)
    assert plain.pairs.weight * plain.pair_weight == 3  # there is no warmup to wait for


def test_bonus_and_class_weights_are_deferred_to_the_epoch_that_is_said():
    loss = build_loss("el:normal,defer=25,rho=2,drw=30", counts=COUNTS)
    rho, weights = [], []
    for epoch in range(1, 41):
        loss.at(epoch - 1)
        rho.append(loss.objective.rho)
        weights.append(loss.objective.weight.clone())
    assert rho == [0] * 25 + [2] * 15
    assert all(torch.equal(weight, torch.ones(3)) for weight in weights[:30])
    for weight in weights[30:]:
        torch.testing.assert_close(weight, effective_number_weights(COUNTS))


# ---------------------------------------------------------------------------------------------------------------------
# Recipes.


def test_recipes_hold_canonical_names_and_presets_the_papers_losses():
    assert Recipe(loss="avh").loss == "ce@angular:16"
    assert Recipe().replace(**parse_settings(["loss=el:0.5,defer=2"])).loss == "el:0.5,defer=2"
    for name, preset in PRESETS.items():
        by_name = {"mnist-normal-el": "el:normal", "mnist-el": "ce"}
        usual = "ce+amc:paper,down" if name.startswith("amc") else "el:0.75" if name.endswith("-el") else "ce"
        assert preset.recipe.loss == by_name.get(name, usual)
        assert replace(preset.recipe) == preset.recipe


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"loss": "elf"}, "'elf'; .*el"),
        ({"loss": "mirror", "label_smoothing": 0.1}, "mirror .*label_smoothing=0"),
        ({"loss": "arcface", "mixup": 0.2}, "arcface .*mixup=0"),
        ({"loss": "amc:labels=true", "mixup": 0.2}, "mixup .*amc"),
        ({"loss": "el:defer=30"}, r"defer=30 .*epochs is 30"),
        ({"loss": "amc:down"}, "rampdown, .*0"),
    ],
)
def test_recipes_whose_loss_cannot_be_are_sentences(change, pattern):
    with pytest.raises(ValueError, match=pattern):
        Recipe(**change)


# ---------------------------------------------------------------------------------------------------------------------
# The engine.


@pytest.mark.parametrize(
    "name", [*LOSSES, "el:exact,match", "el:normal,match", "el:0.5@arcface:0.2+amc:released", "avh:8,learn+center"]
)
def test_every_loss_trains_and_lowers_itself(tmp_path, name):
    result = trained(tmp_path / "run", replace(QUICK, epochs=4), loss=name)
    losses = [row["loss"] for row in result.history]
    assert losses[-1] < losses[0]
    parts = [row[k] for row in result.history for k in ("ce", "objective", "bonus", "pairs") if k in row]
    assert len(parts) in (0, 8, 12)
    assert result.history[-1]["test_accuracy"] > (0.2 if name in ("mirror", "mse") else 0.75)


def test_the_history_holds_the_means_of_the_parts(tmp_path):
    batches = []

    class Watched(CompositeLoss):
        def forward(self, *batch):
            value = super().forward(*batch)
            batches.append((len(batch[1]), value.item(), {k: v.item() for k, v in self.last_parts.items()}))
            return value

    loss = Watched(EncouragingLoss(), pairs=AMCLoss())
    row = trained(tmp_path / "run", replace(QUICK, epochs=1, batch_size=64), loss=loss).history[0]
    total = sum(n for n, _, _ in batches)
    for name in ("ce", "bonus", "pairs"):
        assert row[name] == pytest.approx(sum(n * parts[name] for n, _, parts in batches) / total, rel=1e-5)
    assert row["ce"] + row["bonus"] + row["pairs"] == pytest.approx(row["loss"], rel=1e-5)
    assert json.loads((tmp_path / "run" / "history.json").read_text())[0]["bonus"] == row["bonus"]


def test_training_by_name_is_a_plain_loop(tmp_path):
    recipe = Recipe(epochs=2, batch_size=50, lr=0.05, schedule="constant", loss="el:0.5+amc:1")
    result = trained(tmp_path / "run", recipe)
    plain = net()
    optimizer = torch.optim.SGD(plain.parameters(), 0.05, 0.9, weight_decay=5e-4)
    images, labels = load_digits()
    x, y = torch.from_numpy(images[:300])[:, None] / 255, torch.from_numpy(labels[:300])
    from hardsight.training.loop import seed_of

    for epoch in (1, 2):
        for rows in torch.randperm(300, generator=torch.Generator().manual_seed(seed_of(0, epoch))).split(50):
            with hs.capture(plain) as head:
                logits = plain(x[rows])
            loss = EncouragingLoss(log_end=0.5)(logits, y[rows])
            loss = loss + AMCLoss()(head.features, logits.argmax(1))  # Eq. 3: predictions tell the neighbours
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(result.model.module.state_dict()[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"ema": 0.8}])
@pytest.mark.parametrize("name", ["avh:16", "el@arcface:0.3"])
def test_a_head_of_directions_predicts_what_the_loss_means(tmp_path, capsys, name, options):
    result = trained(tmp_path / "run", replace(QUICK, **options), loss=name, progress=True)
    assert capsys.readouterr().out.count("only directions") == 1
    network, data = result.model.module, digits("test", 300, 400)
    head = network[-1]
    assert not head.bias.any()
    norms = head.weight.norm(dim=1)
    torch.testing.assert_close(norms, norms.mean().expand(10))
    with torch.no_grad(), hs.capture(network) as head_state:
        logits = network(torch.from_numpy(data.images)[:, None] / 255)
    nearest = hs.angles.angle_matrix(head_state.features, head_state.weight).argmin(1)
    assert torch.equal(logits.argmax(1), nearest)
    assert result.history[-1]["test_accuracy"] == (nearest == torch.from_numpy(data.labels)).double().mean().item()
    assert hs.score(result.model, data, progress=False).accuracy == result.history[-1]["test_accuracy"]
    saved = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    for part in ("model", "online"):
        if part in saved:
            torch.testing.assert_close(
                saved[part]["5.weight"].norm(dim=1), saved[part]["5.weight"].norm(dim=1).mean().expand(10)
            )


def test_one_norm_leaves_angles_and_zero_weights_alone():
    network = net()
    with torch.no_grad():
        network[-1].weight[3] = 0
        network[-1].weight[4] *= 1e20
    x = torch.randn(5, 32)
    before = hs.angles.angle_matrix(x, network[-1].weight)
    equalize_norms(network)
    torch.testing.assert_close(hs.angles.angle_matrix(x, network[-1].weight), before, rtol=1e-5, atol=1e-5)
    assert not network[-1].weight[3].any()


class _KilledError(Exception):
    pass


class Steps:
    """How many steps are left: no part of the identity of the loss that counts them."""

    def __init__(self, left=0):
        self.left = left

    def __reduce__(self):
        return Steps, ()


class Killed(CompositeLoss):
    """A loss that ends the training after so many steps; it learns a scale and moves centres."""

    def __init__(self, steps, pairs=None):
        objective = EncouragingLoss()
        super().__init__(
            objective,
            BoundLogits(angular_logits, learn=True, scale=8.0),
            pairs or CenterLoss(10, 32, weight=0.01),
            hooks=[Scheduled(objective, rho=lambda t: deferred(t, 1))],
        )
        self.steps = Steps(steps)

    def forward(self, *batch):
        if not self.steps.left:
            raise _KilledError
        self.steps.left -= 1
        return super().forward(*batch)


@pytest.mark.parametrize("steps", [4, 6, 15])  # 6 steps an epoch
@pytest.mark.parametrize("kind", ["center", "amc"])
def test_a_killed_run_with_a_learning_loss_ends_the_same_to_the_last_bit(tmp_path, steps, kind):
    recipe = replace(QUICK, optimizer="adam", lr=0.01, ema=0.9)

    def run(name, steps, seed=0):
        loss = Killed(steps, AMCLoss(preset="released") if kind == "amc" else None)
        return trained(tmp_path / name, recipe, model=net(seed, dropout=0.3), loss=loss), loss

    whole, loss = run("whole", 18)
    with pytest.raises(_KilledError):
        run("run", steps)
    again, other = run("run", 18, seed=0 if steps < 6 else 99)
    for ours, theirs in ((again.model.module, whole.model.module), (other, loss)):
        for name, value in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], value), name
    assert loss.logits.log_scale.exp().item() != pytest.approx(8.0, abs=1e-3)  # it has learned
    names = ("loss", "ce", "bonus", "pairs", "test_accuracy")
    assert [[row[n] for n in names] for row in again.history] == [[row[n] for n in names] for row in whole.history]
    assert [row["bonus"] == 0 for row in whole.history] == [True, False, False]


def test_a_learned_scale_does_not_decay(tmp_path):
    still = replace(QUICK, lr=0.1, weight_decay=0.5, epochs=1)

    def zero(logits, target):
        return 0 * logits.sum()

    loss = CompositeLoss(zero, BoundLogits(angular_logits, learn=True, scale=8.0))
    network = net()
    before = network[1].weight.norm().item()
    trained(tmp_path / "run", still, loss=loss, model=network)
    assert loss.logits.log_scale.item() == pytest.approx(math.log(8), rel=1e-6)
    assert network[1].weight.norm().item() < 0.9 * before


def test_another_loss_is_another_run(tmp_path):
    recipe = replace(QUICK, epochs=1)
    trained(tmp_path / "ce", recipe)
    trained(tmp_path / "ce", recipe, loss="ce")  # the same
    with pytest.raises(FileExistsError, match=r"same: loss\)"):
        trained(tmp_path / "ce", recipe, loss="el")
    trained(tmp_path / "el", recipe, loss="el:1")
    trained(tmp_path / "el", replace(recipe, loss="el:exact"))
    trained(tmp_path / "own", recipe, loss=nn.CrossEntropyLoss())
    with pytest.raises(FileExistsError, match="same: loss"):
        trained(tmp_path / "own", recipe, loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    amc = CompositeLoss(nn.CrossEntropyLoss(), pairs=AMCLoss())
    trained(tmp_path / "amc", recipe, loss=amc)
    trained(tmp_path / "amc", recipe, loss=amc)
    with pytest.raises(FileExistsError, match="same: loss"):
        trained(tmp_path / "amc", recipe, loss=CompositeLoss(nn.CrossEntropyLoss(), pairs=AMCLoss(margin=0.6)))


def composed(**parts):
    return CompositeLoss(**{"objective": nn.CrossEntropyLoss()} | parts)


def scheduled(after):
    objective = EncouragingLoss()
    loss = CompositeLoss(objective, pairs=AMCLoss())
    loss.hooks = (Scheduled(objective, rho=lambda t: deferred(t, after)), Scheduled(loss, pair_weight=lambda t: 0.5))
    return loss


SOURCELESS = "lambda logits, target: (logits.logsumexp(1) - logits.gather(1, target[:, None])[:, 0]).mean()"


@pytest.mark.parametrize(
    ("what", "losses"),
    {
        "margin": [lambda m=m: composed(logits=partial(cosface_logits, margin=m)) for m in (0.1, 0.2)],
        "function": [
            lambda f=f: composed(logits=partial(f, margin=0.1, scale=16.0)) for f in (cosface_logits, arcface_logits)
        ],
        "bonus": [lambda: EncouragingLoss(bonus=lambda p: -p), lambda: EncouragingLoss(bonus=lambda p: -p * p)],
        "pairs": [lambda: composed(pairs=lambda x, y: x.mean()), lambda: composed(pairs=lambda x, y: x.sum())],
        "objective": [lambda: composed(objective=F.cross_entropy), lambda: composed(objective=F.multi_margin_loss)],
        "schedule": [partial(scheduled, 1), partial(scheduled, 2)],
        "no source text": [lambda: composed(objective=eval(SOURCELESS))] * 2,
        "a function without source text": [lambda: eval(SOURCELESS)] * 2,
    }.items(),
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_everything_that_decides_a_given_loss_counts(tmp_path, what, losses):
    recipe, (first, second) = replace(QUICK, epochs=1), losses
    given = first()
    trained(tmp_path / "run", recipe, loss=given)
    if "source" not in what:
        rows = [trained(tmp_path / "run", recipe, loss=again).history for again in (given, first())]
        assert rows[0] == rows[1]  # not trained again: they hold the seconds that it took
    with pytest.raises(FileExistsError, match=r"same: loss\)"):
        trained(tmp_path / "run", recipe, loss=second())


def test_what_the_recipe_smooths_and_mixes_reaches_the_loss(tmp_path):
    smooth = trained(tmp_path / "smooth", replace(QUICK, epochs=1, label_smoothing=0.2, loss="el:0.5"))
    by_hand = EncouragingLoss(label_smoothing=0.2, log_end=0.5)
    direct = trained(tmp_path / "own", replace(QUICK, epochs=1), loss=by_hand)
    for part in ("loss", "ce", "bonus"):
        assert smooth.history[0][part] == pytest.approx(direct.history[0][part], rel=1e-6)
    mixed = trained(tmp_path / "mixed", replace(QUICK, mixup=0.3, loss="el@avh+amc"))
    assert mixed.history[-1]["test_accuracy"] > 0.5


def test_class_counts_come_from_the_training_labels(tmp_path):
    images, labels = load_digits()
    keep = np.flatnonzero((labels[:600] > 1) | (np.arange(600) % 10 == 0))[:300]
    data = (ArraySamples(images[keep], labels[keep], "train", "few zeros and ones"), digits("test", 700, 800))
    counts = torch.from_numpy(np.bincount(labels[keep], minlength=10))
    named = trained(tmp_path / "named", data=data, loss="ce:effective,beta=0.99")
    weighted = nn.CrossEntropyLoss(weight=effective_number_weights(counts, 0.99))
    by_hand = trained(tmp_path / "own", data=data, loss=weighted)
    assert named.history[-1]["loss"] == pytest.approx(by_hand.history[-1]["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "error", "pattern"),
    [
        ("elf", ValueError, "'elf'; .*el"),
        (3, TypeError, "loss .*got a int"),
        (AVHLoss(), TypeError, "AVHLoss takes .*CompositeLoss"),
        (AMCLoss(), TypeError, "AMCLoss takes features"),
        (nn.CrossEntropyLoss, TypeError, "class CrossEntropyLoss"),
        (nn.CrossEntropyLoss(reduction="none"), ValueError, r"one number .*shape \(\d+,\)"),
    ],
)
def test_losses_that_cannot_be_trained_with_are_sentences(tmp_path, loss, error, pattern):
    with pytest.raises(error, match=pattern):
        trained(tmp_path / "run", loss=loss)


def test_a_computed_head_and_directions_do_not_go_together(tmp_path):
    model = net()
    nn.utils.parametrizations.weight_norm(model[-1])
    assert trained(tmp_path / "amc", model=model, loss="el+amc").history[-1]["test_accuracy"] > 0.7
    with pytest.raises(ValueError, match=r"head '5' .*parametrized"):
        trained(tmp_path / "run", model=model, loss="avh")


def test_bf16_and_records_go_with_losses_of_the_head(tmp_path):
    result = trained(tmp_path / "run", replace(QUICK, precision="bf16"), loss="avh+amc:1", record=("train", "test"))
    assert result.history[-1]["test_accuracy"] > 0.7
    assert len(hs.Dynamics(tmp_path / "run" / "train")) == 300


# ---------------------------------------------------------------------------------------------------------------------
# The command.


def test_the_command_trains_with_a_loss_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    images, labels = load_digits()
    np.savez("digits.npz", train_images=images[:128], train_labels=labels[:128])
    arguments = ["train", "digits.npz", "--model", "small-cnn", "--epochs", "1", "--device", "cpu", "--no-record"]
    main([*arguments, "--loss", "el:0.5+amc", "-o", "run"])
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[-2].endswith(" el:0.5+amc:paper")
    assert json.loads(Path("run/training.json").read_text())["loss"] == "el:0.5+amc:paper"
    main([*arguments, "-o", "plain"])
    assert capsys.readouterr().out.strip().splitlines()[-2].endswith(" small-cnn")
    with pytest.raises(SystemExit):
        main([*arguments, "--loss", "ell", "-o", "x"])
    assert re.fullmatch(r"error: loss: .*'ell'; .* el\?\n", capsys.readouterr().err)
    with pytest.raises(SystemExit):
        main([*arguments, "--loss", "mirror", "--label-smoothing", ".1", "-o", "x"])
    assert re.search(r"label[_ ]smoothing", capsys.readouterr().err)


# ---------------------------------------------------------------------------------------------------------------------
# Several processes.


def train_here(out, loss):
    torch.manual_seed(0)
    images, labels = load_digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    data = ArraySamples(images[:300], labels[:300], "train", "a")
    recipe = Recipe(epochs=2, batch_size=50, lr=0.05, schedule="constant", loss=loss)
    result = train(net, data, data, out=out, recipe=recipe, device="cpu", record=(), progress=False)
    state = torch.load(f"{out}/checkpoint.pt", weights_only=True)
    states = [{k: v.double().flatten().tolist() for k, v in state[part].items()} for part in ("model", "loss")]
    return [result.history, *states]


@pytest.mark.slow
def test_two_processes_train_with_directions_and_a_learned_scale_what_one_would(tmp_path):
    loss = "avh:8,learn"

    def train_and_tell(rank):
        (tmp_path / f"{rank}.json").write_text(json.dumps(train_here(tmp_path / "run", loss)))

    as_torchrun(train_and_tell)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    history, model, scale = train_here(tmp_path / "alone", loss)
    assert scale["logits.log_scale"] != [math.log(8)]
    for actual in (first, second):
        for expected, state in ((model, actual[1]), (scale, actual[2])):
            for name, values in expected.items():
                np.testing.assert_allclose(state[name], values, rtol=1e-4, atol=1e-6)
        for row, expected in zip(actual[0], history, strict=True):
            assert [row["loss"], row["test_accuracy"]] == pytest.approx([expected["loss"], expected["test_accuracy"]])


def test_a_run_of_the_name_before_it_meant_the_clamp_is_not_resumed(tmp_path):
    recipe = replace(QUICK, epochs=1)
    trained(tmp_path / "run", recipe, loss="el:normal")
    trained(tmp_path / "run", recipe, loss="el:normal")  # the same
    plan = json.loads((tmp_path / "run" / "training.json").read_text())
    (tmp_path / "run" / "training.json").write_text(json.dumps({k: v for k, v in plan.items() if k != "clamp"}))
    with pytest.raises(FileExistsError, match="clamp"):
        trained(tmp_path / "run", recipe, loss="el:normal")
