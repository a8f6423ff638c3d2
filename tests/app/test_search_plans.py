"""Plans of searches in the order that they were made on, found among all runs of the model."""

from typer.testing import CliRunner

import app.cli
from analysis.model import load_model_index
from analysis.stats.store import SHIPPED_STATS, stats_store
from pruning.planning.make import make_plan
from pruning.planning.ranking import select
from pruning.planning.search_plans import searched_selection
from pruning.requests.plan import PlanRequest
from pruning.search.store import order_digest, read_known


def test_a_newer_run_of_the_text_does_not_hide_the_one_that_the_search_has_read(tmp_path):
    words = ["calibrate", "demo", "--corpus", "demo-code", "--tokens", "512", "--stats-dir"]
    outcome = CliRunner().invoke(app.cli.cli, [*words, str(tmp_path)], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    model, store = load_model_index("demo"), stats_store(tmp_path)
    base = PlanRequest(model="demo", criterion="man", corpora=("demo-code",), sparsity="50%")
    (newest,) = select(base, model, store).choice.runs
    assert newest.path.parent == tmp_path
    search = read_known(SHIPPED_STATS / "searches" / "demo-reap.json")
    found = searched_selection(base, search, (model, store), [(("demo-code",), "applied")])
    assert order_digest(found.table) == search.order
    (run,) = found.choice.runs
    assert run.path.parent == SHIPPED_STATS
    assert f"--run {run.manifest.run_id}" in found.request.command()
    assert {
        layer: len(ids) for layer, ids in make_plan(found, found.request).plan.kept.items()
    } == search.kept
