"""Large heads as an opaque call that compiled code does not trace into."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardsight.losses.largeheads import _HeadTerms


@torch.compiler.disable
def apply_eagerly(*inputs: Any) -> tuple[Tensor, Tensor]:
    """The terms of a large head, outside any compiled graph."""
    return _HeadTerms.apply(*inputs)  # pyrefly: ignore[bad-return]
