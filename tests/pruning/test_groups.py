"""Routers that choose among groups of experts: the same number stays in each group."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, DeepseekV3Config

from analysis.errors import PlanError
from analysis.families import FAMILIES, MoELayer
from analysis.model import ModelRef
from analysis.ranking.experts import order_of
from analysis.stats.grid import Grid
from analysis.stats.tables import MeasuredModel
from pruning.allocation import Allocation, check_kept
from pruning.masking import masked
from pruning.plan import PruningPlan, select_experts
from pruning.schedules import uniform

# 12 experts in 3 groups of 4; two groups are chosen, by the sum of their two best; top-3.
LAYER = MoELayer(5, 12, 3, num_groups=3, least_per_group=2)
REF = ModelRef("grouped", "cd" * 32)


def best_subset(saliency, keep):
    """By enumeration: the most salient set with equally many in each group."""
    equal = (
        subset
        for subset in itertools.combinations(range(12), keep)
        if len({sum(e // 4 == group for e in subset) for group in range(3)}) == 1
    )
    return max(equal, key=lambda subset: sum(saliency[e] for e in subset))


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), keep=st.sampled_from([6, 9, 12]))
def test_selection_is_the_best_subset_with_equal_groups(seed, keep):
    saliency = np.random.default_rng(seed).random(12)
    order = order_of(saliency[None, :], Grid((LAYER,)))[0]
    wanted = best_subset(saliency, keep)
    assert tuple(sorted(order[:keep].tolist())) == wanted
    # Also from a ranking that knows nothing of groups, such as a file made elsewhere.
    plain = np.argsort(np.argsort(-saliency))
    table = pd.DataFrame({"layer": 5, "expert": range(12), "rank": plain})
    plan = select_experts(table, Allocation((LAYER,), (keep,)), model=REF)
    assert plan.kept[5] == wanted


def test_the_order_without_groups_is_by_saliency_alone():
    saliency = np.array([[0.1, 0.9, 0.5, np.nan], [4.0, 3.0, 2.0, 1.0]])
    grid = Grid((MoELayer(0, 3, 1), MoELayer(1, 4, 1)))
    assert order_of(saliency, grid).tolist() == order_of(saliency).tolist()
    assert order_of(saliency, grid)[0, :3].tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (2, r"keep 2 of 12 experts, but its router picks 3 per token"),
        (3, r"its router needs 2 in each of 3 groups; at most 50% can go\.$"),
        (7, r"3 groups, each of which must keep as many; nearest: 6 \(50% removed\) or 9 \(25%"),
        (10, r"nearest: 9 \(25% removed\) or 12 \(0% removed\)\.$"),
    ],
)
def test_a_number_that_the_groups_cannot_share_names_the_nearest(keep, message):
    with pytest.raises(PlanError, match=message) as caught:
        Allocation((LAYER,), (keep,))
    assert "\n" not in str(caught.value)


def test_a_uniform_schedule_that_does_not_fit_the_groups_is_refused():
    assert uniform((LAYER,), "25%").keep == (9,)
    with pytest.raises(PlanError, match="nearest"):
        uniform((LAYER,), "20%")


def test_unequal_groups_are_refused_with_the_number_that_works():
    check_kept(LAYER, (0, 1, 4, 5, 8, 9))
    with pytest.raises(PlanError, match=r"keeps 3, 1, 2 experts .* layer 5, .* here 2 in each"):
        check_kept(LAYER, (0, 1, 2, 4, 8, 9))


@pytest.mark.parametrize(
    ("config", "groups"),
    [
        ({"n_group": 4, "topk_group": 2, "num_experts_per_tok": 6}, (4, 3)),  # 3 * 2 >= 6
        ({"n_group": 4, "topk_group": 4, "num_experts_per_tok": 4}, (4, 2)),  # two best
        ({"n_group": 1, "topk_group": 1, "num_experts_per_tok": 4}, (1, 1)),
        ({"n_group": 1, "topk_group": 1, "num_experts_per_tok": 1}, (1, 2)),  # still two best
    ],
)
def test_what_a_group_must_keep_follows_from_the_router(config, groups):
    common = {"num_hidden_layers": 1, "first_k_dense_replace": 0, "n_routed_experts": 16}
    (layer,) = FAMILIES["deepseek_v3"].layers({**common, **config})
    assert (layer.num_groups, layer.least_per_group) == groups
    assert layer.least_kept == max(config["num_experts_per_tok"], groups[0] * groups[1])


def test_deepseek_v2_has_groups_only_where_it_routes_by_them():
    config = {"num_hidden_layers": 1, "n_routed_experts": 16, "num_experts_per_tok": 6}
    config |= {"n_group": 4, "topk_group": 2}
    family = FAMILIES["deepseek_v2"]
    assert family.layers({**config, "topk_method": "greedy"})[0].num_groups == 1
    (layer,) = family.layers({**config, "topk_method": "group_limited_greedy"})
    assert (layer.num_groups, layer.least_per_group) == (4, 3)


def test_statistics_of_models_without_groups_are_written_as_before():
    plain = MeasuredModel("m", "0" * 64, "olmoe", (MoELayer(0, 8, 2),))
    assert plain.to_json()["layers"] == [[0, 8, 2]]
    grouped = replace(plain, layers=(LAYER,))
    assert grouped.to_json()["layers"] == [[5, 12, 3, 3, 2]]
    for each in (plain, grouped):
        assert MeasuredModel.from_json(each.to_json()) == each


def test_masking_refuses_unequal_groups():
    config = DeepseekV3Config(
        vocab_size=32, hidden_size=16, intermediate_size=16, moe_intermediate_size=8,
        num_hidden_layers=1, first_k_dense_replace=0, num_attention_heads=2,
        num_key_value_heads=2, n_routed_experts=12, n_group=3, topk_group=2,
        num_experts_per_tok=3, kv_lora_rank=8, q_lora_rank=None, qk_rope_head_dim=4,
        qk_nope_head_dim=4, v_head_dim=8, pad_token_id=0,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    family = FAMILIES["deepseek_v3"]
    with pytest.raises(PlanError, match="keeps 4, 1, 1 experts"):
        masked(model, family, PruningPlan(REF, {0: (0, 1, 2, 3, 4, 8)})).__enter__()
    with masked(model, family, PruningPlan(REF, {0: (0, 1, 4, 5, 8, 9)})):
        pass
