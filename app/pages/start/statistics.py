"""The statistics that are here, and the forms that collect more."""

from statistics import median
from typing import Final

import pandas as pd
import streamlit as st
from streamlit.column_config import NumberColumn

from analysis.corpora.settings import Packing
from analysis.corpora.spec import corpus_name, is_same_corpus
from analysis.corpora.tokens import Count
from analysis.numbers.words import counted, time_in_words
from app.literal import literal, literal_in_badge
from app.loaded import Loaded
from app.session import data
from app.session.data import calibration_corpora, corpus_label
from app.session.job_queue import own_model
from app.tables.costs import SHOWN_COSTS, cost_rows
from app.widgets.charts import csv_button
from app.widgets.controls import choose
from app.widgets.job_form import offer_command, queue_button, skip_field
from app.widgets.notes import badge, inform, say_if_demo
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import WeightsRequest
from pruning.spec.options import DEFAULT_SEQ_LEN, DEFAULT_TOKENS

_TOKENS = (8_192, 16_384, 65_536, 262_144, 524_288, 1_048_576)
_PACKINGS: Final[dict[Packing, str]] = {
    "auto": "documents joined; token ids as given",
    "concatenate": "documents joined",
    "pack": "packed, without cross-attention",
    "pad": "one per sequence",
}
_COUNTS: Final[dict[Count, str]] = {"all": "all tokens", "response": "answers only"}


def runs_table(loaded: Loaded) -> None:
    """One row per run of any model, with what it cost; the model on screen first."""
    runs, problems = data.all_runs()
    st.header("Statistics found")
    table = pd.DataFrame(cost_rows(runs, loaded.model.identity))
    if runs:
        st.dataframe(
            table,
            hide_index=True,
            # Columns that fit a narrow window; the file has all.
            column_order=SHOWN_COSTS,
            placeholder="-",  # statistics of weights read no tokens
            alt=f"{len(runs)} cached runs and their cost",
            column_config={
                "tokens": NumberColumn(format="localized"),
                "tokens/s": NumberColumn(format="%.0f"),
                "seconds": NumberColumn(format="%.3g"),
                "peak MiB": NumberColumn(format="localized"),
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


def checks(loaded: Loaded) -> None:
    """Checks of the model before trusting a ranking."""
    with st.container(horizontal=True):
        for corpus, run in loaded.runs.items():
            count = int((loaded.study.stats_of(run).table["num_tokens"] == 0).sum())
            who = f"{counted(count, 'expert')} never" if count else "every expert"
            badge(f"{who} routed on {literal_in_badge(corpus)}", is_good=not count)
    say_if_demo(loaded.model)


def calibrate_form(loaded: Loaded) -> None:
    """Form that queues a calibration."""
    st.markdown("**Collect statistics**: run the model once over a corpus.")
    with st.form("start.calibrate", border=False):
        corpus = st.selectbox(
            "Corpus", calibration_corpora(), key="start.corpus", format_func=corpus_label
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
            skips = skip_field("start.skip_bad_rows")
        sent = queue_button("Run calibration")
    request = CalibrateRequest(
        **own_model(loaded),
        corpus=corpus,
        tokens=max(tokens, seq_len),
        seq_len=seq_len,
        packing=packing,
        count=count,
        skip_bad_rows=skips,
    )
    st.caption(known_words(loaded, request))
    # The list of jobs below shows its progress.
    offer_command(loaded, request, loaded.model.name, sent=sent)


def known_words(loaded: Loaded, request: CalibrateRequest) -> str:
    """Time estimate from existing runs, and whether one of them is the same."""
    runs, _ = data.all_runs()
    corpus, tokens, words = corpus_name(request.corpus), request.tokens or 0, []
    for run in runs:
        manifest = run.manifest
        is_same = is_same_corpus(manifest.corpus, corpus)
        is_same = is_same and manifest.model.identity == loaded.model.identity
        if is_same and manifest.num_tokens >= tokens:
            words.append(
                f"You have this already: {manifest.num_tokens:,} tokens of {literal(corpus)}."
            )
            break
    rows = [row for row in cost_rows(runs, loaded.model.identity) if row["fits"] == "this model"]
    speeds = [row["tokens/s"] for row in rows if row["tokens/s"]]
    if speeds:
        seconds = tokens / median(speeds)
        words.append(f"It takes about {time_in_words(seconds)}, as fast as the runs here.")
    return " ".join(words)


def weights_button(loaded: Loaded) -> None:
    """Button to measure the weights, or a note that they are measured."""
    st.markdown("**Weights**: AIMER, Magnitude and Hoyer need no corpus.")
    sent = False
    if loaded.study.weight_run is not None:
        badge("weights measured")
    else:
        sent = st.button("Measure weights", icon=":material/play_arrow:", key="start.weights")
    request = WeightsRequest(**own_model(loaded))
    offer_command(loaded, request, loaded.model.name, sent=sent)
