"""Searches: how long one would take, and the recipe that asks for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from analysis.files.naming import digest_of, run_name
from analysis.model.moe_model import MoEModel
from analysis.stats.manifest import Run
from pruning.planning.ranking import Ranking
from pruning.planning.recipes import recipe_of
from pruning.requests.evaluation import SensitivityRequest
from pruning.requests.recipe import Recipe, SearchSection
from pruning.requests.recipe_file import recipe_from_yaml
from pruning.schedules import SCHEDULES
from pruning.search.store import KnownSearch
from pruning.spec.options import DEFAULT_SEQ_LEN
from pruning.spec.spec import PlanSpec, SpreadSpec

# A busier machine, other samples, candidates that differ in earlier layers.
_UP_TO: Final = 1.5
# How much faster this machine may be than the one behind a shipped search.
_FASTER_HERE: Final = 4.0
# A calibration adds sums, exact damage and a backward pass to the forward pass, and samples are
# shorter than sequences: on the demo, a search ran at 4 times the pace of its calibrations.
_CALIBRATION_SLOWER: Final = 5.0
# Seconds before the first candidate: libraries, search samples, the calibration corpus. Measured
# with the demo on a busy machine with two cores: 24 s. The minimum is an assumption.
_START_UP: Final = (5.0, 30.0)
# Bytes per second at which weights are assumed to load: from a fast disk, and over a network.
_READING: Final = (2 * 2**30, 2**28)


@dataclass(frozen=True, slots=True)
class SearchEstimate:
    """A range of seconds without the start, see `start_seconds`; None if the speed is unknown."""

    low: float | None
    high: float | None
    candidates: int  # at most
    how: str  # where the range comes from, in a sentence


def most_candidates(asked: SearchSection) -> int:
    """The most candidates of a search: P at first, then P - m per generation, as m elites stay."""
    return asked.population + asked.generations * (asked.population - asked.elites)


def estimate_search(
    asked: SearchSection, known: Sequence[KnownSearch], runs: Sequence[Run]
) -> SearchEstimate:
    """How long a search would take on the machine behind earlier work with this model."""
    candidates = most_candidates(asked)
    here = [search for search in known if search.recipe and search.result.cost["layers"]]
    if measured := here or [search for search in known if search.result.cost["layers"]]:
        paces = [_seconds_of_a_sample(search) for search in measured]
        whole, costs = candidates * asked.samples, [search.result.cost for search in measured]
        # Layer evaluations, of those that whole forwards would have taken.
        reused = min(float(cost["layers"] / cost["whole_layers"]) for cost in costs)
        names, more = measured[0].search_id, len(measured) - 1
        names += f" and {more} more" if more else ""
        fastest = min(paces) if here else min(paces) / _FASTER_HERE
        return SearchEstimate(
            whole * fastest * reused,
            whole * max(paces) * _UP_TO,
            candidates,
            f"From the layer evaluations of {names}: at best with as much reuse as there"
            + ("" if here else f" and {_FASTER_HERE:g} times as fast as where it was made")
            + f", at worst with none and {_UP_TO:g} times as slow.",
        )
    speeds = [float(run.manifest.made.get("tokens_per_second", 0)) for run in runs]
    if not any(speeds):
        return SearchEstimate(
            None,
            None,
            candidates,
            "Nothing was measured with this model yet; the running search says how long it takes.",
        )
    return SearchEstimate(
        *_seconds(candidates * asked.samples * DEFAULT_SEQ_LEN, max(speeds)),
        candidates,
        f"From its calibrations ({max(speeds):,.0f} tokens a second), which do more than a search "
        f"and on longer texts; samples count as {DEFAULT_SEQ_LEN} tokens.",
    )


def _seconds(tokens: float, speed: float) -> tuple[float, float]:
    """Seconds for this many tokens, at best and at worst; `speed` is tokens/s of calibrations."""
    high = tokens / speed
    return high / _CALIBRATION_SLOWER, high


def forward_seconds(tokens: float, runs: Sequence[Run]) -> tuple[float, float] | None:
    """Seconds for forwards of so many tokens, at best and at worst, by the pace of calibrations.

    None if no run tells it.
    """
    speeds = [float(run.manifest.made.get("tokens_per_second", 0)) for run in runs]
    return _seconds(tokens, max(speeds)) if any(speeds) else None


def estimate_sensitivity(
    asked: SensitivityRequest, layers: int, runs: Sequence[Run]
) -> tuple[float, float] | None:
    """Seconds to measure curves, at best and at worst; None if the speed is unknown.

    A level of a layer runs this layer and all later ones: half the model on average.
    """
    samples = asked.samples * len(asked.corpora)
    whole = asked.levels * (layers + 1) / 2
    return forward_seconds(whole * samples * DEFAULT_SEQ_LEN, runs)


def start_seconds(nbytes: int) -> tuple[float, float]:
    """Seconds to the first candidate, at best and at worst; `nbytes` is the size of the weights."""
    (least, most), (fast, slow) = _START_UP, _READING
    return least + nbytes / fast, most + nbytes / slow


def _seconds_of_a_sample(search: KnownSearch) -> float:
    """Seconds for one sample through all layers, with nothing reused."""
    cost, blocks = search.result.cost, -(-search.samples // search.batch_size)
    of_a_layer_on_a_batch = cost["seconds"] / cost["layers"]
    layers_of_a_candidate = cost["whole_layers"] / cost["candidates"] / blocks
    return of_a_layer_on_a_batch * layers_of_a_candidate * blocks / search.samples


def searching_recipe(ranking: Ranking, spec: PlanSpec, asked: Mapping[str, Any]) -> Recipe:
    """The recipe of a search in the order of a ranking, under the constraints of a spec.

    The schedule of the spec is among the first candidates. `asked` is the recipe's key search.
    """
    ranked_by, schedule = ranking.spec.ranking, spec.spread.schedule
    limits = spec.limits.model_copy(update={"set": {}})
    reads_text = SCHEDULES[schedule].reads_tokens or limits.keep_super
    if ranking.criterion.source != "routed" and not reads_text:
        ranked_by = ranked_by.model_copy(update={"corpora": ()})
    changes = {"ranking": ranked_by, "limits": limits, "spread": SpreadSpec(schedule=schedule)}
    start = ranking.spec.model_copy(update=changes)
    base = recipe_of(replace(ranking, spec=start)).to_dict()
    return recipe_from_yaml(yaml.safe_dump({**base, "search": dict(asked)}), name="of the search")


def new_search_id(recipe: Recipe, model: MoEModel, order: str) -> str:
    """Name of the folder of a search, the same for all runs that resume its log.

    The number of generations is left out, so that a finished search can be continued. `order` is
    from `order_digest`.
    """
    if recipe.search is None:
        raise ValueError("the recipe does not search")
    alike = recipe.model_copy(
        update={"model": "", "search": recipe.search.model_copy(update={"generations": 1})}
    )
    digest = digest_of({"model": model.identity, "recipe": alike.digest, "order": order})
    words = (model.name, recipe.plan.ranking.criterion, Path(recipe.search.corpus).stem)
    return run_name(*words, digest=digest)
