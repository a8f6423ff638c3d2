"""Reports: one page that holds all it needs, in which names are text and numbers are those."""

import base64
import io
import json
import re
import shlex
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from page_texts import loaded_on, report_on
from plotly.offline import get_plotlyjs
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

import app.cli
from analysis.cache_keys import uncached
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore
from app.charts.listing import CHARTS
from app.loaded import CurrentPlan
from app.report.page import report_html, report_of, views_of
from app.report.story_page import story_html, story_page
from app.requested import loaded_of
from pruning.requests.ranking import DrawRequest
from pruning.spec.base import validated

PAGES = ("start", "explore", "compare", "export")


def scene_of(model="demo", **changes):
    first = {"model": str(model), "criterion": "reap", "sparsity": "50%", **changes}
    request = validated(DrawRequest, first)
    return loaded_of(request, load_model_index(str(model)), StatsStore(SHIPPED_STATS))


@pytest.mark.parametrize("file", ["", "mine.json"])
def test_a_report_names_the_whole_plan_that_is_compared_and_makes_its_file_first(file):
    other = scene_of(corpora=("demo-math",), sparsity="25%", schedule="late")
    own = scene_of(corpora=("demo-code",))
    beside = CurrentPlan(other.shown_plan, other.first)
    shown = CurrentPlan(own.shown_plan, None if file else own.first, file)
    report = report_of(replace(own, shown=shown, beside=beside), views_of(["sizes"]))
    assert report.facts["Compared with"] == "REAP, demo-math, late, 25%"
    if file:
        assert report.facts["Plan"].startswith(file)
        return
    makes, writes = map(shlex.split, report.commands)
    assert makes[:2] == ["moeprune", "plan"]
    assert makes[makes.index("-o") + 1] == writes[writes.index("--with-plan") + 1]
    # A file that is there already is not made again.
    report = report_of(replace(own, beside=CurrentPlan(other.shown_plan)), views_of(["sizes"]))
    assert [line.split()[1] for line in report.commands] == ["report"]


@pytest.fixture(scope="module")
def written():
    loaded = scene_of(corpora=("demo-code",))
    return report_html(
        report_of(loaded, views_of(["overlap-map", "kept-by", "sizes"]), "A <title>")
    )


def test_the_page_holds_plotly_once_and_names_no_other_place(written):
    assert written.count("plotly.js v") == 1
    own = written.replace(get_plotlyjs(), "")
    assert len(own) < len(written) / 2
    assert own.count("Plotly.newPlot(") == 1
    outside = re.sub(r"<script>.*?</script>", "", written, flags=re.S)
    assert not re.search(r"(src|href)=\"(?!data:|#)", outside)
    assert "default-src 'none'" in outside


def test_the_page_says_what_made_it_and_how_to_make_it_again(written):
    assert "<h1>A &lt;title&gt;</h1>" in written
    (run,) = SHIPPED_STATS.glob("demo-demo-code-*")
    for text in (
        json.loads((run / "manifest.json").read_text())["model"]["identity"][:16],
        run.name,
        "moeprune report demo --criterion reap --calibrated-on demo-code --sparsity 50% "
        "--with-criterion frequency --view overlap-map --view kept-by --view sizes",
    ):
        assert text in written


def test_every_figure_has_its_sentence_and_its_numbers(written):
    takeaways = re.findall(r'<p class="takeaway">(.*?)</p>', written, flags=re.S)
    assert len(takeaways) == 3
    assert takeaways[1].startswith("Of 192 experts both recipes keep ")
    tables = re.findall(r'download="([a-z-]+)\.csv" href="data:text/csv;base64,([^"]+)"', written)
    numbers = {name: pd.read_csv(io.BytesIO(base64.b64decode(text))) for name, text in tables}
    assert {name: len(table) for name, table in numbers.items()} == {
        "overlap-map": 17,
        "kept-by": 192,
        "sizes": len(numbers["sizes"]),
    }
    both = (numbers["kept-by"]["kept_by"] == "both").sum()
    assert f"both recipes keep {both} and" in takeaways[1]
    # The table on the page is a look at the first rows, and says so.
    assert "All 192 rows as CSV</a>\n, the first 100 below" in written


