"""Robustness of a network: rows, curves and words; and gradient masking that was built on purpose, called by name."""

import re

import numpy as np
import pytest
import torch
from attacked_networks import Around, answer_of, digits, trained
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

from hardsight.data import View, open_data
from hardsight.models import Model
from hardsight.predictions import predict
from hardsight.questions import ATTACKS, attack, check_masking, pixel_model
from hardsight.scores import SCORES

LEVELS = (0.05, 0.1, 0.3)


@pytest.fixture(scope="module")
def samples():
    return View(open_data("digits"), np.arange(1400, 1600))


@pytest.fixture(scope="module")
def network():
    return trained()


@pytest.fixture(scope="module")
def answer(network, samples):
    return answer_of("robustness", network, samples, eps=LEVELS)


def found(answer, metric="accuracy"):
    return {(row["score"], row["level"]): row for row in answer.rows if row["metric"] == metric}


def said(network, samples, limit=100, **options):
    answer = answer_of("robustness", network, samples, eps=(0.1, 0.3), limit=limit, **options)
    return " ".join(note.text for note in answer.notes)


@pytest.mark.parametrize(
    ("before", "after", "checks"),
    [
        (lambda x: x, lambda z: z * 1e4, ("scale", "flat ce", "large ε", "noise")),
        (lambda x: (x * 4).round() / 4, lambda z: z, ("flat margin", "large ε", "noise")),
        (lambda x: (x > 0.5).float(), lambda z: z, ("flat margin", "large ε", "noise")),
        (lambda x: x + 0.2 * torch.randn_like(x), lambda z: z, ("randomness",)),
        (lambda x: x, lambda z: torch.sigmoid(30 * z), ("flat margin", "large ε")),
    ],
    ids=["large logits", "staircase", "threshold", "random", "saturated"],
)
def test_gradient_masking_is_caught_by_name(network, samples, before, after, checks):
    words = said(Around(network, before, after), samples)
    for check in checks:
        assert f"gradient masking ({check})" in words
    assert "No sign" not in words


def test_a_saturated_hidden_layer_is_caught_by_name(samples):
    network = trained(activation=nn.Sigmoid)
    assert "No sign of" in said(network, samples)
    for values in (network[1].weight, network[1].bias):
        values.data *= 3000
    assert "(flat margin)" in said(network, samples)


@pytest.mark.parametrize("hidden", [0, 48])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_healthy_networks_are_not_accused(samples, hidden, seed):
    words = said(trained(seed, hidden, epochs=4 + 4 * seed), samples, attacks=("fgsm", "pgd", "pgd-dlr", "pgd-l2"))
    assert "gradient masking (" not in words
    assert "No sign of" in words


def test_large_logits_do_not_change_what_the_worst_attack_leaves(network, samples, answer):
    masked = found(answer_of("robustness", Around(network, after=lambda z: z * 1e4), samples, eps=LEVELS))
    healthy = found(answer)
    for eps in LEVELS:
        assert masked["pgd", eps]["value"] > healthy["clean", 0.0]["value"] - 0.02
        assert masked["worst", eps]["value"] == pytest.approx(healthy["worst", eps]["value"], abs=0.05)


def test_a_network_that_always_says_the_same_is_said_to_be_that(samples):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    network[1].weight.data.zero_()
    network[1].bias.data[3] = 1.0
    words = said(network, samples)
    assert "predicts class 3" in words
    assert "masking" not in words


def test_accuracy_above_clean_as_in_the_released_log_is_caught():
    # PGD-L2 on a network trained with the Encouraging Loss: 85.59 % clean, 98.31 % and 91.85 % under attack.
    right = np.arange(10_000)
    left = {"pgd-l2": {0.3: right < 9831, 3.0: right < 9185}}
    verdicts = check_masking(right < 8559, left, reached={"pgd-l2": {100.0: right < 9185}})
    failed = {verdict.name: verdict.sentence for verdict in verdicts if not verdict.passed}
    assert set(failed) == {"above clean", "large ε"}
    assert re.search(r"98\.3% .*pgd-l2 .*0\.3 .*85\.6%", failed["above clean"])
    assert all(sentence.startswith("gradient masking") for sentence in failed.values())


