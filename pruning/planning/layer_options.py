"""Experts kept and bits of every layer within a size, at the least cost: by the exact allocator.

A layer has one option for each number of experts it may lose, in each format. Its cost is the sum
of what removal costs in this layer alone and of what the format does, as far as both were measured;
costs of layers add up, see `pruning.measures.allocator`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from analysis.errors import PlanError
from pruning.measures.allocator import LayerChoices, solve
from pruning.plan.bits import FORMATS, OWN
from pruning.plan.expert_sizes import whole_bytes_in_bits
from pruning.plan.plan import PruningPlan, fit_plan
from pruning.plan.sizes import BYTES, format_bytes, size_up, tensors_of, weight_bytes

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel
    from pruning.plan.units import Removed

# Layers times steps of bytes. Of models of 48 and 94 layers with 128 experts these take a second,
# and the steps leave up to 0.3% of a size unused, which `_filled` spends.
_MOST_CELLS: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class LayerOption:
    """What a layer may become."""

    removed: int  # experts
    bits: str  # format, or OWN
    nbytes: int  # of its experts and their router rows
    cost: float


Options = Sequence[Sequence[LayerOption]]  # of each layer, in order of the layers


def layer_options(
    model: MoEModel,
    plan_of: Callable[[Removed], PruningPlan],
    removal: Sequence[Mapping[int, float]],
    in_bits: Sequence[Mapping[str, float]],
) -> tuple[tuple[LayerOption, ...], ...]:
    """The options of each layer.

    Args:
        plan_of: removed from each layer -> plan.
        removal: of each layer, number of experts that it may lose -> cost.
        in_bits: of each layer, format or OWN -> cost.
    """
    layers = [layer.index for layer in model.layers]
    depth = max(map(len, removal))
    options: list[list[LayerOption]] = [[] for _ in layers]
    numbers = [sorted(costs) for costs in removal]
    for place in range(depth):
        # One plan has the place-th number of every layer; those with fewer repeat their last.
        removed = tuple(own[min(place, len(own) - 1)] for own in numbers)
        plan = fit_plan(plan_of(removed), model)
        for bits in in_bits[0]:
            sizes = layer_bytes(model, plan, bits)
            for at, own in enumerate(numbers):
                if place < len(own):
                    cost = removal[at][own[place]] + in_bits[at][bits]
                    option = LayerOption(own[place], bits, sizes[layers[at]], cost)
                    options[at].append(option)
    return tuple(map(tuple, options))


def cheapest(layers: Options, nbytes: int, besides: int = 0) -> tuple[LayerOption, ...]:
    """The option of each layer that cost least together and take at most so many bytes.

    `besides` are bytes of what has no options.

    Exact where bytes divide into at most 4 million steps of all layers together; else bytes saved
    count in coarser steps, rounded down, so that the size holds, and what this leaves unused goes
    where it helps most.

    Raises:
        PlanError: even the smallest options take more.
    """
    rivals = [_rivals(options) for options in layers]
    smallest = [options[-1] for options in rivals]
    if (least := _bytes_of(smallest) + besides) > nbytes:
        raise PlanError(
            f"No allocation takes at most {format_bytes(nbytes)}; the smallest takes "
            f"{format_bytes(least)}. Give --target-size {size_up(least)} or more."
        )
    saved = [[options[0].nbytes - option.nbytes for option in options] for options in rivals]
    step = math.gcd(*(number for row in saved for number in row)) or 1
    total = sum(row[-1] for row in saved)
    if len(rivals) * total > step * _MOST_CELLS:
        step = -(-len(rivals) * total // _MOST_CELLS)
    choices, places = [], []
    for options, row in zip(rivals, saved, strict=True):
        # Of options in one step the first costs least.
        steps, firsts = np.unique(np.array(row) // step, return_index=True)
        places.append(dict(zip(steps.tolist(), firsts.tolist(), strict=True)))
        choices.append(LayerChoices(steps, np.array([options[at].cost for at in firsts])))
    needed = -(-max(_bytes_of([options[0] for options in rivals]) + besides - nbytes, 0) // step)
    solutions = solve(choices)
    if needed > solutions.totals[-1]:
        return _filled(rivals, smallest, nbytes - least)  # between two steps
    removed = solutions.at_least(needed).removed
    rows = zip(rivals, places, removed, strict=True)
    chosen = [options[by_steps[steps]] for options, by_steps, steps in rows]
    return _filled(rivals, chosen, nbytes - besides - _bytes_of(chosen))


def _filled(rivals: Options, chosen: Sequence[LayerOption], room: int) -> tuple[LayerOption, ...]:
    """Better options of single layers for so many bytes more, those first that save most cost."""
    best = list(chosen)
    while True:
        better = []
        for at, (options, own) in enumerate(zip(rivals, best, strict=True)):
            # The first that fits costs least.
            option = next(option for option in options if option.nbytes <= own.nbytes + room)
            better.append((option.cost - own.cost, at, option))
        saved, at, option = min(better, key=lambda change: change[:2])
        if saved >= 0:
            return tuple(best)
        room -= option.nbytes - best[at].nbytes
        best[at] = option


def _rivals(options: Sequence[LayerOption]) -> list[LayerOption]:
    """Those that no other of at most their size undercuts, the largest and cheapest first."""
    best: list[LayerOption] = []
    for option in sorted(options, key=lambda option: (option.nbytes, option.cost)):
        if not best or option.cost < best[-1].cost:
            best.append(option)
    return best[::-1]


def cheapest_alike(
    layers: Options, nbytes: int, besides: int = 0
) -> tuple[LayerOption, ...] | None:
    """The same with one format and one number of all layers; None if none fits.

    Layers that have no choice of a number may differ in it.
    """
    depth = min(map(len, layers))
    alike = [tuple(options[at] for options in layers) for at in range(depth)]
    is_given = all(len({option.removed for option in options}) == 1 for options in layers)
    fitting = [
        row
        for row in alike
        if _bytes_of(row) + besides <= nbytes
        and len({option.bits for option in row}) == 1
        and (is_given or len({option.removed for option in row}) == 1)
    ]
    return min(fitting, key=cost_of, default=None)


def cost_of(options: Sequence[LayerOption]) -> float:
    """The cost of all layers together."""
    return math.fsum(option.cost for option in options)


def _bytes_of(options: Sequence[LayerOption]) -> int:
    return sum(option.nbytes for option in options)


def bytes_besides(model: MoEModel, plan: PruningPlan) -> int:
    """Bytes of all weights but experts and their router rows, in a file of a changed model."""
    bits = next(reversed(FORMATS))
    light = replace(fit_plan(plan, model), bits=bits, layer_bits={})
    return weight_bytes(model, light) - sum(layer_bytes(model, light, bits).values())


def layer_bytes(model: MoEModel, plan: PruningPlan, bits: str) -> dict[int, int]:
    """Layer -> bytes of the whole experts that a complete plan keeps, with their router rows.

    `bits` is the format of all of them, or OWN, whatever the plan's.
    """
    tensors = tensors_of(model)
    rows = zip(tensors.experts.items(), tensors.routers[:, BYTES].tolist(), strict=True)
    nbytes = {}
    for (layer, sizes), row in rows:
        kept = list(plan.kept[layer])
        experts = (
            int(sizes[kept, BYTES].sum())
            if bits == OWN
            else whole_bytes_in_bits(model, layer, kept, bits)
        )
        nbytes[layer] = len(kept) * row + experts
    return nbytes


def check_size(model: MoEModel, plan: PruningPlan, nbytes: int) -> None:
    """Refuse a plan that is larger: a ValueError, as allocations within a size are not."""
    if (size := weight_bytes(model, plan)) > nbytes:
        raise ValueError(f"the plan takes {size_up(size)}, which is more than asked")


def plan_with_bits(
    model: MoEModel, plan: PruningPlan, chosen: Sequence[LayerOption]
) -> PruningPlan:
    """The plan with the bits that were chosen."""
    pairs = zip(model.layers, chosen, strict=True)
    layer_bits = {layer.index: option.bits for layer, option in pairs if option.bits != OWN}
    return fit_plan(replace(plan, bits="", layer_bits=layer_bits), model)
