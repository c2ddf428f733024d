"""Where a network looks (class activation maps), and how much of its output the maps explain."""

from hardsight.explanation.answer import explanation_answer as explanation_answer
from hardsight.explanation.gallery import Gallery as Gallery
from hardsight.explanation.gallery import cam_gallery as cam_gallery
from hardsight.explanation.gallery import overlay as overlay
from hardsight.explanation.maps import RECIPES as RECIPES
from hardsight.explanation.maps import cam as cam
from hardsight.explanation.measures import area as area
from hardsight.explanation.measures import entropy as entropy
from hardsight.explanation.measures import infidelity as infidelity
from hardsight.explanation.measures import insertion_deletion as insertion_deletion
from hardsight.explanation.measures import mass_inside as mass_inside
