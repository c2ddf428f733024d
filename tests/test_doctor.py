"""The doctor says what is wrong, above all the torch/torchvision mismatch."""

import importlib
import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from hardsight import doctor
from hardsight.cli import main
from hardsight.extras import EXTRAS


def by_name():
    return {finding.check: finding for finding in doctor.findings()}


def test_a_sound_installation(capsys):
    main(["doctor", "--json"])
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["healthy"] is True
    checks = {finding["check"]: finding["state"] for finding in result["findings"]}
    assert {"torch", "torchvision", "devices", "disk", "self-test", "transformers"} <= set(checks)
    assert {name for names in EXTRAS.values() for name in names} <= set(checks)
    assert all(check in err for check in checks)  # what a person reads goes to the other stream


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
    monkeypatch.setattr("torch.version.cuda", None)
    findings = by_name()
    for package in ("torchvision", "timm"):
        assert findings[package].state == "PROBLEM"
        assert "CPU-only" in findings[package].text
        assert "pip install --force-reinstall torch torchvision" in findings[package].text
    assert not doctor.examine()["healthy"]


def test_missing_packages(monkeypatch, capsys):
    real = doctor.version

    def without(name):
        if name in ("timm", "polars"):
            raise PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(doctor, "version", without)
    findings = by_name()
    assert findings["timm"][:2] == ("PROBLEM", "timm")
    assert "pip install timm" in findings["timm"].text
    assert findings["polars"].state == "note"
    assert "[frames]" in findings["polars"].text
    with pytest.raises(SystemExit) as stop:
        main(["doctor", "--json"])
    assert stop.value.code == 1
    assert json.loads(capsys.readouterr().out)["healthy"] is False


def test_wrong_arithmetic_is_a_problem(monkeypatch):
    from hardsight import scores

    real = scores.compute_scores
    monkeypatch.setattr(scores, "compute_scores", lambda *a: {k: v * 1.001 for k, v in real(*a).items()})
    assert by_name()["self-test"].state == "PROBLEM"


@pytest.mark.parametrize(("free", "state"), [(2**20, "PROBLEM"), (2**30, "note"), (2**33, "ok")])
def test_little_disk(monkeypatch, free, state):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free})())
    assert doctor._disk()[0] == state


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
