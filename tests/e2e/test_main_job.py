"""The main job as a person does it: look, choose, export, load; and what must survive it."""

import json
import re
import time

import pytest
from dashboards import Dashboard, running
from playwright.sync_api import Locator, Page, expect
from tabs import (
    JOB_MS,
    choose,
    go,
    is_ranked_by,
    job,
    metric,
    open_plan,
    pick,
    rank_by,
    settled,
    slide,
    unfold,
    visit,
    wait_until,
)
from transformers import AutoModelForCausalLM

from app.jobs.model import JobState
from pruning.plan.plan_file import plan_from_dict

START = re.compile("experts gone: ")
BLEND = "corpora=demo-code&corpora=demo-math&corpora=demo-stories"  # in equal parts
pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory):
    with running(Dashboard(tmp_path_factory.mktemp("dashboard"))) as dashboard:
        yield dashboard


def map_canvas(tab: Page) -> Locator:
    canvas = tab.locator("canvas.base").first
    canvas.wait_for()
    # With the charts below comes a scroll bar, which takes some of the width.
    tab.locator(".js-plotly-plot").first.wait_for()
    return canvas


def paint(tab: Page) -> str:
    """What the map shows, as an image."""
    return map_canvas(tab).evaluate("canvas => canvas.toDataURL()")


def repainted(tab: Page, before: str) -> str:
    # A handle, for the canvas is in a shadow root, where no selector of the page's own reaches.
    wait_until(
        tab,
        "([canvas, before]) => canvas.toDataURL() !== before",
        arg=[map_canvas(tab).element_handle(), before],
    )
    return paint(tab)


def painted_as(tab: Page, wanted: str) -> None:
    wait_until(
        tab,
        "([canvas, wanted]) => canvas.toDataURL() === wanted",
        arg=[map_canvas(tab).element_handle(), wanted],
    )


def are_painted_alike(*tabs: Page) -> None:
    """Wait until the maps are one picture: each is painted again until its width is known."""
    deadline = time.monotonic() + 30
    while len({paint(tab) for tab in tabs}) > 1:
        assert time.monotonic() < deadline, "the maps differ"
        tabs[0].wait_for_timeout(100)


def test_exponents_change_the_map_and_the_address(open_tab):
    tab = open_tab("?opened=1")
    go(tab, "Explore", "Which experts does each criterion keep?")
    is_ranked_by(tab, "REAP")
    reap = paint(tab)
    choose(tab, "alpha", "0")
    is_ranked_by(tab, "MAN")
    man = repainted(tab, reap)
    expect(tab).to_have_url(re.compile(r"/explore\?criterion=man$"))
    choose(tab, "beta", "2")
    is_ranked_by(tab, "MSAN")
    repainted(tab, man)
    expect(tab).to_have_url(re.compile(r"/explore\?criterion=msan$"))
    expect(tab.get_by_test_id("stCode").first).to_contain_text("--criterion msan")
    # The very picture again.
    choose(tab, "beta", "1")
    is_ranked_by(tab, "MAN")
    painted_as(tab, man)
    choose(tab, "alpha", "1")
    is_ranked_by(tab, "REAP")
    expect(tab).to_have_url(re.compile(r"/explore\?opened=1$"))


@pytest.mark.slow  # tests/app/test_stratification_view.py
def test_stratification_is_two_steps_from_a_fresh_start_by_keyboard_and_leaves_the_plan(open_tab):
    tab = open_tab()
    plan = tab.locator(".st-key-plan-bar").inner_text()
    assert re.search(r"\b[0-9a-f]{8}\b", plan)
    go(tab, "Explore", "Which experts does each criterion keep?")
    view = tab.locator(".st-key-show").get_by_role("radio", name="Stratification")
    view.focus()
    view.press("Space")
    for name in ("AIMER", "Magnitude"):
        expect(tab.locator(".js-plotly-plot").get_by_text(name, exact=True)).to_be_visible()
    expect(tab).to_have_url(re.compile(r"show=Stratification"))
    assert settled(tab).locator(".st-key-plan-bar").inner_text() == plan
    tab.reload()
    expect(tab.locator(".js-plotly-plot")).to_have_count(2)
    assert settled(tab).locator(".st-key-plan-bar").inner_text() == plan


