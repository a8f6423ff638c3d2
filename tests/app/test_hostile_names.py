"""Statistics that name their corpus as no one would: every page still says what it has to say."""

import shutil

import pytest
from hostile_names import FILES, FOREIGN, renamed_run

from analysis.stats.store import read_run
from app.pages.listing import PAGES

NAMES = (*FILES, *FOREIGN)


@pytest.fixture
def stats_dir(folders, tmp_path):
    """The statistics of `once`, under every one of the names."""
    stats = shutil.copytree(folders[1], tmp_path / "stats")
    (run,) = (path for path in stats.glob("once-*") if read_run(path).manifest.kind == "routed")
    for number, name in enumerate(NAMES):
        renamed_run(run, name, number)
    return stats


@pytest.mark.parametrize("page", PAGES)
def test_no_name_of_a_corpus_ends_a_page(open_page, page):
    # The first of them is no name that a recipe can have, as the page of plans says.
    said = [error.value for error in open_page(page, "once", expert="2.1").error]
    assert len(said) == (page == "plan")
    assert all("is not a corpus" in error for error in said)


def test_a_plan_of_any_corpus_is_shown_and_has_a_recipe_if_one_can_name_it(open_page):
    page = open_page("plan", "once")
    for name in NAMES:
        corpora = next(group for group in page.get("button_group") if group.key == "corpus")
        corpora.set_value(name).run()
        assert not page.exception, (name, page.exception)
        recipes = [code.value for code in page.code if code.language == "yaml"]
        if name in FILES and "=" not in name:
            assert len(recipes) == 1, (name, [error.value for error in page.error])
            assert not page.error
