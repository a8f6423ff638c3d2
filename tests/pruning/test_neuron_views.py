"""Tables of plans of neurons, by hand on two layers and against the demo."""

import numpy as np
import pytest

from analysis.widths import expert_widths
from pruning.active import active_experts
from pruning.atoms.budget import atom_sparsity_budget
from pruning.atoms.rooms import atom_rooms, kept_experts
from pruning.atoms.selection import AtomScope, Contest
from pruning.constraints import Constraints
from pruning.neuron_views import flops_saved, layer_shares
from pruning.plan import PruningPlan, fit_plan, model_ref
from pruning.plan_summary import neuron_summary


def demo_scores(demo):
    """Expert 0 of every layer has the lowest scores; the others rise with their id."""
    return {
        layer: tuple(np.full(width, float(expert)) for expert, width in enumerate(widths))
        for layer, widths in expert_widths(demo).items()
    }


def contest_of(demo, scope):
    return Contest(demo_scores(demo), atom_rooms(expert_widths(demo), Constraints()), scope)


def test_flops_follow_how_often_experts_are_chosen(demo):
    # A quarter of the neurons: experts 0 to 7 of 32, which get 4 of 100 tokens in every layer.
    routing = {layer.index: (1,) * 8 + (8,) * 24 for layer in demo.layers}
    contest = contest_of(demo, AtomScope.LAYER)
    saved = flops_saved(demo, contest, ["0%", "25%"], routing)
    assert saved["removed"].tolist() == [0.0, 0.25]
    assert saved["reduction"].tolist() == pytest.approx([0.0, 8 / 200], abs=1e-6)  # whole FLOPs
    even = flops_saved(demo, contest, ["25%"])
    assert even["reduction"].tolist() == pytest.approx([0.25])
    whole = fit_plan(PruningPlan(model_ref(demo), {}), demo)
    assert even["flops"].tolist() == [active_experts(demo, whole).flops * 3 // 4]


@pytest.mark.parametrize("scope", list(AtomScope), ids=str)
def test_flops_are_those_of_the_plan(demo, scope):
    generator = np.random.default_rng(3)
    scores = {
        layer: tuple(generator.random(width) for width in widths)
        for layer, widths in expert_widths(demo).items()
    }
    routing = {layer.index: generator.integers(1, 99, 32).tolist() for layer in demo.layers}
    limits = Constraints(protected=frozenset({1}), dropped={4: frozenset({0, 9})})
    contest = Contest(scores, atom_rooms(expert_widths(demo), limits), scope)
    experts = kept_experts(demo.layers, limits)
    # 12,288 neurons, of which layer 1 keeps its 2,048: more than five sixths cannot go.
    table = flops_saved(demo, contest, ["40%", "90%"], routing, experts)
    assert table["sparsity"].tolist() == ["40%"]
    removed = contest.removed(atom_sparsity_budget(contest.pools, "40%"))
    atoms = contest.kept(removed, experts)
    plan = PruningPlan(model_ref(demo), experts, granularity="atomic", kept_atoms=atoms)
    flops = active_experts(demo, fit_plan(plan, demo), routing).flops
    assert table["flops"].tolist() == [flops]
    shares = layer_shares({"x": removed}, expert_widths(demo)).set_index("layer")["share"]
    assert shares.tolist() == pytest.approx(neuron_summary(plan, demo)["share"].tolist())


def test_layer_shares_are_counts_of_each_layer():
    removed = {"few": {(2, 0): 1, (2, 1): 0, (5, 0): 0}, "many": {(2, 0): 2, (2, 1): 1, (5, 0): 2}}
    table = layer_shares(removed, {5: (2,), 2: (2, 2)})
    assert list(table.columns) == ["series", "layer", "share"]
    shares = table.pivot_table(index="layer", columns="series", values="share")
    assert shares["few"].tolist() == [1 / 4, 0]
    assert shares["many"].tolist() == [3 / 4, 1]
