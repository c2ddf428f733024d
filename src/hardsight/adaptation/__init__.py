"""Adapt a classifier to a domain without labels: class-balanced self-training (CBST, CRST, CBST+AVH)."""

from hardsight.adaptation.folder import read_rounds as read_rounds
from hardsight.adaptation.folder import read_selection as read_selection
from hardsight.adaptation.loop import Adapted as Adapted
from hardsight.adaptation.loop import self_train as self_train
from hardsight.adaptation.methods import METHODS as METHODS
from hardsight.adaptation.methods import Method as Method
from hardsight.adaptation.methods import parse_method as parse_method
from hardsight.adaptation.pseudolabels import lrent_chosen as lrent_chosen
from hardsight.adaptation.pseudolabels import lrent_labels as lrent_labels
from hardsight.adaptation.pseudolabels import pseudo_labels as pseudo_labels
from hardsight.adaptation.pseudolabels import target_rows as target_rows
from hardsight.adaptation.selection import Selection as Selection
from hardsight.adaptation.selection import portion_at as portion_at
from hardsight.adaptation.selection import select as select
from hardsight.adaptation.thresholds import chosen as chosen
from hardsight.adaptation.thresholds import class_thresholds as class_thresholds
from hardsight.adaptation.validators import VALIDATORS as VALIDATORS
from hardsight.adaptation.validators import Validator as Validator
from hardsight.adaptation.validators import picked as picked
