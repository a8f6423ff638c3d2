"""Job forms: shared fields, run button, equivalent commands."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import streamlit as st

from analysis.corpora.spec import corpus_name
from analysis.criteria import CRITERIA
from analysis.stats.columns import groups_for
from app.jobs.kinds import kind_of
from app.jobs.model import Job
from app.literal import literal
from app.loaded import CurrentPlan, Loaded
from app.session.data import calibration_corpora, corpus_label, shown_model
from app.session.job_queue import own_model, queue, shown_request
from app.session.state import one_of
from app.widgets.controls import choose, say_unknown
from app.widgets.job_panel import own_job_part
from app.widgets.notes import inform, show_command
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import ActionRequest
from pruning.spec.base import bounds, validated

Share = TypeVar("Share")
DTYPES: Final = ("auto", "float32", "bfloat16", "float16")


def queue_button(label: str, why_not: str = "") -> bool:
    """Draw the submit button of a `st.form` that queues a job; disabled with the reason, if any."""
    with st.container(horizontal=True, vertical_alignment="center"):
        sent = st.form_submit_button(
            label, icon=":material/play_arrow:", type="primary", disabled=bool(why_not)
        )
        if why_not:
            st.text(why_not)
    return sent and not why_not


def offer_job(
    loaded: Loaded,
    request: ActionRequest,
    about: str,
    *,
    sent: bool,
    plan: CurrentPlan | None = None,
) -> Job | None:
    """As `offer_command`, with the progress of the last job of its kind of this session above it.

    Returns that job while it is active.
    """
    place = st.container()
    offer_command(loaded, request, about, sent=sent, plan=plan)
    with place:
        return own_job_part(kind_of(request), loaded)


def offer_command(
    loaded: Loaded,
    request: ActionRequest,
    about: str,
    *,
    sent: bool,
    plan: CurrentPlan | None = None,
) -> None:
    """Queue the job if its form was submitted; show the equivalent commands.

    `about` goes into the title. A plan that the job needs has its own command line.
    """
    shell_request: Any = shown_request(request)
    commands = [shell_request.command()]
    if plan is not None:
        made_by = plan.commands(shown_model(loaded.model))
        commands = [*made_by, shell_request.command((plan.file_name,))]
    if sent:
        queue(request, about, commands[-1])
    show_command("\n".join(commands))


def dtype_field(usual: str, key: str, note: str) -> str:
    """Draw the dtype field; default `usual` if it is one of DTYPES."""
    return choose("dtype", DTYPES, usual, key=key, help=note, width=150)


def share_control(options: Mapping[str, Share], key: str, default: str = "") -> Share:
    """Draw the sparsity if there is a choice; without `default` half is chosen."""
    usual = next((name for name in (default, "50%") if name in options), next(iter(options)))
    if len(options) == 1:
        return options[usual]
    label, names = "Candidates at this sparsity", list(options)
    say_unknown(label, key, names)
    chosen = st.select_slider(label, names, value=usual, key=key, bind="query-params")
    return options[one_of(chosen, names, usual)]


def samples_field(label: str, prefix: str, place: Any = st) -> int:
    """Draw the number of samples per corpus."""
    steps = (8, 16, 32, 64, 128)
    return int(place.select_slider(label, steps, value=64, key=f"{prefix}.samples"))


def skip_field(key: str, place: Any = st) -> int:
    """Draw the number of bad rows of a corpus that may be left out."""
    least, most = bounds(CalibrateRequest, "skip_bad_rows")
    note = "Rows that cannot be read or formatted are left out and counted, up to this many."
    return int(place.number_input("Bad rows to skip", least, most, key=key, help=note))


def calibrated_field(loaded: Loaded, prefix: str, place: Any, **look: Any) -> tuple[str, ...]:
    """Draw the choice of calibration corpus; the corpus, or none."""
    chosen = place.selectbox(
        "Calibration corpus",
        list(loaded.runs),
        key=f"{prefix}.calibrated",
        placeholder="no statistics",
        **look,
    )
    return (chosen,) if chosen else ()


def sweep_fields(loaded: Loaded, prefix: str) -> dict[str, Any]:
    """Draw criteria, sparsities and calibration corpus; return their values."""
    criteria = st.multiselect(
        "Criteria",
        list(CRITERIA),
        default=("reap", "frequency", "random"),
        format_func=lambda name: CRITERIA[name].label,
        key=f"{prefix}.criteria",
    )
    first, second = st.columns(2)
    sparsities = first.multiselect(
        "Sparsities", ("25%", "50%", "75%"), default=["50%"], key=f"{prefix}.sparsities"
    )
    note = "The criteria rank by the statistics of this corpus."
    return {
        "criteria": tuple(criteria),
        "sparsities": tuple(sparsities),
        "calibrated_on": calibrated_field(loaded, prefix, second, help=note),
    }


def neurons_missing_part(loaded: Loaded) -> None:
    """Show what is missing, and offer the calibration per neuron."""
    if loaded.choices.criterion is None:
        raise ValueError("a criterion of weights alone lacks no statistics")
    corpora = calibration_corpora()
    names = {corpus_name(corpus): corpus for corpus in corpora}
    chosen = names.get(loaded.corpus, corpora[0])
    inform(
        f"{loaded.choices.criterion.label} needs statistics per neuron, which are missing for "
        f"{literal(loaded.model.name)}"
        + (f" on {literal(loaded.corpus)}" if loaded.runs else "")
        + " yet. Collect them here (one forward and one backward pass), or choose Neuron norms, "
        "which read only the weights."
    )
    corpus = st.selectbox(
        "Corpus",
        corpora,
        index=corpora.index(chosen),
        format_func=corpus_label,
        key="neurons.corpus",
        width=320,
    )
    groups = groups_for(loaded.choices.criterion.columns("applied"))
    # Tokens, sequence length and seed of the existing run of this corpus.
    before: dict[str, int] = {}
    if run := loaded.runs.get(corpus_name(corpus)):
        settings = run.manifest.settings
        before = {"tokens": sum(corpus.num_tokens for corpus in run.manifest.corpora)}
        before |= {key: settings[key] for key in ("seq_len", "seed") if key in settings}
    fields = {**own_model(loaded), "corpus": corpus, "groups": groups, **before}
    label, icon = "Collect statistics of neurons", ":material/play_arrow:"
    sent = st.button(label, icon=icon, type="primary", key="neurons.collect")
    about = f"neurons of {loaded.model.name}"
    offer_job(loaded, validated(CalibrateRequest, fields), about, sent=sent)
