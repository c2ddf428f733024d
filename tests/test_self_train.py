"""Self-training: it adapts where it must, sees no label it should not, and goes on after a kill to the same bits."""

import copy
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_lock import is_free
from torch import nn
from torch.utils.data import TensorDataset

from hardsight.adaptation import loop, rounds
from hardsight.adaptation.loop import recipe_at, recipe_for_rounds, self_train
from hardsight.adaptation.rounds import read_rounds, read_selection, round_folder, schema
from hardsight.adaptation.selection import METHODS
from hardsight.adaptation.validators import VALIDATORS
from hardsight.data import ArraySamples, load_digits, open_data
from hardsight.errors import StateError
from hardsight.models import Model
from hardsight.predictions import predict
from hardsight.presets import PRESETS
from hardsight.recipes import Recipe
from hardsight.runs import folder_lock
from hardsight.table import SampleTable
from hardsight.training import train

FEW = Recipe(epochs=5, batch_size=12, lr=0.1, schedule="constant", weight_decay=0.0)
GENTLE = Recipe(batch_size=50, lr=0.1, schedule="constant", weight_decay=0.0)


def blobs(turn, seed, n=300, classes=3):
    """Points around corners of a triangle that is turned by so many degrees."""
    y = np.arange(n) % classes
    angle = np.deg2rad(360 / classes * y + turn)
    x = 4 * np.stack([np.cos(angle), np.sin(angle)], 1) + np.random.default_rng(seed).normal(size=(n, 2))
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


SOURCE, TARGET, TEST = blobs(0, 0), blobs(45, 1), blobs(45, 2)


@pytest.fixture(scope="module")
def fitted():
    """A linear network that tells the corners of the source apart."""
    net = nn.Sequential(nn.Linear(2, 3))
    nn.init.zeros_(net[0].weight)
    nn.init.zeros_(net[0].bias)
    optimiser = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(SOURCE.tensors[0]), SOURCE.tensors[1]).backward()
        optimiser.step()
    return net


@pytest.fixture
def net(fitted):
    return copy.deepcopy(fitted)


def adapted(net, out, **options):
    given = {"source": SOURCE, "target": TARGET, "test": TEST, "recipe": GENTLE, "rounds": 2, "epochs": 2}
    given |= {"device": "cpu", "progress": False, **options}
    return self_train(net, given.pop("source"), given.pop("target"), out=out, **given)


def weights(result):
    return torch.cat([value.flatten() for value in result.model.module.state_dict().values()])


def timeless(rounds):
    return rounds.drop_columns(["seconds"]).to_pylist()


def columns_of(rounds, *names):
    return [rounds[name].to_pylist() for name in names]


@pytest.mark.parametrize("method", ["cbst", "crst", "cbst+avh", "cbst+avh-slides", "cbst+margin"])
def test_accuracy_rises_where_classes_stay_apart(net, tmp_path, method):
    result = adapted(net, tmp_path / "run", method=method, rounds=4, epochs=5)
    accuracy = result.rounds["test_accuracy"].to_pylist()
    assert accuracy[0] < 0.91
    assert accuracy[-1] - accuracy[0] > 0.025
    found = predict(result.model, open_data(TEST), flip=False, device="cpu")
    assert (found.probabilities.argmax(1) == TEST.tensors[1].numpy()).mean() == pytest.approx(accuracy[-1])


def test_the_network_that_was_given_is_left_as_it_is(net, tmp_path):
    before = [value.clone() for value in net.state_dict().values()]
    result = adapted(net, tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(before, net.state_dict().values(), strict=True))
    assert not torch.equal(weights(result), torch.cat([value.flatten() for value in before]))
    assert not result.model.module.training


