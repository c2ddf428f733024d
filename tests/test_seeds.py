"""Seeds: the same one gives the same result, another one another, and no two draws share a stream."""

import copy
import dataclasses
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from attacked_networks import answer_of, digits, trained
from made_predictions import answer_to, made
from torch import nn

import hardsight as hs
from hardsight.adaptation.loop import recipe_at, training_samples
from hardsight.adaptation.roles import open_roles
from hardsight.cli import main
from hardsight.correlation import resampled
from hardsight.data import ArraySamples
from hardsight.people import as_human, ceiling, compare_all, compare_scores, halves, hypotheses
from hardsight.phases.plateaus import plateau, plateaus
from hardsight.questions import angular_kmeans, attack
from hardsight.questions.uncertainty import dropout_predictions
from hardsight.recipes import Recipe
from hardsight.scoring.folds import assign_folds
from hardsight.studies import dip_and_bounce, embeddings, iterations, two_gaussians
from hardsight.training import train
from hardsight.training.loop import seed_of

DRAW = np.random.default_rng(0)
COUNTS = DRAW.multinomial(20, [0.6, 0.3, 0.1], 80)
LABELS = DRAW.integers(0, 3, 80)
CURVES = 1 - np.exp(-np.arange(30) / 4) + 0.15 * DRAW.normal(size=(25, 30)) + 0.03 * DRAW.normal(size=30)
SCORES = {"id": [str(i) for i in range(80)], "avh": DRAW.random(80), "confidence": DRAW.random(80)}
PEOPLE = dict(zip(SCORES["id"], DRAW.random(80).tolist(), strict=True))
PREDICTIONS = made(200, noise=6.0)


def images(n=60, split="train"):
    x, y = digits()
    return ArraySamples((x[:n, 0] * 255).to(torch.uint8).numpy(), y[:n].numpy(), split, "digits")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 10))


def mapped():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))


def after_training(folder, seed, **options):
    recipe = Recipe(epochs=1, batch_size=30, schedule="constant", lr=0.01, seed=seed, **options)
    result = train(network(), images(), out=folder, recipe=recipe, record=(), device="cpu", progress=False)
    return [tensor.tolist() for tensor in result.model.module.state_dict().values()]


def after_adapting(folder, seed):
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0).long()
    net = nn.Sequential(nn.Linear(2, 2))
    net.load_state_dict({"0.weight": torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), "0.bias": torch.zeros(2)})
    recipe = Recipe(batch_size=10, lr=0.1, schedule="constant")
    source, target = torch.utils.data.TensorDataset(x, y), torch.utils.data.TensorDataset(x + 0.1, y)
    options = {"recipe": recipe, "rounds": 1, "device": "cpu", "progress": False}
    result = hs.self_train(net, source, target, seed=seed, out=folder, **options)
    return [tensor.tolist() for tensor in result.model.module.state_dict().values()]


def attacked(seed):
    x, y = digits()
    return attack(trained(epochs=1), x[:20], y[:20], "pgd", eps=0.1, restarts=2, seed=seed).x


