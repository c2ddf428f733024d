"""Scoring: run a model over data, or take features as they are, and give one row a sample."""

from hardsight.scoring.folds import TrainingData as TrainingData
from hardsight.scoring.tables import score as score
from hardsight.scoring.tables import score_features as score_features
