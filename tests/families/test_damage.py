"""Exact damage against the brute force: every expert removed, the layer's output compared."""

import weakref

import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from analysis.calibration.experts import batch_mask, collecting
from analysis.calibration.removal import _Logits
from analysis.calibration.sums import sums_of
from analysis.errors import StatsError, UnsupportedModelError
from analysis.families.base import MoELayer
from analysis.model.opening import load_model_index
from families.built import stock_load
from families.configs import BY_NAME, DISTINCT, Case, cases_where
from families.physical import block_of, listening, physically_pruned, router_of
from families.plain import expert_output
from families.settings import VOCAB
from families.tiny_models import tiny_model

IDS = torch.randint(3, VOCAB, (3, 9), generator=torch.Generator().manual_seed(11))
MASK = torch.ones(3, 9, dtype=torch.bool)
MASK[1, 6:] = MASK[2, 2:] = False
FLAT = MASK.reshape(-1)
UNGROUPED = [param for param in DISTINCT if param.values[0].groups == 1]
GROUPED = cases_where(lambda case: case.groups > 1)
# In these, removing an expert changes the order of the others, or more than their order, or a
# table names another one for each.
SEVERAL_MAY_ENTER = ("ernie4_5_moe", "deepseek_v4")
# Routers round gate weights to float32, in a float64 model too. The same weight of the same token
# may be rounded up in one batch and down in another.
TOLERANCE = 3e-7


def collected(model, described):
    sums = sums_of(described, ("damage",))
    with torch.no_grad(), collecting(model, described, sums):
        batch_mask(MASK)
        model(input_ids=IDS, attention_mask=MASK.long(), use_cache=False)
    return sums


def heard(model, case, layer):
    """What a layer's router and its experts took and gave: (arguments, output) of both."""
    with torch.no_grad(), listening(model, case) as found:
        model(input_ids=IDS, attention_mask=MASK.long(), use_cache=False)
    return found.routed[layer], found.ran[layer]


def without_by_surgery(model, case, layer, expert):
    """The routed output (T, D) of a layer whose checkpoint never had the expert."""
    left = [other for other in range(case.experts) if other != expert]
    pruned = physically_pruned(model, case, {layer: left})
    return heard(pruned, case, layer)[1][1]


def brute_force(model, case, layer, without):
    """Sum over the tokens routed to each expert of || y - y without it ||."""
    _, ((_, ids, _), output) = heard(model, case, layer)
    damage = []
    for expert in range(case.experts):
        chose = (ids == expert).any(dim=-1) & FLAT
        gap = output - without(model, case, layer, expert)
        damage.append(float(gap[chose].square().sum(dim=-1).sqrt().sum()))
    return damage


@pytest.mark.parametrize("case", UNGROUPED, ids=str)
def test_damage_is_that_of_physical_removal(built, case):
    source = built(case)
    model = stock_load(case, source.paths["experts"])[0].double()
    model.set_experts_implementation("eager")
    sums = collected(model, source.described())
    for layer in case.sparse:
        wanted = brute_force(model, case, layer, without_by_surgery)
        found = sums.of("damage", layer).sum(dim=0).tolist()
        assert found == pytest.approx(wanted, rel=TOLERANCE, abs=0)
        assert max(wanted) > 0.1
        extra, tokens = int(sums.of("extra", layer)), int(sums.of("counted", layer))
        assert tokens == int(MASK.sum())
        if case.name in SEVERAL_MAY_ENTER:
            assert extra >= tokens
        elif case.model_type != "phimoe":
            assert extra == tokens


def in_groups(choice, case, chosen, best):
    """Scores for the choice, outside the chosen groups minus infinity, or in A.X-K2 zero."""
    grouped = choice.reshape(len(choice), case.groups, -1)
    judged = grouped.sort(dim=-1, descending=True).values[..., :best].sum(dim=-1)
    picked = judged.sort(dim=-1, descending=True).indices[:, :chosen]
    allowed = torch.zeros_like(judged).scatter(1, picked, 1.0).bool()
    rest = 0.0 if case.model_type == "axk2" else -torch.inf
    return torch.where(allowed[..., None], grouped, rest).reshape(choice.shape)


