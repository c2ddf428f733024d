"""Adapt a classifier to a domain without labels: class-balanced self-training (CBST, CRST, CBST+AVH)."""

from hardsight.adaptation.check import Checked, read_check
from hardsight.adaptation.loop import Adapted, self_train
from hardsight.adaptation.rounds import read_rounds, read_selection
from hardsight.adaptation.selection import (
    METHODS,
    Method,
    Selection,
    class_thresholds,
    lrent_chosen,
    lrent_labels,
    parse_method,
    portion_at,
    select,
    target_rows,
)  # fmt: skip
from hardsight.adaptation.validators import VALIDATORS, picked
