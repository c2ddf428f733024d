"""The command as a user calls it, inside the test's own process."""

from hardsight.cli import main


def run(capsys, *args):
    """Exit code, standard output and standard error of a command."""
    try:
        main([str(a) for a in args])
        code = 0
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def failure(capsys, *args):
    """What a command says that ends in an error of the user's."""
    code, _, err = run(capsys, *args)
    assert code == 2
    return err
