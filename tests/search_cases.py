"""Small feasible sets that can be listed in full, and a fitness that needs no model."""

from collections import Counter
from itertools import product

import numpy as np
from scipy.stats import chisquare

from analysis.drain import drain
from analysis.families.base import MoELayer
from pruning.plan.constraints import Constraints, rooms_of
from pruning.requests.search_settings import SearchSettings
from pruning.search.run import BlockFitness, Task, open_log, search
from pruning.search.space import Space

# Layer ids with gaps, counts that differ and are no powers of two.
LAYERS = (MoELayer(1, 7, 2), MoELayer(3, 5, 2), MoELayer(4, 6, 3))
SETTINGS = SearchSettings(population=8, elites=3, generations=6, seed=7)


def space(total, layers=LAYERS, constraints=None):
    return Space(rooms_of(layers, constraints or Constraints()), total)


def listed(feasible):
    """Every feasible allocation, from all products of what single layers allow."""
    ranges = [range(room.least, room.most + 1, room.step) for room in feasible.rooms]
    return [removed for removed in product(*ranges) if sum(removed) == feasible.total]


def p_value(draws, expected):
    """Of the chi-square test; `expected` maps every outcome to its probability."""
    counts = Counter(draws)
    assert set(counts) <= set(expected)
    outcomes = sorted(expected)
    frequencies = [expected[outcome] * len(draws) for outcome in outcomes]
    assert min(frequencies) > 5  # or the test would not hold
    return float(chisquare([counts[o] for o in outcomes], frequencies).pvalue)


class Distance:
    """Fitness by the distance to a hidden allocation, on blocks of unequal size; counts calls."""

    num_layers = 4

    def __init__(self, hidden=(1, 3, 2), blocks=(4, 4, 3)):
        self.hidden = np.array(hidden)
        self.blocks = blocks
        self.measured = []
        self.held = []

    @property
    def num_blocks(self):
        return len(self.blocks)

    def prepare(self, candidates):
        """Nothing: each is measured by itself."""
        yield from ()
        return 0.0

    def block(self, removed, number):
        self.measured.append((removed, number))
        away = float(np.abs(np.array(removed) - self.hidden).sum())
        samples = np.random.default_rng([number, *removed]).normal(-away, 0.1, self.blocks[number])
        return BlockFitness(samples, self.num_layers)

    def hold(self, candidates):
        self.held = list(candidates)


def task(total=6, settings=SETTINGS, seeds=None, layers=LAYERS, constraints=None):
    return Task(space(total, layers, constraints), seeds or {}, settings)


def searched(path, wanted=None, fitness=None, published=None):
    """Run a search to its end; its outcome."""
    with open_log(path, {"name": "test"}) as log:
        keep = [].append if published is None else published.append
        return drain(search(wanted or task(), fitness or Distance(), log, keep))


def essence(outcome):
    """What of an outcome must not depend on interruptions."""
    scores = {number: each.samples.tolist() for number, each in outcome.scores.items()}
    return outcome.candidates, scores, outcome.generations, outcome.best, outcome.is_finished
