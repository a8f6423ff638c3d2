"""One pass of a repair through the layers: the original model and the pruned one side by side.

A layer is in memory at a time, or what surrounds its experts and a block of these. The original's
hidden states give what each pruned layer lacks; its kept experts are refitted to that, and the
layer runs again with the new weights. Layers that an interrupted repair has finished run again, but
are not fitted again.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from analysis.calibration.blocks import blocks_note, layers_in_blocks
from analysis.calibration.feed import run_trunk
from analysis.calibration.hidden import HiddenStates
from analysis.calibration.relay import Relay
from analysis.calibration.skeleton import EMBEDDINGS, Skeleton
from analysis.drain import with_steps
from analysis.errors import not_finite
from analysis.model.forwards import listening, wrap_forward
from analysis.model.moe_model import MoEModel
from analysis.model.routing import find_block
from analysis.progress import Progress
from pruning.engine.changed_weights import ChangedWeights
from pruning.engine.masking import masked
from pruning.engine.repaired_weights import DOWN, cannot
from pruning.plan.plan import PruningPlan
from pruning.records.repair import LayerFit, RepairRecord
from pruning.repair.batches import PlacedBatch, Places
from pruning.repair.expert_store import ExpertStore
from pruning.repair.fitting import Fitting
from pruning.repair.in_blocks import LayerInBlocks, layer_in_blocks
from pruning.repair.rows import Collector, experts_observed, stream_factor, wide
from pruning.repair.solver import Stage
from pruning.repair.work import Work

Steps = Generator[Progress, None, None]


@dataclass(frozen=True, slots=True)
class States:
    """What a repair keeps of its tokens and of a layer's experts, in memory or on disk."""

    original: HiddenStates
    repaired: HiddenStates
    kept: ExpertStore


