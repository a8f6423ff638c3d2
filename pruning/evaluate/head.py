"""From final hidden states to logits, by the model's own head.

What lies between the two differs: some models divide the logits, some cap them, some compute them
in float32. So the model's own forward runs, with its trunk replaced by the hidden states at hand.
"""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from analysis.calibration.feed import input_device
from analysis.forwards import Forward, Wrapper, wrap_forward

# Logits of so many bytes, in float32, are made at a time; about eight tensors of that size live.
CHUNK_BYTES = 64 << 20


class Head:
    """The part of a loaded model behind its trunk; one token is run through it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._token = torch.zeros((1, 1), dtype=torch.int64, device=input_device(model))
        kept: list[Any] = []

        def recording(inner: Forward) -> Forward:
            def forward(*args: Any, **kwargs: Any) -> Any:
                kept.append(inner(*args, **kwargs))
                return kept[-1]

            return forward

        # Classes of outputs differ, and what a forward reads of them; so one is kept as a form.
        self.vocabulary = int(self._run(recording).shape[-1])
        self._form = kept[0]

    def _run(self, trunk: Wrapper) -> Tensor:
        with ExitStack() as restore, torch.no_grad():
            wrap_forward(self._model.base_model, trunk, restore)
            logits: Tensor = self._model(input_ids=self._token, use_cache=False).logits
        return logits

    def __call__(self, hidden_ND: Tensor) -> Tensor:
        """(positions, vocabulary): what the model makes of these final hidden states."""
        place = self._form.last_hidden_state
        output = replace(self._form, last_hidden_state=hidden_ND.to(place.device)[None])
        return self._run(lambda _inner: lambda *_args, **_kwargs: output)[0]

    @property
    def rows(self) -> int:
        """Positions whose logits are made at a time."""
        return max(1, CHUNK_BYTES // (4 * self.vocabulary))
