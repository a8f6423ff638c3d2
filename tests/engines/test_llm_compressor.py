"""llm-compressor itself: what its REAP kept is found, and what it quantises is what was meant."""

import json
import shutil
import subprocess

import pytest
import torch
from exports import keeping, tensors_of

from analysis.drain import drain
from analysis.files.shipped import DEMO_CHECKPOINT
from analysis.model.opening import load_model_index
from builders import tiny_checkpoint
from pruning import Model
from pruning.plan.keep_list import read_keep_list
from pruning.surgery.matching import match_checkpoints
from tools.engines.environments import HERE, python_of

pytestmark = pytest.mark.engines
ENGINE = "llm-compressor"


@pytest.fixture
def run(tmp_path):
    """Run a script by llm-compressor."""
    python = python_of(ENGINE)
    if python is None:
        pytest.skip(f"no environment of {ENGINE}: python -m tools.engines {ENGINE}")
    runner = HERE / "run_llm_compressor.py"

    def run(script, *words):
        line = [python, runner, script, *map(str, words)]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]

    return run


@pytest.mark.parametrize("model_type", ["qwen3_moe", "olmoe"])
@pytest.mark.parametrize("fused", [False, True])
def test_what_its_reap_kept_is_its_own_report(run, model_type, fused, tmp_path):
    path = tiny_checkpoint(tmp_path / "whole", model_type, fused=fused, dtype=torch.bfloat16).path
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_CHECKPOINT / name, path)
    script, report = HERE / "reap_llm_compressor.py", tmp_path / "report.json"
    run(script, path, tmp_path / "pruned", report, 0.5)
    original = load_model_index(str(path))
    match = drain(match_checkpoints(original, load_model_index(str(tmp_path / "pruned"))))
    said = json.loads(report.read_text())
    assert match.kept == {int(name.split(".")[2]): tuple(ids) for name, ids in said.items()}
    assert all(len(layer.by_bytes) == len(layer.experts) for layer in match.layers)
    assert read_keep_list(report, original.layers) == match.kept


def test_fp8_changes_the_experts_by_its_own_rounding_and_nothing_else(run, tmp_path):
    model = load_model_index("demo")
    model_of = Model("demo")
    plan = keeping(model, (0, 5, 9, 20, 31))
    model_of.export(plan, tmp_path / "small", quantised_as="fp8")
    run(tmp_path / "small-fp8.py")
    plain, quantised = tensors_of(tmp_path / "small"), tensors_of(tmp_path / "small-fp8")
    count = 0
    for name, tensor in plain.items():
        scale = quantised.get(f"{name}_scale")
        if scale is None:
            assert torch.equal(quantised[name], tensor), name
            assert not any(word in name for word in ("experts", "q_proj", "o_proj"))
            continue
        count += 1
        values = quantised[name].float() * scale.float()
        # Three bits of mantissa: at most 1/16 of a number, but for tiny ones.
        close = (values - tensor.float()).abs() <= tensor.float().abs() / 15 + scale.float() / 256
        assert close.all(), name
    assert count == 6 * (5 * 3 + 4)
