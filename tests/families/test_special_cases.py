"""Groups of experts, which only some families have."""

import pytest
import torch
from exports import export

from analysis.errors import UserError
from families.configs import CASES
from families.physical import logits_of
from pruning.masking import masked
from pruning.plan import PruningPlan, model_ref

GROUPED = [case for case in CASES if case.groups > 1]


@pytest.mark.parametrize("case", GROUPED, ids=str)
@pytest.mark.parametrize(
    "kept",
    [
        (0, 1, 2, 4, 5, 8, 9, 10),  # 3 + 2 + 3
        (0, 1, 2, 3, 4, 5, 6, 7),  # a whole group gone
        (0, 1, 4, 5, 8, 9, 10),  # not divisible
    ],
)
def test_groups_of_different_sizes_are_refused(built, tmp_path, case, kept):
    # The pruned model would part its experts into groups anew, by position, and compute otherwise.
    source = built(case)
    described = source.described()
    plan = PruningPlan(model_ref(described), dict.fromkeys(case.sparse, kept))
    with pytest.raises(UserError, match="group"):
        export(described, plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    before = logits_of(source.model)
    with pytest.raises(UserError, match="group"):
        masked(source.model, described.family, plan).__enter__()
    assert torch.equal(logits_of(source.model), before)


def test_groups_judged_by_two_need_two_experts(built, tmp_path):
    case = next(case for case in GROUPED if case.model_type == "deepseek_v3")
    described = built(case).described()
    plan = PruningPlan(model_ref(described), dict.fromkeys(case.sparse, (0, 4, 8)))
    with pytest.raises(UserError, match="group"):
        export(described, plan, tmp_path / "out")
