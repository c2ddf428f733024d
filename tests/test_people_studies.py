"""Studies of agreement with people: what they read of a network, against the same computed by hand."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

import hardsight as hs
from hardsight.errors import InputError, MissingPathError
from hardsight.models import backbone
from hardsight.studies import STUDIES, study
from hardsight.studies.declared import people_backbones, people_training
from hardsight.studies.declared.people import agreement_rows, human_frequency
from hardsight.studies.declared.training import split_digits

NETWORK = "timm:test_resnet"


def test_agreement_is_positive_where_people_choose_the_label_of_easy_samples_more_often():
    frequency = np.random.default_rng(0).random(50)
    columns = {
        "confidence": frequency,
        "avh": -frequency,
        "soft_margin_late": -frequency,
        "confidence@cosine": -frequency,
    }
    found = {row["score"]: row for row in agreement_rows(columns, frequency)}
    for name, value in (("confidence", 1), ("avh", 1), ("soft_margin_late", 1), ("confidence@cosine", -1)):
        assert [found[name][key] for key in ("spearman", "pearson", "kendall")] == pytest.approx([value] * 3)
    half = np.arange(50) < 20
    some = agreement_rows({"avh": np.where(half, -frequency, frequency)}, frequency, half)
    assert (some[0]["spearman"], some[0]["n"]) == (pytest.approx(1), 20)


@pytest.mark.parametrize("training", ["ce", "avh", "crops + cosface + ema"])
def test_scores_of_a_training_are_those_of_its_network_on_each_image(training, tmp_path, monkeypatch):
    kept = {}

    def keep_network(*args, **options):
        kept["trained"] = train_cell(*args, **options)
        return kept["trained"]

    def keep_columns(columns, frequency):
        kept.update(columns=columns, frequency=frequency)
        return agreement_rows(columns, frequency)

    train_cell = people_training.train_cell
    monkeypatch.setattr(people_training, "train_cell", keep_network)
    monkeypatch.setattr(people_training, "agreement_rows", keep_columns)
    where = {"training": training}
    monkeypatch.setitem(STUDIES["people-recipes"].scales["smoke"].levels, "training", (training,))
    results = study("people-recipes", scale="smoke", where=where, out=tmp_path, device="cpu", progress=False)
    _, test = split_digits()
    images, labels = torch.tensor(test.images)[:, None].float() / 255, torch.tensor(test.labels).long()
    network = kept["trained"].model.module.eval()
    with torch.no_grad(), hs.capture(network) as head:
        logits = network(images)
    rows = torch.arange(len(labels))
    confidence = logits.softmax(1)[rows, labels].numpy()
    np.testing.assert_allclose(kept["columns"]["confidence"], confidence, atol=2e-5)
    avh = hs.avh(head.features, head.weight, labels).detach().numpy()
    np.testing.assert_allclose(kept["columns"]["avh"], avh, atol=2e-5)
    cosines = torch.nn.functional.cosine_similarity(head.features[:, None], head.weight[None], dim=2)
    at_cosine = (16 * cosines).softmax(1)[rows, labels].detach().numpy()
    np.testing.assert_allclose(kept["columns"]["confidence@cosine"], at_cosine, atol=2e-5)
    (first, *scores) = results.rows
    assert first["accuracy"] == pytest.approx((logits.argmax(1) == labels).double().mean().item())
    expected = stats.spearmanr(-avh, kept["frequency"]).statistic
    assert next(row["spearman"] for row in scores if row["score"] == "avh") == pytest.approx(expected, abs=5e-3)


def without_head(state):
    return {key: value for key, value in state.items() if key not in ("fc.weight", "fc.bias")}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Random weights as files: with the head of their library, and without one."""
    timm = pytest.importorskip("timm")
    folder = tmp_path_factory.mktemp("weights")
    for seed in (0, 1):
        torch.manual_seed(seed)
        network = timm.create_model(NETWORK.removeprefix("timm:"), pretrained=False)
        for parameter in network.parameters():  # far from what a new network starts with
            parameter.data.add_(0.05 * torch.randn_like(parameter))
        state = network.state_dict()
        torch.save(state, folder / f"whole-{seed}.pt")
        torch.save(without_head(state), folder / f"headless-{seed}.pt")
    return folder


def features_by_hand(file, images):
    """Features of timm's network by timm's functions."""
    import timm

    network = timm.create_model(NETWORK.removeprefix("timm:"), pretrained=False, num_classes=0)
    state = torch.load(file, weights_only=True)
    network.load_state_dict(without_head(state))
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network), is_training=False)
    batch = torch.stack([transform(Image.fromarray(image).convert("RGB")) for image in images])
    with torch.no_grad():
        return network.eval()(batch)


def run(out, weights, **options):
    options = {"scale": "smoke", "seeds": 1, "network": NETWORK, "out": out, "device": "cpu", **options}
    return study("people-backbone", weights=weights, progress=False, **options)


