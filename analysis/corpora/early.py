"""What a model and a text rule out, told before torch and the model's tokenizer are imported."""

import os
from pathlib import Path
from typing import Any

from analysis.corpora.sampling import too_short
from analysis.corpora.sources import Source
from analysis.corpora.spec import corpus_name, parse_corpus
from analysis.errors import CheckpointError, CorpusError
from analysis.model import MoEModel

TOKENIZER = "tokenizer.json"
# transformers makes an empty tokenizer if a checkpoint has none of these.
_VOCABULARIES = (TOKENIZER, "*.model", "vocab.*", "*.tiktoken")
# A text of more characters per token of a sequence is not counted: it will do, or take long.
_MOST_CHARACTERS = 16
_FEW_BYTES = 64
_SPECIAL_TOKENS = 4  # at most, that a tokenizer of transformers adds to a document


def check_vocabulary(model: MoEModel, instead: str = "use a corpus of input_ids") -> None:
    """Refuse a checkpoint without a tokenizer; `instead` is what works without one."""
    folder = model.checkpoint.path
    has_one = any(any(folder.glob(pattern)) for pattern in _VOCABULARIES)
    if not has_one or _is_cut(folder / TOKENIZER):
        raise CheckpointError(f"{model.name} has no readable tokenizer; {instead}.")


def _is_cut(file: Path) -> bool:
    """Whether a file that is there is no whole JSON object, by its first and last bytes."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        first = opened.read(_FEW_BYTES).strip()
        opened.seek(-min(_FEW_BYTES, file.stat().st_size), os.SEEK_END)
        last = opened.read().strip()
    return not (first.startswith(b"{") and last.endswith(b"}"))


def check_positions(model: MoEModel, seq_len: int | None) -> None:
    """Refuse sequences that were asked for and are longer than the model's context."""
    most = model.config.get("max_position_embeddings")
    if not seq_len or type(most) is not int or most < 1:
        return
    context = int(most * max(1.0, _factor(model.config)))
    if seq_len > context:
        raise CorpusError(
            f"Sequences of {seq_len:,} tokens are longer than the context of {model.name}; use a "
            f"sequence length of {context} or less."
        )


def _factor(config: Any) -> float:
    """How much a rotary embedding is stretched; configurations may give the context before it."""
    for name in ("rope_scaling", "rope_parameters"):
        factor = section.get("factor") if isinstance(section := config.get(name), dict) else None
        if isinstance(factor, int | float):
            return factor
    return 1.0


def check_reaches(source: Source, corpus: str, seq_len: int, seed: int, folder: Path) -> None:
    """Refuse a file whose text is less than one sequence; `folder` has the model's tokenizer.

    Tokens are counted without transformers, so that special tokens may be missing.
    """
    if parse_corpus(corpus).path is None or source.join is not None:
        return
    texts: list[str] = []
    characters = 0
    for document in source.draw(seed):
        if document.problem is not None:
            continue  # told, or left out, by who reads it
        if document.text is None:
            return
        texts.append(document.text)
        characters += len(document.text)
        will_do = characters > _MOST_CHARACTERS * seq_len
        if will_do or _SPECIAL_TOKENS * len(texts) >= seq_len:
            return
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        count = sum(len(tokenizer.encode(text).ids) for text in texts)
    except Exception:  # noqa: BLE001  (bare ones; what is wrong is said by who loads the tokenizer)
        return
    if count + _SPECIAL_TOKENS * len(texts) < seq_len:
        raise CorpusError(too_short(corpus_name(corpus), f"about {count}", seq_len))