def test_what_chance_may_do_is_no_masking():
    generator = np.random.default_rng(0)
    clean = generator.random(200) < 0.9
    left = {name: {0.1: clean & (generator.random(200) < 0.6)} for name in ("fgsm", "pgd", "pgd-margin", "noise")}
    assert all(verdict.passed for verdict in check_masking(clean, left))
    with pytest.raises(ValueError, match=r"clean must hold"):
        check_masking(np.array([]), {})


@pytest.mark.parametrize(("gained", "lost", "passed"), [(4, 0, True), (9, 0, True), (10, 0, False), (16, 6, True)])
def test_a_few_samples_more_are_no_masking_until_chance_is_ruled_out(gained, lost, passed):
    # One-sided McNemar at .001: ½⁹ is above it, ½¹⁰ below.
    rows = np.arange(60)
    weak = rows < 20
    strong = (weak & (rows >= lost)) | ((rows >= 20) & (rows < 20 + gained))
    verdicts = {one.name: one for one in check_masking(rows < 50, {"fgsm": {0.1: weak}, "pgd": {0.1: strong}})}
    assert strong.mean() - weak.mean() > 0.05
    assert verdicts["stronger attacks"].passed is passed
    ends = {"pgd": {0.1: (rows < 50) | (rows >= 60 - gained)}}
    if gained < 11:
        verdicts = {one.name: one for one in check_masking(rows < 50, {"pgd": {0.1: weak}}, ends=ends)}
        assert verdicts["above clean"].passed is passed


@pytest.mark.parametrize(("weak", "strong", "name"), [("fgsm", "pgd", "stronger attacks"), ("noise", "pgd", "noise")])
def test_a_stronger_attack_must_not_do_worse(weak, strong, name):
    rows = np.arange(300)
    left = {weak: {0.1: rows < 100}, strong: {0.1: rows < 140}}
    verdicts = {verdict.name: verdict for verdict in check_masking(rows < 280, left)}
    assert not verdicts[name].passed
    assert "46.7%" in verdicts[name].sentence
    assert sum(not verdict.passed for verdict in verdicts.values()) == 1


def test_accuracy_is_what_attacks_leave_with_wilsons_interval(network, samples, answer):
    x, y = digits()
    x, y = x[1400:1600], y[1400:1600]
    x = (x * 16).round() * 15.9375 / 255  # as 8-bit pictures
    rows = found(answer)
    for name in ("fgsm", "pgd", "pgd-margin"):
        fallen = network(x).argmax(1) != y
        for eps in LEVELS:
            fallen |= attack(network, x, y, name, eps=eps).logits.argmax(1) != y
            told = rows[name, eps]
            assert told["value"] == pytest.approx(float((~fallen).float().mean()), abs=0.011)
            right = round(told["value"] * told["n"])
            low, high = stats.binomtest(right, told["n"]).proportion_ci(method="wilson")
            assert (told["low"], told["high"]) == pytest.approx((low, high))
            assert told["better"] == "higher"
    assert rows["noise", 0.1]["better"] == ""


def test_curves_fall_and_the_worst_is_below_all(answer):
    rows = found(answer)
    for name in ("fgsm", "pgd", "pgd-margin", "noise", "worst"):
        curve = [rows["clean", 0.0]["value"], *(rows[name, eps]["value"] for eps in LEVELS)]
        assert curve == sorted(curve, reverse=True)
        assert all(rows["worst", eps]["value"] <= rows[name, eps]["value"] for eps in LEVELS)
        drawn = [(p["x"], p["y"]) for p in answer.points if p["curve"] == "attack" and p["score"] == name]
        assert drawn == list(zip((0.0, *LEVELS), curve, strict=True))
    assert {score for score, level in found(answer, "sanity") if level == 1.0} == {"pgd", "pgd-margin"}
    assert all(row["value"] == 0 for row in found(answer, "sanity").values())


