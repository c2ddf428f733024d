"""Which output of a model each label of the data is, by the names of the classes."""

from itertools import permutations

import numpy as np
import pytest
import torchvision

import hardsight as hs
from hardsight.data import class_mapping
from hardsight.scoring.checks import class_order_note

MODEL = ["cat", "dog", "owl"]


@pytest.mark.parametrize(
    ("model", "data", "expected"),
    [
        (MODEL, ["cat", "dog", "owl"], None),
        (MODEL, ["owl", "cat", "dog"], [2, 0, 1]),
        (MODEL, ["dog", "owl"], [1, 2]),  # some of the model's classes
        (MODEL, ["cat", "dog"], None),  # its first two: labels stay as they are
        (MODEL, ["Cat", "DOG", " owl "], None),  # spelling is not order
        (["great white shark", "tench"], ["Tench", "great_white-shark"], [1, 0]),
        (MODEL, None, None),
        (None, ["cat", "dog", "owl"], None),
        (MODEL, ["n01", "n02", "n03"], None),  # other names for as many classes: nothing can be said
        (["crane", "dog", "crane"], ["crane", "dog", "crane"], None),
    ],
)
def test_class_mapping(model, data, expected):
    mapping = class_mapping(model, data, 3 if model is None else len(model))
    assert (None if mapping is None else mapping.tolist()) == expected


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (MODEL, ["ant", "bee", "cat", "dog"], r"2 of 4 .*ant, bee\."),
        (None, ["cat", "dog"], r"2 classes \(cat, .*3 outputs"),
        (["x", "y", "z"], ["cat", "dog"], r"2 classes \(cat, .*3 outputs"),
        (["crane", "dog", "crane"], ["dog", "crane", "crane"], "crane"),  # the two cannot be told apart
    ],
)
def test_classes_that_do_not_fit(model, data, message):
    with pytest.raises(ValueError, match=message):
        class_mapping(model, data, 3)


def test_exact_names_come_before_loose_ones():
    # ImageNet's Cardigan (264) is a dog and its cardigan (474) a jacket.
    names = torchvision.models.ResNet50_Weights.DEFAULT.meta["categories"]
    assert class_mapping(names, names, 1000) is None
    assert class_mapping(names, names[::-1], 1000).tolist() == list(range(999, -1, -1))


def test_the_note_about_the_class_order_is_that_of_the_best_assignment():
    """Without looking for the assignment where no order can be good enough."""
    generator, notes = np.random.default_rng(0), []
    for _ in range(200):
        classes = int(generator.integers(2, 6))
        labels = generator.integers(0, classes, 60)
        shuffled = generator.permutation(classes)[labels]
        pred = np.where(generator.random(60) < generator.random(), shuffled, generator.integers(0, classes, 60))
        table = hs.SampleTable.from_columns({"id": np.arange(60).astype(str), "label": labels, "pred": pred})
        best = max(np.mean(np.array(order)[labels] == pred) for order in permutations(range(classes)))
        expected = best >= table.accuracy + 0.25 and best >= 2 * table.accuracy
        assert (class_order_note(table, classes) is not None) == expected
        notes.append(expected)
    assert 20 < sum(notes) < 180
