"""The doctor: says what is wrong in words, above all the torch/torchvision mismatch."""

import importlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from hardsight import doctor
from hardsight.cli import main


def by_name():
    return {finding.what: finding for finding in doctor.findings()}


def test_a_sound_installation(capsys):
    main(["doctor"])
    out = capsys.readouterr().out
    assert "all is well." in out
    for word in ("torch", "torchvision", "devices", "disk", "self-test", "transformers"):
        assert word in out


@pytest.mark.parametrize(
    "message",
    [
        "operator torchvision::nms does not exist",
        "libtorchvision.so: undefined symbol: _ZN3c10",
        "partially initialized module 'torchvision' has no attribute 'extension' (a circular import?)",
    ],
)
def test_a_torchvision_built_for_another_torch_is_named(monkeypatch, message):
    real = importlib.import_module

    def broken(name, *args):
        if name in ("torchvision", "timm"):
            raise RuntimeError(message)
        return real(name, *args)

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    monkeypatch.setattr(doctor, "_torch_has_no_cuda", lambda: True)
    found = by_name()
    for package in ("torchvision", "timm"):
        assert found[package].state == "PROBLEM"
        assert "CPU-only" in found[package].words
        assert "pip install --force-reinstall torch torchvision" in found[package].words
    assert not doctor.examine()


def test_missing_packages(monkeypatch, capsys):
    real = doctor.version

    def without(name):
        if name in ("timm", "polars"):
            raise PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(doctor, "version", without)
    found = by_name()
    assert found["timm"][:2] == ("PROBLEM", "timm")
    assert "pip install timm" in found["timm"].words
    assert found["polars"].state == "note"
    assert "pip install 'hardsight[frames]'" in found["polars"].words
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    assert stop.value.code == 1


def test_wrong_arithmetic_is_a_problem(monkeypatch):
    import hardsight.scores as hardness

    real = hardness.compute_scores
    monkeypatch.setattr(hardness, "compute_scores", lambda *a: {k: v * 1.001 for k, v in real(*a).items()})
    assert by_name()["self-test"].state == "PROBLEM"


def test_little_disk(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2**20})())
    assert by_name()["disk"].state == "PROBLEM"


def test_a_check_that_fails_is_itself_a_finding(monkeypatch):
    monkeypatch.setattr(doctor, "_devices", lambda: 1 / 0)
    assert by_name()["devices"] == ("PROBLEM", "devices", "ZeroDivisionError: division by zero")


def test_a_broken_torchvision_leaves_features_usable():
    """What does not need pictures must not fail because of them."""
    code = (
        "import sys; sys.modules['torchvision'] = None; sys.modules['timm'] = None\n"
        "import torch, hardsight as hs\n"
        "print(len(hs.score_features(torch.eye(3), torch.eye(3), torch.arange(3))))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "3"