@dataclass(frozen=True, eq=False)
class RepairPass:
    """One pass through the layers."""

    model: MoEModel
    plan: PruningPlan
    batches: Sequence[PlacedBatch]
    record: RepairRecord
    states: States
    skeleton: Skeleton
    fitting: Fitting
    work: Work
    at_once: int = 0  # experts of a layer that are loaded at once; 0: all

    @cached_property
    def relay(self) -> Relay:
        """Runs one layer at a time."""
        return Relay(
            self.skeleton.model,
            self.skeleton.layers,
            self.model.family.label,
            run_trunk,
            refused="cannot be repaired layer by layer",
            instead="Prune it without a repair",
            inseparable=self.model.inseparable,
        )

    @cached_property
    def places(self) -> Places:
        """Where tokens stand among all."""
        return Places.of(self.batches, self.skeleton.device)

    def run(self) -> Generator[Progress, None, list[LayerFit]]:
        """Repair every sparse layer from the first that loses something on."""
        fits: list[LayerFit] = []
        original, repaired = self.states.original, self.states.repaired
        in_blocks = layers_in_blocks(self.model, self.at_once)
        layers = (layer for layer in range(self.work.depth) if layer not in in_blocks)
        self.work.takes_memory(self.skeleton.memory_to_take(layers))
        self.skeleton.load(EMBEDDINGS)
        for number, batch in enumerate(self.batches):
            with torch.no_grad():
                hidden_BTD = self.relay.embed(batch.tokens)
            self._keep(0, number, hidden_BTD, hidden_BTD)
            yield self.work.embedded(number)
        self.skeleton.drop(EMBEDDINGS)
        yield self.work.step("running", 0, -1, blocks_note(self.at_once) if self.at_once else "")
        for layer in range(self.work.depth):
            yield from self._layer(layer, fits)
            self.skeleton.drop(layer)
            original.advance()
            repaired.advance()
        return fits

    def _layer(self, layer: int, fits: list[LayerFit]) -> Steps:
        """Run a layer of both models, and fit it unless that is done or nothing is lost so far."""
        fits_here = self.work.is_fitted(layer)
        known = self.fitting.known(layer) if fits_here else None
        collector = self._collector(layer) if fits_here and not known else None
        states = self.states
        blocks = layer_in_blocks(
            layer, self.skeleton, self.at_once, (states.original, states.repaired)
        )
        if blocks is None:
            for nbytes in self.skeleton.take_memory(layer):
                self.work.took_memory(nbytes)
                yield self.work.step("running", layer, -1)
        self.skeleton.load(layer, experts=blocks is None)
        if blocks:
            yield from self._experts_in_blocks(blocks, collector)
        else:
            self.work.read(layer)
            yield self.work.step("running", layer, -1)
        if not self.work.differs(layer):
            yield from self._run_alike(layer, blocks)
        elif collector:
            fits.append((yield from self._repair(layer, collector, blocks)))
        else:
            yield from self._run_original(layer, blocks)
            fits += [known] if known else []
        if self.work.differs(layer):
            if blocks and collector:
                yield from self._repaired_in_blocks(blocks)
            yield from self._run_repaired(layer, blocks)
        if blocks:
            blocks.clear()

    def _experts_in_blocks(self, blocks: LayerInBlocks, collector: Collector | None) -> Steps:
        """Run the experts of all forwards of a layer, which are left before what follows them.

        Those of the repaired model too, where a layer is known.
        """
        layer, numbers = blocks.layer, range(len(self.batches))
        two = self.work.differs(layer)
        for number in numbers:
            with torch.no_grad():
                blocks.original.start(str(number), partial(self._original, layer, number))
                if two:
                    with self._pruned(layer):
                        blocks.pruned.start(str(number), partial(self._repaired, layer, number))
            self.work.around(layer, number, 1 + two)
            yield self.work.step("running", layer, number)
        if collector:
            yield from self._observed_in_blocks(blocks, collector)
            return
        for _ in self._loaded(blocks):
            repaired = self._repaired_plan(layer)  # with the weights of these experts
            for number in numbers:
                blocks.add_original(number)
                self.work.ran("multiply", layer, number, blocks.share)
                if two:
                    blocks.pruned.add(str(number), repaired())
                    self.work.ran("run repaired", layer, number, blocks.share)
                yield self.work.step("running", layer, number)

    def _observed_in_blocks(self, blocks: LayerInBlocks, collector: Collector) -> Steps:
        """Run the experts of both models in a layer that is to be fitted."""
        layer, kept = blocks.layer, self.states.kept
        if self.fitting.processes.is_first:
            blocks.start_first(self._first(layer))
        observers = [collector.observer(number, kept) for number in range(len(self.batches))]
        for _ in self._loaded(blocks):
            for number, observer in enumerate(observers):
                blocks.add_original(number)
                blocks.observe(number, self._pruned(layer), observer)
                self.work.ran("observe", layer, number, blocks.share)
                yield self.work.step("observing", layer, number)
            if self.fitting.processes.is_first:
                blocks.add_first()
            self.fitting.check_order(layer, blocks.experts)

    def _repaired_in_blocks(self, blocks: LayerInBlocks) -> Steps:
        """Run the experts of the repaired model's forwards."""
        for _ in self._loaded(blocks):
            repaired = self._repaired_plan(blocks.layer)
            for number in range(len(self.batches)):
                blocks.pruned.add(str(number), repaired())
                self.work.ran("run repaired", blocks.layer, number, blocks.share)
                yield self.work.step("running the repaired", blocks.layer, number)

    def _loaded(self, blocks: LayerInBlocks) -> Generator[range, None, None]:
        for block in blocks.loaded():
            self.work.read(blocks.layer, blocks.share)
            yield block

    def _run_alike(self, layer: int, blocks: LayerInBlocks | None) -> Steps:
        """A layer before anything is removed: both models compute the same."""
        for number in range(len(self.batches)):
            after = self._finished(layer, number, blocks)
            self._keep(layer + 1, number, after, after)
            yield self.work.step("running", layer, number)

    def _run_original(self, layer: int, blocks: LayerInBlocks | None) -> Steps:
        for number in range(len(self.batches)):
            after = self._finished(layer, number, blocks)
            self.states.original.put(layer + 1, number, after)
            yield self.work.step("running", layer, number)

    def _finished(self, layer: int, number: int, blocks: LayerInBlocks | None) -> Tensor:
        """The original model's output of a layer."""
        run = partial(self._original, layer, number)
        if blocks:
            return blocks.original.finish(str(number), run)
        after = run()
        self.work.ran("multiply", layer, number)
        return after

    def _run_repaired(self, layer: int, blocks: LayerInBlocks | None) -> Steps:
        candidate = self._repaired_plan(layer)
        for number in range(len(self.batches)):
            run = partial(self._repaired, layer, number)
            # Masked only while it computes: between steps the caller may do anything.
            with candidate():
                after = blocks.pruned.finish(str(number), run) if blocks else run()
            self.states.repaired.put(layer + 1, number, after)
            if not blocks:
                self.work.ran("run repaired", layer, number)
            yield self.work.step("running the repaired", layer, number)

    def _repair(
        self, layer: int, collector: Collector, blocks: LayerInBlocks | None
    ) -> Generator[Progress, None, LayerFit]:
        """Fit a layer."""
        factor = self._factor(layer, blocks)
        for number in range(len(self.batches)):
            self._observe(layer, number, collector, factor, blocks)
            yield self.work.step("observing", layer, number)
        last = len(self.batches) - 1
        yield self.work.step("fitting", layer, last)
        if blocks:
            blocks.original.states.clear()
        rows = collector.rows(self.states.kept)
        target = "experts" if factor is None else "layer"
        fitting = self.fitting.fit(layer, rows, self._experts(layer), target)
        outcome = yield from with_steps(fitting, partial(self._reached, layer))
        self.states.kept.clear()
        if outcome.damping is None:
            self.work.gained_nothing(layer)
        else:
            self.work.fitted(layer)
        yield self._step_of_fit(layer)
        return outcome

    def _reached(self, layer: int, stage: Stage) -> Progress:
        """The step after so much of a layer's fit."""
        self.work.reached(layer, stage.name, stage.share)
        return self._step_of_fit(layer)

    def _step_of_fit(self, layer: int) -> Progress:
        return self.work.step("fitting", layer, len(self.batches) - 1)

    def _observe(
        self,
        layer: int,
        number: int,
        collector: Collector,
        factor: float | None,
        blocks: LayerInBlocks | None,
    ) -> None:
        """One batch: the original layer, the pruned one, and what the latter lacks."""
        experts, outputs = self._experts(layer), list[Tensor]()

        def heard(run: Callable[[int, int], Tensor]) -> Tensor:
            with ExitStack() as restore:
                wrap_forward(experts, listening(outputs.append), restore)
                return run(layer, number)

        original, pruned = partial(heard, self._original), partial(heard, self._repaired)
        if blocks:
            after = blocks.original.finish(str(number), original)
            with self._pruned(layer):
                before = blocks.finish_observed(number, pruned)
        else:
            after = original()
            observer = collector.observer(number, self.states.kept)
            with experts_observed(experts, observer), self._pruned(layer):
                before = pruned()
            self.work.ran("observe", layer, number)
        if factor is None:
            lacking = wide(outputs[0]) - wide(outputs[1])
        else:
            lacking = (wide(after) - wide(before)).reshape(outputs[0].shape) / factor
        if not lacking[self.batches[number].counted_T.to(lacking.device)].isfinite().all():
            raise not_finite(f"Layer {layer} gave", after.dtype)
        collector.end(number, lacking)
        self.states.original.put(layer + 1, number, after)

    def _factor(self, layer: int, blocks: LayerInBlocks | None) -> float | None:
        """See `stream_factor`; the first process, which has a batch, finds it for all."""
        factor = None
        if self.fitting.processes.is_first:
            given = blocks.first_given() if blocks else ExitStack()
            with given:
                factor = stream_factor(self._experts(layer), self._first(layer))
        return self.fitting.processes.share(factor)  # type: ignore[no-any-return]

    def _first(self, layer: int) -> Callable[[], Tensor]:
        """Runs the original model on one sequence."""
        first = self.batches[0].first
        before = self.states.original.get(0)[:1, : first.mask.shape[1]].to(self.skeleton.device)

        def run_layer() -> Tensor:
            with torch.no_grad():
                return self.relay.layer(layer, first, before)

        return run_layer

    def _collector(self, layer: int) -> Collector:
        neurons = self.plan.kept_neurons.get(layer, {})
        kept = {expert: neurons.get(expert) for expert in self.plan.kept[layer]}
        down = self._experts(layer).get_parameter(DOWN)
        sizes = down.shape[:0:-1] if self._experts(layer).is_transposed else down.shape[1:]
        empty = wide(torch.empty(0, dtype=down.dtype, device=self.skeleton.device))
        return Collector(kept, self.places, empty.new_empty(0, *sizes))

    def _experts(self, layer: int) -> nn.Module:
        block = find_block(self.skeleton.model, self.model.family, layer)
        experts = block and block.get_submodule("experts")
        if experts is None or not hasattr(experts, "has_gate"):
            raise cannot(self.model, "its experts do not use transformers' experts interface")
        if getattr(experts, "has_post_expert_norm", False):
            raise cannot(self.model, "a norm follows each expert's down projection")
        return experts

    def _pruned(self, layer: int) -> AbstractContextManager[None]:
        """Inside the block the layer computes as pruned."""
        return masked(self.skeleton.model, self.model.family, self.plan.of_layer(layer))

    def _repaired_plan(self, layer: int) -> Callable[[], AbstractContextManager[None]]:
        """Makes blocks inside of which the layer computes as repaired; they share new weights."""
        repair = replace(self.record.reference, folder=self.fitting.files)
        plan = replace(self.plan.of_layer(layer), repair=repair)
        return partial(masked, self.skeleton.model, self.model.family, plan, ChangedWeights())

    def _original(self, layer: int, number: int) -> Tensor:
        return self._through(layer, number, self.states.original)

    def _repaired(self, layer: int, number: int) -> Tensor:
        return self._through(layer, number, self.states.repaired)

    def _through(self, layer: int, number: int, hidden: HiddenStates) -> Tensor:
        before = hidden.get(number).to(self.skeleton.device)
        with torch.no_grad():
            return self.relay.layer(layer, self.batches[number].tokens, before)

    def _keep(self, layer: int, number: int, original: Tensor, repaired: Tensor) -> None:
        self.states.original.put(layer, number, original)
        self.states.repaired.put(layer, number, repaired)
