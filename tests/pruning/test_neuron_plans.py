"""Plans that remove neurons inside experts: as files, checked against a model, as a mask."""

import copy
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from accelerate import cpu_offload
from exports import keeping_neurons
from neuron_cases import Source, select_neurons, with_fewer_experts, zeroed

from analysis.drain import drain
from analysis.errors import PlanError
from analysis.model.opening import load_model_index
from analysis.ranking.norms import neuron_norms
from families.configs import BY_NAME, EVERY, SOURCES
from families.physical import block_of, logits_of, physically_pruned
from families.plain import matrices_of
from families.settings import WIDTH
from families.tiny_models import tiny_model
from pruning.engine.masking import masked
from pruning.plan.constraints import Constraints
from pruning.plan.plan import fit_plan
from pruning.plan.plan_file import load_plan, plan_from_dict, plan_from_json
from pruning.plan.units import NeuronScope

OLMOE = BY_NAME["olmoe"]


@pytest.fixture(params=SOURCES)
def source(request, neuron_source) -> Source:
    return neuron_source(request.param)


@pytest.fixture
def olmoe(neuron_source) -> Source:
    return neuron_source(OLMOE)


class TestFile:
    def test_comes_back_as_it_was(self, olmoe, tmp_path):
        plan = keeping_neurons(olmoe.described, olmoe.plan.kept_neurons, {0: (0, 1, 3)})
        plan.save(tmp_path / "plan.json")
        again = load_plan(tmp_path / "plan.json")
        assert again == plan
        assert again.kept_neurons == plan.kept_neurons
        assert again.digest == plan.digest
        assert again.to_json() == plan.to_json()
        raw = json.loads((tmp_path / "plan.json").read_text())
        assert raw["granularity"] == "neuron"
        assert raw["kept_neurons"]["1"]["0"] == []

    def test_the_digest_of_a_plan_of_experts_is_what_it_always_was(self):
        plan = plan_from_json(
            '{"schema_version": 1, "model": {"name": "m", "identity": "i"},"kept": {"0": [1]}}'
        )
        # sha256 of {"granularity": "expert", "kept": {"0": [1]}, "model": "i"}
        assert plan.digest.startswith("0ee94c1e263a2e78")

    def test_older_plans_say_atomic_and_are_the_same_plan(self):
        facts = {"schema_version": 1, "model": {"name": "m", "identity": "i"}}
        stays = {"0": {"1": [2]}}
        plan = plan_from_dict(facts | {"granularity": "neuron", "kept_neurons": stays})
        older = plan_from_dict(facts | {"granularity": "atomic", "kept_atoms": stays})
        assert older == plan and older.kept_neurons == {0: {1: (2,)}}
        # sha256 of {"granularity": "atomic", "kept": {}, "kept_atoms": {"0": {"1": [2]}},
        # "model": "i"}
        assert plan.digest.startswith("06d403e1c740cf1c")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"kept_neurons": None}, "has no 'kept_neurons'"),
            ({"kept_neurons": [1]}, "has no 'kept_neurons'"),
            ({"kept_neurons": {"x": {}}}, "name layer 'x'"),
            ({"kept_neurons": {"0": [1]}}, "no object of experts"),
            ({"kept_neurons": {"0": {"-1": [1]}}}, "name expert '-1'"),
            ({"kept_neurons": {"0": {"1": 3}}}, "expert 1 in layer 0 are not a list"),
            ({"kept_neurons": {"0": {"1": [True]}}}, "expert 1 in layer 0 are not a list"),
            ({"kept_neurons": {"0": {"1": [2, 2]}}}, "neuron 2 of expert 1 of layer 0 twice"),
            ({"kept_neurons": {"0": {"1": [-2]}}}, "keeps neuron -2"),
            ({"granularity": "expert"}, "granularity is 'expert'; make it 'neuron'"),
            ({"granularity": "row"}, "'row'; this version handles 'expert' and 'neuron'"),
        ],
    )
    def test_bad_files_get_one_clear_line(self, olmoe, change, message):
        raw = {**olmoe.plan.to_dict(), **change}
        with pytest.raises(PlanError, match=message) as error:
            plan_from_json(json.dumps(raw))
        assert "\n" not in str(error.value)