def test_a_round_trains_on_the_chosen_some_of_the_source_and_what_is_labelled(net, tmp_path, monkeypatch):
    seen = []

    def watched(model, samples, *, targets, **options):
        seen.append((samples.ids, samples.labels, targets, options["recipe"]))
        return train(model, samples, targets=targets, **options)

    monkeypatch.setattr(loop, "train", watched)
    few = blobs(45, 3, n=6)
    options = {"method": "crst-mrkld", "labeled": few, "target_portion": (0.2, 0.1, 1), "source_portion": 0.1}
    result = adapted(net, tmp_path / "run", **options)
    for number, (ids, labels, targets, recipe) in enumerate(seen, 1):
        table = read_selection(tmp_path / "run", number)
        chosen = [row for row in table.to_pylist() if row["label"] is not None]
        assert [id_ for id_ in ids if id_.startswith("target/")] == [f"target/{row['id']}" for row in chosen]
        source = [i for i, id_ in enumerate(ids) if id_.startswith("source/")]
        assert len(source) == 30
        assert sum(id_.startswith("labelled/") for id_ in ids) == 6
        for i, id_ in enumerate(ids):  # MRKLD adds .1/3 to what was chosen, and to nothing else
            row = np.eye(3)[labels[i]] + (0.1 / 3 if id_.startswith("target/") else 0.0)
            np.testing.assert_allclose(targets[i], row, atol=1e-7)
        true = np.array([int(SOURCE.tensors[1][int(ids[i].rpartition(":")[2])]) for i in source])
        np.testing.assert_array_equal(labels[source], true)
        assert recipe.epochs == 2
        assert result.rounds["trained_on"][number].as_py() == len(ids)
    assert seen[0][0] != seen[1][0]  # the source is drawn anew
    assert seen[0][3].seed != seen[1][3].seed
    assert columns_of(result.rounds, "portion", "selected_share")[0] == [None, 0.2, 0.3]


def test_soft_labels_are_trained_on_as_they_were_chosen_also_after_a_kill(net, tmp_path, monkeypatch):
    seen = []

    def watched(model, samples, *, targets, **options):
        seen.append(targets)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "train", watched)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            adapted(net, tmp_path / "run", method=replace(METHODS["crst"], alpha=2.0))
    np.testing.assert_array_equal(*seen)
    table = read_selection(tmp_path / "run", 1)
    soft = np.array([row for row in table["target"].to_pylist() if row])
    np.testing.assert_array_equal(seen[0][-len(soft) :], soft.astype(np.float32))
    assert seen[0].sum(1)[-len(soft) :] == pytest.approx(1.1)  # MRKLD's weight
    assert ((soft > 0.04).sum(1) > 1).any()


def test_labels_of_the_target_never_reach_training(net, tmp_path):
    x, y = TARGET.tensors
    others = {"as they are": TARGET, "permuted": TensorDataset(x, y[torch.randperm(len(y))]), "none": TensorDataset(x)}
    results = {name: adapted(net, tmp_path / name, target=data) for name, data in others.items()}
    first = results["as they are"]
    for name, result in results.items():
        assert torch.equal(weights(first), weights(result)), name
        same = ["selected", "avh", "test_accuracy", "snd", "information_maximisation"]
        assert columns_of(first.rounds, *same) == columns_of(result.rounds, *same), name
    assert results["permuted"].rounds["tp_rate"][1].as_py() < 0.6 < first.rounds["tp_rate"][1].as_py()
    unknown = ["tp_rate", "hard_tp_rate_low", "target_accuracy", "target_mean_class", "target_by_class"]
    assert all(results["none"].rounds[name].null_count == 3 for name in unknown)
    assert any(re.match("target: .*300 .*without labels", words) for words in results["none"].roles)
    assert any("reporting only" in words for words in first.roles)


def test_the_test_never_reaches_training(net, tmp_path):
    results = [adapted(net, tmp_path / str(i), test=test) for i, test in enumerate((TEST, blobs(60, 5), None))]
    for result in results[1:]:
        assert torch.equal(weights(results[0]), weights(result))
        assert columns_of(result.rounds, "selected", "tp_rate") == columns_of(results[0].rounds, "selected", "tp_rate")
    assert results[2].rounds["test_accuracy"].null_count == 3
    assert not (tmp_path / "2" / "test").exists()


