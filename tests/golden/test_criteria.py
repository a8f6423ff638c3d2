"""Every criterion by hand: from a checkpoint over calibration to score and rank.

The model is tests/golden/hand_model.py, the texts A B and A C. By hand from its two tables:

            g (top 2 of p)                     C                    Y
    layer 0
      A     e0 1/2   e1 1/4                    e0 1  e1 2           1
      B     e1 1/2   e0 1/4                    e1 4  e0 4           3
      C     e2 1/2   e3 1/4                    e2 3  e3 2           2
    layer 1
      A     e0 1/2   e2 1/4                    e0 3  e2 2           2
      B     e1 13/32 e2 7/32                   e1 8  e2 4           33/8
      C     e2 1/2   e0 1/4                    e2 1  e0 4           3/2

Norms are 2 C. Renormalised gates are 2/3 and 1/3, but 13/20 and 7/20 for B in layer 1. Expert 3
of layer 1 is never routed.
"""

from fractions import Fraction as F
from math import exp, sqrt

import pytest
from golden import definitions
from golden.hand_model import EXPERTS, LAYERS, NUMBERS, saved, sequences

from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.run import calibrate
from analysis.calibration.weights import weight_statistics
from analysis.criteria import CRITERIA, NEURON_CRITERIA, RANKABLE, get_criterion
from analysis.drain import drain
from analysis.model.opening import load_model_index
from analysis.model.widths import expert_widths
from analysis.ranking.experts import rank_experts, score_experts
from analysis.ranking.neurons import neuron_saliency, rank_neurons, read_neurons, score_neurons
from analysis.ranking.norms import neuron_norms
from analysis.stats.columns import GATES
from analysis.stats.neurons import load_neuron_stats
from analysis.stats.reading import load_expert_stats, load_weight_stats
from analysis.stats.store import StatsStore
from analysis.stats.tables import NoStats