class TestFit:
    @pytest.mark.parametrize(
        ("neurons", "kept", "message"),
        [
            ({5: {0: (1,)}}, None, "layer 5, which has no routed experts"),
            ({0: {7: (1,)}}, None, r"expert 7 in layer 0, which has 7 experts \(0\.\.6\)"),
            ({0: {1: (24,)}}, None, r"neuron 24 of expert 1 in layer 0, which has 24 neurons"),
            ({0: {2: (1,)}}, {0: (0, 1)}, "expert 2 in layer 0, but removes that expert"),
        ],
    )
    def test_what_the_model_lacks_is_named(self, olmoe, neurons, kept, message):
        with pytest.raises(PlanError, match=message):
            fit_plan(keeping_neurons(olmoe.described, neurons, kept), olmoe.described)

    def test_experts_that_lose_nothing_are_left_out(self, olmoe):
        neurons = {0: {0: tuple(range(WIDTH)), 1: (1,)}, 1: {3: tuple(range(WIDTH))}}
        fitted = fit_plan(keeping_neurons(olmoe.described, neurons), olmoe.described)
        assert fitted.kept_neurons == {0: {1: (1,)}}


class TestMask:
    def test_computes_what_the_original_with_those_neurons_zeroed_does(self, source):
        before = logits_of(source.model)
        with masked(source.model, source.described.family, source.plan):
            found = logits_of(source.model)
        assert torch.equal(found, source.logits)
        assert not torch.equal(found, before)
        assert torch.equal(logits_of(source.model), before)

    def test_with_whole_experts_gone_as_well(self, olmoe):
        kept = {0: (1, 3, 4), 1: (0, 2, 5, 6)}
        plan = fit_plan(with_fewer_experts(olmoe, kept), olmoe.described)
        wanted = physically_pruned(zeroed(olmoe.model, OLMOE, plan), OLMOE, kept)
        with masked(olmoe.model, olmoe.described.family, plan):
            assert torch.equal(logits_of(olmoe.model), logits_of(wanted))

    def test_offloaded_weights(self, olmoe):
        model = tiny_model(OLMOE)
        cpu_offload(model, torch.device("cpu"))
        experts = block_of(model, OLMOE, 0).experts
        assert experts.down_proj.is_meta
        with masked(model, olmoe.described.family, olmoe.plan):
            assert torch.equal(logits_of(model), olmoe.logits)
        assert experts.down_proj.is_meta

    def test_weights_are_as_before_also_after_an_error(self, olmoe):
        experts = block_of(olmoe.model, OLMOE, 0).experts
        down = experts.down_proj
        with (
            pytest.raises(ZeroDivisionError),
            masked(olmoe.model, olmoe.described.family, olmoe.plan),
        ):
            raise ZeroDivisionError
        assert experts.down_proj is down
        assert "forward" not in vars(experts)

    def test_gradients_reach_the_neurons_that_stay_only(self, olmoe):
        model, ids = copy.deepcopy(olmoe.model), torch.arange(12)[None]
        with masked(model, olmoe.described.family, olmoe.plan):
            model(input_ids=ids, use_cache=False).logits.square().sum().backward()
        for layer, experts in olmoe.plan.kept_neurons.items():
            grad = block_of(model, OLMOE, layer).experts.down_proj.grad
            for expert, kept in experts.items():
                gone = sorted(set(range(WIDTH)) - set(kept))
                assert not grad[expert][:, gone].any()
            assert grad.any()