def test_pictures_of_the_target_are_no_test_unless_that_is_meant(net, tmp_path):
    some = TensorDataset(*(values[:150] for values in TARGET.tensors))
    for same in (TARGET, some, TensorDataset(TARGET.tensors[0])):
        with pytest.raises(ValueError, match=r"100\.0% .*target.*same_images"):
            adapted(net, tmp_path / "run", test=same)
    assert not (tmp_path / "run").exists()
    result = adapted(net, tmp_path / "run", test=some, same_images=True)
    assert any(re.match(r"test: .*100\.0%", words) for words in result.roles)
    few = TensorDataset(*(values[:3] for values in TEST.tensors))  # all of them, and 1 % of the test
    for roles, named in (
        ({"labeled": some, "test": some, "same_images": True}, "labeled"),
        ({"labeled": few}, "labeled"),
        ({"source": TEST}, "source"),
    ):
        with pytest.raises(ValueError, match=f"test: .*{named}"):
            adapted(net, tmp_path / "other", **roles)


def test_files_are_told_apart_by_what_they_are(tmp_path):
    from PIL import Image

    from hardsight.adaptation.roles import open_roles

    for part in ("source", "target", "test"):
        for k in ("cat", "dog"):
            (tmp_path / part / k).mkdir(parents=True)
            Image.new("L", (4, 4), 40 if part == "source" else 90).save(tmp_path / part / k / "1.png")
    (tmp_path / "linked").symlink_to(tmp_path / "target")
    places = {name: str(tmp_path / name) for name in ("source", "target", "test", "linked")}
    assert open_roles(places["source"], places["target"], places["test"]).names == ["cat", "dog"]
    with pytest.raises(ValueError, match=r"100\.0% .*target"):
        open_roles(places["source"], places["target"], places["linked"])


def test_a_data_set_is_fingerprinted_once_and_not_once_per_sample():
    from hardsight.adaptation.roles import open_roles

    class Plain(torch.utils.data.Dataset):
        """Items of a user's own: neither arrays nor files."""

        def __init__(self, n):
            self.n = n

        def __len__(self):
            return self.n

        def __getitem__(self, index):
            return {"image": torch.full((2,), float(index)), "label": index % 2}

    counted = {"source": 0, "target": 0, "test": 0}
    opened = {name: open_data(Plain(20 + i), split=name) for i, name in enumerate(counted)}
    for name, samples in opened.items():

        def fingerprint(name=name, real=samples.fingerprint):
            counted[name] += 1
            return real()

        samples.fingerprint = fingerprint
    open_roles(opened["source"], opened["target"], opened["test"])
    assert 0 < max(counted.values()) < 10


def killed_at(monkeypatch, name, time):
    """Interrupt at the n-th call of one of the loop's own functions, before it does anything."""
    whole, calls = getattr(loop, name), []

    def function(*args, **options):
        calls.append(name)
        if len(calls) == time:
            raise KeyboardInterrupt
        return whole(*args, **options)

    monkeypatch.setattr(loop, name, function)


