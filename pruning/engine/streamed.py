"""Evaluation layer by layer, for models larger than memory: all plans in one pass over the weights.

Plans that equal each other or the original model in all layers so far share their hidden states;
they branch where they first differ.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, Final

import torch
from filelock import FileLock, Timeout
from torch import Tensor
from transformers import PreTrainedModel

from analysis.calibration.blocks import (
    RunSizes,
    blocks_note,
    blocks_of,
    check_block,
    experts_that_fit,
    layers_in_blocks,
)
from analysis.calibration.distributed import Processes
from analysis.calibration.feed import run_trunk
from analysis.calibration.free import give_back_memory
from analysis.calibration.hidden import ForwardStates, HiddenStates
from analysis.calibration.loading import DTYPES, CalibrationSettings, resolve_dtype
from analysis.calibration.memory import routed_bytes
from analysis.calibration.relay import Relay
from analysis.calibration.skeleton import EMBEDDINGS, HEAD, OUTPUT, Skeleton
from analysis.calibration.streamed import hidden_bytes, is_on_disk
from analysis.corpora.sequences import TokenBatch
from analysis.errors import CheckpointError, StatsError
from analysis.files.durable import PARTIAL, make_folder, write_durably
from analysis.files.home import from_home
from analysis.files.json_text import parse_json
from analysis.model.layer_costs import LayerCosts, layer_costs
from analysis.model.moe_model import MoEModel
from analysis.progress import Progress, Tally, added, cost
from pruning.engine.candidate import candidate_of
from pruning.engine.changed_weights import ChangedWeights
from pruning.engine.full_side import OutputHead, final_hidden
from pruning.engine.paused import PausedPlans, check_products
from pruning.measures.samples import SampleBatch, Samples
from pruning.plan.plan import PruningPlan

_STATE: Final = "state.json"  # in the folder of an unfinished pass: how many layers are done
_PLANS: Final = "plans.json"  # there too: digests of its plans
_SAVE_EVERY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Branch:
    """Plans whose hidden states are equal so far."""

    slot: int  # where these are stored
    plans: tuple[int, ...]  # numbers

    def named(self, batch: int) -> str:
        """The name of the forward of a batch."""
        return f"{self.slot}-{batch}"


def split(branches: Sequence[Branch], cuts: Sequence[object]) -> list[tuple[Branch, Branch]]:
    """Each branch after a layer, with its parent.

    `cuts` has an entry per plan, equal if plans keep the same of the layer. The last child takes
    the parent's slot, which is read until then.
    """
    free = len(branches)
    pairs = []
    for branch in branches:
        groups: dict[object, list[int]] = {}
        for plan in branch.plans:
            groups.setdefault(cuts[plan], []).append(plan)
        for number, plans in enumerate(groups.values(), start=1):
            is_last = number == len(groups)
            pairs.append((branch, Branch(branch.slot if is_last else free, tuple(plans))))
            free += not is_last
    return pairs


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass of many plans through the layers of a model."""

    model: MoEModel
    plans: tuple[PruningPlan, ...]  # distinct; plan n has number n + 1, the original model 0
    corpora: tuple[Samples, ...]
    hidden: HiddenStates  # of all batches of all branches
    skeleton: Skeleton
    folder: Path  # an interrupted pass resumes from it
    costs: LayerCosts
    at_once: int = 0  # experts of a layer that are loaded at once; 0: all

    @cached_property
    def relay(self) -> Relay:
        """Runs one layer at a time."""
        return Relay(
            self.skeleton.model,
            self.skeleton.layers,
            self.model.family.label,
            run_trunk,
            inseparable=self.model.inseparable,
        )

    @cached_property
    def _batches(self) -> list[TokenBatch]:
        return [batch.tokens for samples in self.corpora for batch in samples.batches()]

    def run(self, *, on_disk: bool) -> Generator[Progress, None, list[Branch]]:
        """Run all plans through all layers, and load the head; resumes after a saved layer."""
        layers = len(self.skeleton.layers)
        done, branches = self._resume()
        tally = self._tally(done)
        if self.at_once:
            yield self._progress(tally, done, 0, 1, blocks_note(self.at_once))
        if done:
            yield self._progress(tally, done, 0, 1, f"resumed after {done} of {layers} layers")
        else:
            self.hidden.clear()
            yield from self._embed(tally)
        saved_at = time.monotonic()
        for layer in range(done, layers):
            children = split(branches, self._cuts(layer))
            yield from self._layer(layer, children, tally)
            branches = [child for _, child in children]
            self.hidden.advance()
            if on_disk or time.monotonic() - saved_at > _SAVE_EVERY_SECONDS:
                self.hidden.save()
                write_durably(self.folder / _STATE, json.dumps({"layers": layer + 1}).encode())
                self.hidden.clear(but=layer + 1)
                saved_at = time.monotonic()
        self.skeleton.load(HEAD)
        self.skeleton.load(OUTPUT)
        tally.add("read", self._head)
        yield replace(self._progress(tally, layers - 1, 1, 1), at="")
        return branches

    def layers(self, plan: int) -> int:
        """Layers in which a plan is the first of its branch: summed over plans, those that ran."""
        after = [self._branches(layer + 1) for layer in range(len(self.skeleton.layers))]
        return sum(branch.plans[0] == plan for branches in after for branch in branches)

    def _branches(self, layers: int) -> list[Branch]:
        """The branches after so many layers."""
        branches = [Branch(0, tuple(range(len(self.plans) + 1)))]
        for layer in range(layers):
            branches = [child for _, child in split(branches, self._cuts(layer))]
        return branches

    def _resume(self) -> tuple[int, list[Branch]]:
        """Layers that are done and whose hidden states are there, and the branches after them."""
        path = self.folder / _STATE
        done = int(parse_json(path.read_bytes())["layers"]) if path.is_file() else 0
        branches = self._branches(done)
        try:
            if done:
                self.hidden.resume(done, len(branches) * len(self._batches))
        except CheckpointError:  # deleted, or in another --hidden-states-dir
            self.hidden.restart()
            return 0, self._branches(0)
        return done, branches

    def _cuts(self, layer: int) -> list[object]:
        """What each plan keeps of a layer, by number of the plan."""
        count = next(
            (moe_layer.num_experts for moe_layer in self.model.layers if moe_layer.index == layer),
            0,
        )
        cuts: list[object] = [None]
        for plan in self.plans:
            kept, neurons = plan.kept.get(layer, ()), plan.kept_neurons.get(layer, {})
            repaired = plan.repair is not None and plan.repair.file(layer).is_file()
            repair = plan.repair.digest if plan.repair and repaired else ""
            bits = plan.bits_in(layer) if count else ""
            top_k = plan.top_k.get(layer, 0)
            cut = (kept if len(kept) < count else (), tuple(neurons.items()), repair, bits, top_k)
            cuts.append(cut if any(cut) else None)
        return cuts

    def _tally(self, done: int) -> Tally:
        """The work of all layers, of which an earlier run did some, and of loading the head."""
        layers = range(len(self.skeleton.layers))
        twice = layers_in_blocks(self.model, self.at_once)
        total, before = (
            {
                "read": self.costs.reading(*some),
                "multiply": sum(
                    len(self._branches(layer + 1)) * self._running(self._tokens, layer, twice)
                    for layer in some
                ),
            }
            for some in (layers, layers[:done])
        )
        memory = self.skeleton.memory_to_take(
            layer for layer in layers[done:] if layer not in twice
        )
        more = {"read": self._head, "allocate": cost("allocate", memory)}
        return Tally(added(total, more), before)

    @property
    def _head(self) -> float:
        """Cost of reading what runs after the layers; tied embeddings are read again."""
        output = self.skeleton.stored_bytes(OUTPUT) or self.skeleton.stored_bytes(EMBEDDINGS)
        return cost("read", self.skeleton.stored_bytes(HEAD) + output)

    def _running(self, tokens: int, layer: int, twice: Collection[int]) -> float:
        """Cost of a layer; in layers `twice` what surrounds experts runs twice."""
        again = self.costs.running_around(tokens, layer) if layer in twice else 0
        return self.costs.running(tokens, layer) + again

    @cached_property
    def _tokens(self) -> int:
        return sum(int(batch.mask.sum()) for batch in self._batches)

    def _embed(self, tally: Tally) -> Generator[Progress, None, None]:
        self.skeleton.load(EMBEDDINGS)
        for number, batch in enumerate(self._batches):
            yield self._progress(tally, 0, number, len(self._batches))
            with torch.no_grad():
                self.hidden.put(0, number, self.relay.embed(batch))
        self.skeleton.drop(EMBEDDINGS)

    def _layer(
        self, layer: int, children: Sequence[tuple[Branch, Branch]], tally: Tally
    ) -> Generator[Progress, None, None]:
        paused = None
        experts = self.skeleton.experts(layer) if self.at_once else None
        if experts is not None and len(blocks := blocks_of(experts, self.at_once)) > 1:
            states, device = ForwardStates(self.hidden), self.skeleton.device
            paused = PausedPlans(experts, blocks, states, device)
            yield from self._experts_in_blocks(layer, children, paused, tally)
        else:
            for nbytes in self.skeleton.take_memory(layer):
                tally.add("allocate", cost("allocate", nbytes))
                yield self._progress(tally, layer, 0, 1)
            self.skeleton.load(layer)
            tally.add("read", self.costs.reading(layer))
        count = len(self._batches)
        for at, (parent, child) in enumerate(children):
            candidate = self._candidate(child, layer)
            for number, batch in enumerate(self._batches):
                yield self._progress(tally, layer, at * count + number, len(children) * count)
                run = partial(self._run, layer, parent, number)
                # Masked only while it computes: between steps the caller may do anything.
                with torch.no_grad(), candidate():
                    after = paused.finish(child.named(number), run) if paused else run()
                self.hidden.put(layer + 1, child.slot * count + number, after)
                costs = self.costs.running_around if paused else self.costs.running
                tally.add("multiply", costs(int(batch.mask.sum()), layer))
        self.skeleton.drop(layer)
        if paused:
            paused.states.clear()

    def _experts_in_blocks(
        self,
        layer: int,
        children: Sequence[tuple[Branch, Branch]],
        paused: PausedPlans,
        tally: Tally,
    ) -> Generator[Progress, None, None]:
        """Load a layer without its experts, and run these block by block, for all plans."""
        self.skeleton.load(layer, experts=False)
        count = len(self._batches)
        for parent, child in children:
            candidate = self._candidate(child, layer)
            for number, batch in enumerate(self._batches):
                yield self._progress(tally, layer, 0, len(children) * count)
                run = partial(self._run, layer, parent, number)
                with torch.no_grad(), candidate():
                    paused.start(child.named(number), run)
                tally.add("multiply", self.costs.running_around(int(batch.mask.sum()), layer))
        share = 1 / len(paused.blocks)
        for block in paused.blocks:
            self.skeleton.load_experts(layer, block)
            tally.add("read", share * self.costs.reading(layer))
            for _, child in children:
                candidate = self._candidate(child, layer)  # with these experts
                for number, batch in enumerate(self._batches):
                    yield self._progress(tally, layer, 0, len(children) * count)
                    paused.add(child.named(number), candidate())
                    tokens = int(batch.mask.sum())
                    running = self.costs.running(tokens, layer)
                    running -= self.costs.running_around(tokens, layer)
                    tally.add("multiply", share * running)
        self.skeleton.drop_experts(layer)

    def _candidate(self, child: Branch, layer: int) -> Callable[[], AbstractContextManager[None]]:
        """Makes contexts in which a layer computes as for the plans of a branch.

        All share one plan and its changed weights, which are of the experts that first ran.
        """
        plan = self._plan(child.plans[0], layer)
        family = self.model.family
        return partial(candidate_of, self.skeleton.model, family, plan, ChangedWeights())

    def _run(self, layer: int, parent: Branch, number: int) -> Tensor:
        place = parent.slot * len(self._batches) + number
        before = self.hidden.get(place).to(self.skeleton.device)
        return self.relay.layer(layer, self._batches[number], before)

    def _plan(self, number: int, layer: int) -> PruningPlan | None:
        """What a plan does to one layer."""
        if not number:
            return None
        return self.plans[number - 1].of_layer(layer)

    def _progress(
        self, tally: Tally, layer: int, done: int, total: int, note: str = ""
    ) -> Progress:
        layers, phase = len(self.skeleton.layers), f"running {len(self.plans)} plans"
        done = layer * total + done
        at = f"layer {layer}"
        return Progress(phase, done, layers * total, "batches", note, at, tally.whole)


