"""Bins of experts or neurons by saliency: what a score says against what removing them costs.

After HEAPr, Fig. 3: tenths of all atomic experts, each removed alone, against their importance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import spearmanr

from analysis.model import MoEModel
from analysis.neuron_norms import NeuronScores
from pruning.evaluate.result import Evaluation, bootstrap_interval
from pruning.plan import ATOMIC_GRANULARITY, Provenance, PruningPlan, fit_plan, model_ref

Scope = Literal["layer", "global"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
DEFAULT_BINS = 10
BIN_COLUMNS = ("bin", "removed", "saliency", "share", "loss_change", "low", "high", "pooled")


@dataclass(frozen=True, eq=False)
class Bin:
    """A part of all experts or neurons, and the plan that removes it alone.

    Args:
        number: from 0, the least salient.
        plan: keeps all others.
        removed: how many it removes.
        saliency: mean of theirs.
        share: their part of the saliency of all; nan where that adds up to nothing.
    """

    number: int
    plan: PruningPlan
    removed: int
    saliency: float
    share: float


def bin_numbers(
    saliency: NDArray[np.float64], groups: NDArray[np.int64], bins: int
) -> NDArray[np.int64]:
    """The bin of each entry: its place in ascending order within its group, in equal parts.

    Ties: of two equal entries the later one is the less salient, as in rankings.

    Args:
        saliency: (entries,) higher = keep.
        groups: (entries,) within which they are ordered; all alike for one order.
        bins: how many.
    """
    numbers = np.empty(len(saliency), dtype=np.int64)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        order = np.lexsort((-members, saliency[members]))
        numbers[members[order]] = np.arange(len(members)) * bins // len(members)
    return numbers


def expert_bins(
    ranking: pd.DataFrame, model: MoEModel, *, bins: int = DEFAULT_BINS, scope: Scope = "layer"
) -> list[Bin]:
    """Bins of experts, of which each layer has its share, or ordered over all layers.

    Args:
        ranking: columns layer, expert, saliency among others; every expert once.
        model: the full model.
        bins: how many; those that would remove nothing are left out.
        scope: order within each layer, or of all experts together.

    Raises:
        PlanError: a bin would leave a layer fewer experts than a token needs.
    """
    layers, experts = ranking["layer"].to_numpy(), ranking["expert"].to_numpy()
    saliency = ranking["saliency"].to_numpy(dtype=np.float64)
    groups = layers if scope == "layer" else np.zeros_like(layers)
    numbers = bin_numbers(saliency, groups, bins)
    made = []
    for number in np.unique(numbers).tolist():
        gone = set(zip(layers[numbers == number], experts[numbers == number], strict=True))
        kept = {
            layer.index: tuple(
                expert for expert in range(layer.num_experts) if (layer.index, expert) not in gone
            )
            for layer in model.layers
        }
        plan = fit_plan(PruningPlan(model_ref(model), kept, Provenance()), model)
        made.append(_bin(number, plan, saliency, numbers))
    return made


def neuron_bins(
    scores: NeuronScores, model: MoEModel, *, bins: int = DEFAULT_BINS, scope: Scope = "global"
) -> list[Bin]:
    """Bins of neurons: see `expert_bins`.

    Args:
        scores: layer -> for each expert, a saliency for each neuron; higher = keep.
        model: the full model.
        bins: how many.
        scope: order within each layer, or of all neurons together.
    """
    owners = [(layer, expert) for layer in sorted(scores) for expert in range(len(scores[layer]))]
    parts = [scores[layer][expert] for layer, expert in owners]
    saliency = np.concatenate(parts)
    layers = np.repeat([layer for layer, _ in owners], [len(part) for part in parts])
    groups = layers if scope == "layer" else np.zeros_like(layers)
    numbers = bin_numbers(saliency, groups, bins)
    held = np.split(numbers, np.cumsum([len(part) for part in parts])[:-1])
    made = []
    for number in np.unique(numbers).tolist():
        atoms: dict[int, dict[int, tuple[int, ...]]] = {}
        for (layer, expert), own in zip(owners, held, strict=True):
            if (own == number).any():
                stays = tuple(np.flatnonzero(own != number).tolist())
                atoms.setdefault(layer, {})[expert] = stays
        cut = PruningPlan(model_ref(model), {}, Provenance(), ATOMIC_GRANULARITY, atoms)
        made.append(_bin(number, fit_plan(cut, model), saliency, numbers))
    return made


def _bin(
    number: int, plan: PruningPlan, saliency: NDArray[np.float64], numbers: NDArray[np.int64]
) -> Bin:
    own, total = saliency[numbers == number], saliency.sum()
    share = float(own.sum() / total) if total else float("nan")
    return Bin(number, plan, len(own), float(own.mean()), share)


def bin_table(
    bins: Sequence[Bin], evaluations: Mapping[int, Evaluation], *, seed: int = 42
) -> pd.DataFrame:
    """Table of BIN_COLUMNS: what each bin's removal adds to the loss, in nats per token.

    `loss_change` is the mean over samples of each sample's change, `low` and `high` its 95%
    bootstrap interval (the same samples with and without), `pooled` the mean over all positions.

    Args:
        bins: as they were evaluated.
        evaluations: number of a bin -> its evaluation, with the measure `nll`.
        seed: of the bootstrap.
    """
    rows = []
    for each in bins:
        samples = evaluations[each.number].samples
        after, before = samples["nll"], samples["full_nll"]
        change = after.means - before.means
        pooled = (after.sums.sum() - before.sums.sum()) / after.counts.sum()
        rows.append(
            (
                *(each.number, each.removed, each.saliency, each.share, change.mean()),
                *(*bootstrap_interval(change, seed), pooled),
            )
        )
    return pd.DataFrame(rows, columns=list(BIN_COLUMNS))


def rank_agreement(table: pd.DataFrame) -> float:
    """Spearman's correlation of saliency and loss change over the bins; 1: the score is in order.

    nan where one of them is the same in all bins, or there are fewer than two.
    """
    if len(table) < 2 or table["saliency"].nunique() < 2 or table["loss_change"].nunique() < 2:
        return float("nan")
    return float(spearmanr(table["saliency"], table["loss_change"]).statistic)
