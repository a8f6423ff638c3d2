"""Calibration corpora: a name or a file -> documents -> token sequences, seeded and counted."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow.parquet as pq
from jinja2 import TemplateError
from numpy.typing import NDArray

from analysis.demo.texts import TEXTS, demo_texts
from analysis.errors import CorpusError, unknown_name

TokenIds = NDArray[np.int32]
_SUFFIXES = (".txt", ".jsonl", ".parquet")
_TOO_LARGE = 1 << 31
_FIELDS = ("input_ids", "messages", "text", "prompt and response")


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that corpora use."""

    eos_token_id: int | None

    def encode(self, text: str) -> list[int]:
        """Token ids, with the special tokens that the model expects."""
        ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Token ids of a conversation in the model's own format."""
        ...


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus: exactly one of its three forms is present."""

    text: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None
    input_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How much of a corpus is used.

    Args:
        tokens: tokens wanted; the run takes whole sequences, the last that fits included.
        seq_len: tokens in a sequence.
        seed: of the order in which documents are drawn.
    """

    tokens: int
    seq_len: int
    seed: int = 42

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise CorpusError(f"The seed {self.seed} is negative; use a whole number from 0.")
        if self.seq_len < 2:
            raise CorpusError(f"A sequence of {self.seq_len} tokens is too short; use at least 2.")
        if self.tokens < self.seq_len:
            raise CorpusError(
                f"{self.tokens} tokens are less than one sequence of {self.seq_len}; "
                f"ask for at least {self.seq_len} tokens or a shorter sequence length."
            )


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Sequences padded on the right to a common length.

    Args:
        input_ids: (sequences, length) int64; 0 where padded.
        mask: (sequences, length) bool; False where padded.
    """

    input_ids: NDArray[np.int64]
    mask: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TokenSequences:
    """The token sequences of one corpus, as they are fed to the model.

    Args:
        corpus: the name or file that the user gave.
        rows: one int32 array a sequence, without padding.
        num_documents: documents that contributed at least one token.
        num_dropped: tokens read but left out, because they did not fill a last sequence.
    """

    corpus: str
    rows: tuple[TokenIds, ...]
    num_documents: int
    num_dropped: int

    @property
    def num_tokens(self) -> int:
        """Real tokens; padding is not part of a sequence."""
        return sum(len(row) for row in self.rows)

    @property
    def digest(self) -> str:
        """Identity of the ids and of where each sequence ends, as 64 hex digits."""
        sha = hashlib.sha256()
        for row in self.rows:
            sha.update(len(row).to_bytes(8, "little"))
            sha.update(row.astype("<i4").tobytes())
        return sha.hexdigest()

    def batches(self, batch_size: int) -> Iterator[TokenBatch]:
        """Batches in a fixed order; the last may be smaller."""
        for start in range(0, len(self.rows), batch_size):
            yield _pad(self.rows[start : start + batch_size])

    def num_padded(self, batch_size: int) -> int:
        """Padding positions that batches of this size hold."""
        starts = range(0, len(self.rows), batch_size)
        groups = (self.rows[start : start + batch_size] for start in starts)
        return sum(max(map(len, group)) * len(group) - sum(map(len, group)) for group in groups)


def _pad(rows: Sequence[TokenIds]) -> TokenBatch:
    length = max(len(row) for row in rows)
    ids = np.zeros((len(rows), length), dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.bool_)
    for position, row in enumerate(rows):
        ids[position, : len(row)] = row
        mask[position, : len(row)] = True
    return TokenBatch(ids, mask)


def demo_document(prompt: str, response: str) -> Document:
    """A demo text as a document: a conversation where there is an answer, else plain text."""
    if not response:
        return Document(text=prompt)
    user = {"role": "user", "content": prompt}
    return Document(messages=(user, {"role": "assistant", "content": response}))


def _demo_documents(name: str) -> list[Document]:
    return [demo_document(text.prompt, text.response) for text in demo_texts(name)]


def _token_ids(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(
        type(token) is int and 0 <= token < _TOO_LARGE for token in value
    ):
        raise CorpusError(f"{where}: input_ids must be a list of token ids, whole numbers from 0.")
    return tuple(value)


def _messages(value: Any, where: str) -> tuple[Mapping[str, str], ...]:
    if not isinstance(value, list) or not value or not all(isinstance(m, dict) for m in value):
        raise CorpusError(f"{where}: messages must be a list of objects with role and content.")
    return tuple(value)


def _row_document(row: Mapping[str, Any], where: str) -> Document:
    if row.get("input_ids") is not None:
        return Document(input_ids=_token_ids(row["input_ids"], where))
    if row.get("messages") is not None:
        return Document(messages=_messages(row["messages"], where))
    if row.get("text") is not None:
        return Document(text=str(row["text"]))
    if row.get("prompt") is not None and row.get("response") is not None:
        return demo_document(str(row["prompt"]), str(row["response"]))
    raise CorpusError(
        f"{where} has the fields {', '.join(sorted(row)) or 'none'}; a corpus needs one of: "
        f"{'; '.join(_FIELDS)}."
    )


def _text_documents(path: Path) -> Iterator[Document]:
    # Blank lines part documents, as in the common plain-text dumps.
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path.name} is not UTF-8 text (byte {error.start}).") from error
    yield from (Document(text=part) for part in text.split("\n\n") if part.strip())


def _jsonl_documents(path: Path) -> Iterator[Document]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path.name}, line {number}"
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise CorpusError(f"{where} is not JSON: {error}.") from error
            if not isinstance(row, dict):
                raise CorpusError(f"{where} is not a JSON object.")
            yield _row_document(row, where)


def _parquet_documents(path: Path) -> Iterator[Document]:
    try:
        table = pq.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise CorpusError(f"{path.name} is not a readable parquet file: {error}.") from error
    with table:
        rows = (row for batch in table.iter_batches() for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            yield _row_document(row, f"{path.name}, row {number}")


_READERS: Mapping[str, Callable[[Path], Iterator[Document]]] = {
    ".txt": _text_documents,
    ".jsonl": _jsonl_documents,
    ".parquet": _parquet_documents,
}


def corpus_name(corpus: str) -> str:
    """What a corpus is called in manifests and plans: a file's name, never where it lies."""
    return corpus if corpus in TEXTS else Path(corpus).name


