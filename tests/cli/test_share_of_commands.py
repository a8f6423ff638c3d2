"""The share of a whole command, from its steps: it begins at nothing, never falls, and ends at all.

By the commands whose parts are stated by several modules.
"""

import json
import shutil
from itertools import pairwise

import pytest

from analysis.drain import drain
from analysis.errors import CorpusError
from analysis.model.opening import load_model_index
from analysis.pace import Pace
from analysis.progress import changed
from pruning.actions.listing import action
from pruning.plan.plan import fit_plan
from pruning.plan.plan_file import load_plan, plan_from_dict
from pruning.requests.evaluation import EvaluateRequest, SensitivityRequest
from pruning.requests.model import ExportRequest, WeightsRequest
from pruning.requests.recipe_steps import SearchRequest
from pruning.tasks.calibration import weights_run
from pruning.tasks.evaluation import evaluate_run
from pruning.tasks.export import export_run, verify_result
from pruning.tasks.repair import with_repairs
from pruning.tasks.search import remaining_costs, search_run
from pruning.tasks.sensitivity import sensitivity_run


def shares_of(task):
    """The share of the whole at each step, from the first that states it."""
    pace, shares = Pace(), []

    def take(step):
        pace.take(step)
        if shares or (step.whole and step.whole.total):
            shares.append(pace.fraction)

    drain(task, take)
    return shares


def check(shares, least=5):
    assert len(set(shares)) >= least
    assert shares == sorted(shares)
    assert shares[0] < 0.15  # a tiny model is hashed in few steps
    assert shares[-1] > 0.97  # as the headers of a tiny model's files are not read by loading


@pytest.fixture
def asked(tiny, corpora, stats, tmp_path):
    """Of evaluations on a corpus; nothing of them is known."""
    folder = tmp_path / "stats"
    unknown = shutil.ignore_patterns("evaluations", "measurements", "repairs", "sensitivity")
    shutil.copytree(stats, folder, ignore=unknown)
    return {"model": str(tiny), "corpora": (str(corpora[1]),), "stats_dir": folder, "samples": 4}


@pytest.fixture
def plan(works, tiny, corpora, stats, here):
    """Two plans, of which the second removes nothing."""
    words = ("--criterion", "reap", "--calibrated-on", corpora[0], "--stats-dir", stats)
    made = []
    for name, sparsity in (("half", "50%"), ("none", "0%")):
        works("plan", tiny, *words, "--sparsity", sparsity, "-o", f"{name}.json")
        made.append(here / f"{name}.json")
    return made


@pytest.fixture
def plans(plan, tiny):
    model = load_model_index(str(tiny))
    return tuple(load_plan(path, model=model).to_dict() for path in plan)


def test_evaluations_with_repairs(asked, plans, corpora, here):
    shutil.copy(corpora[0], here)  # where the plans' name of their corpus finds it
    words = {"plans": plans, "repair": True, "seq_len": 8}
    check(shares_of(evaluate_run(EvaluateRequest(**asked, **words))))


def test_an_evaluation_is_expected_on_its_samples_before_plans_are_repaired(
    asked, plans, corpora, here
):
    """Not on as many tokens as they may have, which here are many times those that there are."""
    shutil.copy(corpora[0], here)
    asked |= {"plans": plans[:1], "samples": 400, "seq_len": 512}
    steps = []
    drain(evaluate_run(EvaluateRequest(**asked, repair=True)), steps.append)
    wholes = [step.whole.total for step in steps if stated(step)]
    assert wholes[0]["compare"] == pytest.approx(wholes[-1]["compare"])
    assert len([step for step in steps if "of 400 samples" in step.note]) == 1


def test_a_corpus_that_cannot_be_evaluated_on_is_refused_before_plans_are_repaired(
    asked, plans, corpora, here
):
    shutil.copy(corpora[0], here)
    (here / "other.jsonl").write_text(json.dumps({"input_ids": [1, 2, 10**6]}) + "\n")
    asked |= {"corpora": (str(here / "other.jsonl"),), "plans": plans[:1]}
    with pytest.raises(CorpusError, match="1000000"):
        drain(evaluate_run(EvaluateRequest(**asked, repair=True)))
    assert not (asked["stats_dir"] / "repairs").exists()


def test_repairs_before_a_task_that_states_no_work(asked, plans, tiny, corpora, here):
    shutil.copy(corpora[0], here)
    model = load_model_index(str(tiny))
    ready = [fit_plan(plan_from_dict(plan), model) for plan in (plans[1], plans[0])]
    check(shares_of(with_repairs(EvaluateRequest(**asked, plans=plans), model, ready)))


@pytest.mark.parametrize("by_layers", [False, True])
def test_evaluations(asked, plans, by_layers):
    words = {"plans": plans, "stream_layers": by_layers, "seq_len": 8}
    check(shares_of(evaluate_run(EvaluateRequest(**asked, **words))))


