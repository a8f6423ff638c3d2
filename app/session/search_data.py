"""Cached searches of a model, and the plan of the chosen one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.criteria import get_criterion
from analysis.errors import PlanError
from analysis.model.moe_model import MoEModel
from app.literal import literal
from app.loaded import CurrentPlan, Loaded
from app.session.data import remembered, settings
from app.session.plan_state import NoPlan, sparsity_controls
from app.settings import shown_path
from pruning.planning.choice import percent_removing
from pruning.planning.ranking import Ranking
from pruning.search.store import KnownSearch, SearchStore, read_known
from pruning.spec.spec import PlanSpec


@dataclass(frozen=True, eq=False)
class Searches:
    """The searches of one model."""

    known: tuple[KnownSearch, ...]  # by name
    problems: tuple[str, ...]  # problems of skipped files

    def named(self, name: str) -> KnownSearch | None:
        """The search of this name."""
        return next((search for search in self.known if search.search_id == name), None)


def search_store() -> SearchStore:
    """Searches of this server, and shipped ones."""
    return SearchStore(settings().store.directories)


def searches_of(model: MoEModel) -> Searches:
    """All searches of a model; files are reread when they change."""
    problems: list[PlanError] = []
    searches = search_store().of_model(model, problems.append, read=read_cached)
    return Searches(tuple(searches), tuple(map(str, problems)))


def read_cached(path: Path) -> KnownSearch:
    """`read_known`, cached by the state of the file."""
    return remembered(read_known, path)


def removed_on_screen(loaded: Loaded) -> int:
    """Number of experts pruned at the chosen sparsity."""
    _, budget = loaded.budget
    return budget.total


def ordered_for(loaded: Loaded, known: Sequence[KnownSearch]) -> list[KnownSearch]:
    """Searches sorted: same budget and criterion first, then same budget.

    Among equals those made by jobs come first, newest first.
    """
    removed, name = removed_on_screen(loaded), loaded.choices.spec.ranking.criterion

    def place(search: KnownSearch) -> tuple[bool, bool, float, str]:
        try:
            changed = search.path.stat().st_mtime if search.recipe else 0.0
        except OSError:
            changed = 0.0  # just deleted
        return search.removed != removed, search.criterion != name, -changed, search.search_id

    return sorted(known, key=place)


def search_label(search: KnownSearch, model: MoEModel) -> str:
    """Name, order and budget of a search, for a list."""
    label = get_criterion(search.criterion).label
    return f"{search.search_id} ({label}, {search.removed / model.num_experts:.0%} sparsity)"


def chosen_search(loaded: Loaded) -> KnownSearch | None:
    """The chosen search; the best fit if none or an unknown one is chosen."""
    searches = searches_of(loaded.model)
    ordered = ordered_for(loaded, searches.known)
    return searches.named(loaded.choices.search or "") or (ordered[0] if ordered else None)


def searched_plan(loaded: Loaded) -> CurrentPlan:
    """The plan of the chosen search."""
    search = chosen_search(loaded)
    if search is None:
        raise NoPlan(
            f"No search of {literal(loaded.model.name)} is known yet; start one on the Plan page."
        )
    if search.removed != removed_on_screen(loaded):
        raise _other_budget(loaded, search)
    ranking = loaded.study.ranking_of_search(search)
    plan = replace(loaded.study.plan_of(ranking), notes=_notes(loaded, search, ranking))
    return CurrentPlan(plan, replace(ranking, spec=_with_shown_path(ranking.spec)))


def _other_budget(loaded: Loaded, search: KnownSearch) -> NoPlan:
    experts, percent = loaded.model.num_experts, percent_removing(loaded.model, search.removed)
    if percent is None:
        way = "The slider has no such step; use `moeprune plan --schedule-file`."
        ways = {}
    else:
        way, ways = "", {f"Set the sparsity to {percent}%": sparsity_controls(percent)}
    return NoPlan(
        f"The search {literal(search.search_id)} has another budget: it removes {search.removed} "
        f"of {experts} experts ({search.removed / experts:.1%}), the slider asks for "
        f"{removed_on_screen(loaded)} ({loaded.sparsity}). {way}".rstrip(),
        ways,
    )


def _with_shown_path(spec: PlanSpec) -> PlanSpec:
    """The spec for a command line, which names the file of the search as people see it."""
    file = spec.spread.schedule_file
    return spec.changed(schedule_file=shown_path(file)) if file else spec


def _notes(loaded: Loaded, search: KnownSearch, ranking: Ranking) -> tuple[str, ...]:
    notes = []
    corpora = ranking.spec.ranking.corpora
    ranked_by = f"{ranking.criterion.label} on {' + '.join(corpora)}".removesuffix(" on ")
    choices = loaded.choices
    other = choices.spec.ranking.criterion not in ("", ranking.criterion.name)
    moved = corpora not in ((), choices.corpora)
    if other or moved or ranking.gate != "applied" != choices.gate:
        notes.append(
            f"Experts within layers are pruned in the order of the search ({ranked_by}), not the "
            "one on screen. Manual counts use the order on screen."
        )
    if loaded.choices.spec.limits != search.spec.limits:
        notes.append(
            "This search ignored the protected layers and multiples above, and its plan does too. "
            "Run a search below that respects them."
        )
    if not search.result.is_finished:
        notes.append(
            f"This search was stopped after {len(search.result.entries)} candidates; its best so "
            "far is shown."
        )
    return tuple(notes)
