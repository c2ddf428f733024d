"""Statistics of a recorded run: what lowers the loss, plateaus, bounces, agreement with people."""

from hardsight.phases.agreement import agreement as agreement
from hardsight.phases.agreement import frequencies as frequencies
from hardsight.phases.bounces import Bounce as Bounce
from hardsight.phases.bounces import dip_and_bounce as dip_and_bounce
from hardsight.phases.drivers import Switch as Switch
from hardsight.phases.drivers import loss_drivers as loss_drivers
from hardsight.phases.drivers import phase_switch as phase_switch
from hardsight.phases.drivers import split_change as split_change
from hardsight.phases.plateaus import Plateau as Plateau
from hardsight.phases.plateaus import plateau as plateau
from hardsight.phases.plateaus import plateaus as plateaus
