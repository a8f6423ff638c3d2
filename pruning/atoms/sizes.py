"""What a plan of neurons takes in each width mode, by arithmetic on headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from analysis.errors import PlanError
from analysis.families import SlotKind
from analysis.heads import prediction_heads
from analysis.lazy import pd
from analysis.model import MoEModel
from analysis.widths import expert_widths, shared_tensors
from pruning.active import ExpertShape, Routing, active_experts, expert_shapes
from pruning.atoms.kept import atoms_of
from pruning.atoms.widths import (
    DEFAULT_MULTIPLE,
    LoadedWidths,
    WidthChoice,
    WidthMode,
    loaded_as,
)
from pruning.plan import PruningPlan, fit_plan
from pruning.weights import num_weights

# Layer -> expert that stays -> neurons that it keeps.
KeptWidths = Mapping[int, Mapping[int, int]]
ATOM_SIZE_COLUMNS = (
    *("mode", "refused", "params", "disk", "loaded_params", "loaded", "active", "expert_flops"),
)
PLAN_ALONE = "plan"


@dataclass(frozen=True, slots=True)
class Size:
    """Tensors of a checkpoint; headers of files are not counted.

    Args:
        nbytes: in the element types on disk.
        params: numbers in them.
    """

    nbytes: int = 0
    params: int = 0

    def plus(self, other: Size, times: int = 1) -> Size:
        """The sum with so many of another."""
        return Size(self.nbytes + times * other.nbytes, self.params + times * other.params)


@dataclass(frozen=True, slots=True)
class StoredSize:
    """An export with its widths stored in one way: on disk, and as it is in memory."""

    disk: Size
    loaded: Size


@dataclass(frozen=True, eq=False)
class AtomSizer:
    """The parts of a model from which the size of every plan of neurons follows.

    Args:
        model: the source.
        shapes: what experts are made of, by layer.
        routers: what each expert of a layer has of its router.
        rest: all that such plans never change.
        heads: prediction heads; those with experts go where the experts' count or width changes.
        heads_have_experts: whether they do.
        shared: shared experts that are built from the routed ones' width, and their width.
    """

    model: MoEModel
    shapes: Mapping[int, ExpertShape]
    routers: Mapping[int, Size] = field(repr=False)
    rest: Size
    heads: Size
    heads_have_experts: bool
    shared: Size
    shared_width: int

    def stored(self, kept: KeptWidths, choice: WidthChoice | None = None) -> StoredSize:
        """The size with these widths; without a choice only neurons that stay are counted."""
        if choice is None:
            alone = self._with(kept, None).plus(self.shared)
            return StoredSize(alone, alone)
        built = self._built(kept, choice)
        loaded, beside = _filled(kept, built), self._shared(built)
        on_disk = kept if choice.mode is WidthMode.RAGGED else loaded
        return StoredSize(
            self._with(on_disk, built).plus(beside), self._with(loaded, built).plus(beside)
        )

    def loaded(self, kept: KeptWidths, choice: WidthChoice) -> KeptWidths:
        """Widths of the experts in memory."""
        return _filled(kept, self._built(kept, choice))

    def experts(self, widths: KeptWidths) -> Size:
        """Routed experts of these widths."""
        size = Size()
        for layer, experts in widths.items():
            size = size.plus(Size(*self.shapes[layer].size(len(experts), sum(experts.values()))))
        return size

    def _built(self, kept: KeptWidths, choice: WidthChoice) -> LoadedWidths:
        needed = {layer: max(experts.values()) for layer, experts in kept.items()}
        return loaded_as(self.model, needed, choice)

    def _with(self, widths: KeptWidths, built: LoadedWidths | None) -> Size:
        size = self.rest.plus(self.experts(widths))
        for layer, experts in widths.items():
            size = size.plus(self.routers[layer], len(experts))
        return size.plus(self.heads) if self._heads_stay(widths, built) else size

    def _heads_stay(self, widths: KeptWidths, built: LoadedWidths | None) -> bool:
        count = max(map(len, widths.values()))
        same_count = all(layer.num_experts == count for layer in self.model.layers)
        same_width = built is None or built.scalar == self.model.config[self.model.family.width_key]
        return not self.heads_have_experts or (same_count and same_width)

    def _shared(self, built: LoadedWidths) -> Size:
        if built.shared is None:
            return self.shared
        width = built.shared * built.scalar
        return Size(
            self.shared.nbytes // self.shared_width * width,
            self.shared.params // self.shared_width * width,
        )


def _filled(kept: KeptWidths, built: LoadedWidths) -> KeptWidths:
    return {layer: dict.fromkeys(experts, built.widths[layer]) for layer, experts in kept.items()}


def atom_sizer(model: MoEModel) -> AtomSizer:
    """The parts of a model whose experts are not quantised."""
    located = {item.entry.name for items in model.located.values() for item in items}
    heads = prediction_heads(model)
    in_heads = {name for head in heads for name in head.tensors}
    shared = shared_tensors(model)
    sums = dict.fromkeys(("rest", "heads", "shared"), Size())
    for name, entry in model.checkpoint.tensors.items():
        if name not in located:
            part = "heads" if name in in_heads else "shared" if name in shared else "rest"
            sums[part] = sums[part].plus(Size(entry.nbytes, num_weights(model, entry)))
    return AtomSizer(
        model,
        expert_shapes(model),
        {layer.index: _router(model, layer.index, layer.num_experts) for layer in model.layers},
        **sums,
        heads_have_experts=any(head.has_experts for head in heads),
        shared_width=max((entry.shape[axis] for entry, axis in shared.values()), default=1),
    )


def _router(model: MoEModel, layer: int, experts: int) -> Size:
    entries = [item.entry for item in model.located[layer] if item.slot.kind is SlotKind.ROUTER]
    return Size(
        sum(entry.nbytes // experts for entry in entries),
        sum(num_weights(model, entry) // experts for entry in entries),
    )


def kept_widths(plan: PruningPlan, model: MoEModel) -> KeptWidths:
    """Neurons that each expert keeps under a complete plan, see `fit_plan`."""
    widths = expert_widths(model)
    return {
        layer: {e: len(atoms_of(plan.kept_atoms, layer, e, widths[layer][e])) for e in ids}
        for layer, ids in plan.kept.items()
    }


def atom_sizes(
    model: MoEModel,
    plan: PruningPlan,
    multiple_of: int = DEFAULT_MULTIPLE,
    routing: Routing | None = None,
) -> pd.DataFrame:
    """Table of ATOM_SIZE_COLUMNS: the plan alone, then a row for each width mode.

    `params` and `disk` (bytes) are what lies on disk without headers of files, `loaded_params` and
    `loaded` what is in memory. `active` parameters and `expert_flops` are those of one token: of
    the plan alone by how often each expert is chosen (see `active_experts`), in a mode as it is
    computed, zeros included. `refused` says why a mode is not possible; the rest is then missing.
    """
    complete, sizer = fit_plan(plan, model), atom_sizer(model)
    widths = kept_widths(complete, model)
    active = active_experts(model, complete, routing)
    alone = sizer.stored(widths)
    outside = alone.disk.params - sizer.experts(widths).params
    numbers = (*_numbers(alone), outside + active.params, active.flops)
    rows: list[tuple[object, ...]] = [(PLAN_ALONE, "", *numbers)]
    rows += [_mode_row(sizer, widths, WidthChoice(mode, multiple_of)) for mode in WidthMode]
    table = pd.DataFrame(rows, columns=list(ATOM_SIZE_COLUMNS))
    return table.astype(dict.fromkeys(ATOM_SIZE_COLUMNS[2:], "Int64"))


def _numbers(stored: StoredSize) -> tuple[int, int, int, int]:
    disk, loaded = stored.disk, stored.loaded
    return disk.params, disk.nbytes, loaded.params, loaded.nbytes


def _mode_row(sizer: AtomSizer, kept: KeptWidths, choice: WidthChoice) -> tuple[object, ...]:
    try:
        stored = sizer.stored(kept, choice)
    except PlanError as error:
        return (str(choice.mode), str(error), *[None] * 6)
    loaded = sizer.loaded(kept, choice)
    # Whichever experts a token is routed to, those of a layer are equally wide.
    chosen = {
        layer.index: dict(list(loaded[layer.index].items())[: layer.top_k])
        for layer in sizer.model.layers
    }
    outside = stored.loaded.params - sizer.experts(loaded).params
    flops = 2 * sum(
        sizer.shapes[layer].neuron_weights * sum(experts.values())
        for layer, experts in chosen.items()
    )
    active = outside + sizer.experts(chosen).params
    return (str(choice.mode), "", *_numbers(stored), active, flops)
