"""The charts of searches: how one went, its best schedule, and the schedules of several."""

from collections.abc import Sequence

from analysis.criteria import get_criterion
from app.charts.chart import Drawing, made_by
from app.figures import search as figures
from pruning.evaluate.result import MEASURES
from pruning.search.result import densities_of, progress_of
from pruning.search.store import KnownSearch


def progress_chart(search: KnownSearch) -> Drawing:
    """Fitness per generation; the table has the members of each generation."""
    history = search.result.history()
    progress = progress_of(history)
    measure = measure_label(search.fitness)
    return Drawing(
        "search",
        lambda dark: figures.search_progress(history, progress, measure=measure, dark=dark),
        history,
        figures.describe_progress(history, progress, measure=measure),
        about_search(search),
    )


def best_chart(search: KnownSearch) -> Drawing:
    """The best schedule so far, as bars."""
    table = search.result.schedule()
    return Drawing(
        "search-best",
        lambda dark: figures.schedule_bars(table, dark=dark),
        table,
        figures.describe_bars(table),
        about_search(search),
    )


def schedules_of_searches(searches: Sequence[KnownSearch]) -> Drawing:
    """Density schedules of several searches, as in arXiv:2603.06003, Fig. 1 and 3."""
    table = densities_of({each.search_id: each.result for each in searches})
    names = ", ".join(each.search_id for each in searches)
    return Drawing(
        "search-schedules",
        lambda dark: figures.density_schedules(table, dark=dark),
        table,
        figures.describe_schedules(table),
        made_by(f"searches {names}"),
    )


def measure_label(fitness: str) -> str:
    """The fitness of a search for people; one of which less is better counts negated."""
    known = MEASURES[fitness]
    return known.label if known.higher_is_better else f"minus {known.label}"


def about_search(search: KnownSearch) -> str:
    """Provenance line of a figure of one search."""
    return made_by(
        f"search {search.search_id}",
        f"order by {get_criterion(search.criterion).label}",
        f"{search.samples} samples of {search.corpus}",
        f"{search.removed} experts removed",
    )
