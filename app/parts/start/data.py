"""Start, data: cached statistics, checks, and forms to collect more."""

from pathlib import Path
from statistics import median
from typing import Final

import pandas as pd
import streamlit as st

from analysis.corpora import Count, Packing
from analysis.model import DEMO_MODEL
from app.charts.context import Context
from app.frame.charts import csv_button
from app.frame.controls import choose
from app.frame.job_form import queue_button
from app.frame.notes import inform, show_command
from app.literal import literal, literal_in_badge
from app.session import data
from app.session.job_queue import own_model, queue, shown_request
from app.session.texts import calibration_texts, text_label
from app.tables.costs import SHOWN_COSTS, cost_rows
from pruning.planning.searches import duration_text
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import WeightsRequest
from pruning.requests.options import DEFAULT_SEQ_LEN, DEFAULT_TOKENS

_TOKENS = (8_192, 16_384, 65_536, 262_144, 524_288, 1_048_576)
_PACKINGS: Final[dict[Packing, str]] = {
    "auto": "end to end; rows of token ids unchanged",
    "concatenate": "end to end",
    "pack": "packed, without cross-attention",
    "pad": "one per sequence",
}
_COUNTS: Final[dict[Count, str]] = {"all": "all tokens", "response": "answers only"}


def runs_table(context: Context) -> None:
    """One row per run of any model, with what it cost; the model on screen first."""
    runs, problems = data.all_runs()
    st.header("Statistics found")
    table = pd.DataFrame(cost_rows(runs, context.model.identity))
    if runs:
        st.dataframe(
            table,
            hide_index=True,
            # Columns that fit a narrow window; the file has all.
            column_order=SHOWN_COSTS,
            placeholder="-",  # statistics of weights read no tokens
            alt=f"{len(runs)} cached runs and their cost",
            column_config={
                "tokens": st.column_config.NumberColumn(format="localized"),
                "tokens/s": st.column_config.NumberColumn(format="%.0f"),
                "seconds": st.column_config.NumberColumn(format="%.3g"),
                "peak MiB": st.column_config.NumberColumn(format="localized"),
            },
        )
    else:
        inform("No statistics yet: collect them below.")
    for problem in problems:
        st.warning(literal(problem), icon=":material/warning:")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.code("moeprune runs list", language=None, width="content")
        if runs:
            csv_button(table, "runs")


def checks(context: Context) -> None:
    """Checks of the model before trusting a ranking."""
    with st.container(horizontal=True):
        for corpus, run in context.runs.items():
            count = int((data.expert_stats(run).table["num_tokens"] == 0).sum())
            if count:
                word = "expert" if count == 1 else "experts"
                st.badge(
                    f"{count} {word} never routed on {literal_in_badge(corpus)}",
                    icon=":material/warning:",
                    color="orange",
                )
            else:
                text = f"every expert routed on {literal_in_badge(corpus)}"
                st.badge(text, icon=":material/check:", color="green")
    if context.model.name == DEMO_MODEL:
        st.text("A small model trained for this demo; its rankings are its own.")


def calibrate_form(context: Context) -> None:
    """Form that queues a calibration."""
    st.markdown("**Collect statistics**: run the model once over a corpus.")
    with st.form("start.calibrate", border=False):
        corpus = st.selectbox(
            "Corpus", calibration_texts(), key="start.corpus", format_func=text_label
        )
        first, second = st.columns(2)
        tokens = first.select_slider(
            "Tokens", _TOKENS, value=DEFAULT_TOKENS, key="start.tokens", format_func="{:,}".format
        )
        seq_len = second.select_slider(
            "Sequence length",
            (128, 256, 512, 1024, 2048),
            value=DEFAULT_SEQ_LEN,
            key="start.seq_len",
        )
        with st.expander("Documents and answers"):
            packing = choose(
                "Documents",
                tuple(_PACKINGS),
                format_func=_PACKINGS.__getitem__,
                key="start.packing",
            )
            count = choose(
                "Counted", tuple(_COUNTS), format_func=_COUNTS.__getitem__, key="start.count"
            )
        sent = queue_button("Run calibration")
    request = CalibrateRequest(
        **own_model(context),
        corpus=corpus,
        tokens=max(tokens, seq_len),
        seq_len=seq_len,
        packing=packing,
        count=count,
    )
    st.caption(known_words(context, request))
    command = shown_request(request).command()
    if sent:
        queue(request, context.model.name, command)
    show_command(command)


def known_words(context: Context, request: CalibrateRequest) -> str:
    """Time estimate from existing runs, and whether one of them is the same."""
    runs, _ = data.all_runs()
    asked, tokens, words = Path(request.corpus).name, request.tokens or 0, []
    for run in runs:
        made = run.manifest
        is_same = made.model.identity == context.model.identity and made.corpus == asked
        if is_same and made.num_tokens >= tokens:
            words.append(f"You have this already: {made.num_tokens:,} tokens of {literal(asked)}.")
            break
    own = [row for row in cost_rows(runs, context.model.identity) if row["fits"] == "this model"]
    speeds = [row["tokens/s"] for row in own if row["tokens/s"]]
    if speeds:
        seconds = tokens / median(speeds)
        words.append(f"It takes about {duration_text(seconds)}, as fast as the runs above.")
    return " ".join(words)


def weights_button(context: Context) -> None:
    """Button to measure the weights, or a note that they are measured."""
    st.markdown("**Weights**: AIMER, Magnitude and Hoyer need no corpus.")
    request = WeightsRequest(**own_model(context))
    command = shown_request(request).command()
    if data.weight_run(context.model) is not None:
        st.badge("weights measured", icon=":material/check:", color="green")
    elif st.button("Measure weights", icon=":material/play_arrow:", key="start.weights"):
        queue(request, context.model.name, command)
    show_command(command)
