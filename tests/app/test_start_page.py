"""Start: a finding from the shipped measurements, and the plan that a bare address opens on."""

import json
import shutil
from math import exp
from statistics import fmean, stdev

import pytest
from page_texts import (
    ALL_CORPORA,
    MEASURED_CORPORA,
    command_lines,
    loaded_on,
    opened,
    press,
    table_with,
    texts,
)
from published_models import QWEN3
from shipped import shipped_losses, shipped_results
from streamlit.testing.v1 import AppTest

from analysis.drain import drain
from app.session.data import settings
from app.session.job_queue import job_store
from pruning.requests.evaluation import EvaluateRequest
from pruning.tasks.evaluation import evaluate_run


def _records():
    return shipped_results()


def shown_plan(test):
    return loaded_on(test).shown.plan


def bar_of(test):
    """The line of the plan on screen."""
    name = loaded_on(test).shown.name
    return next(text for text in texts(test.markdown) if f"**{name}**" in text)


def verdict_in_bar(test):
    """The verdict on the plan on screen in one line, as the bar has it."""
    return bar_of(test).partition("  \n")[2].partition(" · ")[0]


def _right_of(digest):
    """Shares of right answers of the original and of a plan, means over corpora."""
    of_plan = [
        raw["right_answers"]
        for raw in _records()
        if raw["plan_digest"] == digest and not raw["plan"].get("bits")
    ]
    assert len(of_plan) == len(MEASURED_CORPORA)
    sides = {"full": "full_right", "plan": "right"}
    return {side: fmean(fmean(sample[key]) for sample in of_plan) for side, key in sides.items()}


def test_the_bare_address_opens_on_the_best_plan_that_engines_serve(open_page):
    test = open_page("start")
    opened = shown_plan(test)
    assert test.segmented_control(key="granularity").value == "expert"
    assert set(map(len, opened.kept.values())) == {16}
    every = shipped_losses(granularity="expert", sparsity="50%", schedule="uniform")
    mine = every[opened.digest]
    # The best of all equal ones on all samples too: the halves agree on it.
    assert fmean(mine.values()) == min(fmean(losses.values()) for losses in every.values())
    chance = [fmean(losses.values()) for losses in _random(every).values()]
    (head,) = test.title
    right, drawn = _right_of(opened.digest), list(map(_right_of, _random(every)))
    assert head.value == (
        f"Half of the experts gone: 39% smaller, right answers {right['full']:.0%} → "
        f"{right['plan']:.0%} (random: {fmean(rates['plan'] for rates in drawn):.0%})."
    )
    (suffers,) = (
        paragraph for paragraph in test.markdown if "suffers most in proportion" in paragraph.value
    )
    full = {raw["corpus"]["name"]: raw["full"]["nll"]["mean"] for raw in _records()}
    grown = {name: 1 + added / full[name] for name, added in mine.items()}
    most = max(grown, key=grown.get)
    assert suffers.value == f"**{most} suffers most in proportion**: x{grown[most]:.1f}."
    note = suffers.proto.help
    assert f"Loss {fmean(mine.values()):+.2f} nats per token" in note
    assert f"{fmean(chance):+.2f} (mean of {len(chance)} draws)" in note
    assert all(f"{name} {added:+.2f}" in note for name, added in mine.items())
    assert "remote code" not in verdict_in_bar(test)
    other = test.button(key="start.other")
    assert other.label.endswith(", remote code")
    assert other.help == "Read by only transformers with remote code or load_pruned."
    other.click().run()
    assert shown_plan(test).provenance.schedule != "uniform"
    assert "vLLM" not in bar_of(test)
    # Uneven layers: not ticked, as it takes remote code.
    assert "check:]" not in bar_of(test)
    assert "only transformers with remote code or load_pruned" in verdict_in_bar(test)
    test.button(key="start.other").click().run()
    assert shown_plan(test).digest == opened.digest


