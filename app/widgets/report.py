"""The downloads of the header: a one-page report, or the charts of a page, as HTML."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import streamlit as st

from analysis.cache_keys import cache_of_one_run
from analysis.errors import UserError
from app.charts.chart import Chart
from app.charts.listing import CHARTS
from app.charts.text_lens import TEXT_CHARTS, lenses, most_lost, shown_digest
from app.loaded import CurrentPlan, Loaded
from app.report.decision import PlanRow, answer_pair, decision_html, decision_of, row_of
from app.report.page import commands_of, report_html, report_of
from app.session.data import shown_model
from app.session.plan_data import bytes_after
from app.session.prompts import own_words, shown_unasked
from app.widgets.charts import download_button
from app.widgets.notes import show_command
from app.widgets.plan_bar import programs
from pruning.measures.store import readable_records
from pruning.plan.super_experts import super_note
from pruning.planning.ship_verdict import recorded_verdict
from pruning.records.evaluation import EvaluationStore
from pruning.records.kept_answers import AnswerStore
from pruning.records.lens import LensStore
from pruning.records.quality import stored_losses


def report_part(loaded: Loaded, page: str) -> None:
    """The downloads for the page at the URL path `page`: a report and its charts."""
    granularity = loaded.choices.spec.ranking.granularity
    views = [
        chart for chart in CHARTS.values() if (chart.page, chart.granularity) == (page, granularity)
    ]
    if loaded.choices.criterion is None:
        views = []
    if not views and loaded.shown is None:
        return
    part = st.popover(
        "Report", key="report.part", on_change="rerun", type="tertiary", width="content"
    )
    if not part.open:
        return
    try:
        commands = commands_of(loaded, views) if views else []
    except UserError:  # the page reports what cannot be read
        commands = []
    with part:
        if loaded.shown is not None:
            st.text("One page to print: what the plan saves, and its loss compared with Random.")
            decision_button(loaded, loaded.shown, "report.decision")
        if commands:
            _figures(loaded, page, views, commands)


def decision_button(
    loaded: Loaded, current_plan: CurrentPlan, key: str, label: str = "For decisions"
) -> None:
    """Download of the one-page report on a plan as it is exported; `key` is the widget's."""
    file, icon = f"{loaded.model.name}-decision.html", ":material/description:"
    download_button(label, decision_page(loaded, current_plan), file, key, icon=icon)


def _is_alike(one: Loaded, other: Loaded) -> bool:
    """Whether both have one plan on screen, exported in the same widths."""
    plans = {side.shown and side.shown.plan.in_own_bits.digest for side in (one, other)}
    return len(plans) == 1 and len({s.choices.spec.budget.widths for s in (one, other)}) == 1


def decision_page(loaded: Loaded, current_plan: CurrentPlan) -> Callable[[], str]:
    """Builds the decision page of a plan, with the numbers of another second one beside it."""
    current_plan = replace(current_plan, plan=current_plan.plan.in_own_bits)
    num_bytes = bytes_after(loaded, current_plan)
    export = num_bytes, programs(loaded, current_plan)
    second, plan_b = loaded.as_second, None
    is_other = second is not None and not _is_alike(loaded, second)
    if second and second.shown and is_other:
        plan_b = replace(second.shown, plan=second.shown.plan.in_own_bits)
        export_b = bytes_after(second, plan_b), programs(second, plan_b)
        predicted_b = second.predicted
    command = " && ".join(current_plan.commands(shown_model(loaded.model)))
    model, store, predicted, own_prompts = (
        loaded.model,
        loaded.study.store,
        loaded.predicted,
        own_words(),
    )

    def page() -> str:
        """The report file; runs on the click, in a thread without a session."""
        identity = model.identity
        evaluations = EvaluationStore(store.directories).snapshot(identity)
        losses = stored_losses(evaluations, identity)
        asked = AnswerStore(store.directories).snapshot(identity)
        answers, _ = readable_records(asked, identity)
        decision = decision_of(model, current_plan, num_bytes, losses, command)
        warning = super_note(current_plan.plan, model, store) or ""
        pair = answer_pair(
            shown_unasked(answers, AnswerStore, own_prompts), current_plan.plan.digest
        )
        ship = recorded_verdict(current_plan.plan, model, store, export, predicted)
        plans: tuple[PlanRow, ...] = ()
        if plan_b:
            ship_b = recorded_verdict(plan_b.plan, model, store, export_b, predicted_b)
            plans = (
                row_of(model, current_plan, num_bytes, losses, ship),
                row_of(model, plan_b, export_b[0], losses, ship_b),
            )
        return decision_html(
            replace(decision, answers=pair, warning=warning, ship=ship, plans=plans)
        )

    return page


def _figures(loaded: Loaded, page: str, views: Sequence[Chart], commands: Sequence[str]) -> None:
    # The report is made on the click, in a thread without a session.
    alone = replace(loaded, study=replace(loaded.study, cached=cache_of_one_run()))
    own_prompts = own_words()
    st.text(
        "The charts of this page in one HTML file, with captions, numbers and provenance. Both "
        "files open offline and print."
    )
    file = f"{loaded.model.name}-{page}.html"
    download_button(
        "All figures",
        lambda: report_html(report_of(*_without_words_of_others(alone, views, own_prompts))),
        file,
        "report",
    )
    show_command(*commands)


def _without_words_of_others(
    loaded: Loaded, views: Sequence[Chart], own: Sequence[str]
) -> tuple[Loaded, Sequence[Chart]]:
    """With a text that may be shown beside those in `own`, and the charts that it leaves."""
    texts = shown_unasked(lenses(loaded), LensStore, own)
    if not texts:
        return loaded, [view for view in views if view.name not in TEXT_CHARTS]
    results = replace(loaded.choices.results, text=most_lost(texts, shown_digest(loaded)).record_id)
    token = replace(loaded.choices.token, lenses=[text.record_id for text in texts])
    return loaded.choosing(results=results, token=token), views
