"""Arrays of neurons that go and what they save, by the routing that was measured."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from neuron_cases import select_neurons

from analysis.errors import StatsError
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.widths import expert_widths
from analysis.stats.reading import load_expert_stats
from analysis.stats.store import StatsStore
from pruning.plan.budget import sparsity_budget
from pruning.plan.constraints import Constraints
from pruning.plan.expert_sizes import active_experts
from pruning.plan.neuron_cuts import (
    expert_shares,
    field_of,
    layer_cuts,
    neurons_of,
    pool_chance,
    pool_overlap,
    pruned_neurons,
    saliency_histogram,
)
from pruning.plan.plan import Provenance, PruningPlan, fit_plan, keep_all, model_ref
from pruning.plan.routing import measured_routing, ranked_by
from pruning.plan.selection import kept_experts, neurons_left
from pruning.plan.tables import neuron_summary
from pruning.plan.units import NeuronScope, neuron_units
from pruning.planning.make import neurons_removed
from pruning.planning.side_by_side import flops_saved, layer_shares

# Layer 2: experts of 2 and 3 neurons; layer 5: one of 3.
SCORES = {5: (np.array([4.0, 0.0, 100.0]),), 2: (np.array([3.0, 1.0]), np.array([2.0, 5.0, 0.5]))}
HALF = Fraction(1, 2)


def pruned(scores, scope, sparsity=HALF):
    field = field_of(scores)
    return field, pruned_neurons(field.ranks(scope), field.pools(scope), sparsity)


@pytest.mark.parametrize("scope", list(NeuronScope))
@pytest.mark.parametrize("seed", range(6))
def test_the_same_neurons_go_as_in_a_plan_ties_included(scope, seed):
    generator = np.random.default_rng(seed)
    scores = {
        layer: tuple(
            generator.integers(0, 5, width).astype(float)  # few values: many ties
            for width in generator.integers(1, 9, 5)
        )
        for layer in (1, 3, 4)
    }
    for sparsity in (Fraction(0), Fraction(1, 7), HALF, Fraction(9, 10)):
        field, mask = pruned(scores, scope, sparsity)
        kept = select_neurons(scores, sparsity, scope)
        ends = np.cumsum(field.widths)[:-1]
        places = zip(field.layers, field.experts, np.split(mask, ends), strict=True)
        for layer, expert, gone in places:
            stay = set(range(len(gone))) - set(np.flatnonzero(gone))
            assert stay == set(kept.get(layer, {}).get(expert, range(len(gone))))


def test_shares_and_cuts_by_hand():
    # In order 3 1 | 2 5 0.5 | 4 0 100; of all eight the lowest four go: 0, 0.5, 1 and 2.
    field, mask = pruned(SCORES, NeuronScope.GLOBAL)
    assert mask.tolist() == [False, True, True, False, True, False, True, False]
    shares = expert_shares(field, mask)
    assert list(zip(shares["layer"], shares["expert"], strict=True)) == [(2, 0), (2, 1), (5, 0)]
    assert shares["removed"].tolist() == [1, 2, 1]
    assert shares["kept_share"].tolist() == pytest.approx([1 / 2, 1 / 3, 2 / 3])
    cuts = layer_cuts(field, mask).set_index("layer")
    assert cuts["cut"].to_dict() == {2: 2.0, 5: 0.0}
    assert cuts["zeros"].to_dict() == {2: 0, 5: 1}
    none = layer_cuts(*pruned(SCORES, NeuronScope.GLOBAL, Fraction(0)))
    assert none["cut"].isna().all()


def test_an_expert_without_neurons_keeps_all_of_them():
    field, mask = pruned({0: (np.array([]), np.array([1.0, 2.0]))}, NeuronScope.LAYER)
    assert expert_shares(field, mask)["kept_share"].tolist() == [1.0, 0.5]
    field, mask = pruned({0: (np.array([]), np.array([1.0, 2.0]))}, NeuronScope.GLOBAL, Fraction(1))
    assert expert_shares(field, mask)["kept_share"].tolist() == [1.0, 0.0]


def test_every_neuron_above_zero_is_counted_once():
    field, mask = pruned(SCORES, NeuronScope.GLOBAL)
    table = saliency_histogram(field, mask, bins=4)
    # From 0.5 to 100 in four steps of a factor 3.76: 0.5, 1.88, 7.07, 26.6, 100.
    assert table["low"].tolist()[:4] == pytest.approx([0.5 * 200 ** (n / 4) for n in range(4)])
    assert table["kept"].tolist() == [0, 2, 0, 0, 0, 1, 0, 1]
    assert table["pruned"].tolist() == [2, 1, 0, 0, 0, 0, 0, 0]
    assert saliency_histogram(*pruned({0: (np.zeros(3),)}, NeuronScope.GLOBAL)).empty
    alike = saliency_histogram(*pruned({0: (np.full(4, 2.0),)}, NeuronScope.GLOBAL), bins=3)
    # One saliency is at the start of a decade: 2 to 20 in three steps.
    assert alike["low"].tolist() == pytest.approx([2 * 10 ** (n / 3) for n in range(3)])
    assert alike["kept"].tolist() == alike["pruned"].tolist() == [2, 0, 0]


def test_neurons_of_an_expert_are_in_order():
    field, mask = pruned(SCORES, NeuronScope.GLOBAL)
    table = neurons_of(field, mask, 2, 1)
    assert table["neuron"].tolist() == [1, 0, 2]
    assert table["saliency"].tolist() == [5.0, 2.0, 0.5]
    assert table["kept"].tolist() == [True, False, False]
    with pytest.raises(KeyError):
        neurons_of(field, mask, 3, 0)


def test_overlap_is_a_mean_over_pools():
    first = np.array([True, True, False, False, True, False])
    second = np.array([True, False, True, False, False, True])
    # One pool: 1 of 3. Two pools of 4 and 2: 1 of 2, and 0 of 1.
    assert pool_overlap(first, second, [6]) == pytest.approx(1 / 3)
    assert pool_overlap(first, second, [4, 2]) == pytest.approx((1 / 2 + 0) / 2)
    # A pool that loses nothing counts for nothing, as a layer of experts does.
    assert pool_overlap(first[:4], second[:4], [2, 2]) == pytest.approx(1 / 2)
    assert math.isnan(pool_overlap(first & False, second, [6]))


def test_chance_is_the_share_that_goes_of_each_pool():
    # Of 7 and 10 go 2 and 3: an expert that goes once goes again with that probability.
    assert pool_chance([7, 10], Fraction(3, 10)) == pytest.approx((2 / 7 + 3 / 10) / 2)
    # A pool that loses nothing counts for nothing.
    assert pool_chance([3, 10], Fraction(3, 10)) == pytest.approx(3 / 10)
    assert math.isnan(pool_chance([3], Fraction(1, 4)))


def test_flops_follow_how_often_experts_are_chosen(demo):
    # A quarter of the neurons: experts 0 to 7 of 32, which get 4 of 100 tokens in every layer.
    routing = {layer.index: (1,) * 8 + (8,) * 24 for layer in demo.layers}
    # The scores of experts rise with their id.
    widths = expert_widths(demo)
    scores = {
        layer: tuple(np.full(width, float(expert)) for expert, width in enumerate(held))
        for layer, held in widths.items()
    }
    units = neuron_units(widths, scope=NeuronScope.LAYER, saliency=scores)
    saved = flops_saved(demo, units, ["0%", "25%"], routing)
    assert saved["removed"].tolist() == [0.0, 0.25]
    assert saved["reduction"].tolist() == pytest.approx([0.0, 8 / 200], abs=1e-6)  # whole FLOPs
    even = flops_saved(demo, units, ["25%"])
    assert even["reduction"].tolist() == pytest.approx([0.25])
    assert even["flops"].tolist() == [active_experts(demo, keep_all(demo)).flops * 3 // 4]


@pytest.mark.parametrize("scope", list(NeuronScope), ids=str)
def test_flops_are_those_of_the_plan(demo, scope):
    generator = np.random.default_rng(3)
    scores = {
        layer: tuple(generator.random(width) for width in widths)
        for layer, widths in expert_widths(demo).items()
    }
    routing = {layer.index: generator.integers(1, 99, 32).tolist() for layer in demo.layers}
    limits = Constraints(protected=frozenset({1}), dropped={4: frozenset({0, 9})})
    units = neuron_units(expert_widths(demo), limits, scope, scores)
    experts = kept_experts(demo.layers, limits)
    # 12,288 neurons, of which layer 1 keeps its 2,048: more than five sixths cannot go.
    table = flops_saved(demo, units, ["40%", "90%"], routing)
    assert table["sparsity"].tolist() == ["40%"]
    removed = neurons_removed(units, sparsity_budget(units, "40%"))
    neurons = neurons_left(units, removed, experts)
    plan = PruningPlan(model_ref(demo), experts, granularity="neuron", kept_neurons=neurons)
    flops = active_experts(demo, fit_plan(plan, demo), routing).flops
    assert table["flops"].tolist() == [flops]
    shares = layer_shares({"x": removed}, units).set_index("layer")["share"]
    assert shares.tolist() == pytest.approx(neuron_summary(plan, demo)["share"].tolist())


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
    neurons = {0: {3: tuple(range(10)), 7: (), 20: (1, 5)}, 4: {0: tuple(range(40))}}
    plan = PruningPlan(model_ref(demo), {}, made, "neuron", neurons)
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
    for layer in (layer.index for layer in demo.layers):
        # Of one layer every token is counted four times, so both shares sum to one.
        parts = zip(shares_of(math[layer]), shares_of(code[layer]), strict=True)
        wanted = [(3 * first + second) / 4 for first, second in parts]
        assert shares_of(found[layer]) == pytest.approx(wanted, rel=1e-12)
    # The weights matter: an even blend, or one of the runs alone, gives other FLOPs.
    plans = [plan, plan_of(demo, runs, "demo-math", "demo-code"), plan_of(demo, runs, "demo-math")]
    assert len({active_experts(demo, plan, measured_routing([p], store)).flops for p in plans}) == 3


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
