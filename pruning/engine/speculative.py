"""SPEC-DEC: the share of tokens drafted by the pruned model that the original accepts.

Real decoding: speculative sampling (arXiv:2211.17192) by transformers' assisted generation, with
the candidate as draft model. Slow, and meant to validate ESAP, the expectation of the same test on
a given text (arXiv:2603.06003, section 3.4).
"""

import copy
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from analysis.errors import UnsupportedModelError, first_line
from analysis.families.base import MoEFamily
from analysis.families.needs import why_older_than
from analysis.model.forwards import input_device
from analysis.progress import Progress
from pruning.engine.candidate import candidate_of
from pruning.measures.result import SampleSums
from pruning.measures.samples import SampleBatch, Samples
from pruning.plan.plan import PruningPlan

DECODING: Final = "decoding"  # phase


@dataclass(frozen=True, slots=True)
class Decoding:
    """How to decode."""

    new_tokens: int = 32  # at most, after each prompt; at least 2
    draft_tokens: int = 4  # drafted at a time
    seed: int = 42  # of sampling


class CountedDrafts(AssistedCandidateGenerator):  # type: ignore[misc]
    """Counts the drafted tokens that were tested, and those that were accepted.

    Tokens after a rejected one are not tested. The replacement of a rejected token is never the
    token itself, because (p - q)+ is 0 there. So the common prefix is what was accepted.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._drafted: list[int] = []
        self._length = 0
        self.accepted = self.tested = 0

    def get_candidates(self, input_ids: Tensor, **options: Any) -> Any:
        """Draft, and remember the draft."""
        # Without a mask, generation hides tokens that look like padding from the draft model.
        self.assistant_kwargs["attention_mask"] = torch.ones_like(input_ids)
        ids, logits = super().get_candidates(input_ids, **options)
        self._length = input_ids.shape[1]
        self._drafted = ids[0, self._length :].tolist()
        return ids, logits

    def update_candidate_strategy(
        self, input_ids: Tensor, scores: Tensor, num_matches: int
    ) -> None:
        """Compare the decoded text with the draft."""
        super().update_candidate_strategy(input_ids, scores, num_matches)
        decoded = input_ids[0, self._length :].tolist()
        pairs = list(zip(self._drafted, decoded, strict=False))
        agreed = next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
        self.accepted += agreed
        self.tested += min(agreed + 1, len(pairs))


def why_decoding_fails() -> str:
    """Why the installed transformers is too old to decode, without a full stop; empty if not.

    Before 5.16 rejected tokens stay in the draft's cache, before 5.18 in sliding windows.
    """
    return why_older_than("5.18", "Speculative decoding (spec-dec)")


def sharing_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A model object with the same weights, which can be masked without affecting the first."""
    if reason := why_decoding_fails():
        raise UnsupportedModelError(f"{reason}.")
    tensors = list(chain(model.parameters(), model.buffers()))
    if any(tensor.is_meta for tensor in tensors):
        raise UnsupportedModelError(
            "Speculative decoding (spec-dec) needs the whole model in memory; leave it out, or do "
            "without offloading."
        )
    twin: PreTrainedModel = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    return twin


def prompts(batch: SampleBatch) -> Iterator[Tensor]:
    """(1, length) of each sample: the tokens before its answer, or its first half."""
    for row, scored in enumerate(batch.scored):
        length = int(batch.tokens.mask[row].sum())
        first = int(np.argmax(scored))
        end = first + 1 if first else max(1, length // 2)
        yield torch.from_numpy(batch.tokens.input_ids[row, :end].copy())[None]


def accept_batch(
    model: PreTrainedModel, draft: PreTrainedModel, batch: SampleBatch, decoding: Decoding
) -> list[tuple[int, int]]:
    """Accepted and tested tokens of each sample; `draft` is a `sharing_copy`, masked."""
    counts = []
    for number, prompt in zip(batch.samples, prompts(batch), strict=True):
        drafts = _decode(model, draft, prompt, decoding, stream_seed(decoding.seed, number))
        counts.append((drafts.accepted, drafts.tested))
    return counts


def run_acceptance(
    model: PreTrainedModel,
    family: MoEFamily,
    plan: PruningPlan | None,
    samples: Samples,
    decoding: Decoding,
) -> Generator[Progress, None, SampleSums]:
    """Decode a continuation of every sample, drafted by the candidate and tested by the original.

    `model` is the original, unmasked and in memory; without a plan it also drafts. The sums are
    accepted tokens, the counts tested tokens.
    """
    draft = sharing_copy(model)
    counts: list[tuple[int, int]] = []
    with samples.processes.together():
        for batch in samples.batches():
            yield Progress(DECODING, len(counts), len(samples), "samples")
            with candidate_of(draft, family, plan):
                counts += accept_batch(model, draft, batch, decoding)
    yield Progress(DECODING, len(samples), len(samples), "samples")
    sums = samples.gather(dict(zip(("accepted", "tested"), np.array(counts, float).T, strict=True)))
    tested = sums["tested"].astype(np.int64)
    return SampleSums(sums["accepted"], tested, samples.sequences.documents)


def stream_seed(seed: int, sample: int) -> int:
    """The seed of a sample's draws; no two pairs of seed and sample share a stream."""
    return int(np.random.SeedSequence([seed, sample]).generate_state(1, np.uint64)[0])


def _decode(
    model: PreTrainedModel, draft: PreTrainedModel, prompt: Tensor, decoding: Decoding, seed: int
) -> CountedDrafts:
    draft.generation_config.update(
        num_assistant_tokens=decoding.draft_tokens,
        num_assistant_tokens_schedule="constant",
        # The draft must not stop where it is unsure: those are the tokens that get rejected.
        assistant_confidence_threshold=0.0,
    )
    ends = model.generation_config.eos_token_id
    settings = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max(2, decoding.new_tokens),
        eos_token_id=ends,
        pad_token_id=ends[0] if isinstance(ends, list) else ends,
    )
    device = input_device(model)
    ids = prompt.to(device)
    devices = [device] if device.type == "cuda" else []
    with _count_drafts(model) as drafts, torch.random.fork_rng(devices), torch.no_grad():
        torch.manual_seed(seed)
        try:
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=settings,
                assistant_model=draft,
            )
        except (ValueError, NotImplementedError) as error:
            reason = first_line(error)
            raise UnsupportedModelError(
                f"This model cannot decode speculatively (spec-dec): {reason}"
            ) from error
    return drafts[0]


@contextmanager
def _count_drafts(model: PreTrainedModel) -> Iterator[list[CountedDrafts]]:
    """Inside the block, assisted generation of this model uses `CountedDrafts`."""
    drafts: list[CountedDrafts] = []

    def generator(**options: Any) -> CountedDrafts:
        for name in ("target_tokenizer", "assistant_tokenizer"):
            options.pop(name, None)
        drafts.append(CountedDrafts(**options))
        return drafts[-1]

    # transformers has no public way to choose the class.
    model.__dict__["_get_candidate_generator"] = generator
    try:
        yield drafts
    finally:
        del model.__dict__["_get_candidate_generator"]
