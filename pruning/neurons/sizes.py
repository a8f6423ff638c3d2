"""Sizes of plans of neurons per width mode, from headers alone, and budgets from a target size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np

from analysis.arrays import IntArray
from analysis.errors import PlanError
from analysis.lazy import pd
from analysis.model import MoEModel
from analysis.widths import expert_widths
from pruning.active import Routing, active_experts, expert_shapes
from pruning.budget import Budget, SizeTarget
from pruning.neurons.budget import NEURONS, ExpertKey, reachable_totals
from pruning.neurons.kept import kept_widths
from pruning.neurons.selection import Contest
from pruning.neurons.widths import DEFAULT_MULTIPLE, LoadedWidths, WidthChoice, WidthMode, loaded_as
from pruning.plan import PruningPlan, fit_plan
from pruning.sizes import tensors_of

KeptWidths = Mapping[int, Mapping[int, int]]  # layer -> expert that stays -> neurons it keeps
NEURON_SIZE_COLUMNS = (
    *("mode", "refused", "params", "disk", "loaded_params", "loaded", "active", "expert_flops"),
)
PLAN_ALONE = "plan"


class NeuronSizer:
    """Sizes of plans of neurons for a model whose experts are not quantised.

    A size is (2,): bytes in the dtypes on disk without headers, and parameters.
    """

    def __init__(self, model: MoEModel) -> None:
        self.model, self.shapes, self.tensors = model, expert_shapes(model), tensors_of(model)
        self.full_widths = {n: dict(enumerate(each)) for n, each in expert_widths(model).items()}

    def stored(self, kept: KeptWidths, choice: WidthChoice | None = None) -> IntArray:
        """(2, 2): size on disk and in memory; without a choice, of the kept neurons alone."""
        head = self.copied(kept) * (1, 0)
        if choice is None:
            return np.stack([self._with(kept, None)] * 2) + head
        built = self._built(kept, choice)
        loaded = _fill(kept, built)
        on_disk = kept if choice.mode is WidthMode.RAGGED else loaded
        return np.stack([self._with(on_disk, built), self._with(loaded, built)]) + head

    def experts(self, widths: KeptWidths) -> IntArray:
        """Size of the routed experts of these widths."""
        size = np.zeros(2, np.int64)
        for layer, experts in widths.items():
            size += self.shapes[layer].size(len(experts), sum(experts.values()))
        return size

    def row(self, kept: KeptWidths, choice: WidthChoice) -> tuple[object, ...]:
        """A width mode as a row of NEURON_SIZE_COLUMNS."""
        try:
            stored, built = self.stored(kept, choice), self._built(kept, choice)
        except PlanError as error:
            return (str(choice.mode), str(error), *[None] * 6)
        loaded = _fill(kept, built)
        # All experts of a layer are equally wide, so any top_k of them stand for those chosen.
        chosen = {
            layer.index: dict(list(loaded[layer.index].items())[: layer.top_k])
            for layer in self.model.layers
        }
        active = self.used(loaded, built) + self.experts(chosen)
        flops = 2 * sum(
            self.shapes[layer].neuron_weights * sum(experts.values())
            for layer, experts in chosen.items()
        )
        return (str(choice.mode), "", *_numbers(stored), int(active[1]), flops)

    def used(self, widths: KeptWidths, built: LoadedWidths | None = None) -> IntArray:
        """Size of what a text token uses besides the experts, which have these widths."""
        return self._trunk(widths, built) - self.experts(widths) - self.tensors.towers

    def copied(self, kept: KeptWidths) -> IntArray:
        """Size of the head that an export writes beside its embedding; none if nothing goes."""
        return self.tensors.own_head * (kept != self.full_widths)

    def _built(self, kept: KeptWidths, choice: WidthChoice) -> LoadedWidths:
        needed = {layer: max(experts.values()) for layer, experts in kept.items()}
        return loaded_as(self.model, needed, choice)

    def _with(self, widths: KeptWidths, built: LoadedWidths | None) -> IntArray:
        """Size of the model with experts of these widths."""
        size, tensors = self._trunk(widths, built), self.tensors
        count = max(map(len, widths.values()))
        same_count = all(layer.num_experts == count for layer in self.model.layers)
        same_width = built is None or built.scalar == self.model.config[self.model.family.width_key]
        stay = not tensors.heads_have_experts or (same_count and same_width)
        return size + tensors.heads if stay else size

    def _trunk(self, widths: KeptWidths, built: LoadedWidths | None) -> IntArray:
        tensors = self.tensors
        size = sum(tensors.outside.values(), self.experts(widths))
        for layer, experts in widths.items():
            size += len(experts) * tensors.routers[layer]
        if built is not None and built.shared is not None:
            grown = tensors.shared // tensors.shared_width * built.shared * built.scalar
            size += grown - tensors.shared
        return size


def _fill(kept: KeptWidths, built: LoadedWidths) -> KeptWidths:
    return {layer: dict.fromkeys(experts, built.widths[layer]) for layer, experts in kept.items()}


def neuron_plan_sizes(
    model: MoEModel,
    plan: PruningPlan,
    multiple_of: int = DEFAULT_MULTIPLE,
    routing: Routing | None = None,
) -> pd.DataFrame:
    """Table of NEURON_SIZE_COLUMNS: the plan alone, then one row per width mode.

    `params` and `disk` (bytes without file headers) are on disk, `loaded_params` and `loaded` in
    memory. `active` parameters and `expert_flops` are per token: of the plan alone by how often
    experts are chosen (see `active_experts`), of a mode as computed, zeros included. `refused` says
    why a mode is impossible; all else is then missing.
    """
    complete, sizer = fit_plan(plan, model), NeuronSizer(model)
    widths = kept_widths(complete.kept_neurons, complete.kept, model)
    active = active_experts(model, complete, routing)
    alone = sizer.stored(widths)
    used = int(sizer.used(widths)[1]) + active.params
    rows: list[tuple[object, ...]] = [(PLAN_ALONE, "", *_numbers(alone), used, active.flops)]
    rows += [sizer.row(widths, WidthChoice(mode, multiple_of)) for mode in WidthMode]
    table = pd.DataFrame(rows, columns=list(NEURON_SIZE_COLUMNS))
    return table.astype(dict.fromkeys(NEURON_SIZE_COLUMNS[2:], "Int64"))


def _numbers(stored: IntArray) -> list[int]:
    return [int(number) for number in stored[:, ::-1].ravel()]


def neuron_size_budget(
    contest: Contest,
    sizer: NeuronSizer,
    target: SizeTarget,
    choice: WidthChoice | None = None,
    experts: Mapping[int, Sequence[int]] | None = None,
) -> Budget:
    """The smallest B that meets the target; `experts` stay in layers that lose whole experts.

    A size on disk includes the zeros that fill up experts in the width mode `choice`. A share of
    the parameters (HEAPr, Fig. 2) does not: it is of all numbers in all tensors of the checkpoint,
    including embeddings, attention, dense layers, routers, shared experts and prediction heads.
    Removed neurons take their rows, columns and bias entries, dropped experts their router rows.
    """
    if nothing := target.nothing(contest.pools, NEURONS):
        return nothing
    stored = None if target.kind == "params" else choice or WidthChoice()
    totals = reachable_totals(contest.pools)

    def size_after(total: int) -> int:
        removed = contest.removed(Budget(total, "size", ""))
        widths = widths_left(contest, removed, experts or {})
        # The bytes of a head that an export copies are among those stored.
        copied = sizer.copied(widths) * (0, 1) if stored else 0
        return target.measure(sizer.stored(widths, stored)[0] + copied)

    full_size, smallest = target.measure(sizer.tensors.total), size_after(totals[-1])
    most = target.most(full_size, sizer.model.name)
    if smallest > most:
        can_go = f"{totals[-1]} of {contest.size} neurons"
        can_go = f"in the width mode {stored.mode} {can_go}" if stored else can_go
        raise target.refusal(sizer.model.name, smallest, full_size, can_go)
    first = bisect_left(totals, True, key=lambda total: size_after(total) <= most)
    # Where experts of a pool differ in width, largest remainders may widen one again.
    while size_after(totals[first]) > most:
        first += 1
    return target.budget(totals[first], words=f", {stored.mode}" if stored else "")


def widths_left(
    contest: Contest, removed: Mapping[ExpertKey, int], stays: Mapping[int, Sequence[int]]
) -> dict[int, dict[int, int]]:
    """Layer -> expert that stays -> neurons it keeps, after `Contest.removed`.

    `stays` are the experts that stay in layers that lose whole experts.
    """
    widths: dict[int, dict[int, int]] = {}
    for (layer, expert), count in removed.items():
        if expert in stays.get(layer, (expert,)):
            widths.setdefault(layer, {})[expert] = contest.rooms[layer, expert].size - count
    return widths
