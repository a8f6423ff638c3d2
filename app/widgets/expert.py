"""One expert, wherever it is named: the link to its page, and what it reads in words."""

from collections.abc import Sequence
from typing import Final

import streamlit as st

from app.charts.text_lens import in_quotes
from app.literal import literal
from app.loaded import Loaded
from app.session.chosen_expert import Place, open_expert
from app.tables.experts import corpus_shares
from pruning.records.lens import LensRecord, tokens_read

_MOST_READ: Final = 5


def link_to_expert(place: Place, where: str) -> None:
    """A button that pins an expert and opens its page; `where` tells it from others.

    No link: the page would get the expert that is pinned already from its bound control.
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


def reads(loaded: Loaded, records: Sequence[LensRecord], place: Place) -> str:
    """What an expert reads: tokens of the scored texts, and corpora; as Markdown."""
    table = tokens_read(records, *place)
    tokens = ", ".join(literal(in_quotes(token)) for token in table["token"].head(_MOST_READ))
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
