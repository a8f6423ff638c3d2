"""Tables of plans of neurons: shares of layers, FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from analysis.errors import PlanError
from analysis.lazy import pd
from analysis.model import MoEModel
from analysis.sparsity import parse_sparsity
from pruning.active import Routing, active_experts, expert_shapes, token_shares
from pruning.atoms.budget import atom_sparsity_budget
from pruning.atoms.rooms import ExpertKey
from pruning.atoms.selection import Contest
from pruning.atoms.target import widths_left
from pruning.plan import PruningPlan, fit_plan, model_ref


def layer_shares(
    removed: Mapping[str, Mapping[ExpertKey, int]], widths: Mapping[int, Sequence[int]]
) -> pd.DataFrame:
    """Table `series, layer, share`: the fraction of each layer's neurons that goes, 0..1.

    Args:
        removed: name of a series -> how many neurons each expert loses, see `Contest.removed`.
        widths: layer -> neurons of each of its experts.
    """
    rows = []
    for series, gone in removed.items():
        of_layer = dict.fromkeys(sorted(widths), 0)
        for (layer, _), number in gone.items():
            of_layer[layer] += number
        rows += [(series, layer, n / sum(widths[layer])) for layer, n in of_layer.items()]
    return pd.DataFrame(rows, columns=["series", "layer", "share"])


def flops_saved(
    model: MoEModel,
    contest: Contest,
    sparsities: Sequence[str],
    routing: Routing | None = None,
    experts: Mapping[int, Sequence[int]] | None = None,
) -> pd.DataFrame:
    """Table `sparsity, removed, flops, reduction`: FLOPs of routed experts per token, expected.

    removed is the fraction of neurons that goes, flops what is left, reduction the fraction of the
    whole model's FLOPs of experts that is saved, 0..1: not the same, because experts that lose much
    are seldom chosen. Sparsities that the constraints do not allow are left out.

    Args:
        model: the source.
        contest: the neurons that compete.
        sparsities: shares of the neurons.
        routing: how often each expert is chosen; without it, all equally often.
        experts: those that stay, of layers that lose whole ones.
    """
    if not contest.size:
        raise PlanError("The model has no neurons to remove.")
    before = active_experts(model, fit_plan(PruningPlan(model_ref(model), {}), model), routing)
    shapes, rows = expert_shapes(model), []
    for sparsity in sparsities:
        parse_sparsity(sparsity)
        try:
            removed = contest.removed(atom_sparsity_budget(contest.pools, sparsity))
        except PlanError:
            continue
        left = widths_left(contest, removed, experts or {})
        flops = round(
            2
            * sum(
                shapes[layer.index].neuron_weights
                * _tokens_width(token_shares(layer, left[layer.index], routing), left[layer.index])
                for layer in model.layers
            )
        )
        rows.append(
            (sparsity, sum(removed.values()) / contest.size, flops, 1 - flops / before.flops)
        )
    return pd.DataFrame(rows, columns=["sparsity", "removed", "flops", "reduction"])


def _tokens_width(shares: Mapping[int, Fraction], widths: Mapping[int, int]) -> Fraction:
    """Neurons of a layer that one token uses, expected."""
    return sum((share * widths[expert] for expert, share in shares.items()), Fraction(0))