KILLS = [
    *(("predict", 1), ("select", 1), ("train", 1), ("train", 2), ("predict", 3), ("select", 2)),
    *(("alarm", 2), ("score", 1), ("picked", 1)),
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return {}


@pytest.mark.parametrize(("name", "time"), KILLS)
def test_killed_anywhere_the_same_call_ends_with_the_same_bits(net, tmp_path, monkeypatch, uninterrupted, name, time):
    if not uninterrupted:
        uninterrupted["result"] = adapted(net, tmp_path / "whole", method="crst")
    whole = uninterrupted["result"]
    with monkeypatch.context() as patch:
        killed_at(patch, name, time)
        with pytest.raises(KeyboardInterrupt):
            adapted(net, tmp_path / "run", method="crst")
    assert not (tmp_path / "run" / "summary.json").exists()
    result = adapted(net, tmp_path / "run", method="crst")
    assert torch.equal(weights(whole), weights(result))
    assert timeless(result.rounds) == timeless(whole.rounds)
    assert (tmp_path / "run" / "summary.json").exists()


def test_killed_inside_a_training_and_inside_a_write_it_goes_on(net, tmp_path, monkeypatch):
    from hardsight.training.loop import Training

    whole = adapted(net, tmp_path / "whole")
    for number, (home, name) in enumerate(((Training, "train_epoch"), (rounds, "write_whole"))):
        made, calls = getattr(home, name), []

        def broken(*args, made=made, calls=calls, name=name):
            calls.append(name)
            if len(calls) == 4:  # the second epoch of the second round; the row of the first
                if name == "write_whole":
                    args[1](args[0].parent / f".{args[0].name}.0123abcd.tmp")  # written, and never renamed
                raise KeyboardInterrupt
            return made(*args)

        with monkeypatch.context() as patch:
            patch.setattr(home, name, broken)
            with pytest.raises(KeyboardInterrupt):
                adapted(net, tmp_path / str(number))
        result = adapted(net, tmp_path / str(number))
        assert torch.equal(weights(whole), weights(result))
        assert timeless(whole.rounds) == timeless(result.rounds)
        assert not list((tmp_path / str(number)).glob(".*.tmp"))


def test_a_finished_run_says_so_and_does_nothing(net, tmp_path, monkeypatch, capsys):
    first = adapted(net, tmp_path / "run")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file()}
    stray = round_folder(tmp_path / "run", 1) / ".selection.parquet.0badf00d.tmp"  # of a kill
    stray.write_bytes(b"half")
    for name in ("train", "predict", "score", "select"):
        monkeypatch.setattr(loop, name, lambda *_, **__: pytest.fail("nothing is left to do"))
    again = adapted(net, tmp_path / "run", progress=True)
    assert not stray.exists()
    assert "all 2 rounds" in capsys.readouterr().out
    assert torch.equal(weights(first), weights(again))
    assert again.outcome == first.outcome
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file()} == files


def test_another_adaptation_is_refused_or_overwritten(net, tmp_path):
    adapted(net, tmp_path / "run")
    for change, what in (
        ({"method": "cbst"}, "method"),
        ({"seed": 1}, r"recipe\.seed, seed"),
        ({"rounds": 3}, "rounds"),
    ):
        with pytest.raises(FileExistsError, match=f"same: {what}"):
            adapted(net, tmp_path / "run", **change)
    result = adapted(net, tmp_path / "run", method="cbst", overwrite=True)
    assert torch.equal(weights(result), weights(adapted(net, tmp_path / "new", method="cbst")))
    with pytest.raises(ValueError, match="device must be"):
        adapted(net, tmp_path / "failed", device="gpu")
    adapted(net, tmp_path / "failed", method="cbst")  # nothing had been computed there: it holds no other adaptation
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="other files"):
        adapted(net, tmp_path / "full", overwrite=True)
    (tmp_path / "run" / "adaptation.json").write_text("{")
    with pytest.raises(RuntimeError, match=r"adaptation\.json is damaged"):
        adapted(net, tmp_path / "run", method="cbst")
    (tmp_path / "run" / "rounds.parquet").write_bytes(b"PAR1")
    with pytest.raises(RuntimeError, match=r"rounds.parquet is damaged"):
        read_rounds(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match=r"no .*rounds\.parquet"):
        read_rounds(tmp_path / "nowhere")
    assert read_rounds(tmp_path / "new").schema.equals(schema())


def digits(split, start, stop, dim=1.0, size=1):
    images, labels = load_digits()
    images = (images[start:stop] * dim).astype(np.uint8).repeat(size, 1).repeat(size, 2)
    return ArraySamples(images, labels[start:stop], split, f"digits {start}–{stop}", list("0123456789"))


