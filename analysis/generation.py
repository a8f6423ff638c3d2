"""Greedy continuations of prompts by a loaded model, several at once."""

from collections.abc import Sequence

import torch
from transformers import GenerationConfig, PreTrainedModel

from analysis.calibration.feed import input_device
from analysis.errors import CorpusError


def greedy_answers(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[list[int]]:
    """What the model writes behind each prompt, always taking the most probable token.

    Shorter prompts are padded on the left, where no token sees it. So a prompt is answered as it
    would be alone, up to rounding: where two tokens are almost equally probable, another number of
    prompts at once may decide otherwise. The model's own end of text, which is part of the answer,
    ends it before `max_new_tokens`.
    """
    longest = max(map(len, prompts))
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and longest + max_new_tokens > positions:
        raise CorpusError(
            f"A prompt has {longest} tokens; with an answer of {max_new_tokens} they are more than "
            f"the {positions} positions of the model. Ask for shorter answers."
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
        whole = model.generate(ids, attention_mask=mask, generation_config=settings)
    stops = set(ends if isinstance(ends, list) else [ends])
    answers = []
    for written in whole[:, longest:].tolist():
        end = next((place for place, token in enumerate(written) if token in stops), len(written))
        answers.append(list(written[: end + 1]))  # up to the first end of text, with it
    return answers