@pytest.mark.slow
def test_the_address_opens_the_same_view_elsewhere(open_tab):
    first = open_tab("explore")
    rank_by(first, "Squared-gate energy")
    is_ranked_by(first, "Squared-gate energy")
    open_plan(first)
    choose(first, "gate", "Renormalized")
    choose(first, "corpus", "demo-math")
    choose(first, "show", "Kept")
    slide(first, "sparsity", "ArrowLeft")
    expect(first.get_by_test_id("stCode").first).to_contain_text("--sparsity 45%")
    # The address follows what is drawn; of an earlier one the copy would be another link.
    for part in ("gate=renormalized", "corpora=demo-math", "sparsity=45%25", "show=Kept"):
        expect(first).to_have_url(re.compile(re.escape(part)))
    settled(first).context.grant_permissions(["clipboard-read", "clipboard-write"])
    first.get_by_role("button", name="Share: copy").click()
    expect(first.get_by_text("Link copied")).to_be_visible()
    link = first.evaluate("navigator.clipboard.readText()")
    assert link == first.url
    second = open_tab(link.split("/", 3)[3])
    is_ranked_by(second, "Squared-gate energy")
    for tab in (first, second):
        expect(tab.get_by_test_id("stCode").first).to_contain_text(
            "--criterion squared-gate-energy --calibrated-on demo-math --gate renormalized "
            "--sparsity 45% --stats-dir stats"
        )
    words = first.get_by_text("that Frequency drops").inner_text()
    expect(second.get_by_text("that Frequency drops")).to_have_text(words)
    open_plan(second)  # as in the first, so that the maps are of one width
    are_painted_alike(first, second)


@pytest.mark.slow
def test_back_undoes_one_choice_after_the_other(open_tab):
    tab = open_tab("explore")
    wait_until(tab, "window.moepruneHistory")
    choose(tab, "beta", "2")
    is_ranked_by(tab, "S(1,1,2)")
    choose(tab, "alpha", "0")
    is_ranked_by(tab, "MSAN")
    expect(tab).to_have_url(re.compile(r"explore\?.*criterion=msan"))
    settled(tab).go_back()
    is_ranked_by(tab, "S(1,1,2)")
    expect(tab).to_have_url(re.compile(r"explore\?criterion=1%2C1%2C2$"))
    settled(tab).go_back()
    is_ranked_by(tab, "REAP")
    expect(tab).to_have_url(re.compile(r"explore\?opened=1$"))
    settled(tab).go_forward()
    is_ranked_by(tab, "S(1,1,2)")
    # A choice made here begins a new way on.
    choose(tab, "b", "0")
    is_ranked_by(tab, "S(0,1,2)")
    settled(tab).go_back()
    is_ranked_by(tab, "S(1,1,2)")
    # Another page is a choice like others.
    tab.get_by_role("link", name="Export this plan").click()
    expect(tab.get_by_text("Plan: S(1,1,2)")).to_be_visible()
    expect(tab).to_have_url(re.compile(r"/export\?criterion=1%2C1%2C2$"))
    settled(tab).go_back()
    tab.get_by_role("heading", name="Which experts does each criterion keep?").wait_for()
    is_ranked_by(tab, "S(1,1,2)")
    settled(tab).go_forward()
    expect(tab.get_by_text("Plan: S(1,1,2)")).to_be_visible()


