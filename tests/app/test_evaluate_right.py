"""Right answers on Evaluate: beside the loss of plans, and in the form."""

import shutil

import pytest
from page_texts import command, press
from streamlit.testing.v1 import AppTest

from analysis.drain import drain
from builders import ROWS
from pruning.actions.sweep import ACTION
from pruning.measures.right_answers import RightAnswers
from pruning.records.evaluation import EvaluationStore
from pruning.records.quality import plan_losses
from pruning.records.right_of_plans import (
    random_draws,
    right_apart,
    right_rows,
    right_shares,
    usual_questions,
)
from pruning.requests.evaluation import SweepRequest

FULL = (1, 1, 1, 1)
MARKS = {"": FULL, "reap": (1, 1, 0, 1), "random": (0, 0, 0, 1), "random:1": (0, 1, 1, 0)}


def answers_of(criterion, digest="same", full=FULL):
    return RightAnswers(
        check="number",
        answer_tokens=8,
        stops=(),
        digest=digest,
        left_out=0,
        right=MARKS[criterion],
        full_right=full,
        unfinished=0,
        full_unfinished=0,
    )


@pytest.fixture(scope="module")
def asked(folders):
    """Evaluations of `once` by two criteria at a third removed, each with four answers."""
    models, stats = folders
    request = SweepRequest(
        model=str(models / "once"),
        corpora=(str(models / "rows.jsonl"),),
        criteria=("reap", "random", "random:1"),
        sparsities=("34%",),
        samples=3,
        seq_len=9,
        measures=("nll",),
        stats_dir=stats,
    )
    store = EvaluationStore([stats])
    records = [
        record.with_right_answers(answers_of(record.plan.criterion), record.made)
        for record in drain(ACTION.run(request))
    ]
    for record in records:
        store.save(record)
    yield records
    for folder in stats.glob("models/*/evaluations"):
        shutil.rmtree(folder)


def test_the_page_shows_right_answers_beside_the_loss(open_page, asked):
    test = open_page("evaluate", model="once", measure="Right answers")
    assert any(
        "**Right answers** to held-out questions" in paragraph.value for paragraph in test.markdown
    )
    (shown,) = (table.value for table in test.table if "%" in table.value["original model"].iloc[0])
    # Random: a quarter and a half.
    assert shown["original model"].tolist() == ["100%"]
    assert shown["Random (2 draws)"].tolist() == ["38%"]
    table = test.dataframe[0].value.set_index("candidate")
    assert table.loc[f"REAP, on {ROWS}", "right"] == 0.75
    assert table.loc["Random (2 draws)", "right"] == 0.375


def test_the_plan_bar_and_compare_say_them(open_page, asked):
    address = {"model": "once", "sparsity": "35%", "criterion": "reap"}
    for page in ("plan", "compare"):
        test = open_page(page, **address)
        assert any(
            "right answers 75%, original 100%" in paragraph.value for paragraph in test.markdown
        )
    test = open_page("compare", **address, baseline="Random")
    # 3 of 4 less 1 of 4.
    assert any(
        "Right answers of A less B: +50" in paragraph.value and "(75% and 25%)" in paragraph.value
        for paragraph in test.markdown
    )


def test_start_begins_with_them(open_page, asked):
    test = open_page("start", model="once", sparsity="35%", criterion="reap")
    (title,) = (heading.value for heading in test.title)
    # Random: a quarter and a half.
    assert title.endswith("right answers 100% → 75% (random: 38%).")
    notes = [paragraph.help or "" for paragraph in test.markdown]
    assert any("3 of 4" in note or "75%" in note for note in notes)


def test_a_plan_that_was_not_asked_says_so(asked):
    losses = plan_losses(
        record.model_copy(update={"right_answers": None, "measures": ("nll",)})
        if record.plan.criterion == "reap"
        else record
        for record in asked
    )
    by_criterion = {loss.facts.criterion: loss for loss in losses}
    asked_of = usual_questions(losses)
    assert right_shares([by_criterion["reap"]], asked_of) == {}
    corpus = asked[0].corpus["name"]
    assert right_shares([by_criterion["random"]], asked_of) == {corpus: 0.25}
    assert right_rows(by_criterion["reap"], losses) == ()


