"""Compatibility of an export: a summary, and a table with reasons."""

from collections.abc import Sequence

import streamlit as st

from pruning.engines import Reads, Verdict


def readers_text(found: Sequence[Verdict]) -> str:
    """Programs known or expected to load it."""
    known = [each for each in found if each.reads is not Reads.NO]
    return "; ".join(  # a name may hold a comma
        each.engine if each.reads is Reads.YES else f"{each.engine} ({each.reads})"
        for each in known
    )


def reasons_table(found: Sequence[Verdict], key: str) -> None:
    """Table of programs, whether each loads the export, and why; `key` is the widget's."""
    st.dataframe(
        {
            "program": [each.engine for each in found],
            "reads it": [str(each.reads) for each in found],
            "why": [each.reason for each in found],
        },
        hide_index=True,
        key=key,
        alt="Every program, whether it reads the export, and why.",
    )
