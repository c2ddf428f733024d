"""Adapt a classifier to a domain without labels: class-balanced self-training (CBST, CRST, CBST+AVH)."""

from hardsight.adaptation.check import Checked as Checked
from hardsight.adaptation.check import read_check as read_check
from hardsight.adaptation.loop import Adapted as Adapted
from hardsight.adaptation.loop import self_train as self_train
from hardsight.adaptation.rounds import read_rounds as read_rounds
from hardsight.adaptation.rounds import read_selection as read_selection
from hardsight.adaptation.selection import METHODS as METHODS
from hardsight.adaptation.selection import Method as Method
from hardsight.adaptation.selection import Selection as Selection
from hardsight.adaptation.selection import chosen as chosen
from hardsight.adaptation.selection import class_thresholds as class_thresholds
from hardsight.adaptation.selection import lrent_chosen as lrent_chosen
from hardsight.adaptation.selection import lrent_labels as lrent_labels
from hardsight.adaptation.selection import parse_method as parse_method
from hardsight.adaptation.selection import portion_at as portion_at
from hardsight.adaptation.selection import pseudo_labels as pseudo_labels
from hardsight.adaptation.selection import select as select
from hardsight.adaptation.selection import target_rows as target_rows
from hardsight.adaptation.validators import VALIDATORS as VALIDATORS
from hardsight.adaptation.validators import picked as picked
