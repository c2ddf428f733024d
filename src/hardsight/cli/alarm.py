"""What must not be overlooked, in red."""

from __future__ import annotations

import os
import sys

from hardsight.extras import printable


def alarm(text: object, kind: str = "warning") -> None:
    """Print a line to stderr, in red where that is a terminal and the user has not asked for no color."""
    line = f"{kind}: {printable(text)}"
    colored = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    sys.stdout.flush()  # it comes first, also where both streams are one
    print(f"\033[1;31m{line}\033[0m" if colored else line, file=sys.stderr, flush=True)
