"""Names are the same in every locale: what is written in one is recognised in the other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hardsight import SampleTable

NET = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), None, ["hünd", "chât"]
"""
PYTHON = """
import json, os, sys
import hardsight as hs

if sys.argv[1] == "ascii":
    assert sys.getfilesystemencoding() == "ascii"
net, data = (os.fsdecode(name.encode()) for name in ("n\\u00e9t.py:build", "bild\\u00e9r"))
samples = hs.open_data(data)
table = hs.score(net, data, out="run", device="cpu")
print(json.dumps([samples.ids, samples.classes, table.meta.model.name]))
print(json.dumps(table.meta.already_complete))
"""
LOCALES = {
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "utf-8": {"LC_ALL": "C.UTF-8"},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are Unicode whatever the locale"),
]


@pytest.fixture
def place(tmp_path):
    for i in range(4):
        file = tmp_path / "bildér" / ("chât", "hünd")[i % 2] / f"fïle{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 60 * i, np.uint8)).save(file)
    (tmp_path / "nét.py").write_text(NET, encoding="utf-8")
    return tmp_path


def output(place: Path, locale: str, *arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHON"))}
    environment |= LOCALES[locale] | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.parametrize(("first", "second"), [("ascii", "utf-8"), ("utf-8", "ascii")])
def test_the_command_recognises_its_run_in_another_locale(place, first, second):
    command = ["-m", "hardsight", "score", "nét.py:build", "bildér", "-o", "rün"]
    output(place, first, *command)
    table = SampleTable.load(place / "rün")
    assert sorted(table["id"])[0] == "bildér/chât/fïle0.png"
    assert "complete already" in output(place, second, *command)
    output(place, second, "-m", "hardsight", "report", "rün")
    assert "4 of 4" in (place / "rün" / "report.html").read_text(encoding="utf-8")


def test_python_does_too(place):
    (first, complete), (second, again) = (
        map(json.loads, output(place, locale, "-c", PYTHON, locale).splitlines()) for locale in LOCALES
    )
    assert first == second
    assert first[1:] == [["chât", "hünd"], "nét.py:build"]
    assert (complete, again) == (False, True)
