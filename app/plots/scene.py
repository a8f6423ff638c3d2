"""A scene: what a figure is asked of. A model, its statistics, one recipe, and one beside it."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis.corpora import corpus_name
from analysis.criteria import Criterion, get_criterion
from analysis.errors import PlanError, StatsError
from analysis.model import MoEModel
from analysis.ranking.compare import Comparison
from analysis.ranking.coverage import Blender
from analysis.ranking.overlap import mean_overlaps, variant_overlaps
from analysis.sparsity import num_removed
from analysis.stats.blend import Mixture
from analysis.stats.choose import newest_by_corpus, parse_corpus_weight
from analysis.stats.store import Run, StatsStore, load_expert_stats
from analysis.stats.tables import ExpertStats
from app.plots.benchmarks import benchmark_results
from app.plots.chart import made_by
from app.plots.comparison import about_recipes
from app.plots.evaluations import results_of
from app.plots.paths import USUAL_PATHS, PathChoice
from app.plots.variance import variance_results
from app.tables.maps import Ranked, rank
from pruning.budget import sparsity_budget
from pruning.evaluate.benchmarks.record import BenchmarkStore
from pruning.evaluate.record import EvaluationStore
from pruning.evaluate.variance_record import VarianceStore
from pruning.planning.comparing import CompareRequest, compare_selections
from pruning.planning.ranking import Selection, select
from pruning.requests.base import SelectRequest
from pruning.search.store import KnownSearch, SearchStore, best_fitting


@dataclass(frozen=True, eq=False)
class Scene:
    """What figures are asked of; everything is read when a figure first needs it.

    Args:
        recipes: the recipe, and a second one to compare it with.
        model: the model of both.
        store: where their statistics are.
        paths: which paths are followed, for the figure of paths.
    """

    recipes: CompareRequest
    model: MoEModel
    store: StatsStore
    paths: PathChoice = USUAL_PATHS

    @property
    def request(self) -> SelectRequest:
        """The recipe."""
        return self.recipes.a

    @cached_property
    def first(self) -> Selection:
        """The recipe with its statistics.

        Raises:
            UserError: no statistics that fit.
        """
        return select(self.request, self.model, self.store)

    @cached_property
    def second(self) -> Selection:
        """The recipe beside, with its statistics; see `first`."""
        return select(self.recipes.b, self.model, self.store)

    @cached_property
    def criterion(self) -> Criterion:
        """What ranks."""
        return get_criterion(self.request.criterion)

    @cached_property
    def runs(self) -> dict[str, Run]:
        """The run of each calibrated corpus, all of which views of overlap compare."""
        runs = self.store.of_model(self.model.identity, "routed")
        return newest_by_corpus(runs, self.criterion)

    @cached_property
    def texts(self) -> dict[str, ExpertStats]:
        """The statistics of each corpus, for figures that compare corpora.

        Raises:
            StatsError: there are not two.
            PlanError: nothing is pruned, so there is nothing to compare.
        """
        if len(self.runs) < 2:
            raise StatsError(
                f"This figure compares calibrations on different texts; {self.model.name} has "
                f"{len(self.runs)}. Calibrate on another with `moeprune calibrate`."
            )
        self.check_removes()
        return {corpus: load_expert_stats(run) for corpus, run in self.runs.items()}

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """Table of `results_of`: what was measured of pruned candidates of the model.

        Raises:
            StatsError: nothing was.
        """
        records = EvaluationStore(self.store.directories).records(self.model.identity)
        if not records:
            raise StatsError(
                f"{self.model.name} has no evaluations yet; make some with `moeprune evaluate`."
            )
        return results_of(records)

    @cached_property
    def searches(self) -> list[KnownSearch]:
        """The searches of the model on the budget of the recipe, of any criterion.

        Raises:
            StatsError: there is none.
        """
        removed = sparsity_budget(self.model.layers, self.request.sparsity).total
        known = SearchStore(self.store.directories).of_model(self.model)
        if found := [each for each in known if each.removed == removed]:
            return found
        others = ", ".join(f"{each.search_id} ({each.removed} experts)" for each in known)
        raise StatsError(
            f"{self.model.name} has no search that removes {removed} experts; make one with "
            f"`moeprune search`. Known: {others or 'none'}."
        )

    @property
    def search(self) -> KnownSearch:
        """Of `searches` the one by the criterion of the recipe that looked longest.

        Raises:
            StatsError: none is by this criterion.
        """
        found, name = self.searches, self.criterion.name
        search = best_fitting(found, name, found[0].removed)
        if search is None:
            known = ", ".join(sorted({each.criterion for each in found}))
            raise StatsError(
                f"No search of {self.model.name} on this budget is by {name}; known: {known}."
            )
        return search

    @cached_property
    def benchmarks(self) -> pd.DataFrame:
        """Table of `benchmark_results`: what benchmarks say of the model's candidates.

        Raises:
            StatsError: nothing, or only of tasks that give no shares of right answers.
        """
        records = BenchmarkStore(self.store.directories).records(self.model.identity)
        results = benchmark_results(records)
        if results.empty:
            raise StatsError(
                f"{self.model.name} has no benchmark results yet; see `moeprune benchmark`."
            )
        return results

    @cached_property
    def hidden_states(self) -> pd.DataFrame:
        """Table of `variance_results`: what was measured of the model's hidden states.

        Raises:
            StatsError: nothing was.
        """
        records = VarianceStore(self.store.directories).records(self.model.identity)
        if not records:
            raise StatsError(
                f"No hidden states of {self.model.name} were measured yet; see `moeprune variance`."
            )
        return variance_results(records)

    @cached_property
    def variant_means(self) -> pd.DataFrame:
        """Table of `mean_overlaps` of the 18 variants."""
        request = self.request
        return mean_overlaps(variant_overlaps(self.texts, request.gate, request.fraction))

    @property
    def weights(self) -> dict[str, float]:
        """Weight of every calibrated corpus in what ranks."""
        given = [parse_corpus_weight(text) for text in self.request.corpora]
        named = {corpus_name(each.corpus): each.weight for each in given}
        return {corpus: named.get(corpus, 0.0) for corpus in self.runs}

    def routed_criterion(self) -> Criterion:
        """The criterion.

        Raises:
            StatsError: it reads no text, so that texts cannot be compared by it.
        """
        if self.criterion.source != "routed":
            raise StatsError(
                f"{self.criterion.label} reads no text, so all texts agree; choose a calibrated "
                "criterion, such as reap."
            )
        return self.criterion

    def blender(self) -> Blender:
        """Coverage of every corpus by what a blend keeps.

        Raises:
            UserError: a criterion without text, or corpora that cannot be mixed.
        """
        self.routed_criterion()
        # Found first: that says which corpora there are, where none or an unknown one is named.
        criterion, request = self.first.criterion, self.request
        if len(self.runs) < 2:
            raise StatsError(f"A blend mixes texts; {self.model.name} has {len(self.runs)}.")
        return Blender(Mixture(list(self.runs.values())), criterion, request.gate, request.fraction)

    def ranked(self) -> list[Ranked]:
        """Both recipes' criteria, the one beside first; once where they are the same."""
        found = {
            selection.criterion.label: rank(
                selection.criterion, selection.choice.stats, selection.request.gate
            )
            for selection in (self.second, self.first)
        }
        return list(found.values())

    def check_removes(self) -> None:
        """See that the sparsity removes experts.

        Raises:
            PlanError: it removes none.
        """
        fraction = self.request.fraction
        if not any(num_removed(layer.num_experts, fraction) for layer in self.model.layers):
            least = 1 / max(layer.num_experts for layer in self.model.layers)
            raise PlanError(
                f"The sparsity {self.request.sparsity} removes no expert, so there is nothing to "
                f"show; the least that removes one per layer is {least:.4g}."
            )

    @cached_property
    def comparison(self) -> Comparison:
        """The recipe (A) against the one beside it (B)."""
        return compare_selections(self.first, self.second)

    def about(self, *facts: str) -> str:
        """Provenance line of a figure of all texts."""
        runs = ", ".join(run.manifest.run_id for run in self.runs.values())
        head = f"{self.model.name} {self.model.identity[:8]}"
        return made_by(head, runs, f"sparsity {self.request.sparsity}", *facts)

    def about_selection(self) -> str:
        """Provenance line of a figure of the recipe alone."""
        first = self.first
        runs = ", ".join(run.manifest.run_id for run in first.choice.runs)
        head = f"{self.model.name} {self.model.identity[:8]}"
        return made_by(head, runs, first.criterion.label, f"sparsity {self.request.sparsity}")

    def about_neurons(self) -> str:
        """Provenance line of a figure of plans of neurons."""
        texts, head = self.request.corpora, f"{self.model.name} {self.model.identity[:8]}"
        return made_by(head, self.criterion.label, *texts, f"sparsity {self.request.sparsity}")

    def about_both(self) -> str:
        """Provenance line of a figure of both recipes."""
        return made_by(*about_recipes(self.first, self.second))
