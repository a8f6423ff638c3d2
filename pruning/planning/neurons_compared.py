"""Two plans of neurons compared: which neurons of each expert both keep, one, or neither."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from analysis.lazy import pd
from pruning.plan.tables import NEURON_STATE_COLUMNS, STATES, neuron_states

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel
    from pruning.plan.plan import PruningPlan

NEURONS_COMPARED_COLUMNS: Final = (*NEURON_STATE_COLUMNS, "alike")


@dataclass(frozen=True, eq=False)
class NeuronComparison:
    """Two plans that prune neurons of one model."""

    table: pd.DataFrame  # NEURONS_COMPARED_COLUMNS, a row per expert; `alike` is a share of its own

    @cached_property
    def by_layer(self) -> pd.DataFrame:
        """Table `layer, agreement, jaccard`: equal decisions, and likeness of the pruned sets."""
        sums = self.table.groupby("layer", as_index=False)[list(STATES)].sum()
        either = sums["neither"] + sums["only_a"] + sums["only_b"]
        return pd.DataFrame(
            {
                "layer": sums["layer"],
                "agreement": (sums["both"] + sums["neither"]) / sums[list(STATES)].sum(axis=1),
                "jaccard": sums["neither"] / either.where(either > 0),
            }
        )

    def count(self, state: str) -> int:
        """Neurons in one of STATES."""
        return int(self.table[state].sum())

    @property
    def total(self) -> int:
        """All neurons."""
        return sum(map(self.count, STATES))

    @property
    def agreement(self) -> float:
        """Share of all neurons on which both agree, 0..1."""
        return (self.count("both") + self.count("neither")) / self.total

    @property
    def chance_agreement(self) -> float:
        """Expected agreement of two random choices that prune as many neurons per layer."""
        sums = self.table.groupby("layer")[list(STATES)].sum()
        all_of = sums.sum(axis=1)
        gone_a, gone_b = (sums["neither"] + sums[other] for other in ("only_b", "only_a"))
        alike = (gone_a * gone_b + (all_of - gone_a) * (all_of - gone_b)) / all_of
        return float(alike.sum() / all_of.sum())

    @property
    def jaccard(self) -> float:
        """Pruned by both / pruned by either, over all layers; NaN when neither prunes."""
        either = self.total - self.count("both")
        return self.count("neither") / either if either else float("nan")

    def disagreements(self) -> pd.DataFrame:
        """The rows of `table` that differ, the least alike first."""
        differ = self.table[self.table["only_a"] + self.table["only_b"] > 0]
        return differ.sort_values("alike", kind="stable")


def compare_neurons(first: PruningPlan, second: PruningPlan, model: MoEModel) -> NeuronComparison:
    """Two plans of neurons of the model, compared."""
    states = neuron_states(first, second, model).astype({"neither": "int64"})
    widths = states[list(STATES)].sum(axis=1)
    alike = (states["both"] + states["neither"]) / widths.where(widths > 0, 1)
    return NeuronComparison(states.assign(alike=alike.where(widths > 0, 1.0)))