# What takes a seed: a function of a folder and the seed.
SEEDED = {
    "assign_folds": lambda _, s: assign_folds(LABELS, 4, s),
    "halves": lambda _, s: [half.counts for half in halves(as_human(COUNTS), s)],
    "ceiling": lambda _, s: ceiling(COUNTS, LABELS, ("spearman",), s, worlds=5),
    "resampled": lambda _, s: resampled(np.stack([SCORES["avh"]]), SCORES["confidence"], ("pearson",), 5, s),
    "compare_scores": lambda _, s: compare_scores(SCORES, "avh", "confidence", PEOPLE, resamples=100, seed=s),
    "compare_all": lambda _, s: compare_all(SCORES, "avh", PEOPLE, resamples=100, seed=s),
    "hypotheses": lambda _, s: [
        outcome.numbers for outcome in hypotheses(SCORES | {"norm": SCORES["avh"]}, PEOPLE, resamples=100, seed=s)
    ],
    "dip_and_bounce": lambda _, s: dip_and_bounce(CURVES, draws=50, seed=s),
    "plateau": lambda _, s: plateau(CURVES, draws=50, seed=s),
    "plateaus": lambda _, s: plateaus(
        SimpleNamespace(matrix=lambda _: CURVES, epochs=np.arange(1, 31)), ("avh", "nll"), draws=50, seed=s
    ),
    "calibration": lambda _, s: answer_to("calibration", *PREDICTIONS, seed=s),
    "angular_kmeans": lambda _, s: angular_kmeans(np.random.default_rng(1).normal(size=(90, 6)), 5, s),
    "clusters": lambda _, s: answer_to("clusters", *PREDICTIONS, seed=s),
    "dropout": lambda _, s: dropout_predictions(network(), images(), 2, seed=s, device="cpu"),
    "attack": lambda _, s: attacked(s),
    "robustness": lambda _, s: answer_of(
        "robustness", trained(epochs=1), images(), attacks=("pgd",), eps=(0.1,), limit=20, seed=s
    ),
    "explanation": lambda _, s: answer_of("explanation", mapped(), images(), limit=8, seed=s).samples,
    "hardness sampler": lambda _, s: list(hs.HardnessSampler(SCORES["avh"], seed=s)),
    "curriculum sampler": lambda _, s: list(hs.CurriculumSampler(SCORES["avh"], "root", 4, seed=s)),
    "self-paced sampler": lambda _, s: list(hs.CurriculumSampler(lambda: SCORES["avh"], "root", 4, seed=s)),
    "ties of a curriculum": lambda _, s: sorted(hs.CurriculumSampler(np.ones(80), lambda t: 0.5, 4, seed=s)),
    "train": after_training,
    "augmented training": lambda folder, s: after_training(folder, s, crop=2, flip=True),
    "self_train": after_adapting,
    "embeddings": lambda _, s: embeddings("digits", steps=2, seed=s, device="cpu").features,
    "iterations": lambda folder, s: iterations("digits", folder, count=2, seed=s, device="cpu").matrix("avh"),
    "two_gaussians": lambda _, s: two_gaussians(s, n=20, steps=2),
}


def plain(value):
    """Anything as nested lists of numbers and texts, which compare."""
    if isinstance(value, pa.Table):
        return value.to_pylist()
    if dataclasses.is_dataclass(value) or hasattr(value, "_asdict"):
        parts = value._asdict() if hasattr(value, "_asdict") else vars(value)
        return {name: plain(part) for name, part in parts.items()}
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return np.nan_to_num(np.asarray(value), nan=-99.0).tolist() if value.dtype != object else value.tolist()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return -99.0 if isinstance(value, float) and np.isnan(value) else value


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_decides_and_is_not_ignored(tmp_path, name):
    results = []
    for turn, seed in enumerate((3, 3, 4)):
        torch.manual_seed(turn)  # what the caller has drawn before does not matter
        np.random.seed(turn)
        results.append(plain(SEEDED[name](tmp_path / str(turn), seed)))
    assert results[0] == results[1]
    assert results[0] != results[2]


class Called(Exception):  # noqa: N818 - no error: it ends a command once its work would begin
    def __init__(self, seed):
        self.seed = seed


@pytest.mark.parametrize(
    ("command", "work", "seed_in"),
    [
        (
            ["train", "digits", "--model", "small-cnn"],
            "hardsight.training.train",
            lambda _, named: named["recipe"].seed,
        ),
        (
            ["adapt", "--model", "small-cnn", "--source", "digits", "--target", "digits"],
            "hardsight.adaptation.loop.self_train",
            lambda _, named: named["seed"],
        ),
        (["figure", "boundary"], "hardsight.figures.draw", lambda _, named: named["seed"]),
        (["demo"], "hardsight.demo.run_demo", lambda _, named: named["seed"]),
    ],
)
def test_commands_hand_their_seed_on(tmp_path, monkeypatch, command, work, seed_in):
    def called(*given, **named):
        raise Called(seed_in(given, named))

    monkeypatch.setattr(work, called)
    with pytest.raises(Called) as stop:
        main([*command, "--seed", "17", "-o", str(tmp_path / "run")])
    assert stop.value.seed == 17


