"""Budgets of neurons from a target: a size in some width mode, or a share of the parameters."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from pruning.atoms.budget import reachable_totals
from pruning.atoms.rooms import ExpertKey
from pruning.atoms.selection import Contest
from pruning.atoms.sizes import AtomSizer, KeptWidths
from pruning.atoms.widths import WidthChoice
from pruning.budget import Budget, SizeTarget


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
