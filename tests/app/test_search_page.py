"""Searches on the Plan page: their schedules as plans, the form, a real one stopped and kept."""

import json
import shlex
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import yaml
from page_texts import MEASURED_CORPORA, counts_on, table_with, texts
from shipped import shipped_results
from typer.testing import CliRunner

import app.cli
from analysis.files.shipped import SHIPPED_STATS, SHIPPED_VARIABLE
from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from app.jobs.model import JobState
from app.jobs.process import signal_worker
from app.jobs.store import JobStore
from pruning.plan.plan_file import load_plan
from pruning.planning.searches import estimate_search
from pruning.requests.plan import SpecRequest
from pruning.requests.recipe import SearchSection
from pruning.requests.recipe_file import recipe_from_yaml
from pruning.search.store import order_digest, read_known
from pruning.spec.spec import spec_of
from pruning.study import Study

DEADLINE_SECONDS = 400.0  # only reached when something is broken; the machine may be busy
SHIPPED = SHIPPED_STATS / "searches"


def code_with(test, beginning):
    (found,) = {text for text in texts(test.code) if text.startswith(beginning)}
    return found


def plan_of(test, folder):
    """The plan that the page's own command line writes."""
    *words, out = shlex.split(code_with(test, "moeprune plan "))[1:]
    words.append(folder / out)
    outcome = CliRunner().invoke(app.cli.cli, [*map(str, words)], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return load_plan(folder / "plan.json", model=load_model_index("demo"))


def least_used(moments, kept):
    """Layer -> the experts that tokens reach most, from the counts of the statistics' file."""
    found = {}
    for layer, rows in moments.groupby("layer"):
        # Of equally many tokens the first expert stays.
        order = rows.sort_values(["num_tokens", "expert"], ascending=[False, True])
        found[layer] = tuple(sorted(order["expert"].tolist()[: kept[layer]]))
    return found


def best_counts(name):
    """Layer -> experts that the best schedule of a shipped search keeps."""
    best = json.loads((SHIPPED / f"{name}.json").read_text())["best"]
    return {int(layer): count for layer, count in best["kept"].items()}


def test_the_schedule_of_a_search_is_a_plan_in_the_order_of_that_search(
    open_page, demo_moments, tmp_path
):
    test = open_page("plan", searched="demo-frequency", criterion="aimer")
    assert not test.exception
    assert texts(test.error) == []
    kept = best_counts("demo-frequency")
    assert counts_on(test) == kept
    assert len(set(kept.values())) > 1
    # The order is the search's, not the one on screen, which is said.
    plan = plan_of(test, tmp_path)
    assert dict(plan.kept) == least_used(demo_moments["demo-code"], kept)
    assert any("(Frequency on demo-code), not the one on screen" in t for t in texts(test.markdown))
    made = plan.provenance
    assert (made.schedule, made.criterion) == ("search", "frequency")
    assert made.schedule_parameters["corpus"] == "demo-math"
    assert made.schedule_parameters["population"] == 32
    recipe = recipe_from_yaml(code_with(test, "schema_version"))
    assert recipe.plan.ranking.criterion == "frequency"
    assert (recipe.search.samples, recipe.search.generations) == (32, 50)


def test_a_search_of_what_is_on_screen_stands_among_all_schedules(open_page):
    # No search has this name, so the first that fits is shown: REAP's, which is on screen.
    test = open_page("plan", searched="../../x", refused="no search '../../x' here, but demo-ean")
    assert test.selectbox(key="searched").value == "demo-reap"
    assert not any("not the one on screen" in text for text in texts(test.markdown))
    assert table_with(test, "fewest")["schedule"].tolist()[-1] == "Searched: demo-reap"
    metrics = {metric.label: metric.value for metric in test.metric}
    best = read_known(SHIPPED / "demo-reap.json").result.best_entry.fitness
    assert metrics["Best ESAP"] == f"{best:.3f}"
    test.selectbox(key="searched").set_value("demo-seer").run()
    assert counts_on(test) == best_counts("demo-seer") != best_counts("demo-reap")
    assert table_with(test, "fewest")["schedule"].tolist()[-1] == "Searched: demo-reap"


def test_the_export_page_exports_the_plan_of_a_search_with_where_it_came_from(open_page):
    test = open_page("export", searched="demo-reap")
    assert not test.exception
    assert texts(test.error) == []
    assert any(
        text.startswith("**Plan**: REAP") and "searched" in text for text in texts(test.markdown)
    )
    assert "demo-reap-demo-code-50-search" in {field.value for field in test.text_input}


def test_another_budget_is_explained_and_nothing_is_changed(open_page):
    test = open_page("plan", searched="", sparsity="25%")
    (note,) = texts(test.info)
    assert "removes 96 of 192 experts (50.0%), the slider asks for 48 (25%)" in note
    assert not [table for table in test.dataframe if "keeps" in table.value.columns]
    test.button(key="plan.to.sparsity").click().run()
    assert test.select_slider(key="sparsity").value == 50
    assert counts_on(test) == read_known(SHIPPED / "demo-reap.json").kept


def test_a_model_without_a_search_says_so_and_offers_the_form(open_page):
    test = open_page("plan", model="once", searched="")
    assert not test.exception
    assert any("No search of once is known yet" in text for text in texts(test.info))
    assert "search.start" in opened_form(test)


@pytest.fixture
def own_search(stats_dir):
    """A damaged file among the searches of this server."""
    folder = stats_dir / "searches"
    folder.mkdir(exist_ok=True)
    raw = json.loads((SHIPPED / "demo-reap.json").read_text())
    (folder / "broken.json").write_text(json.dumps(raw | {"candidates": []}))
    yield folder
    shutil.rmtree(folder)


def test_a_damaged_search_is_named_and_the_others_are_offered(open_page, own_search):
    test = open_page("plan", searched="")
    assert any("broken.json is no result of a search" in text for text in texts(test.warning))
    assert counts_on(test) == read_known(SHIPPED / "demo-reap.json").kept


def opened_form(test):
    """Open the form; the keys of the buttons on the page."""
    test.session_state["search.form"] = True
    test.run()
    assert not test.exception
    return {button.key for button in test.button}


def test_the_form_shows_recipe_and_estimate_and_refuses_what_cannot_be(open_page):
    test = open_page("plan", protect="0", multiple_of="4")
    opened_form(test)
    shown = yaml.safe_load(
        next(text for text in texts(test.code) if "search:" in text and "schema" in text)
    )
    # Not the text that ranks.
    assert shown["search"]["corpus"] != "demo-code"
    assert shown["ranking"] == {"criterion": "reap", "corpora": ["demo-code"]}
    assert shown["limits"] == {"multiple_of": 4, "protect": [0]}
    assert shown["budget"] == {"sparsity": "50%"}
    (estimate,) = (text for text in texts(test.markdown) if "At most" in text)
    assert "At most 1,432 candidates on 64 samples" in estimate  # 32 + 50 x 28
    assert " h**" in estimate or " min**" in estimate
    assert "of which 5 s to 30 s to load libraries, samples and weights" in estimate
    test.number_input(key="search.elites").set_value(32).run()
    assert any("fewer elites than candidates" in text for text in texts(test.error))


def test_a_search_may_begin_with_the_measured_plans_where_there_are_some(open_page):
    def asked(test):
        return next(yaml.safe_load(text) for text in texts(test.code) if "schema" in text)["search"]

    test = open_page("plan")  # REAP on code, of which the demo has curves on math
    opened_form(test)
    test.selectbox(key="search.corpus").set_value("demo-stories").run()
    assert "search.from_curves" not in {toggle.key for toggle in test.toggle}
    test.selectbox(key="search.corpus").set_value("demo-math").run()
    assert "start" not in asked(test)
    test.toggle(key="search.from_curves").set_value(True).run()
    assert asked(test)["start"] == "measured" and not test.exception


@pytest.fixture
def jobs(tmp_path):
    """The job table of the page."""
    return JobStore(tmp_path / "state" / "jobs.sqlite")


def end(jobs):
    """No worker outlives the test."""
    running = [job for job in jobs.list() if job.state is JobState.RUNNING]
    for job in running:
        signal_worker(job, signal.SIGKILL)
    for job in running:
        psutil.wait_procs([psutil.Process(job.pid)] if psutil.pid_exists(job.pid) else [])


def until(test, condition):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)
    test.run()
    assert not test.exception
    return value


