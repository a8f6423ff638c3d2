"""The pages without a browser: AppTest, on the demo and on small models in various states."""

import json
import logging
import shlex
import shutil
import sys
from functools import cache, partial
from pathlib import Path

import pandas as pd
import pytest
import torch
from page_texts import open_at, refusal_of_link
from streamlit import config
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest, local_script_runner
from typer.testing import CliRunner

import app.cli
from app.jobs.runner import LocalRunner
from app.jobs.store import JobStore
from app.session.data import settings
from app.session.job_queue import job_store
from builders import tiny_checkpoint
from builders.tokens import random_ids
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import WeightsRequest
from pruning.tasks.calibration import calibrate_run, weights_run

# Tiny matrices: a second thread only waits for the first.
torch.set_num_threads(1)

ROOT = Path(__file__).parents[2]
MAIN, SHIPPED = ROOT / "app" / "pages" / "main.py", ROOT / "cached_stats"
# Generous: nothing waits longer than it must, and the machine may be busy.
TIMEOUT_SECONDS = 180

logging.getLogger("streamlit.runtime.scriptrunner_utils.script_run_context").setLevel("ERROR")


@pytest.fixture(scope="session", autouse=True)
def one_scan_of_packages():
    """Every AppTest reads what all installed packages say of themselves, in search of components.

    Streamlit finds the same each time, and takes longer than most pages do.
    """
    with pytest.MonkeyPatch.context() as patch:
        scan = manifest_scanner.scan_component_manifests
        patch.setattr(manifest_scanner, "scan_component_manifests", cache(scan))
        yield


@pytest.fixture(scope="session", autouse=True)
def waits_without_looking():
    """Every AppTest looks a thousand times a second whether its page is done; waiting is enough."""
    look = local_script_runner.require_widgets_deltas

    def wait(runner, timeout):
        runner._script_thread.join(timeout)
        look(runner, 1)  # it looks once if the page is done, and else says that it is late

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_script_runner, "require_widgets_deltas", wait)
        yield


