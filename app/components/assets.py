"""Registers our components with the server, and draws those that are scripts alone."""

from functools import cache
from pathlib import Path

import streamlit as st
from streamlit.components.v2.get_bidi_component_manager import get_bidi_component_manager
from streamlit.components.v2.manifest_scanner import ComponentConfig, ComponentManifest
from streamlit.components.v2.types import ComponentRenderer

from analysis.files.shipped import tool_version


def component_of(folder: Path, *, html: str, css: str | None = None) -> ComponentRenderer:
    """The component whose scripts and styles lie in ``folder / "browser"``.

    They are files that the browser fetches once. Given as text, Streamlit would send them again
    with every change of data. Streamlit looks for such files in the pyproject.toml of installed
    packages, which a wheel does not carry, so their folder is named here.
    """
    # A manifest names all components of its package, so each has its own package.
    package, component = f"moe_prune_studio_{folder.name}", folder.name
    name = f"{package}.{component}"
    manager = get_bidi_component_manager()
    if manager.get_component_asset_root(name) is None:
        config = ComponentConfig(name=component, asset_dir="browser")
        manager.register_from_manifest(ComponentManifest(package, tool_version(), [config]), folder)
    return _renderer(name, html, css, f"{component}.js")


def keep_focus() -> None:
    """Draw the script of focus and keys: the skip link, groups of choices, the keys of the story.

    For the entry script, once per run.
    """
    _draw_script("focus")


def keep_history() -> None:
    """Draw the script that adds each choice to the browser's history, so that Back undoes it.

    For the entry script, once per run.
    """
    _draw_script("history")


def _draw_script(name: str) -> None:
    folder = Path(__file__).parent / name
    component_of(folder, html="<span hidden></span>")(key=name, height=1)


@cache
def _renderer(name: str, html: str, css: str | None, js: str) -> ComponentRenderer:
    """The renderer, made once: it registers itself with a server that does not know it."""
    return st.components.v2.component(name, html=html, css=css, js=js)
