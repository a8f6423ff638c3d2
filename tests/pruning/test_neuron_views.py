"""Tables of plans of neurons, by hand on two layers and against the demo."""

import numpy as np
import pytest

from analysis.model import load_model_index
from analysis.widths import expert_widths
from pruning.active import active_experts
from pruning.atoms.selection import AtomScope
from pruning.neuron_views import bin_table, bins_of, flops_saved, layer_shares, without_bin
from pruning.plan import ATOMIC_GRANULARITY, PruningPlan, fit_plan, model_ref

# Layer 2 has two experts, layer 5 one: six neurons.
SCORES = {
    5: (np.array([4.0, 0.0]),),
    2: (np.array([3.0, 1.0]), np.array([2.0, 5.0])),
}


def test_bins_follow_the_score_or_the_place():
    # In order of layer, expert and neuron: 3 1 2 5 4 0.
    assert bins_of(SCORES, "score", 3).tolist() == [1, 0, 1, 2, 2, 0]
    assert bins_of(SCORES, "index", 3).tolist() == [0, 0, 1, 1, 2, 2]
    assert np.bincount(bins_of(SCORES, bins=4)).tolist() == [2, 1, 2, 1]


def test_one_bin_goes_and_the_rest_stays():
    kept = without_bin(SCORES, bins_of(SCORES, "score", 3), 0)
    assert {layer: dict(each) for layer, each in kept.items()} == {2: {0: (0,)}, 5: {0: (0,)}}
    last = without_bin(SCORES, bins_of(SCORES, "index", 3), 2)
    assert {layer: dict(each) for layer, each in last.items()} == {5: {0: ()}}


def test_shares_are_of_the_sums():
    table = bin_table(SCORES, bins_of(SCORES, "score", 3), [1.9, 2.5, 3.0], 2.0)
    assert table["neurons"].tolist() == [2, 2, 2]
    assert table["score"].tolist() == [1.0, 5.0, 9.0]
    assert table["score_share"].tolist() == pytest.approx([1 / 15, 5 / 15, 9 / 15])
    assert table["change"].tolist() == pytest.approx([-0.1, 0.5, 1.0])
    assert table["change_share"].tolist() == pytest.approx([-0.1 / 1.4, 0.5 / 1.4, 1 / 1.4])


@pytest.fixture(scope="module")
def demo():
    return load_model_index("demo")


def demo_scores(demo):
    """Expert 0 of every layer has the lowest scores; the others rise with their id."""
    return {
        layer: tuple(np.full(width, float(expert)) for expert, width in enumerate(widths))
        for layer, widths in expert_widths(demo).items()
    }


def test_flops_follow_how_often_experts_are_chosen(demo):
    # A quarter of the neurons: experts 0 to 7 of 32, which get 4 of 100 tokens in every layer.
    routing = {layer.index: (1,) * 8 + (8,) * 24 for layer in demo.layers}
    saved = flops_saved(demo, demo_scores(demo), AtomScope.LAYER, ["0%", "25%"], routing)
    assert saved["removed"].tolist() == [0.0, 0.25]
    assert saved["reduction"].tolist() == pytest.approx([0.0, 8 / 200], abs=1e-6)  # whole FLOPs
    even = flops_saved(demo, demo_scores(demo), AtomScope.LAYER, ["25%"])
    assert even["reduction"].tolist() == pytest.approx([0.25])
    whole = fit_plan(PruningPlan(model_ref(demo), {}), demo)
    assert even["flops"].tolist() == [active_experts(demo, whole).flops * 3 // 4]


def test_layer_shares_are_those_of_each_plan(demo):
    def plan(neurons):
        atoms = {1: {4: tuple(range(64 - neurons))}}
        return PruningPlan(model_ref(demo), {}, granularity=ATOMIC_GRANULARITY, kept_atoms=atoms)

    table = layer_shares({"few": plan(16), "many": plan(64)}, demo)
    assert list(table.columns) == ["series", "layer", "share"]
    shares = table.pivot_table(index="layer", columns="series", values="share")
    assert shares["few"].tolist() == [0, 16 / 2048, 0, 0, 0, 0]
    assert shares["many"].tolist() == [0, 64 / 2048, 0, 0, 0, 0]
