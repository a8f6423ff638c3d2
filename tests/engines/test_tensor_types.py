"""The options that `export` prints, followed by llama-quantize, built from llama.cpp's source."""

import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from analysis.model.opening import load_model_index
from pruning import Model
from pruning.engine.quantised import quantised
from pruning.plan.bits import FORMATS, OWN
from pruning.plan.plan import fit_plan, keep_all
from pruning.serving.gguf import FOLDER_VARIABLE
from pruning.serving.tensor_types import QUANTISER, quantise_command, tensor_types
from tools.engines.environments import place_of, python_of

# Rows of the demo have 128 and 64 weights, too few for types of K.
BECOMES = {OWN: "BF16", "8": "Q8_0", "6": "Q8_0", "5": "Q5_0", "4": "Q4_0", "mxfp4": "MXFP4"}
BECOMES |= {"3": "Q4_0", "2": "Q4_0"}


def source_of_llama_cpp():
    """Its folder, with the converter and, where cmake built it, llama-quantize; None without."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    return place_of("llama.cpp") / "llama.cpp" if python_of("llama.cpp") else None


@pytest.mark.engines
@pytest.mark.parametrize(
    "bits", [("8", "5", "4", "mxfp4", OWN, "4"), ("6", "3", "2", OWN, "8", "2")]
)
def test_the_file_has_each_layers_type_and_the_simulated_weights(bits, tmp_path):
    if (folder := source_of_llama_cpp()) is None:
        pytest.skip("no environment of llama.cpp: python -m tools.engines llama.cpp")
    built = folder / "build" / "bin" / QUANTISER
    if (tool := shutil.which(QUANTISER) or (built.is_file() and str(built))) is False:
        pytest.skip(f"no {QUANTISER} on the PATH; docs/dev/quantised-in-llama-cpp.md builds it")
    model, described = Model("demo", stats_dir=tmp_path / "stats"), load_model_index("demo")
    layers = [layer.index for layer in described.layers]
    halves = {layer: tuple(range(0, 32, 2)) for layer in layers}
    own = zip(layers, bits, strict=True)
    plan = replace(
        keep_all(described), kept=halves, layer_bits={n: name for n, name in own if name != OWN}
    )
    plan = fit_plan(plan, described)
    out = tmp_path / "out"
    model.export(plan, out, gguf="bf16", llama_cpp=folder)
    source, target = tmp_path / "out-bf16.gguf", tmp_path / "small.gguf"
    command = shlex.split(
        quantise_command(tensor_types(plan.bits_by_layer, "bf16"), source, target)
    )
    done = subprocess.run([tool, *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    before = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    after = {tensor.name: tensor for tensor in gguf.GGUFReader(target).tensors}
    for layer, name in plan.bits_by_layer.items():
        for part in ("gate", "up", "down"):
            tensor = after[f"blk.{layer}.ffn_{part}_exps.weight"]
            kind = tensor.tensor_type.name
            assert kind == BECOMES[name], (layer, part)
            own = before[tensor.name]
            weights = gguf.quants.dequantize(own.data, own.tensor_type)
            written = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            became = next((f.name for f in FORMATS.values() if f.engine == kind), None)
            simulated = weights
            if became is not None:
                rows = torch.from_numpy(weights.reshape(-1, weights.shape[-1]).copy())
                simulated = quantised(rows, became).numpy().reshape(weights.shape)
            # Ties depend on whether the compiler fuses products and sums: the other value is as
            # near. Of other weights none differs.
            assert (written != simulated).mean() < 1e-3
            errors = [abs(values - weights) for values in (written, simulated)]
            np.testing.assert_allclose(*errors, atol=1e-6)
    others = {tensor.tensor_type.name for name, tensor in after.items() if "_exps" not in name}
    assert others == {"F32", "Q8_0"}  # norms and routers; all else
    fallen = "fall" in done.stderr + done.stdout
    assert fallen == bool({"6", "3", "2"} & set(bits))
