"""Sizes of plans of neurons per width mode, from headers alone, and budgets from a target size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from analysis.arrays import IntArray
from analysis.errors import PlanError
from analysis.lazy import pd
from analysis.model import MoEModel
from pruning.active import Routing, active_experts, expert_shapes
from pruning.atoms.budget import ExpertKey, reachable_totals
from pruning.atoms.kept import kept_widths
from pruning.atoms.selection import Contest
from pruning.atoms.widths import DEFAULT_MULTIPLE, LoadedWidths, WidthChoice, WidthMode, loaded_as
from pruning.budget import Budget, SizeTarget
from pruning.plan import PruningPlan, fit_plan
from pruning.sizes import tensors_of

# Layer -> expert that stays -> neurons that it keeps.
KeptWidths = Mapping[int, Mapping[int, int]]
ATOM_SIZE_COLUMNS = (
    *("mode", "refused", "params", "disk", "loaded_params", "loaded", "active", "expert_flops"),
)
PLAN_ALONE = "plan"


class AtomSizer:
    """Sizes of plans of neurons, of a model whose experts are not quantised.

    A size is (2,): bytes in the dtypes on disk, headers not counted, and parameters.
    """

    def __init__(self, model: MoEModel) -> None:
        self.model, self.shapes, self.tensors = model, expert_shapes(model), tensors_of(model)

    def stored(self, kept: KeptWidths, choice: WidthChoice | None = None) -> IntArray:
        """Size on disk and in memory, (2, 2); without a choice only neurons that stay count."""
        if choice is None:
            return np.stack([self._with(kept, None)] * 2)
        built = self._built(kept, choice)
        loaded = _filled(kept, built)
        on_disk = kept if choice.mode is WidthMode.RAGGED else loaded
        return np.stack([self._with(on_disk, built), self._with(loaded, built)])

    def experts(self, widths: KeptWidths) -> IntArray:
        """Size of routed experts of these widths."""
        size = np.zeros(2, np.int64)
        for layer, experts in widths.items():
            size += self.shapes[layer].size(len(experts), sum(experts.values()))
        return size

    def row(self, kept: KeptWidths, choice: WidthChoice) -> tuple[object, ...]:
        """A width mode as a row of ATOM_SIZE_COLUMNS."""
        try:
            stored = self.stored(kept, choice)
        except PlanError as error:
            return (str(choice.mode), str(error), *[None] * 6)
        loaded = _filled(kept, self._built(kept, choice))
        # Whichever experts a token is routed to, those of a layer are equally wide.
        chosen = {
            layer.index: dict(list(loaded[layer.index].items())[: layer.top_k])
            for layer in self.model.layers
        }
        active = self.used(loaded, self._built(kept, choice)) + self.experts(chosen)
        flops = 2 * sum(
            self.shapes[layer].neuron_weights * sum(experts.values())
            for layer, experts in chosen.items()
        )
        return (str(choice.mode), "", *_numbers(stored), int(active[1]), flops)

    def used(self, widths: KeptWidths, built: LoadedWidths | None = None) -> IntArray:
        """Size of all that a token of text uses besides experts, which have these widths."""
        return self._trunk(widths, built) - self.experts(widths) - self.tensors.towers

    def _built(self, kept: KeptWidths, choice: WidthChoice) -> LoadedWidths:
        needed = {layer: max(experts.values()) for layer, experts in kept.items()}
        return loaded_as(self.model, needed, choice)

    def _with(self, widths: KeptWidths, built: LoadedWidths | None) -> IntArray:
        """Size with experts of these widths and all other weights."""
        size, tensors = self._trunk(widths, built), self.tensors
        count = max(map(len, widths.values()))
        same_count = all(layer.num_experts == count for layer in self.model.layers)
        same_width = built is None or built.scalar == self.model.config[self.model.family.width_key]
        stay = not tensors.heads_have_experts or (same_count and same_width)
        return size + tensors.heads if stay else size

    def _trunk(self, widths: KeptWidths, built: LoadedWidths | None) -> IntArray:
        tensors = self.tensors
        size = sum(tensors.outside.values(), self.experts(widths))
        size += tensors.own_head * (1, 0)
        for layer, experts in widths.items():
            size += len(experts) * tensors.routers[layer]
        if built is not None and built.shared is not None:
            grown = tensors.shared // tensors.shared_width * built.shared * built.scalar
            size += grown - tensors.shared
        return size


def _filled(kept: KeptWidths, built: LoadedWidths) -> KeptWidths:
    return {layer: dict.fromkeys(experts, built.widths[layer]) for layer, experts in kept.items()}


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
    complete, sizer = fit_plan(plan, model), AtomSizer(model)
    widths = kept_widths(complete.kept_atoms, complete.kept, model)
    active = active_experts(model, complete, routing)
    alone = sizer.stored(widths)
    outside = int(sizer.used(widths)[1])
    rows: list[tuple[object, ...]] = [
        (PLAN_ALONE, "", *_numbers(alone), outside + active.params, active.flops)
    ]
    rows += [sizer.row(widths, WidthChoice(mode, multiple_of)) for mode in WidthMode]
    table = pd.DataFrame(rows, columns=list(ATOM_SIZE_COLUMNS))
    return table.astype(dict.fromkeys(ATOM_SIZE_COLUMNS[2:], "Int64"))


def _numbers(stored: IntArray) -> list[int]:
    return [int(number) for number in stored[:, ::-1].ravel()]


def atom_size_budget(
    contest: Contest,
    sizer: AtomSizer,
    target: SizeTarget,
    choice: WidthChoice | None = None,
    experts: Mapping[int, Sequence[int]] | None = None,
) -> Budget:
    """The smallest B that meets the target; `experts` stay, of layers that lose whole ones.

    On disk, zeros that fill experts up in the width mode `choice` count as well. Of a share of the
    parameters (HEAPr, its Fig. 2) they do not: the model's parameters are all numbers in all
    tensors of the checkpoint, embeddings, attention, dense layers, routers, shared experts and
    prediction heads included; what is taken are the rows and columns of the neurons that go, with
    their entries of biases, and whole experts that are dropped with their rows of the router.
    """
    stored = None if target.kind == "params" else choice or WidthChoice()

    # Of the head that an export copies, its bytes are among the stored ones.
    copied = sizer.tensors.own_head * (0, 1) if target.kind != "params" else 0

    def size(widths: KeptWidths) -> int:
        return target.measure(sizer.stored(widths, stored)[0] + copied)

    whole, ladder = target.measure(sizer.tensors.whole), _Ladder(contest, experts or {}, size)
    most = target.most(whole, sizer.model.name)
    words = "" if stored is None else f", {stored.mode}"
    if ladder.smallest > most:
        can_go = f"{ladder.totals[-1]} of {contest.size} neurons"
        if stored is not None:
            can_go = f"in the width mode {stored.mode} {can_go}"
        raise target.refusal(sizer.model.name, ladder.smallest, whole, can_go)
    return target.budget(ladder.first(most), words=words)


@dataclass(frozen=True, eq=False)
class _Ladder:
    """Sizes after ever more neurons are gone; `stays` as in `widths_left`."""

    contest: Contest
    stays: Mapping[int, Sequence[int]]
    size: Callable[[KeptWidths], int]

    @property
    def totals(self) -> range:
        """Every B that can be spent."""
        return reachable_totals(self.contest.pools)

    def after(self, total: int) -> int:
        """The size when so many neurons are gone."""
        removed = self.contest.removed(Budget(total, "size", ""))
        return self.size(widths_left(self.contest, removed, self.stays))

    @cached_property
    def smallest(self) -> int:
        """The size when all that can go are gone."""
        return self.after(self.totals[-1])

    def first(self, most: Fraction) -> int:
        """The smallest B that leaves at most so much; the largest must."""
        fits = bisect_left(self.totals, True, key=lambda total: self.after(total) <= most)
        # Where experts of a pool are not equally wide, largest remainders may widen one again.
        while self.after(self.totals[fits]) > most:
            fits += 1
        return self.totals[fits]


def widths_left(
    contest: Contest, removed: Mapping[ExpertKey, int], stays: Mapping[int, Sequence[int]]
) -> dict[int, dict[int, int]]:
    """Layer -> expert that stays -> neurons that it keeps.

    `removed` is of `Contest.removed`; `stays` are experts, of layers that lose whole ones.
    """
    left: dict[int, dict[int, int]] = {}
    for (layer, expert), gone in removed.items():
        if expert in stays.get(layer, (expert,)):
            left.setdefault(layer, {})[expert] = contest.rooms[layer, expert].size - gone
    return left
