"""Recipes: every problem at once, the round trip, and what the digest covers."""

import re

import pytest

from analysis.errors import PlanError
from analysis.model.opening import load_model_index
from pruning.plan.plan import keep_all
from pruning.planning.count_plan import count_plan
from pruning.planning.recipes import recipe_template
from pruning.requests.calibration import CalibrateOptions, CalibrateRequest
from pruning.requests.evaluation import EvaluateRequest, SensitivityRequest
from pruning.requests.machine import Machine
from pruning.requests.model import ExportRequest
from pruning.requests.recipe import (
    EvaluateSection,
    ExportSection,
    Recipe,
    RepairSection,
    SensitivitySection,
)
from pruning.requests.recipe_file import load_recipe, recipe_from_yaml, save_recipe
from pruning.requests.recipe_steps import evaluate_request, repair_request, sensitivity_request
from pruning.requests.repair import RepairRequest
from pruning.spec.base import flat_fields, option_of
from pruning.spec.spec import spec_of

GOOD = """\
model: demo
corpora: [demo-math, "demo-code:2"]
criterion: reap
budget: {sparsity: 0.55}
schedule: late
limits:
  protect: [0]
  pin: {3: [5, 7]}
  set: {4: 20}
export: out
"""
# The same as a program writes it, and by the names that sections had before.
SECTIONS = """\
model: demo
ranking: {corpora: [demo-math, {corpus: demo-code, weight: 2}], criterion: reap}
budget: {sparsity: 0.55}
spread: {schedule: late}
limits: {protect: "0", pin: ["3:5,7"], set: ["4=20"]}
export: {out: out}
"""
EARLIER = GOOD.replace("limits:", "constraints:").replace(
    "schedule: late", "schedule: {name: late}"
)
BAD = """\
modle: demo
corpora: [demo-math, {corpus: demo-mth, wieght: 2}, "demo-stories:x"]
tokens: "many"
criterion: raep
gate: applid
budget: {sparsity: 150%, remove: -1}
spread: {schedule: glob, schedule_fil: x}
limits:
  protect: [a]
  pin: {3: [1, b]}
search: {samples: 0}
export: one
export: two
"""


def problems(text):
    with pytest.raises(PlanError) as caught:
        recipe_from_yaml(text)
    first, *rest = str(caught.value).splitlines()
    # One problem is said at once; several, below.
    return first, [line.strip() for line in rest] or [first.removeprefix("The recipe recipe, ")]


def test_every_problem_is_reported_at_once_with_its_place():
    first, found = problems(BAD)
    assert first == "The recipe recipe has 15 problems:"
    places = [line.split(": ")[1] for line in found]
    assert places == [
        "modle",
        "corpora.1", "corpora.2",
        "tokens", "criterion", "gate",
        "budget.sparsity", "budget.remove",
        "spread.schedule_fil", "spread.schedule",
        "limits.protect", "limits.pin.3",
        "search.corpus", "search.samples",
        "export",
    ]  # fmt: skip
    lines = [int(line.split(":")[0].removeprefix("line ")) for line in found]
    assert lines == [1, 2, 2, 3, 4, 5, 6, 6, 7, 7, 9, 10, 11, 11, 13]
    text = "\n".join(found)
    for hint in ("model", "reap", "global", "schedule_file"):
        assert f"id you mean '{hint}'" in text
    assert "export: is there twice" in text
    assert "model: is missing" not in text  # a key that is misspelt is there


def test_round_trip(tmp_path):
    recipe = recipe_from_yaml(GOOD)
    save_recipe(recipe, tmp_path / "r.yaml")
    again = load_recipe(tmp_path / "r.yaml")
    assert again == recipe
    assert again.to_yaml() == recipe.to_yaml()
    assert again.digest == recipe.digest
    assert again.plan.ranking.corpora == ("demo-math", "demo-code:2")
    assert again.plan.limits.pin == {3: (5, 7)}
    assert [path.name for path in tmp_path.iterdir()] == ["r.yaml"]


