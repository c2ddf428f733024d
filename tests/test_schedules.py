"""Schedules against the papers' numbers and torch's own schedulers, and the hook on losses and optimizers."""

import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hardsight.losses import AMCLoss, AVHLoss, EncouragingLoss, deferred_weights
from hardsight.schedules import Scheduled, beta1_ramp, deferred, ramp_down, ramp_up


def test_ramp_up_is_the_amc_papers_also_in_fractions_of_an_epoch():
    assert [ramp_up(t, 80) for t in (0, 20, 79.5)] == pytest.approx(
        [math.exp(-5), math.exp(-5 * 0.75**2), math.exp(-5 * (0.5 / 80) ** 2)], rel=1e-12
    )
    assert ramp_up(80, 80) == ramp_up(1e9, 80) == ramp_up(0, 0) == 1


@pytest.mark.parametrize("time", [0, 150, 170, 170.5, 185, 199, 200])
def test_the_released_ramp_down_is_a_sharpness_of_a_quarter_of_its_length(time):
    total, length = 200, 30  # the released script's
    released = math.exp(-((0.5 * max(0, time - (total - length))) ** 2) / length)
    assert ramp_down(time, total, length, sharpness=length / 4) == pytest.approx(released, rel=1e-12)
    assert ramp_down(time, 300, 50) == pytest.approx(ramp_down(time, 300, 50, sharpness=50 / 4), rel=1e-12)
    assert beta1_ramp(time, total, length, sharpness=7.5) == pytest.approx(released * 0.9 + (1 - released) * 0.5)


def test_ramp_down_ends_at_the_papers_height():
    assert ramp_down(300, 300, 50) == pytest.approx(math.exp(-12.5))
    assert ramp_down(250, 300, 50) == ramp_down(0, 300, 0) == ramp_down(301, 300, 0) == 1


def test_deferral_counts_epochs_from_one():
    on = [epoch for epoch in range(1, 31) if deferred(epoch - 1, 25)]
    assert on == [26, 27, 28, 29, 30]
    assert deferred(24.999, 25) == 0  # within the 25th epoch
    assert deferred(0, 0) == 1


def test_schedules_need_no_torch():
    code = "import sys, hardsight.schedules; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


# ---------------------------------------------------------------------------------------------------------------------
# The hook.


def test_numbers_of_a_loss_are_replaced_and_only_that_is_reported():
    loss = EncouragingLoss(log_end=0.5)
    hook = Scheduled(loss, rho=lambda t: deferred(t, 2), log_end=lambda t: 0.5 + 0.25 * deferred(t, 3))
    states = [(hook.at(t), loss.rho, loss.log_end) for t in range(5)]
    assert states == [(True, 0, 0.5), (False, 0, 0.5), (True, 1, 0.5), (True, 1, 0.75), (False, 1, 0.75)]
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    hook.at(0)
    assert torch.equal(loss(logits, target), nn.functional.cross_entropy(logits, target))


@pytest.mark.parametrize("learnable", [False, True])
def test_a_scale_is_written_in_place_wherever_it_is_kept(learnable):
    loss = AVHLoss(16.0, learnable=learnable)
    tensor = loss.logits.log_scale if learnable else loss.logits.scale
    place = tensor.data_ptr()
    assert not Scheduled(loss, scale=lambda t: 8.0 + t).at(4)
    assert loss.scale.item() == pytest.approx(12)
    assert tensor.data_ptr() == place
    logs = Scheduled(nn.ParameterDict({"scale": nn.Parameter(torch.zeros(()))}), scale=lambda t: t)
    assert not logs.at(3.0)


def test_class_weights_are_written_in_place():
    loss = nn.CrossEntropyLoss(weight=torch.ones(2))
    place = loss.weight.data_ptr()
    weights = deferred_weights([900, 100], start=180)
    hook = Scheduled(loss, weight=lambda t: weights(int(t) + 1))
    assert not hook.at(179)
    assert loss.weight.tolist() == [1, 1]
    assert not hook.at(180)
    torch.testing.assert_close(loss.weight, weights(181))
    assert loss.weight.data_ptr() == place


@pytest.mark.parametrize(
    ("target", "name"),
    [(EncouragingLoss(), "rhoo"), (nn.CrossEntropyLoss(), "weight"), (torch.optim.Adam([torch.zeros(1)]), "lr")],
)
def test_what_cannot_be_scheduled_is_a_sentence(target, name):
    with pytest.raises(ValueError, match=f"{name}: .*{type(target).__name__}"):
        Scheduled(target, **{name: lambda t: t})


def test_any_object_with_attributes_will_do():
    pairs, other = AMCLoss(preset="released"), SimpleNamespace(weight=1.0)
    for thing in (pairs, other):
        Scheduled(thing, weight=lambda t: 10 * ramp_up(t, 50)).at(25)
        assert thing.weight == pytest.approx(10 * math.exp(-1.25))
