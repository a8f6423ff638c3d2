"""Tables of one expert: what was measured of it, and where it stands under every criterion."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd

from analysis.criteria import CRITERIA, RANKABLE, Criterion, get_criterion, unified
from analysis.families import MoELayer
from analysis.ranking import Stats
from analysis.sparsity import num_removed
from analysis.stats import GATES, ExpertStats, Gate, NoStats, WeightStats, moment_column
from app.maps import rank

CONSTANT = (1, 0, 0)


@dataclass(frozen=True, eq=False)
class Sources:
    """Everything measured of a model: by corpus, of the weights, and its layers."""

    routed: Mapping[str, ExpertStats]
    weights: WeightStats | None
    layers: tuple[MoELayer, ...]

    def of(self, criterion: Criterion) -> dict[str, Stats]:
        """The statistics that a criterion can read, by what the reader calls them."""
        if criterion.source == "routed":
            columns = criterion.columns("applied")
            return {
                corpus: stats
                for corpus, stats in self.routed.items()
                if all(column in stats.table for column in columns)
            }
        if criterion.source == "none":
            return {"no data": NoStats(self.layers)}
        return {} if self.weights is None else {"weights": self.weights}


def expert_means(stats: Mapping[str, ExpertStats], layer: int, expert: int) -> pd.DataFrame:
    """Table `number` and one column a corpus: tokens, their share, mean gates and mean norm.

    The means are over the tokens routed to the expert, NaN where there is none. The share is of
    the tokens routed in its layer.
    """
    columns = {}
    for corpus, each in stats.items():
        rows = each.table[each.table["layer"] == layer].set_index("expert")
        own = rows[rows.index == expert].to_dict("records")[0]
        tokens = float(own["num_tokens"])
        divisor = tokens or float("nan")
        columns[corpus] = {
            "routed tokens": tokens,
            "share of routed tokens": tokens / max(float(rows["num_tokens"].sum()), 1.0),
            **{f"mean gate, {gate}": own[moment_column(1, 0, gate)] / divisor for gate in GATES},
            "mean norm of the output": own[moment_column(0, 1, "applied")] / divisor,
        }
    return pd.DataFrame(columns).rename_axis("number").reset_index()


def expert_sums(stats: Mapping[str, ExpertStats], layer: int, expert: int) -> pd.DataFrame:
    """Table `sum` and one column a corpus: every stored sum of one expert."""
    columns = {}
    for corpus, each in stats.items():
        rows = each.table[each.table["layer"] == layer].set_index("expert")
        columns[corpus] = rows.loc[expert].drop("layer").astype(float)
    return pd.DataFrame(columns).rename_axis("sum").reset_index()


def expert_ranks(sources: Sources, gate: Gate, place: tuple[int, int]) -> pd.DataFrame:
    """Table `criterion, source, rank, of, score`: one expert under all that can rank; 1 = first."""
    layer, expert = place
    rows = []
    for name in dict.fromkeys((*(unified(*each).name for each in RANKABLE), *CRITERIA)):
        criterion = get_criterion(name)
        for source, stats in sources.of(criterion).items():
            ranked = rank(criterion, stats, gate)
            row = [each.index for each in ranked.grid.layers].index(layer)
            found = int(np.flatnonzero(ranked.order[row] == expert)[0]) + 1
            count = int(ranked.grid.counts[row])
            rows.append((criterion.label, source, found, count, float(ranked.score[row, expert])))
    return pd.DataFrame(rows, columns=["criterion", "source", "rank", "of", "score"])


def rank_summary(ranks: pd.DataFrame, sparsity: Fraction) -> pd.DataFrame:
    """Table `criterion`, one column a source, `kept`: a row for each of the 18 variants and others.

    `kept` says in how many of the sources the expert stays at this uniform sparsity, as "2 of 3".
    The variant (1, 0, 0), which ranks nothing, has no ranks.

    Args:
        ranks: a table of `expert_ranks`.
    """
    kept = ranks["of"] - ranks["of"].map(lambda count: num_removed(count, sparsity))
    stays = (ranks["rank"] <= kept).groupby(ranks["criterion"], sort=False).agg(["sum", "size"])
    table = ranks.pivot_table(index="criterion", columns="source", values="rank").astype("Int64")
    order = dict.fromkeys(_labels())
    table = table.reindex([label for label in order if label in table.index or label == _CONSTANT])
    words = {label: f"{row['sum']} of {row['size']}" for label, row in stays.iterrows()}
    words[_CONSTANT] = "same score for all"
    columns = list(dict.fromkeys(ranks["source"]))
    summary = table[columns].reset_index().rename_axis(columns=None)
    return summary.assign(kept=summary["criterion"].map(words))


_CONSTANT = unified(*CONSTANT).label


def _labels() -> list[str]:
    """The variants in the order of their exponents, then the other criteria."""
    variants = [unified(*each) for each in sorted((*RANKABLE, CONSTANT))]
    return [each.label for each in (*variants, *CRITERIA.values())]
