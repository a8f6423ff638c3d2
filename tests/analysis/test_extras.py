"""Optional libraries and how they are installed."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from analysis.extras import EXTRAS, install_line

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_every_extra_of_users_is_known():
    assert EXTRAS.keys() == PROJECT["optional-dependencies"].keys() - {"dev", "docs"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_installed_by_its_own_libraries_as_the_project_is_in_no_index(extra):
    (wanted,) = map(Requirement, PROJECT["optional-dependencies"][extra])
    (named,) = re.fullmatch(r"pip install '([^' ]+)'", install_line(extra)).groups()
    found = Requirement(named)
    assert (found.name, found.extras, found.marker) == (wanted.name, wanted.extras, None)
    assert found.specifier
