"""A placement of whole layers as options of llama.cpp, which keeps a layer's experts together."""

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from pruning.serving.commands import serve_gguf

# The tensors of a layer's routed experts in a GGUF file: weights, biases and scales; not shared
# experts (`ffn_up_shexp`) nor routers (`ffn_gate_inp`).
_EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_exps"
_ALL_LAYERS: Final = 999  # more than any model has


def override_tensor(host_layers: Collection[int]) -> str:
    """The value of `--override-tensor` that keeps these layers' experts off the device.

    A regular expression that llama.cpp searches in tensor names; empty for no layers. It has no
    comma, at which llama.cpp parts several.
    """
    if not host_layers:
        return ""
    return rf"blk\.({'|'.join(map(str, sorted(host_layers)))}){_EXPERTS}=CPU"


def n_cpu_moe(sparse_layers: Sequence[int], host_layers: Collection[int]) -> int | None:
    """The number for `--n-cpu-moe` that means the same: the first layers; None if none does."""
    first = max(host_layers, default=-1) + 1
    same = {layer for layer in sparse_layers if layer < first} == set(host_layers)
    return first if same else None


def llama_cpp_command(host_layers: Collection[int]) -> str:
    """The command line that serves a GGUF file with these layers' experts off the device."""
    pattern = override_tensor(host_layers)
    words = f" --override-tensor {shlex.quote(pattern)}" if pattern else ""
    return f"{serve_gguf(Path('model.gguf'))} --n-gpu-layers {_ALL_LAYERS}{words}"
