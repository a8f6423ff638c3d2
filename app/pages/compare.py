"""Compare: two recipes side by side, where they disagree, and by how much."""

from typing import Final

import streamlit as st
from streamlit.column_config import NumberColumn

from analysis.ranking.compare import FATES, Comparison
from app.charts.layer_agreement import describe
from app.charts.listing import CHARTS
from app.literal import literal
from app.loaded import Loaded
from app.session.chosen_expert import choose_in_chart
from app.widgets.charts import (
    chart_files,
    ranks_from_one,
    say_if_no_clicks,
    show_named,
    table_with_csv,
)
from app.widgets.chosen_plan import has_statistics
from app.widgets.fates_map import fates_map
from app.widgets.notes import card, inform, show_command
from app.widgets.pinned_table import pinned_part
from pruning.measures.right_answers import points_words
from pruning.records.quality import loss_of
from pruning.records.right_of_plans import in_short, right_apart, right_share

MAP: Final = "compare.map"
_ROWS_SHOWN: Final = 200


def draw(loaded: Loaded) -> None:
    """The page."""
    pinned_part(loaded)
    if loaded.choices.spec.by_neuron:
        neurons_part(loaded)
        return
    if loaded.choices.criterion is None or not has_statistics(loaded):
        return
    apart = conclusion(loaded)
    fates_map(loaded.comparison, loaded.names, key=MAP, selected=loaded.choices.expert)
    chart_files("kept-by", lambda: CHARTS["kept-by"].draw(loaded))
    if apart:
        st.markdown(apart)
    comparison_metrics(loaded.comparison)
    layers_part(loaded)
    with st.container(border=True):
        listed_experts(loaded.comparison)
    if lines := loaded.compare_lines:
        show_command(*lines, heading="The same from the command line")


def neurons_part(loaded: Loaded) -> None:
    """Two plans of neurons: how alike they treat each expert."""
    if loaded.beside is None or loaded.shown is None:
        inform(
            "A plan of neurons is compared with another: pin one, then choose it under **Compare "
            "with**."
        )
        return
    comparison, known = loaded.neurons_compared, loaded.study.losses
    losses = [loss_of(known, plan.digest) for plan in (loaded.shown_plan, loaded.second_plan)]
    a, b = (
        f"{literal(name)}: {literal(loss.words) if loss else 'loss not measured'}"
        for name, loss in zip(loaded.names, losses, strict=True)
    )
    st.markdown(
        f"**A** {a}; **B** {b}. They decide **{comparison.agreement:.0%}** of the neurons alike, "
        f"chance {comparison.chance_agreement:.0%}."
    )
    show_named("kept-by", loaded, on_select=choose_in_chart)
    say_if_no_clicks(loaded.model.num_experts, "a row of the list below chooses its expert")
    with st.container(border=True):
        st.markdown("**Layer by layer**: 1 is full agreement.")
        show_named("agreement", loaded)
    with st.container(border=True):
        st.markdown("**Experts whose neurons differ**, least alike first.")
        table = comparison.disagreements()
        table_with_csv(
            table,
            "neuron-disagreements",
            f"{len(table)} experts whose neurons differ",
            shown=table.head(_ROWS_SHOWN),
            column_config={
                "only_a": "only A",
                "only_b": "only B",
                "alike": NumberColumn("alike", format="percent"),
            },
        )
    if lines := loaded.compare_lines:
        show_command(*lines, heading="The same from the command line")


def conclusion(loaded: Loaded) -> str:
    """Measured losses of both, and how often they decide alike; returns their right answers."""
    known, words = loaded.study.losses, []
    plans = (loaded.shown_plan, loaded.second_plan)
    is_whole = loaded.beside is not None
    a = plans[0]
    losses = [
        loss_of(known, (plan if is_whole else plan.in_own_bits.unrepaired).digest) for plan in plans
    ]
    first, second = losses
    apart = right_apart(first, second) if first and second else None
    for name, loss in zip(loaded.names, losses, strict=True):
        measured = [loss.words] if loss else []
        measured += [in_short(loss)] if loss and loss.right and not apart else []
        words.append(f"{literal(name)}: {literal('; '.join(measured)) or 'loss not measured'}")
    comparison, caveat, right = loaded.comparison, "", ""
    if apart:
        shares = " and ".join(f"{right_share(loss):.0%}" for loss in losses if loss)
        right = f"Right answers of A less B: {points_words(apart)} ({shares})."
    if (a.repair or a.named_bits) and not is_whole:
        caveat = " Neither is repaired or in fewer bits here, unlike the plan above."
    st.markdown(
        f"**A** {words[0]}; **B** {words[1]}. They decide **{comparison.agreement:.0%}** of the "
        f"experts alike, chance {comparison.chance_agreement:.0%}.{caveat}"
    )
    return right


def layers_part(loaded: Loaded) -> None:
    """In which layers the plans agree; the chart comes when it is opened."""
    words = describe(loaded.comparison.by_layer)
    part = st.expander(f"Layer by layer: {words}", key="layers", on_change="rerun")
    if part.open:
        with part:
            st.markdown("1 is full agreement.")
            show_named("agreement", loaded)


def comparison_metrics(comparison: Comparison) -> None:
    """How far sets and orders agree."""
    _, only_a, only_b, neither = map(comparison.count, FATES)
    either = neither + only_a + only_b
    taus = comparison.by_layer["kendall_tau"].dropna()
    with st.container(horizontal=True):  # wraps where the window is narrow
        card(
            "Jaccard of the pruned",
            f"{comparison.jaccard:.2f}" if either else "-",
            f"{neither} of {either} experts" if either else "nothing is pruned",
            note="Pruned by both, divided by pruned by either.",
        )
        card(
            "Kendall tau",
            f"{taus.mean():z.2f}" if len(taus) else "-",
            f"{taus.min():z.2f} to {taus.max():z.2f} over layers"
            if len(taus)
            else "nothing to order",
            note="Agreement of the two orders, -1 to 1; the mean over layers. Ties count for "
            "neither.",
        )


def listed_experts(comparison: Comparison) -> None:
    """Table of the experts that only one recipe keeps."""
    table = comparison.disagreements()
    st.markdown("**Experts that only one recipe keeps**, largest difference first.")
    if table.empty:
        inform("The recipes keep the same experts.")
        return
    table_with_csv(
        table,
        "disagreements",
        f"{len(table)} experts that only one recipe keeps",
        shown=ranks_from_one(table.head(_ROWS_SHOWN)),
        column_config={
            "kept_by": "kept by",
            "rank_a": "rank A",
            "rank_b": "rank B",
            "saliency_a": NumberColumn("saliency A", format="%.4g"),
            "saliency_b": NumberColumn("saliency B", format="%.4g"),
        },
    )
    if len(table) > _ROWS_SHOWN:
        st.text(f"The first {_ROWS_SHOWN} of {len(table)}; the file has all.")
    st.text("Ranks in the file count from 0, as on the command line.")
