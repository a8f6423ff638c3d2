"""run RECIPE: the steps of single commands, resumed, and proved."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from analysis.drain import drain
from analysis.model.opening import load_model_index
from analysis.stats.rates import keep_rates, known_rates
from analysis.stats.store import stats_store
from builders import tiny_checkpoint
from pruning.plan.plan_file import load_plan
from pruning.planning.files import check_spec
from pruning.requests.machine import Machine
from pruning.requests.recipe_file import load_recipe
from pruning.requests.recipe_steps import calibrate_requests, spec_request
from pruning.study import Study
from pruning.tasks.calibration import calibrate_run

FORMATS = Path(__file__).parents[2] / "docs" / "reference" / "files.md"


@pytest.fixture
def recipe(recipe):
    return partial(recipe, criterion="man", export={"out": "pruned", "verify": False})


def test_run_is_calibrate_plan_and_export(recipe, works, tiny, corpora, here):
    path = recipe()
    output = works("prune", path, "--stats-dir", "stats")
    assert "skipped" not in output
    works(
        *("plan", tiny, "--criterion", "man", f"--calibrated-on={corpora[0]}", "--sparsity", "50%"),
        *("--stats-dir", "stats", "-o", "by-hand.json"),
    )
    assert (here / "r.plan.json").read_bytes() == (here / "by-hand.json").read_bytes()
    works("export", tiny, "by-hand", "--plan", "by-hand.json")
    for file in (here / "by-hand").glob("*.safetensors"):
        assert (here / "pruned" / file.name).read_bytes() == file.read_bytes()
    assert (here / "pruned" / "recipe.yaml").read_bytes() == path.read_bytes()
    manifest = json.loads((here / "pruned" / "moeprune_manifest.json").read_text())
    assert manifest["files"]["recipe.yaml"]["bytes"] == path.stat().st_size


def test_a_machine_of_which_nothing_is_known_is_probed_before_long_work(recipe, works):
    works("prune", recipe(export=None), "--stats-dir", "stats")  # a second of it would be too much
    assert known_rates() == {}
    keep_rates({"sum": 9e5})  # all that this does not do
    works("prune", recipe(export=None), "--stats-dir", "stats")
    assert known_rates().keys() > {"sum", "multiply", "read"}


@pytest.mark.parametrize(
    ("option", "value"),
    [("keep_list", True), ("hash_source", True), ("max_shard_size", "20KB"), ("pad", True)],
)
def test_other_options_do_not_pass_for_finished(recipe, works, moeprune, here, option, value):
    works("prune", recipe(), "--stats-dir", "stats")
    changed = recipe(export={"out": "pruned", option: value})
    outcome = moeprune("prune", changed, "--stats-dir", "stats")
    if option == "pad":  # equal counts have nothing to fill up
        assert "pruned is finished, skipped" in outcome.out
        return
    assert outcome.code == 1
    assert f"pruned holds an export of this plan with another {option}" in outcome.err


def test_a_share_of_the_bytes_is_that_of_plan(recipe, works, tiny, corpora, here):
    asked = {"budget": {"shrink": "20%", "uneven": True}, "constraints": {"multiple_of": 2}}
    works("prune", recipe(**asked, export=None), "--stats-dir", "stats")
    works(
        *("plan", tiny, "--criterion", "man", f"--calibrated-on={corpora[0]}", "--shrink", "20%"),
        *("--uneven", "--multiple-of", "2", "--stats-dir", "stats", "-o", "by-hand.json"),
    )
    assert (here / "r.plan.json").read_bytes() == (here / "by-hand.json").read_bytes()


def test_the_recipe_of_init_plans_as_the_command_does(works, moeprune, here):
    printed = works("recipe", "init", "demo", "-o", "demo.yaml")
    assert printed.endswith("next: moeprune prune demo.yaml\n")
    recipe = load_recipe(here / "demo.yaml")
    store, model = stats_store(None), load_model_index("demo")
    request = spec_request(recipe, Machine())
    made, _ = drain(Study.of(request, model, store).make(request.plan))
    texts = [f"--calibrated-on={text}" for text in ("demo-code", "demo-stories", "demo-math")]
    works("plan", "demo", "--criterion", "reap", *texts, "--shrink", "40%")
    assert made.digest == load_plan(here / "plan.json").digest
    # What it calibrates is what ships.
    asked = calibrate_requests(recipe, Machine())
    assert [request.corpus for request in asked] == ["demo-code", "demo-stories", "demo-math"]
    for request in asked:
        assert "is in the cache" in drain_notes(calibrate_run(request))
    assert (recipe.evaluate is not None, recipe.export.verify) == (True, True)
    assert "15 experts in each layer" in (here / "demo.yaml").read_text()
    again = moeprune("recipe", "init", "demo", "-o", "demo.yaml")
    assert (again.code, "demo.yaml is there already" in again.err) == (1, True)


def drain_notes(task):
    """The notes of a task that is run to its end."""
    return " ".join(step.note for step in task if step.note)


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3", "gpt_oss"])
def test_the_recipe_of_init_is_one_for_other_layouts(works, tmp_path_factory, here, family):
    path = tiny_checkpoint(tmp_path_factory.mktemp(family), family).path
    works("recipe", "init", path)
    recipe = load_recipe(here / "recipe.yaml")
    model = load_model_index(recipe.model)
    check_spec(recipe.plan, model)


@pytest.mark.slow
def test_the_recipe_of_init_runs_as_it_is(works, here):
    works("recipe", "init", "demo")
    assert "PASS: demo-pruned, all 11 checks" in works("prune", "recipe.yaml")


def test_what_is_finished_is_not_done_again(recipe, works, here):
    works("prune", recipe(), "--stats-dir", "stats")
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*") if path.is_file()}
    output = works("prune", here / "r.yaml", "--stats-dir", "stats")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "is in the cache, skipped" in output
    assert "r.plan.json is the same, skipped" in output
    assert "pruned is finished, skipped" in output
    # Only what is missing is made again.
    (here / "r.plan.json").unlink()
    output = works("prune", here / "r.yaml", "--stats-dir", "stats")
    assert "r.plan.json: keeps 9 of 18" in output
    assert "pruned is finished, skipped" in output


def test_another_plan_does_not_pass_for_finished(recipe, works, moeprune, here):
    works("prune", recipe(), "--stats-dir", "stats")
    before = (here / "r.plan.json").read_bytes()
    outcome = moeprune("prune", recipe(budget={"sparsity": "34%"}), "--stats-dir", "stats")
    assert outcome.code == 1
    assert "pruned holds an export of another plan" in outcome.err
    assert (here / "r.plan.json").read_bytes() == before
    (here / "kept").mkdir()
    (here / "kept" / "mine").write_text("precious")
    outcome = moeprune("prune", recipe(export="kept"), "--stats-dir", "stats")
    assert "not empty" in outcome.err


def test_weights_and_frequency_read_what_they_need(recipe, works, here):
    path = recipe(criterion="aimer", schedule="frequency", export=None)
    output = works("prune", path, "--stats-dir", "stats")
    assert "weights: tiny-weights" in output
    assert "calibrate" in output
    assert "export: the recipe asks for none" in output
    plan = json.loads((here / "r.plan.json").read_text())
    assert (plan["criterion"], plan["schedule"], len(plan["runs"])) == ("aimer", "frequency", 2)
    output = works(
        "prune", recipe(criterion="aimer", corpora=None, export=None), "--stats-dir", "s"
    )
    assert "calibrate: nothing in the recipe reads a corpus, skipped" in output


def manifests(here):
    return [json.loads(path.read_text()) for path in (here / "stats").glob("*/manifest.json")]


def test_a_criterion_calibrates_with_the_group_that_it_reads(recipe, works, here):
    works("prune", recipe(criterion="damage", export=None), "--stats-dir", "stats")
    (made,) = manifests(here)
    assert made["groups"] == ["routed", "damage"]
    assert json.loads((here / "r.plan.json").read_text())["criterion"] == "damage"


def test_the_calibration_is_what_the_recipe_says(recipe, works, tiny, corpora, here):
    own = {"packing": "pad", "truncate": "tail", "groups": ["router"], "batch_size": 3}
    works("prune", recipe(calibrate=own, export=None), "--stats-dir", "stats")
    (made,) = manifests(here)
    assert made["groups"] == ["routed", "router"]
    assert made["made"]["batch_size"] == 3
    assert (made["corpora"][0]["prepared"]["packing"], made["settings"]["seq_len"]) == ("pad", 16)
    # The single command finds it in the cache.
    said = works(
        *("calibrate", tiny, f"--corpus={corpora[0]}", "--tokens", "64", "--seq-len", "16"),
        *("--packing", "pad", "--truncate", "tail", "--stats-dir", "stats"),
    )
    assert made["run_id"] in said
    assert len(manifests(here)) == 1
    # The command line goes before the recipe.
    works(
        "prune", recipe(calibrate=own, export=None, seed=3), "--stats-dir", "s2", "--batch-size", 2
    )
    assert (
        json.loads(next((here / "s2").glob("*/manifest.json")).read_text())["made"]["batch_size"]
        == 2
    )


NEURONS = {"granularity": "neuron", "criterion": "neuron-norms", "corpora": None}


def test_neurons_by_their_weights(recipe, works, tiny, here):
    changes = {
        **NEURONS,
        "neuron_scope": "global",
        "width_mode": "ragged",
        "constraints": {"floor": 2, "pin": {2: [1]}, "multiple_of": 2},
        "export": {"out": "pruned"},
    }
    output = works("prune", recipe(**changes), "--stats-dir", "stats")
    assert "r.plan.json: keeps 216 of 432 neurons" in output
    assert "level logits" in output
    works(
        *("plan", tiny, "--granularity", "neuron", "--criterion", "neuron-norms"),
        *("--sparsity", "50%", "--neuron-scope", "global", "--floor", "2", "--pin", "2:1"),
        *("--multiple-of", "2", "--width-mode", "ragged", "-o", "by-hand.json"),
    )
    assert (here / "r.plan.json").read_bytes() == (here / "by-hand.json").read_bytes()
    manifest = json.loads((here / "pruned" / "moeprune_manifest.json").read_text())
    assert manifest["widths"]["mode"] == "ragged"
    assert "recipe.yaml" in manifest["files"]
    again = works("prune", here / "r.yaml", "--stats-dir", "stats")
    assert "r.plan.json is the same, skipped" in again
    assert "pruned is finished, skipped" in again


def test_neurons_of_a_file_and_of_a_target_size(recipe, works, here):
    works("prune", recipe(**NEURONS, budget={"target_size": "0.00008"}, export=None))
    plan = json.loads((here / "r.plan.json").read_text())
    assert plan["budget"]["kind"] == "size"
    (here / "neurons.json").write_text(json.dumps({"kept_neurons": plan["kept_neurons"]}))
    output = works(
        "prune", recipe(**NEURONS, kept_neurons="neurons.json", budget=None, export=None)
    )
    assert "calibrate: nothing in the recipe reads a corpus, skipped" in output
    again = json.loads((here / "r.plan.json").read_text())
    assert again["kept_neurons"] == plan["kept_neurons"]
    assert again["schedule"] == "file"
    works("prune", recipe(**NEURONS, budget={"params_share": 0.2}, export=None))
    plan = json.loads((here / "r.plan.json").read_text())
    assert plan["budget"].items() >= {"kind": "params", "asked": "0.2"}.items()


def test_a_plan_is_evaluated_as_by_the_command(recipe, works, tiny, corpora, here):
    asked = {"corpus": str(corpora[1]), "fitness": ["esap", "kl"], "samples": 3, "seq_len": 16}
    output = works("prune", recipe(evaluate=asked, export=None), "--stats-dir", "stats")
    assert "evaluate: " in output
    found = json.loads((here / "r.result.json").read_text())
    works(
        *("evaluate", tiny, "--plan", "r.plan.json", f"--corpus={corpora[1]}", "--samples", "3"),
        *("--measure", "esap", "--measure", "kl", "--seq-len", "16"),
        *("--stats-dir", "stats", "-o", "x.json"),
    )
    assert found["metrics"] == json.loads((here / "x.json").read_text())["metrics"]
    assert set(found["metrics"]) == {"esap", "kl"}


def test_the_documented_recipe_runs(works, tiny, corpora, here):
    (example,) = re.findall(r"```yaml\n(.*?)```", FORMATS.read_text(), flags=re.S)
    for old, new in (("model: demo ", f"model: {tiny} "), ("demo-math", str(corpora[0]))):
        assert old in example
        example = example.replace(old, new)
    (here / "example.yaml").write_text(example)
    output = works("prune", "example.yaml", "--stats-dir", "stats")
    assert "level logits" in output
    pruned = load_model_index(str(here / "pruned-demo"))
    assert {layer.num_experts for layer in pruned.layers} == {4}
    plan = json.loads((here / "example.plan.json").read_text())
    assert {0, 5} <= set(plan["kept"]["2"])


def test_neurons_by_a_calibration(recipe, works, tiny, corpora, here):
    mixed = [str(corpora[0]), {"corpus": str(corpora[1]), "weight": 3}]
    changes = {**NEURONS, "criterion": "heapr", "corpora": mixed, "export": None}
    works("prune", recipe(**changes), "--stats-dir", "stats")
    assert {tuple(made["groups"]) for made in manifests(here)} == {("routed", "gradient")}
    works(
        *("plan", tiny, "--granularity", "neuron", "--criterion", "heapr", "--sparsity", "50%"),
        *(f"--calibrated-on={corpora[0]}", f"--calibrated-on={corpora[1]}:3"),
        *("--stats-dir", "stats", "-o", "by-hand.json"),
    )
    plan = json.loads((here / "r.plan.json").read_text())
    assert plan == json.loads((here / "by-hand.json").read_text())
    assert len(plan["runs"]) == 2
