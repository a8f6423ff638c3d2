"""Optional libraries and how they are installed; the program installed, or run from a clone."""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from analysis.files.shipped import tool_version
from analysis.machine.extras import EXTRAS, install_line

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_every_extra_of_users_is_known():
    assert EXTRAS.keys() == PROJECT["optional-dependencies"].keys() - {"dev", "docs"}


@pytest.fixture(params=[True, False], ids=["installed", "clone"])
def _place(request, monkeypatch):
    """Installed or not."""
    if not request.param:
        monkeypatch.setattr(sys, "path", [])  # where metadata of packages are looked for
        with pytest.raises(PackageNotFoundError):
            requires("moe-prune-studio")
    tool_version.cache_clear()


@pytest.mark.usefixtures("_place")
def test_the_version_is_the_declared_one():
    assert tool_version() == PROJECT["version"]


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_installed_by_its_own_libraries_as_the_project_is_in_no_index(extra):
    (wanted,) = map(Requirement, PROJECT["optional-dependencies"][extra])
    (named,) = re.fullmatch(r"pip install '([^' ]+)'", install_line(extra)).groups()
    found = Requirement(named)
    assert (found.name, found.extras, found.marker) == (wanted.name, wanted.extras, None)
    assert found.specifier
