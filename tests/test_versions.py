"""The environments of other versions: what they hold, and what the page says was run."""

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from analysis.errors import UserError
from tools.versions.environments import ENVIRONMENTS, environment, floors, interpreter, pins

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDS = {need.name: need for need in map(Requirement, PROJECT["dependencies"])}


def test_every_dependency_has_a_floor_that_the_lowest_run_installs():
    lowest = {need.name: need for need in map(Requirement, pins(ENVIRONMENTS["lowest"]))}
    assert {name.replace("_", "-") for name in NEEDS} <= lowest.keys()
    for name, need in NEEDS.items():
        (floor,) = (specifier.version for specifier in need.specifier if specifier.operator == ">=")
        (pinned,) = lowest[name.replace("_", "-")].specifier
        assert (pinned.operator, pinned.version) == ("==", floor)


def test_the_tried_versions_are_allowed_and_no_floor_is_above_them():
    tried = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    tried = {name.lower().replace("_", "-"): version for name, version in tried.items()}
    for name, need in NEEDS.items():
        assert tried[name.replace("_", "-")] in need.specifier
    assert floors()["transformers"] == "5.15"


def test_another_transformers_chooses_what_it_needs_itself():
    names = {line.split("==")[0] for line in pins(ENVIRONMENTS["transformers-newest"])}
    assert {"transformers", "torch", "numpy"} <= names
    assert names.isdisjoint(("tokenizers", "huggingface-hub"))


def test_an_interpreter_is_asked_what_it_is(tmp_path, monkeypatch):
    """A pyenv shim of a version that is not switched on is on PATH and fails."""
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    shim = tmp_path / f"python{minor}"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert shutil.which(f"python{minor}") == str(shim)
    assert interpreter(minor) == Path(sys.executable)
    with pytest.raises(UserError, match=r"There is no Python 3\.99 on PATH or under pyenv"):
        interpreter("3.99")


def test_a_name_that_is_none_gets_the_list():
    with pytest.raises(UserError, match=r"there are python-3\.13, lowest, newest, "):
        environment("oldest")


def test_ci_runs_what_the_page_names():
    """Environments of .ci/run and of the workflow are in the table, and each has a row."""
    script = (ROOT / ".ci" / "run").read_text()
    (line,) = re.findall(r"tools\.versions test --at-hand (.+)", script)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (matrix,) = re.findall(r"versions: \[(.+)\]", workflow)
    assert {*line.split(), *matrix.split(", ")} == ENVIRONMENTS.keys()
    page = (ROOT / "docs" / "reference" / "versions.md").read_text()
    assert re.findall(r"^\| `([\w.-]+)` \|", page, re.MULTILINE) == list(ENVIRONMENTS)


def test_the_classifiers_are_the_interpreters_that_are_tried():
    said = {
        classifier.rpartition(" ")[2]
        for classifier in PROJECT["classifiers"]
        if ":: Python :: 3." in classifier
    }
    page = (ROOT / "docs" / "reference" / "versions.md").read_text()
    rows = re.findall(r"^\| Python (3\.\d+)\.\d+ \|", page, re.MULTILINE)
    assert set(rows) == said