def test_a_recipe_of_neurons_and_of_a_calibration_comes_back(tmp_path):
    text = """\
model: demo
corpora: [demo-math]
calibrate: {select: kmeans, clusters: 8, groups: [damage, router], max_memory: [0=20GiB]}
criterion: heapr
granularity: neuron
neuron_scope: layer
width_mode: ragged
width_multiple_of: 4
budget: {remove: 800}
limits: {floor: 8, multiple_of: 4, drop: {1: [2]}}
evaluate: {corpus: demo-code, fitness: [esap, kl], samples: 4}
"""
    recipe = recipe_from_yaml(text)
    save_recipe(recipe, tmp_path / "r.yaml")
    assert load_recipe(tmp_path / "r.yaml") == recipe
    assert recipe.calibrate.groups == ("router", "damage")
    spread, widths = recipe.plan.spread, recipe.plan.budget.widths
    assert (str(spread.scope), widths.multiple_of, recipe.plan.reads_text) == ("layer", 4, True)


def test_locks_among_earlier_constraints_are_those_of_the_plan():
    earlier = EARLIER.replace("constraints:", "constraints:\n  lock: [2]")
    assert recipe_from_yaml(earlier) == recipe_from_yaml(f"{GOOD}lock: [2]\n")
    (problem,) = problems(earlier.replace("lock: [2]", "lock: [x]"))[1]
    assert problem.startswith("line 7: lock: 'x' names no layers")


def test_a_field_stands_at_the_top_or_in_its_section():
    (problem,) = problems(f"{GOOD}sparsity: 20%\n")[1]
    assert problem == "line 11: sparsity: is there twice, at the top and under budget."


@pytest.mark.parametrize("text", [SECTIONS, EARLIER])
def test_the_plan_of_a_recipe_reads_the_same_in_every_place(text):
    recipe = recipe_from_yaml(text)
    assert recipe == recipe_from_yaml(GOOD)
    with pytest.raises(PlanError, match=r"line \d: limits\.pin"):
        recipe_from_yaml(text.replace("5,", "-5,"))


def test_what_init_writes_and_what_is_left_out_measure_the_same():
    """A recipe by hand measures the loss that results are ranked by."""
    by_hand = recipe_from_yaml(f"{GOOD}evaluate: {{corpus: demo-code}}\n")
    model = load_model_index("demo")
    written = recipe_from_yaml(recipe_template(model, "demo", "out"))
    assert by_hand.evaluate.fitness == written.evaluate.fitness


def test_the_size_that_init_names_is_what_its_share_leaves():
    model = load_model_index("demo")
    text = recipe_template(model, "demo", "out")
    share, size = (re.search(rf"{key}: ([^}}]+)}}", text)[1] for key in ("shrink", "target_size"))
    by_share, by_size = (
        count_plan(spec_of(**budget), model)
        for budget in ({"shrink": share}, {"target_size": size})
    )
    assert by_size.allocation == by_share.allocation
    assert sum(by_size.allocation.removed) > 0


def test_what_init_writes_for_own_texts_reads_them_alone():
    texts = ["my text.jsonl", "a, [b].txt"]
    written = recipe_from_yaml(recipe_template(load_model_index("demo"), "demo", "out", texts))
    assert [corpus_weight.corpus for corpus_weight in written.plan.corpus_weights] == texts
    assert written.evaluate.corpus == texts[0]


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(PlanError, match="cannot be written"):
        save_recipe(recipe_from_yaml(GOOD), tmp_path / "absent" / "r.yaml")


def test_the_digest_covers_what_decides_and_not_how_it_is_spelt():
    recipe = recipe_from_yaml(GOOD)

    def digest_of(old, new):
        assert old in GOOD
        return recipe_from_yaml(GOOD.replace(old, new)).digest

    for old, new in [
        ("0.55", "55%"),
        ("export: out", "export: {out: elsewhere, verify: false}"),
        ("export: out\n", ""),
        ('"demo-code:2"', "{corpus: demo-code, weight: 2.0}"),
        ("demo-math,", "demo-math:1,"),
        ("[5, 7]", "[7, 5, 7]"),
        ("schedule: late", "spread: {schedule: late}\ngate: applied"),
        (
            "criterion: reap",
            "criterion: reap\ncalibrate: {device: cpu, batch_size: 2, groups: router}",
        ),
    ]:
        assert digest_of(old, new) == recipe.digest, new
    for old, new in [
        ("model: demo", "model: other"),
        ("0.55", "0.56"),
        ("schedule: late", "schedule: early"),
        ("[5, 7]", "[5]"),
        ("criterion: reap", "criterion: reap\ntokens: 1000"),
        ('"demo-code:2"', "demo-code"),
        ("criterion: reap", "criterion: reap\ncalibrate: {packing: pad}"),
        ("protect: [0]", "protect: [0]\n  floor: 4"),
        ("criterion: reap", "criterion: reap\nallow_test_set: true"),
    ]:
        assert digest_of(old, new) != recipe.digest, new


