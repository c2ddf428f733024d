"""What ``help``, ``inspect`` and a notebook's ``?`` show of the public names."""

import doctest
import inspect
import pydoc

import pytest
import torch

import hardsight as hs
from hardsight import scores
from hardsight.registry import Registry
from hardsight.scores import SCORES, Score

OURS = [score for score in SCORES.values() if score.__module__ == "hardsight.scores"]  # tests may register others
PARAMETERS = ["features", "weight", "labels", "bias", "validate"]
PUBLIC = [name for name in hs.__all__ if callable(getattr(hs, name))]


@pytest.mark.parametrize("score", OURS, ids=lambda score: score.name)
def test_help_shows_the_score_and_not_its_class(score):
    text = inspect.getdoc(score)
    assert text.splitlines()[0] == score.summary
    assert "\n" not in score.summary
    assert all(fact in text for fact in (*score.facts, score.reference, score.range_text))
    assert f"{'Larger' if score.higher_is_harder else 'Smaller'} is harder" in text
    assert all(f"    {name}: " in text for name in PARAMETERS)
    assert text.index("Args:") < text.index("Examples:")
    page = pydoc.render_doc(score, renderer=pydoc.plaintext)
    assert page.splitlines()[2].startswith(f"{score.name} = ")
    assert score.summary in page
    assert inspect.getdoc(Score).splitlines()[0] not in page
    assert list(inspect.signature(score).parameters) == PARAMETERS
    assert score.__name__ == score.__qualname__ == score.name


def test_the_class_keeps_its_own_documentation():
    assert Score.__name__ == "Score"
    assert "Attributes:" in inspect.getdoc(Score)


@pytest.mark.parametrize(
    ("name", "text"),
    [("avh", "[0, 1]"), ("nll", "[0, ∞)"), ("margin", "(−∞, ∞)"), ("angular_margin", "[−π, π]"), ("el2n", "[0, √2]")],
)
def test_a_range_is_written_with_its_ends(name, text):
    assert SCORES[name].range_text == text


def test_the_examples_of_every_score_are_collected_and_can_fail():
    """pytest --doctest-modules collects what doctest's finder does, which passes over instances."""
    tests = {test.name.rpartition(".")[2]: test for test in doctest.DocTestFinder().find(scores) if test.examples}
    assert {score.name for score in OURS} <= set(tests)
    for score in OURS:
        assert doctest.DocTestRunner().run(tests[score.name], clear_globs=False).failed == 0
    tests["avh"].examples[-1].want = "tensor([0.4000])\n"
    assert doctest.DocTestRunner().run(tests["avh"], out=lambda text: None).failed == 1


def test_a_score_of_a_user_documents_itself_without_a_docstring():
    registry = Registry("score", Score)

    @registry.register(higher_is_harder=True, tolerance=(0, 0), reference="a test")
    def plain(r):
        return r.norm

    assert (plain.summary, plain.__module__) == ("", __name__)
    assert "Larger is harder" in inspect.getdoc(plain)
    assert plain([[3.0, 4.0]], torch.eye(2)).item() == 5


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_callable_says_what_it_is_and_shows_an_example(name):
    text = inspect.getdoc(getattr(hs, name)) or ""
    assert text.splitlines()[0].endswith((".", ":", "?"))
    assert doctest.DocTestParser().get_examples(text)
