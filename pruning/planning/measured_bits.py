"""Sensitivity to bits: what each layer loses whose experts alone have fewer bits. No torch.

It is measured and stored as that to removal is. In place of a number of experts that a layer loses
stands the place of its format in BITS: 0 is as the checkpoint stores them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from analysis.files.naming import digest_of
from analysis.model.moe_model import MoEModel
from pruning.measures.curves import curves_of
from pruning.measures.names import CostName
from pruning.measures.points import Point, whole_point
from pruning.plan.bits import BITS
from pruning.plan.plan import PruningPlan, fit_plan, keep_all
from pruning.plan.sizes import weight_bytes
from pruning.plan.units import Removed, Units
from pruning.planning.measured import Order
from pruning.records.sensitivity import OrderRef, SensitivityStore

_BITS: Final = "bits"  # in place of a criterion and a granularity
_MOST: Final = len(BITS) - 1


def bits_order(model: MoEModel) -> Order:
    """The order of the formats, for experts that all stay."""
    original, layers = keep_all(model), [layer.index for layer in model.layers]

    def plan_of(places: Removed) -> PruningPlan:
        layer_bits = {
            layer: BITS[place] for layer, place in zip(layers, places, strict=True) if place
        }
        return fit_plan(replace(original, layer_bits=layer_bits), model)

    def bytes_of(places: Removed) -> int:
        return weight_bytes(model, plan_of(places))

    sizes = dict.fromkeys(layers, _MOST)
    units = Units(tuple(sizes.values()), (0,) * len(layers), (_MOST,) * len(layers))
    ref = OrderRef(_BITS, _BITS, digest_of({"formats": BITS}))
    stay = tuple(layer.num_experts for layer in model.layers)
    return Order(ref, sizes, units, plan_of, bytes_of, stay)


def bits_points(model: MoEModel, bits: Sequence[str]) -> list[Point]:
    """The original, and each layer alone in each of these formats."""
    nothing = (0,) * len(model.layers)
    places = sorted(BITS.index(name) for name in bits)
    alone = (Point(nothing, layer, place) for layer in range(len(nothing)) for place in places)
    return [whole_point(nothing), *alone]


def bits_costs(
    model: MoEModel, known: SensitivityStore, cost: CostName
) -> dict[str, tuple[Mapping[str, float], ...]]:
    """Corpus -> of each layer, in order, format -> cost of it alone in that.

    Formats are those that all layers were measured in, and OWN.
    """
    by_corpus: dict[str, tuple[Mapping[str, float], ...]] = {}
    for record in known.of_order(model.identity, bits_order(model).ref.digest):
        corpus = str(record.corpus["name"])
        curves = curves_of(known.points(record), len(record.layers), cost)
        if curves is None or corpus in by_corpus:
            continue
        places = set.intersection(*(set(curve.removed.tolist()) for curve in curves.layers))
        if len(places) > 1:  # an interrupted measurement may have none but OWN
            by_corpus[corpus] = tuple(
                {BITS[place]: curve.at(place) for place in sorted(places)}
                for curve in curves.layers
            )
    return by_corpus
