"""The command: one screen of help, and modules that are imported when one of their commands is asked for."""

from __future__ import annotations

import errno
import os
import sys
import warnings

from hardsight.errors import HardsightError, InputError
from hardsight.extras import printable
from hardsight.printing import alarm
from hardsight.registry import did_you_mean

# The module that holds the function of the same name, and the command's line on the first screen.
COMMANDS = {
    "demo": ("pages", "Train on real digits, score them out of sample, and write a page."),
    "score": ("scoring", "Score every sample of a data set: which ones are hard?"),
    "report": ("pages", "Turn a run into one page to look at."),
    "clean": ("pages", "List the labels that are probably wrong; write a cleaned copy."),
    "train": ("training", "Train a classifier and record every sample in every epoch."),
    "adapt": ("training", "Adapt a classifier to unlabeled data by self-training."),
    "align": ("evaluating", "Compare the scores of a run with people's answers."),
    "evaluate": ("evaluating", "Compare networks: calibration, OOD, robustness, explanation."),
    "figure": ("pages", "Draw a figure for a paper."),
    "study": ("studying", "Rerun a comparison of the papers."),
    "doctor": ("pages", "Check versions, devices, disk and arithmetic."),
    "completion": ("options", "Print a shell completion script."),
}
_OVERVIEW = """\
usage: hardsight COMMAND [options]

Find the examples a classifier finds hard, show them, and train with that knowledge.

{commands}

hardsight COMMAND --help explains a command and ends with examples.
Every command takes --json, which prints the result as JSON.
New here? hardsight demo"""
# Errors of the system, not of the program: no permission, a full or read-only disk, too many open files.
_ENVIRONMENT = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENAMETOOLONG)


def main(args: list[str] | None = None) -> None:
    """Entry point: an error prints one sentence, Ctrl-C says what is safe."""
    if args is None and not sys.flags.utf8_mode and sys.getfilesystemencoding() != "utf-8":
        # Start again with UTF-8 for file names: ids must not depend on the locale.
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks a character must not turn success into failure
            stream.reconfigure(errors="replace")
    warnings.showwarning = _show_warning
    try:
        _dispatch(*(sys.argv[1:] if args is None else args))
    except KeyboardInterrupt:
        print("\nstopped; what was committed is safe, and the same command resumes.", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # `hardsight score … | head`
        raise SystemExit(0) from None
    except Exception as error:
        if (sentence := _sentence(error)) is None or os.environ.get("HARDSIGHT_TRACEBACK"):
            raise
        alarm(sentence, "error")
        raise SystemExit(2) from None


def _dispatch(name: str = "--help", *args: str) -> None:
    if name in ("--help", "-h"):
        print(_OVERVIEW.format(commands="\n".join(f"  {name:<12}{about}" for name, (_, about) in COMMANDS.items())))
    elif name in ("--version", "-V"):
        from hardsight import __version__

        print(f"hardsight {__version__}")
    elif name not in COMMANDS:
        raise InputError(f"there is no command {name!r}; {did_you_mean(name, COMMANDS)}")
    else:
        from hardsight.cli.options import run_command

        run_command(name, list(args))


def _sentence(error: Exception) -> str | None:
    """The message for the user; None for a bug in hardsight, which keeps its traceback."""
    if isinstance(error, HardsightError):
        return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.errno in _ENVIRONMENT:  # one of our own files missing is a bug
        return f"{error.strerror}: {error.filename or 'the disk'}"
    torch = sys.modules.get("torch")  # not imported just for this: help must be fast
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        memory = "memory" if isinstance(error, MemoryError) else "GPU memory"
        return f"out of {memory}; what was committed is safe. Try a smaller --batch-size or another --device."
    return None


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Print a warning on one line, in red if a network is no better than chance."""
    if category.__name__ == "ChanceWarning":  # by name: its module needs scipy, which help must not wait for
        alarm(message)
    else:
        print(f"warning: {printable(message)}", file=sys.stderr)
