"""Candidates of a model whose layers several processes hold; batches pass along the line.

Every process makes the same calls. Each keeps the inputs of its own layers, so a candidate that
first differs in a later share passes it by. The last process of the line measures, and what it
measures comes back as the answer to the batch: so all of them decide alike.
"""

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from analysis.calibration.distributed import Sums, join
from analysis.calibration.feed import check_config
from analysis.calibration.line import Line
from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.shares import HIDDEN, LayerWork, Share, load_share
from analysis.calibration.skeleton import HEAD, OUTPUT
from analysis.corpora.sequences import TokenSequences
from analysis.drain import drain
from analysis.families.base import MoEFamily
from analysis.model.forwards import Forward, other_forwards
from analysis.model.moe_model import MoEModel
from analysis.progress import LOADING, RUNNING_ORIGINAL, Progress, changed
from pruning.engine.candidate import MeasureSettings, candidate_of, measure_hidden
from pruning.engine.full_side import FullSide, final_hidden, full_side
from pruning.engine.shared import SharedCandidates
from pruning.measures.samples import SampleBatch, Samples, make_samples
from pruning.plan.plan import PruningPlan
from pruning.plan.units import Removed
from pruning.search.kept_states import KeptStates, TrunkRun, free_share
from pruning.search.runs import Measurement, with_counts

_AT: Final = "at"  # in a message: digest of the candidate, its first layer and its tokens


def load_search_share(
    model: MoEModel, sequences: TokenSequences, running: CalibrationSettings, costs: Sequence[float]
) -> Generator[Progress, None, Share]:
    """Load this process's share of the layers, in all processes together.

    `costs` are those of each layer over all runs, the last with the head.
    """
    yield Progress(LOADING, 0, 0)
    first = next(make_samples(sequences, running.batch_size).batches()).tokens
    work = LayerWork(costs, first, (HEAD, OUTPUT))
    return load_share(model, sequences, running, Line(join()), work)


@dataclass(frozen=True, eq=False)
class SharedSubject:
    """A model of which each process holds a share, with its samples."""

    share: Share
    family: MoEFamily
    sparse: tuple[int, ...]  # decoder indices of the layers with experts
    samples: Samples
    full: FullSide | None  # the original model's side, in the last process of the line
    room: int  # bytes for hidden states of all layers, the same in all processes
    plan_of: Callable[[Removed], PruningPlan]  # removed per layer -> plan


def shared_subject(
    model: MoEModel, share: Share, samples: Samples, plan_of: Callable[[Removed], PruningPlan]
) -> Generator[Progress, None, SharedSubject]:
    """Run the original model over the samples, in all processes together."""
    line, full = share.line, None
    with line.open():
        original = SharedCandidates(share, model.family, [(samples, None)])
        if samples.sequences.positions is not None:
            check_config(share.model.config)
        if line.is_last:
            hidden_of = partial(original.hidden, samples, None)
            full = yield from full_side(original.head, samples, hidden_of)
            full = replace(full, max_bytes=free_share(share.skeleton.device))
        else:
            running = original.follow()
            yield from changed(running, lambda step: replace(step, phase=RUNNING_ORIGINAL))
    sparse = tuple(layer.index for layer in model.layers)
    room = _common_room(share, sparse)
    return SharedSubject(share, model.family, sparse, samples, full, room, plan_of)


def _common_room(share: Share, sparse: Sequence[int]) -> int:
    """Bytes for the hidden states of all layers, of which each process has room for its own."""
    processes = share.line.processes
    with processes.together():
        own = sum(index in share.layers for index in sparse)
        room = free_share(share.skeleton.device) * len(sparse) // max(1, own)
    rooms = processes.gather({"room": torch.tensor([room])})
    return int(processes.share(min((int(part["room"].item()) for part in rooms), default=0)))


