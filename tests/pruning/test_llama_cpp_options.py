"""Options of llama.cpp: patterns for --override-tensor against the names in gguf-py's tables, and
bits by layer as options of llama-quantize; the tool itself follows them in tests/engines.
"""

import re
import shlex
from pathlib import Path

import gguf
import pytest

from pruning.plan.bits import OWN
from pruning.serving.placement import llama_cpp_command, n_cpu_moe, override_tensor
from pruning.serving.tensor_types import quantise_command, tensor_types

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


def test_each_layer_has_its_type_and_nothing_else_is_named():
    bits = dict(enumerate((OWN, "8", "6", "5", "4", "mxfp4", "3", "2", "4", OWN, "2", "4")))
    named = {OWN: "bf16", "8": "q8_0", "6": "q6_k", "5": "q5_0", "4": "q4_0", "mxfp4": "mxfp4"}
    named |= {"3": "q3_k", "2": "q2_k"}
    types = tensor_types(bits, "bf16")
    assert len(types) == 8
    command = shlex.split(quantise_command(types, Path("a b.gguf"), Path("c.gguf")))
    assert (command[0], command[-3:]) == ("llama-quantize", ["a b.gguf", "c.gguf", "Q8_0"])
    assert command[1:-3:2] == ["--tensor-type"] * 8

    def type_of(name):
        """As llama-quantize does: of patterns in lower case, the first that is in the name."""
        pairs = (words.split("=") for words in command[2:-3:2])
        matches = (kind for pattern, kind in pairs if re.search(pattern.lower(), name))
        return next(matches, None)

    for layer, bit in bits.items():
        for part in ("gate", "up", "down", "gate_up"):
            assert type_of(f"blk.{layer}.ffn_{part}_exps.weight") == named[bit]
        for other in ("ffn_gate_inp", "ffn_gate_shexp", "ffn_down", "attn_q"):
            assert type_of(f"blk.{layer}.{other}.weight") is None
    assert type_of("blk.12.ffn_up_exps.weight") is None
    assert tensor_types(dict.fromkeys(range(3), OWN), "bf16") == ()
    assert quantise_command((), Path("a"), Path("b")) == "llama-quantize a b Q8_0"