def read_documents(corpus: str) -> list[Document]:
    """All documents of a built-in corpus or of a local file, in their own order.

    Raises:
        CorpusError: the name is unknown, or the file is missing, empty or malformed.
    """
    if corpus in TEXTS:
        return _demo_documents(corpus)
    path = Path(corpus).expanduser()
    if path.suffix not in _SUFFIXES:
        raise CorpusError(
            unknown_name("corpus", corpus, TEXTS) + f" A local file ends in {', '.join(_SUFFIXES)}."
        )
    if not path.is_file():
        raise CorpusError(f"The corpus file {corpus} does not exist.")
    documents = list(_READERS[path.suffix](path))
    if not documents:
        raise CorpusError(f"The corpus {corpus} is empty.")
    return documents


def _encode(document: Document, tokenizer: Tokenizer) -> list[int]:
    if document.input_ids is not None:
        return list(document.input_ids)
    if document.messages is not None:
        try:
            encoding = tokenizer.apply_chat_template(
                list(document.messages), tokenize=True, return_dict=True
            )
        except (ValueError, TemplateError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise CorpusError(
                f"The model's tokenizer cannot format a conversation ({reason}); "
                "give a corpus of text or of input_ids."
            ) from error
        return [int(token) for token in encoding["input_ids"]]
    ids = tokenizer.encode(document.text or "")
    if tokenizer.eos_token_id is not None and ids and ids[-1] != tokenizer.eos_token_id:
        ids = [*ids, tokenizer.eos_token_id]
    return ids


def _drawn(documents: Sequence[Document], seed: int) -> Iterator[Document]:
    for index in np.random.default_rng(seed).permutation(len(documents)):
        yield documents[int(index)]


def tokenize(
    documents: Sequence[Document], tokenizer: Tokenizer | None, sampling: Sampling, *, corpus: str
) -> TokenSequences:
    """Token sequences drawn from `documents` in seeded order.

    Text and conversations are joined end to end and cut into sequences of exactly
    `sampling.seq_len` tokens. Rows of token ids are used as they are, one sequence a row; they
    need no tokenizer.

    Raises:
        CorpusError: there is not enough for one sequence.
    """
    ready = {document.input_ids is not None for document in documents}
    if len(ready) > 1:
        raise CorpusError(f"The corpus {corpus} mixes token ids with text; give one kind.")
    if True in ready:
        return _ready_rows(documents, sampling, corpus)
    if tokenizer is None:
        raise CorpusError(f"The corpus {corpus} is text, which needs a tokenizer.")
    wanted = sampling.tokens // sampling.seq_len * sampling.seq_len
    stream: list[int] = []
    used = 0
    for document in _drawn(documents, sampling.seed):
        if len(stream) >= wanted:
            break
        stream.extend(_encode(document, tokenizer))
        used += 1
    length = min(wanted, len(stream) // sampling.seq_len * sampling.seq_len)
    if length == 0:
        raise CorpusError(
            f"The corpus {corpus} has {len(stream)} tokens, less than one sequence of "
            f"{sampling.seq_len}; give a longer corpus or a shorter sequence length."
        )
    rows = np.asarray(stream[:length], dtype=np.int32).reshape(-1, sampling.seq_len)
    return TokenSequences(corpus, tuple(rows), used, len(stream) - length)


def _ready_rows(documents: Sequence[Document], sampling: Sampling, corpus: str) -> TokenSequences:
    rows: list[TokenIds] = []
    total = dropped = 0
    for document in _drawn(documents, sampling.seed):
        ids = document.input_ids or ()
        row = np.asarray(ids[: sampling.seq_len], dtype=np.int32)
        if total + len(row) > sampling.tokens:
            break
        dropped += len(ids) - len(row)
        if len(row):
            rows.append(row)
            total += len(row)
    if not rows:
        raise CorpusError(f"The corpus {corpus} holds no token.")
    return TokenSequences(corpus, tuple(rows), len(rows), dropped)
