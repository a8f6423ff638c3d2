"""Bits by layer as options of llama-quantize; the tool itself follows them in tests/engines."""

import re
import shlex
from pathlib import Path

from pruning.plan.bits import OWN
from pruning.serving.tensor_types import quantise_command, tensor_types


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
