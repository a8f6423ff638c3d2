"""One expert, wherever it is named: the link to its page, and what it reads in words."""

from collections.abc import Sequence
from typing import Final

import pandas as pd
import streamlit as st

from app.charts.text_lens import in_quotes
from app.charts.token_experts import searched_form
from app.literal import literal
from app.loaded import Loaded
from app.session.chosen_expert import Place, open_expert
from app.tables.experts import corpus_shares
from pruning.records.lens import LensRecord, tokens_read

_MOST_READ: Final = 5


def link_to_expert(place: Place, where: str) -> None:
    """A button that chooses an expert and opens its page; `where` tells it from others.

    No link: the page would get the expert that is chosen already from its bound control.
    """
    layer, expert = place
    st.button(
        f"Open expert {layer}.{expert}",
        key=f"open.{where}.{layer}.{expert}",
        type="tertiary",
        icon=":material/query_stats:",
        on_click=open_expert,
        args=(place,),
    )


def read_tokens(records: Sequence[LensRecord], place: Place) -> pd.DataFrame:
    """Table of READ_COLUMNS: the tokens that an expert reads, as they are searched for."""
    return tokens_read(records, *place, form=searched_form)


def most_read(records: Sequence[LensRecord], place: Place) -> str:
    """The tokens of these texts that an expert reads most, as Markdown; empty if it reads none."""
    tokens = read_tokens(records, place)["token"].head(_MOST_READ)
    return ", ".join(literal(in_quotes(token)) for token in tokens)


def reads(loaded: Loaded, records: Sequence[LensRecord], place: Place) -> str:
    """What an expert reads: tokens of the scored texts, and corpora; as Markdown."""
    tokens = most_read(records, place)
    shares = corpus_shares(loaded.calibrated, *place)
    corpora = ", ".join(f"{literal(name)} {share:.0%}" for name, share in shares.items() if share)
    return " ".join(
        [
            f"In the scored texts it fires most on {tokens}."
            if tokens
            else "No scored text reaches it.",
            f"Its calibration tokens: {corpora}." if corpora else "",
        ]
    )
