"""What happens in training, with intervals: where scores stop changing, what lowers the loss, whom they agree with."""

from hardsight.phases.agreement import agreement as agreement
from hardsight.phases.agreement import frequencies as frequencies
from hardsight.phases.drivers import loss_drivers as loss_drivers
from hardsight.phases.drivers import split_change as split_change
from hardsight.phases.plateaus import Plateau as Plateau
from hardsight.phases.plateaus import plateau as plateau
from hardsight.phases.plateaus import plateaus as plateaus
