"""Tables of plans of neurons: scores against true changes of the loss, shares of layers, FLOPs."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import PlanError
from analysis.model import MoEModel
from analysis.neuron_norms import NeuronScores
from analysis.sparsity import parse_sparsity
from pruning.active import Routing, active_experts, expert_shapes, token_shares
from pruning.atoms.budget import atom_sparsity_budget
from pruning.atoms.kept import KeptAtoms, ordered_atoms
from pruning.atoms.rooms import ExpertKey
from pruning.atoms.selection import Contest
from pruning.atoms.target import widths_left
from pruning.plan import PruningPlan, fit_plan, model_ref

NUM_BINS = 10
BIN_COLUMNS = ("bin", "neurons", "score", "score_share", "change", "change_share")
Order = Literal["score", "index"]


def bins_of(scores: NeuronScores, order: Order = "score", bins: int = NUM_BINS) -> NDArray[np.intp]:
    """The bin of every neuron, in order of layer, expert and neuron; bins are equally large.

    Args:
        scores: layer -> for each expert, a number for each neuron.
        order: `score`: the first bin has the lowest scores; `index`: the first layers, as HEAPr's
            Figure 3 orders them.
        bins: how many; where they cannot be equal, they differ by one neuron.
    """
    flat = _flat(scores)
    places = np.arange(len(flat))
    if order == "score":
        places[np.argsort(flat, kind="stable")] = np.arange(len(flat))
    return places * bins // len(flat)


def without_bin(scores: NeuronScores, bin_of: NDArray[np.intp], gone: int) -> KeptAtoms:
    """The neurons that stay, of every expert that loses some, when one bin goes."""
    kept: dict[int, dict[int, tuple[int, ...]]] = {}
    start = 0
    for layer in sorted(scores):
        for expert, values in enumerate(scores[layer]):
            held = bin_of[start : start + len(values)]
            start += len(values)
            if (held == gone).any():
                stays = np.flatnonzero(held != gone)
                kept.setdefault(layer, {})[expert] = tuple(stays.tolist())
    return ordered_atoms(kept)


def bin_table(
    scores: NeuronScores, bin_of: NDArray[np.intp], losses: Sequence[float], full_loss: float
) -> pd.DataFrame:
    """Table of BIN_COLUMNS: what the scores of each bin sum to, and what its removal cost.

    Args:
        scores: of every neuron.
        bin_of: see `bins_of`.
        losses: of the model without bin 0, 1, ..., in nats per token.
        full_loss: of the whole model.

    `score_share` and `change_share` are parts of their sums over the bins, so that both can be
    drawn together; a change may be negative.
    """
    flat = _flat(scores)
    sums = np.bincount(bin_of, flat, minlength=len(losses)).astype(np.float64)
    changes = np.asarray(losses, dtype=np.float64) - full_loss
    return pd.DataFrame(
        {
            "bin": np.arange(len(losses)),
            "neurons": np.bincount(bin_of, minlength=len(losses)),
            "score": sums,
            "score_share": _shares(sums),
            "change": changes,
            "change_share": _shares(changes),
        }
    )


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

    Raises:
        PlanError: a sparsity that is out of range, or no neurons.
    """
    total = sum(room.size for room in contest.rooms.values())
    if not total:
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
        rows.append((sparsity, sum(removed.values()) / total, flops, 1 - flops / before.flops))
    return pd.DataFrame(rows, columns=["sparsity", "removed", "flops", "reduction"])


def _tokens_width(shares: Mapping[int, Fraction], widths: Mapping[int, int]) -> Fraction:
    """Neurons of a layer that one token uses, expected."""
    return sum((share * widths[expert] for expert, share in shares.items()), Fraction(0))


def _flat(scores: NeuronScores) -> NDArray[np.float64]:
    return np.concatenate([each for layer in sorted(scores) for each in scores[layer]])


def _shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    total = values.sum()
    return values / total if total else np.zeros_like(values)
