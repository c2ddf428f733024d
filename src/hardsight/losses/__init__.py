"""Losses of the three papers as parts of any training loop: *objective of the soft margin ∘ logits + pair terms*."""

from hardsight.losses.composite import CompositeLoss, build_loss
from hardsight.losses.grammar import LOSSES, BoundPart, Kind, LossName, LossPart, forms, loss_part, parse_loss
from hardsight.losses.imbalance import deferred_weights, effective_number_weights, ldam_margins
from hardsight.losses.largeheads import HeadTerms, head_terms, margin_of_nll
from hardsight.losses.logits import (
    AVHLoss,
    BoundLogits,
    adjusted_logits,
    angular_logits,
    arcface_logits,
    cosface_logits,
    cosine_logits,
    sphereface_logits,
)
from hardsight.losses.margins import BONUSES, cross_entropy, focal, log_total, soft_margin, soft_margins
from hardsight.losses.mirror import MirrorMSELoss
from hardsight.losses.objectives import (
    EncouragingBCELoss,
    EncouragingLoss,
    FocalLoss,
    LossParts,
    encouraging_loss,
)
from hardsight.losses.pairs import AMCLoss, CenterLoss, EuclideanContrastiveLoss, contrastive, pair_indices
