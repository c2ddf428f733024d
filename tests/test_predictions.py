"""What a network says of a data set: against the network itself, the scores one by one, and hand-made means."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hardsight as hs
from hardsight import predictions
from hardsight.data import ArraySamples, load_digits, open_data
from hardsight.models import Model
from hardsight.predictions import predict
from hardsight.scores import SCORES

IMAGES, LABELS = load_digits()
IMAGES, LABELS = IMAGES[:70], LABELS[:70]


def net(bias=True):
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten()),
        nn.Linear(64, 10, bias=bias),
    ).eval()


def digits(labels=None):
    return ArraySamples(IMAGES, labels, "test", "digits")


def by_hand(network, flip):
    """Features and logits of each view."""
    x = torch.from_numpy(IMAGES)[:, None].float() / 255
    with torch.no_grad():
        features = [network[:-1](view) for view in ((x, x.flip(3)) if flip else (x,))]
        return features, [network[-1](f) for f in features]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("loaded", [False, True])
def test_probabilities_and_confidences_are_those_of_the_network_at_every_class(flip, loaded):
    network = net()
    model = Model(network, "net", nn.Identity() if loaded else None, "tensor")
    told = predict(model, digits(), flip=flip, batch_size=32, device="cpu")
    features, logits = by_hand(network, flip)
    mean = np.mean([z.double().softmax(1).numpy() for z in logits], 0)
    np.testing.assert_allclose(told.probabilities, mean, rtol=1e-5, atol=1e-8)
    for k in range(10):
        at_k = np.full(len(IMAGES), k)
        expected = np.mean([hs.avc(f, network[-1].weight, at_k).detach().numpy() for f in features], 0)
        np.testing.assert_allclose(told.avc[:, k], expected, rtol=2e-6, atol=0)
    np.testing.assert_allclose(told.features, features[0].numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(told.norms, np.mean([np.linalg.norm(f.numpy(), axis=1) for f in features], 0), rtol=1e-5)
    assert told.ids == [f"test:{i}" for i in range(70)]
    assert told.rows.tolist() == list(range(70))
    for values in (told.probabilities, told.avc, told.features, told.norms, told.weight, told.bias):
        assert values.dtype == np.float32
    np.testing.assert_array_equal(told.weight, network[-1].weight.detach().numpy())
    assert (told.mirrored is not None) == flip


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", SCORES)
def test_a_score_at_given_labels_is_the_score_turned_toward_confidence(name, bias):
    network = net(bias)
    told = predict(network, digits(), flip=True, device="cpu")
    features, _ = by_hand(network, True)
    head = network[-1]
    values = [hs.SCORES[name](f, head.weight, LABELS, bias=head.bias).detach().double().numpy() for f in features]
    sign = -1 if hs.SCORES[name].higher_is_harder else 1
    np.testing.assert_allclose(told.at(name, LABELS), sign * np.mean(values, 0), rtol=1e-4, atol=1e-5)


def test_labels_are_not_looked_at_and_batches_do_not_matter():
    a, b = (
        predict(net(), digits(y), flip=True, batch_size=n, device="cpu")
        for y, n in ((None, 70), (LABELS[::-1].copy(), 9))
    )
    np.testing.assert_allclose(a.probabilities, b.probabilities, rtol=1e-5, atol=1e-8)
    every = np.arange(len(LABELS))  # scores at labels are entries of the matrices
    np.testing.assert_allclose(a.at("confidence", LABELS), a.probabilities[every, LABELS], rtol=1e-5)
    np.testing.assert_allclose(a.at("avc", LABELS), a.avc[every, LABELS], rtol=1e-5)


def test_every_part_of_the_network_is_left_in_its_mode_and_without_hooks():
    network = net().train()
    network[1].eval()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    told = predict(network, digits(), flip=True, device="cpu")
    assert [part.training for part in network] == [True, False, True, True, True, True]
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert not any(part._forward_hooks for part in network.modules())
    np.testing.assert_array_equal(told.probabilities, predict(net(), digits(), flip=True, device="cpu").probabilities)


def test_large_matrices_are_memory_mapped_and_the_same(monkeypatch):
    plain = predict(net(), digits(), flip=True, device="cpu")
    monkeypatch.setattr(predictions, "_IN_MEMORY", 1000)
    mapped = predict(net(), digits(), flip=True, device="cpu")
    for name in ("probabilities", "avc", "features", "mirrored"):
        assert isinstance(getattr(mapped, name), np.memmap)
        np.testing.assert_array_equal(getattr(mapped, name), getattr(plain, name))
    assert not isinstance(mapped.norms, np.memmap)  # 280 bytes
    np.testing.assert_array_equal(mapped.at("margin", LABELS), plain.at("margin", LABELS))


def test_a_feature_opposite_to_every_class_has_equal_shares():
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    with torch.no_grad():
        network[1].weight.copy_(-torch.ones(3, 4))
    data = open_data(TensorDataset(torch.ones(2, 1, 2, 2)))
    np.testing.assert_allclose(predict(network, data, flip=True, device="cpu").avc, 1 / 3, rtol=1e-6)


def test_what_cannot_be_read_is_left_out_and_rows_say_who_is_there():
    class Broken(ArraySamples):
        def load(self, index, channels):
            if index in (3, 69):
                raise OSError("cut short")
            return super().load(index, channels)

    samples = Broken(IMAGES, None, "test", "digits")
    model = Model(net(), "net", nn.Identity(), "tensor")
    with pytest.warns(UserWarning, match=r"2 of 70 .*test:3: OSError"):
        told = predict(model, samples, flip=True, batch_size=16, device="cpu")
    kept = [i for i in range(70) if i not in (3, 69)]
    assert told.rows.tolist() == kept
    assert told.ids == [f"test:{i}" for i in kept]
    whole = predict(net(), digits(), flip=True, device="cpu")
    np.testing.assert_allclose(told.probabilities, whole.probabilities[kept], rtol=1e-5, atol=1e-8)
    assert told.at("margin", LABELS[kept]).shape == (68,)


def broken():
    network = net()
    with torch.no_grad():
        network[-1].weight[0, 0] = float("nan")
    return network


BAD = {
    "no head": (lambda: nn.Conv2d(1, 3, 3), digits, {}, "no head found"),
    "vectors": (
        lambda: nn.Linear(64, 10),
        lambda: open_data(TensorDataset(torch.rand(4, 64))),
        {"flip": True},
        "set flip=False",
    ),
    "empty": (net, lambda: ArraySamples(IMAGES[:0], None, "test", "nothing"), {}, "DATA is empty"),
    "damaged": (broken, digits, {}, "NaN or infinity"),
    "device": (net, digits, {"device": "nowhere"}, "device .*nowhere"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_sentence(case):
    model, samples, options, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        predict(model(), samples(), **({"device": "cpu"} | options))


def test_unknown_scores_and_wrong_labels_are_sentences():
    told = predict(net(), digits(), flip=True, device="cpu")
    with pytest.raises(ValueError, match=r"'angular_margn'; .*angular_margin"):
        told.at("angular_margn", LABELS)
    with pytest.raises(ValueError, match=r"labels .*\(70,\)"):
        told.at("avh", LABELS[:-1])
    with pytest.raises(ValueError, match=r"labels .*\[0, 9\]"):
        told.at("avh", LABELS + 5)


def test_asked_again_with_some_labels_changed_only_those_samples_are_computed(monkeypatch):
    told, fresh = (predict(net(), digits(), flip=True, device="cpu") for _ in range(2))
    first, second = LABELS.astype(np.int64), LABELS.astype(np.int64).copy()
    second[[3, 50]] = (second[[3, 50]] + 1) % 10
    monkeypatch.setattr(predictions, "_ROWS", 16)
    computed, whole = [], predictions.Predictions._at

    def watched(self, name, rows, labels):
        computed.extend(rows.tolist())
        return whole(self, name, rows, labels)

    monkeypatch.setattr(predictions.Predictions, "_at", watched)
    before = told.at("avh", first)
    assert computed == list(range(70))
    before[:] = np.nan  # what was handed out is the caller's own
    again = told.at("avh", second)
    assert computed[70:] == [3, 50]
    np.testing.assert_allclose(again, fresh.at("avh", second), rtol=0, atol=1e-12)
    assert np.array_equal(told.at("avh", second), again)
