"""The Plan page: the search form, running searches, and their results."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import streamlit as st

from analysis.corpora.spec import corpus_name, is_same_corpus
from analysis.errors import UserError
from analysis.numbers.words import time_in_words
from app.charts.schedules import ranking_digest
from app.charts.search import measure_label, unseen_words
from app.errors import show_error
from app.jobs.model import Job
from app.literal import literal
from app.loaded import Loaded
from app.session import data
from app.session.data import calibration_corpora, corpus_label
from app.session.job_queue import change_job, job_store, queue, queued_key, runner, shown_request
from app.session.measured_plan import show_plan
from app.session.search_data import (
    Searches,
    chosen_search,
    read_cached,
    removed_on_screen,
    search_label,
    search_store,
    searches_of,
)
from app.widgets.charts import show_named
from app.widgets.job_form import offer_job
from app.widgets.job_panel import progress_text
from app.widgets.notes import card, in_a_sentence
from pruning.measures.result import MEASURES
from pruning.planning.ranking import Ranking
from pruning.planning.searches import (
    estimate_search,
    most_candidates,
    new_search_id,
    searching_recipe,
    start_seconds,
)
from pruning.requests.recipe import SearchSection
from pruning.requests.recipe_steps import SearchRequest
from pruning.schedules import MEASURED
from pruning.search.store import RESULT_NAME, SEARCH, KnownSearch
from pruning.spec.base import bounds, choices_of, validated

_POLL_SECONDS: Final = 2.0
_WATCHED: Final = queued_key(SEARCH)
_WHAT: Final = (
    "**Search**: schedules of this budget are tried on the model itself and judged on a separate "
    "corpus; the best ones breed (EvoESAP, arXiv:2603.06003)."
)
_FITNESS: Final = choices_of(SearchSection.model_fields["fitness"])
_SAMPLES: Final = (4, 8, 16, 32, 64, 128, 256)
_MOST: Final = 10_000


def search_part(loaded: Loaded, ready: Ranking | None) -> None:
    """The running or chosen search, and the form."""
    searches, job = searches_of(loaded.model), newest_job(loaded)
    st.markdown(_WHAT)
    for problem in searches.problems:
        st.warning(literal(problem), icon=":material/warning:")
    if job is not None and not job.is_finished:
        st.session_state[_WATCHED] = job.id
        st.fragment(in_a_sentence()(_live), run_every=_POLL_SECONDS)(loaded, job.id)
    else:
        _finished_part(loaded, searches, job)
    form = st.expander("Run a search", key="search.form", on_change="rerun")
    if form.open and ready is not None:
        with form:
            st.fragment(in_a_sentence()(search_form))(loaded, ready)


def newest_job(loaded: Loaded) -> Job | None:
    """The newest search job of this model on this server."""
    for job in job_store().list(kinds=(SEARCH,)):
        try:
            model = validated(SearchRequest, job.request).parsed().model
        except UserError:
            continue  # written by another version
        if model == str(loaded.model.checkpoint.path):
            return job
    return None


def _live(loaded: Loaded, job_id: str) -> None:
    """A queued or running search, redrawn every few seconds without the rest of the page."""
    runner().tick()
    job = job_store().get(job_id)
    if job.is_finished:
        st.rerun()  # the page may offer its result
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(job.fraction, text=f"{literal(job.title)}: {progress_text(job)}")
        st.button(
            "Stop and keep the best",
            key="search.stop",
            icon=":material/stop:",
            on_click=change_job,
            args=("cancel", job.id),
            disabled=job.cancel_at is not None,
        )
    path = Path(job.request["out"]) / RESULT_NAME
    if not path.is_file():
        st.text("First results appear after the first generation.")
        return
    _numbers(read_cached(path), job.eta_seconds(time.time()))
    _pictures(loaded, read_cached(path))


def _finished_part(loaded: Loaded, searches: Searches, job: Job | None) -> None:
    """The search that was watched, whose schedule is shown, or the last one."""
    chosen = chosen_search(loaded) if loaded.choices.search is not None else None
    watched = job if job is not None and job.id == st.session_state.get(_WATCHED) else None
    last = searches.named(Path(job.request["out"]).name) if job is not None else None
    if watched is None and last is not None and last.removed != removed_on_screen(loaded):
        last = None  # its schedule does not apply at this sparsity
    search = last if watched else chosen or last
    if watched is not None and watched.error:
        show_error(watched.error)
    if search is None:
        if watched is not None and not watched.error:
            st.text("Stopped before the first candidate was measured; there is no result.")
        return
    state = "finished" if search.result.is_finished else "stopped; best kept"
    st.text(
        f"{search_label(search, loaded.model)}, judged on {search.count.words} of "
        f"{search.corpus}: {state}."
    )
    with st.container(horizontal=True):
        if chosen is None or chosen.search_id != search.search_id:
            st.button(
                "Show its schedule above",
                key="search.show",
                icon=":material/visibility:",
                on_click=show_plan,
                args=({"schedule": SEARCH, "searched": search.search_id},),
                type="primary",
            )
        if search.recipe is not None and not search.result.is_finished:
            _continue_button(search, search.recipe)
    _numbers(search, None)
    if search.result.is_finished:
        held_out = unseen_words(loaded, search)
        st.text(held_out or "The best was not measured on held-out samples.")
    _pictures(loaded, search)


def _continue_button(search: KnownSearch, recipe: Path) -> None:
    if not st.button(
        "Continue",
        key="search.continue",
        icon=":material/play_arrow:",
        help="Resumes from its log; results equal an uninterrupted search.",
    ):
        return
    text = recipe.read_text(encoding="utf-8")
    request = _request(text, recipe.parent, batch_size=search.batch_size)
    queue(request, request.out.name, shown_request(request).command())


def _numbers(search: KnownSearch, seconds_left: float | None) -> None:
    first, second, third, fourth = st.columns(4)
    best, cost = search.result.best_entry.fitness, search.result.cost
    gained = "" if search.uniform is None else f"{best - search.uniform:+z.3f} vs uniform"
    label = f"Best {measure_label(search.fitness)}"
    first.metric(label, f"{best:.3f}", gained, border=True, height="stretch")
    section = SearchSection(**{**search.settings, "corpus": search.corpus})
    most = f"at most {most_candidates(section):,}"
    card("Candidates", f"{cost['candidates']:,}", most, place=second)
    saved = 1 - cost["layers"] / max(1, cost["whole_layers"])
    ran = f"{cost['layers']:,} of {cost['whole_layers']:,} ran"
    card("Layer runs saved", f"{saved:.0%}", ran, place=third)
    rest = "spent measuring" if seconds_left is None else f"{time_in_words(seconds_left)} left"
    card("Time", time_in_words(cost["seconds"]), rest, place=fourth)


def _pictures(loaded: Loaded, search: KnownSearch) -> None:
    with_search = replace(loaded, search=search)
    for place, name in zip(st.columns([3, 2]), ("search", "search-best"), strict=True):
        with place:
            show_named(name, with_search)


def search_form(loaded: Loaded, ready: Ranking) -> None:
    """Settings, estimate and recipe of a new search, and the run button."""
    fields = _fields(loaded)
    recipe = searching_recipe(ready, loaded.choices.spec, fields)
    search_id = new_search_id(recipe, loaded.model, loaded.study.cached(ranking_digest, ready))
    section = recipe.search
    if section is None:
        raise ValueError("the recipe does not search")
    searches = searches_of(loaded.model)
    _say_estimate(loaded, section, searches.known)
    yaml = recipe.model_copy(update={"model": str(loaded.model.checkpoint.path)}).to_yaml()
    request = _request(yaml, search_store().folder(search_id))
    is_done = _say_if_known(searches.named(search_id), section)
    icon = ":material/play_arrow:"
    sent = st.button("Run search", key="search.start", icon=icon, type="primary", disabled=is_done)
    st.markdown("The same from the command line, with this recipe:")
    offer_job(loaded, request, request.out.name, sent=sent)
    recipe_to_show = recipe.model_copy(update={"model": data.shown_model(loaded.model)})
    st.code(recipe_to_show.to_yaml(), language="yaml")


def _request(recipe: str, out: Path, **more: Any) -> SearchRequest:
    values = {"recipe": recipe, "out": out, "stats_dir": data.settings().stats_dir, **more}
    return validated(SearchRequest, values)


def _fields(loaded: Loaded) -> dict[str, Any]:
    """Values of the fields: the key `search` of a recipe."""
    first, second, third = st.columns(3)
    ranked = {corpus for corpus, weight in loaded.weights.items() if weight}
    ranked.update(loaded.choices.corpora)
    fields: dict[str, Any] = {
        "corpus": first.selectbox(
            "Judged on",
            sorted(calibration_corpora(), key=lambda text: text in ranked),  # ranked ones last
            key="search.corpus",
            format_func=corpus_label,
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
    columns = st.columns(len(numbers))
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
        fields[key] = int(number)
    curves = loaded.sensitivity.curves if loaded.sensitivity else ()
    if any(is_same_corpus(curve.corpus, corpus_name(fields["corpus"])) for curve in curves):
        is_seeded = st.toggle(
            "Start from the measured plans",
            key="search.from_curves",
            help="Add the plans from layer sensitivity to the schedules of the first generation.",
        )
        fields["start"] = MEASURED if is_seeded else "schedules"
    return fields


def _say_estimate(
    loaded: Loaded, section: SearchSection, searches: tuple[KnownSearch, ...]
) -> None:
    estimate = estimate_search(section, searches, list(loaded.runs.values()))
    start = start_seconds(loaded.model.checkpoint.nbytes)
    before = " to ".join(map(time_in_words, start))
    text = f"At most {estimate.candidates:,} candidates on {section.samples} samples: "
    if estimate.low is not None and estimate.high is not None:
        low, high = estimate.low + start[0], estimate.high + start[1]
        text += f"**{time_in_words(low)} to {time_in_words(high)}**, of which "
    text += f"{before} to load libraries, samples and weights"
    st.markdown(f":material/timer: {text}. {literal(estimate.how)}")


def _say_if_known(search: KnownSearch | None, section: SearchSection) -> bool:
    """Whether this search ran before, with a message."""
    if search is None:
        return False
    generations = int(search.settings["generations"])
    if section.generations > generations:
        st.text(f"{search.search_id} ended after {generations} generations; this run extends it.")
        return False
    if search.result.is_finished or section.generations < generations:
        st.text(
            f"{search.search_id} is this search ({generations} generations). Add generations, "
            "change the seed, or choose it in **Search**."
        )
        return True
    tried = len(search.result.entries)
    st.text(f"{search.search_id} was stopped; this run resumes after its {tried} candidates.")
    return False
