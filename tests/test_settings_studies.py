"""What the studies of domains, long tails, graphs and translation hand to the library, and what they keep."""

import functools

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy import stats

from hardsight import domains as dg
from hardsight.domains import DomainRun
from hardsight.studies import STUDIES, Cell, read_results
from hardsight.studies.declared import domains, graphs, longtail, translation


@pytest.fixture
def cell(tmp_path):
    def make(name, levels, scale="smoke", weights=None, data=None):
        settings = STUDIES[name].scale(scale).settings
        return Cell(levels, 3, settings, data, torch.device("cpu"), weights, tmp_path / "cell", tmp_path / "common")

    return make


@pytest.mark.parametrize("loss", ["ce", "avh"])
def test_pacs_reports_each_selection_and_chooses_the_scale_by_the_training_domains(loss, cell, monkeypatch):
    runs, calls = {}, []

    def fake(network, domains, target, *, loss, **options):
        calls.append((loss, target, options))
        # The larger scale is better on the test domain, the smaller one on the training domains.
        validation, test = (
            ([0.3, 0.2, 0.1], [0.1, 0.2, 0.9]) if loss == "avh:16" else ([0.3, 0.4, 0.2], [0.5, 0.6, 0.7])
        )
        runs[loss] = DomainRun(target, np.array(validation), np.array(test), options["out"])
        return runs[loss]

    fake = functools.wraps(dg.leave_one_out)(fake)
    for module in (domains, dg):
        monkeypatch.setattr(module, "leave_one_out", fake)
    levels = {"network": "small-cnn", "loss": loss, "target": "inverted"}
    rows = STUDIES["pacs"].measure(cell("pacs", levels, weights="imagenet.pt"))
    chosen = runs["avh:8" if loss == "avh" else "ce"]
    assert {row["selection"]: row["accuracy"] for row in rows} == {
        how: chosen.accuracy(how) for how in ("train-domain", "last", "oracle")
    }
    assert [row.get("scale") for row in rows] == [8.0 if loss == "avh" else None] * 3
    assert [name for name, _, _ in calls] == (["avh:8", "avh:16"] if loss == "avh" else ["ce"])
    for _, target, options in calls:
        assert (target, options["seed"], options["weights"]) == ("inverted", 3, "imagenet.pt")
        assert options["recipe"].epochs == 2


def test_domains_of_the_smoke_scale_share_no_sample(cell):
    parts = domains._domains(cell("pacs", {}))
    plain, inverted = parts["plain"].images, 255 - parts["inverted"].images
    assert len(parts) == 4
    assert not {image.tobytes() for image in plain} & {image.tobytes() for image in inverted}


def test_images_of_domains_are_decoded_once_with_their_labels(cell, tmp_path, monkeypatch):
    for shade, domain in ((0, "photo"), (100, "sketch")):
        for label, name in enumerate(("cat", "dog", "owl")):
            folder = tmp_path / "pacs" / domain / name
            folder.mkdir(parents=True)
            for k in range(label + 1):
                Image.new("RGB", (5, 4), (shade, 10 * label, k)).save(folder / f"{k}.png")
    first = domains._domains(cell("pacs", {}, "quick", data=tmp_path))
    monkeypatch.setattr(domains, "decoded", None)
    second = domains._domains(cell("pacs", {}, "quick", data=tmp_path))
    for parts in (first, second):
        assert list(parts) == ["photo", "sketch"]
        for shade, part in ((0, parts["photo"]), (100, parts["sketch"])):
            assert part.images.shape == (6, 96, 96, 3)
            assert part.labels.tolist() == [0, 1, 1, 2, 2, 2]
            assert part.images[:, 0, 0].tolist() == [
                [shade, 10 * y, k] for y, k in zip(part.labels, (0, 0, 1, 0, 1, 2), strict=True)
            ]


# The loss of each method at 3 epochs, of which the last tenth is the third.
LOSSES = {
    "ce": "ce",
    "ce + conservative": "el:0.5",
    "ce + normal": "el:normal",
    "ce + aggressive": "el:aggressive",
    "effective number": "ce:weight=effective",
    "logit adjustment": "ce@adjusted",
    "drw": "ce:drw=2",
    "drw + normal": "el:normal,uniform,drw=2",
    "drw + normal, as released": "el:normal,drw=2,defer=2",
    "ldam-drw": "ce:drw=2@ldam",
    "crt": "ce",
    "crt + normal": "el:normal",
}