# OLMoE's router computes in float32: its gates are right to about 1e-7.
ROUNDING = 1e-6
GROUPS = ("routed", "damage", "dense", "gradient")
R2 = sqrt(2)
# 36 weights: gate 12 times 1/4, down 12 times 1, up 4 times C/4 for each of A, B, C. So
# ||w||_1 = 3 + 12 + sum C and ||w||_2^2 = 3/4 + 12 + (sum C^2) / 4.
# sum C: 6, 7, 5, 4 and 8, 10, 7, 3; sum C^2: 18, 21, 11, 6 and 26, 66, 21, 3.
WEIGHT_NORMS = (
    ((21, sqrt(17.25)), (22, sqrt(18)), (20, sqrt(15.5)), (19, sqrt(14.25))),
    ((23, sqrt(19.25)), (25, sqrt(29.25)), (22, sqrt(18)), (18, sqrt(13.5))),
)
# name -> scores of layer 0 and layer 1, with applied gates.
APPLIED = {
    # A, A, B | A, A, B | C | C       and       A, A, C | B | A, A, B, C | none
    "frequency": ((3, 3, 1, 1), (3, 1, 4, 0)),
    # 1/2 + 1/2 + 1/4 | 1/4 + 1/4 + 1/2 | 1/2 | 1/4
    # 1/2 + 1/2 + 1/4 | 13/32 | 1/4 + 1/4 + 7/32 + 1/2
    "seer": ((F(5, 4), 1, F(1, 2), F(1, 4)), (F(5, 4), F(13, 32), F(39, 32), 0)),
    # 2 + 2 + 8 | 4 + 4 + 8 | 6 | 4       and       6 + 6 + 8 | 16 | 4 + 4 + 8 + 2
    "ean": ((12, 16, 6, 4), (20, 16, 18, 0)),
    # gate-ean / N
    "reap": ((F(4, 3), 2, 3, 1), (F(8, 3), F(13, 2), F(19, 16), 0)),
    # ean / N; experts 0 and 3 of layer 0 tie
    "man": ((4, F(16, 3), 6, 4), (F(20, 3), 16, F(9, 2), 0)),
    # (4 + 4 + 64) / 3 | (16 + 16 + 64) / 3 | 36 | 16
    # (36 + 36 + 64) / 3 | 256 | (16 + 16 + 64 + 4) / 4
    "msan": ((24, 32, 36, 16), (F(136, 3), 256, 25, 0)),
    # 2/2 + 2/2 + 8/4 | 4/4 + 4/4 + 8/2 | 6/2 | 4/4
    # 6/2 + 6/2 + 8/4 | 16 * 13/32 | 4/4 + 4/4 + 8 * 7/32 + 2/2
    "gate-ean": ((4, 6, 3, 1), (8, F(13, 2), F(19, 4), 0)),
    # the squares of the terms above: 1 + 1 + 4 | 1 + 1 + 16 | 9 | 1
    # 9 + 9 + 4 | 169/4 | 1 + 1 + 49/16 + 1
    "squared-gate-energy": ((6, 18, 9, 1), (22, F(169, 4), F(97, 16), 0)),
    # Expert 0 of layer 0: f = (1 1 1 1) twice and (4 4 -4 -4). Variances: of 1, 1, 4 they are
    # (1 + 1 + 4) / 2 = 3, of 1, 1, -4 they are (25 + 25 + 100) / 9 / 2 = 25/3; in all 68/3.
    # Expert 1: of 2, 2, 4 they are 4/3, of 2, 2, -4 they are 12; in all 80/3. Layer 1, expert 0:
    # of 3, 3, 4 they are 1/3, of 3, 3, -4 (on two axes) 49/3; in all 100/3. Expert 2: of 2, 2, 4, 1
    # 19/12; 2, 2, 4, -1 51/12; 2, 2, -4, 1 99/12; 2, 2, -4, -1 99/12: in all 268/12.
    # Mean gates: 5/12, 1/3; 5/12, 39/128. One token has no variance.
    "mone": (
        (F(5, 12) * sqrt(68 / 3), F(1, 3) * sqrt(80 / 3), 0, 0),
        (F(5, 12) * 10 / sqrt(3), 0, F(39, 128) * sqrt(67 / 3), 0),
    ),
    # 2 |Y - Y'|, where Y' has the gates of the three experts that are left, by their sum.
    # Layer 0. A without e0: 4/8 * 2 + 3/8 * 1 = 11/8: 3/4; without e1: 8/12 + 3/12: 1/6.
    # B without e1: 4/8 * 4 + 3/8 = 19/8: 5/4; without e0: 8/12 * 4 + 3/12 = 35/12: 1/6.
    # C without e2: 4/8 * 2 + 3/8 = 11/8: 5/4; without e3: 8/12 * 3 + 3/12 = 9/4: 1/2.
    # Layer 1. A without e0: 4/8 * 2 + 3/8 = 11/8: 5/4; without e2: 8/12 * 3 + 3/12 = 9/4: 1/2.
    # B without e1: 14/38 * 4 + 13/38 = 69/38: 351/76; without e2: 26/50 * 8 + 13/50 = 221/50:
    # 59/100. C without e2: 4/8 * 4 + 3/8 = 19/8: 7/4; without e0: 8/12 + 3/12 = 11/12: 7/6.
    "damage": (
        (F(3, 4) * 2 + F(1, 6), F(1, 6) * 2 + F(5, 4), F(5, 4), F(1, 2)),
        (F(5, 4) * 2 + F(7, 6), F(351, 76), F(1, 2) * 2 + F(59, 100) + F(7, 4), 0),
    ),
    # Sums of the neurons, see NEURONS.
    "heapr": ((F(25, 36), F(25, 144), 0, 0), (F(25, 9), 0, F(125, 1024), 0)),
    "camera-p": ((18 + 2 * R2, 20 + 4 * R2, 12, 8), (22 + 6 * R2, 32, 24 + 4 * R2, 0)),
    # Samples whose heaviest path has the expert, see the test of paths; here all 16 paths count.
    "pathfinder": ((2, 2, 2, 2), (2, 2, 2, 2)),
    # ||w||_1 / 36
    "magnitude": (
        (F(21, 36), F(22, 36), F(20, 36), F(19, 36)),
        (F(23, 36), F(25, 36), F(22, 36), F(18, 36)),
    ),
    "aimer": [[a / (6 * b) for a, b in layer] for layer in WEIGHT_NORMS],
    "hoyer": [[(6 - a / b) / (6 - 1) for a, b in layer] for layer in WEIGHT_NORMS],
    # The first eight numbers of NumPy's default generator with the seed 42, as its manual and many
    # others print them. NumPy does not promise the stream for ever; this would tell.
    "random": (
        (0.7739560485559633, 0.4388784397520523, 0.8585979199113825, 0.6973680290593639),
        (0.09417734788764953, 0.9756223516367559, 0.761139701990353, 0.7860643052769538),
    ),
}
# Where the gate counts. Layer 0: all of it 4/3 of the above (16/9 of its square). Layer 1:
RENORMALIZED = {
    # 2/3 + 2/3 + 1/3 | 13/20 | 1/3 + 1/3 + 7/20 + 2/3: now expert 2 is before expert 0
    "seer": ((F(5, 3), F(4, 3), F(2, 3), F(1, 3)), (F(5, 3), F(13, 20), F(101, 60), 0)),
    # 4 + 4 + 8/3 | 52/5 | 4/3 + 4/3 + 14/5 + 4/3
    "gate-ean": ((F(16, 3), 8, 4, F(4, 3)), (F(32, 3), F(52, 5), F(34, 5), 0)),
    "reap": ((F(16, 9), F(8, 3), 4, F(4, 3)), (F(32, 9), F(52, 5), F(17, 10), 0)),
    # 16 + 16 + 64/9 | 2704/25 | 3 * 16/9 + 196/25
    "squared-gate-energy": (
        (F(32, 3), 32, 16, F(16, 9)),
        (F(352, 9), F(2704, 25), F(988, 75), 0),
    ),
    # mean gates 5/9, 4/9; 5/9, 101/240
    "mone": (
        (F(5, 9) * sqrt(68 / 3), F(4, 9) * sqrt(80 / 3), 0, 0),
        (F(5, 9) * 10 / sqrt(3), 0, F(101, 240) * sqrt(67 / 3), 0),
    ),
}
PRUNES_LARGER = {"aimer"}
# Neurons A, B, C of each expert. a_c is C_j(c) at token c and 0 at others, ||w_c|| = 2.
#
# The loss is at A only, where p is uniform over the 8 tokens (its logits are 0), once with B and
# once with C behind it. With q = dloss/d(normed hidden): h_B . q = mean_v z_B(v) - z_B(next) is
# 1 - 8 = -7 for B and 1 for C; h_C . q is 2 for B and 2 - 16 = -14 for C. The hidden state at A has
# length 4 (1 + Y + Y), and the norm passes nothing along h_A, so dloss/da_A = 0 and
# dloss/da_c = g * 1/4 * h_c . q in both layers: what layer 1 makes of layer 0 is along h_A alone.
# Sums of squares: 1/16 g^2 (49 + 1) for B and 1/16 g^2 (4 + 196) for C, times 1 (A met twice, each
# text once). HEAPr = 1/2 * mean a^2 * mean (dloss/da)^2:
# layer 0, e0, B: 1/2 * 16/3 * (50/64)/3 = 25/36;    e1, B: 1/2 * 16/3 * (50/256)/3 = 25/144;
# layer 1, e0, C: 1/2 * 16/3 * (200/64)/3 = 25/9;    e2, B: 1/2 * 16/4 * (50/256)/4 = 25/256 and
# C: 1/2 * 1/4 * (200/256)/4 = 25/1024.
# CAMERA-P = 2 (root of the sum of a^2 + maximum of |a|): twice C at A is 2 (R2 + 1) C, once 4 C.
NEURONS = {
    "heapr": (
        ((0, F(25, 36), 0), (0, F(25, 144), 0), (0, 0, 0), (0, 0, 0)),
        ((0, 0, F(25, 9)), (0, 0, 0), (0, F(25, 256), F(25, 1024)), (0, 0, 0)),
    ),
    "camera-p": (
        ((2 * R2 + 2, 16, 0), (4 * R2 + 4, 16, 0), (0, 0, 12), (0, 0, 8)),
        ((6 * R2 + 6, 0, 16), (0, 32, 0), (4 * R2 + 4, 16, 4), (0, 0, 0)),
    ),
    # The next numbers of the same stream, one a neuron.
    "random": None,
    # ||gate_c|| ||up_c|| ||down_c|| = 1/2 * C/2 * 2 = C/2
    "neuron-norms": tuple(
        tuple(tuple(F(c, 2) for c in expert) for expert in layer) for layer in NUMBERS.answers
    ),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("hand") / "model")


