"""Scoring: run a model over data, or take given features, and return one row per sample."""