@pytest.mark.parametrize("method", LOSSES)
def test_methods_of_long_tails(method, cell, monkeypatch):
    """The loss, the subset of the seed, whose head is trained again, and which counts divide the classes."""
    calls, measured = [], []

    class Predicted:
        rows, probabilities = np.arange(360), np.eye(10)[np.zeros(360, int)]

    def train_cell(cell, data, recipe, **options):
        calls.append((data, recipe))
        return type("Trained", (), {"model": "trained"})

    def retrain(model, data, **options):
        calls.append((data, options))
        return f"{model}, new head"

    monkeypatch.setattr(longtail, "train_cell", train_cell)
    monkeypatch.setattr(longtail, "retrain_head", retrain)
    monkeypatch.setattr(longtail, "predict", lambda model, test, **options: measured.append((model, test)) or Predicted)
    accuracy = STUDIES["cifar10-lt"].measure(cell("cifar10-lt", {"ratio": "10", "method": method}))
    ((data,), recipe), *again = calls
    assert recipe.loss == recipe.replace(loss=LOSSES[method]).loss
    assert recipe.seed == 3
    training, test = longtail.split_data(cell("cifar10-lt", {}))
    assert data.ids == longtail.long_tailed(training, 10, seed=3).ids
    assert data.ids != longtail.long_tailed(training, 10, seed=0).ids
    retrained = method.startswith("crt")
    assert [(other.ids, options["seed"]) for other, options in again] == ([(data.ids, 3)] if retrained else [])
    assert [model for model, _ in measured] == ["trained, new head" if again else "trained"]
    assert measured[0][1].ids == test.ids
    # Everything is taken for class 0, which has 141 training samples; classes 6 to 9 have fewer than 40.
    counts = np.bincount(data.labels)
    assert accuracy["many"] == pytest.approx(
        (test.labels == 0).sum() / np.isin(test.labels, np.flatnonzero(counts > 100)).sum()
    )
    assert accuracy["few"] == 0


