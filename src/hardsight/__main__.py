"""``python -m hardsight``: the same command."""

from hardsight.cli import main

main()
