"""Start, of a model of one's own: four steps, and texts that a person adds."""

from pathlib import Path

import pytest
from page_texts import texts
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
    # Beside its button, for everybody who looks at this model; not for those of another.
    for page in (test, open_page("start", "bare")):
        assert "step.calibrate" not in [button.key for button in page.button]
        assert page.get("progress")
    assert "step.calibrate" in [button.key for button in open_page("start", "once").button]
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
    test.text_input(key="step.text.name").set_value("support")
    test.text_area(key="step.text.text").set_value("One document.\n\nAnother one.")
    next(button for button in test.button if button.label == "Add").click().run()
    assert not test.exception
    path = Path(test.selectbox(key="step.corpus").value)
    assert path.name == "support.txt"
    assert path.read_text("utf-8") == "One document.\n\nAnother one."
    # Here and in a new session it calibrates and measures.
    later = open_page("evaluate", "once")
    assert "support.txt" in later.multiselect(key="evaluate.corpora").options
    later.text_input(key="evaluate.text.name").set_value("support")
    later.text_area(key="evaluate.text.text").set_value("Other words.")
    next(button for button in later.button if button.label == "Add").click().run()
    assert any("support is there already" in text for text in texts(later.error))
    assert [file.name for file in path.parent.iterdir()] == ["support.txt"]


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
