"""The search form: settings, time estimate and recipe."""

from typing import Any, Final

import streamlit as st

from analysis.errors import UserError
from app.charts.context import Context
from app.charts.schedules import order_of
from app.literal import literal
from app.session import data
from app.session.job_queue import queue, shown_request
from app.session.search_data import search_store, searches_of
from app.session.texts import calibration_texts, text_label
from pruning.evaluate.result import MEASURES
from pruning.planning.ranking import Selection
from pruning.planning.searches import (
    duration_text,
    estimate_search,
    new_search_id,
    searching_recipe,
    start_seconds,
)
from pruning.recipe import SearchSection
from pruning.requests.base import bounds, choices, validated
from pruning.requests.recipe import SearchRequest
from pruning.schedules import MEASURED
from pruning.search.store import KnownSearch
from pruning.sensitivity.curves import Curves

_RACING: Final = {0.0: "off", 0.99: "99% sure", 0.95: "95% sure", 0.9: "90% sure"}
_FITNESS: Final = choices(SearchSection, "fitness")
_SAMPLES: Final = (4, 8, 16, 32, 64, 128, 256)
_MOST: Final = 10_000


def search_form(context: Context, ready: Selection) -> None:
    """Settings, estimate and recipe of a new search, and the run button."""
    asked = _fields(context)
    try:
        recipe = searching_recipe(ready, context.plan, asked)
        search_id = new_search_id(recipe, context.model, context.keep(order_of, ready))
    except UserError as error:
        st.error(literal(error), icon=":material/error:")
        return
    section = recipe.search
    if section is None:
        raise ValueError("the recipe does not search")
    known = searches_of(context.model)
    _say_estimate(context, section, known.known)
    path = str(context.model.checkpoint.path)
    values = {
        "recipe": recipe.model_copy(update={"model": path}).to_yaml(),
        "out": search_store().folder(search_id),
        "stats_dir": data.settings().stats_dir,
    }
    request: SearchRequest = validated(SearchRequest, values)
    command = shown_request(request).command()
    is_done = _is_known(known.named(search_id), section)
    if st.button(
        "Run search",
        key="search.start",
        icon=":material/play_arrow:",
        type="primary",
        disabled=is_done,
    ):
        queue(request, request.out.name, command)
    shown = recipe.model_copy(update={"model": data.shown_model(context.model)})
    st.markdown("The same from the command line, with this recipe:")
    st.code(command, language=None, wrap_lines=True)
    st.code(shown.to_yaml(), language="yaml")


def _fields(context: Context) -> dict[str, Any]:
    """Values of the fields: the key `search` of a recipe."""
    first, second, third = st.columns(3)
    ranked = set(context.corpora) | {corpus for corpus, part in context.weights.items() if part}
    asked: dict[str, Any] = {
        "corpus": first.selectbox(
            "Judged on",
            sorted(calibration_texts(), key=lambda text: text in ranked),  # ranked ones last
            key="search.corpus",
            format_func=text_label,
            help="By default not the corpus that ranks: judging a schedule on the corpus that "
            "chose its experts overstates its quality.",
        ),
        "samples": second.select_slider("Samples", _SAMPLES, value=64, key="search.samples"),
        "fitness": third.selectbox(
            "Judged by",
            _FITNESS,
            format_func=lambda name: MEASURES[name].label,
            key="search.fitness",
            help="KL and loss are negated, so higher is always better.",
        ),
    }
    numbers = (
        ("population", "Population", "Schedules per generation."),
        ("elites", "Elites", "The best ones, which survive and breed."),
        ("generations", "Generations", "After the initial one; can be extended later."),
        ("seed", "Seed", "The same seed gives the same result."),
    )
    *columns, last = st.columns(len(numbers) + 1)
    for place, (key, label, about) in zip(columns, numbers, strict=True):
        least, most = bounds(SearchSection, key)
        number = place.number_input(
            label,
            min_value=least,
            max_value=most or _MOST,
            value=SearchSection.model_fields[key].default,
            key=f"search.{key}",
            help=about,
        )
        asked[key] = int(number)
    racing = last.selectbox(
        "Racing",
        list(_RACING),
        format_func=_RACING.__getitem__,
        key="search.racing",
        help="Drop a schedule early once a t-test on the samples so far is this sure that it is "
        "worse than the last elite. Faster, but not in the paper, and may drop a good one.",
    )
    if any(each.corpus == asked["corpus"] for each in _curves(context)):
        is_seeded = st.toggle(
            "Start from the measured plans",
            key="search.from_curves",
            help="Add the plans from layer sensitivity to the schedules of the first generation.",
        )
        asked["start"] = MEASURED if is_seeded else "schedules"
    return asked | {"racing": racing or None}


def _curves(context: Context) -> tuple[Curves, ...]:
    return context.sensitivity.curves if context.sensitivity else ()


def _say_estimate(context: Context, asked: SearchSection, known: tuple[KnownSearch, ...]) -> None:
    estimate = estimate_search(asked, known, list(context.runs.values()))
    start = start_seconds(context.model.checkpoint.nbytes)
    before = " to ".join(map(duration_text, start))
    text = f"At most {estimate.candidates:,} candidates on {asked.samples} samples: "
    if estimate.low is not None and estimate.high is not None:
        low, high = estimate.low + start[0], estimate.high + start[1]
        text += f"**{duration_text(low)} to {duration_text(high)}**, of which "
    text += f"{before} to load libraries, samples and weights"
    st.markdown(f":material/timer: {text}. {literal(estimate.how)}")
    if asked.racing:
        st.text("Racing shortens this: by a third to more than a half in searches of the demo.")


def _is_known(search: KnownSearch | None, asked: SearchSection) -> bool:
    """Whether this search ran before, with a message."""
    if search is None:
        return False
    generations = int(search.settings["generations"])
    if asked.generations > generations:
        st.text(f"{search.search_id} ended after {generations} generations; this run extends it.")
        return False
    if search.result.is_finished or asked.generations < generations:
        st.text(
            f"{search.search_id} is this search ({generations} generations). Add generations, "
            "change the seed, or choose it above."
        )
        return True
    tried = len(search.result.entries)
    st.text(f"{search.search_id} was stopped; this run resumes after its {tried} candidates.")
    return False
