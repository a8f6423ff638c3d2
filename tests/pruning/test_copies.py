"""A plan made for a model prunes its quantised copy, and no other model of its shape."""

import shutil

import pytest
import torch
from exports import edit_tensors

from analysis.errors import PlanError
from analysis.model.opening import load_model_index
from builders import edit_json
from layouts.small_packed import ROLES, original_of, small_packed
from pruning.plan.copies import plan_for_copy
from pruning.plan.plan import PruningPlan, fit_plan, model_ref

KEPT = {0: (1, 2, 4), 1: (0, 2, 5)}


@pytest.fixture
def packed(tmp_path):
    return small_packed(tmp_path / "packed", "awq")


@pytest.fixture
def plan(packed, tmp_path):
    """A plan for the original, which lies in `original`."""
    return PruningPlan(
        model_ref(load_model_index(str(original_of(packed, tmp_path / "original")))), KEPT
    )


def routers(change):
    """A change of the routers' matrices in a file."""
    return lambda tensors: {
        name: change(tensor) if name.endswith("mlp.gate.weight") else tensor
        for name, tensor in tensors.items()
    }


def both(folder):
    return (load_model_index(str(folder / name)) for name in ("original", "packed"))


@pytest.mark.parametrize("method", ROLES)
def test_a_copy_is_exported_by_the_plan_of_its_original(tmp_path, method):
    source = small_packed(tmp_path / "in", method)
    paths = (original_of(source, tmp_path / "original"), source)
    original, copy = (load_model_index(str(path)) for path in paths)
    made = plan_for_copy(PruningPlan(model_ref(original), KEPT), original, copy)
    assert made == fit_plan(PruningPlan(model_ref(copy), KEPT), copy)


def test_columns_that_awq_scaled_are_no_other_router(packed, plan, tmp_path):
    edit_tensors(
        packed / "model.safetensors",
        routers(lambda router: router * torch.linspace(0.5, 2, router.shape[1]).to(router.dtype)),
    )
    assert plan_for_copy(plan, *both(tmp_path)).kept == KEPT


@pytest.mark.parametrize(
    "change",
    [
        lambda router: router.flip(0),
        lambda router: router + 0.02 * torch.ones_like(router).cumsum(0),
        lambda router: router * float("nan"),
    ],
    ids=["experts in another order", "fine-tuned", "damaged"],
)
def test_another_router_is_another_model(packed, plan, tmp_path, change):
    edit_tensors(packed / "model.safetensors", routers(change))
    with pytest.raises(PlanError, match=r"packed is no quantised copy of original: the routers of"):
        plan_for_copy(plan, *both(tmp_path))


def test_other_sizes_are_another_model(packed, plan, tmp_path):
    edit_json(packed / "config.json", num_experts_per_tok=3)
    with pytest.raises(PlanError, match="copy of original: their layers differ; make a plan for"):
        plan_for_copy(plan, *both(tmp_path))


def test_a_plan_of_neither_is_refused(packed, plan, tmp_path):
    shutil.copytree(tmp_path / "original", tmp_path / "other")
    edit_json(tmp_path / "other" / "config.json", vocab_size=39)
    other, copy = (load_model_index(str(tmp_path / name)) for name in ("other", "packed"))
    with pytest.raises(PlanError, match=r"is for original .* not for other"):
        plan_for_copy(plan, other, copy)
