"""The kinds of jobs: each has a request, and is listed where its row says."""

import time
from dataclasses import replace

import pytest

from app.jobs.kinds import KINDS, kind_of, told
from app.jobs.model import JobState
from app.jobs.store import JobStore
from app.widgets.job_panel import progress_text
from pruning.requests.calibration import CalibrateRequest

# Page and tab -> kinds that are listed there, as are others whose place is that of one of them.
USER = "test@example.com"  # AppTest's
LISTED = {
    ("evaluate", "This model"): {"evaluate", "sweep"},
    ("evaluate", "Benchmarks"): {"benchmark"},
    ("evaluate", "Hidden states"): {"variance"},
    ("evaluate", "Ask both models"): {"ask"},
    ("explore", "Evidence"): {"bins"},
    ("export", ""): {"export"},
    ("start", ""): set(KINDS),
}
# Kind and result of a job that is done -> what the list says of it.
SAID = [
    ("calibrate", {"sentence": "a-run: 64 tokens of a"}, "a-run: 64 tokens of a."),
    ("calibrate", {"run_id": "of an earlier version"}, ""),
    ("weights", {"sentence": "a-run: weights of 7 experts"}, "a-run: weights of 7 experts."),
    ("evaluate", {"sentence": "1 evaluation"}, "1 evaluation. See Evaluate, This model."),
    ("evaluate", {"evaluations": ["of an earlier version"]}, "See Evaluate, This model."),
    ("sweep", {"sentence": "4 rows"}, "4 rows. See Evaluate, This model."),
    (
        "repair",
        {"sentence": "6 of 6 layers refitted on 64 tokens of a"},
        "6 of 6 layers refitted on 64 tokens of a. See Plan.",
    ),
    ("fit", {"sentence": "reap 25%: 3 MiB, loss +0.1"}, "Reap 25%: 3 MiB, loss +0.1."),
    ("variance", {"sentence": "64 tokens"}, "64 tokens. See Evaluate, Hidden states."),
    ("bins", {"sentence": "of 0.9"}, "Of 0.9. See Explore, Evidence."),
    ("bins", {"bins": "of an earlier version"}, "See Explore, Evidence."),
    ("subsets", {"sentence": "36 evaluations"}, "36 evaluations. See Explore, Evidence."),
    ("search", {"sentence": "esap 0.5 of the best of 7"}, "Esap 0.5 of the best of 7."),
    ("search", {"candidates": 7, "fitness": 0.5}, ""),  # of an earlier version
    ("sensitivity", {"sentence": "1 corpus measured"}, "1 corpus measured."),
    (
        "ask",
        {"sentence": "a: the first 2 tokens\nlens a: 3 tokens scored"},
        "a: the first 2 tokens; lens a: 3 tokens scored. "
        "See Evaluate, Ask both models or Text lens.",
    ),
    (
        "benchmark",
        {"sentence": "2 candidates", "benchmarks": []},
        "2 candidates. See Evaluate, Benchmarks.",
    ),
    ("export", {"sentence": "Written to small"}, "Written to small. See Export."),
    ("export", {"out": "of an earlier version"}, "See Export."),
]


def test_every_kind_has_a_request_of_its_own():
    for name, kind in KINDS.items():
        assert kind_of(kind.request.model_construct()) == kind.request.asked_by == name


@pytest.mark.parametrize(("kind", "result", "said"), SAID, ids=str)
def test_the_list_says_what_came_of_a_job(kind, result, said):
    assert told(kind, result) == said


def test_two_calibrations_on_one_corpus_have_two_titles():
    asked = [CalibrateRequest(model="demo", corpus="demo-code", tokens=n) for n in (64, None)]
    titles = [KINDS["calibrate"].title.format(about="demo", request=request) for request in asked]
    assert titles == ["demo on demo-code, 64 tokens", "demo on demo-code, 65,536 tokens"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_came_of_it_and_where_it_is_seen(kind):
    words, where = "4 rows.", told(kind, {"sentence": ""})
    assert told(kind, {"sentence": "4 rows"}) == " ".join(filter(None, (words, where)))
    assert where.startswith("See ") == bool(KINDS[kind].place)


@pytest.fixture
def jobs(tmp_path):
    """One canceled job of each kind, and one that is done."""
    store = JobStore(tmp_path / "state" / "jobs.sqlite")
    for kind in KINDS:
        request = {"out": str(tmp_path / kind)}
        job = store.submit(kind, request, title="a title", command="moeprune", requested_by=USER)
        store.cancel(job.id)
    assert {job.state for job in store.list()} == {JobState.CANCELED}
    done = store.submit("evaluate", {}, title="done", command="moeprune", requested_by=USER)
    with store.transaction() as rows:
        rows.update(done.id, state=JobState.RUNNING, started_at=done.created_at)
    store.finish(done.id, JobState.DONE, result={"sentence": "1 evaluation"})


@pytest.mark.parametrize("place", LISTED, ids="-".join)
@pytest.mark.usefixtures("jobs")
def test_a_page_lists_the_jobs_that_it_is_about(open_page, place, monkeypatch):
    monkeypatch.setattr("app.widgets.job_panel._PER_PAGE", len(KINDS) + 1)
    view, part = place
    bins = {"tab": part, "evidence.view": "Score and loss"}
    address = {"evaluate": {"results": part}, "explore": bins}.get(view, {})
    test = open_page(view, **address)
    texts = [text.value for text in test.text]
    listed = {text.partition("  ")[0] for text in texts if "  a title" in text}
    places = {KINDS[kind].place for kind in LISTED[place]}
    assert listed == {kind for kind in KINDS if KINDS[kind].place in places} >= LISTED[place]
    is_told = any(text.endswith(" s. 1 evaluation. See Evaluate, This model.") for text in texts)
    assert is_told == ("evaluate" in LISTED[place])
    # None of the canceled ones kept anything, searches neither.
    assert "Continue" not in {button.label for button in test.button}


def test_a_running_job_says_how_far_it_is_and_how_long_it_takes(tmp_path):
    store = JobStore(tmp_path / "state" / "jobs.sqlite")
    job = store.submit("evaluate", {}, title="a title", command="moeprune", requested_by=USER)
    job = replace(job, state=JobState.RUNNING)
    assert progress_text(job) == "starting"
    job = replace(job, phase="evaluating", done=3, total=1200, unit="samples", share=0.336)
    assert progress_text(job) == "evaluating 3 of 1,200 samples, 34%"
    job = replace(job, seconds_left=750.0, progress_at=time.time())
    assert progress_text(job).endswith("34%, 12 min left")