def _losses_of_the_grid(**facts):
    """Criterion by name -> mean loss increase of the plan of the grid with these facts."""
    added = {}
    for raw in shipped_results(stem="demo-grid"):
        plan = raw["plan"]
        if facts.items() <= plan.items() and plan["criterion"].isalpha() and not plan.get("repair"):
            increase = raw["metrics"]["nll"]["mean"] - raw["full"]["nll"]["mean"]
            added.setdefault(plan["criterion"], []).append(increase)
    return {criterion: fmean(increases) for criterion, increases in added.items()}


@pytest.mark.parametrize("page", ["start", "explore", "plan", "evaluate", "export"])
def test_a_plan_that_loses_more_than_random_is_warned_of(open_page, page):
    every = shipped_losses(granularity="expert", sparsity="50%")
    chance = [fmean(losses.values()) for losses in _random(every).values()]
    losses = _losses_of_the_grid(sparsity="50%", schedule="uniform", corpora=ALL_CORPORA)
    criterion, mine = next(
        (criterion, loss)
        for criterion, loss in losses.items()
        if fmean(chance) < loss < fmean(chance) + stdev(chance)
    )
    address = {"criterion": criterion, "corpora": ALL_CORPORA, "sparsity": "50%"}
    poor, calm = open_page(page, **address), open_page(page)
    assert verdict_in_bar(poor) == ":red[:material/dangerous: Do not ship: no better than Random]"
    said = f"No better than Random at this sparsity: the plan adds {mine:+.2f}"
    within = f"within one SD of {stdev(chance):.2f}"
    if page not in ("explore", "evaluate"):
        shown = texts(poor.markdown if page == "export" else poor.warning)
        assert any(said in text and within in text for text in shown)
    assert not [text for text in texts(calm.warning) if "Random" in text]
    assert verdict_in_bar(calm).startswith(":orange[:material/warning: Check before shipping: ")