def without_in_group(model, case, layer, expert):
    """The routed output of a layer whose router cannot see the expert, but keeps its groups.

    Written from the papers: DeepSeek-V2 judges a group by its best softmax score, DeepSeek-V3 by
    the sum of its two best sigmoid scores plus bias, Mistral 4 by that of two softmax scores.
    """
    ((hidden,), _), ((inputs, *_), _) = heard(model, case, layer)
    router = router_of(model, case, layer)
    logits = hidden.reshape(-1, hidden.shape[-1]).float() @ router.weight.float().T
    logits[:, expert] = -torch.inf
    config = model.config.get_text_config()
    if case.model_type == "deepseek_v2":
        scores = logits.softmax(dim=-1)
        choice = in_groups(scores, case, config.topk_group, 1)
    elif case.model_type.startswith("mistral"):
        scores = logits.softmax(dim=-1)
        choice = in_groups(scores, case, config.topk_group, 2)
    else:
        scores = logits.sigmoid()
        choice = scores + router.e_score_correction_bias
        choice[:, expert] = -torch.inf
        choice = in_groups(choice, case, config.topk_group, 2)
    ids = choice.sort(dim=-1, descending=True).indices[:, : case.top_k]
    gates = scores.gather(1, ids)
    if case.model_type != "deepseek_v2":
        gates = gates / (gates.sum(dim=-1, keepdim=True) + 1e-20)
    # Beam scales the sum of its experts instead.
    scaling = 1.0 if case.model_type == "beam" else config.routed_scaling_factor
    gates = (gates * scaling).double()
    experts = block_of(model, case, layer).experts
    output = torch.zeros_like(inputs)
    for token, row in enumerate(ids.tolist()):
        for place, other in enumerate(row):
            f = expert_output(case.model_type, experts, other, inputs[token])
            output[token] += gates[token, place] * f
    return output.detach()


@pytest.mark.parametrize("case", GROUPED)
def test_damage_in_groups_masks_inside_the_group(built, case):
    source = built(case)
    model = stock_load(case, source.paths["experts"])[0].double()
    model.set_experts_implementation("eager")
    sums = collected(model, source.described())
    for layer in case.sparse:
        wanted = brute_force(model, case, layer, without_in_group)
        found = sums.of("damage", layer).sum(dim=0).tolist()
        assert found == pytest.approx(wanted, rel=1e-6, abs=0)
    # More than one expert enters for some tokens, which is why the general rule is needed.
    extra, counted = (
        sum(int(sums.of(name, layer)) for layer in case.sparse) for name in ("extra", "counted")
    )
    assert extra > counted


@pytest.mark.parametrize("case", DISTINCT)
def test_the_model_computes_what_it_computed_before(built, case):
    # An expert's product has more rows when damage is collected, which may round otherwise.
    source = built(case)
    model, described = source.model, source.described()
    alone = sums_of(described)
    with torch.no_grad(), collecting(model, described, alone):
        batch_mask(MASK)
        model(input_ids=IDS, attention_mask=MASK.long(), use_cache=False)
    sums = collected(model, described)
    for layer in case.sparse:
        found, wanted = sums.of("moments", layer), alone.of("moments", layer)
        assert torch.equal(found[..., 0], wanted[..., 0])
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        wanted = alone.of("vectors", layer)
        torch.testing.assert_close(sums.of("vectors", layer), wanted, rtol=1e-5, atol=1e-5)
    assert not any("forward" in module.__dict__ for module in model.modules())


WIDTHS = {"intermediate_size": 24, "moe_intermediate_size": 24}


def few_experts(tmp_path, model_type, **settings):
    case = Case("few", model_type, {**WIDTHS, **settings}, (0, 1), 2)
    model = tiny_model(case).double()
    model.save_pretrained(tmp_path)
    model.set_experts_implementation("eager")
    return case, model, load_model_index(str(tmp_path))


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("phimoe", {"num_local_experts": 2}),
        ("gemma4_text", {**BY_NAME["gemma4_text"].settings, "num_experts": 2}),
    ],
)
def test_a_router_that_needs_all_its_experts_is_refused(tmp_path, model_type, settings):
    _, model, described = few_experts(tmp_path, model_type, **settings)
    with pytest.raises(StatsError, match=r"layer 0 needs all of its 2 experts"):
        collected(model, described)
    assert described.layers[0] == MoELayer(0, 2, 2)


