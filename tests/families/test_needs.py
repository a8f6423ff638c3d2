"""Families that need a newer transformers than the oldest that is allowed: refused by name."""

import importlib
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from analysis.calibration.loading import check_loadable
from analysis.checkpoint.index import Checkpoint
from analysis.errors import UnsupportedModelError
from analysis.families.listing import FAMILIES
from analysis.families.needs import why_too_old
from analysis.model.moe_model import MoEModel
from analysis.nonuniform.loading import auto_class_of
from builders import tiny_model
from pruning.engine.speculative import sharing_copy

ROOT = Path(__file__).parents[2]
NEEDY = [family for family in FAMILIES.values() if family.needs_transformers]
OLDER = "5.15.1"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Another version of transformers, as far as its metadata say."""

    def install(number):
        place = tmp_path / f"transformers-{number}.dist-info"
        place.mkdir()
        text = f"Metadata-Version: 2.1\nName: transformers\nVersion: {number}\n"
        (place / "METADATA").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        assert version("transformers") == number

    return install


def bare(model_type):
    """A model of a family, without tensors."""
    return MoEModel("mine", Checkpoint(Path(), {}, ()), FAMILIES[model_type], ())


@pytest.mark.parametrize("load", [check_loadable, auto_class_of])
def test_an_older_one_loads_the_rest_and_refuses_by_name_what_it_does_not_have(installed, load):
    installed(OLDER)
    load(bare("olmoe"))
    with pytest.raises(UnsupportedModelError) as caught:
        load(bare("jamba"))
    assert str(caught.value).endswith(
        f": Jamba needs transformers 5.21 or newer, and {OLDER} is installed: "
        "pip install 'transformers>=5.21'."
    )


def test_an_older_one_refuses_to_decode_speculatively(installed):
    installed(OLDER)
    with pytest.raises(UnsupportedModelError) as caught:
        sharing_copy(tiny_model("olmoe"))
    assert str(caught.value) == (
        f"Speculative decoding (spec-dec) needs transformers 5.18 or newer, and {OLDER} is "
        "installed: pip install 'transformers>=5.18'."
    )


def test_minor_versions_are_numbers(installed):
    installed("5.100.0.dev0")
    assert [why for family in NEEDY if (why := why_too_old(family))] == []


def test_every_family_holds_for_the_version_that_is_tried_and_says_no_more_than_it_must():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    allowed = {need.name: need.specifier for need in map(Requirement, declared)}["transformers"]
    tried = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    floor = min(Version(specifier.version) for specifier in allowed if specifier.operator == ">=")
    assert NEEDY
    for family in NEEDY:
        assert floor < Version(family.needs_transformers) <= Version(tried["transformers"])
        assert allowed.contains(f"{family.needs_transformers}.0")
