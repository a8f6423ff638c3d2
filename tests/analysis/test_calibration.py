"""Calibration: what counts and what does not; the model is left alone.

That the sums are those of a double loop is shown for every family in tests/families.
"""

import contextlib

import numpy as np
import pytest
import torch
from transformers import OlmoeForCausalLM

from analysis.calibration.experts import IMPLEMENTATION, batch_mask, collecting
from analysis.calibration.sums import sums_of
from analysis.errors import UnsupportedModelError
from analysis.model.opening import load_model_index
from analysis.stats.columns import MOMENT_COLUMNS
from builders import VOCAB, tiny_checkpoint


def tiny(path, model_type="olmoe", **options):
    """A model as its checkpoint describes it, and as it was saved."""
    model = tiny_checkpoint(path, model_type, **options).model
    return load_model_index(str(path)), model


def test_padding_that_overflows_leaves_no_trace(tmp_path):
    # Half precision may overflow at padding, where nothing keeps the values small.
    described, model = tiny(tmp_path)
    experts = model.get_submodule("model.layers.0.mlp.experts")
    hidden = torch.ones(3, 16)
    hidden[2] = torch.inf
    index, weights = torch.tensor([[1, 4], [4, 0], [4, 6]]), torch.full((3, 2), 0.25)
    sums = sums_of(described)
    with torch.no_grad(), collecting(model, described, sums):
        batch_mask(torch.tensor([True, True, False]))
        experts(hidden, index, weights)
    assert sums.of("moments", 0).sum(0).isfinite().all()
    assert sums.of("vectors", 0).isfinite().all()
    assert sums.of("moments", 0).sum(0)[:, 0].tolist() == [1, 1, 0, 0, 2, 0, 0]


def test_gates_that_sum_to_zero_renormalise_to_zero(tmp_path):
    described, model = tiny(tmp_path)
    experts = model.get_submodule("model.layers.0.mlp.experts")
    sums = sums_of(described)
    with torch.no_grad(), collecting(model, described, sums):
        experts(torch.ones(1, 16), torch.tensor([[3, 5]]), torch.zeros(1, 2))
    assert sums.of("moments", 0).sum(0).isfinite().all()
    column = MOMENT_COLUMNS.index("renormalized_g1_f0")
    assert sums.of("moments", 0).sum(0)[:, column].abs().sum() == 0


def test_implementation_is_restored_after_an_error(tmp_path):
    described, model = tiny(tmp_path, "mixtral")
    model.set_experts_implementation("grouped_mm")
    with contextlib.suppress(ZeroDivisionError), collecting(model, described, sums_of(described)):
        assert model.config._experts_implementation == IMPLEMENTATION
        raise ZeroDivisionError
    assert model.config._experts_implementation == "grouped_mm"
    with pytest.raises(ValueError, match="outside"):
        batch_mask(None)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_in_backward_counts_nothing_twice(tmp_path, reentrant):
    described, model = tiny(tmp_path)
    ids = torch.from_numpy(np.random.default_rng(7).integers(3, VOCAB, size=(3, 8)))
    mask = torch.ones(3, 8, dtype=torch.bool)
    mask[1, 5:] = mask[2, 2:] = False
    plain = sums_of(described)
    with torch.no_grad(), collecting(model, described, plain):
        batch_mask(mask)
        model(input_ids=ids, attention_mask=mask.long(), use_cache=False)

    # The newer name; the older one is deprecated where both are there.
    newer = getattr(model, "activation_checkpointing_enable", None)
    (newer or model.gradient_checkpointing_enable)({"use_reentrant": reentrant})
    for layer in model.model.layers:
        layer.training = True  # not its children: no dropout, no jitter
    calls = []
    experts = model.get_submodule("model.layers.1.mlp.experts")
    experts.register_forward_pre_hook(lambda *_: calls.append(1))
    inputs = model.get_input_embeddings()(ids).detach().requires_grad_()
    checkpointed = sums_of(described)
    with collecting(model, described, checkpointed):
        batch_mask(mask)
        output = model(inputs_embeds=inputs, attention_mask=mask.long(), use_cache=False)
        output.logits.square().mean().backward()
    assert len(calls) == 2  # so something was recomputed
    for name, tensor in plain.tensors().items():
        assert torch.equal(checkpointed.tensors()[name], tensor)


def test_a_model_whose_experts_stay_as_they_are_is_refused(tmp_path):
    # transformers looks for the experts interface in the file of the class, which is this one.
    class Derived(OlmoeForCausalLM):
        _can_set_experts_implementation_cached_value = None  # not what its parent found

    described, _ = tiny(tmp_path)
    model = Derived.from_pretrained(tmp_path)
    refused = pytest.raises(UnsupportedModelError, match="the experts of Derived compute")
    with refused, collecting(model, described, sums_of(described)):
        pass
    assert model.get_experts_implementation() != IMPLEMENTATION
