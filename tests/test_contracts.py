"""Two mistakes that give plausible numbers, a wrong normalisation and a permuted class list: neither passes unseen."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.transforms import Compose, Normalize

import hardsight as hs
from hardsight.chance import ChanceWarning
from hardsight.data import ArraySamples, load_digits
from hardsight.demo import small_cnn

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
RIGHT = Normalize([0.3], [0.4])  # what the network is trained with
WRONG = Normalize([0.485], [0.1])
PERMUTED = np.random.default_rng(3).permutation(10)  # class k of the network is class PERMUTED[k] of the data


@pytest.fixture(scope="module")
def network():
    """A small network that reads digits well, trained in a second."""
    pictures, labels = load_digits()
    x, y = RIGHT(torch.from_numpy(pictures).float()[:, None] / 255), torch.from_numpy(labels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = small_cnn()
        optimiser = torch.optim.AdamW(net.parameters(), 1e-2)
        for batch in torch.randperm(len(x)).repeat(3).split(64):
            loss = F.cross_entropy(net(x[batch]), y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return net.eval()


@pytest.fixture
def model(network):
    return hs.Model(network, "digits", RIGHT, "tensor", NAMES)


def digits(*, permuted=False, names=True):
    """The first 400 digits, counted as the network counts them or in another order."""
    pictures, labels = load_digits()
    classes = NAMES
    if permuted:
        labels, classes = PERMUTED[labels], [NAMES[k] for k in np.argsort(PERMUTED)]
    return ArraySamples(pictures[:400], labels[:400], "digits", "400 digits", classes if names else None)


def test_the_network_is_right_when_nothing_is_wrong(model):
    table = hs.score(model, digits())
    assert table.accuracy > 0.95
    assert table.meta.warnings == []
    assert table.meta.label_mapping is None
    assert table.meta.class_names == NAMES


# ---------------------------------------------------------------------------------------------------------------------
# Class order.


def test_permuted_names_are_mapped_by_name(model):
    expected, table = hs.score(model, digits()), hs.score(model, digits(permuted=True))
    assert table.to_arrow().equals(expected.to_arrow())  # labels and rows in the network's own order
    # The record tells how labels were renumbered, and what the numbers of the table mean.
    assert table.meta.label_mapping == np.argsort(PERMUTED).tolist()
    assert table.meta.class_names == NAMES


@pytest.mark.parametrize("who", ["neither", "model", "data"])
def test_without_names_a_permuted_labelling_warns(who, network, tmp_path):
    model = hs.Model(network, "digits", RIGHT, "tensor", NAMES if who == "model" else None)
    data = digits(permuted=True, names=who == "data")
    with pytest.warns(UserWarning, match=r"class order: .*%, .*9\d\.\d%") as seen:
        table = hs.score(model, data, out=tmp_path / "run")
    [order] = [warning for warning in seen if warning.category is not ChanceWarning]
    assert table.accuracy < 0.5
    # The warning stays with the run, and names classes that moved.
    assert hs.SampleTable.load(tmp_path / "run").meta.warnings == [str(order.message)]
    listed = str(order.message).split("(")[1].split("…")[0]
    moves = [tuple(map(int, move.split("→"))) for move in listed.replace(" ", "").rstrip(",").split(",")]
    assert moves
    assert all(PERMUTED[to] == label for label, to in moves)


def test_two_swapped_classes_and_an_untrained_network_are_no_permutation(network):
    # Many label errors in one place are what users look for: they are rows, not a wrong class order.
    pictures, labels = load_digits()
    swapped = labels.copy()
    swapped[labels == 3], swapped[labels == 8] = 8, 3
    data = ArraySamples(pictures[:400], swapped[:400], "digits", "400 digits")
    table = hs.score(hs.Model(network, "digits", RIGHT, "tensor"), data)  # warnings are errors here
    assert set(table.hardest(40)["label"]) <= {3, 8}
    torch.manual_seed(0)
    untrained = hs.Model(small_cnn().eval(), "untrained", RIGHT, "tensor")
    assert hs.score(untrained, digits(names=False)).meta.warnings == []


def test_names_of_other_things_are_refused(network):
    animals = [f"animal {i}" for i in range(9)] + ["nine"]
    with pytest.raises(ValueError, match=r"9 of 10 .*zero, one"):
        hs.score(hs.Model(network, "zoo", RIGHT, "tensor", animals), digits())


# ---------------------------------------------------------------------------------------------------------------------
# Preprocessing.


def test_rows_are_those_made_by_hand_and_others_with_a_wrong_normalization(network, model):
    pictures, labels = load_digits()
    x = RIGHT(torch.from_numpy(pictures[:400]).float()[:, None] / 255)
    with torch.no_grad(), hs.capture(network) as head:
        network(x)
    by_hand = hs.score_features(head.features, head.weight, labels[:400], head.bias)
    right, wrong = (hs.score(m, digits()) for m in (model, hs.Model(network, "digits", WRONG, "tensor", NAMES)))
    for name in by_hand.scores:
        np.testing.assert_allclose(right[name], by_hand[name], rtol=1e-4, atol=1e-5)
    assert np.array_equal(right["id"], wrong["id"])
    assert np.mean(np.abs(right["avh"] - wrong["avh"]) > 1e-3) > 0.9
    assert right.meta.preprocessing == "Normalize(mean=[0.3], std=[0.4])"
    assert wrong.meta.preprocessing == "Normalize(mean=[0.485], std=[0.1])"


@pytest.mark.parametrize("whole", [True, False], ids=["whole run", "killed run"])
def test_a_run_is_not_resumed_with_another_model(whole, network, model, tmp_path):
    run = tmp_path / "run"
    first = hs.score(model, digits(), out=run)
    if not whole:
        (run / "meta.json").unlink()
    others = {
        "preprocessing_hash": hs.Model(network, "digits", WRONG, "tensor", NAMES),
        "model.fingerprint": hs.Model(small_cnn().eval(), "digits", RIGHT, "tensor", NAMES),
        "same: .*class": hs.Model(network, "digits", RIGHT, "tensor", NAMES[::-1]),  # which renumbers the labels
    }
    for reason, other in others.items():
        with pytest.raises(FileExistsError, match=reason):
            hs.score(other, digits(), out=run)
    # Nothing was touched: the same call still finds its rows.
    assert hs.score(model, digits(), out=run).to_arrow().equals(first.to_arrow())
    replaced = hs.score(others["preprocessing_hash"], digits(), out=run, overwrite=True)
    for table in (replaced, hs.SampleTable.load(run)):
        assert table.meta.preprocessing == "Normalize(mean=[0.485], std=[0.1])"


def test_a_killed_run_is_resumed_with_a_transform_of_ones_own(network, tmp_path):
    # The same function made anew, as by the same command in another process.
    def build():
        def normalise(x):
            return (x - 0.3) / 0.4

        return hs.Model(network, "digits", normalise, "tensor", NAMES)

    model, again = build(), build()
    first = hs.score(model, digits(), out=tmp_path / "run")
    (tmp_path / "run" / "meta.json").unlink()
    assert hs.score(again, digits(), out=tmp_path / "run").to_arrow().equals(first.to_arrow())


def test_a_given_preprocessing_replaces_the_model_s(network, model):
    table = hs.score(model, digits(), preprocess=WRONG)
    assert table.meta.preprocessing == "Normalize(mean=[0.485], std=[0.1])"
    assert table.to_arrow().equals(hs.score(hs.Model(network, "digits", WRONG, "tensor", NAMES), digits()).to_arrow())
    raw = hs.score(model, digits(), preprocess="raw")  # pixels in [0, 1], whatever came with the model
    assert raw.meta.preprocessing == "none: pixels in [0, 1]"
    assert raw.to_arrow().equals(hs.score(hs.Model(network, "digits", classes=NAMES), digits()).to_arrow())
    too_large = hs.Model(network, "digits", Compose([nn.Identity(), Normalize([0.5] * 5, [0.5] * 5)]), "tensor")
    with pytest.raises(ValueError, match=r"DATA: .*digits:0: RuntimeError"):
        hs.score(too_large, digits())
