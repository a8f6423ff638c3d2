"""A stand-in for llama.cpp's converter: its file holds what it was told."""

from pruning.serving.commands import CONVERTER

# As llama.cpp's: a class that names pre-tokenizers or raises, and `main`, which reads sys.argv.
STAND_IN = """
import sys
class TextModel:
    def get_vocab_base_pre(self, tokenizer):
        raise NotImplementedError("not recognized")
def main():
    words = sys.argv[1:]
    if "f16" in words:
        raise SystemExit("no room for f16")
    name = TextModel().get_vocab_base_pre(None)
    with open(words[words.index("--outfile") + 1], "w") as file:
        file.write(" ".join([name, *words[-2:]]))
"""


def write_converter(folder):
    """A new folder as that of llama.cpp's source; returned."""
    folder.mkdir()
    (folder / CONVERTER).write_text(STAND_IN)
    return folder
