"""Every family is repaired, or refused by name; tests/pruning/repair solves its layers by hand."""

import numpy as np
import pytest
import torch
from exports import keeping_neurons, tensors_of, uneven
from safetensors.torch import load_file

from analysis.errors import UnsupportedModelError
from builders.repairs import repaired, token_sequences
from families.built import HAND_ON_MORE, stock_load
from families.configs import BY_NAME, EVERY
from pruning.engine.masking import masked
from pruning.plan.plan import fit_plan

SEQUENCES = token_sequences(10, 12)
IDS = torch.from_numpy(np.stack(SEQUENCES.rows)).long()


@pytest.mark.parametrize("case", EVERY)
def test_every_family_is_repaired_or_refused_by_name(built, tmp_path, case):
    model = built(case).described()
    plan = uneven(model)
    if case.model_type in HAND_ON_MORE:
        with pytest.raises(UnsupportedModelError, match="cannot be repaired layer by layer"):
            repaired(model, plan, tmp_path, SEQUENCES)
        assert not list(tmp_path.glob("repairs/*"))
        assert not list(tmp_path.glob("repairs/.*"))
        return
    plan, record = repaired(model, plan, tmp_path, SEQUENCES)
    assert [layer.layer for layer in record.layers] == [layer.index for layer in model.layers]
    loaded, _ = stock_load(case, built(case).paths["experts"], dtype=torch.float32)
    errors = {}
    for name, candidate in (("pruned", plan.unrepaired), ("repaired", plan)):
        with masked(loaded, model.family, candidate), torch.no_grad():
            errors[name] = loaded(IDS, use_cache=False).logits
    with torch.no_grad():
        whole = loaded(IDS, use_cache=False).logits
    pruned, new = (float((errors[error] - whole).square().mean()) for error in errors)
    if record.files:
        assert new < pruned


def test_neurons_that_stay_take_over_and_those_that_go_do_nothing(built, tmp_path):
    case = BY_NAME["olmoe"]
    model = built(case).described()
    layer = model.layers[0].index
    neurons = dict.fromkeys(range(model.layers[0].num_experts), (0, 2, 5))
    plan = keeping_neurons(model, {layer: neurons})
    plan, record = repaired(model, plan, tmp_path, token_sequences(60, 16))
    assert fit_plan(plan, model).kept_neurons[layer][1] == (0, 2, 5)
    assert record.files
    before = tensors_of(built(case).paths["experts"])
    new = load_file(plan.repair.file(layer))
    name = next(key for key in new if ".experts.1." in key)
    changed = (new[name] != before[name]).any(dim=0)
    assert changed.nonzero().flatten().tolist() == [0, 2, 5]