def test_the_best_is_told_with_its_loss_on_samples_that_did_not_choose_it(open_page):
    rises = {}
    for raw in shipped_results("demo-ean-"):
        if raw["plan"]["schedule"] == "search":
            corpus, found = raw["corpus"]["name"], raw["samples"]
            # The search read the first 32 samples of its corpus.
            others = slice(32 if corpus == "demo-math" else 0, None)
            added = np.subtract(found["nll"], found["full_nll"]) / found["tokens"]
            rises[corpus] = added[others].mean()
    assert sorted(rises) == MEASURED_CORPORA
    worst = max(rises, key=rises.get)
    words = (
        "On held-out samples: loss "
        f"{np.mean(list(rises.values())):+.2f} mean, {rises[worst]:+.2f} worst ({worst})."
    )
    test = open_page("plan", searched="demo-ean", criterion="reap")
    assert words in texts(test.text)
    chart = next(chart for chart in test.get("plotly_chart") if "uniform has" in chart.proto.alt)
    assert chart.proto.alt.endswith(words)
    # Of another budget nothing was measured that could be told.
    test = open_page("plan", searched="demo-ean", sparsity="25%")
    assert not test.exception
    assert not any("did not choose it: loss" in text for text in texts(test.text))


@pytest.mark.slow  # searches for real; tests/jobs and tests/pruning/search have its parts
def test_a_search_is_started_stopped_kept_and_shown(open_page, go_to, jobs, stats_dir, tmp_path):
    # Magnitude reads no text, and there are its numbers of the demo: the search begins at once.
    test = open_page("plan", criterion="magnitude")
    opened_form(test)
    for key, value in {"population": 4, "elites": 2, "generations": 400, "seed": 5}.items():
        test.number_input(key=f"search.{key}").set_value(value)
    test.select_slider(key="search.samples").set_value(4)
    test.run()
    test.button(key="search.start").click().run()
    (job,) = jobs.list()
    folder = Path(job.request["out"])
    assert folder.parent == stats_dir / "searches"
    try:
        until(test, lambda: (folder / "search.json").is_file())
        assert "Best ESAP" in {metric.label for metric in test.metric}
        test.button(key="search.stop").click().run()
        until(test, lambda: jobs.get(job.id).is_finished)
        assert jobs.get(job.id).state is JobState.CANCELED
        # The list of jobs says what was kept, and a reload shows it again.
        best = read_known(folder / "search.json").result.best_entry.fitness
        listed = go_to(test, "start")
        assert any(f"best kept: ESAP {best:.3f}, of " in text for text in texts(listed.text))
        assert "stopped" in " ".join(texts(listed.markdown))
        assert f"job.retry.{job.id}" in {button.key for button in listed.button}
        reloaded = open_page("plan", criterion="magnitude")
        assert any(f"{folder.name} (Magnitude" in text for text in texts(reloaded.text))
        reloaded = open_page("plan", criterion="magnitude", searched="")
        assert reloaded.selectbox(key="searched").value == folder.name
        go_to(test, "plan")
        # All four files stand, whole, and say the same.
        kept = read_known(folder / "search.json")
        plan = load_plan(folder / "unfinished.plan.json", model=load_model_index("demo"))
        assert not kept.result.is_finished
        assert {layer: len(ids) for layer, ids in plan.kept.items()} == kept.kept
        assert sum(kept.kept.values()) == 96
        test.button(key="search.show").click().run()
        assert not test.exception
        assert counts_on(test) == kept.kept
        assert test.query_params["searched"] == folder.name
        assert any("This search was stopped after" in text for text in texts(test.markdown))
        # The page's command line gives the very plan that the search wrote, and its provenance.
        assert plan_of(test, tmp_path) == plan
        # The form's recipe comes first, the plan's last.
        shown = [text for text in texts(test.code) if text.startswith("schema_version")]
        recipe = recipe_from_yaml(shown[-1])
        assert (recipe.model, recipe.search.generations) == ("demo", 400)
        assert "search.continue" in {button.key for button in test.button}
        test.button(key="search.continue").click().run()
        # With the batch size that the search ran with, where the form left it to the recipe.
        assert jobs.list()[0].request == {**job.request, "batch_size": 8}
    finally:
        end(jobs)
        shutil.rmtree(folder)


