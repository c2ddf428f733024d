"""A process that is killed between two steps on the disk."""

import itertools
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def killed(method, calls):
    """Inside, the process is killed after so many calls of a method of `Path`; those for locks do not count."""
    real, count = getattr(Path, method), itertools.count()

    def call(self, *args, **options):
        if not self.name.startswith(".lock") and next(count) >= calls:
            raise KeyboardInterrupt
        return real(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, method, call)
        with pytest.raises(KeyboardInterrupt):
            yield