def test_a_user_s_backbone_is_aligned_by_heads_on_its_own_features(weights, tmp_path):
    results = run(tmp_path, weights / "whole-0.pt")
    assert results.finished == 2
    assert {row["network"] for row in results.rows} == {NETWORK}
    assert {row["weights"] for row in results.rows} == {"whole-0.pt"}
    _, test = split_digits()
    images, labels = test.images[:150], test.labels[:150]
    x = features_by_hand(weights / "whole-0.pt", images)
    frequency = human_frequency(smoke_cell(), labels)
    table = hs.score_features(x, labels=torch.tensor(labels).long(), folds=5, seed=0)
    order = [int(id_.split(":")[1]) for id_ in table["id"]]
    rows = {(row["head"], row["score"]): row for row in results.rows}
    assert rows["folds", ""]["accuracy"] == pytest.approx(table.accuracy, abs=0.02)
    assert rows["folds", ""]["n"] == 150
    for score in ("avh", "soft_margin"):
        expected = stats.spearmanr(-table[score], frequency[order]).statistic
        assert rows["folds", score]["spearman"] == pytest.approx(expected, abs=0.03), score
    assert rows["probe", ""]["accuracy"] > 0.3  # features of random weights tell digits apart somewhat
    expected = stats.spearmanr(x.norm(dim=1), frequency).statistic
    for head in ("folds", "probe"):  # the features are the same whatever the head
        assert rows[head, "norm"]["spearman"] == pytest.approx(expected, abs=5e-3)


def smoke_cell():
    from types import SimpleNamespace

    return SimpleNamespace(settings=STUDIES["people-backbone"].scales["smoke"].settings)


def test_weights_decide_the_cells_and_a_head_in_the_file_does_not(weights, tmp_path):
    where = "head=probe"
    whole, headless, other = (
        run(tmp_path, weights / f"{name}.pt", where=where).rows for name in ("whole-0", "headless-0", "whole-1")
    )
    numbers = [[row.get("spearman") for row in rows] for rows in (whole, headless, other)]
    assert numbers[0] == numbers[1] != numbers[2]
    cells = list((tmp_path / "people-backbone-smoke" / "cells").glob("*.json"))
    assert len(cells) == 3
    before = {cell: cell.stat().st_mtime_ns for cell in cells}
    run(tmp_path, weights / "whole-0.pt", where=where)
    assert {cell: cell.stat().st_mtime_ns for cell in cells} == before
    first, second = (
        [
            row.get("spearman")
            for row in run(tmp_path, weights / "whole-0.pt", where=where, seeds=2).rows
            if row["seed"] == k
        ]
        for k in range(2)
    )
    assert first == numbers[0] != second  # another seed draws other training images
    run(tmp_path, None, where=where, network=None)  # a network with new weights, to try it
    assert len(list((tmp_path / "people-backbone-smoke" / "cells").glob("*.json"))) == 5
    assert json.loads(cells[0].read_text())["rows"][0]["network"] == NETWORK


def test_answers_belong_to_the_first_images_where_a_scale_takes_no_more(tmp_path):
    draw = np.random.default_rng(0)
    images = {part: draw.integers(0, 256, (n, 32, 32, 3), np.uint8) for part, n in (("train", 300), ("test", 2100))}
    labels = {part: np.arange(len(of)) % 3 for part, of in images.items()}
    arrays = {f"{part}_images": of for part, of in images.items()} | {f"{part}_labels": labels[part] for part in labels}
    counts = draw.integers(1, 30, (2100, 3))
    np.savez(tmp_path / "cifar10.npz", **arrays)
    np.savez(tmp_path / "cifar10h.npz", counts=counts)
    torch.manual_seed(0)
    network = hs.networks.build_network("strided-cnn", 3)
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    options = {"scale": "quick", "network": "hardsight:strided-cnn", "data": tmp_path, "where": "head=probe"}
    rows = run(tmp_path / "out", tmp_path / "weights.pt", **options).rows
    with torch.no_grad(), hs.capture(network.eval()) as head:
        network(torch.tensor(images["test"][:2000]).permute(0, 3, 1, 2).float() / 255)
    share = counts[np.arange(2000), labels["test"][:2000]] / counts[:2000].sum(1)
    expected = stats.spearmanr(head.features.norm(dim=1), share).statistic
    found = next(row for row in rows if row["score"] == "norm")
    assert found["n"] == 2000
    assert found["spearman"] == pytest.approx(expected, abs=1e-4)


def test_what_a_backbone_cannot_be_is_one_sentence(weights, tmp_path):
    with pytest.raises(InputError, match="network"):
        study("two-gaussians", scale="smoke", network=NETWORK, out=tmp_path)
    with pytest.raises(MissingPathError, match="weights"):
        run(tmp_path, tmp_path / "none.pt")
    torch.save({"conv1.weight": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(InputError, match="weights"):
        run(tmp_path, tmp_path / "other.pt")
    with pytest.raises(InputError, match="MODEL"):
        run(tmp_path, weights / "whole-0.pt", network="resnet")
    for name in ("cifar10.npz", "cifar10h.npz"):
        np.savez(tmp_path / name, **{f"{part}_{kind}": np.zeros((20, 32, 32, 3) if kind == "images" else 20, np.uint8)
                                     for part in ("train", "test") for kind in ("images", "labels")})  # fmt: skip
    with pytest.raises(InputError, match="network"):
        run(tmp_path, None, network=None, scale="quick", data=tmp_path)


def test_a_backbone_has_the_weights_of_the_file_and_a_new_head(weights):
    model = backbone(NETWORK, 7, weights / "headless-1.pt")
    assert hs.heads.find_head(model.module).classes == 7
    state = torch.load(weights / "whole-1.pt", weights_only=True)
    first = next(iter(state))
    torch.testing.assert_close(model.module.state_dict()[first], state[first])
    assert "headless-1.pt" in model.weights
    assert people_backbones.FOLDS == 5
