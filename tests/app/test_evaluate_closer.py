"""Evaluate, looking closer: hidden states layer by layer, and answers side by side."""

import json
import math
import shutil

import pytest
from page_texts import ALL_CORPORA, command, press
from shipped import shipped_lines

from analysis.drain import drain
from analysis.model.opening import load_model_index
from app.widgets.answers import marked
from builders import ROWS
from pruning.actions.variance import ACTION, VarianceRequest
from pruning.plan.plan import keep_all
from pruning.records.kept_answers import Answer, AnswerRecord, AnswerStore
from pruning.records.variances import VarianceStore

HIDDEN, ASK = "Hidden states", "Ask both models"


@pytest.fixture(scope="module")
def measured(folders):
    """Hidden states of `once`, full and by two criteria at a third removed."""
    models, stats = folders
    request = VarianceRequest(
        model=str(models / "once"),
        corpora=(str(models / "rows.jsonl"),),
        criteria=("reap", "random"),
        sparsities=("34%",),
        samples=3,
        seq_len=9,
        stats_dir=stats,
    )
    full, reap, random = drain(ACTION.run(request))
    yield {"full": full, "reap 34%": reap, "random 34%": random}
    for folder in stats.glob("models/*/variances"):
        shutil.rmtree(folder)


def test_hidden_states_are_those_of_the_records(open_page, measured):
    test = open_page("evaluate", model="once", results=HIDDEN)
    (chart,) = (json.loads(chart.proto.spec) for chart in test.get("plotly_chart"))
    full = measured["full"].variances
    labels = {f"REAP, on {ROWS}, 33%": "reap 34%", "Random, 33%": "random 34%"}
    assert {trace["name"] for trace in chart["data"]} == {*labels, "Original model"}
    table = test.dataframe[0].value.set_index("candidate")
    for label, name in labels.items():
        pruned = measured[name].variances
        # By hand: the mean over layers of |ln(pruned / full)|, then its exponential.
        logs = [abs(math.log(a / b)) for a, b in zip(pruned, full, strict=True)]
        assert table.loc[label, "mean_factor"] == pytest.approx(math.exp(sum(logs) / len(logs)))
        assert table.loc[label, "last_layer"] == pytest.approx(pruned[-1] / full[-1])
    assert table["mean_factor"].is_monotonic_increasing
    assert f"closest to the original model {table.index[0]}" in "".join(t.value for t in test.text)


def test_a_damaged_record_is_named_and_the_others_are_shown(open_page, measured, stats_dir):
    damaged = VarianceStore([stats_dir]).path(measured["full"]).with_name("broken.json")
    damaged.write_text('{"schema_version": 1}')
    try:
        test = open_page("evaluate", model="once", results=HIDDEN)
        assert "broken.json cannot be read" in test.warning[0].value
        assert test.get("plotly_chart")
    finally:
        damaged.unlink()


def test_what_to_measure_is_asked_for_by_a_command(open_page):
    test = open_page("evaluate", model="bare", results=HIDDEN)
    assert any("No measurements of this model yet" in info.value for info in test.info)
    shown = command(test, "variance")
    assert "--criterion reap --criterion frequency --criterion random " in shown
    assert " --sparsity 50% " in shown
    test.multiselect(key="variance.criteria").set_value([])
    press(test, "Run measurement")
    assert any("criteria with a sparsity" in text.value for text in test.text)


def test_plans_and_criteria_go_into_one_request():
    both = VarianceRequest(model="m", corpora=("a.txt",), plans=({},))
    assert both.sweep is None
    assert both.command() == "moeprune variance m --plan plan.json --corpus a.txt -o variance.csv"


@pytest.mark.parametrize(
    ("text", "full", "shown"),
    [
        ("x = 1", "x = 2", "x = <mark>1</mark>"),
        ("same", "same", "same"),
        ("longer", "long", "long<mark>er</mark>"),
        ("<img src=x>", "<b>", "&lt;<mark>img src=x&gt;</mark>"),
        ("&", "", "<mark>&amp;</mark>"),
        (" \n", "abc", "(nothing)"),
    ],
)
def test_what_follows_the_first_difference_is_marked_and_all_is_escaped(text, full, shown):
    assert marked(text, full) == f"<pre class='answer'>{shown}</pre>"