@pytest.mark.slow
def test_a_preset_is_trained_on_the_source_first_and_a_training_run_is_taken_as_it_is(tmp_path, monkeypatch, capsys):
    short = Recipe(2, 64, "adamw", lr=0.01, weight_decay=0.05, schedule="constant")
    monkeypatch.setitem(PRESETS, "small-cnn", PRESETS["small-cnn"].__class__("small-cnn", short, "", ""))
    source, target, test = digits("train", 0, 500), digits("dim", 500, 900, 0.6, 2), digits("test", 900, 1100, 0.6)
    options = {"test": test, "rounds": 1, "device": "cpu"}
    first = self_train("small-cnn", source, target, out=tmp_path / "run", **options)
    assert re.search("source: .*500 samples, 10 classes", capsys.readouterr().out)
    recipe = json.loads((tmp_path / "run" / "rounds" / "01" / "training" / "training.json").read_text())["recipe"]
    assert (recipe["lr"], recipe["optimizer"], recipe["epochs"]) == (0.001, "adamw", 1)
    again = self_train(tmp_path / "run" / "source", source, target, out=tmp_path / "again", progress=False, **options)
    assert torch.equal(weights(first), weights(again))
    table = SampleTable.load(tmp_path / "run" / "test")  # of the last network, as an ordinary run
    assert table.accuracy == pytest.approx(first.rounds["test_accuracy"][1].as_py(), abs=1e-9)
    assert table["id"][0] == "test:0"


def test_the_recipe_of_rounds_is_a_gentle_form_of_the_source_models():
    own = PRESETS["cifar-resnet18"].recipe
    found = recipe_for_rounds("cifar-resnet18")
    assert (found.lr, found.schedule, found.loss) == (pytest.approx(own.lr / 10), "constant", "ce")
    assert (found.label_smoothing, found.mixup, found.batch_size, found.crop) == (0, 0, own.batch_size, own.crop)
    assert recipe_for_rounds(nn.Linear(2, 2)).lr == pytest.approx(Recipe().lr / 10)
    assert recipe_for_rounds("cifar-resnet18", "mnist-el") == PRESETS["mnist-el"].recipe
    assert recipe_at(Recipe(epochs=4, lr=1.0, schedule="cosine"), 3, 1, 5).lr == pytest.approx(0.5)
    assert recipe_at(GENTLE, 1, 3, 7).batch_size == 7


def test_classes_are_matched_by_name_whatever_their_order(net, tmp_path):
    def named(data, names, order):
        return ArraySamples(
            data.tensors[0].numpy().reshape(-1, 1, 2), np.argsort(order)[data.tensors[1]], "d", "points", names
        )

    names, order = ["a", "b", "c"], np.array([2, 0, 1])
    flat = nn.Sequential(nn.Flatten(), *net)
    plain = {"source": named(SOURCE, names, [0, 1, 2]), "target": named(TARGET, names, [0, 1, 2])}
    first = adapted(Model(flat, "net", classes=names), tmp_path / "first", test=named(TEST, names, [0, 1, 2]), **plain)
    moved = {"source": named(SOURCE, ["C", "A", "B"], order), "target": named(TARGET, ["b", "c", "a"], [1, 2, 0])}
    second = adapted(
        Model(flat, "net", classes=names), tmp_path / "second", test=named(TEST, names, [0, 1, 2]), **moved
    )
    assert torch.equal(weights(first), weights(second))
    assert timeless(first.rounds) == timeless(second.rounds)
    assert json.loads(second.rounds.schema.metadata[b"classes"]) == names


