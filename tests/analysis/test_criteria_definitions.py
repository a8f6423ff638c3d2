"""What each criterion says of itself, written out here: labels, sources, columns and formulas.

Exports, files of statistics and the dashboard rely on these; the numbers are tested elsewhere.
"""

import math

import pytest

from analysis.criteria import CRITERIA, RANKABLE, VARIANTS, get_criterion, unified
from analysis.criteria.heapr import camera_p
from analysis.errors import CriterionError

FAMILY = "arXiv:2606.15716, Table 1"
WEIGHTS = "l1 l2_squared numel"
# Name, label, reference, columns with applied gates, source, and what else holds.
ROWS = [
    ("frequency", "Frequency", FAMILY, "num_tokens", "routed", ""),
    ("seer", "SEER", FAMILY, "applied_g1_f0 num_tokens", "routed", "gate"),
    ("ean", "EAN", FAMILY, "g0_f1 num_tokens", "routed", ""),
    ("reap", "REAP", FAMILY, "applied_g1_f1 num_tokens", "routed", "gate"),
    ("man", "MAN", FAMILY, "g0_f1 num_tokens", "routed", ""),
    ("msan", "MSAN", FAMILY, "g0_f2 num_tokens", "routed", ""),
    ("gate-ean", "Gate-weighted EAN", FAMILY, "applied_g1_f1 num_tokens", "routed", "gate"),
    (
        "squared-gate-energy",
        "Squared-gate energy",
        FAMILY,
        "applied_g2_f2 num_tokens",
        "routed",
        "gate",
    ),
    (
        "mone",
        "MoNE",
        "arXiv:2606.15716, Table 6",
        "num_tokens g0_f2 applied_g1_f0 vector_sum_sq",
        "routed",
        "gate",
    ),
    ("damage", "Exact damage", "arXiv:2606.15716, Eq. 5-8", "damage num_tokens", "routed", ""),
    ("heapr", "HEAPr", "HEAPr, Eq. 15-16", "num_tokens neuron_product", "routed", "neurons"),
    (
        "camera-p",
        "CAMERA-P",
        "HEAPr, section 4.2; arXiv:2508.02322",
        "neuron_norm_sum neuron_peak_sum",
        "routed",
        "neurons within",
    ),
    (
        "pathfinder",
        "MoE Pathfinder",
        "MoE Pathfinder, Eq. 1-12",
        "path_samples path_weight node_weight",
        "routed",
        "samples",
    ),
    ("aimer", "AIMER", "arXiv:2603.18492", WEIGHTS, "weights", "larger"),
    ("magnitude", "Magnitude", "arXiv:2603.18492", WEIGHTS, "weights", ""),
    ("hoyer", "Hoyer", "arXiv:2603.18492", WEIGHTS, "weights", ""),
    ("random", "Random", "baseline", "", "none", "neurons"),
]


def test_the_list_of_criteria_is_in_the_order_of_menus():
    names = [criterion.name for criterion in CRITERIA.values()]
    assert list(CRITERIA) == names == [row[0] for row in ROWS]


@pytest.mark.parametrize(("name", "label", "reference", "columns", "source", "rest"), ROWS)
def test_a_criterion_says_what_it_is(name, label, reference, columns, source, rest):
    criterion = CRITERIA[name]
    read = tuple(columns.split())
    assert (criterion.label, criterion.reference, criterion.source) == (label, reference, source)
    assert criterion.columns("applied") == read
    other = tuple(column.replace("applied", "renormalized") for column in read)
    assert criterion.columns("renormalized") == other
    found = {
        "gate": criterion.uses_gate,
        "larger": criterion.prune_larger,
        "neurons": criterion.neuron_score is not None,
        "within": criterion.within_layers,
        "samples": criterion.from_samples is not None,
    }
    assert {word for word, holds in found.items() if holds} == set(rest.split())
    assert (criterion.order is not None) == ("samples" in rest)
    assert criterion.formula


def test_variants_are_listed_in_the_order_of_their_exponents():
    wanted = [(b, alpha, beta) for b in (0, 1) for alpha in (0, 1, 2) for beta in (0, 1, 2)]
    assert list(VARIANTS) == wanted
    assert set(VARIANTS) - set(RANKABLE) == {(1, 0, 0)}
    assert unified(1, 0, 0).is_constant


@pytest.mark.parametrize(
    ("exponents", "formula"),
    [
        ((0, 0, 0), r"S_j = \sum_{t: j \in E_t} 1"),
        ((1, 0, 0), r"S_j = \frac{1}{N_j} \sum_{t: j \in E_t} 1"),
        ((0, 1, 0), r"S_j = \sum_{t: j \in E_t} g_{j,t}"),
        ((0, 0, 1), r"S_j = \sum_{t: j \in E_t} \lVert f_{j,t} \rVert_2"),
        ((1, 1, 1), r"S_j = \frac{1}{N_j} \sum_{t: j \in E_t} g_{j,t} \lVert f_{j,t} \rVert_2"),
        ((0, 2, 2), r"S_j = \sum_{t: j \in E_t} g_{j,t}^2 \lVert f_{j,t} \rVert_2^2"),
        ((0, 2, 1), r"S_j = \sum_{t: j \in E_t} g_{j,t}^2 \lVert f_{j,t} \rVert_2"),
        ((1, 1, 2), r"S_j = \frac{1}{N_j} \sum_{t: j \in E_t} g_{j,t} \lVert f_{j,t} \rVert_2^2"),
    ],
)
def test_formulas_of_the_family(exponents, formula):
    assert unified(*exponents).formula == formula


@pytest.mark.parametrize(
    ("exponents", "uses_gate", "columns"),
    [
        ((0, 0, 0), False, ("num_tokens",)),
        ((1, 0, 1), False, ("g0_f1", "num_tokens")),
        ((1, 1, 0), True, ("renormalized_g1_f0", "num_tokens")),
        ((0, 2, 1), True, ("renormalized_g2_f1", "num_tokens")),
    ],
)
def test_a_variant_reads_what_its_exponents_say(exponents, uses_gate, columns):
    criterion = unified(*exponents)
    assert (criterion.exponents, criterion.uses_gate) == (exponents, uses_gate)
    assert criterion.columns("renormalized") == columns
    assert not criterion.is_constant
    assert (criterion.source, criterion.reference) == ("routed", FAMILY)


@pytest.mark.parametrize("weight", [-0.5, math.inf, math.nan])
def test_no_lambda_but_a_number_from_zero_on(weight):
    with pytest.raises(CriterionError, match=f"lambda of CAMERA-P is {weight:g}; it must be 0 or"):
        camera_p(weight)


@pytest.mark.parametrize(
    ("text", "name", "label"),
    [
        ("camera-p:0", "camera-p:0", "CAMERA-P, lambda 0"),
        ("camera-p:0.25", "camera-p:0.25", "CAMERA-P, lambda 0.25"),
        ("camera-p:1.0", "camera-p", "CAMERA-P"),
        ("camera-p:12.5", "camera-p:12.5", "CAMERA-P, lambda 12.5"),
        ("pathfinder:1", "pathfinder:1", "MoE Pathfinder, m 1"),
        ("pathfinder:16384", "pathfinder:16384", "MoE Pathfinder, m 16384"),
        ("pathfinder:100", "pathfinder", "MoE Pathfinder"),
        ("random:0", "random:0", "Random (draw 0)"),
        ("random:07", "random:7", "Random (draw 7)"),
        ("random:42", "random", "Random"),
    ],
)
def test_names_with_a_number(text, name, label):
    criterion = get_criterion(text)
    assert (criterion.name, criterion.label) == (name, label)
