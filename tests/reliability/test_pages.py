"""Strange addresses in their short form; `python -m tools.reliability.pages` is the long one."""

import logging

import pytest

from app.pages.listing import PAGES
from tools.reliability.pages import folders_of, fuzz_pages

ADDRESSES = 1


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Folders of a server of its own."""
    from app.session.data import settings

    for name, value in folders_of(tmp_path).items():
        monkeypatch.setenv(name, value)
    settings.clear()
    yield tmp_path
    settings.clear()


@pytest.mark.slow  # tests/app/test_one_plan.py and test_security.py have addresses one by one
def test_no_address_breaks_a_page_or_writes_a_file(server):
    logging.getLogger("streamlit.runtime.scriptrunner_utils.script_run_context").setLevel("ERROR")
    tallies = fuzz_pages(ADDRESSES, seed=0)
    assert [problem for tally in tallies.values() for problem in tally.problems] == []
    assert {page: tally.inputs for page, tally in tallies.items()} == dict.fromkeys(
        PAGES, ADDRESSES
    )
    written = [path for path in server.rglob("*") if path.is_file()]
    assert [path for path in written if path.parent.name != "state"] == []
