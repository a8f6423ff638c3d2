"""A layer larger than the address space that a process may take: its experts run in blocks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from builders import tiny_config

SCRIPT = Path(__file__).with_name("limited_run.py")
HIDDEN, WIDTH, EXPERTS = 512, 512, 64
LAYER = EXPERTS * 3 * HIDDEN * WIDTH * 2  # 96 MiB


def write_model(folder, experts):
    sizes = {"num_experts": experts, "hidden_size": HIDDEN, "intermediate_size": WIDTH}
    config = tiny_config("olmoe", num_hidden_layers=2, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder, save_original_format=True)


def limited(tmp_path, stats, room, too_many=0):
    words = [tmp_path / "small", tmp_path / "large", tmp_path / stats, room, too_many]
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )


def statistics(folder):
    (manifest,) = folder.glob("large/*/manifest.json")
    return json.loads(manifest.read_text())["files"]


@pytest.mark.slow
def test_a_layer_larger_than_memory_gives_the_bits_of_a_whole_one(tmp_path):
    # Of many random models a repair helps no layer, and then keeps none; it helps both of these.
    torch.manual_seed(5)
    write_model(tmp_path / "small", 8)
    write_model(tmp_path / "large", EXPERTS)
    whole = limited(tmp_path, "whole", 0)
    assert not whole.returncode, whole.stderr
    # Most of a layer is more than there is, but not blocks of what there is.
    in_blocks = limited(tmp_path, "blocks", LAYER * 2 // 3, too_many=EXPERTS - 1)
    assert not in_blocks.returncode, in_blocks.stderr
    assert statistics(tmp_path / "blocks") == statistics(tmp_path / "whole")
    assert "nll" in whole.stdout
    assert "layer-00001.safetensors" in whole.stdout
    *results, refused, norms = in_blocks.stdout.splitlines()
    assert [*results, norms] == whole.stdout.splitlines()
    assert refused.startswith("refused: large does not fit into memory, not even with 63 of")