def test_a_larger_run_of_the_corpus_does_not_hide_the_one_that_the_search_has_read(
    tmp_path, monkeypatch
):
    stats = tmp_path / "stats"
    monkeypatch.setenv(SHIPPED_VARIABLE, str(tmp_path / "none"))  # a shipped run is never hidden
    (read,) = SHIPPED_STATS.glob("demo-demo-code-*")
    shutil.copytree(read, stats / read.name)
    # Other numbers, as if they were of the corpus, and of more tokens than the shipped ones.
    (other,) = SHIPPED_STATS.glob("demo-demo-math-*")
    manifest = shutil.copytree(other, stats / "demo-larger") / "manifest.json"
    raw = json.loads(manifest.read_text()) | {"run_id": "demo-larger"}
    raw["corpora"][0] |= {"name": "demo-code", "num_tokens": 10**6}
    manifest.write_text(json.dumps(raw))
    model, store = load_model_index("demo"), stats_store(stats)
    spec = spec_of(criterion="man", corpora=("demo-code",), sparsity="50%")
    base = SpecRequest(model="demo", plan=spec)
    study = Study.of(base, model, store)
    (largest,) = study.ranking(spec).choice.runs
    assert largest.manifest.run_id == "demo-larger"
    search = read_known(SHIPPED_STATS / "searches" / "demo-reap.json")
    found = study.ranking_of_search(search)
    assert order_digest(found.table) == search.order
    (run_of,) = found.choice.runs
    assert run_of.manifest.run_id == read.name
    assert f"--run {run_of.manifest.run_id}" in study.request(found.spec).command()
    kept = study.plan_of(found).kept
    assert {layer: len(ids) for layer, ids in kept.items()} == search.kept


