"""A chart on a page, with its description, its numbers and its downloads."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from streamlit.column_config import TextColumn

from analysis.errors import UserError
from analysis.machine.extras import has_extra
from app.charts.chart import Drawing
from app.charts.files import enlarged, figure_html, figure_image
from app.charts.listing import CHARTS
from app.charts.theme import PLOTLY_CONFIG, pinned
from app.charts.traces import takes_clicks
from app.literal import literal
from app.loaded import Loaded
from app.session.chosen_expert import Place, choose_in_table, chosen_place
from app.tables.spreadsheets import csv_text
from app.widgets.notes import inform
from pruning.serving.engines import Verdict

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_MOST_STYLED = 20_000  # cells; styles of more take seconds
_TYPES = {
    "csv": "text/csv",
    "html": "text/html",
    "svg": "image/svg+xml",
    "png": "image/png",
    "json": "application/json",
    "yaml": "application/yaml",
}
_NO_IMAGES = (
    "SVG and PNG need the extra `plots` and Chromium on the server; the camera button in the HTML "
    "file saves SVG."
)


def show_chart(
    chart: Drawing,
    *,
    figure: Callable[..., go.Figure] | None = None,
    on_select: Callable[[object], None] | None = None,
    with_sentence: bool = False,
    with_files: bool = True,
) -> None:
    """Draw a chart with its downloads, below its sentence if `with_sentence`.

    Without `with_files` the downloads are drawn elsewhere, by `chart_files`.

    `figure` makes the figure on the page if it differs from that of the downloads. `on_select`
    makes the points clickable, in every panel; it is called before the script with the selection,
    as `st.plotly_chart` returns it.
    """
    if with_sentence:
        st.text(chart.alt)
    dark = bool(st.context.theme.type == "dark")
    if len(chart.panels) > 1:
        with st.container(horizontal=True, key=f"panels.{chart.name}"):
            for panel, draw in chart.panels.items():
                name, alt = f"{chart.name}.{panel}", f"{panel}: {chart.alt}"
                _plot(draw(dark=dark), name, alt, **_selectable(name, on_select))
    else:
        drawing = (figure or chart.figure)(dark=dark)
        _plot(drawing, chart.name, chart.alt, **_selectable(chart.name, on_select))
    if with_files:
        chart_files(chart.name, lambda: chart)


def _selectable(name: str, on_select: Callable[[object], None] | None) -> dict[str, Any]:
    """Arguments of `st.plotly_chart` that give a selection to `on_select`; none without it."""
    if on_select is None:
        return {}
    take = partial(_take_selection, on_select, f"chart.{name}")
    return {"on_select": take, "selection_mode": "points"}


def _take_selection(on_select: Callable[[object], None], key: str) -> None:
    on_select(st.session_state.get(key))


def _plot(figure: go.Figure, name: str, alt: str, **look: Any) -> None:
    st.plotly_chart(
        figure,
        key=f"chart.{name}",
        config=PLOTLY_CONFIG | {"displayModeBar": False},
        theme=None,
        alt=alt,
        **look,
    )


def large_chart(chart: Drawing) -> None:
    """Draw a chart for an audience, as high as its container, without its downloads."""
    figure = enlarged(chart.figure(dark=st.context.theme.type == "dark"))
    _plot(figure.update_layout(height=None), chart.name, chart.alt, height="stretch")


def show_named(name: str, loaded: Loaded, **options: Any) -> Drawing | None:
    """Draw the named chart, see `show_chart`; None if there is none, with a message."""
    chart = chart_or_message(name, loaded)
    if chart is not None:
        show_chart(chart, **options)
    return chart


def say_if_no_clicks(num_experts: int, instead: str) -> None:
    """Say of maps of so many experts that they take no clicks, and `instead` what does."""
    if not takes_clicks(num_experts):
        st.caption(
            f"So large a map takes no clicks; {instead}. Drag over it to zoom, double-click to see "
            "all of it."
        )


def charts_at_end(page: str, loaded: Loaded, no_plan: str) -> None:
    """Draw the charts that stand below the rest of their page, each in a frame.

    Where the page says why there is no plan, what a chart lacks would say it twice.
    """
    shown = (page, loaded.choices.spec.ranking.granularity, True)
    for chart in CHARTS.values():
        if (chart.page, chart.granularity, chart.at_end) != shown:
            continue
        drawing, refusal = None, ""
        try:
            drawing = chart.draw(loaded)
        except UserError as error:
            refusal = str(error)
        if drawing is None and no_plan:
            continue
        with st.container(border=True):
            st.markdown(f"**{chart.title}**")
            if drawing is None:
                inform(literal(refusal))
            else:
                show_chart(drawing, with_sentence=True)


def chart_card(name: str, loaded: Loaded, heading: str, *, says: bool = False) -> None:
    """Draw a chart in a frame below its heading, and what it says; nothing if there is none."""
    try:
        chart = CHARTS[name].draw(loaded)
    except UserError:
        return
    with st.container(border=True):
        st.markdown(heading)
        if says:
            st.text(chart.alt)
        show_chart(chart)


def chart_or_message(name: str, loaded: Loaded) -> Drawing | None:
    """The named chart; None if there is none, with a message."""
    try:
        return CHARTS[name].draw(loaded)
    except UserError as error:
        inform(literal(error))
        return None


def chart_files(name: str, make: Callable[[], Drawing], label: str = "Data and downloads") -> None:
    """Downloads of the named chart, which is made when they are opened."""
    part = st.expander(label, key=f"data.{name}", on_change="rerun")
    if part.open:
        chart = make()
        with part:
            st.text(chart.alt)
            _files(chart)
            if chart.command:
                st.code(chart.command, language=None)


def chosen_rows(key: str) -> list[int]:
    """The rows that are chosen in the table of this key, as it was drawn or before its change."""
    state = st.session_state.get(key)
    selection = state.get("selection") if isinstance(state, Mapping) else None
    rows = selection.get("rows") if isinstance(selection, Mapping) else None
    return [row for row in rows or () if type(row) is int and row >= 0]


def table_with_csv(
    table: pd.DataFrame, name: str, alt: str, *, shown: pd.DataFrame | None = None, **look: Any
) -> None:
    """A table, as `shown` if given, and its CSV; `look` are arguments of `st.dataframe`.

    Of experts, a row each, the chosen one is marked, and a click on a row chooses its expert.
    """
    shown = table if shown is None else shown
    if _is_of_experts(shown) and "on_select" not in look:
        key = look.setdefault("key", f"table.{name}")
        columns = (shown[column].tolist() for column in ("layer", "expert"))
        places: list[Place] = list(zip(*columns, strict=True))
        look |= {"on_select": partial(choose_in_table, key, places), "selection_mode": "single-row"}
    st.dataframe(_marked(shown), hide_index=True, alt=alt, **look)
    csv_button(table, name)


def _is_of_experts(table: pd.DataFrame) -> bool:
    """Whether it has a row per expert."""
    columns = ["layer", "expert"]
    return set(columns) <= set(table) and not table.duplicated(columns).any()


def _marked(table: pd.DataFrame) -> Any:
    """The table with the rows of the chosen expert in its colour, if it has some."""
    place = chosen_place()
    if place is None or not {"layer", "expert"} <= set(table) or table.size > _MOST_STYLED:
        return table
    is_chosen = (table["layer"] == place[0]) & (table["expert"] == place[1])
    if not is_chosen.any():
        return table
    color = f"background-color: {pinned(st.context.theme.type == 'dark')}40"
    colors = pd.DataFrame("", index=table.index, columns=table.columns)
    colors.loc[is_chosen] = color
    return table.style.apply(lambda _: colors, axis=None)


def folded_table(
    label: str, make: Callable[[], pd.DataFrame], name: str, alt: str, **look: Any
) -> None:
    """A table behind a fold, which is made when that is opened; `look` as `table_with_csv` has."""
    part = st.expander(label, key=f"data.{name}", on_change="rerun")
    if part.open:
        with part:
            table_with_csv(make(), name, alt, **look)


def ranks_from_one(table: pd.DataFrame) -> pd.DataFrame:
    """A table with ranks from 1; ranks in files count from 0."""
    ranks = [name for name in ("rank", "rank_a", "rank_b") if name in table]
    return table.assign(**{name: table[name] + 1 for name in ranks})


def csv_button(table: pd.DataFrame, name: str) -> None:
    """Download a table."""
    download_button("CSV", lambda: csv_text(table), f"{name}.csv", f"csv.{name}")


def download_button(
    label: str, make: Callable[[], str | bytes], file: str, key: str, **look: Any
) -> None:
    """Download a file that is made on the click; `look` are arguments of `st.download_button`."""
    options = {"icon": ":material/download:", "on_click": "ignore", **look}
    mime = _TYPES[file.rpartition(".")[2]]
    st.download_button(label, make, file_name=file, mime=mime, key=key, **options)


def _files(chart: Drawing) -> None:
    table = ranks_from_one(chart.table)
    st.dataframe(_marked(table), hide_index=True, alt=f"Data of the chart: {chart.alt}")
    if not table.equals(chart.table):
        st.text("Ranks in the file count from 0, as on the command line.")
    with st.container(horizontal=True):
        csv_button(chart.table, chart.name)
        makers: dict[str, Callable[[], str | bytes]]
        makers = {"html": lambda: figure_html(chart.exported())}
        if can_draw_images():
            makers["svg"] = lambda: figure_image(chart.exported(), "svg")
            makers["png"] = lambda: figure_image(chart.exported(), "png")
        for kind, make in makers.items():
            note = "Opens in any browser, offline." if kind == "html" else None
            file, key = f"{chart.name}.{kind}", f"{kind}.{chart.name}"
            download_button(kind.upper(), make, file, key, help=note)
    if not can_draw_images():
        st.text(_NO_IMAGES)


@st.cache_resource
def can_draw_images() -> bool:
    """Whether this server can render images: kaleido and a browser are installed."""
    has_browser = any(shutil.which(name) for name in _BROWSERS)
    return has_extra("plots") and has_browser


def reasons_part(engine_verdicts: Sequence[Verdict], key: str) -> None:
    """Folded table of programs, what came of trying each, and why; `key` is the widget's."""
    part = st.expander("Compatibility", key=f"{key}.part", on_change="rerun")
    if part.open:
        with part:
            reasons_table(engine_verdicts, key)


def reasons_table(engine_verdicts: Sequence[Verdict], key: str) -> None:
    """Table of programs, what came of trying each, and why; `key` is the widget's."""
    st.text("Format: safetensors, in the layout and with the keys of the original.")
    st.dataframe(
        {
            "program": [engine_verdict.engine for engine_verdict in engine_verdicts],
            "status": [str(engine_verdict.reads) for engine_verdict in engine_verdicts],
            "why": [engine_verdict.reason for engine_verdict in engine_verdicts],
        },
        hide_index=True,
        column_config={"program": TextColumn(width=150)},  # the longest is not cut
        key=key,
        alt="Every program, whether it was tried with such an export, and what came of it.",
    )
