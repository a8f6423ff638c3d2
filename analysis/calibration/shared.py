"""Calibration in several processes, each with some of the layers; batches pass along the line.

The statistics of a layer are summed in the one process that holds it, batch after batch, so they
are those of one process, bit for bit.
"""

import time
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from analysis.calibration.distributed import Sums
from analysis.calibration.experts import collecting
from analysis.calibration.feed import (
    checkpointed,
    feed,
    model_inputs,
    run_backward,
    run_trunk,
    with_graph,
)
from analysis.calibration.heads import Heads
from analysis.calibration.line import AHEAD, Line
from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.memory import TIMES_WITH_BACKWARD
from analysis.calibration.partial import Work, note_model
from analysis.calibration.shares import HIDDEN, LayerWork, Share, load_share
from analysis.calibration.skeleton import EMBEDDINGS, HEAD, OUTPUT
from analysis.corpora.sequences import TokenBatch, TokenSequences
from analysis.model.forwards import input_device
from analysis.model.layer_costs import layer_costs, logits_cost
from analysis.model.moe_model import MoEModel
from analysis.progress import LOADING, Progress

_CHOSEN = "chosen"  # in a message: what the batch's tokens chose in the last layer with experts
_SAVE = "save"  # in a message: all processes save after this batch
_GRADIENT = "gradient"  # in an answer


@dataclass(slots=True)
class _Graph:
    """A batch's activations in these layers, until its backward."""

    entering_BTD: Tensor
    leaving_BTD: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Stage:
    """What this process does with each batch."""

    share: Share
    work: Work
    heads: Heads | None  # where the batch ends
    follows_experts: bool  # whether a layer before these has experts

    def pass_on(self, batch: TokenBatch) -> None:
        """Run a batch through these layers; save if the first process of the line finds it due."""
        line, state, graphs = self.share.line, self.work.state, list[_Graph]()
        due = line.is_first and self.work.is_due()

        def forward(message: Sums) -> Sums:
            nonlocal due
            due = due or _SAVE in message
            save = {_SAVE: torch.ones(1)} if due else {}
            return save | self._forward(batch, message, graphs)

        started = time.monotonic()
        line.pass_on(forward, lambda answer: self._backward(batch, answer, graphs))
        if due:
            line.drain()
        state.done += len(batch.mask)
        state.tokens += int(batch.mask.sum())
        state.seconds += time.monotonic() - started
        if due:
            self.work.save(line)

    def _forward(self, batch: TokenBatch, message: Sums, graphs: list[_Graph]) -> dict[str, Tensor]:
        share, chosen = self.share, self.work.sums.chosen
        if _CHOSEN in message:
            chosen[batch.first] = message[_CHOSEN]
        hidden_BTD = share.entering(batch, message)
        if "gradient" in self.work.sums.groups:
            with with_graph(share.model, batch):
                leaf_BTD = hidden_BTD.detach().requires_grad_(self.follows_experts)
                graphs.append(_Graph(leaf_BTD, share.run(batch, leaf_BTD)))
            hidden_BTD = graphs[0].leaving_BTD.detach()
        else:
            with torch.no_grad():
                hidden_BTD = share.run(batch, hidden_BTD)
        if self.heads:
            with torch.no_grad(), share.after_layers(hidden_BTD):
                last_BTD = run_trunk(share.model, batch)
            self.heads.feed(batch, last_BTD, share.model.get_input_embeddings())
        leaving = {HIDDEN: hidden_BTD.cpu().contiguous()}
        return leaving | ({_CHOSEN: chosen.pop(batch.first)} if batch.first in chosen else {})

    def _backward(self, batch: TokenBatch, answer: Sums, graphs: list[_Graph]) -> Sums:
        """The gradient of what entered these layers, if a layer before them needs it."""
        if not graphs:
            return {}
        share, graph = self.share, graphs.pop()
        with with_graph(share.model, batch):
            if share.line.is_last:
                with share.after_layers(graph.leaving_BTD):
                    inputs = model_inputs(batch, input_device(share.model))
                    output = share.model.base_model(**inputs, use_cache=False)
                run_backward(share.model, batch, output)
            elif _GRADIENT in answer:
                gradient_BTD = answer[_GRADIENT].to(graph.leaving_BTD.device)
                torch.autograd.backward([graph.leaving_BTD], [gradient_BTD])
        entering_BTD = graph.entering_BTD.grad
        return {} if entering_BTD is None else {_GRADIENT: entering_BTD.cpu().contiguous()}


def _layer_work(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings, work: Work
) -> LayerWork:
    """Without heads or gradients, layers after the last one with experts change nothing."""
    groups, costs, tokens = work.sums.groups, layer_costs(model), sequences.num_tokens
    is_trained, has_heads = "gradient" in groups, "heads" in groups
    depth = model.depth if is_trained or has_heads else model.layers[-1].index + 1
    times = TIMES_WITH_BACKWARD if is_trained else 1.0
    running = [times * costs.running(tokens, layer) for layer in range(depth)]
    ends: tuple[int, ...] = ()
    if has_heads:
        running[-1] += costs.running(tokens, model.depth)
        ends = (HEAD, EMBEDDINGS)
    if is_trained:
        running[-1] += logits_cost(model, tokens)
        ends = (*ends, *(part for part in (HEAD, OUTPUT) if part not in ends))
    first = next(sequences.batches(settings.batch_size))
    return LayerWork(running, first, ends, feed)


def run_shares(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings, work: Work
) -> Generator[Progress, None, None]:
    """Add the statistics of all sequences to the sums of `work`, which keep this process's layers.

    Resumes after the last saved batch, also of another number of processes.
    """
    total, state = sequences.num_tokens, work.state
    line = Line(work.processes, 1 if "gradient" in work.sums.groups else AHEAD)
    yield Progress(LOADING, 0, total, "tokens")
    share = load_share(
        model, sequences, settings, line, _layer_work(model, sequences, settings, work)
    )
    note_model(state, share.model, settings)
    note = f"resumed after {state.tokens} of {total} tokens" if state.done else ""
    yield Progress("calibrating", state.tokens, total, "tokens", note)
    with ExitStack() as stack:
        stack.enter_context(line.open())
        heads = None
        if line.is_last and "heads" in work.sums.groups:
            heads = Heads(model, settings, work.sums)
        work.sums.hold({*share.layers, *(work.sums.heads if line.is_last else ())})
        if settings.placement.checkpoint_activations:
            stack.enter_context(checkpointed(share.model, model.family))
        stack.enter_context(collecting(share.model, model, work.sums))
        follows = model.layers[0].index < share.layers.start
        stage = _Stage(share, work, heads, follows)
        # Stopped, processes are at different batches, so nothing is saved: the last state stands.
        for batch in sequences.batches(settings.batch_size, start=state.done):
            stage.pass_on(batch)
            yield Progress("calibrating", state.tokens, total, "tokens")
        line.drain()