def test_what_cannot_be_drawn_is_left_out_with_the_reason():
    report = report_of(scene_of(criterion="aimer", sparsity="0"), views_of(["overlap", "sizes"]))
    assert [chart.name for chart, _ in report.sections] == ["sizes"]
    ((reason, (title,)),) = report.omitted.items()
    assert title == CHARTS["overlap"].title
    assert reason == (
        "AIMER reads no corpus, so all corpora agree; choose a calibrated criterion, such as reap."
    )
    assert reason in report_html(report)


def test_a_report_draws_stratification_as_plot_does_with_the_same_verdict(tmp_path):
    loaded = scene_of(corpora=("demo-code",))
    ((_, drawing),) = report_of(loaded, views_of(["stratification"])).sections
    file = tmp_path / "stratification.csv"
    words = ["demo", "--criterion", "reap", "--calibrated-on", "demo-code", "-o", str(file)]
    answer = CliRunner().invoke(app.cli.cli, ["plot", "stratification", *words])
    assert answer.exit_code == 0, answer.output
    assert drawing.alt in " ".join(answer.output.split())
    assert re.match(r"AIMER separates experts by \d.* random weights by .* chance\.", drawing.alt)
    written = pd.read_csv(file)
    pd.testing.assert_frame_equal(drawing.table, written, check_dtype=False, rtol=1e-6)


def test_names_are_text(tmp_path, demo_checkpoint):
    hostile = tmp_path / "<script>alert(1)<|script>&<img src=x onerror=alert(2)>"
    shutil.copytree(demo_checkpoint, hostile)
    loaded = scene_of(hostile, criterion="random")
    page = report_html(report_of(loaded, views_of(["sizes", "kept-by"]), "</script><b>"))
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert "<script>alert" not in page
    assert "<img" not in outside
    assert "</script><b>" not in page
    assert "&lt;img src=x onerror" in outside
    story = story_html(story_page(loaded, "</script><b>"))
    assert story.count("</script>") == 2  # of its data and of its script
    assert "<img" not in story
    assert "&lt;/script&gt;&lt;b&gt;" in story


@pytest.mark.parametrize("page_name", PAGES)
def test_each_page_with_figures_offers_its_report_and_the_command(open_page, page_name):
    test: AppTest = open_page(page_name, bare=False)
    (command,) = report_on(test)
    assert command.startswith("moeprune report demo --criterion reap --calibrated-on demo-code ")
    shown = (page_name, "expert")
    wanted = [name for name, view in CHARTS.items() if (view.page, view.granularity) == shown]
    assert re.findall(r"--view (\S+)", command) == wanted


def test_a_page_without_figures_offers_none(open_page):
    assert not report_on(open_page("story"))


@pytest.mark.parametrize(
    ("page_name", "address", "line"),
    [
        ("explore", {"granularity": "neuron", "neuron_scope": "layer"}, "--neuron-scope layer"),
        ("plan", {"granularity": "neuron", "protect": "0"}, "--protect 0"),
        ("plan", {"schedule": "global"}, "--schedule global"),
        ("export", {"protect": "0"}, "--protect 0"),
    ],
)
def test_a_report_of_a_plan_of_its_own_names_the_plan(open_page, page_name, address, line):
    test: AppTest = open_page(page_name, **address)
    (command,) = report_on(test)
    assert "report" in [button.key for button in test.get("download_button")]
    assert command.startswith("moeprune report demo ")
    assert line in command
    loaded = loaded_on(test)
    alone = replace(loaded, study=replace(loaded.study, cached=uncached))
    report = report_of(alone, views_of(["sizes", "neurons-kept"]))
    assert line.split()[-1] in report.facts["Plan"]
    # The page is shared: it names the statistics folder, not where that lies.
    folder = loaded.study.place.stats_dir
    of_page, of_report = (text.partition(" --view ")[0] for text in (command, *report.commands))
    assert of_report == of_page.replace(str(folder), folder.name)
