import pytest
import torch

torch.set_num_threads(1)  # tensors here are small, and a second thread on a busy machine is waited for


@pytest.fixture(autouse=True)
def _same_every_time():
    torch.manual_seed(0)
