"""Recipes: rates against torch's schedulers, the papers' numbers, what is refused, and options of the command."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from command_line import run
from torch import nn
from torch.optim import lr_scheduler
from torchvision.ops import StochasticDepth

import hardsight as hs
from hardsight import training
from hardsight.cli.options import structure
from hardsight.data import load_digits
from hardsight.errors import HardsightError
from hardsight.networks import NETWORKS, build_network
from hardsight.presets import PRESETS, recipe_of
from hardsight.recipes import MOST_EPOCHS, SETTINGS, Recipe, learning_rate, momentum_at, parse_settings
from hardsight.training.checkpoint import trained_recipe
from hardsight.training.losses import make_loss


def rates_of(scheduler_of, steps, lr):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = scheduler_of(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("recipe", "scheduler"),
    [
        (Recipe(epochs=9, lr=0.1, schedule="constant"), lambda o: lr_scheduler.ConstantLR(o, 1.0)),
        (Recipe(epochs=9, lr=0.1, schedule="step", steps=(3, 6)), lambda o: lr_scheduler.StepLR(o, 3 * 7)),
        (
            Recipe(epochs=9, lr=0.2, schedule="step", steps=(2, 7), step_factor=0.5),
            lambda o: lr_scheduler.MultiStepLR(o, [2 * 7, 7 * 7], 0.5),
        ),
        (Recipe(epochs=9, lr=0.3, schedule="cosine"), lambda o: lr_scheduler.CosineAnnealingLR(o, 9 * 7)),
        (
            Recipe(epochs=9, lr=0.3, schedule="cosine", warmup=2),
            lambda o: lr_scheduler.SequentialLR(
                o,
                # torch cannot begin at 0
                [lr_scheduler.LinearLR(o, 1e-12, 1.0, 2 * 7), lr_scheduler.CosineAnnealingLR(o, 7 * 7)],
                [2 * 7],
            ),
        ),
        (
            Recipe(epochs=9, lr=0.4, schedule="one-cycle", warmup=2),
            lambda o: lr_scheduler.OneCycleLR(
                o, 0.4, total_steps=9 * 7 + 1, pct_start=(2 * 7 + 1) / (9 * 7 + 1), anneal_strategy="linear"
            ),
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*epoch parameter in `scheduler.step")
def test_rates_are_those_of_torchs_schedulers(recipe, scheduler):
    steps = 7 * recipe.epochs
    ours = [learning_rate(recipe, step / 7) for step in range(steps)]
    np.testing.assert_allclose(ours, rates_of(scheduler, steps, recipe.lr), rtol=1e-6, atol=1e-9)


def test_ramps_are_those_of_the_amc_paper():
    recipe = PRESETS["amc13"].recipe
    loss = make_loss(None, recipe, build_network("amc13", 10, 3), torch.arange(10))
    for t in (1, 10, 79, 80, 150, 250, 251, 275, 300):  # as Algorithm 1 counts
        up = math.exp(-5 * (1 - t / 80) ** 2) if t < 80 else 1
        down = math.exp(-12.5 * (1 - (300 - t) / 50) ** 2) if t > 250 else 1
        assert learning_rate(recipe, t - 0.5) == pytest.approx(0.003 * up * down)
        assert momentum_at(recipe, t - 0.5) == pytest.approx(0.9 * down + 0.5 * (1 - down))
        loss.at(t - 1)
        assert loss.pair_weight == pytest.approx(up * down)  # the weight of pairs, too
    assert momentum_at(Recipe(momentum=0.7), 2.0) == 0.7


def test_presets_have_the_papers_numbers():
    for name, lr in (("alexnet", 0.01), ("vgg19", 0.01), ("resnet50", 0.1), ("densenet121", 0.1)):
        for preset in (PRESETS[name], PRESETS[f"{name}-32"]):
            rates = [learning_rate(preset.recipe, epoch) for epoch in (1, 29, 30, 59, 60, 89)]
            assert rates == pytest.approx([lr, lr, lr / 10, lr / 10, lr / 100, lr / 100])
            assert preset.recipe.epochs == 90
            assert preset.recipe.warmup == (1 if preset.network.endswith("-32") else 0)
    mnist = [learning_rate(PRESETS["mnist-el"].recipe, epoch - 1) for epoch in (50, 51, 64, 65, 100)]
    assert mnist == pytest.approx([0.1, 0.01, 0.01, 0.001, 0.001])
    assert learning_rate(PRESETS["efficientnet"].recipe, 24.0) == pytest.approx(0.048 * 0.97**10)
    network = build_network("efficientnet_b0", 10, 3)
    depths = [layer.p for layer in network.modules() if isinstance(layer, StochasticDepth)]
    assert max(depths) == pytest.approx(0.2, abs=0.02)  # as its summary says
    assert all(preset.network in NETWORKS and preset.summary and preset.reference for preset in PRESETS.values())


BAD = [
    {"epochs": 0}, {"epochs": 2.5}, {"epochs": math.inf}, {"epochs": MOST_EPOCHS + 1}, {"batch_size": 0},
    {"lr": -1.0}, {"lr": math.inf}, {"ema": 1.0}, {"momentum": 1.0, "optimizer": "adam"}, {"label_smoothing": 1.5},
    {"smallest_part": 0.0}, {"optimizer": "adm"}, {"steps": (), "schedule": "step"}, {"steps": (3,)},
    {"steps": (-3,), "schedule": "step"}, {"warmup": 40}, {"warmup": 30}, {"rampdown": 20, "warmup": 11},
    {"nesterov": True, "optimizer": "adam"}, {"nesterov": True, "momentum": 0}, {"graph": True}, {"seed": -1},
    {"seed": 2**63}, {"accumulate": 0}, {"accumulate": 2, "graph": True, "drop_last": True},
]  # fmt: skip


@pytest.mark.parametrize("settings", BAD, ids=str)
def test_a_recipe_that_cannot_be_is_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Recipe(**settings)


def test_the_ends_of_ranges_are_allowed():
    Recipe(epochs=MOST_EPOCHS, batch_size=1, lr=0, momentum=0, label_smoothing=1, smallest_part=0.01, seed=2**63 - 1)
    assert Recipe(seed=2**53 + 1).seed == 2**53 + 1
    assert Recipe(epochs=5, schedule="ramp", warmup=3, rampdown=2).rampdown == 2


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_its_type(name):
    wrong = {
        bool: ["yes", 1, 0.0, None],
        int: ["3.5", "", True, None, [3], 10**20, 10**400, 2.5, math.nan],
        float: ["much", "", True, None, [0.1], 10**400, math.nan, -math.inf],
        str: [3, None, True, b"sgd"],
        tuple: [3, "30;60", [None], [math.nan], [-1.0], [10**400], None],
    }[type(getattr(Recipe(), name))]
    for value in wrong:
        with pytest.raises(HardsightError, match=name):
            Recipe(**{name: value})
        with pytest.raises(HardsightError, match=name):
            Recipe().replace(**{name: value})


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": np.int64(3), "batch_size": 8.0, "lr": torch.tensor(0.5), "flip": np.bool_(True), "steps": [1, 2]},
        {"epochs": "3", "batch_size": "8", "lr": "5e-1", "flip": "True", "steps": "1,2"},
    ],
)
def test_numbers_of_other_libraries_and_texts_become_plain_values(settings):
    recipe = Recipe(schedule="step", **settings)
    assert recipe == Recipe(epochs=3, batch_size=8, lr=0.5, flip=True, schedule="step", steps=(1.0, 2.0))
    types = [type(getattr(recipe, name)) for name in settings]
    assert types == [int, int, float, bool, tuple]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("epochs", [1, 6, 500])
def test_replace_rescales_the_times(preset, epochs):
    recipe = PRESETS[preset].recipe
    shorter = recipe.replace(epochs=epochs)
    ratio = epochs / recipe.epochs
    assert shorter.warmup == pytest.approx(ratio * recipe.warmup)
    assert shorter.rampdown == pytest.approx(ratio * recipe.rampdown)
    assert shorter.steps == pytest.approx([ratio * step for step in recipe.steps])
    for share in (0.1, 0.5, 0.9) if recipe.schedule != "ramp" else ():  # which is constant within an epoch
        rate = learning_rate(recipe, share * recipe.epochs)
        assert learning_rate(shorter, share * epochs) == pytest.approx(rate)
    assert recipe.replace(lr=0.5) == dataclasses.replace(recipe, lr=0.5)


def test_what_is_given_is_not_rescaled_and_another_schedule_has_no_steps():
    paper = PRESETS["resnet50-32"].recipe
    given = paper.replace(epochs=30, steps=(5, 25), warmup=0)
    assert (given.steps, given.warmup) == ((5.0, 25.0), 0.0)
    assert paper.replace(schedule="cosine").steps == ()
    with pytest.raises(ValueError, match="steps"):
        paper.replace(schedule="cosine", steps=(3,))


def test_a_warmup_that_takes_the_whole_training_is_refused():
    """The rate of such a recipe only rises, and a network hardly trains."""
    recipe = PRESETS["cifar-resnet18"].recipe
    with pytest.raises(ValueError, match="warmup"):
        dataclasses.replace(recipe, epochs=2)
    assert recipe.replace(epochs=6).warmup == pytest.approx(6 * recipe.warmup / recipe.epochs)
    assert recipe.replace(epochs=6, warmup=5).warmup == 5


def test_a_huge_number_of_epochs_is_refused_everywhere(tmp_path):
    for call in (
        lambda n: Recipe(epochs=n),
        lambda n: Recipe().replace(epochs=n),
        lambda n: hs.CurriculumSampler([0.0, 1.0], "linear", epochs=n),
        lambda n: hs.self_train("small-cnn", "digits:train", "digits:test", epochs=n, out=tmp_path / "run"),
        lambda n: hs.self_train("small-cnn", "digits:train", "digits:test", rounds=n, out=tmp_path / "run"),
    ):
        with pytest.raises(HardsightError, match=r"1,?000,?000"):
            call(99999999999999999999)
    with pytest.raises(HardsightError, match="2147483647"):
        hs.Recorder(tmp_path / "run", epoch=99999999999999999999)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("epoch=3", "'epoch'.* epochs"),
        ("__doc__=3", "'__doc__'"),
        ("epochs", "epochs.* got ''"),
        ("epochs=many", "epochs.*'many'"),
        ("flip=perhaps", "flip.*'perhaps'"),
        ("steps=3;4", "steps.*'3;4'"),
        ("optimizer=sdg", "optimizer.* sgd.*'sdg'"),
    ],
)
def test_wrong_settings_are_refused_in_one_sentence(setting, hint):
    with pytest.raises(ValueError, match=hint):
        Recipe().replace(**parse_settings([setting]))


def test_recipes_by_name():
    assert recipe_of("vgg19") is PRESETS["vgg19"].recipe
    assert recipe_of("resnet18-32") == recipe_of("timm:resnet18") == Recipe()
    assert all(recipe_of(name) for name in NETWORKS)
    with pytest.raises(ValueError, match=r"'vgg_19'.*vgg19"):
        recipe_of("vgg_19")


def test_the_recipe_of_an_older_run_is_readable(tmp_path):
    saved = {**dataclasses.asdict(Recipe(lr=0.3)), "lr": 0.3, "dropped": 1}
    del saved["loss"], saved["frozen_norm"], saved["accumulate"], saved["sync_batchnorm"]
    saved["optimiser"] = saved.pop("optimizer").replace("sgd", "adamw")
    plan = {"model": {"name": "net", "preprocessing": "none"}, "recipe": saved}
    (tmp_path / "training.json").write_text(json.dumps(plan))
    assert trained_recipe(tmp_path) == Recipe(optimizer="adamw", lr=0.3)
    (tmp_path / "training.json").write_text(json.dumps(plan | {"recipe": saved | {"lr": "high"}}))
    with pytest.raises(RuntimeError, match=r"training\.json"):
        trained_recipe(tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# The command.


class ReachedError(Exception):
    """Instead of training."""


@pytest.fixture
def recipe_for(monkeypatch, capsys):
    """The recipe that `hardsight train` trains with."""

    def trained(*_, recipe, **__):
        raise ReachedError(recipe)

    def read(*options, model="small-cnn"):
        monkeypatch.setattr(training, "train", trained)
        with pytest.raises(ReachedError) as reached:
            run(capsys, "train", "digits", "--model", model, *options)
        return reached.value.args[0]

    return read


def test_every_setting_is_an_option_and_only_those_given_change_the_preset(recipe_for):
    groups = [field.type for field in dataclasses.fields(structure("train")) if dataclasses.is_dataclass(field.type)]
    assert {field.name for group in groups for field in dataclasses.fields(group)} >= set(SETTINGS)
    preset = PRESETS["cifar-resnet18"].recipe
    assert recipe_for(model="cifar-resnet18") == recipe_for("--recipe", "cifar-resnet18") == preset
    texts = {"momentum": "0.8", "weight_decay": "1e-3", "steps": "3 5", "loss": "el:0.5", "precision": "float32"}
    texts |= {"schedule": "step", "optimizer": "sgd", "epochs": "9", "lr": ".2", "warmup": str(preset.warmup)}
    options = [part for name, text in texts.items() for part in (f"--{name.replace('_', '-')}", *text.split())]
    expected = preset.replace(**texts | {"steps": (3, 5), "flip": False, "compile": True})
    assert recipe_for(*options, "--no-flip", "--compile", model="cifar-resnet18") == expected
    assert expected.warmup == preset.warmup  # given, so not rescaled, though it is what the preset has
    assert recipe_for("--epochs", "6", model="resnet50-32") == PRESETS["resnet50-32"].recipe.replace(epochs=6)


@pytest.mark.parametrize(
    "options",
    [["--epochs", "many"], ["--epochs", "0"], ["--optimizer", "sdg"], ["--warmup", "-1"]],
    ids=" ".join,
)
def test_wrong_options_of_the_command_are_refused(capsys, options):
    code, out, err = run(capsys, "train", "digits", "--model", "small-cnn", *options)
    assert code == 2
    assert options[0].strip("-") in out + err
    assert options[1] in out + err


def test_the_command_trains_on_other_labels_and_names_the_oracle(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    images, labels = load_digits()
    parts = {"train": slice(0, 200), "test": slice(200, 300)}
    arrays = {f"{split}_images": images[part] for split, part in parts.items()}
    arrays |= {f"{split}_labels": labels[part] for split, part in parts.items()}
    arrays |= {f"{split}_parity": labels[part] % 2 for split, part in parts.items()}
    np.savez("digits.npz", **arrays)
    options = ("--test", "digits.npz:test", "--model", "small-cnn", "--epochs", "2", "--device", "cpu", "--no-record")
    code, out, _ = run(capsys, "train", "digits.npz", *options, "--label-column", "parity")
    assert code == 0
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    best = max(row["test_accuracy"] for row in history)
    assert f"oracle: {best:.1%}" in out
    saved = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["model"]
    assert list(saved.values())[-1].shape == (2,)  # two classes, not ten
