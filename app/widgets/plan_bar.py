"""The plan in one line on every page: name, savings, loss."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Final

import pandas as pd
import streamlit as st

from analysis.corpora.spec import bare_name, parse_corpus
from analysis.errors import UserError
from analysis.model.moe_model import MoEModel
from app.errors import show_error
from app.literal import literal
from app.loaded import CurrentPlan, Loaded, loss_of_plan, loss_text
from app.session.data import held_out_corpora, usual_corpora, usual_dtype
from app.session.job_queue import own_model, queue, shown_request
from app.session.pins import is_shown_pinned, pins_of, toggle_shown
from app.session.plan_data import bytes_after
from app.session.plan_state import (
    NoPlan,
    Snapshot,
    forget_import,
    imported_plan,
    last_change,
    why_lost,
)
from app.session.state import PINNED, page_now
from app.widgets.charts import download_button
from app.widgets.links import link_to
from app.widgets.repair import repair_choice
from pruning.benchmarks.record import BenchmarkStore
from pruning.measures.names import DEFAULT_MEASURES
from pruning.measures.result import RIGHT
from pruning.plan.bits import FORMATS, OWN
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan
from pruning.plan.size_words import change_words
from pruning.plan.sizes import format_bytes
from pruning.planning.make import PLAN_FILE
from pruning.records.quality import PlanLoss, RandomLoss
from pruning.records.verdict import (
    QUALITY,
    Evidence,
    Light,
    Reason,
    ShipVerdict,
    ship_verdict,
)
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.repair import RepairRequest
from pruning.serving.engines import Readers, contents_of, readers, verdicts
from pruning.spec.base import validated

_COLORS: Final = {Light.GREEN: "green", Light.AMBER: "orange", Light.RED: "red"}
_ICONS: Final = {Light.GREEN: "check_circle", Light.AMBER: "warning", Light.RED: "dangerous"}


def no_plan(why: UserError) -> None:
    """Show why there is no plan, with buttons to fix it."""
    if not isinstance(why, NoPlan):
        show_error(why)
        return
    st.info(str(why), icon=":material/info:")
    with st.container(horizontal=True):
        for label, controls in why.ways.items():
            key = f"plan.to.{next(iter(controls))}"
            st.button(label, key=key, on_click=st.session_state.update, args=(controls,))


def lost_note(model: MoEModel) -> None:
    """Say why the URL is not of the plan on screen, if it is not."""
    pinned = {pin.file for pin in pins_of(model)} if st.session_state.get(PINNED) else set()
    if why := why_lost(imported_plan(model), pinned):
        st.warning(why, icon=":material/warning:")


def plan_line(loaded: Loaded) -> Loaded:
    """The plan on screen, with buttons to measure it or to close its file.

    Returns what is loaded with the chosen repair of the plan.
    """
    if loaded.shown is None:
        return loaded
    bar = st.container()
    with st.sidebar:
        plan = repair_choice(loaded, loaded.shown, bar)
    loaded = replace(loaded, shown=plan)
    before, after = loaded.model.checkpoint.nbytes, bytes_after(loaded, plan)
    loss, chance = loss_of_plan(loaded)
    saved = f"-{1 - after / before:.0%}" if after < before else change_words(before, after)
    saved = f":orange[{saved}]" if after > before else saved
    saved += ", simulated" if plan.plan.named_bits else ""
    verdict = verdict_of(loaded, plan)
    change = last_change(page_now(), Snapshot(plan.plan, after, loss))
    # The second line is always there, so that its words move nothing.
    ships = verdict_words(verdict) if verdict else ""
    second_line = " · ".join(filter(None, (ships, change))) or "&nbsp;"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(
            f":orange[:material/circle:] **{literal(plan.name)}** `{plan.plan.digest[:8]}` "
            f":material/arrow_right_alt: **{format_bytes(after)}** "
            f"({saved}) · {loss_words(loaded, loss, chance)}  \n{second_line}",
            width="stretch",
        )
        if loss is None or loss.missing:
            measure_button(loaded, plan, "plan.measure", type="tertiary")
        if plan.file:
            st.button(
                "Back to the controls",
                key="plan.forget",
                icon=":material/close:",
                on_click=forget_import,
                type="tertiary",
                help="The file is shown and exported as it is; links do not carry it, a pin does.",
            )
        _pin_button(plan)
    return loaded


def _pin_button(plan: CurrentPlan) -> None:
    """Pin the plan, or remove its pin."""
    is_pinned = PINNED in st.session_state and is_shown_pinned(plan)
    st.button(
        "Unpin" if is_pinned else "Pin",
        key="plan.pin",
        icon=":material/keep_off:" if is_pinned else ":material/keep:",
        type="tertiary",
        on_click=toggle_shown,
        args=(plan,),
        help="Pinned plans are a table on Compare; the URL carries them."
        + (" This server keeps the file." if plan.file else ""),
    )


def programs(loaded: Loaded, shown: CurrentPlan) -> Readers:
    """The programs that were tried and load the export, in the chosen width mode.

    None in fewer bits, which no export has.
    """
    if shown.plan.named_bits:
        return Readers((), ())
    has_own_widths = loaded.choices.spec.budget.width_mode != "uniform"
    return loaded.study.cached(_programs, loaded.model, shown.plan, has_own_widths)


def _programs(model: MoEModel, plan: PruningPlan, has_own_widths: bool) -> Readers:
    contents = contents_of(model, plan)
    if plan.granularity == NEURON_GRANULARITY and has_own_widths:
        contents = replace(contents, has_own_widths=True)
    return readers(verdicts(contents))


def verdict_of(
    loaded: Loaded,
    shown: CurrentPlan,
    sizes: tuple[int, int] | None = None,
    by: Readers | None = None,
) -> ShipVerdict | None:
    """The verdict on the export of the plan on screen, see `ship_verdict`.

    `sizes` are its bytes before and after, and `by` loads it, where options of the export decide.
    """
    by = by or programs(loaded, shown)
    before, after = sizes or (loaded.model.checkpoint.nbytes, bytes_after(loaded, shown))
    evidence = Evidence(
        before=before,
        after=after,
        losses=loaded.study.losses,
        plain=by.plain,
        special=by.special,
        is_benchmarked=is_benchmarked(loaded, shown.plan),
        predicted=loaded.predicted,
    )
    return ship_verdict(shown.plan, loaded.model, evidence)


def is_benchmarked(loaded: Loaded, plan: PruningPlan) -> bool:
    """Whether any benchmark of the plan has scores."""
    records, _ = loaded.study.records(BenchmarkStore)
    return any(record.plan_digest == plan.digest and record.scores for record in records)


def verdict_words(verdict: ShipVerdict) -> str:
    """The verdict in one line of Markdown, for the bar."""
    words = literal(verdict.in_one_line)
    return f":{_COLORS[verdict.light]}[:material/{_ICONS[verdict.light]}: {words}]"


def verdict_part(verdict: ShipVerdict, *, red: bool) -> None:
    """A line for each reason against shipping, or for each other one."""
    lines = [_line(reason) for reason in verdict.ordered if (reason.light is Light.RED) == red]
    if lines:
        st.markdown("  \n".join(lines))


def quality_warning(loaded: Loaded) -> None:
    """Warn of a plan that loses more than Random, with both losses."""
    verdict = verdict_of(loaded, loaded.shown) if loaded.shown else None
    for reason in verdict.reasons if verdict else ():
        if reason.about == QUALITY and reason.light is Light.RED:
            words = reason.words[0].upper() + reason.words[1:]
            st.warning(f"{literal(words)}.", icon=":material/warning:")


def _line(reason: Reason) -> str:
    icon = f":{_COLORS[reason.light]}[:material/{_ICONS[reason.light]}:]"
    return f"{icon} {reason.about}: {literal(reason.words)}"


def plan_button(current_plan: CurrentPlan, key: str, verb: str = "Save") -> None:
    """Download of the plan's file."""
    file = RepairRequest.writes if current_plan.plan.repair else PLAN_FILE
    download_button(f"{verb} {file}", current_plan.plan.to_json, file, key)


