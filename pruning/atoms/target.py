"""Budgets of neurons from a target size, in the width mode that the export will have."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analysis.errors import PlanError
from pruning.atoms.budget import reachable_totals
from pruning.atoms.rooms import ExpertKey
from pruning.atoms.selection import Contest
from pruning.atoms.sizes import AtomSizer
from pruning.atoms.widths import WidthChoice
from pruning.budget import BFLOAT16_BYTES, GIB, Budget, TargetDtype, gib_up, parse_gib
from pruning.sizes import format_bytes


@dataclass(frozen=True, slots=True)
class AtomTarget:
    """How small the weights are to become.

    Args:
        gib: GiB (2^30 bytes) on disk, a decimal number.
        dtype: the checkpoint's own element types, or 2 bytes for each parameter.
        choice: how widths are stored; zeros that fill experts up count as well.
    """

    gib: str
    dtype: TargetDtype = "own"
    choice: WidthChoice = field(default_factory=WidthChoice)


def atom_size_budget(
    contest: Contest,
    sizer: AtomSizer,
    target: AtomTarget,
    experts: Mapping[int, Sequence[int]] | None = None,
) -> Budget:
    """The smallest B with which the weights take at most the target on disk.

    Counts tensors: not the headers of files, nor the tokenizer.

    Args:
        contest: the neurons that compete.
        sizer: the parts of the model.
        target: see `AtomTarget`.
        experts: those that stay, of layers that lose whole ones.

    Raises:
        PlanError: no number, smaller than the model can become, or a width mode that it does not
            allow.
    """
    most, stays = parse_gib(target.gib) * GIB, experts or {}

    def size(total: int) -> int:
        widths = _left(contest, contest.removed(Budget(total, "size", "")), stays)
        disk = sizer.stored(widths, target.choice).disk
        return disk.nbytes if target.dtype == "own" else disk.params * BFLOAT16_BYTES

    totals, of = reachable_totals(contest.pools), sum(room.size for room in contest.rooms.values())
    smallest = size(totals[-1])
    if smallest > most:
        raise PlanError(
            f"{sizer.model.name} cannot shrink to {target.gib} GiB by removing neurons in the "
            f"width mode {target.choice.mode}: {totals[-1]} of {of} can go, which "
            f"leaves {format_bytes(smallest)}; the smallest target that works is "
            f"{gib_up(smallest)}."
        )
    fits = bisect_left(totals, True, key=lambda total: size(total) <= most)
    # Where experts of a pool are not equally wide, largest remainders may widen one again.
    while size(totals[fits]) > most:
        fits += 1
    named = f"{target.gib.strip()} GiB{'' if target.dtype == 'own' else ' ' + target.dtype}"
    return Budget(totals[fits], "size", f"{named}, {target.choice.mode}")


def _left(
    contest: Contest, removed: Mapping[ExpertKey, int], stays: Mapping[int, Sequence[int]]
) -> dict[int, dict[int, int]]:
    """Neurons that each expert that stays keeps."""
    left: dict[int, dict[int, int]] = {}
    for (layer, expert), gone in removed.items():
        if expert in stays.get(layer, (expert,)):
            left.setdefault(layer, {})[expert] = contest.rooms[layer, expert].size - gone
    return left
