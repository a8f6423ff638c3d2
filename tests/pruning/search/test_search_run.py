"""The evolution and its scores: what Algorithm 1 says, and that interruptions change nothing."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from search_cases import (
    LAYERS,
    MADE,
    SETTINGS,
    Distance,
    blocks,
    essence,
    listed,
    scores,
    searched,
    space,
    task,
)

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from analysis.model.layer_costs import logits_cost, output_weights
from analysis.model.opening import load_model_index
from analysis.pace import Pace
from builders import tiny_checkpoint
from pruning.plan.budget import count_budget, sparsity_budget
from pruning.plan.constraints import Constraints
from pruning.plan.units import expert_units
from pruning.requests.search_settings import SearchSettings
from pruning.schedules import allocate
from pruning.schedules.counts import read_counts
from pruning.search.costs import RunCosts, SearchTally
from pruning.search.evolution import initial_state, starts_without_room
from pruning.search.run import search
from pruning.search.scores import BlockFitness
from pruning.search.space import seeds_of, space_of
from pruning.search.store import load_search, result_from_json, result_of

WIDE = tuple(MoELayer(2 * i + 1, 11, 2) for i in range(6))
WIDE_SETTINGS = SearchSettings(population=12, elites=3, generations=8, seed=1)


def changed(**values):
    return WIDE_SETTINGS.model_copy(update=values)


HIDDEN = (9, 0, 4, 1, 7, 9)


def wide(settings=WIDE_SETTINGS, **more):
    return task(30, settings, layers=WIDE, **more)


def test_each_generation_is_its_elites_and_children_of_theirs(tmp_path):
    fitness = Distance(HIDDEN)
    outcome = searched(tmp_path / "log", wide(), fitness)
    assert len(outcome.generations) == 1 + WIDE_SETTINGS.generations
    for before, after in zip(outcome.generations, outcome.generations[1:], strict=False):
        assert len(set(after)) == WIDE_SETTINGS.population
        by_fitness = sorted(before, key=lambda n: (-outcome.scores[n].fitness, n))
        elites = by_fitness[: WIDE_SETTINGS.elites]
        assert list(after[: len(elites)]) == elites
        for number in after[len(elites) :]:
            if outcome.candidates[number].generation == outcome.generations.index(after):
                assert outcome.candidates[number].parent in elites
    assert len(fitness.measured) == len(set(fitness.measured)) == 3 * len(outcome.scores)


def test_a_longer_search_finds_the_hidden_allocation(tmp_path):
    settings = changed(population=32, elites=4, generations=40)
    outcome = searched(tmp_path / "log", wide(settings), Distance(HIDDEN))
    assert outcome.best.removed == HIDDEN


def test_a_small_feasible_set_is_searched_in_full(tmp_path):
    outcome = searched(tmp_path / "log", task(5, constraints=Constraints(fixed={1: 5})))
    found = {candidate.removed for candidate in outcome.candidates}
    feasible = space(5, constraints=Constraints(fixed={1: 5}))
    assert found == set(listed(feasible))
    alone = searched(tmp_path / "one", task(0), Distance((0, 0, 0)))
    assert [candidate.removed for candidate in alone.candidates] == [(0, 0, 0)]
    assert alone.is_finished


def test_locked_layers_keep_what_the_schedule_gives_them():
    limits = Constraints(locked=frozenset({3}), multiple_of=2)
    units = expert_units(WIDE, limits)
    budget = count_budget(units, 30)
    late = allocate("late", units, budget)
    feasible = space_of(units, budget, late)
    locked = late.removed[1]
    assert {feasible.draw(np.random.default_rng(i))[1] for i in range(20)} == {locked}
    assert all(
        feasible.holds(removed) for removed in seeds_of(feasible, budget, "late", late).values()
    )


def test_stopped_and_resumed_is_uninterrupted(tmp_path):
    whole = searched(tmp_path / "whole", wide(), Distance(HIDDEN))
    published = []
    for stop in (1, 5, 14, 40):
        table = scores(tmp_path / "log", wide())
        running = search(wide(), Distance(HIDDEN), table, published.append)
        for _ in range(stop):
            next(running)
        running.close()
    best = [outcome.scores[outcome.best.number].fitness for outcome in published]
    assert best == sorted(best)
    resumed = searched(tmp_path / "log", wide(), Distance(HIDDEN))
    assert essence(resumed) == essence(whole)
    plans = [block.plan for block in blocks(tmp_path / "log")]
    assert len(plans) == len(set(plans)) == len(whole.scores)  # nothing was measured twice
    assert (resumed.layers, resumed.whole_layers) == (whole.layers, whole.whole_layers)


def test_a_comparison_costs_its_heads_and_what_it_sums(tmp_path):
    """Of two heads at 0.27 each and two measures at 0.23: one of each is half of it."""
    tiny_checkpoint(tmp_path / "model", model_type="olmoe")
    model = load_model_index(str(tmp_path / "model"))
    whole = logits_cost(model, 10)

    def share(*measures, **how):
        return RunCosts.of(model, 20, 10, measures, **how).head / whole

    assert share("esap", by_layers=False) == pytest.approx(0.5)
    assert share("esap", "kl", "nll", by_layers=False) == pytest.approx(0.27 + 2 * 0.23)
    assert share("esap", "kl", "nll", by_layers=True) == pytest.approx(1.0)
    assert share("nll", by_layers=False, keeps_original=False) == pytest.approx(0.54)
    # Of probabilities four times as large as what is kept a quarter of the original's heads.
    vocabulary = output_weights(model) // model.hidden_size
    positions = (8 << 30) // (4 * vocabulary)
    many = RunCosts.of(model, 20, positions, ["esap"], by_layers=False)
    expected = logits_cost(model, positions) * (0.27 * (2 - 0.25) + 0.23)
    assert many.head == pytest.approx(expected, rel=1e-6)


def test_a_candidate_costs_the_layers_that_run_and_scores_of_earlier_runs_are_done(tmp_path):
    # Six layers of which four have experts; a mean child by the formula: of two draws from 1 and 2
    # the smaller is 1 in three of four cases: 1 - 1/3 of the layers; else 1 - 1/5.
    costs = RunCosts(0.0, 0.0, (1.0, 2.0, 4.0, 8.0, 16.0, 32.0), (1, 3, 4, 5), 5.0)
    child = {"multiply": 63 * (0.75 * 2 / 3 + 0.2), "compare": 5}
    assert costs.child(2) == pytest.approx(child)
    tally = SearchTally(costs, 2)
    tally.begin([(1, 2, 3, 4), (1, 2, 4, 3), (2, 1, 3, 4)], [], are_children=False)
    # All layers; from the third with experts on; from the first one.
    waiting = [(63, 5), (16 + 32, 5), (63 - 1, 5)]
    total = {kind: sum(pair) for kind, pair in zip(child, zip(*waiting, strict=True), strict=True)}
    assert tally.whole(0, 0).total == total
    with_children = {kind: total[kind] + 7 * child[kind] for kind in child}
    assert tally.whole(7, 1).total == pytest.approx(with_children)
    tally.measured((1, 2, 3, 4), 6.0)
    tally.known(2.0)  # of an earlier run
    assert tally.whole(0, 0).done == {"multiply": 63 + 48, "compare": 10}
    assert tally.whole(0, 0).before == {"multiply": 48, "compare": 5}


def test_the_shown_share_of_a_search_never_falls_and_resumes_where_it_stood(tmp_path):
    costs = RunCosts(0.0, 0.0, (1.0,) * len(HIDDEN), tuple(range(len(HIDDEN))), 0.5)

    def wholes(stop=None):
        table = scores(tmp_path, wide())
        steps = search(wide(), Distance(HIDDEN), table, [].append, costs)
        seen, shown, pace = [], [], Pace()
        for step in islice(steps, stop):
            pace.take(step)
            seen.append(step.whole)
            shown.append(pace.fraction)
        steps.close()
        assert shown == sorted(shown)
        return seen, shown

    stopped, shown = wholes(20)
    assert shown[0] == 0
    assert not any(stopped[0].before.values())
    resumed, shown = wholes()
    # What is known of children gets better, so the stated share falls: `Pace` holds the shown one.
    stated = [whole.fraction for whole in resumed]
    assert stated != sorted(stated)
    assert shown[-1] == stated[-1] == pytest.approx(1)
    assert resumed[-1].before == pytest.approx(stopped[-1].done)


def test_a_block_is_a_candidate_on_all_samples_with_its_costs(tmp_path):
    outcome = searched(tmp_path)
    table = scores(tmp_path, task())
    by_plan = {block.plan: block for block in blocks(tmp_path)}
    assert len(by_plan) == len(outcome.candidates)
    for candidate in outcome.candidates:
        block, score = (
            by_plan[table.plan_of(candidate.removed).digest],
            outcome.scores[candidate.number],
        )
        assert block.is_whole and list(block.sums) == ["nll"]
        assert block.kept == tuple(
            layer.num_experts - gone for layer, gone in zip(LAYERS, candidate.removed, strict=True)
        )
        assert (-block.sums["nll"].means).tolist() == score.samples.tolist()
        assert block.made == {"layers": 12, "seconds": score.seconds, **MADE}


@pytest.mark.parametrize(
    ("more", "is_known"),
    [
        ({}, True),
        ({"seed": 8}, True),  # the loss draws nothing
        ({"made": {**MADE, "batch_size": 8}}, False),
        ({"made": {**MADE, "device": "cuda"}}, False),
        ({"dtype": "bfloat16"}, False),
        ({"samples": 12}, False),
        ({"measure": "kl"}, False),
        ({"measure": "ppl"}, True),  # is counted from the loss
    ],
)
def test_only_what_was_measured_alike_is_known(tmp_path, more, is_known):
    outcome = searched(tmp_path)
    table = scores(tmp_path, task(), **more)
    table.look_up([candidate.removed for candidate in outcome.candidates])
    assert len(table.known) == is_known * len(outcome.candidates)


def test_of_a_measure_that_draws_only_the_same_seed_is_known(tmp_path):
    class Shares(Distance):
        def block(self, removed, number):
            whole = super().block(removed, number)
            return BlockFitness(whole.sums / (whole.sums.max() + 1), whole.counts, whole.layers)

    outcome = searched(tmp_path, fitness=Shares(), measure="sap")
    for seed, is_known in ((SETTINGS.seed, True), (SETTINGS.seed + 1, False)):
        table = scores(tmp_path, task(), measure="sap", seed=seed)
        table.look_up([outcome.candidates[0].removed])
        assert bool(table.known) == is_known


# Without the number of layers it is of an evaluation, which may be rounded.
@pytest.mark.parametrize("costs", [{"layers": -1}, {"layers": "12"}, {"seconds": None}, {}])
def test_costs_that_cannot_be_are_not_taken(tmp_path, costs):
    outcome = searched(tmp_path / "a")
    table = scores(tmp_path / "b", task())
    for block in blocks(tmp_path / "a"):
        made = {**block.made, **costs} if costs else {**MADE, "seconds": 1.0}
        table.table.add([replace(block, made=made)])
    table.look_up([candidate.removed for candidate in outcome.candidates])
    assert table.known == {}


def test_a_fitness_that_is_no_number_is_refused(tmp_path):
    class Broken(Distance):
        def block(self, removed, number):
            return BlockFitness(np.array([np.nan]), np.ones(1, np.int64), 1)

    with pytest.raises(PlanError, match="no finite fitness"):
        searched(tmp_path / "log", fitness=Broken())


def test_parents_are_held_until_their_children_are_scored(tmp_path):
    class Watching(Distance):
        def block(self, removed, number):
            if self.parent_of.get(removed) is not None:
                assert self.parent_of[removed] in self.held
            return super().block(removed, number)

    first = searched(tmp_path / "a", wide(), Distance(HIDDEN))
    fitness = Watching(HIDDEN)
    numbers = {candidate.number: candidate.removed for candidate in first.candidates}
    fitness.parent_of = {
        candidate.removed: numbers.get(candidate.parent) for candidate in first.candidates
    }
    assert essence(searched(tmp_path / "b", wide(), fitness)) == essence(first)


def test_candidates_that_run_ahead_are_held_until_they_are_scored(tmp_path):
    class Watching(Distance):
        ahead = 3
        running = ()
        most = 0

        def begin(self, removed):
            self.running = (*self.running, removed)

        def block(self, removed, number):
            if number == 0:
                assert self.running[0] == removed  # in this order, others behind it
                self.running, self.most = self.running[1:], max(self.most, len(self.running))
            return super().block(removed, number)

        def hold(self, candidates):
            super().hold(candidates)
            assert {*self.running} <= {*self.held}

    first = searched(tmp_path / "a", wide(), Distance(HIDDEN))
    fitness = Watching(HIDDEN)
    assert essence(searched(tmp_path / "b", wide(), fitness)) == essence(first)
    assert fitness.most == 4  # the one that is measured, and three


def test_the_result_survives_its_file_and_gives_a_schedule(tmp_path):
    outcome = searched(tmp_path / "log")
    result = result_of(outcome, LAYERS, {"seed": SETTINGS.seed})
    (tmp_path / "search.json").write_text(result.to_json())
    loaded = load_search(tmp_path / "search.json")
    assert loaded.entries == result.entries
    assert (loaded.generations, loaded.best) == (result.generations, result.best)
    assert loaded.to_json() == result.to_json()
    kept = read_counts(tmp_path / "search.json", LAYERS)
    schedule = result.schedule()
    assert dict(zip(schedule["layer"], schedule["kept"], strict=True)) == kept
    assert schedule["removed"].sum() == 6
    history = loaded.history()
    assert history["generation"].value_counts().to_dict() == dict(
        enumerate(map(len, outcome.generations))
    )
    assert history["fitness"].max() == outcome.scores[outcome.best.number].fitness


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema_version": 1}', '{"schema_version": 9}', "[" * 100_000]
)
def test_a_file_that_is_no_result_is_refused(text):
    with pytest.raises(PlanError, match=r"search.json (is no result|has schema_version 9)"):
        result_from_json(text)


def test_a_seed_decides_everything(tmp_path):
    first, again = (searched(tmp_path / name, wide(), Distance(HIDDEN)) for name in ("a", "b"))
    other = searched(tmp_path / "c", wide(changed(seed=2)), Distance(HIDDEN))
    assert essence(first) == essence(again) != essence(other)


def test_the_population_starts_from_the_schedules():
    units = expert_units(WIDE)
    budget = sparsity_budget(units, "0.5")
    late = allocate("late", units, budget)
    feasible = space_of(units, budget, late)
    seeds = seeds_of(feasible, budget, "late", late)
    assert list(seeds) == ["uniform", "early", "middle", "late"]
    state = initial_state(feasible, WIDE_SETTINGS, seeds)
    assert [candidate.origin for candidate in state.candidates[:4]] == list(seeds)
    assert {candidate.origin for candidate in state.candidates[4:]} == {"random"}
    assert len({candidate.removed for candidate in state.candidates}) == WIDE_SETTINGS.population
    # floor(11 / 2) = 5 of each of six layers.
    assert state.candidates[0].removed == (5,) * 6


def test_seeds_that_a_population_leaves_out_are_named_once_each():
    units = expert_units(WIDE)
    budget = sparsity_budget(units, "0.5")
    late = allocate("late", units, budget)
    feasible = space_of(units, budget, late)
    seeds = seeds_of(feasible, budget, "late", late)
    seeds |= {
        "measured 1": seeds["early"],
        "measured 2": (11, *(5,) * 5),
        "measured 3": (6, 4, 5, 5, 5, 5),
    }
    small = changed(population=3)
    # The first is an allocation that has a name, the second removes too many.
    assert starts_without_room(feasible, small, seeds) == ["late", "measured 3"]
    state = initial_state(feasible, small, seeds)
    assert [candidate.origin for candidate in state.candidates] == ["uniform", "early", "middle"]
    assert starts_without_room(feasible, changed(population=5), seeds) == []


def test_seeds_start_from_the_nearest_even_allocation():
    # Layers of 11 keep a multiple of 3, so none can lose floor(11 / 2) = 5.
    limits = Constraints(multiple_of=3)
    units, budget = expert_units(WIDE, limits), sparsity_budget(expert_units(WIDE), "0.5")
    late = allocate("late", units, budget)
    feasible = space_of(units, budget, late)
    assert feasible.holds(seeds_of(feasible, budget, "late", late)["uniform"])
