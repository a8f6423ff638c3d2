"""What tokenizers do and give: Tokenizer, Tokens, and ChatFormat for conversations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from analysis.numbers.arrays import BoolArray

TokenIds = NDArray[np.int32]
Count = Literal["all", "response"]


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that corpora use."""

    eos_token_id: int | None

    @property
    def special_tokens_map(self) -> Mapping[str, Any]:
        """Special tokens by name, for the chat template."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids, with the special tokens that the model expects."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
        """Token ids, and which of them a character belongs to."""

    def get_chat_template(self, *, tools: Any = None) -> str:
        """The chat template, for conversations with tools if they have one of their own.

        A ValueError if there is none, NotImplementedError if never.
        """

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of these ids."""
        ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Token ids of a conversation, of tokenizers that have no templates."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Token ids of a document."""

    ids: TokenIds  # (tokens,) int32
    counted: BoolArray | None = None  # (tokens,) bool: whether each enters the sums; None: all do

    def part(self, start: int, end: int) -> "Tokens":
        """The tokens from `start` to before `end`."""
        counted = None if self.counted is None else self.counted[start:end]
        return Tokens(self.ids[start:end], counted)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How conversations become tokens."""

    count: Count = "all"  # which tokens enter the sums: all, or those of the "response"
    # Of the chat template, such as {"enable_thinking": False}; plain JSON.
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
