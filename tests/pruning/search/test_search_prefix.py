"""Reuse of hidden states: the same fitness, bit for bit, with fewer layers, for every family."""

from dataclasses import replace

import numpy as np
import pytest
from masked_cases import DEEP, candidates_of, sequences, subject_of, values_of

from analysis.drain import drain
from analysis.families.listing import FAMILIES
from analysis.model.forwards import decoder_layers
from families.built import HAND_ON_MORE
from families.configs import DISTINCT
from families.tiny_models import tiny_model
from pruning.engine.candidate import MeasureSettings, run_candidate
from pruning.measures.samples import make_samples
from pruning.search.fitness import masked_fitness, run_from
from pruning.search.scores import BlockFitness

PLENTY = 1 << 30
CASE = DEEP[0]


@pytest.fixture(scope="module")
def deep():
    """A model of five layers that all have experts; nobody changes it."""
    return subject_of(CASE, tiny_model(CASE))


def assert_same_values(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        for got, expected in zip(one, other, strict=True):
            np.testing.assert_array_equal(got.sums, expected.sums)
            np.testing.assert_array_equal(got.counts, expected.counts)


def layers_needed(candidates, sparse, total):
    """Layers of a block from the first sparse one in which a candidate differs from all before."""
    needed = [total]
    for number, removed in enumerate(candidates[1:], 1):
        alike = max(
            next(n for n, pair in enumerate(zip(removed, other, strict=True)) if len(set(pair)) > 1)
            for other in candidates[:number]
        )
        needed.append(total - sparse[alike])
    return needed


@pytest.mark.parametrize(
    "case", [*DISTINCT, *(pytest.param(case, id=f"{case}-deep") for case in DEEP)]
)
def test_reuse_changes_no_bit_and_runs_only_what_differs(case):
    subject, candidates = subject_of(case, tiny_model(case)), candidates_of(case)
    fitness = masked_fitness(subject, "esap", 0, PLENTY)
    reusing = values_of(fitness, candidates)
    whole = values_of(masked_fitness(subject, "esap", 0, 0), candidates)
    assert_same_values(reusing, whole)
    needed = layers_needed(candidates, case.sparse, fitness.num_layers)
    if case.model_type in HAND_ON_MORE:
        needed = [fitness.num_layers] * len(candidates)
    assert [block.layers for blocks in reusing for block in blocks] == [
        layers for layers in needed for _ in range(fitness.num_blocks)
    ]
    assert {block.layers for blocks in whole for block in blocks} == {fitness.num_layers}


def test_fitness_is_what_evaluate_says_of_the_plan(deep):
    subject, candidates = deep, candidates_of(CASE)[::7]
    settings = MeasureSettings(("esap", "sap", "kl", "nll"), 5)
    evaluations = [
        drain(run_candidate(subject.loaded, subject.family, plan, subject.full, settings))
        for plan in map(subject.plan_of, candidates)
    ]
    for measure in ("esap", "sap", "kl", "nll"):
        found = values_of(masked_fitness(subject, measure, 5, PLENTY), candidates)
        for wanted, blocks in zip(evaluations, found, strict=True):
            got = BlockFitness.joined(blocks)
            np.testing.assert_array_equal(got.sums, wanted.samples[measure].sums)
            np.testing.assert_array_equal(got.counts, wanted.samples[measure].counts)


def kept_bytes(fitness):
    held = fitness.runs._kept._inputs.values()
    tensors = {id(t): t.nbytes for blocks in held for block in blocks.values() for t in block}
    return sum(tensors.values())


def test_kept_states_stay_within_their_room(deep):
    subject, candidates = deep, candidates_of(CASE)[::3]
    # 4 of 5 layers, width 16, float32; rows of batches of two are padded to 9, 12 and 11.
    one = 4 * (2 * 9 + 2 * 12 + 1 * 11) * 16 * 4
    whole = values_of(masked_fitness(subject, "esap", 0, 0), candidates)
    for room in (one - 1, one, 2 * one, 3 * one):
        fitness, found = masked_fitness(subject, "esap", 0, room), []
        for removed in candidates:
            found.append([fitness.block(removed, block) for block in range(fitness.num_blocks)])
            assert kept_bytes(fitness) <= room + one
            fitness.hold(candidates[:2])
            assert kept_bytes(fitness) <= room
        assert_same_values(found, whole)
    assert set(candidates[:2]) <= set(fitness.runs._kept._inputs)


def test_nothing_is_reused_where_a_layer_writes_into_its_input():
    def writes(module, args, output):
        args[0].add_(1)

    model = tiny_model(CASE)
    decoder_layers(model, FAMILIES[CASE.model_type])[2].register_forward_hook(writes)
    subject, candidates = subject_of(CASE, model), candidates_of(CASE)[::5]
    fitness = masked_fitness(subject, "esap", 0, PLENTY)
    found = values_of(fitness, candidates)
    assert {block.layers for blocks in found for block in blocks} == {5}
    assert_same_values(found, values_of(masked_fitness(subject, "esap", 0, 0), candidates))
    assert kept_bytes(fitness) == 0


def test_what_a_layer_gets_of_an_earlier_one_breaks_the_chain():
    model = tiny_model(CASE)
    layers = decoder_layers(model, FAMILIES[CASE.model_type])
    batch = next(make_samples(sequences(), batch_size=2).batches())
    assert run_from(model, layers, batch).is_chain
    inner, seen = layers[3].forward, []
    layers[0].register_forward_hook(lambda *call: seen.append(call[-1]))
    layers[3].register_forward_pre_hook(
        lambda _, args, named: (args, {**named, "early": [seen[-1]]}), with_kwargs=True
    )
    layers[3].forward = lambda *args, early, **named: inner(*args, **named)
    assert not run_from(model, layers, batch).is_chain


def test_kept_probabilities_change_no_bit(deep):
    subject, candidates = deep, candidates_of(CASE)
    wanted = values_of(masked_fitness(subject, "esap", 0, 0), candidates[:3])
    # 64 tokens of float32; the batches score (9 - 3) + (5 - 3), (12 - 3) + (7 - 3) and 8 positions.
    for room, kept in ((0, 0), (8 * 256, 1), (21 * 256, 2), (29 * 256, 3)):
        keeping = replace(subject, full=replace(subject.full, max_bytes=room, cache={}))
        found = values_of(masked_fitness(keeping, "esap", 0, 0), candidates[:3])
        assert_same_values(found, wanted)
        assert len(keeping.full.cache) == kept
