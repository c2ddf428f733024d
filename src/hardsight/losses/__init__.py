"""Losses of the three papers as parts of any training loop: *objective of the soft margin ∘ logits + pair terms*."""

from hardsight.losses.composite import CompositeLoss as CompositeLoss
from hardsight.losses.composite import build_loss as build_loss
from hardsight.losses.encouraging import EncouragingBCELoss as EncouragingBCELoss
from hardsight.losses.encouraging import EncouragingLoss as EncouragingLoss
from hardsight.losses.encouraging import FocalLoss as FocalLoss
from hardsight.losses.encouraging import LossParts as LossParts
from hardsight.losses.encouraging import encouraging_loss as encouraging_loss
from hardsight.losses.imbalance import deferred_weights as deferred_weights
from hardsight.losses.imbalance import effective_number_weights as effective_number_weights
from hardsight.losses.imbalance import ldam_margins as ldam_margins
from hardsight.losses.logits import AVHLoss as AVHLoss
from hardsight.losses.logits import adjusted_logits as adjusted_logits
from hardsight.losses.logits import angular_logits as angular_logits
from hardsight.losses.logits import arcface_logits as arcface_logits
from hardsight.losses.logits import cosface_logits as cosface_logits
from hardsight.losses.logits import cosine_logits as cosine_logits
from hardsight.losses.logits import sphereface_logits as sphereface_logits
from hardsight.losses.logits import spherical_logits as spherical_logits
from hardsight.losses.logits import taylor_logits as taylor_logits
from hardsight.losses.margins import soft_margin as soft_margin
from hardsight.losses.margins import soft_margins as soft_margins
from hardsight.losses.mirror import MirrorMSELoss as MirrorMSELoss
from hardsight.losses.pairs import AMCLoss as AMCLoss
from hardsight.losses.pairs import CenterLoss as CenterLoss
from hardsight.losses.pairs import EuclideanContrastiveLoss as EuclideanContrastiveLoss
