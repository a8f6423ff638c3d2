"""Runs llama.cpp's converter in its own environment; imports nothing of this program.

    python gguf_launcher.py LLAMA_CPP PRE_TOKENIZER CHECKPOINT OPTION...

The converter knows tokenizers by a hash of token ids, so only those of published models. For others
PRE_TOKENIZER is taken, what `gguf.pre_tokenizer_of` read in tokenizer.json; empty for none.
"""

import sys
from typing import Any


def main(folder: str, pre_tokenizer: str, *words: str) -> None:
    """Convert a checkpoint as the command line of the converter says."""
    sys.path[:1] = [folder, f"{folder}/gguf-py"]  # in place of the folder of this file
    import convert_hf_to_gguf  # of llama.cpp

    try:
        from conversion.base import TextModel
    except ImportError:  # where it is one file
        from convert_hf_to_gguf import TextModel
    by_hash = TextModel.get_vocab_base_pre

    def get_vocab_base_pre(self: Any, tokenizer: Any) -> str:
        try:
            return str(by_hash(self, tokenizer))
        except NotImplementedError:
            if not pre_tokenizer:
                raise
            return pre_tokenizer

    TextModel.get_vocab_base_pre = get_vocab_base_pre
    sys.argv = [convert_hf_to_gguf.__file__, *words]
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