def test_plans_are_compared_on_the_same_questions_alone(asked):
    losses = {plan_loss.facts.criterion: plan_loss for plan_loss in plan_losses(asked)}
    apart = right_apart(losses["reap"], losses["random"])
    # 3 of 4 less 1 of 4.
    assert apart.mean == 0.5
    others = [
        record.model_copy(update={"right_answers": answers_of("random", "other")})
        if record.plan.criterion == "random"
        else record
        for record in asked
    ]
    other = {plan_loss.facts.criterion: plan_loss for plan_loss in plan_losses(others)}
    assert right_apart(other["reap"], other["random"]) is None
    (row,) = right_rows(other["reap"], tuple(other.values()))
    assert (row.random, row.draws) == (0.5, 1)  # of the draw that was asked the same
    assert len(random_draws(other.values(), other["reap"].facts.removed, "expert")) == 2


def test_the_form_asks_a_corpus_by_a_rule_and_the_demos_by_its_own(open_page, queued_jobs):
    test = open_page("evaluate", model="once")
    test.selectbox(key="evaluate.check").set_value("number")
    test.text_input(key="evaluate.answer").set_value("sum")
    test.number_input(key="evaluate.questions").set_value(8)
    press(test, "Run evaluation")
    (job,) = queued_jobs()
    (corpus,) = job.request["corpora"]
    assert corpus.endswith("rows.jsonl,answer=sum,check=number")
    assert job.request["questions"] == 8
    assert f"--corpus {corpus}" in command(test, "evaluate", "--questions 8")
    test = open_page("evaluate")
    checks = test.selectbox(key="evaluate.check").options
    assert checks == ["not checked", "by the corpus' own check"]
    test.multiselect(key="evaluate.corpora").set_value(["demo-math"]).run()
    test.selectbox(key="evaluate.check").set_value("by the corpus' own check")
    press(test, "Run evaluation")
    assert "right" in queued_jobs()[1].request["measures"]


def test_a_rule_is_for_corpora_with_answers_and_a_preset_stays_as_it_is(open_page, queued_jobs):
    test = open_page("evaluate", model="once")
    known = test.multiselect(key="evaluate.corpora").value
    test.multiselect(key="evaluate.corpora").set_value([*known, "c4"]).run()
    test.selectbox(key="evaluate.check").set_value("number")
    press(test, "Run evaluation")
    assert not test.error
    (job,) = queued_jobs()
    *files, preset = job.request["corpora"]
    assert preset == "c4"
    assert files[0].endswith("rows.jsonl,answer=answer,check=number")
    test.multiselect(key="evaluate.corpora").set_value(["c4", "wikitext2"]).run()
    assert not [box for box in test.selectbox if box.key == "evaluate.check"]


def _two_reasons():
    from analysis.errors import SeveralErrors
    from app.errors import show_error

    show_error(SeveralErrors(["one is wrong.", "two is too."]))


def test_each_reason_of_a_refusal_has_its_own_line():
    (error,) = AppTest.from_function(_two_reasons).run().error
    # A line break of Markdown.
    assert error.value.split("  \n") == ["2 things are wrong:", "one is wrong.", "two is too."]


@pytest.mark.parametrize("column", ["a,b", "a,b=c", "a,check=number", "a\nb"])
def test_a_column_that_no_corpus_can_name_is_refused_without_a_path(
    open_page, folders, queued_jobs, column
):
    test = open_page("evaluate", model="once")
    test.selectbox(key="evaluate.check").set_value("number")
    test.text_input(key="evaluate.answer").set_value(column)
    press(test, "Run evaluation")
    (error,) = test.error
    assert error.value.startswith("The column of the answer cannot be 'a")
    assert "\n" not in error.value
    assert str(folders[0]) not in error.value
    assert not queued_jobs()
    test.text_input(key="evaluate.answer").set_value("a=b")
    press(test, "Run evaluation")
    assert not test.error
    (job,) = queued_jobs()
    assert job.request["corpora"][0].endswith("rows.jsonl,answer=a=b,check=number")
