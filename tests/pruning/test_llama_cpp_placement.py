"""Patterns for llama.cpp's --override-tensor against the names of tensors in gguf-py's tables."""

import re

import gguf
import pytest

from pruning.serving.placement import llama_cpp_command, n_cpu_moe, override_tensor

# Routed experts of a layer; biases and scales have the same beginnings.
ROUTED = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps")
KINDS = gguf.MODEL_TENSORS


def names_of(kind, layers):
    """The names of an architecture's tensors in a file of so many layers."""
    for tensor in KINDS[kind]:
        name = gguf.TENSOR_NAMES[tensor]
        places = range(layers) if "{bid}" in name else (0,)
        for place in places:
            yield from (f"{name.format(bid=place)}.{end}" for end in ("weight", "bias"))


@pytest.mark.parametrize("layers", [(1,), (0, 2, 11), tuple(range(12))], ids=str)
def test_exactly_the_routed_experts_of_these_layers_are_matched(layers):
    pattern, _, place = override_tensor(layers).rpartition("=")
    assert place == "CPU"
    assert "," not in pattern and "=" not in pattern  # which part overrides in llama.cpp
    with_experts = 0
    for kind in KINDS:
        names = list(names_of(kind, 12))
        found = [name for name in names if re.search(pattern, name)]
        routed = [name for name in names if (at := ROUTED.match(name)) and int(at[1]) in layers]
        assert found == routed, kind
        with_experts += bool(found)
    assert with_experts > 30  # architectures; others have no routed experts


def test_the_first_layers_are_also_a_number():
    sparse = (1, 2, 3, 5)
    assert [n_cpu_moe(sparse, host) for host in ((), (1,), (1, 2, 3), sparse)] == [0, 2, 4, 6]
    assert [n_cpu_moe(sparse, host) for host in ((2,), (1, 3), (5,))] == [None] * 3
    assert "override" not in llama_cpp_command(())
