"""Orders: what each layer loses first, second ... under the rules of its router."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from analysis.model import MoEModel
from analysis.stats.store import digest_of
from pruning.allocation import Removed
from pruning.atoms.kept import kept_widths
from pruning.budget import Budget
from pruning.constraints import Constraints, Room, rooms_of
from pruning.plan import ATOMIC_GRANULARITY, PruningPlan, model_ref, select_experts
from pruning.planning.neurons import arena_of
from pruning.planning.ranking import Ranking
from pruning.requests.plan import PlanRequest
from pruning.schedules import MEASURED
from pruning.schedules.base import allocation_of
from pruning.search.store import order_digest
from pruning.sensitivity.record import OrderRef


@dataclass(frozen=True, eq=False)
class Order:
    """An order, whatever the budget."""

    ref: OrderRef
    sizes: Mapping[int, int]  # experts or neurons of each layer, by decoder index
    # What layers may lose in this order; a plan's own constraints may leave less.
    rooms: tuple[Room, ...]
    plan_of: Callable[[Removed], PruningPlan]  # the plan in which each layer loses so many


def order_of(ranking: Ranking, request: PlanRequest) -> Order:
    """The order that a criterion gives under the constraints of a request that change it.

    Those are pinned and dropped experts, and of neurons the multiple and the floor of experts. The
    others only say how many a layer may lose.
    """
    return _neurons(ranking, request) if request.is_atomic else _experts(ranking, request)


def removed_by(plan: PruningPlan, sizes: Mapping[int, int], model: MoEModel) -> Removed:
    """Experts or neurons that each layer loses under a complete plan; `sizes` as of `Order`."""
    stay = {layer: len(ids) for layer, ids in plan.kept.items()}
    if plan.granularity == ATOMIC_GRANULARITY:
        widths = kept_widths(plan.kept_atoms, plan.kept, model)
        stay = {layer: sum(experts.values()) for layer, experts in widths.items()}
    return tuple(size - stay[layer] for layer, size in sizes.items())


def _experts(ranking: Ranking, request: PlanRequest) -> Order:
    limits, layers = request.constraints, ranking.model.layers
    own = Constraints(pinned=limits.pinned, dropped=limits.dropped)
    table, digest = ranking.table, order_digest(ranking.table)
    if own.held:
        digest = digest_of({"order": digest, **own.to_dict()})

    def plan_of(removed: Removed) -> PruningPlan:
        ref = model_ref(ranking.model)
        # In front of the level at which they go, also dropped experts stay: in the original.
        cut = {layer.index for layer, gone in zip(layers, removed, strict=True) if gone}
        dropped = {layer: ids for layer, ids in own.dropped.items() if layer in cut}
        limits = replace(own, dropped=dropped)
        return select_experts(table, allocation_of(layers, removed), model=ref, constraints=limits)

    ref = OrderRef(request.criterion, request.granularity, digest)
    sizes = {layer.index: layer.num_experts for layer in layers}
    return Order(ref, sizes, rooms_of(layers, own), plan_of)


def _neurons(ranking: Ranking, request: PlanRequest) -> Order:
    # A protected layer has no say in the order of the others.
    free = request.model_copy(update={"protect": (), "schedule": MEASURED})
    arena = arena_of(ranking, free)
    contest = arena.contest
    rooms = {layer: pool.room for layer, pool in zip(contest.saliency, contest.pools, strict=True)}

    def plan_of(removed: Removed) -> PruningPlan:
        floors = tuple(max(*each) for each in zip(removed, least, strict=True))
        cut = {layer for layer, gone in zip(rooms, removed, strict=True) if gone}
        return arena.plan(ranking.model, Budget(sum(floors), "count", "", floors), cut)

    least = [room.least for room in rooms.values()]
    ref = OrderRef(request.criterion, request.granularity, contest.order_digest)
    sizes = {layer: room.size for layer, room in rooms.items()}
    return Order(ref, sizes, tuple(rooms.values()), plan_of)
