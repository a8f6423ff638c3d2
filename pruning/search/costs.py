"""What a search costs before it runs. No torch."""

import statistics
from dataclasses import dataclass
from itertools import product

from analysis.model.layer_costs import layer_costs, logits_cost
from analysis.model.moe_model import MoEModel
from analysis.progress import LOADING, RUNNING_ORIGINAL, Costs, Parts
from pruning.requests.search_settings import SearchSettings


@dataclass(frozen=True, slots=True)
class CandidateCosts:
    """What a candidate costs that shares no layer with another."""

    layers: float = 1.0
    rest: float = 0.0

    def of_child(self, max_steps: int) -> float:
        """What a child costs on average, which shares the layers before its first change.

        tau switches change 2 tau layers at random, so the first of them lies at 1 / (2 tau + 1).
        """
        draws = range(1, max_steps + 1)
        first = [1 / (2 * min(pair) + 1) for pair in product(draws, draws)]
        return self.layers * (1 - statistics.mean(first)) + self.rest


def search_parts(
    model: MoEModel, tokens: tuple[int, int], settings: SearchSettings, *, stream_layers: bool
) -> tuple[CandidateCosts, Parts]:
    """What a candidate costs on samples of so many tokens, scored ones second; and all parts."""
    layers, trunk = layer_costs(model), range(model.depth)
    running = layers.running(tokens[0], *trunk)
    one = CandidateCosts(running, logits_cost(model, tokens[1]))
    children = settings.generations * (settings.population - settings.elites)
    founders = settings.population * (one.layers + one.rest)
    parts: dict[str, Costs] = {
        "searching": {"candidates": founders + children * one.of_child(settings.max_steps)}
    }
    if not stream_layers:
        parts[LOADING] = {"read": layers.reading(*layers.num_bytes)}
        parts[RUNNING_ORIGINAL] = {"multiply": running}
    return one, Parts(parts)