def test_every_mean_has_its_column(answer):
    for row in answer.rows:
        if row["metric"] in ("accuracy", "avh", "norm", "confidence"):
            column = answer.samples[f"{row['metric']}:{row['score']}@{row['level']:g}"]
            assert len(column) == 200
            assert column.mean() == pytest.approx(row["value"])


def test_bins_of_hardness_hold_equally_many_and_make_up_the_whole(answer):
    whole = found(answer)
    bins = [found(answer, f"accuracy_bin{i}") for i in (1, 2, 3, 4)]
    for key in (("clean", 0.0), *(("worst", eps) for eps in LEVELS)):
        assert [one[key]["n"] for one in bins] == [50] * 4
        assert np.mean([one[key]["value"] for one in bins]) == pytest.approx(whole[key]["value"])
    easiest, *_, hardest = (one["worst", 0.1]["value"] for one in bins)
    assert easiest > hardest
    points = [point for point in answer.points if point["curve"] == "hardness" and point["score"] == "clean"]
    assert [p["x"] for p in points] == sorted(p["x"] for p in points)


def test_avh_norm_and_confidence_are_those_of_clean_and_attacked_pictures(network, samples, answer):
    predictions, labels = predict(network, samples), np.asarray(samples.labels)
    assert answer.samples["avh:clean@0"] == pytest.approx(-predictions.at("avh", labels), abs=1e-5)
    assert answer.samples["norm:clean@0"] == pytest.approx(predictions.norms, rel=1e-5)
    own = predictions.probabilities[np.arange(200), labels]
    assert answer.samples["confidence:clean@0"] == pytest.approx(own, abs=1e-5)
    pixels = samples.tensor().float() / 255
    attacked = attack(network, pixels, torch.from_numpy(labels), "pgd-margin", eps=0.3).x
    features = network[:-1](attacked)
    avh = SCORES["avh"](features, network[-1].weight, torch.from_numpy(labels)).detach()
    assert answer.samples["avh:pgd-margin@0.3"] == pytest.approx(avh.numpy(), abs=1e-3)
    assert found(answer, "avh")["pgd-margin", 0.3]["value"] > found(answer, "avh")["clean", 0.0]["value"]
    assert any("AVH paper" in note.text for note in answer.notes)


def test_a_trajectory_goes_from_right_to_fooled_step_by_step(answer):
    curves = {}
    for p in answer.points:
        if p["curve"] == "trajectory":
            curves.setdefault(p["score"], []).append((p["x"], p["y"], p["n"]))
    assert set(curves) == {f"{name} pgd-margin" for name in ("avh", "norm", "confidence", "fooled")}
    assert [x for x, *_ in curves["avh pgd-margin"]] == list(range(21))
    assert curves["fooled pgd-margin"][0] == (0.0, 0.0, 128)
    assert curves["fooled pgd-margin"][-1][1] == 1.0
    assert curves["confidence pgd-margin"][0][1] > curves["confidence pgd-margin"][-1][1]


def test_some_samples_are_drawn_by_the_seed_and_that_is_said(network, samples):
    drawn = [
        answer_of(
            "robustness",
            network,
            samples,
            attacks=["fgsm"],
            eps=[0.1],
            limit=60,
            seed=seed,
            batch_size=25,
        )
        for seed in (0, 0, 1)
    ]
    known = [np.isfinite(one.samples["accuracy:fgsm@0.1"]) for one in drawn]
    assert known[0].sum() == 60
    assert (known[0] == known[1]).all()
    assert (known[0] != known[2]).any()
    assert re.search("60 of 200 .*seed 0", drawn[0].notes[0].text)
    np.testing.assert_array_equal(drawn[0].samples["avh:pgd-margin@0.1"], drawn[1].samples["avh:pgd-margin@0.1"])