@dataclass(frozen=True, eq=False)
class Ends:
    """The plans after a pass, with the hidden states of the last layer and the head loaded."""

    through: Pass
    branches: Sequence[Branch]
    states: Path  # folder of the hidden states, if they are on disk
    has_run: ClassVar[bool] = True

    @property
    def model(self) -> PreTrainedModel:
        """The model, with weights in its head only."""
        return self.through.skeleton.model

    @property
    def head(self) -> OutputHead:
        """The head of the model."""
        token_BTD = self.through.hidden.get(0)[:1, :1].to(self.through.skeleton.device)
        with self.through.relay.after_layers(token_BTD):
            return OutputHead(self.model)

    def hidden(self, samples: Samples, plan: PruningPlan | None, batch: SampleBatch) -> Tensor:
        """`final_hidden` of the candidate; None is the original model."""
        corpora = self.through.corpora
        batches = [sum(1 for _ in corpus.batches()) for corpus in corpora]
        before = sum(batches[: next(n for n, corpus in enumerate(corpora) if corpus is samples)])
        number = self._number(plan)
        branch = next(branch for branch in self.branches if number in branch.plans)
        batch_place = batch.number // samples.processes.world
        place = branch.slot * sum(batches) + before + batch_place
        hidden_BTD = self.through.hidden.get(place).to(self.through.skeleton.device)
        with self.through.relay.after_layers(hidden_BTD):
            return final_hidden(self.model, batch)

    def layers(self, plan: PruningPlan) -> int:
        """Decoder layers that ran for a plan: from where it branches off all earlier plans."""
        return self.through.layers(self._number(plan))

    def _number(self, plan: PruningPlan | None) -> int:
        digests = [plan.digest for plan in self.through.plans]
        return 0 if plan is None else digests.index(plan.digest) + 1

    def clear(self) -> None:
        """Delete the hidden states on disk, with their folder if they have their own."""
        self.through.hidden.clear()
        if self.states != self.through.folder and self.states.is_dir():
            self.states.rmdir()