def test_the_full_answer_has_no_mark():
    assert marked("abc", "abc", mark=False) == "<pre class='answer'>abc</pre>"


def test_the_plan_that_is_asked_is_made_by_the_command_above(open_page):
    test = open_page("evaluate", model="once", results=ASK)
    test.text_area[0].set_value("Hello <there>").run()
    assert not test.exception
    assert "--criterion reap --calibrated-on" in command(test, "plan")
    asked = command(test, "ask")
    assert "--plan plan.json --prompt 'Hello <there>' --max-new-tokens 64" in asked
    test.selectbox(key="criterion").set_value("random").run()
    asked = command(test, "plan")
    assert "--criterion random " in asked
    assert "--sparsity 50%" in asked
    test.text_area[0].set_value("  ").run()
    assert any("Enter a prompt" in text.value for text in test.text)


def test_the_first_answers_are_those_of_the_plan_on_screen(open_page):
    prompt = "Solve for x: 4 * x + 3 = 23."
    test = open_page("evaluate", results=ASK)
    assert test.selectbox(key=question(test)).options[0] == f"{prompt} (REAP, on demo-code)"
    heads = [text.value for text in test.markdown if "demo-code" in text.value]
    (agreed,) = (
        raw["answers"][1]["agreed"]
        for raw in map(json.loads, shipped_lines("answers").values())
        if (raw["plan"]["criterion"], raw["plan"]["corpora"]) == ("reap", ["demo-code"])
    )
    verdict = f"**REAP, on demo-code**: differs after {agreed} tokens"
    assert any(head.startswith(verdict) for head in heads)
    best = open_page(
        "evaluate", results=ASK, criterion="ean", corpora=ALL_CORPORA, schedule="global"
    )
    said = best.selectbox(key=question(best)).options[0]
    assert said == f"{prompt} (EAN, on blend of 3 corpora, global)"


def question(test):
    (box,) = (box for box in test.selectbox if box.label == "Question")
    return box.key


def test_names_of_corpora_in_lists_are_written_as_they_are(open_page, models_root):
    """Lists, unlike pills and sliders, read no Markdown: a backslash would be seen."""
    odd = models_root / "_a_ *b*.jsonl"
    odd.write_bytes((models_root / "rows.jsonl").read_bytes())
    try:
        test = open_page("evaluate", model="once")
        assert odd.name in test.multiselect(key="evaluate.corpora").options
        hidden = open_page("evaluate", model="once", results="Hidden states")
        assert odd.name in hidden.selectbox(key="variance.text").options
    finally:
        odd.unlink()


def test_answers_stand_side_by_side_after_a_reload(open_page, models_root, stats_dir):
    said = [
        Answer("is <b>2", (5, 6, 7), 3, 0.25),
        Answer("is <b>3", (5, 6, 8), 2, 0.25),
    ]
    for name in ("once", "bare"):
        model = load_model_index(str(models_root / name))
        asked = ("<i>1 + 1", {"dtype": "float32", "max_new_tokens": 8, "raw": False})
        AnswerStore([stats_dir]).save(AnswerRecord.of(model, keep_all(model), asked, said))
    try:
        test = open_page("evaluate", model="once", results=ASK)
        test.toggle(key="others.question").set_value(True).run()  # this session asked nothing
    finally:
        for folder in stats_dir.glob("models/*/answers"):
            shutil.rmtree(folder)
    shown = [block.value for block in test.get("html") if "<pre" in getattr(block, "value", "")]
    bodies = shown or [block.proto.body for block in test.get("html") if "<pre" in block.proto.body]
    assert bodies == [
        "<pre class='answer'>is &lt;b&gt;2</pre>",
        "<pre class='answer'>is &lt;b&gt;<mark>3</mark></pre>",
    ]
    assert any(text.value.endswith(": differs after 2 tokens") for text in test.markdown)
    # One of this model, so there is nothing to choose.
    assert not [box for box in test.selectbox if box.label == "Question"]
