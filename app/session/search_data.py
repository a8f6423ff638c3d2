"""What the pages know of searches: those of a model, cached, and the plan of the one chosen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.criteria import get_criterion
from analysis.errors import PlanError
from analysis.model import MoEModel
from app.charts import search as search_charts
from app.charts.context import Context
from app.literal import literal
from app.session.data import settings
from app.session.keeping import remembered
from app.session.plan_state import NoPlan, sparsity_controls
from app.settings import shown_path
from pruning.budget import sparsity_budget
from pruning.planning.make import CurrentPlan, make_plan
from pruning.planning.percents import percent_removing
from pruning.planning.ranking import Selection
from pruning.search.store import KnownSearch, SearchStore, read_known


@dataclass(frozen=True, eq=False)
class Searches:
    """The searches of one model."""

    known: tuple[KnownSearch, ...]  # by name
    problems: tuple[str, ...]  # what is wrong with files that were left out

    def named(self, name: str) -> KnownSearch | None:
        """The search of this name."""
        return next((each for each in self.known if each.search_id == name), None)


def search_store() -> SearchStore:
    """Searches of this server's statistics, and those that ship."""
    return SearchStore(settings().store.directories)


def searches_of(model: MoEModel) -> Searches:
    """What is known of a model; files are read again when they change."""
    problems: list[PlanError] = []
    known = search_store().of_model(model, problems.append, read=read_cached)
    return Searches(tuple(known), tuple(map(str, problems)))


def read_cached(path: Path) -> KnownSearch:
    """`read_known` of a file as it is now."""
    return remembered(read_known, path)


def removed_on_screen(context: Context) -> int:
    """Experts that the sparsity of a context removes."""
    return sparsity_budget(context.model.layers, context.sparsity).total


def ordered_for(context: Context, known: Sequence[KnownSearch]) -> list[KnownSearch]:
    """Those that fit budget and criterion on screen first, then those that fit the budget.

    Of equal ones those that jobs made come first, the newest before all.
    """
    removed, name = removed_on_screen(context), context.criterion.name if context.criterion else ""

    def place(search: KnownSearch) -> tuple[bool, bool, float, str]:
        try:
            written = search.path.stat().st_mtime if search.recipe else 0.0
        except OSError:
            written = 0.0  # removed a moment ago
        return search.removed != removed, search.criterion != name, -written, search.search_id

    return sorted(known, key=place)


def search_label(search: KnownSearch, model: MoEModel) -> str:
    """Name, order and budget of a search, for a list."""
    label = get_criterion(search.criterion).label
    return f"{search.search_id} ({label}, {search.removed / model.num_experts:.0%} sparsity)"


def chosen_search(context: Context) -> KnownSearch | None:
    """The search that is chosen; the first that fits where none is, or one that is not there."""
    found = searches_of(context.model)
    ordered = ordered_for(context, found.known)
    return found.named(context.plan.searched) or (ordered[0] if ordered else None)


def searched_plan(context: Context) -> CurrentPlan:
    """The plan of the search that is chosen."""
    search = chosen_search(context)
    if search is None:
        raise NoPlan(
            f"No search of {literal(context.model.name)} is known yet; start one on the Plan page."
        )
    if search.removed != removed_on_screen(context):
        raise _other_budget(context, search)
    selection = selection_of(context, search)
    made = make_plan(selection, selection.request)
    return CurrentPlan(made.plan, _notes(context, search, selection), selection)


def _other_budget(context: Context, search: KnownSearch) -> NoPlan:
    experts, percent = context.model.num_experts, percent_removing(context.model, search.removed)
    if percent is None:
        way = "No place of the slider removes as many; `moeprune plan --schedule-file` takes it."
        ways = {}
    else:
        way, ways = "", {f"Set the sparsity to {percent}%": sparsity_controls(percent)}
    return NoPlan(
        f"The search {literal(search.search_id)} spent another budget: it removes {search.removed} "
        f"of {experts} experts ({search.removed / experts:.1%}), the slider asks for "
        f"{removed_on_screen(context)} ({context.sparsity}). {way}".rstrip(),
        ways,
    )


def selection_of(context: Context, search: KnownSearch) -> Selection:
    """`search.selection_of` with a command line that names the file of the search."""
    made = search_charts.selection_of(context, search)
    shown = made.request.model_copy(update={"schedule_file": shown_path(search.path)})
    return replace(made, request=shown)


def _notes(context: Context, search: KnownSearch, selection: Selection) -> tuple[str, ...]:
    notes = []
    own = f"{selection.criterion.label} on {' + '.join(selection.request.corpora)}".removesuffix(
        " on "
    )
    other = context.criterion is not None and context.criterion.name != selection.criterion.name
    moved = selection.request.corpora not in ((), context.corpora)
    if other or moved or selection.request.gate != "applied" != context.gate:
        notes.append(
            "Within layers the experts go in the order that the search was made on "
            f"({own}), not in the one on screen. Counts by hand would take the order on screen."
        )
    if context.plan.constraints().to_dict() != dict(search.constraints):
        notes.append(
            "Protected layers and multiples above were not asked of this search, and change "
            "nothing of its plan; start one below that respects them."
        )
    if not search.result.is_finished:
        notes.append(
            f"This search was stopped after {len(search.result.entries)} candidates; its best so "
            "far is shown."
        )
    return tuple(notes)
