"""Tokenises only as much of a long text as gives the tokens that can be used.

A tokenizer takes up to 180 times the size of a text in memory, and a document may have 64 MiB.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from analysis.errors import CorpusError

# Texts of at most so many characters, in all or per usable token, are tokenised whole.
_SHORT = 1 << 16
_SHORT_PER_TOKEN = 32
_FIRST_PER_TOKEN = 8  # characters of the first parts per usable token
# No part of a text that is to be cut is longer, in all or per usable token.
_LONGEST = 1 << 22
_LONGEST_PER_TOKEN = 32
# Where a part ends, its last tokens differ from those of the whole text.
_MARGIN = 64
# A unigram model chooses among equally likely segmentations of a periodic text by its length modulo
# that of a piece (by default of at most 16 characters), so neighbouring lengths must agree too. Of
# 1,000 random vocabularies, one length was wrong for 87, four for 10, sixteen for none.
_NEIGHBOURS = 16


@dataclass(frozen=True, slots=True)
class Extent:
    """How many tokens of a document can be used, and at which end."""

    most: int
    from_end: bool = False


WHOLE: Extent | None = None  # all tokens are used, so a document must be read whole


class TokenizedPart(NamedTuple):
    """The part of a text that was tokenised; its ids are those of the whole text."""

    text: str
    ids: Sequence[int]  # the first (from the end: the last) ones of the whole text
    is_whole: bool


def tokenize_part(
    text: str, ids_of: Callable[[str], Sequence[int]], extent: Extent | None, name: str
) -> TokenizedPart:
    """The usable tokens of a text, exactly as in the whole text; `name` begins an error.

    Parts of several lengths must agree on them, by a margin. The length doubles until they do.
    """
    if extent is None:
        check_length(len(text), name)
        return TokenizedPart(text, ids_of(text), is_whole=True)
    most, longest = extent.most, max(_LONGEST, _LONGEST_PER_TOKEN * extent.most)
    size = _FIRST_PER_TOKEN * (most + _MARGIN)
    while len(text) > max(_SHORT, _SHORT_PER_TOKEN * most) and 2 * size < min(len(text), longest):
        part = _part(text, size, extent)
        if ids := _agreeing_ids(text, size, ids_of, extent):
            return TokenizedPart(part, ids, is_whole=False)
        size *= 2
    if len(text) > longest:
        end = "last" if extent.from_end else "first"
        raise CorpusError(
            f"{name} has {len(text):,} characters, and its {end} {most:,} tokens depend on more "
            f"than {longest:,} of them; split it."
        )
    return TokenizedPart(text, ids_of(text), is_whole=True)


def check_length(characters: int, name: str) -> None:
    """Refuse a text that cannot be cut and is too long to be tokenised whole."""
    if characters > _LONGEST:
        raise CorpusError(
            f"{name} has {characters:,} characters, and must be tokenised whole, which is done up "
            f"to {_LONGEST:,}; split it."
        )


def _part(text: str, length: int, extent: Extent) -> str:
    return text[-length:] if extent.from_end else text[:length]


def _agreeing_ids(
    text: str, size: int, ids_of: Callable[[str], Sequence[int]], extent: Extent
) -> Sequence[int]:
    """The ids that parts of about `size` characters and of twice as many agree on; none if few."""
    order = -1 if extent.from_end else 1
    ids = ids_of(_part(text, size, extent))[::order]
    for length in (2 * size, *range(size + 1, size + _NEIGHBOURS)):
        if len(ids) < extent.most + _MARGIN:
            return ()
        others = ids_of(_part(text, length, extent))[::order]
        pairs = enumerate(zip(ids, others, strict=False))
        ids = ids[: next((place for place, (one, other) in pairs if one != other), len(others))]
    num_agreed = len(ids) - _MARGIN
    return ids[:num_agreed][::order] if num_agreed >= extent.most else ()
