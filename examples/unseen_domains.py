"""Domain generalization on your own folders: train on all domains but one, test on that one, for two losses.

python examples/unseen_domains.py [FOLDER]     # FOLDER/DOMAIN/CLASS/image.jpg; without it, digits in three styles
"""

import sys

import numpy as np

import hardsight as hs
from hardsight.data import ArraySamples, load_digits
from hardsight.domains import SELECTIONS, decoded, leave_one_out, open_domains

if len(sys.argv) > 1:
    domains = {name: decoded(samples, 96) for name, samples in open_domains(sys.argv[1]).items()}
    network, recipe = "cnn10-96", hs.presets.recipe_of("cnn10-pacs").replace(lr=0.02, batch_size=128)
else:
    images, labels = load_digits()
    styles = {"plain": images, "faint": images // 2, "mirrored": np.ascontiguousarray(images[:, :, ::-1])}
    domains = {
        name: ArraySamples(style[k::3], labels[k::3], name, name) for k, (name, style) in enumerate(styles.items())
    }
    network, recipe = "small-cnn", hs.presets.recipe_of("small-cnn").replace(epochs=2)

for loss in ("ce", "avh:16"):
    for target in domains:
        run = leave_one_out(
            network, domains, target, out=f"domains/{loss.replace(':', '-')}-{target}", loss=loss, recipe=recipe,
            progress=False,
        )  # fmt: skip
        shown = ", ".join(f"{how} {run.accuracy(how):.1%}" for how in SELECTIONS)
        print(f"{loss:8} accuracy on {target:12} by selection: {shown}")
