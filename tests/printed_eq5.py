"""Equation 5 of the AVH paper as it is printed, to show what it would do. No part of the package."""

import torch

from hardsight.angles import angle_matrix


def printed_eq5(features, weight, target, scale):
    """``Σ_i exp(s·(π − θ_{i,y})) / Σ_k exp(s·(π − θ_{i,k}))``: a sum of probabilities, without the −log before them.

    The paper calls it a loss. Whoever minimises it drives every target's probability to 0.
    """
    scores = scale * (torch.pi - angle_matrix(features, weight))
    return scores.softmax(1).gather(1, target[:, None]).sum()
