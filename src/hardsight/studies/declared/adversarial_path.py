"""How norm and AVH change along an adversarial attack, in a CNN and in a decoupled network (AVH Fig. 22).

The paper gives neither the networks nor the attack. Both are small CNNs with 2-D features (`plain_cnn`); D-SphereNet is
the same with decoupled operators in place of inner products (Liu et al., Decoupled Networks, CVPR 2018): each hidden
layer outputs cos θ, where θ is the angle between its input and its weight. Attacks are 40 short steps along the logit
margin, whose gradient does not vanish where confidence is high.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.figures.style import COLORS, GRAY, left_title, new_figure
from hardsight.printing import percent
from hardsight.questions.attacks import attack
from hardsight.registry import check_choice
from hardsight.scores import compute_scores
from hardsight.studies.declared.embeddings import draw_rays
from hardsight.studies.declared.small_networks import fit, plain_cnn, split_pixels
from hardsight.studies.declared.training import embed
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SMALL = 1e-12  # under the root of a squared norm, whose slope at 0 is infinite
_NETWORKS = ("cnn", "d-spherenet")
_STEPS, _SHOWN = 40, 12
_PURPLE = "#7B3294"


class Decoupled(nn.Module):
    """A convolution or linear layer with cos θ in place of inner products ‖w‖ ‖x‖ cos θ; an input of zeros gives 0.

    Args:
        layer: The layer; its weights are taken over, its bias is not.

    Examples:
        >>> layer = nn.Linear(2, 1)
        >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 0.0]]))
        >>> Decoupled(layer)(torch.tensor([[5.0, 0.0], [0.0, 1.0], [1.0, 1.0]])).flatten()
        tensor([1.0000, 0.0000, 0.7071], grad_fn=...)
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach().clone())
        self.convolved = (layer.stride, layer.padding, layer.dilation) if isinstance(layer, nn.Conv2d) else None

    def forward(self, x: Tensor) -> Tensor:
        unit = F.normalize(self.weight.flatten(1), dim=1).view_as(self.weight)
        if self.convolved is None:
            product, square = F.linear(x, unit), x.square().sum(-1, keepdim=True)
        else:
            product = F.conv2d(x, unit, None, *self.convolved)
            square = F.conv2d(x.square(), torch.ones_like(self.weight[:1]), None, *self.convolved)
        return product * (1 / square.clamp_min(_SMALL).sqrt())


def d_spherenet(classes: int, channels: int, features: int) -> nn.Sequential:
    """`plain_cnn` with decoupled operators in all hidden layers but the one that makes the features."""
    network = plain_cnn(classes, channels, features)
    hidden = [k for k, layer in enumerate(network) if isinstance(layer, (nn.Conv2d, nn.Linear))][:-2]
    for k in hidden:
        network[k] = Decoupled(network[k])  # pyrefly: ignore
    return network


class AdversarialPaths(NamedTuple):
    """Attacked test samples that a network classified correctly, at each of S + 1 steps.

    Attributes:
        features: ``(S + 1, N, 2)``.
        avh, norm: ``(S + 1, N)``; AVH is that of the label.
        fooled: ``(S + 1, N)``, whether the prediction is wrong.
        labels: ``(N,)``.
        weight: Class weights ``(C, 2)``.
        test: Features of all test samples ``(M, 2)``, and their labels ``(M,)``.
        accuracy: On all test samples.
        classes: Names of the classes.
    """

    features: np.ndarray
    avh: np.ndarray
    norm: np.ndarray
    fooled: np.ndarray
    labels: np.ndarray
    weight: np.ndarray
    test: tuple[np.ndarray, np.ndarray]
    accuracy: float
    classes: list[str]

    @property
    def switch(self) -> np.ndarray:
        """The first step at which the predicted class of each sample flips ``(N,)``; −1 where it does not."""
        return np.where(self.fooled.any(0), self.fooled.argmax(0), -1)


def adversarial_paths(
    data: Any,
    network: str = "cnn",
    *,
    eps: float = 0.3,
    count: int = 200,
    steps: int = 1500,
    seed: int = 0,
    device: str | None = None,
) -> AdversarialPaths:
    """Train a small network with 2-D features and follow test samples along an attack (Fig. 22).

    Args:
        data: As for `embeddings`.
        network: ``cnn`` or ``d-spherenet``.
        eps: Radius of the attack in the L∞ norm.
        count: Number of attacked samples: the first that are classified correctly.
        steps: Of the training by Adam.
        seed: Seed of the training.
    """
    check_choice(network, _NETWORKS, "network")
    training, (pixels, labels), classes = split_pixels(data, device)
    build = plain_cnn if network == "cnn" else d_spherenet
    net = fit(lambda: build(len(classes), training[0].shape[1], 2), *training, steps, 128, 3e-3, seed)
    test = embed(net, pixels)
    right = test.logits.argmax(1) == labels
    rows = right.nonzero()[:count, 0]
    attacked = attack(
        net, pixels[rows], labels[rows], "pgd-margin", eps=eps, steps=_STEPS, first=0.1, restarts=0, track=True
    )
    path: Any = attacked.trajectory
    y, shape = labels[rows].repeat(len(path)), path.shape[:2]
    features, _, weight, bias = embed(net, path.flatten(0, 1))
    scores = compute_scores(features, weight, y, bias, ("avh", "norm"))
    avh, norm, fooled = (scores[name].view(shape).cpu().numpy() for name in ("avh", "norm", "pred"))
    return AdversarialPaths(
        features.view(*shape, 2).cpu().numpy(), avh, norm, fooled != labels[rows].cpu().numpy(),
        labels[rows].cpu().numpy(), weight.cpu().numpy(),
        (test.features.cpu().numpy(), labels.cpu().numpy()), float(right.double().mean()), classes,
    )  # fmt: skip


