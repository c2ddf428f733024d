"""Hardness scores: features ``(N, D)``, class weights ``(C, D)`` and labels ``(N,)`` in, one number a sample out."""

from hardsight.hardness.direction import harder_end as harder_end
from hardsight.hardness.direction import hardness_sign as hardness_sign
from hardsight.hardness.direction import larger_is_harder as larger_is_harder
from hardsight.hardness.reading import Reading as Reading
from hardsight.hardness.reading import read_classes as read_classes
from hardsight.hardness.scores import SCORES as SCORES
from hardsight.hardness.scores import Score as Score
from hardsight.hardness.scores import Tolerance as Tolerance
from hardsight.hardness.scores import avh_series as avh_series
from hardsight.hardness.scores import compute_scores as compute_scores
from hardsight.hardness.scores import norm_within_class as norm_within_class
from hardsight.hardness.triple import bad_rows as bad_rows
from hardsight.hardness.triple import check_labels as check_labels
from hardsight.hardness.triple import check_logits as check_logits
from hardsight.hardness.triple import check_triple as check_triple
