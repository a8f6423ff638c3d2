"""Memory of evaluations by layers, as `--dry-run` tells it."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from analysis.calibration.blocks import layer_sizes
from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.model.opening import load_model_index
from builders import TOP_K, tiny_config
from pruning.tasks.memory import Running

HIDDEN, WIDTH, EXPERTS, TOKENS = 64, 512, 8, 24


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