def test_a_sensitivity_and_what_another_corpus_adds(asked, corpora, tmp_path):
    asked |= {"criterion": "reap", "calibrated_on": (str(corpora[0]),), "levels": 3}
    request = SensitivityRequest(**asked)
    check(shares_of(sensitivity_run(request)))
    both = {**asked, "corpora": tuple(map(str, reversed(corpora)))}
    check(shares_of(sensitivity_run(SensitivityRequest(**both))))


def test_a_sensitivity_whose_plans_are_repaired_and_evaluated(asked, corpora, here):
    shutil.copy(corpora[0], here)
    asked |= {"criterion": "reap", "calibrated_on": (str(corpora[0]),), "levels": 2}
    request = SensitivityRequest(**asked, sparsities=("50%",), repair=True, seq_len=8)
    check(shares_of(sensitivity_run(request)))


def test_weights_that_rank_are_measured_before_the_sensitivity(asked):
    asked["stats_dir"] = asked["stats_dir"].with_name("none")  # which has no weights
    shares = shares_of(sensitivity_run(SensitivityRequest(**asked, criterion="aimer", levels=3)))
    assert shares[0] == 0 and shares[-1] > 0.97
    assert all(later >= 0.9 * before for before, later in pairwise(shares))


def test_refined_plans_on_two_corpora(asked, corpora):
    asked |= {"criterion": "reap", "calibrated_on": (str(corpora[0]),), "levels": 2}
    both = {**asked, "corpora": tuple(map(str, corpora)), "refine": 1}
    steps = []
    drain(sensitivity_run(SensitivityRequest(**both, sparsities=("25%", "50%"))), steps.append)
    wholes = [step.whole for step in steps if step.whole and step.whole.total]
    totals = [sum(whole.total.values()) for whole in wholes]
    # Two windows at most, of three, promise another plan.
    assert max(totals) <= 1.3 * min(totals)
    assert wholes[-1].fraction == pytest.approx(1)
    # Without a share of the time before the work is known.
    assert not any(step.total for step in steps[: steps.index(next(filter(stated, steps)))])


def stated(step):
    return step.whole and step.whole.total


@pytest.mark.parametrize("name", ["bins", "variance"])
def test_actions_that_run_several_models(asked, plans, name):
    more = {"criterion": "aimer", "bins": 4} if name == "bins" else {"plans": plans}
    row = action(name)
    check(shares_of(row.run(row.request(**asked, **more))), 4)


RECIPE = """
model: {model}
criterion: aimer
budget: {{sparsity: 50%}}
sensitivity: {{corpus: {corpus}, samples: 2, levels: 2, refine: 1}}
search: {{corpus: {corpus}, samples: 2, population: 6, elites: 1, generations: 2, start: measured}}
"""


@pytest.mark.slow  # a whole search
def test_a_search_that_measures_weights_and_sensitivity(tiny, corpora, tmp_path):
    recipe, where = RECIPE.format(model=tiny, corpus=corpora[1]), tmp_path / "stats"
    phases = []
    steps = search_run(SearchRequest(recipe=recipe, out=tmp_path / "search", stats_dir=where))
    check(shares_of(changed(steps, lambda step: phases.append(step.phase) or step)))
    assert {"reading weights", "measuring sensitivity", "searching"} <= set(phases)


def test_a_search_is_expected_to_take_what_no_earlier_run_measured(tiny, corpora, tmp_path):
    without = "\n".join(line for line in RECIPE.splitlines() if "sensitivity" not in line)
    recipe = without.replace("measured", "schedules").format(model=tiny, corpus=corpora[1])
    where = {"stats_dir": tmp_path / "stats"}
    request = SearchRequest(recipe=recipe, out=tmp_path / "search", **where)

    def left():
        before = sorted(tmp_path.rglob("*"))
        whole = drain(remaining_costs(request))
        assert sorted(tmp_path.rglob("*")) == before
        return whole.left

    first = left()
    drain(weights_run(WeightsRequest(model=str(tiny), **where)))
    ranked = left()
    assert first["sum"] and not ranked.get("sum")
    assert 0 < ranked["multiply"] < first["multiply"]  # samples are shorter than expected
    running = search_run(request)
    next(step for step in running if step.at.startswith("generation 1"))
    running.close()
    assert 0 < left()["multiply"] < ranked["multiply"]
    drain(search_run(request))
    assert not any(left().values())


def test_an_export_that_is_verified_and_verify_by_layers(tiny, plans, stats, tmp_path):
    out = tmp_path / "out"
    request = ExportRequest(
        model=str(tiny), plan=plans[0], out=out, verify=True, stats_dir=stats, hash_source=True
    )
    check(shares_of(export_run(request)))
    check(shares_of(verify_result(out, load_model_index(str(tiny)), stats, stream_layers=True)))
