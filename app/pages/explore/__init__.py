"""Explore: which experts each criterion keeps, and how much that depends on the corpus."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import streamlit as st
from numpy.typing import NDArray
from streamlit.delta_generator import DeltaGenerator

from analysis.criteria import Criterion
from analysis.numbers.arrays import rescale
from analysis.ranking.compare import Comparison
from analysis.stats.grid import Grid
from app.charts.listing import CHARTS
from app.charts.overlap import pair_overlaps
from app.choices import StrataChoice
from app.components.expert_map import FULL_LAYERS, MapPanel, Mode, expert_map, map_payload
from app.literal import literal
from app.loaded import Loaded
from app.pages.explore.advice import advice_part
from app.pages.explore.corpora import blend_part, effects_part, pairs_part, variants_part
from app.pages.explore.evidence import bins_part, damage_part, tokens_part
from app.pages.explore.expert import expert_part, paths_part
from app.pages.explore.neurons import neuron_page
from app.pages.explore.stratification import strata_part
from app.pages.explore.token_search import token_part
from app.pages.explore.traffic import traffic_part
from app.session.chosen_expert import choose_on_map, chosen_expert
from app.session.data import shown_model, what_is_missing
from app.session.state import one_of
from app.tables.saliency_grid import SaliencyGrid
from app.widgets.charts import chart_files, show_named
from app.widgets.chosen_plan import has_statistics
from app.widgets.controls import MODES, ORDERS, part_switch, view_switch
from app.widgets.links import link_to
from app.widgets.notes import inform, show_command
from pruning.plan.plan import EXPERT_GRANULARITY, PruningPlan
from pruning.planning.choice import corpora_words
from pruning.planning.ranking import Ranking, criterion_badge
from pruning.records.quality import loss_of

MAP = "explore.map"
STRATIFICATION, TOKENS = "stratification", "tokens"
# What stands above the parts: the map, in one of its modes or with a token, or the stratification.
VIEWS: Mapping[str, str] = {
    **{str(mode): words for mode, words in MODES.items()},
    STRATIFICATION: "Stratification",
    TOKENS: "By token",
}
VIEWS_OF_NEURONS: Mapping[str, str] = {"neurons": "Neurons", STRATIFICATION: "Stratification"}
Part = Callable[[Loaded], object]
Lit = NDArray[np.float64] | None
# Part -> description and views; one view is drawn.
PARTS: Mapping[str, tuple[str, Mapping[str, tuple[str, Part]]]] = {
    "corpora": (
        "Corpora",
        {
            "pairs": ("Pairs", pairs_part),
            "exponents": ("Exponents", effects_part),
            "blend": ("Blend", blend_part),
        },
    ),
    "evidence": (
        "Evidence",
        {
            "tokens": ("Tokens", tokens_part),
            "damage": ("Damage", damage_part),
            "loss": ("Score and loss", partial(bins_part, granularity=EXPERT_GRANULARITY)),
        },
    ),
    "expert": ("Expert", {"experts": ("One expert", expert_part), "paths": ("Paths", paths_part)}),
    "traffic": ("Your traffic", {"traffic": ("Your traffic", traffic_part)}),
    "advice": ("Advice", {"advice": ("Advice", advice_part)}),
}


def views_of(part: str) -> dict[str, tuple[str, Part]]:
    """The views of a part: those listed, then the charts whose row names it."""
    return {
        **PARTS[part][1],
        **{
            chart.name: (chart.title, partial(show_named, chart.name, with_sentence=True))
            for chart in CHARTS.values()
            if (chart.page, chart.part) == ("explore", part)
        },
    }


def difference_words(comparison: Comparison, loaded: Loaded) -> str:
    """How many experts the two criteria decide differently, and what that costs."""
    losses = loaded.study.losses
    a, b = loaded.ranking.criterion.label, loaded.second.criterion.label
    plan, other = loaded.shown_plan, loaded.second_plan
    if loaded.beside:
        a, b = map(literal, loaded.names)
    else:
        plan = plan.in_own_bits.unrepaired
    count = comparison.count("only A")
    words = (
        f"{a} and {b} keep the same experts"
        if plan.digest == other.digest
        else (f"{a} keeps **{count}** experts that {b} drops")
    )
    mine, theirs = (loss_of(losses, side.digest) for side in (plan, other))
    if mine and theirs and plan.digest != other.digest and mine.way == theirs.way:
        words += f": loss **{mine.mean:+z.2f}** instead of {theirs.mean:+z.2f}"
    return f"{words}."


def stability_words(loaded: Loaded, criterion: Criterion) -> str:
    """How much the choice depends on the corpus."""
    if criterion.source != "routed":
        return f"{criterion.label} reads no corpus."
    if len(loaded.runs) < 2 or not loaded.removed_at(loaded.fraction):
        return ""
    means = pair_overlaps(loaded)[["overlap", "chance"]].mean()
    return (
        f"Two corpora agree on {means['overlap']:.0%} of what {criterion.label} prunes; chance "
        f"gives {means['chance']:.0%}."
    )


def show_plan_command(loaded: Loaded) -> None:
    """The command line for the plan on screen."""
    if loaded.shown is None:
        return
    lines = loaded.shown.commands(shown_model(loaded.model))
    show_command("\n".join(lines), heading="This plan from the command line")
    link_to("export", "Export this plan", "output")


def map_part(loaded: Loaded, mode: Mode, lit: Lit = None) -> DeltaGenerator:
    """The maps of both criteria; of one alone where the other is constant or lacks statistics.

    `lit` are shares of a token by expert, (layers, experts). Returns the place of their order and
    data.
    """
    is_constant = loaded.choices.criterion is None
    maps = []
    if (missing := what_is_missing(loaded, loaded.choices.baseline)) is not None:
        inform(missing)
    elif not is_constant:
        maps.append((loaded.ranked(loaded.second), loaded.second_plan, _second_source(loaded)))
    if not is_constant:
        a = loaded.ranking
        maps.append((loaded.ranked(a), loaded.shown_plan, _source(loaded, a)))
        return _maps(loaded, mode, *maps, lit=lit)
    if missing:
        return st.container()
    chosen = loaded.study.ranking(loaded.spec_by(loaded.choices.baseline))
    st.markdown(f"Below: **{chosen.criterion.label}**, which it is compared with.")
    plan = loaded.study.plan_of(chosen)
    return _maps(loaded, mode, (loaded.ranked(chosen), plan, _source(loaded, chosen)), lit=lit)


def _source(loaded: Loaded, ranking: Ranking) -> str:
    criterion = ranking.criterion
    routed = criterion.source == "routed"
    return corpora_words(loaded.choices.corpora) if routed else criterion_badge(criterion)


def _second_source(loaded: Loaded) -> str:
    """What ranked the second plan; of a whole one its own corpora, schedule and sparsity."""
    if loaded.beside is None:
        return _source(loaded, loaded.second)
    words = loaded.names[1].removeprefix(loaded.second.criterion.label)
    return words.removeprefix(", ") or _source(loaded, loaded.second)


def _maps(
    loaded: Loaded,
    mode: Mode,
    *ranked: tuple[SaliencyGrid, PruningPlan, str],
    lit: Lit = None,
) -> DeltaGenerator:
    """The map of the last criterion, or of both side by side, with the chosen expert marked.

    Returns the place of their order and data.
    """
    layers = [layer.index for layer in loaded.model.layers]
    panels = [
        MapPanel(
            title=ranking.criterion.label,
            subtitle=source,
            values=rescale(ranking.saliency),
            order=ranking.order,
            kept=np.array([len(plan.kept[layer]) for layer in layers], dtype=np.int64),
            stays=_stays(ranking.grid, plan),
            scores=ranking.score,
        )
        for ranking, plan, source in ranked
    ]
    place = st.container(key=f"{MAP}.full" if len(layers) >= FULL_LAYERS else None)
    popover = st.popover("Order and data", icon=":material/tune:")
    with popover:
        arrangement = view_switch("Order", "order", ORDERS)
        strata = StrataChoice(tuple(ranking.criterion.name for ranking, _, _ in ranked))
        files = loaded.choosing(strata=strata)
        chart_files("stratification", lambda: CHARTS["stratification"].draw(files))
    payload = map_payload(
        layers,
        panels,
        arrangement=arrangement,
        mode=mode,
        selected=chosen_expert(loaded.model.layers),
        lit=lit,
    )
    with place:
        expert_map(payload, key=MAP, on_select=partial(choose_on_map, MAP))
    return popover


def _stays(grid: Grid, plan: PruningPlan) -> NDArray[np.bool_]:
    """(layers, experts) whether the plan keeps the expert."""
    stays = np.zeros(grid.present.shape, dtype=np.bool_)
    for row, layer in enumerate(grid.layers):
        stays[row, list(plan.kept[layer.index])] = True
    return stays


def _part(loaded: Loaded) -> None:
    """The open part, if one is, in one view: a toggle computes and sends all that is drawn."""
    # Not `st.tabs`: its content is slower to lay out.
    with st.container(horizontal=True, gap="medium"):
        part = part_switch("Part", "tab", {name: words for name, (words, _) in PARTS.items()})
        if part is None:
            return
        views = views_of(part)
        view = next(iter(views))
        if len(views) > 1:
            view = view_switch(
                "View", f"{part}.view", {name: text for name, (text, _) in views.items()}
            )
    views[view][1](loaded)


def draw(loaded: Loaded) -> None:
    """The page: what is kept, beside the variants, and the parts."""
    by_neuron = loaded.choices.spec.by_neuron
    key, views = ("neurons.show", VIEWS_OF_NEURONS) if by_neuron else ("show", VIEWS)
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        view = view_switch("Show", key, views)
        words = st.container(width="stretch", key="view-words")
    if view == STRATIFICATION:
        strata_part(loaded, words)
        return
    if by_neuron:
        neuron_page(loaded)
        return
    if view == TOKENS:
        token_part(loaded, words, lambda chosen, lit: map_part(chosen, "values", lit))
        return
    is_constant = loaded.choices.criterion is None
    if not is_constant:  # else the plan bar shows why
        if not has_statistics(loaded):
            return
        difference = difference_words(loaded.comparison, loaded)
        words.markdown(f"{difference} {stability_words(loaded, loaded.first.criterion)}")
    map_column, variants_column = st.columns([13, 8])
    with map_column:
        files = map_part(loaded, one_of(view, tuple(MODES)))
    with variants_column:
        variants_part(loaded, files)
    if not is_constant:
        _part(loaded)
        show_plan_command(loaded)
