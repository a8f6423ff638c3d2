"""Evaluate, the plan of the Plan page: however it was made, it can be measured and asked."""

import shutil
from statistics import fmean

import pytest
from page_texts import (
    ALL_CORPORA,
    MEASURED_CORPORA,
    by_hand,
    command_lines,
    loaded_on,
    press,
    texts,
)
from shipped import shipped_loss

from analysis.drain import drain
from analysis.files.shipped import SHIPPED_STATS
from app.jobs.kinds import KINDS
from app.session.data import settings
from builders import ROWS
from pruning.plan.plan_file import plan_from_dict
from pruning.records.evaluation import EvaluationStore

HAND = {"model": "once", "sparsity": "50%", "set": by_hand("4.3.2", (0, 2, 3))}
NEURONS = {"granularity": "neuron", "sparsity": "30%"}


@pytest.mark.parametrize("address", [HAND, NEURONS])
def test_the_plan_of_the_plan_page_is_measured_asked_and_survives_a_reload(
    open_page, go_to, queued_jobs, address
):
    test = open_page("plan", **address)
    made = next(line for line in command_lines(test) if line.startswith("moeprune plan"))
    go_to(test, "evaluate")
    assert test.segmented_control(key="evaluate.what").value == "plan"
    shown = command_lines(test)
    # The same line that the Plan page gives for its plan, and one that measures it.
    assert made in shown
    assert any(line.startswith("moeprune evaluate") and "plan.json" in line for line in shown)
    press(test)
    (job,) = queued_jobs()
    plan = plan_from_dict(job.request["plans"][0])
    test.segmented_control(key="results").set_value("ask").run()
    test.text_area[0].set_value("Hello").run()
    press(test, "Ask both")
    assert plan_from_dict(queued_jobs()[1].request["plans"][0]).digest == plan.digest
    assert plan.digest == loaded_on(test).shown.plan.digest
    assert bool(plan.kept_neurons) == (address is NEURONS)
    if address is HAND:
        assert [len(ids) for ids in plan.kept.values()] == [4, 3, 2]
    # A reload begins a session that knows the address alone.
    again = open_page("evaluate", **dict(test.query_params))
    assert loaded_on(again).shown.plan.digest == plan.digest
    assert made in command_lines(again)


def test_what_is_measured_is_measured_as_the_others_were(open_page, go_to):
    # The demo's own evaluations ran in float32 on 64 samples.
    test = open_page("plan")
    go_to(test, "evaluate")
    line = next(line for line in command_lines(test) if line.startswith("moeprune evaluate"))
    assert "--dtype float32" in line
    assert test.select_slider(key="evaluate.samples").value == 64


def test_the_sidebars_plan_is_told_with_its_loss_on_every_text(open_page):
    # Start shows REAP, demo-code, 50%; one click leads here.
    test = open_page("evaluate")
    (line,) = (text.value for text in test.markdown if "**REAP, demo-code, 50%**" in text.value)
    lost = shipped_loss("reap", "demo-code")
    mean, worst = fmean(lost.values()), max(lost, key=lost.get)
    assert f"loss {mean:+.2f} mean, {lost[worst]:+.2f} worst ({worst}), Random +" in line
    shown = test.table[0].value
    assert shown["your plan"].astype(float).round(3).to_dict() == {
        corpus: round(change, 2) for corpus, change in lost.items()
    }
    table = test.dataframe[0].value.set_index("candidate")
    yours = "yours: REAP, on demo-code"
    assert [name for name in table.index if name.startswith("yours")] == [yours]
    assert table.loc[yours, "mean"] == pytest.approx(mean)
    assert table["mean"].is_monotonic_increasing
    assert [name for name in table.index if name.startswith("Random")] == ["Random (20 draws)"]
    lines = test.multiselect(key="lines.nll.expert").value
    assert {"REAP, on demo-code", "Random"} < set(lines)
    assert len(lines) <= 4
    assert not [name for name in lines if "neurons" in name]  # which are another page's question
    of_neurons = open_page("evaluate", granularity="neuron").multiselect(key="lines.nll.neuron")
    assert all("neurons" in name for name in of_neurons.value)
    assert of_neurons.value


def test_a_plan_that_was_not_measured_says_so_and_is_measured_by_a_click(
    open_page, go_to, queued_jobs
):
    test = open_page("plan", corpora="demo-stories", sparsity="40%")
    go_to(test, "evaluate")
    (line,) = (text.value for text in test.markdown if "**REAP, demo-stories, 40%**" in text.value)
    assert "loss not measured" in line
    assert set(test.table[0].value["your plan, not measured"]) == {r"\-"}
    table = test.dataframe[0].value.set_index("candidate")
    (yours,) = (name for name in table.index if name.startswith("yours"))
    assert table.index[0] == yours == "yours: REAP, demo-stories, 40%"
    assert table.loc[yours, "away"] == "loss not measured"
    assert table.loc[[yours], "mean"].isna().all()
    test.button(key="candidates.measure").click().run()
    (job,) = queued_jobs()
    assert sorted(job.request["corpora"]) == MEASURED_CORPORA
    assert job.request["dtype"] == "float32"
    # Most plans were asked the questions of these corpora.
    assert job.request["measures"] == ["esap", "kl", "nll", "ppl", "right"]


