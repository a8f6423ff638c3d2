"""Budgets of neurons from a target: a size in some width mode, or a share of the parameters."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from analysis.errors import PlanError
from analysis.sparsity import parse_sparsity
from pruning.atoms.budget import reachable_totals
from pruning.atoms.rooms import ExpertKey
from pruning.atoms.selection import Contest
from pruning.atoms.sizes import AtomSizer, KeptWidths
from pruning.atoms.widths import WidthChoice
from pruning.budget import BFLOAT16_BYTES, GIB, Budget, TargetDtype, gib_up, parse_gib
from pruning.sizes import format_bytes


@dataclass(frozen=True, slots=True)
class AtomTarget:
    """How small the weights are to become."""

    gib: str  # GiB (2^30 bytes) on disk, a decimal number
    dtype: TargetDtype = "own"  # the checkpoint's own dtypes, or 2 bytes for each parameter
    # How widths are stored; zeros that fill experts up count as well.
    choice: WidthChoice = field(default_factory=WidthChoice)


def atom_size_budget(
    contest: Contest,
    sizer: AtomSizer,
    target: AtomTarget,
    experts: Mapping[int, Sequence[int]] | None = None,
) -> Budget:
    """The smallest B with which the weights take at most the target on disk.

    Counts tensors: not the headers of files, nor the tokenizer. `experts` are those that stay, of
    layers that lose whole ones.
    """
    most = parse_gib(target.gib) * GIB

    def size(widths: KeptWidths) -> int:
        nbytes, params = sizer.stored(widths, target.choice)[0].tolist()
        return int(nbytes if target.dtype == "own" else params * BFLOAT16_BYTES)

    ladder = _Ladder(contest, experts or {}, size)
    if ladder.smallest > most:
        raise PlanError(
            f"{sizer.model.name} cannot shrink to {target.gib} GiB by removing neurons in the "
            f"width mode {target.choice.mode}: {ladder.totals[-1]} of {contest.size} can go, "
            f"which leaves {format_bytes(ladder.smallest)}; the smallest target that works is "
            f"{gib_up(ladder.smallest)}."
        )
    named = f"{target.gib.strip()} GiB{'' if target.dtype == 'own' else ' ' + target.dtype}"
    return Budget(ladder.first(most), "size", f"{named}, {target.choice.mode}")


def atom_params_budget(
    contest: Contest,
    sizer: AtomSizer,
    share: str,
    experts: Mapping[int, Sequence[int]] | None = None,
) -> Budget:
    """The smallest B that takes at least a share of the model's parameters (HEAPr, its Fig. 2).

    The model's parameters are all numbers in all tensors of the checkpoint: embeddings, attention,
    dense layers, routers, shared experts and prediction heads count as well as the routed experts.
    What is taken are the rows and columns of the neurons that go, with their entries of biases,
    whole experts that are dropped with their rows of the router. Zeros with which a width mode
    fills experts up do not count. `share` is written as a sparsity; `experts` are those that stay,
    of layers that lose whole ones.
    """
    rho = parse_sparsity(share)
    whole = int(sizer.tensors.whole[1])
    ladder = _Ladder(contest, experts or {}, lambda widths: int(sizer.stored(widths)[0, 1]))
    if ladder.smallest > (1 - rho) * whole:
        # Rounded down, so that it can be asked for.
        most = 10_000 * (whole - ladder.smallest) // whole / 100
        raise PlanError(
            f"{share} of the parameters of {sizer.model.name} cannot go by removing neurons: "
            f"{ladder.totals[-1]} of {contest.size} can go; the largest share that works is "
            f"{most:g}%."
        )
    return Budget(ladder.first((1 - rho) * whole), "params", share.strip())


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
