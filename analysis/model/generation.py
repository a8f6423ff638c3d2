"""Greedy generation in batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria

from analysis.errors import CorpusError
from analysis.model.forwards import input_device

EndOf = Callable[[list[int]], bool]  # whether these new tokens are an answer that is complete


def greedy_answers(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    is_complete: EndOf | None = None,
) -> list[list[int]]:
    """The model's greedy answer to each prompt, with its end-of-text token if it ends in time.

    Shorter prompts are padded on the left and masked, so answers do not depend on the batch except
    by rounding: if two tokens are almost equally probable, another batch may choose the other.
    `is_complete` ends answers besides.
    """
    longest = max(map(len, prompts))
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and longest + max_new_tokens > positions:
        raise CorpusError(
            f"A prompt of {longest} tokens and an answer of {max_new_tokens} exceed the model's "
            f"{positions} positions; ask for shorter answers."
        )
    ends = model.generation_config.eos_token_id
    settings = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=ends,
        pad_token_id=ends[0] if isinstance(ends, list) else ends,
    )
    device = input_device(model)
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64, device=device)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(list(prompt), device=device)
        mask[row, longest - len(prompt) :] = 1
    criteria = [_Complete(longest, is_complete)] if is_complete else None
    with torch.no_grad():
        sequences = model.generate(
            ids, attention_mask=mask, generation_config=settings, stopping_criteria=criteria
        )
    stops = end_tokens(model)
    answers = []
    for tokens in sequences[:, longest:].tolist():
        end = next((place for place, token in enumerate(tokens) if token in stops), len(tokens))
        answers.append(list(tokens[: end + 1]))  # up to the first end of text, with it
    return answers


def end_tokens(model: PreTrainedModel) -> frozenset[int]:
    """Ids that end a text of this model; empty if it has none."""
    ends = model.generation_config.eos_token_id
    return frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])


@dataclass(frozen=True)
class _Complete(StoppingCriteria):  # type: ignore[misc]
    """Ends the rows whose new tokens are complete."""

    start: int  # place of the first new token
    is_complete: EndOf

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Tensor:
        rows = input_ids[:, self.start :].tolist()
        ended = [self.is_complete(row) for row in rows]
        return torch.tensor(ended, device=input_ids.device)
