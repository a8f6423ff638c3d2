"""Searches: fitness per generation, and the schedules found (arXiv:2603.06003)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pandas as pd
import plotly.graph_objects as go

from analysis.criteria import get_criterion
from analysis.errors import StatsError, UserError
from analysis.foreign_text import in_html
from app.charts.chart import Drawing, chart, made_by, model_fact
from app.charts.theme import ink, muted, paper, primary, series_color, themed
from app.charts.traces import annotation
from pruning.measures.result import MEASURES
from pruning.plan.plan import fit_plan
from pruning.records.quality import PlanLoss, loss_of
from pruning.records.quality_by_sample import unseen
from pruning.search.store import KnownSearch, best_fitting, progress_of

if TYPE_CHECKING:
    from app.loaded import Loaded

_MOST_TICKS: Final = 24
_LAYERS: Final = {"title": "layer", "type": "category", "nticks": 12, "showgrid": False}


def searches(loaded: Loaded) -> tuple[KnownSearch, ...]:
    """The searches of the model on this budget, of any criterion."""
    _, budget = loaded.budget
    removed = budget.total
    known_searches = loaded.study.searches
    if matches := tuple(search for search in known_searches if search.removed == removed):
        return matches
    others = ", ".join(
        f"{search.search_id} ({search.removed} experts)" for search in known_searches
    )
    raise StatsError(
        f"{loaded.model.name} has no search that removes {removed} experts; make one with "
        f"`moeprune search`. Known: {others or 'none'}."
    )


def search_of(loaded: Loaded) -> KnownSearch:
    """The longest of `searches` by the recipe's criterion."""
    candidates, name = searches(loaded), loaded.choices.ranking_criterion.name
    search = best_fitting(candidates, name, candidates[0].removed)
    if search is None:
        criteria = ", ".join(sorted({candidate.criterion for candidate in candidates}))
        raise StatsError(
            f"No search of {loaded.model.name} on this budget is by {name}; known: {criteria}."
        )
    return search


def _choose_search(loaded: Loaded, name: str) -> tuple[KnownSearch, str]:
    """The chosen search or that of the recipe, and the name of the drawing."""
    if loaded.search is None:
        return search_of(loaded), ""
    try:
        is_default = search_of(loaded).search_id == loaded.search.search_id
    except StatsError:
        is_default = False
    return loaded.search, "" if is_default else f"{name}-shown"


def unseen_loss(loaded: Loaded, search: KnownSearch) -> PlanLoss | None:
    """Loss of a search's best plan on held-out samples; None if it was not evaluated."""
    try:
        plan = loaded.study.plan_of(loaded.study.ranking_of_search(search))
    except UserError:  # no local statistics give its order
        return None
    loss = loss_of(loaded.study.losses, fit_plan(plan, loaded.model).digest)
    return unseen(loss, search.result.header["corpus"]) if loss else None


def unseen_words(loaded: Loaded, search: KnownSearch) -> str:
    """`unseen_loss` in words, of a finished search; empty if not measured."""
    loss = unseen_loss(loaded, search) if search.result.is_finished else None
    return f"On held-out samples: {loss.words}." if loss else ""


@chart("search", "plan")
def draw_progress(loaded: Loaded) -> Drawing:
    """How the search for a schedule went."""
    search, name = _choose_search(loaded, "search")
    history = search.result.history()
    progress, measure = progress_of(history), measure_label(search.fitness)
    figure = partial(search_progress, history, progress, measure=measure)
    words = (describe_progress(history, progress, measure=measure), unseen_words(loaded, search))
    alt = " ".join(filter(None, words))
    return Drawing(figure, history, alt, about_search(loaded, search), name)


@chart("search-best", "plan")
def draw_best(loaded: Loaded) -> Drawing:
    """What the search's best schedule keeps."""
    search, name = _choose_search(loaded, "search-best")
    table = search.result.schedule()
    figure = partial(schedule_bars, table)
    return Drawing(figure, table, describe_bars(table), about_search(loaded, search), name)


def measure_label(fitness: str) -> str:
    """Display name of a search's fitness; measures where lower is better are negated."""
    measure = MEASURES[fitness]
    return measure.label if measure.higher_is_better else f"minus {measure.label}"


def about_search(loaded: Loaded, search: KnownSearch) -> str:
    """Provenance line of a figure of one search."""
    return made_by(
        model_fact(loaded),
        f"search {search.search_id}",
        f"order by {get_criterion(search.criterion).label}",
        f"{search.count.words} of {search.corpus}",
        f"{search.removed} experts removed",
    )


