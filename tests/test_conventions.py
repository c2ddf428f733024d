"""Rules of this repository that no linter knows."""

import ast
import builtins
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = sorted((ROOT / "tests").glob("test_*.py"))
LONGEST = 3  # words of a pattern: an argument, a value, and what tells two errors apart

# Raised for Python itself, or to end the process; all others are classes of errors.py.
ALLOWED = {"NotImplementedError", "AttributeError", "StopIteration", "SystemExit"}


@pytest.mark.slow
def test_files_are_short_and_errors_for_the_user_are_classes_of_ours():
    """Only those become a sentence in the command; `raise ValueError` would be a traceback there, `assert` nothing."""
    files = {file: file.read_text() for file in (ROOT / "src").rglob("*.py")}
    assert not [file for file, text in files.items() if len(text.splitlines()) > 450]  # grown past its idea
    nodes = [(file.name, node) for file, text in files.items() for node in ast.walk(ast.parse(text))]
    assert not [file for file, node in nodes if isinstance(node, ast.Assert)]
    calls = [
        (file, ast.unparse(node.func if isinstance(node, ast.Call) else node.exc))
        for file, node in nodes
        if isinstance(node, ast.Call) or (isinstance(node, ast.Raise) and node.exc is not None)
    ]
    kinds = {name: getattr(builtins, name, None) for _, name in calls}
    built_in = {name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, BaseException)}
    assert not [(file, name) for file, name in calls if name in built_in - ALLOWED]


def test_signs_and_percentages_are_written_by_one_module():
    """`printing` rounds and signs them alike everywhere: 93.5%, +0.012, −0.012."""
    files = [file for file in (ROOT / "src").rglob("*.py") if file.name != "printing.py"]
    specs = [
        (file.name, node.lineno, ast.unparse(node.format_spec)[2:-1])
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None
    ]
    assert len(specs) > 300
    assert not [spec for spec in specs if spec[2].startswith("+") or spec[2].endswith("%")]
    assert not [file.name for file in files if re.search(r"""replace\(["']-["'], ?["']−["']\)""", file.read_text())]


@pytest.mark.slow
def test_patterns_name_an_argument_and_a_value_not_a_sentence():
    """A sentence may be reworded; which argument is wrong, and what came, may not."""
    texts = [(file.name, text) for file in TESTS for text in patterns(ast.parse(file.read_text()))]
    assert len(texts) > 500
    assert not [(name, text) for name, text in texts if len(words(text)) > LONGEST]


def test_words_of_a_pattern():
    assert words(r"labels .*\[0, 9\], got 10") == ["labels", "got"]
    assert words(r"'pdg'; .*pgd|set\.npz") == ["'pdg';", "pgd", r"set\.npz"]


EXAMPLE = """
BAD = {"a": (1, "from a table")}
WORSE = {"b": "from another table"}
@pytest.mark.parametrize(("given", "text"), [(1, "of a parameter"), pytest.param(2, "of another", marks=slow)])
def test(given, text):
    with pytest.raises(ValueError, match=text): pass
    with pytest.raises(ValueError, match="itself"): pass
    with pytest.raises(ValueError, match=f"formatted {given}"): pass
    for wrong, why in ((1, "of a loop"),):
        with pytest.warns(UserWarning, match=why): pass
    local = "of a variable"
    with pytest.raises(ValueError, match=local): pass
    _, row = BAD[given]
    with pytest.raises(ValueError, match=row): pass
    with pytest.raises(ValueError, match=WORSE[given]): pass
"""


def test_patterns_are_found_wherever_they_stand():
    assert set(patterns(ast.parse(EXAMPLE))) == {
        "of a parameter", "of another", "itself", "formatted ", "of a loop", "of a variable", "from a table",
        "from another table",
    }  # fmt: skip


def words(pattern):
    """The words of a pattern; numbers, shapes and signs are none."""
    return [part for part in re.split(r"\.\*|\||\s+", pattern) if re.search(r"[^\W\d_]{2}", part)]


def patterns(tree):
    """Every text that `match=` may be: literal, or bound to its name by parametrize, a loop or an assignment."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        bindings = list(bound(function, tree))
        for keyword in ast.walk(function):
            if isinstance(keyword, ast.keyword) and keyword.arg == "match":
                names = {node.id for node in ast.walk(keyword.value) if isinstance(node, ast.Name)}
                values = [value for name, value in bindings if name in names]
                for value in rows(keyword.value, tree) + values:
                    yield from literals(value)


def bound(function, tree):
    """Pairs of a name and an expression that it may stand for."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("parametrize"):
            names = ast.literal_eval(node.args[0])
            names = [names] if isinstance(names, str) else names
            for row in getattr(node.args[1], "elts", ()):
                yield from columns(names, row)
        elif isinstance(node, ast.For):
            for row in getattr(node.iter, "elts", ()):
                yield from columns([ast.unparse(name) for name in getattr(node.target, "elts", [node.target])], row)
        elif isinstance(node, ast.Assign):
            names = [ast.unparse(name) for name in getattr(node.targets[0], "elts", node.targets)]
            for row in rows(node.value, tree):
                yield from columns(names, row)


def rows(value, tree):
    """An expression, or every value of the module's dictionary that it looks up."""
    if not isinstance(value, ast.Subscript):
        return [value]
    name = ast.unparse(value.value)
    return [
        row
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Dict)
        for row in node.value.values
    ]


def columns(names, row):
    """The names of a row beside its values; `pytest.param(…)` is a row."""
    values = row.args if isinstance(row, ast.Call) and ast.unparse(row.func) == "pytest.param" else None
    values = values or (row.elts if len(names) > 1 and isinstance(row, (ast.Tuple, ast.List)) else [row])
    return zip(names, values, strict=False)


def literals(value):
    """The texts in an expression."""
    return [node.value for node in ast.walk(value) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
