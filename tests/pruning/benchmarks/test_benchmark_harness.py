"""The harness on the demo model: its numbers from plain forwards, masked as exported, and ended."""

import re
import threading
from contextlib import contextmanager
from dataclasses import replace

import lm_eval.api.task
import pytest
import torch
from exports import export
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from analysis.calibration.loading import CalibrationSettings, load_model, load_tokenizer
from analysis.demo.held_out import benchmark_texts
from analysis.demo.tasks import LOCAL_TASKS, answer_questions, choice_questions, write_task
from analysis.drain import drain
from analysis.errors import CorpusError
from analysis.model.layer_costs import layer_costs
from analysis.model.moe_model import ModelRef
from analysis.model.opening import load_model_index
from analysis.progress import cost
from pruning.benchmarks.imports import harness_scores
from pruning.benchmarks.record import FULL, BenchmarkStore, candidate_of_export, candidate_of_plan
from pruning.benchmarks.run import (
    Benchmarks,
    HarnessSettings,
    _Reporting,
    run_benchmarks,
    run_harness,
)
from pruning.plan.plan import Provenance, PruningPlan, fit_plan, keep_all, model_ref
from pruning.surgery.manifest import read_manifest

EXACT, CHOICE = LOCAL_TASKS["demo-math-exact"], LOCAL_TASKS["demo-code-mc"]
LIMIT = 6
SETTINGS = CalibrationSettings(seq_len=2, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def loaded(demo):
    return load_model(demo, SETTINGS)


@pytest.fixture(scope="module")
def tokenizer(demo):
    return load_tokenizer(demo)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    local = tuple(write_task(task, folder).folder for task in (EXACT, CHOICE))
    return HarnessSettings((EXACT.name, CHOICE.name), local, limit=LIMIT, batch_size=4)


@pytest.fixture(scope="module")
def scores(loaded, tokenizer, asked):
    results = drain(run_harness(loaded, tokenizer, asked))
    return {(score.task, score.metric): score for score in harness_scores(results)}


def by_the_harness(model, asked):
    manager = TaskManager(include_defaults=False, include_path=list(map(str, asked.local)))
    words = {"limit": asked.limit, "apply_chat_template": asked.chat_template}
    found = simple_evaluate(model=model, tasks=list(asked.tasks), task_manager=manager, **words)
    return found["results"]


def test_the_numbers_are_those_of_the_harness_alone(loaded, tokenizer, asked):
    few, steps = replace(asked, limit=3), []
    ours = drain(run_harness(loaded, tokenizer, few), steps.append)
    model = HFLM(pretrained=loaded, tokenizer=tokenizer, batch_size=asked.batch_size)
    assert ours["results"] == by_the_harness(model, few)
    last = {step.phase: (step.done, step.total) for step in steps}
    # Three questions of four choices, and three answers.
    assert last["weighing choices"][1] == 12
    assert last["writing answers"] == (3, 3)
    wholes = [step.whole for step in steps if step.whole]
    done = [sum(whole.done.values()) for whole in wholes]
    assert done == sorted(done) and wholes[-1].fraction == 1
    assert wholes[0].total.keys() == {"multiply", "answer"}  # answers are written first
    assert wholes[0].total["multiply"] < wholes[-1].total["multiply"]


def test_conversations_are_formatted_as_by_the_harness_alone(loaded, tokenizer, asked):
    few = replace(asked, tasks=(EXACT.name,), limit=2, chat_template=True)
    stock = HFLM(pretrained=loaded, tokenizer=tokenizer, batch_size=4)
    assert drain(run_harness(loaded, tokenizer, few))["results"] == by_the_harness(stock, few)
    ours = _Reporting(loaded, tokenizer, few, print)
    talk = [{"role": role, "content": role} for role in ("system", "user", "assistant")]
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    for template in ("", refusing):
        with changed_template(tokenizer, template + tokenizer.chat_template):
            for prompts in (True, False):
                expected = stock.apply_chat_template(talk, prompts)
                assert ours.apply_chat_template(talk, prompts) == expected
    branching = "{% if enable_thinking | default(true) %}<think>{% endif %}"
    asked = replace(few, template_args={"enable_thinking": False})
    quiet = _Reporting(loaded, tokenizer, asked, print)
    expected = stock.apply_chat_template(talk, True)
    with changed_template(tokenizer, branching + tokenizer.chat_template):
        assert ours.apply_chat_template(talk, True) == f"<think>{expected}"
        assert quiet.apply_chat_template(talk, True) == expected
    endless = changed_template(tokenizer, "{{ 'x' * 10**10 }}")
    with endless, pytest.raises(CorpusError, match=r"memory\); leave out --chat-template.$"):
        drain(run_harness(loaded, tokenizer, few))


@contextmanager
def changed_template(tokenizer, template):
    before, tokenizer.chat_template = tokenizer.chat_template, template
    try:
        yield
    finally:
        tokenizer.chat_template = before


def uneven_plan(demo):
    """Layers that keep 24, 27 and 30 of 32 experts, twice each: 30 of 192 go."""
    kept = {layer.index: tuple(range(24 + 3 * (layer.index % 3))) for layer in demo.layers}
    made = Provenance(criterion="by-hand", budget={"removed": 30})
    return fit_plan(PruningPlan(model_ref(demo), kept, made), demo)


def work_on(model, candidates, asked, folder):
    return Benchmarks(model, candidates, asked, SETTINGS, BenchmarkStore([folder]))


def test_masked_and_exported_get_the_same_scores(demo, asked, tmp_path):
    plan = uneven_plan(demo)
    manifest = export(demo, plan, tmp_path / "out")
    pruned = load_model_index(str(tmp_path / "out"))
    masked = [(candidate_of_plan(demo, plan), plan)]
    cut = [(candidate_of_export(pruned, manifest, demo, routing=None), None)]
    (first,) = drain(run_benchmarks(work_on(demo, masked, asked, tmp_path)))
    (second,) = drain(run_benchmarks(work_on(pruned, cut, asked, tmp_path)))
    assert len(first.scores) == 3
    assert first.scores == second.scores
    assert (first.candidate, first.plan_digest) == (second.candidate, second.plan_digest)
    assert first.plan == second.plan
    assert first.model == second.model == model_ref(demo)
    assert (first.ran, second.ran.name) == (model_ref(demo), "out")
    assert first.record_id != second.record_id


def test_an_export_without_its_source_is_known_by_its_manifest(demo, tmp_path):
    plan = uneven_plan(demo)
    export(demo, plan, tmp_path / "out")
    pruned = load_model_index(str(tmp_path / "out"))
    alone = candidate_of_export(pruned, read_manifest(tmp_path / "out"), routing=None)
    known = candidate_of_plan(demo, plan)
    assert alone.model == ModelRef("demo", demo.identity)
    assert alone.plan.experts_after == known.plan.experts_after == 162
    assert alone.plan.removed == pytest.approx(known.plan.removed) == 30 / 192
    assert alone.plan.bytes_after == known.plan.bytes_after
    assert alone.candidate == known.candidate == "by-hand, 16%"


def test_candidates_to_come_are_expected_to_cost_as_the_first(demo, asked, tmp_path):
    few, plan = replace(asked, tasks=(CHOICE.name,), limit=2), uneven_plan(demo)
    candidates = [
        (candidate_of_plan(demo, plan), of) for plan, of in ((keep_all(demo), None), (plan, plan))
    ]
    steps = []
    drain(run_benchmarks(work_on(demo, candidates, few, tmp_path)), steps.append)
    wholes = [step.whole for step in steps if step.whole and step.phase == "weighing choices"]
    texts = cost("multiply", 1) * sum(layer_costs(demo).active.values()) / 4
    characters = wholes[0].total["multiply"] / 2 / texts
    assert characters == pytest.approx(round(characters)) and characters > 100
    assert all(whole.total == pytest.approx(wholes[0].total, rel=0.1) for whole in wholes)
    done = [whole.done.get("multiply", 0.0) for whole in wholes]
    assert done == sorted(done) and wholes[-1].fraction > 0.9


def test_what_is_known_is_not_run_again(demo, asked, tmp_path, monkeypatch):
    only = replace(asked, tasks=(CHOICE.name,), limit=2)
    plan = keep_all(demo)
    candidates = [(candidate_of_plan(demo, plan), None)]
    (first,) = drain(run_benchmarks(work_on(demo, candidates, only, tmp_path)))
    assert first.candidate == FULL
    monkeypatch.setattr("pruning.benchmarks.run.load_model", None)
    assert drain(run_benchmarks(work_on(demo, candidates, only, tmp_path))) == [first]
    # Another version of the task is another task.
    other = replace(work_on(demo, candidates, only, tmp_path), versions={CHOICE.name: "other"})
    assert other.missing(first) == (CHOICE.name,)


def test_an_ended_run_leaves_no_thread_and_nothing_changed(loaded, tokenizer, asked):
    bar = lm_eval.api.task.tqdm
    before = threading.active_count()
    task = run_harness(loaded, tokenizer, asked)
    steps = [next(task) for _ in range(4)]
    assert steps[-1].phase in ("weighing choices", "writing answers")
    task.close()
    assert threading.active_count() == before
    assert lm_eval.api.task.tqdm is bar


def log_likelihood(loaded, tokenizer, prompt, continuation):
    """The sum over the continuation's tokens, of one text alone."""
    before, whole = tokenizer.encode(prompt), tokenizer.encode(prompt + continuation)
    with torch.no_grad():
        logits = loaded(torch.tensor([whole])).logits[0].double()
    logs = torch.log_softmax(logits, dim=-1)
    return sum(float(logs[place - 1, whole[place]]) for place in range(len(before), len(whole)))


def test_choices_are_scored_as_by_plain_forwards(demo, tokenizer, asked):
    loaded = load_model(demo, SETTINGS)  # whose experts give nothing: the demo knows all answers
    with torch.no_grad():
        for name, weight in loaded.named_parameters():
            weight.mul_(0 if name.endswith("experts.down_proj") else 1)
    results = drain(run_harness(loaded, tokenizer, replace(asked, tasks=(CHOICE.name,))))
    scores = {(score.task, score.metric): score for score in harness_scores(results)}
    rows = choice_questions(benchmark_texts(CHOICE.corpus))[:LIMIT]
    right = right_by_length = 0
    for row in rows:
        sums = [
            log_likelihood(loaded, tokenizer, row["prompt"], choice) for choice in row["choices"]
        ]
        means = [sum_ / len(text) for sum_, text in zip(sums, row["choices"], strict=True)]
        right += sums.index(max(sums)) == row["label"]
        right_by_length += means.index(max(means)) == row["label"]
    assert scores[CHOICE.name, "acc"].value == pytest.approx(right / LIMIT)
    assert scores[CHOICE.name, "acc_norm"].value == pytest.approx(right_by_length / LIMIT)
    assert 0 < right < LIMIT


def greedy_answer(loaded, tokenizer, prompt):
    ids = tokenizer.encode(prompt)
    start = len(ids)
    with torch.no_grad():
        while len(ids) < start + 64:
            following = int(loaded(torch.tensor([ids])).logits[0, -1].argmax())
            if following == tokenizer.eos_token_id:
                break
            ids.append(following)
    return tokenizer.decode(ids[start:])


@pytest.mark.slow
def test_answers_are_matched_as_by_greedy_decoding(loaded, tokenizer, scores):
    rows = answer_questions(benchmark_texts(EXACT.corpus))[:LIMIT]
    right = 0
    for row in rows:
        numbers = re.findall(r"-?\d+", greedy_answer(loaded, tokenizer, row["prompt"]))
        right += numbers[-1:] == [row["answer"]]
    score = scores[EXACT.name, "exact_match,answer"]
    assert score.value == pytest.approx(right / LIMIT)
    assert 0 < right < LIMIT
    # The standard error of a share of n: sqrt(p (1 - p) / (n - 1)).
    assert score.stderr == pytest.approx((score.value * (1 - score.value) / (LIMIT - 1)) ** 0.5)
    assert (score.num_samples, score.num_fewshot) == (LIMIT, 0)
