"""`moeprune report`: one page, whole or not there."""

from analysis.stats.store import SHIPPED_STATS


def test_a_report_of_all_views(works, here):
    output = works("report", "demo", "--corpus", "demo-code", "-o", "report.html")
    assert "left out" not in output
    page = (here / "report.html").read_text()
    assert "moeprune report demo --criterion reap --corpus demo-code --sparsity 50%" in page
    assert [path.name for path in here.iterdir()] == ["report.html"]


def test_what_is_left_out_is_said(works, here):
    output = works("report", "demo", "--criterion", "aimer", "--with-criterion", "magnitude")
    assert "left out: What two texts agree on: AIMER reads no text" in output
    assert (here / "report.html").is_file()


def test_a_report_does_not_say_where_the_statistics_lie(works, here):
    words = ("--corpus", "demo-code", "--view", "stratification")
    works("report", "demo", *words, "--stats-dir", str(SHIPPED_STATS))
    page = (here / "report.html").read_text()
    assert "--stats-dir cached_stats" in page
    assert str(SHIPPED_STATS) not in page


def test_a_report_without_a_figure_is_an_error(moeprune, here):
    outcome = moeprune("report", "demo", "--view", "overlap", "--sparsity", "1%")
    assert outcome.code == 1
    assert "Nothing can be drawn." in outcome.err
    assert "removes no expert" in outcome.err
    assert list(here.iterdir()) == []


def test_an_unknown_view_is_one_line(moeprune):
    outcome = moeprune("report", "demo", "--view", "overlaps")
    assert outcome.code == 1
    assert "Did you mean 'overlap'?" in outcome.err