@dataclass(frozen=True, slots=True)
class EvaluationPlans:
    """The plans of an evaluation."""

    plans: Sequence[PruningPlan]  # all
    missing: Sequence[PruningPlan]  # those that lack results


@contextmanager
def partial_folder(store: Path, facts: Sequence[object], processes: Processes) -> Iterator[Path]:
    """The locked folder from which an unfinished pass resumes; deleted after success.

    Each process has its own.
    """
    folder = _partial_at(store, facts, processes)
    lock = FileLock(store / f".{folder.name}.lock", timeout=0)
    make_folder(store)
    try:
        with lock:
            folder.mkdir(exist_ok=True)
            yield folder
            shutil.rmtree(folder)
            Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout as error:
        raise StatsError(
            "These corpora are being evaluated on by another process; wait for it to finish."
        ) from error


def clear_partial(store: Path, facts: Sequence[object], processes: Processes) -> None:
    """Delete the folder of a pass that was killed once it had saved all results."""
    if _partial_at(store, facts, processes).is_dir():
        # A process that still holds the folder deletes it itself.
        with suppress(StatsError), partial_folder(store, facts, processes):
            pass


def _partial_at(store: Path, facts: Sequence[object], processes: Processes) -> Path:
    if processes.world > 1:
        facts = [*facts, processes.rank, processes.world]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return store / f"evaluating-{key}{PARTIAL}"