def test_few_labels_and_a_pool_of_the_same_domain_are_the_same_loop(tmp_path):
    few, pool = blobs(0, 7, n=12), blobs(0, 8)
    few_shot = train(
        nn.Sequential(nn.Linear(2, 3)), few, out=tmp_path / "few", recipe=FEW, device="cpu", progress=False
    )
    net = few_shot.model
    options = {"source": few, "target": pool, "source_portion": 1.0, "rounds": 3, "epochs": 5}
    result = adapted(net, tmp_path / "run", test=blobs(0, 9), **options)
    accuracy = result.rounds["test_accuracy"].to_pylist()
    assert accuracy[0] < accuracy[-1] > 0.98


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": TensorDataset(torch.zeros(0, 2))}, "target: .*empty"),
        ({"target": blobs(0, 1, classes=4)}, "target: .*got 0 to 3"),
        ({"target": blobs(0, 1, classes=2)}, "target: .*got 0 to 1"),
        ({"test": blobs(0, 1, classes=4)}, "test: .*got 0 to 3"),
        ({"labeled": TensorDataset(TEST.tensors[0])}, "labeled: .*class index"),
        ({"source": TensorDataset(SOURCE.tensors[0])}, "source: .*class index"),
        ({"source": blobs(0, 0, classes=4), "target": blobs(0, 1, classes=4), "test": None}, "model: .* got 3"),
        ({"target_portion": 0}, r"target_portion .*\(0, 1\]"),
        ({"target_portion": (0.2, 0.05, 1.5)}, r"target_portion .*\(0, 1\]"),
        ({"source_portion": 1.5}, r"source_portion: .*\(0, 1\]"),
        ({"target_portion": (0.2, 0.1)}, "target_portion .*three"),
        ({"rounds": 0}, "rounds .*got 0"),
        ({"epochs": 1.5}, r"epochs .*got 1\.5"),
        ({"method": "cbts"}, "mean cbst"),
        ({"balance": [0.5, 0.6, 0.1]}, "balance .*3 shares"),
        ({"balance": "equal"}, "balance .*'equal'"),
    ],
)
def test_bad_input_is_a_sentence_before_anything_is_written(net, tmp_path, change, words):
    with pytest.raises(ValueError, match=words):
        adapted(net, tmp_path / "run", **change)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [-1, 7])
def test_labels_without_a_name_are_refused(net, tmp_path, wrong):
    target = named(TARGET, "bca")
    target.labels[5] = wrong
    with pytest.raises(ValueError, match=r"target: labels .*0 to 2"):
        adapted(net, tmp_path / "run", source=named(SOURCE, "abc"), target=target, test=None)


def test_what_no_round_can_begin_with_is_refused(net, tmp_path, monkeypatch):
    with pytest.raises((ValueError, LookupError), match=r"Sequential .*nn\.Linear"):
        adapted(nn.Sequential(nn.ReLU()), tmp_path / "run")
    source, target = digits("train", 0, 50), TensorDataset(torch.rand(20, 1, 8, 8), torch.arange(20) % 10)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(ValueError, match=r"target: .*images .*tensors"):
        adapted(flat, tmp_path / "mixed", source=source, target=target, test=None)
    assert not (tmp_path / "mixed").exists()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="without torchrun"):
        adapted(net, tmp_path / "run")


def test_a_network_at_chance_on_the_source_is_refused_and_teaches_itself_nothing(net, tmp_path):
    torch.manual_seed(0)
    knows_nothing = nn.Sequential(nn.Linear(2, 3))
    with torch.no_grad():
        knows_nothing[0].weight.zero_()
        knows_nothing[0].bias.copy_(torch.tensor([0.0, 9.0, 0.0]))
    with pytest.raises(StateError, match=r"model: .*chance") as error:
        adapted(knows_nothing, tmp_path / "run")
    assert error.traceback  # it keeps every frame alive that it passed; the folder is free all the same
    assert is_free(folder_lock, tmp_path / "run")
    assert not list((tmp_path / "run").rglob("selection*"))
    adapted(net, tmp_path / "trained")


