"""The command. Signatures are free of torch and work is imported inside, so that help answers at once."""

from __future__ import annotations

import errno
import os
import sys
import warnings

import tyro

from hardsight.cli.adapting import adapt
from hardsight.cli.alarm import alarm
from hardsight.cli.aligning import align
from hardsight.cli.evaluating import evaluate
from hardsight.cli.pages import clean, demo, figure, report, with_figures
from hardsight.cli.scoring import score
from hardsight.cli.training import train, with_losses
from hardsight.errors import HardsightError


def doctor() -> None:
    """Check versions, devices, extras, disk and arithmetic, and say in words what is wrong."""
    from hardsight.doctor import examine

    if not examine():
        raise SystemExit(1)


COMMANDS = {
    "demo": demo,
    "score": score,
    "report": report,
    "clean": clean,
    "train": train,
    "adapt": adapt,
    "align": align,
    "evaluate": evaluate,
    "figure": figure,
    "doctor": doctor,
}


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """A warning as one line; that a network is no better than chance, in red."""
    if category.__name__ == "ChanceWarning":  # by name: its module needs scipy, which help must not wait for
        alarm(message)
    else:
        print(f"warning: {message}", file=sys.stderr)


# What the machine refuses, whatever the program: no permission, a full or read-only disk, too many open files.
_ENVIRONMENT = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENAMETOOLONG)


def main(args: list[str] | None = None) -> None:
    """Entry point: errors are one sentence, Ctrl-C says what is safe."""
    from hardsight import __version__

    if args is None:
        _in_utf8()
    args = sys.argv[1:] if args is None else args
    if args in (["--version"], ["-V"]):
        print(f"hardsight {__version__}")
        return
    figure.__doc__, train.__doc__ = with_figures(), with_losses()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks a sign must not turn success into failure
            stream.reconfigure(errors="replace")
    warnings.showwarning = _show_warning
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            config=(tyro.conf.FlagCreatePairsOff,),
            prog="hardsight",
            description="See which examples are hard for a classifier. Start with: hardsight demo",
            args=args or ["--help"],
        )
    except KeyboardInterrupt:
        print("\nstopped; what was committed is safe, and the same command resumes.", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # `hardsight score … | head`
        raise SystemExit(0) from None
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        alarm(sentence, "error")
        raise SystemExit(2) from None


def _sentence(error: Exception) -> str | None:
    """What an error says to the user; None for a bug of ours, which keeps its traceback."""
    if isinstance(error, HardsightError):
        return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.errno in _ENVIRONMENT:  # a file of ours that is missing is a bug
        return f"{error.strerror}: {error.filename or 'the disk'}"
    torch = sys.modules.get("torch")  # not imported for this: help answers at once
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        device = "memory" if isinstance(error, MemoryError) else "GPU memory"
        return f"out of {device}; what was committed is safe. Take a smaller --batch-size, or another --device."
    return None


def _in_utf8() -> None:
    """Start again with UTF-8 for file names where the locale has another encoding: ids must not depend on it."""
    if not sys.flags.utf8_mode and sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606