def plan_in_bits(plan: PruningPlan) -> dict[str, Any]:
    """`plans` and `bits` of an evaluation's request: plan files of commands are in own bits."""
    if plan.layer_bits:  # which no option says
        return {"plans": (plan.to_dict(),), "bits": (OWN,)}
    return {"plans": (plan.in_own_bits.to_dict(),), "bits": (plan.bits or OWN,)}


def in_own_bits(loaded: Loaded, what: str) -> Loaded:
    """With the plan in the checkpoint's own bits; says so if it is simulated in fewer.

    `what` takes it as it is: "Exports have".
    """
    if loaded.shown is None or not (bits := loaded.shown.plan.named_bits):
        return loaded
    label = FORMATS[bits].label if bits in FORMATS else f"bits {bits}"
    st.text(f"{what} the weights as they are: {label} are simulated by evaluations of the loss.")
    current_plan = replace(loaded.shown, plan=loaded.shown.plan.in_own_bits)
    return replace(loaded, shown=current_plan)


def measured_corpora(loaded: Loaded) -> list[str]:
    """What `measure_button` measures on: the corpora of other plans, else the model's own."""
    measured = (name for loss in loaded.study.losses[:1] for name in loss.corpora)
    compared = set(map(bare_name, measured))
    held_out = held_out_corpora(loaded) if compared else []
    return [text for text in held_out if bare_name(text) in compared] or usual_corpora(loaded)