def test_every_draw_of_a_training_has_a_seed_of_its_own(tmp_path, monkeypatch):
    """Weights, and in each epoch the order of the data and whatever changes the images."""
    net, seeds, orders = network(), [], []
    seeded, permuted = torch.manual_seed, torch.randperm

    def manual_seed(seed):
        seeds.append(seed)
        return seeded(seed)

    def randperm(n, generator):
        orders.append(generator.initial_seed())
        return permuted(n, generator=generator)

    monkeypatch.setattr("hardsight.training.loop.torch.manual_seed", manual_seed)
    monkeypatch.setattr("hardsight.training.loop.torch.randperm", randperm)
    recipe = Recipe(epochs=3, batch_size=30, lr=0.01, crop=1)
    train(net, images(), out=tmp_path / "run", recipe=recipe, record=(), device="cpu", progress=False)
    assert (len(seeds), len(orders)) == (4, 3)
    assert len({*seeds, *orders}) == 7


def test_images_are_changed_in_another_way_in_every_epoch_and_the_same_in_a_repeat(tmp_path, monkeypatch):
    from hardsight.training import loop

    changed, real = [], loop.augment
    monkeypatch.setattr(loop, "augment", lambda *given: changed.append(real(*given)) or changed[-1])
    recipe = Recipe(epochs=3, batch_size=60, lr=0.01, crop=2, flip=True, schedule="constant")
    options = {"sampler": range(60), "recipe": recipe, "record": (), "device": "cpu", "progress": False}
    for name in ("once", "again"):
        train(network(), images(), out=tmp_path / name, **options)
    once, again = changed[:3], changed[3:]
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert not any(torch.equal(once[i], once[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_each_round_draws_its_part_of_the_source_anew():
    from hardsight.adaptation.selection import parse_method

    roles = open_roles(images(50), images(60, "other"))
    ids = [f"other:{i}" for i in range(4)]
    chosen = pa.table({"id": ids, "label": pa.array([0, 1, 2, 3], pa.int64())})

    def source(number, seed):
        samples, _ = training_samples(roles, chosen, parse_method("cbst"), 0.3, number, seed)
        return [id_ for id_ in samples.ids if "other" not in id_]

    drawn = {(number, seed): source(number, seed) for number in (1, 2, 3) for seed in (0, 1)}
    assert {len(ids) for ids in drawn.values()} == {15}
    assert len({tuple(ids) for ids in drawn.values()}) == 6
    assert drawn[2, 1] == source(2, 1)
    whole = Recipe(epochs=6)
    seeds = [recipe_at(dataclasses.replace(whole, seed=seed), number, 2, 100).seed for number, seed in drawn]
    assert len({*seeds, 0, 1}) == 8
    assert seed_of(1, 2) != seed_of(2, 1)


def test_the_alarm_compares_every_round_with_the_network_before_any_adaptation(tmp_path, monkeypatch):
    """Predictions that lose a fifth of their classes in each round never lose much against the round before."""
    from hardsight.adaptation import loop

    real, count = loop._evaluate, [0]
    shares = [[100, 100, 100], [140, 100, 60], [180, 90, 30], [220, 65, 15]]

    def seen(*given):
        found, row = real(*given)
        row["predicted_by_class"] = shares[count[0]]
        count[0] += 1
        return found, row

    monkeypatch.setattr(loop, "_evaluate", seen)
    angle = torch.arange(300) % 3 * 2 * np.pi / 3
    x = torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(300, 2)
    data = torch.utils.data.TensorDataset(x, torch.arange(300) % 3)
    net = nn.Sequential(nn.Linear(2, 3))
    with torch.no_grad():
        net[0].weight.copy_(torch.stack([angle[:3].cos(), angle[:3].sin()], 1))
    recipe = Recipe(batch_size=30, lr=0.001, schedule="constant")
    result = hs.self_train(
        net, data, copy.deepcopy(data), rounds=3, recipe=recipe, out=tmp_path / "run", device="cpu", progress=False
    )
    alarms = result.rounds["alarm"].to_pylist()
    assert alarms[:2] == [None, None]
    assert alarms[3] is not None
    assert loop.alarm(shares[3], shares[2]) is None  # against the round before there is nothing to say