def search_progress(
    history: pd.DataFrame, progress: pd.DataFrame, *, measure: str = "fitness", dark: bool = False
) -> go.Figure:
    """Figure of a search: every new candidate, the median of each generation, the best so far.

    The tables are `generation, candidate, fitness, origin, is_new` and `generation, best, median`;
    higher fitness is better.
    """
    new = history[history["is_new"]]
    candidates = go.Scatter(
        x=new["generation"],
        y=new["fitness"],
        customdata=new[["candidate", "origin"]],
        name="candidates",
        mode="markers",
        marker={"color": muted(dark), "size": 5, "opacity": 0.55},
        hovertemplate="%{customdata[1]}, candidate %{customdata[0]}: %{y:.4f}<extra></extra>",
    )
    median = go.Scatter(
        x=progress["generation"],
        y=progress["median"],
        name="median",
        mode="lines",
        line={"color": series_color(1, dark), "dash": "dash", "width": 2},
        hovertemplate="median %{y:.4f}<extra></extra>",
    )
    best = go.Scatter(
        x=progress["generation"],
        y=progress["best"],
        name="best so far",
        mode="lines+markers",
        line={"color": primary(dark), "width": 3, "shape": "hv"},
        marker={"size": 6},
        hovertemplate="best %{y:.4f}<extra></extra>",
    )
    last = int(history["generation"].max()) if len(history) else 0
    fig = themed(
        [candidates, median, best],
        dark,
        x={
            "title": "generation",
            "showgrid": False,
            "range": [-0.5, max(1, last) + 0.5],
            # Of few generations Plotly would also tick halves.
            "dtick": 1 if last <= 8 else None,
        },
        y={"title": in_html(measure)},
        height=320,
    )
    # Every search starts with uniform, if that is feasible.
    if (uniform := _uniform(history)) is not None:
        fig.add_hline(y=uniform, line={"color": ink(dark), "width": 1, "dash": "dot"})
        # The best is never below it.
        place = {"xref": "paper", "xanchor": "right", "yanchor": "top", "bgcolor": paper(dark)}
        fig.add_annotation(annotation(1, uniform, f"uniform {uniform:.3f}", **place))
    return fig


def _uniform(history: pd.DataFrame) -> float | None:
    rows = history.loc[history["origin"] == "uniform", "fitness"]
    return None if rows.empty else float(rows.iloc[0])


def describe_progress(
    history: pd.DataFrame, progress: pd.DataFrame, *, measure: str = "fitness"
) -> str:
    """One sentence: the initial and the current best."""
    if progress.empty:
        return "No generation is complete yet."
    first, last = progress.iloc[0], progress.iloc[-1]
    uniform = _uniform(history)
    comparison = "" if uniform is None else f"; uniform has {uniform:.3f}"
    return (
        f"After generation {int(last['generation'])} the best {measure} is {last['best']:.3f}, the "
        f"median {last['median']:.3f}; the initial population's best was {first['best']:.3f}"
        f"{comparison}."
    )


def schedule_bars(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `layer, experts, kept, removed, density`: bars, with ticks at even shares.

    An even share keeps the same fraction of every layer on the same budget.
    """
    even = table["experts"] * table["kept"].sum() / table["experts"].sum()
    layers = [str(layer) for layer in table["layer"]]
    bars = go.Bar(
        x=layers,
        y=table["kept"],
        customdata=table["experts"],
        name="kept",
        marker={"color": primary(dark)},
        text=table["kept"] if len(table) <= _MOST_TICKS else None,
        textposition="inside",
        insidetextanchor="start",
        textangle=0,
        hovertemplate="layer %{x}: %{y} of %{customdata} kept<extra></extra>",
    )
    line = {"color": series_color(1, dark), "width": 3}
    ticks = go.Scatter(
        x=layers,
        y=even,
        name="an even share",
        mode="markers",
        marker={"symbol": "line-ew", "size": 16, "line": line},
        hovertemplate="an even share: %{y:.1f}<extra></extra>",
    )
    return themed(
        [bars, ticks],
        dark,
        x=_LAYERS,
        y={"title": "experts kept", "range": [0, 1.05 * table["experts"].max()]},
        height=320,
    )


def describe_bars(table: pd.DataFrame) -> str:
    """One sentence: the layers that keep most and least."""
    ordered = table.sort_values(["density", "layer"])
    least, most = ordered.iloc[0], ordered.iloc[-1]
    return (
        f"The best schedule keeps {int(table['kept'].sum())} of {int(table['experts'].sum())} "
        f"experts: most in layer {most['layer']:.0f} ({most['kept']:.0f} of "
        f"{most['experts']:.0f}), least in layer {least['layer']:.0f} ({least['kept']:.0f})."
    )
