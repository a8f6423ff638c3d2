"""The four steps of a model of one's own: what is done, what comes next and what it takes."""

from typing import Any, Final

import streamlit as st

from analysis.corpora.spec import bare_name
from analysis.files.shipped import DEMO_MODEL
from analysis.model.loadable import unloadable
from app.literal import literal, literal_in_badge
from app.loaded import Loaded, loss_of_plan
from app.pages.start.statistics import known_words
from app.session.data import calibration_corpora, corpus_label, model_choices, usual_corpora
from app.session.job_queue import (
    active_job,
    has_export,
    own_model,
    queue,
    queued_job,
    shown_request,
)
from app.session.state import apply_criterion
from app.widgets.job_panel import progress_part
from app.widgets.links import link_to
from app.widgets.notes import badge
from app.widgets.own_texts import add_text_part
from app.widgets.plan_bar import measure_button, measured_corpora
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import ActionRequest, WeightsRequest

_CORPUS: Final = "step.corpus"
_MOST_MODELS: Final = 5  # in a row; the sidebar has all


def models_part(loaded: Loaded) -> None:
    """The models that the dashboard was started with, one click away; nothing if there are none."""
    names = [choice.name for choice in model_choices()]
    if names in ([], [DEMO_MODEL]):
        return
    with st.container(horizontal=True, vertical_alignment="center", key="models"):
        st.markdown("**Models**", width="content")
        for name in names[:_MOST_MODELS]:
            st.button(
                literal(name),
                key=f"model.{name}",
                icon=":material/check:" if name == loaded.model.name else None,
                type="tertiary",
                on_click=st.session_state.update,
                args=({"model": name},),
            )
        if (more := len(names) - _MOST_MODELS) > 0:
            st.text(f"and {more} more under Model and plan")


def steps_part(loaded: Loaded) -> None:
    """Calibrate, Plan, Evaluate, Export, side by side; not of the demo, where all is done."""
    if loaded.model.name == DEMO_MODEL:
        return
    # A phone has one below the other.
    for place, step in zip(st.columns(4), (_calibrate, _plan, _evaluate, _export), strict=True):
        with place.container(border=True, height="stretch"):
            step(loaded)


def _heading(number: int, name: str, *, is_done: bool, done: str) -> None:
    st.markdown(f"**{number}. {name}**")
    if is_done:
        badge(literal_in_badge(done))


def _progress(loaded: Loaded, kind: str) -> bool:
    """Draw the progress of a job of a kind for this model, of anybody; whether it is one's own."""
    job, own = active_job(loaded, kind), queued_job(kind, loaded)
    if job is not None:
        progress_part(job)
    elif own is not None and own.error:
        st.error(literal(own.error), icon=":material/error:")
    return job is not None and own is not None and job.id == own.id


def _send(request: ActionRequest, about: str) -> None:
    shell_request: Any = shown_request(request)
    queue(request, about, shell_request.command())


def _calibrate(loaded: Loaded) -> None:
    names = ", ".join(bare_name(corpus) for corpus in loaded.runs)
    _heading(1, "Calibrate", is_done=bool(loaded.runs), done=names)
    if unloadable(loaded.model):  # the part below says why
        st.text("It cannot run here.")
        return
    if _progress(loaded, "calibrate"):
        return
    if st.session_state.get(_CORPUS) not in (corpora := calibration_corpora()):
        st.session_state[_CORPUS] = next(iter(usual_corpora(loaded)), corpora[0])
    corpus = st.selectbox("Corpus", corpora, key=_CORPUS, format_func=corpus_label)
    request = CalibrateRequest(**own_model(loaded), corpus=corpus)
    with st.container(horizontal=True):
        if st.button(
            "Run calibration",
            key="step.calibrate",
            type="secondary" if loaded.runs else "primary",
            icon=":material/play_arrow:",
        ):
            _send(request, loaded.model.name)
        add_text_part("step.text", _take_text)
    st.caption(known_words(loaded, request) or "One pass over the corpus.")
    if loaded.runs or _progress(loaded, "weights"):
        return
    if loaded.study.weight_run is None and st.button(
        "Or measure its weights alone", key="step.weights", type="tertiary"
    ):
        _send(WeightsRequest(**own_model(loaded)), loaded.model.name)


def _take_text(path: str) -> None:
    st.session_state[_CORPUS] = path


def _plan(loaded: Loaded) -> None:
    plan = loaded.shown
    _heading(2, "Plan", is_done=plan is not None, done=plan.name if plan else "")
    if plan is not None:
        st.text("Choose the criterion, how much goes, and where.")
    elif loaded.study.weight_run is None:
        st.text("Which experts go. Calibrate first, or measure the weights.")
    else:
        st.text("Which experts go. AIMER reads the weights alone.")
        st.button("Use AIMER", key="step.aimer", on_click=apply_criterion, args=("aimer",))
    link_to("plan", "Plan", "tune")


def _evaluate(loaded: Loaded) -> None:
    loss, _ = loss_of_plan(loaded)
    is_done, plan = loss is not None and not loss.missing, loaded.shown
    _heading(3, "Evaluate", is_done=is_done, done=f"loss {loss.mean:+z.2f}" if loss else "")
    if plan is None:
        st.text("What the plan costs, on held-out corpora.")
    elif not (_progress(loaded, "evaluate") or is_done):
        names = ", ".join(map(corpus_label, measured_corpora(loaded)))
        st.text(f"Original and plan run on {names or 'held-out corpora'}.")
        measure_button(loaded, plan, "step.measure", type="primary")
    link_to("evaluate", "Evaluate", "insights")


def _export(loaded: Loaded) -> None:
    plan = loaded.shown
    is_done = plan is not None and has_export(loaded, plan.plan)
    _heading(4, "Export", is_done=is_done, done="written and verified")
    _progress(loaded, "export")
    if not is_done:
        st.text("Write the smaller checkpoint, and prove it.")
    link_to("export", "Export", "output")
