"""The parts of the Start page: statistics found, checks, and the forms that collect more."""

from typing import cast

import pandas as pd
import streamlit as st

from analysis.corpora import PRESETS, Count, Packing
from analysis.demo.texts import TEXTS
from analysis.errors import UserError
from analysis.model import DEMO_MODEL
from app import data
from app.job_queue import submit
from app.maps import never_routed
from app.state import View
from app.task_requests import DEFAULT_SEQ_LEN, CalibrateRequest, WeightsRequest

_FILES = ("*.txt", "*.jsonl", "*.parquet")
_TOKENS = (8_192, 16_384, 65_536, 262_144, 524_288, 1_048_576)
_PACKINGS = {
    "auto": "end to end; rows of token ids as they are",
    "concatenate": "end to end",
    "pack": "side by side, unseen by each other",
    "pad": "one a sequence",
}
_COUNTS = {"all": "all tokens", "response": "answers only"}


def runs_table(view: View) -> None:
    """One row per run of any model; the model on screen first."""
    runs, problems = data.all_runs()
    rows = [
        {
            "model": run.manifest.model.name,
            "statistics": run.manifest.corpus or "weights",
            "layers": len(run.manifest.model.layers),
            "experts": run.manifest.model.layers[0].num_experts,
            "top-k": run.manifest.model.layers[0].top_k,
            "tokens": run.manifest.num_tokens or None,
            "seconds": run.manifest.made.get("seconds"),
            "made": str(run.manifest.made.get("created_at", ""))[:10],
            "fits": "this model"
            if run.manifest.model.identity == view.model.identity
            else "another model",
        }
        for run in runs
    ]
    st.subheader("Statistics found")
    if rows:
        table = pd.DataFrame(rows).sort_values(
            ["fits", "model", "statistics"], ascending=[False, True, True]
        )
        st.dataframe(table, hide_index=True, alt=f"{len(rows)} cached runs")
    else:
        st.info("No statistics yet: collect them below.", icon=":material/info:")
    for problem in problems:
        st.warning(problem, icon=":material/warning:")
    st.code("moeprune runs list", language=None)


def checks(view: View) -> None:
    """What is worth knowing of the model on screen before trusting a ranking."""
    with st.container(horizontal=True):
        for corpus, run in view.runs.items():
            count = never_routed(data.expert_stats(run))
            if count:
                word = "expert" if count == 1 else "experts"
                st.badge(
                    f"{count} {word} never routed on {corpus}",
                    icon=":material/warning:",
                    color="orange",
                )
            else:
                st.badge(f"every expert routed on {corpus}", icon=":material/check:", color="green")
    if view.model.name == DEMO_MODEL:
        st.text("A small model trained for this demo; its rankings are its own.")


def _corpora() -> list[str]:
    root = data.settings().models_root
    files = sorted(path for glob in _FILES for path in root.glob(glob)) if root else []
    return [*TEXTS, *(str(path) for path in files), *PRESETS]


def _shown_corpus(corpus: str) -> str:
    return f"{corpus} (from the hub)" if corpus in PRESETS else corpus


def _feeding() -> tuple[Packing, Count]:
    """How documents become sequences, and which of their tokens count."""
    with st.expander("Documents and answers"):
        packing = st.selectbox(
            "Documents", tuple(_PACKINGS), format_func=_PACKINGS.__getitem__, key="start.packing"
        )
        count = st.selectbox(
            "Counted", tuple(_COUNTS), format_func=_COUNTS.__getitem__, key="start.count"
        )
    return cast(Packing, packing), cast(Count, count)


def calibrate_form(view: View) -> None:
    """Start a calibration as a job."""
    st.markdown("**Collect statistics**: run the model once over a text.")
    with st.form("start.calibrate", border=False):
        corpus = st.selectbox("Text", _corpora(), key="start.corpus", format_func=_shown_corpus)
        first, second = st.columns(2)
        tokens = first.select_slider(
            "Tokens", _TOKENS, value=65_536, key="start.tokens", format_func="{:,}".format
        )
        seq_len = second.select_slider(
            "Tokens in a sequence",
            (128, 256, 512, 1024, 2048),
            value=DEFAULT_SEQ_LEN,
            key="start.seq_len",
        )
        packing, count = _feeding()
        sent = st.form_submit_button("Calibrate", icon=":material/play_arrow:", type="primary")
    request = CalibrateRequest(
        model=str(view.model.checkpoint.path),
        corpus=corpus,
        tokens=max(tokens, seq_len),
        seq_len=seq_len,
        packing=packing,
        count=count,
        stats_dir=data.settings().stats_dir,
    )
    shown = request.model_copy(
        update={"model": data.shown_model(view.model), "stats_dir": data.shown_stats_dir()}
    )
    if sent:
        _submit(request, f"{view.model.name} on {corpus}", shown.command())
    st.code(shown.command(), language=None, wrap_lines=True)


def weights_button(view: View) -> None:
    """Measure the weights, or say that they are."""
    st.markdown("**Weights**: AIMER, Magnitude and Hoyer need no text.")
    request = WeightsRequest(
        model=str(view.model.checkpoint.path), stats_dir=data.settings().stats_dir
    )
    shown = WeightsRequest(model=data.shown_model(view.model), stats_dir=data.shown_stats_dir())
    if data.weight_run(view.model) is not None:
        st.badge("weights measured", icon=":material/check:", color="green")
    elif st.button("Measure weights", icon=":material/play_arrow:", key="start.weights"):
        _submit(request, f"weights of {view.model.name}", shown.command())
    st.code(shown.command(), language=None, wrap_lines=True)


def _submit(request: CalibrateRequest | WeightsRequest, title: str, command: str) -> None:
    try:
        submit(request, title=title, command=command)
    except UserError as error:
        st.error(str(error), icon=":material/error:")
        return
    st.toast("Queued", icon=":material/schedule:")
    st.rerun()
