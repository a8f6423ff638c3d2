"""A prompt is its own person's: nobody else's example, and its answer stands below it alone."""

import shutil

import pytest
from page_texts import press, texts

from analysis.files.shipped import SHIPPED_STATS
from app.jobs.model import JobState
from app.session.data import settings
from app.session.job_queue import job_store
from pruning.records.kept_answers import AnswerStore
from pruning.records.lens import LensQuestion, LensStore

OTHERS = "The diagnosis of my neighbour is"
ASK, LENS = "Ask both models", "Text lens"


@pytest.fixture
def shared(environment, stats_dir, tmp_path, monkeypatch):
    """A statistics folder with the answer to another person's prompt, and with their text."""
    folder = tmp_path / "stats"
    shutil.copytree(stats_dir, folder)
    monkeypatch.setenv("MOEPRUNE_STATS_DIR", str(folder))
    settings.clear()
    _answer(folder, OTHERS)
    for record in LensStore([SHIPPED_STATS]).records()[:1]:
        asked = LensQuestion(text=f"{OTHERS} bad")
        LensStore([folder]).save(
            record.model_copy(update={"record_id": "demo-lens-own", "asked": asked})
        )
    return folder


def _answer(folder, prompt):
    """Every shipped answer again, newer, to this prompt."""
    made = {"created_at": "2099-01-01T00:00:00.000+00:00"}
    for number, record in enumerate(AnswerStore([SHIPPED_STATS]).records()):
        name = f"demo-answers-{len(prompt)}-{number}"
        update = {"record_id": name, "prompt": prompt, "made": made}
        AnswerStore([folder]).save(record.model_copy(update=update))


def said(test):
    every = (test.text, test.markdown, test.caption, test.get("html"))
    bodies = [
        block.proto.body if block.type == "html" else block.value
        for part in every
        for block in part
    ]
    lists = [option for box in test.selectbox for option in box.options]
    return "\n".join([*bodies, *lists])


@pytest.mark.parametrize("address", [("start", {}), ("evaluate", {"results": ASK})])
def test_the_prompt_of_another_person_is_no_example(open_page, shared, address):
    page, query = address
    test = open_page(page, **query)
    assert "20 / 4 = 5." in said(test)  # the shipped one
    assert OTHERS not in said(test)


@pytest.mark.parametrize(("view", "key"), [(ASK, "others.question"), (LENS, "others.text")])
def test_records_of_others_are_shown_on_request(open_page, shared, view, key):
    test = open_page("evaluate", results=view)
    assert OTHERS not in said(test)
    test.toggle(key=key).set_value(True).run()
    assert not test.exception
    assert OTHERS in said(test)


def test_a_text_of_another_person_is_not_read_out_on_the_page_of_an_expert(open_page, shared):
    with_it = open_page("expert", layer="2", expert="7")
    for folder in shared.glob("models/*/lenses"):
        shutil.rmtree(folder)
    assert texts(open_page("expert", layer="2", expert="7").markdown) == texts(with_it.markdown)


@pytest.mark.parametrize("page", ["start", "evaluate"])
def test_an_answer_stands_below_its_own_prompt(open_page, shared, queued_jobs, page):
    prompt = "Solve for x: 9 * x = 18."
    test = open_page(page, **({"results": ASK} if page == "evaluate" else {}))
    if page == "start":
        test.text_input(key="start.prompt").set_value(prompt)
        press(test, "Ask")
    else:
        test.text_area[0].set_value(prompt).run()
        press(test, "Ask both")
    (job,) = queued_jobs()
    assert job.request["prompt"] == prompt
    # Until it is answered: how far it is, and no other answer.
    assert not [block for block in test.get("html") if "<pre" in block.proto.body]
    assert any("waiting for its turn" in bar.proto.text for bar in test.get("progress"))
    _answer(shared, prompt)
    with job_store().transaction() as jobs:
        jobs.update(job.id, state=JobState.DONE, finished_at=1.0)
    test.run()
    assert not test.exception
    assert [block for block in test.get("html") if "<pre" in block.proto.body]
    assert prompt in texts(test.text)
    assert OTHERS not in said(test)