def test_all_predicted_to_one_class_is_said_saved_and_the_end_every_time(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_check_source", lambda *_: None)  # it would end before the first round
    net = nn.Sequential(nn.Linear(2, 3))
    with torch.no_grad():
        net[0].weight.mul_(0.01)
        net[0].bias.copy_(torch.tensor([0.0, 9.0, 0.0]))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"300 .*one class \(1\)"):
            adapted(net, tmp_path / "run")
        [row] = read_rounds(tmp_path / "run").to_pylist()
        assert row["predicted_by_class"] == [0, 300, 0]
        assert row["alarm"].startswith("target: all 300 samples")
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_collapse_in_a_later_round_keeps_the_rounds_before(net, tmp_path, monkeypatch):
    def ruined(*args, **options):
        trained = train(*args, **options)
        trained.model.module[0].bias.data[2] = 1e4
        return trained

    monkeypatch.setattr(loop, "train", ruined)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"one class \(2\)"):
            adapted(net, tmp_path / "run")
        rows = read_rounds(tmp_path / "run").to_pylist()
        assert [row["alarm"] is None for row in rows] == [True, False]


def test_nothing_above_its_threshold_is_said(tmp_path):
    net = nn.Sequential(nn.Linear(2, 3, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(1e6 * torch.tensor([[1.0, 0.0], [-0.5, 0.8], [-0.5, -0.8]]))  # a softmax of 1 throughout
    for _ in range(2):
        with pytest.raises(RuntimeError, match="above its threshold"):
            adapted(net, tmp_path / "run", method="cbst", strict=True)


def test_every_round_says_what_it_promises(net, tmp_path):
    result = adapted(net, tmp_path / "run")
    rows = result.rounds.to_pylist()
    assert [row["round"] for row in rows] == [0, 1, 2]
    chosen = ["selected", "tp_rate", "hard_tp_rate_high", "avh", "avc", "confidence", "norm", "balance_distance"]
    assert all(rows[0][name] is None and rows[1][name] is not None for name in [*chosen, "loss"])
    always = ["target_accuracy_low", "test_by_class", "test_mean_class", "seconds", "predicted_by_class", *VALIDATORS]
    assert all(row[name] is not None for row in rows for name in always)
    assert all(sum(row["predicted_by_class"]) == 300 for row in rows)
    table = read_selection(tmp_path / "run", 1)
    naive = -predict(net, open_data(TARGET), flip=False, device="cpu").at("avh", table["predicted"].to_numpy())
    unchosen = np.array([row["label"] is None for row in table.to_pylist()])
    np.testing.assert_allclose(table["avh"].to_numpy()[unchosen], naive[unchosen], rtol=1e-6)
    thresholds = json.loads(table.schema.metadata[b"select_thresholds"])
    for row in table.to_pylist():
        assert (row["label"] is None) or row["avc"] >= thresholds[row["label"]] - 1e-7
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [one["validator"] for one in summary["picked"]] == list(VALIDATORS)


def named(data, order):
    """A data set of three classes that counts them in another order, and says so."""
    place = {name: k for k, name in enumerate(order)}
    samples = open_data(data)
    samples.labels = np.array([place["abc"[k]] for k in data.tensors[1]])
    samples.classes = list(order)
    return samples


def test_the_scores_of_the_test_count_classes_as_the_rounds_do(net, tmp_path):
    """A network without class names, and a test that counts them otherwise: its accuracy is still the same."""
    roles = named(SOURCE, "abc"), named(TARGET, "bca")
    told = {"rounds": 1, "recipe": GENTLE, "device": "cpu", "progress": False}
    adapted = self_train(net, *roles, test=named(TEST, "cab"), out=tmp_path / "run", **told)
    [*_, last] = adapted.rounds.to_pylist()
    table = SampleTable.load(tmp_path / "run" / "test")
    assert table.accuracy == pytest.approx(last["test_accuracy"])
    assert last["test_accuracy"] > 0.6
