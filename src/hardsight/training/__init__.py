"""One small, readable training engine: any model and data, records as it goes, and resumes after any kill."""

from hardsight.training.run import Trained as Trained
from hardsight.training.run import train as train
