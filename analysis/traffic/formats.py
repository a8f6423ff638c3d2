"""The table of formats: how each server's answer becomes routed experts by token.

Field names, shapes and alignment as of vLLM 0.20 to 0.33 (`--enable-return-routed-experts`) and
SGLang 0.5 (`--enable-return-routed-experts`, and `return_routed_experts` in a request).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from analysis.numbers.arrays import IntArray
from analysis.traffic.arrays import Ids, flat_ids, ids_of
from analysis.traffic.layout import Layout

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class RoutedTokens:
    """The experts of the tokens of one answer that a forward read: the prompt's come first.

    A row belongs to the token that the router saw. The last token of an answer has none: no
    forward has read it.
    """

    ids: Ids  # (tokens, planes, top-k)
    num_prompt: int | None  # of these tokens; None: not known
    # Ids of all tokens read, from the first on, of which `ids` has the last; None: not known.
    token_ids: IntArray | None = None
    is_from_first: bool = True  # whether `ids` begins with the first token of the request
    num_surplus: int = 0  # rows left out beyond the tokens of the answer: drafts not accepted


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How one program answers."""

    program: str
    is_of: Callable[[Raw], bool]  # whether an answer is of this program
    read: Callable[[Raw, Layout], Iterator[RoutedTokens]]  # raises a ValueError


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Tokens of a prompt and of its answer, as far as a response says."""

    prompt: int | None
    answer: int | None
    token_ids: IntArray | None = None

    @property
    def read(self) -> int | None:
        """Tokens that a forward read: all but the last of the answer."""
        if self.prompt is None or self.answer is None:
            return None
        return self.prompt + max(self.answer - 1, 0)

    def aligned(self, ids: Ids) -> RoutedTokens:
        """Rows by position; where fewer came than were read, the first ones were not asked for."""
        if self.answer is None:
            if self.prompt is not None and self.prompt > len(ids):
                raise ValueError(
                    f"it has routed experts of {len(ids):,} tokens, and a prompt of {self.prompt:,}"
                )
            return RoutedTokens(ids, self.prompt)
        surplus = max(0, len(ids) - self.read) if self.read is not None else 0
        ids, own = ids[: len(ids) - surplus], max(self.answer - 1, 0)
        if len(ids) < own:
            raise ValueError(
                f"it has routed experts of {len(ids):,} tokens, and an answer of {self.answer:,}"
            )
        known = self.token_ids if self.read is not None else None
        return RoutedTokens(
            ids,
            len(ids) - own,
            None if known is None else known[: self.read],
            is_from_first=self.read in (None, len(ids)),
            num_surplus=surplus,
        )


def _whole(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _tokens(*values: object) -> list[int] | None:
    """The first that is a list of token ids."""
    for value in values:
        if isinstance(value, list) and all(type(token) is int for token in value):
            if any(not -(1 << 63) <= token < 1 << 63 for token in value):
                raise ValueError("it has a token id of more than 64 bits")
            return value
    return None


def _lengths(prompt: list[int] | None, own: list[int] | None, counts: Raw) -> _Lengths:
    both = None
    if prompt is not None and own is not None:
        both = np.array([*prompt, *own], dtype=np.int64)
    return _Lengths(
        _whole(counts.get("prompt_tokens")) if prompt is None else len(prompt),
        _whole(counts.get("completion_tokens")) if own is None else len(own),
        both,
    )


def _object(value: object) -> Raw:
    return value if isinstance(value, dict) else {}


def _choices(raw: Raw) -> list[Raw]:
    choices = raw.get("choices")
    return [_object(choice) for choice in choices] if isinstance(choices, list) else []


def _choice_lengths(raw: Raw, choice: Raw, *, is_only: bool) -> _Lengths:
    usage = dict(_object(raw.get("usage")))
    if not is_only:  # it counts all answers
        usage.pop("completion_tokens", None)
    prompt = _tokens(raw.get("prompt_token_ids"), choice.get("prompt_token_ids"))
    return _lengths(prompt, _tokens(choice.get("token_ids")), usage)


_NONE_HERE: Final = (
    "it has no routed experts; start the server with --enable-return-routed-experts (of SGLang, "
    "with return_routed_experts in each request too)"
)


def _read_vllm(raw: Raw, layout: Layout) -> Iterator[RoutedTokens]:
    """A .npy file of prompt and answer in each choice; before 0.22 lists, the prompt's apart."""
    del layout  # the arrays have their shape
    choices, prompt_rows = _choices(raw), raw.get("prompt_routed_experts")
    for choice in choices:
        rows = choice.get("routed_experts")
        if rows is None and prompt_rows is None:
            raise ValueError(_NONE_HERE)
        lengths = _choice_lengths(raw, choice, is_only=len(choices) == 1)
        ids = ids_of([] if rows is None else rows)
        if prompt_rows is None:
            yield lengths.aligned(ids)
            continue
        prompt = ids_of(prompt_rows)
        if lengths.prompt not in (None, len(prompt)):
            raise ValueError(
                f"it has routed experts of {len(prompt):,} tokens of a prompt of {lengths.prompt:,}"
            )
        parts = [part for part in (prompt, ids) if len(part)]
        if len({part.shape[1:] for part in parts}) > 1:
            raise ValueError("the routed experts of its prompt have another shape than its own")
        both = np.concatenate(parts) if parts else ids
        if lengths.answer is None:
            yield RoutedTokens(both, len(prompt))
        else:
            known = _Lengths(len(prompt), lengths.answer, lengths.token_ids)
            if len(ids) < max(lengths.answer - 1, 0):
                raise ValueError(
                    f"it has routed experts of {len(ids):,} tokens, and an answer of "
                    f"{lengths.answer:,}"
                )
            yield known.aligned(both)