def sizes_of_plans(
    model: MoEModel, settings: CalibrationSettings, hidden: int, longest: int, *, copies: int
) -> RunSizes:
    """What a pass takes in addition to the weights of a layer.

    `hidden`: bytes of the hidden states of all plans; `longest`: tokens of a sample; `copies` of
    experts that plans change.
    """
    item = DTYPES[resolve_dtype(settings.dtype, model)].itemsize
    running = forward_bytes(model, settings.batch_size * longest, item)
    # In blocks, the output of each of a token's experts is kept until all ran.
    in_blocks = hidden * (2 + max(layer.top_k for layer in model.layers))
    states, paused = (0 if is_on_disk(size, settings) else size for size in (hidden, in_blocks))
    return RunSizes(running, states, paused, copies=copies)


def forward_bytes(model: MoEModel, tokens: int, item: int) -> int:
    """Bytes of so many tokens that run through a layer at once, as transformers runs experts.

    As in analysis/calibration/memory.py, without the terms of sums.
    """
    return item * tokens * 12 * model.hidden_size + routed_bytes(model, tokens, item)


def run_plans(
    model: MoEModel,
    plans: EvaluationPlans,
    corpora: Sequence[Samples],
    settings: CalibrationSettings,
    folder: Path,
) -> Generator[Progress, None, Ends]:
    """Run the original model and the plans, layer by layer, over the samples of all corpora.

    Hidden states between layers are in memory, or on disk if they are large or the settings name a
    folder. An interrupted pass of the same plans resumes from `folder`.
    """
    give_back_memory()
    plans_by_digest = {plan.digest: plan for plan in plans.plans}
    missing = {plan.digest: plan for plan in plans.missing}
    path = folder / _PLANS
    before = parse_json(path.read_bytes()) if path.is_file() else []
    if set(missing) <= set(before) <= set(plans_by_digest):
        distinct = tuple(plans_by_digest[digest] for digest in before)
    else:  # that pass lacks a plan, or has one of other work
        for entry in folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        write_durably(path, json.dumps(list(missing)).encode())
        distinct = tuple(missing.values())
    place = settings.placement.hidden_states_dir
    nbytes = sum(hidden_bytes(model, samples.sequences, settings) for samples in corpora)
    nbytes *= len(distinct) + 1
    changes = any(plan.changes_weights for plan in distinct)
    longest = max(samples.sequences.longest for samples in corpora)
    run = sizes_of_plans(model, settings, nbytes, longest, copies=int(changes))
    at_once = experts_that_fit(model, settings, run)
    check_block(model, settings, run, at_once)
    if at_once:
        check_products(model, settings)
    on_disk = not (run.paused if at_once else run.states)
    states = from_home(place) / folder.name if place else folder
    hidden = HiddenStates(states, on_disk=on_disk)
    skeleton = Skeleton(model, settings)
    costs = layer_costs(model)
    through = Pass(model, distinct, tuple(corpora), hidden, skeleton, folder, costs, at_once)
    branches = yield from through.run(on_disk=on_disk)
    return Ends(through, branches, states)