@pytest.mark.parametrize(
    ("neurons", "message"),
    [({0: {1: (99,)}}, "7 experts of 24 neurons"), ({9: {1: (1,)}}, "layer 9")],
)
def test_what_the_loaded_model_lacks_is_refused(olmoe, neurons, message):
    plan = keeping_neurons(olmoe.described, neurons)
    with pytest.raises(PlanError, match=message):
        masked(olmoe.model, olmoe.described.family, plan).__enter__()


SCORES = {
    1: (np.array([5.0, 1.0, 4.0, 2.0]), np.array([9.0, 9.0, 0.5, 9.0])),
    3: (np.array([3.0, 0.1, 8.0, 7.0]), np.array([0.2, 0.3, 0.4, 6.0])),
}


def kept_of(neurons, scores=SCORES):
    return {
        (layer, e): neurons.get(layer, {}).get(e, tuple(range(len(values))))
        for layer, experts in scores.items()
        for e, values in enumerate(experts)
    }


class TestSelection:
    @pytest.mark.parametrize(
        ("scope", "expected"),
        [
            # By hand: 50% of 4 in each expert; of 8 in each layer; of 16 in all.
            ("expert", {(1, 0): (0, 2), (1, 1): (0, 1), (3, 0): (2, 3), (3, 1): (2, 3)}),
            ("layer", {(1, 0): (0,), (1, 1): (0, 1, 3), (3, 0): (0, 2, 3), (3, 1): (3,)}),
            ("global", {(1, 0): (0, 2), (1, 1): (0, 1, 3), (3, 0): (2, 3), (3, 1): (3,)}),
        ],
    )
    def test_by_hand(self, scope, expected):
        assert kept_of(select_neurons(SCORES, Fraction(1, 2), NeuronScope(scope))) == expected

    def test_blocks_by_hand(self):
        # Pairs, ascending. Layer 1: (1 + 2, 4 + 5) and (.5 + 9, 9 + 9), so expert 0 loses all.
        # Layer 3: (.1 + 3, 7 + 8) and (.2 + .3, .4 + 6), so each loses its first pair.
        pairs = Constraints(multiple_of=2)
        found = select_neurons(SCORES, Fraction(1, 2), NeuronScope.LAYER, pairs)
        expected = {(1, 0): (), (1, 1): (0, 1, 2, 3), (3, 0): (2, 3), (3, 1): (2, 3)}
        assert kept_of(found) == expected
        assert 1 not in found[1]  # keeps all, so the plan does not name it

    def test_nothing_but_numbers(self):
        with pytest.raises(PlanError, match="layer 4 is no finite number"):
            select_neurons({4: (np.array([1.0, math.nan]),)}, Fraction(1, 2), NeuronScope.GLOBAL)
        with pytest.raises(PlanError, match="Multiples of 0"):
            Constraints(multiple_of=0)


def norms_by_hand(model_type, module, expert):
    m = matrices_of(model_type, module, expert)
    norms = m.up.double().norm(dim=0) * m.down.double().norm(dim=1)
    return norms if m.gate is None else norms * m.gate.double().norm(dim=0)


class TestNorms:
    @pytest.mark.parametrize("case", EVERY)
    def test_against_the_matrices_of_the_model(self, neuron_source, case):
        source = neuron_source(case)
        found = drain(neuron_norms(source.described))
        assert sorted(found) == list(case.sparse)
        for layer in case.sparse:
            module = block_of(source.model, case, layer).experts
            for expert in range(case.experts):
                wanted = norms_by_hand(case.model_type, module, expert)
                np.testing.assert_allclose(found[layer][expert], wanted.numpy(), rtol=1e-12)

    def test_bfloat16(self, tmp_path):
        model = tiny_model(OLMOE).to(torch.bfloat16)
        model.save_pretrained(tmp_path)
        found = drain(neuron_norms(load_model_index(str(tmp_path))))
        wanted = norms_by_hand("olmoe", model.model.layers[1].mlp.experts, 2)
        np.testing.assert_allclose(found[1][2], wanted.numpy(), rtol=1e-12)
