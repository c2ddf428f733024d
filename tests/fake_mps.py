"""A device that has no float64, as Apple's mps: tensors that say they are there and refuse what it refuses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

MPS = torch.device("mps")


class MpsTensor(Tensor):
    """Lies in the memory of the host, and says otherwise while `FakeMps` is on."""


class FakeMps(TorchFunctionMode):
    """While it is on, `on_mps` tensors behave as on mps: no float64, no numpy, no mixing with tensors of the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        here = [x for x in given if isinstance(x, MpsTensor)]
        if func == Tensor.device.__get__:
            return MPS if here else func(*args)
        if here and func in (Tensor.numpy, Tensor.__array__):
            raise TypeError("can't convert mps:0 device type tensor to numpy.")
        plain_args, plain_kwargs = tree_map(_plain, (args, kwargs))
        asked = [x for x in (*args[1:], kwargs.get("device")) if _is_device(x)]
        stays = func == Tensor.to and here and not asked
        if func == Tensor.cpu or (func == Tensor.to and asked and torch.device(asked[0]) != MPS):
            return func(*plain_args, **plain_kwargs)
        if asked and torch.device(asked[0]) == MPS:
            host = torch.device("cpu")
            plain_args = tuple(host if _is_device(x) else x for x in plain_args)
            plain_kwargs |= {"device": host} if "device" in plain_kwargs else {}
        elif not here:
            return func(*args, **kwargs)
        elif func != Tensor.__getitem__ and any(x.ndim and not isinstance(x, MpsTensor) for x in given) and not stays:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, found mps:0 and cpu!")
        return tree_map(_placed, func(*plain_args, **plain_kwargs))


def on_mps(value: Tensor) -> Tensor:
    """A tensor as if it lay on mps."""
    return _placed(value)


def _plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, MpsTensor) else value


def _placed(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.dtype == torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")
    return value.as_subclass(MpsTensor)


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or value in ("cpu", "mps")
