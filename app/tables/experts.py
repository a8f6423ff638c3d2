"""Tables of one expert: its statistics, and its rank under every criterion."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd

from analysis.criteria import CRITERIA, RANKABLE, Criterion, get_criterion, unified
from analysis.families.base import MoELayer
from analysis.numbers.sparsity import num_removed
from analysis.ranking.experts import Stats, has_columns
from analysis.stats.columns import GATES, Gate, moment_column
from analysis.stats.tables import ExpertStats, NoStats, WeightStats
from app.tables.saliency_grid import rank

CONSTANT = (1, 0, 0)
# Sources of criteria that read no corpus.
_WEIGHTS, _NO_DATA = "weights", "no data"
TEXTLESS = (_WEIGHTS, _NO_DATA)


@dataclass(frozen=True, eq=False)
class Sources:
    """All statistics of a model: by corpus, of the weights, and its layers."""

    routed: Mapping[str, ExpertStats]
    weights: WeightStats | None
    layers: tuple[MoELayer, ...]

    @property
    def cache_key(self) -> tuple[object, ...]:
        """Which statistics they are; the layers are the model's."""
        routed = {corpus: stats.cache_key for corpus, stats in self.routed.items()}
        return routed, self.weights and self.weights.cache_key

    def of(self, criterion: Criterion) -> dict[str, Stats]:
        """The statistics that a criterion can read, by display name."""
        if criterion.source == "routed":
            return {
                corpus: stats
                for corpus, stats in self.routed.items()
                if has_columns(criterion, stats)
            }
        if criterion.source == "none":
            return {_NO_DATA: NoStats(self.layers)}
        return {} if self.weights is None else {_WEIGHTS: self.weights}


def expert_means(stats: Mapping[str, ExpertStats], layer: int, expert: int) -> pd.DataFrame:
    """Table `number` with one column per corpus: tokens, their share, mean gates and mean norm.

    Means are over the tokens routed to the expert, NaN if none; the share is of its layer's tokens.
    """
    columns = {}
    for corpus, corpus_stats in stats.items():
        rows = corpus_stats.table[corpus_stats.table["layer"] == layer].set_index("expert")
        sums = rows[rows.index == expert].to_dict("records")[0]
        tokens = float(sums["num_tokens"])
        divisor = tokens or float("nan")
        columns[corpus] = {
            "routed tokens": tokens,
            "share of routed tokens": tokens / max(float(rows["num_tokens"].sum()), 1.0),
            **{f"mean gate, {gate}": sums[moment_column(1, 0, gate)] / divisor for gate in GATES},
            "mean norm of the output": sums[moment_column(0, 1, "applied")] / divisor,
        }
    return pd.DataFrame(columns).rename_axis("number").reset_index()


def expert_sums(stats: Mapping[str, ExpertStats], layer: int, expert: int) -> pd.DataFrame:
    """Table `sum` with one column per corpus: every stored sum of one expert."""
    columns = {}
    for corpus, corpus_stats in stats.items():
        rows = corpus_stats.table[corpus_stats.table["layer"] == layer].set_index("expert")
        columns[corpus] = rows.loc[expert].drop("layer").astype(float)
    return pd.DataFrame(columns).rename_axis("sum").reset_index()


def corpus_shares(stats: Mapping[str, ExpertStats], layer: int, expert: int) -> dict[str, float]:
    """Corpus -> its share of the tokens routed to an expert, as if all were equally long.

    The largest first; 0 everywhere if no token reached it.
    """
    shares = {}
    for corpus, corpus_stats in stats.items():
        rows = corpus_stats.table[corpus_stats.table["layer"] == layer].set_index("expert")[
            "num_tokens"
        ]
        shares[corpus] = float(rows[expert]) / max(float(rows.sum()), 1.0)
    total = sum(shares.values()) or 1.0
    return {name: shares[name] / total for name in sorted(shares, key=shares.__getitem__)[::-1]}


def expert_ranks(sources: Sources, gate: Gate, place: tuple[int, int]) -> pd.DataFrame:
    """Table `criterion, source, rank, of, score` of one expert under all criteria; 1 = first."""
    layer, expert = place
    rows = []
    for name in dict.fromkeys((*(unified(*exponents).name for exponents in RANKABLE), *CRITERIA)):
        criterion = get_criterion(name)
        for source, stats in sources.of(criterion).items():
            ranked = rank(criterion, stats, gate)
            row = [layer.index for layer in ranked.grid.layers].index(layer)
            position = int(np.flatnonzero(ranked.order[row] == expert)[0]) + 1
            count = int(ranked.grid.counts[row])
            rows.append(
                (criterion.label, source, position, count, float(ranked.score[row, expert]))
            )
    return pd.DataFrame(rows, columns=["criterion", "source", "rank", "of", "score"])


def rank_summary(ranks: pd.DataFrame, sparsity: Fraction) -> pd.DataFrame:
    """Table `criterion`, `kept` and the rank on each corpus: a row per variant and criterion.

    `kept`: on how many corpora the expert is kept at this uniform sparsity, as "2 of 3". A
    criterion that reads no corpus has one rank for all; the variant (1, 0, 0) has none.
    """
    texts = [name for name in dict.fromkeys(ranks["source"]) if name not in TEXTLESS]
    columns = texts or ["rank"]
    least = ranks["of"] - ranks["of"].map(lambda count: num_removed(count, sparsity))
    rows = []
    for label, group in ranks.assign(kept=ranks["rank"] <= least).groupby("criterion", sort=False):
        if group["source"].iloc[0] in TEXTLESS:
            rank_by_corpus = dict.fromkeys(columns, group["rank"].iloc[0])
            kept = "any corpus" if group["kept"].all() else "no corpus"
        else:
            rank_by_corpus = dict(zip(group["source"], group["rank"], strict=True))
            kept = f"{group['kept'].sum()} of {len(group)}"
        rows.append({"criterion": label, "kept": kept, **rank_by_corpus})
    rows.append({"criterion": unified(*CONSTANT).label, "kept": "all equal"})
    table = pd.DataFrame(rows, columns=["criterion", "kept", *columns])
    table = table.astype(dict.fromkeys(columns, "Int64")).set_index("criterion")
    # The variants in the order of their exponents, then the other criteria.
    variants = [unified(*exponents) for exponents in sorted((*RANKABLE, CONSTANT))]
    labels = dict.fromkeys(criterion.label for criterion in (*variants, *CRITERIA.values()))
    return table.loc[[label for label in labels if label in table.index]].reset_index()