@pytest.fixture(scope="module")
def run(path, tmp_path_factory):
    settings = CalibrationSettings(
        seq_len=2, batch_size=2, device="cpu", dtype="float64", groups=GROUPS
    )
    store = StatsStore(tmp_path_factory.mktemp("stats"))
    return drain(calibrate(load_model_index(str(path)), sequences(), settings, store))


@pytest.fixture(scope="module")
def stats(path, run, tmp_path_factory):
    """Source -> what criteria of that source read."""
    model = load_model_index(str(path))
    store = StatsStore(tmp_path_factory.mktemp("weights"))
    weights = load_weight_stats(drain(weight_statistics(model, store)))
    return {"routed": load_expert_stats(run), "weights": weights, "none": NoStats(model.layers)}


def flat(layers):
    return [float(number) for layer in layers for number in layer]


def by_hand(name, gate):
    table = RENORMALIZED if gate == "renormalized" and name in RENORMALIZED else APPLIED
    return flat(table[name])


def close(values, wanted):
    assert list(values) == pytest.approx(wanted, rel=ROUNDING, abs=1e-12)


def test_every_criterion_has_its_numbers_by_hand():
    assert set(APPLIED) == set(CRITERIA)
    assert set(RENORMALIZED) == {
        criterion.name for criterion in CRITERIA.values() if criterion.uses_gate
    }
    assert set(NEURONS) == set(NEURON_CRITERIA)
    both = {criterion.name for criterion in CRITERIA.values() if criterion.neuron_score}
    assert both == {
        neuron_criterion.name
        for neuron_criterion in NEURON_CRITERIA.values()
        if neuron_criterion.score
    }
    assert {*CRITERIA, "neuron-norms"} == {*CRITERIA, *NEURON_CRITERIA}
    assert {
        criterion.name for criterion in CRITERIA.values() if criterion.prune_larger
    } == PRUNES_LARGER


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("name", APPLIED)
def test_scores_are_those_by_hand(stats, name, gate):
    criterion = get_criterion(name)
    close(score_experts(criterion, stats[criterion.source], gate), by_hand(name, gate))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("name", [name for name in APPLIED if name != "pathfinder"])
