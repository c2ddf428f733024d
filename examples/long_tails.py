"""A long-tailed subset of your data: cross-entropy, a bonus, deferred re-weighting, and a retrained head.

python examples/long_tails.py [DATA TEST]     # cifar10.npz:train cifar10.npz:test; without them, digits
"""

import sys

import numpy as np

import hardsight as hs
from hardsight.data import View, open_data
from hardsight.longtail import accuracy_by_frequency, long_tailed, retrain_head

if len(sys.argv) > 2:
    data, test, preset = long_tailed(sys.argv[1], ratio=100), open_data(sys.argv[2]), "cifar-resnet18"
    recipe = hs.presets.recipe_of(preset)
else:
    digits = open_data("digits")
    is_test = np.arange(len(digits)) % 5 == 0
    data = long_tailed(View(digits, np.flatnonzero(~is_test)), ratio=20)
    test, preset = View(digits, np.flatnonzero(is_test)), "small-cnn"
    recipe = hs.presets.recipe_of(preset).replace(epochs=4)

counts = np.bincount(data.labels)
print("training samples per class:", counts.tolist())


def report(name, model):
    table = hs.score(model, test)
    accuracy = accuracy_by_frequency(table["pred"], table["label"], counts)
    print(f"{name:22} accuracy", "  ".join(f"{part} {value:.1%}" for part, value in accuracy.items()))


late = int(0.9 * recipe.epochs)
for loss in ("ce", "el:0.5", f"ce:drw={late}", "ce@adjusted"):
    trained = hs.train(preset, data, out=f"tails/{loss.replace(':', '-')}", recipe=recipe, loss=loss, progress=False)
    report(loss, trained.model)
    if loss == "ce":
        report("ce, head retrained", retrain_head(trained.model, data))