@pytest.mark.slow
def test_the_batch_size_decides_nothing(network, samples):
    """Random starts, noise and the samples that are followed are those of the samples, not of their batch."""
    names = [name for name in ATTACKS if name != "autoattack"]
    options = {"attacks": names, "eps": [0.08, 0.1], "limit": 150}
    small, large = (answer_of("robustness", network, samples, batch_size=size, **options) for size in (7, 64))
    assert small.samples.keys() == large.samples.keys()
    for name, column in small.samples.items():
        np.testing.assert_allclose(large.samples[name], column, atol=1e-3, err_msg=name)
    for name in (*names, "worst", "worst-l2"):
        np.testing.assert_array_equal(small.samples[f"accuracy:{name}@0.1"], large.samples[f"accuracy:{name}@0.1"])
    assert len(small.points) == len(large.points)
    for a, b in zip(small.points, large.points, strict=True):
        assert (a["curve"], a["score"], a["x"], a["n"]) == (b["curve"], b["score"], pytest.approx(b["x"]), b["n"])
        assert a["y"] == pytest.approx(b["y"], abs=1e-3)


def test_loader_processes_are_as_many_as_were_asked_for(network, samples, monkeypatch):
    from torchvision.transforms import ToTensor

    from hardsight.data import prepared

    asked, loader = [], prepared.DataLoader

    def counted(*args, num_workers, **options):
        asked.append(num_workers)
        return loader(*args, num_workers=0, **options)

    monkeypatch.setattr(prepared, "DataLoader", counted)
    model = Model(network, "net", ToTensor())
    for workers in (3, None):
        answer_of("robustness", model, samples, attacks=["fgsm"], eps=[0.1], limit=4, workers=workers)
    assert asked == [3, 3, 0, 0]  # for the predictions and for the attacks


def test_defaults_are_those_of_the_kind_of_picture_and_the_norm(network, samples):
    rows = found(answer_of("robustness", network, samples, attacks=["pgd-l2"], limit=20))
    assert [level for score, level in rows if score == "worst-l2"] == [0.5, 1.0, 2.0, 3.0]
    assert {score for score, _ in rows} == {"clean", "pgd-l2", "pgd-margin-l2", "worst-l2"}
    coloured = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
    data = open_data(TensorDataset(torch.rand(20, 3, 4, 4), torch.arange(20) % 10))
    rows = found(answer_of("robustness", coloured, data, attacks=["fgsm"]))
    assert [level * 255 for score, level in rows if score == "fgsm"] == pytest.approx([1, 2, 4, 8])


def test_epsilon_is_in_pixel_units_whatever_the_normalisation(network, samples, answer):
    from torchvision.transforms import Compose, Normalize, ToTensor

    mean, std = 0.3, 0.25
    normalised = Around(network, before=lambda x: x * std + mean)  # takes what Normalize makes
    model = Model(normalised, "normalised", Compose([ToTensor(), Normalize([mean], [std])]))
    rows, plain = found(answer_of("robustness", model, samples, eps=LEVELS)), found(answer)
    assert {key: row["value"] for key, row in rows.items()} == pytest.approx(
        {key: row["value"] for key, row in plain.items()}, abs=0.011
    )


def test_preprocessing_is_cut_before_the_normalisation():
    from PIL import Image
    from torchvision.models import get_model_weights
    from torchvision.transforms import Compose, Normalize, Resize, ToTensor, v2

    generator = np.random.default_rng(0)
    picture = Image.fromarray(generator.integers(0, 256, (60, 50, 3), dtype=np.uint8))
    normal = Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    first = [v2.Resize((8, 8)), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    for transform in (
        Compose([Resize((8, 8)), ToTensor(), normal]),
        Compose([ToTensor(), normal]),
        v2.Compose([*first, v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])]),
        nn.Sequential(*first, normal),
        get_model_weights("resnet18").DEFAULT.transforms(),
        Compose([Resize(4), ToTensor()]),
    ):
        made = pixel_model(Model(nn.Identity(), "identity", transform, "pil"))
        pixels = made.loading.transform(picture)
        assert (pixels == pixels.clamp(0, 1)).all()
        assert torch.allclose(made.network(pixels[None])[0], transform(picture), atol=1e-5)
    alone = pixel_model(Model(nn.Identity(), "identity", normal, "items"))
    assert alone.loading.transform is None
    assert torch.allclose(alone.network(torch.ones(1, 3, 2, 2)), normal(torch.ones(1, 3, 2, 2)))


