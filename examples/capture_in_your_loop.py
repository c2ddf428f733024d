"""Hardness in a plain PyTorch loop: capture what the last layer sees, score it, look at the hardest.

python examples/capture_in_your_loop.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import hardsight as hs

pixels, labels = load_digits(return_X_y=True)
x, y = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)

for epoch in range(10):
    for batch in torch.randperm(1500).split(100):
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with hs.capture(model) as head, torch.no_grad():  # the last 297 digits are never trained on
        model(x[1500:])
    hardness = hs.avh(head.features, head.weight, y[1500:])
    print(f"epoch {epoch}: mean C·AVH {10 * hardness.mean():.3f} (1 is chance)")

print("hardest:", (1500 + hardness.topk(5).indices).tolist())
