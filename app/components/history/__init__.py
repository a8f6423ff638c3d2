"""An entry in the browser's history for each choice, so that Back undoes it."""

from pathlib import Path

import streamlit as st
from streamlit.components.v2.get_bidi_component_manager import get_bidi_component_manager
from streamlit.components.v2.manifest_scanner import ComponentConfig, ComponentManifest

from pruning.plan import tool_version

__all__ = ["keep_history"]

_FOLDER = Path(__file__).parent
_PACKAGE, _COMPONENT = "moe_prune_studio_history", "history"


def keep_history() -> None:
    """Draw the script, which shows nothing; for the entry script, once a run."""
    manager = get_bidi_component_manager()
    name = f"{_PACKAGE}.{_COMPONENT}"
    if manager.get_component_asset_root(name) is None:
        component = ComponentConfig(name=_COMPONENT, asset_dir="browser")
        manager.register_from_manifest(
            ComponentManifest(_PACKAGE, tool_version(), [component]), _FOLDER
        )
    st.components.v2.component(name, html="<span hidden></span>", js="history.js")(
        key="history", height=1
    )
