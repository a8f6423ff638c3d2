"""Checkpoints as GGUF files, by llama.cpp's converter; runs in that engine's environment.

The folder llama.cpp in this environment holds the converter.
"""

import json
import sys
from pathlib import Path

SOURCE = Path(sys.prefix) / "llama.cpp"
sys.path[1:1] = [str(SOURCE), str(SOURCE / "gguf-py")]

import convert_hf_to_gguf  # noqa: E402
from conversion import base, get_model_class  # noqa: E402


def converter_of(architecture):
    """The converter's class for an architecture; NotImplementedError if it has none."""
    return get_model_class(architecture)


def convert(checkpoint, gguf):
    """Write a checkpoint as GGUF in float32."""
    config = json.loads((Path(checkpoint) / "config.json").read_text())
    # It knows tokenizers by a hash of what they make of a text, and looks for the files of each
    # family's own. Those of the tests split as GPT-2's does, the demo's each digit off before.
    split = json.loads((Path(checkpoint) / "tokenizer.json").read_text())["pre_tokenizer"]["type"]
    name = {"ByteLevel": "gpt-2", "Sequence": "starcoder"}[split]
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: name
    converter = converter_of(config["architectures"][0])
    converter.set_vocab = base.TextModel._set_vocab_gpt2
    sys.argv = ["convert", str(checkpoint), "--outfile", str(gguf), "--outtype", "f32"]
    if converter.supports_mtp_export:
        sys.argv.append("--no-mtp")  # exports have no such heads
    convert_hf_to_gguf.main()
