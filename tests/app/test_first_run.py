"""Start, of a model of one's own: four steps, and texts that a person adds."""

import shutil
from pathlib import Path

import pytest
from page_texts import loaded_on, texts
from streamlit.testing.v1 import AppTest

from analysis.errors import UserError
from analysis.files.shipped import DEMO_MODEL
from app.jobs.model import JobState
from app.session.data import calibration_corpora
from app.session.job_queue import job_store
from app.session.own_texts import add_text

STEPS = ["1. Calibrate", "2. Plan", "3. Evaluate", "4. Export"]


def steps_of(test: AppTest) -> list[str]:
    return [text.strip("*") for text in texts(test.markdown) if text.strip("*") in STEPS]


def badges_of(test: AppTest) -> list[str]:
    return [text for text in texts(test.markdown) if "-badge[" in text]


def test_models_are_one_click_away_and_the_demo_has_no_steps(open_page):
    test = open_page("start")
    assert steps_of(test) == []
    test.button(key="model.bare").click().run()
    assert not test.exception
    assert test.selectbox(key="model").value == "bare"
    assert steps_of(test) == STEPS
    test.button(key=f"model.{DEMO_MODEL}").click().run()
    assert steps_of(test) == []


def test_the_steps_queue_what_is_next_and_show_its_progress(open_page, queued_jobs):
    test = open_page("start", "bare")
    test.selectbox(key="step.corpus").set_value("demo-math").run()
    test.button(key="step.calibrate").click().run()
    (job,) = queued_jobs()
    assert (job.kind, job.request["corpus"]) == ("calibrate", "demo-math")
    # In place of its button, and beside that of others who look at this model.
    assert "step.calibrate" not in [button.key for button in test.button]
    other = open_page("start", "bare")
    assert "step.calibrate" in [button.key for button in other.button]
    assert other.get("progress")
    assert test.get("progress")
    # Of another model the list of jobs alone has one.
    assert len(open_page("start", "once").get("progress")) == len(test.get("progress")) - 1
    with job_store().transaction() as jobs:
        jobs.update(job.id, state=JobState.RUNNING, started_at=1.0)
    job_store().finish(job.id, JobState.FAILED, error="the disk is full")
    test.run()
    assert "step.calibrate" in [button.key for button in test.button]
    assert "the disk is full" in texts(test.error)


def test_weights_alone_give_a_plan(open_page, queued_jobs):
    test = open_page("start", "bare")
    test.button(key="step.weights").click().run()
    (job,) = queued_jobs()
    assert job.kind == "weights"
    test = open_page("start", "weighed")
    test.button(key="step.aimer").click().run()
    assert not test.exception
    assert any("AIMER, 50%" in text for text in badges_of(test))
    test.button(key="step.measure").click().run()
    assert [job.kind for job in queued_jobs()] == ["weights", "evaluate"]


def test_a_text_is_added_chosen_and_kept(open_page, environment):
    test = open_page("start", "bare")
    test.text_input(key="step.text.0.name").set_value("support")
    test.text_area(key="step.text.0.text").set_value("One document.\n\nAnother one.")
    next(button for button in test.button if button.label == "Add").click().run()
    assert not test.exception
    path = Path(test.selectbox(key="step.corpus").value)
    assert path.name == "support.txt"
    assert path.read_text("utf-8") == "One document.\n\nAnother one."
    # Here and in a new session it calibrates and measures.
    later = open_page("evaluate", "once")
    assert "support.txt (added)" in later.multiselect(key="evaluate.corpora").options
    later.text_input(key="evaluate.text.0.name").set_value("support")
    later.text_area(key="evaluate.text.0.text").set_value("Other words.")
    next(button for button in later.button if button.label == "Add").click().run()
    assert any("support is there already" in text for text in texts(later.error))
    # What is refused stays typed.
    assert later.text_area(key="evaluate.text.0.text").value == "Other words."
    assert [file.name for file in path.parent.iterdir()] == ["support.txt"]
    later.button(key="evaluate.text.remove").click().run()
    assert not path.exists()
    assert "support.txt (added)" not in later.multiselect(key="evaluate.corpora").options


def test_a_step_is_done_while_what_it_made_is_there(open_page, models_root, tmp_path):
    """Of the plan on screen, and of this model alone."""
    out = tmp_path / "exports" / "small"
    out.mkdir(parents=True)
    shown = open_page("start", "weighed", criterion="aimer")
    digest = loaded_on(shown).shown.plan.digest
    store, request = (
        job_store(),
        {"model": str(models_root / "weighed"), "plan": {}, "out": str(out)},
    )
    job = store.submit("export", request, "small", "moeprune export", "local")
    with store.transaction() as jobs:
        jobs.update(job.id, state=JobState.RUNNING, started_at=1.0)
    store.finish(job.id, JobState.DONE, result={"out": str(out), "plan_digest": digest})

    def is_written(**address):
        page = open_page("start", "weighed", **address)
        return any("written and verified" in text for text in badges_of(page))

    assert is_written(criterion="aimer")
    assert not is_written(criterion="magnitude")
    shutil.rmtree(out)
    assert not is_written(criterion="aimer")


def test_an_error_stands_at_the_model_that_it_is_of_until_a_retry(open_page, queued_jobs):
    test = open_page("start", "bare")
    test.button(key="step.calibrate").click().run()
    (job,) = queued_jobs()
    with job_store().transaction() as jobs:
        jobs.update(job.id, state=JobState.RUNNING, started_at=1.0)
    job_store().finish(job.id, JobState.FAILED, error="the disk is full")
    test.selectbox(key="model").set_value("once").run()
    assert "the disk is full" not in texts(test.error)
    test.selectbox(key="model").set_value("bare").run()
    assert "the disk is full" in texts(test.error)
    job_store().retry(job.id, requested_by=None)
    assert "the disk is full" not in texts(test.run().error)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("../up", b"text", "not usable"),
        ("", b"text", "not usable"),
        ("a" * 41, b"text", "not usable"),
        ("blank", b" \n\n ", "empty"),
        ("bytes", b"\xff\xfe", "not UTF-8"),
        ("nulls", b"a\0b", "null bytes"),
    ],
)
def test_what_is_no_text_is_refused_in_one_line(environment, name, content, why):
    before = calibration_corpora()
    with pytest.raises(UserError, match=why) as refusal:
        add_text(name, content)
    assert "\n" not in str(refusal.value)
    assert calibration_corpora() == before


def test_texts_of_one_user_are_not_those_of_another(environment, monkeypatch):
    path = add_text("mine", b"A text.")
    monkeypatch.setattr("app.session.data.user", lambda: "someone@example.org")
    assert path not in calibration_corpora()
    theirs = add_text("mine", b"A text of theirs.")
    assert theirs in calibration_corpora()
    assert theirs != path