@pytest.mark.slow
def test_one_plan_is_in_every_address_and_a_preset_is_one_entry(open_tab):
    tab = open_tab()
    wait_until(tab, "window.moepruneHistory")
    # The best measured plan, of the blend, under a schedule: in the address of Start already.
    expect(tab).to_have_url(re.compile(BLEND))
    plan = tab.locator(".st-key-plan-bar strong").first
    best = plan.inner_text()
    go(tab, "Explore", "Which experts does each criterion keep?")
    expect(tab).to_have_url(re.compile(rf"/explore\?.*{BLEND}"))
    before = settled(tab).evaluate("history.length")
    rank_by(tab, "SEER")
    is_ranked_by(tab, "SEER")
    expect(tab).to_have_url(re.compile("criterion=seer"))
    assert settled(tab).evaluate("history.length") == before + 1
    go(tab, "Plan", "Where should the budget go?")
    choose(tab, "schedule", "Late layers lose more")
    expect(plan).to_contain_text("late")
    said = sorted(settled(tab).evaluate("location.search")[1:].split("&"))
    assert len(said) == 5  # criterion, three corpora, schedule
    for page, title in (("Evaluate", "What is lost, what is saved?"), ("Start", START)):
        go(tab, page, title)
        entries = tab.evaluate("history.length")
        wait_until(
            tab,
            "said => location.search.slice(1).split('&').sort().join() === said",
            arg=",".join(said),
        )
        tab.reload()
        expect(plan).to_contain_text("late")
        is_ranked_by(tab, "SEER")
        assert tab.evaluate("history.length") == entries
    assert best not in plan.inner_text()


def saved(tab: Page, button: str) -> str:
    with tab.expect_download() as got:
        tab.get_by_role("button", name=button).first.click()
    return got.value.path().read_text()


@pytest.mark.slow
def test_files_of_plan_export_and_the_report_have_one_digest(open_tab, dashboard):
    hand = "set=0=6&set=1-2,4=5&set=3=7&set=5=20&locked=0,5&sparsity=75%25&corpora=demo-stories"
    of_neurons = "granularity=neuron&neuron_scope=global&sparsity=30%25&drop=2:7"
    tab = open_tab(f"plan?{hand}&criterion=gate-ean")
    for is_of_neurons in (False, True):
        if is_of_neurons:
            visit(tab, dashboard, f"plan?{of_neurons}")
        files = [saved(tab, "Save plan.json")]
        go(tab, "Export", "Is this the checkpoint to ship?")
        files.append(saved(tab, "Download plan.json"))
        digests = {plan_from_dict(json.loads(file)).digest[:16] for file in files}
        open_plan(tab)
        tab.get_by_role("button", name="Report").click()
        (told,) = re.findall(r"digest ([0-9a-f]{16})", saved(tab, "For decisions"))
        assert digests == {told}


@pytest.mark.slow
def test_a_page_adds_nothing_to_the_history_by_itself(open_tab, dashboard):
    tab = open_tab()
    wait_until(tab, "window.moepruneHistory")
    expect(tab).to_have_url(re.compile(BLEND))
    # Back from a bare URL of Start leads to where one came from.
    settled(tab).go_back()
    expect(tab).to_have_url("about:blank")
    # With nothing before it, Back changes nothing on the page.
    first = tab.context.new_page()
    first.evaluate(f"location.replace('{dashboard.url}')")
    expect(first).to_have_url(re.compile(BLEND))
    wait_until(first, "window.moepruneHistory")
    plan = settled(first).locator(".st-key-plan-bar strong").first
    best = plan.inner_text()
    first.evaluate("history.back()")
    first.wait_for_timeout(1000)
    expect(first).to_have_url(re.compile(BLEND))
    expect(settled(first).locator(".st-key-plan-bar strong").first).to_have_text(best)
    # Spelt like the other pages, Start is that page too.
    first.goto(f"{dashboard.url}/start?criterion=reap")
    expect(first.locator(".st-key-plan-bar strong").first).to_have_text(re.compile("REAP"))
    assert settled(first).get_by_text("Page not found").count() == 0
    # Only what a person does adds an entry: else Back would lead to where the page goes by itself.
    visit(tab, dashboard, "explore?show=Stratification")
    wait_until(tab, "window.moepruneHistory")
    is_ranked_by(tab, "REAP")
    tab.locator(".js-plotly-plot").first.wait_for()
    before = settled(tab).evaluate("history.length")
    # What a script does to the address without a person is no choice, and stays a replacement.
    address = settled(tab).evaluate("location.search")
    tab.evaluate("history.replaceState({}, '', '?criterion=ean')")
    assert tab.evaluate("[history.length, location.search]") == [before, "?criterion=ean"]
    tab.evaluate("address => history.replaceState({}, '', address)", address)
    # A bare URL of Start would open on another plan.
    go(tab, "Start", START)
    expect(tab).to_have_url(re.compile(r"/\?opened=1$"))
    tab.reload()
    is_ranked_by(tab, "REAP")