def test_the_ratio_of_a_cell_where_reweighting_begins_and_which_cells_share_a_training(cell, tmp_path, monkeypatch):
    images, labels, folders = np.zeros((2000, 2, 2, 3), np.uint8), np.arange(2000) % 10, {}
    arrays = {
        f"{part}_{kind}": values
        for part in ("train", "test")
        for kind, values in (("images", images), ("labels", labels))
    }
    np.savez(tmp_path / "cifar10.npz", **arrays)

    def train_cell(cell, data, recipe, *, out):
        counts = np.bincount(data[0].labels)
        assert (counts[0], counts[-1]) == (200, 200 // int(cell.levels["ratio"]))
        assert recipe.epochs == 40
        folders[tuple(cell.levels.values())] = (out, recipe.loss)
        return type("Trained", (), {"model": None})

    class Predicted:
        rows, probabilities = np.arange(2000), np.ones((2000, 10))

    for name, value in (("train_cell", train_cell), ("retrain_head", None), ("predict", None)):
        monkeypatch.setattr(longtail, name, value or (lambda *args, **options: Predicted))
    levels = [{"ratio": ratio, "method": method} for ratio in ("10", "100") for method in LOSSES]
    for at in levels:
        STUDIES["cifar10-lt"].measure(cell("cifar10-lt", at, "quick", data=tmp_path))
    shared = {at for at in folders if folders[at][0].parent == tmp_path / "common"}
    assert {method for _, method in shared} == {"ce", "crt", "ce + normal", "crt + normal"}
    assert len({folders[at] for at in shared}) == 4  # two per ratio
    assert all(folders[ratio, name] == folders[ratio, f"crt{name[2:]}"] for ratio, name in shared if name[:2] == "ce")
    late = {method: loss for (_, method), (_, loss) in folders.items() if "drw" in method}
    assert all("drw=36" in loss for loss in late.values())  # of 40 epochs, as 180 of 200


def test_what_is_kept_of_a_training_on_graphs_and_where_its_bonus_begins(cell, monkeypatch):
    calls = []

    def train(items, *, loss, seed, **options):
        calls.append((loss, seed, options["most_epochs"]))
        return type("Run", (), {"test": 0.1, "validation": 0.9, "best": 7})

    monkeypatch.setattr(graphs, "train_graphs", train)
    for name, start in (("proteins", 25), ("nci1", 130)):
        losses = STUDIES[name].levels("quick")["loss"]
        assert {loss.partition("defer=")[2] for loss in losses} == {"", str(start)}
        row = STUDIES[name].measure(cell(name, {"loss": losses[1]}))
        assert row == {"accuracy": 0.1, "validation": 0.9, "best": 7.0}
        assert calls[-1] == (losses[1], 3, 3)


def test_bleu_is_measured_on_the_test_sentences_of_the_pair(cell, tmp_path, monkeypatch):
    trained = []
    names = {"train": "train", "val": "val", "test_2016_flickr": "test"}
    folder = tmp_path / "multi30k/data/task1/tok"
    folder.mkdir(parents=True)
    for part, text in names.items():
        for language in ("de", "fr", "en"):
            (folder / f"{part}.lc.norm.tok.{language}").write_text(f"{language} {text}\n")

    class Model:
        history = ({"loss": 2.0}, {"loss": 1.0})

        def bleu(self, pairs):
            return {"fr test": 1.0, "fr val": 2.0}[pairs[0][0]]

    monkeypatch.setattr(
        translation, "train_translation", lambda pairs, **options: trained.append((pairs, options)) or Model()
    )
    row = translation._trained(cell("multi30k", {"pair": "fr-en", "loss": "el:0.5"}, "quick", data=tmp_path))
    assert row == {"bleu": 1.0, "validation": 2.0, "train_loss": 1.0}
    ((pairs, options),) = trained
    assert pairs == [("fr train", "en train")]
    assert (options["loss"], options["seed"], options["averaged"], options["epochs"]) == ("el:0.5", 3, 5, 20)


def measured(frame, levels):
    """The rows of some levels, by seed."""
    for column, level in levels.items():
        frame = frame[frame[column] == level]
    return frame.set_index("seed")


def holm(p):
    """Holm (1979), written out."""
    corrected, least = {}, 0.0
    for place, k in enumerate(sorted(p, key=p.get)):
        corrected[k] = least = max(least, min(1.0, (len(p) - place) * p[k]))
    return corrected


@pytest.mark.parametrize(
    ("name", "measure", "compare"),
    [
        ("pacs", "accuracy", "loss"),
        ("cifar10-lt", "all", "method"),
        ("proteins", "accuracy", "loss"),
        ("nci1", "accuracy", "loss"),
        ("multi30k", "bleu", "loss"),
    ],
)
def test_differences_in_the_committed_rows_are_paired_by_seed_and_corrected_together(name, measure, compare):
    """Against pandas and scipy; the average over domains is a family of its own, and each way to select is."""
    frame = pd.read_csv(f"docs/results/{name}.csv", dtype={"ratio": str})
    if name == "pacs":
        columns = ["network", "loss", "selection", "seed"]
        average = frame.groupby(columns, as_index=False)["accuracy"].mean().assign(target="average")
        frame = pd.concat([frame, average])
    results, families, corrected = read_results(name, f"docs/results/{name}.csv"), {}, {}
    for line in results.lines(measure):
        levels = dict(zip(results.columns, line.levels, strict=True))
        values, base = (measured(frame, at)[measure] for at in (levels, levels | {compare: "ce"}))
        assert (line.n, line.mean, line.sd) == (len(values), pytest.approx(values.mean()), pytest.approx(values.std()))
        if levels[compare] == "ce":
            assert not np.isfinite(line.difference)
            continue
        differences = values - base  # by seed
        test = stats.ttest_1samp(differences, 0)
        low, high = test.confidence_interval()
        assert (line.difference, line.low, line.high) == pytest.approx((differences.mean(), low, high))
        family = (levels.get("target") == "average", levels.get("selection"))
        families.setdefault(family, {})[line.levels] = test.pvalue
        corrected[line.levels] = line.p_holm
    expected = {at: p for family in families.values() for at, p in holm(family).items()}
    assert corrected == pytest.approx(expected)