class SharedRuns:
    """Runs candidates batch by batch, each from where it first differs from one that is kept.

    As `MaskedRuns`, also for `max_bytes` and `fewest_changes`.
    """

    def __init__(
        self,
        subject: SharedSubject,
        settings: MeasureSettings,
        max_bytes: int | None = None,
        fewest_changes: int = 1,
    ) -> None:
        self.subject = subject
        self._settings = settings
        self._share, self._full = subject.share, subject.full
        self.batches = tuple(subject.samples.batches())
        self.num_batches, self.num_layers = len(self.batches), len(self._share.skeleton.layers)
        line = self._share.line
        self.ahead = line.ahead * (line.processes.world - 1)
        self._sparse = subject.sparse[: len(subject.sparse) + 1 - fewest_changes]
        room = subject.room if max_bytes is None else max_bytes
        self._kept = KeptStates(self._sparse, room, self._share.model.dtype.itemsize)
        self._measured: dict[tuple[Removed, int], Measurement] = {}
        self._plan: tuple[Removed, PruningPlan] | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Candidates run inside; an error there reaches all processes."""
        with self._share.line.open():
            yield
            self._share.line.drain()

    def prepare(self, _candidates: Sequence[Removed]) -> Generator[Progress, None, None]:
        """Nothing: each candidate is measured by itself."""
        yield from ()

    def begin(self, removed: Removed, number: int) -> None:
        """Run these layers for a candidate on a batch; what is measured comes later."""
        self._pass(removed, number)

    def run(self, removed: Removed, number: int) -> Measurement:
        """What was measured of a candidate that has begun."""
        while (removed, number) not in self._measured:
            self._share.line.answer()
        return self._measured.pop((removed, number))

    def run_base(self, base: Removed, number: int) -> int:
        """Run and hold what several candidates start from; the layers that ran."""
        layers = self._pass(base, number, is_measured=False)
        self.hold([base])
        return layers

    def hold(self, candidates: Sequence[Removed]) -> None:
        """Keep the hidden states of these, the first ones first, within the room."""
        self._kept.hold(candidates)

    def forget(self) -> None:
        """Keep nothing: later runs share nothing with earlier ones."""
        self._kept.forget()
        if self._full:
            self._full.cache.clear()

    def _pass(self, removed: Removed, number: int, *, is_measured: bool = True) -> int:
        """Pass a batch on; the layers that run for it in all processes."""
        batch, plan = self.batches[number], self._own_plan(removed)
        first, entry_BTD = self._kept.entry(removed, number)
        layers, at = self.num_layers - first, _digest(removed, first, batch)
        sums: list[Sums] = []

        def forward(message: Sums) -> Sums:
            if _AT in message and not torch.equal(message[_AT], at):
                raise AssertionError(f"another candidate or other tokens came, not batch {number}")
            done, leaving = self._through(plan, batch, (first, entry_BTD), message)
            self._kept.keep(removed, number, done)
            if is_measured and self._full:
                measuring = measure_hidden(self._full, batch, done.hidden_ND, self._settings)
                measured = drain(measuring)
                sums.append({name: torch.from_numpy(sum_) for name, sum_ in measured.items()})
            return {_AT: at, **leaving}

        def backward(answer: Sums) -> Sums:
            if not is_measured:
                return {}
            answer = sums[0] if sums else answer
            arrays = {name: sum_.numpy() for name, sum_ in answer.items()}
            self._measured[removed, number] = with_counts(arrays, batch), layers
            return answer

        self._share.line.pass_on(forward, backward)
        return layers

    def _through(
        self,
        plan: PruningPlan,
        batch: SampleBatch,
        entry: tuple[int, Tensor | None],
        message: Sums,
    ) -> tuple[TrunkRun, Sums]:
        """The run in these layers, and what the next process gets of it."""
        share, (first, entry_BTD) = self._share, entry
        own = range(max(first, share.layers.start), share.layers.stop)
        inputs = self._shapes(batch, first)
        if not own:
            return TrunkRun(torch.empty(0), inputs, self.num_layers - first, is_chain=True), {}
        if entry_BTD is None or first < own.start:
            entry_BTD = share.entering(batch.tokens, message)
        with (
            torch.no_grad(),
            candidate_of(share.model, self.subject.family, plan),
            self._noting_inputs(own, inputs),
        ):
            leaving_BTD = share.relay.span(own, batch.tokens, entry_BTD)
        run = TrunkRun(leaving_BTD, inputs, self.num_layers - first, is_chain=True)
        if not share.line.is_last:
            return run, {HIDDEN: leaving_BTD.cpu().contiguous()}
        with share.after_layers(leaving_BTD):
            return replace(run, hidden_ND=final_hidden(share.model, batch)), {}

    def _shapes(self, batch: SampleBatch, first: int) -> dict[int, Tensor]:
        """A tensor without values for the input of each layer that runs in any process."""
        shape = (*batch.scored.shape, *self._share.shape)
        return {
            index: torch.empty(shape, dtype=self._share.model.dtype, device="meta")
            for index in self._sparse
            if index >= first
        }

    @contextmanager
    def _noting_inputs(self, own: range, inputs: dict[int, Tensor]) -> Iterator[None]:
        """Inside, the inputs of these layers are noted as they enter."""

        def noting(index: int, inner: Forward) -> Forward:
            def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
                # A copy, as a layer may write into its input.
                inputs[index] = hidden_states.detach().clone()
                return inner(hidden_states, *args, **kwargs)

            return forward

        noted = [index for index in own if index in inputs]
        layers = [self._share.skeleton.layers[index] for index in noted]
        forwards = [
            noting(index, layer.forward) for index, layer in zip(noted, layers, strict=True)
        ]
        with other_forwards(layers, forwards):
            yield

    def _own_plan(self, removed: Removed) -> PruningPlan:
        """What a candidate does to the layers of this share."""
        if self._plan is None or self._plan[0] != removed:
            self._plan = (removed, self.subject.plan_of(removed).of_layers(self._share.layers))
        return self._plan[1]


def _digest(removed: Removed, first: int, batch: SampleBatch) -> Tensor:
    sha = hashlib.sha256(repr((removed, first)).encode())
    sha.update(batch.tokens.input_ids.tobytes())
    return torch.tensor(list(sha.digest()), dtype=torch.uint8)
