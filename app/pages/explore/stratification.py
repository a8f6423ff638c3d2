"""Explore, stratification: whether a criterion separates experts, whatever the plan's is."""

from typing import Final

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.criteria import get_criterion
from app.charts.stratification import KEY, SCALES
from app.choices import USUAL_STRATA, StrataChoice
from app.loaded import Loaded
from app.pages.explore.corpora import OTHER_MAPS, with_criterion
from app.session.chosen_expert import choose_in_chart
from app.session.data import what_is_missing
from app.session.state import BASELINES, criterion_words
from app.widgets.charts import say_if_no_clicks, show_named
from app.widgets.controls import choose, control_row, view_switch
from app.widgets.notes import inform

_SIDES: Final = ("left", "right")


def strata_part(loaded: Loaded, words: DeltaGenerator) -> None:
    """Two criteria side by side, AIMER and Magnitude at first; the plan gives the cut alone.

    `words` is a place beside the views, for the verdict.
    """
    with control_row():
        names = tuple(
            choose(
                f"Criterion on the {side}",
                BASELINES,
                usual,
                key=f"strata.{side}",
                bind="query-params",
                format_func=criterion_words,
                width=190,
            )
            for side, usual in zip(_SIDES, USUAL_STRATA.criteria, strict=True)
        )
        scale = view_switch("Scale of the colours", "scale", {k: v[0] for k, v in SCALES.items()})
    lacking = {
        missing for name in names if (missing := what_is_missing(loaded, get_criterion(name)))
    }
    for missing in sorted(lacking):
        inform(missing)
    if lacking:
        return
    choice = StrataChoice(tuple(dict.fromkeys(names)), scale)
    chosen = with_criterion(loaded).choosing(strata=choice)
    caution = " They compare neither layers nor criteria." if scale == "rescaled" else ""
    st.caption(f"Colours: {SCALES[scale][1]}.{caution} {KEY}")
    if loaded.choices.spec.by_neuron:
        st.caption("The plan removes neurons, so no expert is cut.")
    say_if_no_clicks(len(choice.criteria) * loaded.model.num_experts, OTHER_MAPS)
    if (chart := show_named("stratification", chosen, on_select=choose_in_chart)) is not None:
        words.markdown(chart.alt)