def test_numbers_are_taken_as_they_are_written():
    assert recipe_from_yaml(GOOD).plan.budget.sparsity == "0.55"
    assert recipe_from_yaml(GOOD.replace("0.55", "55%")).plan.budget.sparsity == "55%"


# Section -> the request of its action -> options that are no keys: the plan, a key of another name,
# or what a recipe decides otherwise.
SECTIONS = [
    (CalibrateOptions, CalibrateRequest, {"corpus", "resume"}),
    (SensitivitySection, SensitivityRequest, {"calibrated_on", "sparsities", "bits"}),
    (RepairSection, RepairRequest, {"plan"}),
    (EvaluateSection, EvaluateRequest, {"plans", "measures"}),
    (ExportSection, ExportRequest, {"plan", "llama_cpp", "plan_model", "plan_model_revision"}),
]


@pytest.mark.parametrize(("section", "request_kind", "no_keys"), SECTIONS)
def test_a_recipe_has_every_option_of_its_actions(section, request_kind, no_keys):
    elsewhere = {*flat_fields(Recipe), *Machine.model_fields, *CalibrateOptions.model_fields}
    fields = flat_fields(request_kind)
    options = {name for name in fields if option_of(fields[name])}
    assert options - elsewhere - section.model_fields.keys() == no_keys


def test_a_section_comes_before_what_it_shares_with_the_recipe():
    text = f"{GOOD}seq_len: 64\nseed: 7\nrepair: {{seed: 0, tokens: 128}}\n"
    recipe = recipe_from_yaml(f"{text}evaluate: {{corpus: demo-code, seed: 0}}\n")
    fit = repair_request(recipe, Machine(), keep_all(load_model_index("demo")))
    assert (fit.seed, fit.seq_len, fit.tokens) == (0, 64, 128)
    asked = evaluate_request(recipe, Machine())
    # Its samples are drawn as by the command alone, whatever calibrations read.
    assert (asked.seed, asked.seq_len, asked.samples) == (0, None, 64)


def test_a_sensitivity_is_measured_beside_a_repair():
    recipe = recipe_from_yaml(
        "model: demo\ncorpora: [demo-code]\ncriterion: reap\nbudget: {sparsity: 50%}\n"
        "schedule: measured\nsensitivity: {corpus: demo-math}\nrepair: {}\n"
    )
    asked = sensitivity_request(recipe, Machine())
    assert (asked.sparsities, asked.repair) == (("50%",), False)


def test_a_repair_reads_the_corpora_of_the_recipe_where_they_lie():
    # A plan records the name of a file alone, which is found in its own folder only.
    text = GOOD.replace("demo-math,", "texts/math.jsonl:3,") + "repair: {}\n"
    recipe, plan = recipe_from_yaml(text), keep_all(load_model_index("demo"))
    asked = repair_request(recipe, Machine(), plan)
    assert asked.corpora == recipe.plan.ranking.corpora
    assert "texts/math.jsonl:3" in asked.corpora
    own = recipe_from_yaml(f"{GOOD}repair: {{corpora: [demo-stories]}}\n")
    assert repair_request(own, Machine(), plan).corpora == ("demo-stories",)


def test_an_evaluation_asks_what_its_own_section_says():
    text = f"{GOOD}calibrate: {{answers: own, answer_tokens: 9}}\n"
    text += (
        "evaluate: {corpus: 'rows.jsonl,answer=sum,check=number', questions: 8, stops: ['Q:']}\n"
    )
    recipe = recipe_from_yaml(text)
    asked = evaluate_request(recipe, Machine()).sample_settings(recipe.evaluate.corpus).questions
    # The limit of the answers that calibrate is another one.
    assert (asked.check.name, asked.questions, asked.answer_tokens) == ("number", 8, 256)
    assert asked.stops == ("Q:",)
    assert recipe_from_yaml(recipe.to_yaml()) == recipe
