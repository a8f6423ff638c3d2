"""The story as a file: its sentences, what it leaves out, what it refuses, its size."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import app.cli
from analysis.errors import PlanError
from app.literal import literal
from tools.reliability.load_world import make_world

ROOT = Path(__file__).parents[2]
STORY = ROOT / "docs/story.html"
MOST_BYTES = 3_000_000


def data_of(text):
    return json.loads(re.search(r' id="data">(.*?)</script>', text, re.DOTALL)[1])


def slides_of(text):
    return {slide["name"]: slide for slide in data_of(text)["slides"]}


@pytest.fixture
def write(tmp_path, environment, models_root, stats_dir):
    """Write the story of a model by its command: the file, and what the command answers."""

    def _write(model, *options):
        file = tmp_path / "story.html"
        where = (str(models_root / model), "--stats-dir", str(stats_dir))
        words = ["report", *where, "--story", "-o", str(file), *options]
        answer = CliRunner().invoke(app.cli.cli, words)
        return (file.read_text("utf-8") if file.exists() else ""), answer

    return _write


@pytest.mark.parametrize(
    ("slide", "address", "touched", "place"),
    [
        ("saves", {}, {}, ("steps", "50", "sentence")),
        ("saves", {"sparsity": "25%"}, {}, ("steps", "25", "sentence")),
        ("saves", {"sparsity": "70%"}, {}, ("steps", "70", "sentence")),
        ("stratification", {}, {}, ("sentence",)),
        ("corpora", {}, {"corpus": "(blend)"}, ("steps", "50", "measured", "(blend)", "sentence")),
        ("corpora", {"sparsity": "60%"}, {}, ("steps", "60", "unmeasured")),
        ("budget", {}, {"schedule": "global"}, ("steps", "50", 1, "sentence")),
        ("budget", {"sparsity": "30%"}, {"schedule": "late"}, ("steps", "30", 6, "sentence")),
        ("ships", {}, {}, ("steps", "50", "even", "sentence")),
        ("ships", {"sparsity": "25%"}, {"even": False}, ("steps", "25", "uneven", "sentence")),
    ],
)
def test_the_file_says_what_the_page_says(open_page, slide, address, touched, place):
    test = open_page(
        "story", finding=slides_of(STORY.read_text("utf-8"))[slide]["title"], **address
    )
    for key, value in touched.items():
        widgets = (*test.segmented_control, *test.toggle)
        (widget,) = (widget for widget in widgets if widget.key == f"story.{key}")
        widget.set_value(value).run()
    words = slides_of(STORY.read_text("utf-8"))[slide]
    for name in place:
        words = words[name]
    assert test.title[0].value == literal(words)


@pytest.mark.parametrize(("sparsity", "exponents"), [("50", (1, 0, 2)), ("45", (1, 1, 0))])
def test_the_file_counts_and_compares_criteria_as_the_page_does(open_page, sparsity, exponents):
    test = open_page("story", finding="Criteria disagree", sparsity=f"{sparsity}%")
    for key, value in zip(("b", "alpha", "beta"), exponents, strict=True):
        test.segmented_control(key=f"story.{key}").set_value(value)
    test.run()
    slide, key = slides_of(STORY.read_text("utf-8"))["criteria"], ",".join(map(str, exponents))
    loss = slide["steps"][sparsity].get(key)
    instead = loss["instead"] if loss else slide["unmeasured"]
    count = re.search(r"keeps (\d+) experts", test.title[0].value)[1]
    values = {"keeps": slide["labels"][key], "drops": "REAP", "count": count, "instead": instead}
    assert test.title[0].value == slide["template"].format(**values)
    assert bool(loss) == (sparsity == "50")


def test_the_file_of_the_documentation_has_the_scripts_and_styles_of_today():
    text = STORY.read_text("utf-8")
    for name in ("story.css", "story_ranking.js", "story_charts.js", "story.js"):
        content = (ROOT / "app/report" / name).read_text("utf-8")
        assert content.strip() in text, f"{name}: write docs/story.html again, see decision 0048"
    assert len(text.encode()) < MOST_BYTES
    assert not re.search(
        r"(src|href)=\"(?!data:|#)", re.sub(r"<script.*?</script>", "", text, flags=re.S)
    )


@pytest.mark.slow
def test_the_file_of_the_documentation_is_what_its_command_writes(tmp_path):
    file = tmp_path / "story.html"
    answer = CliRunner().invoke(app.cli.cli, ["report", "demo", "--story", "-o", str(file)])
    assert answer.exit_code == 0, answer.output
    ours, theirs = (
        re.sub(r"\d{4}-\d\d-\d\d\. Losses", "", path.read_text("utf-8")) for path in (STORY, file)
    )
    assert ours == theirs


@pytest.mark.slow
def test_the_story_of_a_large_model_stays_small(tmp_path):
    world = make_world(tmp_path, 48, 128)
    file = tmp_path / "story.html"
    words = ["report", str(world.models / "large"), "--stats-dir", str(world.stats)]
    answer = CliRunner().invoke(app.cli.cli, [*words, "--story", "-o", str(file)])
    assert answer.exit_code == 0, answer.output
    assert file.stat().st_size < MOST_BYTES
    assert "missing" not in json.dumps(data_of(file.read_text("utf-8")))


def test_of_weights_alone_the_rest_is_left_out_with_what_measures_it(write):
    text, answer = write("weighed")
    assert answer.exit_code == 0, answer.output
    slides = slides_of(text)
    missing = {name: slide["missing"] for name, slide in slides.items() if "missing" in slide}
    assert missing.keys() == {"criteria", "corpora"}
    assert "moeprune calibrate" in missing["criteria"]
    for words in missing.values():
        assert words in answer.output.replace("\n", " ")
    assert slides["saves"]["steps"]["50"]["sentence"].startswith("Half of the experts gone: ")
    assert slides["stratification"]["panels"][0]["random_spread"]


def test_of_one_corpus_the_corpora_and_the_weights_are_left_out(write):
    text, answer = write("once", "--criterion", "man")
    assert answer.exit_code == 0, answer.output
    missing = {n: s["missing"] for n, s in slides_of(text).items() if "missing" in s}
    assert missing.keys() == {"stratification", "corpora"}
    assert "moeprune weights" in missing["stratification"]
    assert "moeprune calibrate" in missing["corpora"]
    assert slides_of(text)["criteria"]["own"] == "MAN"


@pytest.mark.parametrize(
    "options",
    [("--protect", "0"), ("--schedule", "global"), ("--remove", "3"), ("--view", "sizes")],
)
def test_what_a_story_does_not_tell_is_refused_in_one_line(write, options):
    text, answer = write("once", *options)
    assert text == ""
    assert isinstance(answer.exception, PlanError)
    assert "story" in str(answer.exception)


def test_only_its_own_script_can_run():
    text = STORY.read_text("utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["script-src"].startswith("'sha256-")
    assert rules["img-src"] == "data:"
    assert "connect-src" not in rules
