"""Scoring: run a model over data, or take features as they are, and give one row per sample."""