def test_a_plan_that_was_not_measured_is_in_the_chart_with_its_prediction(open_page):
    test = open_page("start", criterion="ean", corpora=ALL_CORPORA, sparsity="55%")
    plan = shown_plan(test)
    (bar,) = (text for text in texts(test.markdown) if "predicted loss" in text)
    table = table_with(opened(test, "loss-by-size"), "is_shown", "mean").set_index("plan")
    row = table.loc[plan.digest]
    assert f"predicted loss {row['mean']:+.2f} ({row['low']:.2f} to {row['high']:.2f})" in bar
    assert (row["is_measured"], row["on_front"], row["is_shown"]) == (False, False, True)
    # Predictions that would be on the front are there, and are not on it.
    assert table.loc[table["on_front"], "is_measured"].all()
    predicted = table[~table["is_measured"].astype(bool)]
    smaller = [
        table[table["is_measured"].astype(bool) & (table["bytes"] <= size)]["mean"].min()
        for size in predicted["bytes"]
    ]
    assert (predicted["mean"] < smaller).any()
    # 192 experts have 9 MiB, each a router row of 64 weights in float32; the head, which is the
    # embedding of the original, is written: 2^19 bytes.
    gone = 192 - sum(map(len, plan.kept.values()))
    assert row["bytes"] == table["bytes"].max() - gone * (9 * 2**20 // 192 + 256) + 2**19
    assert f"perplexity about x{exp(row['mean']):.1f}." in test.title[0].value


def test_what_one_corpus_costs_the_others_is_told_of_the_criterion(open_page):
    """Calibrated on one corpus alone, the worst of its plans."""
    known = {"criterion": "reap", "schedule": "uniform", "sparsity": "50%"}
    alone = {
        corpus: added
        for corpus in ("demo-code", "demo-math", "demo-stories")
        for added in shipped_losses(**known, corpora=[corpus]).values()
    }
    worst = max(
        (corpus for corpus in alone if max(alone[corpus], key=alone[corpus].get) != corpus),
        key=lambda corpus: max(alone[corpus].values()),
    )
    lost = max(alone[worst], key=alone[worst].get)
    said = texts(open_page("start", opened="1").markdown)
    expected = f"**Calibrated on {worst} alone**: {alone[worst][lost]:+.2f} on {lost}."
    assert expected in said


def _random(every):
    drawn = {}
    for criterion in ("random", *(f"random:{seed}" for seed in range(1, 20))):
        drawn |= shipped_losses(criterion=criterion, sparsity="50%", granularity="expert")
    return {digest: every[digest] for digest in drawn}


def test_a_reload_of_start_keeps_the_plan_that_was_chosen_there(open_page):
    best = shown_plan(open_page("start")).digest
    again = open_page("start", opened="1")
    assert again.query_params["opened"]
    assert shown_plan(again).provenance.criterion == "reap"
    assert shown_plan(again).digest != best
    assert shown_plan(open_page("start", criterion="aimer")).provenance.criterion == "aimer"


def test_answers_of_the_full_model_this_plan_and_chance_are_shown(open_page):
    test = open_page("start")
    bodies = [block.proto.body for block in test.get("html") if "<pre" in block.proto.body]
    full, pruned, *others = bodies
    assert "20 / 4 = 5." in full
    assert all("<mark>" in other for other in (pruned, *others))
    # Short answers are whole, so what follows is of other plans: the same repaired, Random.
    assert len(others) == 2
    (expander,) = [expander for expander in test.expander if expander.label == "Other answers"]
    named = [text.partition(":")[0] for text in texts(expander.markdown)]
    assert len(named) == 2
    assert ("repair" in named[0], "Random" in named[1]) == (True, True)


def _long_answer():
    from analysis.files.shipped import SHIPPED_STATS
    from app.widgets.answers import answers_part
    from pruning.records.kept_answers import AnswerStore

    record = AnswerStore([SHIPPED_STATS]).records()[0]
    full, pruned = record.answers
    long = full.model_copy(update={"text": "one two three four five six"})
    answers_part(record.model_copy(update={"answers": [long, pruned]}), most=16)


def test_a_long_answer_is_shown_by_its_beginning_and_its_end():
    test = AppTest.from_function(_long_answer).run()
    bodies = [block.proto.body for block in test.get("html") if "<pre" in block.proto.body]
    # Whole words of at most eight letters on either side.
    assert bodies[0] == "<pre class='answer'>one two ... five six</pre>"


def test_a_model_without_a_plan_says_what_is_missing_and_shows_its_data(open_page):
    test = open_page("start", "bare")
    assert any("has no calibration yet" in text for text in texts(test.info))
    assert texts(test.title) == ["What does pruning save, and what does it cost?"]
    assert any(button.label == "Run calibration" for button in test.button)


def test_a_calibration_that_is_there_is_told_with_the_time_that_another_takes(open_page):
    test = open_page("start")
    said = "\n".join(texts(test.caption))
    assert "You have this already: 65,536 tokens of demo-code." in said
    assert "It takes about" in said


def test_the_jobs_stay_in_sight_when_the_last_one_has_ended(open_page, queued_jobs):
    test = open_page("start")
    (data,) = (part for part in test.expander if part.label == "Data and jobs")
    assert not data.proto.expanded
    for button in test.button:
        if button.label == "Run calibration":
            button.click().run()
    (job,) = queued_jobs()
    job_store().cancel(job.id)
    (data,) = (part for part in test.run().expander if part.label == "Data and jobs")
    assert data.proto.expanded
    assert any(button.label == "Retry" for button in test.button)


TINY = {**QWEN3, "num_hidden_layers": 2, "num_experts": 16, "vocab_size": 1024}


def test_a_configuration_shows_sizes_of_plans_before_the_download(open_page, models_root):
    (models_root / "hollow").mkdir()
    (models_root / "hollow" / "config.json").write_text(json.dumps(TINY))
    try:
        test = open_page("start")
        test.text_input(key="start.outline.name").set_value("hollow")
        press(test, "Show sizes")
    finally:
        shutil.rmtree(models_root / "hollow")
    (table,) = (table.value for table in test.table if "experts per layer" in table.value)
    assert table["experts per layer"].to_dict() == {"25%": "12", "50%": "8"}  # top-8
    # Of two layers: attention and norms, a router, experts; embedding, head, and a last norm.
    expert, row, rest = 3 * 2048 * 768, 2048, 2048 * (2 * 32 + 2 * 4) * 128 + 2 * 2048 + 2 * 128
    sizes = [2 * (2 * (kept * (expert + row) + rest) + 2 * 1024 * 2048 + 2048) for kept in (12, 8)]
    assert list(table["on disk"]) == [f"{size / 2**20:.1f} MiB" for size in sizes]
    assert any(text.startswith("Not possible: 75%;") for text in texts(test.caption))
    assert f"moeprune inspect {models_root / 'hollow'} --config-only" in command_lines(test)
    # Refused before any process begins.
    for name, reason in (("../etc", "neither a hub id"), ("/etc", "neither"), ("-x/y", "neither")):
        test.text_input(key="start.outline.name").set_value(name)
        press(test, "Show sizes")
        assert reason in test.error[-1].value


def test_an_uploaded_configuration_that_would_fill_the_memory_is_refused(open_page):
    test = open_page("start")
    huge = json.dumps({**TINY, "num_hidden_layers": 9999}).encode()
    test.file_uploader(key="start.outline.file").upload("config.json", huge, "application/json")
    press(test, "Show sizes")
    assert "at most 256 x 1024" in test.error[-1].value


def test_an_evaluation_of_a_plan_alone_also_says_what_the_original_loses(
    open_page, go_to, stats_dir, models_root, tmp_path, monkeypatch
):
    """It measures both on the same samples; axes begin where the quantity does."""
    test = open_page("plan", "once", sparsity="50%")
    shutil.copytree(stats_dir, tmp_path / "stats")
    monkeypatch.setenv("MOEPRUNE_STATS_DIR", str(tmp_path / "stats"))
    settings.clear()
    request = EvaluateRequest(
        model=str(models_root / "once"),
        plans=(shown_plan(test).to_dict(),),
        corpora=(str(models_root / "rows.jsonl"),),
        seq_len=9,
        samples=4,
        stats_dir=tmp_path / "stats",
    )
    (record,) = drain(evaluate_run(request))
    full, loss = record.full["nll"].mean, record.metrics["nll"].mean
    test = open_page("start", "once", sparsity="50%")
    assert f"perplexity x{exp(loss - full):.1f}" in test.title[0].value
    assert not any("not evaluated" in text or "not measured" in text for text in texts(test.text))
    table = table_with(opened(test, "loss-by-size"), "is_shown", "mean")
    original, plan = table.sort_values("removed").to_dict("records")
    assert (original["candidate"], original["mean"]) == ("original", 0)
    assert plan["mean"] == pytest.approx(loss - full)
    (suffers,) = (
        paragraph for paragraph in test.markdown if "suffers most in proportion" in paragraph.value
    )
    assert f"the original's is {record.corpus['name']} {full:.2f}" in suffers.proto.help
    assert axes_of(test)[0]["range"][0] >= 0
    # Ticks of losses that hardly differ would all be the same number.
    low, high = axes_of(test)[1]["range"]
    assert high - low > 0.1
    go_to(test, "evaluate")
    assert test.table[0].value["original model"].tolist() == [f"{full:.2f}"]
    charts = [json.loads(chart.proto.spec)["layout"] for chart in test.get("plotly_chart")]
    across = [chart[name] for chart in charts for name in chart if name.startswith("xaxis")]
    assert len(across) > 1
    assert all(axis["range"][0] >= 0 for axis in across)


def axes_of(test):
    (chart,) = (json.loads(chart.proto.spec)["layout"] for chart in test.get("plotly_chart"))
    return chart["xaxis"], chart["yaxis"]
