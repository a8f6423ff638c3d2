"""Repairs a plan, layer by layer: the original model and the pruned one run side by side.

One layer is in memory at a time. The original's hidden states give what each pruned layer lacks;
its kept experts are refitted to that, and the layer runs again with the new weights. Layers that an
interrupted repair has finished run again, but are not fitted again.
"""

import shutil
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from pydantic import ValidationError
from torch import Tensor, nn

from analysis.calibration.distributed import Processes, join
from analysis.calibration.feed import run_trunk
from analysis.calibration.free import give_back_memory
from analysis.calibration.hidden import HiddenStates, are_too_large
from analysis.calibration.loading import CalibrationSettings, resolve_dtype
from analysis.calibration.manifest import corpus_ref
from analysis.calibration.relay import Relay
from analysis.calibration.skeleton import EMBEDDINGS, Skeleton
from analysis.calibration.streamed import hidden_bytes
from analysis.corpora.encoding import check_token_ids
from analysis.corpora.sequences import TokenBatch, TokenSequences
from analysis.errors import StatsError, not_finite
from analysis.files.durable import PARTIAL, make_folder, write_durably, written_durably
from analysis.files.home import from_home
from analysis.model.forwards import listening, wrap_forward
from analysis.model.layer_costs import LayerCosts, layer_costs
from analysis.model.moe_model import MoEModel
from analysis.model.routing import find_block
from analysis.model.widths import computed_widths
from analysis.progress import LOADING, NOTHING, Progress, Tally, cost
from pruning.engine.changed_weights import ChangedWeights
from pruning.engine.masking import masked
from pruning.engine.repaired_weights import cannot, down_tensors, read_source
from pruning.engine.run import how_made
from pruning.plan.experts_per_token import selecting
from pruning.plan.plan import PruningPlan, changes_nothing
from pruning.plan.repair_reference import layer_file
from pruning.records.repair import LayerFit, RepairRecord, RepairStore
from pruning.repair.estimate import check_memory, repair_memory
from pruning.repair.method import method
from pruning.repair.rows import Collector, experts_observed, stream_factor, wide
from pruning.repair.solver import fit_layer

HELD_OUT = 5  # every so manieth part of the sequences judges and is fitted on last


@dataclass(frozen=True, slots=True, eq=False)
class PlacedBatch:
    """A batch of one corpus."""

    tokens: TokenBatch
    held_B: Tensor  # bool: sequences that judge

    @property
    def first(self) -> TokenBatch:
        """Its first sequence alone, without padding."""
        length = int(self.tokens.mask[0].sum())
        one = slice(1), slice(length)
        positions = self.tokens.positions
        return replace(
            self.tokens,
            input_ids=self.tokens.input_ids[one],
            mask=self.tokens.mask[one],
            counted=self.tokens.counted[one],
            token_shard=self.tokens.token_shard[one],
            positions=None if positions is None else positions[one],
        )

    @property
    def counted_T(self) -> Tensor:
        """Tokens that are fitted on, flat."""
        return torch.from_numpy(self.tokens.counted).reshape(-1)

    @property
    def held_T(self) -> Tensor:
        """Tokens that judge, flat."""
        return self.held_B[:, None].expand(self.tokens.counted.shape).reshape(-1)