@pytest.mark.slow  # tests/app/test_export_page.py, tests/jobs
def test_export_survives_a_reload_and_its_result_loads(open_tab, dashboard):
    tab = open_tab("export?sparsity=75%25")
    expect(metric(tab, "Experts kept")).to_have_text("48 of 192")
    tab.get_by_role("textbox", name="Folder name").fill("quarter")
    tab.get_by_role("textbox", name="Folder name").press("Enter")
    expect(tab.get_by_text("exports/quarter is new")).to_be_visible()
    expect(tab.get_by_role("button", name="Run export")).to_be_in_viewport()
    tab.get_by_role("button", name="Run export").click()
    expect(job(tab, "quarter")).to_contain_text(re.compile("queued|running"))
    tab.reload()
    expect(job(tab, "quarter")).to_contain_text(re.compile("queued|running"))
    expect(job(tab, "quarter")).to_contain_text("done", timeout=JOB_MS)
    expect(job(tab, "quarter")).to_contain_text(re.compile(r"PASS: \S+, all \d+ checks"))
    # The page leads with the result, all of it at once, and nothing is red.
    expect(tab.get_by_text("quarter is written")).to_be_in_viewport()
    expect(tab.get_by_text("11 of 11 checks hold")).to_be_in_viewport()
    expect(tab.get_by_role("button", name="Run export")).not_to_be_visible()
    tab.get_by_text("Export it again under another name").click()
    tab.get_by_role("textbox", name="Folder name").fill("quarter")
    tab.get_by_role("textbox", name="Folder name").press("Enter")
    expect(tab.get_by_text("exports/quarter holds this export, finished")).to_be_visible()
    (dashboard.exports / "other").mkdir()
    (dashboard.exports / "other" / "notes.txt").write_text("mine")
    tab.get_by_role("textbox", name="Folder name").fill("other")
    tab.get_by_role("textbox", name="Folder name").press("Enter")
    expect(tab.get_by_text("exports/other is taken")).to_be_visible()
    expect(tab.get_by_role("button", name="Run export")).to_be_disabled()
    model = AutoModelForCausalLM.from_pretrained(dashboard.exports / "quarter")
    assert [layer.mlp.experts.num_experts for layer in model.model.layers] == [8] * 6
    assert sorted(path.name for path in dashboard.exports.iterdir()) == ["other", "quarter"]
    (done,) = (job for job in dashboard.jobs.list() if job.title == "quarter")
    assert done.command.startswith("moeprune export demo --plan plan.json ")
    assert done.result["verify"]["max_abs_diff"] <= 1e-5
    assert all(check["ok"] for check in done.result["verify"]["checks"])


@pytest.mark.slow
def test_calibration_survives_the_death_of_the_server(open_tab, dashboard):
    tab = open_tab()
    unfold(tab, "Data and jobs")
    pick(tab, "Corpus", "demo-math")
    slide(tab, "start-seq_len", "ArrowRight")
    tab.get_by_role("button", name="Run calibration").click()
    expect(job(tab, "demo on demo-math")).to_contain_text("running")
    tab.goto("about:blank")
    dashboard.kill()
    (running,) = (job for job in dashboard.jobs.list() if job.kind == "calibrate")
    assert running.state is JobState.RUNNING
    dashboard.start()
    tab = open_tab()
    if not job(tab, "demo on demo-math").is_visible():
        unfold(tab, "Data and jobs")
    expect(job(tab, "demo on demo-math")).to_contain_text("done", timeout=JOB_MS)
    expect(job(tab, "demo on demo-math")).to_contain_text("65,536 tokens of demo-math")
    (run,) = (path for path in (dashboard.root / "stats").iterdir() if path.is_dir())
    assert run.name.startswith("demo-demo-math-")
    # The newer run of the same size is the one in use.
    assert (run / "manifest.json").is_file()
