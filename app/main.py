"""Entry of the dashboard: navigation, and the controls that all pages share."""

from pathlib import Path

import streamlit as st

from analysis.errors import UserError
from app.sidebar import copy_link, model_and_calibration

HERE = Path(__file__).parent

st.set_page_config(
    page_title="MoE Prune Studio",
    # An icon of our own: Streamlit would fetch a page's material icon from the internet.
    page_icon=str(HERE / "static" / "favicon.png"),
    layout="wide",
)
page = st.navigation(
    [
        st.Page(HERE / "views" / "start.py", title="Start", icon=":material/home:", default=True),
        st.Page(HERE / "views" / "explore.py", title="Explore", icon=":material/grid_on:"),
        st.Page(HERE / "views" / "export.py", title="Export", icon=":material/output:"),
    ],
    position="top",
)
try:
    view = model_and_calibration()
except UserError as error:
    st.error(str(error), icon=":material/error:")
    st.stop()
st.session_state["view"] = view
try:
    page.run()
finally:  # also where a page stops early
    copy_link()
