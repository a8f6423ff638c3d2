"""How often experts were chosen where plans came from: blends by their weights, else the newest."""

from dataclasses import replace

import pytest

from analysis.errors import StatsError
from analysis.stats.store import SHIPPED_STATS, StatsStore, load_expert_stats
from pruning.active import active_experts
from pruning.measured_routing import measured_routing, ranked_by
from pruning.plan import Provenance, PruningPlan, fit_plan, keep_all, model_ref


@pytest.fixture(scope="module")
def store():
    return StatsStore(SHIPPED_STATS)


@pytest.fixture(scope="module")
def runs(demo, store):
    """The shipped calibrations by corpus; each has the same number of tokens."""
    return {run.manifest.corpus: run for run in store.of_model(demo.identity, "routed")}


def plan_of(demo, runs, *corpora):
    """Experts of different widths, ranked by corpora as a plan names them."""
    names = [corpus.partition(":")[0] for corpus in corpora]
    made = Provenance(corpora=corpora, runs=tuple(runs[name].manifest.run_id for name in names))
    atoms = {0: {3: tuple(range(10)), 7: (), 20: (1, 5)}, 4: {0: tuple(range(40))}}
    plan = PruningPlan(model_ref(demo), {}, made, "atomic", atoms)
    return fit_plan(plan, demo)


def tokens_of(run):
    table = load_expert_stats(run).table.set_index(["layer", "expert"])["num_tokens"]
    return {layer: rows.tolist() for layer, rows in table.groupby("layer")}


def shares_of(counts):
    return [count / sum(counts) for count in counts]


def test_a_blend_counts_by_its_weights(demo, store, runs):
    plan = plan_of(demo, runs, "demo-math:3", "demo-code")
    found = measured_routing([plan], store)
    math, code = (tokens_of(runs[name]) for name in ("demo-math", "demo-code"))
    for layer in (each.index for each in demo.layers):
        # Of one layer every token is counted four times, so both shares sum to one.
        parts = zip(shares_of(math[layer]), shares_of(code[layer]), strict=True)
        wanted = [(3 * first + second) / 4 for first, second in parts]
        assert shares_of(found[layer]) == pytest.approx(wanted, rel=1e-12)
    # The weights matter: an even blend, or one of the runs alone, gives other FLOPs.
    plans = [plan, plan_of(demo, runs, "demo-math", "demo-code"), plan_of(demo, runs, "demo-math")]
    assert len({active_experts(demo, plan, measured_routing([p], store)).flops for p in plans}) == 3


def test_a_single_run_counts_as_it_is(demo, store, runs):
    plan = plan_of(demo, runs, "demo-prose")
    found = measured_routing([plan], store)
    assert {layer: list(counts) for layer, counts in found.items()} == tokens_of(runs["demo-prose"])


def test_runs_that_are_gone_are_left_out(demo, store, runs):
    plan = plan_of(demo, runs, "demo-math:3", "demo-code:2")
    made = replace(plan.provenance, runs=("demo-gone-00000000", plan.provenance.runs[1]))
    (part,) = ranked_by(replace(plan, provenance=made), store)
    assert (part.run.manifest.corpus, part.weight) == ("demo-code", 2)


def test_without_a_run_of_its_own_the_newest_of_the_model_counts(demo, store, runs):
    cut = replace(plan_of(demo, runs), provenance=Provenance())
    newest = max(runs.values(), key=lambda run: run.manifest.made["created_at"])
    found = measured_routing([cut], store)
    assert {layer: list(counts) for layer, counts in found.items()} == tokens_of(newest)
    # The runs of another plan go before it.
    ranked = plan_of(demo, runs, "demo-math")
    assert measured_routing([cut, ranked], store) == measured_routing([ranked], store)


def test_where_it_does_not_matter_or_nothing_was_measured_there_is_none(
    demo, store, runs, tmp_path
):
    assert measured_routing([keep_all(demo)], store) is None
    assert measured_routing([], store) is None
    assert measured_routing([plan_of(demo, runs, "demo-math")], StatsStore(tmp_path)) is None


@pytest.mark.parametrize("weight", ["x", "0", "-1", "nan"])
def test_a_weight_that_is_none_is_one_line(demo, store, runs, weight):
    plan = plan_of(demo, runs, f"demo-math:{weight}", "demo-code")
    with pytest.raises(StatsError, match="weight") as caught:
        measured_routing([plan], store)
    assert "\n" not in str(caught.value)