def test_higher_is_kept_first_and_of_equal_ones_the_lower(stats, name, gate):
    criterion = get_criterion(name)
    ranking = rank_experts(criterion, stats[criterion.source], gate)
    numbers, sign = by_hand(name, gate), -1 if name in PRUNES_LARGER else 1
    for layer in LAYERS:
        own = numbers[EXPERTS * layer : EXPERTS * (layer + 1)]
        order = sorted(range(EXPERTS), key=lambda j: (-sign * own[j], j))
        rows = ranking[ranking["layer"] == layer].sort_values("rank")
        assert rows["expert"].tolist() == order


def test_neurons_are_those_by_hand(run):
    table = load_neuron_stats(run).table
    for name in ("heapr", "camera-p"):
        wanted = [float(x) for layer in NEURONS[name] for expert in layer for x in expert]
        close(score_neurons(get_criterion(name), table), wanted)
    # Over the whole model, higher first: 25/9, 25/36, 25/144, 25/256, 25/1024; then zeros in order.
    ranked = rank_neurons(get_criterion("heapr"), table).sort_values("rank")
    first = [(1, 0, 2), (0, 0, 1), (0, 1, 1), (1, 2, 1), (1, 2, 2), (0, 0, 0), (0, 0, 2)]
    columns = ["layer", "expert", "neuron"]
    assert list(ranked[columns].head(7).itertuples(index=False, name=None)) == first
    # CAMERA-P compares neurons of one layer: 16, 16, 12, 4 R2 + 4 (9.7), 8, 2 R2 + 2 (4.8), zeros.
    ranked = rank_neurons(get_criterion("camera-p"), table).query("layer == 0").sort_values("rank")
    first = [(0, 1), (1, 1), (2, 2), (1, 0), (3, 2), (0, 0), (0, 2)]
    assert list(ranked[columns[1:]].head(7).itertuples(index=False, name=None)) == first


