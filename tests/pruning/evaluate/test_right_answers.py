"""Right answers: what models write to held-out questions, by brute force, kept and found again."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from nonuniform_cases import keeps_of, plan_of
from oracles import greedy

from analysis.corpora.checks import CHECKS
from analysis.drain import drain
from analysis.families.listing import FAMILIES
from analysis.model.generation import greedy_answers
from analysis.model.opening import load_model_index
from builders.tokens import answers
from families.configs import BY_NAME
from families.physical import physically_pruned
from families.tiny_models import tiny_model
from pruning.engine import run as run_module
from pruning.engine.answering import Examination, run_answers_to
from pruning.engine.run import Evaluations, run_evaluations
from pruning.measures.drawn_samples import DrawnSamples
from pruning.measures.questions import Questions
from pruning.measures.result import RIGHT
from pruning.measures.right_answers import RightAnswers, right_difference
from pruning.measures.sample_settings import QuestionSettings
from pruning.plan.plan import keep_all
from pruning.records.evaluation import evaluation_table

CASE = BY_NAME["mixtral"]
PROMPTS = ((5, 17, 40, 3), (9,), (11, 12, 13, 14, 15, 16), (20, 21), (30, 7, 8))
LENGTH = 6


class Numbers:
    eos_token_id = None

    def decode(self, token_ids, *, skip_special_tokens):
        return " ".join(map(str, token_ids))


alone = partial(greedy, count=LENGTH)


def tiny():
    model = tiny_model(CASE)
    model.generation_config.eos_token_id = None
    return model


def text_of(ids):
    return Numbers().decode(ids, skip_special_tokens=False)


def questions_of(expected, rule="exact", **settings):
    settings = {"answer_tokens": LENGTH, **settings}
    return Questions(
        "text", PROMPTS, tuple(expected), QuestionSettings(CHECKS[rule], **settings), Numbers()
    )


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixtral") / "model"
    tiny().save_pretrained(path)
    return load_model_index(str(path))


@pytest.fixture(scope="module")
def plan(described):
    return plan_of(described, CASE, keeps_of(CASE))


@pytest.fixture(scope="module")
def written(plan):
    """What the original and the physically pruned model write, by prompt."""
    full = [text_of(alone(tiny(), prompt)) for prompt in PROMPTS]
    small = physically_pruned(tiny(), CASE, plan.kept)
    pruned = [text_of(alone(small, prompt)) for prompt in PROMPTS]
    assert full != pruned
    return full, pruned


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_answers_are_those_of_a_plain_loop_however_they_are_batched(written, plan, batch_size):
    full, pruned = written
    model, family = tiny(), FAMILIES[CASE.model_type]
    for asked, expected in ((None, full), (plan, pruned)):
        # Wrong for the second: one token more than it writes.
        exam = Examination(model, family, questions_of([expected[0], "1", *expected[2:]]))
        exam = Examination(model, family, exam.questions, batch_size)
        marked = drain(run_answers_to(exam, asked))
        assert marked.right == (1, 0, 1, 1, 1)
        assert marked.unfinished == len(PROMPTS)  # the model has no end of text
    assert [text_of(alone(model, prompt)) for prompt in PROMPTS] == full  # nothing stays masked


def test_an_answer_ends_at_a_stop_and_at_the_end_of_text():
    model, family = tiny(), FAMILIES[CASE.model_type]
    ids = [alone(model, prompt) for prompt in PROMPTS]
    stop = f" {ids[0][2]}"
    short = text_of(ids[0]).split(stop)[0]
    expected = [short, *(text_of(id_).split(stop)[0] for id_ in ids[1:])]
    exam = Examination(model, family, questions_of(expected, stops=(stop,)))
    marked = drain(run_answers_to(exam, None))
    assert marked.right == (1,) * 5
    assert marked.unfinished == sum(stop not in text_of(id_) for id_ in ids) < 5
    (two,) = greedy_answers(model, PROMPTS[:1], LENGTH, lambda new: len(new) > 1)
    assert two == ids[0][:2]
    model.generation_config.eos_token_id = ids[0][1]
    marked = drain(run_answers_to(Examination(model, family, questions_of(["1"] * 5)), None))
    assert marked.unfinished == sum(ids[0][1] not in id_ for id_ in ids)


def test_prompts_of_models_with_a_state_are_never_padded():
    model = tiny_model(BY_NAME["qwen3_next"])
    prompts = ((1, 2), (3,), (4, 5), (6,), (7, 8))
    settings = QuestionSettings(CHECKS["exact"])
    asked = Questions("text", prompts, ("",) * 5, settings, Numbers())
    exam = Examination(model, FAMILIES["qwen3_next"], asked, 2)
    assert list(exam.batches()) == [[1, 3], [0, 2], [4]]
    exam = Examination(tiny(), FAMILIES[CASE.model_type], asked, 2)
    assert list(exam.batches()) == [[1, 3], [0, 2], [4]]
    exam = Examination(tiny(), FAMILIES[CASE.model_type], asked, 4)
    assert list(exam.batches()) == [[1, 3, 0, 2], [4]]


@pytest.fixture
def work(described, plan, ask):
    """Evaluations of a plan and of the original model, by what is expected of questions."""

    def make(expected, measures=("nll",), **settings):
        plain = ask(described, [plan, keep_all(described)], measures)
        questions = expected and questions_of(expected, **settings)
        drawn = DrawnSamples(answers((9, 5, 12)), {"seed": 42, "drawn": "some"}, "", questions)
        return Evaluations(described, plain.plans, [drawn], measures, plain.settings, plain.store)

    return make


def phases(task):
    steps = []
    return drain(task, steps.append), [step.phase for step in steps]


def test_answers_are_recorded_with_the_loss_and_by_document(written, work, plan):
    full, pruned = written
    expected = [pruned[0], full[1], full[2], "1", "1"]
    asked = work(expected)
    (record, whole), steps = phases(run_evaluations(asked))
    marks = [tuple(int(e == w) for e, w in zip(expected, texts, strict=True)) for texts in written]
    assert (record.right_answers.full_right, record.right_answers.right) == tuple(marks)
    assert whole.right_answers.right == record.right_answers.full_right == marks[0]
    assert record.metrics[RIGHT].mean == sum(marks[1]) / 5
    assert record.full[RIGHT].mean == whole.metrics[RIGHT].mean == sum(marks[0]) / 5
    assert record.right_answers.full_share == sum(marks[0]) / 5
    assert {"nll", RIGHT} == set(record.metrics)
    # Each model writes once, in three batches: the plan that keeps all is the original.
    assert steps.count("writing answers") == 2 * (3 + 1)
    table = evaluation_table([record]).set_index("measure")
    assert table.loc[RIGHT, ["num_samples", "num_documents"]].tolist() == [5, 5]
    assert table.loc[RIGHT, "full"] == record.full[RIGHT].mean
    assert record in asked.store.records()


def test_a_share_has_the_interval_of_wilson():
    answers = {"check": "exact", "answer_tokens": 8, "stops": (), "digest": "", "left_out": 0}
    answers |= {"unfinished": 0, "full_unfinished": 0}
    none = RightAnswers(**answers, right=(0, 0, 0), full_right=(1, 1, 1))
    # z^2 = 3.8415; 0 of 3: from 0 to z^2 / (3 + z^2), and 3 of 3 the other way round.
    assert (none.metric.mean, none.metric.low) == (0, 0)
    assert none.metric.high == pytest.approx(3.8415 / 6.8415, abs=1e-4)
    assert none.full_metric.low == pytest.approx(3 / 6.8415, abs=1e-4)
    assert none.full_metric.high == pytest.approx(1)
    # 81 of 263: .2553 to .3662 (Newcombe, Stat. Med. 17, 1998, table I).
    some = RightAnswers(**answers, right=(1,) * 81 + (0,) * 182, full_right=(1,) * 263)
    assert (some.metric.low, some.metric.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    one = RightAnswers(**answers, right=(1,), full_right=(0,))
    assert (one.metric.low, one.metric.high) == (None, None)


def test_the_interval_of_a_difference_resamples_documents():
    # 3 of 4 right against 1 of 4; paired, two of four differ: draws of 4 have a mean of 0 to 1.
    apart = right_difference((1, 1, 1, 0), (0, 1, 0, 0))
    assert apart.mean == 0.5
    rng = np.random.default_rng(42)
    draws = np.array([1, 0, 1, 0])[rng.integers(4, size=(1000, 4))].mean(axis=1)
    assert (apart.low, apart.high) == pytest.approx(np.percentile(draws, (2.5, 97.5)))
    assert not apart.is_clear


def test_only_answers_are_added_to_a_known_loss(work):
    before, _ = drain(run_evaluations(work(None)))
    (after, _), steps = phases(run_evaluations(work(["1"] * 5)))
    assert after.record_id == before.record_id
    assert after.metrics["nll"] == before.metrics["nll"]
    assert after.samples == before.samples
    assert "running the original model" not in steps
    assert RIGHT not in before.metrics


def test_known_answers_are_found_and_those_to_other_questions_are_not(work, monkeypatch):
    first = drain(run_evaluations(work(["1"] * 5)))
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "load_model", None)  # calling it would fail
        assert drain(run_evaluations(work(["1"] * 5))) == first
        assert drain(run_evaluations(work(None))) == first
    for changed in ({"rule": "contains"}, {"answer_tokens": 2}, {"stops": ("9",)}):
        (record, _) = drain(run_evaluations(work(["1"] * 5, **changed)))
        assert record.right_answers.digest != first[0].right_answers.digest
        assert record.record_id == first[0].record_id


def test_what_the_original_answered_is_found_in_records_of_other_plans(work, described):
    asked = work(["1"] * 5)
    alone = replace(asked, plans=asked.plans[:1])
    (first,), steps = phases(run_evaluations(alone))
    assert steps.count("writing answers") == 2 * (3 + 1)
    other = plan_of(described, CASE, [CASE.smallest] * len(CASE.sparse))
    (second,), steps = phases(run_evaluations(replace(asked, plans=[other])))
    assert steps.count("writing answers") == 3 + 1
    assert second.right_answers.full_right == first.right_answers.full_right