def test_experts_with_other_gate_weights_than_the_routers_are_refused(tmp_path):
    _, model, described = few_experts(tmp_path, "mixtral", num_local_experts=4)
    experts = model.model.layers[1].mlp.experts
    experts.register_forward_pre_hook(lambda _, given: (*given[:2], given[2] * (1 + 2**-20)))
    with pytest.raises(UnsupportedModelError, match="layer 1 do not receive the router's output"):
        collected(model, described)


def test_damage_in_bfloat16_is_near_that_in_float64(built):
    case = BY_NAME["olmoe"]
    source = built(case)
    wide = collected(stock_load(case, source.paths["experts"])[0].double(), source.described())
    half = collected(
        stock_load(case, source.paths["experts"], dtype=torch.bfloat16)[0], source.described()
    )
    found, wanted = (sums.of("damage", 0).sum(0) for sums in (half, wide))
    # Eight bits of mantissa, and near ties in the routing that fall otherwise.
    assert functional.cosine_similarity(found, wanted, dim=0) > 0.99


def test_where_all_experts_are_selected_the_others_are_left(tmp_path):
    # Of two experts, top-2, one is left with all the weight: y - y' = g (f_removed - f_left).
    case, model, described = few_experts(tmp_path, "mixtral", num_local_experts=2)
    sums = collected(model, described)
    for layer in case.sparse:
        _, ((hidden, ids, gates), _) = heard(model, case, layer)
        experts = block_of(model, case, layer).experts
        wanted = torch.zeros(2, dtype=torch.float64)
        for token in FLAT.nonzero()[:, 0].tolist():
            f = [expert_output("mixtral", experts, e, hidden[token]) for e in range(2)]
            gap = float((f[0] - f[1]).norm())
            for place, expert in enumerate(ids[token].tolist()):
                wanted[expert] += float(gates[token, place]) * gap
        assert sums.of("damage", layer).sum(0).tolist() == pytest.approx(wanted.tolist(), rel=1e-6)
        assert int(sums.of("extra", layer)) == 0


def test_an_only_expert_leaves_nothing(tmp_path):
    case, model, described = few_experts(
        tmp_path, "mixtral", num_local_experts=1, num_experts_per_tok=1
    )
    sums = collected(model, described)
    for layer in case.sparse:
        output = heard(model, case, layer)[1][1]
        wanted = float(output[FLAT].norm(dim=-1).sum())
        assert float(sums.of("damage", layer).sum()) == pytest.approx(wanted, rel=1e-6)


class Watched(TorchFunctionMode):
    """Weak references to every linear map onto as many values as there are experts."""

    def __init__(self, num_experts):
        super().__init__()
        self.num_experts = num_experts
        self.made = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is functional.linear and result.shape[-1] == self.num_experts:
            self.made.append(weakref.ref(result))
        return result


@pytest.mark.parametrize("groups", [("router",), ("router", "damage")], ids=str)
def test_logits_of_routers_are_not_held_until_the_batch_ends(tmp_path, groups):
    _, model, described = few_experts(tmp_path, "mixtral", num_local_experts=5)
    held = []
    model.model.layers[1].mlp.gate.register_forward_pre_hook(
        lambda *_: held.extend(watched.made[0:1] if watched.made[0]() is not None else [])
    )
    with torch.no_grad(), collecting(model, described, sums_of(described, groups)):
        batch_mask(MASK)
        with Watched(5) as watched:
            model(input_ids=IDS, attention_mask=MASK.long(), use_cache=False)
        assert len(watched.made) >= 2  # one a layer
        assert not held
        assert all(reference() is None for reference in watched.made)


def test_a_router_may_name_its_weight():
    hidden, weight = torch.ones(2, 4), torch.arange(12.0).reshape(3, 4)
    with _Logits(3) as recorded:
        result = functional.linear(hidden, weight=weight)
    assert recorded.logits is result
    given = torch.zeros(2, 3)
    with _Logits(3, given):
        assert functional.linear(input=hidden, weight=weight) is given
        assert functional.linear(hidden, weight=weight).tolist() == (hidden @ weight.T).tolist()
