"""Memory of evaluations by layers, as `--dry-run` tells it."""

import weakref
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from analysis.calibration.blocks import layer_sizes
from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.calibration.memory import routed_bytes
from analysis.model.opening import load_model_index
from builders import TOP_K, tiny_config
from pruning.tasks.memory import Running

HIDDEN, WIDTH, EXPERTS, TOKENS = 64, 512, 8, 24


class Alive(TorchDispatchMode):
    """Counts the bytes of tensors that operations make, while they are there."""

    def __init__(self):
        super().__init__()
        self.storages, self.most = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        given = {tensor.untyped_storage()._cdata for tensor in tensors_in((args, kwargs))}
        for tensor in tensors_in(made):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in given and key not in self.storages:
                self.storages[key] = storage.nbytes()
                weakref.finalize(storage, self.storages.pop, key)
        self.most = max(self.most, sum(self.storages.values()))
        return made


def tensors_in(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize(("hidden", "width"), [(256, 64), (64, 96), (64, 512)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_grouped_products_hold_as_much_as_is_said(tmp_path, hidden, width, dtype):
    sizes = {"num_experts": EXPERTS, "hidden_size": hidden, "intermediate_size": width}
    config = tiny_config("olmoe", num_hidden_layers=1, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(tmp_path, save_original_format=True)
    tokens, experts = 512, model.model.layers[0].mlp.experts
    given = torch.randn(tokens, hidden, dtype=dtype)
    chosen = torch.randint(0, EXPERTS, (tokens, TOP_K))
    gates = torch.rand(tokens, TOP_K, dtype=dtype)
    with torch.no_grad(), Alive() as alive:
        experts(given, chosen, gates)
    said = routed_bytes(load_model_index(str(tmp_path)), tokens, dtype.itemsize)
    assert alive.most == pytest.approx(said, rel=0.1)


@pytest.fixture
def described(tmp_path):
    sizes = {"num_experts": EXPERTS, "hidden_size": HIDDEN, "intermediate_size": WIDTH}
    config = tiny_config("olmoe", num_hidden_layers=1, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path, save_original_format=True)
    return load_model_index(str(tmp_path))


@pytest.mark.parametrize("changes", [False, True])
def test_blocks_of_experts_take_less_than_a_layer_and_keep_more_states(described, changes):
    settings = CalibrationSettings(8, device="cpu", batch_size=1)

    def taken(at_once):
        place = Placement(stream_layers=True, experts_at_once=at_once)
        running = Running(described, "auto", 1, 8, TOKENS, True, replace(settings, placement=place))
        return running.memory(1, changes=changes)

    sizes = layer_sizes(described, settings)
    states = 2 * TOKENS * HIDDEN * 2  # of the original and a candidate
    loaded = sizes.whole - sizes.around - 2 * sizes.expert
    copied = (EXPERTS - 2) * sizes.expert * changes
    assert taken(EXPERTS) - taken(2) == loaded + copied - (1 + TOP_K) * states
    assert taken(2) < taken(EXPERTS)
