"""What losses add to a training step: medians without the first steps, and seconds of an epoch."""

from collections import Counter

import pytest

import hardsight as hs
from hardsight.studies.declared import cost

SECONDS = {"ce": 0.2, "el:0.75": 0.21, "el:normal": 0.2, "amc:paper": 0.3, "euclid:paper": 0.1}


def test_steps_of_every_loss_are_timed_in_turn(tmp_path, monkeypatch):
    order = []

    def step(network, loss, images, labels):
        order.append(loss)
        return 100.0 if Counter(order)[loss] == 1 else SECONDS[loss]  # the first step is slow

    monkeypatch.setattr(cost, "make_loss", lambda loss, recipe, network, labels: recipe.loss.removeprefix("ce+"))
    monkeypatch.setattr(cost, "_step", step)
    rows = {row["loss"]: row for row in hs.study("loss-cost", scale="smoke", out=tmp_path, progress=False).rows}
    assert {name: row["step"] for name, row in rows.items()} == SECONDS
    assert rows["amc:paper"]["extra"] == pytest.approx(50_000 / 8 * 0.1)
    assert rows["euclid:paper"]["extra"] == pytest.approx(-50_000 / 8 * 0.1)
    assert set(order[: len(SECONDS)]) == set(order[-len(SECONDS) :]) == set(SECONDS)  # all of them in every round
