"""Tables of plans of neurons: scores against true changes of the loss, shares of layers, FLOPs."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import PlanError
from analysis.model import MoEModel
from analysis.neuron_norms import NeuronScores
from pruning.active import Routing, active_experts
from pruning.atoms.kept import KeptAtoms, ordered_atoms
from pruning.atoms.selection import AtomScope, select_atoms
from pruning.atoms.summary import atom_summary
from pruning.plan import ATOMIC_GRANULARITY, PruningPlan, fit_plan, model_ref

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


def layer_shares(plans: Mapping[str, PruningPlan], model: MoEModel) -> pd.DataFrame:
    """Table `series, layer, share`: the fraction of each layer's neurons that a plan removes.

    Raises:
        PlanError: a plan is not for this model.
    """
    tables = [
        atom_summary(plan, model)[["layer", "share"]].assign(series=name)
        for name, plan in plans.items()
    ]
    return pd.concat(tables, ignore_index=True)[["series", "layer", "share"]]


def flops_saved(
    model: MoEModel,
    saliency: NeuronScores,
    scope: AtomScope,
    sparsities: Sequence[str],
    routing: Routing | None = None,
) -> pd.DataFrame:
    """Table `sparsity, removed, flops, reduction`: FLOPs of routed experts per token, expected.

    removed is the fraction of neurons that goes, flops what is left, reduction the fraction of the
    whole model's FLOPs of experts that is saved, 0..1: not the same, because experts that lose much
    are seldom chosen. Without `routing` all experts are chosen equally often.

    Raises:
        PlanError: a sparsity that is out of range.
    """
    total = sum(len(each) for held in saliency.values() for each in held)
    if not total:
        raise PlanError("The model has no neurons to remove.")
    before = active_experts(model, fit_plan(PruningPlan(model_ref(model), {}), model), routing)
    rows = []
    for sparsity in sparsities:
        atoms = select_atoms(saliency, sparsity, scope)
        plan = PruningPlan(model_ref(model), {}, granularity=ATOMIC_GRANULARITY, kept_atoms=atoms)
        flops = active_experts(model, fit_plan(plan, model), routing).flops
        gone = sum(
            len(saliency[layer][expert]) - len(ids)
            for layer, experts in atoms.items()
            for expert, ids in experts.items()
        )
        rows.append((sparsity, gone / total, flops, 1 - flops / before.flops))
    return pd.DataFrame(rows, columns=["sparsity", "removed", "flops", "reduction"])


def _flat(scores: NeuronScores) -> NDArray[np.float64]:
    return np.concatenate([each for layer in sorted(scores) for each in scores[layer]])


def _shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    total = values.sum()
    return values / total if total else np.zeros_like(values)
