"""Fewer experts per token: what layers can give up, and who does, by what was measured of it."""

from dataclasses import replace

from analysis.errors import PlanError
from analysis.files.naming import digest_of
from analysis.model.moe_model import MoEModel
from pruning.plan.experts_per_token import check_top_k, fewer_in_all, top_k_text
from pruning.plan.plan import PruningPlan, keep_all, removes_nothing
from pruning.plan.sizes import weight_bytes
from pruning.plan.units import Removed, Units
from pruning.planning.measured import Order, every_curve, sensitivity_of
from pruning.planning.ranking import Place
from pruning.records.sensitivity import OrderRef, SensitivityStore
from pruning.spec.base import command_line, repeated
from pruning.spec.spec import PlanSpec

_KIND = "experts per token"  # in place of a granularity, in records


def order_per_token(model: MoEModel) -> Order:
    """Plans that keep all experts, and whose layers select fewer of them for each token.

    What a layer loses is the number that it selects less; one is always left.
    Refuses a model with a layer that selects one already: curves are of all layers.
    """
    check_top_k(model, 1)
    if alone := [layer.index for layer in model.layers if layer.top_k == 1]:
        raise PlanError(
            f"Layer {alone[0]} of {model.name} selects one expert per token and cannot select "
            "fewer; curves are of models whose layers all select more."
        )
    whole, own = keep_all(model), {layer.index: layer.top_k for layer in model.layers}
    nbytes = weight_bytes(model, whole)

    def plan_of(removed: Removed) -> PruningPlan:
        numbers = zip(own.items(), removed, strict=True)
        fewer = {layer: number - less for (layer, number), less in numbers}
        return replace(whole, top_k=fewer) if any(removed) else whole

    return Order(
        OrderRef("top-k", _KIND, digest_of({"model": model.identity, "cut": _KIND})),
        own,
        Units(tuple(own.values()), (0,) * len(own), tuple(number - 1 for number in own.values())),
        plan_of,
        lambda _removed: nbytes,
        tuple(map(len, whole.kept.values())),
    )


def with_mean_top_k(
    plan: PruningPlan, model: MoEModel, spec: PlanSpec, known: SensitivityStore, place: Place
) -> PruningPlan:
    """The plan whose layers select as many experts per token on average as its spec says.

    The layers where fewer cost least select fewer, by curves of the model that keeps all experts.
    """
    if (mean := spec.budget.mean_top_k) is None:
        return plan
    order, total = order_per_token(model), fewer_in_all(model, mean)
    curves = sensitivity_of(every_curve(order, model, spec.spread.cost, known), spec.spread)
    if curves is None:
        corpora = spec.spread.measured_on
        on = f" on {' and '.join(corpora)}" if corpora else ""
        words = ["topk", *place.words, *repeated("--corpus", corpora or ("CORPUS",))]
        raise PlanError(
            f"What fewer experts per token cost was not measured{on} yet; run "
            f"`{command_line(*words)}` first."
        )
    removed = curves.spend(order.units, total)
    top_k, made = order.plan_of(removed).top_k, plan.provenance
    parameters = {**made.schedule_parameters, "top_k": curves.to_dict()}
    whole = "" if removes_nothing(plan, model) else " with all experts"
    note = f"Experts per token: {top_k_text(top_k)}. {curves.note(removed)}{whole}"
    return replace(
        plan,
        top_k=top_k,
        provenance=replace(made, schedule_parameters=parameters),
        notes=(*plan.notes, note),
    )
