"""GPU tests run on machines that have torch, NumPy and pytest, and none of the optional packages."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # whatever versions there are, these packages are not

TESTS = Path(__file__).parent
# None of these may be needed to collect a test of the GPU.
OPTIONAL = (
    "captum", "cleanlab", "datasets", "hypothesis", "lightning", "matplotlib", "netcal", "pandas", "playwright",
    "polars", "pytorch_metric_learning", "pytorch_ood", "timm", "transformers", "tyro",
)  # fmt: skip
BLOCK = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
import pytest
options = ["-q", "--collect-only", "-p", "no:hypothesispytest", "-p", "no:xdist", "-o", "addopts="]
sys.exit(pytest.main([*options, *sys.argv[1:]]))
"""


def test_gpu_tests_are_collected_without_optional_packages():
    files = sorted(str(file) for file in TESTS.glob("test_gpu*.py"))
    assert len(files) >= 2
    done = subprocess.run(
        [sys.executable, "-c", BLOCK, *files], capture_output=True, text=True, check=False, cwd=TESTS.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_a_gpu_degrades_like_a_cpu" in done.stdout
    code = BLOCK.replace("import pytest", "import tyro")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "No module named 'tyro'" in done.stderr  # the block blocks


def test_no_other_file_holds_a_test_that_only_a_gpu_runs():
    marked = [file.name for file in TESTS.glob("test_*.py") if "mark.gpu" in file.read_text(encoding="utf-8")]
    others = {name for name in marked if not name.startswith("test_gpu")}
    assert others == {Path(__file__).name}
