"""How long a search or curves would take: from searches of the model, or its calibrations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from analysis.stats.store import Run
from pruning.recipe import SearchSection
from pruning.requests.options import DEFAULT_SEQ_LEN
from pruning.requests.sensitivity import SensitivityRequest
from pruning.search.store import KnownSearch

# Another load of the machine, other samples, candidates that differ in earlier layers.
_UP_TO: Final = 1.5
# How much faster this machine may be than the one where a search that ships was made.
_FASTER_HERE: Final = 4.0
# What a calibration adds to a forward (sums, exact damage, a backward) and what samples that are
# shorter than a sequence save: on the demo, a search ran at 4 times the pace of its calibrations.
_CALIBRATION_SLOWER: Final = 5.0
# Before the first candidate: libraries, the search samples, the text that the order was made on.
# Measured with the demo on a busy machine of two cores: 24 s. The least is an assumption.
_START_UP: Final = (5.0, 30.0)
# Bytes a second at which weights are assumed to arrive: from a fast disk, and over a network.
_READING: Final = (2 * 2**30, 2**28)


@dataclass(frozen=True, slots=True)
class SearchEstimate:
    """A range of seconds, the start not counted, see `start_seconds`."""

    # Low, high: seconds; None where nothing tells the speed of this model.
    low: float | None
    high: float | None
    candidates: int  # at most so many
    how: str  # where the range comes from, in a sentence


def most_candidates(asked: SearchSection) -> int:
    """Candidates of a search in which every generation brings as many new ones as it has room for.

    P of the initial population, then P - m in each generation: the elites stay.
    """
    return asked.population + asked.generations * (asked.population - asked.elites)


def estimate_search(
    asked: SearchSection, known: Sequence[KnownSearch], runs: Sequence[Run]
) -> SearchEstimate:
    """What a search would take on the machine that the measured work of this model ran on."""
    candidates = most_candidates(asked)
    here = [each for each in known if each.recipe and each.result.cost["layers"]]
    if measured := here or [each for each in known if each.result.cost["layers"]]:
        paces = [_seconds_of_a_sample(each) for each in measured]
        whole, costs = candidates * asked.samples, [each.result.cost for each in measured]
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
    """Seconds, at best and at worst, of so many tokens through the model.

    `speed` is that of calibrations, tokens a second.
    """
    high = tokens / speed
    return high / _CALIBRATION_SLOWER, high


def estimate_sensitivity(
    asked: SensitivityRequest, layers: int, runs: Sequence[Run]
) -> tuple[float, float] | None:
    """Seconds to measure curves, at best and at worst; None where nothing tells the speed.

    A level of a layer runs the layers from it on: half the model on average.
    """
    speeds = [float(run.manifest.made.get("tokens_per_second", 0)) for run in runs]
    if not any(speeds):
        return None
    samples = asked.samples * len(asked.corpora)
    whole = asked.levels * (layers + 1) / 2
    return _seconds(whole * samples * DEFAULT_SEQ_LEN, max(speeds))


def start_seconds(nbytes: int) -> tuple[float, float]:
    """From the click to the first candidate, at best and at worst; `nbytes` are the weights."""
    (least, most), (fast, slow) = _START_UP, _READING
    return least + nbytes / fast, most + nbytes / slow


def _seconds_of_a_sample(search: KnownSearch) -> float:
    """Time of one sample through all layers, nothing reused."""
    cost, blocks = search.result.cost, -(-search.samples // search.batch_size)
    of_a_layer_on_a_batch = cost["seconds"] / cost["layers"]
    layers_of_a_candidate = cost["whole_layers"] / cost["candidates"] / blocks
    return of_a_layer_on_a_batch * layers_of_a_candidate * blocks / search.samples


def duration_text(seconds: float) -> str:
    """Seconds for people: 40 s, 12 min, 3.0 h, 47 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
