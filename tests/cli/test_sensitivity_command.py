"""sensitivity MODEL, and the plans by the schedule measured that follow from it."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from analysis.corpora.spec import corpus_name
from analysis.drain import drain
from analysis.model.opening import load_model_index
from pruning.measurements.table import Measurements
from pruning.measures.curves import curves_of
from pruning.plan.plan import keep_all
from pruning.plan.plan_file import load_plan
from pruning.plan.sizes import weight_bytes
from pruning.planning.measured_bits import bits_costs
from pruning.records.sensitivity import SensitivityStore
from pruning.requests.evaluation import EvaluateRequest
from pruning.search.store import load_search
from pruning.tasks.evaluation import evaluate_run

NEURONS = ("--granularity", "neuron", "--criterion", "neuron-norms")


@pytest.fixture
def measure(works, tiny, corpora, stats):
    def run(*words, on=(0,)):
        where = [word for number in on for word in ("--corpus", corpora[number])]
        return works("sensitivity", tiny, *where, "--stats-dir", stats, "--samples", "5", *words)

    return run


@pytest.fixture
def plan(works, tiny, stats, here):
    def run(*words):
        words = ("--schedule", "measured", "--stats-dir", stats, *words)
        works("plan", tiny, *words, "-o", "plan.json", "--force")
        return load_plan(here / "plan.json", model=load_model_index(str(tiny)))

    return run


def counts(made):
    return {layer: len(ids) for layer, ids in made.kept.items()}


def without_measurements(stats, folder):
    """A copy of statistics with what was measured left out."""
    left_out = shutil.ignore_patterns("sensitivity", "measurements")
    shutil.copytree(stats, folder, ignore=left_out)
    return folder


def esap(tiny, corpus, made, stats, folder):
    """By an evaluation that knows nothing of the curves."""
    asked = {"model": str(tiny), "corpora": (str(corpus),), "plans": (made.to_dict(),)}
    own_stats = without_measurements(stats, folder)
    request = EvaluateRequest(**asked, samples=5, measures="esap", stats_dir=own_stats)
    return drain(evaluate_run(request))[0].metrics["esap"].mean


@pytest.mark.parametrize("how", [(), ("--stream-layers",)], ids=["whole", "streamed"])
def test_a_layer_in_fewer_bits_costs_what_an_evaluation_says(
    how, works, tiny, corpora, stats, tmp_path
):
    own = without_measurements(stats, tmp_path / "own")
    bits, words = ("4", "2"), ("--criterion", "random", "--levels", "2", "--cost", "nll")
    where = ("--corpus", corpora[0], "--samples", "5", "--stats-dir", own)
    said = works("sensitivity", tiny, *where, *words, *how, "--bits", "4", "--bits", "2")
    model = load_model_index(str(tiny))
    original = keep_all(model)
    plans = [original]
    plans += [
        replace(original, layer_bits={layer.index: name}) for layer in model.layers for name in bits
    ]
    asked = {"model": str(tiny), "corpora": (str(corpora[0]),), "samples": 5, "measures": "nll"}
    raw = tuple(plan.to_dict() for plan in plans)
    other = without_measurements(stats, tmp_path / "other")
    evaluated = drain(evaluate_run(EvaluateRequest(**asked, plans=raw, stats_dir=other)))
    full, *losses = (record.metrics["nll"].mean for record in evaluated)
    (costs,) = bits_costs(model, SensitivityStore([own]), "nll").values()
    measured = [costs[place][name] for place in range(len(model.layers)) for name in bits]
    assert measured == pytest.approx([loss - full for loss in losses], abs=1e-9)
    assert len({*measured}) == 2 * len(model.layers)
    assert all(by_format["16"] == 0 for by_format in costs)
    table = said.split("if one layer alone has fewer bits")[1]
    assert f"{losses[0] - full:.4f}" in table
    # What evaluations read of these plans from the same table keeps all experts.
    again = drain(evaluate_run(EvaluateRequest(**asked, plans=raw, stats_dir=own)))
    assert [record.metrics["nll"].mean for record in again] == [full, *losses]
    assert not any(record.plan.removed for record in again)


def test_the_measured_plan_has_the_best_of_what_was_measured(
    measure, plan, tiny, corpora, stats, tmp_path
):
    said = measure("--criterion", "random", "--sparsity", "50%", "--refine", "3")
    assert "50%, first plan: predicted ESAP" in said
    made = plan("--criterion", "random", "--sparsity", "50%")
    assert sum(counts(made).values()) == 9
    parameters = made.provenance.schedule_parameters
    assert made.provenance.schedule == "measured"
    assert parameters["corpora"] == [corpus_name(str(corpora[0]))]
    assert (parameters["cost"], parameters["samples"]) == ("esap", [5])
    (record,) = SensitivityStore([stats]).records()
    assert {file.suffix for file in stats.rglob("sensitivity/*")} == {".json"}
    assert parameters["sensitivity"] == [record.record_id]
    points = SensitivityStore([stats]).points(record)
    curves = curves_of(points, 3, "esap")
    whole = {removed: cost for removed, cost in curves.measured.items() if sum(removed) == 9}
    removed = tuple(6 - kept for kept in counts(made).values())
    assert whole[removed] == min(whole.values())
    # What was measured is what evaluate says of the plan.
    measured = esap(tiny, corpora[0], made, stats, tmp_path / "apart")
    assert np.exp(-whole[removed]) == pytest.approx(measured, abs=1e-12)


def test_one_measurement_serves_every_budget_and_constraint(measure, plan, tiny, corpora, stats):
    measure("--criterion", "random", "--levels", "6")
    for sparsity, total in (("0%", 18), ("34%", 12), ("60%", 9)):
        made = plan("--criterion", "random", "--sparsity", sparsity)
        assert sum(counts(made).values()) == total
    made = plan("--criterion", "random", "--remove", "8", "--multiple-of", "2", "--protect", "2")
    assert counts(made)[2] == 6
    assert sorted(counts(made).values()) in ([2, 2, 6], [2, 4, 6])
    free = counts(plan("--criterion", "random", "--remove", "6"))
    held = ("--lock", "0", "--set", f"3={free[3]}")
    assert counts(plan("--criterion", "random", "--remove", "6", *held)) == free
    size = plan("--criterion", "random", "--target-size", "0.00006")
    assert sum(counts(size).values()) < 18


def test_pinned_and_dropped_experts_are_another_order(measure, plan, moeprune, tiny, stats):
    measure("--criterion", "random")
    named = ("--pin", "0:1,2", "--drop", "2:3")
    asked = ("--criterion", "random", "--sparsity", "50%", "--schedule", "measured", *named)
    refused = moeprune("plan", tiny, *asked, "--stats-dir", stats)
    assert refused.code == 1
    assert "moeprune sensitivity" in refused.err
    assert "--pin 0:1-2 --drop 2:3" in refused.err
    measure("--criterion", "random", *named)
    made = plan("--criterion", "random", "--sparsity", "50%", *named)
    assert {1, 2} <= set(made.kept[0])
    assert 3 not in made.kept[2]


def test_neurons_lose_by_layer_what_their_curves_say(measure, plan, tiny, corpora, stats, tmp_path):
    measure(*NEURONS, "--levels", "4", "--sparsity", "50%", "--refine", "1")
    made = plan(*NEURONS, "--sparsity", "50%")
    model = load_model_index(str(tiny))
    neurons = 18 * 24
    kept = sum(
        len(made.kept_neurons.get(layer.index, {}).get(expert, range(24)))
        for layer in model.layers
        for expert in range(6)
    )
    assert kept == neurons // 2
    assert made.provenance.schedule == "measured"
    (record,) = [
        record
        for record in SensitivityStore([stats]).records()
        if record.order["granularity"] == "neuron"
    ]
    curves = curves_of(SensitivityStore([stats]).points(record), 3, "esap")
    best = min(cost for removed, cost in curves.measured.items() if sum(removed) == neurons // 2)
    measured = esap(tiny, corpora[0], made, stats, tmp_path / "apart")
    assert np.exp(-best) == pytest.approx(measured, abs=1e-12)


def test_several_corpora_are_spared_in_the_mean_or_the_worst(measure, plan, corpora):
    measure("--criterion", "random", on=(0, 1))
    both = ("--measured-on", corpora[0], "--measured-on", corpora[1])
    for across in ("mean", "worst"):
        asked = ("--criterion", "random", "--sparsity", "50%", "--across", across)
        made = plan(*asked, *both)
        assert made.digest == plan(*asked).digest  # all that were measured, by default
        assert made.provenance.schedule_parameters["across"] == across
        assert made.provenance.schedule_parameters["corpora"] == [
            corpus_name(str(corpus)) for corpus in corpora
        ]


@pytest.mark.parametrize(("across", "over"), [("mean", np.mean), ("worst", max)])
def test_bytes_and_several_corpora_are_refined_as_one_plan(
    measure, plan, tiny, stats, across, over
):
    asked = ("--criterion", "random", "--shrink", "20%", "--multiple-of", "2")
    both = ("--cost", "nll", "--across", across)
    said = measure(*asked, *both, "--refine", "2", on=(0, 1))
    assert "--shrink 20%, first plan: predicted" in said and f", {across} of 2 corpora" in said
    (line,) = (line for line in said.splitlines() if line.startswith("next: "))
    assert "--multiple-of 2" in line and "--cost nll" in line and line.endswith("--shrink 20%")
    made = plan(*asked, *both)
    removed = tuple(6 - kept for kept in counts(made).values())
    # 0.8 of the bytes, in steps of two experts, and the best that was measured on both corpora.
    model, store = load_model_index(str(tiny)), SensitivityStore([stats])
    assert weight_bytes(model, made) <= 0.8 * model.checkpoint.nbytes
    named = made.provenance.schedule_parameters["sensitivity"]
    points = [store.points(record) for record in store.records() if record.record_id in named]
    costs = [curves_of(point, 3, "nll").measured for point in points]
    assert len(costs) == 2
    known = {
        counts: over([by_counts[counts] for by_counts in costs])
        for counts in costs[0].keys() & costs[1].keys()
        if sum(counts) == sum(removed) and not any(number % 2 for number in counts)
    }
    assert known[removed] == min(known.values())


def test_a_sweep_takes_the_schedule(works, measure, tiny, corpora, stats, here):
    measure("--criterion", "random")
    words = ("--criterion", "random", "--sparsity", "50%", "--schedule", "measured")
    where = ("--corpus", corpora[1], "--stats-dir", stats, "--samples", "3", "--measure", "esap")
    works("sweep", tiny, *words, *where, "-o", "sweep.csv")
    assert "measured" in (here / "sweep.csv").read_text()


@pytest.fixture
def recipe(recipe, corpora):
    return partial(recipe, sensitivity={"corpus": str(corpora[1]), "samples": 5, "refine": 1})


def test_a_recipe_measures_before_it_plans(recipe, works, here, corpora):
    said = works("prune", recipe(schedule="measured"), "--stats-dir", "stats")
    assert f"sensitivity {corpus_name(str(corpora[1]))}: sensitivity-frequency-blue" in said
    made = load_plan(here / "r.plan.json")
    assert made.provenance.schedule == "measured"
    assert made.provenance.schedule_parameters["corpora"] == [corpus_name(str(corpora[1]))]
    assert "is the same, skipped" in works("prune", here / "r.yaml", "--stats-dir", "stats")


def test_a_recipe_refines_one_plan_for_all_its_corpora(recipe, works, here, corpora):
    own = {"corpus": [str(corpus) for corpus in corpora], "samples": 5, "refine": 1}
    worst = {"name": "measured", "across": "worst"}
    path = recipe(schedule=worst, budget={"shrink": "20%"}, sensitivity=own)
    works("prune", path, "--stats-dir", "stats")
    made = load_plan(here / "r.plan.json").provenance.schedule_parameters
    assert (made["corpora"], made["across"]) == (
        [corpus_name(str(corpus)) for corpus in corpora],
        "worst",
    )
    store, total = SensitivityStore([here / "stats"]), 0
    for record in store.records():
        measured = curves_of(store.points(record), 3, "esap").measured
        total += any(sum(removed) for removed in measured)
    assert total == 2  # the plan itself was measured on both


def test_a_search_can_begin_with_what_was_measured(recipe, works, here, corpora):
    asked = {"corpus": str(corpora[1]), "samples": 5, "population": 6, "elites": 2}
    path = recipe(search={**asked, "generations": 2, "start": "measured"})
    works("search", path, "--stats-dir", "stats", "--batch-size", "2")
    result = load_search(here / "r.search" / "search.json")
    assert result.header["settings"]["start"] == "measured"
    origins = [entry.origin for entry in result.entries if entry.generation == 0]
    assert "uniform" in origins
    assert "measured 1" in origins
    started = next(entry for entry in result.entries if entry.origin == "measured 1")
    assert result.best_entry.fitness >= started.fitness
    # Interrupted or not, it begins as it did: what is measured since changes no search.
    file = here / "r.search" / "search.json"
    before, shards = file.read_bytes(), Measurements([here / "stats"]).shards
    file.unlink()
    works("search", path, "--stats-dir", "stats", "--batch-size", "2")
    assert file.read_bytes() == before
    assert Measurements([here / "stats"]).shards == shards


def test_streamed_layers_measure_the_same_and_leave_nothing_else(measure, stats, here):
    words = ("--criterion", "random", "--sparsity", "50%", "--refine", "1", "--dtype", "float32")
    whole, streamed = (without_measurements(stats, here / name) for name in ("whole", "streamed"))
    states = here / "states"
    stream = ("--stream-layers", "--hidden-states-dir", states)
    said = measure(*words, "--stats-dir", whole, on=(0, 1))
    again = measure(*words, "--stats-dir", streamed, *stream, on=(0, 1))
    again = again.replace(str(streamed), str(whole))
    assert [line for line in said.splitlines() if "50%" in line] == [
        line for line in again.splitlines() if "50%" in line
    ]
    stores = [SensitivityStore([folder]) for folder in (whole, streamed)]
    pairs = list(zip(*(store.records() for store in stores), strict=True))
    for one, other in pairs:
        assert other.model_copy(update={"made": one.made}) == one
        points = [store.points(one) for store in stores]
        for point in one.plans:
            values = [curve.values(point.removed, curve.samples()) for curve in points]
            np.testing.assert_array_equal(*values)
    assert len(pairs) == 2
    assert not list(streamed.rglob("*.partial*")) and not list(states.iterdir())