def _extension(raw: Raw) -> Raw:
    """Where SGLang's own server, or its OpenAI-compatible one, has what it adds."""
    return _object(raw.get("meta_info")) or _object(raw.get("sglext"))


def _read_sglang(raw: Raw, layout: Layout) -> Iterator[RoutedTokens]:
    """int32 in base64 of prompt and answer; or of each apart, with their shape."""
    added, choices = _extension(raw), _choices(raw)
    counts = _object(raw.get("meta_info")) or _object(raw.get("usage"))
    if len(choices) > 1:
        raise ValueError("SGLang returns the routed experts of one of its answers; ask for one")
    prompt = _tokens(added.get("input_ids"), raw.get("input_ids"), raw.get("prompt_token_ids"))
    own = _tokens(added.get("output_ids"), raw.get("output_ids"))
    lengths = _lengths(prompt, own, counts)
    if added.get("routed_experts") is not None:
        flat = flat_ids(added["routed_experts"])
        yield lengths.aligned(layout.shaped(flat, lengths.read))
        return
    parts = [added.get(f"{part}_expert_ids") for part in ("input", "output")]
    schema = _object(added.get("expert_ids_schema"))
    planes, top_k = (_whole(schema.get(name)) for name in ("num_layers", "top_k"))
    if all(part is None for part in parts):
        raise ValueError(_NONE_HERE)
    if not planes or not top_k:
        raise ValueError("its expert_ids_schema does not say num_layers and top_k")
    flat = np.concatenate([flat_ids(part) for part in parts if part is not None])
    if flat.size % (planes * top_k):
        raise ValueError(f"its {flat.size:,} ids are no {planes} layers of {top_k} experts")
    shape = (-1, planes, top_k) if flat.size else (0, 0, 0)
    yield lengths.aligned(flat.reshape(shape))


FORMATS: Final = (
    TraceFormat("SGLang", lambda raw: bool(_extension(raw)), _read_sglang),
    TraceFormat("vLLM", lambda raw: bool(_choices(raw)), _read_vllm),
)
_VERSION = re.compile(r"vllm-(\d[\w.]*)")


def answer_in(raw: object) -> Raw:
    """The response in a line: itself, or that of a row of a batch file."""
    response = _object(raw)
    if isinstance(response.get("response"), dict):
        response = response["response"]
    return response["body"] if isinstance(response.get("body"), dict) else response


def format_of(raw: Raw) -> TraceFormat:
    """The format of a response."""
    for row in FORMATS:
        if row.is_of(raw):
            return row
    raise ValueError("it is no answer of vLLM or SGLang; a line holds one response as JSON")


def version_of(raw: Raw) -> str:
    """The version of the program, if the response says it."""
    match = _VERSION.match(str(raw.get("system_fingerprint")))
    return match[1] if match else ""
