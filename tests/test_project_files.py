"""What the repository says of itself: install commands, addresses, and the files that other tools read."""

import json
import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import yaml

from hardsight import __version__, extras
from hardsight.errors import StateError

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GIT = {"url": "https://host/name.git", "vcs_info": {"vcs": "git", "commit_id": "abc", "requested_revision": "main"}}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (GIT, 'pip install "hardsight[frames] @ git+https://host/name.git@abc"'),
        ({"url": "file:///a%20b", "dir_info": {"editable": True}}, "pip install -e '/a b[frames]'"),
        ({"url": "file:///a%20b", "dir_info": {}}, 'pip install "hardsight[frames] @ file:///a%20b"'),
        ({"url": "https://host/h.whl", "archive_info": {}}, 'pip install "hardsight[frames] @ https://host/h.whl"'),
        (None, 'pip install "hardsight[frames]"'),
    ],
)
def test_a_missing_extra_is_installed_from_where_hardsight_came_from(monkeypatch, origin, command):
    class Distribution:
        def read_text(self, name):
            return json.dumps(origin) if name == "direct_url.json" and origin else None

    monkeypatch.setattr(extras, "distribution", lambda name: Distribution())
    assert extras.install("frames") == command
    monkeypatch.setattr(extras, "EXTRAS", {"frames": ("no_such_package",)})
    with pytest.raises(StateError) as error:
        extras.need("no_such_package.part")
    assert command in str(error.value)


def test_a_package_that_no_extra_brings_and_a_folder_that_was_never_installed(monkeypatch):
    with pytest.raises(StateError, match="pip install no_such_package"):
        extras.need("no_such_package")

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", missing)
    assert extras.install("hf") == 'pip install "hardsight[hf]"'


def test_every_extra_that_a_hint_names_is_declared():
    declared = PROJECT["optional-dependencies"]
    for extra, packages in extras.EXTRAS.items():
        assert {re.split("[>=]", line)[0].replace("-", "_") for line in declared[extra]} >= set(packages)


def test_every_file_names_the_same_address():
    """To move the project, change `project.urls` and what this test then names."""
    url = PROJECT["urls"]["Repository"]
    assert all(other.startswith(url) for other in PROJECT["urls"].values())
    named = [*ROOT.glob("*.md"), *ROOT.glob("*.cff"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.yml")]
    texts = {file.relative_to(ROOT).as_posix(): file.read_text() for file in named if "_build" not in file.parts}
    addresses = {name: set(re.findall(r"https://[\w./-]*/hardsight/hardsight\b", text)) for name, text in texts.items()}
    assert {name for name, found in addresses.items() if found - {url}} == set()
    assert {"README.md", "CITATION.cff", "docs/install.md"} <= {name for name, found in addresses.items() if found}


def test_the_citation_is_of_this_version_and_names_the_three_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["title"], str(citation["version"]), citation["license"]) == (
        "hardsight",
        __version__,
        "Apache-2.0",
    )
    assert [paper["year"] for paper in citation["references"]] == [2020, 2022, 2020]
    assert all(paper["authors"] and paper["title"] for paper in citation["references"])


def test_the_workflow_runs_the_gate_and_hooks_name_installed_tools():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert any(step.get("run") == "bash .ci/run" for step in steps)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    tools = {
        line.split(">")[0]
        for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["check"]
    }
    assert {hook["entry"].split()[2] for hook in hooks} <= tools
