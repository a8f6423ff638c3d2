"""The table of jobs: every kind has a task, and is listed where its row says."""

from importlib import import_module

import pytest

from app.jobs.kinds import KINDS, kind_of
from app.jobs.model import JobState
from app.jobs.store import JobStore
from pruning.requests.calibration import CalibrateRequest

# Page and tab -> the kinds that are listed there.
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
SCORED = {"source": "lm-eval", "settings": {"limit": 8}}
CHECKED = {"level": "logits", "checks": [{"ok": True}, {"ok": False}]}
# Kind and result of a job that is done -> what the list says of it.
SAID = [
    ("calibrate", {"run_id": "a-run"}, "Statistics a-run are in the cache."),
    ("weights", {"run_id": "a-run"}, "Statistics a-run are in the cache."),
    ("evaluate", {"sentence": "1 evaluation"}, "1 evaluation. See Evaluate, This model."),
    ("evaluate", {"evaluations": ["of an earlier version"]}, "See Evaluate, This model."),
    ("sweep", {"sentence": "4 rows"}, "4 rows. See Evaluate, This model."),
    (
        "repair",
        {"sentence": "6 of 6 layers refitted on 64 tokens of a"},
        "6 of 6 layers refitted on 64 tokens of a. See Plan.",
    ),
    ("variance", {"sentence": "64 tokens"}, "64 tokens. See Evaluate, Hidden states."),
    ("bins", {"sentence": "of 0.9"}, "Of 0.9. See Explore, Evidence."),
    ("bins", {"bins": "of an earlier version"}, "See Explore, Evidence."),
    ("subsets", {"sentence": "36 evaluations"}, "36 evaluations. See Explore, Evidence."),
    ("search", {"candidates": 7, "fitness": 0.5}, "The best of 7 candidates has 0.5000."),
    ("sensitivity", {"sentence": "1 corpus measured"}, "1 corpus measured."),
    (
        "ask",
        {"sentence": "a: the first 2 tokens\nlens a: 3 tokens scored"},
        "A: the first 2 tokens; lens a: 3 tokens scored. "
        "See Evaluate, Ask both models or Text lens.",
    ),
    (
        "benchmark",
        {"benchmarks": [SCORED, SCORED]},
        "Scores of 2 candidates are under Evaluate, Benchmarks: lm-eval, 8 questions.",
    ),
    ("export", {"out": "small"}, "Written to small"),
    (
        "export",
        {"out": "small", "verify": CHECKED},
        "Verified at level logits: 1 of 2 checks. Written to small",
    ),
    (
        "export",
        {"out": "small", "verify": CHECKED | {"max_abs_diff": 0.00125}},
        "Verified at level logits: 1 of 2 checks, largest logit difference to the masked original "
        "0.0013. Written to small",
    ),
]


def test_every_kind_has_a_request_of_its_own_and_a_task():
    for name, kind in KINDS.items():
        module, _, task = kind.task.rpartition(".")
        assert not task or callable(getattr(import_module(f"pruning.tasks.{module}"), task))
        assert kind_of(kind.request.model_construct()) == name


@pytest.mark.parametrize(("kind", "result", "said"), SAID, ids=str)
def test_the_list_says_what_came_of_a_job(kind, result, said):
    assert KINDS[kind].sentence(result) == said


def test_two_calibrations_on_one_corpus_have_two_titles():
    asked = [CalibrateRequest(model="demo", corpus="demo-code", tokens=n) for n in (64, None)]
    titles = [KINDS["calibrate"].title.format(about="demo", request=each) for each in asked]
    assert titles == ["demo on demo-code, 64 tokens", "demo on demo-code, 65,536 tokens"]


def test_every_kind_says_what_came_of_it():
    assert {kind for kind, _, _ in SAID} == set(KINDS)


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
    assert {text.partition("  ")[0] for text in texts if "  a title" in text} == LISTED[place]
    is_told = any(text.endswith(" s. 1 evaluation. See Evaluate, This model.") for text in texts)
    assert is_told == ("evaluate" in LISTED[place])
    # None of the canceled ones kept anything, searches neither.
    assert "Continue" not in {button.label for button in test.button}
