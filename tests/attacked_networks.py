"""Small networks to evaluate and attack: healthy ones, and ones that hide their gradients on purpose."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from hardsight.questions import QUESTIONS, Subject


def digits():
    """Pixels (1797, 1, 8, 8) in [0, 1] and classes."""
    found = load_digits()
    return torch.tensor(found.images / 16, dtype=torch.float32)[:, None], torch.tensor(found.target)


def answer_of(question, model, samples, *, batch_size=256, workers=None, device="cpu", **options):
    """The answer of a network, on the CPU."""
    forward = {"device": device, "batch_size": batch_size, "workers": workers}
    return QUESTIONS[question].ask(Subject("network", model, samples, forward=forward), **options)


def untrained(seed=0, outputs=10, channels=1):
    """A convolution and a head; any size of picture."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body = nn.Conv2d(channels, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        return nn.Sequential(*body, nn.Linear(24, outputs)).eval()


def trained(seed=0, hidden=48, epochs=8, activation=nn.ReLU):
    """A network on the first 1,200 digits; linear without hidden units."""
    torch.manual_seed(seed)
    layers = [nn.Linear(64, hidden), activation(), nn.Linear(hidden, 10)] if hidden else [nn.Linear(64, 10)]
    network = nn.Sequential(nn.Flatten(), *layers)
    x, y = digits()
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(epochs):
        for part in torch.randperm(1200).split(100):
            optimiser.zero_grad()
            F.cross_entropy(network(x[part]), y[part]).backward()
            optimiser.step()
    return network.eval()


class Around(nn.Module):
    """A network with something before and something after it."""

    def __init__(self, network, before=lambda x: x, after=lambda z: z):
        super().__init__()
        self.network, self.before, self.after = network, before, after

    def forward(self, x):
        return self.after(self.network(self.before(x)))