def test_a_plan_that_was_not_measured_has_its_prediction(open_page):
    address = {"criterion": "ean", "corpora": ALL_CORPORA, "schedule": "measured"}
    test = open_page("evaluate", sparsity="40%", **address)
    assert loaded_on(test).predicted
    assert test.table[0].value["your plan, predicted"].str.match(r"[+-]\d").all()
    (yours,) = (
        row
        for row in test.dataframe[0].value.to_dict("records")
        if row["candidate"].startswith("yours")
    )
    assert yours["away"].startswith("predicted loss")


def test_a_plan_measured_in_another_dtype_is_marked_and_compared_with_none(
    open_page, stats_dir, tmp_path, monkeypatch
):
    monkeypatch.setenv("MOEPRUNE_STATS_DIR", str(tmp_path / "stats"))
    settings.clear()
    shutil.copytree(stats_dir, tmp_path / "stats")
    plan = loaded_on(open_page("plan", corpora="demo-stories")).shown.plan
    records = EvaluationStore([SHIPPED_STATS]).records()
    dtype = {"settings": {**records[0].settings, "dtype": "bfloat16"}}
    for record in records:
        if record.plan_digest == plan.digest:  # the shipped ones are hidden by these
            EvaluationStore([tmp_path / "stats"]).save(record.model_copy(update=dtype))
        elif record.plan.criterion == "ean" and record.plan.corpora == ("demo-code",):
            update = {**dtype, "record_id": f"{record.record_id}-bfloat16"}  # measured both ways
            EvaluationStore([tmp_path / "stats"]).save(record.model_copy(update=update))
    test = open_page("evaluate", corpora="demo-stories")
    (line,) = (text.value for text in test.markdown if "**REAP, demo-stories, 50%**" in text.value)
    assert ", bfloat16" in line
    assert "Random +" not in line
    assert "your plan, bfloat16" in test.table[0].value
    usual, other = (table.value for table in test.dataframe[:2])
    assert not usual["candidate"].str.contains("yours").any()
    assert "yours: REAP, on demo-stories" in set(other["candidate"])
    assert other["candidate"].str.startswith("EAN, on demo-code").any()
    assert set(other["away"]) == {""}
    start = open_page("start", corpora="demo-stories").markdown
    assert any("in another way than most plans: bfloat16" in text.proto.help for text in start)


def test_candidates_are_of_the_granularity_on_screen(open_page):
    test = open_page("evaluate", granularity="neuron", sparsity="40%", removed="25%")
    assert any("**Loss increase at 25% sparsity**" in text.value for text in test.markdown)
    assert set(test.dataframe[0].value["granularity"]) == {"neuron"}


def test_plans_of_one_name_and_share_are_told_apart(open_page, go_to, stats_dir, queued_jobs):
    for address in (
        {"model": "once", "sparsity": "50%"},
        HAND | {"set": by_hand("2.3.4", (0, 2, 3))},
    ):
        test = open_page("plan", **address)
        go_to(test, "evaluate")
        press(test)
    try:
        jobs = queued_jobs()
        for job in jobs:
            drain(KINDS["evaluate"].job(job.request | {"samples": 3, "seq_len": 9}))
        # The last session shows the plan by hand, now measured.
        test.run()
        assert not test.exception
        names = set(test.dataframe[0].value["candidate"])
        digest = plan_from_dict(jobs[1].request["plans"][0]).digest[:8]
        assert names == {
            f"REAP, on {ROWS}",
            f"yours: REAP, on {ROWS}, plan {digest}",
        }
    finally:
        for folder in stats_dir.glob("models/*/evaluations"):
            shutil.rmtree(folder)


def test_a_model_of_ones_own_is_evaluated_on_what_calibrates_it(
    open_page, queued_jobs, models_root, tmp_path, monkeypatch
):
    """Without a text file in the models folder, too; the button says what it lacks."""
    shutil.copytree(models_root / "weighed", tmp_path / "own" / "weighed")
    monkeypatch.setenv("MOEPRUNE_MODELS_ROOT", str(tmp_path / "own"))
    settings.clear()
    test = open_page("evaluate", "weighed", criterion="aimer")
    offered = test.multiselect(key="evaluate.corpora")
    assert offered.options == open_calibration(open_page)
    assert not offered.value
    (button,) = (button for button in test.button if button.label == "Run evaluation")
    assert button.disabled
    assert "Choose a corpus to evaluate on." in texts(test.text)
    offered.set_value(["demo-code", "c4"]).run()
    press(test)
    (job,) = queued_jobs()
    assert job.request["corpora"] == ["demo-code", "c4"]


def open_calibration(open_page):
    """The corpora that the form of a calibration offers."""
    first, other = (
        box for box in open_page("start", "weighed").selectbox if box.label.startswith("Corpus")
    )
    assert first.options == other.options  # of the steps, and of the form with all options
    return first.options
