"""Every fitness of a search by hand: masked models, teacher forcing, means, direction.

Layer 0 of the model (tests/golden/hand_model.py) answers nothing. Layer 1 answers along the fourth
row of the matrix, which is orthogonal to every token: the last hidden state is h_t + Y h_D, normed
(h_t + Y h_D) / sqrt(1 + Y^2). Only token B has a logit, 5 ln 2 along h_D. So after a token

    Y = 4/3: 4/5 of it, a weight of 2^4 = 16 against 1 for each of the other seven: p(B) = 16/23
    Y = 3/4: 3/5 of it, a weight of 2^3 = 8:                                        p(B) = 8/15
    Y = 0:   nothing, all eight alike:                                              p(B) = 1/8

Original model: Y(A) = 1/4 * 16/3 = 4/3, Y(B) = 1/2 * 3/2 = 3/4, Y(C) = 1/2 * 1 - 1/4 * 2 = 0.
Without expert 1 of layer 1, the others by their sum: Y(A) = 3/12 * 3 = 3/4, Y(B) = 0,
Y(C) = 8/13 * 1 - 4/13 * 2 = 0. Layer 0 may lose what it likes.
"""

from fractions import Fraction as F
from math import log
from typing import get_args

import numpy as np
import pytest
from golden import definitions
from golden.hand_model import IDS, LAYERS, NUMBERS, A, B, C, Numbers, hand_model, sequences

from analysis.drain import drain
from analysis.families.listing import FAMILIES
from analysis.model.moe_model import ModelRef
from pruning.engine.full_side import run_full
from pruning.measures.result import MEASURES
from pruning.measures.samples import make_samples
from pruning.plan.plan import PruningPlan
from pruning.requests.recipe import SearchSection
from pruning.search.fitness import Subject, masked_fitness

SPEAKING = Numbers(
    probabilities=(NUMBERS.probabilities[0], NUMBERS.probabilities[0]),
    answers=(
        ((0, 0, 0),) * 4,
        ((0, 0, 0), (16 / 3, 3 / 2, 0), (3, 0, 1), (0, 0, -2)),
    ),
    logits={3: {IDS[B]: 5 * log(2)}},
    aside=True,
)
# The second sample is scored at two positions, the first at one.
SAMPLES = ((A, B), (B, C, B))
SEED = 5
# Removed from each layer -> (layer, expert) that go. The second is expert 1, wherever it is.
GONE = {(1, 0): frozenset({(0, 1)}), (0, 1): frozenset({(1, 1)})}


def position(p, q):
    """KL of two weights: the one token, and seven others alike."""
    return p * log(p / q) + (1 - p) * log((1 - p) / (1 - q))


# Fitness -> removed -> mean over the scored positions of each sample; higher is better.
FITNESS = {
    # The same where layer 0 loses. Else min of 16/23 and 8/15, 7 min of 1/23 and 1/15; for B min
    # of 8/15 and 1/8, 7 min of 1/15 and 1/8; for C both are alike.
    "esap": {
        (1, 0): (1, 1),
        (0, 1): (F(8, 15) + F(7, 23), (F(1, 8) + F(7, 15) + 1) / 2),
    },
    # See the test: which token is drawn decides.
    "sap": {(1, 0): (1, 1), (0, 1): None},
    "kl": {
        (1, 0): (0, 0),
        (0, 1): (-position(16 / 23, 8 / 15), -position(8 / 15, 1 / 8) / 2),
    },
    # Of the tokens that follow: B after A; C after B, B after C.
    "nll": {
        (1, 0): (log(16 / 23), (log(1 / 15) + log(1 / 8)) / 2),
        (0, 1): (log(8 / 15), (log(1 / 8) + log(1 / 8)) / 2),
    },
}
BY_NUMBER = [(name, gone) for name in FITNESS for gone in GONE if FITNESS[name][gone]]


@pytest.fixture(scope="module")
def subject():
    def plan(removed):
        kept = {
            layer: tuple(j for j in range(4) if (layer, j) not in GONE[removed]) for layer in LAYERS
        }
        return PruningPlan(ModelRef("hand", "00" * 32), kept)

    model = hand_model(SPEAKING)
    full = drain(run_full(model, make_samples(sequences(SAMPLES), batch_size=2)))
    return Subject(model, FAMILIES["olmoe"], LAYERS, full, plan)


def measured(subject, name, removed, seed=SEED):
    block = masked_fitness(subject, name, seed).block(removed, 0)
    sign = 1 if MEASURES[name].higher_is_better else -1
    return (sign * block.sums / block.counts).tolist()


def test_every_fitness_has_its_numbers_by_hand():
    assert set(FITNESS) == set(get_args(SearchSection.model_fields["fitness"].annotation))
    # A measure that is no fitness is a function of one, or not taken at the text's positions.
    assert set(FITNESS) == {measure.sums for measure in MEASURES.values()} - {""}


@pytest.mark.parametrize(("name", "removed"), BY_NUMBER)
def test_fitness_is_that_by_hand(subject, name, removed):
    wanted = [float(number) for number in FITNESS[name][removed]]
    assert measured(subject, name, removed) == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_sap_is_one_draw_of_the_candidate(subject, seed):
    """By hand, u of [0, 1) draws the token in whose share of q, in order of ids, it lies.

    After A, q gives each of the ids 0 to 4 1/15, B (id 5) 8/15, 6 and 7 1/15 again: between 5/15
    and 13/15 it is B, where p/q = (16/23) / (8/15) > 1. Others have (1/23) / (1/15) = 15/23. After
    B, q is 1/8 for all: id 5 is between 5/8 and 6/8, with p/q > 1; others have 8/15. After C: 1.
    """
    assert measured(subject, "sap", (1, 0), seed) == pytest.approx([1, 1], abs=1e-6)
    (first,), (second, _) = (np.random.default_rng([seed, n]).random(n + 1) for n in (0, 1))
    after_a = 1 if 5 / 15 <= first < 13 / 15 else 15 / 23
    after_b = 1 if 5 / 8 <= second < 6 / 8 else 8 / 15
    found = measured(subject, "sap", (0, 1), seed)
    assert found == pytest.approx([after_a, (after_b + 1) / 2], rel=1e-6)


@pytest.mark.parametrize("removed", GONE)
@pytest.mark.parametrize("name", FITNESS)
def test_fitness_is_its_definition_position_by_position(subject, name, removed):
    wanted = []
    for number, text in enumerate(SAMPLES):
        draws = np.random.default_rng([SEED, number]).random(len(text) - 1)
        values = [
            definitions.at_position(
                name,
                *definitions.distributions(SPEAKING, text[place], GONE[removed]),
                IDS[text[place + 1]],
                draws[place],
            )
            for place in range(len(text) - 1)
        ]
        wanted.append(sum(values) / len(values))
    assert measured(subject, name, removed) == pytest.approx(wanted, rel=1e-6, abs=1e-6)
