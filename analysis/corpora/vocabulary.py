"""Token ids of a corpus against the vocabulary of a model."""

from collections.abc import Iterable
from itertools import takewhile
from typing import TYPE_CHECKING

from analysis.corpora.documents import Document
from analysis.errors import CorpusError

if TYPE_CHECKING:
    from analysis.model import MoEModel


def check_token_ids(corpus: str, largest: int, model: "MoEModel") -> None:
    """Refuse a corpus, whose `largest` token id is given, that was tokenised for another model."""
    vocabulary = model.config.get("vocab_size")
    if isinstance(vocabulary, int) and largest >= vocabulary:
        raise CorpusError(
            f"The corpus {corpus} has the token id {largest}, but {model.name} has "
            f"{vocabulary} tokens; was it tokenised for another model?"
        )


def largest_token_id(documents: Iterable[Document], most: int) -> int:
    """The largest token id of documents until `most` tokens are read; 0 where they are text."""
    read, largest = 0, 0
    for document in takewhile(lambda each: each.input_ids is not None, documents):
        ids = document.input_ids
        if ids is not None and len(ids):
            read, largest = read + len(ids), max(largest, int(max(ids)))
        if read >= most:
            break
    return largest