@pytest.mark.slow
def test_a_hugging_face_processor_is_cut_before_its_normalisation():
    transformers = pytest.importorskip("transformers")
    from PIL import Image

    from hardsight.models import _Processor

    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8))
    transform = _Processor(transformers.ViTImageProcessor(size={"height": 8, "width": 8}, image_mean=[0.4, 0.5, 0.6]))
    made = pixel_model(Model(nn.Identity(), "identity", transform, "pil"))
    pixels = made.loading.transform(picture)
    assert pixels.min() >= 0
    assert torch.allclose(made.network(pixels[None])[0], transform(picture), atol=1e-5)
    assert transform.processor.do_normalize, "the model's own is left alone"


def test_preprocessing_that_cannot_be_told_apart_is_a_sentence(network, samples):
    model = Model(network, "strange", lambda x: torch.as_tensor(np.asarray(x)).float()[None] / 128 - 1)
    with pytest.raises(ValueError, match=r"DATA .*\[0, 1\], got -1 .*Normalize"):
        answer_of("robustness", model, samples)


def test_labels_are_matched_by_name(network, samples):
    turned = nn.Sequential(nn.Flatten(), *(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)))
    turned.load_state_dict(network.state_dict())
    turned[-1].weight.data, turned[-1].bias.data = network[-1].weight.flip(0), network[-1].bias.flip(0)
    names = [str(name) for name in samples.classes or range(10)]
    data = View(samples.whole, samples.rows)
    data.classes = names
    model = Model(turned, "turned", classes=names[::-1])
    clean = found(answer_of("robustness", model, data, attacks=["fgsm"], eps=[0.1]))["clean", 0.0]["value"]
    assert clean > 0.8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attacks": ["pdg"]}, "'pdg'; did"),
        ({"attacks": []}, "attacks"),
        ({"eps": [-0.1]}, r"eps .*got -0\.1"),
        ({"eps": [8]}, "eps .*got 8"),
        ({"eps": [0.0]}, r"eps .*got 0\.0"),
        ({"limit": 0}, "limit .*got 0"),
        ({"device": "nowhere"}, "device .*nowhere"),
    ],
)
def test_what_cannot_be_asked_is_refused(network, samples, options, words):
    with pytest.raises(ValueError, match=words):
        answer_of("robustness", network, samples, **options)


def test_data_that_cannot_be_attacked_are_refused(network, samples):
    x, y = digits()
    with pytest.raises(ValueError, match=r"\[0, 1\], .*-2 to 2"):
        answer_of("robustness", network, open_data(TensorDataset(x * 4 - 2, y)))
    with pytest.raises(ValueError, match=r"2 classes .*got 1"):
        answer_of("robustness", nn.Sequential(nn.Flatten(), nn.Linear(64, 1)), open_data(TensorDataset(x, y * 0)))
    with pytest.raises(ValueError, match=r"labels .*\[0, 4\]"):
        answer_of("robustness", nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), open_data(TensorDataset(x, y)))


def test_a_single_class_is_attacked_and_said(network):
    x, y = digits()
    words = said(network, open_data(TensorDataset(x[y == 3], y[y == 3])), limit=50)
    assert "of class 3" in words
    assert "predicts class 3" not in words


def test_a_model_in_train_mode_is_attacked_in_eval_mode_and_put_back(network, samples, answer):
    dropping = nn.Sequential(network[0], nn.Dropout(0.5), *network[1:]).train()
    rows = found(answer_of("robustness", dropping, samples, eps=LEVELS))
    assert rows["pgd", 0.1]["value"] == pytest.approx(found(answer)["pgd", 0.1]["value"], abs=0.011)
    assert all(module.training for module in dropping)
    network.eval()
