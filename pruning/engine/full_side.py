"""The original model's side of an evaluation: its final hidden states at the scored positions.

Hidden states instead of probabilities: with a vocabulary of 152,064 tokens and a width of 2,048
they are 149 times smaller in bfloat16 than probabilities in float32. 64 samples of 4,096 tokens
take 1 GiB.

The model's own forward turns them into logits, with its trunk replaced by the stored hidden states,
because some models divide the logits, cap them, or compute them in float32.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from transformers import PreTrainedModel

from analysis.calibration.feed import check_config, one_dtype, run_head, run_trunk
from analysis.calibration.hidden import are_too_large
from analysis.model.forwards import Wrapper, instead, listening
from analysis.progress import RUNNING_ORIGINAL, Progress
from pruning.measures.positions import log_probabilities, rows_of
from pruning.measures.samples import SampleBatch, Samples


class OutputHead:
    """The part of a loaded model behind its trunk."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        kept: list[Any] = []
        # Output classes differ, and so do their uses in forwards, so one output serves as template.
        self.vocabulary = int(self._run(listening(kept.append)).shape[-1])
        self._form = kept[0]

    def _run(self, trunk: Wrapper) -> Tensor:
        with torch.no_grad(), one_dtype(self._model):
            return run_head(self._model, trunk)

    def __call__(self, hidden_ND: Tensor) -> Tensor:
        """(positions, vocabulary) logits of these final hidden states."""
        place = self._form.last_hidden_state
        output = replace(self._form, last_hidden_state=hidden_ND.to(place.device)[None])
        return self._run(instead(output))[0]

    @property
    def rows(self) -> int:
        """Positions per chunk of logits."""
        return rows_of(self.vocabulary)


_NAME = "hidden"


@dataclass(frozen=True, slots=True, eq=False)
class FullSide:
    """The original model's final hidden states on the samples."""

    samples: Samples
    head: OutputHead  # the same for every candidate, since pruning does not change it
    # Batch number -> (scored positions of the batch, width) final hidden states.
    in_memory: dict[int, Tensor] = field(default_factory=dict)
    folder: "TemporaryDirectory[str] | None" = None  # holds them instead of memory
    max_bytes: int = 0  # of log-probabilities to cache
    # (batch number, first position) -> cached log-probabilities.
    cache: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def close(self) -> None:
        """Delete what is on disk."""
        if self.folder is not None:
            self.folder.cleanup()

    def log_probabilities(self, batch: SampleBatch, start: int) -> Tensor:
        """(positions, vocabulary) log p of a chunk of scored positions from `start` on."""
        key = (batch.number, start)
        if key in self.cache:
            return self.cache[key]
        full_NV = log_probabilities(self.head(self.hidden(batch)[start : start + self.head.rows]))
        if sum(kept.nbytes for kept in self.cache.values()) + full_NV.nbytes <= self.max_bytes:
            self.cache[key] = full_NV
        return full_NV

    def hidden(self, batch: SampleBatch) -> Tensor:
        """(scored positions, width) final hidden states, row after row."""
        if self.folder is None:
            return self.in_memory[batch.number]
        file = Path(self.folder.name) / f"{batch.number}.safetensors"
        # Not by its name, which for safetensors must be UTF-8.
        hidden_ND: Tensor = safetensors.torch.load(file.read_bytes())[_NAME]
        return hidden_ND

    def keep(self, batch: SampleBatch, hidden_ND: Tensor) -> None:
        """Store the final hidden states of a batch."""
        if self.folder is None:
            self.in_memory[batch.number] = hidden_ND
            return
        file = Path(self.folder.name) / f"{batch.number}.safetensors"
        file.write_bytes(safetensors.torch.save({_NAME: hidden_ND}))


def final_hidden(model: PreTrainedModel, batch: SampleBatch) -> Tensor:
    """(scored positions, width) output of the model's trunk, row after row, on its device."""
    with torch.no_grad():
        hidden_BTD = run_trunk(model, batch.tokens)
    hidden_ND: Tensor = hidden_BTD[torch.from_numpy(batch.scored).to(hidden_BTD.device)]
    return hidden_ND


def run_full(
    model: PreTrainedModel, samples: Samples, *, folder: Path | None = None
) -> Generator[Progress, None, FullSide]:
    """Run the original model, unmasked, over the samples once; see `full_side`."""
    if samples.sequences.positions is not None:
        check_config(model.config)
    return (yield from full_side(OutputHead(model), samples, partial(final_hidden, model), folder))


def full_side(
    head: OutputHead,
    samples: Samples,
    hidden_of: Callable[[SampleBatch], Tensor],
    folder: Path | None = None,
) -> Generator[Progress, None, FullSide]:
    """Store the original model's final hidden states, `hidden_of` each batch.

    They go to `folder`; by default to memory, or to the system's temporary folder if they would
    take more than a quarter of the free memory.
    """
    total, done = len(samples), 0
    side = FullSide(samples, head)
    for batch in samples.batches():
        yield Progress(RUNNING_ORIGINAL, done, total, "samples")
        hidden_ND = hidden_of(batch).cpu().contiguous()
        size = int(samples.num_scored.sum()) * hidden_ND.shape[1] * hidden_ND.element_size()
        if not done and (folder or are_too_large(size)):
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
            place = TemporaryDirectory(prefix="moeprune-full-", dir=folder)
            side = FullSide(samples, side.head, folder=place)
        side.keep(batch, hidden_ND)
        done += len(batch.samples)
    yield Progress(RUNNING_ORIGINAL, done, total, "samples")
    return side
