"""Leave-one-domain-out: what is trained on, what is held out, and how a network is selected."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import hardsight as hs
from hardsight import domains as dg
from hardsight.data import ArraySamples, View, load_digits
from hardsight.domains import DomainRun, best_option, decoded, leave_one_out, open_domains

RECIPE = hs.Recipe(epochs=2, batch_size=64, optimizer="adamw", lr=0.01)


def digits_by_domain(names=("a", "b", "c")):
    images, labels = load_digits()
    step = len(names)
    return {
        name: ArraySamples(images[k::step][:120], labels[k::step][:120], name, name) for k, name in enumerate(names)
    }


@pytest.fixture
def folder(tmp_path):
    for domain in ("photo", "sketch"):
        for number, name in enumerate(("cat", "dog")):
            (tmp_path / domain / name).mkdir(parents=True)
            for k in range(3):
                Image.new("RGB", (6, 4), (50 * number, 10 * k, 0)).save(tmp_path / domain / name / f"{k}.png")
    return tmp_path


def test_a_folder_of_domains_has_one_numbering_of_classes(folder):
    parts = open_domains(folder)
    assert list(parts) == ["photo", "sketch"]
    assert [list(part.classes) for part in parts.values()] == [["cat", "dog"]] * 2
    assert all(part.labels.tolist() == [0, 0, 0, 1, 1, 1] for part in parts.values())
    pixels = decoded(parts["photo"], 8)
    assert pixels.images.shape == (6, 8, 8, 3)
    assert pixels.images[3, 0, 0].tolist() == [50, 0, 0]
    assert pixels.ids == parts["photo"].ids


def test_classes_are_matched_by_name_not_by_place():
    images, labels = load_digits()
    first = ArraySamples(images[:100], labels[:100] % 2, "a", "a", ["even", "odd"])
    second = ArraySamples(images[100:200], 1 - labels[100:200] % 2, "b", "b", ["odd", "even"])
    parts = open_domains({"a": first, "b": second})
    assert parts["b"].labels.tolist() == (labels[100:200] % 2).tolist()


def test_domains_of_a_column_by_name_and_of_any_values():
    datasets = pytest.importorskip("datasets")
    images, labels = load_digits()[0][:60], np.arange(60) // 3 % 2
    sites = [("lab", "street", "home")[k % 3] for k in range(60)]
    columns = {"image": list(images), "label": labels, "site": sites, "row": range(60)}
    data = datasets.Dataset.from_dict(columns)
    named = data.class_encode_column("site")  # numbers with names
    rows = [5, 7, 3, 4, 0, 2, 9, 14]
    subset = torch.utils.data.Subset(named, rows)
    for whole, column in ((data, "site"), (named, "site"), (data, iter(sites)), (data, data["site"])):
        parts = open_domains(whole, column)
        assert {name: part.ids[:2] for name, part in parts.items()} == {
            name: [f"data:{k}" for k in (first, first + 3)] for first, name in enumerate(("lab", "street", "home"))
        }
    parts = open_domains(hs.open_data(subset, columns=hs.data.Columns(id="row")), "site")
    assert {name: part.ids for name, part in parts.items()} == {
        name: [str(row) for row in rows if sites[row] == name] for name in ("home", "lab", "street")
    }
    view = View(hs.open_data(data), np.array([8, 6, 5, 1, 3, 4]))
    ids = [part.ids for part in open_domains(view, "site").values()]
    assert ids == [["data:8", "data:5"], ["data:6", "data:3"], ["data:1", "data:4"]]
    assert list(open_domains(data, torch.arange(60) % 3)) == ["0", "1", "2"]
    missing = named.cast_column("site", datasets.ClassLabel(names=["lab", "street", "home", "spare"]))
    missing = missing.map(lambda row: {"site": -1 if row["row"] == 7 else row["site"]})
    with pytest.raises(hs.HardsightError, match="sample 7"):
        open_domains(missing, "site")
    with pytest.raises(hs.HardsightError, match="'sit'"):
        open_domains(data, "sit")
    twice = ArraySamples(images, labels, "a", "a", ["even", "even"])
    with pytest.raises(hs.HardsightError, match="repeat"):
        open_domains({"a": twice, "b": twice})


def test_bad_domains_are_refused(folder):
    for file in (folder / "sketch" / "dog").iterdir():
        file.unlink()
    with pytest.raises(hs.HardsightError, match=r"sketch.*dog"):
        open_domains(folder)
    with pytest.raises(hs.HardsightError, match="two"):
        open_domains({"only": "digits"})
    with pytest.raises(hs.HardsightError, match="nowhere"):
        open_domains(folder / "nowhere")
    with pytest.raises(hs.HardsightError, match="1,797"):
        open_domains("digits", ["a", "b"])
    parts = digits_by_domain()
    with pytest.raises(hs.HardsightError, match=r"'d'"):
        leave_one_out("small-cnn", parts, "d", out=folder / "run")
    with pytest.raises(hs.HardsightError, match="validation"):
        leave_one_out("small-cnn", parts, "a", out=folder / "run", validation=0)
    with pytest.raises(hs.HardsightError, match="domains"):
        leave_one_out("small-cnn", parts, "a", without=["b", "c"], out=folder / "run")
    with pytest.raises(hs.HardsightError, match=r"without.*'d'"):
        leave_one_out("small-cnn", parts, "a", without="d", out=folder / "run")
    with pytest.raises(hs.HardsightError, match="target"):
        leave_one_out("small-cnn", parts, ["a"], out=folder / "run")
    single = {name: View(part, np.unique(part.labels, return_index=True)[1]) for name, part in parts.items()}
    with pytest.raises(hs.HardsightError, match="held out"):
        leave_one_out("small-cnn", single, "a", out=folder / "run")
    for seed in (-1, 1.5):
        with pytest.raises(hs.HardsightError, match="seed"):
            leave_one_out("small-cnn", parts, "a", out=folder / "run", seed=seed)
    for data in (folder, ["a"], {"a": "digits", "b": "digits"}):  # not what open_domains returns
        with pytest.raises(hs.HardsightError, match="open_domains"):
            leave_one_out("small-cnn", data, "a", out=folder / "run")


def test_training_sees_neither_the_target_nor_what_is_held_out(tmp_path, monkeypatch):
    parts, calls = digits_by_domain(), []
    original = dg.train

    def spy(model, data, test, **options):
        calls.append((data, test, options))
        return original(model, data, test, **options)

    monkeypatch.setattr(dg, "train", spy)
    run = leave_one_out(
        "small-cnn",
        parts,
        "b",
        out=tmp_path / "run",
        recipe=RECIPE,
        seed=3,
        validation=0.2,
        progress=False,
        device="cpu",
    )
    (data, test, options), *_ = calls
    trained, tested = set(data.ids), set(test.ids)
    assert not any(id_.startswith("b/") for id_ in trained)
    held_out = {id_.removeprefix("held out/") for id_ in tested if id_.startswith("held out/")}
    assert not held_out & trained
    assert {id_ for id_ in tested if not id_.startswith("held out/")} == {f"b/{id_}" for id_ in parts["b"].ids}
    # A fifth of each class of each domain.
    counts = np.bincount(np.asarray(test.labels)[[id_.startswith("held out/a") for id_ in test.ids]])
    expected = [round(0.2 * n) for n in np.bincount(parts["a"].labels)]
    assert counts.tolist() == expected
    assert options["recipe"].seed == 3
    # The curves are those of the two parts: together they are the history's accuracy.
    share = len(held_out) / len(test)
    history = [row["test_accuracy"] for row in original("small-cnn", data, test, **options).history]
    np.testing.assert_allclose(share * run.validation + (1 - share) * run.test, history, atol=1e-6)


def test_what_is_held_out_follows_the_seed_and_leaves_a_sample_of_every_class(tmp_path, monkeypatch):
    images, labels = load_digits()[0], np.array([0] * 10 + [1] * 2 + [2])
    parts = {name: ArraySamples(images[: len(labels)], labels, name, name) for name in "ab"}
    trained_on = []

    def spy(model, data, test, **options):
        trained_on.append(set(data.ids))
        counts.append(np.bincount(data.labels).tolist())
        assert (options["loss"], options["weights"]) == ("avh:8", "pretrained.pt")
        raise RuntimeError("seen enough")

    monkeypatch.setattr(dg, "train", spy)
    counts, options = [], {"loss": "avh:8", "weights": "pretrained.pt", "out": tmp_path / "run"}
    for share, seed in ((0.5, 0), (0.5, 0), (0.5, 1), (0.01, 0)):
        with pytest.raises(RuntimeError, match="seen enough"):
            leave_one_out("small-cnn", parts, "a", validation=share, seed=seed, **options)
    assert trained_on[0] == trained_on[1] != trained_on[2]
    assert counts == [[5, 1, 1]] * 3 + [[9, 1, 1]]  # at least one of a class is held out, and never all


def test_a_run_without_a_domain_knows_the_names_of_the_classes(folder):
    recipe = hs.Recipe(epochs=1, batch_size=2)
    options = {"recipe": recipe, "validation": 0.4, "device": "cpu", "progress": False}
    run = leave_one_out("small-cnn", open_domains(folder), "sketch", out=folder / "run", **options)
    assert hs.Dynamics(run.path / "test").meta.class_names == ["cat", "dog"]


def test_a_domain_may_be_called_as_what_is_held_out(tmp_path):
    """Its samples are tested on; they must not count among those that select the epoch."""
    parts = digits_by_domain()
    renamed = {{"c": "held out"}.get(name, name): part for name, part in parts.items()}
    options = {"recipe": RECIPE, "device": "cpu", "progress": False}
    first = leave_one_out("small-cnn", parts, "c", out=tmp_path / "1", **options)
    second = leave_one_out("small-cnn", renamed, "held out", out=tmp_path / "2", **options)
    np.testing.assert_array_equal(first.validation, second.validation)
    np.testing.assert_array_equal(first.test, second.test)


def test_selection():
    run = DomainRun("sketch", np.array([0.5, 0.9, 0.9, 0.7]), np.array([0.1, 0.2, 0.4, 0.3]), None)
    assert [run.epoch(how) for how in ("train-domain", "last", "oracle")] == [2, 4, 3]
    assert [run.accuracy(how) for how in ("train-domain", "last", "oracle")] == [0.2, 0.3, 0.4]
    with pytest.raises(hs.HardsightError, match="selection"):
        run.accuracy("best")


@pytest.mark.parametrize("selection", ["train-domain", "leave-one-domain-out"])
def test_options_are_chosen_without_the_test_domain(monkeypatch, tmp_path, selection):
    """The option that is best on the test domain is the worst elsewhere, so it must not be chosen."""

    def fake(model, domains, target, *, out, without=(), loss):
        good = loss == "good"
        assert out not in folders
        folders.append(out)
        if target == "c":
            validation = np.array([0.9, 0.1]) if good else np.array([0.2, 0.3])
            return DomainRun(target, validation, np.array([0.1, 0.1]) if good else np.array([0.9, 0.99]), out)
        assert without == ["c"]
        # In the epoch that its own validation selects, the second; the other one would turn the order round.
        return DomainRun(target, np.array([0.4, 0.5]), np.array([0.2, 0.5] if good else [0.9, 0.3]), out)

    folders = []
    monkeypatch.setattr(dg, "leave_one_out", fake)
    options = {"x": {"loss": "bad"}, "y": {"loss": "good"}}
    name, run = best_option("small-cnn", digits_by_domain(), "c", options, out=tmp_path, selection=selection)
    assert name == "y"
    assert run.target == "c"
    assert run.accuracy() == 0.1


def test_bad_options_and_images_are_one_sentence(folder, tmp_path):
    parts = digits_by_domain()
    for options, named in (
        ({}, "options"),
        (["x"], "options"),
        ({"x": "avh:8"}, "options"),
        ({"../x": {"loss": "ce"}}, "name"),
        ({"..": {"loss": "ce"}}, "name"),
        ({8: {"loss": "avh:8"}}, "name"),
        ({"x": {"los": "ce"}}, "loss"),
        ({"x": {"recipe": RECIPE}}, "recipe"),
    ):
        with pytest.raises(hs.HardsightError, match=named):
            best_option("small-cnn", parts, "a", options, out=tmp_path / "none", recipe=RECIPE)
    for target, settings, named in (("z", {}, "target"), ("a", {"los": "ce"}, "loss")):
        with pytest.raises(hs.HardsightError, match=named):
            best_option("small-cnn", parts, target, {"x": {}}, out=tmp_path / "none", **settings)
    assert not (tmp_path / "none").exists()
    for column in ("site", 3, {"a": 1}, np.zeros((1797, 2))):
        with pytest.raises(hs.HardsightError, match="column"):
            open_domains("digits", column)
    for data in (None, 3, ["a", "b"]):
        with pytest.raises(hs.HardsightError, match="folder"):
            open_domains(data)
    for missing in (None, "", float("nan"), pd.NA, pd.NaT):
        with pytest.raises(hs.HardsightError, match="sample 1"):
            open_domains("digits", ["a", missing] + ["b"] * 1795)
    (folder / "photo" / "cat" / "1.png").write_bytes(b"no image")
    with pytest.raises(hs.HardsightError, match=r"cat/1\.png"):
        decoded(open_domains(folder)["photo"], 8)
    for size in (0, 10**9):
        with pytest.raises(hs.HardsightError, match="size"):
            decoded(parts["a"], size)
    (tmp_path / "flat" / "cat").mkdir(parents=True)  # a folder of classes, not of domains
    Image.new("RGB", (6, 4)).save(tmp_path / "flat" / "cat" / "1.png")
    with pytest.raises(hs.HardsightError, match="per class"):
        open_domains(tmp_path / "flat")


def test_images_and_labels_of_the_target_change_no_weight_and_no_selection(tmp_path):
    parts, runs = digits_by_domain(), []
    turned = parts | {"b": ArraySamples(255 - parts["b"].images, (parts["b"].labels + 1) % 10, "b", "b")}
    for number, domains in enumerate((parts, turned)):
        run = leave_one_out(
            "small-cnn", domains, "b", out=tmp_path / str(number), recipe=RECIPE, device="cpu", progress=False
        )
        weights = torch.load(run.path / "checkpoint.pt", weights_only=True)["model"]
        runs.append((run, weights))
    (first, weights), (second, others) = runs
    assert all(torch.equal(weight, others[name]) for name, weight in weights.items())
    np.testing.assert_array_equal(first.validation, second.validation)
    assert first.epoch() == second.epoch()
    assert not np.array_equal(first.test, second.test)
