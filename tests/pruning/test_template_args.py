"""Arguments of the chat template: what they change is what a template without a branch writes."""

import json
import shutil

import numpy as np
import pytest
from transformers import AutoTokenizer

from analysis.calibration.manifest import plan_run
from analysis.drain import drain
from analysis.errors import UserError
from analysis.files.shipped import DEMO_CHECKPOINT
from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from pruning.actions.ask import ACTION, AskRequest
from pruning.plan.plan import PruningPlan, keep_all, model_ref
from pruning.records.kept_answers import AnswerStore
from pruning.requests.benchmark import BenchmarkRequest
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.machine import Machine
from pruning.requests.recipe_file import recipe_from_yaml
from pruning.requests.recipe_steps import (
    calibrate_requests,
    evaluate_request,
    other_corpora,
    repair_request,
)
from pruning.spec.base import validated
from pruning.tasks.calibration import prepare_calibration
from pruning.tasks.evaluation import drawn_corpora

TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
ASKED = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
BRANCH = "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
DEPTH = "{{ depth | default('') }}"
BRANCHING = BRANCH + DEPTH + TURNS + ASKED
# What BRANCHING writes for each, by hand.
BY_HAND = {
    "nothing": ({}, "<think>" + TURNS + ASKED),
    "true": ({"enable_thinking": True}, "<think>" + TURNS + ASKED),
    "false": ({"enable_thinking": False}, TURNS + ASKED),
    "both": ({"enable_thinking": False, "depth": "low"}, "low" + TURNS + ASKED),
}