def measure_button(loaded: Loaded, current_plan: CurrentPlan, key: str, **look: Any) -> None:
    """Queue an evaluation on the corpora and in the dtype of most plans.

    `key` is the widget's, `look` are arguments of `st.button`.
    """
    texts = measured_corpora(loaded)
    if not texts:
        link_to("evaluate", "Measure", "insights")
        return
    if st.button("Measure", key=key, icon=":material/insights:", **look):
        fields = {
            **own_model(loaded),
            **plan_in_bits(current_plan.plan),
            "corpora": texts,
            "dtype": usual_dtype(loaded),
            **({"measures": (*DEFAULT_MEASURES, RIGHT)} if _answers_count(loaded, texts) else {}),
        }
        request = validated(EvaluateRequest, fields)
        queue(
            request,
            current_plan.name,
            shown_request(request).command((current_plan.file_name,)),
        )


def _answers_count(loaded: Loaded, corpora: Sequence[str]) -> bool:
    """Whether these corpora have a check of their own, and plans were asked already."""
    has_check = any(parse_corpus(corpus).check for corpus in corpora)
    return has_check and any(loss.right for loss in loaded.study.losses)


def loss_words(loaded: Loaded, loss: PlanLoss | None, chance: RandomLoss | None) -> str:
    """`loss_text` in Markdown."""
    return literal(loss_text(loaded, loss, chance))


def prediction_error(loaded: Loaded) -> str:
    """One sentence on the error of the prediction; empty if it or the measurement is missing."""
    measured, predicted = loss_of_plan(loaded)[0], loaded.predicted
    shared = measured.change.keys() & predicted.change.keys() if measured and predicted else ()
    if measured is None or predicted is None or not shared:
        return ""
    expected = f"{fmean(predicted.change[name] for name in shared):+z.2f}"
    if shared == predicted.change.keys():
        expected += f" ({predicted.low:.2f} to {predicted.high:.2f})"
    actual = fmean(measured.change[name] for name in shared)
    where = literal(", ".join(sorted(shared)))
    return (
        f"Layer sensitivity predicts a loss increase of {expected} on {where}; measured: "
        f"{actual:+z.2f}."
    )


def losses_table(full: Mapping[str, float], added: Mapping[str, Mapping[str, float]]) -> None:
    """Draw one row per corpus: loss of the original, and loss increases; nats per token."""
    columns = {"original model": [f"{value:.2f}" for value in full.values()]} | {
        # Escaped: a bare dash is a list in Markdown.
        name: [f"{change[corpus]:+z.2f}" if corpus in change else r"\-" for corpus in full]
        for name, change in added.items()
    }
    index = pd.Index([literal(name) for name in full], name="corpus")
    st.table(pd.DataFrame(columns, index=index))
