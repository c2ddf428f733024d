"""How hardness moves while a network trains: record it in any loop, read it back by sample, epoch or group."""

from hardsight.dynamics.dynamics import Dynamics as Dynamics
from hardsight.dynamics.recorder import Recorder as Recorder