def test_another_lambda_weighs_the_maxima(stats):
    # Layer 0, expert 0, lambda 1/2: 2 (R2 + 1/2) + 2 (4 + 2).
    scores = score_experts(get_criterion("camera-p:0.5"), stats["routed"], "applied")
    assert scores[0] == pytest.approx(2 * R2 + 13)


def test_random_neurons_are_the_same_stream(run):
    found = score_neurons(get_criterion("random"), load_neuron_stats(run).table)
    assert found[:EXPERTS].tolist() == list(APPLIED["random"][0])
    assert len(set(found.tolist())) == 24


def test_norms_of_neurons_are_those_by_hand(path):
    found = drain(neuron_norms(load_model_index(str(path))))
    for layer, experts in enumerate(NEURONS["neuron-norms"]):
        assert [of.tolist() for of in found[layer]] == [list(map(float, of)) for of in experts]
    norms, model = get_criterion("neuron-norms"), load_model_index(str(path))
    read = drain(read_neurons(norms, StatsStore(path / "none"), model))
    as_criterion = neuron_saliency(norms, read.stats, expert_widths(model))
    assert (read.runs, sorted(as_criterion)) == ((), sorted(found))
    for layer in found:
        for own, measured in zip(as_criterion[layer], found[layer], strict=True):
            assert own.tolist() == measured.tolist()


def test_paths_by_hand(stats):
    """u is proportional to a r exp(-L), with a = mean 2 C, r = mean p, L = mean 4 (Y - C)^2.

    Text A B. Layer 0: a 5, 6, 2, 2; r 12, 12, 4, 4 of 32; L 2, 4, 8, 8: expert 0 is best, expert 1
    has 6/5 exp(-2) of it. Layer 1: L 21.5, 32.0, 1/32, 21.5: expert 2 by far.
    Text A C. Layer 0: a 2, 3, 4, 3; r 9, 7, 11, 5 of 32; L 2, 4, 2, 0: expert 3 with 15, then
    expert 2 with 44 exp(-2) = 5.95. Layer 1: a 7, 2, 3, 2; r 12, 4, 12, 4 of 32; L 14.5, 2.5, 1/2,
    2.5: expert 2 with 36 exp(-1/2) = 21.8, then expert 1 with 8 exp(-5/2) = 0.66.
    """
    assert 44 * exp(-2) / 15 > 8 * exp(-2.5) / (36 * exp(-0.5))
    one, two = (get_criterion(f"pathfinder:{count}") for count in (1, 2))
    assert score_experts(one, stats["routed"], "applied").tolist() == [1, 0, 0, 1, 0, 0, 2, 0]
    assert score_experts(two, stats["routed"], "applied").tolist() == [1, 1, 1, 1, 0, 0, 2, 0]
    # On two samples' paths; on the heavier of two; then by mean u, where losses decide.
    ranking = rank_experts(one, stats["routed"], "applied")
    assert ranking["saliency"].tolist() == [6, 4, 3, 5, 1, 0, 7, 2]


def looped(function, *arguments):
    return [float(function(NUMBERS, layer, j, *arguments)) for layer, j in definitions.PAIRS]


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("exponents", RANKABLE, ids=str)
def test_variants_are_sums_over_tokens(stats, exponents, gate):
    criterion = get_criterion(",".join(map(str, exponents)))
    looked = looped(definitions.unified, gate, exponents)
    close(score_experts(criterion, stats["routed"], gate), looked)
    if criterion.name in APPLIED:
        assert looked == pytest.approx(by_hand(criterion.name, gate), rel=1e-12)


@pytest.mark.parametrize("count", range(1, 17))
def test_experts_on_paths_are_those_on_the_heaviest_of_all_paths(stats, count):
    found = score_experts(get_criterion(f"pathfinder:{count}"), stats["routed"], "applied")
    assert found.tolist() == list(definitions.on_paths(NUMBERS, count).values())
