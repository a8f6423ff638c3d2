"""What a model and a text rule out, told before torch and the model's tokenizer are imported."""

import os
from collections.abc import Collection
from pathlib import Path

from analysis.checkpoint.companions import TOKENIZER, missing_vocabulary, tokenizer_code
from analysis.corpora.sampling import too_short
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.sources import Source
from analysis.corpora.spec import corpus_name, parse_corpus
from analysis.errors import CheckpointError, CorpusError, UnsupportedModelError
from analysis.files.json_text import object_of
from analysis.model.loadable import DEQUANTISED, unloadable
from analysis.model.moe_model import MoEModel

# Of a model whose layers do not run alone.
NOT_STREAMED = "cannot be streamed layer by layer"
SPREAD_INSTEAD = "Use --device-map auto with --offload-folder instead"
# transformers makes an empty tokenizer if a checkpoint has none of these.
_VOCABULARIES = (TOKENIZER, "*.model", "vocab.*", "*.tiktoken")
# A text of more characters per token of a sequence is not counted: it will do, or take long.
_MOST_CHARACTERS = 16
_FEW_BYTES = 64
_SPECIAL_TOKENS = 4  # at most, that a tokenizer of transformers adds to a document


def check_quantisation(model: MoEModel) -> None:
    """Refuse a checkpoint of quantised weights that cannot be loaded."""
    if model.quantisation and model.quantisation not in DEQUANTISED:
        raise UnsupportedModelError(
            f"{model.name} cannot be run, as {unloadable(model)}; {' and '.join(DEQUANTISED)} can. "
            "Use the checkpoint in full precision."
        )


def check_streamable(model: MoEModel) -> None:
    """Refuse a model whose layers do not run alone."""
    if model.inseparable:
        raise UnsupportedModelError(
            f"{model.family.label} {NOT_STREAMED}: {model.inseparable}. {SPREAD_INSTEAD}."
        )


def check_vocabulary(
    model: MoEModel, instead: str = "use a corpus of input_ids", *, trusted: bool = False
) -> None:
    """Refuse a checkpoint without a tokenizer; `instead` is what works without one, if anything.

    A tokenizer that is code needs its files, and to be `trusted`.
    """
    folder = model.checkpoint.path
    if code := tokenizer_code(folder):
        _check_code(model, code, instead, trusted=trusted)
        return
    if not has_vocabulary(folder):
        raise CheckpointError(without_tokenizer(model, instead))


def without_tokenizer(model: MoEModel, instead: str) -> str:
    """Message for a checkpoint whose tokenizer cannot be read: what to copy, or do `instead`."""
    folder = model.checkpoint.path
    name = object_of(folder / "config.json").get("_name_or_path")
    origin = name if isinstance(name, str) and name else "the model that it was made from"
    return (
        f"{model.name} has no readable tokenizer; copy {TOKENIZER} and tokenizer_config.json from "
        f"{origin} to {folder}{_or(instead)}."
    )


def _or(instead: str) -> str:
    return f", or {instead}" if instead else ""


def has_vocabulary(folder: Path) -> bool:
    """Whether a checkpoint has the files of a tokenizer, and `tokenizer.json` is whole."""
    has_one = any(any(folder.glob(pattern)) for pattern in _VOCABULARIES)
    return has_one and not _is_cut(folder / TOKENIZER)


def _check_code(model: MoEModel, code: Collection[str], instead: str, *, trusted: bool) -> None:
    folder, what = model.checkpoint.path, f"the tokenizer of {model.name} is code"
    absent = [file for file in code if not (folder / file).is_file()] or missing_vocabulary(folder)
    # Without its code transformers may read the same files in another way, and split otherwise.
    if absent and not (folder / TOKENIZER).is_file():
        raise CheckpointError(
            f"{what[0].upper()}{what[1:]}, and {absent[0]} is missing from {folder}; fetch it"
            f"{_or(instead)}."
        )
    if not trusted and not (folder / TOKENIZER).is_file():
        raise CheckpointError(
            f"{what[0].upper()}{what[1:]} ({', '.join(code)}); read it, then run it with "
            f"--trust-remote-code{_or(instead)}."
        )


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
    context = context_of(model)
    if seq_len and context and seq_len > context:
        raise CorpusError(
            f"Sequences of {seq_len:,} tokens are longer than the context of {model.name}; use a "
            f"sequence length of {context} or less."
        )


def within_context(model: MoEModel, seq_len: int, asked: int | None) -> int:
    """A sequence length: as `asked` for, else the usual one, at most the model's context."""
    context = context_of(model)
    return asked or (min(seq_len, context) if context else seq_len)


def shorter_note(model: MoEModel, seq_len: int, usual: int) -> str:
    """A line on sequences that are shorter than usual; empty if they are not."""
    if seq_len >= usual:
        return ""
    return f"sequences of {seq_len} tokens instead of {usual}: {model.name} was made for no more"


def check_context(model: MoEModel, sequences: TokenSequences) -> None:
    """Refuse sequences in which a token is beyond the model's context, at an untrained position.

    Documents that are packed count from 0 each.
    """
    context = context_of(model)
    if not context:
        return
    lengths = [len(row) for row in sequences.rows]
    if sequences.positions is not None:
        lengths = [int(places.max(initial=-1)) + 1 for places in sequences.positions]
    longer = [length for length in lengths if length > context]
    if longer:
        raise CorpusError(
            f"{len(longer)} of {len(sequences.rows)} sequences of the corpus {sequences.corpus} "
            f"are longer than the context of {model.name}, {context} tokens; the longest has "
            f"{max(longer):,}. Use --seq-len {context} or less, which cuts longer documents (with "
            "--truncate drop they are left out)."
        )


def context_of(model: MoEModel) -> int | None:
    """Positions that the model was made for, stretched ones included; None if it does not say."""
    most = model.config.get("max_position_embeddings")
    if type(most) is not int or most < 1:
        return None
    for name in ("rope_scaling", "rope_parameters"):
        section = model.config.get(name)
        if not isinstance(section, dict):
            continue
        factor = section.get("factor")
        if isinstance(factor, int | float) and factor > 1:
            # Stated beside it, the original context says that the other one is stretched already.
            original = section.get("original_max_position_embeddings")
            start = original if isinstance(original, int) and original > 0 else most
            return max(most, int(start * factor))
    return most


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
    if not texts:
        return
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        count = sum(len(tokenizer.encode(text).ids) for text in texts)
    except Exception:  # noqa: BLE001  (bare ones; what is wrong is said by who loads the tokenizer)
        return
    if count + _SPECIAL_TOKENS * len(texts) < seq_len:
        raise CorpusError(too_short(corpus_name(corpus), f"about {count}", seq_len))
