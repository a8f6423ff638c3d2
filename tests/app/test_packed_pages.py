"""Pages of a model that cannot be run here: what needs its weights is not offered."""

import pytest
from page_texts import texts

from layouts.small_packed import small_packed


@pytest.fixture(scope="session")
def packed_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("packed")
    small_packed(root / "packed", "gptq")
    return root


@pytest.fixture
def models_root(packed_root):
    return packed_root


@pytest.mark.parametrize("page", ["start", "evaluate"])
def test_no_job_is_offered_that_would_be_refused(open_page, page):
    test = open_page(page, "packed", criterion="random")
    said = "neither calibrated nor evaluated: checkpoints quantised with gptq cannot be loaded"
    assert [said in text for text in texts(test.info)] == [True]
    commands = [line for code in texts(test.code) for line in code.splitlines()]
    needing = ("calibrate", "weights", "evaluate", "sweep")
    assert not [line for line in commands if line.split()[1:2] and line.split()[1] in needing]
    offered = {button.label for button in test.button}
    assert not offered & {"Run calibration", "Measure weights", "Run evaluation"}


def test_export_is_offered(open_page):
    test = open_page("export", "packed", criterion="random")
    assert "Run export" in {button.label for button in test.button}
    assert not test.info
