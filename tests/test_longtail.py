"""Long-tailed subsets, accuracy by frequency, and the retrained head."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import hardsight as hs
from hardsight.data import ArraySamples, load_digits, open_data
from hardsight.longtail import accuracy_by_frequency, long_tailed, long_tailed_counts, retrain_head


@pytest.mark.parametrize("ratio", [1, 10, 20, 50, 100, 200])
def test_counts_are_those_of_the_long_tailed_cifar(ratio):
    counts = long_tailed_counts([5000] * 10, ratio)
    assert counts.tolist() == [int(5000 * (1 / ratio) ** (k / 9)) for k in range(10)]
    assert (
        long_tailed_counts([9000, 5000, *[7000] * 8], ratio).tolist() == counts.tolist()
    )  # the smallest class decides
    step = long_tailed_counts([5000] * 10, ratio, "step")
    assert step.tolist() == [5000] * 5 + [5000 // ratio] * 5
    hundred = long_tailed_counts([500] * 100, ratio)  # CIFAR-100
    assert hundred.tolist() == [int(500 * (1 / ratio) ** (k / 99)) for k in range(100)]


@pytest.mark.parametrize("ratio", [3, 49, 98, 107, 196])
def test_the_rarest_class_keeps_exactly_its_share(ratio):
    """Where the reciprocal of the ratio is rounded down, too."""
    assert long_tailed_counts([5 * ratio] * 3, ratio)[-1] == 5
    assert long_tailed_counts([ratio] * 4, ratio, "step").tolist() == [ratio, ratio, 1, 1]


def test_a_subset_keeps_ids_and_labels_and_follows_the_seed():
    whole = open_data("digits")
    subsets = [long_tailed("digits", 10, seed=seed) for seed in (0, 0, 1)]
    assert subsets[0].ids == subsets[1].ids != subsets[2].ids
    kept = set(subsets[0].ids)
    assert subsets[0].ids == [id_ for id_ in whole.ids if id_ in kept]  # in the order of the data
    labels = dict(zip(whole.ids, whole.labels.tolist(), strict=True))
    assert [labels[id_] for id_ in subsets[0].ids] == subsets[0].labels.tolist()
    assert np.bincount(subsets[2].labels).tolist() == np.bincount(subsets[0].labels).tolist()
    assert len({subset.fingerprint() for subset in subsets}) == 2
    images, labels = load_digits()
    unlisted = [(image, int(label)) for image, label in zip(images, labels, strict=True)]
    assert open_data(unlisted).labels is None
    assert long_tailed(unlisted, 10).labels.tolist() == subsets[0].labels.tolist()


def test_a_ratio_that_empties_a_class_is_refused():
    with pytest.raises(hs.HardsightError, match=r"ratio.*class"):
        long_tailed("digits", 1000)
    for ratio in (0.5, float("nan")):
        with pytest.raises(hs.HardsightError, match="ratio"):
            long_tailed("digits", ratio)
    with pytest.raises(hs.HardsightError, match="kind"):
        long_tailed("digits", 10, kind="linear")


def test_accuracy_by_frequency_counts_training_samples():
    counts = [101, 100, 20, 19]
    label = np.array([0, 0, 1, 1, 1, 2, 2, 3, 3, 3])
    pred = np.array([0, 1, 1, 1, 1, 0, 0, 3, 3, 0])
    assert accuracy_by_frequency(pred, label, counts) == {  # over samples, not over classes
        "all": pytest.approx(6 / 10),
        "many": 0.5,
        "medium": pytest.approx(3 / 5),
        "few": pytest.approx(2 / 3),
    }
    assert np.isnan(accuracy_by_frequency(pred[:2], label[:2], counts)["few"])


def test_a_retrained_head_helps_rare_classes_and_leaves_the_network_alone(tmp_path):
    images, labels = load_digits()
    test = np.arange(len(labels)) % 5 == 0
    data = long_tailed(ArraySamples(images[~test], labels[~test], "train", "digits"), 40)
    recipe = hs.Recipe(epochs=3, batch_size=32, optimizer="adamw", lr=0.01, schedule="one-cycle", warmup=1)
    trained = hs.train("small-cnn", data, out=tmp_path / "run", recipe=recipe, record=(), device="cpu", progress=False)
    before = {name: value.clone() for name, value in trained.model.module.state_dict().items()}
    model = retrain_head(trained.model, data, device="cpu", batch_size=64, seed=1)
    changed = [name for name, value in model.module.state_dict().items() if not torch.equal(value, before[name])]
    assert all(torch.equal(value, before[name]) for name, value in trained.model.module.state_dict().items())
    assert len({name.rpartition(".")[0] for name in changed}) == 1  # the head alone
    samples = ArraySamples(images[test], labels[test], "test", "digits")
    rare = labels[test] >= 7
    accuracy = [
        (hs.score(one, samples, device="cpu").to_pandas()["pred"].to_numpy() == labels[test])[rare].mean()
        for one in (trained.model, model)
    ]
    assert accuracy[1] > accuracy[0] + 0.05


def test_a_retrained_head_sees_every_class_equally_often(monkeypatch):
    images, labels = load_digits()
    data, drawn = long_tailed(ArraySamples(images, labels, "train", "digits"), 40), []
    original = torch.multinomial

    def spy(weights, *args, **options):
        drawn.append(np.bincount(data.labels, weights.numpy()))
        return original(weights, *args, **options)

    monkeypatch.setattr(torch, "multinomial", spy)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    torch.nn.init.constant_(network[1].bias, 50)  # of the old head, so that it would be seen in the new one
    retrained = retrain_head(network, data, epochs=1, device="cpu")
    np.testing.assert_allclose(drawn[0], drawn[0][0])
    assert retrained.module[1].bias.abs().max() < 25


def test_a_retrained_head_is_the_written_out_training(monkeypatch, tmp_path):
    """SGD with momentum and weight decay along a cosine, on the drawn rows; a sample that is no image is left out."""
    images, classes, drawn = load_digits()[0][:61], np.arange(61) % 3, []
    for k, (image, label) in enumerate(zip(images, classes, strict=True)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / str(label) / f"{k:02}.png")
    (tmp_path / "0" / "03.png").write_bytes(b"no image")
    data = open_data(str(tmp_path))
    original = torch.multinomial
    monkeypatch.setattr(
        torch, "multinomial", lambda *args, **options: drawn.append(original(*args, **options)) or drawn[-1]
    )
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    model = hs.Model(network, "linear", lambda image: torch.tensor(np.asarray(image.convert("L"))) / 255)
    options = {"epochs": 4, "batch_size": 16, "lr": 0.3, "momentum": 0.8, "weight_decay": 0.01, "seed": 5}
    with pytest.warns(UserWarning, match="03.png"):
        layer = retrain_head(model, data, device="cpu", **options).module[1]
    kept = [index for index, id_ in enumerate(data.ids) if not id_.endswith("03.png")]
    x = np.stack([np.asarray(data.load(index, 1)[0], float).ravel() / 255 for index in kept])
    y = np.asarray(data.labels)[kept]
    torch.manual_seed(5)
    start = torch.nn.Linear(64, 3)
    w, speed = np.c_[start.weight.detach().double().numpy(), start.bias.detach().double().numpy()], 0.0
    assert len(drawn) == 4 * 60 // 16
    for step, rows in enumerate(drawn):
        inputs, target = np.c_[x[rows.numpy()], np.ones(16)], np.eye(3)[y[rows.numpy()]]
        p = np.exp(inputs @ w.T)
        gradient = (p / p.sum(1, keepdims=True) - target).T @ inputs / 16 + 0.01 * w
        speed = 0.8 * speed + gradient
        w = w - 0.3 * (1 + np.cos(np.pi * step / len(drawn))) / 2 * speed
    np.testing.assert_allclose(np.c_[layer.weight.detach().numpy(), layer.bias.detach().numpy()], w, atol=1e-5)


def test_the_bonus_without_class_weights(tmp_path):
    """``uniform`` leaves the bonus unweighted; the two agree where all weights are equal."""
    logits, target = torch.randn(30, 3, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    losses = {
        (name, counts): hs.build_loss(f"el:normal,{name}weight=effective", counts=torch.tensor(counts))(logits, target)
        for name in ("", "uniform,")
        for counts in ((900, 90, 9), (50, 50, 50))
    }
    assert not torch.isclose(losses["", (900, 90, 9)], losses["uniform,", (900, 90, 9)])
    torch.testing.assert_close(losses["", (50, 50, 50)], losses["uniform,", (50, 50, 50)])
    weight = hs.losses.effective_number_weights([900.0, 90.0, 9.0])
    expected = hs.EncouragingLoss(weight, log_end=1.0, preset="released", weight_bonus=False)(logits, target)
    torch.testing.assert_close(losses["uniform,", (900, 90, 9)], expected)


def test_annotations_of_inaturalist(tmp_path):
    for k in range(3):
        Image.new("RGB", (4, 4), (k, 0, 0)).save(tmp_path / f"{k}.png")
    content = {
        "images": [{"id": 10 + k, "file_name": f"{k}.png"} for k in range(3)],
        "annotations": [{"image_id": 12 - k, "category_id": (7, 5, 7)[k]} for k in range(3)],
        "categories": [{"id": 5, "name": "owl"}, {"id": 7}],
    }
    file = tmp_path / "train2018.json"
    file.write_text(json.dumps(content))
    samples = open_data(str(file))
    assert samples.labels.tolist() == [1, 0, 1]
    assert list(samples.classes) == ["owl", "7"]
    assert np.asarray(samples.load(2, 3)[0])[0, 0, 0] == 2
    for change in ({"annotations": content["annotations"][1:]}, {"images": []}, {"categories": []}):
        file.write_text(json.dumps(content | change))
        with pytest.raises(hs.HardsightError, match="train2018"):
            open_data(str(file))
    file.write_text(json.dumps(content | {"images": [{"id": 10, "file_name": "../secret.png"}]}))
    with pytest.raises(hs.HardsightError, match="train2018"):
        open_data(str(file))
    file.write_text("[1")
    with pytest.raises(hs.HardsightError, match="train2018"):
        open_data(str(file))


def test_bad_numbers_are_one_sentence():
    images, labels = load_digits()
    gap = ArraySamples(images[labels != 3], labels[labels != 3], "train", "digits")
    with pytest.raises(hs.HardsightError, match="class 3"):
        long_tailed(gap, 10)
    for counts in ([], [10, float("nan")], [10, -1], [[10]], [[10], [10, 20]], {"a": 10}):
        with pytest.raises(hs.HardsightError, match="counts"):
            long_tailed_counts(counts, 2)
    for pred, label, options, named in (
        ([0, 1], [0, 3], {}, "label"),
        ([0, 1], [0, -1], {}, "label"),
        ([0, 1, 1], [0, 1], {}, "pred"),
        ([0, 1], ["a", "b"], {}, "label"),
        ([0, 1], [0, 1], {"few": "20"}, "few"),
        ([0, 1], [0, 1], {"many": 10, "few": 50}, "few"),
        ([0, 1], [0, 1], {"many": float("nan")}, "many"),
        ([0, 1], [0.0, 1.0], {}, "class indices"),
        ([], [], {}, "class indices"),
    ):
        with pytest.raises(hs.HardsightError, match=named):
            accuracy_by_frequency(np.array(pred), np.array(label), [100, 50], **options)
    with pytest.raises(hs.HardsightError, match="counts"):
        long_tailed_counts(["a", "b"], 2)
    normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(64, 10))
    with pytest.raises(hs.HardsightError, match="computed"):  # a new weight would be lost
        retrain_head(torch.nn.Sequential(torch.nn.Flatten(), normed), "digits", device="cpu")
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 5))  # the digits have 10 classes
    for options, named in (
        ({}, "labels"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"lr": -1.0}, "lr"),
        ({"momentum": 2}, "momentum"),
        ({"weight_decay": float("nan")}, "weight_decay"),
        ({"seed": 2**70}, "seed"),
    ):
        with pytest.raises(hs.HardsightError, match=named):
            retrain_head(network, "digits", device="cpu", **options)


def test_ldam_with_deferred_weights_is_the_written_out_loss():
    """Cao et al. (2019): margins on the target's cosine, weights of the effective number after the start."""
    counts, generator = [500, 40, 6], torch.Generator().manual_seed(0)
    features, weight = torch.randn(9, 5, generator=generator), torch.randn(3, 5, generator=generator)
    target = torch.arange(9) % 3
    effective = np.array([(1 - 0.9999) / (1 - 0.9999**n) for n in counts])
    effective *= 3 / effective.sum()
    margins = 0.5 * (6 / np.array(counts)) ** 0.25
    x, w = features.double().numpy(), weight.double().numpy()
    cosines = x @ w.T / np.linalg.norm(x, axis=1)[:, None] / np.linalg.norm(w, axis=1)
    loss = hs.build_loss("ce:drw=8@ldam", counts=torch.tensor(counts), epochs=10)
    for epoch, weights in ((7, np.ones(3)), (8, effective)):
        loss.at(epoch)
        total = 0.0
        for row, y in enumerate(target.tolist()):
            logits = 30 * (cosines[row] - margins * (np.arange(3) == y))
            total += weights[y] * (np.log(np.exp(logits).sum()) - logits[y])
        expected = total / weights[target.numpy()].sum()
        assert loss(features @ weight.T, target, features, weight).item() == pytest.approx(expected, rel=1e-5)