def finish(task):
    for _ in task:
        pass


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Models `bare`, `weighed`, `once`, named after the statistics that they have."""
    root = tmp_path_factory.mktemp("dashboard")
    models, stats = root / "models", root / "stats"
    for seed, name in enumerate(("bare", "weighed", "once")):
        # Layers 0, 2, 3 of 6 experts, top-2.
        tiny_checkpoint(models / name, "qwen3_moe", seed=seed)
    corpus = random_ids(models / "rows.jsonl", (6, 9))
    stats.mkdir()
    finish(weights_run(WeightsRequest(model=str(models / "weighed"), stats_dir=stats)))
    request = CalibrateRequest(
        model=str(models / "once"), corpus=str(corpus), tokens=64, seq_len=16, stats_dir=stats
    )
    finish(calibrate_run(request))
    return models, stats


@pytest.fixture
def export_root(tmp_path):
    return tmp_path / "exports"


@pytest.fixture
def models_root(folders):
    return folders[0]


@pytest.fixture
def stats_dir(folders):
    return folders[1]


@pytest.fixture(scope="session")
def no_jobs(tmp_path_factory):
    """A job table without jobs: a copy costs no sync, of which making one takes six."""
    return JobStore(tmp_path_factory.mktemp("jobs") / "jobs.sqlite").path


@pytest.fixture
def environment(models_root, stats_dir, tmp_path, export_root, no_jobs, monkeypatch):
    """The settings of a server process, as its launcher leaves them."""
    if not (tmp_path / "state").exists():
        (tmp_path / "state").mkdir(mode=0o700)
        shutil.copy(no_jobs, tmp_path / "state")
    monkeypatch.setenv("MOEPRUNE_MODELS_ROOT", str(models_root))
    monkeypatch.setenv("MOEPRUNE_STATS_DIR", str(stats_dir))
    monkeypatch.setenv("MOEPRUNE_EXPORT_ROOT", str(export_root))
    monkeypatch.setenv("MOEPRUNE_STATE_DIR", str(tmp_path / "state"))
    # Settings are read once a process; the tables that other tests loaded stay good.
    settings.clear()
    before = config.get_option("server.address")
    config.set_option("server.address", "127.0.0.1")  # which the launcher gives as an argument
    yield
    config.set_option("server.address", before)
    settings.clear()


@pytest.fixture
def queued_jobs(environment, monkeypatch):
    """What pages queue, oldest first; no worker starts any of it."""
    monkeypatch.setattr("app.jobs.slurm.LocalRunner", partial(LocalRunner, limit=0))
    return lambda: job_store().list()[::-1]


@pytest.fixture
def open_page(environment):
    """Open a page as a person does who follows a link; `address` is its query.

    The page must show the plan of the link, or refuse it in one line with the words `refused`. An
    address names the plan of defaults, or what differs from it; a bare one, as that of Start, none.
    """

    def _open(page, model=None, refused="", bare=None, **address):
        test = AppTest.from_file(str(MAIN), default_timeout=TIMEOUT_SECONDS)
        if not (page == "start" if bare is None else bare):
            test.query_params["opened"] = "1"
        for key, value in {**({"model": model} if model else {}), **address}.items():
            test.query_params[key] = value
        why = refusal_of_link(go(test, page))
        assert refused in why and bool(why) == bool(refused)
        assert "\n" not in why
        return test

    return _open


def _session():
    """The controls of every page without a page, after what a click of the test calls."""
    import streamlit

    from app.session.pinned_plans import open_pin, pinned_plans
    from app.session.pins import pin_of, pins
    from app.widgets.chosen_plan import chosen_plan
    from app.widgets.pinned_table import pinned_table
    from app.widgets.report import decision_page

    state = streamlit.session_state
    if state.get("opens"):
        open_pin(state["loaded"], pins()[0])
        state["opens"] = False
    loaded = state["loaded"] = chosen_plan("plan")[0]
    state["own_pin"] = pin_of(loaded.shown)
    plans, state["problems"] = pinned_plans(loaded)
    state["rows"] = pinned_table(plans)
    state["changed"] = [plan.has_changed for plan in plans]
    state["decision"] = decision_page(loaded, loaded.shown)()


@pytest.fixture
def session(environment):
    """A session at an address, which ends with the plan on screen and the table of pins."""

    def _open(**address):
        test = AppTest.from_function(_session, default_timeout=180)
        for name, value in address.items():
            test.query_params[name] = value
        test.run()
        assert not test.exception
        return test

    return _open


@pytest.fixture
def go_to():
    return go


def go(test, page):
    open_at(test, page)
    assert not test.exception, test.exception
    return test


@pytest.fixture(scope="session")
def demo_moments():
    """The shipped statistics of the demo by corpus, read without the program."""
    found = {}
    for manifest in sorted(SHIPPED.glob("demo-*/manifest.json")):
        table = manifest.with_name("experts.parquet")
        if table.exists():
            corpus = json.loads(manifest.read_text())["corpora"][0]["name"]
            found[corpus] = pd.read_parquet(table)
    return found


@pytest.fixture(scope="session")
def demo_scores():
    """(layer, expert) -> AIMER and Magnitude, from the shipped norms."""
    (path,) = SHIPPED.glob("demo-weights-*/weights.parquet")
    sums = pd.read_parquet(path).groupby(["layer", "expert"])[["l1", "l2_squared", "numel"]].sum()
    return pd.DataFrame(
        {
            "AIMER": sums["l1"] / (sums["numel"] * sums["l2_squared"]) ** 0.5,
            "Magnitude": sums["l1"] / sums["numel"],
        }
    )


@pytest.fixture(scope="session")
def never(demo_moments):
    """Corpus -> (layer, expert) that no token of it reached."""
    reached = {corpus: table[table["num_tokens"] == 0] for corpus, table in demo_moments.items()}
    return {
        corpus: list(zip(rows["layer"], rows["expert"], strict=True))
        for corpus, rows in reached.items()
    }


@pytest.fixture(scope="session")
def demo_checkpoint():
    return ROOT / "analysis" / "demo" / "checkpoint"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command line as it stands on a page, in an empty folder; what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def _run(line):
        program, *words = shlex.split(line)
        assert program == "moeprune"
        words += ["--force"] if words[0] == "plan" else []  # over the plan of an earlier line
        monkeypatch.setattr(sys, "argv", ["moeprune", *words])
        result = CliRunner().invoke(app.cli.cli, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return _run
