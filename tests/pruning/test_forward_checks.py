"""Logits of an export against its masked source: in which element type, and what fails."""

from dataclasses import replace

import pytest
from exports import export

from analysis.model import load_model_index
from families.configs import BY_NAME
from pruning.plan import PruningPlan, fit_plan, model_ref
from pruning.surgery.forward_checks import check_logits, random_tokens

OLMOE = BY_NAME["olmoe"]


@pytest.mark.parametrize("mode", ["uniform", "per-layer"])
def test_neurons_are_compared_in_float64(atom_source, width_export, mode):
    source = atom_source(OLMOE)
    exported = load_model_index(str(width_export(OLMOE, mode).path))
    ids = random_tokens(source.described, 32)
    plan = fit_plan(source.plan, source.described)
    check, difference = check_logits(exported, source.described, plan, ids)
    # Logits of about 1 with 2^-53 of rounding; in float32 they would differ by 1e-7.
    assert check.ok and difference < 1e-12
    assert "on 32 random tokens in float64," in check.detail
    first = OLMOE.sparse[0]
    others = plan.kept_atoms | {first: plan.kept_atoms[first] | {1: (0,)}}
    plan = replace(plan, kept_atoms=others)
    check, difference = check_logits(exported, source.described, plan, ids)
    assert not check.ok and difference > 1e-5


def test_whole_experts_are_compared_in_float32(atom_source, tmp_path):
    source = atom_source(OLMOE).described
    plan = PruningPlan(model_ref(source), dict.fromkeys(OLMOE.sparse, (0, 2, 5)))
    export(source, plan, tmp_path / "out")
    ids = random_tokens(source, 32)
    exported = load_model_index(str(tmp_path / "out"))
    check, _ = check_logits(exported, source, plan, ids)
    assert check.ok and "in float32," in check.detail
    other = PruningPlan(model_ref(source), dict.fromkeys(OLMOE.sparse, (0, 2, 4)))
    assert not check_logits(exported, source, other, ids)[0].ok
