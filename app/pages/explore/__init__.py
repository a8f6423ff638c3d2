"""Explore: which experts each criterion keeps, and how much that depends on the corpus."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import streamlit as st

from analysis.arrays import IntArray
from analysis.criteria import Criterion
from analysis.ranking.overlap import chance_overlap, kept_counts, set_overlap
from analysis.ranking.stratification import rescale
from analysis.stats.grid import Grid
from app.charts.listing import CHARTS
from app.charts.overlap import pair_overlaps
from app.components.expert_map import MapPanel, expert_map, map_payload
from app.loaded import Loaded
from app.pages.explore.advice import advice_part
from app.pages.explore.corpora import blend_part, effects_part, overlap_map_part
from app.pages.explore.evidence import bins_part, damage_part, separation_part, tokens_part
from app.pages.explore.expert import expert_part, paths_part
from app.pages.explore.neurons import neuron_page
from app.session.chosen_expert import choose_on_map, chosen_expert
from app.session.data import shown_model, what_is_missing
from app.tables.ranked import Ranked
from app.widgets.charts import chart_files, show_named
from app.widgets.chosen_plan import has_statistics
from app.widgets.controls import MODES, ORDERS, view_switch
from app.widgets.links import link_to
from app.widgets.notes import against_chance, card, inform, show_command
from pruning.plan import EXPERT_GRANULARITY

MAP = "explore.map"
Part = Callable[[Loaded], object]
# Part -> description and views; one view is drawn.
PARTS: Mapping[str, tuple[str, Mapping[str, tuple[str, Part]]]] = {
    "corpora": (
        "Corpora",
        {
            "overlap": ("Overlap", overlap_map_part),
            "pairs": ("Pairs", partial(show_named, "overlap")),
            "exponents": ("Exponents", effects_part),
            "blend": ("Blend", blend_part),
        },
    ),
    "evidence": (
        "Evidence",
        {
            "tokens": ("Tokens", tokens_part),
            "damage": ("Damage", damage_part),
            "cut": ("Cut", separation_part),
            "loss": ("Score and loss", partial(bins_part, granularity=EXPERT_GRANULARITY)),
        },
    ),
    "expert": ("Expert", {"experts": ("One expert", expert_part), "paths": ("Paths", paths_part)}),
    "advice": ("Advice", {"advice": ("Advice", advice_part)}),
}


def ranking_metrics(loaded: Loaded, ranking: Ranked, baseline: Ranked) -> None:
    """Two numbers: difference from the baseline, and stability."""
    fraction = loaded.fraction
    same = set_overlap(ranking.pruned(fraction), baseline.pruned(fraction))
    with st.container(horizontal=True, key="facts"):  # wraps where the window is narrow
        card(
            f"Pruned by {baseline.criterion.label} too",
            *against_chance(same, chance_overlap(ranking.grid, fraction)),
            note="Share of these pruned experts that the criterion on the left prunes too.",
            delta_arrow="auto",  # differing from the other criterion is neither good nor bad
        )
        _stability_metric(loaded, ranking.criterion)


def _stability_metric(loaded: Loaded, criterion: Criterion) -> None:
    label = "Overlap across corpora"
    note = "Mean share of pruned experts that two calibration corpora have in common."
    if criterion.source != "routed":
        card(label, "100%", "reads no corpus", note=note)
    elif len(loaded.runs) < 2:
        card(label, "-", "needs two corpora", note=note)
    else:
        means = pair_overlaps(loaded)[["overlap", "chance"]].mean()
        texts = against_chance(float(means["overlap"]), float(means["chance"]))
        card(label, *texts, note=note, delta_color="normal", delta_arrow="auto")


def show_plan_command(loaded: Loaded) -> None:
    """The command line for the plan on screen."""
    if loaded.shown is None:
        return
    lines = loaded.shown.commands(shown_model(loaded.model))
    show_command("\n".join(lines), heading="This plan from the command line")
    link_to("export", "Export this plan", "output")


def baseline_part(loaded: Loaded) -> None:
    """The map of the baseline alone, if the exponents rank nothing."""
    if (missing := what_is_missing(loaded, loaded.choices.baseline)) is not None:
        inform(missing)
        return
    with st.container(border=True):
        chosen = loaded.selection(loaded.request_by(loaded.choices.baseline))
        stratification(loaded, loaded.ranked(chosen))


def stratification(loaded: Loaded, *ranked: Ranked) -> None:
    """The maps side by side, with the chosen expert marked."""
    with st.container(horizontal=True, horizontal_alignment="distribute"):
        st.markdown(
            "**Expert stratification**: saliency rescaled to 0..1 per layer; experts left of the "
            "cut line are kept. Click an expert to pin it, or move with the arrow keys."
        )
        with st.container(horizontal=True, width="content"):
            arrangement = view_switch("Order", "order", ORDERS)
            mode = view_switch("Show", "show", MODES)
    panels = [
        MapPanel(
            title=each.criterion.label,
            subtitle=loaded.source_of(each.criterion),
            values=rescale(each.saliency),
            order=each.order,
            kept=_counts(loaded, each.grid),
            scores=each.score,
        )
        for each in ranked
    ]
    payload = map_payload(
        [layer.index for layer in loaded.model.layers],
        panels,
        arrangement=arrangement,
        mode=mode,
        selected=chosen_expert(loaded.model.layers),
    )
    expert_map(payload, key=MAP, on_select=partial(choose_on_map, MAP))


def _counts(loaded: Loaded, grid: Grid) -> IntArray:
    """Experts kept per layer, as in the plan, for both criteria."""
    current = loaded.shown
    if current is None or current.plan.granularity != EXPERT_GRANULARITY:
        return kept_counts(grid, loaded.fraction)
    return np.array([current.kept[layer.index] for layer in grid.layers], dtype=np.int64)


def _part(loaded: Loaded) -> None:
    """One part and one view; the others would be sent with every toggle."""
    # Not `st.tabs`: its content is slower to lay out.
    with st.container(horizontal=True, gap="medium"):
        part = view_switch("Part", "tab", {name: words for name, (words, _) in PARTS.items()})
        views = PARTS[part][1]
        view = next(iter(views))
        if len(views) > 1:
            view = view_switch(
                "View", f"{part}.view", {name: text for name, (text, _) in views.items()}
            )
    views[view][1](loaded)


def draw(loaded: Loaded) -> None:
    """The page."""
    if loaded.choices.spec.by_neuron:
        neuron_page(loaded)
    elif loaded.choices.criterion is None:
        baseline_part(loaded)  # the plan bar shows why
    elif has_statistics(loaded):
        ranking, baseline = loaded.ranked(loaded.first), loaded.ranked(loaded.second)
        ranking_metrics(loaded, ranking, baseline)
        with st.container(border=True):
            stratification(loaded, baseline, ranking)
            chart_files("stratification", lambda: CHARTS["stratification"].draw(loaded))
        _part(loaded)
        show_plan_command(loaded)
