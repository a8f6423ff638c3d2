"""Families that need a newer transformers than the oldest that is allowed: refused by name."""

import importlib
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from analysis.calibration.loading import check_loadable
from analysis.checkpoint import Checkpoint
from analysis.errors import UnsupportedModelError
from analysis.families import FAMILIES
from analysis.families.needs import why_too_old
from analysis.model import MoEModel
from analysis.nonuniform.loading import auto_class_of

ROOT = Path(__file__).parents[2]
NEEDY = [family for family in FAMILIES.values() if family.needs_transformers]
OLDER = "5.15.1"


@pytest.fixture
def older(tmp_path, monkeypatch):
    """An older transformers, as far as what is installed says."""
    said = tmp_path / f"transformers-{OLDER}.dist-info"
    said.mkdir()
    (said / "METADATA").write_text(f"Metadata-Version: 2.1\nName: transformers\nVersion: {OLDER}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert version("transformers") == OLDER


def bare(model_type):
    """A model of a family, without tensors."""
    return MoEModel("mine", Checkpoint(Path(), {}, ()), FAMILIES[model_type], ())


@pytest.mark.parametrize("load", [check_loadable, auto_class_of])
def test_an_older_one_refuses_by_name_what_it_does_not_have(older, load):
    with pytest.raises(UnsupportedModelError) as caught:
        load(bare("jamba"))
    assert str(caught.value).endswith(
        f": Jamba needs transformers 5.21 or newer, and {OLDER} is installed: "
        "pip install 'transformers>=5.21'."
    )


def test_an_older_one_loads_the_rest(older):
    check_loadable(bare("olmoe"))
    assert auto_class_of(bare("olmoe")).__name__ == "AutoModelForCausalLM"


def test_minor_versions_are_numbers(tmp_path, monkeypatch):
    said = tmp_path / "transformers-5.100.0.dev0.dist-info"
    said.mkdir()
    (said / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: transformers\nVersion: 5.100.0.dev0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert [why for family in NEEDY if (why := why_too_old(family))] == []


def test_every_family_holds_for_the_version_that_is_tried_and_says_no_more_than_it_must():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (allowed,) = (
        need.specifier for need in map(Requirement, declared) if need.name == "transformers"
    )
    tried = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    floor = min(Version(each.version) for each in allowed if each.operator == ">=")
    assert NEEDY
    for family in NEEDY:
        assert floor < Version(family.needs_transformers) <= Version(tried["transformers"])
        assert allowed.contains(f"{family.needs_transformers}.0")
