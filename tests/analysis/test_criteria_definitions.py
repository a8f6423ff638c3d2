"""Names of criteria with numbers in them, and the formulas and columns of the unified family."""

import math

import pytest

from analysis.criteria import RANKABLE, VARIANTS, get_criterion, unified
from analysis.criteria.heapr import camera_p
from analysis.errors import CriterionError

FAMILY = "arXiv:2606.15716, Table 1"


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
