"""The table of the pinned plans, and what can be done with the chosen one."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import pandas as pd
import streamlit as st
from streamlit.column_config import CheckboxColumn, NumberColumn, TextColumn

from analysis.criteria import criterion_label
from app.loaded import Loaded, loss_of_plan
from app.session.pinned_plans import NO_ORDER, PinnedPlan, choose_second, open_pin, pinned_plans
from app.session.pins import (
    MOST_NOTE,
    MOST_PINS,
    Pin,
    chosen_second,
    name_of,
    pins,
    unpin,
    unpin_others,
    write_note,
)
from app.session.plan_data import bytes_after
from app.widgets.charts import chosen_rows, csv_button
from app.widgets.controls import choose
from app.widgets.plan_bar import is_benchmarked, programs, verdict_of
from pruning.planning.comparing import is_ordered
from pruning.records.verdict import ShipVerdict

_UNITS: Final = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_LOOK: Final = {
    "side": TextColumn("side", width=40),
    "plan": TextColumn("plan", width=230),
    "size": NumberColumn("size", width=85),
    "mean": NumberColumn("mean loss", format="%+.3f", width=80),
    "worst": NumberColumn("worst loss", format="%+.3f", width=80),
    "worst_on": TextColumn("worst corpus", width=105),
    "loss_is": TextColumn("loss is", width=85),
    "verdict": TextColumn("verdict", width=330),
    "benchmarked": CheckboxColumn("benchmarked", width=95),
    "engines": TextColumn("engines", width=230),
    "note": TextColumn("note", width=200),
}
_SHOWN: Final = "pins.show"
_ORDER: Final = (*_LOOK, "digest")


def pinned_part(loaded: Loaded) -> None:
    """The pinned plans of the model in one table, with buttons for the chosen row."""
    all_pins = pins()
    if not all_pins:
        return
    plans, problems = pinned_plans(loaded)
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(
                f"**Pinned plans**, {len(all_pins)} of at most {MOST_PINS}; choose a row. The URL "
                "carries them with their notes.",
                width="content",
            )
            shown_plans = _filtered(plans)
        others = len(all_pins) - len(plans) - len(problems)
        lines = [*problems.values()] + [_changed_words(plan) for plan in plans if plan.has_changed]
        if others:
            lines.append(f"{others} of another model, which shows them.")
        if lines:
            st.warning("  \n".join(lines), icon=":material/warning:")
        if problems:
            label = "Unpin what cannot be made"
            st.button(label, key="pins.unpin.rest", on_click=unpin, args=tuple(problems))
        if others:
            st.button(
                "Unpin those of other models",
                key="pins.unpin.others",
                on_click=unpin_others,
                args=(loaded.model,),
            )
        if plans:
            _table(loaded, shown_plans)


def _kinds(pinned: PinnedPlan) -> tuple[str, ...]:
    """What a plan can be looked for by: its criterion, whether it was measured, its light."""
    ranked_by = pinned.plan.plan.provenance.criterion
    verdict = verdict_of(pinned.loaded, pinned.plan)
    return (
        criterion_label(ranked_by) if ranked_by else "without criterion",
        "measured" if loss_of_plan(pinned.loaded)[0] else "not measured",
        *((str(verdict.light),) if verdict else ()),
    )


def _filtered(plans: Sequence[PinnedPlan]) -> Sequence[PinnedPlan]:
    """Those of the kind that is chosen; no choice where no kind tells plans apart."""
    kinds = [_kinds(plan) for plan in plans]
    count = Counter(kind for names in kinds for kind in names)
    telling = [kind for kind in count if count[kind] < len(plans)]
    if not telling:
        return plans
    chosen = choose(
        "Show",
        ("", *telling),
        key=_SHOWN,
        bind="query-params",
        format_func=lambda kind: f"{kind} ({count[kind]})" if kind else f"all {len(plans)}",
        label_visibility="collapsed",
        width=200,
    )
    return [plan for plan, names in zip(plans, kinds, strict=True) if not chosen or chosen in names]


def _changed_words(plan: PinnedPlan) -> str:
    is_of_file = plan.pin.file and not plan.plan.repaired_by  # a file stays as it is
    why = (
        "its file is of that plan, so the link was edited"
        if is_of_file
        else "the statistics have changed since it was pinned"
    )
    return f"`{plan.pin.digest}` makes plan `{plan.plan.plan.digest[:8]}` now: {why}."


def _table(loaded: Loaded, plans: Sequence[PinnedPlan]) -> None:
    table = pinned_table(plans)
    unit = next(unit for unit, size in _UNITS.items() if table["size"].max() >= size)
    size = NumberColumn("size", format=f"%.2f {unit}", width=85)
    key = ".".join(["pins.table", *(plan.pin.name for plan in plans)])
    st.dataframe(
        table.assign(
            size=table["size"] / _UNITS[unit], side=[_side(loaded, plan) for plan in plans]
        ),
        hide_index=True,
        key=key,
        on_select="rerun",
        selection_mode="single-row",
        column_order=_ORDER,
        column_config={**_LOOK, "size": size},
        alt=f"{len(plans)} pinned plans",
    )
    rows = chosen_rows(key)
    chosen = plans[rows[0]] if rows and rows[0] < len(plans) else None
    with st.container(horizontal=True, vertical_alignment="bottom"):
        _buttons(loaded, chosen)
        csv_button(table, "pinned-plans")


def _side(loaded: Loaded, pinned: PinnedPlan) -> str:
    """A for the plan on screen, B for the second; one plan in several widths is several pins."""
    second = chosen_second(loaded.model, by_neuron=loaded.choices.spec.by_neuron)
    is_a = loaded.shown is not None and name_of(loaded.shown) == pinned.name
    is_b = loaded.beside is not None and second is not None and second.name == pinned.pin.name
    return ", ".join(["A"] * is_a + ["B"] * is_b)


def pinned_table(plans: Iterable[PinnedPlan]) -> pd.DataFrame:
    """A row for each plan, with the numbers that the bar shows of it; sizes in bytes."""
    return pd.DataFrame([_row(plan) for plan in plans])


def _row(pinned: PinnedPlan) -> dict[str, Any]:
    loaded, plan = pinned.loaded, pinned.plan
    loss, _ = loss_of_plan(loaded)
    increase, by = loss or loaded.predicted, programs(loaded, plan)
    verdict = verdict_of(loaded, plan)
    kind = "predicted" if increase else "not measured"
    if loss:
        missing = [f"not on {name}" for name in loss.missing]
        kind = ", ".join(["measured", *filter(None, [loss.way]), *missing])
    return {
        "plan": plan.name,
        "size": bytes_after(loaded, plan),
        "mean": increase.mean if increase else math.nan,
        "worst": increase.worst if increase else math.nan,
        "worst_on": increase.worst_on if increase else "",
        "loss_is": kind,
        "engines": by.words or "none",
        "verdict": _verdict_words(verdict) if verdict else "none",
        "benchmarked": is_benchmarked(loaded, plan.plan),
        "note": pinned.pin.note,
        "digest": pinned.pin.digest,
    }


def _verdict_words(verdict: ShipVerdict) -> str:
    why = ", ".join(reason.short for reason in verdict.worst)
    return f"{verdict.light}: {why or verdict.headline}"


def _buttons(loaded: Loaded, chosen: PinnedPlan | None) -> None:
    """What can be done with the chosen plan; without one they are off, and move nothing later."""
    pin = chosen.pin if chosen else None
    plan = chosen.plan.plan if chosen else None
    is_alike = plan and plan.granularity == loaded.choices.spec.ranking.granularity
    is_compared = plan and is_alike and is_ordered(plan)
    why_not = ""
    if plan and not is_compared:
        why_not = NO_ORDER if is_alike else "A plan of neurons is compared with one of neurons."
    for label, key, icon, act in (
        ("Open", "pins.open", "open_in_new", partial(open_pin, loaded)),
        ("Compare with it", "pins.second", "compare_arrows", choose_second),
        ("Unpin", "pins.unpin", "close", _unpin),
    ):
        st.button(
            label,
            key=key,
            icon=f":material/{icon}:",
            disabled=pin is None or (act is choose_second and not is_compared),
            on_click=act,
            help=(act is choose_second and why_not) or None,
            args=(pin,),
        )
    key = f"pins.note.{pin.name if pin else ''}"
    st.text_input(
        "Note",
        value=pin.note if pin else "",
        key=key,
        max_chars=MOST_NOTE,
        disabled=pin is None,
        on_change=write_note,
        args=(pin, key),
        width=300,
    )


def _unpin(pin: Pin) -> None:
    unpin(pin.name)
