"""Weight statistics against float64 sums over tensors that safetensors itself loaded."""

import json
import os
import platform
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from calibrations import watched
from safetensors.torch import load_file, save_file

from analysis.calibration import weights
from analysis.calibration.weights import measure_weights, weight_statistics
from analysis.checkpoint.opening import open_checkpoint
from analysis.drain import drain
from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.model.describing import describe_model
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore

NUM_EXPERTS = 3
LAYERS = (0, 1)
ON_DISK = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def random_experts(width, hidden, dtype, seed=0):
    """{(layer, expert): {projection: tensor}} of an OLMoE checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    return {
        (layer, expert): {
            name: (torch.randn(shape, generator=generator) * 0.02).to(dtype)
            for name, shape in shapes.items()
        }
        for layer in LAYERS
        for expert in range(NUM_EXPERTS)
    }


def write_checkpoint(path, experts, *, fused=False, extra=None):
    """An OLMoE checkpoint that holds experts and routers only."""
    hidden, width = experts[0, 0]["down"].shape
    tensors = dict(extra or {})
    for layer in LAYERS:
        block = f"model.layers.{layer}.mlp"
        tensors[f"{block}.gate.weight"] = torch.ones(NUM_EXPERTS, hidden)
        mine = [experts[layer, expert] for expert in range(NUM_EXPERTS)]
        if fused:
            both = [torch.cat([matrices["gate"], matrices["up"]]) for matrices in mine]
            tensors[f"{block}.experts.gate_up_proj"] = torch.stack(both)
            tensors[f"{block}.experts.down_proj"] = torch.stack(
                [matrices["down"] for matrices in mine]
            )
            continue
        for expert, matrices in enumerate(mine):
            for name, tensor in matrices.items():
                tensors[f"{block}.experts.{expert}.{ON_DISK[name]}.weight"] = tensor
    path.mkdir()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "olmoe",
        "num_hidden_layers": len(LAYERS),
        "num_experts": NUM_EXPERTS,
        "num_experts_per_tok": 2,
        "hidden_size": hidden,
        "intermediate_size": width,
    }
    (path / "config.json").write_text(json.dumps(config))
    return load_model_index(str(path))


def assert_measured(model, experts, *, rel):
    rows = []
    for (layer, expert), matrices in experts.items():
        for name in ("gate", "up", "down"):
            w = matrices[name].double().numpy().ravel()
            rows.append((layer, expert, name, np.abs(w).sum(), (w * w).sum(), w.size))
    columns = ["layer", "expert", "projection", "l1", "l2_squared", "numel"]
    table, expected = drain(measure_weights(model)), pd.DataFrame(rows, columns=columns)
    exact = ["layer", "expert", "projection", "numel"]
    assert table[exact].to_numpy().tolist() == expected[exact].to_numpy().tolist()
    for column in ("l1", "l2_squared"):
        assert table[column].tolist() == pytest.approx(expected[column].tolist(), rel=rel)


# 91, 4096, 4097 and 211,001 elements: odd counts, around a block of 4,096, beyond one read buffer.
# float32 partial sums of 4,096 elements are right to a few units in the seventh digit.
CASES = [
    *((shape, torch.bfloat16, 1e-6) for shape in ((7, 13), (64, 64), (17, 241), (301, 701))),
    *(((61, 77), dtype, 1e-13) for dtype in (torch.float16, torch.float32, torch.float64)),
]


@pytest.mark.parametrize(("shape", "dtype", "rel"), CASES)
@pytest.mark.parametrize("fused", [False, True], ids=["per-expert", "fused"])
def test_norms_equal_float64_sums(tmp_path, shape, dtype, rel, fused):
    experts = random_experts(*shape, dtype)
    assert_measured(write_checkpoint(tmp_path / "model", experts, fused=fused), experts, rel=rel)


def test_biases_are_left_out(tmp_path):
    experts = random_experts(9, 11, torch.bfloat16)
    bias = {"model.layers.0.mlp.experts.1.up_proj.bias": torch.full((9,), 7.0).bfloat16()}
    assert_measured(write_checkpoint(tmp_path / "m", experts, extra=bias), experts, rel=1e-6)


def test_a_matrix_of_several_chunks_is_summed_whole(tmp_path, monkeypatch):
    # 65 * 63 elements are 2.6 chunks, the last of which is no whole number of rows.
    monkeypatch.setattr(weights, "_CHUNK_BYTES", 3140)
    experts = random_experts(65, 63, torch.bfloat16)
    assert_measured(write_checkpoint(tmp_path / "model", experts), experts, rel=1e-6)


def test_elements_off_their_natural_places_are_read_too(tmp_path):
    experts = random_experts(9, 11, torch.float32)
    model = write_checkpoint(tmp_path / "model", experts)
    file = tmp_path / "model" / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    # The format allows spaces after the header; one of them moves every tensor by a byte.
    file.write_bytes(
        (length + 1).to_bytes(8, "little") + raw[8 : 8 + length] + b" " + raw[8 + length :]
    )
    moved = describe_model(open_checkpoint(model.checkpoint.path))
    assert_measured(moved, experts, rel=1e-13)


def test_a_quantised_element_type_is_refused(tmp_path):
    experts = random_experts(8, 16, torch.float8_e4m3fn)
    model = write_checkpoint(tmp_path / "model", experts)
    with pytest.raises(UnsupportedModelError, match=r"F8_E4M3 .*supported: BF16, F16, F32, F64"):
        drain(measure_weights(model))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_that_are_no_numbers_are_named(tmp_path, value, dtype):
    experts = random_experts(9, 11, dtype)
    experts[1, 2]["up"][4, 3] = value
    model = write_checkpoint(tmp_path / "model", experts)
    with pytest.raises(CheckpointError, match=r"up projection of expert 2 in layer 1"):
        drain(measure_weights(model))


def test_a_task_that_is_closed_reads_no_more(tmp_path, monkeypatch):
    """Each matrix takes a moment; two threads have begun the next ones at most."""
    measured, sums = [], weights._MappedGroup.sums

    def slow(group, piece):
        measured.append(piece)
        time.sleep(0.05)
        return sums(group, piece)

    monkeypatch.setattr(weights, "GROUP_BYTES", 1)
    monkeypatch.setattr(weights._MappedGroup, "sums", slow)
    experts = random_experts(9, 11, torch.bfloat16)
    steps = measure_weights(write_checkpoint(tmp_path / "model", experts))
    next(steps)
    assert next(steps).done
    steps.close()
    assert len(measured) < 3 * len(experts) / 2


def test_a_shard_that_shrinks_while_it_is_read_is_an_error(tmp_path):
    model = write_checkpoint(tmp_path / "model", random_experts(33, 65, torch.bfloat16))
    file = tmp_path / "model" / "model.safetensors"
    assert load_file(file)
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(CheckpointError, match=r"model\.safetensors became shorter"):
        drain(measure_weights(model))


def test_weight_statistics_are_cached_by_model(tmp_path):
    model = write_checkpoint(tmp_path / "model", random_experts(9, 11, torch.bfloat16))
    store = StatsStore(tmp_path / "stats")
    first = drain(weight_statistics(model, store))
    again, steps = watched(weight_statistics(model, store))
    assert again == first
    assert [step.phase for step in steps] == ["cached"]
    other = write_checkpoint(tmp_path / "other", random_experts(9, 11, torch.bfloat16, seed=1))
    assert drain(weight_statistics(other, store)).path != first.path


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the name of a processor of x86-64")
def test_sums_load_neighbours_at_once_where_gathers_are_thought_fast():
    # A position that may be negative is no address of a neighbour: such words were gathered.
    program = (
        "from analysis.calibration.weights import _bfloat16_pair_sums, _compiled\n"
        "(code,) = _compiled(_bfloat16_pair_sums, 'uint32').inspect_asm().values()\n"
        "assert 'ymm' in code and 'gather' not in code\n"
    )
    chosen = {"NUMBA_CPU_NAME": "skylake", "NUMBA_CPU_FEATURES": ""}
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, **chosen})