def with_template(folder, template):
    shutil.copytree(DEMO_CHECKPOINT, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("templates")
    with_template(root / "branching", BRANCHING)
    for name, (_, template) in BY_HAND.items():
        with_template(root / name, template)
    talks = [
        [
            {"role": "user", "content": f"What is {number} times 2?"},
            {"role": "assistant", "content": f"The answer is {2 * number}."},
        ]
        for number in range(9)
    ]
    lines = (json.dumps({"messages": talk}) for talk in talks)
    (root / "talks.jsonl").write_text("\n".join(lines))
    (root / "text.jsonl").write_text(json.dumps({"text": "No conversation. " * 40}))
    return root


def calibration(root, model, corpus="talks.jsonl", **fields):
    fields = {"tokens": 64, "seq_len": 32, "device": "cpu", **fields}
    request = CalibrateRequest(model=str(root / model), corpus=str(root / corpus), **fields)
    described, sequences, settings = drain(prepare_calibration(request))
    return sequences, plan_run(described, sequences, settings)


def evaluation(root, model, **fields):
    request = EvaluateRequest(
        model=str(root / model), corpora=(str(root / "talks.jsonl"),), samples=4, **fields
    )
    described = load_model_index(request.model)
    (drawn,) = drain(drawn_corpora(request, described, stats_store(root / "stats")))
    return drawn


def rows_of(sequences):
    return [row.tolist() for row in sequences.rows]


@pytest.mark.parametrize(("arguments", "template"), BY_HAND.values(), ids=BY_HAND)
@pytest.mark.parametrize("count", ["all", "response"])
def test_tokens_are_those_of_the_template_by_hand(root, arguments, template, count):
    name = next(name for name, pair in BY_HAND.items() if pair == (arguments, template))
    found, run = calibration(root, "branching", template_args=arguments, count=count)
    wanted, by_hand = calibration(root, name, count=count)
    assert rows_of(found) == rows_of(wanted)
    assert found.digest == wanted.digest
    assert run.corpora[0].prepared.get("template_args", {}) == arguments
    assert "template_args" not in by_hand.corpora[0].prepared
    plain, before = calibration(root, "branching", count=count)
    differs = arguments.get("enable_thinking") is False
    assert (rows_of(plain) != rows_of(found)) == differs
    # Runs of other arguments are other runs, and those without are what they were.
    assert (before.run_id != run.run_id) == differs


def test_evaluations_read_and_record_them(root):
    arguments = {"enable_thinking": False}
    found, wanted = (
        evaluation(root, "branching", template_args=arguments),
        evaluation(root, "false"),
    )
    assert rows_of(found.sequences) == rows_of(wanted.sequences)
    assert found.corpus["template_args"] == arguments
    plain = evaluation(root, "branching")
    assert "template_args" not in plain.corpus
    assert plain.corpus["digest"] != found.corpus["digest"]


def test_answers_begin_where_the_generation_prompt_ends(root):
    tokenizer = AutoTokenizer.from_pretrained(root / "false")
    drawn = evaluation(root, "branching", template_args={"enable_thinking": False}).sequences
    answer = tokenizer.decode(drawn.rows[0][np.asarray(drawn.counted[0])])
    assert answer.startswith("The answer is ")


def answers(root, model, **fields):
    """What the original and a pruned model answer; the record, and the fields of its lens."""
    described = load_model_index(str(root / model))
    kept = {layer.index: tuple(range(0, layer.num_experts, 2)) for layer in described.layers}
    plan = PruningPlan(model_ref(described), kept).to_dict()
    given = {"prompt": "2 + 2?", "lens": True, "plans": (plan,)}
    stats = root / f"answers of {model}"
    fields |= {"model": str(root / model), "stats_dir": stats, "max_new_tokens": 4}
    result = drain(ACTION.run(validated(AskRequest, given | fields)))
    (record,) = AnswerStore([stats]).records()
    return [answer.ids for answer in result.answers], record, result.lens.asked.fields


def test_answers_follow_and_record_them(root):
    arguments = {"enable_thinking": False}
    given, record, again = answers(root, "branching", template_args=arguments)
    assert given == answers(root, "false")[0]
    assert record.settings["template_args"] == again["template_args"] == arguments
    others, record, again = answers(root, "true")
    assert others != given
    assert "template_args" not in {**record.settings, **again}
    with pytest.raises(UserError, match="no argument 'nothing'"):
        answers(root, "branching", template_args={"nothing": 1})
    with pytest.raises(UserError, match="without --raw"):
        answers(root, "branching", template_args=arguments, raw=True)


def test_texts_have_no_template(root):
    found, run = calibration(root, "branching", "text.jsonl", template_args={"nothing": 1})
    assert rows_of(found) == rows_of(calibration(root, "branching", "text.jsonl")[0])
    assert "template_args" not in run.corpora[0].prepared


def test_a_name_that_the_template_does_not_read_is_refused(root):
    with pytest.raises(UserError, match=r"chat template has no argument 'enable_thinkin'; leave"):
        calibration(root, "branching", template_args={"enable_thinkin": False})


def test_benchmarks_take_them_with_the_chat_format_only():
    with pytest.raises(UserError, match="add --chat-template"):
        validated(BenchmarkRequest, {"model": "demo", "template_args": ("a=1",)})


def test_a_recipe_gives_them_to_every_step():
    text = (
        "schema_version: 1\nmodel: demo\ncorpora: [demo-math]\ncriterion: reap\n"
        "budget: {sparsity: 50%}\nrepair: {}\nevaluate: {corpus: demo-math}\n"
    )
    plain = recipe_from_yaml(text)
    keys = "template_args: {enable_thinking: false, depth: low}\nskip_bad_rows: 5\n"
    recipe = recipe_from_yaml(f"{text}{keys}")
    arguments = {"enable_thinking": False, "depth": "low"}
    machine, plan = Machine(), keep_all(load_model_index("demo"))
    (calibrated,) = calibrate_requests(recipe, machine)
    repair = repair_request(recipe, machine, plan)
    (reading,) = repair.readings(plan, {"demo-math": ""})
    asked = (calibrated, evaluate_request(recipe, machine), reading)
    assert [request.template_args for request in asked] == [arguments] * 3
    assert [
        other_corpus.skip_bad_rows for other_corpus in (*asked, *other_corpora(recipe, machine))
    ] == [5] * 4
    assert plain.digest != recipe.digest
    assert "template_args" not in plain.to_yaml()
