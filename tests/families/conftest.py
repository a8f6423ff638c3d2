"""The tiny model of each family, built and saved once for all tests of this folder."""

from collections.abc import Callable
from pathlib import Path

import pytest
from threads import one_thread  # noqa: F401

from families.built import Built
from families.configs import Case
from families.headed import HEADED, Made
from families.tiny_models import tiny_model


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Built]:
    """`built(case)`: the checkpoint of a case, made at the first use."""
    made: dict[str, Built] = {}

    def get(case: Case) -> Built:
        if case.name not in made:
            parent = tmp_path_factory.mktemp(case.name)
            model = tiny_model(case)
            layouts = ("experts", "stacked") if case.fused_too else ("experts",)
            for layout in layouts:
                model.save_pretrained(
                    parent / layout, max_shard_size="40KB", save_original_format=layout == "experts"
                )
            made[case.name] = Built(case, {layout: parent / layout for layout in layouts})
        return made[case.name]

    return get


@pytest.fixture
def glm(built: Callable[[Case], Built], tmp_path: Path) -> Made:
    """GLM-4.5 with a prediction head."""
    return Made(built, HEADED[0], tmp_path)
