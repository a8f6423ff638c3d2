"""The parts of Streamlit that the dashboard uses and that are not documented, in one place."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest
import streamlit as st

from app.first_paint import SCRIPTS
from app.server import HEADERS

ROOT = Path(__file__).parents[2] / "app"
STATIC = Path(st.__file__).parent / "static"
# Of modules that are no part of the documented interface -> the names that are taken from them.
MODULES = {
    "streamlit.components.v2.get_bidi_component_manager": {"get_bidi_component_manager"},
    "streamlit.components.v2.manifest_scanner": {"ComponentConfig", "ComponentManifest"},
    "streamlit.components.v2.types": {"ComponentRenderer"},
    "streamlit.delta_generator": {"DeltaGenerator"},
    "streamlit.navigation.page": {"Page"},
    "streamlit.runtime.scriptrunner": {"get_script_run_ctx"},
}
DOCUMENTED = {"streamlit.column_config", "streamlit.testing.v1"}
# Of its elements in the browser, which styles and scripts find by `data-testid`.
ELEMENTS = {
    "stBaseButton",
    "stButtonGroup",
    "stCaptionContainer",
    "stCode",
    "stColumn",
    "stElementContainer",
    "stExpandSidebarButton",
    "stExpander",
    "stHeader",
    "stLayoutWrapper",
    "stMain",
    "stMainBlockContainer",
    "stMarkdownContainer",
    "stMetric",
    "stMetricDelta",
    "stMetricValue",
    "stMultiSelectTagsContainer",
    "stPlotlyChart",
    "stSidebar",
    "stSidebarCollapseButton",
    "stSidebarNavLink",
    "stSkeleton",
    "stSkipToContent",
    "stTable",
    "stToolbar",
    "stVerticalBlock",
}


def taken():
    """Module of Streamlit -> names that the dashboard imports from it."""
    found = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamlit."):
                found.setdefault(node.module, set()).update(name.name for name in node.names)
    return found


def test_the_modules_are_those_of_the_table():
    assert {name: what for name, what in taken().items() if name not in DOCUMENTED} == MODULES


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, names in MODULES.items() for name in sorted(names)],
)
def test_streamlit_still_has_it(module, name):
    assert hasattr(import_module(module), name)


def test_what_is_taken_of_them_is_there():
    context = import_module("streamlit.runtime.scriptrunner_utils.script_run_context")
    assert "is_history_navigation" in context.ScriptRunContext.__dataclass_fields__
    manager = import_module("streamlit.components.v2.component_manager").BidiComponentManager
    assert callable(manager.get_component_asset_root)
    assert callable(manager.register_from_manifest)


def test_the_elements_are_those_of_the_table():
    named = re.compile(r"data-testid\^?=\"(st[A-Za-z]+)")
    files = [path for path in ROOT.rglob("*") if path.suffix in (".py", ".js", ".css")]
    found = {element for path in files for element in named.findall(path.read_text())}
    assert found == ELEMENTS


def test_streamlit_still_draws_the_elements():
    scripts = "".join(path.read_text() for path in STATIC.rglob("*.js"))
    drawn = {element for element in ELEMENTS if re.search(rf"[\"'`]{element}[\"'`-]", scripts)}
    assert drawn == ELEMENTS
    assert "`st-key-${" in scripts or "st-key-`+" in scripts  # the class of a key


def test_its_page_has_a_script_inline_that_the_policy_admits():
    page = (STATIC / "index.html").read_text()
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert scripts
    assert HEADERS["Content-Security-Policy"].count("'sha256-") == len(scripts)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_is_fetched_with_the_page_is_there(name):
    assert len(list((STATIC / "static" / "js").glob(f"{name}.*.js"))) == 1
