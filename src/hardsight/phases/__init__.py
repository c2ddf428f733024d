"""What a recorded run says about training: what lowers the loss, plateaus, bounces, agreement with people, norms."""

from hardsight.phases.agreement import agreement as agreement
from hardsight.phases.bounces import Bounce as Bounce
from hardsight.phases.bounces import dip_and_bounce as dip_and_bounce
from hardsight.phases.drivers import Switch as Switch
from hardsight.phases.drivers import loss_drivers as loss_drivers
from hardsight.phases.drivers import phase_switch as phase_switch
from hardsight.phases.drivers import split_change as split_change
from hardsight.phases.gaps import norm_gaps as norm_gaps
from hardsight.phases.nets import hardness_against_accuracy as hardness_against_accuracy
from hardsight.phases.observations import observations as observations
from hardsight.phases.plateaus import Plateau as Plateau
from hardsight.phases.plateaus import plateau as plateau
from hardsight.phases.plateaus import plateaus as plateaus
from hardsight.phases.samples import frequencies as frequencies
