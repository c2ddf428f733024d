"""Accuracy under adversarial attack, and whether it can be believed."""

from hardsight.robustness.answer import robustness_answer as robustness_answer
from hardsight.robustness.attacks import ATTACKS as ATTACKS
from hardsight.robustness.attacks import Attack as Attack
from hardsight.robustness.attacks import Attacked as Attacked
from hardsight.robustness.attacks import attack as attack
from hardsight.robustness.masking import Verdict as Verdict
from hardsight.robustness.masking import check_masking as check_masking
from hardsight.robustness.pixels import PixelModel as PixelModel
from hardsight.robustness.pixels import pixel_model as pixel_model
