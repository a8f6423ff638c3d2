"""The original model's side of an evaluation: its final hidden states at the scored positions.

Hidden states, not probabilities: of a vocabulary of 152,064 tokens and a width of 2,048 they are
149 times smaller in bfloat16 than probabilities in float32. 64 samples of 4,096 tokens take 1 GiB.

From them to logits the model's own head leads: some models divide the logits, some cap them, some
compute them in float32. So the model's own forward runs, with its trunk replaced by the hidden
states at hand.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from transformers import PreTrainedModel

from analysis.calibration.feed import check_config, input_device, model_inputs
from analysis.calibration.hidden import are_too_large
from analysis.forwards import Forward, Wrapper, wrap_forward
from analysis.progress import Progress
from pruning.evaluate.measures import log_probabilities
from pruning.evaluate.samples import SampleBatch, Samples

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


_NAME = "hidden"


@dataclass(frozen=True, slots=True, eq=False)
class FullSide:
    """What the original model says of the samples."""

    samples: Samples  # the samples
    head: Head  # of the model; the same for every candidate, since pruning leaves it alone
    # Batch number -> (scored positions of the batch, width) final hidden states.
    in_memory: dict[int, Tensor] = field(default_factory=dict)
    # Where they are instead; gone when this object is.
    folder: "TemporaryDirectory[str] | None" = None
    max_bytes: int = 0  # of log-probabilities, which are kept too for those who ask for them often
    # (batch number, first position) -> those that are kept.
    known: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def close(self) -> None:
        """Delete what is on disk."""
        if self.folder is not None:
            self.folder.cleanup()

    def log_probabilities(self, batch: SampleBatch, start: int) -> Tensor:
        """(positions, vocabulary) log p at scored positions from `start` on, as many as a chunk."""
        key = (batch.number, start)
        if key in self.known:
            return self.known[key]
        full_NV = log_probabilities(self.head(self.hidden(batch)[start : start + self.head.rows]))
        if sum(kept.nbytes for kept in self.known.values()) + full_NV.nbytes <= self.max_bytes:
            self.known[key] = full_NV
        return full_NV

    def hidden(self, batch: SampleBatch) -> Tensor:
        """(scored positions, width): of the batch's rows one after the other."""
        if self.folder is None:
            return self.in_memory[batch.number]
        file = Path(self.folder.name) / f"{batch.number}.safetensors"
        held: Tensor = safetensors.torch.load_file(file)[_NAME]
        return held

    def keep(self, batch: SampleBatch, hidden_ND: Tensor) -> None:
        """Put the final hidden states of a batch where `hidden` finds them."""
        if self.folder is None:
            self.in_memory[batch.number] = hidden_ND
            return
        file = Path(self.folder.name) / f"{batch.number}.safetensors"
        safetensors.torch.save_file({_NAME: hidden_ND}, file)


def final_hidden(model: PreTrainedModel, batch: SampleBatch) -> Tensor:
    """(scored positions, width): what the model's trunk gives at the scored positions of a batch.

    They stay on the model's device; rows come one after the other.
    """
    with torch.no_grad():
        inputs = model_inputs(batch.tokens, input_device(model))
        hidden_BTD = model.base_model(**inputs, use_cache=False).last_hidden_state
    hidden_ND: Tensor = hidden_BTD[torch.from_numpy(batch.scored).to(hidden_BTD.device)]
    return hidden_ND


def run_full(
    model: PreTrainedModel, samples: Samples, *, folder: Path | None = None
) -> Generator[Progress, None, FullSide]:
    """Run the original model, not masked, over the samples once; see `full_side`."""
    if samples.sequences.positions is not None:
        check_config(model.config)
    return (yield from full_side(Head(model), samples, partial(final_hidden, model), folder))


def full_side(
    head: Head,
    samples: Samples,
    hidden_of: Callable[[SampleBatch], Tensor],
    folder: Path | None = None,
) -> Generator[Progress, None, FullSide]:
    """Keep the final hidden states of the original model, which `hidden_of` gives of each batch.

    They are kept on disk in `folder`; by default in memory, or in the system's folder for temporary
    files where they would take more than a quarter of the free memory.
    """
    total, done = len(samples), 0
    side = FullSide(samples, head)
    for batch in samples.batches():
        yield Progress("running the original model", done, total, "samples")
        hidden_ND = hidden_of(batch).cpu().contiguous()
        size = int(samples.num_scored.sum()) * hidden_ND.shape[1] * hidden_ND.element_size()
        if not done and (folder or are_too_large(size)):
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
            place = TemporaryDirectory(prefix="moeprune-full-", dir=folder)
            side = FullSide(samples, side.head, folder=place)
        side.keep(batch, hidden_ND)
        done += len(batch.samples)
    yield Progress("running the original model", done, total, "samples")
    return side
