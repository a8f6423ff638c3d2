"""The verdict on the plan on screen: one line in the bar, and its reasons."""

from dataclasses import replace
from typing import Final

import streamlit as st

from analysis.model.moe_model import MoEModel
from app.literal import literal
from app.loaded import CurrentPlan, Loaded
from app.session.plan_data import bytes_after
from pruning.benchmarks.record import BenchmarkStore
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan, changes_nothing
from pruning.planning.ship_verdict import QUALITY, Evidence, ship_verdict
from pruning.records.ship_verdict import Light, Reason, ShipVerdict
from pruning.serving.engines import Readers, contents_of, readers, verdicts

_COLORS: Final = {Light.GREEN: "green", Light.AMBER: "orange", Light.RED: "red"}
_ICONS: Final = {Light.GREEN: "check_circle", Light.AMBER: "warning", Light.RED: "dangerous"}


def programs(loaded: Loaded, shown: CurrentPlan) -> Readers:
    """The programs that were tried and load the export, in the chosen width mode.

    None in fewer bits, which no export has.
    """
    if shown.plan.bits:
        return Readers((), ())
    has_own_widths = loaded.choices.spec.budget.width_mode != "uniform"
    return loaded.study.cached(_programs, loaded.model, shown.plan, has_own_widths)


def _programs(model: MoEModel, plan: PruningPlan, has_own_widths: bool) -> Readers:
    contents = contents_of(model, plan)
    if plan.granularity == NEURON_GRANULARITY and has_own_widths:
        contents = replace(contents, has_own_widths=True)
    return readers(verdicts(contents))


def verdict_of(
    loaded: Loaded, shown: CurrentPlan, num_bytes: int | None = None
) -> ShipVerdict | None:
    """The verdict on the export of the plan on screen, of `num_bytes` where options change them.

    None for weights in fewer bits, which are only simulated, and if nothing is changed.
    """
    if shown.plan.bits or changes_nothing(shown.plan, loaded.model):
        return None
    study = loaded.study
    records, _ = study.records(BenchmarkStore)
    digest = shown.plan.digest
    evidence = Evidence(
        before=loaded.model.checkpoint.nbytes,
        after=bytes_after(loaded, shown) if num_bytes is None else num_bytes,
        losses=study.losses,
        readers=programs(loaded, shown),
        is_benchmarked=any(record.plan_digest == digest and record.scores for record in records),
        predicted=loaded.predicted,
    )
    return ship_verdict(shown.plan, loaded.model, evidence)


def verdict_words(verdict: ShipVerdict) -> str:
    """The verdict in one line of Markdown, for the bar."""
    words = literal(verdict.in_one_line)
    return f":{_COLORS[verdict.light]}[:material/{_ICONS[verdict.light]}: {words}]"


def verdict_part(verdict: ShipVerdict) -> None:
    """The verdict and a line for each reason."""
    st.markdown("  \n".join((f"**{verdict_words(verdict)}**", *map(_line, verdict.reasons))))


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
