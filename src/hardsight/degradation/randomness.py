"""Uniform numbers that belong to a sample: the same on every device, in any batch and in any order.

Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) turns a key and a
counter into two words of 32 bits by sums, rotations and exclusive ors, which are exact wherever torch runs. torch's own
generators give other numbers on a GPU than on a CPU, and other numbers for other batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def sample_keys(name: str, ids: Sequence[Any], device: torch.device | None = None) -> Tensor:
    """A key ``(N, 2)`` for each sample, from its id and what the numbers are for.

    Examples:
        >>> first, again, other = sample_keys("noise", ["test:0", "test:0", "test:1"])
        >>> bool((first == again).all()), bool((first == other).any())
        (True, False)
    """
    digests = [hashlib.sha256(f"{name}\0{id_}".encode("utf-8", "surrogatepass")).digest() for id_ in ids]
    words = [[int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")] for digest in digests]
    return torch.tensor(words, dtype=torch.int64, device=device).reshape(-1, 2)


def threefry(keys: Tensor, counters: Tensor) -> tuple[Tensor, Tensor]:
    """Two random words of 32 bits for each key ``(N, 2)`` and counter ``(M,)``: both ``(N, M)``, int64.

    Examples:
        >>> [f"{int(word):08x}" for word in threefry(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([0]))]
        ['6b200159', '99ba4efe']
    """
    first, second = keys[:, :1], keys[:, 1:]
    schedule = (first, second, first ^ second ^ _PARITY)
    x0 = counters[None, :].add(first).bitwise_and_(_WORD)
    x1 = second.expand_as(x0).clone()  # the counter's upper word is 0
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x0.add_(x1).bitwise_and_(_WORD)
            x1 = (((x1 << by) & _WORD) | (x1 >> (32 - by))).bitwise_xor_(x0)
        x0.add_(schedule[(group + 1) % 3]).bitwise_and_(_WORD)
        x1.add_(schedule[(group + 2) % 3]).add_(group + 1).bitwise_and_(_WORD)
    return x0, x1


def uniform(keys: Tensor, count: int) -> Tensor:
    """`count` numbers in [0, 1) for each key, ``(N, count)`` float32: multiples of 2⁻²⁴, so that none is rounded."""
    counters = torch.arange((count + 1) // 2, device=keys.device)
    words = torch.cat(threefry(keys, counters), 1)[:, :count]
    return (words >> 8).float() * 2.0**-24
