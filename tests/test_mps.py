"""Nothing asks a device that has no float64 for one; what it computes is what the CPU does."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_mps import MPS, FakeMps, on_mps
from naive import triple
from torch import nn

import hardsight as hs
from hardsight.angles import cosine_matrix
from hardsight.data import mean_and_std
from hardsight.devices import moved
from hardsight.predictions import _values
from hardsight.questions.calibration import classwise_ece, fit_temperature
from hardsight.questions.margins import energy_by_class, logit_margin
from hardsight.questions.ood import ood_scores
from hardsight.scores import SCORES, avh_series
from hardsight.scoring.rows import score_block
from hardsight.series import angle_sum_series

CLASSES = 5


def inputs():
    x, w, y, b = triple(40, 8, CLASSES)
    return {"features": x.float(), "weight": w.float(), "labels": y, "bias": b.float()}


def block(scores, keep):
    def numbers(x, w, y, b):
        rows, _, vectors = score_block([str(i) for i in range(len(x))], x, w, y, b, scores, keep)
        return {**rows.drop_columns(["id"]).to_pydict(), **vectors.drop_columns(["id"]).to_pydict()}

    return numbers


WAYS = {
    **{name: lambda x, w, y, b, name=name: SCORES[name](x, w, y, bias=b) for name in SCORES},
    "avh at the prediction": lambda x, w, y, b: hs.avh(x, w, None, bias=b),
    "avh_series": lambda x, w, y, b: avh_series(x, w, y),
    "angle_sum_series": lambda x, w, y, b: angle_sum_series(x, w),
    "rows and probabilities": block(["avh"], "direction"),
    "rows by the series": block(None, "cosines"),
    "rows of features": block(None, "features"),
    "predictions": lambda x, w, y, b: _values(x @ w.T + b, x, w, True),
    "ood": lambda x, w, y, b: ood_scores(x @ w.T + b, x, w),
    "classwise_ece": lambda x, w, y, b: classwise_ece((x @ w.T).softmax(1), y),
    "temperature": lambda x, w, y, b: fit_temperature(x @ w.T, y),
    "logit margin": lambda x, w, y, b: logit_margin(x @ w.T, y),
    "energy": lambda x, w, y, b: energy_by_class(x @ w.T, y),
    "mean and spread": lambda x, w, y, b: mean_and_std(x.reshape(-1, 2, 2, 2)),
    "mean and spread of bytes": lambda x, w, y, b: mean_and_std((x.reshape(-1, 2, 2, 2) * 9).abs().to(torch.uint8)),
}


def numbers(value):
    """Whatever came back, as flat arrays."""
    if isinstance(value, dict):
        return [array for inner in value.values() for array in numbers(inner)]
    if isinstance(value, tuple):
        return [array for inner in value for array in numbers(inner)]
    return [np.asarray(value.cpu() if isinstance(value, torch.Tensor) else value, np.float64)]


@pytest.mark.parametrize("name", WAYS)
def test_without_float64_the_numbers_are_those_of_the_cpu(name):
    given = inputs().values()
    expected = numbers(WAYS[name](*given))
    with FakeMps():
        found = numbers(WAYS[name](*map(on_mps, given)))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_the_fake_refuses_what_mps_refuses():
    with FakeMps():
        x = on_mps(torch.ones(3))
        assert x.device.type == (x + 1).device.type == torch.zeros(2, device=MPS).device.type == "mps"
        for refused in (
            lambda: x.double(),
            lambda: x.to(torch.float64),
            lambda: torch.ones(2).double().to("mps"),
            lambda: torch.zeros(2, dtype=torch.float64, device="mps"),
        ):
            with pytest.raises(TypeError, match="float64"):
                refused()
        with pytest.raises(RuntimeError, match="same device"):
            x + torch.ones(3)
        assert x.cpu().double().device.type == "cpu"


def test_a_setting_for_other_devices_does_not_ask_for_float64(monkeypatch):
    monkeypatch.setattr("torch.backends.fp32_precision", "tf32", raising=False)
    x = torch.eye(3)
    with FakeMps():
        assert torch.equal(cosine_matrix(on_mps(x), on_mps(x)).cpu(), x)


def test_a_recorder_records_and_compares_heads(tmp_path):
    given = inputs()
    heads = []
    for run, place in (("cpu", lambda tensor: tensor), ("mps", on_mps)):
        recorder = hs.Recorder(tmp_path / run)
        with FakeMps():
            for epoch in (1, 2):
                head = SimpleNamespace(
                    features=place(given["features"] / epoch),
                    weight=place(given["weight"]),
                    bias=place(given["bias"]),
                    _module=nn.Identity(),  # another one each time, so that weights are compared
                )
                recorder.update(range(40), head, place(given["labels"]))
                recorder.end_epoch()
        heads.append(hs.Dynamics(tmp_path / run))
    for column in ("angle", "soft_margin", "norm", "nll_angles"):
        np.testing.assert_allclose(heads[1].matrix(column), heads[0].matrix(column), rtol=1e-6)


def test_inputs_in_float64_arrive_in_float32():
    with FakeMps():
        found = moved(
            {"x": torch.ones(2, dtype=torch.float64), "mask": torch.ones(2, dtype=torch.long), "name": "a"}, MPS
        )
        assert found["x"].device == found["mask"].device == MPS
        assert (found["x"].dtype, found["mask"].dtype, found["name"]) == (torch.float32, torch.int64, "a")
