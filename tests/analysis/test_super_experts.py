"""Super experts: the rule by hand, what runs say together, and a model that was given one."""

import numpy as np
import pytest
import torch
from calibrations import calibrated

from analysis.families.base import MoELayer
from analysis.model.opening import load_model_index
from analysis.ranking.super_experts import super_experts
from analysis.stats.columns import EXPERT_COLUMNS, LARGEST
from analysis.stats.grid import Grid
from analysis.stats.manifest import CorpusRef, MeasuredModel, RunManifest
from analysis.stats.writing import save_expert_stats
from builders import tiny_model

# A dense first layer, so that a row of a table never passes for a layer. The decoder has 8 layers,
# of which 1 to 5 are in the first three quarters: 5 * 64 experts.
LAYERS = tuple(MoELayer(index, 64, 2) for index in range(1, 8))
USUAL = 2.0


@pytest.fixture
def save(tmp_path):
    """Stores a run: all experts have the usual largest output, but for `outputs`."""

    def saved(outputs, corpus="prose", unseen=(), *, is_old=False):
        model = MeasuredModel("tiny", "tiny", "olmoe", LAYERS)
        corpora = (CorpusRef(corpus, corpus, 1, 1, 9, 0, 0, 9),)
        manifest = RunManifest(
            "routed", f"tiny-{corpus}", corpus, model, corpora, {"dtype": "float32"}, {}
        )
        table = Grid(LAYERS).index()
        names = [name for name in EXPERT_COLUMNS if name not in ("layer", "expert")]
        usual = {**dict.fromkeys(names, 9.0), "g0_f2": 1e9, LARGEST: USUAL}
        table = table.assign(**usual)
        for (layer, expert), value in outputs.items():
            table.loc[(table["layer"] == layer) & (table["expert"] == expert), LARGEST] = value
        for layer, expert in unseen:
            place = (table["layer"] == layer) & (table["expert"] == expert)
            table.loc[place, ["num_tokens", "g0_f1", LARGEST]] = 0.0
        if is_old:
            table = table.drop(columns=LARGEST)
        return save_expert_stats(tmp_path, manifest, table, np.zeros((len(table), 3)))

    return saved


# The 99.5th percentile of 320 values in order is at 0.995 * 319 = 317.405 from 0: the third largest
# and 0.405 of the way to the second largest.
RULE = {
    # Third largest 9, second 40: the percentile is 9 + 0.405 * 31 = 21.6, the tenth 10.
    "both": ({(3, 17): 100, (2, 60): 40, (5, 2): 9}, {3: {17}, 2: {60}}),
    # The percentile is 98.4: 98 and 97 are above the tenth only.
    "percentile": ({(1, 0): 100, (2, 0): 99, (3, 0): 98, (4, 0): 97}, {1: {0}, 2: {0}}),
    # The percentile is 4.4: 5 is above it, not above the tenth.
    "tenth": ({(4, 63): 100, (1, 1): 5, (1, 2): 4}, {4: {63}}),
    # 10 is the tenth itself, which is not above it.
    "equal": ({(4, 63): 100, (1, 1): 10, (1, 2): 4}, {4: {63}}),
    # The last quarter neither has any, nor does its 1000 hide others.
    "depth": ({(6, 5): 1000, (5, 5): 20, (2, 1): 15}, {5: {5}, 2: {1}}),
}


@pytest.mark.parametrize(("outputs", "marked"), RULE.values(), ids=RULE)
def test_both_thresholds_decide_in_the_first_three_quarters(save, outputs, marked):
    supers = super_experts([save(outputs)])
    assert supers.experts == marked
    for layer, experts in supers.multiples.items():
        for expert, multiple in experts.items():
            assert multiple == outputs[layer, expert] / USUAL


def test_experts_without_tokens_do_not_count(save):
    # Without 119 of 320 experts the percentile of 201 values is the second largest itself.
    unseen = [(layer, expert) for layer in (1, 2) for expert in range(60)][:119]
    outputs = {(3, 0): 100, (3, 1): 99, (3, 2): 98}
    assert super_experts([save(outputs, unseen=unseen)]).experts == {3: {0}}
    assert super_experts([save(outputs, corpus="all")]).experts == {3: {0, 1}}


def test_runs_together_see_the_larger_of_their_maxima(save):
    prose = save({(1, 3): 30, (2, 4): 20, (2, 5): 8})
    code = save({(1, 3): 3, (4, 9): 300, (2, 4): 25}, corpus="code")
    assert super_experts([prose]).experts == {1: {3}, 2: {4}}
    # 300, 30, 25: the percentile is 25 + 0.405 * 5 = 27, the tenth 30, which 30 is not above.
    together = super_experts([prose, code])
    assert together.multiples == {4: {9: 150}}
    assert together.runs == ("tiny-prose", "tiny-code")


def test_one_run_without_the_statistic_leaves_all_unknown(save):
    old = save({}, corpus="old", is_old=True)
    supers = super_experts([save({(3, 17): 100}), old])
    assert (supers.experts, supers.unknown) == ({}, ("tiny-old",))


def test_a_model_with_one_large_expert_shows_it_by_its_layer(tmp_path):
    # Layers 0, 2 and 3 of 4 are sparse.
    model = tiny_model("qwen3_moe")
    with torch.no_grad():
        for layer, factor in ((2, 40), (3, 400)):
            model.model.layers[layer].mlp.experts.down_proj[3] *= factor
    model.save_pretrained(tmp_path / "model")
    described = load_model_index(str(tmp_path / "model"))
    assert super_experts([calibrated(described, tmp_path / "stats")]).experts == {2: {3}}
