"""Studies beyond the papers: which loss a cell trains with, and what a temperature is fitted to and judged on."""

import numpy as np
import pytest
import torch
from scipy import special

from hardsight.losses import parse_loss
from hardsight.studies import STUDIES, study
from hardsight.studies.declared import losses, temperatures


@pytest.mark.parametrize(("name", "factor"), [("el-angular", "logits"), ("el-amc", "pairs")])
def test_a_cell_trains_with_the_parts_that_its_levels_name(name, factor, monkeypatch, tmp_path):
    trained = []

    def stop(cell, data, recipe, network):
        trained.append((cell.levels, recipe.loss))
        raise InterruptedError

    monkeypatch.setattr(losses, "train_cell", stop)
    for levels, _ in STUDIES[name].cells("quick", 1):
        with pytest.raises(InterruptedError):
            study(name, scale="quick", seeds=1, where=levels, out=tmp_path, device="cpu", progress=False)
    assert len({loss for _, loss in trained}) == len(trained) == len(list(STUDIES[name].cells("quick", 1)))
    for levels, loss in trained:
        expected = parse_loss(levels["loss"])
        parts, objective = parse_loss(loss), expected.objective
        assert parts.objective == objective
        given = {"logits": parts.logits, "pairs": parts.pairs}[factor]
        if levels[factor] in ("linear", "none"):
            assert given is None
        else:
            assert str(given).partition(":")[0] == levels[factor].partition(":")[0]


def test_a_temperature_is_fitted_to_held_out_training_samples_and_judged_on_test(monkeypatch, tmp_path):
    views, draw = [], np.random.default_rng(0)

    def train_cell(cell, data, recipe, network):
        views.append(data[0])
        return type("Trained", (), {"model": type("Model", (), {"module": None})})

    def logits(network, samples, cell):
        """Three times too long; of test samples calibrated but for that."""
        views.append(samples)
        truth = draw.normal(size=(20_000, 5))
        labels = np.array([draw.choice(5, p=p) for p in special.softmax(truth, axis=1)])
        logits.last = truth, labels
        return torch.tensor(3 * truth), torch.tensor(labels)

    monkeypatch.setattr(temperatures, "train_cell", train_cell)
    monkeypatch.setattr(temperatures, "_logits", logits)
    rows = study(
        "el-temperature", scale="smoke", seeds=1, where="loss=ce", out=tmp_path, device="cpu", progress=False
    ).rows
    training, held_out, test = views
    assert not set(training.ids) & set(held_out.ids)
    assert len(training) + len(held_out) == 1437
    assert len(held_out) == 144
    assert len(test) == 360
    plain, fitted = rows
    assert [plain["temperature"], fitted["temperature"]] == ["1", "fitted"]
    assert fitted["fitted"] == plain["fitted"] == pytest.approx(3, rel=0.05)
    truth, labels = logits.last
    for row, temperature in ((plain, 1), (fitted, fitted["fitted"])):
        log_p = special.log_softmax(3 * truth / temperature, axis=1)
        right = np.eye(5)[labels]
        assert row["nll"] == pytest.approx(-log_p[np.arange(len(labels)), labels].mean())
        assert row["brier"] == pytest.approx(((np.exp(log_p) - right) ** 2).sum(1).mean())
        assert row["accuracy"] == pytest.approx((log_p.argmax(1) == labels).mean())
    assert plain["ece"] > 0.2 > 0.03 > fitted["ece"]