def halfway(values: np.ndarray, switch: np.ndarray) -> np.ndarray:
    """The first step at which each column has made half of its change up to the switch ``(N,)``.

    Examples:
        >>> halfway(np.array([[0.0], [1.0], [6.0], [10.0], [90.0]]), np.array([3])).tolist()
        [2]
    """
    change = np.abs(values - values[0])
    return (change >= change[switch, np.arange(len(switch))] / 2).argmax(0)


@STUDIES.register(
    "adversarial-path",
    question="Does an adversarial example first shrink its norm and then turn its angle?",
    paper="AVH, Fig. 22",
    factors={"network": _NETWORKS},
    measures={
        "accuracy": Measure("Accuracy", True, "higher"),
        "fooled": Measure("Attack success rate", True, "lower"),
        "shrunk": Measure("Successful attacks with a smaller norm at the class flip", True),
        "norm": Measure("Norm at the class flip, relative to the clean image"),
        "norm_first": Measure("Successful attacks in which the norm reaches half of its change first", True),
        "avh_first": Measure("Successful attacks in which AVH reaches half of its change first", True),
    },
    scales={
        "smoke": Scale(2, 5, settings={"data": "digits", "steps": 60, "count": 40}),
        "paper": Scale(5, 60, settings={"data": "mnist.npz", "steps": 1500, "count": 500}),
    },
    compare="network",
    baseline="cnn",
)
def _measured(cell: Cell) -> dict[str, float]:
    settings = {name: cell.settings[name] for name in ("steps", "count")}
    data, device = cell.file(cell.settings["data"]), str(cell.device)
    paths = adversarial_paths(data, cell.levels["network"], seed=cell.seed, device=device, **settings)
    changed = paths.switch > 0
    switch, columns = paths.switch[changed], np.arange(int(changed.sum()))
    row: dict[str, Any] = {"accuracy": paths.accuracy, "fooled": float(changed.mean())}
    if len(columns):
        norm, avh = paths.norm[:, changed], paths.avh[:, changed]
        share, norm_at, avh_at = norm[switch, columns] / norm[0], halfway(norm, switch), halfway(avh, switch)
        row |= {"shrunk": np.mean(share < 1), "norm": np.mean(share)}
        row |= {"norm_first": np.mean(norm_at < avh_at), "avh_first": np.mean(avh_at < norm_at)}
    return row


def plot_adversarial_path(data: str, seed: int = 0) -> Figure:
    """Paths of adversarial examples in norm and C·AVH, and in the 2-D features of a CNN and of D-SphereNet (Fig. 22).

    Args:
        data: What the small networks of `hardsight.studies.adversarial_paths` are trained on.
        seed: Seed of their training.
    """
    studies = {name: adversarial_paths(data, name, seed=seed) for name in _NETWORKS}
    figure, axes = new_figure(1, 3)
    plane, *features = axes[0]
    for axis, (name, paths) in zip(features, studies.items(), strict=True):
        ends = np.flatnonzero(paths.switch > 0)
        draw_rays(axis, *paths.test, paths.weight, paths.classes, alpha=0.25)
        axis.scatter(*paths.features[-1, ends].T, s=5, marker="x", color="black", linewidths=0.6, rasterized=True)
        if len(ends):
            axis.plot(*paths.features[:, _typical(paths)].T, color=_PURPLE, marker=".", markersize=3, linewidth=1)
        title = "CNN" if name == "cnn" else "D-SphereNet"
        count = f"{len(ends):,} of {len(paths.labels):,} attacks succeed (×)"
        left_title(axis, f"{title}, accuracy {percent(paths.accuracy)}\n{count}", 9)
    _draw_plane(plane, studies["cnn"])
    return figure


def _typical(paths: AdversarialPaths) -> int:
    """The successfully attacked sample whose class flips at the median step."""
    fooled = np.flatnonzero(paths.switch > 0)
    return int(fooled[np.argsort(paths.switch[fooled], kind="stable")[len(fooled) // 2]])


def _draw_plane(axis: Any, paths: AdversarialPaths) -> None:
    """Norm against C·AVH by step: some paths in gray, one with its steps and a circle where its class flips."""
    scale, fooled = len(paths.weight), np.flatnonzero(paths.switch > 0)
    for k in fooled[:: max(1, len(fooled) // _SHOWN)][:_SHOWN]:
        axis.plot(paths.norm[:, k], scale * paths.avh[:, k], color=GRAY, linewidth=0.7, alpha=0.6)
    if len(fooled):
        k = _typical(paths)
        x, y, at = paths.norm[:, k], scale * paths.avh[:, k], paths.switch[k]
        axis.plot(x, y, color=_PURPLE, marker=".", markersize=4, linewidth=1.4, label="one sample, each step")
        axis.plot(x[0], y[0], "s", color=_PURPLE, markersize=6, label="clean image")
        axis.plot(x[at], y[at], "o", color=COLORS[1], markersize=8, fillstyle="none", label="class flip")
        axis.legend(fontsize=7, frameon=False)
    axis.axhline(1, color=GRAY, linewidth=0.8, linestyle=":")
    axis.set(xlabel="norm of the feature", ylabel="C · AVH of the label", xlim=(0, None))
    left_title(axis, "CNN: paths of adversarial examples", 9)
