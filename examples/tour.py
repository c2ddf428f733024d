# %% [markdown]
# # hardsight in one notebook
#
# Which digits does a small network find hard, which labels look wrong, and what happens while it trains?
# Everything here takes seconds on a CPU. Nothing is downloaded: the digits come with scikit-learn.

# %%
from pathlib import Path

import numpy as np
import torch
from torch import nn

import hardsight as hs

torch.set_num_threads(1)  # a network this small gains nothing from a second one
torch.manual_seed(0)
folder = Path("hardsight-tour")
folder.mkdir(exist_ok=True)

# %% [markdown]
# ## Data
#
# 1,797 handwritten digits of 8×8 pixels. We give 30 of them a wrong label, to see whether they are found.
# An `.npz` with `images` and `labels` is one of the forms that hardsight reads; a folder per class is another.

# %%
digits = hs.open_data("digits")
rng = np.random.default_rng(0)
changed = rng.choice(len(digits), 30, replace=False)
labels = digits.labels.copy()
labels[changed] = (labels[changed] + rng.integers(1, 10, 30)) % 10
np.savez(folder / "digits.npz", images=digits.images, labels=labels)
digits.images.shape, labels[:10]

# %% [markdown]
# ## Score
#
# A network hides the wrong labels that it was trained on. With `folds`, each digit is scored by a network that was
# trained on the others: `train` gets their images and labels and returns a network.


# %%
def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(data):
    x, y = torch.from_numpy(data.images).flatten(1) / 255, torch.from_numpy(data.labels)
    network = build()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network


table = hs.score(train, folder / "digits.npz", folds=5, out=folder / "run", overwrite=True)
table

# %% [markdown]
# ## Look at the rows
#
# One row per digit, one column per score; `help(hs.avh)` says what a score is. Slices and masks give tables, columns
# give NumPy arrays, and `table.to_pandas()` a data frame.

# %%
table[:5]

# %%
table.filter(lambda t: t["pred"] != t["label"])

# %%
table.hardest(5)  # by AVH; table.hardest(5, by="confidence") puts the least confident first

# %% [markdown]
# ## Labels that look wrong
#
# As many suspects as labels are estimated to be wrong. How many of them are those that we changed?

# %%
suspects = hs.label_errors(table).filter(lambda t: t["suspect"])
suspects

# %%
found = set(suspects["id"]) & {f"data:{place}" for place in changed}
print(f"{len(suspects)} suspects, among them {len(found)} of the {len(changed)} labels that we changed")

# %% [markdown]
# ## Watch a training
#
# In a loop of your own, `capture` holds the input of the last layer, and a `Recorder` keeps the scores of every sample
# in every epoch.

# %%
x, y = torch.from_numpy(digits.images).float() / 255, torch.from_numpy(labels)
network, recorder = build(), hs.Recorder(folder / "training", data=folder / "digits.npz", overwrite=True)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
with hs.capture(network) as head:
    for _ in range(10):
        for ids in torch.randperm(len(y)).split(100):
            loss = nn.functional.cross_entropy(network(x[ids]), y[ids])
            recorder.update(ids, head, y[ids])  # before the step, while features and weight belong together
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        recorder.end_epoch()
recorder.summary().hardest(5, by="forgetting")  # learned and forgotten again

# %% [markdown]
# ## One page to look at
#
# A single HTML file: open it in a browser, decide about each suspect, download your decisions.

# %%
hs.write_report(folder / "run")
