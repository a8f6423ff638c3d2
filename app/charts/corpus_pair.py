"""Two corpora by one criterion: the experts that each alone keeps, and where they agree."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from analysis.corpora.spec import name_among
from analysis.criteria import Criterion
from analysis.errors import StatsError
from analysis.ranking.compare import Comparison, CriterionDecision
from analysis.ranking.experts import saliency_grid
from analysis.ranking.overlap import pruned_by
from app.charts.chart import Drawing, chart, of_corpora
from app.charts.kept_by import kept_by_map
from app.charts.layer_agreement import layer_agreement
from app.charts.overlap import pair_overlaps
from app.charts.traces import Names
from app.choices import pair_words

if TYPE_CHECKING:
    from app.loaded import Loaded

PAIR_CHARTS = ("pair-map", "pair-agreement")


def shown_pair(loaded: Loaded) -> Names:
    """The chosen pair of corpora, else the one that agrees least."""
    known = list(loaded.corpora_stats)
    if not loaded.choices.pair:
        pairs = pair_overlaps(loaded)
        least = pairs.sort_values("overlap", kind="stable").iloc[0]
        return str(least["corpus_a"]), str(least["corpus_b"])
    if len(loaded.choices.pair) != 2 or len(set(loaded.choices.pair)) != 2:
        raise StatsError("A pair has two corpora; give --pair twice, with another one each.")
    a, b = (name_among(known, name) for name in loaded.choices.pair)
    for name in (a, b):
        if name not in known:
            raise StatsError(
                f"{loaded.model.name} was not calibrated on {name!r}, but on {', '.join(known)}."
            )
    return a, b


def pair_comparison(loaded: Loaded, pair: Names) -> Comparison:
    """What the criterion keeps on each corpus, at the sparsity of the matrix of all pairs."""
    criterion = loaded.routed_criterion()
    return Comparison(*(_decision(loaded, criterion, corpus) for corpus in pair))


def _decision(loaded: Loaded, criterion: Criterion, corpus: str) -> CriterionDecision:
    stats, gate = loaded.corpora_stats[corpus], loaded.choices.gate
    pruned = pruned_by(criterion, stats, gate, loaded.fraction)
    return CriterionDecision(stats.grid, saliency_grid(criterion, stats, gate), pruned)


@chart("pair-map", "explore")
def draw_map(loaded: Loaded) -> Drawing:
    """Which experts only one of two corpora keeps."""
    loaded.routed_criterion()
    pair = shown_pair(loaded)
    table = pair_comparison(loaded, pair).table()
    figure = partial(kept_by_map, table, pair, marked=loaded.choices.expert)
    return Drawing(figure, table, describe(table, pair), _about(loaded), options=pair_words(pair))


@chart("pair-agreement", "explore")
def draw_agreement(loaded: Loaded) -> Drawing:
    """In which layers two corpora agree."""
    loaded.routed_criterion()
    pair = shown_pair(loaded)
    table = pair_comparison(loaded, pair).by_layer
    words = describe_layers(table, pair)
    about, figure = _about(loaded), partial(layer_agreement, table)
    return Drawing(figure, table, words, about, options=pair_words(pair))


def _about(loaded: Loaded) -> str:
    criterion = loaded.routed_criterion()
    return of_corpora(loaded, criterion.label, f"gate {loaded.choices.gate}")


def describe(table: pd.DataFrame, pair: Names) -> str:
    """One sentence: how many experts each corpus alone keeps."""
    counts = table["kept_by"].value_counts()
    a, b = (int(counts.get(fate, 0)) for fate in ("only A", "only B"))
    return (
        f"Of {len(table)} experts {pair[0]} alone (A) keeps {a}, {pair[1]} alone (B) {b}, and both "
        f"keep {int(counts.get('both', 0))}."
    )


def describe_layers(table: pd.DataFrame, pair: Names) -> str:
    """One sentence: the layers in which two corpora agree least and most."""
    ordered = table.sort_values("agreement", kind="stable")
    least, most = ordered.iloc[0], ordered.iloc[-1]
    return (
        f"{pair[0]} and {pair[1]} decide {least['agreement']:.0%} of the experts of layer "
        f"{int(least['layer'])} alike, and {most['agreement']:.0%} of layer {int(most['layer'])}."
    )
