"""Greedy generation in batches."""

from collections.abc import Sequence

import torch
from transformers import GenerationConfig, PreTrainedModel

from analysis.calibration.feed import input_device
from analysis.errors import CorpusError


def greedy_answers(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[list[int]]:
    """The model's greedy answer to each prompt, with its end-of-text token if it ends in time.

    Shorter prompts are padded on the left and masked, so answers do not depend on the batch except
    by rounding: if two tokens are almost equally probable, another batch may choose the other.
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
    with torch.no_grad():
        sequences = model.generate(ids, attention_mask=mask, generation_config=settings)
    stops = set(ends if isinstance(ends, list) else [ends])
    answers = []
    for tokens in sequences[:, longest:].tolist():
        end = next((place for place, token in enumerate(tokens) if token in stops), len(tokens))
        answers.append(list(tokens[: end + 1]))  # up to the first end of text, with it
    return answers
