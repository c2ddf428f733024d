import importlib
import os
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest

# Tensors here are small, and a second thread on a busy machine is waited for; so it is in processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)  # also where torch was imported before this file
os.fsync = lambda descriptor: None  # tests wait for the disk thousands of times, and none of them cuts the power


@pytest.fixture(autouse=True)
def _same_every_time():
    torch.manual_seed(0)


@pytest.fixture
def device_waits():
    """A context that lists where a program waits for the GPU, every time it does."""

    @contextmanager
    def listed():
        before = torch.is_warn_always_enabled()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            torch.set_warn_always(True)
            seen.clear()  # that the mode is a prototype
            try:
                yield seen
            finally:
                torch.cuda.set_sync_debug_mode("default")
                torch.set_warn_always(before)

    return listed


@pytest.fixture
def benchmark_module(monkeypatch):
    """Imports a module of benchmarks/, which is no part of the package."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


# A browser for the page, and recorded runs that several files look at.


@pytest.fixture(scope="session")
def browser():
    from report_pages import chromium

    with chromium() as started:
        yield started


@pytest.fixture
def show(browser, tmp_path):
    from report_pages import opener

    with opener(browser, tmp_path) as open_page:
        yield open_page


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    from report_runs import whole_run

    return whole_run(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """A small network in training, and for each epoch the features, weight and bias that were recorded."""
    from recorded_runs import train_digits

    return train_digits(tmp_path_factory.mktemp("runs") / "resnet")


@pytest.fixture(scope="session")
def gaps(tmp_path_factory):
    from report_runs import run_with_gaps

    return run_with_gaps(tmp_path_factory.mktemp("gaps"))


# Data with planted errors, as cleaning meets them.


@pytest.fixture
def noisy():
    from noisy_digits import noisy_digits

    return noisy_digits()


@pytest.fixture
def photos(tmp_path):
    from cleaning_cases import make_photos

    return make_photos(tmp_path / "photos")


@pytest.fixture
def archive(noisy, tmp_path):
    from cleaning_cases import make_archive

    return make_archive(noisy, tmp_path / "digits.npz")