ASKED = SearchSection(corpus="demo-math", samples=8, population=6, elites=2, generations=3)


@pytest.fixture
def known(tmp_path):
    """20 candidates on 12 samples in batches of 4, 3 layers: 90 of 180 layer evaluations ran."""
    shipped = read_known(SHIPPED_STATS / "searches" / "demo-reap.json")
    cost = {"candidates": 20, "layers": 90, "whole_layers": 180, "seconds": 36.0}
    result = shipped.result.model_copy(update={"cost": cost})
    changed = {"result": result, "samples": 12, "batch_size": 4, "search_id": "x"}
    return shipped.model_copy(update=changed)


def test_a_search_made_here_gives_its_pace(known, tmp_path):
    (tmp_path / "recipe.yaml").touch()
    here = known.model_copy(update={"path": tmp_path / "search.json"})
    # 36 s / 90 = 0.4 s for a layer on 4 samples; a sample takes 3 x 0.4 / 4 = 0.3 s.
    made = estimate_search(ASKED, [known, here], [])
    assert made.low == pytest.approx(18 * 8 * 0.3 * 0.5)  # half of the evaluations ran
    assert made.high == pytest.approx(18 * 8 * 0.3 * 1.5)
    assert (made.candidates, made.how.startswith("From the layer evaluations of x:")) == (18, True)


def test_a_search_from_elsewhere_gives_a_wider_range(known):
    made = estimate_search(ASKED, [known, known.model_copy(update={"search_id": "y"})], [])
    assert made.low == pytest.approx(18 * 8 * 0.3 * 0.5 / 4)
    assert made.high == pytest.approx(18 * 8 * 0.3 * 1.5)
    assert "x and 1 more" in made.how
    assert "4 times as fast" in made.how


def test_without_a_search_calibrations_do_and_without_those_nothing():
    runs = [
        SimpleNamespace(manifest=SimpleNamespace(made={"tokens_per_second": speed}))
        for speed in (512.0, 1024.0)
    ]
    made = estimate_search(ASKED, [], runs)
    assert made.high == pytest.approx(18 * 8 * 256 / 1024)
    assert made.low == pytest.approx(made.high / 5)
    assert "1,024 tokens a second" in made.how
    nothing = estimate_search(ASKED, [], [SimpleNamespace(manifest=SimpleNamespace(made={}))])
    assert (nothing.low, nothing.high, nothing.candidates) == (None, None, 18)