def placed_batches(
    corpora: Sequence[TokenSequences], batch_size: int, processes: Processes
) -> list[PlacedBatch]:
    """This process's batches; the last fifth of each corpus's sequences judges."""
    batches = []
    for sequences in corpora:
        count = len(sequences.rows)
        first_held = count - max(1, count // HELD_OUT) if count > 1 else count
        for batch in sequences.batches(batch_size):
            number = torch.arange(batch.first, batch.first + len(batch.mask))
            batches.append(PlacedBatch(batch, number >= first_held))
    if not any(bool(batch.held_B.any()) for batch in batches):
        raise StatsError(
            "A repair fits on some sequences and judges on others; give more tokens, or a smaller "
            "--seq-len."
        )
    return batches[processes.rank :: processes.world]


def check_repairable(model: MoEModel, plan: PruningPlan) -> None:
    """Refuse a model whose down projections cannot be refitted, and a plan with nothing to do."""
    if plan.repair is not None:
        raise StatsError("The plan is repaired already; give the plan that the repair was made of.")
    if changes_nothing(plan, model):
        raise StatsError("The plan removes nothing, so there is nothing to repair.")
    down_tensors(model)


@dataclass(frozen=True, eq=False)
class RepairPass:
    """One pass through the layers."""

    model: MoEModel
    plan: PruningPlan
    batches: Sequence[PlacedBatch]
    record: RepairRecord
    files: Path  # folder of the new weights
    original: HiddenStates
    repaired: HiddenStates
    skeleton: Skeleton
    processes: Processes

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
    def first(self) -> int:
        """The first layer that loses something, or selects fewer experts per token."""
        return min(
            layer.index
            for layer in self.model.layers
            if len(self.plan.kept[layer.index]) < layer.num_experts
            or self.plan.kept_neurons.get(layer.index)
            or selecting(layer, self.plan.top_k) != layer
        )

    def run(self) -> Generator[Progress, None, list[LayerFit]]:
        """Repair every sparse layer from the first that loses something on."""
        sparse = {layer.index for layer in self.model.layers}
        depth, fits = max(sparse) + 1, []
        self.skeleton.load(EMBEDDINGS)
        for number, batch in enumerate(self.batches):
            with torch.no_grad():
                hidden_BTD = self.relay.embed(batch.tokens)
            self._keep(0, number, hidden_BTD, hidden_BTD)
            count, whole = len(self.batches), self.tally.whole
            yield Progress("embedding", number + 1, count, "batches", whole=whole)
        self.skeleton.drop(EMBEDDINGS)
        yield self._progress("running", 0, -1, depth)
        for layer in range(depth):
            self.skeleton.load(layer)
            self.tally.add("read", self.costs.reading(layer))
            if layer < self.first:
                yield from self._run_alike(layer, depth)
            else:
                if layer in sparse:
                    fits.append((yield from self._repair(layer, depth)))
                else:
                    yield from self._run_original(layer, depth)
                yield from self._run_repaired(layer, depth)
            self.skeleton.drop(layer)
            self.original.advance()
            self.repaired.advance()
        return fits

    def _run_alike(self, layer: int, depth: int) -> Generator[Progress, None, None]:
        """A layer before anything is removed: both models compute the same."""
        for number in range(len(self.batches)):
            after = self._through(layer, number, self.original)
            self._keep(layer + 1, number, after, after)
            self._count("multiply", layer, number)
            yield self._progress("running", layer, number, depth)

    def _run_original(self, layer: int, depth: int) -> Generator[Progress, None, None]:
        for number in range(len(self.batches)):
            self.original.put(layer + 1, number, self._through(layer, number, self.original))
            self._count("multiply", layer, number)
            yield self._progress("running", layer, number, depth)

    def _run_repaired(self, layer: int, depth: int) -> Generator[Progress, None, None]:
        plan = replace(
            self.plan.of_layer(layer), repair=replace(self.record.reference, folder=self.files)
        )
        changed = ChangedWeights()
        for number in range(len(self.batches)):
            # Masked only while it computes: between steps the caller may do anything.
            with masked(self.skeleton.model, self.model.family, plan, changed):
                after = self._through(layer, number, self.repaired)
            self.repaired.put(layer + 1, number, after)
            self._count("run repaired", layer, number)
            yield self._progress("running the repaired", layer, number, depth)

    def _repair(self, layer: int, depth: int) -> Generator[Progress, None, LayerFit]:
        """Fit a layer, or take what an interrupted repair has fitted; runs the original's too."""
        state = self._state(layer)
        finished = self._finished(state, layer)
        if finished:
            yield from self._run_original(layer, depth)
            return finished
        factor, collector = self._factor(layer), self._collector(layer)
        for number in range(len(self.batches)):
            self._observe(layer, number, collector, factor)
            self._count("observe", layer, number)
            yield self._progress("observing", layer, number, depth)
        yield self._progress("fitting", layer, len(self.batches) - 1, depth)
        experts, kept = self._experts(layer), self.plan.kept[layer]
        loaded = experts.get_parameter("down_proj").detach()
        fitted, held = collector.rows(loaded.mT if experts.is_transposed else loaded)
        result = fit_layer(fitted, held, self.processes.total)
        facts: dict[str, Any] = {
            "layer": layer,
            "target": "experts" if factor is None else "layer",
            "held_out": {f"{damping:g}": error for damping, error in result.held_out.items()},
            "tokens": int(self.processes.total(fitted.size + held.size)),
        }
        if result.change_KMD is not None:
            source = read_source(self.model, down_tensors(self.model)[layer], kept, loaded)
            is_transposed = bool(experts.is_transposed)
            rounding_KMD = source.add(kept, result.change_KMD, is_transposed=is_transposed)
            lost, lacking = (
                self.processes.total(values.double().square().sum())
                for values in (held.output(rounding_KMD), held.residual_TD)
            )
            facts |= {"damping": result.damping, "rounding": float(lost / lacking)}
            with self.processes.together():
                if self.processes.is_first:
                    with written_durably(self.files / layer_file(layer)) as draft:
                        source.save(draft)
        outcome = LayerFit(**facts)
        with self.processes.together():
            if self.processes.is_first:
                write_durably(state, outcome.model_dump_json(exclude_unset=True).encode())
        self.tally.add("fit", self._fit_cost(layer))
        yield self._progress("fitting", layer, len(self.batches) - 1, depth)
        return outcome

    def _state(self, layer: int) -> Path:
        return self.files / f"{layer_file(layer)}.json"

    def _finished(self, state: Path, layer: int) -> LayerFit | None:
        """What an interrupted repair has fitted; None, so that it is fitted again, if damaged."""
        try:
            outcome = LayerFit.model_validate_json(state.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        is_whole = outcome.damping is None or (self.files / layer_file(layer)).is_file()
        return outcome if is_whole else None

    def _observe(self, layer: int, number: int, collector: Collector, factor: float | None) -> None:
        """One batch: the original layer, the pruned one, and what the latter lacks."""
        batch, experts = self.batches[number], self._experts(layer)
        outputs: list[Tensor] = []
        device = self.skeleton.device
        collector.begin(batch.counted_T.to(device), batch.held_T.to(device))
        with ExitStack() as restore:
            wrap_forward(experts, listening(outputs.append), restore)
            after = self._through(layer, number, self.original)
        with ExitStack() as restore:
            restore.enter_context(experts_observed(experts, collector.observe))
            wrap_forward(experts, listening(outputs.append), restore)
            plan = self.plan.of_layer(layer)
            restore.enter_context(masked(self.skeleton.model, self.model.family, plan))
            pruned = self._through(layer, number, self.repaired)
        if factor is None:
            lacking = wide(outputs[0]) - wide(outputs[1])
        else:
            lacking = (wide(after) - wide(pruned)).reshape(outputs[0].shape) / factor
        if not lacking[batch.counted_T.to(device)].isfinite().all():
            raise not_finite(f"Layer {layer} gave", after.dtype)
        collector.end(lacking)
        self.original.put(layer + 1, number, after)

    def _factor(self, layer: int) -> float | None:
        """See `stream_factor`; the first process, which has a batch, finds it for all."""
        factor = None
        if self.processes.is_first:
            first = self.batches[0].first
            before = self.original.get(0)[:1, : first.mask.shape[1]].to(self.skeleton.device)

            def run_layer() -> Tensor:
                with torch.no_grad():
                    return self.relay.layer(layer, first, before)

            factor = stream_factor(self._experts(layer), run_layer)
        return self.processes.share(factor)  # type: ignore[no-any-return]

    def _collector(self, layer: int) -> Collector:
        neurons = self.plan.kept_neurons.get(layer, {})
        return Collector({expert: neurons.get(expert) for expert in self.plan.kept[layer]})

    def _experts(self, layer: int) -> nn.Module:
        block = find_block(self.skeleton.model, self.model.family, layer)
        experts = block and block.get_submodule("experts")
        if experts is None or not hasattr(experts, "has_gate"):
            raise cannot(self.model, "its experts do not use transformers' experts interface")
        if getattr(experts, "has_post_expert_norm", False):
            raise cannot(self.model, "a norm follows each expert's down projection")
        return experts

    def _through(self, layer: int, number: int, hidden: HiddenStates) -> Tensor:
        before = hidden.get(number).to(self.skeleton.device)
        with torch.no_grad():
            return self.relay.layer(layer, self.batches[number].tokens, before)

    def _keep(self, layer: int, number: int, original: Tensor, repaired: Tensor) -> None:
        self.original.put(layer, number, original)
        self.repaired.put(layer, number, repaired)

    def _progress(self, verb: str, layer: int, number: int, depth: int) -> Progress:
        batches, at = len(self.batches), f"layer {layer}"
        done, unit = layer * batches + number + 1, "batches of a layer"
        return Progress(verb, done, depth * batches, unit, at=at, whole=self.tally.whole)

    def _count(self, kind: str, layer: int, number: int) -> None:
        """Count a batch that ran through a layer."""
        tokens = int(self.batches[number].tokens.mask.sum())
        self.tally.add(kind, self.costs.running(tokens, layer, kind=kind))

    @cached_property
    def costs(self) -> LayerCosts:
        """What layers cost."""
        return layer_costs(self.model)

    @cached_property
    def tally(self) -> Tally:
        """The work of all layers; what an interrupted repair has fitted is done."""
        sparse = {layer.index for layer in self.model.layers}
        total, before = defaultdict[str, float](float), defaultdict[str, float](float)
        for layer in range(max(sparse) + 1):
            costs = {
                kind: self.costs.running(self._tokens, layer, kind=kind)
                for kind in ("multiply", "observe", "run repaired")
            }
            total["read"] += self.costs.reading(layer)
            fits = layer in sparse and layer >= self.first
            is_known = fits and self._finished(self._state(layer), layer) is not None
            if fits:
                total["observe"] += costs["observe"]
                total["fit"] += self._fit_cost(layer)
            if is_known:
                before["observe"] += costs["observe"]
                before["fit"] += self._fit_cost(layer)
            if not fits or is_known:
                total["multiply"] += costs["multiply"]
            if layer >= self.first:
                total["run repaired"] += costs["run repaired"]
        return Tally(total, before)

    @cached_property
    def _tokens(self) -> int:
        return sum(int(batch.tokens.mask.sum()) for batch in self.batches)

    def _fit_cost(self, layer: int) -> float:
        """Of the matrix products in `solver`: with the rows of all experts, and of each expert."""
        top_k = next(found.top_k for found in self.model.layers if found.index == layer)
        kept, width = len(self.plan.kept[layer]), max(computed_widths(self.model)[layer])
        rows, out = self._tokens * top_k, self.model.expert_output_size
        by_rows = rows * width * (8 * out + 2 * width)
        return cost("fit", by_rows + kept * 4 * width**2 * (width + out))


@contextmanager
def _locked(store: RepairStore, record: RepairRecord) -> Iterator[Path]:
    """The folder of the files while they are made, for this process and those of its launcher."""
    folder = store.unfinished(record)
    make_folder(folder)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0)
    try:
        with lock:
            try:
                yield folder
            finally:
                if folder.is_dir() and not any(folder.iterdir()):  # nothing to resume from
                    folder.rmdir()
                Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout as error:
        raise StatsError(
            f"{record.record_id} is being made by another process; wait for it to finish."
        ) from error


def repair_plan(
    model: MoEModel,
    plan: PruningPlan,
    corpora: Sequence[TokenSequences],
    settings: CalibrationSettings,
    store: RepairStore,
) -> Generator[Progress, None, RepairRecord]:
    """Refit the kept experts of a plan, which is complete, on these sequences.

    A known repair is returned at once. An interrupted one resumes after its last layer, with the
    same result. Under a launcher, processes share the batches; the first one writes, to a folder
    that all of them see.
    """
    processes = join()
    with processes.together():
        check_repairable(model, plan)
        batches = placed_batches(corpora, settings.batch_size, processes)
        new = new_repair(model, plan, corpora, settings)
        known = store.find(new)
    if known.is_measured:
        note = f"{known.record_id} is in the cache"
        yield Progress("cached", 1, 1, "repairs", note, whole=NOTHING)
        return known
    with processes.together():
        memory = repair_memory(model, plan, corpora, settings, processes.world)
        check_memory(model, memory, settings)
    started = time.monotonic()
    give_back_memory()
    with ExitStack() as stack:
        with processes.together():
            if processes.is_first:
                stack.enter_context(_locked(store, new))
        files = store.unfinished(new)
        states = _states(new, settings, processes, files)
        nbytes = 2 * sum(hidden_bytes(model, corpus, settings) for corpus in corpora)
        on_disk = bool(settings.placement.hidden_states_dir) or are_too_large(nbytes)
        original = HiddenStates(states / "original", on_disk=on_disk)
        repaired = HiddenStates(states / "repaired", on_disk=on_disk)
        shutil.rmtree(states, ignore_errors=True)  # of a killed repair
        # Also of one that fails or is stopped: none of them is read again.
        stack.callback(shutil.rmtree, states, ignore_errors=True)
        yield Progress(LOADING, 0, 1, "repairs")
        skeleton = Skeleton(model, settings)
        through = RepairPass(
            model, plan, batches, new, files, original, repaired, skeleton, processes
        )
        layers = yield from through.run()
        with processes.together():
            made = how_made(settings, time.monotonic() - started)
            record = new.with_layers(layers, files, {**made, "processes": processes.world})
        with processes.together():  # all of them have read the files
            if processes.is_first:
                for state in files.glob("*.json"):
                    state.unlink()
                store.finish(record, files)
    return record


def new_repair(
    model: MoEModel,
    plan: PruningPlan,
    corpora: Sequence[TokenSequences],
    settings: CalibrationSettings,
) -> RepairRecord:
    """The record of a repair before it runs; loads no model."""
    for sequences in corpora:
        largest = max(int(row.max()) for row in sequences.rows)
        check_token_ids(sequences.corpus, largest, model)
    numbers = {
        "dtype": resolve_dtype(settings.dtype, model),
        "seed": settings.seed,
        "seq_len": settings.seq_len,
    }
    refs = [corpus_ref(corpus, settings.batch_size) for corpus in corpora]
    return RepairRecord.new(model, plan, refs, numbers, method())


def _states(
    record: RepairRecord, settings: CalibrationSettings, processes: Processes, files: Path
) -> Path:
    """The folder of this process's hidden states, if they go to disk."""
    place = settings.placement.hidden_states_dir
    parent = from_home(place) if place else files.parent
    return parent / f"{record.record_id}-{processes.rank}{PARTIAL}"
