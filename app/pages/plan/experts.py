"""The Plan page: editor, savings, schedules side by side, files."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.column_config import CheckboxColumn, NumberColumn, ProgressColumn, TextColumn

from app.charts.schedules import ScheduleComparison
from app.charts.traces import signed
from app.components.schedule_editor import Bars, schedule_editor
from app.literal import literal
from app.loaded import CurrentPlan, Loaded
from app.session.data import shown_model
from app.session.plan_state import (
    EDITOR,
    OnScreen,
    editor_edited,
    locked_layers,
    remember_screen,
    table_edited,
    table_key,
)
from app.widgets.charts import (
    csv_button,
    download_button,
    reasons_part,
    show_named,
    table_with_csv,
)
from app.widgets.links import link_to
from app.widgets.notes import card, in_a_sentence, saved_metric
from app.widgets.plan_bar import plan_button, prediction_error
from pruning.measures.sum_error import SumError
from pruning.plan.budget import count_budget
from pruning.plan.experts_per_token import is_written, selecting
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan
from pruning.plan.sizes import SizeReport, format_bytes, format_count
from pruning.plan.super_experts import super_note
from pruning.plan.units import expert_units
from pruning.planning.choice import schedule_label
from pruning.planning.recipes import recipe_of
from pruning.records.quality import loss_of
from pruning.serving.engines import contents_of, readers, summary, verdicts

_RECIPE_LINES, _RECIPE_PX = 20, 460
_LOSSES = ("mean", "worst", "predicted")  # columns of the table of schedules
# Columns of the schedule comparison, key numbers first.
_SIDES = (
    "schedule",
    "mean",
    "worst",
    "predicted",
    "fewest",
    "most",
    "layers changed",
    "overlap with uniform",
    "on disk",
)
_ROWS = 10  # height of the table of exact values


def plan_metrics(loaded: Loaded, current_plan: CurrentPlan, report: SizeReport) -> None:
    """Four numbers: experts, disk, memory, computation."""
    first, second, third, fourth = st.columns(4)
    removed = report.experts_removed
    below = f"-{removed / report.experts_before:.0%} of {report.experts_before:,}"
    card("Experts kept", f"{report.experts_after:,}", below, place=first)
    saved_metric(second.metric, "On disk", report.bytes_before, report.bytes_after)
    note = "Weights in memory as bfloat16, without caches."
    saved_metric(third.metric, "Loaded (bf16)", *report.loaded("bfloat16"), note)
    active, less = report.active_after, report.active_after - report.active_before
    card(
        "Active parameters",
        format_count(active),
        f"{format_count(less)} of {format_count(report.active_before)}" if less else "as before",
        place=fourth,
        note="Used per token. The router still picks as many experts, so pruning experts saves "
        f"memory, not compute. Expert FLOPs per token: {report.expert_flops:,} before, "
        f"{report.expert_flops_after:,} after.",
    )


def editor_part(
    loaded: Loaded, current_plan: CurrentPlan, sides: ScheduleComparison | None
) -> None:
    """The bars, with the counts that an edit starts from."""
    st.markdown("**Experts kept per layer**: the other layers adjust to keep the budget.")
    if current_plan.plan.granularity == NEURON_GRANULARITY:
        st.info(
            "This plan prunes neurons inside experts, which have no bars here. The Export page "
            "writes it and shows what each width mode saves.",
            icon=":material/info:",
        )
        return
    layers, kept = loaded.model.layers, current_plan.kept
    units, budget = loaded.budget
    ghost = sides.kept_by("uniform") if sides else None
    if current_plan.file:
        removed = sum(layer.num_experts - kept[layer.index] for layer in layers)
        units, ghost = expert_units(layers), None
        budget = count_budget(units, removed)
    locked = frozenset() if current_plan.file else locked_layers(layers)
    remember_screen(OnScreen(loaded.model.identity, units, budget, kept, locked))
    terms = None if current_plan.file else _terms(loaded, current_plan.plan)
    bars = Bars(loaded.model.identity, units, budget, kept, locked, ghost, terms)
    schedule_editor(bars, key=EDITOR, on_edit=editor_edited)


def _terms(loaded: Loaded, plan: PruningPlan) -> Mapping[str, Any] | None:
    """What the browser predicts the loss of moved bars from; None if it cannot be predicted."""
    if plan.repair or plan.named_bits or loaded.sensitivity is None:
        return None
    error = loaded.study.sum_error(loaded.ranking)
    return None if error is None else loaded.study.cached(SumError.terms, error)


def notes_part(loaded: Loaded, current_plan: CurrentPlan) -> None:
    """Notes on the plan, one line each."""
    study = loaded.study
    supers = super_note(current_plan.plan, loaded.model, study.store, study.cached)
    notes = filter(None, (*current_plan.plan.notes, supers))
    for note in filter(None, (*map(literal, notes), prediction_error(loaded))):
        st.markdown(f":material/info: {note}")


def sides_part(loaded: Loaded, sides: ScheduleComparison) -> None:
    """All schedules on this budget: chart and table, with measured losses."""
    is_repaired = loaded.shown is not None and loaded.shown.plan.repair is not None
    st.markdown(
        "**All schedules on this budget**: stronger colours keep a larger share of their layer."
        + (" Losses are without repair." if is_repaired else "")
    )
    table = _with_losses(loaded, sides)
    readable = table.assign(
        schedule=table["schedule"].map(schedule_label),
        **{"on disk": table["on disk"].map(format_bytes)},
        **{
            name: signed(table[name], 3) for name in ("mean", "worst", "predicted") if name in table
        },
    )
    # Drop columns that are equal in every row.
    varying_columns = [str(name) for name in readable if len(set(readable[name].dropna())) > 1]
    map_column, table_column = st.columns([10, 14])
    with map_column:
        show_named("schedules", loaded)
    with table_column:
        table_with_csv(
            table,
            "schedules-summary",
            "The schedules side by side: counts, overlap with uniform, measured loss.",
            shown=readable,
            column_config={
                "schedule": TextColumn(width=128),
                "mean": NumberColumn(
                    "mean loss",
                    width=78,
                    format="%+.3f",
                    help="Added to the original's loss, mean over the corpora; - where it was not "
                    "measured.",
                ),
                "worst": NumberColumn("worst", width=62, format="%+.3f"),
                "predicted": NumberColumn(
                    width=78,
                    format="%+.3f",
                    help="Mean loss predicted from layer sensitivity; measure it before you ship.",
                ),
                "fewest": NumberColumn(width=56),
                "most": NumberColumn(width=52),
                "on disk": TextColumn(width=68),
                "overlap with uniform": NumberColumn(
                    "shared with uniform",
                    width=74,
                    format="percent",
                    help="Share of the pruned experts that uniform also prunes.",
                ),
                "layers changed": NumberColumn(
                    "changed", width=64, help="Layers whose count differs from uniform."
                ),
            },
            column_order=[name for name in _SIDES if name in varying_columns],
            placeholder="-",
            key="plan.sides",
        )
    for schedule, why in sides.refused.items():
        st.text(f"{schedule_label(schedule)} is not possible: {why}")


def _with_losses(loaded: Loaded, sides: ScheduleComparison) -> pd.DataFrame:
    """The summary of all schedules with the loss increase: measured, and predicted."""
    losses = loaded.study.losses
    plan_losses = [loss_of(losses, plan) for plan in sides.table["plan"]]
    measured = [
        plan_loss if plan_loss and not (plan_loss.way or plan_loss.missing) else None
        for plan_loss in plan_losses
    ]
    table = sides.table.assign(
        mean=[plan_loss.mean if plan_loss else math.nan for plan_loss in measured],
        worst=[plan_loss.worst if plan_loss else math.nan for plan_loss in measured],
    )
    if error := loaded.study.sum_error(loaded.first):
        plans = sides.counts["removed"].to_numpy().reshape(len(table), -1)
        table["predicted"] = error.bands(plans)[0].median
    return table


def engines_part(loaded: Loaded, current_plan: CurrentPlan) -> None:
    """Compatibility of the export, and a table with reasons."""
    if not is_written(current_plan.plan.top_k, loaded.model.family):
        st.markdown(
            ":material/warning: **Experts per token differ by layer**: evaluations follow them, "
            "and no export holds them."
        )
        return
    uniform = len(set(current_plan.kept.values())) == 1
    kind = "one count for all layers" if uniform else "layers of different sizes"
    engine_verdicts = verdicts(contents_of(loaded.model, current_plan.plan))
    is_plain = bool(readers(engine_verdicts).plain)
    icon = ":material/check_circle:" if is_plain else ":material/warning:"
    st.markdown(f"{icon} **{kind.capitalize()}**; {summary(engine_verdicts)}.")
    reasons_part(engine_verdicts, "plan.engines")


def table_part(loaded: Loaded, current_plan: CurrentPlan, sides: ScheduleComparison | None) -> None:
    """Exact values per layer; editing a cell equals moving its bar."""
    st.markdown("**Exact values**: type a number, or lock a layer.")
    uniform = sides.kept_by("uniform") if sides else None
    layers, kept = loaded.model.layers, current_plan.kept
    locked = frozenset() if current_plan.file else locked_layers(layers)
    away = [kept[n.index] - uniform[n.index] if uniform else None for n in layers]
    table = pd.DataFrame(
        {
            "layer": [layer.index for layer in layers],
            "keeps": [kept[layer.index] for layer in layers],
            "locked": [layer.index in locked for layer in layers],
            "share kept": [kept[layer.index] / layer.num_experts for layer in layers],
            "against uniform": pd.array(away, dtype="Int64"),
            "experts": [layer.num_experts for layer in layers],
            "top_k": [selecting(layer, current_plan.plan.top_k).top_k for layer in layers],
        }
    )
    if current_plan.plan.granularity == NEURON_GRANULARITY:
        st.dataframe(table, hide_index=True, key="plan.layers")
        return
    differs = len(set(table["top_k"])) > 1
    st.data_editor(
        table,
        hide_index=True,
        num_rows="fixed",
        disabled=[name for name in table.columns if name not in ("keeps", "locked")],
        column_config={
            "layer": NumberColumn(width=48),
            "keeps": NumberColumn(
                width=70, min_value=0, step=1, required=True, help="Experts that the layer keeps."
            ),
            "share kept": ProgressColumn(
                width=94, format="percent", min_value=0, max_value=1, color="primary"
            ),
            "locked": CheckboxColumn(width=66, help="Not changed by edits of other layers."),
            "against uniform": NumberColumn("difference from uniform", width=78, format="%+d"),
            "experts": NumberColumn(width=64),
            # With one count for all layers the sidebar shows it; save the room.
            "top_k": NumberColumn(width=54) if differs else None,
        },
        key=table_key(),
        on_change=table_edited,
        height="content" if len(table) <= _ROWS else 35 * (_ROWS + 1),
        alt="Experts kept per layer; numbers and locks are editable.",
    )
    csv_button(table, "layers")


def files_part(loaded: Loaded, current_plan: CurrentPlan) -> None:
    """Recipe, command line, files and the link to Export; see `recipe_of`."""
    recipe_column, command_column = st.columns(2)
    recipe = ""
    with recipe_column:
        st.markdown("**Recipe**: all settings, for `moeprune prune recipe.yaml`.")
        if current_plan.ranking:
            with in_a_sentence():  # a corpus of another machine may be none that a recipe can name
                recipe = recipe_of(current_plan.ranking, current_plan.repaired_by).to_yaml()
                long = recipe.count("\n") > _RECIPE_LINES
                st.code(recipe, language="yaml", height=_RECIPE_PX if long else "content")
        else:
            st.text("A plan from a file has no recipe here; the file records how it was made.")
    with command_column:
        st.markdown("**The same from the command line**")
        commands = current_plan.commands(shown_model(loaded.model))
        st.code("\n".join(commands), language=None, wrap_lines=True)
        with st.container(horizontal=True):
            plan_button(current_plan, "plan.save.plan")
            if recipe:
                download_button(
                    "Save recipe.yaml", lambda: recipe, "recipe.yaml", "plan.save.recipe"
                )
        link_to("export", "Export this plan", "output")
