"""Small feasible sets that can be listed in full, and a fitness that needs no model."""

from collections import Counter
from contextlib import nullcontext
from itertools import product

import numpy as np
from allocations import choices_of
from scipy.stats import chisquare

from analysis.calibration.distributed import Processes
from analysis.drain import drain
from analysis.families.base import MoELayer
from analysis.model.moe_model import ModelRef
from builders.tokens import answers
from pruning.measurements.block import Block
from pruning.measurements.table import Measurements
from pruning.plan.constraints import Constraints
from pruning.plan.plan import PruningPlan
from pruning.plan.units import expert_units
from pruning.requests.search_settings import SearchSettings
from pruning.search.run import Task, search
from pruning.search.scores import BlockFitness, Scores
from pruning.search.space import Space

# Layer ids with gaps, counts that differ and are no powers of two.
LAYERS = (MoELayer(1, 7, 2), MoELayer(3, 5, 2), MoELayer(4, 6, 3))
SETTINGS = SearchSettings(population=8, elites=3, generations=6, seed=7)
MODEL = ModelRef("toy", "00" * 32)
MADE = {"batch_size": 4, "device": "cpu"}


def space(total, layers=LAYERS, constraints=None):
    return Space(expert_units(layers, constraints or Constraints()), total)


def listed(feasible):
    """Every feasible allocation, from all products of what single layers allow."""
    ranges = choices_of(feasible.units)
    return [removed for removed in product(*ranges) if sum(removed) == feasible.total]


def p_value(draws, expected):
    """Of the chi-square test; `expected` maps every outcome to its probability."""
    counts = Counter(draws)
    assert set(counts) <= set(expected)
    outcomes = sorted(expected)
    frequencies = [expected[outcome] * len(draws) for outcome in outcomes]
    assert min(frequencies) > 5  # or the test would not hold
    return float(chisquare([counts[o] for o in outcomes], frequencies).pvalue)


class Alone:
    """What a fitness of one process does before a candidate is measured: nothing."""

    ahead = 0

    def open(self):
        return nullcontext()

    def begin(self, removed):
        """Each runs when it is measured."""

    def prepare(self, candidates):
        yield from ()
        return 0.0

    def hold(self, candidates):
        """Nothing helps here."""


class Distance(Alone):
    """A loss that grows with the distance to a hidden allocation, on blocks of unequal size.

    Counts calls.
    """

    num_layers = 4

    def __init__(self, hidden=(1, 3, 2), blocks=(4, 4, 3)):
        self.hidden = np.array(hidden)
        self.blocks = blocks
        self.measured = []
        self.held = []

    @property
    def num_blocks(self):
        return len(self.blocks)

    def block(self, removed, number):
        self.measured.append((removed, number))
        away = float(np.abs(np.array(removed) - self.hidden).sum())
        random, size = np.random.default_rng([number, *removed]), self.blocks[number]
        counts = random.integers(1, 9, size)
        return BlockFitness((away + random.random(size)) * counts, counts, self.num_layers)

    def hold(self, candidates):
        self.held = list(candidates)


def task(total=6, settings=SETTINGS, seeds=None, layers=LAYERS, constraints=None):
    return Task(space(total, layers, constraints), seeds or {}, settings)


def scores(folder, wanted, *, samples=11, measure="nll", **more):
    """What the table in a folder has of the candidates of a task."""
    sizes = wanted.space.units.sizes

    def plan_of(removed):
        pairs = enumerate(zip(sizes, removed, strict=True))
        return PruningPlan(MODEL, {n: tuple(range(size - gone)) for n, (size, gone) in pairs})

    settings = {
        "table": Measurements([folder]),
        "model": MODEL.identity,
        "plan_of": plan_of,
        "sizes": sizes,
        "sequences": answers((9,) * samples),
        "measure": measure,
        "dtype": "float32",
        "seed": wanted.settings.seed,
        "made": MADE,
        "processes": Processes(),
    }
    return Scores(**{**settings, **more})


def blocks(folder):
    """What the table in a folder holds, in the order of its files."""
    lines = [path.read_bytes().splitlines(True) for path in Measurements([folder]).shards]
    return [Block.from_line(line) for shard in lines for line in shard]


def searched(folder, wanted=None, fitness=None, published=None, **more):
    """Run a search to its end; its outcome. `more` is of `scores`."""
    wanted = wanted or task()
    keep = [].append if published is None else published.append
    table = scores(folder, wanted, **more)
    return drain(search(wanted, fitness or Distance(), table, keep))


def essence(outcome):
    """What of an outcome must not depend on interruptions."""
    scores = {number: score.samples.tolist() for number, score in outcome.scores.items()}
    return outcome.candidates, scores, outcome.generations, outcome.best, outcome.is_finished
